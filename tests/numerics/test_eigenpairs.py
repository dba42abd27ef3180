"""Eigenpairs above a floor against whole decompositions."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.numerics.eigenpairs import pairs_above


def matrix(spectrum: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """A symmetric matrix of a spectrum, with random eigenvectors."""
    make = torch.Generator().manual_seed(seed)
    turns = torch.linalg.qr(torch.randn(len(spectrum), len(spectrum), generator=make, dtype=torch.float64)).Q
    found = (turns * spectrum) @ turns.mT
    symmetric: torch.Tensor = (found + found.mT) / 2
    return symmetric


def lifted(values: torch.Tensor, vectors: torch.Tensor, floor: float) -> torch.Tensor:
    """The part of the matrix above the floor, which is all that water-filling takes of it."""
    return (vectors * (values - floor).clamp(min=0)) @ vectors.mT


@settings(max_examples=25, deadline=None)
@given(st.floats(0.0, 2.0), st.integers(0, 59), st.integers(0, 1000))
def test_above_the_floor_it_is_the_whole_decomposition(decay: float, above: int, seed: int) -> None:
    """Power laws and flat spectra, some of whose eigenvalues exceed the floor, and others of which lie close to it."""
    whole = matrix(torch.arange(1, 61, dtype=torch.float64) ** -decay, seed)
    floor = 0.999 * float(torch.linalg.eigvalsh(whole)[-1 - above])
    values, vectors = pairs_above(whole, floor)
    exact, theirs = torch.linalg.eigh(whole)
    torch.testing.assert_close(values, exact[exact > floor])
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(len(values), dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(lifted(values, vectors, floor), lifted(exact, theirs, floor), rtol=0, atol=1e-10)


def test_low_rank_and_none() -> None:
    """Duplicate records; and a floor that nothing exceeds."""
    whole = matrix(torch.cat([torch.tensor([5.0, 4.0, 4.0]), torch.zeros(37)]).double())
    values, vectors = pairs_above(whole, 1.0)
    torch.testing.assert_close(values, torch.tensor([4.0, 4.0, 5.0], dtype=torch.float64))
    torch.testing.assert_close(lifted(values, vectors, 0.0), whole, rtol=0, atol=1e-10)
    values, vectors = pairs_above(whole, 6.0)
    assert values.shape == (0,) and vectors.shape == (40, 0)
