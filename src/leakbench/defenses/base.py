"""The interface of defenses: verbs, each with a default that does nothing; most mechanisms override one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

from leakbench.defenses.densities import exact_variance, normal
from leakbench.defenses.marginals import Marginals
from leakbench.errors import Infeasible
from leakbench.federated.batches import Sampling
from leakbench.federated.client_data import ClientData
from leakbench.federated.message import DenseMessage, Law, Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.numerics.slopes import with_slope
from leakbench.randomness import Streams
from leakbench.registry import Component, Registry

ActsOn = Literal["data", "samples", "updates", "model"]
"""The part of a client's step that a defense changes: images, gradients of single samples, the update, or the model."""


@dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of a mechanism, and the assumptions behind it.

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

    @classmethod
    def none(cls, reason: str) -> PrivacyStatement:
        """No guarantee, for a reason."""
        return cls(None, None, f"no guarantee: {reason}")

    def as_dict(self) -> dict[str, Any]:
        """The statement in JSON types; without a capacity where there is none."""
        statement = asdict(self)
        if self.capacity is None:
            del statement["capacity"]
        return statement


@dataclass(frozen=True)
class Schedule:
    """The releases that a mechanism makes of one client's data.

    Attributes:
        dimension: number of coordinates that each release holds, d.
        rounds: number of releases.
        delta: the delta at which to state epsilon.
        sampling_rate: probability of each of the client's images to be in a batch (Poisson sampling); None where every
            image is in every batch.
        clients: least number of clients, without those who collude with the server, whose messages are in every sum;
            None if unknown.
        records: that each client holds; None if unknown.
        batch: records that a client takes in a step; None if unknown.
        sampling: how clients take them; None if unknown.
        clipped: whether a coordinate of a message may be clipped before messages are summed.
        places: fractional bits to which messages are rounded before they are summed; None if they are not.
    """

    dimension: int
    rounds: int = 1
    delta: float = 1e-5
    sampling_rate: float | None = None
    clients: int | None = None
    records: int | None = None
    batch: int | None = None
    sampling: Sampling | None = None
    clipped: bool = False
    places: int | None = None


DATA_VERBS = ("calibrate", "protect_dataset", "protect_data")
"""Verbs that read or change what clients hold."""

ClientState: TypeAlias = "Mapping[str, torch.Tensor]"
"""State that clients carry from one round to the next: tensors ``[n, ...]`` by name, one row per client."""


@dataclass(frozen=True)
class Round:
    """One round of training, as a mechanism with a state or with public randomness sees it.

    Attributes:
        streams: private randomness, one random stream per client.
        state: the clients' state after the previous round; in the first round :meth:`Defense.initial_state`.
        number: number of rounds before this one.
        clients_per_server: number of consecutive rows that send to one server.
        published: public randomness of a round that took place, for those who repeat it.
    """

    streams: Streams
    state: ClientState = field(default_factory=dict)
    number: int = 0
    clients_per_server: int = 1
    published: Streams | None = None

    @cached_property
    def public(self) -> Streams:
        """Public randomness, one stream per client: equal for all clients of a server.

        Servers and attackers draw the same numbers from it.
        """
        if self.published is not None:
            return Streams(self.published.keys)
        return self.streams.shared(self.clients_per_server).child("public")


