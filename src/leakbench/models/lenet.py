"""The LeNet of Deep Leakage from Gradients."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from leakbench.lazy import torch
from leakbench.models.base import MODELS, Model


@MODELS.register("lenet", version=1)
class LeNet(Model):
    """Three 5x5 convolutions with sigmoids and one linear layer (Zhu et al. 2019).

    At width 12 it has 13,426 parameters on 1x28x28, 15,826 on 3x32x32 and 85,036 on 3x32x32 with 100 classes. It is
    smooth, as second-order attacks want it, and its initialisation is wide, so that sigmoids are not all linear.
    """

    width: int = Field(12, ge=1, description="channels of every convolution")
    initialisation: Literal["uniform", "default"] = Field(
        "uniform", description="uniform: weights and biases from U(-0.5, 0.5), as the attack's authors do; or torch's"
    )

    def build(self, shape: tuple[int, int, int], classes: int) -> torch.nn.Module:
        nn, w = torch.nn, self.width
        height, width = (math.ceil(side / 4) for side in shape[1:])
        module = nn.Sequential(
            nn.Conv2d(shape[0], w, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(w, w, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(w, w, 5, stride=1, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(w * height * width, classes),
        )
        if self.initialisation == "uniform":
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.uniform_(-0.5, 0.5)
        return module
