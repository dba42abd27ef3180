"""Residual networks."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from functools import cache
from typing import ClassVar

from pydantic import Field

from leakbench.lazy import torch
from leakbench.models.base import MODELS, Model, image_shape


@cache
def _basic_block() -> type[torch.nn.Module]:
    """The class is made on first use, since its base is torch's."""
    nn = torch.nn

    class BasicBlock(nn.Module):
        """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

        def __init__(self, before: int, after: int, stride: int, normalised: bool = True) -> None:
            super().__init__()

            def normal() -> list[nn.Module]:
                return [nn.BatchNorm2d(after)] if normalised else []

            self.residual = nn.Sequential(
                nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
                *normal(),
                nn.ReLU(),
                nn.Conv2d(after, after, 3, padding=1, bias=False),
                *normal(),
            )
            self.shortcut = nn.Sequential()
            if stride > 1 or before != after:
                self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), *normal())

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = torch.relu(self.residual(images) + self.shortcut(images))
            return output

    return BasicBlock


def _stages(width: int, blocks: int, *, normalised: bool = True) -> list[torch.nn.Module]:
    """Four stages of basic blocks; each but the first halves the image and doubles the width."""
    channels = [factor * width for factor in (1, 2, 4, 8) for _ in range(blocks)]
    return [
        _basic_block()(before, after, 1 if before == after else 2, normalised)
        for before, after in itertools.pairwise([width, *channels])
    ]


class _ResNet(Model):
    """A 3x3 stem for small images and four stages, each of which but the first halves the image and doubles the width.

    ``blocks``: basic blocks per stage.
    """

    blocks: ClassVar[int]

    width: int = Field(64, ge=1, description="channels of the first layer; the other layers scale with it")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        shape = image_shape(shape, self)
        nn, w = torch.nn, self.width
        stages = _stages(w, self.blocks)  # first: they draw their parameters before the stem does
        return nn.Sequential(
            nn.Conv2d(shape[0], w, 3, padding=1, bias=False),
            nn.BatchNorm2d(w),
            nn.ReLU(),
            *stages,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8 * w, classes),
        )


@MODELS.register("resnet18", version=1)
class ResNet18(_ResNet):
    """ResNet-18 with the 3x3 stem for small images; 11,173,962 parameters on 3x32x32 (He et al. 2016)."""

    blocks = 2


@MODELS.register("resnet10", version=1)
class ResNet10(_ResNet):
    """ResNet-18 with one basic block per stage instead of two; 4,903,242 parameters on 3x32x32.

    Tan et al. 2024, Table 2, print 4.90e6; with a 7x7 stem it would have 4,910,922.
    """

    blocks = 1


@MODELS.register("resnet18_rog", version=1)
class ResNet18ROG(Model):
    """ResNet-18 as ROG attacks it (Yue et al. 2023): no BatchNorm, no biases; 43,934,912 parameters with 1,000 classes.

    As released: a 7x7 stem of stride two without pooling, and 8x8 averages of the last stage (of which an image of
    128x128 has just so many) before the linear layer ``linear``, which holds 32,768,000 of the parameters.
    """

    width: int = Field(64, ge=1, description="channels of the first layer; the other layers scale with it")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        shape = image_shape(shape, self)
        nn, w = torch.nn, self.width
        return nn.Sequential(
            OrderedDict(
                stem=nn.Sequential(nn.Conv2d(shape[0], w, 7, stride=2, padding=3, bias=False), nn.ReLU()),
                stages=nn.Sequential(*_stages(w, 2, normalised=False)),
                pool=nn.AdaptiveAvgPool2d(8),
                flatten=nn.Flatten(),
                linear=nn.Linear(8 * w * 64, classes, bias=False),
            )
        )
