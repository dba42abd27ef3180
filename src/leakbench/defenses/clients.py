"""Clients that apply a defense, from their data to their messages, round after round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from leakbench.defenses.base import ClientState, Defense, Round, least_squares_scale
from leakbench.defenses.marginals import Marginals, likelihood_of_mean
from leakbench.federated.batches import ALL, Chosen
from leakbench.federated.client_data import ClientData
from leakbench.federated.means import averaged
from leakbench.federated.message import Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.numerics.stateful import named, part_of
from leakbench.randomness import Streams


class Examples(NamedTuple):
    """Labelled samples: the clients' data sets, or their batches of a step.

    Attributes:
        inputs: network inputs ``[n, N, C, H, W]``, or token ids or embedded sentences.
        labels: ``[n, N]``.
    """

    inputs: torch.Tensor
    labels: torch.Tensor

    def at(self, chosen: Chosen | torch.Tensor) -> Examples:
        """The samples at these indices of both tensors."""
        return Examples(self.inputs[chosen], self.labels[chosen])


class Sent(NamedTuple):
    """A step of defended clients: their computation, and their message."""

    steps: ClientSteps
    message: Message


def calibrated(defense: Defense, data: ClientData) -> Defense:
    """A defense calibrated for clients with these data; itself where it needs no calibration.

    Raises:
        ConfigError: the parameters do not fit the images.
    """
    return defense.calibrate(data) if defense.overrides("calibrate") else defense


class DefendedClients:
    """``n`` clients under one defense: they protect their data set once, then a batch and an update in every round.

    The defense has to be tuned (:meth:`Defense.tune`) and calibrated (:func:`calibrated`) where it needs that.

    Four clients of one server drop half of their gradient:

    >>> from leakbench.defenses.pruning import MagnitudePruning
    >>> from leakbench.models.base import build_network
    >>> from leakbench.models.convnets import SimpleConvNet
    >>> network = build_network(SimpleConvNet(width=2), (1, 8, 8), 10, seed=0)
    >>> samples = Examples(torch.ones(4, 2, 1, 8, 8), torch.tensor([[0, 1]] * 4))
    >>> streams = Streams([("example", client) for client in range(4)])
    >>> clients = DefendedClients(MagnitudePruning(fraction=0.5), streams, samples, per_server=4)
    >>> compute = lambda batch: ClientSteps(network, network.parameters, *batch, streams)
    >>> steps, message = clients.step(compute, streams.child("step", 0))
    >>> message.kept.sum(dim=1).tolist(), clients.aggregate(message).shape
    ([80, 80, 80, 80], torch.Size([1, 160]))

    Args:
        defense: the mechanism.
        streams: one random stream per client; the protection of the data set draws from their child ``data``.
        samples: the clients' data sets, ``N`` samples each; None where every step brings its batch.
        per_server: number of clients, in consecutive rows, that send to one server.

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
        """The clients' training data, protected by the defense."""
        assert self._samples is not None, "clients without samples compute on batches that are given"
        return self._samples

    def take(self, chosen: Chosen = ALL) -> Examples:
        """The batch of a step, ``B`` of each client's :attr:`samples`."""
        return self.samples.at(chosen)

    def protect_data(self, batch: Examples, streams: Streams) -> Examples:
        """A step's batch, ``B`` samples of each client, protected by the defense."""
        return Examples(*self.defense.protect_data(*batch, streams))

    def send(self, steps: ClientSteps, streams: Streams) -> Message:
        """The clients' message of the next round; updates their state."""
        round = Round(streams, self._state_for(steps), self.rounds, self.per_server)
        message, self._state = self.defense.protect_round(steps, round)
        self.rounds += 1
        return message

    def step(self, compute: Callable[[Examples], ClientSteps], streams: Streams, batch: Examples | None = None) -> Sent:
        """One round: protect the batch, compute, protect the update.

        Args:
            compute: the local computation on a batch.
            streams: the mechanism's randomness in this step, one stream per client.
            batch: part of :attr:`samples`; by default all of them.
        """
        steps = compute(self.protect_data(self.samples if batch is None else batch, streams))
        return Sent(steps, self.send(steps, streams))

    def aggregate(self, message: Message) -> torch.Tensor:
        """The servers' updates, ``[n / per_server, d]``."""
        return self.defense.aggregate(message, self.per_server)

    def state(self) -> dict[str, torch.Tensor]:
        """The rounds so far and the clients' state, for checkpoints."""
        return {"rounds": torch.tensor(self.rounds)} | named("clients", self._state or {})

    def restore(self, saved: ClientState) -> None:
        """Continue after the round at which :meth:`state` returned ``saved``, on whatever device that is."""
        self.rounds = int(saved["rounds"])
        if self.rounds:
            self._state = part_of(saved, "clients")

    def _state_for(self, steps: ClientSteps) -> ClientState:
        """The state before a round, on the steps' device: a restored one is on the CPU."""
        if self._state is None:
            return self.defense.initial_state(steps)
        return {name: value.to(steps.images.device) for name, value in self._state.items()}


