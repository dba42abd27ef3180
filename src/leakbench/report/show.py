"""The victims of attack records beside their reconstructions: images as rows of one picture, sentences as lines."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from leakbench.errors import ConfigError, UnknownName
from leakbench.records import Record, atomic_write, read_record
from leakbench.report.gallery import gallery, selection
from leakbench.report.reconstructions import Lines, Row, reconstructions
from leakbench.report.tidy import existing

MOST = 5
"""Largest number of rows of one record; of more settings, evenly spaced ones are shown."""

FORMATS = ("png", "pdf", "svg")


def show(
    root: Path, paths: Sequence[str], *, seed: int | None = None, settings: Sequence[str] = (), output: Path | None
) -> Iterator[str]:
    """Draw the victims of records that attack the same images, ranked by the first row, or print those of sentences.

    Args:
        root: the checkout.
        paths: the records, relative to it.
        seed: whose victims; by default the first seed of the first record.
        settings: ``KEY=VALUE`` of swept parameters, of the rows to draw; by default all.
        output: file of the picture; by default a PNG beside the first record.

    Yields:
        Lines for the user: settings that are left out, then the path of the picture, or the sentences.

    Raises:
        ConfigError: a seed or setting that a record does not have, records of different victims, an unknown format.
        RecordError: a record is missing or not valid, or holds no reconstructions.
    """
    where = root / Path(paths[0]).with_suffix(".png") if output is None else output
    if where.suffix[1:] not in FORMATS:
        raise UnknownName("format", where.suffix[1:], FORMATS, str(where))
    records = {path: read_record(existing(root, path, f"run {path}")) for path in dict.fromkeys(paths)}
    wanted = _wanted(settings, records)
    everything: list[Row | Lines] = []
    for path, record in records.items():
        _check_seed(path, record, seed)
        seed = record.job["seeds"][0] if seed is None else seed
        shown = reconstructions(root, path, record, seed, wanted)
        if len(shown) > MOST:
            yield f"{path}: {MOST} of {len(shown)} settings; --setting KEY=VALUE chooses others"
            shown = [shown[round(place * (len(shown) - 1) / (MOST - 1))] for place in range(MOST)]
        everything += shown
    rows = [each for each in everything if isinstance(each, Row)]
    lines = [each for each in everything if isinstance(each, Lines)]
    if rows and lines:
        raise ConfigError("some of these records attack images, and some sentences; show them apart")
    if lines:
        yield from _sentences(lines)
        return
    for row in rows:
        if row.victims.shape != rows[0].victims.shape or not row.victims.equal(rows[0].victims):
            raise ConfigError(f"'{row.label}' attacks other images than '{rows[0].label}'; show them apart")
    labels = [row.label for row in rows]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise ConfigError(f"several records have the defense, attack and setting '{twice}'; show them apart")
    first = records[paths[0]].job
    title = f"{first['dataset']['label']}, {first['model']['label']}, seed {seed}; ranked by {labels[0]}"
    _draw(rows, title, where)
    yield str(where)


def _wanted(settings: Sequence[str], records: Mapping[str, Record]) -> dict[str, str]:
    """A mapping from ``KEY=VALUE`` items, whose keys some record sweeps."""
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


def _sentences(lines: Sequence[Lines]) -> Iterator[str]:
    """Best, median and worst victims by the first record, with each attack's reconstruction and its ROUGE-1."""
    first = lines[0]
    for line in lines:
        if line.victims != first.victims:
            raise ConfigError(f"'{line.label}' attacks other sentences than '{first.label}'; show them apart")
    width = max(len(line.label) for line in lines)
    for group, victims in selection(first.rouge1, each=1).items():
        for victim in victims:
            yield f"{group + ' victim':>{width}}         {first.victims[victim]}"
            for line in lines:
                yield f"{line.label:>{width}}  {float(line.rouge1[victim]):5.1f}  {line.sentences[victim]}"


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
