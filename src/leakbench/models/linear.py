"""Fully connected models, whose first layer reads the flattened image."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from leakbench.lazy import torch
from leakbench.models.base import MODELS, Model, image_shape


@MODELS.register("linear", version=1)
class Linear(Model):
    """Softmax regression: one linear layer with bias on the flattened image."""

    width: Literal[1] = 1
    start: Literal["random", "zero"] = Field("random", description="initial parameters: torch's own, or all zero")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        channels, height, width = image_shape(shape, self)
        layer = torch.nn.Linear(channels * height * width, classes)
        if self.start == "zero":
            for parameter in layer.parameters():
                torch.nn.init.zeros_(parameter)
        return torch.nn.Sequential(torch.nn.Flatten(), layer)


@MODELS.register("mlp", version=1)
class MLP(Model):
    """One hidden layer on the flattened image; both layers have biases."""

    width: int = Field(64, ge=1, description="hidden units")
    activation: Literal["relu", "sigmoid"] = Field("relu", description="of the hidden layers")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        channels, height, width = image_shape(shape, self)
        return torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(channels * height * width, self.width),
            torch.nn.ReLU() if self.activation == "relu" else torch.nn.Sigmoid(),
            torch.nn.Linear(self.width, classes),
        )
