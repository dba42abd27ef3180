"""The paper's theorems, checked by computing: see :mod:`leakbench.report.checks`.

What the paper states wrongly is in :mod:`leakbench.papers.channel.misprints`.
"""

from __future__ import annotations

from functools import partial

from leakbench.lazy import torch
from leakbench.papers.channel import PAPER
from leakbench.papers.channel.theory.compression import (
    coordinate_capacity,
    coordinate_loss,
    direction_loss,
    equivalent_variance,
    without_directions,
)
from leakbench.papers.channel.theory.toy_channel import next_weight, toy_capacity, toy_variance
from leakbench.randomness import generator
from leakbench.report.checks import DEVIATION, EXACT, STRICT, Checked, agreement, checked, required, theorem_of
from leakbench.theory.capacity import (
    batch_capacity,
    capacity,
    directional_information,
    gaussian_capacity,
    natural_variance,
    pairwise_capacity,
    spectrum,
    white_factor,
    white_variances,
)
from leakbench.theory.dp_capacity import step_capacity
from leakbench.theory.personalized import (
    blocks,
    bound_variance,
    capacity_bound,
    personalized_capacity,
    personalized_variance,
)
from leakbench.theory.reconstruction_bound import (
    diagonal_error,
    error_bound,
    gaussian_error,
    gaussian_log_entropy_power,
)

theorem = partial(theorem_of, PAPER)


def random_spectra(name: str, trials: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Generator]:
    """Eigenvalues spread over orders of magnitude, ``[trials, size]``, a capacity for each spectrum, ``[trials]``.

    The third is the generator for what else is drawn.
    """
    draw = generator(PAPER, "theory", name)
    eigenvalues = torch.randn(trials, size, generator=draw, dtype=torch.float64).mul(1.5).exp()
    kappa = torch.randn(trials, generator=draw, dtype=torch.float64).exp()
    return eigenvalues, kappa, draw


def random_covariances(draw: torch.Generator, trials: int, size: int) -> torch.Tensor:
    """Positive definite, correlated, of unequal variances, ``[trials, size, size]``."""
    root = torch.randn(trials, size, size, generator=draw, dtype=torch.float64)
    scale = torch.randn(trials, size, 1, generator=draw, dtype=torch.float64).exp()
    return scale * (root @ root.mT + 0.1 * torch.eye(size, dtype=torch.float64)) * scale.mT


@theorem(
    "T1",
    "Capacity falls in the noise and rises in each eigenvalue, and has one root for every kappa.",
    source="Theorem 2",
)
def natural_variance_is_the_only_root() -> Checked:
    """``f`` falls with the variance, grows with every eigenvalue, and is ``kappa`` at the Natural Channel's."""
    trials, size = 2000, 8
    eigenvalues, kappa, _ = random_spectra("natural", trials, size)
    sigma = natural_variance(eigenvalues, kappa)
    reached = capacity(eigenvalues, sigma)
    steps = torch.tensor([0.1, 0.5, 0.9, 1.1, 2.0, 10.0], dtype=torch.float64).unsqueeze(-1)
    along = capacity(eigenvalues, steps * sigma)
    larger = eigenvalues.unsqueeze(-2) * (1 + 0.5 * torch.eye(size, dtype=torch.float64))
    grown = capacity(larger, sigma.unsqueeze(-1))
    slacks = [
        EXACT - (reached - kappa).abs(),
        required(-along.diff(dim=0) / kappa - STRICT),
        required((kappa - along) / kappa * (steps - 1).sign() - STRICT),
        required((grown - reached.unsqueeze(-1)) / reached.unsqueeze(-1) - STRICT),
    ]
    return checked(slacks, trials, f"{EXACT:g} nats minus the largest residual")


@theorem("T2", "The White Channel reaches kappa, and every direction carries the same part.", source="eqs. 18 and 19")
def white_noise_gives_every_direction_the_same() -> Checked:
    """The White Channel has capacity ``kappa``, every direction ``kappa / d``, noise like the data."""
    trials, size = 2000, 6
    eigenvalues, kappa, draw = random_spectra("white", trials, size)
    variances = white_variances(eigenvalues, kappa)
    covariance, factor = random_covariances(draw, trials, size), white_factor(size, kappa)[:, None, None]
    slacks = [
        agreement(pairwise_capacity(eigenvalues, variances), kappa),
        agreement(size * directional_information(eigenvalues, variances), kappa.unsqueeze(-1)),
        agreement(gaussian_capacity(covariance, factor * covariance), kappa),
    ]
    return checked(slacks, trials, DEVIATION)


