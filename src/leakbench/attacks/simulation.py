"""Attackers who run the defense's own code on their candidates: by simulation, and by likelihood.

*Simulation* matches what was received with what the defense would have sent of the candidate. It needs nothing from a
defense but its code, and so works against a stranger's. Where the mechanism has no derivative (rounding, pruning,
signs) the attacker goes straight through it: the backward pass differentiable approximation of Athalye et al. (2018),
*Obfuscated Gradients Give a False Sense of Security*.

*Likelihood* asks how probable what was received is if the candidate was the sample: with a prior, the Bayes-optimal
attack (Balunovic et al. 2022, *Bayesian Framework for Gradient Leakage*). It needs a mechanism that states it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS, Grant, Knowledge, Mechanism, Observations, Reconstruction
from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.attacks.objectives import NATS
from leakbench.attacks.rows import rows_of_each
from leakbench.attacks.straight_through import Candidates
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.message import Received
from leakbench.federated.sensitivity import Probes
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.libraries.memory import out_of_memory
from leakbench.randomness import Streams


@ATTACKS.register("simulated", version=1)
class Simulated(Wrapper):
    """Send the candidate's gradient through the defense, and match what comes out with what was received.

    A mechanism that states the mean of its message (:class:`~leakbench.federated.message.Law`) is simulated by that
    mean. Of another one messages are drawn anew at every point of the search, and the objective is averaged over them:
    the same draws at every point would only add noise to what is matched.
    """

    adds: ClassVar[frozenset[Grant]] = frozenset({"mechanism"})

    draws: int = Field(1, ge=1, description="messages per point of the search, where they are random")

    def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
        assert knowledge.mechanism is not None
        if reason := next(filter(None, (mechanism.not_simulated for mechanism in knowledge.mechanism)), ""):
            raise Infeasible(f"attack '{self.name}' runs the mechanism on candidates: {reason}")
        simulation = Simulation(observations, knowledge.mechanism, streams.child("simulation"))
        return replace(observations, send=partial(simulation.send, draws=self.draws), users=simulation.users)


@ATTACKS.register("likelihood", version=5)
class Likelihood(Wrapper):
    """Maximise the likelihood of what was received, instead of matching gradients.

    The candidate's gradient is scaled to fit best first: how long a gradient is says little about images, and a search
    that has to get it right goes through a narrow valley. The cosine distance is blind to it for the same reason.

    With a prior the objective is that of :class:`Scoring`, in which one weight suits all mechanisms and models. Without
    one it is the excess itself, whose curvature a line search needs; and since a narrow law has many maxima, the search
    is made from two starts, one of them what the attack inside finds when it matches gradients. The likelihood chooses.

    A law of images has its density in nats, and weighs against the excess itself. Where noise depends on the images,
    such an attack first searches under noise of one size; then, ``stages`` times, under noise of the sizes that it has
    at the estimate so far. Sizes that followed the candidate would mislead a search.

    Of a defense with error feedback, what was left out of a client's earlier messages is known for every candidate: its
    gradients of earlier rounds less the messages. The likelihood of a round is that of the gradient with it.
    """

    adds: ClassVar[frozenset[Grant]] = frozenset({"mechanism"})
    added: ClassVar[tuple[str, ...]] = ("stages",)

    stages: int = Field(
        0, ge=0, description="searches of an attack with a law of images, each with noise as at the estimate before it"
    )

    def parameters(self) -> dict[str, Any]:
        parameters = super().parameters()
        if not self._lawful:
            parameters.pop("stages", None)  # which then say nothing
        return parameters

    @property
    def _lawful(self) -> bool:
        """Whether the attack inside weighs a law of images, and nothing else, against the likelihood."""
        inside = self.attack
        return isinstance(inside, GradientMatching) and inside.unknown.expects and not inside.regularisers

    @property
    def _unregularised(self) -> GradientMatching | None:
        """The attack inside, if it has no prior to weigh against the likelihood; else None."""
        inside = self.attack
        if isinstance(inside, GradientMatching) and inside.reconstructs == "images" and not inside.regularisers:
            return None if inside.unknown.expects else inside
        return None

    def effort(self, samples: int) -> Effort:
        if (first := self._unregularised) is not None:
            return first.effort(samples).plus(_with_another_start(first).effort(samples))
        return self.attack.effort(samples).times(1 + self.stages if self._lawful else 1)

    def around(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        observations = _carried(observations, knowledge)
        if (first := self._unregularised) is not None:
            estimate = first.reconstruct(observations, knowledge, streams)
            again = self.model_copy(update={"attack": _with_another_start(first)})
            return Wrapper.around(again, replace(observations, start=estimate.images), knowledge, streams)
        if not (self._lawful and self.stages):
            return super().around(observations, knowledge, streams)
        estimate = self.attack.reconstruct(observations, knowledge, streams)
        for stage in range(self.stages):
            later = tuple(replace(each, start=estimate.images) for each in observations.later)
            started = replace(observations, start=estimate.images, later=later)
            estimate = super().around(started, knowledge, streams.child("stage", stage))
        return estimate

    def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
        assert knowledge.mechanism is not None
        regularised, streams = self._unregularised is None and not self._lawful, streams.child("likelihood")
        estimate = observations.start if self._lawful and self.stages else None
        scoring = Scoring(observations, knowledge.mechanism, streams, knowledge.labels, regularised, estimate)
        return replace(observations, score=scoring.score, users=scoring.users)


def _carried(observations: Observations, knowledge: Knowledge) -> Observations:
    """The observations, marked as :attr:`~Observations.carried` where clients of several rounds keep a residual."""
    assert knowledge.mechanism is not None
    if not observations.later or not all(mechanism.keeps_residual for mechanism in knowledge.mechanism):
        return observations
    return replace(observations, carried=True, later=tuple(replace(each, carried=True) for each in observations.later))


def _with_another_start(attack: GradientMatching) -> GradientMatching:
    return attack.model_copy(update={"restarts": attack.restarts + 1})


@contextmanager
def running(mechanism: Mechanism) -> Iterator[None]:
    """Run an attacker's copy of a mechanism.

    Raises:
        Infeasible: it raised something else. Memory that ran out is left to the search, which then takes fewer
            candidates at a time.
    """
    try:
        yield
    except Infeasible:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise Infeasible(f"{mechanism.class_name} cannot be run on candidates: {reason}") from error


class _Copies:
    """The attacker's copies of the clients' mechanisms.

    Args:
        observations: whose model and local training the candidates have.
        mechanisms: of the observations, ``n``; those of the same one are run together.
        streams: the attacker's randomness, one stream per observation.
    """

    def __init__(self, observations: Observations, mechanisms: Sequence[Mechanism], streams: Streams) -> None:
        self._observations, self._mechanisms, self._keys = observations, mechanisms, streams.keys
        (self.users,) = {mechanism.users for mechanism in mechanisms}

    def _groups(self, candidates: Candidates) -> Iterator[tuple[Mechanism, torch.Tensor, Candidates]]:
        """Mechanisms, with the places of their candidates and these."""
        groups = rows_of_each([self._mechanisms[row] for row in candidates.rows.tolist()])
        for some in groups:
            at = torch.tensor(some, device=candidates.rows.device)
            chosen = candidates if len(groups) == 1 else Candidates(*(part[at] for part in candidates))
            yield self._mechanisms[int(chosen.rows[0])], at, chosen

    def _steps(self, candidates: Candidates, streams: Streams) -> _Candidates:
        """The local computation on candidates, whose gradients are known; that of their users, one after the other."""
        gradients = candidates.gradients if self.users == 1 else candidates.gradients.flatten(0, 1)
        return _Candidates(gradients, *self._computation(candidates, streams))

    def _computation(self, candidates: Candidates, streams: Streams) -> tuple[Any, ...]:
        """Arguments of :class:`ClientSteps`."""
        seen, rows, images = self._observations, candidates.rows, candidates.images
        labels = candidates.labels if candidates.labels.dim() == 2 else candidates.labels.argmax(dim=-1)
        if self.users > 1:
            rows = rows.repeat_interleave(self.users)
            images, labels = (part.unflatten(1, (self.users, -1)).flatten(0, 1) for part in (images, labels))
            streams = streams.of_users(self.users)
        parameters = seen.parameters if seen.parameters.dim() == 1 else seen.parameters[rows]
        return seen.network, parameters, images, labels, streams, seen.local

    def _public(self, rows: torch.Tensor) -> Streams | None:
        """The public randomness of candidates' rounds, for each of their users."""
        public = self._observations.public
        return None if public is None else public.at(rows.repeat_interleave(self.users).tolist())


