"""Assignment of reconstructions to the images of a batch, whose order a gradient does not tell.

Metrics per image are therefore reported twice: in the order in which the attack left its images, and after the
assignment that has the smallest error in every client's batch.
"""

from __future__ import annotations

from leakbench.lazy import np, torch
from leakbench.metrics.image import IMAGE_METRICS

ASSIGNED = "assigned_"
"""Prefix of the metrics after assignment."""

ASSIGNED_METRICS = {
    ASSIGNED + name: info.model_copy(update={"unit": f"{info.unit}; after assignment within the client's batch"})
    for name, info in IMAGE_METRICS.items()
}

_LOST_COST = 1e3  # the error of pixels in [0, 1] is at most one


def assign(estimate: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """The one-to-one assignment of reconstructions to victims with the smallest mean squared error of pixels.

    A reconstruction that is not finite costs the same for every victim: it gets one that the others leave over.

    Args:
        estimate: reconstructions as pixels, ``[n, B, C, H, W]``; clamped to [0, 1] here.
        truth: victims as pixels in [0, 1], ``[n, B, C, H, W]``.

    Returns:
        For each victim the index of its reconstruction in the client's batch, ``[n, B]``, int64, on the device of
        ``estimate``.

    Raises:
        ValueError: the shapes differ.
    """
    from scipy.optimize import linear_sum_assignment

    if estimate.shape != truth.shape:
        raise ValueError(f"reconstructions {tuple(estimate.shape)} and victims {tuple(truth.shape)} differ in shape")
    pixels, targets = estimate.flatten(2), truth.flatten(2).double()
    lost = ~pixels.isfinite().all(dim=2)
    pixels = pixels.nan_to_num().clamp(0, 1).double()
    # Differences, not inner products: equal images cost exactly nothing, and clients do not round one another's costs.
    distance = torch.cdist(targets, pixels, compute_mode="donot_use_mm_for_euclid_dist")
    cost = (distance.square() / targets.shape[2]).masked_fill(lost[:, None], _LOST_COST)
    orders = [linear_sum_assignment(client)[1] for client in cost.cpu().numpy()]
    return torch.from_numpy(np.stack(orders).astype(np.int64)).to(estimate.device)


def reorder(images: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Reconstructions in victim order: ``images`` ``[n, B, ...]``, ``order`` ``[n, B]`` from :func:`assign`."""
    return images[torch.arange(len(images), device=images.device)[:, None], order]