@theorem(
    "T3", "Theorem 3's bound is never below the capacity, so that its noise is never too small.", source="Theorem 3"
)
def bound_of_theorem_3_is_above_the_capacity() -> Checked:
    """``U(sigma) >= f(sigma)``, so that the paper's noise for ``kappa`` is never less than needed."""
    trials, size = 2000, 5
    _, kappa, draw = random_spectra("personalized", trials, size)
    covariance = random_covariances(draw, trials, size)
    weights, sigma = (torch.randn(trials, n, generator=draw, dtype=torch.float64).mul(1.5).exp() for n in (size, 1))
    parts, sigma = blocks(covariance, weights), sigma.squeeze(-1)
    bounded, exact = bound_variance(parts, weights, kappa), personalized_variance(covariance, weights, kappa)
    noise = torch.diag_embed(sigma.unsqueeze(-1) * weights)
    slacks = [
        capacity_bound(parts, weights, sigma) / personalized_capacity(covariance, weights, sigma) - 1,
        required(bounded / exact - 1),
        required(agreement(capacity_bound(parts, weights, bounded), kappa)),
        required(agreement(personalized_capacity(covariance, weights, exact), kappa)),
        required(agreement(personalized_capacity(covariance, weights, sigma), gaussian_capacity(covariance, noise))),
    ]
    return checked(slacks, trials, "excess of the bound over the capacity, relative")


@theorem(
    "T4",
    "The least error of normal data is at least the bound of Theorem 1, and equal to it where all directions are "
    "left equally unsure.",
    source="Theorem 1",
)
def error_of_normal_data_is_above_the_bound() -> Checked:
    """The least error is above the bound at the capacity, and equal to it where all is isotropic."""
    trials, size = 2000, 5
    eigenvalues, kappa, draw = random_spectra("bound", trials, size)
    covariance, noise = random_covariances(draw, trials, size), random_covariances(draw, trials, size)
    power = gaussian_log_entropy_power(spectrum(covariance))
    bound = error_bound(power, gaussian_capacity(covariance, noise), size).value
    equal = eigenvalues[:, :1].expand(-1, size)
    least = diagonal_error(equal, natural_variance(equal, kappa).unsqueeze(-1))
    slacks = [
        gaussian_error(covariance, noise) / bound - 1,
        required(agreement(least, error_bound(gaussian_log_entropy_power(equal), kappa, size).value)),
    ]
    return checked(slacks, trials, "excess of the least error over the bound, relative")


@theorem(
    "T5",
    "At equal capacity the least error of normal data is larger under white noise than under natural noise.",
    source="Sections 5.2 and 5.3; our proof",
)
def white_noise_costs_attackers_more_than_natural() -> Checked:
    """The least error of normal data is larger under White than under Natural noise of equal capacity.

    It is ``mean lambda e^(-2 kappa / d)`` under White noise.
    """
    trials, size = 20_000, 8
    eigenvalues, kappa, _ = random_spectra("white and natural errors", trials, size)
    white = diagonal_error(eigenvalues, white_variances(eigenvalues, kappa))
    natural = diagonal_error(eigenvalues, natural_variance(eigenvalues, kappa).unsqueeze(-1))
    formula = eigenvalues.mean(dim=-1) * (-2 * kappa / size).exp()
    slacks = [white / natural - 1, required(agreement(white, formula))]
    return checked(slacks, trials, "excess of the error under White over that under Natural noise, relative")


@theorem(
    "T6",
    "At equal capacity white noise has at least the total variance of natural noise.",
    source="Sections 5.2 and 5.3; not proved",
)
def white_noise_has_more_power_than_natural() -> Checked:
    """The trace of the White Channel's noise is not below that of the Natural Channel's at equal capacity."""
    trials, size = 20_000, 8
    eigenvalues, kappa, _ = random_spectra("white and natural power", trials, size)
    white, natural = white_variances(eigenvalues, kappa).sum(dim=-1), size * natural_variance(eigenvalues, kappa)
    return checked([white / natural - 1], trials, "excess of the power of White over that of Natural noise, relative")


@theorem(
    "T7",
    "Capacity falls with the batch size under constant noise, and grows with it under DP-SGD's.",
    source="eq. 24 and Theorem 4",
)
def large_batches_hide_under_constant_noise_alone() -> Checked:
    """Capacity falls with the batch under constant noise, and grows under that of DP-SGD."""
    trials, size = 1000, 8
    eigenvalues, kappa, _ = random_spectra("batch", trials, size)
    sizes = torch.tensor([1.0, 2.0, 8.0, 64.0, 512.0], dtype=torch.float64).unsqueeze(-1)
    sigma = natural_variance(eigenvalues, kappa)
    constant, private = batch_capacity(eigenvalues, sigma, sizes), batch_capacity(eigenvalues, sigma, sizes, "dp")
    clip = eigenvalues.sum(dim=-1).sqrt()  # a covariance of this trace comes from gradients of this norm
    bounds = torch.stack([step_capacity(float(one), sigma / clip.square()) for one in sizes])
    slacks = [
        (constant[:-1] - constant[1:]) / constant[:-1] - STRICT,
        (private[1:] - private[:-1]) / private[1:] - STRICT,
        required(bounds.diff(dim=0) / bounds[1:] - STRICT),
        required(bounds / private - 1),
        required(agreement(constant, capacity(eigenvalues / sizes.unsqueeze(-1), sigma))),
        required(agreement(private, capacity(eigenvalues / sizes.unsqueeze(-1), sigma / sizes.square()))),
    ]
    return checked(slacks, trials, "least relative change of the capacity from one batch size to the next")


