"""Matrices that a flat update ``[n, d]`` consists of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from leakbench.lazy import torch


class Matrix(NamedTuple):
    """A tensor of two or more axes as a matrix: its first axis by all others.

    Attributes:
        place: of its entries in the flat vector.
        rows: of a convolution, its output channels.
        columns: of a convolution, input channels times pixels of the kernel.
    """

    place: slice
    rows: int
    columns: int

    @property
    def side(self) -> int:
        """The shorter side."""
        return min(self.rows, self.columns)

    def factors(self, rank: int) -> int:
        """Numbers that a product of two factors of this rank takes, or the matrix itself, if it is shorter."""
        return min(rank * (self.rows + self.columns), self.rows * self.columns)


Change: TypeAlias = "Callable[[int, torch.Tensor], torch.Tensor]"
"""New matrices of all clients, of the same shape, from the number of a matrix and the old ones."""


@dataclass(frozen=True)
class Matrices:
    """The matrices among tensors of these shapes, in order; tensors of one axis, such as biases, are none.

    >>> matrices = Matrices([(4, 3, 5, 5), (4,), (10, 8)])
    >>> [(each.rows, each.columns) for each in matrices], matrices.others
    ([(4, 75), (10, 8)], 4)
    """

    shapes: Sequence[tuple[int, ...]]

    def __iter__(self) -> Iterator[Matrix]:
        start = 0
        for shape in self.shapes:
            size = math.prod(shape)
            if len(shape) > 1:
                yield Matrix(slice(start, start + size), shape[0], size // shape[0])
            start += size

    @property
    def others(self) -> int:
        """Number of entries that belong to no matrix."""
        return sum(math.prod(shape) for shape in self.shapes if len(shape) <= 1)

    def changed(self, values: torch.Tensor, change: Change) -> torch.Tensor:
        """Vectors ``[n, d]`` whose matrices are changed.

        Args:
            values: ``[n, d]``.
            change: of the matrix of a number, ``[n, rows, columns]``, to one of the same shape.
        """
        parts, end = [], 0
        for number, (place, rows, columns) in enumerate(self):
            new = change(number, values[:, place].unflatten(1, (rows, columns)))
            parts += [values[:, end : place.start], new.reshape(len(values), -1)]
            end = place.stop
        return torch.cat([*parts, values[:, end:]], dim=1)

    def changed_wide(self, values: torch.Tensor, change: Change) -> torch.Tensor:
        """:meth:`changed`, where matrices that are higher than wide come transposed: ``[n, side, longer side]``."""

        def either(number: int, matrix: torch.Tensor) -> torch.Tensor:
            return change(number, matrix) if matrix.shape[1] <= matrix.shape[2] else change(number, matrix.mT).mT

        return self.changed(values, either)
