"""What a defense is: up to six verbs, each with a default that does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from leakbench.federated.client_data import ClientData
from leakbench.federated.message import DenseMessage, Law, Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.registry import Component, Registry

ActsOn = Literal["data", "samples", "updates"]
"""What a defense changes: images, gradients of single samples, or whatever a client sends."""


@dataclass(frozen=True)
class PrivacyStatement:
    """What a mechanism guarantees, and what the guarantee rests on.

    Attributes:
        epsilon: of (epsilon, delta)-differential privacy, or None where there is no such guarantee.
        delta: the delta of that guarantee.
        basis: assumptions, or the reason why there is no guarantee.
        capacity: bound on the mutual information between one image and all that the client releases, in nats; None
            where there is none.
    """

    epsilon: float | None
    delta: float | None
    basis: str
    capacity: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The statement in JSON types; of the capacity it speaks where there is one."""
        statement = asdict(self)
        if self.capacity is None:
            del statement["capacity"]
        return statement


@dataclass(frozen=True)
class Schedule:
    """How a mechanism is applied to one client's data.

    Attributes:
        dimension: number of coordinates that each release holds, d.
        rounds: number of releases.
        delta: the delta at which to state epsilon.
        sampling_rate: part of the client's images in each release's batch, drawn independently (Poisson sampling); None
            where every image is in every batch.
        clients: whose messages are summed; None where it is not said.
    """

    dimension: int
    rounds: int = 1
    delta: float = 1e-5
    sampling_rate: float | None = None
    clients: int | None = None


class Defense(Component):
    """A client-side mechanism. Override the verbs that it changes."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """The natural adaptive attacker: wrappers of attacks by name, with parameters, from the inside out."""

    acts_on: ClassVar[ActsOn] = "updates"
    """What it changes: images alone, the gradients of single samples (``DPSGD`` and its kind), or whatever a client
    sends. Only the first two defend training whose steps nobody sees."""

    biased: ClassVar[str] = ""
    """Why what the server decodes is on average not the gradient, where no :class:`Law` of the message says what it is;
    empty: it is the gradient."""

    together: ClassVar[int] = 1
    """How many clients, in consecutive rows, share randomness; one sends the same whoever is in its batch."""

    def calibrate(self, data: ClientData) -> Defense:
        """The mechanism made ready for clients whose whole training data it sees: a new one, or itself.

        Its rows are those of ``data``, in this order; a single row serves all clients.

        Raises:
            ConfigError: the parameters do not fit the images.
        """
        return self

    def protect_dataset(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Change the data once, before training: images ``[n, N, C, H, W]`` and labels ``[n, N]``, one row per client.

        What comes back is all that the clients train on. Where nothing changes, it is the same object.

        Raises:
            Infeasible: the mechanism is not calibrated.
        """
        return images, labels

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Change the data of one step: images ``[n, B, C, H, W]`` and labels ``[n, B]``, one row per client."""
        return images, labels

    def image_noise(self) -> list[torch.Tensor]:
        """Covariance of the normal noise on every client's images, for threat models that grant it.

        Variances ``[d]`` or ``[d, d]`` per client of the calibration, one for all if there was one; empty without any.
        """
        return []

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

    acts_on: ClassVar[ActsOn] = "data"

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        law = Law(mean=steps.gradient, passing=torch.ones_like(steps.gradient, dtype=torch.bool))
        return DenseMessage(steps.gradient, law=law)
