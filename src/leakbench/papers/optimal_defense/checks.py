"""The paper's theorems, checked by computing: each function draws cases from a fixed seed and looks for a violation.

A check that holds is evidence for the functions of :mod:`leakbench.theory` as much as for the theorem: a wrong one of
either makes it fail. All compute in float64, except where the clients' own float32 code is what is checked.
"""

from __future__ import annotations

import itertools
import math
from functools import partial

from leakbench.defenses.optimal import OptimalClippedNoise
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.models.base import build_network
from leakbench.models.linear import MLP, Linear
from leakbench.papers.optimal_defense import PAPER
from leakbench.papers.optimal_defense.theory.cramer_rao import error_bound, linear_gaussian_error, mixed_error_bound
from leakbench.papers.optimal_defense.theory.noise_budget import (
    gain_over_isotropic,
    isotropic_variance,
    minimal_trace,
    optimal_variance,
)
from leakbench.papers.optimal_defense.theory.probes import chebyshev_coverage, exact_coverage, mean_power, relative_std
from leakbench.papers.optimal_defense.theory.pruning_budget import keep_probabilities
from leakbench.randomness import Streams, generator
from leakbench.report.checks import DEVIATION, EXACT, Checked, agreement, checked, required, theorem_of
from leakbench.theory.fisher import gaussian_information, information_trace
from leakbench.theory.optimal_noise import pruned, scale_variance, variance_ratio
from leakbench.theory.utility import u2

theorem = partial(theorem_of, PAPER)

STANDARD_ERRORS = 4.5
"""Tolerance of a mean over random draws."""


def _sensitivity_and_energy(name: str, *shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Generator]:
    """``a`` and ``b``, log-normal and spread over orders of magnitude, and the generator for further draws."""
    draw = generator("optimal_defense", "theory", name)
    a, b = torch.randn(2, *shape, generator=draw, dtype=torch.float64).mul(1.5).exp()
    return a, b, draw


