"""Small vectors and how to compare with printed numbers."""

from __future__ import annotations

import pytest
import torch


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: torch.Tensor | float, *expected: float, rel: float = 2e-6) -> bool:
    numbers = actual.flatten().tolist() if isinstance(actual, torch.Tensor) else [actual]
    return bool(numbers == pytest.approx(list(expected), rel=rel, abs=1e-12))


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Standard normal draws, float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
