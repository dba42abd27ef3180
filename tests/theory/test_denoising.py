"""The posterior mean: by hand, by what is left of the error, and where covariances are singular."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakbench.theory.denoising import WhitePrior, posterior_mean
from leakbench.theory.reconstruction_bound import gaussian_error


def covariance(d: int, seed: int, rank: int | None = None) -> torch.Tensor:
    root = torch.randn(d, rank or d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return root @ root.T


def test_by_hand() -> None:
    """Signal variances 4 and 1, noise 1 and 3: four fifths and a quarter of the way from the mean."""
    found = posterior_mean(
        torch.tensor([[6.0, 5.0]]),
        torch.tensor([1.0, 1.0]).double(),
        torch.tensor([[4.0, 0.0], [0.0, 1.0]]).double(),
        torch.tensor([1.0, 3.0]),
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([[5.0, 2.0]]))


@given(d=st.integers(1, 6), seed=st.integers(0, 99))
def test_is_the_literal_formula(d: int, seed: int) -> None:
    sigma, noise = covariance(d, seed), covariance(d, seed + 1) + 0.1 * torch.eye(d, dtype=torch.float64)
    make = torch.Generator().manual_seed(seed)
    mean, images = torch.randn(d, generator=make).double(), torch.randn(3, 2, d, generator=make).double()
    found = posterior_mean(images, mean, sigma, noise)
    for row in range(3):
        for column in range(2):
            literal = mean + sigma @ torch.linalg.inv(sigma + noise) @ (images[row, column] - mean)
            torch.testing.assert_close(found[row, column], literal, rtol=1e-6, atol=1e-8)


def test_leaves_the_least_error() -> None:
    """tr[Sigma - Sigma (Sigma + N)^-1 Sigma], which no other gain gets below."""
    d, n = 4, 40_000
    sigma, noise = covariance(d, 3), covariance(d, 4)
    make = torch.Generator().manual_seed(0)

    def normal(cov: torch.Tensor) -> torch.Tensor:
        root: torch.Tensor = torch.linalg.cholesky(cov)
        return torch.randn(n, d, dtype=torch.float64, generator=make) @ root.mT

    mean = torch.arange(4.0).double()
    clean = mean + normal(sigma)
    noisy = clean + normal(noise)
    left = (posterior_mean(noisy, mean, sigma, noise) - clean).square().sum(dim=1).mean()
    expected = (sigma - sigma @ torch.linalg.inv(sigma + noise) @ sigma).trace()
    assert float(left) == pytest.approx(float(expected), rel=0.03)
    assert float(left) < 0.9 * float((noisy - clean).square().sum(dim=1).mean())
    wrong = posterior_mean(noisy, mean, sigma, noise.diagonal())
    assert float(left) < float((wrong - clean).square().sum(dim=1).mean())


def test_leaves_the_least_error_of_images_that_are_not_normal() -> None:
    """The floor is one of linear estimates, for any distribution: here mixed exponentials under mixed uniform noise."""
    d, n = 5, 100_000
    make = torch.Generator().manual_seed(1)
    root, other = (torch.randn(d, d, dtype=torch.float64, generator=make) for _ in range(2))
    parts = torch.empty(n, d, dtype=torch.float64).exponential_(generator=make) - 1  # variance 1
    clean = parts @ root.mT
    noisy = clean + (torch.rand(n, d, dtype=torch.float64, generator=make) - 0.5) * 12**0.5 @ other.mT
    sigma, noise = root @ root.mT, other @ other.mT
    left = (posterior_mean(noisy, torch.zeros(d).double(), sigma, noise) - clean).square().mean()
    floor = float(gaussian_error(sigma, noise))
    assert float(left) == pytest.approx(floor, rel=0.02)
    fitted = torch.linalg.lstsq(noisy, clean).solution  # the best linear estimate of this very sample
    assert float((noisy @ fitted - clean).square().mean()) == pytest.approx(floor, rel=0.02)


def test_directions_without_any_variance_keep_the_mean() -> None:
    """Constant pixels under white noise: signal and noise have the same null space."""
    sigma = torch.zeros(3, 3, dtype=torch.float64)
    sigma[:2, :2] = covariance(2, 0)
    mean = torch.tensor([1.0, 2.0, 3.0]).double()
    found = posterior_mean(torch.tensor([[2.0, 0.0, 9.0]]).double(), mean, sigma, 0.5 * sigma)
    torch.testing.assert_close(found, torch.tensor([[1 + 1 / 1.5, 2 - 2 / 1.5, 3.0]]).double())
    torch.testing.assert_close(posterior_mean(mean[None] + 1, mean, 0 * sigma, torch.ones(3)), mean[None])


@given(d=st.integers(1, 6), seed=st.integers(0, 99), variance=st.floats(0.01, 10), diagonal=st.booleans())
def test_a_white_prior_is_the_same_with_a_multiple_of_the_identity(
    d: int, seed: int, variance: float, diagonal: bool
) -> None:
    """Every image has a mean of its own; the noise may lack directions."""
    make = torch.Generator().manual_seed(seed)
    noise = torch.rand(d, generator=make).double() if diagonal else covariance(d, seed, rank=max(1, d - 1))
    images, means = torch.randn(2, 3, d, generator=make).double()
    found = WhitePrior.of(noise).posterior_mean(images, means, variance)
    for image, mean, one in zip(images, means, found, strict=True):
        literal = posterior_mean(image[None], mean, variance * torch.eye(d).double(), noise)
        torch.testing.assert_close(one, literal[0], rtol=1e-6, atol=1e-9)
