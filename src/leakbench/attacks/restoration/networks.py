"""A U-Net, class-conditional or not, and an unfolding super-resolution network.

Imported where they are built: a class that inherits from torch's needs torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from leakbench.attacks.interpolation import bicubic_kernel
from leakbench.lazy import torch

nn = torch.nn


class ConditionalBatchNorm(nn.Module):
    """BatchNorm whose scale and shift are those of the image's class (de Vries et al. 2017)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.normalised = nn.BatchNorm2d(channels, affine=False)
        self.scale, self.shift = nn.Embedding(classes, channels), nn.Embedding(classes, channels)
        nn.init.ones_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scale, shift = (table(labels)[:, :, None, None] for table in (self.scale, self.shift))
        output: torch.Tensor = scale * self.normalised(values) + shift
        return output


class _Layer(nn.Module):
    """A convolution, a normalisation, a ReLU."""

    def __init__(self, convolution: nn.Module, channels: int, classes: int) -> None:
        super().__init__()
        self.convolution = convolution
        self.normalised = ConditionalBatchNorm(channels, classes) if classes else nn.InstanceNorm2d(channels)

    def forward(self, values: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        values = self.convolution(values)
        conditional = isinstance(self.normalised, ConditionalBatchNorm)
        return torch.relu(self.normalised(values, labels) if conditional else self.normalised(values))


class UNet(nn.Module):
    """From images to images of the same size, in [0, 1] (after Yue et al. 2023, as released).

    Every level but the first halves the side; on the way up each level is concatenated with that on the way down.

    Args:
        colours: channels of the images, C.
        channels: of each level.
        classes: the way up is normalised class by class; 0: the class is ignored.
    """

    def __init__(self, colours: int, channels: Sequence[int], classes: int = 0) -> None:
        super().__init__()
        first = nn.Conv2d(colours, channels[0], 5, padding=2, padding_mode="reflect")
        self.down = nn.ModuleList([_Layer(first, channels[0], 0)])
        for before, after in itertools.pairwise(channels):
            self.down.append(_Layer(nn.Conv2d(before, after, 3, stride=2, padding=1), after, 0))
        self.up = nn.ModuleList()
        held = channels[-1]
        for below, after in reversed(list(itertools.pairwise(channels))):
            larger = _Layer(nn.ConvTranspose2d(held, held, 4, stride=2, padding=1), held, classes)
            self.up.append(nn.ModuleList([larger, _Layer(nn.Conv2d(held, after, 3, padding=1), after, classes)]))
            held = after + below
        self.mixed = nn.Conv2d(held, channels[0], 3, padding=1)
        self.last = nn.Conv2d(channels[0] + colours, colours, 3, padding=1)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """``[n, C, H, W]`` in [0, 1], for images of any values and labels ``[n]``."""
        levels = [images]
        for layer in self.down:
            levels.append(layer(levels[-1], None))
        values = levels.pop()
        for step in self.up:
            assert isinstance(step, nn.ModuleList)
            larger, layer = step
            values = torch.cat([layer(larger(values, labels), labels), levels.pop()], dim=1)
        values = torch.cat([self.mixed(values), images], dim=1)
        return (torch.tanh(self.last(values)) + 1) / 2


class _ResBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        )

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = values + self.residual(values)
        return output


