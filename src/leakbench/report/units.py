"""Units of inference: attacked batches, whose samples are averaged, and seeds, where each has victims of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakbench.lazy import np

if TYPE_CHECKING:
    from leakbench.report.inference import Array

SAMPLE_AXES = ("image", "sentence")
"""Axes of metrics with a value per sample of a client's batch."""
VICTIM_AXES = ("victim", *SAMPLE_AXES)
"""Axes of metrics along which seeds share the victims, unless the protocol gives each seed victims of its own."""
SEED_AXES = ("client", "repetition")
"""Axes of metrics whose values belong to their seed alone, so that its mean is what counts."""


def of_one_seed(axis: str | None, distinct: bool) -> bool:
    """Whether the values along an axis belong to their seed alone.

    Args:
        axis: of the metric.
        distinct: each seed has victims of its own.
    """
    return axis in SEED_AXES or (axis in VICTIM_AXES and distinct)


def batch_means(values: Array, clients: int) -> Array:
    """Means over each client's samples, which are contiguous, ``[..., samples] -> [..., clients]``."""
    return known_means(values.reshape(*values.shape[:-1], clients, -1))[..., 0]


def known_means(values: Array) -> Array:
    """Means of the known values along the last axis, ``[..., n] -> [..., 1]``; NaN where none is known."""
    known = np.isfinite(values)
    counts = known.sum(axis=-1, keepdims=True)
    sums = np.where(known, values, 0.0).sum(axis=-1, keepdims=True)
    means: Array = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means
