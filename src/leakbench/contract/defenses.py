"""Checks of defenses: one small computation of a few clients, held against the contract."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, get_args

from leakbench.attacks.adaptive import Adaptive, Wrapper
from leakbench.attacks.base import Knowledge, observed
from leakbench.attacks.straight_through import Candidates
from leakbench.contract.check import Case, Checks, NotAsked
from leakbench.contract.trial import SEEDS, trial
from leakbench.defenses.base import ActsOn, ClientState, Defense, PrivacyStatement, Round, Schedule
from leakbench.defenses.clients import DefendedClients, Examples, PublicMechanism
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.client_data import ClientData
from leakbench.federated.local import ONE_STEP
from leakbench.federated.message import FLOAT_BITS, Law, Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import np, torch
from leakbench.models.base import Network, build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.randomness import Streams, generator

CLIENTS, BATCH, SIDE, CLASSES = 4, 4, 8, 10
SHAPE = (1, SIDE, SIDE)
CHANGES_DATA, CHANGES_UPDATES = ("protect_dataset", "protect_data"), ("protect_update", "protect_round")
DRAWS = 512
"""Messages of one client with independent randomness, to average over."""
DEVIATIONS = 6.0
"""Standard errors by which an average may miss: normal means of a few hundred coordinates do once in a million runs."""
SHIFTED = 8
"""Coordinates that candidates are shifted in, one at a time, to hold a stated likelihood against many messages."""
SPREAD = 0.7
"""Greatest standard deviation of the logarithm of a likelihood ratio whose mean a few hundred messages can tell."""
MISSING = 0.1
"""Part of the probability that a law may give to outcomes that were continued, or that never happened."""
LEVELS = 16
"""Different values of a message that count as a code."""
ROUNDING = 1e-4
"""Tolerance relative to the largest value of a row, for the order of additions."""


class _Steps(ClientSteps):
    """Steps whose update is given: computed beside other clients, it would differ in its last digits."""

    def __init__(self, given: torch.Tensor, *steps: Any) -> None:
        super().__init__(*steps)
        self._given = given

    @property
    def gradient(self) -> torch.Tensor:
        return self._given

    def at(self, gradient: torch.Tensor) -> _Steps:
        """The same steps with another update, which share what has been computed."""
        moved = copy(self)
        moved._given = gradient
        return moved


def _given(steps: ClientSteps, gradient: torch.Tensor) -> _Steps:
    return _Steps(gradient, steps.network, steps.parameters, steps.images, steps.labels, steps.streams)


class DefenseCase(Case[Defense]):
    """A defense at work for four clients with four images of 8 x 8 each."""

    @cached_property
    def initial(self) -> Network:
        """A small network, the same every time."""
        return build_network(SimpleConvNet(width=2), SHAPE, CLASSES, seed=3)

    @cached_property
    def network(self) -> Network:
        """The network that clients train: the small one, unless the defense makes another."""
        return self.ready.extend(self.initial, SHAPE, 5)

    @cached_property
    def images(self) -> torch.Tensor:
        """The clients' images, ``[clients, B, C, H, W]``."""
        return torch.randn(CLIENTS, BATCH, 1, SIDE, SIDE, generator=generator("contract", "images"))

    @cached_property
    def labels(self) -> torch.Tensor:
        """Labels of the images, ``[clients, B]``."""
        return torch.randint(CLASSES, (CLIENTS, BATCH), generator=generator("contract", "labels"))

    def streams(self, draw: int = 0, rows: range = range(CLIENTS)) -> Streams:
        """One stream per client."""
        return Streams([("contract", draw, row) for row in rows])

    def steps(self, rows: range = range(CLIENTS), draw: int = 0) -> ClientSteps:
        """The clients' steps, on images as the defense changes them."""
        part = slice(rows.start, rows.stop)
        steps = self._steps(self.images[part], self.labels[part], self.streams(draw, rows))
        return _given(steps, self._gradients[part].clone()) if draw == 0 else steps

    @cached_property
    def _gradients(self) -> torch.Tensor:
        return self._steps(self.images, self.labels, self.streams()).gradient

    def groups(self) -> Iterator[range]:
        """Rows of clients that have to be computed together: one each, for most defenses."""
        size = self.component.together
        return (range(start, start + size) for start in range(0, CLIENTS, size))

    def _steps(self, images: torch.Tensor, labels: torch.Tensor, streams: Streams) -> ClientSteps:
        clients = DefendedClients(self.ready, streams, Examples(images, labels))
        batch = clients.protect_data(clients.samples, streams.child("defense"))
        return ClientSteps(self.network, self.network.parameters, *batch, streams.child("steps"))

    @cached_property
    def ready(self) -> Defense:
        """The defense, calibrated on the images of one client."""
        many = torch.randn(1, 4 * SIDE * SIDE, 1, SIDE, SIDE, generator=generator("contract", "calibration"))
        return self.made.calibrate(ClientData(many, CLASSES))

    def sent(self, draw: int = 0, rows: range = range(CLIENTS)) -> Message:
        """The message of the clients ``rows``."""
        return self.rounds(1, draw, rows)[0]

    def rounds(self, count: int, draw: int = 0, rows: range = range(CLIENTS)) -> list[Message]:
        """Messages of the first ``count`` rounds, each about the same images and model."""
        steps, streams = self.steps(rows, draw), self.streams(draw, rows)
        clients = DefendedClients(self.ready, streams)
        updates = [streams.child("update", *([number] if number else [])) for number in range(count)]
        return [clients.send(steps, each) for each in updates]

    @cached_property
    def message(self) -> Message:
        """The message of all clients, once it is known to be one."""
        try:
            sent: Any = self.sent()
        except Infeasible:
            raise
        except Exception:
            sent = None
        if not isinstance(sent, Message):
            raise NotAsked("no message comes back; mend that first")
        return sent

    @cached_property
    def view(self) -> torch.Tensor:
        """The server's decoding of the message, ``[clients, d]``."""
        decoded = self.message.view()
        if not isinstance(decoded, torch.Tensor) or decoded.shape != self.shape:
            raise NotAsked("the message has another shape than the gradients; mend that first")
        return decoded

    @cached_property
    def initial_state(self) -> ClientState:
        """The state of all clients before the first round."""
        return self.ready.initial_state(self.steps())

    def first_round(self) -> tuple[Message, ClientState]:
        """Messages of all clients in the first round, and their state after it."""
        round = Round(self.streams().child("update"), self.initial_state)
        return self.ready.protect_round(self.steps(), round)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of all clients' gradients, ``(clients, d)``."""
        return CLIENTS, self.network.dimension

    @cached_property
    def law(self) -> Law:
        """The distribution that the message states."""
        if self.message.law is None:
            raise NotAsked("the message states no law")
        return self.message.law

    @cached_property
    def draws(self) -> tuple[Message, torch.Tensor]:
        """Many messages of one client's images with other randomness each, and its gradients, ``[DRAWS, d]``."""
        streams, steps = self._drawn
        gradient = steps.gradient.clone()
        return DefendedClients(self.ready, streams).send(steps, streams.child("update")), gradient

    @cached_property
    def only_public(self) -> bool:
        """Whether all messages of one client's images are alike where public randomness is the same."""
        streams, gradient = self._drawn[0], self.draws[1]
        steps = _given(self._drawn[1], gradient[:1].expand_as(gradient).clone())
        sent = DefendedClients(self.ready, streams, per_server=DRAWS).send(steps, streams.child("update")).view()
        return _close(sent, sent[:1].expand_as(sent))

    @cached_property
    def _drawn(self) -> tuple[Streams, ClientSteps]:
        streams = Streams([("contract", "draws", row) for row in range(DRAWS)])
        images, labels = self.images[:1].expand(DRAWS, *self.images.shape[1:]), self.labels[:1].expand(DRAWS, -1)
        return streams, self._steps(images, labels, streams)

    @property
    def drawn_steps(self) -> _Steps:
        """The steps of :attr:`draws`, for likelihoods of their messages."""
        return _given(self._drawn[1], self.draws[1])

    def log_likelihood(self, message: Message, steps: ClientSteps) -> torch.Tensor:
        """The stated likelihood of messages, ``[n]``.

        Raises:
            NotAsked: the component states none.
        """
        if not self.component.overrides("log_likelihood"):
            raise NotAsked("it states no likelihood")
        return self.ready.log_likelihood(message.received, steps)


