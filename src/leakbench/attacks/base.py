"""Attacks: many observations of one model in, as many reconstructions out.

An attack sees :class:`Observations` (what the server decoded) and :class:`Knowledge` (what the threat model grants),
and nothing else. Ground truth is not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from leakbench.attacks.image_law import ImageLaw
from leakbench.attacks.inverter import Inverter
from leakbench.attacks.language.model import LanguageModel
from leakbench.attacks.restoration.prior import Prior
from leakbench.attacks.rows import picked
from leakbench.attacks.straight_through import Scoring, Sending
from leakbench.effort import Effort
from leakbench.errors import Infeasible, ObservationError
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.federated.message import Message, Received, gains, stacked
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.models.base import Model, Network, Statistics
from leakbench.randomness import Streams
from leakbench.records import MetricInfo
from leakbench.registry import Component, Registry

Grant = Literal[
    "labels",
    "pixel_range",
    "auxiliary_images",
    "auxiliary_sentences",
    "batch_statistics",
    "noise_variance",
    "data_noise",
    "mechanism",
    "prior",
    "language_model",
    "inverter",
    "modified_model",
]
"""Side knowledge that a threat model may grant, and the power to change the model that clients get."""


class KnownInputs(NamedTuple):
    """Inputs that the attacker knows already, such as padding and the special tokens of sentences.

    Attributes:
        where: boolean, ``[n, *batch_shape]``. Of embedded sentences ``[n, B, L, H + 1]``: the positions of special
            tokens and of padding, and the last column everywhere.
        values: network inputs of the same shape; only those ``where`` count, and the others may be anything.
    """

    where: torch.Tensor
    values: torch.Tensor

    def repeat(self, times: int) -> KnownInputs:
        """Repeat the rows for each of ``times`` settings of a defense."""
        return KnownInputs(*(part.repeat(times, *(1,) * (part.dim() - 1)) for part in self))


class CodeNoise(NamedTuple):
    """The noise that clients' models drew in a bottleneck (:mod:`leakbench.models.bottleneck`).

    Attributes:
        values: ``[n, B, K]``; where it is not known, those at which a search begins.
        known: whether that is the noise itself.
    """

    values: torch.Tensor
    known: bool


class Words(NamedTuple):
    """The model's vocabulary, as an attacker on sentences knows it.

    Attributes:
        embeddings: of all tokens, ``[V, H]``, in network inputs: a part of the attacked model. Of clients that hold
            different models, ``[n, V, H]``.
        allowed: tokens that sentences are made of, boolean ``[V]``: not the special ones. At least one.
        known: the tokens at positions that need no search, int64 ``[n, B, L]``; elsewhere -1. They are the positions of
            which :attr:`Knowledge.inputs` holds the embeddings.
    """

    embeddings: torch.Tensor
    allowed: torch.Tensor
    known: torch.Tensor

    def repeat(self, times: int) -> Words:
        """Repeat the rows for each of ``times`` settings of a defense, where all clients hold one model."""
        return self._replace(known=self.known.repeat(times, 1, 1))

    def at(self, rows: Sequence[int]) -> Words:
        """The words of the observations in these rows."""
        embeddings = self.embeddings if self.embeddings.dim() == 2 else picked(self.embeddings, rows)
        return self._replace(embeddings=embeddings, known=picked(self.known, rows))

    @staticmethod
    def side_by_side(models: Sequence[Words]) -> Words:
        """The words of observations of several models, each given as those of clients that hold one."""
        tables = [each.embeddings.expand(len(each.known), -1, -1) for each in models]
        return Words(torch.cat(tables), models[0].allowed, torch.cat([each.known for each in models]))


class Mechanism(Protocol):
    """A defense as an attacker runs it: its code and public parameters, without what it knows of clients."""

    @property
    def class_name(self) -> str:
        """Name of the defense's class, for messages."""

    @property
    def not_simulated(self) -> str:
        """Why it cannot be run on candidates; empty if it can."""

    @property
    def users(self) -> int:
        """Number of clients, equal parts of a batch, whose messages the server sees as one mean."""

    @property
    def keeps_residual(self) -> bool:
        """Whether clients add to a round's gradient what their earlier messages left out."""

    def simulate(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Message:
        """The message of candidates' updates; of several users, whose steps are consecutive rows, their mean."""

    def log_likelihood(self, received: Received, steps: ClientSteps, public: Streams | None) -> torch.Tensor:
        """Log-likelihood of what was received, ``[n]``; steps as in :meth:`simulate`."""

    def fitted_scale(self, received: Received, steps: ClientSteps, public: Streams | None) -> torch.Tensor:
        """Factor of each candidate's gradients at which they fit best, ``[n, 1]``; steps as in :meth:`simulate`."""

    def image_noise(self) -> Sequence[torch.Tensor]:
        """Covariance of the noise on images, ``[pixels]`` or ``[pixels, pixels]``: one for all; empty without noise."""

    def protected(self, images: torch.Tensor, labels: torch.Tensor, streams: Streams) -> torch.Tensor:
        """Images that clients compute on who hold images ``[n, B, C, H, W]`` and labels ``[n, B]``, of that shape."""

    def defend(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        compute: Callable[[torch.Tensor, torch.Tensor], ClientSteps],
        streams: Streams,
    ) -> tuple[ClientSteps, Message, Streams]:
        """The first round of clients that hold images of the attacker's own.

        Returns their computation, their message, and the round's public randomness.

        Args:
            images: ``[n, B, C, H, W]``, a client's whole data.
            labels: ``[n, B]``.
            compute: the local computation on a batch.
            streams: the mechanism's randomness, one stream per client.
        """


SEEN_OF_ROWS = ("gradients", "marked", "coded", "gain", "weights", "step", "beyond", "repeats", "start", "public")
"""Fields of :class:`Observations` with a row per observation; ``parameters`` may be another one."""

KNOWN_OF_ROWS = ("labels", "batch_statistics", "noise_variance", "data_noise", "inputs", "mechanism", "inverter")
"""Fields of :class:`Knowledge` with a row per observation; the tokens that are known among ``words`` are one more."""


@dataclass(frozen=True)
class Observations:
    """The attacker's view of ``n`` clients that hold one model, or a model each.

    Attributes:
        network: the architecture, in the BatchNorm mode that the clients computed in.
        parameters: the model at the time of the step, ``[d]``; of clients that hold different ones, ``[n, d]``.
        gradients: decoded gradients (of several local steps: updates over the learning rate), ``[n, d]``.
        batch_shape: ``(B, C, H, W)`` of each client's inputs; of embedded sentences ``(B, L, H + 1)``.
        local: the clients' local computation.
        marked: the coordinates at which the message itself shows that the defense changed them (pruned, clipped, out of
            range), boolean ``[n, d]``; None where it shows nothing.
        coded: value of one unit of each coordinate's fixed-point word, ``[n, d]``; 0 where a coordinate is no word, and
            None where none is (:attr:`~leakbench.federated.message.Message.coded`).
        gain: public scale factor of the gradient, ``[n, 1]``; 1 where None.
        weights: the attacker's trust in each coordinate, ``[n, d]``; equal where None.
        step: distance between neighbouring values of the messages' code, ``[n, d]``; see
            :class:`~leakbench.federated.message.Received`.
        beyond: ends of the code that values are at, ``[n, d]``; likewise.
        send: the attacker's own run of the mechanism, through which a candidate's gradient goes before it is matched.
        score: the attacker's objective instead of a distance from ``gradients``.
        repeats: all that was decoded of clients that sent several messages of the same images and model, ``[n,
            messages, d]``, of which ``gradients`` is the first; None where each sent one.
        code_noise: noise of a bottleneck in the clients' model, as far as it is known; candidates have none where None.
        start: earlier reconstructions, at which a search may begin, ``[n, B, C, H, W]``.
        public: the public randomness of the round, one random stream per observation, from which the mechanism drew
            (:attr:`~leakbench.defenses.base.Round.public`); None where nothing was drawn.
        later: what was seen of the same clients with the same samples in later rounds, whose models are others, row by
            row as here.
        carried: whether the attacker adds to a candidate's gradient in a round what its earlier messages left out,
            since the defense does.
        users: whose mean each observation is, as far as an attack runs the mechanism of each: ``batch_shape`` holds the
            samples of one after the other. One where it works with the gradient of all.
    """

    network: Network
    parameters: torch.Tensor
    gradients: torch.Tensor
    batch_shape: tuple[int, ...]
    local: LocalTraining = ONE_STEP
    marked: torch.Tensor | None = None
    coded: torch.Tensor | None = None
    gain: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    step: torch.Tensor | None = None
    beyond: torch.Tensor | None = None
    send: Sending | None = None
    score: Scoring | None = None
    repeats: torch.Tensor | None = None
    code_noise: CodeNoise | None = None
    start: torch.Tensor | None = None
    public: Streams | None = None
    later: tuple[Observations, ...] = ()
    carried: bool = False
    users: int = 1

    def check(self) -> None:
        """Validate shapes and values before computing.

        Raises:
            ObservationError: shapes do not fit, or a gradient holds a value that is not finite.
        """
        n, d = len(self.gradients), self.network.dimension
        expected = {
            "parameters": (self.parameters, (d,) if self.parameters.dim() == 1 else (n, d)),
            "gradients": (self.gradients, (n, d)),
            "marked": (self.marked, (n, d)),
            "coded": (self.coded, (n, d)),
            "gain": (self.gain, (n, 1)),
            "weights": (self.weights, (n, d)),
        }
        for name, (tensor, shape) in expected.items():
            if tensor is not None and tensor.shape != shape:
                raise ObservationError(f"{name} of shape {list(tensor.shape)}; the model asks for {list(shape)}")
        broken = (~self.gradients.isfinite().all(dim=1)).nonzero().flatten().tolist()
        if broken:
            raise ObservationError(
                f"observation {broken[0]} of {n} holds values that are not finite"
                + (f", as do {len(broken) - 1} others" if len(broken) > 1 else "")
                + "; look at what the defense sends"
            )

    @property
    def unit(self) -> torch.Tensor:
        """Unit in which each coordinate was sent, ``[n, d]``, or ``[]`` where all are 1: that of its word, else 1."""
        if self.coded is None:
            return self.gradients.new_ones(())
        return torch.where(self.coded > 0, self.coded, 1.0)

    def one_model(self, who: str) -> torch.Tensor:
        """The parameters of the model that all clients hold, ``[d]``.

        Args:
            who: the part of an attack that works with one model alone, for the message.

        Raises:
            Infeasible: each client holds one of its own.
        """
        if self.parameters.dim() > 1:
            raise Infeasible(f"{who}: the clients hold {len(self)} models; attack those of one model at a time")
        return self.parameters

    def at(self, rows: Sequence[int]) -> Observations:
        """The observations in these rows.

        Raises:
            ValueError: an attack has changed them, and works with the rows of all observations.
        """
        if self.send is not None or self.score is not None or self.code_noise is not None:
            raise ValueError("observations are chosen before an attack runs the mechanism on candidates")
        parts = {name: picked(getattr(self, name), rows) for name in SEEN_OF_ROWS}
        parameters = self.parameters if self.parameters.dim() == 1 else picked(self.parameters, rows)
        return replace(self, parameters=parameters, later=tuple(each.at(rows) for each in self.later), **parts)

    def __len__(self) -> int:
        return self.gradients.shape[0]


def observed(
    network: Network,
    parameters: torch.Tensor,
    messages: Sequence[Message],
    batch_shape: tuple[int, ...],
    local: LocalTraining,
    *,
    repeats: torch.Tensor | None = None,
    public: Streams | None = None,
) -> Observations:
    """The observations of a server that gets these messages.

    Args:
        network: the architecture.
        parameters: the model, ``[d]``, or a model of each client, ``[n, d]``.
        messages: of the clients under one setting of a defense after the other; ``n`` clients in all.
        batch_shape: ``(B, C, H, W)`` of each client's inputs.
        local: the clients' local computation.
        repeats: as in :class:`Observations`.
        public: as in :class:`Observations`.

    Raises:
        ObservationError: a value is not finite, or does not fit the model.
    """
    views = [message.view() for message in messages]
    observations = Observations(
        network,
        parameters,
        torch.cat(views),
        batch_shape,
        local,
        marked=stacked([message.marked for message in messages]),
        coded=stacked([message.coded for message in messages]),
        gain=gains(messages, views),
        step=stacked([message.step for message in messages]),
        beyond=stacked([message.beyond for message in messages]),
        repeats=repeats,
        public=public,
    )
    observations.check()
    return observations


class OfRound(NamedTuple):
    """Side knowledge that a round's model and messages decide: ``[n, d]``, and each ``[n, channels]``, if granted."""

    noise_variance: torch.Tensor | None = None
    batch_statistics: Statistics | None = None


@dataclass(frozen=True)
class Knowledge:
    """Side knowledge, in network inputs; what is not granted is None.

    Attributes:
        labels: true labels, ``[n, B]``.
        pixel_range: smallest and largest valid input per channel, ``[2, C, 1, 1]``.
        auxiliary_images: images of the same kind, which no client holds, ``[m, C, H, W]``.
        auxiliary_labels: their labels, ``[m]``; granted with them.
        auxiliary_sentences: token ids of sentences which no client holds, ``[m, L]``.
        batch_statistics: mean and variance of every BatchNorm layer's inputs on the client's own batch, by the names of
            the module's buffers, each ``[n, channels]``.
        noise_variance: variance of the noise that the defense added to each coordinate, ``[n, d]``. Public for noise of
            one known size; an oracle's where the size depends on the data.
        data_noise: covariance of the noise that the defense added to each image, in network inputs, one per
            observation: variances ``[pixels]`` or a matrix ``[pixels, pixels]``, ``pixels = C H W``.
        prior: networks that were trained on images of the same kind, which no client holds.
        inputs: inputs that need no search.
        words: the model's words, of which sentences are made.
        language_model: a language model that was trained on sentences which no client holds.
        mechanism: the defense of each observation, to be run on candidates.
        inverter: a network for each observation that was trained to make images of such messages.
        of_later: what differs in the later rounds of :attr:`Observations.later`.
    """

    labels: torch.Tensor | None = None
    pixel_range: torch.Tensor | None = None
    auxiliary_images: torch.Tensor | None = None
    auxiliary_labels: torch.Tensor | None = None
    auxiliary_sentences: torch.Tensor | None = None
    batch_statistics: Statistics | None = None
    noise_variance: torch.Tensor | None = None
    data_noise: Sequence[torch.Tensor] | None = None
    prior: Prior | None = None
    inputs: KnownInputs | None = None
    words: Words | None = None
    language_model: LanguageModel | None = None
    mechanism: Sequence[Mechanism] | None = None
    inverter: Sequence[Inverter] | None = None
    of_later: tuple[OfRound, ...] | None = None

    def granted(self) -> frozenset[str]:
        """Names of what is known; labels of auxiliary images go without saying."""
        known = (each.name for each in fields(self) if getattr(self, each.name) is not None)
        return frozenset(known) - {"auxiliary_labels", "of_later"}

    def at(self, rows: Sequence[int]) -> Knowledge:
        """The knowledge of the observations in these rows."""
        words = None if self.words is None else self.words.at(rows)
        later = None if self.of_later is None else tuple(picked(each, rows) for each in self.of_later)
        of_rows = {name: picked(getattr(self, name), rows) for name in KNOWN_OF_ROWS}
        return replace(self, words=words, of_later=later, **of_rows)


def each_round(observations: Observations, knowledge: Knowledge) -> list[tuple[Observations, Knowledge]]:
    """Every round alone, with what is known in it; the first one first."""
    rounds = [replace(observations, later=()), *observations.later]
    differing = [OfRound(knowledge.noise_variance, knowledge.batch_statistics), *(knowledge.of_later or ())]
    differing += [OfRound()] * (len(rounds) - len(differing))
    return [
        (seen, replace(knowledge, of_later=None, **known._asdict()))
        for seen, known in zip(rounds, differing, strict=True)
    ]


@dataclass(frozen=True)
class Reconstruction:
    """An attacker's estimate of the inputs of ``n`` clients.

    >>> grey = Reconstruction(images=torch.zeros(2, 1, 1, 8, 8), objective=None, diverged_at=torch.tensor([-1, -1]))
    >>> grey.rows(0, 1).images.shape
    torch.Size([1, 1, 1, 8, 8])

    Attributes:
        images: network inputs, ``[n, B, C, H, W]``.
        objective: the attacker's own final objective per observation, ``[n]``; None where it has none.
        diverged_at: the iteration at which a trial became non-finite, ``[n]``, -1 where it did not.
        labels: the labels that it used or inferred, ``[n, B]``; None where it needs none.
        chosen: the numbers that it chose for itself, :attr:`Attack.chooses`, ``[n]`` each.
        tokens: the estimated sentences, as token ids ``[n, B, L]``; None for images.
        probabilities: of the labels, ``[n, B, classes]``, where they were varied with the images; else None.
        noisy: the images with the noise that was searched for with them, in the mean of all rounds; else None.
    """

    images: torch.Tensor
    objective: torch.Tensor | None
    diverged_at: torch.Tensor
    labels: torch.Tensor | None = None
    tokens: torch.Tensor | None = None
    chosen: Mapping[str, torch.Tensor] = field(default_factory=dict)
    probabilities: torch.Tensor | None = None
    noisy: torch.Tensor | None = None

    def rows(self, start: int, stop: int) -> Reconstruction:
        """The reconstruction of observations ``start`` to ``stop``."""
        return self.at(range(start, stop))

    def at(self, rows: Sequence[int]) -> Reconstruction:
        """The reconstruction of these observations."""
        return Reconstruction(**{each.name: picked(getattr(self, each.name), rows) for each in fields(self)})


@dataclass(frozen=True)
class ClientSetup:
    """Clients as the plan knows them.

    Attributes:
        model: that is attacked.
        network: it, before any training.
        local: the clients' local computation.
        batch_shape: of each client's samples, as the data set holds them, ``(B, ...)``.
        trained: whether the model that is attacked was trained.
    """

    model: Model
    network: Network
    local: LocalTraining
    batch_shape: tuple[int, ...]
    trained: bool = False


class Attack(Component):
    """A reconstruction method. A subclass implements :meth:`reconstruct`, and :meth:`needs` if it needs knowledge.

    >>> from leakbench.models.base import build_network
    >>> from leakbench.models.linear import Linear
    >>> class Black(Attack):
    ...     def reconstruct(self, observations, knowledge, streams):
    ...         images = torch.zeros(len(observations), *observations.batch_shape)
    ...         return Reconstruction(images, None, diverged_at=torch.full((len(observations),), -1))
    >>> network = build_network(Linear(), (1, 8, 8), classes=10, seed=0)
    >>> seen = Observations(network, network.parameters, torch.randn(3, network.dimension), batch_shape=(1, 1, 8, 8))
    >>> Black().reconstruct(seen, Knowledge(), Streams([("example", row) for row in range(3)])).images.shape
    torch.Size([3, 1, 1, 8, 8])
    """

    observes: ClassVar[bool] = True
    """False for reference attackers, which ignore the gradient; they are run beside the undefended gradient alone."""
    outermost: ClassVar[bool] = False
    """Whether it works with observations that no other attack has changed, so that no wrapper goes around it."""
    chooses: ClassVar[Mapping[str, MetricInfo]] = {}
    """Numbers that it chooses for itself, one per victim, which records show."""

    @property
    def reconstructs(self) -> Literal["images", "sentences"]:
        """The kind of inputs that it reconstructs."""
        return "images"

    @property
    def needs(self) -> frozenset[Grant]:
        """Side knowledge without which the attack cannot run."""
        return frozenset()

    @property
    def changes_model(self) -> bool:
        """Whether it sends clients a model of its own: whether :meth:`prepare` is its own."""
        return type(self).prepare is not Attack.prepare

    @property
    def several_models(self) -> bool:
        """Whether it takes observations of clients that hold different models; else it gets those of one at a time."""
        return False

    @property
    def several_rounds(self) -> bool:
        """Whether it uses the later rounds of observations; else it looks at the first alone."""
        return False

    @property
    def repeats_steps(self) -> bool:
        """Whether an evaluation repeats all of a client's local steps, so that it costs as much as they do."""
        return True

    def against(self, adaptive: Sequence[Mapping[str, Any]]) -> Attack:
        """The attack to run against a defense: itself, unless it adapts.

        Args:
            adaptive: the adaptive attacker that the defense declares: wrappers, from the inside out.

        Raises:
            Infeasible: the attack asks for a declaration that the defense does not make.
        """
        return self

    def check_clients(self, clients: ClientSetup) -> None:
        """Reject models and clients that it cannot read, before anything is computed; by default none.

        Raises:
            Infeasible: it cannot read them.
        """

    def varied(self, prior: float, rate: float) -> Attack:
        """The same attack with another strength; itself where it has no such numbers.

        Args:
            prior: factor of the weights of what it believes of images before it sees a message.
            rate: factor of its step size.
        """
        return self

    @property
    def ignorant(self) -> Attack:
        """The attack without the wrappers that know the defense."""
        return self

    def without_prior(self) -> Attack:
        """The same attack without what it believes of clean images, where what it finds is noisy; by default itself."""
        return self

    def settled(self, observations: Observations, knowledge: Knowledge) -> tuple[Attack, Knowledge]:
        """The attack with labels known, and the knowledge with those that it infers before it searches.

        A wrapper that knows the mechanism asks for it, since the attack alone infers labels without. Itself, and the
        same knowledge, where it infers none.
        """
        return self, knowledge

    @property
    def of_noisy_images(self) -> Attack | None:
        """The same attack on images that a defense adds noise of a known covariance to, which finds them without it.

        None where it cannot: then it finds noisy images.
        """
        return None

    def image_law(self, observations: Observations, knowledge: Knowledge) -> ImageLaw | None:
        """The law of images that it expects, by class; None where it has none."""
        return None

    def effort(self, samples: int) -> Effort:
        """Computation for one reconstruction from one round.

        Args:
            samples: number that pass through the model when the client's computation is repeated once.
        """
        return Effort(1, 1)

    def auxiliary(self, granted: int) -> int:
        """Number of auxiliary samples that it may read, of those granted; by default all, where it needs any."""
        return granted if self.needs & {"auxiliary_images", "auxiliary_sentences"} else 0

    def prepare(self, network: Network, batch_shape: tuple[int, ...], knowledge: Knowledge) -> Network:
        """The model that a malicious server sends instead of ``network``; by default that itself.

        Clients compute their step on it, with its own parameters, and :meth:`reconstruct` sees it. An attack that
        overrides this needs the grant ``modified_model``. Inside, torch records no gradients.

        Args:
            network: the model of the round, which is not to be changed.
            batch_shape: ``(B, C, H, W)`` of each client's inputs, as in :class:`Observations`.
            knowledge: what is granted and known before any message: the range of pixels, auxiliary samples.

        Raises:
            Infeasible: there is no such model.
        """
        return network

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        """Reconstruct the inputs of every observation; row ``i`` draws from stream ``i``."""
        raise NotImplementedError


ATTACKS: Registry[Attack] = Registry("attack", "leakbench.attacks")
