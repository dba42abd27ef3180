"""Gradients of single records by layers, as products of factors, mostly without forming them.

By the weights of a linear layer the gradient of a record's loss is the outer product of the error at its output and of
its inputs; by those of a convolution it is a sum of such products over places. Norms, weighted sums, products with
vectors and the Gram matrix of linear layers follow from the factors alone (Goodfellow 2015, "Efficient Per-Example
Gradient Computations"); those of convolutions, which have few weights, are formed. The records of a batch share one
pass through the network.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.models.stacked import flat_modules


class _Part(Protocol):
    """Gradients of ``k`` clients' ``B`` records by the parameters of one layer, ``p`` of them."""

    def squares(self) -> torch.Tensor:
        """Squared norms, ``[k, B]``."""
        ...

    def scaled(self, factors: torch.Tensor) -> _Part: ...

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """``[k, m, B] -> [k, m, p]``."""
        ...

    def along(self, vectors: torch.Tensor) -> torch.Tensor:
        """``[k, m, p] -> [k, m, B]``."""
        ...

    def gram(self) -> torch.Tensor:
        """Float64 ``[k, B, B]``."""
        ...

    @property
    def size(self) -> int: ...


GRAM_BUDGET = 3 * 2**30
"""Most bytes of Gram matrices of inputs that are kept."""


class _Products:
    """Gram matrices of inputs that come back in every round, as a client's data do; each is computed once.

    Inputs are known again by their place in memory, which nothing else takes as long as they are kept.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}
        self._bytes = 0

    def of(self, inputs: torch.Tensor) -> torch.Tensor:
        """``X X^T``, float64 ``[k, B, F] -> [k, B, B]``."""
        place = inputs.data_ptr()
        if place in self._kept:
            same, version, products = self._kept[place]
            if same.shape == inputs.shape and same.stride() == inputs.stride() and version == inputs._version:
                return products
        products = _products(inputs)
        if place not in self._kept and self._bytes + products.nbytes <= GRAM_BUDGET:
            self._kept[place] = inputs, inputs._version, products
            self._bytes += products.nbytes
        return products


def _products(inputs: torch.Tensor) -> torch.Tensor:
    exact = inputs.double()
    products: torch.Tensor = exact @ exact.mT
    return products


@dataclass(frozen=True)
class _Outer:
    """Gradients of a linear layer: errors ``[k, B, O]`` and inputs ``[k, B, F]``; weights, then biases, if any.

    ``kept`` holds Gram matrices of inputs that are the data.
    """

    errors: torch.Tensor
    inputs: torch.Tensor
    bias: bool
    kept: _Products | None = None

    @property
    def size(self) -> int:
        return self.errors.shape[2] * (self.inputs.shape[2] + self.bias)

    def squares(self) -> torch.Tensor:
        read = self.inputs.square().sum(dim=2) + float(self.bias)
        squares: torch.Tensor = self.errors.square().sum(dim=2) * read
        return squares

    def scaled(self, factors: torch.Tensor) -> _Outer:
        return _Outer(self.errors * factors.unsqueeze(2), self.inputs, self.bias, self.kept)

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        errors = weights.unsqueeze(3) * self.errors.unsqueeze(1)  # [k, m, B, O]
        products = (errors.mT.flatten(1, 2) @ self.inputs).unflatten(1, errors.mT.shape[1:3]).flatten(2)
        return torch.cat([products, errors.sum(dim=2)], dim=2) if self.bias else products

    def along(self, vectors: torch.Tensor) -> torch.Tensor:
        outputs, inputs = self.errors.shape[2], self.inputs.shape[2]
        weights = vectors[..., : outputs * inputs].unflatten(2, (outputs, inputs))
        read = self.inputs.unsqueeze(1) @ weights.mT  # [k, m, B, O]
        if self.bias:
            read = read + vectors[..., None, -outputs:]
        products: torch.Tensor = (read * self.errors.unsqueeze(1)).sum(dim=3)
        return products

    def gram(self) -> torch.Tensor:
        inputs = _products(self.inputs) if self.kept is None else self.kept.of(self.inputs)
        gram: torch.Tensor = _products(self.errors) * (inputs + float(self.bias))
        return gram


@dataclass(frozen=True)
class _Formed:
    """The gradients themselves, ``[k, B, p]``."""

    gradients: torch.Tensor

    @property
    def size(self) -> int:
        return self.gradients.shape[2]

    def squares(self) -> torch.Tensor:
        squares: torch.Tensor = self.gradients.square().sum(dim=2)
        return squares

    def scaled(self, factors: torch.Tensor) -> _Formed:
        return _Formed(self.gradients * factors.unsqueeze(2))

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        return weights @ self.gradients

    def along(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors @ self.gradients.mT

    def gram(self) -> torch.Tensor:
        gradients = self.gradients.double()
        return gradients @ gradients.mT


@dataclass(frozen=True)
class RecordGradients:
    """The gradients ``g_j`` of ``k`` clients' ``B`` records each, of ``d`` coordinates.

    Attributes:
        parts: by layers, in the order of the flat parameter vector.
        losses: of the records, ``[k, B]``.
    """

    parts: Sequence[_Part]
    losses: torch.Tensor

    def norms(self) -> torch.Tensor:
        """``|g_j|``, ``[k, B]``."""
        return sum((part.squares() for part in self.parts[1:]), start=self.parts[0].squares()).sqrt()

    def scaled(self, factors: torch.Tensor) -> RecordGradients:
        """``f_j g_j`` for factors ``[k, B]``."""
        return RecordGradients([part.scaled(factors) for part in self.parts], self.losses)

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """``sum_j w_j g_j``, ``[k, m, d]``, for weights ``[k, m, B]``."""
        return torch.cat([part.weighted(weights) for part in self.parts], dim=2)

    def mean(self) -> torch.Tensor:
        """Mean over a client's records, ``[k, d]``."""
        k, records = self.losses.shape
        return self.weighted(self.losses.new_full((k, 1, records), 1 / records))[:, 0]

    def along(self, vectors: torch.Tensor) -> torch.Tensor:
        """``<g_j, v>``, ``[k, m, B]``, for vectors ``[k, m, d]``."""
        slices = vectors.split([part.size for part in self.parts], dim=2)
        products = [part.along(vectors) for part, vectors in zip(self.parts, slices, strict=True)]
        return sum(products[1:], start=products[0])

    def gram(self) -> torch.Tensor:
        """``<g_j, g_l>``, float64 ``[k, B, B]``."""
        return sum((part.gram() for part in self.parts[1:]), start=self.parts[0].gram())


