"""Total variation of the mechanisms: printed numbers, literal integrals, sampling, inequalities."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.theory.vectors import close, normal, row

from leakbench.errors import ConfigError
from leakbench.theory.distortion import (
    binned,
    compression_tv,
    equal_noise_tv,
    exact_sharing_tv,
    noise_reach,
    noise_steepness,
    noise_tv,
    noise_tv_lower,
    noise_tv_upper,
    paillier_tv,
    product_tv,
    rescaled_compression_tv,
    sharing_tv,
)

EQUAL = {(1, 1): 0.1660640750, (1, 2): 0.25, (0.1, 10): 0.0834611642, (0.001, 10**5): 0.0889762634}
"""(s, m) -> exact total variation of noise, coordinates alike."""


@pytest.mark.parametrize(("ratio", "size"), EQUAL)
def test_noise_on_equal_coordinates(ratio: float, size: int) -> None:
    assert close(equal_noise_tv(ratio, size), EQUAL[ratio, size], rel=1e-5)
    assert close(noise_tv(4 * ratio, torch.full((size,), 2.0)), float(equal_noise_tv(ratio, size)), rel=1e-11)


@settings(max_examples=60, deadline=None)
@given(st.floats(-5, 4), st.integers(1, 3000))
def test_two_ways_to_the_exact_value(exponent: float, size: int) -> None:
    ratio = 10.0**exponent
    found, steepness = noise_tv(ratio, torch.ones(size, dtype=torch.float64)), math.sqrt(size)
    assert float(found) == pytest.approx(float(equal_noise_tv(ratio, size)), rel=1e-9)
    assert noise_tv_lower(ratio, steepness) <= found <= noise_tv_upper(ratio, steepness)


def test_noise_on_two_unequal_coordinates() -> None:
    """Half the integral of the densities' absolute difference, on a grid."""
    sigma, variance = (0.5, 2.0), 0.7
    axes = [np.linspace(-14 * s, 14 * s, 3001) for s in (0.9, 2.2)]

    def density(extra: float) -> np.ndarray:
        each = [
            np.exp(-(x**2) / (2 * (s * s + extra))) / math.sqrt(2 * math.pi * (s * s + extra))
            for x, s in zip(axes, sigma, strict=True)
        ]
        return np.multiply.outer(*each)

    cell = float(np.diff(axes[0])[0] * np.diff(axes[1])[0])
    expected = 0.5 * float(np.abs(density(0) - density(variance)).sum()) * cell
    assert float(noise_tv(variance, row(*sigma))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("size", "variance"), [(3, 0.3), (40, 0.02), (20_000, 3e-6)])
