"""Gaussian noise of a given capacity: Tan et al. (2024), "Defending Against Data Reconstruction Attacks".

A client treats what it releases as the output of a channel and adds noise until the channel carries at most ``kappa``
nats. By the data processing inequality, nothing computed from a noisy image tells more of the clean one than it does:
noise on the *data* holds for every model and step, while noise on the *parameters* is calibrated anew at each step.

The three data-space channels differ in the noise's covariance: ``sigma I`` (natural, section 5.2), proportional to the
data's (white, section 5.3), ``sigma diag(beta)`` (personalized, section 5.4). Noisy pixels are not clipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from leakbench.data.covariance import Moments
from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule
from leakbench.defenses.noise import add_noise
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.client_data import ClientData
from leakbench.federated.message import Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.numerics.eigenpairs import finite_or_identity
from leakbench.randomness import Streams
from leakbench.theory.capacity import capacity, natural_variance, white_factor
from leakbench.theory.personalized import Blocks, PersonalizedForm, blocks, bound_variance, weighted_spectrum

BLOCK = 256
"""Images per random stream: an image's noise does not depend on how many come after its block."""
PANEL = 384
"""Columns of a triangular root per matrix product, which leaves out the zeros below. Only speed depends on it."""


@dataclass(frozen=True)
class ChannelReport:
    """The effect of a calibrated channel on one client's images.

    Attributes:
        kappa: the capacity asked for, nats per image and draw.
        capacity: the capacity reached, nats: ``kappa`` but for ``as_printed`` and ``bound``, which stay below.
        scale: natural: the variance of the noise; white: its covariance over that of the data; personalized: its
            variance where ``beta`` is one.
        trace: total variance of the noise in an image.
        mean_variance: the same per pixel: the expected MSE of an attacker who returns the noisy image itself.
        dimension: pixels of an image, all channels, d.
        rank: number of directions in which the images differ.
        images: number of images behind the estimated covariance.
    """

    kappa: float
    capacity: float
    scale: float
    trace: float
    mean_variance: float
    dimension: int
    rank: int
    images: int

    def as_dict(self) -> dict[str, Any]:
        """The report in JSON types."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class DataNoise:
    """The noise of one calibrated channel.

    Attributes:
        root: standard deviations ``[d]``, or an upper triangular root of the covariance, ``R^T R``, with a row per
            direction that has noise, ``[r, d]``; float32.
        signal_to_noise: eigenvalues of the data's covariance in units of the noise, float64 ``[d]``.
        report: the effect on the images.
        factor: where the noise's covariance is a multiple of the data's, the multiplier and the data's covariance
            ``[d, d]``: exact, also in directions where both are zero.
    """

    root: torch.Tensor
    signal_to_noise: torch.Tensor
    report: ChannelReport
    factor: tuple[float, torch.Tensor] | None = None

    def colour(self, normal: torch.Tensor) -> torch.Tensor:
        """Noise from standard normal draws, both ``[..., C, H, W]``."""
        root, flat = self.root.to(normal), normal.flatten(-3)
        if root.dim() == 1:
            return (flat * root).view_as(normal)
        ends = range(PANEL, root.shape[1] + PANEL, PANEL)
        parts = [flat[..., : min(end, len(root))] @ root[:end, end - PANEL : end] for end in ends]
        return torch.cat(parts, dim=-1).view_as(normal)

    @cached_property
    def covariance(self) -> torch.Tensor:
        """Covariance of the noise, float64: variances ``[d]``, or ``[d, d]``."""
        if self.factor is not None:
            multiplier, covariance = self.factor
            return multiplier * covariance
        root = self.root.double()
        return root.square() if root.dim() == 1 else root.T @ root

    def capacity(self, visits: float = 1.0) -> float:
        """Nats that ``visits`` independent draws carry together, for normal images: ``f(sigma / visits)``."""
        return float(capacity(self.signal_to_noise, 1 / visits))


def _data_noise(
    kappa: float, moments: Moments, scale: float, root: torch.Tensor, signal_to_noise: torch.Tensor
) -> DataNoise:
    trace, d = float(root.square().sum()), root.shape[-1]  # of a triangular root too: the squared Frobenius norm
    report = ChannelReport(
        kappa=kappa,
        capacity=float(capacity(signal_to_noise, 1.0)),
        scale=scale,
        trace=trace,
        mean_variance=trace / d,
        dimension=d,
        rank=int((signal_to_noise > 0).sum()),
        images=moments.count,
    )
    return DataNoise(root.float(), signal_to_noise, report)


def _blocks(images: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Index and view of consecutive blocks of ``[n, N, ...]``, along the second axis."""
    return enumerate(images.split(BLOCK, dim=1))


