"""Accuracy of inferred labels."""

from __future__ import annotations

from leakbench.lazy import torch


def _histogram(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Counts of the classes in each row, int64 ``[n, B] -> [n, classes]``."""
    counts = torch.zeros(len(labels), classes, dtype=torch.int64, device=labels.device)
    return counts.scatter_add(1, labels, torch.ones_like(labels))


def label_accuracy(inferred: torch.Tensor, truth: torch.Tensor, classes: int) -> torch.Tensor:
    """Part of each client's labels that is inferred, as multisets: ``|inferred & truth| / B``, float32 ``[n]``.

    >>> label_accuracy(torch.tensor([[0, 1, 1, 2]]), torch.tensor([[1, 1, 1, 2]]), classes=3)
    tensor([0.7500])

    Args:
        inferred: int64 ``[n, B]``, in any order.
        truth: int64 ``[n, B]``, in any order.
        classes: labels are 0 to ``classes - 1``.
    """
    shared = torch.minimum(_histogram(inferred, classes), _histogram(truth, classes))
    return shared.sum(dim=1) / truth.shape[1]
