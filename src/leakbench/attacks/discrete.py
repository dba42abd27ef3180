"""The discrete steps of LAMP (Balunovic et al. 2022): orders of tokens that gradients alone do not find.

A search over embeddings finds a sentence's tokens before their order. So between its steps each sentence is tried in
other orders, and keeps the best one by the distance of gradients and by how fluent a language model finds it. All
orders of a sentence, in all trials, are scored side by side. Positions that the attacker knows (special tokens,
padding) stay as they are; in the authors' code a rotated prefix, and the permutations of the start, displace the end
and the padding of sentences that are shorter than the longest of their batch.

Shapes: ``n`` trials, ``B`` sentences in a trial's batch, ``L`` positions, ``E`` numbers that a search holds of a
position, the first ``H`` of them the word embedding; ``V`` tokens in the vocabulary; ``k`` candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from leakbench.attacks.engine import rows_at_once
from leakbench.lazy import torch
from leakbench.randomness import Streams

Matching: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
"""``matching(inputs [m, B, L, E], trials [m]) -> [m]``: distances of the inputs' gradients from those observed in these
trials. No derivative of it is taken."""

Fluency: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
"""``fluency(ids [m, L]) -> [m]``: larger for less likely sentences."""

MOVES = ("swap", "move_token", "move_span", "rotate_prefix")
"""The move of candidate ``c``, by ``c % 4``; candidate 0 stays as it is."""

DRAWN = 10
"""Candidate starts per draw; the random numbers depend on it."""

NEAREST_BUDGET = 2**26
"""Cosines computed at once. Only speed and memory depend on it."""


class Reordered(NamedTuple):
    """A discrete step's ``inputs [n, B, L, E]``, ``tokens [n, B, L]``, and which sentences ``moved``, ``[n, B]``."""

    inputs: torch.Tensor
    tokens: torch.Tensor
    moved: torch.Tensor


