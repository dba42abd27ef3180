"""Water-filling noise: Gaussian sampling, and noise only in directions where it varies too little.

The covariance of a client's update, ``Sigma = G G^T / (B D)``, gets the eigenvalues ``max(lambda, sigma^2)``.
Source: Zhang et al. (2024), section 5.1; the algebra is in :mod:`leakbench.theory.water_filling`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from leakbench.defenses.aggregate import AllRecords
from leakbench.defenses.base import DEFENSES, PrivacyStatement, Schedule
from leakbench.errors import ConfigError
from leakbench.federated.layered_steps import LayeredSteps
from leakbench.federated.message import DenseMessage, Law, Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.models.record_gradients import RecordGradients
from leakbench.numerics.eigenpairs import multiply_adds as eigenpairs_work
from leakbench.numerics.eigenpairs import pairs_above
from leakbench.randomness import Streams
from leakbench.theory.aggregate_dp import Mechanism
from leakbench.theory.water_filling import (
    BlockForm,
    block_spectra,
    block_update,
    isotropic_suffices,
    total_loadings,
    total_noise,
)

if TYPE_CHECKING:
    from leakbench.theory.water_filling import UpdateSpectrum


@DEFENSES.register("water_filling", version=2)
class WaterFilling(AllRecords):
    """GSGD-DP (Zhang et al. 2024): Gaussian sampling with noise that lifts its variance to a floor everywhere."""

    variance: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="the floor of each client's variance in every direction, sigma^2; or give epsilon",
    )
    blocks: int = Field(1, ge=1, description="blocks of coordinates that are filled each by itself, k")
    form: BlockForm = Field(
        "corrected",
        description="corrected: each block has weights of its own, drawn at once with the noise; as_printed: one draw "
        "of weights for all blocks, whose covariances then break the floor",
    )

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        records, device = self.all_records(steps.images.shape[1]), steps.images.device
        dimension = steps.network.dimension
        if self.blocks > dimension:
            raise ConfigError(
                f"water_filling in {self.blocks} blocks of {dimension} coordinates; they are at least one"
            )
        normal = streams.normal(1, dimension, device=device)
        if isinstance(steps, LayeredSteps) and self.blocks == 1 and self.form == "corrected":
            updates = [self._filled(self.bounded(some), normal[part]) for part, some in steps.record_gradients()]
            return DenseMessage(torch.cat(updates))
        weights = None
        if self.form == "as_printed":
            weights = streams.child("weights").normal(1, 1, records, device=device)
        parts = [
            self._noisy(gradients, normal[part], None if weights is None else weights[part])
            for part, gradients in steps.sample_gradients()
        ]
        mean, values, variance = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        passing = torch.ones_like(mean, dtype=torch.bool)
        return DenseMessage(values, law=Law(mean, passing, variance, independent=False))

    def passes(self, records: int) -> float:
        """Work on the Gram matrix of ten errors per record and on its eigenpairs, in passes through a linear model.

        A pass is that of Fig. 5a, three multiply-adds for each of 7,850 parameters. Other networks have larger passes,
        and larger Gram matrices, which this does not tell.
        """
        return (10 * records**2 + eigenpairs_work(records)) / (3 * 7850)

    @property
    def row(self) -> tuple[Mechanism, int | None]:
        return "gaussian_filled", self.batch

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        """By default Theorem 4, with its whole range of orders; blocks with weights of their own do not change it."""
        if self.blocks > 1 and self.form == "as_printed":
            return PrivacyStatement.none("blocks that share their weights are correlated, and the floor does not hold")
        return self.stated(schedule)

    def _filled(self, gradients: RecordGradients, normal: torch.Tensor) -> torch.Tensor:
        """The updates ``[k, d]`` of some clients, from the Gram matrices of their bounded gradients; without a law.

        Only eigenvalues above the floor are computed, and none where the norm of ``Sigma`` (Frobenius') shows that none
        exceeds it.
        """
        level, mean = self.noise_level, gradients.mean()
        values, root = mean + level**0.5 * normal[:, 0], normal.new_tensor(level, dtype=torch.float64).sqrt()
        gram, scale = gradients.gram(), self.batch * gradients.losses.shape[1]
        norms = torch.linalg.matrix_norm(gram)
        finite = norms.isfinite()
        some = (norms > scale * level) & finite
        if bool(some.any()):
            along = gradients.along(normal).double()[:, 0]
            weights = torch.zeros_like(along)
            for client in some.nonzero()[:, 0].tolist():
                eigenvalues, vectors = pairs_above(gram[client], scale * level)
                loadings = total_loadings(eigenvalues / scale, root) / scale
                weights[client] = vectors @ (loadings * (vectors.mT @ along[client]))
            values += gradients.weighted(weights.to(values.dtype).unsqueeze(1))[:, 0]
        return torch.where(finite[:, None], values, mean)

    def _noisy(
        self, gradients: torch.Tensor, normal: torch.Tensor, weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean, update, and the update's variance, of some clients with gradients ``[k, D, d]``."""
        level = self.noise_level
        factors = self.factors(torch.linalg.vector_norm(gradients, dim=2, keepdim=True))
        clipped = factors * gradients
        mean = clipped.mean(dim=1)
        finite = clipped.isfinite().flatten(1).all(dim=1)  # others have no spectrum, and stay as they are
        columns = torch.where(finite[:, None, None], clipped, 0.0).mT
        if weights is None and isotropic_suffices(columns, self.batch, level):
            values = mean + level**0.5 * normal[:, 0]
            return mean, values, torch.full_like(mean, level)
        spectra = block_spectra(columns, self.batch, self.blocks)
        variance = torch.cat([filled_diagonal(spectrum, level) for spectrum in spectra], dim=-1)
        if weights is None:
            pieces = normal.split([spectrum.dimension for spectrum in spectra], dim=-1)
            noise = [total_noise(spectrum, level, piece) for spectrum, piece in zip(spectra, pieces, strict=True)]
            return mean, mean + torch.cat(noise, dim=-1)[:, 0], variance
        values = block_update(spectra, level, weights, normal, "as_printed")[:, 0]
        return mean, torch.where(finite[:, None], values, mean), variance


def filled_diagonal(spectrum: UpdateSpectrum, variance: float) -> torch.Tensor:
    """The diagonal of ``Sigma_+``, ``[..., K]``, from the eigenvectors above the floor alone.

    Args:
        spectrum: of clients ``[...]``.
        variance: ``sigma^2``.
    """
    values = spectrum.eigenvalues
    above = int((values > variance).sum(dim=-1).max())  # eigenvalues ascend
    floor = spectrum.gradients.new_full(spectrum.gradients.shape[:-1], variance)
    if not above:
        return floor
    excess = (1 - variance / values[..., -above:].clamp(min=variance)) / (spectrum.batch * spectrum.records)
    directions = spectrum.gradients @ spectrum.vectors[..., -above:].to(floor.dtype)
    lifted: torch.Tensor = floor + (directions.square() * excess.to(floor.dtype).unsqueeze(-2)).sum(dim=-1)
    return lifted
