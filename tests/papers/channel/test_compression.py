"""Compression as noise: printed numbers, capacities before and after, and any set of coordinates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.vectors import close, normal, row

from leakbench.errors import ConfigError
from leakbench.papers.channel.theory.compression import (
    coordinate_capacity,
    coordinate_loss,
    direction_loss,
    equivalent_variance,
    kept_covariance,
    without_directions,
)
from leakbench.theory.capacity import capacity, spectrum

EXACT = 1e-8
THREE = torch.tensor([[4, 1.2, 0.5], [1.2, 2, 0.3], [0.5, 0.3, 1]], dtype=torch.float64)
LAST = torch.tensor([False, False, True])


def test_last_coordinate() -> None:
    assert close(capacity(spectrum(THREE), 0.5), 2.36085400, rel=EXACT)
    assert close(coordinate_capacity(THREE, 0.5, LAST), 1.83484832, rel=EXACT)
    assert close(coordinate_loss(THREE, 0.5, LAST), 0.52600568, rel=EXACT)


def test_printed_eigenvalues() -> None:
    """Of CIFAR-10 and SVHN, the largest, the second and the eleventh, under unit noise."""
    cifar = direction_loss(row(222.21, 85.08, 9.91), 1.0)
    svhn = direction_loss(row(313.0, 28.04, 4.67), 1.0)
    assert close(cifar, 2.7041, 2.2276, 1.1948, rel=5e-5) and close(svhn, 2.8747, 1.6843, 0.8676, rel=5e-5)


def test_directions() -> None:
    eigenvalues, dropped = row(4, 3, 1), torch.tensor([True, False, False])
    kept = without_directions(eigenvalues, dropped)
    assert kept.tolist() == [0, 3, 1]
    lost = capacity(eigenvalues, 0.7) - capacity(kept, 0.7)
    assert close(lost, float(direction_loss(row(4), 0.7)), rel=1e-12)
    basis = torch.linalg.qr(normal(0, 3, 3)).Q  # the direction removed from samples, literally
    covariance = basis @ torch.diag(eigenvalues) @ basis.mT
    project = torch.eye(3, dtype=torch.float64) - torch.outer(basis[:, 0], basis[:, 0])
    assert close(capacity(spectrum(project @ covariance @ project), 0.7), float(capacity(kept, 0.7)), rel=1e-12)


masks = st.lists(st.booleans(), min_size=2, max_size=7).filter(lambda values: any(values) and not all(values))


@given(masks, st.integers(0, 200), st.floats(1e-3, 1e3))
def test_dropping_coordinates(mask: list[bool], seed: int, sigma: float) -> None:
    size, dropped = len(mask), torch.tensor(mask)
    root = normal(2 * seed, 5, size, size) * normal(2 * seed + 1, 5, size, 1).exp()
    covariance = root @ root.mT
    full, kept = capacity(spectrum(covariance), sigma), coordinate_capacity(covariance, sigma, dropped)
    lost = coordinate_loss(covariance, sigma, dropped)
    torch.testing.assert_close(lost, full - kept, rtol=1e-6, atol=1e-8)
    assert (lost > 0).all()
    equal = equivalent_variance(spectrum(covariance), kept)
    assert (equal > sigma).all()
    torch.testing.assert_close(capacity(spectrum(covariance), equal), kept, rtol=1e-9, atol=1e-10)


@given(st.floats(1e-3, 1e3), st.floats(1.01, 10), st.floats(1e-3, 1e3))
def test_larger_eigenvalues_carry_more(eigenvalue: float, more: float, sigma: float) -> None:
    smaller, larger = direction_loss(eigenvalue * row(1, more), sigma)
    assert 0 < smaller < larger


def test_kept_coordinates() -> None:
    kept = kept_covariance(torch.stack([THREE, 2 * THREE]), torch.tensor([False, True, False]))
    assert kept.tolist() == [[[4, 0.5], [0.5, 1]], [[8, 1], [1, 2]]]
    assert coordinate_loss(THREE, 0.5, torch.zeros(3, dtype=torch.bool)) == 0
    sigmas = row(0.1, 0.5, 2)
    table = coordinate_loss(THREE, sigmas, LAST)
    assert table.shape == (3,) and close(table[1], 0.52600568, rel=EXACT)


def test_errors() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        coordinate_loss(THREE, 0.5, torch.ones(3, dtype=torch.bool))
    with pytest.raises(ConfigError, match="variance"):
        coordinate_loss(THREE, 0.0, LAST)
    with pytest.raises(ConfigError, match="the capacity"):
        equivalent_variance(row(1, 2), 0.0)
