"""Differential privacy against membership inference: the best possible ROC curve.

A test between two neighbouring data sets, from the output of an (epsilon, delta)-private mechanism, with a rate ``a``
of false positives has at least ``max(0, 1 - delta - e^epsilon a, e^-epsilon (1 - delta - a))`` false negatives
(Wasserman and Zhou 2010; the trade-off function of Dong, Roth and Su 2022, Proposition 3). The function is convex, so
that it also bounds the average over random neighbours and candidates: members against fresh records in their place.
"""

from __future__ import annotations

import math

from leakbench.errors import ConfigError


def _checked(epsilon: float, delta: float) -> tuple[float, float]:
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise ConfigError(f"epsilon must not be negative and delta lie in [0, 1], found {epsilon:g} and {delta:g}")
    return epsilon, delta


def auc_bound(epsilon: float, delta: float) -> float:
    """The largest area under the ROC curve: ``1 - (1 - delta)^2 / (1 + e^epsilon)``.

    The two lines of the trade-off function meet where both rates are ``(1 - delta) / (1 + e^epsilon)``.

    >>> round(auc_bound(epsilon=1.0, delta=1e-5), 4)
    0.7311

    Args:
        epsilon: not negative; it may be infinite.
        delta: in [0, 1].

    Raises:
        ConfigError: an argument is out of its range.
    """
    epsilon, delta = _checked(epsilon, delta)
    return 1 - (1 - delta) ** 2 * math.exp(-epsilon) / (1 + math.exp(-epsilon))


def true_positive_bound(epsilon: float, delta: float, false_positives: float) -> float:
    """The largest rate of true positives at a rate of false positives.

    Args:
        epsilon: not negative; it may be infinite.
        delta: in [0, 1].
        false_positives: in [0, 1].

    Raises:
        ConfigError: an argument is out of its range.
    """
    epsilon, delta = _checked(epsilon, delta)
    if not 0 <= false_positives <= 1:
        raise ConfigError(f"a rate of false positives lies in [0, 1], found {false_positives:g}")
    steep = 1.0 if epsilon > 700 else delta + math.exp(epsilon) * false_positives  # e^700 is the last float64
    return min(1.0, steep, 1 - math.exp(-epsilon) * (1 - delta - false_positives))