@theorem("T8", "Dropping coordinates lowers the capacity; a larger eigenvalue takes more with it.", source="Appendix E")
def dropping_removes_capacity() -> Checked:
    """Dropped coordinates take ``Delta C > 0``, and larger eigenvalues more than smaller ones."""
    trials, size = 1000, 6
    eigenvalues, _, draw = random_spectra("compression", trials, size)
    covariance = random_covariances(draw, trials, size)
    sigma = torch.randn(trials, generator=draw, dtype=torch.float64).exp()
    whole = capacity(spectrum(covariance), sigma)
    slacks = []
    for count in (1, 3, 5):
        dropped = torch.randperm(size, generator=draw) < count
        lost = coordinate_loss(covariance, sigma, dropped)
        slacks.append(lost / whole - STRICT)
        slacks.append(required(agreement(coordinate_capacity(covariance, sigma, dropped) + lost, whole)))
    ordered = eigenvalues.sort(dim=-1).values
    each = direction_loss(ordered, sigma.unsqueeze(-1))
    largest = torch.arange(size) == size - 1
    rest = capacity(without_directions(ordered, largest), sigma)
    slacks += [
        required(each.diff(dim=-1) / each[:, 1:] - STRICT),
        required(agreement(each.sum(dim=-1), capacity(ordered, sigma))),
        required(agreement(rest + each[:, -1], capacity(ordered, sigma))),
    ]
    return checked(slacks, trials, "least part of the capacity that dropped coordinates took")


@theorem("T9", "For every compression and noise some larger noise alone has the same capacity.", source="Fig. 7")
def compression_is_more_noise() -> Checked:
    """All coordinates under some larger variance have the capacity of those that are not dropped."""
    trials, size = 1000, 6
    eigenvalues, _, draw = random_spectra("equivalent", trials, size)
    covariance = random_covariances(draw, trials, size)
    sigma = torch.randn(trials, generator=draw, dtype=torch.float64).exp()
    slacks = []
    for count in (1, 3, 5):
        dropped = torch.randperm(size, generator=draw) < count
        for whole, kept in (
            (spectrum(covariance), coordinate_capacity(covariance, sigma, dropped)),
            (eigenvalues, capacity(without_directions(eigenvalues, dropped), sigma)),
        ):
            equal = equivalent_variance(whole, kept)
            slacks.append(equal / sigma - 1 - STRICT)
            slacks.append(required(agreement(capacity(whole, equal), kept)))
    return checked(slacks, trials, "least relative increase of the variance")


@theorem(
    "T10",
    "In the toy example noise on the data has capacity 1 at every step; noise on the parameters does not.",
    source="Fig. 4",
)
def noise_on_data_needs_no_update() -> Checked:
    """Noise on the data has the same capacity at every weight, noise on the gradient does not.

    From a weight to the next, which is three times as large, the gradient's capacity ``C`` under constant noise becomes
    ``1/2 ln(1 + 9 (e^(2 C) - 1))``: 2.0345 for ``C = 1`` at ``W = 2``.
    """
    trials = 1000
    draw = generator(PAPER, "theory", "toy")
    weight, kappa = torch.randn(2, trials, generator=draw, dtype=torch.float64).exp()
    weight[0], kappa[0] = 2.0, 1.0  # the paper's
    later = next_weight(weight)
    on_data, on_gradient = (toy_variance(weight, kappa, space) for space in ("data", "parameter"))
    slacks = [
        agreement(later, 3 * weight),
        agreement(toy_capacity(weight, on_data, "data"), kappa),
        agreement(toy_capacity(later, on_data, "data"), kappa),
        agreement(toy_capacity(weight, on_gradient, "parameter"), kappa),
        agreement(toy_capacity(later, on_gradient, "parameter"), (9 * torch.expm1(2 * kappa)).log1p() / 2),
        agreement(toy_capacity(later, toy_variance(later, kappa, "parameter"), "parameter"), kappa),
    ]
    return checked(slacks, trials, DEVIATION)
