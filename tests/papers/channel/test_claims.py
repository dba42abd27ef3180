"""The channel paper's claims on tables that are made so that each verdict is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.papers.verdicts import Case, Tables, judge
from tests.report.tables import cube, rows, table

from leakbench.papers.channel.claims import FULL_SIZE, _Plane
from leakbench.papers.channel.common import printed
from leakbench.report.evidence import Evidence

judged = partial(judge, "channel")
CELLS = (("cifar10", "lenet5"), ("fashion", "lenet5"))
KAPPAS = (50.0, 100.0, 200.0, 300.0)
CHANNELS = ("natural", "white", "personalized")
BLIND = "auc/lira"  # the attack that is weaker on undefended models


def measured(
    defense: str,
    metrics: Mapping[str, Sequence[float]],
    *,
    points: Sequence[float] = KAPPAS,
    sweep: str | None = "kappa",
    cells: Sequence[tuple[str, str]] = CELLS,
    units: int = 1,
    **options: Any,
) -> pd.DataFrame:
    """Metrics of a defense at every point, for every data set and model."""
    return table(
        *(
            rows(defense, name, cube(means, units, spread=1e-3), points=points, sweep=sweep, cell=cell, **options)
            for cell in cells
            for name, means in metrics.items()
        )
    )


UNDEFENDED = {
    "accuracy": [0.8],
    "auc/threshold": [0.9],
    BLIND: [0.6],
    "auc/threshold_noisy": [0.99],
    "inversion_mse": [0.1],
}


def undefended() -> pd.DataFrame:
    return measured("none", UNDEFENDED, points=[0.0], sweep=None)


def release(sign: int = 1, changes: Mapping[str, Sequence[float]] | None = None) -> dict[str, Sequence[float]]:
    """What a channel does to released models over kappa: as the paper says, or the other way round."""
    found: dict[str, Sequence[float]] = {
        "accuracy": [0.4, 0.5, 0.6, 0.7],
        "auc/threshold": [0.52, 0.54, 0.56, 0.58],
        "auc/threshold_noisy": [0.5] * 4,
        BLIND: [0.7, 0.6, 0.55, 0.5],
        "inversion_mse": [0.8, 0.7, 0.6, 0.5],
        "inversion_psnr": [5, 6, 7, 8],
        "inversion_ssim": [0.1, 0.2, 0.3, 0.4],
        "inversion_cosine": [0.1, 0.2, 0.3, 0.4],
    }
    found |= changes or {}
    return {name: means[::sign] for name, means in found.items()}


def released(sign: int = 1) -> Tables:
    tables = {channel: measured(channel, release(sign)) for channel in CHANNELS}
    tables["undefended_release"] = undefended()
    tables["steps"] = measured("natural-300", release(sign), sweep="steps", points=[10.0, 20.0, 30.0, 40.0])
    return tables


def plane(dp: Mapping[str, Sequence[float]]) -> Tables:
    """The channels' points, and those of both DP methods."""
    both = [measured(label, dp, sweep="multiplier") for label in ("dp-sgd", "dp-psac")]
    return released() | {"dp": table(*both)}


WORSE_DP = {"accuracy": [0.3] * 4, "auc/threshold": [0.51] * 4, BLIND: [0.5] * 4, "inversion_mse": [0.2] * 4}
BETTER_DP = {"accuracy": [0.75] * 4, "auc/threshold": [0.6] * 4, BLIND: [0.5] * 4, "inversion_mse": [5.0] * 4}


def inverted(natural: Sequence[float], others: Sequence[float], likeness: int = 1) -> Tables:
    parts = []
    for defense, errors in (("natural-all", natural), ("white-all", others), ("personalized-all", others)):
        parts.append(measured(defense, {"mse_input": errors}, units=3, attack="ig"))
        order = likeness if defense == "personalized-all" else 1
        liked = {name: [0.1, 0.2, 0.3, 0.4][::order] for name in ("psnr", "ssim", "cosine")}
        parts.append(measured(defense, liked, units=3, attack="ig"))
    return {"inversion": table(*parts)}


