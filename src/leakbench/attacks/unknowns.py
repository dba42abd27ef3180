"""Variables of a search: images, latents from which images are made, networks that make them, or a law of images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from leakbench.attacks.base import Grant, Knowledge
from leakbench.attacks.image_law import ImageLaw
from leakbench.attacks.interpolation import Interpolation, downfit, upsampling
from leakbench.attacks.parts import Part
from leakbench.data.covariance import root
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.numerics.adam import Adam
from leakbench.randomness import generator

Shape = tuple[int, ...]
"""``(B, C, H, W)``; of embedded sentences ``(B, L, H + 1)``."""


LEAK = 0.02
"""Slope beyond valid pixels of images that a law makes: without one, a pixel that was clipped would not come back."""
JITTER = 0.1
"""Standard deviation of the first latents of several images of a law."""
FITTING = 300
FITTING_RATE = 0.01
"""Steps, and their size, with which a decoder is fitted to images."""


class _Unknown(Part):
    needs: ClassVar[frozenset[Grant]] = frozenset()
    expects: ClassVar[bool] = False
    """Whether it says how probable images are, by :meth:`law` and :meth:`surprise`."""

    def times(self, factor: float) -> Self:
        """The same with so many times the weight of what it believes of images; by default itself."""
        return self

    def auxiliary(self, granted: int) -> int:
        """Number of auxiliary images that it reads, of those granted."""
        return 0

    def law(self, knowledge: Knowledge, classes: int) -> ImageLaw | None:
        """The law of the images of so many classes, from the attacker's auxiliary ones; by default none."""
        return None

    def surprise(self, latents: torch.Tensor) -> torch.Tensor:
        """Negative log-density of the images of latents ``[D]``, times its weight, in nats: a scalar."""
        raise NotImplementedError

    def informed(
        self, batch_shape: Shape, knowledge: Knowledge, labels: torch.Tensor | None, classes: int, rounds: int
    ) -> _Unknown | _Expected:
        """The variables for what the attacker knows; by default they are the same whatever that is.

        Args:
            batch_shape: ``(B, C, H, W)`` of what a client holds.
            knowledge: of the observations.
            labels: of the observations, ``[n, B]`` or probabilities ``[n, B, classes]``; None where they are unknown.
            classes: of the model.
            rounds: in which the clients hold the same images.
        """
        return self

    @property
    def of_rows(self) -> tuple[torch.Tensor, ...]:
        """Tensors of each observation that decoding takes beside its latents, ``[n, ...]`` each."""
        return ()

    @property
    def noisy(self) -> _Unknown | None:
        """The same of images that a defense adds normal noise to, of a known covariance; None where it cannot be."""
        return None

    def noise(self, number: int) -> Callable[..., torch.Tensor] | None:
        """From latents and :attr:`of_rows` to the noise on the flat images of a round; None where none is searched for.

        Args:
            number: of the round, from 0.
        """
        return None

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
    ) -> Callable[..., torch.Tensor]:
        """From latents ``[..., *shape]`` and :attr:`of_rows` to network inputs ``[..., *batch_shape]``; differentiable.

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


class Decoder(_Unknown):
    """An untrained convolutional network for each image, whose weights and latent are the variables.

    Such networks make smooth images before they make noise (Ulyanov et al. 2018): the architecture is the prior, as in
    CI-Net (Zhang et al. 2023) and GI-NAS. Maps of the smallest side are upsampled by two, convolved, normalised and cut
    off at zero, level by level; a last layer of 1x1 and a sigmoid make valid pixels. All trials and images go through
    side by side, each with weights of its own.
    """

    kind: Literal["decoder"] = "decoder"
    needs: ClassVar[frozenset[Grant]] = frozenset({"pixel_range"})

    channels: int = Field(32, ge=1, description="maps of every layer")
    levels: int = Field(2, ge=1, description="layers, each of which doubles the side")

    def shape(self, batch_shape: Shape) -> Shape:
        batch, channels, height, width = _image_batch(batch_shape)
        if min(height, width) < 2**self.levels:
            raise Infeasible(f"images of {height}x{width} are too small for {self.levels} levels that double the side")
        (low_height, low_width), *_ = self._sides(height, width)
        return batch, self.channels * low_height * low_width + sum(self._sizes(channels))

    def encode(self, start: torch.Tensor, pixel_range: torch.Tensor | None) -> torch.Tensor:
        """Weights as He et al. (2015) draw them, gains of one, shifts of zero, from normal draws ``[..., B, P]``."""
        sizes = self._sizes(_known(pixel_range).shape[1])
        spread, *others = sizes
        unit = math.sqrt(2 / (9 * self.channels)), 0.0, 0.0
        factors = [1.0, *unit * self.levels, math.sqrt(1 / self.channels), 0.0]
        offsets = [0.0, *(0.0, 1.0, 0.0) * self.levels, 0.0, 0.0]
        counts = torch.tensor([start.shape[-1] - sum(sizes), spread, *others], device=start.device)
        factor, offset = (start.new_tensor(each).repeat_interleave(counts) for each in (factors, offsets))
        latents: torch.Tensor = offset + factor * start
        return latents

    def fit(self, images: torch.Tensor, pixel_range: torch.Tensor | None) -> torch.Tensor:
        """Variables ``[..., B, P]`` whose images are near, after a short descent on the squared error."""
        variables = self.shape(images.shape[-4:])
        draws = torch.randn(variables, generator=generator("fit of a decoder")).to(images)
        decode = self.decoder(images.shape[-4:], pixel_range, images)
        points = self.encode(draws, pixel_range).expand(*images.shape[:-4], *variables).flatten(0, -2)
        target, moments = images.flatten(0, -4), Adam(points)

        def error(points: torch.Tensor) -> torch.Tensor:
            total: torch.Tensor = (decode(points) - target).square().mean(dim=(1, 2, 3)).sum()
            return total

        for _ in range(FITTING):
            points = points - FITTING_RATE * moments.direction(torch.func.grad(error)(points))
        latents: torch.Tensor = points.unflatten(0, images.shape[:-3])
        return latents

    def decoder(
        self, batch_shape: Shape, pixel_range: torch.Tensor | None, like: torch.Tensor
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        low, high = _known(pixel_range).to(like)
        _, channels, height, width = batch_shape
        sides, sizes = self._sides(height, width), self._sizes(channels)
        ups = [upsampling(*pair, "bilinear", like) for pair in itertools.pairwise(sides)]
        latent = self.channels * math.prod(sides[0])

        def decode(variables: torch.Tensor) -> torch.Tensor:
            first, *parts = variables.split([latent, *sizes], dim=-1)
            maps = first.unflatten(-1, (self.channels, *sides[0]))
            for level, (rows, columns) in enumerate(ups):
                weights, gains, shifts = parts[3 * level : 3 * level + 3]
                maps = _convolved(rows @ maps @ columns.T, weights)
                spread, mean = torch.var_mean(maps, dim=(-2, -1), correction=0, keepdim=True)
                maps = (maps - mean) / (spread + 1e-5).sqrt() * gains[..., None, None] + shifts[..., None, None]
                maps = maps.relu()
            weights, shifts = parts[-2:]
            outputs = weights.unflatten(-1, (channels, self.channels)) @ maps.flatten(-2) + shifts[..., None]
            pixels = outputs.sigmoid().unflatten(-1, (height, width))
            images: torch.Tensor = low + (high - low) * pixels
            return images

        return decode

    def _sides(self, height: int, width: int) -> list[tuple[int, int]]:
        """Height and width of maps, from the latent's to the image's; halves are rounded up."""
        halvings = [2**level for level in range(self.levels, -1, -1)]
        return [(-(-height // by), -(-width // by)) for by in halvings]

    def _sizes(self, channels: int) -> list[int]:
        """Numbers of variables behind the latent: weights, gains and shifts of every layer, and the last weights."""
        layer = [9 * self.channels**2, self.channels, self.channels]
        return [*layer * self.levels, channels * self.channels, channels]


def _convolved(maps: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Maps ``[..., K, H, W]``, each with weights ``[..., K K 9]`` of its own: products with patches of 3x3."""
    channels, height, width = maps.shape[-3:]
    padded = torch.nn.functional.pad(maps, (1, 1, 1, 1))
    shifted = [padded[..., row : row + height, column : column + width] for row in range(3) for column in range(3)]
    patches = torch.stack(shifted, dim=-3).flatten(-4, -3).flatten(-2)  # [..., K 9, H W]
    outputs: torch.Tensor = weights.unflatten(-1, (channels, 9 * channels)) @ patches
    convolved: torch.Tensor = outputs.unflatten(-1, (height, width))
    return convolved