checks: Checks[DefenseCase] = Checks()


def _close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    room = ROUNDING * expected.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
    return bool(((actual - expected).abs() <= room).all())


@checks("acts_on")
def acts_on(case: DefenseCase) -> str | None:
    """The plan reads from it where the defense belongs."""
    component = case.component
    if component.acts_on not in get_args(ActsOn):
        return f"acts_on is {component.acts_on!r}; it is one of {', '.join(map(repr, get_args(ActsOn)))}"
    on_data, on_updates = component.overrides(*CHANGES_DATA), component.overrides(*CHANGES_UPDATES)
    on_model = component.overrides("extend")
    if on_model != (component.acts_on == "model"):
        return "acts_on says 'model' where the defense overrides extend, and nowhere else"
    if on_model:
        return None
    if on_data and not on_updates and component.acts_on != "data":
        return f"it changes images alone, and acts_on says '{component.acts_on}'; write acts_on = \"data\""
    if component.acts_on == "data" and not on_data and on_updates:
        law = case.message.law
        if law is None or not torch.equal(case.view, case.steps().gradient):
            return 'it changes updates, and acts_on says "data"; leave acts_on out'
    return None


@checks("data")
def data(case: DefenseCase) -> str | None:
    """The verbs on data return images and labels of the same shape and type; labels of a step may be probabilities."""
    if not case.component.overrides(*CHANGES_DATA):
        raise NotAsked("it leaves data as they are")
    for verb in CHANGES_DATA:
        images, labels = getattr(case.ready, verb)(case.images, case.labels, case.streams())
        if case.component.overrides("extend") and not torch.equal(images[..., :SIDE, :], case.images):
            return f"{verb} changes images of the model that it makes; add rows below them, and leave them as they are"
        images = images[..., :SIDE, :] if case.component.overrides("extend") else images
        if images.shape != case.images.shape or images.dtype != case.images.dtype:
            return (
                f"{verb} turns images {list(case.images.shape)} {case.images.dtype} into {list(images.shape)} "
                f"{images.dtype}; keep shape and type"
            )
        if verb == "protect_data" and labels.dim() == 3:
            if reason := _probabilities(labels, (*case.labels.shape, CLASSES)):
                return f"{verb} turns labels into {reason}; return int64 [n, B], or probabilities [n, B, classes]"
        elif labels.shape != case.labels.shape or labels.dtype != case.labels.dtype:
            return f"{verb} turns labels {list(case.labels.shape)} into {list(labels.shape)}; keep shape and type"
    return None


