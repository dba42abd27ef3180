"""Updates of low rank: the largest singular values of every layer, or a step of the power method towards them.

A layer's update is a matrix, of a convolution its output channels by all else. Tensors of one axis, such as biases, are
sent whole. The gradient of one image in a fully connected layer has rank one already, and in a convolution at most as
many as there are output pixels: low rank hides little of single images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from leakbench.defenses.base import (
    DEFENSES,
    ClientState,
    Defense,
    PrivacyStatement,
    Round,
    Schedule,
    least_squares_scale,
)
from leakbench.defenses.densities import exact_variance
from leakbench.defenses.marginals import Marginals
from leakbench.federated.matrices import Matrices, Matrix
from leakbench.federated.message import FLOAT_BITS, CodedMessage, Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.numerics.eigenpairs import finite_or_identity
from leakbench.numerics.slopes import with_slope
from leakbench.randomness import Streams

NEGLIGIBLE = 1e-10
"""Squared singular value, as a part of the largest, that is rounding."""
SOFTNESS = 0.01
"""Width, as a part of the energy, in which singular values of a candidate fade out."""


class Spectrum(NamedTuple):
    """Left singular vectors of wide matrices, and squared singular values; the largest come first.

    Attributes:
        squares: ``[n, side]``, float64.
        vectors: as columns, ``[n, side, side]``, float64.
    """

    squares: torch.Tensor
    vectors: torch.Tensor


def spectrum(wide: torch.Tensor) -> Spectrum:
    """The spectrum of matrices ``[n, side, longer side]``, from the products of their rows.

    In float64, so that squaring loses nothing of float32's digits.
    """
    exact = wide.detach().double()
    squares, vectors = torch.linalg.eigh(finite_or_identity(exact @ exact.mT))
    return Spectrum(squares.flip(-1).clamp(min=0), vectors.flip(-1))


@DEFENSES.register("truncated_svd", version=1)
class TruncatedSVD(Defense):
    """Keep the largest singular values of every layer (Luo, Yau and Song 2025, "SVDefense", arXiv 2510.03319).

    Of a layer as many as make up a part of the sum of their squares, its energy, but at least one. Their factors are
    sent, ``rank * (rows + columns)`` floats, or the matrix itself if that is shorter, and the rank.

    SVDefense also chooses the threshold by the entropy of each client's spectrum, weights channels, and weights layers
    at the server; that is not here.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)
    biased: ClassVar[str] = "the smaller singular values are dropped"

    energy: float = Field(
        gt=0, le=1, description="part of the sum of a layer's squared singular values to keep, at least"
    )

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        matrices = Matrices(steps.network.shapes)
        ranks: list[torch.Tensor] = []

        def truncated(_: int, wide: torch.Tensor) -> torch.Tensor:
            squares, vectors = spectrum(wide)
            kept = self._kept(squares)
            ranks.append(kept.sum(dim=1))
            vectors = vectors * kept[:, None, :]
            return (vectors @ (vectors.mT @ wide.double())).to(wide)

        values = matrices.changed_wide(steps.gradient, truncated)
        return CodedMessage(values, size=_bits(matrices, ranks))

    def _kept(self, squares: torch.Tensor) -> torch.Tensor:
        """Squared singular values that are sent, as a mask, ``[n, side]``."""
        total = squares.cumsum(dim=1)
        rank = 1 + (total[:, :-1] < self.energy * total[:, -1:]).sum(dim=1)
        return torch.arange(squares.shape[1], device=squares.device) < rank[:, None]

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Singular values that were sent are exact, and no other one exceeds the smallest of them, ``[n]``.

        A message ``M`` of column space ``U`` and row space ``V`` says of a gradient ``G`` that ``U U' G = M = G V V'``:
        all of it but its part outside both spaces.
        """
        matrices = Matrices(steps.network.shapes)
        spans = received.once("spans", lambda: _spans(received.values, matrices))
        precision = received.once("precision", lambda: 1 / exact_variance(received.values))
        fixed = steps.gradient.detach() - received.values

        def surplus(number: int, apart: torch.Tensor) -> torch.Tensor:
            inside = spans[number].tangent(apart)
            return inside + _above(apart - inside, spans[number].least)

        apart = matrices.changed_wide(fixed, surplus)
        slope = -precision * apart
        return with_slope(steps.gradient, 0.5 * torch.linalg.vecdot(slope, apart), slope)

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        """The message, with singular values that fade out: a search does not see beyond the step of a threshold."""

        def faded(_: int, wide: torch.Tensor) -> torch.Tensor:
            vectors = spectrum(wide).vectors
            turned = vectors.mT @ wide.double()
            products = turned @ turned.mT  # diagonal, with the derivatives of the squares and of the vectors
            squares = products.diagonal(dim1=1, dim2=2)
            energy = squares.sum(dim=1, keepdim=True).clamp(min=torch.finfo(squares.dtype).tiny)
            before = (squares.cumsum(dim=1) - squares) / energy
            parts = torch.sigmoid((self.energy - before) / SOFTNESS)
            return (vectors @ _with_eigenvalues(products, parts) @ turned).to(wide)

        return Marginals(Matrices(steps.network.shapes).changed_wide(steps.gradient, faded))

    def fitted_scale(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """By least squares over what was sent, ``[n, 1]``."""
        matrices = Matrices(steps.network.shapes)
        spans = received.once("spans", lambda: _spans(received.values, matrices))
        sent = matrices.changed_wide(steps.gradient, lambda number, wide: spans[number].tangent(wide))
        return least_squares_scale(received.values, sent)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("what is sent is exact")


@DEFENSES.register("power_sgd", version=1)
class PowerSGD(Defense):
    """Send one step of the power method towards the largest singular vectors, with error feedback (Vogels et al. 2019).

    Of a layer's update ``M`` plus what is left of earlier ones a client sends the two factors of ``P P' M``, where the
    columns of ``P`` are an orthonormal basis of those of ``M Q``. ``Q`` has as many columns as the rank. At first it is
    normal and public, and then the second factor ``M' P`` of the round before ("PowerSGD: Practical Low-Rank Gradient
    Compression for Distributed Optimization", Algorithms 1 and 2, which ask for one exchange between workers more:
    here a client compresses by itself, as a single worker does). A layer that would be no shorter in factors is sent
    whole.

    Columns of ``Q`` that vanish, as all but one do of the rank-one gradient of a single image, are drawn anew; the
    authors divide what rounding left of them by its norm plus 1e-8.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)
    biased: ClassVar[str] = "a part of low rank is sent, and the error of a round is made up for in later ones"
    keeps_residual: ClassVar[bool] = True

    rank: int = Field(ge=1, description="columns of the factors of every layer")

    def initial_state(self, steps: ClientSteps) -> ClientState:
        size = sum(self.rank * matrix.columns for matrix in Matrices(steps.network.shapes))
        return {
            "residual": torch.zeros_like(steps.gradient),
            "start": steps.gradient.new_zeros(len(steps.gradient), size),
        }

    def protect_round(self, steps: ClientSteps, round: Round) -> tuple[Message, ClientState]:
        matrices = Matrices(steps.network.shapes)
        drawn, whole = self._drawn(round, steps.gradient, matrices), self._whole(matrices)
        starts = list(round.state["start"].split([part[0].numel() for part in drawn], dim=1))

        def compressed(number: int, matrix: torch.Tensor) -> torch.Tensor:
            if whole[number]:
                return matrix
            start = starts[number].unflatten(1, (-1, self.rank)).double()
            size = torch.linalg.vector_norm(start, dim=1, keepdim=True)
            start = torch.where(size > 0, start / size, drawn[number])  # of the same span, and so of the same message
            exact = matrix.double()
            basis = _orthonormal(exact @ start)
            factor = exact.mT @ basis
            starts[number] = factor.flatten(1).to(matrix)
            return (basis @ factor.mT).to(matrix)

        update = steps.gradient + round.state["residual"]
        values = matrices.changed(update, compressed)
        size = FLOAT_BITS * (sum(matrix.factors(self.rank) for matrix in matrices) + matrices.others)
        return CodedMessage(values, size), {"residual": update - values, "start": torch.cat(starts, dim=1)}

    def _drawn(self, round: Round, like: torch.Tensor, matrices: Matrices) -> list[torch.Tensor]:
        """The normal ``Q`` of every matrix, float64 ``[n, columns, rank]``, on the device of gradients ``like``."""
        sizes = [self.rank * matrix.columns for matrix in matrices]
        drawn = round.public.child("start").normal(sum(sizes), device=like.device).split(sizes, dim=1)
        return [part.unflatten(1, (-1, self.rank)).double() for part in drawn]

    def _whole(self, matrices: Matrices) -> list[bool]:
        """Whether each matrix is sent as it is."""
        return [matrix.factors(self.rank) == matrix.rows * matrix.columns for matrix in matrices]

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        """The message of a first round, ``A (A' A)^-1 A' G`` where ``A = G Q``, differentiable in ``A`` as well."""
        matrices = Matrices(steps.network.shapes)
        whole, drawn = self._whole(matrices), self._drawn(Round(streams, published=public), steps.gradient, matrices)

        def compressed(number: int, matrix: torch.Tensor) -> torch.Tensor:
            if whole[number]:
                return matrix
            exact = matrix.double()
            columns = exact @ drawn[number]
            products = columns.mT @ columns
            size = products.detach().diagonal(dim1=1, dim2=2).sum(dim=1)
            least = (NEGLIGIBLE * size).clamp(min=torch.finfo(size.dtype).tiny)[:, None].expand(-1, self.rank)
            factor = torch.linalg.solve(products + least.diag_embed(), columns.mT @ exact)
            sent: torch.Tensor = columns @ factor
            return sent.to(matrix)

        return Marginals(matrices.changed(steps.gradient, compressed))

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """The density of ``P P' G``, which is sent exactly of the gradient ``G`` of a first round, ``[n]``.

        That ``G Q`` lies in the span of ``P`` is left out: those are few equations, of another ``Q`` later.
        """
        precision = received.once("precision", lambda: 1 / exact_variance(received.values))
        apart = self._sent_of(received, steps, steps.gradient.detach()) - received.values
        slope = -precision * apart
        return with_slope(steps.gradient, 0.5 * torch.linalg.vecdot(slope, apart), slope)

    def fitted_scale(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """By least squares over what was sent, ``[n, 1]``."""
        return least_squares_scale(received.values, self._sent_of(received, steps, steps.gradient))

    def _sent_of(self, received: Received, steps: ClientSteps, gradient: torch.Tensor) -> torch.Tensor:
        """Gradients of candidates in the column spaces of the layers that were received."""
        matrices = Matrices(steps.network.shapes)
        spans = received.once("spans", lambda: _spans(received.values, matrices))
        whole, wide = self._whole(matrices), [matrix.rows <= matrix.columns for matrix in matrices]

        def inside(number: int, matrix: torch.Tensor) -> torch.Tensor:
            if whole[number]:
                return matrix
            basis = spans[number].left if wide[number] else spans[number].right
            return basis @ (basis.mT @ matrix)

        return matrices.changed(gradient, inside)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("what is sent is exact, and the rest is sent later")


def _with_eigenvalues(products: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
    """Symmetric matrices with other eigenvalues, in the basis of their eigenvectors, ``[n, side, side]``.

    Differentiable in the matrices, eigenvectors included: entry ``(i, j)`` changes by ``(k_i - k_j) / (s_i - s_j)``
    times the change of the matrix, where ``s`` are its eigenvalues and ``k`` the new ones (Daleckii and Krein 1965).

    Args:
        products: the matrices in that basis, where they are diagonal, ``[n, side, side]``; largest eigenvalues first.
        parts: the new eigenvalues, ``[n, side]``.
    """
    squares, fixed = products.detach().diagonal(dim1=1, dim2=2), parts.detach()
    apart, gap = ((part[:, :, None] - part[:, None, :]) for part in (fixed, squares))
    least = NEGLIGIBLE * squares[:, :1, None]
    rate = torch.where(gap.abs() > least, apart / gap, 0.0)
    return parts.diag_embed() + rate * (products - products.detach())


def _orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis of the span of columns, float64 ``[n, rows, r]``, and columns of zeros."""
    squares, vectors = torch.linalg.eigh(finite_or_identity(columns.mT @ columns))
    sent = squares > NEGLIGIBLE * squares[:, -1:]
    size = torch.where(sent, squares, torch.inf).sqrt()
    basis: torch.Tensor = (columns @ vectors) / size[:, None, :]
    return basis


class Spans(NamedTuple):
    """Column and row space of wide matrices that were sent.

    Attributes:
        left: an orthonormal basis of the columns, and columns of zeros, ``[n, side, side]``.
        right: likewise of the rows, ``[n, longer side, side]``.
        least: the smallest singular value, ``[n]``.
    """

    left: torch.Tensor
    right: torch.Tensor
    least: torch.Tensor

    def tangent(self, wide: torch.Tensor) -> torch.Tensor:
        """The part of matrices that lies in one of the spaces, ``[n, side, longer side]``."""
        by_columns = self.left @ (self.left.mT @ wide)
        outside = wide - by_columns
        return by_columns + (outside @ self.right) @ self.right.mT


def _spans(values: torch.Tensor, matrices: Matrices) -> list[Spans]:
    """The spaces of the matrices in messages ``[n, d]``, in their order."""
    spans: list[Spans] = []

    def look(_: int, wide: torch.Tensor) -> torch.Tensor:
        squares, vectors = spectrum(wide)
        sent = squares > NEGLIGIBLE * squares[:, :1]
        left = vectors * sent[:, None, :]
        size = torch.where(sent, squares.sqrt(), torch.inf)
        right = (wide.double().mT @ left) / size[:, None, :]
        least = torch.where(sent.any(dim=1), size.amin(dim=1), 0.0)
        spans.append(Spans(left.to(wide), right.to(wide), least.to(wide)))
        return wide

    matrices.changed_wide(values, look)
    return spans


def _above(wide: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """The way from the nearest matrices with singular values up to a bound ``[n]``, ``[n, side, longer side]``."""
    squares, vectors = spectrum(wide)
    size = squares.sqrt()
    part = torch.where(size > bound[:, None], 1 - bound[:, None] / size, 0.0)
    return ((vectors * part[:, None, :]) @ (vectors.mT @ wide.double())).to(wide)


def _bits(matrices: Matrices, ranks: list[torch.Tensor]) -> int:
    """Bits of the largest client's factors, with their ranks ``[n]`` of every matrix."""
    floats = sum(_floats(matrix, rank) for matrix, rank in zip(matrices, ranks, strict=True))
    most = int(floats.max()) if isinstance(floats, torch.Tensor) else 0
    return FLOAT_BITS * (most + matrices.others) + sum(math.ceil(math.log2(matrix.side)) for matrix in matrices)


def _floats(matrix: Matrix, rank: torch.Tensor) -> torch.Tensor:
    return (rank * (matrix.rows + matrix.columns)).clamp(max=matrix.rows * matrix.columns)
