"""AlexNet and VGG-16 for small images: convolutions that end in two fully connected layers of 4096 units.

Dropout stands where the originals have it. :class:`~leakbench.models.base.Network` runs all layers but BatchNorm as in
evaluation, so it acts in ``trainable_module().train()`` alone.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from pydantic import Field

from leakbench.lazy import torch
from leakbench.models.base import MODELS, Model, image_shape, pooled

Initialisation: TypeAlias = Literal["default", "he"]
"""Weights as torch draws them, of a sixth of He's variance, so that signals fade from layer to layer; or He's."""


def _initialised(module: torch.nn.Module, initialisation: Initialisation) -> torch.nn.Module:
    """The module, by He with normal weights of variance 2 / inputs and biases of zero (He et al. 2015)."""
    if initialisation == "he":
        for layer in module.modules():
            if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
                torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    torch.nn.init.zeros_(layer.bias)
    return module


def _classifier(features: int, hidden: int, classes: int) -> list[torch.nn.Module]:
    nn = torch.nn
    return [
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(features, hidden),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    ]


def _convolution(before: int, after: int) -> list[torch.nn.Module]:
    return [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.ReLU()]


@MODELS.register("alexnet", version=1)
class AlexNet(Model):
    """AlexNet with 3x3 convolutions of stride one (after Krizhevsky et al. 2012); 35,855,178 parameters on 3x32x32.

    Three poolings, after convolutions 1, 2 and 5, leave 256 channels of 4x4. Tan et al. 2024, Table 2, print 3.59e7
    parameters and no layers; these are the layers that give that number. Dropout is off in :class:`Network`.
    """

    added: ClassVar[tuple[str, ...]] = ("initialisation",)

    width: int = Field(64, ge=1, description="channels of the first layer; the other layers scale with it")
    initialisation: Initialisation = Field("default", description="torch's, or normal of variance 2 / inputs")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        shape = image_shape(shape, self)
        nn, w = torch.nn, self.width
        height, width = (pooled(side // 8, shape, self) for side in shape[1:])
        module = nn.Sequential(
            *_convolution(shape[0], w),
            nn.MaxPool2d(2),
            *_convolution(w, 3 * w),
            nn.MaxPool2d(2),
            *_convolution(3 * w, 6 * w),
            *_convolution(6 * w, 4 * w),
            *_convolution(4 * w, 4 * w),
            nn.MaxPool2d(2),
            *_classifier(4 * w * height * width, 64 * w, classes),
        )
        return _initialised(module, self.initialisation)


@MODELS.register("vgg16", version=1)
class VGG16(Model):
    """VGG-16 (Simonyan and Zisserman 2015) with the 7x7 average pooling of torchvision; 134,301,514 parameters.

    The number is that of 10 classes and three channels; Tan et al. 2024, Table 2, print 1.34e8. A 32x32 image has one
    pixel left after five poolings, which the average pooling repeats 49 times. Poolings round up, so smaller images
    work. Dropout is off in :class:`Network`. There is no BatchNorm, as the number of parameters says; at torch's
    initialisation the logits of different images are then almost equal, and SGD does not get off the ground.
    """

    added: ClassVar[tuple[str, ...]] = ("initialisation",)

    width: int = Field(64, ge=1, description="channels of the first layer; the other layers scale with it")
    initialisation: Initialisation = Field("default", description="torch's, or normal of variance 2 / inputs")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        shape = image_shape(shape, self)
        nn, w = torch.nn, self.width
        layers: list[torch.nn.Module] = []
        before = shape[0]
        for factor, convolutions in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
            for _ in range(convolutions):
                layers += _convolution(before, factor * w)
                before = factor * w
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), *_classifier(49 * before, 64 * w, classes))
        return _initialised(module, self.initialisation)
