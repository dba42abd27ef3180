"""Streams: named, stable, and the same for a row whatever is beside it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from leakbench.randomness import Streams, generator, named_bytes, stream_seed

KEYS = [("digits", seed, "client", client) for seed in range(2) for client in range(3)]
PINNED = 4157859279056492434


def test_seeds_are_the_same_in_every_process() -> None:
    assert stream_seed("digits16", 0, "client", 3) == PINNED
    program = "from leakbench.randomness import stream_seed; print(stream_seed('digits16', 0, 'client', 3))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == PINNED


def test_draws_are_pinned() -> None:
    streams = Streams([("digits16", 0, "client", 3)])
    assert streams.normal(3)[0].tolist() == pytest.approx([0.8592, 1.3123, -2.8906], abs=1e-4)
    assert streams.child("defense").uniform(2)[0].tolist() == pytest.approx([0.6153, 0.2874], abs=1e-4)


def test_every_part_of_a_key_counts() -> None:
    keys: list[tuple[str | int, ...]] = [
        (),
        ("a",),
        ("b",),
        ("a", "b"),
        ("b", "a"),
        ("ab",),
        ("a", 0),
        ("a", 1),
        (1, "a"),
        ("a", 2**40),
        ("a", 1, 0),
    ]
    seeds = [stream_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_row_does_not_depend_on_the_batch() -> None:
    together = Streams(KEYS)
    normal, uniform = together.normal(4, 5), together.uniform(7)
    assert normal.shape == (6, 4, 5) and uniform.shape == (6, 7) and len(together) == 6
    for index in (5, 2, 0):
        alone = Streams([KEYS[index]])
        assert torch.equal(alone.normal(4, 5)[0], normal[index])
        assert torch.equal(alone.uniform(7)[0], uniform[index])


def test_rows_and_children_differ() -> None:
    streams = Streams(KEYS)
    draws = [streams, streams.child("attack"), streams.child("defense"), streams.child("attack", 1)]
    values = torch.cat([draw.normal(50) for draw in draws])
    off_diagonal = torch.corrcoef(values) - torch.eye(24)
    assert off_diagonal.abs().max() < 0.65  # of 276 pairs of 50 independent draws


def test_a_child_is_fresh_and_leaves_its_parent_alone() -> None:
    streams = Streams(KEYS)
    expected = Streams(KEYS).normal(3)
    first = streams.child("attack").normal(3)
    assert torch.equal(streams.child("attack").normal(3), first)
    assert torch.equal(streams.child("attack").normal(3), Streams([(*key, "attack") for key in KEYS]).normal(3))
    assert torch.equal(streams.normal(3), expected)
    assert not torch.equal(streams.normal(3), expected)  # a stream moves on


def test_copies_draw_the_same() -> None:
    streams = Streams(KEYS)
    streams.normal(2)
    copies = streams.repeat(3).normal(2)
    assert torch.equal(copies, Streams(KEYS).normal(2).repeat(3, 1))


def test_distributions() -> None:
    streams = Streams([("moments",)])
    normal, uniform = streams.normal(40_000), streams.uniform(40_000)
    assert abs(float(normal.mean())) < 0.02 and float(normal.std()) == pytest.approx(1, abs=0.02)
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.01)
    assert uniform.min() >= 0 and uniform.max() < 1 and normal.dtype == uniform.dtype == torch.float32


def test_the_global_generator_is_not_used() -> None:
    before = torch.random.get_rng_state()
    first = generator("a").get_state()
    Streams(KEYS).normal(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(1)
    assert torch.equal(generator("a").get_state(), first)


class TestSuccesses:
    def test_places_are_those_of_independent_trials(self) -> None:
        """Their number is binomial, and each place is as likely as any."""
        trials, probability, rows = 200, 0.03, 3000
        streams = Streams([("successes", index) for index in range(rows)])
        places = streams.successes(trials, probability)
        for row in places:
            assert row.dtype == torch.int64
            assert torch.equal(row, row.unique()) and (row.numel() == 0 or 0 <= row[0] <= row[-1] < trials)
        counts = torch.tensor([len(row) for row in places]).double()
        variance = trials * probability * (1 - probability)
        assert float(counts.mean()) == pytest.approx(trials * probability, abs=4 * (variance / rows) ** 0.5)
        assert float(counts.var()) == pytest.approx(variance, rel=0.12)
        hits = torch.bincount(torch.cat(places), minlength=trials).double()
        chi = ((hits - rows * probability).square() / (rows * probability * (1 - probability))).sum()
        assert abs(float(chi) - trials) < 4 * (2 * trials) ** 0.5
        gaps = torch.cat([row.diff() for row in places if len(row) > 1])
        assert float((gaps == 1).double().mean()) == pytest.approx(probability, abs=0.01)

    @pytest.mark.parametrize("probability", [0.0, 1e-6, 0.2, 0.5, 0.999, 1.0])
    @pytest.mark.parametrize("trials", [0, 1, 10, 100_000])
    def test_every_size(self, trials: int, probability: float) -> None:
        (places,) = Streams([("successes", 0)]).successes(trials, probability)
        error = (trials * probability * (1 - probability)) ** 0.5
        assert abs(len(places) - trials * probability) <= 5 * error + (probability not in (0, 1))
        assert not places.numel() or int(places.max()) < trials

    def test_a_row_depends_on_its_key_alone(self) -> None:
        together = Streams([("a", 1), ("b", 2)]).successes(1000, 0.1)
        assert torch.equal(Streams([("b", 2)]).successes(1000, 0.1)[0], together[1])
        assert not torch.equal(together[0][:20], together[1][:20])


def test_bytes_repeat_and_never_within_a_stream() -> None:
    one, again, other = (named_bytes("bytes", name) for name in (0, 0, 1))
    drawn = [one(32) for _ in range(4)]
    assert [again(32) for _ in range(4)] == drawn and len({*drawn, other(32)}) == 5
    assert [len(one(size)) for size in (0, 1, 400)] == [0, 1, 400]
    assert drawn[0].hex().startswith("685a038a0228810b")


def test_integers_reach_both_ends() -> None:
    streams = Streams([("integers", row) for row in range(2)])
    drawn = streams.integers(-3, 3, 2000)
    assert drawn.dtype == torch.int64 and drawn.unique().tolist() == [-3, -2, -1, 0, 1, 2]
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[1], Streams([("integers", 1)]).integers(-3, 3, 2000)[0])
    wide = streams.integers(-(2**62), 2**62, 4000).double() / 2**62
    assert float(wide.mean()) == pytest.approx(0, abs=0.04) and float(wide.var()) == pytest.approx(1 / 3, abs=0.02)


@pytest.mark.parametrize("scale", [0.6, 1.5, 20.3])
def test_discrete_normal_draws_have_their_law(scale: float) -> None:
    """Pearson's statistic against probabilities by their definition; its standard deviation is the root of 2 n."""
    draws = Streams([("discrete", row) for row in range(4)]).discrete_normal(scale, 50_000)
    assert draws.shape == (4, 50_000) and draws.equal(draws.round())
    reach = int(4 * scale)
    places = torch.arange(-400, 401, dtype=torch.float64)
    law = (-(places**2) / (2 * scale**2)).exp()
    law = (law / law.sum())[400 - reach : 401 + reach]
    counts = torch.stack([(draws == place).sum() for place in range(-reach, reach + 1)]).double()
    expected = law * draws.numel()
    statistic = float(((counts - expected) ** 2 / expected)[expected > 5].sum())
    bins = int((expected > 5).sum())
    assert abs(statistic - bins) < 5 * (2 * bins) ** 0.5


def test_discrete_normal_draws_of_a_large_scale() -> None:
    streams = [Streams([("discrete", row) for row in rows]) for rows in ((0, 1), (1,))]
    draws, alone = (each.discrete_normal(1e5, 100_000) for each in streams)
    assert draws[1:].equal(alone)
    assert float(draws.std()) == pytest.approx(1e5, rel=0.01) and abs(float(draws.mean())) < 5 * 1e5 / 2e5**0.5
    normal = torch.distributions.Normal(0.0, 1e5).cdf(draws.flatten().sort().values.float())
    assert float((normal - torch.linspace(0, 1, 200_000)).abs().max()) < 2 / 2e5**0.5
