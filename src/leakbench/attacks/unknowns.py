"""Variables of a search: the images themselves, or latents from which images are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from leakbench.attacks.base import Grant
from leakbench.attacks.interpolation import Interpolation, downfit, upsampling
from leakbench.attacks.parts import Part
from leakbench.errors import Infeasible
from leakbench.lazy import torch

Shape = tuple[int, ...]
"""``(B, C, H, W)``; of embedded sentences ``(B, L, H + 1)``."""


class _Unknown(Part):
    needs: ClassVar[frozenset[Grant]] = frozenset()

    def shape(self, batch_shape: Shape) -> Shape:
        """Shape of the variables for a batch of images.

        Raises:
            Infeasible: there are no such latents for images of this size.
        """
        raise NotImplementedError

    def encode(self, start: torch.Tensor, pixel_range: torch.Tensor | None) -> torch.Tensor:
        """Latents at which the search starts, ``[..., *shape]``, from network inputs of that shape.

        Args:
            start: network inputs, one for each latent.
            pixel_range: smallest and largest valid input, ``[2, C, 1, 1]``; None where it is not granted.
        """
        raise NotImplementedError

    def fit(self, images: torch.Tensor, pixel_range: torch.Tensor | None) -> torch.Tensor:
        """The latents whose images are nearest (least squares) to ``images``, network inputs ``[..., C, H, W]``."""
        raise NotImplementedError

    def decoder(
        self, batch_shape: Shape, pixel_range: torch.Tensor | None, like: torch.Tensor
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """From latents ``[..., *shape]`` to network inputs ``[..., *batch_shape]``; differentiable.

        Args:
            batch_shape: ``(B, C, H, W)`` of what a client holds.
            pixel_range: smallest and largest valid input, ``[2, C, 1, 1]``; None where it is not granted.
            like: a tensor of the precision, on the device, of the latents.
        """
        raise NotImplementedError


class Pixels(_Unknown):
    """The images: every network input is a variable."""

    kind: Literal["pixels"] = "pixels"

    def shape(self, batch_shape: Shape) -> Shape:
        return batch_shape

    def encode(self, start: torch.Tensor, pixel_range: torch.Tensor | None) -> torch.Tensor:
        return start

    def fit(self, images: torch.Tensor, pixel_range: torch.Tensor | None) -> torch.Tensor:
        return images

    def decoder(
        self, batch_shape: Shape, pixel_range: torch.Tensor | None, like: torch.Tensor
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda latents: latents


class Upsampled(_Unknown):
    """Images of fewer pixels, upsampled (Yue et al. 2023): ``factor`` squared fewer variables.

    The latents are pixels, 0 black and 1 white, whatever the network's normalisation, so that a step size means the
    same for every data set.
    """

    kind: Literal["upsampled"] = "upsampled"
    needs: ClassVar[frozenset[Grant]] = frozenset({"pixel_range"})

    factor: int = Field(4, ge=1, description="how many times smaller than the images latents are, per side")
    interpolation: Interpolation = Field("bicubic", description="how latents become images, as torch interpolates")

    def shape(self, batch_shape: Shape) -> Shape:
        batch, channels, height, width = _image_batch(batch_shape)
        if height % self.factor or width % self.factor:
            raise Infeasible(f"images of {height}x{width} have no latents that are {self.factor} times smaller")
        return batch, channels, height // self.factor, width // self.factor

    def encode(self, start: torch.Tensor, pixel_range: torch.Tensor | None) -> torch.Tensor:
        low, high = _known(pixel_range)
        latents: torch.Tensor = (start - low) / (high - low)
        return latents

    def fit(self, images: torch.Tensor, pixel_range: torch.Tensor | None) -> torch.Tensor:
        return downfit(self.encode(images, pixel_range), self.factor, self.interpolation)

    def decoder(
        self, batch_shape: Shape, pixel_range: torch.Tensor | None, like: torch.Tensor
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        low, high = _known(pixel_range).to(like)
        (*_, height, width), (*_, low_height, low_width) = batch_shape, self.shape(batch_shape)
        rows, columns = upsampling((low_height, low_width), (height, width), self.interpolation, like)
        return lambda latents: low + (high - low) * (rows @ latents @ columns.T)


def _image_batch(batch_shape: Shape) -> Shape:
    if len(batch_shape) != 4:
        raise Infeasible(
            f"inputs of shape {list(batch_shape[1:])} are no images, of which fewer pixels could be searched for"
        )
    return batch_shape


def _known(pixel_range: torch.Tensor | None) -> torch.Tensor:
    assert pixel_range is not None
    return pixel_range


Unknown = Annotated[Pixels | Upsampled, Field(discriminator="kind")]