def _image_batch(batch_shape: Shape) -> Shape:
    if len(batch_shape) != 4:
        raise Infeasible(
            f"inputs of shape {list(batch_shape[1:])} are no images, of which fewer pixels could be searched for"
        )
    return batch_shape


def _known(pixel_range: torch.Tensor | None) -> torch.Tensor:
    assert pixel_range is not None
    return pixel_range


class NormalImages(_Unknown):
    """Images as the normal law of their class makes them: latents are standard normal, and their length has a price.

    What the law makes is clipped to valid pixels, nearly: a background is black, and not grey on average. The search
    starts at the mean of the class. Labels that are searched for leave the law of all classes.
    """

    kind: Literal["normal"] = "normal"
    needs: ClassVar[frozenset[Grant]] = frozenset({"auxiliary_images", "pixel_range"})
    expects: ClassVar[bool] = True

    images: int = Field(512, ge=2, description="most auxiliary images to take the law from")
    floor: float = Field(0.02, gt=0, description="variance of every input's own, as a part of the mean variance")
    weight: float = Field(1.0, ge=0, description="factor of the negative log-density")

    def shape(self, batch_shape: Shape) -> Shape:
        return _image_batch(batch_shape)

    @property
    def noisy(self) -> NormalImages:
        return _NoisyImages(**dict(self))

    def near(self, images: torch.Tensor, deviation: float) -> NormalImages:
        """The same of images near given ones ``[n, B, C, H, W]``: every pixel deviates by itself by so much."""
        near = _NearImages(**dict(self))
        near._images, near._deviation = images, deviation
        return near

    def informed(
        self, batch_shape: Shape, knowledge: Knowledge, labels: torch.Tensor | None, classes: int, rounds: int
    ) -> _Expected:
        law = self.law(knowledge, classes)
        return _Expected(law, *law.expected(labels, _image_batch(batch_shape)[0]))

    def times(self, factor: float) -> NormalImages:
        return self.model_copy(update={"weight": factor * self.weight})

    def auxiliary(self, granted: int) -> int:
        return min(self.images, granted)

    def surprise(self, latents: torch.Tensor) -> torch.Tensor:
        nats: torch.Tensor = self.weight / 2 * latents.square().sum()
        return nats

    def law(self, knowledge: Knowledge, classes: int) -> ImageLaw:
        images, labels = knowledge.auxiliary_images, knowledge.auxiliary_labels
        assert images is not None and labels is not None
        return ImageLaw.of(images[: self.images], labels[: self.images], classes, self.floor)


