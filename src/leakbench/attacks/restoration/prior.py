"""Post-processing networks: their sizes, and trained ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from leakbench.attacks.interpolation import upsample
from leakbench.attacks.parts import Part
from leakbench.errors import ConfigError
from leakbench.lazy import torch

BATCH = 32
"""Images restored at once. Only speed and memory depend on it."""


class Restoration(Part):
    """The networks behind ROG (Yue et al. 2023): sizes as released by default."""

    factor: int = Field(4, ge=1, description="how many times larger images become, per side")
    channels: tuple[int, ...] = Field(
        (64, 128, 256, 512), min_length=2, description="levels of the generator and of the denoiser, from the top"
    )
    iterations: int = Field(8, ge=1, description="data and prior steps of super-resolution")
    unfolding_channels: tuple[int, ...] = Field(
        (64, 128, 256, 512), min_length=2, description="levels of its prior step"
    )
    blocks: int = Field(2, ge=1, description="residual blocks per level of its prior step")
    hidden: int = Field(64, ge=1, description="units of the network that weighs its steps")
    noise: float = Field(0.01, ge=0, description="standard deviation of the noise that super-resolution is told")

    def multiply_adds(self, pixels: int) -> float:
        """About how many a forward pass of an image of so many pixels takes: 3x3 convolutions at every level."""
        small = pixels / self.factor**2

        def levels(channels: tuple[int, ...], size: float) -> float:
            return sum((9.0 * width * width * size / 4.0**level for level, width in enumerate(channels)), 0.0)

        unfolding = self.iterations * self.blocks * levels(self.unfolding_channels, pixels)
        return levels(self.channels, pixels) + levels(self.channels, small) + unfolding

    def build(self, shape: tuple[int, int, int], classes: int) -> torch.nn.ModuleDict:
        """Untrained networks ``generator``, ``denoiser`` and ``unfolding`` for images ``(C, H, W)``.

        Draws from the global generator.

        Raises:
            ConfigError: the images are too small for so many levels, or not a multiple of them.
        """
        from leakbench.attacks.restoration.networks import UNet, Unfolding

        colours, *sides = shape
        for side in sides:
            levels = 2 ** (len(self.channels) - 1)
            small = side // self.factor
            if (
                side % self.factor
                or small % levels
                or small < 2 * levels
                or side % 2 ** (len(self.unfolding_channels) - 1)
            ):
                raise ConfigError(
                    f"networks of {len(self.channels)} levels do not fit images of {side} pixels that were {small} "
                    "before; name fewer channels, or a smaller factor"
                )
        return torch.nn.ModuleDict(
            {
                "generator": UNet(colours, self.channels, classes),
                "denoiser": UNet(colours, self.channels),
                "unfolding": Unfolding(
                    colours, self.factor, self.iterations, self.unfolding_channels, self.blocks, self.hidden
                ),
            }
        )


@dataclass(frozen=True)
class Prior:
    """Trained networks, and how to use them.

    Attributes:
        restoration: what they are built from.
        networks: ``generator``, ``denoiser`` and ``unfolding``.
    """

    restoration: Restoration
    networks: torch.nn.ModuleDict

    @classmethod
    def of(
        cls,
        restoration: Restoration,
        state: Mapping[str, torch.Tensor],
        shape: tuple[int, int, int],
        classes: int,
        device: torch.device,
    ) -> Prior:
        """The networks with the weights and buffers ``state``, in evaluation, for images ``(C, H, W)``."""
        with torch.random.fork_rng(devices=[]):
            networks = restoration.build(shape, classes)
        networks.load_state_dict(dict(state))
        networks.requires_grad_(False)
        return cls(restoration, networks.to(device).eval())

    def restore(self, small: torch.Tensor, labels: torch.Tensor, generator: float) -> torch.Tensor:
        """Pixels ``[n, C, H, W]`` for pixels ``[n, C, h, w]`` and labels ``[n]``, in evaluation.

        Args:
            small: an attack's reconstructions, reduced to ``[n, C, h, w]``.
            labels: ``[n]``; the generator is told the class.
            generator: part of the generator's image in the mean; the rest is super-resolution's.
        """
        with torch.no_grad():
            parts = [
                generator * generated + (1 - generator) * unfolded
                for generated, unfolded in (
                    restored(self.restoration, self.networks, *rows)[:2]
                    for rows in zip(small.split(BATCH), labels.split(BATCH), strict=True)
                )
            ]
        return torch.cat(parts)


def restored(
    restoration: Restoration, networks: torch.nn.ModuleDict, small: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The generator's images, those of super-resolution, and the denoised small ones.

    Super-resolution sees the denoiser's images, and hands no derivative on to it.

    Args:
        restoration: what the networks are, and the noise that super-resolution is told.
        networks: ``generator``, ``denoiser`` and ``unfolding``.
        small: ``[n, C, h, w]``.
        labels: ``[n]``.
    """
    side = (small.shape[-2] * restoration.factor, small.shape[-1] * restoration.factor)
    denoised = networks["denoiser"](small)
    generated = networks["generator"](upsample(small, side, "bilinear"), labels)
    return generated, networks["unfolding"](denoised.detach(), restoration.noise), denoised