@checks("model")
def model(case: DefenseCase) -> str | None:
    """The model that it makes: the same every time, with all that the given one has, which stays as it is."""
    if not case.component.overrides("extend"):
        raise NotAsked("it leaves the model as it is")
    before, given = case.initial.parameters.clone(), case.initial.unflatten(case.initial.parameters)
    made, again = (case.ready.extend(case.initial, SHAPE, 5) for _ in range(2))
    if not torch.equal(case.initial.parameters, before):
        return "extend writes into the network that it is given; work on a copy of network.module"
    if made.names != again.names or not torch.equal(made.parameters, again.parameters):
        return "extend makes another model from the same seed; draw from the seed alone"
    tensors = made.unflatten(made.parameters).values()
    for name, tensor in given.items():
        if not any(torch.equal(tensor, other) for other in tensors):
            return f"the parameters '{name}' are missing from the model that extend makes; keep them as they are"
    sizes = (network.head.outputs for network in (case.initial, made))
    if len({*sizes, made.logits(made.parameters, case.images[0]).shape[1]}) > 1:
        return "the model that extend makes does not end with the last layer of the given one"
    return None


def _probabilities(labels: torch.Tensor, shape: tuple[int, ...]) -> str:
    """Labels in words where they are no probabilities of this shape; empty where they are."""
    if labels.shape != shape or not labels.is_floating_point():
        return f"{list(labels.shape)} {labels.dtype}"
    if bool((labels < 0).any()) or not torch.allclose(labels.sum(dim=-1), torch.ones(shape[:-1])):
        return "numbers that are no probabilities"
    return ""


@checks("message")
def message(case: DefenseCase) -> str | None:
    """A Message is sent."""
    if case.component.overrides("protect_round"):
        both: Any = case.first_round()
        if not (isinstance(both, tuple) and len(both) == 2 and isinstance(both[1], Mapping)):
            return (
                f"protect_round returns a {type(both).__name__}; return the message and the state of the clients, "
                "tensors by name: return message, {}"
            )
    sent: Any = case.sent()
    if not isinstance(sent, Message):
        return (
            f"protect_update returns a {type(sent).__name__}; return a Message, such as "
            "DenseMessage(values) or SparseMessage(values, kept) of leakbench.federated.message"
        )
    return None


