"""The victims of attack records beside their reconstructions: rows of one picture, whatever records they come from."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakbench.errors import ConfigError, RecordError, UnknownName
from leakbench.lazy import torch
from leakbench.metrics.assignment import ASSIGNED, reorder
from leakbench.records import Record, Replicate, atomic_write, read_record, read_tensors
from leakbench.report.gallery import gallery
from leakbench.report.tidy import existing

MOST = 5
"""Rows of one record; of more settings, so many are shown, evenly spaced."""

FORMATS = ("png", "pdf", "svg")


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


def show(
    root: Path, paths: Sequence[str], *, seed: int | None = None, settings: Sequence[str] = (), output: Path | None
) -> Iterator[str]:
    """Draw the victims of records that attack the same images, ranked by the first row; write the picture.

    Args:
        root: the checkout.
        paths: the records, relative to it.
        seed: whose victims; by default the first seed of the first record.
        settings: ``KEY=VALUE`` of swept parameters; only these rows are drawn.
        output: where to; by default a PNG beside the first record.

    Yields:
        What to tell: settings that are left out, and at last the path of the picture.

    Raises:
        ConfigError: a seed or setting that a record does not have, records of different victims, an unknown format.
        RecordError: a record is missing or not valid, or holds no images.
    """
    where = root / Path(paths[0]).with_suffix(".png") if output is None else output
    if where.suffix[1:] not in FORMATS:
        raise UnknownName("format", where.suffix[1:], FORMATS, str(where))
    records = {path: read_record(existing(root, path, f"run {path}")) for path in dict.fromkeys(paths)}
    wanted = _wanted(settings, records)
    rows: list[Row] = []
    for path, record in records.items():
        _check_seed(path, record, seed)
        seed = record.job["seeds"][0] if seed is None else seed
        found = _rows(root, path, record, seed, wanted)
        if len(found) > MOST:
            yield f"{path}: {MOST} of {len(found)} settings; --setting KEY=VALUE chooses others"
            found = [found[round(place * (len(found) - 1) / (MOST - 1))] for place in range(MOST)]
        rows += found
    for row in rows:
        if row.victims.shape != rows[0].victims.shape or not row.victims.equal(rows[0].victims):
            raise ConfigError(f"'{row.label}' attacks other images than '{rows[0].label}'; show them apart")
    labels = [row.label for row in rows]
    if len(set(labels)) < len(labels):
        raise ConfigError("two records have the same defense, attack and setting; show them apart")
    first = records[paths[0]].job
    title = f"{first['dataset']['label']}, {first['model']['label']}, seed {seed}; ranked by {labels[0]}"
    _draw(rows, title, where)
    yield str(where)


def _wanted(settings: Sequence[str], records: Mapping[str, Record]) -> dict[str, str]:
    """``KEY=VALUE``s as a mapping, of keys that some record sweeps."""
    wanted: dict[str, str] = {}
    swept = {key for record in records.values() for replicate in record.replicates for key in replicate.setting}
    for assignment in settings:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--setting {assignment}: expected KEY=VALUE")
        if key not in swept:
            raise UnknownName("swept parameter", key, swept, f"--setting {assignment}")
        wanted[key] = value
    return wanted


def _check_seed(path: str, record: Record, seed: int | None) -> None:
    seeds = record.job["seeds"]
    if seed is not None and seed not in seeds:
        raise ConfigError(f"{path}: no seed {seed}. Allowed: {', '.join(map(str, seeds))}.")


def _rows(root: Path, path: str, record: Record, seed: int, wanted: Mapping[str, str]) -> list[Row]:
    """The rows of one record in the order of its settings."""
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


def _draw(rows: Sequence[Row], title: str, where: Path) -> None:
    import matplotlib.pyplot as plt

    figure = gallery(
        rows[0].victims,
        {row.label: row.images for row in rows},
        rows[0].psnr,
        title=title,
        decibels={row.label: row.psnr for row in rows},
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format=where.suffix[1:], bbox_inches="tight")
    plt.close(figure)
    atomic_write(where, buffer.getvalue())
