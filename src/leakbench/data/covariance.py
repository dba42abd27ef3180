"""Mean and covariance of flattened images, from batches, in float64.

Batches are merged by the pairwise update of Chan, Golub and LeVeque (1983) with matrix products: each is centred at its
own mean, so nothing cancels. Memory is that of a few ``[d, d]`` matrices, however many images there are.

Images are shifted by the first one before anything else. So a pixel that never changes has a variance of exactly zero,
in whatever order the images come, and the covariance of ``N <= d`` images has a rank of at most ``N - 1``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from leakbench.errors import ConfigError
from leakbench.lazy import torch

ROWS = 2048
"""Images per matrix product. Only speed and memory depend on it, up to rounding."""
COLUMNS = 768
"""Width of a panel of the product: only panels at and above the diagonal are computed, about half of all."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Sample mean and covariance of ``N`` images.

    Attributes:
        count: number of images, N.
        mean: float64 ``[d]``.
        covariance: unbiased (over ``N - 1``), float64 ``[d, d]``, exactly symmetric.
    """

    count: int
    mean: torch.Tensor
    covariance: torch.Tensor

    @cached_property
    def _spectrum(self) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = torch.linalg.eigh(self.covariance)
        values, vectors = values.flip(0), vectors.flip(1)
        noise = len(values) * torch.finfo(values.dtype).eps * values[0]  # what rounding makes of a zero, at most
        return torch.where(values > noise, values, 0.0), vectors

    @property
    def eigenvalues(self) -> torch.Tensor:
        """Eigenvalues of the covariance, the largest first, ``[d]``; those within rounding of zero are zero."""
        return self._spectrum[0]

    @property
    def eigenvectors(self) -> torch.Tensor:
        """``[d, d]``: column ``k`` belongs to eigenvalue ``k``. Equal eigenvalues share a space, not its basis."""
        return self._spectrum[1]

    @property
    def rank(self) -> int:
        """Number of directions in which the images differ: eigenvalues above ``d`` roundings of the largest one."""
        return int((self.eigenvalues > 0).sum())


class RunningMoments:
    """Moments of images that come in batches, of any sizes."""

    def __init__(self) -> None:
        self.count = 0
        self._origin = self._mean = self._scatter = torch.empty(0)

    def update(self, images: torch.Tensor) -> None:
        """Take a batch into account.

        Args:
            images: ``[k, ...]``, of any floating type; all axes but the first are flattened to ``d``.

        Raises:
            ConfigError: the images have another number of pixels than those before.
        """
        flat = images.flatten(1)
        if not len(flat):
            return
        if not self.count:
            self._origin = flat[0].double()
            self._mean = torch.zeros_like(self._origin)
            self._scatter = self._origin.new_zeros(len(self._origin), len(self._origin))
        if flat.shape[1] != len(self._origin):
            raise ConfigError(f"an image has {flat.shape[1]} pixels, those before it had {len(self._origin)}")
        for rows in flat.split(ROWS):
            self._merge(rows.double().sub_(self._origin) if rows.dtype != torch.float64 else rows - self._origin)

    def _merge(self, rows: torch.Tensor) -> None:
        k, mean = len(rows), rows.mean(dim=0)
        rows -= mean
        for start in range(0, rows.shape[1], COLUMNS):
            panel = slice(start, start + COLUMNS)
            self._scatter[panel, start:].addmm_(rows[:, panel].T, rows[:, start:])
        step = mean - self._mean
        self._scatter.addr_(step, step, alpha=self.count * k / (self.count + k))
        self._mean += step * (k / (self.count + k))
        self.count += k

    def moments(self) -> Moments:
        """The moments of all images so far.

        Raises:
            ConfigError: fewer than two images, or values that are not finite.
        """
        if self.count < 2:
            raise ConfigError(f"a covariance needs at least 2 images, and there are {self.count}")
        covariance = self._scatter.triu() / (self.count - 1)
        covariance += covariance.triu(1).T
        mean = self._origin + self._mean
        if not bool(mean.isfinite().all() & covariance.diagonal().isfinite().all()):
            raise ConfigError("the images hold values that are not finite")
        return Moments(self.count, mean, covariance)


def moments_of(images: torch.Tensor) -> Moments:
    """The moments of images ``[N, ...]``; see :class:`RunningMoments` for what is raised."""
    running = RunningMoments()
    running.update(images)
    return running.moments()


def root(covariance: torch.Tensor) -> torch.Tensor:
    """Standard deviations ``[P]`` of variances ``[P]``; of a covariance ``[P, P]`` ``R`` with ``R R'`` equal to it."""
    if covariance.dim() == 1:
        return covariance.sqrt()
    values, vectors = torch.linalg.eigh(covariance.double())
    matrix: torch.Tensor = vectors * values.clamp(min=0).sqrt()
    return matrix