@checks("shape")
def shape(case: DefenseCase) -> str | None:
    """One row per client, one column per parameter."""
    decoded = tuple(case.message.view().shape)
    if decoded != case.shape:
        return f"view() is {list(decoded)}; steps.gradient is {list(case.shape)}, [clients, parameters]: return as much"
    return None


@checks("type")
def dtype(case: DefenseCase) -> str | None:
    """float32, like the gradients."""
    expected = case.steps().gradient.dtype
    if case.view.dtype != expected:
        return f"view() is {case.view.dtype}; gradients are {expected}: end with .to(steps.gradient)"
    return None


@checks("device")
def device(case: DefenseCase) -> str | None:
    """On the device of the gradients; 'meta' stands for a GPU where there is none."""
    expected = case.steps().gradient.device
    if case.view.device != expected:
        return f"view() is on {case.view.device}, gradients on {expected}; give device=steps.gradient.device to draws"
    return None


@checks("finite")
def finite(case: DefenseCase) -> str | None:
    """No attack and no training works with anything else."""
    broken = int((~case.view.isfinite()).sum())
    return f"{broken} of {case.view.numel()} values are not finite; look for a division by zero" if broken else None


@checks("gradients unchanged")
def unchanged(case: DefenseCase) -> str | None:
    """All settings and defenses of a step share its gradients."""
    steps = case.steps()
    before = [tensor.clone() for tensor in (steps.gradient, steps.images, steps.labels)]
    case.ready.protect_update(steps, case.streams().child("update"))
    after = (steps.gradient, steps.images, steps.labels)
    for name, old, new in zip(("gradient", "images", "labels"), before, after, strict=True):
        if not torch.equal(old, new):
            return f"protect_update writes into steps.{name}, which others read; work on a copy: steps.{name}.clone()"
    return None


@checks("global randomness")
def global_randomness(case: DefenseCase) -> str | None:
    """Draws come from the clients' streams alone."""
    case.steps()
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state(legacy=False))
    case.sent()
    after = torch.get_rng_state(), random.getstate(), str(np.random.get_state(legacy=False))
    drawn = (not torch.equal(before[0], after[0]), before[1] != after[1], before[2] != after[2])
    for used, name in zip(drawn, ("torch", "Python", "numpy"), strict=True):
        if used:
            return f"it draws from {name}'s global generator, so runs do not repeat; draw with streams.normal(d)"
    return None


@checks("repeats")
def repeats(case: DefenseCase) -> str | None:
    """The same streams make the same message."""
    if not torch.equal(case.sent().view(), case.view):
        return "the same streams made another message; keep no state between calls, and draw from streams alone"
    return None


@checks("noise")
def noise(case: DefenseCase) -> str | None:
    """Other streams make other noise, where a law claims noise."""
    variance = case.law.variance
    if variance is None or not bool((variance > 0).any()):
        raise NotAsked("the law claims no noise")
    if torch.equal(case.sent(draw=1).view(), case.view):
        return "the law claims noise, and other streams made the same message; draw the noise from streams"
    return None


@checks("batch mates")
def batch_mates(case: DefenseCase) -> str | None:
    """A client alone sends what it sends beside others."""
    for rows in case.groups():
        alone = case.sent(rows=rows).view()
        if not _close(alone, case.view[rows.start : rows.stop]):
            return (
                f"client {rows.start} alone sends something else than beside others; compute row by row "
                "(dim=1, keepdim=True), and draw with streams, which holds one stream per client"
            )
    return None


@checks("state")
def state(case: DefenseCase) -> str | None:
    """The state of clients: tensors with a row per client, before and after a round, which leaves them as they are."""
    before = case.initial_state
    if not before:
        raise NotAsked("its clients have no state")
    for name, value in before.items():
        if len(value) != CLIENTS:
            return f"initial_state: '{name}' is {list(value.shape)}; its rows are the {CLIENTS} clients"
    copies = {name: value.clone() for name, value in before.items()}
    _, after = case.first_round()
    for name, value in copies.items():
        if not torch.equal(before[name], value):
            return f"protect_round writes into round.state['{name}']; return a new tensor instead"
        new = after.get(name)
        if new is None or new.shape != value.shape or new.dtype != value.dtype:
            return (
                f"protect_round returns no state '{name}' of {list(value.shape)} {value.dtype}, as initial_state does"
            )
        if not bool(new.isfinite().all()):
            return f"the state '{name}' is not finite after a round; look for a division by zero"
    if extra := sorted(after.keys() - copies.keys()):
        return f"protect_round returns the state '{extra[0]}', and initial_state has none of this name"
    return None