def nearest_tokens(
    embedded: torch.Tensor, embeddings: torch.Tensor, allowed: torch.Tensor | None = None
) -> torch.Tensor:
    """The tokens whose word embeddings have the largest cosine with these, int64 ``[...]``.

    An embedding of zeros has cosine 0 with everything.

    Args:
        embedded: ``[..., H]``.
        embeddings: of all words, ``[V, H]``; or of each of the first dimension of ``embedded``, ``[n, V, H]``.
        allowed: candidate tokens, boolean ``[V]``; all by default.
    """
    words = torch.nn.functional.normalize(embeddings, dim=-1).mT
    forbidden = None
    if allowed is not None:
        forbidden = embeddings.new_zeros(len(allowed)).masked_fill(~allowed, -torch.inf)
    rows = embedded.reshape(*embeddings.shape[:-2], -1, embedded.shape[-1])
    nearest = []
    for part in rows.split(max(1, NEAREST_BUDGET // embeddings.shape[:-1].numel()), dim=-2):
        cosines = torch.nn.functional.normalize(part, dim=-1) @ words
        nearest.append((cosines if forbidden is None else cosines + forbidden).argmax(dim=-1))
    return torch.cat(nearest, dim=-1).view(embedded.shape[:-1])


def propose(draws: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
    """Orders of sentences, int64 ``[n, k, L]``: position ``l`` of a candidate holds what position ``order[l]`` held.

    The first candidate is the sentence as it is; the others take turns between four moves of their free positions: two
    tokens change places; a token moves; a span moves; the sentence begins later, and ends with what came before.

    Args:
        draws: uniform on [0, 1), ``[n, k, 3]``: where to.
        free: positions that may move, boolean ``[n, L]``.
    """
    first, second, third = draws.double().unbind(dim=2)
    free_count = free.sum(dim=1, keepdim=True)
    move = torch.arange(draws.shape[1], device=draws.device).expand(draws.shape[:2]) % len(MOVES)

    def pick(draw: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return (draw * count).long()

    # A move of a span [b, e) to the gap p exchanges two adjacent blocks: it rotates the window that they make.
    token, other, gap = pick(first, free_count), pick(second, free_count), pick(second, free_count + 1)
    ends = torch.stack([pick(first, free_count + 1), gap])
    begin, end = ends.amin(dim=0), ends.amax(dim=0)
    place = pick(third, free_count + 1 - (end - begin))
    place = torch.where(place >= begin, place + end - begin, place)
    none = torch.zeros_like(token)
    windows = {  # begin of the window, of its second block, and its end
        "move_token": (
            torch.minimum(token, gap),
            torch.where(gap > token, token + 1, token),
            torch.where(gap > token, gap, token + 1),
        ),
        "move_span": (torch.minimum(begin, place), torch.where(place < begin, begin, end), torch.maximum(end, place)),
        "rotate_prefix": (none, token, free_count.expand_as(token)),
    }
    low, middle, high = none, none, none
    for name, window in windows.items():
        chosen = move == MOVES.index(name)
        low, middle, high = (
            torch.where(chosen, new, old) for new, old in zip(window, (low, middle, high), strict=True)
        )
    rank = torch.arange(free.shape[1], device=draws.device).expand(*move.shape, -1)
    low, middle, high = low[..., None], middle[..., None], high[..., None]
    rotated = low + (rank - low + middle - low) % (high - low).clamp(min=1)
    order = torch.where((rank >= low) & (rank < high), rotated, rank)
    swap = (move == MOVES.index("swap"))[..., None]
    for here, there in ((token, other), (other, token)):
        order = torch.where(swap & (rank == here[..., None]), there[..., None], order)
    order[:, 0] = rank[:, 0]
    return _at_free_positions(order, free)


def shuffles(draws: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
    """Random orders of the free positions, ``[n, k, L]`` as of :func:`propose`.

    Args:
        draws: uniform on [0, 1), ``[n, k, L]``.
        free: boolean ``[n, L]``.
    """
    rank = torch.arange(free.shape[1], device=free.device).expand_as(draws)
    taken = rank < free.sum(dim=1)[:, None, None]
    return _at_free_positions(draws.masked_fill(~taken, torch.inf).argsort(dim=2, stable=True), free)


def _at_free_positions(order: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
    """Orders of a sentence's free positions, counted among themselves, as orders of all of its positions."""
    places = (~free).long().argsort(dim=1, stable=True)[:, None].expand_as(order)
    return torch.empty_like(order).scatter_(2, places, places.gather(2, order))


def discrete_step(
    inputs: torch.Tensor,
    tokens: torch.Tensor,
    free: torch.Tensor,
    matching: Matching,
    fluency: Fluency | None,
    weight: float,
    candidates: int,
    streams: Streams,
    chunk: int | None = None,
) -> Reordered:
    """Put each sentence into the best of some orders, the present one among them.

    Best is the smallest distance of gradients plus ``weight`` times the mean of the fluency over the batch's sentences.
    The sentences of a batch take turns, since their gradients add up. Equal orders are scored once. A score that is not
    finite is never the best.

    Args:
        inputs: what the search holds, ``[n, B, L, E]``; a whole position moves.
        tokens: the nearest tokens, ``[n, B, L]``; they move along.
        free: positions that may move, boolean ``[n, B, L]``.
        matching: the distance of gradients.
        fluency: how unlikely a sentence's tokens are; None: only gradients count.
        weight: of the fluency.
        candidates: orders of each sentence, ``k``.
        streams: one per trial.
        chunk: candidates that ``matching`` gets at once; by default :func:`candidates_at_once`. The result depends on
            it as far as the last digits of ``matching`` do.
    """
    device, (n, batch) = inputs.device, tokens.shape[:2]
    chunk = chunk or candidates_at_once(matching, inputs)
    moved = []
    for sentence in range(batch):
        draws = streams.uniform(candidates, 3, device=device)
        orders = propose(draws, free[:, sentence])
        trial = torch.arange(n, device=device)[:, None, None].expand(n, candidates, 1)
        distinct, which = torch.unique(torch.cat([trial, orders], dim=2).flatten(0, 1), dim=0, return_inverse=True)
        trials, orders = distinct[:, 0], distinct[:, 1:]
        scores = torch.cat(
            [
                matching(_ordered(inputs, sentence, *rows), rows[0])
                for rows in zip(trials.split(chunk), orders.split(chunk), strict=True)
            ]
        )
        if fluency is not None and weight:
            scores = scores + weight / batch * fluency(tokens[trials, sentence].gather(1, orders)).to(scores)
        scores = _finite(scores)[which].view(n, candidates)
        best, chosen = scores.min(dim=1)
        better = best < scores[:, 0]
        chosen = torch.where(better, chosen, 0)
        row = torch.arange(n, device=device)
        order = orders[which.view(n, candidates)[row, chosen]]
        inputs = _ordered(inputs, sentence, row, order)
        tokens = tokens.clone()
        tokens[:, sentence] = tokens[:, sentence].gather(1, order)
        moved.append(better)
    return Reordered(inputs, tokens, torch.stack(moved, dim=1))


def _ordered(inputs: torch.Tensor, sentence: int, trials: torch.Tensor, orders: torch.Tensor) -> torch.Tensor:
    """The batches of these trials ``[m]``, with one of their sentences in other orders ``[m, L]``."""
    chosen = inputs[trials]
    index = orders[..., None].expand(*orders.shape, inputs.shape[-1])
    chosen[:, sentence] = chosen[:, sentence].gather(1, index)
    return chosen


def candidates_at_once(matching: Matching, inputs: torch.Tensor) -> int:
    """Number of candidates to score at once, from the memory that one more takes; scores three to measure it.

    Args:
        matching: scores them.
        inputs: batches of embedded sentences, ``[n, B, L, E]``, whose first is scored.
    """

    def computation(rows: int) -> object:
        trials = torch.zeros(rows, dtype=torch.int64, device=inputs.device)
        return matching(inputs[trials], trials)

    return rows_at_once(computation, inputs.device)


def start(
    known: torch.Tensor,
    free: torch.Tensor,
    width: int,
    matching: Matching,
    streams: Streams,
    *,
    candidates: int,
    permutations: int,
    norm: float | torch.Tensor | None,
    chunk: int | None = None,
) -> torch.Tensor:
    """Start of a search, ``[n, B, L, E]``: the best of some standard normal embeddings, in the best of some orders.

    Best is the smallest distance of gradients. Orders of a batch's sentences are tried together.

    Args:
        known: what the attacker knows, at the positions that are not free, ``[n, B, L, E]``; of free ones only what
            follows the embedding counts.
        free: boolean ``[n, B, L]``.
        width: numbers of a word embedding, H.
        matching: the distance of gradients.
        streams: one per trial.
        candidates: normal draws; of one alone nothing is scored.
        permutations: random orders of the best draw; it stays as it is where none is better.
        norm: the length to which the embeddings at free positions are brought in the end, one for all or ``[n, 1, 1,
            1]``; None: as drawn.
        chunk: as for :func:`discrete_step`.
    """
    n, batch, length, _ = known.shape
    device = known.device
    trials = torch.arange(n, device=device)
    if candidates > 1 or permutations:
        chunk = chunk or candidates_at_once(matching, known)

    def scored(tried: torch.Tensor) -> torch.Tensor:
        """Scores ``[n, c]`` of candidates ``[n, c, B, L, E]``."""
        assert chunk is not None
        owners = trials[:, None].expand(tried.shape[:2]).flatten()
        parts = zip(tried.flatten(0, 1).split(chunk), owners.split(chunk), strict=True)
        distances = torch.cat([matching(*part) for part in parts])
        return _finite(distances).view(tried.shape[:2])

    best, least = known, torch.full((n,), torch.inf, device=device)
    normal = streams.child("embeddings")
    for first in range(0, candidates, DRAWN):
        drawn = normal.normal(DRAWN, batch, length, width, device=device)[:, : candidates - first]
        tried = known[:, None].repeat(1, drawn.shape[1], 1, 1, 1)
        tried[..., :width] = torch.where(free[:, None, ..., None], drawn.to(known), tried[..., :width])
        if candidates == 1:
            best = tried[:, 0]
        else:
            best, least = _better(tried, scored(tried), best, least)
    uniform = streams.child("permutations")
    if permutations and candidates == 1:
        least = scored(best[:, None])[:, 0]
    unordered = best
    for first in range(0, permutations, DRAWN):
        draws = uniform.uniform(DRAWN, batch, length, device=device)[:, : permutations - first]
        orders = torch.stack([shuffles(draws[:, :, s], free[:, s]) for s in range(batch)], dim=2)
        index = orders[..., None].expand(*orders.shape, known.shape[-1])
        tried = unordered[:, None].expand(-1, draws.shape[1], -1, -1, -1).gather(3, index)
        best, least = _better(tried, scored(tried), best, least)
    if norm is not None:
        embedded = best[..., :width]
        scaled = norm * torch.nn.functional.normalize(embedded, dim=-1)
        best = torch.cat([torch.where(free[..., None], scaled, embedded), best[..., width:]], dim=-1)
    return best


def _finite(scores: torch.Tensor) -> torch.Tensor:
    return torch.where(scores.isfinite(), scores, torch.inf)


def _better(
    tried: torch.Tensor, scores: torch.Tensor, best: torch.Tensor, least: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best of candidates ``[n, c, ...]`` and of the best so far ``[n, ...]``, and its score."""
    value, index = scores.to(least).min(dim=1)
    chosen = tried[torch.arange(len(tried), device=tried.device), index]
    better = value < least
    return torch.where(better[:, None, None, None], chosen, best), torch.where(better, value, least)
