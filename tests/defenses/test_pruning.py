"""Magnitude pruning, of updates and of tensors, and optimal pruning: what is sent, exactly."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.defenses.tensors import fixed, streams

from leakbench.defenses.base import Schedule
from leakbench.defenses.optimal import OptimalPruning
from leakbench.defenses.pruning import GradDrop, MagnitudePruning, RandomMask
from leakbench.federated.message import SparseMessage
from leakbench.federated.step import ClientSteps
from leakbench.randomness import Streams

Fixed = Callable[[torch.Tensor, torch.Tensor], ClientSteps]
STREAMS = Streams([("pruning", 0), ("pruning", 1)])


def gradients() -> torch.Tensor:
    return torch.tensor([[3.0, -1.0, 0.5, -4.0, 2.0], [0.1, 0.2, -0.3, 0.4, -0.5]])


def test_magnitude_keeps_the_largest(fixed_steps: Fixed) -> None:
    steps = fixed_steps(gradients(), gradients().square())
    sent = MagnitudePruning(fraction=0.5).protect_update(steps, STREAMS).view()  # floor(2.5) are pruned
    assert torch.equal(sent, torch.tensor([[3.0, 0.0, 0.0, -4.0, 2.0], [0.0, 0.0, -0.3, 0.4, -0.5]]))


def test_optimal_prunes_the_largest_sensitivity_per_magnitude(fixed_steps: Fixed) -> None:
    gradient = torch.tensor([[1.0, -2.0, 0.5, 2**0.5, -0.1]])
    steps = fixed_steps(gradient, torch.tensor([[4.0, 1.0, 9.0, 2.0, 0.5]]))
    corrected = OptimalPruning(fraction=0.6).protect_update(steps, STREAMS).view()
    assert corrected.ne(0).tolist() == [[False, True, False, True, False]]
    as_printed = OptimalPruning(fraction=0.4, form="as_printed").protect_update(steps, STREAMS).view()
    assert as_printed.ne(0).tolist() == [[True, False, True, False, True]]
    released = OptimalPruning(fraction=0.6, form="as_released").protect_update(steps, STREAMS).view()
    assert torch.equal(released, corrected)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.5, 0.875, 1.0])
@pytest.mark.parametrize("defense", [MagnitudePruning, OptimalPruning])
def test_the_count_is_exact_under_ties(
    fixed_steps: Fixed, defense: type[MagnitudePruning | OptimalPruning], fraction: float
) -> None:
    gradient = torch.ones(2, 40)
    gradient[1, ::2] = -1
    message = defense(fraction=fraction).protect_update(fixed_steps(gradient, gradient.square()), STREAMS)
    assert isinstance(message, SparseMessage)
    assert message.kept.sum(dim=1).tolist() == [40 - int(fraction * 40)] * 2
    assert torch.equal(message.view().ne(0), message.kept)


@pytest.mark.parametrize("defense", [MagnitudePruning, OptimalPruning])
def test_fraction_0_sends_everything_and_fraction_1_nothing(
    fixed_steps: Fixed, defense: type[MagnitudePruning | OptimalPruning]
) -> None:
    steps = fixed_steps(gradients(), gradients().square())
    everything = defense(fraction=0).protect_update(steps, STREAMS)
    assert torch.equal(everything.view(), gradients()) and everything.bits == 5 * 32 + 5
    nothing = defense(fraction=1).protect_update(steps, STREAMS)
    assert nothing.view().eq(0).all() and nothing.bits == 0


def test_magnitude_pruning_does_not_ask_for_sensitivities(fixed_steps: Fixed, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = fixed_steps(gradients(), gradients())
    monkeypatch.setattr(type(steps), "sensitivity", None)
    MagnitudePruning(fraction=0.5).protect_update(steps, STREAMS)


def test_as_released_prunes_all_ties_and_everything_at_fraction_0(fixed_steps: Fixed) -> None:
    gradient = torch.ones(1, 6)
    steps = fixed_steps(gradient, torch.tensor([[9.0, 1.0, 4.0, 4.0, 4.0, 0.0]]))
    sent = OptimalPruning(fraction=2 / 6, form="as_released").protect_update(steps, STREAMS).view()
    assert sent.tolist() == [[0, 1, 0, 0, 0, 1]]
    assert OptimalPruning(fraction=0, form="as_released").protect_update(steps, STREAMS).view().eq(0).all()


class TestGradDrop:
    SIZES: ClassVar[list[int]] = [5, 4, 1]

    def test_every_tensor_has_a_threshold_of_its_own(self) -> None:
        gradient = torch.tensor([[3.0, -1.0, 0.5, -4.0, 2.0, 0.1, 0.3, -0.2, 0.4, 9.0]])
        message = GradDrop(fraction=0.5).protect_update(fixed(gradient, self.SIZES), streams(0))
        assert message.view().tolist() == [pytest.approx([3, 0, 0, -4, 2, 0, 0.3, 0, 0.4, 9])]
        assert message.bits == 6 * 32 + 10  # a bitmap; six indices of four bits are longer
        assert message.marked is not None and torch.equal(message.marked, message.view() == 0)

    def test_as_released_keeps_one_less(self) -> None:
        """What exceeds the k-th largest: 3 of 5, 2 of 4 and 1 of 1 are 2, 1 and 0."""
        gradient = torch.tensor([[3.0, -1.0, 0.5, -4.0, 2.0, 0.1, 0.3, -0.2, 0.4, 9.0]])
        sent = GradDrop(fraction=0.5, form="as_released").protect_update(fixed(gradient, self.SIZES), streams(0)).view()
        assert sent.tolist() == [pytest.approx([3, 0, 0, -4, 0, 0, 0, 0, 0.4, 0])]

    @given(st.floats(0, 1), st.integers(0, 1000), st.sampled_from([3, 1000]))
    def test_number_of_kept_entries(self, fraction: float, seed: int, values: int) -> None:
        """Under ties too; as_released keeps what a sorted list says."""
        draw = torch.Generator().manual_seed(seed)
        gradient = torch.randint(-values, values + 1, (2, 10), generator=draw).float()
        steps = fixed(gradient, self.SIZES)
        exact = GradDrop(fraction=fraction).protect_update(steps, streams(0, 1))
        released = GradDrop(fraction=fraction, form="as_released").protect_update(steps, streams(0, 1))
        assert isinstance(exact, SparseMessage) and isinstance(released, SparseMessage)
        for row in range(2):
            first = 0
            for size in self.SIZES:
                part = slice(first, first + size)
                k = size - int(fraction * size)
                magnitudes = gradient[row, part].abs()
                assert int(exact.kept[row, part].sum()) == k
                largest = magnitudes.sort(descending=True).values
                above = magnitudes > largest[k - 1] if k else torch.zeros(size, dtype=torch.bool)
                assert torch.equal(released.kept[row, part], above)
                assert int(released.kept[row, part].sum()) <= max(k - 1, 0)
                kept = magnitudes[exact.kept[row, part]]
                assert not k or torch.equal(kept.sort(descending=True).values, largest[:k])
                first += size

    def test_fraction_0_and_1(self) -> None:
        gradient = torch.tensor([[3.0, -1.0, 0.5, -4.0, 2.0, 0.1, 0.3, -0.2, 0.4, 9.0]])
        steps = fixed(gradient, self.SIZES)
        assert torch.equal(GradDrop(fraction=0).protect_update(steps, streams(0)).view(), gradient)
        nothing = GradDrop(fraction=1).protect_update(steps, streams(0))
        assert nothing.bits == 0 and not bool(nothing.view().any())

    @pytest.mark.parametrize("fraction", [-0.1, 1.1])
    def test_parameters_outside_their_ranges(self, fraction: float) -> None:
        with pytest.raises(ValidationError):
            GradDrop(fraction=fraction)

    def test_no_guarantee(self) -> None:
        statement = GradDrop(fraction=0.5).privacy(Schedule(10))
        assert statement.epsilon is None and "no guarantee" in statement.basis


class TestRandomMask:
    def test_a_part_is_dropped_and_the_rest_is_as_it_was(self, fixed_steps: Fixed) -> None:
        gradient = torch.randn(2, 50_000, generator=torch.Generator().manual_seed(0))
        message = RandomMask(probability=0.2).protect_update(fixed_steps(gradient, gradient), STREAMS)
        assert isinstance(message, SparseMessage)
        for row in range(2):
            kept = message.kept[row]
            assert float(kept.float().mean()) == pytest.approx(0.8, abs=5 * (0.16 / 50_000) ** 0.5)
            assert torch.equal(message.view()[row][kept], gradient[row][kept])  # not scaled up
            assert not bool(message.view()[row][~kept].any())
            # Whatever the size: as many of the large ones.
            large = gradient[row].abs() > 1
            assert float(kept[large].float().mean()) == pytest.approx(0.8, abs=0.02)
        assert not torch.equal(message.kept[0], message.kept[1])
        assert torch.equal(message.marked, ~message.kept)
        counts = message.kept.sum(dim=1)
        assert message.bits == 32 * int(counts.max()) + 50_000

    def test_equal_streams_drop_more_and_more(self, fixed_steps: Fixed) -> None:
        gradient = torch.ones(2, 1000)
        kept = [
            RandomMask(probability=probability).protect_update(fixed_steps(gradient, gradient), streams(0, 1)).view()
            != 0
            for probability in (0.0, 0.3, 0.6, 1.0)
        ]
        assert bool(kept[0].all()) and not bool(kept[-1].any())
        assert all(bool((more | ~less).all()) for more, less in pairwise(kept))

    def test_no_guarantee(self) -> None:
        statement = RandomMask(probability=0.5).privacy(Schedule(10))
        assert statement.epsilon is None and "no guarantee" in statement.basis
