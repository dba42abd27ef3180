"""DAGER: exact sentences from the span of the first attention layer's gradients (Petrov et al., NeurIPS 2024).

The gradient of a linear layer's weights has its rows in the span of the layer's inputs. Of the first layer's queries,
keys and values these are the embedded tokens, normalised, so a token is at a position of some sentence if its embedding
there lies in that span: no search, and no language model. It holds while there are fewer tokens than the model is wide.
Tokens of several sentences at one position are told apart by the same test at the second layer, whose inputs depend on
whole sentences, or in GPT-2 on the tokens before, so that sentences grow from their first token on. It needs a third
layer behind it: of the last one, which is read at one position, the span has no more than ``2 heads + 1`` dimensions
per sentence.

Of low-rank adapters (:mod:`leakbench.models.lora`) the same test is made on what travels of them. Gradients of ``B``
span the embedded tokens as ``A`` maps them, and tell tokens where there are fewer than the rank; in so few dimensions
other tokens come near, but rarely to the spans of both adapters. With more tokens, gradients of ``A`` span the embedded
tokens themselves, of as many tokens as a layer's adapters have ranks together; but they are zero at the start, as ``B``
is, and as ``B`` trains into few directions, rounding hides some.

A defended gradient has full rank. Of the few largest directions, which are as many as tokens, much is left: the rest of
the spectrum says how strong the noise is in each tensor. Coordinates that a message shows to be left out, and those
that stand out, such as words with a flipped bit, are what a matrix of low rank has in their places. Which of these
repairs to trust shows without the truth: by how much the nearest token at each position stands out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from pydantic import Field

from leakbench.attacks.base import ATTACKS, Attack, ClientSetup, Knowledge, Observations, Reconstruction, Words
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.lazy import torch
from leakbench.models.attention import LAYERS, Rows, attention_inputs, reading
from leakbench.models.bert import TextModel, embed
from leakbench.numerics.completion import completed
from leakbench.randomness import Streams

NOTHING = 1e-6
"""Part of the largest singular value below which there is rounding alone."""
FAINT = 4
"""Singular values, in multiples of the next one, that are more than rounding in an adapter's gradient."""
INSIDE = 1e-3
"""Part of a vector outside a span that counts as rounding."""
MOST = 4
"""Tokens that a sentence chooses from at a position, in multiples of the batch."""
PREFIXES = 8
"""Prefixes that grow side by side."""
AT_ONCE = 1 << 22
"""Numbers in the embeddings of tokens that are tested together: 16 MiB."""
ONE_LAYER = "attack 'dager' tells sentences of a batch apart by a second layer, and there is one"

Repair = Literal["none", "marked", "outliers"]
"""Coordinates that are completed by low rank: none, those that the message marks, and those that stand out as well."""


