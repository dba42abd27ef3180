"""Water-filling noise: it lifts a client's update to a floor of variance in every direction, without a K x K matrix.

A client's update under Gaussian sampling is ``x = mean + G xi / sqrt(B D)`` with ``D`` per-record gradients as columns
of ``G``, ``[..., K, D]``, and ``xi`` standard normal: of covariance ``Sigma = G G^T / (B D)``. Noise of covariance
``Sigma_+ - Sigma`` raises every eigenvalue below ``sigma^2`` to it: ``Sigma_+ = U max(Lambda, sigma^2) U^T``.
Source: Zhang et al. (2024), section 5.1; ``variance`` is the paper's ``sigma^2``, of one client. At most ``D``
eigenvalues are not zero, and all of them are in the Gram matrix ``G^T G``. So both kinds of noise are
``sigma z + G P G^T z`` with ``z`` of ``K`` standard normals and ``P`` of ``D x D``: exact, and linear in ``K`` in time
and in memory.

The Gram matrix and its eigenvectors are float64; tensors with ``K`` rows keep the gradients' type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.theory.arguments import positive, positive_number

BlockForm = Literal["corrected", "as_printed"]
"""Weights of blocks: ``corrected``: each block has its own; ``as_printed``: all share those of the first."""

_SLAB_BYTES = 2**25
"""Size of a float64 copy of some rows of all gradients."""


def gram(gradients: torch.Tensor) -> torch.Tensor:
    """``G^T G`` in float64, ``[..., K, D] -> [..., D, D]``, of a few rows of ``G`` at a time.

    Raises:
        ConfigError: a gradient is not finite.
    """
    *clients, dimension, records = gradients.shape
    rows = max(1, _SLAB_BYTES // (8 * records * max(1, math.prod(clients))))
    products = gradients.new_zeros(*clients, records, records, dtype=torch.float64)
    for start in range(0, dimension, rows):
        slab = gradients[..., start : start + rows, :].double()
        products += slab.mT @ slab
    if not bool(products.isfinite().all()):
        raise ConfigError("water-filling needs gradients of finite numbers")
    return products


@dataclass(frozen=True)
class UpdateSpectrum:
    """The spectrum of the covariance of clients' updates.

    Attributes:
        gradients: ``G``, ``[..., K, D]``.
        eigenvalues: ``lambda_j`` of ``Sigma``, ascending, not negative, float64 ``[..., D]``; where ``K > D``, the
            other eigenvalues are zero.
        vectors: eigenvectors of ``G^T G`` as columns, float64 ``[..., D, D]``.
        batch: ``B``.
    """

    gradients: torch.Tensor
    eigenvalues: torch.Tensor
    vectors: torch.Tensor
    batch: float

    @property
    def dimension(self) -> int:
        """``K``."""
        return self.gradients.shape[-2]

    @property
    def records(self) -> int:
        """``D``."""
        return self.gradients.shape[-1]


def update_spectrum(gradients: torch.Tensor, batch: float) -> UpdateSpectrum:
    """The spectrum of ``Sigma = G G^T / (B D)`` from the Gram matrix; one for all variances of noise.

    Args:
        gradients: per-record gradients as columns, ``[..., K, D]``; rows as columns (``.mT``) cost no copy.
        batch: ``B``.

    Raises:
        ConfigError: ``B`` is not positive; a gradient is not finite.
    """
    scale = positive_number(batch, "the batch size") * gradients.shape[-1]
    values, vectors = torch.linalg.eigh(gram(gradients))
    return UpdateSpectrum(gradients, values.clamp(min=0) / scale, vectors, batch)


def isotropic_suffices(gradients: torch.Tensor, batch: float, variance: float) -> bool:
    """Whether no eigenvalue of any client can exceed the floor, since no trace does: then no spectrum is needed.

    Certain where ``sigma^2 >= C^2 / B`` and gradients are clipped at ``C``.

    Args:
        gradients: per-record gradients as columns, ``[..., K, D]``.
        batch: ``B``.
        variance: ``sigma^2``, the floor.

    Raises:
        ConfigError: ``B`` or the variance is not positive.
    """
    scale = positive_number(batch, "the batch size") * gradients.shape[-1]
    floor = positive_number(variance, "the variance of noise")
    norms = torch.linalg.vector_norm(gradients, dim=(-2, -1), dtype=torch.float64)
    return bool((norms.square() <= scale * floor).all())


def _filtered(
    spectrum: UpdateSpectrum, loadings: torch.Tensor, normal: torch.Tensor, root: torch.Tensor
) -> torch.Tensor:
    """``sigma z + G V diag(loadings) V^T G^T z``; loadings ``[..., m, D]``, root ``[..., m, 1]``."""
    gradients, vectors = spectrum.gradients, spectrum.vectors
    along = ((normal @ gradients).double() @ vectors * loadings) @ vectors.mT
    return root.to(normal.dtype) * normal + along.to(normal.dtype) @ gradients.mT


def _floor(variance: torch.Tensor | float, like: torch.Tensor) -> torch.Tensor:
    """``sigma^2`` as float64 ``[..., m, 1]``."""
    return positive(variance, "the variance of noise", like).unsqueeze(-1)


def added_noise(spectrum: UpdateSpectrum, variance: torch.Tensor | float, normal: torch.Tensor) -> torch.Tensor:
    """Noise of covariance ``Sigma_+ - Sigma``, ``[..., m, K]``, to be added to updates under Gaussian sampling.

    ``sigma z - G V diag(h) V^T G^T z``, where ``h_j = 1 / (B D (sigma + sqrt(sigma^2 - lambda_j)))`` below the floor
    and ``sigma / (B D lambda_j)`` above: nothing is divided by a small eigenvalue, and no rank is decided.

    Args:
        spectrum: of clients ``[...]``.
        variance: ``sigma^2``, a positive number or ``[..., m]``.
        normal: ``z``, standard normal, ``[..., m, K]``: ``m`` draws per client, of the gradients' type.

    Raises:
        ConfigError: the variance is not positive.
    """
    values = spectrum.eigenvalues.unsqueeze(-2)
    floor = _floor(variance, values)
    root, scale = floor.sqrt(), spectrum.batch * spectrum.records
    below = 1 / (root + (floor - values).clamp(min=0).sqrt())
    above = root / values.maximum(floor)
    return _filtered(spectrum, -torch.where(values <= floor, below, above) / scale, normal, root)


def total_noise(spectrum: UpdateSpectrum, variance: torch.Tensor | float, normal: torch.Tensor) -> torch.Tensor:
    """Noise of covariance ``Sigma_+``, ``[..., m, K]``: sampling and added noise, in one draw around the mean.

    ``sigma z + U_> ((sqrt(lambda_>) - sigma) * U_>^T z)``, of the eigenvalues above the floor alone.

    Args:
        spectrum: of clients ``[...]``.
        variance: ``sigma^2``, a positive number or ``[..., m]``.
        normal: ``z``, standard normal, ``[..., m, K]``: ``m`` draws per client, of the gradients' type.

    Raises:
        ConfigError: the variance is not positive.
    """
    values = spectrum.eigenvalues.unsqueeze(-2)
    root, scale = _floor(variance, values).sqrt(), spectrum.batch * spectrum.records
    return _filtered(spectrum, total_loadings(values, root) / scale, normal, root)


def total_loadings(eigenvalues: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    """``(sqrt(lambda) - sigma) / lambda`` above the floor and 0 below: of :func:`total_noise`, times ``B D``.

    Args:
        eigenvalues: ``lambda``, ``[..., D]``.
        root: ``sigma``, broadcast with them.
    """
    above = eigenvalues.maximum(root.square())
    return (above.sqrt() - root).clamp(min=0) / above


def gaussian_update(gradients: torch.Tensor, batch: float, weights: torch.Tensor) -> torch.Tensor:
    """Updates under Gaussian sampling, ``mean + G xi / sqrt(B D)``, ``[..., m, K]`` (Assumption 2).

    Args:
        gradients: ``G``, ``[..., K, D]``.
        batch: ``B``.
        weights: ``xi``, standard normal, ``[..., m, D]``.

    Raises:
        ConfigError: ``B`` is not positive.
    """
    scale = positive_number(batch, "the batch size") * gradients.shape[-1]
    return gradients.mean(dim=-1).unsqueeze(-2) + (weights / math.sqrt(scale)) @ gradients.mT


def batch_covariance(gradients: torch.Tensor, batch: int) -> torch.Tensor:
    """Covariance of the mean gradient of ``B`` records without replacement, ``[..., K, K]``; for small ``K``.

    ``(D - B) / (B (D - 1)) (G G^T / D - mean mean^T)``: centred, where that of Gaussian sampling is not, and below it.

    Args:
        gradients: ``G``, ``[..., K, D]``.
        batch: ``B``, from 1 to ``D``.

    Raises:
        ConfigError: ``B`` is not in that range.
    """
    records = gradients.shape[-1]
    if not 1 <= batch <= records:
        raise ConfigError(f"a batch must lie in 1 to D = {records}, found {batch}")
    centred = gradients - gradients.mean(dim=-1, keepdim=True)
    return centred @ centred.mT * ((records - batch) / (batch * max(1, records - 1) * records))


def added_trace(eigenvalues: torch.Tensor, variance: torch.Tensor | float, dimension: int) -> torch.Tensor:
    """``tr(Sigma_+ - Sigma) = K sigma^2 - sum_j min(lambda_j, sigma^2)``, the noise of water-filling, ``[...]``.

    >>> float(added_trace(torch.tensor([3.0, 0.5]), variance=1.0, dimension=10))
    8.5

    Args:
        eigenvalues: of ``Sigma``, ``[..., D]``; those left out are zero.
        variance: ``sigma^2``, a positive number or ``[...]``.
        dimension: ``K``; isotropic noise adds ``K sigma^2``.

    Raises:
        ConfigError: the variance is not positive.
    """
    floor = positive(variance, "the variance of noise", eigenvalues)
    return dimension * floor - eigenvalues.minimum(floor.unsqueeze(-1)).sum(dim=-1)


def filled(covariance: torch.Tensor, variance: float) -> torch.Tensor:
    """``Sigma_+`` of a covariance ``[..., K, K]`` by its definition: for small ``K``, and to compare with.

    Raises:
        ConfigError: the variance is not positive.
    """
    values, vectors = torch.linalg.eigh(covariance)
    floor = positive(variance, "the variance of noise", values)
    lifted: torch.Tensor = (vectors * values.maximum(floor).unsqueeze(-2)) @ vectors.mT
    return lifted


def block_spectra(gradients: torch.Tensor, batch: float, blocks: int) -> list[UpdateSpectrum]:
    """Spectra of ``k`` blocks of coordinates of nearly equal size, in order.

    Args:
        gradients: per-record gradients as columns, ``[..., K, D]``.
        batch: ``B``.
        blocks: ``k``.

    Raises:
        ConfigError: there are fewer coordinates than blocks, or no blocks; as :func:`update_spectrum`.
    """
    if not 1 <= blocks <= gradients.shape[-2]:
        raise ConfigError(f"the number of blocks must lie in 1 to K = {gradients.shape[-2]}, found {blocks}")
    return [update_spectrum(block, batch) for block in gradients.tensor_split(blocks, dim=-2)]


def block_update(
    spectra: Sequence[UpdateSpectrum],
    variance: torch.Tensor | float,
    weights: torch.Tensor,
    normal: torch.Tensor,
    form: BlockForm = "corrected",
) -> torch.Tensor:
    """The update of a client that fills each block of coordinates by itself, ``[..., m, K]``.

    The paper fills blocks to save time and claims the same epsilon. That fails where the weights are shared: blocks of
    an update are then correlated, and the floor is broken (:func:`block_covariance`).

    Args:
        spectra: of :func:`block_spectra`.
        variance: ``sigma^2``, a positive number or ``[..., m]``.
        weights: ``xi``, standard normal, ``[..., m, k, D]``.
        normal: ``z``, standard normal, ``[..., m, K]``.
        form: the weights of a block, see :data:`BlockForm`.

    Raises:
        ConfigError: the variance is not positive.
    """
    parts = normal.split([spectrum.dimension for spectrum in spectra], dim=-1)
    return torch.cat(
        [
            gaussian_update(spectrum.gradients, spectrum.batch, weights[..., block if form == "corrected" else 0, :])
            + added_noise(spectrum, variance, part)
            for block, (spectrum, part) in enumerate(zip(spectra, parts, strict=True))
        ],
        dim=-1,
    )


def block_covariance(
    gradients: torch.Tensor, batch: float, variance: float, blocks: int, form: BlockForm = "corrected"
) -> torch.Tensor:
    """Covariance of :func:`block_update`, ``[..., K, K]``; for small ``K``.

    ``corrected``: of diagonal blocks that are filled each; ``as_printed``: with ``Sigma`` off the diagonal beside them,
    so its smallest eigenvalue may be anything down to zero.

    Raises:
        ConfigError: as :func:`block_spectra` and :func:`filled`.
    """
    if not 1 <= blocks <= gradients.shape[-2]:
        raise ConfigError(f"the number of blocks must lie in 1 to K = {gradients.shape[-2]}, found {blocks}")
    scale = positive_number(batch, "the batch size") * gradients.shape[-1]
    plain = gradients @ gradients.mT / scale
    covariance = plain.clone() if form == "as_printed" else torch.zeros_like(plain)
    for part in torch.arange(gradients.shape[-2]).tensor_split(blocks):
        rows = slice(int(part[0]), int(part[-1]) + 1)
        covariance[..., rows, rows] = filled(plain[..., rows, rows], variance)
    return covariance
