"""Which images clients hold: disjoint, of equal size, as skewed as asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.errors import ConfigError
from leakbench.federated.partition import dirichlet_partition, iid_partition

BALANCED = torch.arange(2000) % 10


def proportions(rows: torch.Tensor, labels: torch.Tensor = BALANCED) -> torch.Tensor:
    """``[clients, classes]``."""
    return torch.nn.functional.one_hot(labels[rows], 10).float().mean(dim=1)


@settings(deadline=None, max_examples=60)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=80),
    clients=st.integers(1, 6),
    part=st.floats(0.01, 1.0),
    alpha=st.floats(1e-3, 1e4),
    seed=st.integers(0, 2**62),
)
def test_clients_share_nothing_and_hold_equal_numbers(
    labels: list[int], clients: int, part: float, alpha: float, seed: int
) -> None:
    size = max(1, int(part * len(labels) / clients))
    if clients * size > len(labels):
        return
    for rows in (
        iid_partition(len(labels), clients, size, seed),
        dirichlet_partition(torch.tensor(labels), clients, size, alpha, seed),
    ):
        assert rows.shape == (clients, size) and rows.dtype == torch.int64
        assert len(rows.unique()) == clients * size
        assert int(rows.min()) >= 0 and int(rows.max()) < len(labels)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**62))
def test_large_alpha_is_nearly_iid(seed: int) -> None:
    found = proportions(dirichlet_partition(BALANCED, 10, 100, 1e6, seed))
    assert (found - 0.1).abs().max() <= 0.011


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**62))
def test_small_alpha_gives_a_client_few_labels(seed: int) -> None:
    """Of a pool in which no class can run out, so that all follow their proportions."""
    pool = torch.arange(20_000) % 10
    found = proportions(dirichlet_partition(pool, 5, 100, 1e-3, seed), pool)
    assert (found.max(dim=1).values > 0.5).all() and found.max(dim=1).values.mean() > 0.9


def test_skew_falls_with_alpha() -> None:
    skews = [
        float(
            torch.stack([proportions(dirichlet_partition(BALANCED, 10, 100, alpha, seed)) for seed in range(5)])
            .std(dim=1)
            .mean()
        )
        for alpha in (0.1, 1.0, 10.0, 1000.0)
    ]
    assert skews == sorted(skews, reverse=True) and skews[0] > 5 * skews[-1]


def test_a_data_set_that_is_used_up() -> None:
    rows = dirichlet_partition(BALANCED, 20, 100, 0.1, seed=0)
    assert rows.flatten().sort().values.tolist() == list(range(2000))


def test_the_seed_decides() -> None:
    for draw in (
        lambda seed: iid_partition(2000, 4, 50, seed),
        lambda seed: dirichlet_partition(BALANCED, 4, 50, 0.5, seed),
    ):
        assert torch.equal(draw(1), draw(1))
        assert not torch.equal(draw(1), draw(2))


def test_too_few_images() -> None:
    with pytest.raises(ConfigError, match="3 clients of 4 images each need 12 images; there are 11"):
        iid_partition(11, 3, 4, seed=0)
    with pytest.raises(ConfigError, match="there are 2000"):
        dirichlet_partition(BALANCED, 21, 100, 1.0, seed=0)
