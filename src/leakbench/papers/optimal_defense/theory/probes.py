"""Accuracy of a sensitivity from ``k`` random probes: ``k s`` follows a chi-square law with ``k`` degrees of freedom.

``s`` is the estimate over the truth, ``mean_j <grad f, v_j>^2 / ||grad f||^2`` with standard normal ``v_j``. Everything
here is about one coordinate: all coordinates share the probes, so their errors are dependent, and statements about all
of them at once need more. Source: Chen, Gürsoy and Lei (2024), Algorithm 1 and Lemma 1; the exact values are ours.
"""

from __future__ import annotations

import math

from leakbench.lazy import torch


def relative_std(probes: int) -> float:
    """Standard deviation of the estimate over the truth, ``sqrt(2 / k)``."""
    return math.sqrt(2 / probes)


def chebyshev_coverage(probes: int, tolerance: float) -> float:
    """Lemma 1's lower bound on ``P(|s - 1| <= tolerance)``: ``1 - 2 / (k tolerance^2)``, or 0 if that is negative."""
    return max(0.0, 1 - relative_std(probes) ** 2 / tolerance**2)


def exact_coverage(probes: int, tolerance: float) -> float:
    """``P(|s - 1| <= tolerance)`` itself, in float64."""

    def below(s: float) -> float:
        half = torch.tensor([probes / 2, probes * max(s, 0.0) / 2], dtype=torch.float64)
        return float(torch.special.gammainc(half[0], half[1]))

    return below(1 + tolerance) - below(1 - tolerance)


def mean_power(probes: int, power: float) -> float:
    """``E s^power``; infinite where ``power <= -k / 2``."""
    half = probes / 2
    if half + power <= 0:
        return math.inf
    return math.exp(math.lgamma(half + power) - math.lgamma(half) - power * math.log(half))


def trace_penalty(probes: int) -> float:
    """The cost of estimating: the mean factor on the trace of the Fisher information at equal utility.

    Noise whose variances come from independent estimates has ``E[s^1/2] E[s^-1/2]`` times the minimal trace, in the
    limit of many coordinates; infinite for one probe. The common factor ``E[s^1/2]`` by which the estimated norms are
    too small cancels when variances are scaled to a budget.
    """
    return mean_power(probes, 0.5) * mean_power(probes, -0.5)
