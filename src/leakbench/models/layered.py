"""Gradients of single records by layers, for networks that are sequences of layers.

The records of a batch share one pass through the network; :mod:`leakbench.models.record_gradients` says what of their
gradients is formed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.models.record_gradients import Formed, Outer, Part, Products, RecordGradients
from leakbench.models.stacked import flat_modules


class LayeredNetwork:
    """A network as a sequence of layers, as :meth:`of` takes it apart."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._modules = modules
        self._kept = Products()

    @classmethod
    def of(cls, network: Network) -> LayeredNetwork | None:
        """The network, if it is a sequence of linear layers, plain convolutions and layers without parameters.

        None of the latter may mix records: activations, pooling and flattening are known.
        """
        if not network.plain_loss:
            return None
        nn = torch.nn
        modules = [module for module in flat_modules(network.module) if type(module) is not nn.Dropout]  # off
        flat = False
        activations, pooling = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh), (nn.MaxPool2d, nn.AvgPool2d)
        silent = (*activations, *pooling, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Identity)
        for module in modules:
            flat |= type(module) is nn.Flatten
            plain = type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros"
            plain = plain and not isinstance(module.padding, str)
            if not (plain or (type(module) is nn.Linear and flat) or type(module) in silent):
                return None
        if sum(_parameters(module) for module in modules) != network.dimension:
            return None
        return cls(modules)

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        """Bytes of working memory per record of a shape ``(C, H, W)``, roughly."""
        device = next(parameter.device for module in self._modules for parameter in module.parameters())
        values, floats = torch.zeros(1, *shape, device=device), 0
        for module in self._modules:
            before, values = values, module(values)
            floats += 3 * values.numel()
            if isinstance(module, torch.nn.Conv2d):  # patches, and gradients of the record
                places = values.shape[2] * values.shape[3]
                floats += before.shape[1] * math.prod(module.kernel_size) * places + 2 * _parameters(module)
        return 4 * floats

    def record_gradients(self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> RecordGradients:
        """Gradients of the cross-entropies of records.

        Args:
            parameters: ``[d]``, which all clients hold.
            images: ``[k, B, C, H, W]``.
            labels: ``[k, B]``, or probabilities ``[k, B, classes]``.
        """
        functional, layers = torch.nn.functional, list[tuple[torch.nn.Module, torch.Tensor, torch.Tensor]]()
        values, place = images.flatten(0, 1), 0
        with torch.enable_grad():
            for module in self._modules:
                if not isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
                    values = _pooled(module, values) if _slides(module) else module(values)
                    continue
                flat = parameters[place : place + _parameters(module)].detach()
                place += len(flat)
                weight = flat[: module.weight.numel()].view_as(module.weight)
                bias = None if module.bias is None else flat[module.weight.numel() :]
                read = values
                if isinstance(module, torch.nn.Linear):
                    values = functional.linear(read, weight, bias)
                else:
                    values = functional.conv2d(
                        read, weight, bias, module.stride, module.padding, module.dilation, module.groups
                    )
                if not values.requires_grad:
                    values.requires_grad_()  # the first layer: nobody needs the gradient by the images
                layers.append((module, read.detach(), values))
            losses = functional.cross_entropy(values, labels.flatten(0, 1), reduction="none")
            errors = torch.autograd.grad(losses.sum(), [output for _, _, output in layers])
        clients = images.shape[:2]
        parts = [_part(module, read, error, clients) for (module, read, _), error in zip(layers, errors, strict=True)]
        first = parts[0]
        if isinstance(first, Outer) and first.inputs.data_ptr() == images.data_ptr():
            parts[0] = replace(first, kept=self._kept)
        return RecordGradients(parts, losses.detach().unflatten(0, clients))


def _parameters(module: torch.nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())


def _slides(module: torch.nn.Module) -> bool:
    """Whether it is max pooling whose windows move by one, which torch computes slowly on a CPU."""
    if type(module) is not torch.nn.MaxPool2d or module.ceil_mode:
        return False
    plain = module.padding in (0, (0, 0)) and module.dilation in (1, (1, 1))
    return plain and module.stride in (1, (1, 1)) and isinstance(module.kernel_size, int)


def _pooled(module: torch.nn.Module, values: torch.Tensor) -> torch.Tensor:
    """Maxima over windows, one axis after the other."""
    assert isinstance(module, torch.nn.MaxPool2d) and isinstance(module.kernel_size, int)
    for axis in (2, 3):
        side = values.shape[axis] - module.kernel_size + 1
        shifted = [values.narrow(axis, start, side) for start in range(module.kernel_size)]
        values = functools.reduce(torch.maximum, shifted)
    return values


def patches(module: torch.nn.Conv2d, read: torch.Tensor, places: tuple[int, int]) -> torch.Tensor:
    """Inputs of each place of the output, ``[n, C k k, places]``, as by torch's ``unfold``, which is slower."""
    assert not isinstance(module.padding, str)
    (up, left), (down, right) = module.padding, module.stride
    padded = torch.nn.functional.pad(read, (left, left, up, up)).contiguous()
    n, c, row, column = padded.stride()
    (high, wide), (over, across) = module.kernel_size, module.dilation
    windows = padded.as_strided(
        (*padded.shape[:2], high, wide, *places), (n, c, over * row, across * column, down * row, right * column)
    )
    return windows.reshape(len(padded), -1, places[0] * places[1])


def _part(module: torch.nn.Module, read: torch.Tensor, errors: torch.Tensor, clients: tuple[int, ...]) -> Part:
    if isinstance(module, torch.nn.Linear):
        return Outer(errors.unflatten(0, clients), read.unflatten(0, clients), module.bias is not None)
    assert isinstance(module, torch.nn.Conv2d)
    columns = patches(module, read, (errors.shape[2], errors.shape[3]))
    errors = errors.flatten(2)
    gradients = (errors @ columns.mT).flatten(1)
    if module.bias is not None:
        gradients = torch.cat([gradients, errors.sum(dim=2)], dim=1)
    return Formed(gradients.unflatten(0, clients))
