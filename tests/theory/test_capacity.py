"""Capacity, the noise that limits it, and the White Channel: printed numbers, literal references, and all spectra."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.vectors import close, normal, row

from leakbench.errors import ConfigError
from leakbench.papers.channel.theory.toy_channel import gradient_variance, next_weight, toy_capacity, toy_variance
from leakbench.theory.capacity import (
    accumulated_capacity,
    batch_capacity,
    capacity,
    clipped_spectrum,
    directional_information,
    gaussian_capacity,
    natural_variance,
    pairwise_capacity,
    spectrum,
    total_information,
    visits_per_sample,
    white_factor,
    white_variances,
)
from leakbench.theory.reconstruction_bound import diagonal_error, error_bound, gaussian_log_entropy_power

E2 = math.e**2 - 1
EXACT = 1e-8
CIFAR = 222.21 * torch.arange(1, 3073, dtype=torch.float64) ** -1.3
"""A spectrum like CIFAR-10's on [-1, 1]."""


def loop_capacity(eigenvalues: list[float], variance: float) -> float:
    return sum(math.log((one + variance) / variance) for one in eigenvalues) / 2


def loop_root(eigenvalues: list[float], kappa: float) -> float:
    """Bisection in ln sigma over the whole range of images, as slowly as it is said."""
    low, high = -60.0, 60.0
    while high - low > 1e-13:
        middle = (low + high) / 2
        carries = sum(math.log1p(one * math.exp(-middle)) for one in eigenvalues) / 2
        low, high = (middle, high) if carries > kappa else (low, middle)
    return math.exp((low + high) / 2)


class TestTwoDirections:
    eigenvalues = row(4, 1)

    def test_natural(self) -> None:
        sigma = natural_variance(self.eigenvalues, 1.0)
        assert close(sigma, (5 + math.sqrt(25 + 16 * E2)) / (2 * E2), rel=1e-12)
        assert close(sigma, 1.27400677194, rel=EXACT) and close(2 * sigma, 2.54801354, rel=EXACT)
        assert close(capacity(self.eigenvalues, sigma), 1, rel=1e-12)
        assert close(diagonal_error(self.eigenvalues, sigma.expand(2)), 0.76325049653, rel=EXACT)

    def test_white(self) -> None:
        white = white_variances(self.eigenvalues, 1.0)
        assert close(white, 2.32790682747, 0.58197670687, rel=EXACT) and close(white.sum(), 2.90988353, rel=EXACT)
        assert close(pairwise_capacity(self.eigenvalues, white), 1, rel=1e-12)
        assert close(diagonal_error(self.eigenvalues, white), 0.91969860293, rel=EXACT)

    def test_bound(self) -> None:
        bound = error_bound(gaussian_log_entropy_power(self.eigenvalues), 1.0, 2)
        assert close(bound.value, 0.73575888234, rel=EXACT)

    def test_rotated(self) -> None:
        c, s = math.cos(0.5), math.sin(0.5)
        rotation = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
        covariance, noise = (
            rotation @ torch.diag(values) @ rotation.mT
            for values in (self.eigenvalues, white_variances(self.eigenvalues, 1.0))
        )
        assert close(covariance, 3.31045346, 1.26220648, 1.26220648, 1.68954654, rel=EXACT)
        assert close(noise, 1.9266068, 0.73457477, 0.73457477, 0.98327673, rel=2e-8)
        torch.testing.assert_close(noise, white_factor(2, 1.0) * covariance)
        assert close(gaussian_capacity(covariance, noise), 1, rel=1e-12)
        assert close(natural_variance(spectrum(covariance), 1.0), 1.27400677194, rel=EXACT)

    def test_batches(self) -> None:
        sizes = row(1, 4, 64)
        constant = batch_capacity(self.eigenvalues, 1.0, sizes)
        assert close(constant, 1.15129255, 0.45814537, 0.03806440, rel=2e-7)
        private = batch_capacity(self.eigenvalues, 1.0, sizes, "dp")
        assert close(private, 1.15129255, 2.22132563, 4.86173168, rel=EXACT)
        for index, size in enumerate((1, 4, 64)):  # noise 1 / B^2 on the mean, whose covariance is Sigma / B
            assert close(private[index], loop_capacity([4 / size, 1 / size], 1 / size**2), rel=1e-12)


