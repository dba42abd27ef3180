"""DAGER: exact sentences from the span of the first attention layer's gradients (Petrov et al., NeurIPS 2024).

The gradient of a linear layer's weights has its rows in the span of the layer's inputs. Of the first layer's queries,
keys and values these are the embedded tokens, normalised, so a token is at a position of some sentence if its embedding
there lies in that span: no search, and no language model. It holds while there are fewer tokens than the model is wide.
Tokens of several sentences at one position are told apart by the same test at the second layer, whose inputs depend on
whole sentences. It needs a third one behind it: of the last layer, which is read at one position, the span has no more
than ``2 heads + 1`` dimensions per sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from leakbench.attacks.base import ATTACKS, Attack, Knowledge, Observations, Reconstruction, Words
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.models.bert import embed
from leakbench.randomness import Streams

READING = ("query.weight", "key.weight", "value.weight", "q_lin.weight", "k_lin.weight", "v_lin.weight")
"""Ends of the names of weights that read a layer's inputs, in BERT and in DistilBERT."""
NOTHING = 1e-6
"""Part of the largest singular value below which there is rounding alone."""
INSIDE = 1e-3
"""Part of a vector outside a span that counts as rounding."""
MOST = 4
"""Tokens that a sentence chooses from at a position, in multiples of the batch."""
AT_ONCE = 1 << 22
"""Numbers in the embeddings of tokens that are tested together: 16 MiB."""


@ATTACKS.register("dager", version=1)
class Dager(Attack):
    """The sentences of a client, token by token, by the span of what the first attention layer reads.

    Every position gets the allowed token that is nearest to the span; in a batch, the nearest ones, of which each
    sentence takes those that bring it nearest to the span of the second layer, by a local search that may miss them.
    Every message has an answer, also a defended one; the undefended gradient of a single sentence has the exact one.
    """

    sweeps: int = Field(6, ge=1, description="most rounds in which a sentence of a batch chooses its tokens again")
    starts: int = Field(40, ge=1, description="most choices to begin from")

    @property
    def reconstructs(self) -> Literal["images", "sentences"]:
        return "sentences"

    def effort(self, samples: int) -> Effort:
        return Effort(samples, 1)

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        """Reconstruct the tokens that are not known; of a single sentence independently of ``streams``.

        Raises:
            Infeasible: these are no sentences; the model has no attention layer that it knows, or, for a batch, no
                second one; there are as many tokens as the model is wide; several local steps.
        """
        if knowledge.words is None:
            raise Infeasible("attack 'dager' finds tokens of sentences, which these observations are not of")
        if observations.local != ONE_STEP:
            raise Infeasible("attack 'dager' reads the span of one step's gradient, and clients take several")
        words = knowledge.words
        tokens = torch.stack(
            [
                _Sentences(observations, row, words.at([row]), self, streams.at([row])).tokens()
                for row in range(len(observations))
            ]
        )
        parameters = observations.parameters.expand(len(tokens), -1)
        inputs = [embed(observations.network, *each) for each in zip(parameters, tokens, strict=True)]
        return Reconstruction(torch.stack(inputs), None, torch.full((len(tokens),), -1), tokens=tokens)