@ATTACKS.register("dager", version=1)
class Dager(Attack):
    """The sentences of a client, token by token, by the span of what the first attention layer reads.

    Every position gets the allowed token that is nearest to the span; in a batch, the nearest ones, of which each
    sentence takes those that bring it nearest to the span of the second layer, by a local search that may miss them.
    Every message has an answer, also a defended one; the undefended gradient of a single sentence has the exact one.
    Of low-rank adapters it reads fewer tokens than their rank, or once they have trained as many as the adapters of a
    layer have ranks together.
    """

    sweeps: int = Field(6, ge=1, description="most rounds in which a sentence of a batch chooses its tokens again")
    starts: int = Field(40, ge=1, description="most choices to begin from")
    repairs: bool = Field(
        True,
        description="of gradients of full rank, try to complete coordinates that the message marks, and those that "
        "stand out",
    )

    @property
    def reconstructs(self) -> Literal["images", "sentences"]:
        return "sentences"

    def effort(self, samples: int) -> Effort:
        return Effort(samples, 1)

    def check_clients(self, clients: ClientSetup) -> None:
        model, samples = clients.model, clients.batch_shape[0]
        if not isinstance(model, TextModel):
            raise Infeasible(f"attack 'dager' reads layers of attention, and model '{model.name}' begins with none")
        _one_step(clients.local, samples)
        if samples > 1 and model.layers < LAYERS:
            raise Infeasible(ONE_LAYER)
        least = samples + 2  # a token of each, and those that begin and end all sentences
        _narrower(least, model.width)
        if model.lora is not None:
            _adapters(least, model.lora.rank, model.lora.rank * len(model.lora.targets) if clients.trained else 0)

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        """Reconstruct the tokens that are not known; of a single sentence independently of ``streams``.

        Raises:
            Infeasible: these are no sentences; the model has no attention layer that it knows, or, for a batch, no
                second one; there are as many tokens as the model is wide, or too many for the adapters' rank; several
                local steps.
        """
        if knowledge.words is None:
            raise Infeasible("attack 'dager' finds tokens of sentences, which these observations are not of")
        _one_step(observations.local, observations.batch_shape[0])
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
        network, parameters = observations.network, observations.parameters
        parameters = parameters if parameters.dim() == 1 else parameters[row]
        self._inputs = attention_inputs(network, parameters)
        self._allowed, self._known = words.allowed, words.known[0]
        self._streams = streams
        self._sweeps, self._starts = attack.sweeps, attack.starts
        free = int((self._known < 0).sum())
        # Some of the first layer's inputs are equal, such as the first token of all sentences.
        shared = sum(len(column[column > 0].unique()) for column in self._known.T)
        self._counts = (free + shared, free + int((self._known > 0).sum()))
        marked = observations.marked
        seen = torch.ones_like(observations.gradients[row], dtype=torch.bool) if marked is None else ~marked[row]
        values = network.tensors(parameters)
        gradients, trusted = (reading(network.unflatten(each), values) for each in (observations.gradients[row], seen))
        self._layers = [_Layer(*each) for each in zip(gradients, trusted, self._counts, strict=False)]
        self._repairs: tuple[Repair, ...] = ("outliers", "marked", "none") if attack.repairs else ("none",)

    def tokens(self) -> torch.Tensor:
        """Their token ids, ``[B, L]``."""
        free = self._known < 0
        pools = self._pools(free.sum(dim=0).tolist())
        if len(free) == 1:
            nearest = torch.tensor([pool[0] if pool else 0 for pool in pools], device=free.device)
            return torch.where(free[0], nearest, self._known[0])[None]
        if len(self._layers) < 2:
            raise Infeasible(ONE_LAYER)
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
        if self._inputs.causal:
            return self._grown(self._known[sentence], pools, others)
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

    def _grown(self, known: torch.Tensor, pools: list[list[int]], others: torch.Tensor) -> tuple[torch.Tensor, float]:
        """The same where tokens are read from earlier ones alone: prefixes grow token by token, the nearest ones stay.

        Args:
            known: tokens ``[L]``; -1 where they are searched for.
            pools: tokens to choose from at each position.
            others: as of :meth:`_best`.
        """
        filler = int(self._allowed.nonzero()[0])  # behind a prefix, where nothing looks
        prefixes, away = known.where(known >= 0, filler)[None], torch.zeros(1, device=known.device)
        for place, pool in enumerate(pools):
            if known[place] == 0:
                continue
            if known[place] < 0:
                tokens = torch.tensor(pool, device=known.device).repeat(len(prefixes))
                prefixes, away = (each.repeat_interleave(len(pool), dim=0) for each in (prefixes, away))
                prefixes[:, place] = tokens
            away = away + _away(self._inputs.second(prefixes)[:, place], self._second)
            nearest = away.argsort(stable=True)[:PREFIXES]
            prefixes, away = prefixes[nearest], away[nearest]
        taken = (prefixes[:, None] == others).all(dim=2).any(dim=1)
        distances = away / int((known != 0).sum()) + INSIDE * taken
        return prefixes[distances.argmin()], float(distances.min())

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
        away = _away(self._inputs.second(sentences), self._second)
        return away.where(mask, 0.0).sum(dim=1) / mask.sum(dim=1)

    def _pools(self, counts: list[int]) -> list[list[int]]:
        """The allowed tokens for each position, those first that are nearest to the first layer's span.

        As many as there are sentences with a token to find there, and all others in the span: where a token is at two
        positions, the embedding of a third one at a wrong position is a sum of embeddings that are there.

        Args:
            counts: sentences with a token to find at each position.
        """
        allowed = self._allowed.nonzero().flatten()
        searched = torch.tensor(counts, device=allowed.device) > 0
        first = self._layers[0]
        repairs = first.repairs(self._repairs)
        spans = [first.spans(repair) for repair in repairs]
        together = max(1, AT_ONCE // (len(counts) * first.width))
        parts = [
            [_away(read, each) for each in spans]
            for read in (self._inputs.first(part, len(counts)) for part in allowed.split(together))
        ]
        every = [torch.cat(of_span) for of_span in zip(*parts, strict=True)]
        chosen = max(range(len(every)), key=lambda place: _standing_out(every[place][:, searched]))
        if len(self._known) > 1 and len(self._layers) > 1:
            self._second = self._layers[1].spans(repairs[chosen])
        nearest, order = every[chosen].sort(dim=0, stable=True)
        sizes = (nearest < INSIDE).sum(dim=0).clamp(max=MOST * len(self._known)).tolist()
        return [
            allowed[order[: max(size, count), place]].tolist() if count else []
            for place, (size, count) in enumerate(zip(sizes, counts, strict=True))
        ]


class _Span(NamedTuple):
    """The span of what a layer reads.

    Attributes:
        basis: orthonormal rows ``[r, w]``.
        through: what maps the inputs beforehand, ``[w, H]``; None where nothing does.
    """

    basis: torch.Tensor
    through: torch.Tensor | None


class _Layer:
    """The inputs of an attention layer, as far as gradients tell.

    Args:
        gradients: whose rows lie in the span of the inputs.
        seen: coordinates of these that the message does not show to be changed.
        vectors: most different inputs.

    Raises:
        Infeasible: every vector lies in the span of so many, or no gradient spans all.
    """

    def __init__(self, gradients: Sequence[Rows], seen: Sequence[Rows], vectors: int) -> None:
        mapped = [rows.through for rows in gradients if rows.through is not None]
        self.width = mapped[0].shape[1] if mapped else next(iter(gradients[0].parts.values())).shape[1]
        _narrower(vectors, self.width)
        parts = [_Part(*each, vectors, bool(mapped)) for each in zip(gradients, seen, strict=True)]
        if mapped:
            _adapters(vectors, len(mapped[0]), sum(part.rows for part in parts if part.through is None))
        spanned = [part for part in parts if part.spans]
        # Gradients of A are products with B, which trains into few directions, so rounding hides more of their span.
        self._parts = [part for part in spanned if part.through is not None] or spanned

    def repairs(self, tried: Sequence[Repair]) -> list[Repair]:
        """Leave out those that cannot help."""
        useful = [repair for part in self._parts for repair in part.repairs(tried)]
        return [repair for repair in tried if repair in useful]

    def spans(self, repair: Repair) -> list[_Span]:
        """Spans that the inputs lie in."""
        return [_Span(part.span(repair), part.through) for part in self._parts]


class _Part:
    """Gradients whose rows lie in one span.

    Args:
        gradients: as of :class:`_Layer`.
        seen: likewise.
        vectors: likewise.
        adapters: whether they are of low-rank adapters.
    """

    def __init__(self, gradients: Rows, seen: Rows, vectors: int, adapters: bool) -> None:
        parts, self.through = gradients
        held = [name for name, part in parts.items() if bool(part.any())] or list(parts)
        self._gradients = torch.cat([parts[name] for name in held]).double()
        self._seen = torch.cat([seen.parts[name] for name in held])
        self._blocks = [len(parts[name]) for name in held]
        self._vectors, self._adapters = vectors, adapters

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self._gradients)

    @property
    def spans(self) -> bool:
        """Whether the rows can span all inputs, and not every vector is in their span."""
        return self.rows >= self._vectors < self._gradients.shape[1]

    @cached_property
    def _exact(self) -> bool:
        """Whether the rank is as low as that of an undefended gradient."""
        values = torch.linalg.svdvals(self._gradients)
        return len(values) <= self._vectors or float(values[self._vectors]) <= NOTHING * float(values[0])

    def repairs(self, tried: Sequence[Repair]) -> list[Repair]:
        """Leave out those that cannot help."""
        if self._exact:
            return ["none"]
        useless = {"marked"} if bool(self._seen.all()) else set()
        # Codes whose usual value is zero have nothing that stands out but all that they say.
        usual = float(self._gradients[self._seen].abs().median()) if bool(self._seen.any()) else 0.0
        useless |= set() if usual else {"outliers"}
        return [repair for repair in tried if repair not in useless]

    def span(self, repair: Repair) -> torch.Tensor:
        """Orthonormal rows that span what the layer read: ``[r, w]``, at most as many as inputs."""
        gradients = self._gradients
        if repair != "none" and repair in self.repairs([repair]):
            gradients = completed(gradients, self._seen, self._vectors, self._blocks, robust=repair == "outliers")
        if not self._exact:
            gradients = torch.cat([part / self._noise(part) for part in gradients.split(self._blocks)])
        _, values, rows = torch.linalg.svd(gradients, full_matrices=False)
        several = values[: self._vectors] > self._rounding(values)
        span: torch.Tensor = rows[: self._vectors][several].float()
        return span

    def _rounding(self, values: torch.Tensor) -> torch.Tensor:
        """Size of singular values that are rounding alone; adapters show it in those that inputs do not need."""
        rounding = NOTHING * values[0]
        if self._adapters and len(values) > self._vectors:
            rounding = torch.minimum(rounding, FAINT * values[self._vectors])
        return rounding

    def _noise(self, gradient: torch.Tensor) -> torch.Tensor:
        """Root mean square of the noise in a tensor, by the directions that inputs do not need; not zero."""
        values, count = torch.linalg.svdvals(gradient), self._vectors
        rest = (gradient.shape[0] - count) * (gradient.shape[1] - count)
        size = gradient.norm() / gradient.numel() ** 0.5
        level = (values[count:].square().sum() / max(rest, 1)).sqrt()
        return torch.maximum(level, NOTHING * size).clamp(min=torch.finfo(gradient.dtype).tiny)