class LayeredNetwork:
    """A network as a sequence of layers, as :meth:`of` takes it apart."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._modules = modules
        self._kept = _Products()

    @classmethod
    def of(cls, network: Network) -> LayeredNetwork | None:
        """The network, if it is a sequence of linear layers, plain convolutions and layers without parameters.

        None of the latter may mix records or draw random numbers: activations, pooling and flattening are known.
        """
        nn = torch.nn
        modules, flat = list(flat_modules(network.trainable_module().requires_grad_(False))), False
        silent = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d, nn.Flatten, nn.Identity)
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
            labels: ``[k, B]``.
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
            losses = functional.cross_entropy(values, labels.flatten(), reduction="none")
            errors = torch.autograd.grad(losses.sum(), [output for _, _, output in layers])
        clients = images.shape[:2]
        parts = [_part(module, read, error, clients) for (module, read, _), error in zip(layers, errors, strict=True)]
        first = parts[0]
        if isinstance(first, _Outer) and first.inputs.data_ptr() == images.data_ptr():
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


def _part(module: torch.nn.Module, read: torch.Tensor, errors: torch.Tensor, clients: tuple[int, ...]) -> _Part:
    if isinstance(module, torch.nn.Linear):
        return _Outer(errors.unflatten(0, clients), read.unflatten(0, clients), module.bias is not None)
    assert isinstance(module, torch.nn.Conv2d)
    columns = patches(module, read, (errors.shape[2], errors.shape[3]))
    errors = errors.flatten(2)
    gradients = (errors @ columns.mT).flatten(1)
    if module.bias is not None:
        gradients = torch.cat([gradients, errors.sum(dim=2)], dim=1)
    return _Formed(gradients.unflatten(0, clients))
