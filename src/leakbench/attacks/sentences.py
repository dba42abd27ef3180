"""Gradient matching over sentences: a search over word embeddings, then the nearest tokens.

The attacker knows where the special tokens and the padding are, and varies everything else of the embedded sentences
``[B, L, H + 1]``, whose last column says where tokens are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from leakbench.attacks.base import ATTACKS, Grant, Knowledge, Observations, Reconstruction, Words
from leakbench.attacks.discrete import DRAWN, discrete_step, nearest_tokens, start
from leakbench.attacks.engine import Interlude, TrialData
from leakbench.attacks.gradient_matching import GradientMatching, Search
from leakbench.attacks.parts import Part
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.models.bert import table_of
from leakbench.randomness import Streams


class Reordering(Part):
    """Schedule and score of trying sentences in other orders (Balunovic et al. 2022)."""

    candidates: int = Field(200, ge=2, description="orders of a sentence, the present one among them")
    every: int = Field(75, ge=1, description="iterations between two tries")
    burn_in: float = Field(0.1, ge=0, lt=1, description="part of the iterations before the first try")
    fluency: float = Field(
        ge=0, description="weight of a language model's mean nats per token beside the distance of gradients"
    )

    def is_due(self, iteration: int, iterations: int) -> bool:
        """Whether to try after an iteration, from 0 on."""
        return iteration >= self.burn_in * iterations and iteration % self.every == 1 % self.every


@ATTACKS.register("sentence_matching", version=2)
class SentenceMatching(GradientMatching):
    """Gradient matching whose reconstructions are sentences: the tokens with the nearest word embeddings, by cosine.

    Without ``reordering`` and with one draw to start from it is DLG or TAG (Deng et al. 2021), by its objective; with
    both it is LAMP (Balunovic et al. 2022).
    """

    starts: int = Field(1, ge=1, description="standard normal draws, of which the search begins at the best")
    permutations: int = Field(0, ge=0, description="random orders of that draw, of which it begins at the best")
    scale: Literal["inputs", "embeddings"] = Field(
        "inputs",
        description="unit of the draws and of the step size: network inputs, or the root mean square of the numbers of "
        "the model's word embeddings",
    )
    start_norm: float | None = Field(
        None,
        gt=0,
        description="length to which the embeddings of the start are brought, in network inputs; as drawn by default",
    )
    reordering: Reordering | None = Field(None, description="tries of other orders between steps; none by default")

    @model_validator(mode="after")
    def _of_sentences(self) -> SentenceMatching:
        if self.unknown.kind != "pixels" or self.box or self.start != "normal" or self.restarts != 1:
            raise ValueError("unknown, box, start and restarts are of images; sentences have starts and permutations")
        if self.labels == "joint":
            raise ValueError("labels: of sentences they are known, or inferred beforehand")
        if self.reordering is not None and self.optimiser.kind == "lbfgs":
            raise ValueError("reordering: L-BFGS cannot be interrupted; take adam or staircase_adam")
        return self

    @property
    def reconstructs(self) -> Literal["images", "sentences"]:
        return "sentences"

    @property
    def needs(self) -> frozenset[Grant]:
        fluent = self.reordering is not None and self.reordering.fluency > 0
        return super().needs | (frozenset({"language_model"}) if fluent else frozenset())

    @property
    def several_rounds(self) -> bool:
        return False  # a round's model has other word embeddings, of which the variables are

    def effort(self, samples: int) -> Effort:
        tried = self.starts + self.permutations
        search = super().effort(samples).plus(Effort(tried * samples, tried / DRAWN))
        if self.reordering is None:
            return search
        due = sum(self.reordering.is_due(iteration, self.iterations) for iteration in range(self.iterations))
        return search.plus(Effort(self.reordering.candidates * samples, 1).times(due))

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        if knowledge.words is None or knowledge.inputs is None:
            raise Infeasible(f"attack '{self.name}' searches for sentences, which these observations are not of")
        if "language_model" in self.needs and knowledge.language_model is None:
            raise Infeasible(f"attack '{self.name}' asks a language model how fluent sentences are, and has none")
        embedded = super().reconstruct(observations, knowledge, streams)
        return replace(embedded, tokens=_tokens(embedded.images, knowledge.words))

    def _search(self, observations: Observations, knowledge: Knowledge) -> Search:
        return SentenceSearch(self, observations, knowledge)


class SentenceSearch(Search):
    """A search whose variables are the embedded sentences, in the attack's unit; known parts of them have no gradient.

    Embedded inputs bypass the table of word embeddings, whose gradient is then always zero: the search leaves out
    these coordinates, but where an attacker runs the mechanism, which reads them.
    """

    attack: SentenceMatching

    def __init__(self, attack: SentenceMatching, observations: Observations, knowledge: Knowledge) -> None:
        super().__init__(attack, _behind_the_words(observations), knowledge)
        assert knowledge.words is not None and knowledge.inputs is not None
        self._words, self._known = knowledge.words, knowledge.inputs
        self._free = knowledge.words.known < 0
        usual = self._words.embeddings[..., self._words.allowed, :]
        length = torch.linalg.vector_norm(usual, dim=-1).mean(dim=-1)
        unit = torch.ones_like(length) if attack.scale == "inputs" else usual.square().mean(dim=(-2, -1)).sqrt()
        self.word_length, self.unit = (each.expand(len(observations)) for each in (length, unit))

    def given(self, trials: torch.Tensor) -> TrialData:
        return {**super().given(trials), "unit": self.unit[trials], "word_length": self.word_length[trials]}

    def candidates(self, variables: torch.Tensor, given: TrialData) -> tuple[torch.Tensor, torch.Tensor | None]:
        return super().candidates(given["unit"][..., None] * variables, given)

    def starts(self, streams: Streams) -> torch.Tensor:
        gradients, unit = self.observations.gradients, self.unit[:, None]
        if self.observations.start is not None:
            return self.observations.start.flatten(1).to(gradients) / unit
        known = torch.where(self._known.where, self._known.values, torch.zeros_like(self._known.values))

        def matching(tried: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
            return self._matching(self.candidates(tried.flatten(1), self.given(trials))[0], trials)

        begun = start(
            known.to(gradients) / unit[..., None, None],
            self._free,
            self._words.embeddings.shape[-1],
            matching,
            streams.child("start"),
            candidates=self.attack.starts,
            permutations=self.attack.permutations,
            norm=None if self.attack.start_norm is None else self.attack.start_norm / unit[..., None, None],
        )
        return begun.flatten(1)

    def interlude(self, streams: Streams) -> Interlude | None:
        """Tries of other orders, when they are due."""
        reordering = self.attack.reordering
        if reordering is None:
            return None
        model = self.knowledge.language_model

        def reorder(iteration: int, points: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
            if not reordering.is_due(iteration, self.attack.iterations):
                return points
            inputs, _ = self.candidates(points, self.given(trials))
            words, free = self._words.at(trials.tolist()), self._free[trials]
            rows = streams.at(trials.tolist())

            def matching(tried: torch.Tensor, owners: torch.Tensor) -> torch.Tensor:
                return self._matching(tried, trials[owners])

            moved = discrete_step(
                inputs,
                _tokens(inputs, words),
                free,
                matching,
                None if model is None else model.log_perplexity,
                reordering.fluency,
                reordering.candidates,
                rows.child("reordering", iteration),
            )
            return moved.inputs.flatten(1) / self.unit[trials, None]

        return reorder

    def _matching(self, inputs: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
        """Distances ``[m]`` of the gradients of inputs ``[m, B, L, H + 1]`` from those observed in these trials."""
        seen, network = self.observations, self.network

        def distance(candidate: torch.Tensor, data: TrialData) -> torch.Tensor:
            parameters = data.get("parameters", seen.parameters)
            gradient = seen.local.update(network, parameters, candidate, data["labels"], data.get("statistics"))
            value = self.attack.objective(gradient, data["target"], data.get("weights"), network.sizes)
            return value.mean()

        distances: torch.Tensor = torch.func.vmap(distance)(inputs, self.trial_data(trials))
        return distances


def _behind_the_words(observations: Observations) -> Observations:
    """The same observations without the coordinates of the word embeddings, unless the mechanism is run on all."""
    if observations.later:
        raise Infeasible("a search for sentences: word embeddings are other ones in every round's model")
    network = observations.network
    if observations.send is not None or observations.score is not None or table_of(network) in network.frozen:
        return replace(observations, marked=None, repeats=None)
    table = network.names.index(table_of(network))
    begin = sum(network.sizes[:table])
    end = begin + network.sizes[table]

    def rest(flat: torch.Tensor) -> torch.Tensor:
        # The table usually comes first; then nothing is copied.
        return flat[..., end:] if begin == 0 else torch.cat([flat[..., :begin], flat[..., end:]], dim=-1)

    return replace(
        observations,
        network=network.without(network.names[table]),
        parameters=rest(observations.parameters),
        gradients=rest(observations.gradients),
        weights=None if observations.weights is None else rest(observations.weights),
        marked=None,
        repeats=None,
    )


def _tokens(inputs: torch.Tensor, words: Words) -> torch.Tensor:
    """The nearest words of embedded sentences, and the tokens that are known."""
    nearest = nearest_tokens(inputs[..., :-1], words.embeddings, words.allowed)
    return torch.where(words.known < 0, nearest, words.known)
