"""What an attack is: many observations of one model in, as many reconstructions out.

An attack sees :class:`Observations` (what the server decoded) and :class:`Knowledge` (what the threat model grants),
and nothing else. Ground truth is not among them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.lazy import torch
from leakbench.models.base import Network, Statistics
from leakbench.randomness import Streams
from leakbench.registry import Component, Registry

Grant = Literal["labels", "pixel_range", "mean_image", "batch_statistics"]
"""Side knowledge that a threat model may grant."""


@dataclass(frozen=True)
class Observations:
    """What the attacker saw of ``n`` clients that hold the same model.

    Attributes:
        network: the architecture, in the BatchNorm mode that the clients computed in.
        parameters: the model at the time of the step, ``[d]``.
        gradients: decoded gradients (of several local steps: updates over the learning rate), ``[n, d]``.
        batch_shape: ``(B, C, H, W)`` of each client's inputs.
        local: the clients' local computation.
    """

    network: Network
    parameters: torch.Tensor
    gradients: torch.Tensor
    batch_shape: tuple[int, int, int, int]
    local: LocalTraining = ONE_STEP

    def __len__(self) -> int:
        return self.gradients.shape[0]


@dataclass(frozen=True)
class Knowledge:
    """Side knowledge, in network inputs; what is not granted is None.

    Attributes:
        labels: true labels, ``[n, B]``.
        pixel_range: smallest and largest valid input per channel, ``[2, C, 1, 1]``.
        mean_image: mean of auxiliary images, which no client holds, ``[C, H, W]``.
        batch_statistics: mean and variance of every BatchNorm layer's inputs on the client's own batch, by the names of
            the module's buffers, each ``[n, channels]``.
    """

    labels: torch.Tensor | None = None
    pixel_range: torch.Tensor | None = None
    mean_image: torch.Tensor | None = None
    batch_statistics: Statistics | None = None

    def granted(self) -> frozenset[str]:
        """Names of what is known."""
        return frozenset(field.name for field in fields(self) if getattr(self, field.name) is not None)


@dataclass(frozen=True)
class Reconstruction:
    """What the attacker believes.

    Attributes:
        images: network inputs, ``[n, B, C, H, W]``.
        objective: the attacker's own final objective per observation, ``[n]``; None where it has none.
        diverged_at: the iteration at which a trial became non-finite, ``[n]``, -1 where it did not.
        labels: the labels that it used or found, ``[n, B]``; None where it needs none.
    """

    images: torch.Tensor
    objective: torch.Tensor | None
    diverged_at: torch.Tensor
    labels: torch.Tensor | None = None


class Attack(Component):
    """A reconstruction method."""

    needs: ClassVar[frozenset[Grant]] = frozenset()
    """Side knowledge without which the attack cannot run."""

    observes: ClassVar[bool] = True
    """False for reference attackers, which ignore the gradient; they are run beside the undefended gradient alone."""

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        """Reconstruct the inputs of every observation; row ``i`` draws from stream ``i``."""
        raise NotImplementedError


ATTACKS: Registry[Attack] = Registry("attack", "leakbench.attacks")
