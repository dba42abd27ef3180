"""Bayesian privacy leakage between discrete beliefs, and its bounds by total variation.

An attacker's belief is a law over candidates for the private data: ``F^B`` before, ``F^O`` after an unprotected and
``F^A`` after a protected upload. Leakage is the root of the Jensen-Shannon divergence to ``F^B``, in nats^(1/2), so at
most ``sqrt(ln 2)``. ``C1`` is that of ``F^O``; ``xi`` the largest log ratio of posterior to prior; ``C2`` is
``(e^(2 xi) - 1) / 2``; ``TV`` the total variation between uploads before and after protection; ``x = C2 TV``.
Source: Zhang, Kang et al. (2023), section 4 and Appendix E. Proved is that leakage lies within ``x`` of ``C1``
(:func:`leakage_bounds`); Theorem 4.1 (:func:`printed_bound`) is false for ``C1 / 2 < x < C1``, and the metric of eq. 6
(:func:`leakage_metric`), which everything else of the paper uses, is no bound.
"""

from __future__ import annotations

import math
from typing import Literal

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.theory.arguments import positive

LARGEST_LEAKAGE = math.sqrt(math.log(2))
"""Leakage between beliefs without a common candidate."""

Form = Literal["as_printed", "corrected"]
"""A formula of the paper as printed, with its slips, or corrected."""
Equation = Literal["eq3", "eq4"]
"""Theorem 4.1. ``eq3``: ``max(2 C1 - x, 3x - C1)``; ``eq4``: the first up to ``x = C1``, beyond it the second."""

_ROUNDING = 1e-9


def law(values: torch.Tensor, what: str) -> torch.Tensor:
    """``values`` as discrete laws, float64 ``[..., D]``.

    Args:
        values: probabilities, ``[..., D]``.
        what: their name, for the message.

    Raises:
        ConfigError: a value is negative or not finite, or they do not sum to one.
    """
    laws = torch.as_tensor(values, dtype=torch.float64)
    if not bool((laws.isfinite() & (laws >= 0)).all()):
        raise ConfigError(f"{what} must be probabilities, found a value that is negative or not finite")
    off = (laws.sum(dim=-1) - 1).abs()
    if bool((off > _ROUNDING).any()):
        raise ConfigError(f"{what} must sum to 1, found a sum that is off by {float(off.max()):g}")
    return laws


def not_negative(value: torch.Tensor | float, what: str) -> torch.Tensor:
    """``value`` as a float64 tensor of its shape.

    Raises:
        ConfigError: some of it is negative or NaN.
    """
    result = torch.as_tensor(value, dtype=torch.float64)
    if not bool((result >= 0).all()):
        raise ConfigError(f"{what} must not be negative, found {result[~(result >= 0)].flatten()[0].item():g}")
    return result


