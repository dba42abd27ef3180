"""The assignment within a batch: against all permutations, and what it must not depend on."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakbench.metrics.assignment import ASSIGNED_METRICS, assign, reorder
from leakbench.metrics.image import IMAGE_METRICS
from leakbench.randomness import generator

SEEDS = st.integers(0, 2**32 - 1)


def batches(seed: int, n: int, batch: int, channels: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Reconstructions, some pixels outside of [0, 1], and victims: alike enough for assignments to compete."""
    draw = generator("assignment", seed)
    truth = torch.rand(n, batch, channels, 4, 4, generator=draw)
    return torch.rand(truth.shape, generator=draw) * 3 - 1, truth


def error(estimate: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Mean squared error of every image, ``[n, B]``."""
    return (estimate.double().clamp(0, 1) - truth.double()).square().flatten(2).mean(dim=2)


@given(SEEDS, st.integers(1, 4), st.integers(1, 9), st.sampled_from([1, 3]))
def test_a_permutation_is_undone_exactly(seed: int, n: int, batch: int, channels: int) -> None:
    _, truth = batches(seed, n, batch, channels)
    draw = generator("permutation", seed)
    shuffled = torch.stack([torch.randperm(batch, generator=draw) for _ in range(n)])
    order = assign(reorder(truth, shuffled), truth)
    assert order.dtype == torch.int64 and torch.equal(order, shuffled.argsort(dim=1))
    assert torch.equal(reorder(reorder(truth, shuffled), order), truth)


@given(SEEDS, st.integers(1, 5))
def test_no_permutation_is_better(seed: int, batch: int) -> None:
    estimate, truth = batches(seed, 3, batch)
    order = assign(estimate, truth)
    found = error(reorder(estimate, order), truth).sum(dim=1)
    for client in range(3):
        best = min(
            float(error(estimate[client, list(permutation)][None], truth[client][None]).sum())
            for permutation in itertools.permutations(range(batch))
        )
        assert float(found[client]) == pytest.approx(best, rel=1e-12)
        assert sorted(order[client].tolist()) == list(range(batch))


@given(SEEDS, st.integers(2, 12))
def test_never_worse_than_in_order(seed: int, batch: int) -> None:
    estimate, truth = batches(seed, 2, batch)
    assigned = error(reorder(estimate, assign(estimate, truth)), truth)
    assert (assigned.mean(dim=1) <= error(estimate, truth).mean(dim=1) + 1e-12).all()


def test_clients_do_not_mix() -> None:
    estimate, truth = batches(0, 6, 8)
    together = assign(estimate, truth)
    assert len({tuple(order) for order in together.tolist()}) == 6
    for client in range(6):
        assert torch.equal(assign(estimate[client : client + 1], truth[client : client + 1])[0], together[client])


def test_equal_reconstructions_stay_in_order() -> None:
    """The mean image for every image, say."""
    estimate, truth = batches(1, 3, 7)
    assert torch.equal(assign(estimate[:, :1].expand_as(truth), truth), torch.arange(7).expand(3, -1))


def test_pixels_are_clamped_first() -> None:
    """Without clamping the bright reconstruction would be nearer to the dark victim."""
    truth = torch.tensor([0.6, 1.0]).view(1, 2, 1, 1, 1).expand(-1, -1, 1, 2, 2)
    estimate = torch.tensor([9.0, 0.7]).view(1, 2, 1, 1, 1).expand(-1, -1, 1, 2, 2)
    assert assign(estimate, truth).tolist() == [[1, 0]]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_lost_reconstruction_gets_the_victim_that_is_left(value: float) -> None:
    _, truth = batches(2, 2, 5)
    estimate = truth[:, [3, 4, 0, 1, 2]].clone()
    estimate[0, 1, 0, 2, 2] = value  # one pixel of the reconstruction of victim 4
    assert assign(estimate, truth).tolist() == [[2, 3, 4, 0, 1]] * 2
    estimate[0] = value
    assert assign(estimate, truth).tolist() == [[0, 1, 2, 3, 4], [2, 3, 4, 0, 1]]


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        assign(torch.zeros(1, 2, 1, 4, 4), torch.zeros(2, 2, 1, 4, 4))


def test_a_large_batch_fits() -> None:
    """Differences of all pairs of images at once would take half a gigabyte."""
    truth = torch.rand(1, 128, 3, 32, 32, generator=generator("large"))
    shuffled = torch.randperm(128, generator=generator("shuffle"))
    assert torch.equal(assign(truth[:, shuffled], truth)[0], shuffled.argsort())


def test_every_image_metric_has_a_twin() -> None:
    assert list(ASSIGNED_METRICS) == [f"assigned_{name}" for name in IMAGE_METRICS]
    for name, info in IMAGE_METRICS.items():
        twin = ASSIGNED_METRICS[f"assigned_{name}"]
        assert twin.unit.startswith(info.unit) and twin.unit.endswith("after assignment within the client's batch")
        assert (twin.direction, twin.axis) == (info.direction, info.axis)
