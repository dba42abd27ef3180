"""DP-SGD seen as a channel: the capacity of a step, and the epsilon of one step and of all.

The mechanism adds noise of variance ``sigma = (z S)^2`` to a sum of ``B`` gradients clipped at norm ``S``, and divides
by ``B``; ``z`` is the noise multiplier, ``sigma`` a variance. The mean gradient has covariance ``Sigma_g / B`` of trace
at most ``S^2 / B``. Capacities are in nats and count one message, which holds a whole batch.
Source: Tan et al. (2024), Theorem 4 and Appendix C.5. Its proof leaves out the 1/2 of eq. 15, so the printed bounds are
twice what follows: form ``corrected`` is the half, ``as_printed`` the paper's.
"""

from __future__ import annotations

import math
from typing import Literal

from leakbench.errors import ConfigError
from leakbench.lazy import np, torch
from leakbench.theory.arguments import positive

DPForm = Literal["corrected", "as_printed"]
Conversion = Literal["improved", "classical"]


def _share(form: DPForm) -> float:
    return 0.5 if form == "corrected" else 1.0


def _release_factor(delta: float) -> float:
    """``2 ln(1.25 / delta)``.

    Raises:
        ConfigError: delta is not in (0, 1).
    """
    if not 0 < delta < 1:
        raise ConfigError(f"delta must lie in (0, 1), found {delta:g}")
    return 2 * math.log(1.25 / delta)


def step_capacity(
    batch: float, variance: torch.Tensor | float, clip: float = 1.0, form: DPForm = "corrected"
) -> torch.Tensor:
    """Bound on the capacity of a step for any number of parameters, nats, ``[...]`` (Theorem 4 (1)).

    Args:
        batch: ``B``.
        variance: ``sigma`` of the noise on the sum, a positive number or ``[...]``.
        clip: ``S``.
        form: ``corrected``: ``B S^2 / (2 sigma)``; ``as_printed``: ``B S^2 / sigma``, which is valid and loose.

    Raises:
        ConfigError: the variance is not positive.
    """
    return _share(form) * batch * clip**2 / positive(variance, "the variance of noise")


def finite_step_capacity(
    batch: float, variance: torch.Tensor | float, dimension: torch.Tensor | float, clip: float = 1.0
) -> torch.Tensor:
    """The bound for ``d`` parameters, ``d/2 ln(1 + B S^2 / (sigma d))``, nats, ``[...]``; below :func:`step_capacity`.

    Equal eigenvalues ``S^2 / (B d)`` are the worst case of a covariance of trace ``S^2 / B``.

    Args:
        batch: ``B``.
        variance: ``sigma``, a positive number or ``[...]``.
        dimension: ``d``, a positive number or ``[...]``.
        clip: ``S``.

    Raises:
        ConfigError: the variance or the dimension is not positive.
    """
    size = positive(dimension, "the number of parameters")
    return size / 2 * (batch * clip**2 / (positive(variance, "the variance of noise") * size)).log1p()


def multiplier_capacity(batch: float, multiplier: torch.Tensor | float, form: DPForm = "corrected") -> torch.Tensor:
    """:func:`step_capacity` of a noise multiplier ``z``, nats, ``[...]``: ``B / z^2`` printed, half of it corrected.

    The clipping norm cancels, since ``sigma = (z S)^2``.

    Raises:
        ConfigError: the multiplier is not positive.
    """
    return step_capacity(batch, positive(multiplier, "the noise multiplier").square(), form=form)


def capacity_multiplier(batch: float, kappa: torch.Tensor | float, form: DPForm = "corrected") -> torch.Tensor:
    """The noise multiplier at which the bound of a step is ``kappa`` nats, ``[...]``: ``sqrt(B / kappa)`` printed.

    Raises:
        ConfigError: ``kappa`` is not positive.
    """
    return (_share(form) * batch / positive(kappa, "the capacity")).sqrt()


