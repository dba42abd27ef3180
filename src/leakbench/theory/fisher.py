"""Fisher information about the input in a Gaussian message, the basis of bounds on reconstruction.

The message is ``y ~ N(g(x), diag(variance))`` with ``d`` coordinates, the input ``x`` has ``m`` (a client's whole
batch, flattened). Source: Chen, Gürsoy and Lei (2024), Theorems 2 to 4, unless said otherwise.
"""

from __future__ import annotations

from leakbench.lazy import torch


def information_trace(
    sensitivity: torch.Tensor, variance: torch.Tensor, passing: torch.Tensor | None = None
) -> torch.Tensor:
    """Trace of the Fisher information, ``sum_i q_i a_i / variance_i``, ``[...]``.

    Args:
        sensitivity: ``a_i = ||grad_x g_i||^2``, ``[..., d]``; of a clipped gradient, the sensitivity after clipping.
        variance: of the noise in each coordinate, ``[..., d]``, at least 0.
        passing: ``[..., d]``: which coordinates are sent, boolean; or the probability ``q_i`` that each is sent, for
            the mean over a random pruning. All of them by default.

    A coordinate without information (``a_i`` or ``q_i`` is 0) counts 0 whatever its variance; one with information and
    without noise makes the trace infinite.

    >>> information_trace(torch.tensor([4.0, 1.0]), variance=torch.tensor([2.0, 0.5]))
    tensor(4.)
    """
    information = torch.where(sensitivity > 0, sensitivity / variance, 0.0)
    if passing is not None:
        information = torch.where(passing > 0, passing * information, 0.0)
    return information.sum(dim=-1)


def gaussian_information(
    jacobian: torch.Tensor, variance: torch.Tensor, log_variance_jacobian: torch.Tensor | None = None
) -> torch.Tensor:
    """The Fisher information itself, ``J^T diag(1 / variance) J``, ``[..., m, m]``.

    Args:
        jacobian: ``dg_i/dx_l``, ``[..., d, m]``.
        variance: ``[..., d]``, positive.
        log_variance_jacobian: ``d log variance_i / dx_l``, ``[..., d, m]``, where the variance depends on the data, as
            in the local forms. It adds ``1/2 sum_i grad log variance_i grad log variance_i^T``, which no scale of the
            noise changes, and which the paper leaves out.
    """
    information = (jacobian / variance.unsqueeze(-1)).mT @ jacobian
    if log_variance_jacobian is not None:
        information = information + log_variance_jacobian.mT @ log_variance_jacobian / 2
    return information


def least_error(trace: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
    """The least squared error that any attacker can have on normal inputs, of the trace of the information alone.

    By the Bayesian Cramér-Rao bound the error is at least ``tr (P + J)^-1``, with ``P`` the inverse covariance of the
    inputs and ``J`` the mean Fisher information. Of all ``J`` of one trace that is least where ``J`` fills the
    directions of largest variance to a level: ``sum_i min(v_i, level)`` with ``sum_i (1 / level - 1 / v_i)+ = trace``.
    It is the variance of the inputs without a message, and above ``m^2 / (trace + tr P)`` with it.

    >>> least_error(torch.tensor([0.0, 0.5, 1e9]), variances=torch.tensor([4.0, 1.0])).round(decimals=4)
    tensor([5.0000, 2.3333, 0.0000])

    Args:
        trace: of the mean Fisher information about all inputs, ``[...]``, at least 0; may be infinite.
        variances: eigenvalues of the inputs' covariance, ``[m]``, at least 0, in any order; not all zero.
    """
    filled = variances[variances > 0].sort(descending=True).values
    precisions = 1 / filled
    counts = torch.arange(1, len(filled) + 1, dtype=filled.dtype, device=filled.device)
    # The height of the water over the first k directions; they are the filled ones if it reaches the last of them.
    heights = (trace.unsqueeze(-1) + precisions.cumsum(dim=0)) / counts
    last = (heights >= precisions).sum(dim=-1, keepdim=True) - 1
    level = 1 / heights.gather(-1, last)
    return filled.minimum(level).sum(dim=-1)