def guessing(guess: float) -> pd.DataFrame:
    """Reference attackers of whom the mean image errs least."""
    one: dict[str, Any] = {"points": [0.0], "sweep": None, "units": 3}
    guesses = {"mean_image": guess, "grey": 2 * guess}
    return table(*(measured("none", {"mse_input": [error]}, attack=who, **one) for who, error in guesses.items()))


def own_grids(natural: Sequence[float], others: Sequence[float]) -> Tables:
    """Errors on a grid that holds the paper's of every channel."""
    every = [50.0, 100.0, 200.0, 300.0, 500.0, 800.0, 1000.0, 1500.0]
    parts = [
        measured(defense, {"mse_input": [*errors, *errors]}, points=every, units=3, attack="ig")
        for defense, errors in (("natural-all", natural), ("white-all", others), ("personalized-all", others))
    ]
    return {"inversion": table(*parts)} | knowing(natural, others, [*every])


def knowing(natural: Sequence[float], others: Sequence[float], points: Sequence[float] = KAPPAS) -> Tables:
    """Attackers who know the noise, with the errors of those who do not by default."""
    times = len(points) // len(natural)
    parts = [
        measured(label, {"mse_input": [*errors] * times}, points=points, units=3, attack="ig-posterior")
        for label, errors in (("natural-all", natural), ("white-all", others), ("personalized-all", others))
    ]
    return {"inversion_adaptive": table(*parts)}


def channels(natural: Sequence[float], others: Sequence[float]) -> Tables:
    return inverted(natural, others) | knowing(natural, others)


def trained(before: float, after: float) -> Tables:
    one: dict[str, Any] = {"points": [0.0], "sweep": None, "units": 3, "attack": "ig"}
    return {
        experiment: measured("none", {"mse_input": [error]}, **one)
        for experiment, error in (("inversion", before), ("inversion_trained", after))
    }


def adaptive(errors: Sequence[float]) -> Tables:
    defenses = ("natural-all", "white-all", "personalized-all")
    parts = [measured(each, {"mse_input": errors}, units=3, attack="ig-posterior") for each in defenses]
    parts += [measured(each, {"mmse": [0.3, 0.2, 0.1, 0.05]}) for each in defenses]
    return inverted(FALLING, LARGER) | {"inversion_adaptive": table(*parts)}


def batches(
    dp: Sequence[float], none: Sequence[float], constant: Sequence[float], experiment: str = "batch_size"
) -> Tables:
    sizes = [1.0, 2.0, 4.0, 8.0]
    return {
        experiment: table(
            *(
                measured(label, {"mse_input": means}, points=sizes, sweep="batch_size", attack="ig-one", units=3)
                for label, means in (("dp-sgd-1.3", dp), ("none", none), ("gaussian-0.01", constant))
            )
        )
    }


def told(*errors: Sequence[float]) -> Tables:
    """Errors as parts of the best guess's, which falls with the size of the batch."""
    sizes, guess = [1.0, 2.0, 4.0, 8.0], [8.0, 4.0, 2.0, 1.0]
    dp, none, constant = ([part * best for part, best in zip(parts, guess, strict=True)] for parts in errors)
    swept: dict[str, Any] = {"points": sizes, "sweep": "batch_size", "units": 3}
    guesses = measured("none", {"mse_input": guess}, attack="mean_image", **swept)
    return {"batch_size": table(batches(dp, none, constant)["batch_size"], guesses)}


def removed(errors: Sequence[float]) -> Tables:
    points = [0.0, 1.0, 10.0]
    return {
        "compression": measured("eigen-removed", {"mse_input": errors}, points=points, sweep="direction", attack="ig")
    }


def spectra(factor: float, images: float | None = None) -> Tables:
    parts = []
    for dataset, count in FULL_SIZE.items():
        values = np.ones((1, 1, 32))
        of_paper = printed("fig08")
        of_paper = of_paper[of_paper["dataset"] == dataset]
        values[0, 0, of_paper["direction"].to_numpy()] = factor * of_paper["eigenvalue"].to_numpy()
        cell = (dataset, "lenet5")
        parts.append(rows("none", "pixel_eigenvalues", values, cell=cell))
        parts.append(rows("none", "images", [[[images or count]]], cell=cell))
    return {"calibration": table(*parts)}


