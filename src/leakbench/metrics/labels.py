"""How many of a client's labels were found."""

from __future__ import annotations

from leakbench.lazy import torch


def _histogram(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """How often each class occurs in each row, int64 ``[n, B] -> [n, classes]``."""
    counts = torch.zeros(len(labels), classes, dtype=torch.int64, device=labels.device)
    return counts.scatter_add(1, labels, torch.ones_like(labels))


def label_accuracy(found: torch.Tensor, truth: torch.Tensor, classes: int) -> torch.Tensor:
    """Part of each client's labels that was found, as multisets: ``|found & truth| / B``, float32 ``[n]`` in [0, 1].

    Args:
        found: int64 ``[n, B]``, in any order.
        truth: int64 ``[n, B]``, in any order.
        classes: labels are 0 to ``classes - 1``.
    """
    shared = torch.minimum(_histogram(found, classes), _histogram(truth, classes))
    return shared.sum(dim=1) / truth.shape[1]
