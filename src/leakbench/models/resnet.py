"""Residual networks."""

from __future__ import annotations

import itertools
from functools import cache
from typing import ClassVar

from pydantic import Field

from leakbench.lazy import torch
from leakbench.models.base import MODELS, Model


@cache
def _basic_block() -> type[torch.nn.Module]:
    """The class is made on first use, since its base is torch's."""
    nn = torch.nn

    class BasicBlock(nn.Module):
        """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.residual = nn.Sequential(
                nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.Conv2d(after, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
            )
            self.shortcut = nn.Sequential()
            if stride > 1 or before != after:
                self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = torch.relu(self.residual(images) + self.shortcut(images))
            return output

    return BasicBlock


class _ResNet(Model):
    """A 3x3 stem for small images and four stages, each of which but the first halves the image and doubles the width.

    ``blocks``: basic blocks per stage.
    """

    blocks: ClassVar[int]

    width: int = Field(64, ge=1, description="channels of the first layer; the other layers scale with it")

    def build(self, shape: tuple[int, int, int], classes: int) -> torch.nn.Module:
        nn, w, block = torch.nn, self.width, _basic_block()
        channels = [factor * w for factor in (1, 2, 4, 8) for _ in range(self.blocks)]
        stages = [
            block(before, after, 1 if before == after else 2) for before, after in itertools.pairwise([w, *channels])
        ]
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
