"""Orders of tokens: against one candidate at a time, and what must not move."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.attacks.discrete import (
    DRAWN,
    candidates_at_once,
    discrete_step,
    nearest_tokens,
    propose,
    shuffles,
    start,
)
from leakbench.randomness import Streams, generator

SEEDS = st.integers(0, 2**32 - 1)


def literal_order(number: int, draws: list[float], places: list[int], length: int) -> list[int]:
    """One candidate, by cutting lists of free positions apart and putting them together again."""
    m, found = len(places), list(range(length))

    def pick(draw: float, count: int) -> int:
        return math.floor(draw * count)

    if number and m:
        ranks = list(range(m))
        if number % 4 == 0:
            i, j = pick(draws[0], m), pick(draws[1], m)
            ranks[i], ranks[j] = ranks[j], ranks[i]
        elif number % 4 == 1:
            i, gap = pick(draws[0], m), pick(draws[1], m + 1)
            before, after = (
                [rank for rank in ranks[:gap] if rank != i],
                [rank for rank in ranks[gap:] if rank != i],
            )
            ranks = [*before, i, *after]
        elif number % 4 == 2:
            begin, end = sorted((pick(draws[0], m + 1), pick(draws[1], m + 1)))
            rest = ranks[:begin] + ranks[end:]
            gap = pick(draws[2], len(rest) + 1)
            ranks = rest[:gap] + ranks[begin:end] + rest[gap:]
        else:
            i = pick(draws[0], m)
            ranks = ranks[i:] + ranks[:i]
        for place, rank in zip(places, ranks, strict=True):
            found[place] = places[rank]
    return found


FREE = st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=4)


class TestProposals:
    @settings(max_examples=40)
    @given(SEEDS, FREE)
    def test_against_one_at_a_time(self, seed: int, rows: list[list[bool]]) -> None:
        free = torch.tensor(rows)
        draws = torch.rand(len(rows), 41, 3, generator=generator("proposals", seed))
        orders = propose(draws, free)
        for row, flags in enumerate(rows):
            places = [place for place, flag in enumerate(flags) if flag]
            for number in range(41):
                expected = literal_order(number, draws[row, number].double().tolist(), places, 9)
                assert orders[row, number].tolist() == expected, number

    @given(SEEDS, FREE)
    def test_are_permutations_that_leave_fixed_positions_alone(self, seed: int, rows: list[list[bool]]) -> None:
        free = torch.tensor(rows)
        draw = generator("permutations", seed)
        for orders in (
            propose(torch.rand(len(rows), 20, 3, generator=draw), free),
            shuffles(torch.rand(len(rows), 20, 9, generator=draw), free),
        ):
            identity = torch.arange(9).expand_as(orders)
            assert torch.equal(orders.sort(dim=2).values, identity)
            assert torch.equal(orders == identity, (orders == identity) | ~free[:, None])
            assert (orders == identity)[~free[:, None].expand_as(orders)].all()

    def test_every_move_reaches_what_it_can(self) -> None:
        """Of four tokens: six swaps and none; twelve moves of a token, less three that are swaps; four rotations."""
        free = torch.ones(1, 4, dtype=torch.bool)
        orders = propose(torch.rand(1, 4000, 3, generator=generator("reach")), free)[0]
        reached = [{tuple(order) for order in orders[kind::4].tolist()} for kind in range(4)]
        assert [len(each) for each in reached] == [7, 10, 11, 4]
        assert reached[1] < reached[2] and reached[3] < reached[2]
        assert orders[0].tolist() == [0, 1, 2, 3]

    def test_extreme_draws(self) -> None:
        below_one = 1 - 2**-24
        free = torch.tensor([[False, True, True, True, False]])
        for extreme in (0.0, below_one):
            orders = propose(torch.full((1, 8, 3), extreme), free)
            assert torch.equal(orders.sort(dim=2).values, torch.arange(5).expand(1, 8, 5))

    def test_shuffles_are_uniform(self) -> None:
        free = torch.tensor([[False, True, True, False, True]])
        orders = shuffles(torch.rand(1, 6000, 5, generator=generator("uniform")), free)[0]
        found, counts = orders.unique(dim=0, return_counts=True)
        assert len(found) == 6 and (counts - 1000).abs().max() < 150  # five standard deviations


class TestNearest:
    @settings(max_examples=30)
    @given(SEEDS)
    def test_against_one_at_a_time(self, seed: int) -> None:
        draw = generator("nearest", seed)
        words, embedded = torch.randn(12, 3, generator=draw), torch.randn(2, 3, 4, 3, generator=draw)
        allowed = torch.rand(12, generator=draw) > 0.3
        allowed[seed % 12] = True
        found = nearest_tokens(embedded, words, allowed)
        assert found.shape == (2, 3, 4) and found.dtype == torch.int64
        for value, token in zip(embedded.flatten(0, 2), found.flatten(), strict=True):
            cosines = {v: float(value @ words[v] / (value.norm() * words[v].norm())) for v in range(12) if allowed[v]}
            assert cosines[int(token)] == pytest.approx(max(cosines.values()), abs=1e-6)

    def test_words_themselves_at_any_length(self, monkeypatch: pytest.MonkeyPatch) -> None:
        words = torch.randn(30, 5, generator=generator("words"))
        words[0] = 0  # an untrained embedding of padding
        lengths = torch.tensor([0.1, 3.0])[:, None, None]
        ids = torch.arange(1, 30)
        assert torch.equal(nearest_tokens(lengths * words[ids], words), ids.expand(2, -1))
        monkeypatch.setattr("leakbench.attacks.discrete.NEAREST_BUDGET", 100)  # three at a time
        assert torch.equal(nearest_tokens(lengths * words[ids], words), ids.expand(2, -1))

    def test_a_table_for_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tables = torch.randn(3, 30, 5, generator=generator("tables"))
        embedded = torch.randn(3, 2, 7, 5, generator=generator("embedded"))
        expected = torch.stack([nearest_tokens(*pair) for pair in zip(embedded, tables, strict=True)])
        assert torch.equal(nearest_tokens(embedded, tables), expected)
        monkeypatch.setattr("leakbench.attacks.discrete.NEAREST_BUDGET", 200)
        assert torch.equal(nearest_tokens(embedded, tables), expected)

    def test_an_embedding_of_zeros(self) -> None:
        words = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        assert nearest_tokens(torch.zeros(1, 2), words, torch.tensor([False, True])).tolist() == [1]


def scene(seed: int, n: int = 3, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs ``[n, B, 7, 3]``, tokens, and free positions of sentences of several lengths."""
    draw = generator("scene", seed)
    inputs = torch.randn(n, batch, 7, 3, generator=draw)
    tokens = torch.randint(5, 50, (n, batch, 7), generator=draw)
    ends = torch.randint(2, 7, (n, batch, 1), generator=draw)
    place = torch.arange(7)
    return inputs, tokens, (place > 0) & (place < ends)


