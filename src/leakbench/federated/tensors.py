"""Statistics of the parameter tensors that a flat update ``[n, d]`` consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakbench.lazy import np, torch

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Tensors:
    """The layout of a flat vector: ``sizes`` are the tensors' numbers of entries, in order.

    Sums are pairwise within a tensor, whatever the device, so they are accurate and the same every time.
    """

    sizes: Sequence[int]

    def __len__(self) -> int:
        return len(self.sizes)

    def starts(self, device: torch.device | None = None) -> torch.Tensor:
        """The first entry of every tensor, int64 ``[tensors]``."""
        sizes = torch.tensor(list(self.sizes), dtype=torch.int64, device=device)
        return sizes.cumsum(dim=0) - sizes

    def reduce(self, values: torch.Tensor, statistic: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """A statistic of every tensor, ``[n, d] -> [n, tensors]``; ``statistic`` takes ``[n, size]`` to ``[n]``."""
        return torch.stack([statistic(part) for part in values.split(list(self.sizes), dim=1)], dim=1)

    def spread(self, numbers: torch.Tensor) -> torch.Tensor:
        """One number per tensor, repeated for every entry of it: ``[n, tensors] -> [n, d]``."""
        sizes = torch.tensor(list(self.sizes), device=numbers.device)
        return numbers.repeat_interleave(sizes, dim=1, output_size=sum(self.sizes))

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """``[n, d] -> [n, tensors]``."""
        return self.reduce(values, lambda part: part.mean(dim=1))

    def std(self, values: torch.Tensor) -> torch.Tensor:
        """Standard deviation with the divisor ``size``, ``[n, d] -> [n, tensors]``."""
        return self.reduce(values, lambda part: part.std(dim=1, correction=0))

    def smallest(self, values: torch.Tensor, fraction: float) -> torch.Tensor:
        """The ``floor(fraction * size)`` smallest entries of every tensor, boolean ``[n, d]``.

        Among equal ones the first; NaN counts as infinity. It uses a threshold, which is faster than sorting.
        """

        def of_tensor(part: torch.Tensor) -> torch.Tensor:
            count = int(fraction * part.shape[1])
            if not count:
                return torch.zeros_like(part, dtype=torch.bool)
            return (_smallest_on_cpu if part.device.type == "cpu" else _smallest)(part, count)

        finite = values.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
        return torch.cat([of_tensor(part) for part in finite.split(list(self.sizes), dim=1)], dim=1)


def _smallest(values: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` smallest entries of every row, the first among equal ones, boolean."""
    threshold = values.kthvalue(count, dim=1, keepdim=True).values
    below, equal = values < threshold, values == threshold
    return below | (equal & (equal.cumsum(dim=1) <= count - below.sum(dim=1, keepdim=True)))


def _smallest_on_cpu(values: torch.Tensor, count: int) -> torch.Tensor:
    """The same, by numpy, whose selection and sums take a fraction of torch's time there."""
    array = values.detach().numpy()
    threshold = _kth_smallest(array, count)[:, None]
    up_to = array <= threshold
    if np.count_nonzero(up_to) == count * len(array):  # no entry beyond them equals one of them
        return torch.from_numpy(up_to)
    below = array < threshold
    room = count - np.count_nonzero(below, axis=1)
    for row, equal, left in zip(below, array == threshold, room, strict=True):
        row[np.flatnonzero(equal)[:left]] = True
    return torch.from_numpy(below)


def _kth_smallest(array: Array, count: int) -> Array:
    """The ``count``-th smallest entry of every row, ``[n, d] -> [n]``.

    Selection takes ten times as long where many entries are equal. These are zeros, as gradients of embeddings are for
    most words, and the least of absolute values; so where the first row has many, each row is counted first.
    """
    first = array[:1]
    if not first.size or np.count_nonzero(first == first.min()) * 10 < first.size:
        kth: Array = np.partition(array, count - 1, axis=1)[:, count - 1]
        return kth
    least: Array = array.min(axis=1)
    equal = np.count_nonzero(array == least[:, None], axis=1)
    for place in np.flatnonzero(equal < count):
        row, rank = array[place], count - equal[place] - 1
        least[place] = np.partition(row[row > least[place]], rank)[rank]
    return least