class _Calibrated(Defense):
    """A defense of the data that has to see all of them first; the calibration is none of its parameters."""

    acts_on: ClassVar[Literal["data", "samples", "updates"]] = "data"

    _of_clients: list[Any] | None = PrivateAttr(None)

    def calibrate(self, data: ClientData) -> Defense:
        ready = self.model_copy()
        ready._of_clients = [self._calibration(moments, data.shape) for moments in data.moments]
        return ready

    def _calibration(self, moments: Moments, shape: tuple[int, int, int]) -> Any:
        """The calibration for one client."""
        raise NotImplementedError

    def _ready(self, clients: int | None = None) -> list[Any]:
        """The calibrations of so many clients.

        Raises:
            Infeasible: not calibrated.
            ConfigError: calibrated for another number of clients.
        """
        if self._of_clients is None:
            raise Infeasible(f"'{self.name}' has seen no data: calibrate it with the clients' images first")
        if clients is None or len(self._of_clients) == clients:
            return self._of_clients
        if len(self._of_clients) != 1:
            raise ConfigError(f"'{self.name}' is calibrated for {len(self._of_clients)} clients, not for {clients}")
        return self._of_clients * clients

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        self._ready()  # else a mechanism that was never applied to the data would look as if it had been
        return super().protect_update(steps, streams)


class DataChannel(_Calibrated):
    """Noise on images, of a covariance that the subclass computes."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "posterior_mean"},)

    kappa: float = Field(gt=0, description="capacity, in nats: what one noisy image may tell of the clean one")
    noise: Literal["once", "fresh"] = Field(
        "once", description="once: one draw per image, before training; fresh: a new draw at every step"
    )

    @property
    def data_noise(self) -> list[DataNoise]:
        """The noise of each client that the channel was calibrated for.

        Raises:
            Infeasible: not calibrated.
        """
        return self._ready()

    @property
    def reports(self) -> list[ChannelReport]:
        """The channel's effect on each client's images; raises as :attr:`data_noise`."""
        return [noise.report for noise in self.data_noise]

    def protect_dataset(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        noises = self._ready(len(images))
        if self.noise == "fresh":
            return images, labels
        noisy = torch.empty_like(images)
        for number, block in _blocks(images):
            shape = (BLOCK, *images.shape[2:])
            normal = streams.child("channel", number).normal(*shape, device=images.device)[:, : block.shape[1]]
            first = number * BLOCK
            for row, noise in enumerate(noises):
                noisy[row, first : first + BLOCK] = block[row] + noise.colour(normal[row])
        return noisy, labels

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        noises = self._ready(len(images))
        if self.noise == "once":
            return images, labels
        normal = streams.child("channel").normal(*images.shape[1:], device=images.device)
        return images + torch.stack([noise.colour(draw) for noise, draw in zip(noises, normal, strict=True)]), labels

    def image_noise(self) -> list[torch.Tensor]:
        return [noise.covariance for noise in self.data_noise]

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        """Capacity: of all releases together if noise is drawn once, else of as many draws as an image has visits.

        Before calibration it is stated from ``kappa``, which no form of a channel exceeds.
        """
        visits = 1.0
        if self.noise == "fresh":
            visits = max(1.0, schedule.rounds * (schedule.sampling_rate or 1.0))
        if self._of_clients is None:
            nats = visits * self.kappa
        else:
            nats = max(noise.capacity(visits) for noise in self.data_noise)
        drawn = "once per image" if self.noise == "once" else f"afresh at each of {visits:g} visits of an image"
        return PrivacyStatement(
            None,
            None,
            "no differential privacy: at most `capacity` nats of mutual information between one image and all that is "
            f"released; noise drawn {drawn}; images are independent and have the estimated covariance, which is not "
            "protected, as labels are not",
            nats,
        )


@DEFENSES.register("natural_channel", version=1)
class NaturalChannel(DataChannel):
    """Isotropic noise on the images, of a given capacity (Tan et al. 2024, section 5.2)."""

    def _calibration(self, moments: Moments, shape: tuple[int, int, int]) -> DataNoise:
        eigenvalues = moments.eigenvalues
        sigma = natural_variance(eigenvalues, self.kappa)
        return _data_noise(
            self.kappa, moments, float(sigma), sigma.sqrt().expand(len(eigenvalues)), eigenvalues / sigma
        )


@DEFENSES.register("white_channel", version=2)
class WhiteChannel(DataChannel):
    """Noise with the covariance of the images: all directions give the same capacity (Tan et al. 2024, section 5.3)."""

    rank: Literal["corrected", "as_printed"] = Field(
        "corrected",
        description="directions that share kappa; corrected: those in which images differ; as_printed: all pixels",
    )

    def _calibration(self, moments: Moments, shape: tuple[int, int, int]) -> DataNoise:
        eigenvalues, d = moments.eigenvalues, len(moments.eigenvalues)
        shared = moments.rank if self.rank == "corrected" else d
        factor = float(white_factor(shared, self.kappa))
        loadings = (moments.eigenvectors * (factor * eigenvalues).sqrt())[:, : moments.rank].T
        root = torch.linalg.qr(loadings, mode="r").R
        root = root * torch.where(root.diagonal() < 0, -1.0, 1.0)[:, None]  # it has one form, whatever the basis
        ratios = (eigenvalues > 0).to(eigenvalues) / factor
        noise = _data_noise(self.kappa, moments, factor, root, ratios)
        return replace(noise, factor=(factor, moments.covariance))


class Rectangle(BaseModel):
    """Pixels that get more noise than the others: those whose centres lie in a rectangle, as parts of the sides.

    The default is the paper's (Fig. 17): of 32 pixels, rows 12 to 19 and columns 8 to 23, in every colour channel.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    top: float = Field(12 / 32, ge=0, le=1, description="upper edge, as a part of the height")
    bottom: float = Field(20 / 32, ge=0, le=1, description="lower edge")
    left: float = Field(8 / 32, ge=0, le=1, description="left edge, as a part of the width")
    right: float = Field(24 / 32, ge=0, le=1, description="right edge")
    weight: float = Field(50.0, gt=0, description="variance inside, relative to that outside")

    @model_validator(mode="after")
    def _has_an_inside(self) -> Rectangle:
        if self.top >= self.bottom or self.left >= self.right:
            raise ValueError("the rectangle is empty: top must be less than bottom, left less than right")
        return self

    def weights(self, height: int, width: int) -> torch.Tensor:
        """``[H, W]``, float64."""
        rows = (torch.arange(height, dtype=torch.float64) + 0.5) / height
        columns = (torch.arange(width, dtype=torch.float64) + 0.5) / width
        inside = ((rows >= self.top) & (rows < self.bottom))[:, None] & (columns >= self.left) & (columns < self.right)
        return torch.where(inside, self.weight, torch.ones((), dtype=torch.float64))