@checks("state of a client")
def state_of_a_client(case: DefenseCase) -> str | None:
    """A client alone sends in a second round, too, what it sends beside others; the same in every repetition."""
    if not case.initial_state:
        raise NotAsked("its clients have no state")
    second = case.rounds(2)[1].view()
    if not torch.equal(case.rounds(2)[1].view(), second):
        return "two repetitions differ in their second round; keep what clients remember in the state alone"
    for rows in case.groups():
        if not _close(case.rounds(2, rows=rows)[1].view(), second[rows.start : rows.stop]):
            return f"client {rows.start} alone sends something else in its second round; compute the state row by row"
    return None


@checks("bits")
def bits(case: DefenseCase) -> str | None:
    """The size of one client's message."""
    size = case.message.bits
    if not isinstance(size, int) or isinstance(size, bool):
        return f"bits is {size!r}; give a whole number: int(...)"
    if size < 1:
        return f"bits is {size}; a message has a size"
    alone = max(case.sent(rows=rows).bits for rows in case.groups())
    if size != alone:
        return (
            f"bits is {size} for {CLIENTS} clients and {alone} for the largest alone; say that of one client's message"
        )
    values = int(case.view.count_nonzero(dim=1).max())
    if size * 32 < values:
        return (
            f"bits is {size} for {values} values that are not zero, less than a bit for 32 of them; count what travels"
        )
    return _coded_bits(case.view, size)


def _coded_bits(view: torch.Tensor, size: int) -> str | None:
    """A message of few levels: no code of its values is shorter than their entropy, and none needs a float for each."""
    length = view.shape[1]
    levels = max(len(row.unique()) for row in view)
    if levels > LEVELS:
        return None
    shares = [row.unique(return_counts=True)[1].double() / length for row in view]
    entropy = length * max(-float((share * share.log2()).sum()) for share in shares)
    values = f"bits is {size} for {length} values of {levels} levels"
    if size < entropy - 2 * FLOAT_BITS:  # room for a code that knows which values are frequent
        return f"{values}, which take {entropy:.0f}; count what travels"
    word = max(1, math.ceil(math.log2(levels)))
    if levels <= 4 and size > 2 * (enough := word * length + FLOAT_BITS * levels):
        return (
            f"{values}, for which {enough} are enough; send CodedMessage(values, size=...), or "
            f"SparseMessage(values, kept, value_bits={word})"
        )
    return None


@checks("nothing else travels")
def nothing_else(case: DefenseCase) -> str | None:
    """No attribute of the message holds the clients' private data."""
    sent: Any = case.message
    held: dict[str, Any] = dict(vars(sent)) if hasattr(sent, "__dict__") else {}
    if is_dataclass(sent):
        held |= {field.name: getattr(sent, field.name) for field in fields(sent)}
    private = {"images": case.images, "labels": case.labels}
    for name, value in held.items():
        if isinstance(value, ClientSteps):
            return f"the message holds the clients' computation as '{name}'; keep in it what travels alone"
        for what, truth in private.items():
            if isinstance(value, torch.Tensor) and value.shape == truth.shape and torch.equal(value, truth):
                return f"the message holds the clients' {what} as '{name}'; keep in it what travels alone"
    if not torch.equal(sent.view(), sent.view()):
        return "two calls of view() differ; draw in protect_update, and let view() decode what was sent"
    return None


@checks("marked")
def marked(case: DefenseCase) -> str | None:
    """Coordinates that the message shows to be changed."""
    marks = case.message.marked
    if marks is None:
        raise NotAsked("the message marks nothing")
    if marks.shape != case.shape or marks.dtype != torch.bool:
        return f"marked is {list(marks.shape)} {marks.dtype}; it is boolean, {list(case.shape)}"
    return None