class TestToy:
    weights = row(2, 6)

    def test_variances(self) -> None:
        assert close(gradient_variance(self.weights), 16, 144) and close(next_weight(self.weights), 6, 18)
        assert close(toy_variance(self.weights, 1.0, "data"), 0.15651764275, 0.15651764275, rel=EXACT)
        assert close(toy_variance(self.weights, 1.0, "data").sqrt(), 0.39562311, 0.39562311, rel=EXACT)
        parameter = toy_variance(self.weights, 1.0, "parameter")
        assert close(parameter, 2.50428228399, 22.53854055596, rel=EXACT) and close(parameter[0], 16 / E2, rel=1e-12)

    def test_capacities(self) -> None:
        assert close(toy_capacity(self.weights, 1 / E2, "data"), 1, 1, rel=1e-12)
        assert close(toy_capacity(self.weights, 16 / E2, "parameter"), 1, 2.03452623926, rel=EXACT)
        assert math.log1p(9 * E2) / 2 == pytest.approx(2.03452623926, rel=1e-11)


class TestTenDirections:
    def test_isotropic(self) -> None:
        equal = torch.full((10,), 2.0, dtype=torch.float64)
        sigma = natural_variance(equal, 3.0)
        assert close(sigma, 2 / math.expm1(0.6), rel=1e-13) and close(sigma, 2.43273843032, rel=EXACT)
        assert close(white_variances(equal, 3.0), *[2.43273843032] * 10, rel=EXACT)
        assert close(diagonal_error(equal, sigma.expand(10)), 1.09762327219, rel=EXACT)
        assert close(error_bound(gaussian_log_entropy_power(equal), 3.0, 10).value, 2 * math.exp(-0.6), rel=1e-12)

    def test_harmonic(self) -> None:
        values = 1 / torch.arange(1, 11, dtype=torch.float64)
        sigma, white = natural_variance(values, 2.0), white_variances(values, 2.0)
        assert close(sigma, 0.53104731438, rel=EXACT) and close(white[[0, 9]], 2.03324478172, 0.20332447817, rel=EXACT)
        assert close(10 * sigma, 5.31047314, rel=EXACT) and close(white.sum(), 5.95530942, rel=EXACT)
        assert close(diagonal_error(values, sigma.expand(10)), 0.16410828, rel=5 * EXACT)
        assert close(diagonal_error(values, white), 0.19633461, rel=5 * EXACT)
        assert close(error_bound(gaussian_log_entropy_power(values), 2.0, 10).value, 0.14801506, rel=5 * EXACT)


class TestSingular:
    eigenvalues = row(3, 1, 0)

    def test_natural(self) -> None:
        assert close(natural_variance(self.eigenvalues, 1.0), 1.06639045952, rel=EXACT)

    def test_white(self) -> None:
        corrected, printed = (
            white_variances(self.eigenvalues, 1.0),
            white_variances(self.eigenvalues, 1.0, "as_printed"),
        )
        assert close(corrected, 1.74593012, 0.58197671, 0, rel=EXACT)
        assert close(printed, 3.16544502, 1.05514834, 0, rel=EXACT)
        assert close(pairwise_capacity(self.eigenvalues, corrected), 1, rel=1e-12)
        assert close(pairwise_capacity(self.eigenvalues, printed), 2 / 3, rel=1e-12)

    def test_rank_of_few_samples(self) -> None:
        """Five images of 40 pixels span four directions about their mean; what rounding adds is not one of them."""
        images = normal(0, 5, 40)
        centred = images - images.mean(dim=0)
        values = spectrum(centred.mT @ centred / 4)
        assert (values > 0).sum() == 4
        assert close(pairwise_capacity(values, white_variances(values, 2.0)), 2, rel=1e-12)
        assert close(capacity(values, natural_variance(values, 2.0)), 2, rel=1e-12)


class TestLikeImages:
    kappas = row(50, 100, 200, 300)

    def test_spectrum(self) -> None:
        assert close(CIFAR[[1, 10]], 90.25, 9.84, rel=1e-4) and close(CIFAR.sum(), 807.13, rel=1e-5)

    def test_natural(self) -> None:
        sigma = natural_variance(CIFAR, self.kappas)
        assert close(sigma, 3.17957556, 1.23073612, 0.46151525, 0.25525718, rel=2 * EXACT)
        assert close(sigma.sqrt(), 1.783, 1.109, 0.679, 0.505, rel=1e-3)
        assert (capacity(CIFAR, sigma) - self.kappas).abs().max() < 1e-10
        errors = diagonal_error(CIFAR, sigma.unsqueeze(-1)) / CIFAR.mean()
        assert close(errors, 0.2921, 0.2193, 0.1586, 0.1281, rel=4e-4)

    def test_white(self) -> None:
        factors = white_factor(3072, self.kappas)
        assert close(factors, 30.22271263, 14.86542496, 7.19084763, 4.63626570, rel=EXACT)
        errors = diagonal_error(CIFAR, white_variances(CIFAR, self.kappas)) / CIFAR.mean()
        assert close(errors, 0.9680, 0.9370, 0.8779, 0.8226, rel=1e-4)
        large = row(500, 800, 1000, 1500)
        assert close(white_factor(3072, large), 2.59907895, 1.46320781, 1.08987404, 0.60411539, rel=EXACT)
        assert close(white_factor(1024, large), 0.60411539, 0.26520041, 0.16527050, 0.05642774, rel=10 * EXACT)

    def test_fresh_noise(self) -> None:
        sigma, visits = natural_variance(CIFAR, 300.0), row(1, 10, 13, 10_000)
        fresh = accumulated_capacity(CIFAR, sigma, visits, "fresh")
        assert close(fresh, 300, 1263.10, 1458.72, 10506.17, rel=1e-5)
        assert (fresh <= visits * 300 * (1 + 1e-12)).all()
        assert close(accumulated_capacity(CIFAR, sigma, visits, "once"), *[300] * 4, rel=1e-12)

    def test_counts(self) -> None:
        assert visits_per_sample(10_000, 64, 50_000) == 12.8 and total_information(300, 10_000) == 3e6


