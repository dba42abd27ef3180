"""Checks of the arguments of formulas."""

from __future__ import annotations

import math

from leakbench.errors import ConfigError
from leakbench.lazy import torch


def positive_number(value: float, what: str) -> float:
    """``value``, without a tensor.

    Args:
        value: the argument.
        what: its name, for the message.

    Raises:
        ConfigError: it is not a positive finite number.
    """
    if not 0 < value < math.inf:
        raise ConfigError(f"{what} must be positive and finite, found {value:g}")
    return float(value)


def positive(value: torch.Tensor | float, what: str, like: torch.Tensor | None = None) -> torch.Tensor:
    """``value`` as a tensor of its shape, of the type and device of ``like``, or float64.

    Args:
        value: of any shape; a number becomes a scalar.
        what: the name of the value, for the message.
        like: has the type and device of the result; float64 on the CPU by default.

    Raises:
        ConfigError: some of it is not a positive finite number.
    """
    if isinstance(value, torch.Tensor) and like is None:
        result = value
    else:
        dtype, device = (torch.float64, None) if like is None else (like.dtype, like.device)
        result = torch.as_tensor(value, dtype=dtype, device=device)
    fits = (result > 0) & result.isfinite()
    if not bool(fits.all()):
        raise ConfigError(f"{what} must be positive and finite, found {result[~fits].flatten()[0].item():g}")
    return result