def test_noise_by_sampling(size: int, variance: float) -> None:
    """The mean of (1 - e^-L)_+ under the unprotected law, and of its complement under the protected one."""
    sigma = (normal(0, size) * 0.8 - 2).exp()
    draws = 200_000 if size < 100 else 600
    found = float(noise_tv(variance, sigma))
    pull, gain = variance / (sigma.square() + variance), (variance / sigma.square()).log1p().sum() / 2
    generator, parts = torch.Generator().manual_seed(1), []
    for _ in range(10):
        scores = torch.randn(draws // 10, size, generator=generator, dtype=torch.float64)
        ratio = gain - (scores.square() @ pull) / 2
        parts.append(-(-ratio.clamp(min=0)).expm1())
    sampled = torch.cat(parts)
    error = float(sampled.std()) / math.sqrt(draws)
    assert abs(float(sampled.mean()) - found) < 4 * error and error < 0.08 * found


def test_noise_settings_side_by_side() -> None:
    sigma = torch.stack([normal(2, 30).exp(), normal(3, 30).exp()])
    variances = row(0.001, 0.1, 10.0)
    both = noise_tv(variances.unsqueeze(-1), sigma)
    assert both.shape == (3, 2)
    for place, variance in enumerate(variances.tolist()):
        for client in range(2):
            assert float(both[place, client]) == pytest.approx(float(noise_tv(variance, sigma[client])), rel=1e-12)
    assert bool((both.diff(dim=0) > 0).all())
    assert float(noise_tv(0.0, sigma[0])) == 0.0 and float(noise_tv(1e9, sigma[0])) == pytest.approx(1)
    repeated = noise_tv(0.1, sigma[0].repeat_interleave(3))
    assert float(repeated) == pytest.approx(float(noise_tv(0.1, sigma[0].repeat_interleave(3).unsqueeze(0))), rel=1e-12)


def test_noise_on_a_grid_of_deviations() -> None:
    """Clients with coordinates in common are counted, and others moved by less than the grid is wide."""
    sigma = torch.stack([normal(2, 300).exp(), normal(3, 300).exp()])
    grid, counts = binned(sigma)
    assert counts.shape == (2, len(grid)) and counts.sum(dim=1).tolist() == [300.0, 300.0]
    assert close(noise_tv(0.01, grid, counts), *noise_tv(0.01, sigma).tolist(), rel=1e-3)
    assert noise_tv(row(0.1, 0.2, 0.3).unsqueeze(-1), grid, counts).shape == (3, 2)
    grid, counts = binned(torch.tensor([[0.1, 0.1, 0.2], [0.2, 0.2, 0.2]]))
    assert counts.tolist() == [[2, 1], [0, 3]] and close(grid, 0.1, 0.2, rel=5e-4)


def test_steepness() -> None:
    sigma = torch.tensor([0.1] * 50 + [0.2] * 50, dtype=torch.float64)
    assert close(noise_steepness(sigma), 728.86898686, rel=1e-10)
    assert close(noise_steepness(torch.stack([sigma, 2 * sigma])), 728.86898686, 728.86898686 / 4, rel=1e-10)
    assert close(noise_steepness(row(1e-100, 1.0)), 1e200)
    assert close(noise_reach(row(0, 0.5, 3), 1.0), 0, 0.5, 1)
    assert close(noise_tv_lower(3, 1.0), 0.01) and close(noise_tv_upper(3, 1.0), 1.5)


@settings(deadline=None)
@given(st.fractions(1, 50), st.integers(1, 60))
def test_wider_cubes_exactly(ratio: Fraction, size: int) -> None:
    """1 - ratio^m in whole fractions, by masks and by moduli."""
    expected = float(1 - 1 / ratio**size)
    width = float(ratio)
    assert float(sharing_tv(0.3 * width, 0.3, size)) == pytest.approx(expected, rel=1e-9, abs=1e-13)
    assert float(sharing_tv(0.4 * width, 0.3, size, below=0.2 * width)) == pytest.approx(expected, rel=1e-9, abs=1e-13)
    log_modulus = (math.log(0.6) + math.log(width)) / 2
    assert float(paillier_tv(log_modulus, 0.3, size)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_many_coordinates_do_not_underflow() -> None:
    assert close(product_tv(math.log1p(-1e-9), 10**6), -math.expm1(10**6 * math.log1p(-1e-9)), rel=1e-12)
    assert float(paillier_tv(math.log(2**2048 - 1), 0.5, 10**6)) == 1.0
    assert close(sharing_tv(1.00002302611603, 1.0, 10**5), 0.9, rel=1e-8)


def test_shares_are_trapezoidal() -> None:
    """A value and a mask, added: the part of the law outside of the cube, by sampling; the model has (r - d) / r."""
    drawn = torch.rand(2, 400_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2 - 1
    for ratio in (0.3, 1.0, 1.5, 2.0, 3.0):
        share = drawn[0] + ratio * drawn[1]
        outside = float((share.abs() > 1).double().mean())
        assert float(exact_sharing_tv(0.2 * ratio, 0.2, 1)) == pytest.approx(outside, abs=0.004)
    assert close(exact_sharing_tv(1.5, 1.0, 1), 0.375) and close(sharing_tv(1.5, 1.0, 1), 1 / 3)
    assert close(exact_sharing_tv(row(2.0, 5.0), 1.0, 7), *sharing_tv(row(2.0, 5.0), 1.0, 7).tolist(), rel=1e-12)
    assert close(exact_sharing_tv(0.4, 1.0, 3), 1 - 0.9**3)


def test_compression() -> None:
    assert close(compression_tv(row(0, 0.5, 1), 1), 1, 0.5, 0) and close(compression_tv(0.9, 1), 0.1)
    assert close(compression_tv(0.9, 1, clients=2), 0.19)
    assert close(rescaled_compression_tv(0.5, 0.1, 1), 0.75) and close(rescaled_compression_tv(0.9, 0.1, 1, 1.0), 0.595)
    assert close(rescaled_compression_tv(0.9, 0.1, 4), 1 - 0.9**8)
    assert close(rescaled_compression_tv(0.5, 0.1, 1, 10.0), 1) and close(rescaled_compression_tv(1.0, 0.1, 9, 5.0), 0)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 1), st.floats(-2, 2), st.integers(1, 3))
def test_rescaled_compression_by_integration(kept: float, centre: float, size: int) -> None:
    """One minus the part of the protected law that lies in the cube, coordinate by coordinate, on a grid."""
    grid = np.linspace(centre - 0.5, centre + 0.5, 200_001)
    inside = float((np.abs(grid * kept - centre) <= 0.5).mean()) * kept * kept
    found = float(rescaled_compression_tv(kept, 0.5, size, centre))
    assert found == pytest.approx(1 - inside**size, abs=1e-4)


def test_mean_of_two_sparse_uploads_by_sampling() -> None:
    """Far from zero, and with masks of their own, the mean is untouched with probability rho^(K m)."""
    generator = torch.Generator().manual_seed(4)
    kept = torch.rand(200_000, 2, generator=generator) < 0.9
    assert float((~kept.all(dim=1)).double().mean()) == pytest.approx(float(compression_tv(0.9, 1, 2)), abs=0.004)


def test_errors() -> None:
    for sigma in (row(0.0, 1.0), row(-1.0), row(math.inf)):
        with pytest.raises(ConfigError, match="standard deviation of every coordinate"):
            noise_steepness(sigma)
        with pytest.raises(ConfigError, match="standard deviation of every coordinate"):
            noise_tv(0.1, sigma)
    with pytest.raises(ConfigError, match="variance of noise must not be negative"):
        noise_tv(-0.1, row(1.0))
    with pytest.raises(ConfigError, match="coordinates must be 1 at least, found 0"):
        compression_tv(0.5, 0)
    with pytest.raises(ConfigError, match="delta must be positive"):
        sharing_tv(1.0, 0.0, 3)
    with pytest.raises(ConfigError, match=r"wider one, found a ratio of 1\.25"):
        sharing_tv(0.8, 1.0, 3)
    with pytest.raises(ConfigError, match="wider one"):
        paillier_tv(0.0, 1.0, 3)
    with pytest.raises(ConfigError, match=r"lie in \[0, 1\], found 1\.1"):
        compression_tv(1.1, 3)
    with pytest.raises(ConfigError, match="probability to keep must be positive"):
        rescaled_compression_tv(0.0, 1.0, 3)
    with pytest.raises(ConfigError, match="number of clients"):
        compression_tv(0.5, 3, 0)