class _NoisyImages(NormalImages):
    """Images of the law, with noise of the known covariance on them that a defense draws anew in every round.

    The noise is searched for with the images: its latents are standard normal, too.
    """

    needs: ClassVar[frozenset[Grant]] = NormalImages.needs | {"data_noise"}

    def informed(
        self, batch_shape: Shape, knowledge: Knowledge, labels: torch.Tensor | None, classes: int, rounds: int
    ) -> _Expected:
        law = self.law(knowledge, classes)
        means, spreads = law.expected(labels, _image_batch(batch_shape)[0])
        assert knowledge.data_noise is not None
        roots = {id(each): root(each).to(means) for each in knowledge.data_noise}
        return _Expected(law, means, spreads, torch.stack([roots[id(each)] for each in knowledge.data_noise]), rounds)


class _NearImages(NormalImages):
    """Given images, from which every pixel deviates by itself."""

    _images: Any = PrivateAttr()  # a tensor, whose class's name would import torch
    _deviation: float = PrivateAttr()

    def informed(
        self, batch_shape: Shape, knowledge: Knowledge, labels: torch.Tensor | None, classes: int, rounds: int
    ) -> _Expected:
        means = self._images.flatten(2)
        none = means.new_zeros(0, means.shape[-1])
        law = ImageLaw(means[0, :1], none, none.T[:1], means.new_tensor(self._deviation))
        return _Expected(law, means, means.new_zeros(*means.shape[:2], 0))