def epsilon_capacity(
    batch: float, epsilon: torch.Tensor | float, delta: float, form: DPForm = "corrected"
) -> torch.Tensor:
    """Bound on the capacity of a step of given epsilon, nats, ``[...]`` (Theorem 4 (2)).

    Args:
        batch: ``B``.
        epsilon: of a single release by the classical Gaussian mechanism, so below 1 strictly; not that of a whole run.
        delta: in (0, 1).
        form: ``corrected``: ``B epsilon^2 / (4 ln(1.25 / delta))``; ``as_printed``: twice that.

    Raises:
        ConfigError: epsilon is not positive, or delta not in (0, 1).
    """
    return step_capacity(batch, _release_factor(delta) / positive(epsilon, "epsilon").square(), form=form)


def release_epsilon(multiplier: torch.Tensor | float, delta: float) -> torch.Tensor:
    """Epsilon of a single release by the classical calibration, ``sqrt(2 ln(1.25 / delta)) / z``, ``[...]``.

    The calibration is proved below 1; the paper uses it beyond.

    Raises:
        ConfigError: the multiplier is not positive, or delta not in (0, 1).
    """
    return math.sqrt(_release_factor(delta)) / positive(multiplier, "the noise multiplier")


def curvature_in_dimension(
    dimension: torch.Tensor, variance: torch.Tensor | float, clip: float = 1.0, form: DPForm = "corrected"
) -> torch.Tensor:
    """Second derivative of ``u(d) = d ln(1 + S^2 / (sigma d))`` by ``d``, ``[...]`` (Appendix C.5); negative.

    So ``u'``, which tends to 0, is positive, and ``u`` grows to its limit ``S^2 / sigma``.

    Args:
        dimension: ``d``.
        variance: ``sigma``, a positive number or ``[...]``.
        clip: ``S``.
        form: ``corrected``: ``-S^4 / (d (sigma d + S^2)^2)``;
            ``as_printed``: ``-S^2 (2 sigma d + S^2) / (d (sigma d + S^2)^2)``, of the same sign, and wrong.

    Raises:
        ConfigError: the variance is not positive.
    """
    sigma, square = positive(variance, "the variance of noise"), clip**2
    numerator = square**2 if form == "corrected" else square * (2 * sigma * dimension + square)
    return -numerator / (dimension * (sigma * dimension + square).square())


def composed_epsilon(
    multiplier: float, rate: float, steps: int, delta: float, conversion: Conversion = "improved"
) -> float:
    """Epsilon of a whole run of DP-SGD, by Rényi accounting of the subsampled Gaussian mechanism.

    Neighbours differ by one added or removed sample, batches are Poisson samples. The accountant is dp-accounting's,
    at its own orders. At fractional orders it rounds up, by less than 0.2 % of epsilon in the paper's settings.

    Args:
        multiplier: ``z``.
        rate: probability that a sample is in a batch, ``B / N``.
        steps: number of batches.
        delta: in (0, 1).
        conversion: from Rényi divergence of order ``a``: ``classical`` adds ``-ln(delta) / (a - 1)``; ``improved``
            adds ``ln(1 - 1/a) - ln(delta a) / (a - 1)``, as Opacus 1.x does.

    Raises:
        ConfigError: an argument is out of its range.
    """
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    _release_factor(delta)
    if not multiplier > 0 or not 0 < rate <= 1 or steps < 1:
        raise ConfigError(
            "DP-SGD needs a positive noise multiplier, a sampling rate in (0, 1] and at least one step, found "
            f"{multiplier:g}, {rate:g} and {steps}"
        )
    accountant = RdpAccountant()
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), steps)
    if conversion == "improved":
        return float(accountant.get_epsilon(delta))
    orders, divergence = np.asarray(accountant.orders), np.asarray(accountant.rdp)
    return float(np.min(divergence - math.log(delta) / (orders - 1)))