def least_squares_scale(
    values: torch.Tensor, gradient: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """The factor ``a`` at which ``a gradient`` is nearest to ``values``, both ``[n, d]``: ``[n, 1]``, at least 0.001.

    Args:
        values: received.
        gradient: of the candidates.
        weights: of the squares of differences, ``[n, d]``, or boolean: the coordinates that are compared.
    """
    fixed = gradient.detach()
    compared = fixed if weights is None else weights * fixed
    square = torch.linalg.vecdot(compared, fixed)[:, None]
    inverse = 1 / square.clamp(min=torch.finfo(fixed.dtype).tiny)
    scale = torch.linalg.vecdot(compared, values)[:, None] * inverse
    inverse = inverse * ((scale > LEAST_SCALE) & (square > 0))
    slope = torch.addcmul(values, fixed, -2 * scale).mul_(inverse)
    if weights is not None:
        slope *= weights
    nearest = torch.where(square > 0, scale.clamp(min=LEAST_SCALE), 1.0)
    return with_slope(gradient, nearest[:, 0], slope)[:, None]


LEAST_SCALE = 1e-3
"""A candidate whose gradient points away from the message is not turned round, nor made nothing."""


class Defense(Component):
    """A client-side mechanism. Override the verbs that it changes.

    Most mechanisms override :meth:`protect_update` alone. One whose clients have a state, such as an error that they
    feed back, overrides :meth:`protect_round` and :meth:`initial_state` instead; so does one that uses public
    randomness, or the number of the round.

    >>> class HalfPrecision(Defense):
    ...     def protect_update(self, steps, streams):
    ...         return DenseMessage(steps.gradient.half().float())
    >>> HalfPrecision.overrides("protect_data"), HalfPrecision.overrides("protect_update")
    (False, True)
    >>> HalfPrecision().privacy(Schedule(dimension=160)).basis
    'no formal guarantee'
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """The natural adaptive attacker: wrappers of attacks by name, with parameters, from the inside out.

    A property instead, where it depends on the defense's parameters."""

    acts_on: ClassVar[ActsOn] = "updates"
    """The part of a step that it changes: images, gradients of single samples (``DPSGD`` and its kind), the update, or
    the model (:meth:`extend`). Only the first two defend training whose steps nobody sees."""

    biased: ClassVar[str] = ""
    """Why the update that the server decodes is biased, where no :class:`Law` of the message states its mean; empty if
    it is unbiased."""

    scale_free: ClassVar[bool] = False
    """Whether the likelihood does not depend on the length of a candidate's gradient."""

    keeps_residual: ClassVar[bool] = False
    """Whether a client adds to a round's gradient what its earlier messages left out: ``sum of gradients - sum of
    messages``."""

    together: ClassVar[int] = 1
    """Number of clients, in consecutive rows, that share randomness; 1 if each draws by itself."""

    def passes(self, records: int) -> float:
        """Work on a client's update beside its step of so many records, in passes of a record through the model."""
        return 0.0

    @classmethod
    def overrides(cls, *verbs: str) -> bool:
        """Whether the class overrides any of these verbs."""
        return any(getattr(cls, verb) is not getattr(Defense, verb) for verb in verbs)

    def tune(self, kept: Mapping[str, Mapping[str, torch.Tensor]]) -> Defense:
        """The mechanism with parameters chosen from tensors of other jobs: a new one, or itself.

        Args:
            kept: tensors of the records that the job reads, by kind of job and name.

        Raises:
            Infeasible: no parameter meets the mechanism's goal.
            ConfigError: the job does not read what the mechanism needs.
        """
        return self

    def calibrate(self, data: ClientData) -> Defense:
        """The mechanism calibrated on the clients' whole training data: a new one, or itself.

        Row ``i`` of ``data`` is client ``i``; a single row serves all clients.

        Raises:
            ConfigError: the parameters do not fit the images.
        """
        return self

    def extend(self, network: Network, shape: tuple[int, ...], seed: int) -> Network:
        """The model that clients train instead of ``network``, which stays as it is; by default that itself.

        A defense that overrides it declares ``acts_on = "model"``. All parameters of the network are among the new
        one's, whose last layer is the same. Attackers know the new one. Images of a step may get rows below
        (:meth:`protect_data`), which the new one takes as inputs of its own, and does without.

        Args:
            network: the model, initialised.
            shape: ``(C, H, W)`` of an image.
            seed: of the initialisation of what is new.

        Raises:
            ConfigError: there is no such model.
        """
        return network

    def protect_dataset(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Change the data once, before training: images ``[n, N, C, H, W]`` and labels ``[n, N]``, one row per client.

        The clients train on the result alone. Where nothing changes, it is the same object.

        Raises:
            Infeasible: the mechanism is not calibrated.
        """
        return images, labels

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Change the data of one step: images ``[n, B, C, H, W]`` and labels ``[n, B]``, one row per client.

        Labels may become probabilities, ``[n, B, classes]``, for which clients compute the cross-entropy.
        """
        return images, labels

    def image_noise(self) -> list[torch.Tensor]:
        """Covariance of the normal noise on every client's images, for threat models that grant it.

        Variances ``[d]`` or matrices ``[d, d]``: one per client, or one for all after a calibration with a single row;
        empty without noise.
        """
        return []

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        """The message of ``n`` clients for one step; ``steps.gradient`` is ``[n, d]``.

        By default the gradient; for a mechanism that overrides :meth:`protect_round`, the message of the first round.

        Args:
            steps: the local computation; nothing in it but the message leaves the client.
            streams: one random stream per client, for the mechanism's own randomness.
        """
        if self.overrides("protect_round"):
            message, _ = self.protect_round(steps, Round(streams, self.initial_state(steps)))
            return message
        return DenseMessage(steps.gradient)

    def initial_state(self, steps: ClientSteps) -> ClientState:
        """The clients' state before the first round, with every tensor of later states; empty for stateless mechanisms.

        Args:
            steps: the local computation of the first round, for shapes and the device.
        """
        return {}

    def protect_round(self, steps: ClientSteps, round: Round) -> tuple[Message, ClientState]:
        """The message of ``n`` clients in a round, and their state after it.

        The state stays with the clients and is saved in the checkpoints of a job. It is also updated for clients that
        drop out of secure aggregation.

        Args:
            steps: as for :meth:`protect_update`.
            round: the clients' state, randomness private and public, and the number of the round.
        """
        return self.protect_update(steps, round.streams), round.state

    @property
    def not_simulated(self) -> str:
        """Why an attacker cannot run the mechanism on a candidate; empty if it can."""
        name = type(self).__name__
        if self.overrides(*DATA_VERBS):
            return f"{name} changes images: to its attacker the changed ones are the candidates"
        if self.overrides("initial_state"):
            return f"{name} has a state of the client, which no attacker sees"
        if self.together > 1:
            return f"{name} works with {self.together} clients together, of which a candidate is one"
        return ""

    def simulate(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Message:
        """The message of a first round as an attacker makes it, of candidates instead of samples.

        Args:
            steps: the local computation on the candidates.
            streams: the attacker's own randomness, one stream per candidate.
            public: the public randomness of the round, if there was any.
        """
        if not self.overrides("protect_round"):
            return self.protect_update(steps, streams)
        message, _ = self.protect_round(steps, Round(streams, self.initial_state(steps), published=public))
        return message

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Log-likelihood of what was received, if candidates were the samples, ``[n]``, up to a constant of each row.

        From public parameters and what travels alone, and differentiable in ``steps.gradient``. Where an outcome is
        impossible it goes on downwards, so that a search finds its way.

        Args:
            received: of each row's client.
            steps: the local computation on the candidates, one per row.

        Raises:
            Infeasible: the mechanism states no likelihood.
        """
        raise Infeasible(f"{type(self).__name__} states no likelihood; the attack 'simulated' needs none")

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        """The laws of a message's coordinates if candidates were the samples: for the likelihood of a mean of several.

        By default mean and variance of :attr:`~leakbench.federated.message.Message.law`; without one the message,
        whose derivative is taken to be the gradient's.

        Args:
            steps: as for :meth:`log_likelihood`.
            streams: as for :meth:`simulate`.
            public: as for :meth:`simulate`.
        """
        message = self.simulate(steps, streams, public)
        if message.law is not None:
            return Marginals(message.law.mean, message.law.variance)
        gradient = steps.gradient
        return Marginals(gradient + (message.view() - gradient).detach())

    def fitted_scale(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Factor of each candidate's gradient at which it fits what was received, ``[n, 1]``: by least squares.

        Ones where the mechanism is :attr:`scale_free`. Those whose messages are not the gradient on average override
        it.
        """
        if self.scale_free:
            return torch.ones_like(received.values[:, :1])
        return least_squares_scale(received.values, steps.gradient)

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        """The server's update from the messages of equal-sized clients, ``[n / clients, d]``.

        Consecutive ``clients`` rows belong to one server; several servers are computed side by side.
        """
        update: torch.Tensor = message.view().unflatten(0, (-1, clients)).mean(dim=1)
        return update

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        """The mechanism's guarantee under a schedule."""
        return PrivacyStatement(None, None, "no formal guarantee")


DEFENSES: Registry[Defense] = Registry("defense", "leakbench.defenses")


@DEFENSES.register("none", version=1)
class NoDefense(Defense):
    """The undefended gradient.

    Its attacker knows that it is exact, and maximises the likelihood of a message without noise: near the image that
    tells candidates apart whose cosine distances are equal in single precision.
    """

    acts_on: ClassVar[ActsOn] = "data"
    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        law = Law(mean=steps.gradient, passing=torch.ones_like(steps.gradient, dtype=torch.bool))
        return DenseMessage(steps.gradient, law=law)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """A narrow normal density around the candidate's gradient, ``[n]``."""
        variance = received.once("exact variance", lambda: exact_variance(received.values))
        return normal(received.values - steps.gradient, variance)