@theorem(
    "T1",
    "At equal utility U2 no diagonal noise has a smaller trace of the Fisher information than the optimal noise.",
    source="Theorem 2, eqs. 5-8",
)
def no_diagonal_noise_beats_the_optimum() -> Checked:
    """No diagonal covariance of equal ``U2`` has a smaller trace of the Fisher information.

    The rivals lie around the optimum, near and far, and spend the same budget.
    """
    instances, rivals = 20, 1000
    a, b, draw = _sensitivity_and_energy("noise", instances, 1, 8)
    budget = torch.rand(instances, 1, generator=draw, dtype=torch.float64) + 0.5
    best = optimal_variance(a, b, budget)
    spread = torch.tensor([2.0, 0.5, 0.1, 0.02], dtype=torch.float64).repeat(rivals // 4).view(-1, 1)
    others = best * (spread * torch.randn(instances, rivals, 8, generator=draw, dtype=torch.float64)).exp()
    others = others * budget.unsqueeze(-1) / -u2(b.sqrt(), others).unsqueeze(-1)
    least, same = minimal_trace(a, b, budget), isotropic_variance(b, budget)
    slacks = [
        information_trace(a, others) / least - 1,
        required(agreement(information_trace(a, best), least)),
        required(agreement(information_trace(a, same), gain_over_isotropic(a, b) * least)),
        *(required(agreement(-u2(b.sqrt(), variance), budget)) for variance in (best, same)),
    ]
    return checked(slacks, instances * rivals, "excess of the best rival's trace over the minimum, relative")


@theorem(
    "T2",
    "The trace of the Fisher information is the sum of sensitivity over noise variance.",
    source="eq. 7, Appendix A.2",
)
def trace_agrees_with_autodiff() -> Checked:
    """``sum a_i / variance_i`` is the trace of the curvature of the divergence between messages, by autodiff.

    The Fisher information is the Hessian of ``KL(p(y|x) || p(y|x'))`` at ``x' = x``, which needs no Jacobian.
    """
    network = build_network(MLP(width=3, activation="sigmoid"), (1, 2, 2), 3, seed=0)
    parameters, label, trials = network.parameters.double(), torch.tensor([1]), 20
    draw = generator("optimal_defense", "theory", "trace")
    inputs = torch.randn(trials, 4, generator=draw, dtype=torch.float64)
    variances = torch.randn(trials, network.dimension, generator=draw, dtype=torch.float64).exp()

    def gradient(x: torch.Tensor) -> torch.Tensor:
        return network.gradient(parameters, x.view(1, 1, 2, 2), label)

    def divergence(other: torch.Tensor, x: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return ((gradient(x) - gradient(other)).square() / variance).sum() / 2

    curvature = torch.func.vmap(torch.func.hessian(divergence))(inputs, inputs, variances)
    jacobian = torch.func.vmap(torch.func.jacfwd(gradient))(inputs)
    expected = curvature.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    slacks = [
        agreement(information_trace(jacobian.square().sum(dim=-1), variances), expected),
        EXACT - (gaussian_information(jacobian, variances) - curvature).abs().amax(dim=(-2, -1)) / expected,
    ]
    return checked(slacks, trials, DEVIATION)


@theorem(
    "T3",
    "The lower bound, with the largest eigenvalue of the prior's information, never exceeds the least error.",
    source="Theorem 1, eq. 1, corrected",
)
def bound_never_exceeds_the_exact_error() -> Checked:
    """The bound with the largest eigenvalue, and its sharper form, are below the least error of linear models."""
    trials = 2000
    draw = generator("optimal_defense", "theory", "bound")
    jacobian, root = (torch.randn(trials, rows, 4, generator=draw, dtype=torch.float64) for rows in (6, 4))
    scale = torch.randn(trials, 3, generator=draw, dtype=torch.float64).mul(2).exp()
    variance = torch.randn(trials, 6, generator=draw, dtype=torch.float64).exp() * scale[:, :1]
    prior = root.mT @ root + scale[:, 1:2, None] * torch.eye(4, dtype=torch.float64)
    exact = linear_gaussian_error(jacobian, variance, prior)
    trace = information_trace(jacobian.square().sum(dim=-1), variance)
    eigenvalues = torch.linalg.eigvalsh(prior)
    corrected, sharper = error_bound(trace, eigenvalues), error_bound(trace, eigenvalues, "sharper")
    slacks = [exact / sharper - 1, required(sharper / corrected - 1)]
    return checked(slacks, trials, "excess of the exact error over the sharper, so over either, bound, relative")


@theorem(
    "T4",
    "The mean of the bounds of a mixed defense is at least the bound at its mean Fisher information.",
    source="eq. 2",
)
def mixing_never_lowers_the_bound() -> Checked:
    """The mean of the mechanisms' bounds is at least the bound at their mean trace."""
    trials = 2000
    draw = generator("optimal_defense", "theory", "mixture")
    traces = torch.randn(trials, 3, generator=draw, dtype=torch.float64).mul(2).exp()
    weights = torch.rand(trials, 3, generator=draw, dtype=torch.float64)
    probabilities = weights / weights.sum(dim=-1, keepdim=True)
    prior = torch.rand(trials, 4, generator=draw, dtype=torch.float64)
    separate = (probabilities * error_bound(traces, prior.unsqueeze(-2))).sum(dim=-1)
    slack = separate / mixed_error_bound(traces, probabilities, prior) - 1
    return checked([slack], trials, "excess of the mean bound over the bound of the mean trace, relative")


@theorem(
    "T5",
    "Pruning the largest ratios of sensitivity to energy reveals no more than any set that keeps as much U1.",
    source="Theorem 4, eqs. 14-17, direction corrected",
)
def no_subset_reveals_less_than_the_knapsack() -> Checked:
    """No deterministic set that keeps as much ``U1`` reveals less than pruning the *largest* ratios.

    All ``2^10`` sets are tried.
    """
    instances, size = 200, 10
    a, b, draw = _sensitivity_and_energy("pruning", instances, size)
    budget = torch.rand(instances, generator=draw, dtype=torch.float64).mul(0.98).add(0.01) * b.sum(dim=-1)
    keep = keep_probabilities(a, b, budget)
    sets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=size)), dtype=torch.float64)
    best = torch.where(b @ sets.T >= budget.unsqueeze(-1), a @ sets.T, torch.inf).amin(dim=-1)
    slacks = [
        best / information_trace(a, torch.ones_like(a), keep) - 1,
        required(agreement((keep * b).sum(dim=-1), budget)),
        required(keep.minimum(1 - keep)),
    ]
    return checked(slacks, instances * 2**size, "excess of what the best set reveals over the knapsack's, relative")


