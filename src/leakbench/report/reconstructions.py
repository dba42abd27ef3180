"""Reconstructions of an attack record, images or sentences, beside the victims and in their order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from leakbench.data.text import unpack
from leakbench.errors import ConfigError, RecordError
from leakbench.lazy import torch
from leakbench.metrics.assignment import ASSIGNED, reorder
from leakbench.records import Record, Replicate, read_tensors


@dataclass(frozen=True)
class Row:
    """Images that one attack reconstructed in one setting.

    Attributes:
        label: defense, attack and setting.
        victims: pixels in [0, 1], ``[n, C, H, W]``: the batches of all clients, one after the other.
        images: reconstructions in victim order, ``[n, C, H, W]``.
        psnr: from the record, in dB, ``[n]``; NaN where it has none.
    """

    label: str
    victims: torch.Tensor
    images: torch.Tensor
    psnr: torch.Tensor


@dataclass(frozen=True)
class Lines:
    """Sentences that one attack reconstructed in one setting.

    Attributes:
        label: defense, attack and setting.
        victims: with their special tokens: the batches of all clients, one after the other.
        sentences: reconstructions in victim order, with special tokens.
        rouge1: from the record, in percent, ``[n]``; NaN where it has none.
    """

    label: str
    victims: list[str]
    sentences: list[str]
    rouge1: torch.Tensor


def reconstructions(
    root: Path, path: str, record: Record, seed: int, wanted: Mapping[str, str] = MappingProxyType({})
) -> list[Row | Lines]:
    """The reconstructions in one record, in the order of its settings: rows of images or lines of text.

    Args:
        root: the checkout.
        path: of the record, relative to the checkout.
        record: its content.
        seed: whose victims.
        wanted: swept parameter -> value, as text, of the rows to return; by default all.

    Raises:
        ConfigError: no setting has the values that are wanted.
        RecordError: the record holds no reconstructions of this seed, or its tensors are missing or altered.
    """
    if record.tensors is None:
        why = record.outcome.reason or f"a job of kind '{record.job['kind']['name']}'"
        raise RecordError(f"{path}: holds no reconstructions: {why}")
    tensors = read_tensors(root / path, record.tensors)
    of_seed = [replicate for replicate in record.replicates if replicate.seed == seed]
    outcomes = [replicate.outcome for replicate in of_seed if _is_wanted(replicate.setting, wanted)]
    if not outcomes:
        choices = "; ".join(_described(replicate.setting) for replicate in of_seed)
        asked = ", ".join(f"{key}={value}" for key, value in wanted.items())
        raise ConfigError(f"{path}: no setting has {asked}. Allowed: {choices}.")
    protocol = record.job["kind"].get("sweep", {})
    places: dict[str, int] = {}  # per combination of the protocol, how many settings of the defense came before
    rows: list[Row | Lines] = []
    for replicate in of_seed:
        prefix = "".join(f"{key}={replicate.setting[key]}/" for key in protocol) + f"seed{seed}/"
        place = places[prefix] = places.get(prefix, -1) + 1
        # A model that diverged before the attack leaves none.
        if _is_wanted(replicate.setting, wanted) and f"{prefix}reconstructions" in tensors:
            rows.append(_row(record.job, replicate, tensors, prefix, place))
    if not rows:
        raise RecordError(f"{path}: holds no reconstructions of seed {seed}: {outcomes[0].reason}")
    return rows


def _row(
    job: Mapping[str, Any], replicate: Replicate, tensors: Mapping[str, torch.Tensor], prefix: str, place: int
) -> Row | Lines:
    """One setting's reconstructions; sentences are stored as bytes."""
    images = tensors[f"{prefix}reconstructions"][place]
    order = tensors.get(f"{prefix}assignment")
    if order is not None:
        images = reorder(images, order[place])
    label = f"{job['defense']['label']} \N{MIDDLE DOT} {job['attack']['label']}"
    label = f"{label}, {_described(replicate.setting)}" if replicate.setting else label
    victims, images = tensors[f"{prefix}victims"].flatten(0, 1), images.flatten(0, 1)
    if victims.dtype == torch.uint8:
        return Lines(label, unpack(victims), unpack(images), _per_sample(replicate, "rouge1", len(images)))
    metric = "psnr" if order is None else f"{ASSIGNED}psnr"
    return Row(label, victims, images, _per_sample(replicate, metric, len(images)))


def _per_sample(replicate: Replicate, metric: str, count: int) -> torch.Tensor:
    """A metric's values, one per sample; NaN where there is none, or one for each client and all its attempts."""
    values = replicate.metrics[metric]
    numbers = values if isinstance(values, list) else [values] * count
    if len(numbers) != count:
        numbers = [None] * count
    return torch.tensor([math.nan if number is None else number for number in numbers])


def _described(setting: Mapping[str, Any]) -> str:
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
