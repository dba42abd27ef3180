"""Subtractive dithered quantisation of updates on a lattice, tensor by tensor.

A tensor is normalised, moved by a dither that client and server draw from a shared stream, and rounded to lattice
points; the server subtracts the dither again. Where a point is not clipped, the error is uniform on a cell of the
lattice, and independent of the values.
Sources: Shlezinger et al. (2021), UVeQFed; Lang et al. (2023), JoPEQ; as Deng et al. (2024), Appendix B, use them: the
normalisation, the generator and the clipping are those of the public code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from leakbench.federated.message import FLOAT_BITS, Law, Message
from leakbench.lazy import torch
from leakbench.randomness import Streams

PointRounding: TypeAlias = Literal["nearest", "babai"]
"""``nearest``: to the nearest lattice point (eq. 11); ``babai``: each lattice coordinate by itself, as released."""

Noise: TypeAlias = "Callable[[tuple[int, int]], torch.Tensor]"
"""Noise ``[n, L, m]`` for normalised blocks, given ``(L, m)``."""

SLOPE, SPACING = 1 / math.sqrt(3), 2 / math.sqrt(3)
"""The hexagonal generator is ``[[1, 0], [SLOPE, SPACING]]``: its columns have equal lengths, at 60 degrees."""


@dataclass(frozen=True)
class Lattice:
    """A scaled lattice, truncated to a range of coordinates.

    Attributes:
        dimension: L: 1, or 2 for the hexagonal one.
        bits: per coordinate, R. Lattice coordinates go from ``-2^(R-1)`` to ``2^(R-1)``.
        radius: gamma, in units of the normalised values: 1.5 without noise.
    """

    dimension: Literal[1, 2] = 2
    bits: int = 16
    radius: float = 1.5

    @property
    def step(self) -> float:
        """``Delta = 2 gamma / (2^R + 1)``."""
        return 2 * self.radius / float(2**self.bits + 1)

    @property
    def limit(self) -> int:
        """The largest lattice coordinate; the public code's "edge" is ``limit * Delta``."""
        return int(2 ** (self.bits - 1))

    @property
    def bits_per_coordinate(self) -> float:
        """``log2(2^R + 1)``: the released range has one level more than R bits can encode."""
        return self.bits + math.log2(1 + 2.0**-self.bits)

    def place(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Points of lattice coordinates, not only integer ones, times Delta; both ``[..., L, m]``."""
        if self.dimension == 1:
            return coordinates * self.step
        first, second = coordinates.unbind(dim=-2)
        return torch.stack([first, SLOPE * first + SPACING * second], dim=-2).mul_(self.step)

    def round(self, points: torch.Tensor, rounding: PointRounding) -> torch.Tensor:
        """Integer coordinates of lattice points near to ``points``, not clipped; float, both ``[..., L, m]``."""
        scaled = points / self.step
        if self.dimension == 1:
            return scaled.round_()
        first, second = scaled.unbind(dim=-2)
        if rounding == "babai":
            second = (second - SLOPE * first).div_(SPACING)
            return torch.stack([first, second], dim=-2).round_()
        # The lattice is two rectangular ones of sides 2 and SPACING, the second moved by half of both.
        half_first, rows = first / 2, second / SPACING
        even, even_row = half_first.round(), rows.round()
        odd, odd_row = (half_first - 0.5).round_().add_(0.5), (rows - 0.5).round_().add_(0.5)
        # Squared distances in units of SPACING, in which the other side is sqrt(3).
        far = (half_first - odd).square_().mul_(3).add_((rows - odd_row).square_())
        near = half_first.sub_(even).square_().mul_(3).add_(rows.sub_(even_row).square_())
        first_half = torch.where(far < near, odd, even)
        row = torch.where(far < near, odd_row, even_row)
        return torch.stack([2 * first_half, row - first_half], dim=-2)

    def facets(self, rounding: PointRounding) -> torch.Tensor:
        """Rows ``a``, float64 ``[m, L]``: ``e`` is in the cell of the origin where all ``|a e| <= Delta / 2``."""
        if self.dimension == 1:
            return torch.ones(1, 1, dtype=torch.float64)
        if rounding == "babai":  # the generator's inverse
            return torch.tensor([[1, 0], [-SLOPE / SPACING, 1 / SPACING]], dtype=torch.float64)
        return torch.tensor([[0, SPACING], [1, SLOPE], [1, -SLOPE]], dtype=torch.float64) / SPACING**2

    def error_covariance(self, rounding: PointRounding) -> torch.Tensor:
        """Covariance of the error in normalised units, float64 ``[L, L]``.

        The error is uniform on an interval, on a hexagon (``nearest``), or on a parallelogram (``babai``).
        """
        if self.dimension == 1:
            return torch.tensor([[self.step**2 / 12]], dtype=torch.float64)
        if rounding == "nearest":
            return torch.eye(2, dtype=torch.float64) * (5 / 54 * self.step**2)
        generator = torch.tensor([[1, 0], [SLOPE, SPACING]], dtype=torch.float64)
        return self.step**2 / 12 * generator @ generator.T


@dataclass(frozen=True)
class Quantised:
    """Updates of ``n`` clients on a lattice, without the dither.

    Attributes:
        sizes: of the tensors.
        lattice: the lattice.
        points: lattice coordinates of all blocks of all tensors, int32 ``[n, L, blocks]``.
        overloaded: blocks that were clipped, boolean ``[n, blocks]``. Does not travel.
        means: subtracted means, float ``[n, L, tensors]``; zeros where ``bound`` is set.
        scales: divisors, ``3 sigma`` or ``bound``, float ``[n, tensors]``.
        plain: tensors of one value, which travel as they are, ``[n, such tensors]``.
        bound: the public bound that values were clipped to; None: normalised by their own means and deviations.
    """

    sizes: tuple[int, ...]
    lattice: Lattice
    points: torch.Tensor
    overloaded: torch.Tensor
    means: torch.Tensor
    scales: torch.Tensor
    plain: torch.Tensor
    bound: float | None = None

    @property
    def blocks(self) -> list[int]:
        """Number of blocks of each tensor."""
        return [_blocks(size, self.lattice.dimension, self.bound is not None) for size in self.sizes]

    @property
    def bits(self) -> int:
        """Size of one client's update in bits: lattice points, single values, and L means and a sigma per tensor."""
        coordinates = self.points.shape[1] * self.points.shape[2]
        side = 0 if self.bound else self.scales.shape[1] * (self.lattice.dimension + 1)
        exact = self.lattice.bits * coordinates
        more = math.ceil(coordinates * (self.lattice.bits_per_coordinate - self.lattice.bits))
        return exact + more + FLOAT_BITS * (side + self.plain.shape[1])

    @property
    def overloads(self) -> torch.Tensor:
        """Number of clipped blocks, ``[n]``: their errors are larger than a cell."""
        return self.overloaded.sum(dim=1)

    @property
    def step(self) -> torch.Tensor:
        """Delta in the unit of every coordinate, ``[n, d]``; zero where the value travels as it is."""
        counts = torch.tensor([count for count in self.blocks if count], dtype=torch.int64, device=self.scales.device)
        return self.spread(self.lattice.step * self.scales.repeat_interleave(counts, dim=1)[:, None])

    @property
    def beyond(self) -> torch.Tensor:
        """Sign of the lattice coordinate where it is at the limit, else zero, ``[n, d]``."""
        return self.spread(self.points.sign() * (self.points.abs() == self.lattice.limit)).to(self.scales)

    def spread(self, of_blocks: torch.Tensor) -> torch.Tensor:
        """Values per block ``[n, L or 1, blocks]`` repeated for every coordinate; tensors of one value get zero."""
        n, length = len(of_blocks), self.lattice.dimension
        rows = of_blocks.expand(n, length, -1)
        parts, start = [rows.new_zeros(n, 0)], 0
        for size, count in zip(self.sizes, self.blocks, strict=True):
            block = rows[:, :, start : start + count].reshape(n, -1)[:, :size]
            parts.append(block if count else rows.new_zeros(n, size))
            start += count
        return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class Layout:
    """Cut tensors into blocks, each tensor in L rows; see :func:`quantise`.

    Attributes:
        sizes: of the tensors.
        length: of a block, L.
        bounded: whether there is a public bound.
    """

    sizes: tuple[int, ...]
    length: int
    bounded: bool

    @property
    def counts(self) -> list[int]:
        """Blocks of each tensor."""
        return [_blocks(size, self.length, self.bounded) for size in self.sizes]

    def blocks(self, values: torch.Tensor) -> torch.Tensor:
        """Values ``[n, d]`` in blocks, ``[n, L, blocks]``, with zeros at places that pad a tensor."""
        if self.length == 1 and self.counts == list(self.sizes):
            return values[:, None]
        parts = [values[:, :0].view(len(values), self.length, 0)]
        for part, count in zip(values.split(list(self.sizes), dim=1), self.counts, strict=True):
            padding = count * self.length - part.shape[1]
            if count:
                whole = torch.nn.functional.pad(part, (0, padding)) if padding else part
                parts.append(whole.reshape(len(values), self.length, count))
        return torch.cat(parts, dim=2)

    def padding(self, device: torch.device) -> torch.Tensor | None:
        """Places that pad a tensor, boolean ``[L, blocks]``; None without any."""
        if all(not count or size == count * self.length for size, count in zip(self.sizes, self.counts, strict=True)):
            return None
        return self.blocks(torch.ones(1, sum(self.sizes), device=device))[0] == 0


def _blocks(size: int, length: int, bounded: bool) -> int:
    """Blocks of a tensor; without a public bound, tensors of one value have none."""
    return math.ceil(size / length) if size > 1 or bounded else 0


def quantise(
    values: torch.Tensor,
    sizes: Sequence[int],
    lattice: Lattice,
    rounding: PointRounding,
    streams: Streams,
    *,
    noise: Noise | None = None,
    bound: float | None = None,
) -> Quantised:
    """Updates as lattice points.

    Each tensor is cut into L rows, so that in two dimensions its first half is paired with its second; odd ones get a
    zero. The rows' means are subtracted, and the whole is divided by ``3 sigma``, ``sigma^2`` the summed variance of
    the rows; a constant row becomes zero. Tensors of one value stay as they are, unless there is a bound.

    Args:
        values: ``[n, d]``.
        sizes: of the tensors, in order; they add up to d.
        lattice: the lattice.
        rounding: see :data:`PointRounding`.
        streams: one per client, shared with the server; the dither is their child ``dither``.
        noise: added to the normalised values.
        bound: clip values to ``[-bound, bound]`` and divide by it, instead of normalising.
    """
    n, length = len(values), lattice.dimension
    dither = streams.child("dither")
    points, overloaded, means, scales, plain = [], [], [], [], []
    for part in values.split(list(sizes), dim=1):
        count = _blocks(part.shape[1], length, bound is not None)
        if not count:
            plain.append(part)
            continue
        padding = count * length - part.shape[1]
        rows = (torch.nn.functional.pad(part, (0, padding)) if padding else part).view(n, length, count)
        if bound is None:
            mean = rows.mean(dim=2)
            rows = rows - mean[:, :, None]
            scale = 3 * torch.linalg.vector_norm(rows, dim=(1, 2)) / math.sqrt(count)
            rows /= scale.where(scale > 0, 1.0)[:, None, None]
        else:
            mean, scale = part.new_zeros(n, length), part.new_full((n,), bound)
            rows = rows.clamp(-bound, bound) / bound
        if noise is not None:
            rows += noise((length, count))
        rows += _dither(lattice, dither, count, values)
        nearest = lattice.round(rows, rounding).to(torch.int32)
        overloaded.append((nearest.abs() > lattice.limit).any(dim=1))
        points.append(nearest.clamp_(-lattice.limit, lattice.limit))
        means.append(mean)
        scales.append(scale)
    empty = values.new_zeros(n, length, 0)
    return Quantised(
        tuple(sizes),
        lattice,
        torch.cat([empty.to(torch.int32), *points], dim=2),
        torch.cat([empty[:, 0].bool(), *overloaded], dim=1),
        torch.stack(means, dim=2) if means else empty,
        torch.stack(scales, dim=1) if scales else empty[:, 0],
        torch.cat([empty[:, 0], *plain], dim=1),
        bound,
    )


def dequantise(quantised: Quantised, streams: Streams) -> torch.Tensor:
    """The updates that the server decodes from lattice points, ``[n, d]``.

    Args:
        quantised: the points.
        streams: the clients', shared with the server.
    """
    lattice, dither, n = quantised.lattice, streams.child("dither"), len(quantised.points)
    parts, start, number, single = [quantised.plain[:, :0]], 0, 0, 0
    for size, count in zip(quantised.sizes, quantised.blocks, strict=True):
        if not count:
            parts.append(quantised.plain[:, single : single + size])
            single += size
            continue
        block = lattice.place(quantised.points[:, :, start : start + count].to(quantised.scales))
        block -= _dither(lattice, dither, count, block)
        block *= quantised.scales[:, number, None, None]
        block += quantised.means[:, :, number, None]
        parts.append(block.view(n, -1)[:, :size])
        start, number = start + count, number + 1
    return torch.cat(parts, dim=1)


def _dither(lattice: Lattice, streams: Streams, count: int, like: torch.Tensor) -> torch.Tensor:
    """Uniform on the cell of the generator, ``[n, L, count]``; any cell will do, as it counts modulo the lattice."""
    draws = streams.uniform(lattice.dimension, count, device=like.device)
    return lattice.place(draws.sub_(0.5).to(like))


@dataclass(frozen=True)
class LatticeMessage(Message):
    """Updates on a lattice.

    Attributes:
        quantised: the lattice points.
        streams: randomness that clients and server share, for the dither.
        state_law: returns :attr:`Message.law`; called at its first use.
    """

    quantised: Quantised
    streams: Streams
    state_law: Callable[[], Law] = field(repr=False)

    @property
    def bits(self) -> int:
        return self.quantised.bits

    @property
    def overloads(self) -> torch.Tensor:
        """Number of clipped blocks of each client, ``[n]``."""
        return self.quantised.overloads

    @cached_property
    def _decoded(self) -> torch.Tensor:
        return dequantise(self.quantised, self.streams)

    def view(self) -> torch.Tensor:
        return self._decoded

    @property
    def step(self) -> torch.Tensor:
        return self.quantised.step

    @property
    def beyond(self) -> torch.Tensor:
        return self.quantised.beyond

    @cached_property
    def law(self) -> Law:
        return self.state_law()


def lattice_law(
    values: torch.Tensor, quantised: Quantised, rounding: PointRounding, noise: torch.Tensor | None = None
) -> Law:
    """The law of decoded values over the dither, and the noise before it.

    Blocks are independent; in two dimensions the coordinates of a block are not quite. Overloaded blocks do not pass:
    their mean is another one.

    Args:
        values: the values before quantisation, ``[n, d]``.
        quantised: the result.
        rounding: see :data:`PointRounding`.
        noise: its covariance in normalised units, ``[L, L]``.
    """
    covariance = quantised.lattice.error_covariance(rounding)
    variance = (covariance if noise is None else covariance + noise).diagonal().to(values)
    counts = torch.tensor([count for count in quantised.blocks if count], dtype=torch.int64)
    scales = quantised.scales.repeat_interleave(counts.to(values.device), dim=1)
    passing = ~quantised.spread(quantised.overloaded[:, None])
    if quantised.bound:
        passing &= values.abs() < quantised.bound
        values = values.clamp(-quantised.bound, quantised.bound)
    return Law(values, passing, quantised.spread(scales.square()[:, None] * variance[:, None]), normal=False)
