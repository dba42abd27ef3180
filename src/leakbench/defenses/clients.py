"""Clients that apply a defense: from the data that they hold to the messages that they send, round after round."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from leakbench.defenses.base import ClientState, Defense, Round
from leakbench.federated.batches import ALL, Chosen
from leakbench.federated.client_data import ClientData
from leakbench.federated.message import Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.numerics.stateful import named, part_of
from leakbench.randomness import Streams


class Examples(NamedTuple):
    """Labelled samples, such as all that clients hold, or their batches of a step.

    Attributes:
        inputs: network inputs ``[n, N, C, H, W]``, or token ids or embedded sentences.
        labels: ``[n, N]``.
    """

    inputs: torch.Tensor
    labels: torch.Tensor

    def at(self, chosen: Chosen | torch.Tensor) -> Examples:
        """Some of them, by indices of both tensors."""
        return Examples(self.inputs[chosen], self.labels[chosen])


class Sent(NamedTuple):
    """A step of defended clients: their computation, and what they sent of it."""

    steps: ClientSteps
    message: Message


def calibrated(defense: Defense, data: ClientData) -> Defense:
    """A defense that is ready for clients with these data; itself where it does not look at data.

    Raises:
        ConfigError: the parameters do not fit the images.
    """
    return defense.calibrate(data) if defense.overrides("calibrate") else defense


class DefendedClients:
    """``n`` clients under one defense: they protect their data set once, then a batch and an update in every round.

    A defense has to be ready: tuned (:meth:`Defense.tune`) and calibrated (:func:`calibrated`) where it needs that.
    The random streams of a step are those of the mechanism, which the same clients have for every defense.

    Args:
        defense: the mechanism.
        streams: one random stream per client, which names it; the protection of the data set draws from their child
            ``data``.
        samples: all that the clients hold, ``N`` samples each; none for clients whose computation others describe.
        per_server: clients, in consecutive rows, that send to one server.

    Raises:
        Infeasible: the mechanism is not calibrated.
    """

    def __init__(
        self, defense: Defense, streams: Streams, samples: Examples | None = None, *, per_server: int = 1
    ) -> None:
        self.defense, self.per_server = defense, per_server
        if samples is not None and defense.overrides("protect_dataset"):
            samples = Examples(*defense.protect_dataset(*samples, streams.child("data")))
        self._samples = samples
        self.rounds = 0
        self._state: ClientState | None = None

    @property
    def samples(self) -> Examples:
        """All that the clients train on: their data set as the defense changes it."""
        assert self._samples is not None, "clients without samples compute on batches that are given"
        return self._samples

    def take(self, chosen: Chosen = ALL) -> Examples:
        """Those of :attr:`samples` that a step takes, ``B`` of each client."""
        return self.samples.at(chosen)

    def protect_data(self, batch: Examples, streams: Streams) -> Examples:
        """The batch of a step, ``B`` samples of each client, as the defense changes it."""
        return Examples(*self.defense.protect_data(*batch, streams))

    def send(self, steps: ClientSteps, streams: Streams) -> Message:
        """What the clients send in the next round, after which their state is another one."""
        round = Round(streams, self._state_for(steps), self.rounds, self.per_server)
        message, self._state = self.defense.protect_round(steps, round)
        self.rounds += 1
        return message

    def step(self, compute: Callable[[Examples], ClientSteps], streams: Streams, batch: Examples | None = None) -> Sent:
        """One round: protect the batch, compute, protect the update.

        Args:
            compute: the local computation on a batch.
            streams: the mechanism's for this step, one per client.
            batch: of :attr:`samples`; by default all of them.
        """
        steps = compute(self.protect_data(self.samples if batch is None else batch, streams))
        return Sent(steps, self.send(steps, streams))

    def aggregate(self, message: Message) -> torch.Tensor:
        """The updates of the servers, ``[n / per_server, d]``."""
        return self.defense.aggregate(message, self.per_server)

    def state(self) -> dict[str, torch.Tensor]:
        """The rounds so far and the clients' state, for checkpoints."""
        return {"rounds": torch.tensor(self.rounds)} | named("clients", self._state or {})

    def restore(self, saved: ClientState) -> None:
        """Go on after the round at which :meth:`state` gave ``saved``, on whatever device that is."""
        self.rounds = int(saved["rounds"])
        if self.rounds:
            self._state = part_of(saved, "clients")

    def _state_for(self, steps: ClientSteps) -> ClientState:
        """The state before a round; one that was restored comes from the CPU."""
        if self._state is None:
            return self.defense.initial_state(steps)
        return {name: value.to(steps.images.device) for name, value in self._state.items()}
