"""Rényi differential privacy as a function of its order, and the best (epsilon, delta) that it implies.

A mechanism whose outputs on neighbours have Rényi divergence ``e(a)`` or less at order ``a`` is
``(e(a) + ln(1 / delta) / (a - 1), delta)``-DP (Mironov 2017), and ``T`` rounds of it have ``T e(a)``. A curve knows the
orders for which it is proved. The ones here are rational in the order and convex, so the least epsilon is found exactly
or by golden section. Orders and epsilons are floats, logarithms natural.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from leakbench.errors import ConfigError, Infeasible
from leakbench.theory.dp_capacity import Conversion

_GRID = 240
"""Orders, evenly in ``ln(a - 1)``, that bracket the best one."""
_SMALLEST, _LARGEST = 1e-6, 1e12
"""Range of ``a - 1``."""
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Guarantee:
    """``(epsilon, delta)``-DP, and the order that gives it."""

    epsilon: float
    delta: float
    order: float


def in_unit_interval(value: float, what: str) -> float:
    """``value``, if it lies in (0, 1).

    Raises:
        ConfigError: it does not.
    """
    if not 0 < value < 1:
        raise ConfigError(f"{what} must lie in (0, 1), found {value:g}")
    return value


def converted(divergence: float, order: float, delta: float, conversion: Conversion = "classical") -> float:
    """Epsilon of one order.

    ``classical`` adds ``ln(1 / delta) / (a - 1)``; ``improved`` adds ``ln(1 - 1/a) - ln(delta a) / (a - 1)``, and is 0
    at least.

    Args:
        divergence: ``e(a)``, not negative.
        order: ``a > 1``.
        delta: in (0, 1).
        conversion: see above.

    Raises:
        ConfigError: an argument is out of its range.
    """
    in_unit_interval(delta, "delta")
    if not (1 < order < math.inf and 0 <= divergence < math.inf):
        raise ConfigError(f"the order must exceed 1 and its divergence be finite, found {order:g} and {divergence:g}")
    if conversion == "classical":
        return divergence - math.log(delta) / (order - 1)
    return max(0.0, divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))


@dataclass(frozen=True)
class RenyiCurve(ABC):
    """A bound on the Rényi divergence of one round.

    Attributes:
        source: which bound it is, for messages.
        limit: orders lie in 1 to this, both excluded; infinite where all are allowed.
    """

    source: str
    limit: float

    @abstractmethod
    def _value(self, order: float) -> float: ...

    def epsilon(self, order: float) -> float:
        """``e(a)``.

        Raises:
            ConfigError: the order is not among those for which the bound is proved.
        """
        if not 1 < order < self.limit or math.isinf(order):
            raise ConfigError(f"{self.source} holds for orders alpha in (1, {self.limit:g}), found alpha = {order:g}")
        return self._value(order)

    def _best_order(self, rounds: float, weight: float) -> float | None:
        """The order that minimises ``rounds e(a) + weight / (a - 1)``, where it has a closed form."""
        return None

    def guarantee(self, delta: float, rounds: float = 1, conversion: Conversion = "classical") -> Guarantee:
        """The least epsilon at this delta of ``rounds`` rounds composed, over all orders.

        Where it falls towards an end of the orders, it is the limit there.

        >>> round(linear_curve("Gaussian noise of multiplier 1", slope=0.5).guarantee(delta=1e-5).epsilon, 4)
        5.2985

        Args:
            delta: of all rounds, in (0, 1).
            rounds: ``T``, at least 1.
            conversion: see :func:`converted`.

        Raises:
            ConfigError: an argument is out of its range.
        """
        in_unit_interval(delta, "delta")
        if not 1 <= rounds < math.inf:
            raise ConfigError(f"the number of rounds must be 1 at least, found {rounds:g}")

        def total(order: float) -> float:
            return converted(rounds * self._value(order), order, delta, conversion)

        order = self._best_order(rounds, -math.log(delta)) if conversion == "classical" else None
        if order is None:
            order = self._searched(total)
        return Guarantee(total(order), delta, order)

    def _searched(self, total: Callable[[float], float]) -> float:
        end = min(math.log(_LARGEST), math.log(self.limit - 1) - 1e-9)
        start = min(math.log(_SMALLEST), end - 1)
        points = [start + (end - start) * i / (_GRID - 1) for i in range(_GRID)]
        at = min(range(_GRID), key=lambda i: total(1 + math.exp(points[i])))
        low, high = points[max(at - 1, 0)], points[min(at + 1, _GRID - 1)]
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        f_left, f_right = total(1 + math.exp(left)), total(1 + math.exp(right))
        while high - low > 1e-9:
            if f_left <= f_right:
                high, right, f_right = right, left, f_left
                left = high - _GOLDEN * (high - low)
                f_left = total(1 + math.exp(left))
            else:
                low, left, f_left = left, right, f_right
                right = low + _GOLDEN * (high - low)
                f_right = total(1 + math.exp(right))
        return 1 + math.exp((low + high) / 2)


@dataclass(frozen=True)
class LinearCurve(RenyiCurve):
    """``e(a) = c a``: of noise whose covariance does not depend on the data.

    Attributes:
        slope: ``c``, half the square of the sensitivity over the variance.
    """

    slope: float

    def _value(self, order: float) -> float:
        return self.slope * order

    def _best_order(self, rounds: float, weight: float) -> float:
        return 1 + math.sqrt(weight / (rounds * self.slope))


@dataclass(frozen=True)
class PoleCurve(RenyiCurve):
    """``e(a) = (m a + v a / (a - 1)) / (p - a)``: of noise whose covariance depends on the data, by log-determinants.

    In partial fractions it is ``-m + P / (p - a) + Q / (a - 1)``, which gives the best order in closed form.

    Attributes:
        pole: ``p``, not below the limit of orders.
        mean: ``m``, of the difference of means.
        spread: ``v``, of the difference of covariances.
    """

    pole: float
    mean: float
    spread: float

    def _value(self, order: float) -> float:
        return order * (self.mean + self.spread / (order - 1)) / (self.pole - order)

    def _best_order(self, rounds: float, weight: float) -> float:
        width = self.pole - 1
        far = math.sqrt(rounds * self.pole * (self.mean + self.spread / width))
        near = math.sqrt(rounds * self.spread / width + weight)
        return min(1 + width * near / (near + far), self.limit)


@dataclass(frozen=True)
class RepairedCurve(RenyiCurve):
    """``e(a) = c a / (1 - (a - 1) r) + w a r^2 (1 + (a - 1) r^2) / ((1 - r)^2 (1 - (a - 1) r)^2)``.

    For noise whose covariance changes by ``r`` of itself in Frobenius norm, ``(a - 1) r < 1``; it has no pole at 1.

    Attributes:
        slope: ``c``, of the difference of means.
        change: ``r``, in (0, 1).
        weight: ``w``: 1/4, or 1/2 where two eigenvalues may each change by ``r``.
    """

    slope: float
    change: float
    weight: float

    def _value(self, order: float) -> float:
        change, above = self.change, order - 1
        left = 1 - above * change
        spread = self.weight * (change / ((1 - change) * left)) ** 2 * (1 + above * change**2)
        return order * (self.slope / left + spread)


def linear_curve(source: str, slope: float) -> LinearCurve:
    """A curve for all orders."""
    return LinearCurve(source, math.inf, slope)


def pole_curve(source: str, pole: float, mean: float, spread: float, limit: float | None = None) -> PoleCurve:
    """A curve for orders up to its pole, or up to a smaller limit.

    Raises:
        Infeasible: no order is left.
    """
    end = pole if limit is None else min(limit, pole)
    if not end > 1:
        raise Infeasible(f"{source}: no order alpha is left, since alpha must lie in (1, {end:g})")
    return PoleCurve(source, end, pole, mean, spread)


def repaired_curve(source: str, slope: float, change: float, weight: float) -> RepairedCurve:
    """A curve for orders up to ``1 + 1 / r``.

    Raises:
        Infeasible: ``r`` is not below 1, so that a neighbour's covariance may be singular.
    """
    if not change < 1:
        raise Infeasible(f"{source}: the covariance may change by r = {change:g} of itself, and r must lie below 1")
    return RepairedCurve(source, 1 + 1 / change, slope, change, weight)
