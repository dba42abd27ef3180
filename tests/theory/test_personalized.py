"""The Personalized Channel: printed numbers, the theorem's recursion read literally, and all covariances."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.vectors import close, normal, row

from leakbench.errors import ConfigError
from leakbench.theory.capacity import natural_variance, white_variances
from leakbench.theory.personalized import (
    RIDGE,
    blocks,
    bound_variance,
    capacity_bound,
    eye_weights,
    personalized_capacity,
    personalized_variance,
    ratio_as_printed,
    weighted_spectrum,
)
from leakbench.theory.reconstruction_bound import diagonal_error, gaussian_error

EXACT = 1e-8
THREE = torch.tensor([[4, 1.2, 0.5], [1.2, 2, 0.3], [0.5, 0.3, 1]], dtype=torch.float64)
BETA = row(1, 2, 4)


def covariances(seed: int, count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positive definite ones with entries over orders of magnitude, and weights."""
    root = normal(seed, count, size, size) * normal(seed + 1, count, size, 1).exp()
    eye = torch.eye(size, dtype=torch.float64)
    return root @ root.mT + 0.01 * eye, normal(seed + 2, count, size).mul(1.5).exp()


def loop_blocks(covariance: torch.Tensor, beta: torch.Tensor) -> tuple[list[float], list[float]]:
    """``u`` and ``k`` by inverting every leading block."""
    u, k = [float(covariance[0, 0])], [float(beta[0])]
    for i in range(1, len(beta)):
        rho = covariance[:i, i]
        w = torch.linalg.inv(covariance[:i, :i]) @ rho
        u.append(float(covariance[i, i] - rho @ w))
        k.append(float(beta[i] + w @ torch.diag(beta[:i]) @ w))
    return u, k


class TestThreeAttributes:
    def test_blocks(self) -> None:
        parts = blocks(THREE, BETA)
        assert close(parts.diagonal, 4, 2, 1) and close(parts.u, 4, 1.64, 0.92378049, rel=EXACT)
        assert close(parts.u.prod(), 6.06, rel=1e-12) and close(torch.det(THREE), 6.06, rel=1e-12)
        assert close(parts.k, 1, 2.09, 4.02624926, rel=EXACT)

    @pytest.mark.parametrize(
        ("kappa", "exact", "bound", "left"),
        [
            (0.5, 3.77359429, 3.88123031, 0.48943407),
            (1.0, 1.38646164, 1.39690142, 0.99529907),
            (3.0, 0.15822206, 0.15825567, 2.99974655),
        ],
    )
    def test_roots(self, kappa: float, exact: float, bound: float, left: float) -> None:
        assert close(personalized_variance(THREE, BETA, kappa), exact, rel=4 * EXACT)
        found = personalized_variance(THREE, BETA, kappa, "bound")
        assert close(found, bound, rel=4 * EXACT)
        assert close(personalized_capacity(THREE, BETA, found), left, rel=2 * EXACT)
        assert close(capacity_bound(blocks(THREE, BETA), BETA, found), kappa, rel=1e-12)

    def test_capacity(self) -> None:
        assert close(personalized_capacity(THREE, BETA, row(0.3, 1)), 2.28253565, 1.21959494, rel=EXACT)

    def test_printed_ratio(self) -> None:
        assert close(ratio_as_printed(THREE, BETA, row(0.3, 1)), -0.98944, 1.08650, rel=1e-5)
        assert close(ratio_as_printed(THREE, BETA, 1e150), 0.5, rel=2e-3)


