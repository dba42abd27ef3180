"""Streaming moments against torch's, and what becomes of pixels that never change."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakbench.data import covariance
from leakbench.data.covariance import Moments, RunningMoments, moments_of
from leakbench.errors import ConfigError


def draw(n: int, d: int, seed: int = 0, offset: float = 0.0) -> torch.Tensor:
    """Correlated rows, float32."""
    make = torch.Generator().manual_seed(seed)
    return (torch.randn(n, d, generator=make) @ torch.randn(d, d, generator=make)) + offset


def streamed(rows: torch.Tensor, sizes: list[int]) -> Moments:
    running = RunningMoments()
    for batch in rows.split(sizes):
        running.update(batch)
    return running.moments()


def same(one: Moments, other: Moments, tolerance: float = 1e-12) -> None:
    scale = float(other.covariance.abs().max())
    assert one.count == other.count
    torch.testing.assert_close(one.mean, other.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(one.covariance, other.covariance, rtol=0, atol=tolerance * scale)


def test_by_hand() -> None:
    found = moments_of(torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, -2.0]]))
    assert found.count == 3 and found.mean.tolist() == [3, 0]
    torch.testing.assert_close(found.covariance, torch.tensor([[4.0, -2.0], [-2.0, 4.0]], dtype=torch.float64))


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_is_torchs_covariance(monkeypatch: pytest.MonkeyPatch, offset: float) -> None:
    """Panels and blocks of every remainder, and a mean that a naive sum of squares would drown in."""
    monkeypatch.setattr(covariance, "ROWS", 16)
    monkeypatch.setattr(covariance, "COLUMNS", 7)
    rows = draw(130, 24, offset=offset)
    found, exact = streamed(rows, [1, 50, 0, 79]), rows.double().T.cov()
    torch.testing.assert_close(found.covariance, exact, rtol=1e-12, atol=1e-12 * float(exact.abs().max()))
    torch.testing.assert_close(found.mean, rows.double().mean(dim=0))
    assert torch.equal(found.covariance, found.covariance.T)
    assert found.covariance.dtype == found.mean.dtype == torch.float64


def test_images_are_flattened_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    images = draw(40, 2 * 3 * 4).view(40, 2, 3, 4).double()
    before = images.clone()
    same(moments_of(images), moments_of(images.flatten(1)))
    assert torch.equal(images, before)


@given(data=st.data(), n=st.integers(2, 40), d=st.integers(1, 9), seed=st.integers(0, 99))
def test_neither_batches_nor_their_order_matter(data: st.DataObject, n: int, d: int, seed: int) -> None:
    rows, whole = draw(n, d, seed, offset=3.0), moments_of(draw(n, d, seed, offset=3.0))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, n], strict=True)]
    same(streamed(rows, sizes), whole)
    order = torch.tensor(data.draw(st.permutations(range(n))))
    same(streamed(rows[order], sizes), whole)


def test_a_constant_pixel_has_no_variance_at_all() -> None:
    """As the borders of Fashion-MNIST: a value that float32 cannot sum without rounding."""
    images = draw(1000, 6)
    images[:, [1, 4]] = 0.1
    found = moments_of(images[torch.randperm(1000, generator=torch.Generator().manual_seed(1))])
    assert not found.covariance[[1, 4]].any() and not found.covariance[:, [1, 4]].any()
    assert found.rank == 4 and found.eigenvalues[4:].tolist() == [0, 0]
    assert found.mean[1] == images[0, 1].double()


@pytest.mark.parametrize(("n", "d"), [(5, 12), (13, 12), (200, 12)])
def test_rank_and_spectrum(n: int, d: int) -> None:
    found = moments_of(draw(n, d))
    values, vectors = found.eigenvalues, found.eigenvectors
    assert found.rank == min(n - 1, d) == int((values > 0).sum())
    assert values.tolist() == sorted(values.tolist(), reverse=True)
    torch.testing.assert_close((vectors * values) @ vectors.T, found.covariance)
    assert math.isclose(float(values.sum()), float(found.covariance.trace()), rel_tol=1e-9)


def test_no_variance_at_all() -> None:
    found = moments_of(torch.full((4, 3), 0.3))
    assert found.rank == 0 and not found.eigenvalues.any()


@pytest.mark.parametrize("rows", [torch.zeros(0, 3), torch.zeros(1, 3)])
def test_too_few_images(rows: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match=f"at least 2 images, and there are {len(rows)}"):
        moments_of(rows)


def test_images_that_do_not_fit() -> None:
    running = RunningMoments()
    running.update(torch.zeros(2, 1, 2, 2))
    with pytest.raises(ConfigError, match="an image has 9 pixels, those before it had 4"):
        running.update(torch.zeros(2, 1, 3, 3))
    for value in (math.nan, math.inf):
        with pytest.raises(ConfigError, match="not finite"):
            moments_of(torch.tensor([[0.0, 1.0], [value, 2.0], [1.0, 1.0]]))