class _Weighted:
    """The spectra that all capacities share for the same images and weights, computed once."""

    def __init__(self, covariance: torch.Tensor, beta: torch.Tensor) -> None:
        self._covariance, self._beta = covariance, beta

    @cached_property
    def spectrum(self) -> torch.Tensor:
        return weighted_spectrum(self._covariance, self._beta)

    @cached_property
    def blocks(self) -> Blocks:
        return blocks(self._covariance, self._beta)


_spectra: WeakKeyDictionary[Moments, dict[tuple[float, ...], _Weighted]] = WeakKeyDictionary()


def _weighted(moments: Moments, beta: torch.Tensor) -> _Weighted:
    by_weights = _spectra.setdefault(moments, {})
    return by_weights.setdefault(tuple(beta.tolist()), _Weighted(moments.covariance, beta))


@DEFENSES.register("personalized_channel", version=1)
class PersonalizedChannel(DataChannel):
    """Independent noise whose variance follows given weights of pixels (Tan et al. 2024, section 5.4)."""

    solution: PersonalizedForm = Field(
        "exact", description="exact: capacity is kappa; bound: by the upper bound of Theorem 3, so capacity is less"
    )
    area: Rectangle = Field(Rectangle(), description="where to add more noise")
    mask: tuple[tuple[float, ...], ...] | None = Field(
        None, description="instead of the area: relative variance of the noise per pixel, by rows"
    )

    def weights(self, shape: tuple[int, int, int]) -> torch.Tensor:
        """Beta for images ``(C, H, W)``, the same in every colour channel: float64 ``[d]``.

        Raises:
            ConfigError: the mask has another shape than the images, or numbers that are not positive.
        """
        channels, height, width = shape
        if self.mask is None:
            weights = self.area.weights(height, width)
        else:
            lengths = {len(row) for row in self.mask}
            if len(self.mask) != height or lengths != {width}:
                shape_of_mask = f"{len(self.mask)} rows of {', '.join(map(str, sorted(lengths))) or 'no'} numbers"
                raise ConfigError(f"the mask has {shape_of_mask}; the images have {height} rows of {width} pixels")
            weights = torch.tensor(self.mask, dtype=torch.float64)
        if not bool(((weights > 0) & weights.isfinite()).all()):
            raise ConfigError("the mask must be positive and finite: a pixel without noise has no finite capacity")
        return weights.expand(channels, height, width).flatten()

    def _calibration(self, moments: Moments, shape: tuple[int, int, int]) -> DataNoise:
        beta = self.weights(shape).to(moments.covariance.device)
        weighted = _weighted(moments, beta)
        mu = weighted.spectrum
        if self.solution == "exact":
            sigma = natural_variance(mu, self.kappa)
        else:
            sigma = bound_variance(weighted.blocks, beta, self.kappa)
        return _data_noise(self.kappa, moments, float(sigma), (sigma * beta).sqrt(), mu / sigma)


