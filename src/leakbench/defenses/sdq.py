"""Quantisation on a lattice as a defense: by itself (SDQ), and with noise that makes it private (JoPEQ).

Sources: Shlezinger et al. (2021), UVeQFed; Lang et al. (2023), JoPEQ; Deng et al. (2024), who compare with both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule
from leakbench.federated.lattice import Lattice, LatticeMessage, Noise, PointRounding, lattice_law, quantise
from leakbench.federated.lattice_likelihood import Cells
from leakbench.federated.message import Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams

PUBLISHED = (
    *((0.84, 3.0, 3), (1.0, 2.0, 3), (2.0, 1.0, 12), (2.0, 0.5, 4), (3.0, 1.0, 32), (3.0, 0.5, 14)),
    *((3.0, 0.2, 4), (4.0, 0.85, 50), (4.0, 0.1, 3), (4.0, 0.2, 4), (4.0, 0.5, 29)),
)
"""Epsilon, shape ``sigma^2`` and degrees of freedom ``nu`` of bivariate t noise, as JoPEQ's public code lists them."""


@DEFENSES.register("sdq", version=1)
class SDQ(Defense):
    """Subtractive dithered quantisation of every tensor on a lattice; the server averages."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    bits: int = Field(16, ge=1, le=24, description="per coordinate, R")
    dimension: Literal[1, 2] = Field(2, description="of the lattice, L: 1, or 2 for the hexagonal one")
    rounding: PointRounding = Field("nearest", description="nearest: to the nearest point; babai: as released")
    clip: float | None = Field(
        None,
        gt=0,
        description="public bound on every coordinate's absolute value, in place of the tensors' own means and sigmas",
    )

    def lattice(self) -> Lattice:
        """The lattice on which it quantises."""
        return Lattice(self.dimension, self.bits)

    def noise_covariance(self) -> torch.Tensor | None:
        """Covariance of the noise on a normalised block, ``[L, L]``, float64; None without noise."""
        return None

    def _noise(self, steps: ClientSteps, streams: Streams) -> Noise | None:
        return None

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        gradient = steps.gradient
        quantised = quantise(
            gradient,
            steps.network.sizes,
            self.lattice(),
            self.rounding,
            streams,
            noise=self._noise(steps, streams),
            bound=self.clip,
        )
        law = partial(lattice_law, gradient, quantised, self.rounding, self.noise_covariance())
        return LatticeMessage(quantised, streams, law)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Log-likelihood, ``[n]``, of the cells that values lie in, known but for what is beyond the lattice's limit.

        See :meth:`~leakbench.federated.lattice_likelihood.Cells.uniform`. Tensors' means and scales, which travel,
        are taken as received; that the candidate's own would have to be the same is not used.
        """
        return self._cells(received, steps).uniform()

    def _cells(self, received: Received, steps: ClientSteps) -> Cells:
        return Cells.of(steps.gradient, received, steps.network.sizes, self.lattice(), self.rounding, bound=self.clip)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("the server knows the dither, and so each value up to a cell")


