"""Signs by which a client tells that the model it got was changed to leak.

Units that sort images by one number have weights in one direction, and biases in order. A client sees both before it
computes anything; it needs no data, and no knowledge of the attack.
"""

from __future__ import annotations

from collections.abc import Mapping

from leakbench.lazy import torch
from leakbench.records import MetricInfo

VISIBILITY = {
    "parallel_units": MetricInfo(
        unit="1 (median |cosine| of two units' weights, largest over layers)", direction="none"
    ),
    "stable_rank": MetricInfo(
        unit="1 (squared Frobenius over squared spectral norm, least over layers)", direction="none"
    ),
    "ordered_biases": MetricInfo(
        unit="1 (|rank correlation| of biases with their order, largest over layers)", direction="none"
    ),
    "added_parameters": MetricInfo(unit="parameters over those of the agreed model, less 1", direction="none"),
}
"""Metrics of a model that the server may have changed; none is better high or low."""

FEWEST = 12
"""Units and inputs of a layer from which on it is looked at: the cosines of a few numbers are large by chance."""


def visibility(tensors: Mapping[str, torch.Tensor], agreed: int) -> dict[str, float]:
    """The metrics of :data:`VISIBILITY` of a model; those of layers are 0 where none is large enough.

    >>> visibility({"weight": torch.ones(12, 20), "bias": -torch.arange(12.0)}, agreed=126)
    {'parallel_units': 1.0, 'stable_rank': 1.0, 'ordered_biases': 1.0, 'added_parameters': 1.0}

    Args:
        tensors: the parameters of the model that the client gets, by name.
        agreed: number of parameters of the model that it agreed to train.
    """
    parallel, ranks, ordered = [0.0], list[float](), [0.0]
    for name, tensor in tensors.items():
        if tensor.dim() == 1:
            continue
        weights = tensor.flatten(1).double()
        if min(weights.shape) < FEWEST or not bool(weights.any()):
            continue
        parallel.append(_parallel(weights))
        ranks.append(_stable_rank(weights))
        bias = tensors.get(f"{name.removesuffix('weight')}bias")
        if bias is not None:
            ordered.append(_ordered(bias))
    return {
        "parallel_units": max(parallel),
        "stable_rank": min(ranks, default=0.0),
        "ordered_biases": max(ordered),
        "added_parameters": sum(tensor.numel() for tensor in tensors.values()) / agreed - 1,
    }


def _parallel(weights: torch.Tensor) -> float:
    """Median absolute cosine of two rows."""
    unit = torch.nn.functional.normalize(weights, dim=1)
    rows, columns = torch.triu_indices(len(unit), len(unit), offset=1)
    return float((unit @ unit.T)[rows, columns].abs().median().clamp(max=1))


def _stable_rank(weights: torch.Tensor) -> float:
    """Squared Frobenius norm over the squared spectral norm: 1 where all rows are multiples of one."""
    values = torch.linalg.svdvals(weights).square()
    return float(values.sum() / values.max())


def _ordered(biases: torch.Tensor) -> float:
    """Absolute rank correlation with the order of the units; 0 where all are equal."""
    if bool((biases == biases[0]).all()):
        return 0.0
    ranks = biases.double().argsort().argsort().double()
    order = torch.arange(len(ranks), dtype=ranks.dtype, device=ranks.device)
    return float(torch.corrcoef(torch.stack([ranks, order]))[0, 1].abs())
