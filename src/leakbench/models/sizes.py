"""Sizes of models, without computing anything: parameters and multiply-adds."""

from __future__ import annotations

from leakbench.lazy import torch
from leakbench.models.base import Model, trained_parameters


def multiply_adds(model: Model, shape: tuple[int, ...], classes: int) -> float:
    """Multiply-adds of a forward and a backward pass of one sample through its layers, without computing it.

    The gradient by an image itself is not among them, since training does not need it.
    """
    from torch.utils.flop_counter import FlopCounterMode

    batch = 2  # BatchNorm refuses a single value per channel
    with torch.device("meta"):
        samples = torch.empty(batch, *shape) if len(shape) > 1 else torch.ones(batch, *shape, dtype=torch.int64)
        module, labels = model.build(shape, classes).train(), torch.zeros(batch, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, torch.enable_grad():
        torch.nn.functional.cross_entropy(module(samples), labels).backward()
    return float(counter.get_total_flops()) / 2 / batch


def parameter_counts(model: Model, shape: tuple[int, ...], classes: int) -> dict[str, int]:
    """Number of parameters in each tensor of a model that trains, in its order; allocates none of them."""
    with torch.device("meta"):
        module = model.build(shape, classes)
    return {name: parameter.numel() for name, parameter in trained_parameters(module).items()}


def parameter_count(model: Model, shape: tuple[int, ...], classes: int) -> int:
    """Number of parameters of a model that train, for samples of a shape; allocates none of them."""
    return sum(parameter_counts(model, shape, classes).values())
