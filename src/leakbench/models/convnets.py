"""The convolutional networks of the attack literature."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Literal

from pydantic import Field

from leakbench.lazy import torch
from leakbench.models.base import MODELS, Model, image_shape, pooled

Activation = Literal["leaky_relu", "relu"]


def _activation(name: Activation) -> torch.nn.Module:
    return torch.nn.LeakyReLU(0.01) if name == "leaky_relu" else torch.nn.ReLU()


@MODELS.register("simpleconvnet", version=1)
class SimpleConvNet(Model):
    """Two convolutions and two linear layers; 119,530 parameters at width 32 on 1x28x28 (Chen et al. 2024, Table 1)."""

    width: int = Field(32, ge=1, description="channels of the first layer; the other layers scale with it")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        shape = image_shape(shape, self)
        nn, w = torch.nn, self.width
        height, width = (pooled(side // 4, shape, self) for side in shape[1:])
        convolutions = nn.Sequential(
            nn.Conv2d(shape[0], w, 3, padding=1),
            nn.LeakyReLU(0.01),
            nn.MaxPool2d(2),
            nn.Conv2d(w, 2 * w, 3, padding=1),
            nn.LeakyReLU(0.01),
            nn.MaxPool2d(2),
        )
        linear = nn.Sequential(
            nn.Flatten(),
            nn.Linear(2 * w * height * width, w),
            nn.LeakyReLU(0.01),
            nn.Linear(w, classes),
        )
        return nn.Sequential(OrderedDict(conv_layers=convolutions, fc_layers=linear))  # the names of Table 1


@MODELS.register("convnet", version=1)
class ConvNet(Model):
    """Eight convolutions with BatchNorm (Geiping et al. 2020); 2,904,970 parameters at width 64 on 3x32x32.

    At width 32 it has 733,642. The released code uses ReLU, the ``optimal_defense`` paper says LeakyReLU, which is the
    default here.
    """

    width: int = Field(64, ge=1, description="channels of the first layer; the other layers scale with it")
    activation: Activation = Field("leaky_relu", description="of the hidden layers")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        shape = image_shape(shape, self)
        nn, w = torch.nn, self.width
        height, width = (pooled(side // 3 // 3, shape, self) for side in shape[1:])

        def blocks(*channels: int) -> list[torch.nn.Module]:
            return [
                layer
                for before, after in itertools.pairwise(channels)
                for layer in (
                    nn.Conv2d(before, after, 3, padding=1),
                    nn.BatchNorm2d(after),
                    _activation(self.activation),
                )
            ]

        return nn.Sequential(
            *blocks(shape[0], w, 2 * w, 2 * w, 4 * w, 4 * w, 4 * w),
            nn.MaxPool2d(3),
            *blocks(4 * w, 4 * w, 4 * w),
            nn.MaxPool2d(3),
            nn.Flatten(),
            nn.Linear(4 * w * height * width, classes),
        )


@MODELS.register("simplecnn", version=1)
class SimpleCNN(Model):
    """Two 5x5 convolutions and two linear layers; 9,422 parameters at width 6 on 3x32x32 (Deng et al. 2024).

    The paper says "more than 9k"; these are the layers of its released code. The linear layers are ``fc1`` and ``fc2``.
    """

    width: int = Field(6, ge=1, description="channels of both convolutions; the hidden layer has 25/3 times as many")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        shape = image_shape(shape, self)
        nn, w = torch.nn, self.width
        height, width = (pooled(((side - 4) // 2 - 4) // 2, shape, self) for side in shape[1:])
        hidden = round(25 * w / 3)
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Sequential(nn.Conv2d(shape[0], w, 5), nn.ReLU(), nn.MaxPool2d(2)),
                conv2=nn.Sequential(nn.Conv2d(w, w, 5), nn.ReLU(), nn.MaxPool2d(2)),
                flatten=nn.Flatten(),
                fc1=nn.Linear(w * height * width, hidden),
                relu=nn.ReLU(),
                fc2=nn.Linear(hidden, classes),
            )
        )


@MODELS.register("dp_cnn", version=1)
class DPCNN(Model):
    """The CNN of DP-SGD on MNIST (TensorFlow Privacy; Papernot et al. 2021); 26,010 parameters at width 16 on 1x28x28.

    Convolutions of 8x8 and 4x4 with stride 2, max pooling with stride 1, and two linear layers.
    """

    width: int = Field(16, ge=1, description="channels of the first layer; the other layers scale with it")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        shape = image_shape(shape, self)
        nn, w = torch.nn, self.width
        height, width = (pooled((side // 2 - 1 - 4) // 2, shape, self) for side in shape[1:])
        return nn.Sequential(
            nn.Conv2d(shape[0], w, 8, stride=2, padding=3),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(w, 2 * w, 4, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(2 * w * height * width, 2 * w),
            nn.ReLU(),
            nn.Linear(2 * w, classes),
        )
