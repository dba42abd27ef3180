"""Attackers who run the defense's own code on their candidates: by simulation, and by likelihood.

*Simulation* matches what was received with what the defense would have sent of the candidate. It needs nothing from a
defense but its code, and so works against a stranger's. Where the mechanism has no derivative (rounding, pruning,
signs) the attacker goes straight through it: the backward pass differentiable approximation of Athalye et al. (2018),
*Obfuscated Gradients Give a False Sense of Security*.

*Likelihood* asks how probable what was received is if the candidate was the sample: with a prior, the Bayes-optimal
attack (Balunovic et al. 2022, *Bayesian Framework for Gradient Leakage*). It needs a mechanism that states it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS, Grant, Knowledge, Mechanism, Observations
from leakbench.attacks.straight_through import Candidates
from leakbench.federated.message import Received
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
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
        simulation = Simulation(observations, knowledge.mechanism, streams.child("simulation"))
        return replace(observations, send=partial(simulation.send, draws=self.draws))


@ATTACKS.register("likelihood", version=1)
class Likelihood(Wrapper):
    """Maximise the likelihood of what was received, in the place of matching gradients.

    The objective is the mean over coordinates of the negative log-likelihood, so that weights of regularisers mean the
    same for large models and small ones.
    """

    adds: ClassVar[frozenset[Grant]] = frozenset({"mechanism"})

    def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
        assert knowledge.mechanism is not None
        return replace(
            observations, score=Scoring(observations, knowledge.mechanism, streams.child("likelihood")).score
        )


class _Copies:
    """The attacker's copies of the clients' mechanisms.

    Args:
        observations: whose model and local training the candidates have.
        mechanisms: of the observations, ``n``; those of the same one are run together.
        streams: the attacker's randomness, one stream per observation.
    """

    def __init__(self, observations: Observations, mechanisms: Sequence[Mechanism], streams: Streams) -> None:
        self._observations, self._mechanisms, self._keys = observations, mechanisms, streams.keys

    def _groups(self, candidates: Candidates) -> Iterator[tuple[Mechanism, torch.Tensor, Candidates]]:
        """Mechanisms, with the places of their candidates and these."""
        places: dict[int, list[int]] = {}
        for place, row in enumerate(candidates.rows.tolist()):
            places.setdefault(id(self._mechanisms[row]), []).append(place)
        for some in places.values():
            at = torch.tensor(some, device=candidates.rows.device)
            chosen = Candidates(*(part[at] for part in candidates))
            yield self._mechanisms[int(chosen.rows[0])], at, chosen

    def _steps(self, candidates: Candidates, *key: int) -> _Candidates:
        """The local computation on candidates, whose randomness is that of their point of the search."""
        seen, rows = self._observations, candidates.rows
        numbers = zip(rows.tolist(), _bits(candidates.gradients), strict=True)
        streams = Streams([(*self._keys[row], *key, bits) for row, bits in numbers])
        parameters = seen.parameters if seen.parameters.dim() == 1 else seen.parameters[rows]
        labels = candidates.labels if candidates.labels.dim() == 2 else candidates.labels.argmax(dim=-1)
        return _Candidates(
            candidates.gradients, seen.network, parameters, candidates.images, labels, streams, seen.local
        )


class Simulation(_Copies):
    """Messages that mechanisms make of candidates."""

    def send(self, candidates: Candidates, draws: int) -> torch.Tensor:
        """Messages ``[k, draws, d]``."""
        gradients = candidates.gradients
        sent = gradients.new_empty(len(gradients), draws, gradients.shape[1])
        for mechanism, at, some in self._groups(candidates):
            for draw in range(draws):
                steps = self._steps(some, draw)
                message = mechanism.simulate(steps, steps.streams, self._public(some.rows))
                sent[at, draw] = (message.view() if message.law is None else message.law.mean).to(sent)
        return sent

    def _public(self, rows: torch.Tensor) -> Streams | None:
        public = self._observations.public
        return None if public is None else Streams([public.keys[row] for row in rows.tolist()])


class Scoring(_Copies):
    """Likelihoods that mechanisms state of candidates."""

    def score(self, candidates: Candidates) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean negative log-likelihood ``[k]``, and its derivative by the candidates' gradients ``[k, d]``."""
        gradients, seen = candidates.gradients, self._observations
        values, derivatives = gradients.new_empty(len(gradients)), torch.empty_like(gradients)
        for mechanism, at, some in self._groups(candidates):
            parts = (None if part is None else part[some.rows] for part in (seen.step, seen.beyond))
            received = Received(seen.gradients[some.rows], *parts)
            log_likelihood = partial(self._log_likelihood, mechanism, received, some)
            derivative, value = torch.func.grad(log_likelihood, has_aux=True)(some.gradients)
            values[at], derivatives[at] = -value / gradients.shape[1], -derivative / gradients.shape[1]
        return values, derivatives

    def _log_likelihood(
        self, mechanism: Mechanism, received: Received, candidates: Candidates, gradients: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        steps = self._steps(candidates)
        steps.known = gradients
        value = mechanism.log_likelihood(received, steps)
        return value.sum(), value.detach()


class _Candidates(ClientSteps):
    """Clients whose gradient is ``known`` already."""

    def __init__(self, known: torch.Tensor, *step: Any) -> None:
        super().__init__(*step)
        self.known = known

    @property
    def gradient(self) -> torch.Tensor:
        return self.known


def _bits(gradients: torch.Tensor) -> list[int]:
    """A number per row that changes with it, so that every point of a search has draws of its own."""
    numbers: list[int] = gradients.double().sum(dim=1).contiguous().view(torch.int64).tolist()
    return [abs(number) for number in numbers]