@DEFENSES.register("jopeq", version=1)
class JoPEQ(SDQ):
    """Noise before dithered quantisation: with the rounding error it has the variance of a private mechanism."""

    form: Literal["published", "as_released"] = Field(
        "published",
        description="as_released: without noise, as the attack script of Deng et al. (2024) runs it: plain SDQ",
    )
    mechanism: Literal["vector", "scalar"] = Field(
        "vector",
        description="vector: bivariate t noise on a lattice of dimension 2; scalar: Laplace noise, dimension 1",
    )
    epsilon: float = Field(gt=0, description="nominal epsilon, per normalised coordinate or block")
    sigma2: float | None = Field(None, gt=0, description="vector: shape of the t distribution")
    nu: int | None = Field(None, ge=3, description="vector: its degrees of freedom")

    @model_validator(mode="before")
    @classmethod
    def _fill_dimension(cls, given: Any) -> Any:
        if isinstance(given, dict) and "dimension" not in given:
            return {**given, "dimension": 1 if given.get("mechanism") == "scalar" else 2}
        return given

    @model_validator(mode="after")
    def _known_noise(self) -> JoPEQ:
        if self.dimension != (2 if self.mechanism == "vector" else 1):
            raise ValueError(f"dimension ({self.dimension}) must be 2 for mechanism 'vector' and 1 for 'scalar'")
        if self.mechanism == "scalar":
            if (self.sigma2, self.nu) != (None, None):
                raise ValueError("sigma2 and nu are of mechanism 'vector'; 'scalar' takes epsilon alone")
        elif (self.epsilon, self.sigma2, self.nu) not in PUBLISHED:
            raise ValueError(
                f"(epsilon, sigma2, nu) = {(self.epsilon, self.sigma2, self.nu)} is none of those that are published: "
                f"{', '.join(map(str, PUBLISHED))}"
            )
        if self._part() <= 0:
            raise ValueError(
                f"bits ({self.bits}): the quantisation error alone exceeds the noise of epsilon {self.epsilon:g}; "
                "take more bits or a smaller epsilon"
            )
        return self

    def _total(self) -> float:
        """Variance of the whole error in a coordinate, in normalised units."""
        if self.mechanism == "scalar":
            return 2 * (2 / self.epsilon) ** 2
        assert self.sigma2 is not None
        assert self.nu is not None
        return self.sigma2 * self.nu / (self.nu - 2)

    def lattice(self) -> Lattice:
        total = 0.0 if self.form == "as_released" else self._total()
        return Lattice(self.dimension, self.bits, 1.5 * math.sqrt(1 + total))

    def _error(self) -> tuple[float, float, float]:
        """Covariance of the rounding error: variances of the first and last coordinate of a block, and between them."""
        step = self.lattice().step ** 2
        if self.dimension == 1:
            return step / 12, step / 12, 0.0
        if self.rounding == "nearest":
            return 5 / 54 * step, 5 / 54 * step, 0.0
        return step / 12, 5 / 36 * step, math.sqrt(3) / 36 * step

    def _part(self) -> float:
        """Smallest variance, over directions, of the noise before quantisation: the total less the rounding error."""
        first, last, between = self._error()
        largest = (first + last) / 2 + math.hypot((first - last) / 2, between)
        return self._total() - largest

    def noise_covariance(self) -> torch.Tensor | None:
        if self.form == "as_released":
            return None
        error = self.lattice().error_covariance(self.rounding)
        noise: torch.Tensor = torch.eye(self.dimension, dtype=torch.float64).mul(self._total()) - error
        return noise

    def _noise(self, steps: ClientSteps, streams: Streams) -> Noise | None:
        covariance = self.noise_covariance()
        if covariance is None:
            return None
        draws, device = streams.child("noise"), steps.gradient.device

        def laplace(shape: tuple[int, int]) -> torch.Tensor:
            first, second = (-torch.log1p(-draws.uniform(*shape, device=device)) for _ in range(2))
            return math.sqrt(float(covariance[0, 0]) / 2) * (first - second)

        def student(shape: tuple[int, int]) -> torch.Tensor:
            """A normal vector over the root of an independent chi-squared variable, which is a sum of exponentials."""
            assert self.nu is not None
            normal = draws.normal(*shape, device=device)
            root = torch.linalg.cholesky(covariance * (self.nu - 2)).to(normal)
            chi = sum(-2 * torch.log1p(-draws.uniform(shape[1], device=device)) for _ in range(self.nu // 2))
            if self.nu % 2:
                chi = chi + draws.normal(shape[1], device=device).square()
            drawn: torch.Tensor = root @ normal
            return drawn / torch.as_tensor(chi).sqrt()[:, None]

        return laplace if self.mechanism == "scalar" else student

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Log-likelihood of the points under noise, ``[n]``: exact for Laplace noise, approximate for t noise.

        See :class:`~leakbench.federated.lattice_likelihood.Cells`. Without noise it is that of plain quantisation.
        """
        covariance, step = self.noise_covariance(), self.lattice().step
        if covariance is None:
            return super().log_likelihood(received, steps)
        cells = self._cells(received, steps)
        if self.mechanism == "scalar":
            return cells.laplace(math.sqrt(float(covariance[0, 0]) / 2) / step)
        assert self.nu is not None
        return cells.student(self._total() / step**2, self.nu)

    def block_epsilon(self) -> float:
        """Epsilon of the noise before quantisation, for one block of values in [-1, 1]; infinite without noise.

        Quantisation with a dither that the server knows is post-processing. Laplace noise of scale
        ``s``: ``2 / s``. Bivariate t noise of shape S: :func:`student_epsilon` of the distance between opposite corners
        in the norm of ``S^-1``. (Published values of epsilon are those of the total noise and of centres one apart,
        rounded; but ``(4, 0.2, 4)`` is the noise of ``(3, 0.2, 4)``, and both are 3.2.)
        """
        covariance = self.noise_covariance()
        if covariance is None:
            return math.inf
        if self.mechanism == "scalar":
            return float(2 / (covariance[0, 0] / 2).sqrt())
        assert self.nu is not None
        corners = torch.tensor([[2.0, 2.0], [2.0, -2.0]], dtype=torch.float64)
        shape = covariance * (self.nu - 2) / self.nu
        far = math.sqrt(float((corners @ torch.linalg.inv(shape) * corners).sum(dim=1).max()))
        return student_epsilon(far, self.nu)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        """Pure DP against replacing a client's whole batch, if a public bound clips every coordinate."""
        if self.form == "as_released":
            return super().privacy(schedule)
        if self.clip is None:
            return PrivacyStatement.none(
                f"epsilon {self.epsilon:g} is nominal, of one normalised block. Means and sigmas of the "
                "tensors depend on the data and travel in clear, and what lies beyond 3 sigma is not clipped, so the "
                "sensitivity is not bounded; 'clip' bounds it",
            )
        # Each tensor may end with half a block: as many blocks as coordinates is a bound that holds for any sizes.
        blocks = schedule.dimension
        return PrivacyStatement(
            schedule.rounds * blocks * self.block_epsilon(),
            0.0,
            f"{schedule.rounds} round(s) of at most {blocks} blocks with {self.block_epsilon():.4g} each, which is the "
            "noise's before quantisation; neighbours differ in one client's whole batch",
        )


def student_epsilon(distance: float, nu: float) -> float:
    """Largest log ratio of the densities of two bivariate t distributions, ``m`` apart in the norm of their shape.

    ``(nu + 2) / 2 ln((nu + (r + m)^2) / (nu + r^2))``, which is largest at ``r = (sqrt(m^2 + 4 nu) - m) / 2``.
    """
    nearest = (math.sqrt(distance**2 + 4 * nu) - distance) / 2
    return (nu + 2) / 2 * math.log((nu + (nearest + distance) ** 2) / (nu + nearest**2))