def bounds(part: float) -> Tables:
    reached = [part * kappa for kappa in KAPPAS]
    return {"calibration": measured("personalized-all", {"capacity": reached})}


def modes(fresh: float, once: float) -> Tables:
    parts = [
        measured("natural-300-noise", {"auc/threshold": [area]}, points=[0.0], sweep=None, where={"noise": mode})
        for mode, area in (("fresh", fresh), ("once", once))
    ]
    return {"undefended_release": undefended(), "noise_mode": table(*parts)}


COSTLY = {"lenet5": 6.2e4, "resnet10": 4.9e6, "alexnet": 3.6e7}


def cost(
    once: float,
    opacus: Sequence[float],
    *,
    seconds: Sequence[float] = (30.0, 31.0, 32.0),
    parameter: float = 0.7,
    clock: str = "_cpu",
) -> Tables:
    parts = []
    for (model, size), dp, added in zip(COSTLY.items(), opacus, seconds, strict=True):
        shared: dict[str, Any] = {"points": [0.0], "sweep": None, "cells": [("cifar10", model)]}
        for method, metrics in (
            ("sgd", {"parameters": [size]}),
            ("channel", {f"overhead_once{clock}": [once], f"once{clock or '_wall'}_s": [added]}),
            ("opacus", {f"overhead{clock}": [dp]}),
            ("parameter_channel", {f"overhead{clock}": [parameter]}),
        ):
            parts.append(measured("none", metrics, where={"method": method}, **shared))
    return {"cost": table(*parts)}


def architectures(change: float) -> Tables:
    of_paper = printed("table02").drop_duplicates("architecture")
    parts = [
        rows("none", tensor, [[[part * number * change]]], cell=("cifar10", model))
        for model, number in zip(of_paper["architecture"], of_paper["parameters"].astype(float), strict=True)
        for tensor, part in (("first.weight", 0.75), ("first.bias", 0.25))
    ]
    return {"architectures": table(*parts)}


FALLING, RISING, LARGER = [0.8, 0.7, 0.6, 0.5], [0.5, 0.6, 0.7, 0.8], [1.8, 1.7, 1.6, 1.5]
SLOW = [0.5, 0.52, 0.54, 0.56]
HIGHER = {"auc/threshold": [0.92, 0.93, 0.94, 0.95]}

CASES: dict[str, Case] = {
    "E1": (released, lambda: released(-1)),
    "E2": (released, lambda: released(-1)),
    "E3": (released, lambda: released(-1)),
    "E4": (released, lambda: released() | {"white": measured("white", release(1, HIGHER))}),
    "E5a": (lambda: inverted(FALLING, LARGER), lambda: inverted(FALLING, RISING)),
    "E5b": (lambda: channels(FALLING, LARGER), lambda: channels(LARGER, FALLING)),
    "E5c": (lambda: own_grids(FALLING, LARGER), lambda: own_grids(LARGER, FALLING)),
    "E6": (lambda: released() | inverted(FALLING, LARGER), lambda: released() | inverted(FALLING, LARGER, likeness=-1)),
    "E7a": (lambda: plane(WORSE_DP), lambda: plane(BETTER_DP)),
    "E7b": (lambda: plane(WORSE_DP), lambda: plane(BETTER_DP)),
    "E8": (lambda: plane(WORSE_DP), lambda: plane(BETTER_DP)),
    "E9a": (lambda: batches(FALLING, SLOW, RISING), lambda: batches(FALLING, RISING, SLOW)),
    "E9b": (
        lambda: batches(FALLING, SLOW, RISING, "dataset_mean"),
        lambda: batches(FALLING, RISING, SLOW, "dataset_mean"),
    ),
    "E9c": (lambda: told(FALLING, SLOW, RISING), lambda: told(FALLING, RISING, SLOW)),
    "E10": (lambda: removed([0.9, 0.5, 0.1]), lambda: removed([0.5, 0.9, 0.1])),
    "E11": (lambda: cost(0.05, [0.6, 1.0, 2.0]), lambda: cost(0.05, [0.6, 2.0, 1.0])),
    "E14": (lambda: cost(0.05, [0.6, 1.0, 2.0]), lambda: cost(0.05, [0.6, 1.0, 2.0], parameter=0.01)),
    "E13": (lambda: architectures(1.0), lambda: architectures(1.02)),
    "E12": (lambda: spectra(1.02), lambda: spectra(1.04)),
    "X1": (lambda: modes(0.8, 0.6), lambda: modes(0.6, 0.8)),
    "X2": (lambda: adaptive([0.4, 0.3, 0.2, 0.1]), lambda: adaptive(LARGER)),
    "X3": (lambda: bounds(0.9), lambda: bounds(0.2)),
    "X4": (lambda: trained(0.5, 0.9), lambda: trained(0.9, 0.5)),
}


