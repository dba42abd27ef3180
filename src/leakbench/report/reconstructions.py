"""What an attack record holds in pictures: its reconstructions beside the victims, in victim order, with their PSNR."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from leakbench.errors import ConfigError, RecordError
from leakbench.lazy import torch
from leakbench.metrics.assignment import ASSIGNED, reorder
from leakbench.records import Record, Replicate, read_tensors


@dataclass(frozen=True)
class Row:
    """What one attack made of the victims in one setting.

    Attributes:
        label: defense, attack and setting.
        victims: pixels in [0, 1], ``[n, C, H, W]``: the batches of all clients, one after the other.
        images: its reconstructions in victim order, ``[n, C, H, W]``.
        psnr: the record's, in dB, ``[n]``; NaN where the record has none.
    """

    label: str
    victims: torch.Tensor
    images: torch.Tensor
    psnr: torch.Tensor


def rows_of(
    root: Path, path: str, record: Record, seed: int, wanted: Mapping[str, str] = MappingProxyType({})
) -> list[Row]:
    """The rows of one record in the order of its settings.

    Args:
        root: the checkout.
        path: the record's, relative to it.
        record: what it holds.
        seed: whose victims.
        wanted: swept parameter -> value, as text; only these rows. By default all.

    Raises:
        ConfigError: no setting has the values that are wanted.
        RecordError: the record holds no images of this seed, or its tensors are missing or altered.
    """
    if record.tensors is None:
        why = record.outcome.reason or f"the kind of job '{record.job['kind']['name']}' keeps no images"
        raise RecordError(f"{path}: holds no images: {why}")
    tensors = read_tensors(root / path, record.tensors)
    of_seed = [replicate for replicate in record.replicates if replicate.seed == seed]
    outcomes = [replicate.outcome for replicate in of_seed if _is_wanted(replicate.setting, wanted)]
    if not outcomes:
        choices = "; ".join(_words(replicate.setting) for replicate in of_seed)
        asked = ", ".join(f"{key}={value}" for key, value in wanted.items())
        raise ConfigError(f"{path}: no setting has {asked}. Allowed: {choices}.")
    protocol = record.job["kind"].get("sweep", {})
    places: dict[str, int] = {}  # per combination of the protocol, how many settings of the defense came before
    rows: list[Row] = []
    for replicate in of_seed:
        prefix = "".join(f"{key}={replicate.setting[key]}/" for key in protocol) + f"seed{seed}/"
        place = places[prefix] = places.get(prefix, -1) + 1
        # A model that diverged before the attack leaves no images.
        if _is_wanted(replicate.setting, wanted) and f"{prefix}reconstructions" in tensors:
            rows.append(_row(record.job, replicate, tensors, prefix, place))
    if not rows:
        raise RecordError(f"{path}: holds no images of seed {seed}: {outcomes[0].reason}")
    return rows


def _row(
    job: Mapping[str, Any], replicate: Replicate, tensors: Mapping[str, torch.Tensor], prefix: str, place: int
) -> Row:
    images = tensors[f"{prefix}reconstructions"][place]
    order = tensors.get(f"{prefix}assignment")
    if order is not None:
        images = reorder(images, order[place])
    values = replicate.metrics["psnr" if order is None else f"{ASSIGNED}psnr"]
    numbers = values if isinstance(values, list) else [values] * (images.shape[0] * images.shape[1])
    label = f"{job['defense']['label']} \N{MIDDLE DOT} {job['attack']['label']}"
    return Row(
        label=f"{label}, {_words(replicate.setting)}" if replicate.setting else label,
        victims=tensors[f"{prefix}victims"].flatten(0, 1),
        images=images.flatten(0, 1),
        psnr=torch.tensor([math.nan if number is None else number for number in numbers]),
    )


def _words(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in setting.items())


def _is_wanted(setting: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Whether a setting has the values that are asked for; a record that does not sweep a parameter is not asked."""
    return all(_equal(setting[key], value) for key, value in wanted.items() if key in setting)


def _equal(value: Any, text: str) -> bool:
    if isinstance(value, (bool, str)):
        return str(value).lower() == text.lower()
    try:
        return float(value) == float(text)
    except ValueError:
        return False