def keys(n: int) -> Streams:
    return Streams([("discrete", row) for row in range(n)])


def weigh(inputs: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
    """A distance that depends on the order, on all sentences of the batch, and on the trial; row by row."""
    places = torch.arange(1, 8, dtype=inputs.dtype) ** 1.5
    sums = torch.tanh(inputs * places[:, None]).sum(dim=2).sum(dim=2)
    return (sums + 0.3 * trials[:, None] - 1).square().sum(dim=1)


def unlikely(ids: torch.Tensor) -> torch.Tensor:
    return (ids[:, 1:] - ids[:, :-1]).abs().float().mean(dim=1) / 50


def literal_step(
    inputs: torch.Tensor, tokens: torch.Tensor, free: torch.Tensor, weight: float, candidates: int, streams: Streams
) -> tuple[torch.Tensor, torch.Tensor, list[list[bool]]]:
    """One trial, one sentence and one candidate after the other."""
    inputs, tokens = inputs.clone(), tokens.clone()
    n, batch, length = tokens.shape
    moved = [[False] * batch for _ in range(n)]
    for sentence in range(batch):
        draws = streams.uniform(candidates, 3)
        for trial in range(n):
            places = free[trial, sentence].nonzero().flatten().tolist()
            least, best = math.inf, list(range(length))
            for number in range(candidates):
                order = literal_order(number, draws[trial, number].double().tolist(), places, length)
                tried, ids = inputs[trial].clone(), tokens[trial].clone()
                tried[sentence], ids[sentence] = tried[sentence, order], ids[sentence, order]
                fluency = sum(float(unlikely(each[None])) for each in ids) / batch
                score = float(weigh(tried[None], torch.tensor([trial]))) + weight * fluency
                if score < least - 1e-7:  # sums in another order round in other places
                    least, best = score, order
                    moved[trial][sentence] = number > 0
            inputs[trial, sentence], tokens[trial, sentence] = (
                inputs[trial, sentence, best],
                tokens[trial, sentence, best],
            )
    return inputs, tokens, moved


class TestStep:
    @pytest.mark.parametrize("weight", [0.0, 2.0])
    def test_against_one_at_a_time(self, weight: float) -> None:
        for seed in range(4):
            inputs, tokens, free = scene(seed)
            found = discrete_step(inputs, tokens, free, weigh, unlikely, weight, 24, keys(3), chunk=5)
            expected, ids, moved = literal_step(inputs, tokens, free, weight, 24, keys(3))
            assert torch.equal(found.inputs, expected) and torch.equal(found.tokens, ids)
            assert found.moved.tolist() == moved

    @settings(max_examples=20)
    @given(SEEDS, st.integers(1, 30))
    def test_never_worse_and_fixed_positions_stay(self, seed: int, candidates: int) -> None:
        inputs, tokens, free = scene(seed)
        before = inputs.clone(), tokens.clone()
        found = discrete_step(inputs, tokens, free, weigh, None, 0.0, candidates, keys(3), chunk=64)
        assert torch.equal(inputs, before[0]) and torch.equal(tokens, before[1])
        trials = torch.arange(3)
        ahead, now = weigh(found.inputs, trials), weigh(inputs, trials)
        improved = found.moved.any(dim=1)
        assert (ahead[improved] < now[improved]).all() and torch.equal(ahead[~improved], now[~improved])
        assert torch.equal(found.inputs[~free], inputs[~free]) and torch.equal(found.tokens[~free], tokens[~free])
        assert torch.equal(found.tokens.sort(dim=2).values, tokens.sort(dim=2).values)
        assert torch.equal(found.tokens[~found.moved], tokens[~found.moved])
        for row in (0, 2):  # tokens move with their embeddings
            pairs = {(int(t), *v.tolist()) for t, v in zip(tokens[row, 0], inputs[row, 0], strict=True)}
            assert {
                (int(t), *v.tolist()) for t, v in zip(found.tokens[row, 0], found.inputs[row, 0], strict=True)
            } == pairs

    def test_rows_depend_neither_on_others_nor_on_chunks(self) -> None:
        inputs, tokens, free = scene(7)
        together = discrete_step(inputs, tokens, free, weigh, unlikely, 1.0, 40, keys(3), chunk=1000)
        again = discrete_step(inputs, tokens, free, weigh, unlikely, 1.0, 40, keys(3), chunk=3)
        assert torch.equal(together.inputs, again.inputs) and bool(together.moved.any())
        for row in range(3):

            def weigh_row(tried: torch.Tensor, trials: torch.Tensor, row: int = row) -> torch.Tensor:
                return weigh(tried, trials + row)

            alone = discrete_step(
                inputs[row : row + 1],
                tokens[row : row + 1],
                free[row : row + 1],
                weigh_row,
                unlikely,
                1.0,
                40,
                Streams([("discrete", row)]),
                chunk=7,
            )
            assert torch.equal(alone.inputs[0], together.inputs[row])
            assert torch.equal(alone.tokens[0], together.tokens[row])

    def test_the_language_model_decides_where_gradients_do_not(self) -> None:
        """Rising tokens are likely ones; two are in the wrong order."""
        tokens = torch.tensor([[[101, 20, 10, 30, 40, 102]]])
        inputs = tokens[..., None].double()
        free = torch.tensor([[[False, True, True, True, True, False]]])

        def falls(ids: torch.Tensor) -> torch.Tensor:
            return (ids[:, 2:-1] < ids[:, 1:-2]).sum(dim=1).double()

        def indifferent(inputs: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(trials), dtype=inputs.dtype)

        for weight, expected in ((0.0, [101, 20, 10, 30, 40, 102]), (1.0, [101, 10, 20, 30, 40, 102])):
            found = discrete_step(inputs, tokens, free, indifferent, falls, weight, 200, keys(1))
            assert found.tokens.flatten().tolist() == expected == found.inputs.flatten().tolist()
            assert bool(found.moved) is (weight > 0)

    def test_each_order_is_scored_once(self) -> None:
        inputs, tokens, _ = scene(1, n=2, batch=1)
        seen: list[tuple[int, ...]] = []

        def watching(tried: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
            seen.extend((int(trial), *each.flatten().tolist()) for trial, each in zip(trials, tried, strict=True))
            return weigh(tried, trials)

        free = torch.zeros(2, 1, 7, dtype=torch.bool)
        free[:, :, 2:4] = True
        discrete_step(inputs, tokens, free, watching, None, 0.0, 200, keys(2), chunk=50)
        assert len(seen) == len(set(seen)) == 4  # both orders of two tokens, in both trials

    @pytest.mark.parametrize("lost", [torch.nan, torch.inf, -torch.inf])
    def test_what_is_not_finite_is_never_best(self, lost: float) -> None:
        inputs, tokens, free = scene(3)

        def broken(tried: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
            same = (tried == inputs[trials]).flatten(1).all(dim=1)
            return torch.where(same, weigh(tried, trials), lost)

        found = discrete_step(inputs, tokens, free, broken, None, 0.0, 30, keys(3))
        assert torch.equal(found.inputs, inputs) and not found.moved.any()

    def test_memory_says_how_many_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inputs = torch.zeros(2, 1, 7, 3)

        def hungry(tried: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
            return torch.ones(len(tried), 2**18).sum(dim=1)

        monkeypatch.setattr("leakbench.attacks.engine.CPU_BUDGET", 10 * 2**20)
        assert candidates_at_once(hungry, inputs) == 9  # a MiB each, and the inputs


def start_scene(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, _, free = scene(11, n=n)
    return torch.cat([inputs, torch.ones(n, 2, 7, 1)], dim=3), free


def far(inputs: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
    return weigh(inputs[..., :3], trials)


class TestStart:
    def test_against_one_at_a_time(self) -> None:
        known, free = start_scene(3)
        candidates, permutations = DRAWN + 3, 2 * DRAWN + 1
        found = start(
            known, free, 3, far, keys(3), candidates=candidates, permutations=permutations, norm=None, chunk=4
        )
        blocks = keys(3).child("embeddings"), keys(3).child("permutations")
        normal = torch.cat([blocks[0].normal(DRAWN, 2, 7, 3) for _ in range(2)], dim=1)
        uniform = torch.cat([blocks[1].uniform(DRAWN, 2, 7) for _ in range(3)], dim=1)
        for trial in range(3):
            least, best = math.inf, known[trial]
            for number in range(candidates):
                tried = known[trial].clone()
                tried[free[trial], :3] = normal[trial, number][free[trial]]
                score = float(far(tried[None], torch.tensor([trial])))
                if score < least:
                    least, best = score, tried
            drawn = best
            for number in range(permutations):
                tried = drawn.clone()
                for sentence in range(2):
                    places = free[trial, sentence].nonzero().flatten()
                    order = places[uniform[trial, number, sentence, : len(places)].argsort()]
                    tried[sentence, places] = drawn[sentence, order]
                score = float(far(tried[None], torch.tensor([trial])))
                if score < least:
                    least, best = score, tried
            assert torch.equal(found[trial], best)

    def test_more_is_never_worse(self) -> None:
        known, free = start_scene(3)
        numbers = [(2, 0), (25, 0), (25, 4), (25, 30)]
        found = [
            far(start(known, free, 3, far, keys(3), candidates=c, permutations=p, norm=None), torch.arange(3))
            for c, p in numbers
        ]
        assert all((later <= earlier).all() for earlier, later in pairwise(found))
        assert (found[-1] < found[0]).any()

    def test_lengths_and_what_is_known(self) -> None:
        known, free = start_scene(3)
        plain = start(known, free, 3, far, keys(3), candidates=5, permutations=5, norm=None)
        scaled = start(known, free, 3, far, keys(3), candidates=5, permutations=5, norm=1.4)
        assert torch.equal(scaled[~free], known[~free]) and torch.equal(scaled[..., 3], known[..., 3])
        lengths = scaled[..., :3][free].norm(dim=1)
        torch.testing.assert_close(lengths, torch.full_like(lengths, 1.4))
        torch.testing.assert_close(nearest(scaled[free]), nearest(plain[free]))

    def test_one_draw_is_not_scored(self) -> None:
        known, free = start_scene(4)

        def never(inputs: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
            raise AssertionError

        found = start(known, free, 3, never, keys(4), candidates=1, permutations=0, norm=None)
        drawn = keys(4).child("embeddings").normal(DRAWN, 2, 7, 3)[:, 0]
        assert torch.equal(found[..., :3][free], drawn[free]) and torch.equal(found[~free], known[~free])

    def test_rows_do_not_depend_on_others(self) -> None:
        known, free = start_scene(3)
        together = start(known, free, 3, far, keys(3), candidates=12, permutations=12, norm=1.0)
        alone = start(
            known[1:2],
            free[1:2],
            3,
            lambda inputs, trials: far(inputs, trials + 1),
            Streams([("discrete", 1)]),
            candidates=12,
            permutations=12,
            norm=1.0,
        )
        assert torch.equal(alone[0], together[1])


def nearest(values: torch.Tensor) -> torch.Tensor:
    """Directions."""
    return torch.nn.functional.normalize(values[:, :3], dim=1)
