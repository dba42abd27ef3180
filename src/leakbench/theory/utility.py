"""Utility of a defended gradient, to first order: mean and variance of the decrease of the loss in one SGD step.

A step of rate ``eta`` along the message ``y`` lowers the loss by ``eta <g, y>`` to first order. The definitions leave
the rate out, and they do not describe a step of Adam. Utilities are compared by ``u1``, and by ``u2`` where that is
equal. Source: Chen, Gürsoy and Lei (2024), Definition 2, eqs. 3 and 4.
"""

from __future__ import annotations

from leakbench.lazy import torch


def u1(gradient: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """``<g, E y>``, ``[...]``: the mean decrease of the loss per unit of the learning rate.

    >>> u1(torch.tensor([1.0, 2.0]), mean=torch.tensor([1.0, 0.0]))
    tensor(1.)

    Args:
        gradient: ``g``, with respect to the parameters, ``[..., d]``.
        mean: of the message: ``g`` under noise, the clipped or the pruned gradient, ``[..., d]``. For a random pruning
            that keeps coordinate ``i`` with probability ``q_i`` it is ``q_i g_i``.
    """
    return (gradient * mean).sum(dim=-1)


def u2(gradient: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """``-Var <g, y> = -sum_i g_i^2 variance_i``, ``[...]``, at most 0.

    Args:
        gradient: ``g``, unclipped, ``[..., d]``.
        variance: of the independent noise in each coordinate of the message, ``[..., d]``.
    """
    return -(gradient.square() * variance).sum(dim=-1)