@dataclass(frozen=True, eq=False)
class RemovedDirection:
    """The direction that ``eigen_compression`` takes from one client's images.

    Attributes:
        mean: of the images, ``[d]``.
        direction: of length one, ``[d]``.
        eigenvalue: variance along it.
    """

    mean: torch.Tensor
    direction: torch.Tensor
    eigenvalue: float


@DEFENSES.register("eigen_compression", version=1)
class EigenCompression(_Calibrated):
    """Take one eigen-direction out of the images, around their mean (Tan et al. 2024, Fig. 8 and Appendix E)."""

    direction: int = Field(0, ge=0, description="which one, by falling variance: 0 is the largest")

    def _calibration(self, moments: Moments, shape: tuple[int, int, int]) -> RemovedDirection:
        d = len(moments.eigenvalues)
        if self.direction >= d:
            raise ConfigError(f"images of {d} pixels have no direction {self.direction}; the last one is {d - 1}")
        value = float(moments.eigenvalues[self.direction])
        return RemovedDirection(moments.mean, moments.eigenvectors[:, self.direction], value)

    @property
    def removed(self) -> list[RemovedDirection]:
        """The direction taken from each client's images.

        Raises:
            Infeasible: not calibrated.
        """
        return self._ready()

    def protect_dataset(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self._ready(len(images))
        mean = torch.stack([row.mean for row in rows]).to(images)[:, None]
        direction = torch.stack([row.direction for row in rows]).to(images)[:, :, None]
        compressed = torch.empty_like(images)
        for number, block in _blocks(images):
            flat = block.flatten(2)
            flat = flat - (flat - mean) @ direction @ direction.mT
            compressed[:, number * BLOCK : (number + 1) * BLOCK] = flat.view_as(block)
        return compressed, labels


@DEFENSES.register("parameter_channel", version=1)
class ParameterChannel(Defense):
    """Isotropic noise on the gradient, of a given capacity, found anew at every step (Tan et al. 2024, section 5.1).

    The covariance of the next parameters is ``eta^2`` times that of the gradients of a client's images. The noise
    scales with it, so the learning rate cancels. Eigenvalues are those of the ``[B, B]`` matrix of inner products.
    """

    kappa: float = Field(gt=0, description="capacity of one step, in nats")
    signal: Literal["sample", "mean"] = Field(
        "sample", description="whose covariance counts: that of one image's gradient, or of the batch mean (eq. 24)"
    )

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        eigenvalues = gradient_eigenvalues(steps.per_sample_gradient)
        if self.signal == "mean":
            eigenvalues = eigenvalues / steps.images.shape[1]
        variance = natural_variance(eigenvalues, self.kappa).to(steps.gradient)
        return add_noise(steps.gradient, variance[:, None].expand_as(steps.gradient), streams)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        basis = (
            "no differential privacy: capacity of the steps, one by one, added up; the noise's size depends on the data"
        )
        return PrivacyStatement(None, None, basis, schedule.rounds * self.kappa)


def gradient_eigenvalues(gradients: torch.Tensor) -> torch.Tensor:
    """Eigenvalues of the unbiased covariance of ``B`` gradients that are not zero for sure.

    Args:
        gradients: ``[n, B, d]``.

    Returns:
        The largest first, float64 ``[n, B]``; ``B - 1`` of them at most differ from zero. Ones where a gradient is not
        finite: such a client's training is lost, and the others go on.

    Raises:
        Infeasible: one gradient has no covariance.
    """
    batch = gradients.shape[1]
    if batch < 2:
        raise Infeasible("the covariance of gradients needs at least 2 images per client and step")
    centred = (gradients - gradients.mean(dim=1, keepdim=True)).double()
    products = finite_or_identity(centred @ centred.mT / (batch - 1))
    values = torch.linalg.eigvalsh(products).clamp(min=0).flip(-1)
    noise = batch * torch.finfo(gradients.dtype).eps * values[:, :1]
    return torch.where(values > noise, values, 0.0)
