"""The likelihood ratio of sums with and without a record, against dense normal densities."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from leakbench.attacks.membership_of_sums import Background, Coordinates, Mechanism, log_likelihood_ratio
from leakbench.errors import ConfigError

SIZE, RANK, SUMS, ASKED, USERS = 7, 3, 4, 5, 3


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.fixture
def background() -> Background:
    basis = torch.linalg.qr(draw(SIZE, RANK)).Q
    return Background(draw(SIZE), basis, torch.tensor([2.0, 1.0, 0.4], dtype=torch.float64), 0.1, 50)


def dense(background: Background, mechanism: Mechanism) -> torch.Tensor:
    """The covariance of a mean without the candidate, ``[d, d]``."""
    axes = torch.linalg.svd(background.basis, full_matrices=True).U
    axes[:, :RANK] = background.basis
    gradients = torch.cat([background.variances, torch.full((SIZE - RANK,), background.rest).double()])
    sampled = gradients * mechanism.sampling
    random = sampled.clamp(min=mechanism.noise) if mechanism.filled else sampled + mechanism.noise
    data = gradients * (1 / (USERS * mechanism.taken) + 1 / background.records)
    covariance: torch.Tensor = axes @ (data + random / USERS).diag() @ axes.T
    return covariance + mechanism.sampling / USERS * torch.outer(background.mean, background.mean)


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(taken=8),
        Mechanism(taken=8, noise=0.3),
        Mechanism(taken=8, sampling=0.25),
        Mechanism(taken=8, sampling=0.25, noise=0.3),
        Mechanism(taken=8, sampling=0.25, noise=0.2, filled=True),
        Mechanism(taken=8, sampling=0.25, noise=100.0, filled=True),
    ],
)
def test_it_is_the_ratio_of_normal_densities(background: Background, mechanism: Mechanism) -> None:
    gradients, updates = 2 * draw(SUMS, ASKED, SIZE), draw(SUMS, SIZE)
    found = log_likelihood_ratio(
        Coordinates.of(gradients, background),
        Coordinates.of(updates, background),
        (gradients * updates[:, None]).sum(dim=-1),
        background,
        mechanism,
        USERS,
    )
    without = dense(background, mechanism)
    for number, update in enumerate(updates):
        for place, gradient in enumerate(gradients[number]):
            mean = background.mean + (gradient - background.mean) / (USERS * mechanism.taken)
            spread = mechanism.sampling / mechanism.taken
            if mechanism.filled:
                spread = max(spread - mechanism.noise / float(gradient.square().sum()), 0.0)
            inside = without + spread / USERS**2 * torch.outer(gradient, gradient)
            expected = MultivariateNormal(mean, inside).log_prob(update)
            expected = expected - MultivariateNormal(background.mean, without).log_prob(update)
            assert float(found[number, place]) == pytest.approx(float(expected), rel=1e-6, abs=1e-6)


def test_members_have_larger_ratios_on_average(background: Background) -> None:
    """By the definition of the two hypotheses, whatever the gradient."""
    mechanism, gradient = Mechanism(taken=2, sampling=0.5, noise=0.05), 2 * draw(SIZE)
    without = dense(background, mechanism)
    mean = background.mean + (gradient - background.mean) / (USERS * mechanism.taken)
    inside = without + mechanism.sampling / mechanism.taken / USERS**2 * torch.outer(gradient, gradient)
    torch.manual_seed(0)
    ratios = []
    for law in (MultivariateNormal(mean, inside), MultivariateNormal(background.mean, without)):
        updates = law.sample((4000,))
        ratios.append(
            log_likelihood_ratio(
                Coordinates.of(gradient.expand(4000, 1, SIZE), background),
                Coordinates.of(updates, background),
                (updates @ gradient)[:, None],
                background,
                mechanism,
                USERS,
            ).mean()
        )
    assert ratios[0] > 0 > ratios[1]  # Kullback-Leibler divergences


def test_moments_are_found() -> None:
    """Gradients with variances 9, 4 and 0.01 along the axes, of which a background knows the first two well."""
    deviations = torch.tensor([3.0, 2.0] + [0.1] * 38)
    torch.manual_seed(0)
    gradients = 5 + deviations * torch.randn(60, 40)
    found = Background.of(gradients)
    assert torch.allclose(found.mean, gradients.mean(dim=0), atol=1e-5)
    assert torch.allclose(found.basis.T @ found.basis, torch.eye(found.basis.shape[1]), atol=1e-4)
    assert found.basis.shape[1] <= 30 and found.records == 60
    covariance = found.basis.double() @ (found.variances - found.rest).diag() @ found.basis.double().T
    covariance += found.rest * torch.eye(40)
    assert float(covariance[0, 0]) == pytest.approx(9, rel=0.5)
    assert float(covariance[1, 1]) == pytest.approx(4, rel=0.5)
    assert float(covariance.diagonal()[2:].mean()) == pytest.approx(0.01, rel=0.5)


def test_variances_are_of_records_that_no_direction_fitted() -> None:
    """Of fewer records than coordinates, their own variances would say that all of it is in their span."""
    torch.manual_seed(0)
    found = Background.of(torch.randn(40, 400))
    assert 1 <= float(found.variances.mean()) + 0.05 < 1.3  # none is below that of other directions
    assert found.rest == pytest.approx(1, rel=0.1)


def test_empty_directions_keep_some_variance() -> None:
    gradients = torch.zeros(8, 5)
    gradients[:, 0] = torch.arange(8.0)
    found = Background.of(gradients)
    assert found.rest > 0 and math.isfinite(1 / found.rest)
    assert Background.of(torch.ones(8, 5)).rest > 0


def test_too_few_records() -> None:
    with pytest.raises(ConfigError, match="4 auxiliary records at least, found 3"):
        Background.of(torch.randn(3, 5))


def test_chosen_and_scaled(background: Background) -> None:
    vectors = draw(6, SIZE)
    every, rows, factors = Coordinates.of(vectors, background), torch.tensor([[4, 1]]), torch.tensor([[0.5, 2.0]])
    found, expected = every.at(rows, factors), Coordinates.of(vectors[rows] * factors[..., None], background)
    for name in ("along", "mean", "square"):
        assert torch.allclose(getattr(found, name), getattr(expected, name))