def test_the_strongest_membership_attack_judges() -> None:
    tables = released()
    tables["white"] = measured("white", release(1, {BLIND: [0.9] * 4}))  # larger than undefended, but weak there
    assert judged("E4", tables).verdict == "reproduced"


@pytest.mark.parametrize("key", ["E7a", "E7b", "E8"])
def test_lost_runs_do_not_stop_the_judge(key: str) -> None:
    """Diverged runs have no accuracy, AUC or error; some resamples draw them alone, and have no capability."""
    tables = plane(WORSE_DP)
    frame = tables["dp"]
    frame.loc[(frame["seed"] < 3) & (frame["setting.multiplier"] == KAPPAS[0]), "value"] = np.nan
    finding = judged(key, tables)
    assert finding.verdict == "reproduced" and "lost" in finding.note


def test_other_sizes_are_no_test_of_printed_eigenvalues() -> None:
    finding = judged("E12", spectra(1.0, images=5000))
    assert finding.verdict == "not run" and "whole training splits" in finding.note


def test_an_expensive_channel_contradicts_the_table() -> None:
    finding = judged("E11", cost(0.2, [0.6, 1.0, 2.0]))
    assert finding.verdict == "contradicted" and "channel, cifar10 with lenet5: 0.2" in finding.note


@pytest.mark.parametrize("clock", ["_cpu", ""])
def test_seconds_that_the_channel_adds_hardly_differ_between_models(clock: str) -> None:
    """By processor time where a CPU computed, else by wall time."""
    same = cost(0.05, [0.6, 1.0, 2.0], seconds=(30.0, 33.0, 36.0), clock=clock)
    assert judged("E11", same).verdict == "reproduced"
    other = judged("E11", cost(0.05, [0.6, 1.0, 2.0], seconds=(30.0, 31.0, 40.0), clock=clock))
    assert other.verdict == "contradicted" and "all models" in other.meaning


def test_processor_time_is_not_read_where_a_gpu_computed() -> None:
    """Its numbers are null then; wall time decides."""
    tables = cost(0.2, [0.6, 1.0, 2.0])
    frame = tables["cost"]
    frame.loc[frame["metric"].str.contains("_cpu"), "value"] = np.nan
    wall = cost(0.05, [0.6, 1.0, 2.0], clock="")["cost"]
    finding = judged("E11", {"cost": table(frame, wall[wall["metric"] != "parameters"])})
    assert finding.verdict == "reproduced"


def test_capability_is_the_mean_of_the_capabilities_of_seeds() -> None:
    """As figures have it; not that of mean areas and errors, from which it differs where seeds do."""
    tables = plane(WORSE_DP)
    bare, natural = tables["undefended_release"], tables["natural"]
    factors = {seed: 1 + seed for seed in range(20)}
    bare.loc[bare["metric"] == "inversion_mse", "value"] *= bare["seed"].map(factors)
    one = next(iter(Evidence(tables).cells(*tables).values()))
    found = _Plane(one).capability("natural")[0]
    cell = {"dataset": "cifar10", "model": "lenet5"}

    def values(frame: pd.DataFrame, metric: str) -> pd.Series:
        rows = frame[(frame[list(cell)] == pd.Series(cell)).all(axis=1) & (frame["metric"] == metric)]
        keys = ["setting.kappa", "seed"] if frame is natural else ["seed"]
        return rows.set_index(keys)["value"]

    mia = 1 - values(natural, "auc/threshold") / values(bare, "auc/threshold")
    dra = 1 - values(bare, "inversion_mse") / values(natural, "inversion_mse")
    expected = ((mia + dra) / 2).groupby(level="setting.kappa").mean()
    assert found == pytest.approx(expected.to_numpy())


