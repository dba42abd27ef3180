"""Likelihoods of points of a lattice whose dither is known, as functions of the values before quantisation.

With the dither subtracted a received point says that the value, with its noise if there is any, lies in the cell of the
lattice around it. At the lattice's limit it may lie in any cell beyond as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from leakbench.federated.lattice import Lattice, Layout, PointRounding
from leakbench.federated.message import Received
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.numerics.slopes import with_slope

OUTSIDE = 10.0
"""Slope of the logarithm outside a cell, per width of the cell."""

FINEST = 0.2
"""Least width over a tensor's root mean square: a search of a few hundred steps stalls at finer cells.

With 0.02, reconstructions under SDQ of 8 and 16 bits had 3 and 12 dB less (Inverting Gradients, LeNet, Fashion-MNIST).
"""

UNIT: dict[int, Lattice] = {1: Lattice(1, bits=1, radius=1.5), 2: Lattice(2, bits=1, radius=1.5)}
"""Lattices of Delta 1."""


@dataclass(frozen=True)
class _Grid:
    """The part of :class:`Cells` that depends on the received points alone.

    Attributes:
        inverse: of Delta, zero for values that travel as they are, ``[n, d]``.
        sharpness_of_exact: of the values that travel as they are, zero for the others, ``[n, d]``; None without any.
        beyond: signs of the lattice coordinates that are at the limit, else zero, ``[n, L, blocks]``.
        at_limit: rows and blocks of those, each ``[m]``.
        sharpness: Delta over the width that counts, at most 1, ``[n, blocks]``.
        padding: places that pad a tensor, boolean ``[L, blocks]``; None without any.
    """

    inverse: torch.Tensor
    sharpness_of_exact: torch.Tensor | None
    beyond: torch.Tensor
    at_limit: tuple[torch.Tensor, ...]
    sharpness: torch.Tensor
    padding: torch.Tensor | None

    @classmethod
    def of(cls, received: Received, layout: Layout) -> _Grid:
        assert received.step is not None
        assert received.beyond is not None
        tensors, device = Tensors(layout.sizes), received.values.device
        step = received.step[:, tensors.starts(device)]  # one per tensor, as are all that follow
        norms = tensors.reduce(received.values, partial(torch.linalg.vector_norm, dim=1))
        least = (FINEST * norms / norms.new_tensor(layout.sizes).sqrt()).clamp(min=1e-12)
        coded = step > 0
        counts = torch.tensor(layout.counts, device=device)
        beyond = layout.blocks(received.beyond)
        return cls(
            tensors.spread(torch.where(coded, 1 / torch.where(coded, step, 1.0), 0.0)),
            None if bool(coded.all()) else tensors.spread(torch.where(coded, 0.0, 1 / least)),
            beyond,
            beyond.any(dim=1).nonzero(as_tuple=True),
            torch.where(coded, (step / least).clamp(max=1), 1.0).repeat_interleave(counts, dim=1),
            layout.padding(device),
        )


@dataclass(frozen=True)
class Cells:
    """Values as seen from the points that were received of them.

    Attributes:
        lattice: the lattice.
        rounding: to its points; it makes the cells.
        grid: the received points.
        errors: values minus received ones, in units of Delta, ``[n, L, blocks]``; zero at places that pad a tensor.
        exact: log-likelihood of the values that travel as they are, ``[n]``.
        clipped: how far values are beyond the public bound that clips them, in units of Delta, ``[n, L, blocks]``.
    """

    lattice: Lattice
    rounding: PointRounding
    grid: _Grid
    errors: torch.Tensor
    exact: torch.Tensor
    clipped: torch.Tensor | None

    @classmethod
    def of(
        cls,
        values: torch.Tensor,
        received: Received,
        sizes: Sequence[int],
        lattice: Lattice,
        rounding: PointRounding,
        bound: float | None = None,
    ) -> Cells:
        """Compare values ``[n, d]`` with received ones.

        Args:
            values: of candidates.
            received: from the same lattice.
            sizes: of the tensors.
            lattice: the lattice.
            rounding: to its points.
            bound: the public bound that values were clipped to, instead of the tensors' own scales.
        """
        layout = Layout(tuple(sizes), lattice.dimension, bound is not None)
        grid = received.once(("grid", layout), partial(_Grid.of, received, layout))
        sent = values if bound is None else values.clamp(-bound, bound)
        difference = sent - received.values
        exact = values.new_zeros(len(values))
        if grid.sharpness_of_exact is not None:
            exact = -(difference * grid.sharpness_of_exact).square().sum(dim=1)
        return cls(
            lattice,
            rounding,
            grid,
            layout.blocks(difference * grid.inverse),
            exact,
            None if bound is None else layout.blocks((values - sent).abs() * grid.inverse),
        )

    def uniform(self) -> torch.Tensor:
        """Log-likelihood without noise, ``[n]``, sloping down outside the cells that are possible.

        The law is flat inside a cell, and zero outside. With ``a`` the cell's facets (``|a e| <= 1/2`` inside) the
        logarithm is ``-OUTSIDE (|a e| - 1/2)`` outside, so that a search finds its way. Less ``(a e)^2``, inside too:
        a candidate that a prior pulls at ends at the borders of its cells otherwise, where the truth is not. A cell
        narrower than :data:`FINEST` allows is as wide as that.
        """
        facets, sharpness = self.lattice.facets(self.rounding).to(self.errors), self.grid.sharpness[:, None]
        along = (facets @ self._from_nearest_cell()).mul_(sharpness)
        outside = torch.nn.functional.softshrink(along, 0.5)
        slope = outside.sign().mul_(-OUTSIDE)
        inside = torch.linalg.vector_norm(along, dim=(1, 2)).square()
        if self.clipped is None:
            far = outside.abs().sum(dim=(1, 2))
        else:  # no other cell is nearer than that of the bound, and there lies the way back
            beyond = 1 + self.clipped.detach().sum(dim=1, keepdim=True)
            slope, by_block = slope * beyond, outside.abs().sum(dim=1, keepdim=True)
            far = with_slope(self.clipped, (by_block * beyond).sum(dim=(1, 2)), by_block.expand_as(self.clipped))
        slope = facets.mT @ slope.sub_(along, alpha=2).mul_(sharpness)
        return self.exact - OUTSIDE * far + with_slope(self.errors, -inside, slope)

    def laplace(self, scale: float) -> torch.Tensor:
        """Log-probability of the points with Laplace noise before quantisation in one dimension, ``[n]``; exact.

        The noise's probability of the cell. With ``m`` the distance from the point and ``h`` half of Delta, in units of
        the scale: ``e^-m sinh h`` for a cell that does not hold the value, else ``1 - e^-h cosh m``. At the limit the
        cell has no end, and the probability is that of a tail.

        Args:
            scale: of the noise, in units of Delta.
        """
        half = 0.5 / scale
        errors = self.errors[:, 0].detach() / scale
        apart = errors.abs()
        inner = apart.clamp(max=half)
        up, down = torch.expm1(inner - half), torch.expm1(-inner - half)
        cell = (-0.5 * (up + down)).log_().add_(inner).sub_(apart)
        slope = (up - down).div_(up.add_(down)).mul_(errors.sign())
        row, block = self.grid.at_limit
        beyond = self.grid.beyond[row, 0, block]
        towards = errors[row, block] * beyond + half
        tail = 0.5 * torch.exp(-towards.clamp(min=0))
        cell[row, block] = towards.clamp(max=0) + torch.log1p(-tail)
        slope[row, block] = beyond * tail / (1 - tail)
        return self.exact + with_slope(self.errors, cell.sum(dim=1), slope[:, None] / scale)

    def student(self, variance: float, nu: float) -> torch.Tensor:
        """Log-likelihood with bivariate t noise before quantisation, ``[n]``; approximate.

        The density, at the received point, of t noise whose covariance is that of noise and rounding error together:
        as JoPEQ is built, whose total error has this law up to the shape of a cell. At the limit it is that of the
        nearest of the points beyond.

        Args:
            variance: of the total error in a coordinate, in units of Delta squared.
            nu: degrees of freedom, above 2.
        """
        distance = self._up_to_limit().square().sum(dim=1) / ((nu - 2) * variance)
        return self.exact - (nu + 2) / 2 * torch.log1p(distance).sum(dim=1)

    def _up_to_limit(self) -> torch.Tensor:
        """Errors without the part beyond the limit, along the lattice's axes, ``[n, L, blocks]``."""
        coordinates = self.lattice.facets("babai").to(self.errors) @ self.errors
        return self._unpadded(
            self.errors - self._place((coordinates * self.grid.beyond).clamp(min=0) * self.grid.beyond)
        )

    def _from_nearest_cell(self) -> torch.Tensor:
        """Errors from the middle of the nearest possible cell, a constant, ``[n, L, blocks]``."""
        errors = self.errors.detach().clone()
        row, block = self.grid.at_limit
        apart, beyond = (each[row, :, block].mT for each in (errors, self.grid.beyond))
        cell = UNIT[self.lattice.dimension].round(apart, self.rounding)
        errors[row, :, block] -= self._place((cell * beyond).clamp(min=0) * beyond).mT
        return self._unpadded(errors)

    def _place(self, coordinates: torch.Tensor) -> torch.Tensor:
        return UNIT[self.lattice.dimension].place(coordinates)

    def _unpadded(self, errors: torch.Tensor) -> torch.Tensor:
        return errors if self.grid.padding is None else errors.masked_fill(self.grid.padding, 0.0)
