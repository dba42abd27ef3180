"""Lower bounds on every reconstruction's error by mutual information, and the least error itself.

Errors are means over the ``d`` entries of ``D``: ``E ||D - R(W)||^2 / d``. The bound falls as ``e^(-2 I / d)``, and
after a whole training run leaves the range of float64; so it is given as its logarithm, too.
Source: Tan et al. (2024), Theorem 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.theory.capacity import clipped_spectrum


class Logged(NamedTuple):
    """A positive number that may be too small for its type; both ``[...]``.

    Attributes:
        log: its natural logarithm.
        value: the number, or 0 where it underflows.
    """

    log: torch.Tensor
    value: torch.Tensor


def information_factor(information: torch.Tensor | float, dimension: int) -> Logged:
    """``e^(-2 I / d)``: factor on the error of an attacker without information, ``[...]`` (Theorem 1).

    >>> round(float(information_factor(10.0, dimension=20).value), 4)
    0.3679

    Args:
        information: ``I(D; W)`` or a bound on it, such as ``n kappa``, nats.
        dimension: ``d``, of a sample.

    Raises:
        ConfigError: the information is negative or no number.
    """
    known = torch.as_tensor(information, dtype=torch.float64)
    if not bool((known >= 0).all()):
        raise ConfigError("information is at least 0 nats")
    log = -2 * known / dimension
    return Logged(log, log.exp())


def information_at(factor: float, dimension: int) -> float:
    """The nats at which the factor ``e^(-2 I / d)`` has fallen to ``factor``.

    Raises:
        ConfigError: the factor is not in (0, 1].
    """
    if not 0 < factor <= 1:
        raise ConfigError(f"a factor on the error lies in (0, 1], found {factor:g}")
    return -dimension / 2 * math.log(factor)


def log_entropy_power(entropy: torch.Tensor | float, dimension: int) -> torch.Tensor:
    """``2 h / d - ln(2 pi e)``: the logarithm of the variance that a normal of this entropy per entry has, ``[...]``.

    Args:
        entropy: ``h(D)``, differential, nats; ``-inf`` for discrete pixels.
        dimension: ``d``.
    """
    return 2 * torch.as_tensor(entropy, dtype=torch.float64) / dimension - math.log(2 * math.pi * math.e)


def gaussian_log_entropy_power(eigenvalues: torch.Tensor) -> torch.Tensor:
    """The same for normal ``D``: the mean of ``ln lambda_i``, ``-inf`` if one is zero, ``[...]``.

    Args:
        eigenvalues: of ``Sigma_D``, ``[..., d]``.

    Raises:
        ConfigError: as :func:`leakbench.theory.capacity.clipped_spectrum`.
    """
    return clipped_spectrum(eigenvalues).log().mean(dim=-1)


def error_bound(log_power: torch.Tensor, information: torch.Tensor | float, dimension: int) -> Logged:
    """Lower bound on the error per entry of every reconstruction, ``[...]`` (Theorem 1).

    ``e^(2 h(D) / d) / (2 pi e) e^(-2 I / d)``.

    Args:
        log_power: from :func:`log_entropy_power` or :func:`gaussian_log_entropy_power`, ``[...]``.
        information: ``I(D; W)`` or a bound on it, nats, a number or ``[...]``.
        dimension: ``d``.

    Raises:
        ConfigError: the information is negative or no number.
    """
    log = log_power + information_factor(information, dimension).log.to(log_power.device)
    return Logged(log, log.exp())


def diagonal_error(eigenvalues: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
    """The least error for normal data, ``1/d sum_i lambda_i s_i / (lambda_i + s_i)``, ``[...]``.

    Args:
        eigenvalues: of the data, ``[..., d]``.
        variances: ``s_i`` of the noise along the same directions, ``[..., d]`` or ``[..., 1]``, not negative.

    Raises:
        ConfigError: a variance is negative; as :func:`leakbench.theory.capacity.clipped_spectrum`.
    """
    if not bool((variances >= 0).all()):
        raise ConfigError("the variance of noise cannot be negative")
    known = clipped_spectrum(eigenvalues)
    return torch.where(known > 0, known / (1 + known / variances), 0.0).mean(dim=-1)


def gaussian_error(covariance: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The least error for normal data, ``tr[Sigma_D - Sigma_D (Sigma_D + Sigma_xi)^-1 Sigma_D] / d``, ``[...]``.

    For any data with this covariance it is the least error of a linear estimate (Wiener 1949), which
    :func:`leakbench.theory.denoising.posterior_mean` reaches. It is computed as ``tr[Sigma_D (Sigma_D + Sigma_xi)^-1
    Sigma_xi] / d``, which does not cancel, with a pseudo-inverse, so that both may be zero in the same direction.

    Args:
        covariance: ``Sigma_D``, ``[..., d, d]``.
        noise: ``Sigma_xi``, ``[..., d, d]``.
    """
    inverse = torch.linalg.pinv(covariance + noise, hermitian=True)
    error: torch.Tensor = (covariance @ inverse @ noise).diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    return error