@checks("law")
def law(case: DefenseCase) -> str | None:
    """Shapes and types of the stated distribution."""
    parts = {"mean": case.law.mean, "passing": case.law.passing, "variance": case.law.variance}
    for name, part in parts.items():
        if part is not None and tuple(part.shape) != case.shape:
            return f"law.{name} is {list(part.shape)}; it is {list(case.shape)}, [clients, parameters]: use expand_as"
    if case.law.passing.dtype != torch.bool:
        return f"law.passing is {case.law.passing.dtype}; it is boolean: which coordinates follow the gradient"
    if case.law.variance is not None and not bool((case.law.variance >= 0).all()):
        return "law.variance is negative or not finite somewhere; it is the square of the noise's standard deviation"
    return None


@checks("law of the gradient")
def law_of_gradient(case: DefenseCase) -> str | None:
    """The mean that the law states follows from the gradient: where coordinates pass, randomness does not change it.

    A mean that is read off the message itself hides the noise in what the mechanism keeps.
    """
    many, _ = case.draws
    if case.law.variance is None and not bool((many.view() != many.view()[:1]).any()):
        raise NotAsked("its messages have no randomness")
    if many.law is None:
        return "the law is stated in one message and not in another"
    passing = many.law.passing
    mean = torch.where(passing, many.law.mean, torch.nan)
    middle = mean.nanmean(dim=0)
    room = 1e-3 * middle.abs() + ROUNDING * many.law.mean.abs().max()
    if many.step is not None:
        room = room + many.step  # a law may take as given what the code rounds to
    if bool(((mean - middle).abs() > room).any()):
        return (
            "law.mean differs from draw to draw of the same gradient, where coordinates pass; state the mean without "
            "the noise, and the noise in variance: Law(mean, passing, variance), in a SparseMessage as stated="
        )
    return None


@checks("variance as stated")
def variance_as_stated(case: DefenseCase) -> str | None:
    """The noise is as large as the law says, over many draws."""
    if case.law.variance is None or not bool((case.law.variance > 0).any()):
        raise NotAsked("the law claims no noise")
    many, _ = case.draws
    stated = many.law
    if stated is None or stated.variance is None:
        return "the law is stated in one message and not in another"
    noisy = stated.variance.mean(dim=0) > 0
    measured = (many.view() - stated.mean).square().mean(dim=0)[noisy].double().sum()
    ratio = float(measured / stated.variance.mean(dim=0)[noisy].double().sum())
    if not 0.8 < ratio < 1.25:
        return f"the noise's variance is {ratio:.3g} times what law.variance says; state what you draw"
    return None


@checks("bias")
def bias(case: DefenseCase) -> str | None:
    """The server decodes the law's mean, or the gradient, on average; or the class says that it is biased."""
    many, gradient = case.draws
    view = many.view()
    stated = many.law
    if stated is None and case.component.biased:
        raise NotAsked(f"declared biased: {case.component.biased}")
    if stated is None and case.component.acts_on == "data":
        gradient = view
    expected = gradient if stated is None else stated.mean
    if not _missed(view - expected, expected, None if stated is None else stated.variance):
        return None
    if stated is None:
        return (
            'on average the server does not decode the gradient; if that is meant, say so: biased = "why", or state '
            "what it decodes in the message's law"
        )
    return "on average the server decodes something else than law.mean; state there what it decodes"


def _missed(residual: torch.Tensor, expected: torch.Tensor, variance: torch.Tensor | None) -> bool:
    """Whether the mean of residuals ``[draws, d]`` is further from zero than chance and rounding explain."""
    spread = residual.double().std(dim=0)
    if variance is not None:
        spread = torch.maximum(spread, variance.double().mean(dim=0).sqrt())
    room = DEVIATIONS * spread / math.sqrt(len(residual)) + ROUNDING * expected.abs().max().clamp(min=1e-12)
    return bool((residual.double().mean(dim=0).abs() > room).any())


