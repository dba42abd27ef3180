"""Softmax regression."""

from __future__ import annotations

from typing import Literal

from leakbench.lazy import torch
from leakbench.models.base import MODELS, Model


@MODELS.register("linear", version=1)
class Linear(Model):
    """Softmax regression: one linear layer with bias on the flattened image."""

    width: Literal[1] = 1

    def build(self, shape: tuple[int, int, int], classes: int) -> torch.nn.Module:
        channels, height, width = shape
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * height * width, classes))