class Simulation(_Copies):
    """Messages that mechanisms make of candidates."""

    def send(self, candidates: Candidates, draws: int) -> torch.Tensor:
        """Messages ``[k, draws, d]``."""
        gradients = candidates.gradients
        sent = gradients.new_empty(len(gradients), draws, gradients.shape[-1])
        for mechanism, at, some in self._groups(candidates):
            for draw in range(draws):
                steps = self._steps(some, self._of_point(some, draw))
                with running(mechanism):
                    message = mechanism.simulate(steps, steps.streams, self._public(some.rows))
                    sent[at, draw] = (message.view() if message.law is None else message.law.mean).to(sent)
        return sent

    def _of_point(self, candidates: Candidates, draw: int) -> Streams:
        """Randomness of a candidate's own, so that every point of a search has other draws."""
        numbers = zip(candidates.rows.tolist(), _bits(candidates.gradients.flatten(1)), strict=True)
        return Streams([(*self._keys[row], draw, bits) for row, bits in numbers])


class Scoring(_Copies):
    """Likelihoods that mechanisms state of candidates, as objectives.

    The excess ``E`` is the negative log-likelihood over that of a candidate whose gradient is the message. The
    objective is ``K log(1 + E / K)`` nats, ``K`` half a nat per coordinate that the message does not mark: under normal
    noise the excess of the truth. Where ``E`` is small that is ``E`` itself. Where it is large the candidate is far
    off, its misfit is unlike noise, and the objective is the likelihood under noise as large as the misfit: ``K log E``
    is the normal law's minimum over the variance. So a prior does not vanish on the way, and has its own weight at the
    end.

    Nats are counted per :data:`~leakbench.attacks.objectives.NATS` times the number of inputs, so that weights of
    regularisers that suit the cosine distance suit the likelihood of every mechanism and model.

    Input sensitivities are those at images of zeros, the data's mean, or at an estimate, with the labels at hand: they
    are computed once, where those of every candidate would cost several times the search.

    Args:
        observations: what was received.
        mechanisms: of the observations, ``n``.
        streams: the attacker's randomness, one stream per observation.
        labels: of the observations, ``[n, B]``; zeros if they are unknown.
        regularised: whether a prior is added; else the objective is the excess, in the same unit.
        estimate: images ``[n, B, C, H, W]`` at which noise has the size that depends on images, if there are any yet.
    """

    def __init__(
        self,
        observations: Observations,
        mechanisms: Sequence[Mechanism],
        streams: Streams,
        labels: torch.Tensor | None = None,
        regularised: bool = True,
        estimate: torch.Tensor | None = None,
    ) -> None:
        super().__init__(observations, mechanisms, streams)
        self._regularised, self._estimated = regularised, estimate is not None
        n, gain, shape = len(observations), observations.gain, observations.batch_shape
        exact = observations.gradients if gain is None else observations.gradients / gain
        rows = torch.arange(n, device=exact.device)
        labels = rows.new_zeros(n, shape[0]) if labels is None else labels
        images = exact.new_zeros(n, *shape) if estimate is None else estimate.to(exact).nan_to_num()
        if self.users > 1:
            exact = exact[:, None].expand(-1, self.users, -1)
        at_zero = Candidates(exact, images, labels, rows)
        self._blind = ClientSteps(*self._computation(at_zero, streams))
        counted = exact.shape[-1] if observations.marked is None else (~observations.marked).sum(dim=1).clamp(min=1)
        self._level = exact.new_ones(n) * counted / 2
        self._unit = NATS * math.prod(shape)
        self._rows: list[int] = []
        self._received: dict[int, Received] = {}
        self._origin, _ = self._surprise(at_zero)

    def score(self, candidates: Candidates) -> tuple[torch.Tensor, torch.Tensor]:
        """The objective ``[k]``, and its derivative by the candidates' gradients, of their shape."""
        surprise, derivative = self._surprise(candidates)
        excess = surprise - self._origin[candidates.rows]
        if not self._regularised:
            return excess / self._unit, derivative / self._unit
        level = self._level[candidates.rows]
        far = (excess / level).clamp(min=0)
        value = torch.where(excess > 0, level * far.log1p(), excess)
        return value / self._unit, derivative.div_((self._unit * (1 + far)).view(-1, *[1] * (derivative.dim() - 1)))

    def _surprise(self, candidates: Candidates) -> tuple[torch.Tensor, torch.Tensor]:
        """The negative log-likelihood ``[k]``, and its derivative by the gradients."""
        rows = candidates.rows.tolist()
        if rows != self._rows:  # a search evaluates the same ones, until it takes others
            self._rows, self._received = rows, {}
        parts, places = [], []
        for number, (mechanism, at, some) in enumerate(self._groups(candidates)):
            if number not in self._received:
                self._received[number] = self._received_in(some.rows)
            surprise = partial(self._surprise_of, mechanism, self._received[number], some)
            with running(mechanism):
                parts.append(_with_derivative(surprise, some.gradients))
            places.append(at)
        if len(parts) == 1:
            return parts[0]
        order = torch.cat(places).argsort()
        values, derivatives = (torch.cat(each)[order] for each in zip(*parts, strict=True))
        return values, derivatives

    def _received_in(self, rows: torch.Tensor) -> Received:
        seen = self._observations
        parts = (None if part is None else part[rows] for part in (seen.step, seen.beyond))
        return Received(seen.gradients[rows], *parts)

    def _surprise_of(
        self, mechanism: Mechanism, received: Received, candidates: Candidates, gradients: torch.Tensor
    ) -> torch.Tensor:
        rows, users = candidates.rows, torch.arange(self.users, device=candidates.rows.device)
        streams = Streams([self._keys[row] for row in rows.tolist()])
        steps = self._steps(candidates._replace(gradients=gradients), streams)
        steps.blind, steps.estimated = self._blind, self._estimated
        steps.rows_of_blind = (self.users * rows[:, None] + users).flatten()
        public = self._public(rows)
        if not self._observations.carried:  # else what was left out has the candidate's own scale
            scale = mechanism.fitted_scale(received, steps, public)
            steps.known = steps.known * scale.repeat_interleave(self.users, dim=0)
        return -mechanism.log_likelihood(received, steps, public)


