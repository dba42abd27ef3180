"""Tidy tables from arrays, for tests that know what the numbers say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

IMAGE_METRICS = ("mse_input", "psnr", "assigned_mse_input", "assigned_psnr")


def cube(means: Sequence[float], units: int = 1, spread: float = 1e-5, seeds: int = 12) -> np.ndarray:
    """``[points, seeds, units]`` around the means."""
    by_seed, by_unit = np.linspace(-1, 1, seeds)[:, None], np.linspace(-1, 1, units) if units > 1 else np.zeros(1)
    return np.asarray(means, dtype=float).reshape(-1, 1, 1) + spread * (by_seed + by_unit)


def rows(
    defense: str,
    metric: str,
    values: ArrayLike,
    *,
    points: Sequence[float] | None = None,
    sweep: str | None = None,
    attack: str | None = None,
    void: bool = False,
    first_seed: int = 0,
    cell: tuple[str, str] = ("digits16", "small"),
    where: dict[str, str] | None = None,
    distinct: bool = False,
) -> pd.DataFrame:
    """A metric of one defense.

    Args:
        values: ``[points, seeds, units]``; units are images, victims, or nothing, by the metric. Of a curve the points
            are the steps. ``images`` per batch are 2, and both have their batch's number.
    """
    measured = np.asarray(values, dtype=float)
    curve = metric == "loss_curve" or metric.startswith("noise_std/")
    axis = "step" if curve else "image" if metric in IMAGE_METRICS else "victim" if attack or sweep else None
    if metric == "final_loss":
        axis = None
    if axis == "image":
        measured = measured.repeat(2, axis=2)
    listed = []
    for (point, seed, unit), value in np.ndenumerate(measured):
        row = {
            "dataset": cell[0],
            "model": cell[1],
            "defense": defense,
            "attack": attack,
            "void": void,
            "distinct": distinct,
            "seed": first_seed + seed,
            "status": "diverged" if np.isnan(value) else "ok",
            "metric": metric,
            "axis": axis,
            "index": point if curve else unit,
            "value": value,
        }
        if sweep and points is not None:
            row[f"setting.{sweep}"] = points[point]
        listed.append(row | {f"setting.{key}": value for key, value in (where or {}).items()})
    frame = pd.DataFrame(listed)
    if axis != "image":
        return frame
    victims = frame[frame["index"] % 2 == 0]
    return pd.concat([frame, victims.assign(metric="alignment", axis="victim", index=victims["index"] // 2, value=1.0)])


def table(*parts: pd.DataFrame) -> pd.DataFrame:
    """One tidy table."""
    return pd.concat(parts, ignore_index=True)