def test_models_near_chance_decide_nothing() -> None:
    tables = {name: frame.assign(void=True) for name, frame in released().items()}
    for key in ("E1", "E2", "E3", "E4"):
        finding = judged(key, tables)
        assert finding.verdict == "inconclusive" and "the undefended model missed its gate" in finding.note


def test_a_slope_needs_two_batch_sizes() -> None:
    tables = {
        name: frame[frame["setting.batch_size"] == 1] for name, frame in batches(FALLING, FALLING, FALLING).items()
    }
    assert judged("E9a", tables).note == "a slope needs two batch sizes"


class TestBeyondTheBestGuess:
    """Nothing leaks, so that no defense protects more than another."""

    def test_channels_that_leak_nothing_are_equal(self) -> None:
        tables = channels(FALLING, LARGER)
        tables["inversion"] = table(tables["inversion"], guessing(0.4))
        finding = judged("E5b", tables)
        assert finding.verdict == "inconclusive" and finding.effect == 0 and "capped" not in finding.note

    def test_one_that_leaks_is_compared_with_the_guess(self) -> None:
        tables = channels(FALLING, LARGER)
        tables["inversion"] = table(tables["inversion"], guessing(1.0))
        finding = judged("E5b", tables)
        assert finding.verdict == "reproduced" and finding.effect == pytest.approx(1 / 0.5 - 1, abs=0.01)

    def test_directions(self) -> None:
        tables = removed([0.9, 0.5, 0.1])
        tables["compression"] = table(tables["compression"], guessing(0.4).assign(axis="victim"))
        finding = judged("E10", tables)
        assert finding.verdict == "inconclusive" and finding.effect == 0

    def test_attackers_who_learn_nothing_are_equal(self) -> None:
        tables = adaptive([0.4, 0.3, 0.2, 0.1])
        tables["inversion"] = table(tables["inversion"], guessing(0.05))
        finding = judged("X2", tables)
        assert finding.verdict == "inconclusive" and finding.effect == 0

    def test_batches_whose_gradients_tell_nothing_have_no_slope(self) -> None:
        """Their raw errors fall as the guess's do, which is no leakage."""
        tables = told([2.0] * 4, [2.0] * 4, [2.0] * 4)
        assert judged("E9a", tables).verdict == "contradicted"
        finding = judged("E9c", tables)
        assert finding.verdict == "inconclusive" and finding.effect == 0

    def test_without_reference_attackers_errors_are_not_capped(self) -> None:
        assert "no reference attacker was measured" in judged("E5b", channels(FALLING, LARGER)).note
        assert judged("E9c", batches(FALLING, SLOW, RISING)).note == "no reference attacker was measured"


@pytest.mark.parametrize("key", ["E5b", "E5c"])
@pytest.mark.parametrize(("factor", "verdict"), [(0.2, "contradicted"), (1.5, "reproduced")])
def test_the_stronger_attacker_counts(key: str, factor: float, verdict: str) -> None:
    """One who knows the white noise and errs less turns the verdict, one who errs more does not."""
    tables = channels(FALLING, LARGER) if key == "E5b" else own_grids(FALLING, LARGER)
    frame = tables["inversion_adaptive"]
    frame.loc[(frame["defense"] == "white-all") & (frame["metric"] == "mse_input"), "value"] *= factor
    assert judged(key, tables).verdict == verdict


def test_data_sets_that_nobody_attacked_knowing_the_noise() -> None:
    tables = channels(FALLING, LARGER)
    frame = tables["inversion_adaptive"]
    tables["inversion_adaptive"] = frame[frame["dataset"] == "fashion"]
    finding = judged("E5b", tables)
    assert finding.verdict == "reproduced" and "cifar10 with lenet5: by the paper's attacker alone" in finding.note