def _with_derivative(
    function: Callable[[torch.Tensor], torch.Tensor], points: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values ``[k]`` at points ``[k, d]``, each of its own point, and their derivatives, ``[k, d]``.

    By plain autograd: under ``torch.func`` every operation takes longer to call.
    """
    points = points.detach().requires_grad_()
    with torch.enable_grad():
        values = function(points)
        if not values.requires_grad:
            return values, torch.zeros_like(points)
        (derivatives,) = torch.autograd.grad(values.sum(), points, allow_unused=True, materialize_grads=True)
    return values.detach(), derivatives


class _Candidates(ClientSteps):
    """Clients whose gradient is ``known`` already, and whose sensitivities are those of others' rows, if given."""

    blind: ClientSteps | None = None
    rows_of_blind: torch.Tensor
    estimated: bool = False

    def __init__(self, known: torch.Tensor, *step: Any) -> None:
        super().__init__(*step)
        self.known = known

    @property
    def gradient(self) -> torch.Tensor:
        return self.known

    def sensitivity(self, probes: int = 10, kind: Probes = "gaussian", draw: int = 0) -> torch.Tensor:
        if self.blind is None:
            return super().sensitivity(probes, kind, draw)
        return self._at_rows(self.blind.sensitivity(probes, kind, draw))

    @property
    def estimate(self) -> torch.Tensor | None:
        return self._at_rows(self.blind.gradient) if self.estimated and self.blind is not None else None

    def _at_rows(self, whole: torch.Tensor) -> torch.Tensor:
        rows = self.rows_of_blind
        return whole if rows.tolist() == list(range(len(whole))) else whole[rows]


def _bits(gradients: torch.Tensor) -> list[int]:
    """A number per row that changes with it, so that every point of a search has draws of its own."""
    numbers: list[int] = gradients.double().sum(dim=1).contiguous().view(torch.int64).tolist()
    return [abs(number) for number in numbers]