@checks("likelihood")
def likelihood(case: DefenseCase) -> str | None:
    """A stated likelihood: one finite number per client at the truth, with a derivative, and it tells clients apart."""
    truth = case.steps()
    value = case.log_likelihood(case.message, truth)
    if tuple(value.shape) != (CLIENTS,):
        return f"log_likelihood is {list(value.shape)}; sum over coordinates, dim=1: [{CLIENTS}], one per client"
    if not bool(value.isfinite().all()):
        return (
            "log_likelihood is not finite for what clients send at their own gradients; where an outcome is "
            "impossible, let it go on downwards, and look for the logarithm of zero"
        )
    others = _given(truth, truth.gradient.roll(1, dims=0))

    def total(gradient: torch.Tensor) -> torch.Tensor:
        return case.log_likelihood(case.message, others.at(gradient)).sum()

    try:
        derivative = torch.func.grad(total)(others.gradient)
    except Exception as error:
        return (
            f"log_likelihood has no derivative by steps.gradient ({type(error).__name__}: {error}); compute it from "
            "steps.gradient with torch alone"
        )
    if not bool(derivative.isfinite().all()):
        return "the derivative of log_likelihood by steps.gradient is not finite; look for the root or norm of zero"
    if not bool(derivative.any()):
        return "log_likelihood does not change with steps.gradient, so no search can use it"
    mistaken = case.log_likelihood(case.message, others)
    if not float(value.double().sum()) > float(mistaken.double().sum()):
        return (
            "log_likelihood is larger at the gradients of other clients than at those of the clients who sent the "
            "messages; look at its sign"
        )
    return None


@checks("likelihood as sent")
def likelihood_as_sent(case: DefenseCase) -> str | None:
    """Ratios of the stated likelihood have the mean 1 over what is sent, as those of the true law have.

    Over messages drawn of a candidate A, ``E exp(l(B) - l(A)) = 1`` for any other one B, whether outcomes are discrete
    or continuous; less where B can send what A cannot. B differs from A in one coordinate, by half its noise or less.
    """
    truth = case.drawn_steps
    message, gradient = case.draws
    value = case.log_likelihood(message, truth)
    noise = _noise(message)
    if not bool((noise > 0).any()):
        raise NotAsked("its messages have no noise")
    ratios = []
    for coordinate in noise.argsort(descending=True)[:SHIFTED].tolist():
        shift = torch.zeros_like(gradient[0])
        shift[coordinate] = noise[coordinate] / 2
        for _ in range(30):
            moved = case.log_likelihood(message, truth.at(gradient + shift))
            logarithm = (moved - value).double()
            if float(logarithm.std()) <= SPREAD:
                break
            shift = shift / 2
        ratios.append(logarithm)
    logarithms = torch.stack(ratios, dim=1)
    ratio = logarithms.exp().mean(dim=1)  # of one message: those of its coordinates may depend on each other
    room = DEVIATIONS * float(ratio.std()) / math.sqrt(DRAWS)
    mean, falls = float(ratio.mean()), -2 * float(logarithms.mean())
    narrow, broad = mean > 1 + room + 1e-3, mean < 1 - MISSING - room
    if falls > 1e-3:  # half the variance of a small logarithm is how much it falls on average
        broad = broad or float(logarithms.var(dim=0).mean()) < falls / 2
    if (narrow or broad) and case.only_public:
        raise NotAsked("its messages have no randomness but the public one, which their law takes as given")
    if narrow or broad:
        return (
            f"log_likelihood is not the law of what is sent: its ratios at neighbouring gradients average {mean:.3g} "
            f"over {DRAWS} messages, and 1 is right; it is {'narrower' if narrow else 'broader'} than the noise, or "
            "around another mean"
        )
    return None


def _noise(message: Message) -> torch.Tensor:
    """Standard deviation of each coordinate over messages of the same images, ``[d]``: as stated, or as measured."""
    if message.law is None:
        return message.view().std(dim=0)
    variance = message.law.variance
    return torch.zeros_like(message.view()[0]) if variance is None else variance.mean(dim=0).sqrt()


