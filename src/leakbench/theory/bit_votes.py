"""Bits that clients flip and a server votes on: recovery, error, noise and epsilon.

Each of ``R`` clients writes a value as ``b`` bits and keeps each masked bit with probability ``p``, else flips it; the
server sets a bit where enough clients sent a one. Bit positions count from the left, and position 0 is the sign.
Source: Deng et al. (2024), eqs. 1 to 7, 9 and 10, Theorems 1 and 2. Float64 throughout; probabilities of errors are
tails of binomials, computed as such and not as differences from one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, TypeAlias

from leakbench.errors import ConfigError
from leakbench.lazy import np, torch

VoteRule: TypeAlias = Literal["printed", "majority"]
"""Threshold of a voted one. ``printed``: ``R p / 2`` ones (eq. 2); ``majority``: ``R / 2``."""


def least_ones(clients: int, keep: float, rule: VoteRule = "printed") -> int:
    """The smallest number of ones that make a voted bit one; ties are ones under either rule.

    Eq. 2 divides by ``R p``. An unbiased test of randomised responses divides by ``R (2 p - 1)`` after subtracting
    ``R (1 - p)``, and is the majority at every p.

    Args:
        clients: R.
        keep: p, taken as its printed decimal, so that no rounding moves the threshold.
        rule: see :data:`VoteRule`.
    """
    return math.ceil(Fraction(clients, 2) * (Fraction(repr(float(keep))) if rule == "printed" else 1))


def _few(least: int, clients: int, probability: float) -> float:
    """``P(Bin(clients, probability) < least)``."""
    from scipy.stats import binom

    return float(binom.cdf(least - 1, clients, probability))


def _many(least: int, clients: int, probability: float) -> float:
    """``P(Bin(clients, probability) >= least)``."""
    from scipy.stats import binom

    return float(binom.sf(least - 1, clients, probability))


def recovery_probability(clients: int, keep: float) -> float:
    """``P(Bin(R, p) >= ceil(R / 2))`` (eq. 3): that a vote recovers a bit of all clients, if half of them is enough."""
    return _many(math.ceil(clients / 2), clients, keep)


def recovery_error(clients: int, keep: float) -> float:
    """``1 - recovery_probability`` as a tail of its own, accurate where the difference would be zero."""
    return _few(math.ceil(clients / 2), clients, keep)


def vote_errors(clients: int, keep: float, rule: VoteRule = "printed") -> tuple[float, float]:
    """Probabilities that the vote loses a bit which all clients share: where it is one, and where it is zero.

    Eq. 3 states one number for both. Under the printed rule they differ by orders of magnitude, and of small values the
    masked bits, high ones, are zeros.
    """
    least = least_ones(clients, keep, rule)
    return _few(least, clients, keep), _many(least, clients, 1 - keep)


def bit_weight(position: int, decimals: int, width: int = 16) -> float:
    """The weight of a magnitude bit: ``xi = 2^(j - 1) / 10^z`` with ``j = width - position`` (before eq. 4).

    Raises:
        ConfigError: the word has no such magnitude bit.
    """
    if not 0 < position < width:
        raise ConfigError(f"bit position {position}: the magnitude's are 1 to {width - 1}")
    return float(2 ** (width - 1 - position) / 10**decimals)


def aggregation_error(
    clients: int, keep: float, position: int, decimals: int, width: int = 16, true_bit: Literal[0, 1] | None = None
) -> float:
    """``xi (1 - p_gamma2)``, the expected error of one masked bit after the vote (eq. 4).

    Args:
        clients: ``R``, who vote.
        keep: ``p``, the probability that a bit is not flipped.
        position: of the bit in the word, from the left; the sign is 0.
        decimals: ``z``, that the fixed-point form keeps.
        width: bits of a word, ``b``.
        true_bit: the bit's value, for the rule of eq. 2; None for the printed formula.
    """
    error = recovery_error(clients, keep) if true_bit is None else vote_errors(clients, keep)[1 - true_bit]
    return bit_weight(position, decimals, width) * error


def epsilon_per_bit(keep: float) -> float:
    """``ln(p / (1 - p))`` (eq. 7), the only epsilon that the paper states; infinite at ``p = 1``.

    >>> round(epsilon_per_bit(0.98), 3)
    3.892
    """
    return math.log(keep) - math.log1p(-keep) if keep < 1 else math.inf


def keep_for_epsilon(epsilon: float) -> float:
    """The p of a given epsilon per bit, ``1 / (1 + e^-epsilon)``."""
    return 1 / (1 + math.exp(-epsilon))


def composed_epsilon(keep: float, masked: int, values: int = 1, rounds: int = 1) -> float:
    """Epsilon of all masked bits, if nothing else were sent: that of one bit times ``masked * values * rounds``."""
    return masked * values * rounds * epsilon_per_bit(keep)


def value_epsilon(keep: float, masked: int, width: int = 16) -> float:
    """Epsilon of one whole value: infinite, unless every bit is masked.

    Unmasked bits travel in clear, so two values that differ in one of them are distinguished with certainty.
    """
    return composed_epsilon(keep, masked) if masked >= width else math.inf


def likelihood_ratio(keep: float, masked: int) -> float:
    """Largest ratio of an output's probabilities under two inputs of ``masked`` bits, found by enumeration."""
    words = np.array(list(itertools.product((0, 1), repeat=masked)))
    flips = (words[:, None] != words[None]).sum(axis=2)  # of every input and output
    probability = keep ** (masked - flips) * (1 - keep) ** flips
    return float((probability.max(axis=0) / probability.min(axis=0)).max())