@dataclass(frozen=True)
class PublicMechanism:
    """A calibrated defense in the attacker's hands: run on candidates, and on clients that the attacker makes up.

    Attributes:
        defense: the mechanism, with its public parameters.
        users: number of clients, consecutive rows, whose messages the server sees as one mean.
    """

    defense: Defense
    users: int = 1

    @property
    def class_name(self) -> str:
        """Name of the defense's class."""
        return type(self.defense).__name__

    @property
    def not_simulated(self) -> str:
        """Why it cannot be run on candidates; empty if it can."""
        return self.defense.not_simulated

    @property
    def keeps_residual(self) -> bool:
        """Whether a client adds to a round's gradient what its earlier messages left out, and these were seen."""
        return self.defense.keeps_residual and self.users == 1

    def simulate(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Message:
        """The message of candidates: :meth:`Defense.simulate`; of users the mean."""
        return averaged(self.defense.simulate(steps, streams, public), self.users)

    def log_likelihood(self, received: Received, steps: ClientSteps, public: Streams | None) -> torch.Tensor:
        """Log-likelihood of what was received, ``[n]``: :meth:`Defense.log_likelihood`, or that of a mean.

        Raises:
            Infeasible: the mechanism states none.
        """
        if self.users == 1:
            return self.defense.log_likelihood(received, steps)
        return likelihood_of_mean(received, self._marginals(steps, public))

    def fitted_scale(self, received: Received, steps: ClientSteps, public: Streams | None) -> torch.Tensor:
        """Factor of each candidate's gradients at which they fit best, ``[n, 1]``: :meth:`Defense.fitted_scale`."""
        if self.users == 1:
            return self.defense.fitted_scale(received, steps)
        users = self._marginals(steps, public)
        compared = None if users.compared is None else users.compared[:, 0]
        return least_squares_scale(users.in_basis(received.values), users.expected().mean(dim=1), compared)

    def _marginals(self, steps: ClientSteps, public: Streams | None) -> Marginals:
        return self.defense.marginals(steps, steps.streams, public).of_users(self.users)

    def image_noise(self) -> Sequence[torch.Tensor]:
        """Covariance of the noise on images, ``[pixels]`` or ``[pixels, pixels]``: :meth:`Defense.image_noise`."""
        return self.defense.image_noise()

    def protected(self, images: torch.Tensor, labels: torch.Tensor, streams: Streams) -> torch.Tensor:
        """Images of the first round, as the defense changes images ``[n, B, C, H, W]`` with labels ``[n, B]``."""
        samples, streams = self._of_users(images, labels, streams)
        clients = DefendedClients(self.defense, streams, samples)
        return clients.protect_data(clients.samples, streams).inputs.view_as(images)

    def defend(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        compute: Callable[[torch.Tensor, torch.Tensor], ClientSteps],
        streams: Streams,
    ) -> tuple[ClientSteps, Message, Streams]:
        """The first round of clients that hold images ``[n, B, C, H, W]`` and labels ``[n, B]``.

        Returns their computation, their message, and the round's public randomness.
        """
        samples, streams = self._of_users(images, labels, streams)
        clients = DefendedClients(self.defense, streams, samples, per_server=self.users)
        steps, message = clients.step(lambda batch: compute(*batch), streams)
        public = Round(streams, clients_per_server=self.users).public
        return steps, averaged(message, self.users), Streams(public.keys[:: self.users])

    def _of_users(self, images: torch.Tensor, labels: torch.Tensor, streams: Streams) -> tuple[Examples, Streams]:
        """Equal parts of batches ``[n, B, ...]`` as the samples of users, with streams of their own."""
        if self.users == 1:
            return Examples(images, labels), streams
        samples = Examples(*(part.unflatten(1, (self.users, -1)).flatten(0, 1) for part in (images, labels)))
        return samples, streams.of_users(self.users)
