"""Differential privacy of many rounds from that of each: Kairouz, Oh and Viswanath (2015), Theorems 3.3 to 3.5.

Rounds may be chosen adaptively. Composition of Rényi divergences is :meth:`RenyiCurve.guarantee`'s. Theorem 3.3 is
exact, that is, the best that holds for all mechanisms of such an epsilon and delta.
"""

from __future__ import annotations

import math

from leakbench.errors import ConfigError
from leakbench.lazy import torch


def _checked(epsilon: torch.Tensor, delta: torch.Tensor) -> None:
    if not bool((epsilon.isfinite() & (epsilon >= 0)).all() and ((delta >= 0) & (delta < 1)).all()):
        raise ConfigError("composition needs finite epsilons, not negative, and deltas in [0, 1)")


def _slack(slack: float) -> None:
    if not 0 < slack <= 1:
        raise ConfigError(f"the slack of delta must lie in (0, 1], found {slack:g}")


def _rounds(rounds: int) -> None:
    if rounds < 1:
        raise ConfigError(f"the number of rounds must be 1 at least, found {rounds}")


def _three(linear: float, drift: float, square: float, slack: float) -> tuple[float, float, float]:
    """The three epsilons from the sums of ``e``, of ``e tanh(e/2)`` and of ``e^2``."""
    wide = math.sqrt(2 * square * math.log(math.e + math.sqrt(square) / slack))
    return linear, drift + wide, drift + math.sqrt(2 * square * math.log(1 / slack))


def composition_terms(epsilon: float, rounds: int, slack: float) -> tuple[float, float, float]:
    """The three epsilons of ``T`` rounds of which Theorem 3.4 takes the least.

    ``T e``, and ``T e tanh(e/2) + e sqrt(2 T ln(...))`` of ``2.718... + sqrt(T e^2) / slack`` and of ``1 / slack``.
    Delta is that of :func:`composed_delta`.

    Args:
        epsilon: of a round.
        rounds: ``T``.
        slack: in (0, 1].

    Raises:
        ConfigError: an argument is out of its range.
    """
    _slack(slack)
    _rounds(rounds)
    _checked(torch.tensor(epsilon), torch.tensor(0.0))
    return _three(rounds * epsilon, rounds * epsilon * math.tanh(epsilon / 2), rounds * epsilon**2, slack)


def composed_round(epsilon: float, rounds: int, slack: float) -> float:
    """Epsilon of ``T`` rounds by Theorem 3.4: the least of :func:`composition_terms`.

    >>> round(composed_round(0.1, rounds=100, slack=1e-5), 4)
    5.2981
    """
    return min(composition_terms(epsilon, rounds, slack))


def composed_delta(delta: float, rounds: int, slack: float) -> float:
    """``1 - (1 - delta)^T (1 - slack)``.

    Raises:
        ConfigError: an argument is out of its range.
    """
    _slack(slack)
    _rounds(rounds)
    _checked(torch.tensor(0.0), torch.tensor(delta))
    return 1.0 if slack == 1 else -math.expm1(rounds * math.log1p(-delta) + math.log1p(-slack))


def composed_rounds(epsilons: torch.Tensor, deltas: torch.Tensor, slack: float) -> tuple[float, float]:
    """Epsilon and delta of rounds that differ (Theorem 3.5), ``[T]`` each.

    Raises:
        ConfigError: an argument is out of its range; there are no rounds, or not as many of both.
    """
    _slack(slack)
    _checked(epsilons, deltas)
    if epsilons.shape != deltas.shape or epsilons.ndim != 1 or not len(epsilons):
        raise ConfigError(
            f"composition needs an epsilon and a delta per round, found {tuple(epsilons.shape)}, {tuple(deltas.shape)}"
        )
    exact = epsilons.double()
    drift = float((exact * (exact / 2).tanh()).sum())
    log_kept = float((-deltas.double()).log1p().sum()) + (math.log1p(-slack) if slack < 1 else -math.inf)
    return min(_three(float(exact.sum()), drift, float(exact.square().sum()), slack)), -math.expm1(log_kept)


def optimal_composition(epsilon: float, delta: float, rounds: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact guarantee of ``T`` equal rounds: pairs of epsilon and delta, float64 ``[T // 2 + 1]`` (Theorem 3.3).

    ``((T - 2 i) e, 1 - (1 - delta)^T (1 - delta_i))`` for ``i`` from 0, with
    ``delta_i = sum_{l < i} binom(T, l) (e^((T - l) e) - e^((T - 2 i + l) e)) / (1 + e^e)^T``.
    Epsilons fall, deltas grow.

    Args:
        epsilon: of a round.
        delta: of a round, in [0, 1).
        rounds: ``T``; time and memory grow with its square.

    Raises:
        ConfigError: an argument is out of its range.
    """
    _rounds(rounds)
    _checked(torch.tensor(epsilon), torch.tensor(delta))
    i = torch.arange(rounds // 2 + 1, dtype=torch.float64)
    steps, below = i[:, None], i[None, :]
    whole = torch.tensor(float(rounds), dtype=torch.float64)
    ways = torch.lgamma(whole + 1) - torch.lgamma(below + 1) - torch.lgamma(whole - below + 1)
    # ln of (e^e / (1 + e^e))^(T - l) (1 / (1 + e^e))^l, which does not overflow
    one, zero = math.log1p(math.exp(-epsilon)), epsilon + math.log1p(math.exp(-epsilon))
    size = ways - (rounds - below) * one - below * zero
    excess = -torch.expm1(-2 * (steps - below).clamp(min=0) * epsilon)
    lost = (size.exp() * excess).sum(dim=-1).clamp(max=1)
    kept = math.exp(rounds * math.log1p(-delta))
    return (rounds - 2 * i) * epsilon, -math.expm1(rounds * math.log1p(-delta)) + kept * lost


def optimal_epsilon(epsilon: float, delta: float, rounds: int, target: float) -> float:
    """The least epsilon of :func:`optimal_composition` at a delta of ``target`` or less.

    Raises:
        ConfigError: an argument is out of its range; the rounds' own deltas exceed the target.
    """
    epsilons, deltas = optimal_composition(epsilon, delta, rounds)
    fits = deltas <= target * (1 + 1e-12)
    if not bool(fits[0]):
        raise ConfigError(
            f"{rounds} rounds of delta = {delta:g} have a delta of {float(deltas[0]):g} at least, above {target:g}"
        )
    return float(epsilons[fits].min())
