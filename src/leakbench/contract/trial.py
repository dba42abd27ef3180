"""A trial of a defense's adaptive attacker: as an attack job, on embedded digits and a small network.

Each seed has an initialised LeNet and a digit of its own. There are two plain attacks: a line search for the gradient's
direction, which finds undefended digits to the pixel, and Inverting Gradients, whose prior helps where messages say
less. The adaptive ones are the same searches in the wrappers that the defense declares, and the better of each side
counts. All see the same messages and are granted all that attackers can be granted. What is worse than the mean image
counts as that.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from leakbench.attacks.adaptive import Adaptive
from leakbench.attacks.base import ATTACKS, Attack
from leakbench.attacks.bits import Averaged
from leakbench.attacks.presets import DLGWolfe, IGOptimalDefense
from leakbench.attacks.reference import MeanImage
from leakbench.contract.check import NotAsked
from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense, NoDefense
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Job, Variant
from leakbench.lazy import np, torch
from leakbench.models.lenet import LeNet
from leakbench.report.under_attacked import Adaptation, compared

if TYPE_CHECKING:
    from leakbench.report.inference import Array

SEEDS, SIDE = 8, 8
MESSAGES = 4
"""Sent of each digit where the declared attacker averages; else there is one."""
DENOISING = {"training": 200}
"""Denoising by wrappers: the network learns small images fast."""
METRIC = "psnr"
PLAIN, ADAPTIVE, GUESS = "the plain attack", "the adaptive attack", "the mean image"
SEARCHES: tuple[Mapping[str, Any], ...] = (
    {"name": DLGWolfe.name, "iterations": 30, "objective": {"kind": "cosine"}},
    {
        "name": IGOptimalDefense.name,
        "iterations": 150,
        "regularisers": [{"kind": "total_variation", "weight": 1e-2}],
    },
)


def trial(defense: type[Defense], given: Mapping[str, Any]) -> Adaptation | None:
    """Attack the messages of a defense with and without knowing it.

    Args:
        defense: the class.
        given: its parameters.

    Returns:
        The best adaptive attack beside the best plain one; None where the adaptive ones diverge on every digit that
        the plain ones reconstruct.

    Raises:
        NotAsked: one of the attacks cannot run; the message has the reason.
    """
    guess = _guess()  # worse is no less leakage
    plain, adaptive = {}, {}
    for search in SEARCHES:
        name, parameters = search["name"], {key: value for key, value in search.items() if key != "name"}
        plain[name] = _psnr(defense, given, Variant(PLAIN, ATTACKS.get(name), parameters, {}))
        adaptive[name] = _psnr(
            defense, given, Variant(ADAPTIVE, Adaptive, {"attack": dict(search), "denoising": DENOISING}, {})
        )
    if not any(np.isfinite(values).any() for values in plain.values()):
        raise NotAsked(f"{PLAIN} diverges on every digit")
    adaptive, plain = ({name: np.maximum(values, guess) for name, values in side.items()} for side in (adaptive, plain))
    return compared(adaptive, plain, "higher")


@cache
def _guess() -> Array:
    """The quality of the mean image, which sees no message."""
    return _psnr(NoDefense, {}, Variant(GUESS, MeanImage, {}, {}))


def _psnr(defense: type[Defense], given: Mapping[str, Any], attack: Variant[Attack]) -> Array:
    """The quality that an attack reaches on each seed's digit, in dB, ``[S, 1]``; NaN where it diverged.

    Raises:
        NotAsked: it cannot run.
    """
    averages = any(each["name"] == Averaged.name for each in defense(**given).adaptive)
    kind = AttackJob(
        clients=1,
        batch_size=1,
        seeds=SEEDS,
        victims="distinct",
        auxiliary=64,
        messages=MESSAGES if averages else 1,
        knowledge=("labels", "pixel_range", "auxiliary_images", "noise_variance", "data_noise", "mechanism"),
    )
    job = Job(
        scale="check",
        paper="check",
        experiment="trial",
        dataset=Variant("digits", Digits, {"size": SIDE}, {}),
        model=Variant("lenet", LeNet, {}, {}),
        defense=Variant(defense.name, defense, given, {}),
        attack=attack,
        kind=kind,
        part="all",
        seeds=tuple(range(SEEDS)),
    )
    with contextlib.redirect_stderr(io.StringIO()):  # lines of progress
        replicates = kind.run(job, torch.device("cpu")).replicates
    if reason := next((each.outcome.reason for each in replicates if each.outcome.status == "infeasible"), None):
        raise NotAsked(f"{attack.label} cannot run here: {reason}")
    values = [each.metrics.get(METRIC) for each in replicates]
    return np.array([value if isinstance(value, list) else [math.nan] for value in values], dtype=float)
