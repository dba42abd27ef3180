"""Likelihoods of points of a lattice whose dither is known, as functions of the values before quantisation.

With the dither subtracted a received point says that the value, with its noise if there is any, lies in the cell of the
lattice around it. At the lattice's limit it may lie in any cell beyond as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from leakbench.federated.lattice import Lattice, Layout, Rounding
from leakbench.federated.message import Received
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch

OUTSIDE = 10.0
"""Slope of the logarithm outside a cell, per width of the cell."""

FINEST = 0.2
"""Least width over a tensor's root mean square: a search of a few hundred steps stalls at finer cells.

With 0.02, reconstructions under SDQ of 8 and 16 bits had 3 and 12 dB less (Inverting Gradients, LeNet, Fashion-MNIST).
"""

UNIT: dict[int, Lattice] = {1: Lattice(1, bits=1, radius=1.5), 2: Lattice(2, bits=1, radius=1.5)}
"""Lattices of Delta 1."""


@dataclass(frozen=True)
class Cells:
    """Values as seen from the points that were received of them.

    Attributes:
        lattice: the lattice.
        rounding: to its points; it makes the cells.
        errors: values minus received ones, in units of Delta, ``[n, L, blocks]``; zero at places that pad a tensor.
        beyond: signs of the lattice coordinates that are at the limit, else zero, ``[n, L, blocks]``.
        sharpness: Delta over the width that counts, at most 1, ``[n, blocks]``.
        exact: log-likelihood of the values that travel as they are, ``[n]``.
        padding: places that pad a tensor, boolean ``[L, blocks]``; None without any.
        clipped: how far values are beyond the public bound that clips them, in units of Delta, ``[n, L, blocks]``.
    """

    lattice: Lattice
    rounding: Rounding
    errors: torch.Tensor
    beyond: torch.Tensor
    sharpness: torch.Tensor
    exact: torch.Tensor
    padding: torch.Tensor | None
    clipped: torch.Tensor | None

    @classmethod
    def of(
        cls,
        values: torch.Tensor,
        received: Received,
        sizes: Sequence[int],
        lattice: Lattice,
        rounding: Rounding,
        bound: float | None = None,
    ) -> Cells:
        """Compare values ``[n, d]`` with received ones.

        Args:
            values: of candidates.
            received: from the same lattice.
            sizes: of the tensors.
            lattice: the lattice.
            rounding: to its points.
            bound: the public bound that values were clipped to, in the place of the tensors' own scales.
        """
        assert received.step is not None
        assert received.beyond is not None
        layout, tensors = Layout(tuple(sizes), lattice.dimension, bound is not None), Tensors(sizes)
        sent = values if bound is None else values.clamp(-bound, bound)
        difference = sent - received.values
        step = received.step[:, tensors.starts(values.device)]  # one per tensor, as are all that follow
        norms = tensors.reduce(received.values, partial(torch.linalg.vector_norm, dim=1))
        least = (FINEST * norms / norms.new_tensor(sizes).sqrt()).clamp(min=1e-12)
        coded = step > 0
        inverse = torch.where(coded, 1 / torch.where(coded, step, 1.0), 0.0)
        in_units = tensors.spread(inverse)
        exact = values.new_zeros(len(values))
        if not bool(coded.all()):
            exact = -(difference * tensors.spread(torch.where(coded, 0.0, 1 / least))).square().sum(dim=1)
        counts = torch.tensor(layout.counts, device=values.device)
        return cls(
            lattice,
            rounding,
            layout.blocks(difference * in_units),
            layout.blocks(received.beyond),
            torch.where(coded, (step / least).clamp(max=1), 1.0).repeat_interleave(counts, dim=1),
            exact,
            layout.padding(values.device),
            None if bound is None else layout.blocks((values - sent).abs() * in_units),
        )

    def uniform(self) -> torch.Tensor:
        """Log-likelihood without noise, ``[n]``, sloping down outside the cells that are possible.

        The law is flat inside a cell, and zero outside. With ``a`` the cell's facets (``|a e| <= 1/2`` inside) the
        logarithm is ``-OUTSIDE (|a e| - 1/2)`` outside, so that a search finds its way. Less ``(a e)^2``, inside too:
        a candidate that a prior pulls at ends at the borders of its cells otherwise, where the truth is not. A cell
        narrower than :data:`FINEST` allows is as wide as that.
        """
        along = (self.lattice.facets(self.rounding).to(self.errors) @ self._from_nearest_cell()).abs()
        along = along * self.sharpness[:, None]
        outside = (along - 0.5).clamp(min=0)
        if self.clipped is not None:  # no other cell is nearer than that of the bound, and there lies the way back
            outside = outside * (1 + self.clipped.sum(dim=1, keepdim=True))
        return self.exact - (OUTSIDE * outside + along.square()).sum(dim=(1, 2))

    def laplace(self, scale: float) -> torch.Tensor:
        """Log-probability of the points with Laplace noise before quantisation in one dimension, ``[n]``; exact.

        The noise's probability of the cell. With ``m`` the distance from the point and ``h`` half of Delta, in units of
        the scale: ``e^-m sinh h`` for a cell that does not hold the value, else ``1 - e^-h cosh m``. At the limit the
        cell has no end, and the probability is that of a tail.

        Args:
            scale: of the noise, in units of Delta.
        """
        half = 0.5 / scale
        apart = (self.errors[:, 0] / scale).abs()
        inner = apart.clamp(max=half)
        cell = inner - apart + (-0.5 * (torch.expm1(inner - half) + torch.expm1(-inner - half))).log()
        row, block = self.beyond[:, 0].nonzero(as_tuple=True)
        towards = self.errors[row, 0, block] * self.beyond[row, 0, block] / scale + half
        below, above = towards.clamp(max=0), towards.clamp(min=0)
        tail = below + torch.log1p(-0.5 * torch.exp(-above))
        return (self.exact + cell.sum(dim=1)).index_add(0, row, tail - cell[row, block])

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
        return self._unpadded(self.errors - self._place((coordinates * self.beyond).clamp(min=0) * self.beyond))

    def _from_nearest_cell(self) -> torch.Tensor:
        """Errors from the middle of the nearest possible cell, ``[n, L, blocks]``."""
        row, block = self.beyond.any(dim=1).nonzero(as_tuple=True)
        errors, beyond = (each.detach()[row, :, block].mT for each in (self.errors, self.beyond))
        cell = UNIT[self.lattice.dimension].round(errors, self.rounding)
        moves = torch.zeros_like(self.errors)
        moves[row, :, block] = self._place((cell * beyond).clamp(min=0) * beyond).mT
        return self._unpadded(self.errors - moves)

    def _place(self, coordinates: torch.Tensor) -> torch.Tensor:
        return UNIT[self.lattice.dimension].place(coordinates)

    def _unpadded(self, errors: torch.Tensor) -> torch.Tensor:
        return errors if self.padding is None else errors.masked_fill(self.padding, 0.0)
