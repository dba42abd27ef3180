"""Whether a record's gradient is in a sum of users' updates: scores, of which higher means that it is.

The server knows the model, the public parameters of the mechanism, and records of the same distribution which no user
holds. It models a mean over N users as normal, with and without the candidate, and takes the logarithm of the ratio of
the two likelihoods. The covariance of gradients is estimated in the span of auxiliary ones, its eigenvectors from one
half of them and the variances along them from the other, which no eigenvector has fitted (Lam 2016, "Nonparametric
eigenvalue-regularized precision or covariance matrix estimator"); all other directions share the variance that the
second half has there. Everything is products with vectors of length d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from leakbench.errors import ConfigError
from leakbench.lazy import torch

LEAST = 1e-4
"""Least variance of a direction, as a part of the mean one: no estimate is certain that a direction is empty."""


class Mechanism(NamedTuple):
    """The mechanism behind one user's update, as the server knows it.

    Attributes:
        taken: records whose gradients it averages.
        sampling: ``1 / B`` of Gaussian sampling, whose update has the covariance ``G G^T / (B taken)``; else 0.
        noise: variance per coordinate of what is added; of water-filling the floor.
        filled: whether noise only fills the covariance of the sampling up to ``noise``.
    """

    taken: int
    sampling: float = 0.0
    noise: float = 0.0
    filled: bool = False


@dataclass(frozen=True)
class Background:
    """The distribution of records' gradients.

    Attributes:
        mean: ``[d]``.
        basis: orthonormal columns, ``[d, r]``.
        variances: along them, float64 ``[r]``.
        rest: variance of every other direction.
        records: number of records that it is estimated from, A.
    """

    mean: torch.Tensor
    basis: torch.Tensor
    variances: torch.Tensor
    rest: float
    records: int

    @classmethod
    def of(cls, auxiliary: torch.Tensor) -> Background:
        """Estimate the distribution from gradients ``[A, d]`` of auxiliary records.

        Raises:
            ConfigError: there are fewer than four.
        """
        if len(auxiliary) < 4:
            raise ConfigError(f"the covariance of gradients takes 4 auxiliary records at least, found {len(auxiliary)}")
        mean = auxiliary.double().mean(dim=0).to(auxiliary)
        # Each half has its own mean: around the common one they would be mirror images along the difference.
        fitted, held = (part - part.mean(dim=0) for part in (auxiliary[::2].double(), auxiliary[1::2].double()))
        values, vectors = torch.linalg.eigh(fitted @ fitted.T)
        kept = values > 1e-7 * values[-1].clamp(min=torch.finfo(torch.float64).tiny)
        basis = fitted.T @ (vectors[:, kept] * values[kept].rsqrt())
        squares = (held @ basis).square().sum(dim=0) / (len(held) - 1)
        energy = float(held.square().sum()) / (len(held) - 1)
        free = max(len(mean) - basis.shape[1], 1)
        rest = max(energy - float(squares.sum()), 0.0) / free
        rest = max(rest, LEAST * energy / len(mean), torch.finfo(torch.float64).tiny)
        return cls(mean, basis.to(auxiliary), squares.clamp(min=rest), rest, len(auxiliary))


@dataclass(frozen=True)
class Coordinates:
    """Inner products of vectors with a background.

    Attributes:
        along: with its basis, float64 ``[..., r]``.
        mean: with its mean, ``[...]``.
        square: of the vectors with themselves, ``[...]``.
    """

    along: torch.Tensor
    mean: torch.Tensor
    square: torch.Tensor

    @classmethod
    def of(cls, vectors: torch.Tensor, background: Background) -> Coordinates:
        """Coordinates of vectors ``[..., d]``."""
        return cls(
            (vectors @ background.basis).double(),
            (vectors @ background.mean).double(),
            vectors.double().square().sum(dim=-1),
        )

    def at(self, rows: torch.Tensor, factors: torch.Tensor) -> Coordinates:
        """Coordinates of some of the vectors, scaled."""
        return Coordinates(
            self.along[rows] * factors.unsqueeze(-1), self.mean[rows] * factors, self.square[rows] * factors.square()
        )


def log_likelihood_ratio(
    candidates: Coordinates,
    updates: Coordinates,
    products: torch.Tensor,
    background: Background,
    mechanism: Mechanism,
    users: int,
) -> torch.Tensor:
    """``ln p(y | with the candidate) - ln p(y | without)`` for means ``y`` over users, float64 ``[T, c]``.

    Without: ``y ~ N(mu, Sigma)``, of which a user has ``C / taken``, the covariance of gradients over the records that
    it averages; Gaussian sampling adds ``(C + mu mu^T) / B`` and noise its variance; and ``mu``, a mean of A auxiliary
    records, is uncertain by ``C / A``. With: the mean moves by
    ``w (g - mu)``, ``w = 1 / (N taken)``, and Gaussian sampling spreads it along ``g`` by the variance
    ``1 / (B taken)`` of a weight. What water-filling has filled up spreads nothing.

    Args:
        candidates: gradients ``g`` as the mechanism takes them, ``c`` for each of ``T`` means: ``[T, c]``.
        updates: the means, ``[T]``.
        products: of the means with their candidates, ``[T, c]``.
        background: of gradients as the mechanism takes them.
        mechanism: of every user.
        users: ``N``.
    """
    sampled = mechanism.sampling * background.variances
    rest_sampled = mechanism.sampling * background.rest
    if mechanism.filled:
        random = sampled.clamp(min=mechanism.noise)
        rest_random = max(rest_sampled, mechanism.noise)
    else:
        random, rest_random = sampled + mechanism.noise, rest_sampled + mechanism.noise
    data = 1 / (users * mechanism.taken) + 1 / background.records
    scales = data * background.variances + random / users
    rest = data * background.rest + rest_random / users
    mean = Coordinates.of(background.mean, background)

    def whitened(a: torch.Tensor, b: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        """``a^T Sigma^-1 b`` without the part of ``mu mu^T``."""
        return (a * b * (1 / scales - 1 / rest)).sum(dim=-1) + product / rest

    along, centre = candidates.along - mean.along, updates.along - mean.along
    centre = centre.unsqueeze(-2)
    means = whitened(mean.along, mean.along, mean.square)
    by_mean = whitened(along, mean.along, candidates.mean - mean.square)
    residual_by_mean = whitened(centre, mean.along, (updates.mean - mean.square).unsqueeze(-1))
    # Sherman and Morrison, for the part of mu mu^T that Gaussian sampling has.
    share = mechanism.sampling / users
    weight = share / (1 + share * means)
    moved = products - candidates.mean - updates.mean.unsqueeze(-1) + mean.square
    by_residual = whitened(along, centre, moved) - weight * by_mean * residual_by_mean
    length = candidates.square - 2 * candidates.mean + mean.square
    by_itself = (whitened(along, along, length) - weight * by_mean.square()).clamp(min=0)
    means_left, by_mean_left = means - weight * means.square(), by_mean * (1 - weight * means)
    residual_left = residual_by_mean * (1 - weight * means)

    step = 1 / (users * mechanism.taken)
    ratio = step * by_residual - step**2 / 2 * by_itself
    if not mechanism.sampling:
        return ratio
    spread = candidates.square * mechanism.sampling / mechanism.taken
    if mechanism.filled:
        spread = (spread - mechanism.noise).clamp(min=0)
    spread = spread / candidates.square.clamp(min=torch.finfo(torch.float64).tiny) / users**2
    size = (by_itself + 2 * by_mean_left + means_left).clamp(min=0)  # of g = (g - mu) + mu
    pull = by_residual + residual_left - step * (by_itself + by_mean_left)
    return ratio - (spread * size).log1p() / 2 + spread * pull.square() / (1 + spread * size) / 2