class TestTwoAttributes:
    covariance = torch.tensor([[2, 0.8], [0.8, 1]], dtype=torch.float64)
    beta = row(1, 50)

    def test_in_order(self) -> None:
        parts = blocks(self.covariance, self.beta)
        assert close(parts.u, 2, 0.68) and close(parts.k, 1, 50.16)
        assert close(weighted_spectrum(self.covariance, self.beta), 0.01355632, 2.00644368, rel=5e-7)
        assert close(personalized_capacity(self.covariance, self.beta, 0.1), 1.58735746, rel=EXACT)
        assert close(capacity_bound(parts, self.beta, 0.1), 1.58742435, rel=EXACT)
        diagonal = parts._replace(u=torch.full_like(parts.u, 1e9))
        assert close(capacity_bound(diagonal, self.beta, 0.1), 1.61342200, rel=EXACT)
        assert close(personalized_variance(self.covariance, self.beta, 1.0), 0.32910170, rel=2 * EXACT)
        assert close(bound_variance(parts, self.beta, 1.0), 0.32926038, rel=2 * EXACT)

    def test_swapped(self) -> None:
        """The bound depends on the order of the attributes, the capacity does not."""
        covariance, beta = self.covariance.flip(0, 1), self.beta.flip(0)
        parts = blocks(covariance, beta)
        assert close(parts.u, 1, 1.36) and close(parts.k, 50, 33)
        assert close(capacity_bound(parts, beta, 0.1), 1.61342200, rel=EXACT)
        assert close(bound_variance(parts, beta, 1.0), 0.33486201, rel=2 * EXACT)
        assert close(personalized_variance(covariance, beta, 1.0), 0.32910170, rel=2 * EXACT)

    def test_equal_weights_are_natural(self) -> None:
        sigma = personalized_variance(torch.diag(row(4, 1)), row(50, 50), 1.0)
        assert close(sigma, 0.02548013544, rel=EXACT) and close(50 * sigma, 1.27400677194, rel=EXACT)


def test_weights_decide_who_errs() -> None:
    """More noise does not always mean more error."""
    values, beta, kappas = row(4, 3, 2, 1), row(1, 1, 50, 50), row(0.5, 1, 2)
    covariance = torch.diag(values)
    sigma, natural = personalized_variance(covariance, beta, kappas), natural_variance(values, kappas)
    assert close(sigma, 5.44948643, 2.07057781, 0.57588480, rel=2 * EXACT)
    assert close(natural, 8.60267496, 3.69523211, 1.35563010, rel=EXACT)
    noise = sigma[1] * beta
    assert close(noise.mean(), 52.80, rel=1e-4)
    assert close(diagonal_error(values, natural[1].expand(4)), 1.41530660, rel=EXACT)
    assert close(diagonal_error(values, noise), 1.38547997, rel=EXACT)
    assert close(gaussian_error(covariance, torch.diag(noise)), 1.38547997, rel=EXACT)
    white = white_variances(values, 1.0)
    assert close(diagonal_error(values, white), 1.51632665, rel=EXACT) and close(white.mean(), 3.854, rel=1e-4)


def test_an_image() -> None:
    """32 x 32 pixels whose covariance decays with distance, and the weights of Fig. 17: the bound is very loose."""
    distance = (torch.arange(32)[:, None] - torch.arange(32)).abs().double()
    one = 0.95**distance
    covariance, beta, kappas = 0.25 * torch.kron(one, one), eye_weights(1), row(50, 300, 500, 800, 1500)
    parts, mu = blocks(covariance, beta), weighted_spectrum(covariance, beta)
    assert close(covariance.trace(), 256)
    values = torch.linalg.eigvalsh(one)
    values = 0.25 * torch.outer(values, values).flatten()
    assert close(values.max(), 100.328, rel=1e-5)
    natural = natural_variance(values, kappas)
    assert close(natural, 0.4633, 0.01474, 0.004375, 0.001264, 0.0001802, rel=5e-4)
    exact = natural_variance(mu, kappas)
    assert close(exact, 0.3996, 0.01212, 0.003497, 0.0009765, 0.0001295, rel=5e-4)
    bound = bound_variance(parts, beta, kappas)
    assert close(bound, 2.124, 0.2636, 0.1228, 0.003112, 0.0001498, rel=5e-4)
    left = torch.stack([(1 + mu / sigma).log().sum() / 2 for sigma in bound])
    assert close(left, 17.7, 63.7, 97.5, 523, 1441, rel=2e-3)
    assert close(capacity_bound(parts, beta, bound), *kappas.tolist(), rel=1e-10)
    diagonal = natural_variance(parts.diagonal / beta, kappas)
    assert (bound == diagonal).tolist() == [True, True, True, False, False]
    at_800 = personalized_capacity(covariance, beta, bound_variance(parts, beta, 1000.0))
    assert close(at_800, 851, rel=1e-3)


def test_weights_of_figure_17() -> None:
    for channels in (1, 3):
        weights = eye_weights(channels).view(channels, 32, 32)
        rows = [[50.0 if 12 <= y <= 19 and 8 <= x <= 23 else 1.0 for x in range(32)] for y in range(32)]
        assert weights.tolist() == [rows] * channels
    assert (eye_weights(1) == 50).sum() == 128 and close(eye_weights(3).mean(), 7.125)