@checks("aggregate")
def aggregate(case: DefenseCase) -> str | None:
    """The server's update: ``[servers, d]``, and the mean of what clients sent."""
    update = case.ready.aggregate(case.message, 2)
    expected = (CLIENTS // 2, case.shape[1])
    if tuple(update.shape) != expected:
        return (
            f"aggregate(message, clients=2) of {CLIENTS} messages is {list(update.shape)}; consecutive rows belong to "
            f"one server: return {list(expected)}"
        )
    if not case.component.overrides("aggregate") or case.component.biased:
        return None
    many, gradient = case.draws
    view, stated = many.view(), many.law
    meant = (gradient if stated is None else stated.mean).mean(dim=0, keepdim=True)
    average = case.ready.aggregate(many, 2).mean(dim=0, keepdim=True)
    room = DEVIATIONS * view.std(dim=0) / math.sqrt(DRAWS) + ROUNDING * meant.abs().max()
    if bool(((average - meant).abs() > room).any()):
        return (
            "the server's update is on average not the mean of what clients mean to send; divide by their number, or "
            'declare it: biased = "why"'
        )
    return None


@checks("privacy")
def privacy(case: DefenseCase) -> str | None:
    """A privacy statement and its basis."""
    stated: Any = case.ready.privacy(Schedule(dimension=case.shape[1], rounds=2, clients=CLIENTS))
    if not isinstance(stated, PrivacyStatement):
        return f"privacy returns a {type(stated).__name__}; return PrivacyStatement(epsilon, delta, basis)"
    if not stated.basis:
        return "the privacy statement has no basis; say what it rests on, or why there is no guarantee"
    if (stated.epsilon is None) != (stated.delta is None):
        return "epsilon and delta belong together; give both, or None for both"
    if stated.epsilon is not None and not stated.epsilon >= 0:
        return f"epsilon is {stated.epsilon}; it is zero or more, or None where there is no guarantee"
    if stated.delta is not None and not 0 <= stated.delta < 1:
        return f"delta is {stated.delta}; it is from 0 to below 1"
    return None


@checks("adaptive attacker")
def adaptive(case: DefenseCase) -> str | None:
    """Every declared wrapper, or a simulation, takes its parameters and can work with a message of this defense."""
    reason = case.ready.not_simulated
    if not case.made.adaptive and reason:
        raise NotAsked(f"it declares none, and cannot be simulated ({reason}): see adaptive in the tutorial")
    try:
        attack: Any = Adaptive.model_validate({"attack": {"name": "dlg"}}).against(case.made.adaptive)
    except (ConfigError, ValueError) as error:
        return f"adaptive names an attacker that cannot be made: {error}"
    sent = case.message
    seen = observed(case.network, case.network.parameters, [sent], tuple(case.images.shape[1:]), ONE_STEP)
    images = case.images.flatten(0, 1)
    bounds = torch.stack([images.amin(dim=(0, 2, 3))[:, None, None], images.amax(dim=(0, 2, 3))[:, None, None]])
    known = Knowledge(
        labels=case.labels,
        pixel_range=bounds,
        auxiliary_images=images,
        auxiliary_labels=case.labels.flatten(),
        noise_variance=sent.noise_variance,
        data_noise=case.ready.image_noise() or None,
        mechanism=None if case.ready.together > 1 else [PublicMechanism(case.ready)] * CLIENTS,
    )
    while isinstance(attack, Wrapper):
        improves = type(attack).improve is not Wrapper.improve
        if not improves and all(
            getattr(type(attack), verb) is getattr(Wrapper, verb) for verb in ("reconstruct", "around")
        ):
            return f"the declared attacker '{attack.name}' does nothing: give it improve, or a reconstruct of its own"
        try:
            if improves:  # else it changes the reconstruction, and not what is seen
                seen = attack.improve(seen, known, case.streams())
            tried = Candidates(case.steps().gradient, case.images, case.labels, torch.arange(CLIENTS))
            if seen.send is not None:
                seen.send(tried)
            if seen.score is not None:
                seen.score(tried)
        except Infeasible as reason:
            return f"the declared attacker '{attack.name}' cannot face its messages: {reason}"
        except Exception as error:
            return f"the declared attacker '{attack.name}' raises {type(error).__name__}: {error}"
        attack = attack.attack
    return None


@checks("under-attacked", slow=True)
def under_attacked(case: DefenseCase) -> str | None:
    """In a trial, the declared attacker does no worse than the one who ignores the defense."""
    _ = case.view
    declared = ", ".join(str(each["name"]) for each in case.made.adaptive)
    who = f"the attacker it declares ({declared})" if declared else "the attacker who simulates it"
    result = trial(case.component, dict(case.made))
    if result is None:
        return f"in a trial on {SEEDS} models, {who} diverges on every digit; declare a better one in adaptive"
    if not result.under_attacked:
        return None
    low, high = result.interval
    both = f"{result.adaptive_quality:.1f} dB, and one who ignores the defense {result.plain_quality:.1f} dB"
    more = f"{-result.difference.value:.1f} dB more, 95 % interval {-high:.1f} to {-low:.1f}"
    return (
        f"in a trial on {SEEDS} models, {who} reaches {both} ({more}), so that its numbers flatter it; declare a "
        "better one in adaptive, or state log_likelihood and declare 'likelihood': docs/add-a-defense.md, step 4"
    )