sizes = st.shared(st.integers(1, 9), key="d")
positive = st.floats(1e-3, 1e3)
spectra = sizes.flatmap(lambda d: st.lists(positive, min_size=d, max_size=d)).map(lambda values: row(*values))
budgets = st.floats(1e-2, 20)


@given(spectra, positive, st.floats(1.01, 10), st.integers(0, 8))
def test_capacity_falls_with_noise_and_grows_with_data(
    eigenvalues: torch.Tensor, sigma: float, more: float, index: int
) -> None:
    f = capacity(eigenvalues, sigma)
    assert close(f, loop_capacity(eigenvalues.tolist(), sigma), rel=1e-9)
    assert capacity(eigenvalues, more * sigma) < f
    larger = eigenvalues.clone()
    larger[index % len(larger)] *= more
    assert capacity(larger, sigma) > f


@given(spectra, budgets)
def test_natural_solves_for_the_capacity(eigenvalues: torch.Tensor, kappa: float) -> None:
    sigma = natural_variance(eigenvalues, kappa)
    assert abs(float(capacity(eigenvalues, sigma)) - kappa) < 1e-10
    assert close(sigma, loop_root(eigenvalues.tolist(), kappa), rel=1e-9)


@given(spectra, budgets)
def test_white_gives_every_direction_the_same(eigenvalues: torch.Tensor, kappa: float) -> None:
    white, size = white_variances(eigenvalues, kappa), len(eigenvalues)
    assert close(directional_information(eigenvalues, white), *[kappa / size] * size, rel=1e-9)
    natural = natural_variance(eigenvalues, kappa)
    assert white.sum() >= size * natural * (1 - 1e-9)
    errors = diagonal_error(eigenvalues, white), diagonal_error(eigenvalues, natural.expand(size))
    assert errors[0] >= errors[1] * (1 - 1e-9)
    assert close(errors[0], float(eigenvalues.mean()) * math.exp(-2 * kappa / size), rel=1e-9)


@given(spectra, positive, st.floats(1.01, 100))
def test_batches_and_visits(eigenvalues: torch.Tensor, sigma: float, more: float) -> None:
    one, many = (batch_capacity(eigenvalues, sigma, batch) for batch in (1.0, more))
    assert many < one and close(many, float(capacity(eigenvalues / more, sigma)), rel=1e-9)
    private = batch_capacity(eigenvalues, sigma, more, "dp")
    assert private > one and close(private, float(capacity(more * eigenvalues, sigma)), rel=1e-9)
    fresh = accumulated_capacity(eigenvalues, sigma, more, "fresh")
    assert close(fresh, float(private)) and one < fresh <= more * one * (1 + 1e-9)


def test_fresh_noise_is_averaged() -> None:
    """Seen twice with fresh noise, jointly: the covariance of both observations, literally."""
    covariance, sigma, eye = torch.diag(row(4, 1)), 0.7, torch.eye(2, dtype=torch.float64)
    both = covariance.repeat(2, 2)
    joint = gaussian_capacity(both, sigma * torch.eye(4, dtype=torch.float64))
    assert close(joint, float(accumulated_capacity(row(4, 1), sigma, 2.0, "fresh")), rel=1e-12)
    assert close(gaussian_capacity(covariance, sigma * eye), float(capacity(row(4, 1), sigma)), rel=1e-12)


def test_any_two_covariances() -> None:
    """Against determinants, also where the data's covariance is singular."""
    root, other = normal(0, 30, 4, 4), normal(1, 30, 4, 4)
    root[15:, :, 2:] = 0
    data, noise = root @ root.mT, other @ other.mT + 0.1 * torch.eye(4, dtype=torch.float64)
    expected = (torch.logdet(data + noise) - torch.logdet(noise)) / 2
    torch.testing.assert_close(gaussian_capacity(data, noise), expected, rtol=1e-9, atol=1e-9)