def flip_moments(keep: float, decimals: int, mask: Sequence[int], width: int = 16) -> tuple[float, float]:
    """Mean and variance that flips add to the magnitude of a value whose masked bits are zero.

    In sign-magnitude codes the noise has the sign of the value.

    Args:
        keep: p.
        decimals: z.
        mask: magnitude bits that are flipped.
        width: b.
    """
    weights = [bit_weight(position, decimals, width) for position in mask]
    flip = 1 - keep
    return flip * sum(weights), flip * keep * sum(weight**2 for weight in weights)


def smoothness(rho: float, beta: float, beta1: float, beta2: float) -> float:
    """``beta_hat = rho^2 beta2 + beta beta1`` (section 4.6)."""
    return rho**2 * beta2 + beta * beta1


def convergence_bound(
    gap: torch.Tensor | float,
    rounds: torch.Tensor | float,
    rate: float,
    radius: float,
    variance: float,
    smooth: float,
    growth: float,
) -> torch.Tensor:
    """Theorem 1 as printed (eqs. 9, 17): ``mu (4 gap / (T eta) + 4 T sigma^2 beta_hat^2 (eta + gamma^2))``.

    It bounds the mean excess risk over T rounds. The second term grows with T, so it does not show convergence.

    Args:
        gap: ``L(theta_0) - E L(theta_T)``, ``[...]``.
        rounds: T, ``[...]``.
        rate: eta.
        radius: gamma.
        variance: ``sigma^2`` of the clients' gradients.
        smooth: ``beta_hat``.
        growth: mu of the Polyak-Lojasiewicz condition.

    Raises:
        ConfigError: ``eta`` or ``gamma`` is above ``1 / (2 beta_hat)``, where the theorem says nothing.
    """
    for name, value in (("rate", rate), ("radius", radius)):
        if value > 1 / (2 * smooth):
            raise ConfigError(f"{name} {value:g}: Theorem 1 holds up to 1 / (2 beta_hat) = {1 / (2 * smooth):g}")
    gap, rounds = (torch.as_tensor(value, dtype=torch.float64) for value in (gap, rounds))
    return growth * (4 * gap / (rounds * rate) + 4 * rounds * variance * smooth**2 * (rate + radius**2))


def loss_gap_bound(clients: int, keep: float, weight: float, rho: float, beta1: float) -> float:
    """Theorem 2, first part, as printed (eqs. 10, 18): ``beta1 rho xi (1 - p_gamma2)``.

    It counts one flipped bit of one value, whatever the number of values.
    """
    return beta1 * rho * weight * recovery_error(clients, keep)


def gradient_gap_bound(
    clients: int,
    keep: float,
    weight: float,
    rho: float,
    beta: float,
    beta1: float,
    beta2: float,
    place: Literal["statement", "proof"] = "statement",
) -> float:
    """Theorem 2, second part: ``C xi (1 - p_gamma2)``, whose constant the paper prints in two ways.

    Args:
        clients: ``R``, who vote.
        keep: ``p``, the probability that a bit is not flipped.
        weight: ``xi``, of the bit (:func:`bit_weight`).
        rho: Lipschitz constant of the model's output by its parameters.
        beta: that of the output's gradient by the parameters.
        beta1: that of the loss by the output.
        beta2: that of the loss's gradient by the output.
        place: ``statement``: ``C = rho beta2 + beta1``; ``proof``: ``C = rho^2 beta2 + beta beta1``.
    """
    constant = rho * beta2 + beta1 if place == "statement" else smoothness(rho, beta, beta1, beta2)
    return constant * weight * recovery_error(clients, keep)
