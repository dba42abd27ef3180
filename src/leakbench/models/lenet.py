"""Two networks called LeNet: that of Deep Leakage from Gradients, and LeNet-5."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from leakbench.lazy import torch
from leakbench.models.base import MODELS, Model, image_shape, pooled


@MODELS.register("lenet", version=1)
class LeNet(Model):
    """Three 5x5 convolutions with sigmoids and one linear layer (Zhu et al. 2019).

    At width 12 it has 13,426 parameters on 1x28x28, 15,826 on 3x32x32 and 85,036 on 3x32x32 with 100 classes. It is
    smooth, as second-order attacks want it, and its initialisation is wide, so that sigmoids are not all linear.
    With ReLUs and BatchNorm it is as small, and no longer smooth.
    """

    added: ClassVar[tuple[str, ...]] = ("activation", "batch_norm")

    width: int = Field(12, ge=1, description="channels of every convolution")
    initialisation: Literal["uniform", "default"] = Field(
        "uniform", description="uniform: weights and biases from U(-0.5, 0.5), as the attack's authors do; or torch's"
    )
    activation: Literal["sigmoid", "relu"] = Field("sigmoid", description="of the hidden layers")
    batch_norm: bool = Field(False, description="whether BatchNorm follows each convolution")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        shape = image_shape(shape, self)
        nn, w = torch.nn, self.width
        height, width = (math.ceil(side / 4) for side in shape[1:])
        layers: list[torch.nn.Module] = []
        for channels, stride in ((shape[0], 2), (w, 2), (w, 1)):
            layers.append(nn.Conv2d(channels, w, 5, stride=stride, padding=2))
            layers += [nn.BatchNorm2d(w)] if self.batch_norm else []
            layers.append(nn.Sigmoid() if self.activation == "sigmoid" else nn.ReLU())
        module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(w * height * width, classes))
        if self.initialisation == "uniform":
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.uniform_(-0.5, 0.5)
        return module


@MODELS.register("lenet5", version=1)
class LeNet5(Model):
    """LeNet-5 with ReLU and max pooling (LeCun et al. 1998): 62,006 parameters on 3x32x32, 61,706 on 1x32x32.

    At width 6 its layers have 6, 16, 120, 84 units; Tan et al. 2024, Table 2, print 6.20e4 parameters.
    """

    width: int = Field(6, ge=1, description="channels of the first layer; the other layers scale with it")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        shape = image_shape(shape, self)
        nn, w = torch.nn, self.width
        height, width = (pooled(((side - 4) // 2 - 4) // 2, shape, self) for side in shape[1:])
        second = round(8 * w / 3)
        return nn.Sequential(
            nn.Conv2d(shape[0], w, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(w, second, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * height * width, 20 * w),
            nn.ReLU(),
            nn.Linear(20 * w, 14 * w),
            nn.ReLU(),
            nn.Linear(14 * w, classes),
        )
