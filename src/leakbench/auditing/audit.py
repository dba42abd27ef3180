"""An audit from the captured files to the record, the pictures and the page."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from leakbench.auditing.attempts import Attempt, attempted, grey, label_sets
from leakbench.auditing.captured import Captured, Request, capture
from leakbench.auditing.findings import AuditRecord, Behind, Scores, in_order, nearness, scored, tried_of, true_images
from leakbench.auditing.ladder import not_tried, rungs
from leakbench.auditing.page import page
from leakbench.auditing.protection import protected, settings
from leakbench.errors import ConfigError, WriteError
from leakbench.lazy import torch
from leakbench.metrics.labels import label_accuracy
from leakbench.records import atomic_write

if TYPE_CHECKING:
    from PIL.Image import Image

BEHIND_STARTS = 2
"""Starts of every search behind a defense, of which there are many."""
SIDE = 96
"""Smallest height of a picture, in pixels: small images are enlarged by whole factors."""


class Extent(NamedTuple):
    """The size of an audit.

    Attributes:
        iterations: evaluations of the objective per start.
        restarts: starts of every search.
        seed: of all randomness.
        defenses: whether defenses are tried on the captured update.
    """

    iterations: int = 1000
    restarts: int = 4
    seed: int = 0
    defenses: bool = False


def audit(
    request: Request, folder: Path, device: torch.device, extent: Extent, truth: Path | None = None
) -> AuditRecord:
    """Attack a captured update, and write ``record.json``, ``audit.html`` and pictures into a folder.

    Args:
        request: what was captured.
        folder: of the results; its files are replaced.
        device: of the computation.
        extent: how much to compute.
        truth: folder of the true images, for scoring alone.

    Raises:
        ConfigError: the files do not fit each other; see :func:`capture` and :func:`true_images`.
        WriteError: nothing can be written into the folder, which is tried before the first attack.
    """
    captured = capture(request, device)
    images = None if truth is None else true_images(truth, request.shape, request.batch).to(device)
    _check_writing(folder)
    _write_picture(folder, "truth", images)
    blind, inferred = scored(captured.pixels(grey(captured)), images), _inferred(captured)
    attempts, tried = [], []
    for rung in rungs(
        request.batch, labels_known=bool(request.labels), iterations=extent.iterations, restarts=extent.restarts
    ):
        done = attempted(captured, rung, request.labels, extent.seed)
        _say(done)
        shown = done.images if done.images is None or images is None else in_order(done.images, images)
        attempts.append(done)
        tried.append(tried_of(done, images, blind, _write_picture(folder, rung.name, shown)))
    record = AuditRecord(
        schema="leakbench.audit/1",
        request=request.described() | extent._asdict(),
        files=dict(captured.digests),
        parameters=captured.network.dimension,
        assumptions=list(captured.assumptions),
        blind=blind,
        inferred=[list(labels) for labels in inferred],
        inferred_right=_right(inferred, request),
        tried=tried,
        not_tried=dict(not_tried(labels_known=bool(request.labels), truth=truth is not None)),
        behind=list(_behind(captured, attempts, images, blind, extent.seed)) if extent.defenses else [],
        versions={name: version(name) for name in ("leakbench", "torch")},
        device=device.type,
    )
    atomic_write(folder / "record.json", (record.model_dump_json(by_alias=True, indent=1) + "\n").encode())
    atomic_write(folder / "audit.html", page(record, folder).encode())
    return record


def _check_writing(folder: Path) -> None:
    """Write a file and remove it: attacks take long, and their results should have a place."""
    probe = folder / ".probe"
    try:
        atomic_write(probe, b"")
    except WriteError as error:
        raise WriteError(f"--out {folder}: nothing can be written there ({error}); name another folder") from None
    probe.unlink()


def _inferred(captured: Captured) -> list[tuple[int, ...]]:
    try:
        return label_sets(captured.observations)
    except ConfigError:
        return []  # the attempts that ask for labels say why


def _right(inferred: Sequence[tuple[int, ...]], request: Request) -> float | None:
    if not (inferred and request.labels):
        return None
    truth = torch.tensor([request.labels] * len(inferred))
    return float(label_accuracy(torch.tensor(inferred), truth, request.classes).max())


def _behind(
    captured: Captured,
    attempts: Sequence[Attempt],
    images: torch.Tensor | None,
    blind: Scores | None,
    seed: int,
) -> Iterator[Behind]:
    """Defenses against every search without labels: on noise, priors do best; on exact values, the plain distance."""
    searches = [each for each in attempts if each.images is not None and each.rung.searches and not each.rung.labels]
    if not searches:
        return
    rungs = [each.rung._replace(restarts=min(each.rung.restarts, BEHIND_STARTS)) for each in searches]
    best = min(searches, key=lambda each: math.inf if math.isnan(each.unexplained) else each.unexplained)
    target = best.images if images is None else images
    for name, defense in settings(captured):
        tried = protected(captured, rungs, name, defense, seed)
        near = nearness(tried.attempts, target)
        print(f"behind {name}: {'failed' if near is None else f'{near:.1f} dB'}", file=sys.stderr, flush=True)
        rows = [tried_of(each, images, blind) for each in tried.attempts]
        yield Behind(name=name, attempts=rows, kept=tried.kept, bits=tried.bits, nearness=near)


def _say(done: Attempt) -> None:
    what = done.failed or f"{done.unexplained:.2%} unexplained, {done.seconds:.1f} s"
    print(f"{done.rung.title}: {what}", file=sys.stderr, flush=True)


def _write_picture(folder: Path, name: str, images: torch.Tensor | None) -> str:
    """Write images ``[B, C, H, W]`` side by side, and return the file's name; none for what is no picture."""
    if images is None or images.shape[1] not in (1, 3):
        return ""
    buffer = io.BytesIO()
    strip(images).save(buffer, format="PNG", optimize=True)
    atomic_write(folder / f"{name}.png", buffer.getvalue())
    return f"{name}.png"


def strip(images: torch.Tensor) -> Image:
    """Images ``[B, C, H, W]`` in [0, 1] side by side, with a white gap, enlarged by a whole factor."""
    from PIL import Image

    padded = torch.nn.functional.pad(images.detach().cpu(), (0, 1), value=1.0)
    row = torch.cat(list(padded), dim=2)[:, :, :-1].mul(255).round().byte().permute(1, 2, 0)
    picture = Image.fromarray(row.squeeze(2).numpy() if row.shape[2] == 1 else row.numpy())
    factor = max(1, math.ceil(SIDE / images.shape[2]))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