def js_divergence(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Jensen-Shannon divergence, nats, ``[..., D] -> [...]``; in [0, ln 2].

    With ``p = m (1 + u)`` and ``q = m (1 - u)`` it is half the mean under ``m`` of ``ln(1 - u^2) + 2 u artanh(u)``,
    which keeps its digits where the two are close.

    Raises:
        ConfigError: one of them is no law.
    """
    p, q = law(first, "beliefs"), law(second, "beliefs")
    total = p + q
    tilt = torch.where(total > 0, (p - q) / total, 0.0)
    near = torch.where(tilt.abs() < 0.5, tilt, 0.0)
    close = (-near.square()).log1p() + 2 * near * near.atanh()
    apart = torch.xlogy(1 + tilt, 1 + tilt) + torch.xlogy(1 - tilt, 1 - tilt)
    return (total * torch.where(tilt.abs() < 0.5, close, apart)).sum(dim=-1) / 4


def leakage(belief: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    """``sqrt(JS)``, ``[..., D] -> [...]``; in [0, sqrt(ln 2)] (eq. 2). A metric between laws.

    ``C1`` of a client is that of its belief after unprotected uploads; ``C1`` of the system the mean over clients.

    >>> round(float(leakage(torch.tensor([0.75, 0.25]), prior=torch.tensor([0.5, 0.5]))), 4)
    0.1839

    Raises:
        ConfigError: one of them is no law.
    """
    return js_divergence(belief, prior).sqrt()


def total_variation(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Half the sum of absolute differences, ``[..., W] -> [...]``; in [0, 1].

    Raises:
        ConfigError: one of them is no law.
    """
    return (law(first, "uploads") - law(second, "uploads")).abs().sum(dim=-1) / 2


def largest_log_ratio(posterior: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    """``xi``: the largest ``|ln f(d | w) / f(d)|`` over uploads and candidates, ``[..., W, D] -> [...]``.

    Infinite where an upload excludes a candidate. Candidates that are impossible before and after do not count.

    Args:
        posterior: a belief for every upload ``w``.
        prior: ``[..., D]``.

    Raises:
        ConfigError: one of them is no law.
    """
    after, before = law(posterior, "beliefs"), law(prior, "the prior").unsqueeze(-2)
    ratio = (after.log() - before.log()).abs()
    return torch.where((after > 0) | (before > 0), ratio, 0.0).amax(dim=(-1, -2))


def amplification(xi: torch.Tensor | float) -> torch.Tensor:
    """``C2 = (e^(2 xi) - 1) / 2``, ``[...]``, by which a change of uploads can change beliefs (Lemma E.4).

    Raises:
        ConfigError: ``xi`` is negative.
    """
    return (2 * not_negative(xi, "xi")).expm1() / 2


def leakage_bounds(c1: torch.Tensor | float, x: torch.Tensor | float) -> tuple[torch.Tensor, torch.Tensor]:
    """``C1 - x`` (Lemma E.2) and ``C1 + x``, between which leakage lies, ``[...]`` each.

    Both follow from the triangle inequality and Lemma E.4. The lower one says nothing where it is negative, the upper
    one where it exceeds ``sqrt(ln 2)``. No bound of the paper is below ``C1`` and valid.

    Raises:
        ConfigError: an argument is negative.
    """
    centre, radius = not_negative(c1, "C1"), not_negative(x, "x")
    return centre - radius, centre + radius


def printed_bound(c1: torch.Tensor | float, x: torch.Tensor | float, equation: Equation = "eq3") -> torch.Tensor:
    """Theorem 4.1 as printed, ``[...]``. It holds for ``x <= C1 / 2`` and for ``x >= C1``, and fails in between.

    Raises:
        ConfigError: an argument is negative.
    """
    centre, radius = not_negative(c1, "C1"), not_negative(x, "x")
    falling, rising = 2 * centre - radius, 3 * radius - centre
    return torch.maximum(falling, rising) if equation == "eq3" else torch.where(radius <= centre, falling, rising)


def leakage_metric(c1: torch.Tensor | float, c2: torch.Tensor | float, variation: torch.Tensor | float) -> torch.Tensor:
    """``2 C1 - C2 TV``, ``[...]``: the paper's constraint in place of leakage (eq. 6).

    Args:
        c1: ``C1``.
        c2: ``C2``, positive.
        variation: total variation, the mean over clients.

    Raises:
        ConfigError: ``C1`` or the total variation is negative, or ``C2`` not positive.
    """
    distance = not_negative(variation, "the total variation")
    return 2 * not_negative(c1, "C1") - positive(c2, "C2") * distance


def utility_loss_bound(variation: torch.Tensor | float, largest_utility: torch.Tensor | float = 1.0) -> torch.Tensor:
    """``C4 TV``, ``[...]``: upper bound on the loss of utility (Lemma E.6).

    Args:
        variation: total variation between the aggregated models.
        largest_utility: ``C4``, of a utility in [0, C4]; 1 for accuracy.

    Raises:
        ConfigError: an argument is negative.
    """
    return not_negative(largest_utility, "C4") * not_negative(variation, "the total variation")


def efficiency_loss_bound(variation: torch.Tensor | float, largest_cost: torch.Tensor | float = 1.0) -> torch.Tensor:
    """``C5 TV``, ``[...]``: upper bound on the rise of costs (Lemma E.7).

    Args:
        variation: total variation between uploads, the mean over clients.
        largest_cost: ``C5``, of a cost in [0, C5].

    Raises:
        ConfigError: an argument is negative.
    """
    return not_negative(largest_cost, "C5") * not_negative(variation, "the total variation")
