"""The toy example of Fig. 4: why noise on parameters has to be computed again in each round, and noise on data not.

``F = W^2 D`` with ``D ~ N(-1, 1)``: the gradient ``2 W D`` has the variance ``4 W^2``, which the server sets by ``W``.
Noise of variance ``sigma`` is added to the gradient (space ``parameter``) or to ``D`` (space ``data``).
Source: Tan et al. (2024), Fig. 4.
"""

from __future__ import annotations

from typing import Literal

from leakbench.lazy import torch
from leakbench.theory.arguments import positive
from leakbench.theory.capacity import capacity, natural_variance

Space = Literal["parameter", "data"]

DATA_MEAN = -1.0
DATA_VARIANCE = 1.0


def gradient_variance(weight: torch.Tensor) -> torch.Tensor:
    """Variance of ``2 W D``, ``[...]``."""
    return 4 * weight.square() * DATA_VARIANCE


def toy_capacity(weight: torch.Tensor, variance: torch.Tensor | float, space: Space) -> torch.Tensor:
    """Capacity from ``D`` to the noisy gradient at ``W``, nats, ``[...]``.

    Raises:
        ConfigError: the variance is not positive.
    """
    signal = gradient_variance(weight)
    noise = positive(variance, "the variance of noise", weight)
    if space == "data":
        noise = noise * signal / DATA_VARIANCE  # 2 W (D + xi): noise that follows the gradient's sensitivity
    return capacity(signal.unsqueeze(-1), noise)


def toy_variance(weight: torch.Tensor, kappa: torch.Tensor | float, space: Space) -> torch.Tensor:
    """The variance at which the capacity at ``W`` is ``kappa``, ``[...]``.

    Raises:
        ConfigError: ``kappa`` is not positive.
    """
    signal = gradient_variance(weight) if space == "parameter" else torch.full_like(weight, DATA_VARIANCE)
    return natural_variance(signal.unsqueeze(-1), kappa)


def next_weight(weight: torch.Tensor) -> torch.Tensor:
    """``W - 2 W E D``: a step of rate 1 along the mean gradient, ``[...]``."""
    return weight - 2 * weight * DATA_MEAN