@theorem(
    "T6",
    "Optimal noise leaves clipped coordinates without noise, and the pruned set depends neither on squaring the "
    "ratio nor on optimal noise on what is kept.",
    source="Theorem 3, eq. 13; Appendix A.4",
)
def clipping_and_pruning_agree_with_the_local_forms() -> Checked:
    """Clipped coordinates get no noise; the pruned set survives squared ratios, and optimal noise on the rest."""
    instances, size = 500, 20
    a, b, draw = _sensitivity_and_energy("clipping", instances, size)
    g = b.sqrt()
    clipped = g >= g.median(dim=-1, keepdim=True).values
    a_clipped = torch.where(clipped, 0.0, a)
    local = scale_variance(variance_ratio(a_clipped, g), g, 2.0, "u2")
    theory = optimal_variance(a_clipped, b, 2.0)
    ratio, budget = variance_ratio(a, g), torch.rand(instances, generator=draw, dtype=torch.float64) * b.sum(dim=-1)
    isotropic, noisy = keep_probabilities(a, b, budget), keep_probabilities((a * b).sqrt(), b, budget)
    kept = (~pruned(ratio, 0.3)).double()

    network = build_network(MLP(width=3, activation="sigmoid"), (1, 2, 2), 3, seed=0)
    images = torch.randn(5, 2, 1, 2, 2, generator=draw)
    streams = Streams([("optimal_defense", "theory", "client", client) for client in range(5)])
    steps = ClientSteps(network, network.parameters, images, torch.tensor([[0, 1]]).expand(5, -1), streams)
    bound = float(steps.gradient.abs().median())
    sent = OptimalClippedNoise(scale=0.1, clip=bound).protect_update(steps, streams.child("noise")).view()
    at_bound = steps.gradient.abs() >= bound

    wrong = [
        (theory > 0) == clipped,
        (local - theory).abs() > EXACT * theory,
        at_bound & (sent != bound * steps.gradient.sign()),
        *(pruned(ratio, part) != pruned(ratio.square(), part) for part in (0.1, 0.5, 0.9)),
        (isotropic - noisy).abs() > EXACT,
        (keep_probabilities(a, b, (kept * b).sum(dim=-1)) - kept).abs() > EXACT,
    ]
    return checked([-one.sum() for one in wrong], instances, "minus the number of coordinates that disagree")


@theorem(
    "T7",
    "Sensitivities from random directions are unbiased and spread like chi-square, within Lemma 1's bound.",
    source="Lemma 1",
)
def probes_follow_the_chi_square_law() -> Checked:
    """A sensitivity from 10 probes is unbiased, with the spread and the coverage of ``chi^2_10 / 10``."""
    trials, probes = 1500, 10
    network = build_network(Linear(), (1, 1, 2), 3, seed=0)
    image, label = torch.tensor([1.0, 2.0]).view(1, 1, 1, 1, 2), torch.tensor([[1]])
    streams = Streams([("optimal_defense", "theory", "probes", trial) for trial in range(trials)])
    rows = (image.expand(trials, -1, -1, -1, -1), label.expand(trials, -1))
    estimate = ClientSteps(network, network.parameters, *rows, streams).sensitivity(probes)
    jacobian = torch.func.jacfwd(lambda x: network.gradient(network.parameters, x, label[0]))(image[0])
    s = (estimate / jacobian.flatten(1).square().sum(dim=1)).double()

    def slack(mean: torch.Tensor, expected: float, spread: float) -> torch.Tensor:
        """Slack of each coordinate, in standard errors of a mean over the trials."""
        return STANDARD_ERRORS - (mean - expected).abs() / (spread / math.sqrt(trials))

    variance = relative_std(probes) ** 2
    slacks = [
        slack(s.mean(dim=0), 1.0, variance**0.5),
        # Variance of a sample variance: 2 + the excess kurtosis of the law, 12 / k.
        slack(s.var(dim=0), variance, variance * (2 + 12 / probes) ** 0.5),
        slack(s.sqrt().mean(dim=0), mean_power(probes, 0.5), (1 - mean_power(probes, 0.5) ** 2) ** 0.5),
    ]
    for tolerance in (0.25, 0.5, 1.0):
        exact = exact_coverage(probes, tolerance)
        inside = ((s - 1).abs() <= tolerance).double().mean(dim=0)
        slacks.append(slack(inside, exact, (exact * (1 - exact)) ** 0.5))
        slacks.append(required(torch.tensor(exact - chebyshev_coverage(probes, tolerance))))
    return checked(slacks, trials, f"standard errors between the largest deviation and {STANDARD_ERRORS:g}")