def test_extreme_numbers() -> None:
    """Brackets hold at both ends, and for spectra over many orders of magnitude."""
    wide = 10.0 ** torch.linspace(-12, 12, 25, dtype=torch.float64)
    kappas = row(1e-12, 1e-6, 1, 1e3, 5e3)
    found = capacity(wide, natural_variance(wide, kappas))
    torch.testing.assert_close(found, kappas, rtol=1e-10, atol=0)
    assert close(natural_variance(row(1e-300), 1.0), 1e-300 / E2, rel=1e-9)
    assert close(natural_variance(row(1, *[0.0] * 99), 300.0), math.exp(-600), rel=1e-9)
    assert close(white_factor(1, 300.0), math.exp(-600), rel=1e-9)


def test_rows_have_capacities_of_their_own() -> None:
    eigenvalues, kappas = normal(0, 3, 2, 5).exp(), normal(1, 3, 2).exp()
    sigma, white = natural_variance(eigenvalues, kappas), white_variances(eigenvalues, kappas)
    assert sigma.shape == (3, 2) and white.shape == (3, 2, 5)
    for index in torch.cartesian_prod(torch.arange(3), torch.arange(2)).tolist():
        one, kappa = eigenvalues[*index], float(kappas[*index])
        torch.testing.assert_close(sigma[*index], natural_variance(one, kappa))
        torch.testing.assert_close(white[*index], white_variances(one, kappa))
        torch.testing.assert_close(capacity(eigenvalues, sigma)[*index], capacity(one, sigma[*index]))
    table = natural_variance(eigenvalues[:, 0], row(1, 2, 3, 4).unsqueeze(-1))  # capacities by spectra
    assert table.shape == (4, 3) and close(table[2, 1], float(natural_variance(eigenvalues[1, 0], 3.0)), rel=1e-12)


class TestErrors:
    def test_spectra(self) -> None:
        assert clipped_spectrum(row(1, -1e-17, 1e-17, 0)).tolist() == [1, 0, 0, 0]
        for function in (clipped_spectrum, lambda values: capacity(values, 1.0)):
            with pytest.raises(ConfigError, match=r"no negative eigenvalues, found -0\.1 where the largest is 2"):
                function(row(2, -0.1))
        for bad in (math.nan, math.inf):
            with pytest.raises(ConfigError, match="finite"):
                clipped_spectrum(row(1, bad))
            with pytest.raises(ConfigError, match="finite"):
                spectrum(torch.full((2, 2), bad))
        with pytest.raises(ConfigError, match="symmetric"):
            spectrum(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))

    @pytest.mark.parametrize("kappa", [0.0, -1.0, math.nan, math.inf])
    def test_capacities(self, kappa: float) -> None:
        for solve in (natural_variance, white_variances):
            with pytest.raises(ConfigError, match="the capacity must be positive and finite, found"):
                solve(row(1, 2), kappa)
        with pytest.raises(ConfigError, match="the capacity"):
            natural_variance(row(1, 2), row(1, kappa))
        with pytest.raises(ConfigError, match="the capacity"):
            white_factor(2, kappa)

    def test_constant_data(self) -> None:
        for solve in (natural_variance, white_variances):
            with pytest.raises(ConfigError, match="all eigenvalues are zero"):
                solve(torch.stack([row(1, 2), row(0, 0)]), 1.0)
        with pytest.raises(ConfigError, match="the rank"):
            white_factor(0, 1.0)

    def test_out_of_range(self) -> None:
        for solve in (natural_variance, white_variances):
            with pytest.raises(ConfigError, match="no variance"):
                solve(row(1, 0), 1500.0)

    def test_noise(self) -> None:
        for sigma in (0.0, -1.0, math.nan):
            with pytest.raises(ConfigError, match="the variance of noise must be positive"):
                capacity(row(1, 2), sigma)
        with pytest.raises(ConfigError, match="the variance of noise cannot be negative"):
            pairwise_capacity(row(1, 2), row(1, -1))
        assert pairwise_capacity(row(1, 2), row(1, 0)).isinf()
        with pytest.raises(ConfigError, match="positive definite"):
            gaussian_capacity(torch.eye(2), torch.zeros(2, 2))
        with pytest.raises(ConfigError, match="the batch size"):
            batch_capacity(row(1, 2), 1.0, 0)
        with pytest.raises(ConfigError, match="the number of visits"):
            accumulated_capacity(row(1, 2), 1.0, 0, "once")
