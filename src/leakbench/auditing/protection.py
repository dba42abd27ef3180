"""Defenses of the suite on the captured update: what the best attack still finds, and what they do to the update.

Only mechanisms that act on an update alone can be tried; those that change images or single gradients need the client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from leakbench.attacks.adaptive import Adaptive
from leakbench.attacks.base import observed
from leakbench.auditing.attempts import Attempt, attempted
from leakbench.auditing.captured import Captured
from leakbench.auditing.ladder import Rung
from leakbench.defenses.base import Defense
from leakbench.defenses.clients import DefendedClients
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.defenses.quantised import QSGD, SignSGD
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams

NOISE = (0.01, 0.1, 1.0)
"""Standard deviations of noise, in root mean squares of the update's coordinates."""
PRUNED = (0.8, 0.95, 0.99)
LEVELS = (7, 1)


class CapturedSteps(ClientSteps):
    """The computation of a client of which the update alone is known.

    Args:
        captured: what the server holds.
        streams: one stream.
    """

    def __init__(self, captured: Captured, streams: Streams) -> None:
        seen = captured.observations
        images = seen.gradients.new_zeros(1, *seen.batch_shape)  # unknown, and looked at by no mechanism here
        labels = torch.zeros(1, seen.batch_shape[0], dtype=torch.int64, device=images.device)
        super().__init__(seen.network, seen.parameters, images, labels, streams, seen.local)
        self._update = seen.gradients

    @property
    def gradient(self) -> torch.Tensor:
        """The captured update, ``[1, d]``."""
        return self._update


@dataclass(frozen=True)
class Protected:
    """A defense in one setting, attacked.

    Attributes:
        name: in words.
        attempts: by every attack, first as one that does not know the defense, then as one that does.
        kept: cosine between the message and the update.
        bits: of the message, per coordinate of the update.
    """

    name: str
    attempts: tuple[Attempt, ...]
    kept: float
    bits: float


def settings(captured: Captured) -> Iterator[tuple[str, Defense]]:
    """The defenses to try, each with its name in words, from weak to strong."""
    size = float(captured.observations.gradients.square().mean().sqrt())
    for part in NOISE:
        yield f"Gaussian noise, {part:g} of the update's RMS", GaussianNoise(scale=part * size)
    for fraction in PRUNED:
        yield f"magnitude pruning, {fraction:.0%} dropped", MagnitudePruning(fraction=fraction)
    for levels in LEVELS:
        yield f"QSGD, {levels} level{'' if levels == 1 else 's'}", QSGD(levels=levels)
    yield "signSGD, with each tensor's mean magnitude", SignSGD(scale="mean_abs")


def protected(captured: Captured, rungs: Sequence[Rung], name: str, defense: Defense, seed: int) -> Protected:
    """Send the captured update through a defense, and attack the message with and without knowing it.

    Args:
        captured: what the server holds without a defense.
        rungs: the attacks; labels that they take are inferred from the message.
        name: of the setting.
        defense: the mechanism.
        seed: of its randomness and of the starts.
    """
    seen, streams = captured.observations, Streams([("audit", seed, "defense", name)])
    message = DefendedClients(defense, streams).send(CapturedSteps(captured, streams), streams)
    behind = replace(
        captured, observations=observed(seen.network, seen.parameters, [message], seen.batch_shape, seen.local)
    )
    attempts = []
    for rung in rungs:
        knowing = rung._replace(
            title=f"{rung.title}, knowing the defense", attack=Adaptive(attack=rung.attack).against(defense.adaptive)
        )
        attempts += [attempted(behind, rung, (), seed), attempted(behind, knowing, (), seed, defense)]
    return Protected(
        name,
        tuple(attempts),
        float(torch.nn.functional.cosine_similarity(message.view()[0], seen.gradients[0], dim=0)),
        message.bits / seen.gradients.shape[1],
    )