class _Expected:
    """Latents of a law.

    Args:
        law: of images.
        means: ``[n, B, P]``, or ``[1, B, P]`` where all observations share them.
        spreads: ``[n, B, N]``, or ``[1, B, N]``.
        root: of the covariance of the noise on the images of each observation: standard deviations ``[n, P]``, or
            matrices ``[n, P, P]``; None without noise.
        rounds: of noise.
    """

    def __init__(
        self,
        law: ImageLaw,
        means: torch.Tensor,
        spreads: torch.Tensor,
        root: torch.Tensor | None = None,
        rounds: int = 0,
    ) -> None:
        self._law, self._rounds = law, rounds
        self.of_rows = (means, spreads) if root is None else (means, spreads, root)

    def shape(self, batch_shape: Shape) -> Shape:
        """``(B, N + P)``, and ``P`` more for every round of noise."""
        return batch_shape[0], len(self._law.examples) + (1 + self._rounds) * math.prod(batch_shape[1:])

    def encode(self, start: torch.Tensor, pixel_range: torch.Tensor | None) -> torch.Tensor:
        """Zeros: the means. Of several images near them: equal ones of a class have equal gradients, and would stay."""
        return JITTER * start if start.shape[-2] > 1 else torch.zeros_like(start)

    def fit(self, images: torch.Tensor, pixel_range: torch.Tensor | None) -> torch.Tensor:
        """The most probable latents of images ``[n, B, C, H, W]``, without noise on them."""
        latents = self._law.latents(images.flatten(2), *self.of_rows[:2])
        return torch.nn.functional.pad(latents, (0, self._rounds * images[0, 0].numel()))

    def noise(self, number: int) -> Callable[..., torch.Tensor] | None:
        """From latents ``[B, ...]`` of one observation to noise ``[B, P]``, as of the unknown that this informs."""
        if not self._rounds:
            return None
        pixels = self._law.means.shape[1]
        start = len(self._law.examples) + (1 + number) * pixels

        def noise(latents: torch.Tensor, *of_rows: torch.Tensor) -> torch.Tensor:
            standard, root = latents[..., start : start + pixels], of_rows[-1]
            return standard * root if root.dim() == 1 else standard @ root.T

        return noise

    def decoder(
        self, batch_shape: Shape, pixel_range: torch.Tensor | None, like: torch.Tensor
    ) -> Callable[..., torch.Tensor]:
        law, (low, high) = ImageLaw(*(part.to(like) for part in self._law)), _known(pixel_range).to(like)

        def decode(latents: torch.Tensor, means: torch.Tensor, spreads: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
            of_images = latents[..., : len(law.examples) + means.shape[-1]]
            images: torch.Tensor = law.images(of_images, means, spreads).unflatten(-1, batch_shape[1:])
            clipped = torch.minimum(torch.maximum(images, low), high)
            return clipped + LEAK * (images - clipped)

        return decode


Unknown = Annotated[Pixels | Upsampled | Decoder | NormalImages, Field(discriminator="kind")]