def test_equals_the_recursion() -> None:
    covariance, beta = covariances(0, 40, 6)
    parts = blocks(covariance, beta)
    for index in range(len(beta)):
        u, k = loop_blocks(covariance[index], beta[index])
        assert close(parts.u[index], *u, rel=1e-6) and close(parts.k[index], *k, rel=1e-6)


@given(st.integers(0, 200), st.integers(1, 6), st.floats(1e-4, 1e3), st.floats(1e-2, 20))
def test_the_bound_is_above(seed: int, size: int, sigma: float, kappa: float) -> None:
    covariance, beta = covariances(3 * seed, 5, size)
    f = personalized_capacity(covariance, beta, sigma)
    literal = torch.logdet(covariance + sigma * torch.diag_embed(beta)) - (sigma * beta).log().sum(dim=-1)
    torch.testing.assert_close(f, literal / 2, rtol=1e-7, atol=1e-9)
    parts = blocks(covariance, beta)
    assert (capacity_bound(parts, beta, sigma) >= f - 1e-9).all()
    exact, bound = (personalized_variance(covariance, beta, kappa, form) for form in ("exact", "bound"))
    assert (bound >= exact * (1 - 1e-9)).all()
    assert close(capacity_bound(parts, beta, bound), *[kappa] * 5, rel=1e-9)
    assert (capacity_bound(parts, beta, 1.1 * sigma) < capacity_bound(parts, beta, sigma)).all()


def test_singular_covariances() -> None:
    """Four samples of six attributes, and an attribute that never varies: the bound still is one."""
    samples = normal(0, 4, 6)
    few = samples.mT @ samples / 4
    constant = torch.diag(row(4, 1, 0, 1, 1, 1))
    beta = row(1, 2, 3, 1, 5, 0.5)
    both = torch.stack([few, constant, torch.eye(6, dtype=torch.float64)])
    parts = blocks(both, beta.expand(3, 6))
    torch.testing.assert_close(parts.diagonal, both.diagonal(dim1=-2, dim2=-1))
    assert close(parts.u[1, 2], RIDGE * 8 / 6) and close(parts.u[2], *[1.0] * 6, rel=1e-15)  # a ridge where needed
    for sigma in (1e-3, 0.1, 10.0):
        f = personalized_capacity(both, beta.expand(3, 6), sigma)
        assert (capacity_bound(parts, beta, sigma) >= f * (1 - 1e-12)).all()
    for form in ("exact", "bound"):
        sigma_found = personalized_variance(both, beta.expand(3, 6), 2.0, form)
        assert (personalized_capacity(both, beta.expand(3, 6), sigma_found) <= 2 + 1e-9).all()


def test_rows_have_capacities_of_their_own() -> None:
    covariance, beta = covariances(7, 4, 3)
    kappas = row(0.5, 1, 2, 4)
    for form in ("exact", "bound"):
        together = personalized_variance(covariance, beta, kappas, form)
        for index in range(4):
            one = personalized_variance(covariance[index], beta[index], float(kappas[index]), form)
            torch.testing.assert_close(together[index], one)
        table = personalized_variance(covariance[0], beta[0], kappas, form)
        assert table.shape == (4,) and table.diff().max() < 0


def test_errors() -> None:
    for beta in (row(1, 0, 1), row(1, -2, 1), row(1, math.nan, 1)):
        for form in ("exact", "bound"):
            with pytest.raises(ConfigError, match="the weight of an attribute must be positive"):
                personalized_variance(THREE, beta, 1.0, form)
    indefinite = torch.tensor([[1.0, 2], [2, 1]], dtype=torch.float64)
    with pytest.raises(ConfigError, match="negative eigenvalues"):
        personalized_variance(indefinite, row(1, 1), 1.0)
    with pytest.raises(ConfigError, match="negative eigenvalues"):
        blocks(indefinite, row(1, 1))
    with pytest.raises(ConfigError, match="not all may be zero"):
        blocks(torch.zeros(2, 2), torch.ones(2))
    with pytest.raises(ConfigError, match="the capacity"):
        personalized_variance(THREE, BETA, 0.0, "bound")
    with pytest.raises(ConfigError, match="the variance"):
        capacity_bound(blocks(THREE, BETA), BETA, 0.0)
