"""What a defense is: up to four verbs, each with a default that does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from leakbench.federated.message import DenseMessage, Law, Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.registry import Component, Registry


@dataclass(frozen=True)
class PrivacyStatement:
    """What a mechanism guarantees, and what the guarantee rests on.

    Attributes:
        epsilon: of (epsilon, delta)-differential privacy, or None where there is no such guarantee.
        delta: the delta of that guarantee.
        basis: assumptions, or the reason why there is no guarantee.
    """

    epsilon: float | None
    delta: float | None
    basis: str

    def as_dict(self) -> dict[str, Any]:
        """The statement in JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Schedule:
    """How a mechanism is applied to one client's data.

    Attributes:
        dimension: number of coordinates that each release holds, d.
        rounds: number of releases.
        delta: the delta at which to state epsilon.
    """

    dimension: int
    rounds: int = 1
    delta: float = 1e-5


class Defense(Component):
    """A client-side mechanism. Override the verbs that it changes."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """The natural adaptive attacker: wrappers of attacks by name, with parameters, from the inside out."""

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Change the data before training: images ``[n, B, C, H, W]`` and labels ``[n, B]``, one row per client."""
        return images, labels

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        """What ``n`` clients send for one step; ``steps.gradient`` is ``[n, d]``.

        Args:
            steps: the local computation; nothing in it but the message leaves the client.
            streams: one random stream per client, for the mechanism's own randomness.
        """
        return DenseMessage(steps.gradient)

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        """The server's update from the messages of equal-sized clients, ``[n / clients, d]``.

        Consecutive ``clients`` rows belong to one server; several servers are computed side by side.
        """
        update: torch.Tensor = message.view().unflatten(0, (-1, clients)).mean(dim=1)
        return update

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        """What the mechanism guarantees under a schedule."""
        return PrivacyStatement(None, None, "no formal guarantee")


DEFENSES: Registry[Defense] = Registry("defense", "leakbench.defenses")


@DEFENSES.register("none", version=1)
class NoDefense(Defense):
    """The undefended gradient."""

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        law = Law(mean=steps.gradient, passing=torch.ones_like(steps.gradient, dtype=torch.bool))
        return DenseMessage(steps.gradient, law=law)