def _one_step(local: LocalTraining, samples: int) -> None:
    if not local.is_gradient(samples):
        raise Infeasible("attack 'dager' reads the span of one step's gradient, and clients take several")


def _narrower(vectors: int, width: int) -> None:
    """Reject so many inputs that every vector lies in their span."""
    if vectors >= width:
        raise Infeasible(
            f"attack 'dager' needs fewer tokens than the model is wide; there are {vectors}, and the width is {width}"
        )


def _adapters(vectors: int, rank: int, rows: int) -> None:
    """Reject adapters that tell too little of so many inputs.

    Args:
        vectors: the inputs.
        rank: of an adapter.
        rows: of the gradients of a layer's A, which are of adapters whose B has trained.
    """
    if vectors < rank or vectors <= rows:
        return
    most = f"or no more than the {rows} rows of its layers' A" if rows else "as long as their B is zero"
    raise Infeasible(
        f"attack 'dager' needs fewer tokens than the rank of low-rank adapters, {most}; there are {vectors}, and the "
        f"rank is {rank}"
    )


def _standing_out(away: torch.Tensor) -> float:
    """Mean lead of the nearest tokens over the usual ones, in usual deviations: of distances ``[V, L]``."""
    if not away.numel():
        return 0.0
    usual = away.median(dim=0).values
    deviation = (away - usual).abs().median(dim=0).values
    return float(((usual - away.min(dim=0).values) / deviation.clamp(min=1e-12)).mean())


def _away(states: torch.Tensor, spans: Sequence[_Span]) -> torch.Tensor:
    """Part of vectors ``[..., H]`` that is outside of spans, of their length; the mean of all: ``[...]``."""
    parts = []
    for basis, through in spans:
        met = states if through is None else states @ through.T
        outside = met - (met @ basis.T) @ basis
        parts.append(outside.norm(dim=-1) / met.norm(dim=-1))
    return torch.stack(parts).mean(dim=0)