class ResUNet(nn.Module):
    """The prior step of USRNet (Zhang et al. 2020): a U-Net of residual blocks without biases that adds its levels."""

    def __init__(self, before: int, after: int, channels: Sequence[int], blocks: int) -> None:
        super().__init__()

        def residual(width: int) -> list[nn.Module]:
            return [_ResBlock(width) for _ in range(blocks)]

        self.head = nn.Conv2d(before, channels[0], 3, padding=1, bias=False)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for wide, wider in itertools.pairwise(channels):
            self.down.append(nn.Sequential(*residual(wide), nn.Conv2d(wide, wider, 2, stride=2, bias=False)))
            self.up.insert(0, nn.Sequential(nn.ConvTranspose2d(wider, wide, 2, stride=2, bias=False), *residual(wide)))
        self.body = nn.Sequential(*residual(channels[-1]))
        self.tail = nn.Conv2d(channels[0], after, 3, padding=1, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        levels = [self.head(values)]
        for layer in self.down:
            levels.append(layer(levels[-1]))
        values = self.body(levels[-1])
        for layer in self.up:
            values = layer(values + levels.pop())
        output: torch.Tensor = self.tail(values + levels.pop())
        return output


class Unfolding(nn.Module):
    """Super-resolution by unfolded half-quadratic splitting (USRNet, Zhang et al. 2020), for bicubic downsampling.

    Data steps in closed form and prior steps of one network take turns. A small network says how much each step trusts
    its input, from the noise and the factor.

    Args:
        colours: channels of the images, C.
        factor: how many times larger images become, per side.
        iterations: pairs of steps.
        channels: of the levels of the prior step's network.
        blocks: residual blocks per level.
        hidden: units of the small network.
    """

    def __init__(
        self, colours: int, factor: int, iterations: int, channels: Sequence[int], blocks: int, hidden: int
    ) -> None:
        super().__init__()
        self.factor, self.iterations = factor, iterations
        self.prior = ResUNet(colours + 1, colours, channels, blocks)
        self.trust = nn.Sequential(
            nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2 * iterations)
        )

    def forward(self, small: torch.Tensor, noise: float) -> torch.Tensor:
        """``[n, C, factor h, factor w]``, for images ``[n, C, h, w]`` with noise of this standard deviation."""
        trust = nn.functional.softplus(self.trust(small.new_tensor([noise, float(self.factor)]))) + 1e-6
        images = nn.functional.interpolate(small, scale_factor=self.factor, mode="nearest")
        spectrum = transfer(self.factor, images)
        for alpha, beta in zip(trust[: self.iterations], trust[self.iterations :], strict=True):
            images = data_step(small, images, spectrum, alpha)
            images = self.prior(torch.cat([images, beta.expand_as(images[:, :1])], dim=1))
        return images


def transfer(factor: int, images: torch.Tensor) -> torch.Tensor:
    """Transfer function of bicubic downsampling before it picks every ``factor``-th pixel, ``[H, W]``.

    Images are continued periodically.
    """
    weights, first = bicubic_kernel(factor)
    places = torch.arange(len(weights), dtype=weights.dtype) + first
    axes = [
        torch.polar(weights, 2 * torch.pi / side * torch.arange(side, dtype=weights.dtype)[:, None] * places).sum(dim=1)
        for side in images.shape[-2:]
    ]
    dtype = torch.complex128 if images.dtype == torch.float64 else torch.complex64
    return torch.outer(*axes).to(device=images.device, dtype=dtype)


def data_step(small: torch.Tensor, images: torch.Tensor, spectrum: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """``argmin_x ||downsampled(x) - small||^2 + alpha ||x - images||^2`` (Zhang et al. 2020, eq. 7 and 9).

    Args:
        small: ``[n, C, h, w]``.
        images: ``[n, C, H, W]``.
        spectrum: of the kernel, ``[H, W]``; see :func:`transfer`.
        alpha: a scalar.
    """
    factor = images.shape[-1] // small.shape[-1]

    def aliased(values: torch.Tensor) -> torch.Tensor:  # the mean over frequencies that picking pixels makes one
        mean: torch.Tensor = values.unflatten(-1, (factor, -1)).unflatten(-3, (factor, -1)).mean(dim=(-4, -2))
        return mean

    right = spectrum.conj() * torch.fft.fft2(small).tile(factor, factor) + alpha * torch.fft.fft2(images)
    seen = aliased(spectrum * right) / (aliased(spectrum.abs().square()) + alpha)
    solution: torch.Tensor = torch.fft.ifft2((right - spectrum.conj() * seen.tile(factor, factor)) / alpha).real
    return solution