class _Sentences:
    """The sentences of one client.

    Args:
        observations: of all clients.
        row: of the client.
        words: as the attacker knows them, of this client alone.
        attack: its parameters.
        streams: one, of the starts.
    """

    def __init__(self, observations: Observations, row: int, words: Words, attack: Dager, streams: Streams) -> None:
        network, gradient = observations.network, observations.gradients[row]
        parameters = observations.parameters
        self._base = _beginning(network, parameters if parameters.dim() == 1 else parameters[row])
        self._allowed, self._known = words.allowed, words.known[0]
        self._streams = streams
        self._sweeps, self._starts = attack.sweeps, attack.starts
        named = network.unflatten(gradient)
        free = int((self._known < 0).sum())
        # Some of the first layer's inputs are equal, such as the first token of all sentences.
        shared = sum(len(column[column > 0].unique()) for column in self._known.T)
        counts = (free + shared, free + int((self._known > 0).sum()))
        self._spans = [_span(weights, count) for weights, count in zip(_reading(named), counts, strict=False)]

    def tokens(self) -> torch.Tensor:
        """Their token ids, ``[B, L]``."""
        free = self._known < 0
        pools = self._pools(free.sum(dim=0).tolist())
        if len(free) == 1:
            nearest = torch.tensor([pool[0] if pool else 0 for pool in pools], device=free.device)
            return torch.where(free[0], nearest, self._known[0])[None]
        if len(self._spans) < 2:
            raise Infeasible("attack 'dager' tells sentences of a batch apart by a second layer, and there is one")
        chosen, left = self._known.clone(), list(range(len(free)))
        while left:
            others = [row for row in range(len(free)) if row not in left]
            tried = {row: self._best(row, free[row], pools, chosen[others]) for row in left}
            surest = min(left, key=lambda row: tried[row][1])
            chosen[surest] = tried[surest][0]
            left.remove(surest)
        return chosen

    def _best(
        self, sentence: int, free: torch.Tensor, pools: list[list[int]], others: torch.Tensor
    ) -> tuple[torch.Tensor, float]:
        """A sentence ``[L]`` nearest to the second layer's span, rather none of ``others``, and its distance."""
        places = free.nonzero().flatten().tolist()
        best, distance = self._known[sentence], float("inf")
        draws = self._streams.child("start", sentence).uniform(self._starts, max(len(places), 1))[0]
        for start in range(self._starts):
            tokens = self._known[sentence].clone()
            for number, place in enumerate(places):
                pool = pools[place]
                tokens[place] = pool[int(draws[start, number] * len(pool))] if start else pool[0]
            away = self._descend(tokens, places, pools, others)
            if away < distance:
                best, distance = tokens, away
            if distance < INSIDE:
                break
        return best, distance

    def _descend(self, tokens: torch.Tensor, places: list[int], pools: list[list[int]], others: torch.Tensor) -> float:
        """Choose the token of one position after the other, until none changes; returns the distance."""
        away = float("inf")
        for _ in range(self._sweeps):
            before = tokens.clone()
            for place in places:
                tried = tokens.repeat(len(pools[place]), 1)
                tried[:, place] = torch.tensor(pools[place], device=tokens.device)
                # A sentence is taken twice only where no other one is in the span.
                taken = (tried[:, None] == others).all(dim=2).any(dim=1)
                distances = self._distances(tried) + INSIDE * taken
                tokens[place], away = tried[distances.argmin(), place], float(distances.min())
            if torch.equal(before, tokens):
                break
        return away

    def _distances(self, sentences: torch.Tensor) -> torch.Tensor:
        """Mean distance of the second layer's inputs from their span, for sentences ``[k, L]``: ``[k]``."""
        mask = sentences != 0
        with torch.no_grad():
            states = self._base(sentences, attention_mask=mask, output_hidden_states=True).hidden_states[1]
        return _away(states, self._spans[1]).where(mask, 0.0).sum(dim=1) / mask.sum(dim=1)

    def _pools(self, counts: list[int]) -> list[list[int]]:
        """The allowed tokens for each position, those first that are nearest to the first layer's span.

        As many as there are sentences with a token to find there, and all others in the span: where a token is at two
        positions, the embedding of a third one at a wrong position is a sum of embeddings that are there.

        Args:
            counts: sentences with a token to find at each position.
        """
        length, allowed = len(counts), self._allowed.nonzero().flatten()
        together = max(1, AT_ONCE // (length * self._spans[0].shape[1]))

        def distances(part: torch.Tensor) -> torch.Tensor:
            return _away(self._base.embeddings(input_ids=part[:, None].expand(-1, length)), self._spans[0])

        with torch.no_grad():
            away = torch.cat([distances(part) for part in allowed.split(together)])
        nearest, order = away.sort(dim=0, stable=True)
        sizes = (nearest < INSIDE).sum(dim=0).clamp(max=MOST * len(self._known)).tolist()
        return [
            allowed[order[: max(size, count), place]].tolist() if count else []
            for place, (size, count) in enumerate(zip(sizes, counts, strict=True))
        ]


def _beginning(network: Network, parameters: torch.Tensor) -> Any:
    """The embeddings and the first layer of the model with these parameters."""
    module = network.trainable_module().eval()
    module.load_state_dict(network.unflatten(parameters), strict=False)
    base: Any = getattr(module, "base_model", None)
    layers = getattr(base, "encoder", None) or getattr(base, "transformer", None)
    if layers is None or not any(name.endswith(READING) for name in network.names):
        raise Infeasible("attack 'dager' needs a model that begins with attention ('bert', 'distilbert')")
    layers.layer = layers.layer[:1]
    return base


def _reading(gradient: dict[str, torch.Tensor]) -> Iterator[torch.Tensor]:
    """Gradients of the weights that read the inputs of the first and of the second layer, ``[3 H, H]`` each."""
    for layer in range(2):
        weights = [
            value for name, value in gradient.items() if f"layer.{layer}.attention" in name and name.endswith(READING)
        ]
        if weights:
            yield torch.cat(weights)


def _span(weights: torch.Tensor, vectors: int) -> torch.Tensor:
    """Orthonormal rows that span what the layer read: ``[r, H]``, at most so many.

    Raises:
        Infeasible: every vector lies in the span of so many.
    """
    if vectors >= weights.shape[1]:
        raise Infeasible(
            f"attack 'dager' needs fewer tokens than the model is wide; there are {vectors}, and the width is "
            f"{weights.shape[1]}"
        )
    _, values, rows = torch.linalg.svd(weights.double(), full_matrices=False)
    span: torch.Tensor = rows[:vectors][values[:vectors] > NOTHING * values[0]].to(weights)
    return span


def _away(states: torch.Tensor, span: torch.Tensor) -> torch.Tensor:
    """Part of vectors ``[..., H]`` that is outside a span, of their length: ``[...]``."""
    outside = states - (states @ span.T) @ span
    away: torch.Tensor = outside.norm(dim=-1) / states.norm(dim=-1)
    return away
