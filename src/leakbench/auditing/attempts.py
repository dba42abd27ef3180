"""Attempts: one attack on the captured update from several starts, and what can be said of the result without truth."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from leakbench.attacks.base import Knowledge, Observations, Reconstruction
from leakbench.attacks.labels import Method, infer_labels
from leakbench.attacks.reference import Grey
from leakbench.auditing.captured import Captured
from leakbench.auditing.ladder import Rung
from leakbench.defenses.base import Defense
from leakbench.defenses.clients import PublicMechanism
from leakbench.errors import ConfigError, Infeasible
from leakbench.lazy import torch
from leakbench.metrics.assignment import assign, reorder
from leakbench.metrics.image import psnr
from leakbench.randomness import Streams
from leakbench.user_code import in_one_line


@dataclass(frozen=True)
class Attempt:
    """The result of a rung.

    Attributes:
        rung: the attack and its knowledge.
        images: pixels in [0, 1], ``[B, C, H, W]``: those of the start with the smallest objective; None if it failed.
        labels: that it used or found; empty where it needs none.
        objective: the attack's own, of that start; NaN where it has none.
        unexplained: one minus the cosine between the captured update and that of the reconstruction, as a part of what
            mid-grey images with the same labels leave; NaN where it has no labels.
        agreement: PSNR between the reconstructions from the two best starts, after assignment, dB; NaN of one start.
        seconds: of wall time.
        failed: why there is no reconstruction; empty where there is one.
    """

    rung: Rung
    images: torch.Tensor | None
    labels: tuple[int, ...] = ()
    objective: float = math.nan
    unexplained: float = math.nan
    agreement: float = math.nan
    seconds: float = 0.0
    failed: str = ""


def label_sets(observations: Observations) -> list[tuple[int, ...]]:
    """The sets of labels that different methods infer from the first update, without doubles; ascending each.

    Raises:
        ConfigError: no method reads labels off this model.
    """
    batch, head = observations.batch_shape[0], observations.network.head
    methods: list[Method] = ["idlg"] if batch == 1 else ["repeated"]
    if batch > 1 and head.bias is not None:
        methods.insert(0, "counts")
    if 1 < batch <= head.outputs:
        methods.append("distinct")
    one = observations.at([0])
    return list(dict.fromkeys(tuple(infer_labels(one, method)[0].tolist()) for method in methods))


def attempt(
    captured: Captured, rung: Rung, labels: tuple[int, ...], seed: int, defense: Defense | None = None
) -> Attempt:
    """Attack the captured update from every start, and keep the start with the smallest objective.

    Where methods infer different labels, the search starts with each of these sets.

    Args:
        captured: what the server holds.
        rung: the attack.
        labels: the true ones, for rungs that are given them.
        seed: of the starts.
        defense: the mechanism behind the update, for attacks that know it.
    """
    began = time.monotonic()
    takes = "labels" in rung.attack.needs
    try:
        sets = [()] if not takes else [labels] if rung.labels else label_sets(captured.observations)
    except ConfigError as error:
        return Attempt(rung, None, failed=str(error))
    rows = [labels for labels in sets for _ in range(rung.restarts)]
    seen = captured.observations.at([0] * len(rows))
    known = Knowledge(
        labels=torch.tensor(rows, device=seen.gradients.device) if takes else None,
        pixel_range=captured.pixel_range,
        mechanism=None if defense is None else [PublicMechanism(defense)] * len(rows),
    )
    streams = Streams([("audit", seed, "start", row % rung.restarts) for row in range(len(rows))])
    try:
        result = rung.attack.reconstruct(seen, known, streams)
    except (Infeasible, ConfigError) as error:
        return Attempt(rung, None, failed=str(error))
    return _best(captured, rung, result, rows if takes else None, time.monotonic() - began)


def attempted(
    captured: Captured, rung: Rung, labels: tuple[int, ...], seed: int, defense: Defense | None = None
) -> Attempt:
    """:func:`attempt`, where any error fails this attempt alone: an audit keeps what the others found."""
    try:
        return attempt(captured, rung, labels, seed, defense)
    except Exception as error:
        return Attempt(rung, None, failed=in_one_line(error))


def _best(
    captured: Captured, rung: Rung, result: Reconstruction, given: list[tuple[int, ...]] | None, seconds: float
) -> Attempt:
    finite = (result.diverged_at < 0) & result.images.flatten(1).isfinite().all(dim=1)
    if not bool(finite.any()):
        return Attempt(rung, None, seconds=seconds, failed="every start became non-finite, or no neuron was active")
    score = torch.zeros_like(finite, dtype=torch.float32) if result.objective is None else result.objective
    order = score.where(finite, torch.inf).argsort(stable=True)[: int(finite.sum())].tolist()
    best, pixels = order[0], captured.pixels(result.images)
    labels = given[best] if given else () if result.labels is None else tuple(result.labels[best].tolist())
    agreement = math.nan
    others = [row for row in order if row % rung.restarts != best % rung.restarts]  # rows are sets of labels x starts
    if others:
        first, second = pixels[best][None], pixels[others[0]][None]
        agreement = float(psnr(reorder(second, assign(second, first))[0], first[0]).mean())
    return Attempt(
        rung,
        pixels[best],
        labels,
        math.nan if result.objective is None else float(result.objective[best]),
        _unexplained(captured, result.images[best], labels),
        agreement,
        seconds,
    )


def grey(captured: Captured) -> torch.Tensor:
    """Mid-grey network inputs, which look at no update, ``[B, C, H, W]``."""
    known = Knowledge(pixel_range=captured.pixel_range)
    return Grey().reconstruct(captured.observations, known, Streams([("audit",)])).images[0]


def _unexplained(captured: Captured, images: torch.Tensor, labels: tuple[int, ...]) -> float:
    if not labels:
        return math.nan
    seen, network = captured.observations, captured.network

    def apart(candidates: torch.Tensor) -> float:
        of_labels = torch.tensor(labels, device=candidates.device)
        update = seen.local.update(network, network.parameters, candidates, of_labels).double()
        return 1 - float(torch.nn.functional.cosine_similarity(update, seen.gradients[0].double(), dim=0))

    blind = apart(grey(captured))
    return apart(images) / blind if blind > 0 else math.nan
