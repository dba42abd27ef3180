"""Gradients of sequential networks, and derivatives of functions of them by the inputs, in written-out passes.

Gradient matching differentiates a function of the gradient ``g(x)`` by the images. With ``u`` its derivative by ``g``
that is ``d <g(x), u> / dx``, and ``<g, u>`` is the loss's derivative along ``u``: one more pass forward and backward,
which carries that tangent along, gives it (Pearlmutter 1994, "Fast Exact Multiplication by the Hessian").
Two transforms by ``torch.func`` compute the same products, but copy between layouts, and evaluate activations and
pooling anew in every pass; ``benchmarks/second_order.py`` has the ratios.

The gradient of a linear layer is a sum of a few outer products. Where an objective needs nothing of the gradients but
inner products, those of linear layers are not even formed: :meth:`SecondOrder.products`.

Many clients go through together, ``[B, n, ...]``: convolutions with weights that all share see ``B n`` samples, those
with weights of each client ``n`` groups, and both are views of the same values.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.models.layered import patches
from leakbench.models.stacked import flat_modules, is_halving, is_plain


class _Combination(NamedTuple):
    """A vector ``of_target t + of_gradient g`` instead of parameters' directions, with factors ``[n]``."""

    target: Sequence[torch.Tensor]
    of_target: torch.Tensor
    of_gradient: torch.Tensor


class _Layer(Protocol):
    """A layer and what its passes leave for later ones; values ``[B, n, ...]``.

    ``parameters`` are its tensors, of all clients alike or ``[n, ...]``; there may be none.
    """

    def forward(self, values: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor: ...

    def backward(self, error: torch.Tensor) -> torch.Tensor:
        """The error at the inputs, from that at the outputs; unused for the first layer."""
        ...

    def gradients(self) -> list[torch.Tensor]:
        """By the parameters, ``[n, ...]`` each, after :meth:`backward`."""
        ...

    def products(self, target: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inner products of the gradients with the target's tensors and with themselves, ``[n]``; as gradients."""
        ...

    def combined(self, along: _Combination) -> Any:
        """The directions as :meth:`tangent` takes them, after :meth:`products`."""
        ...

    def tangent(self, values: torch.Tensor | None, along: Any) -> torch.Tensor:
        """Outputs' derivative: of inputs that move along ``values`` (None: not at all), parameters along ``along``.

        Those are tensors, or what :meth:`combined` makes.
        """
        ...

    def backward_tangent(self, error: torch.Tensor) -> torch.Tensor:
        """Derivative of the error at the inputs, from that of the error at the outputs."""
        ...


class _Formed(ABC):
    """A layer whose gradients are formed to be multiplied."""

    @abstractmethod
    def gradients(self) -> list[torch.Tensor]: ...

    def products(self, target: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        self._gradients = self.gradients()
        pairs = [(formed.flatten(1), other.flatten(1)) for formed, other in zip(self._gradients, target, strict=True)]
        inner = torch.stack([(formed * other).sum(dim=1) for formed, other in pairs])
        return inner.sum(dim=0), torch.stack([formed.square().sum(dim=1) for formed, _ in pairs]).sum(dim=0)

    def combined(self, along: _Combination) -> list[torch.Tensor]:
        def row(factor: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
            return factor.view(-1, *[1] * (tensor.dim() - 1))

        return [
            (other * row(along.of_target, other)).addcmul_(formed, row(along.of_gradient, formed))
            for formed, other in zip(self._gradients, along.target, strict=True)
        ]


class _Plain(_Formed):
    """A layer without parameters."""

    def gradients(self) -> list[torch.Tensor]:
        return []


class _Linear:
    def __init__(self, module: torch.nn.Linear, first: bool) -> None:
        self._first = first

    def forward(self, values: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        self._read, (self._weight, *self._bias) = values, parameters
        return self._product(values, self._weight, self._bias)

    @staticmethod
    def _product(values: torch.Tensor, weight: torch.Tensor, bias: Sequence[torch.Tensor]) -> torch.Tensor:
        if weight.dim() == 2:
            return torch.nn.functional.linear(values, weight, *bias)
        product = values.transpose(0, 1) @ weight.mT
        for each in bias:
            product += each[:, None]
        return product.transpose(0, 1)

    @staticmethod
    def _back(error: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return error @ weight if weight.dim() == 2 else (error.transpose(0, 1) @ weight).transpose(0, 1)

    def backward(self, error: torch.Tensor) -> torch.Tensor:
        self._error = error
        return error if self._first else self._back(error, self._weight)

    def gradients(self) -> list[torch.Tensor]:
        weight = self._error.permute(1, 2, 0) @ self._read.transpose(0, 1)
        return [weight, *(self._error.sum(dim=0) for _ in self._bias)]

    def products(self, target: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """By ``G = sum_b e_b x_b'``: ``<G, T> = sum_b e_b' T x_b``, and ``|G|^2`` from samples' products."""
        read, error = self._read.transpose(0, 1), self._error.transpose(0, 1)
        self._reads, self._errors = read @ read.mT, error @ error.mT  # [n, B, B]
        if self._bias:
            self._reads += 1  # a bias reads ones
        self._by_target = self._product(self._read, target[0], target[1:])
        inner = (self._error * self._by_target).sum(dim=(0, 2))
        return inner, (self._reads * self._errors).sum(dim=(1, 2))

    def combined(self, along: _Combination) -> _Combination:
        return along

    def tangent(self, values: torch.Tensor | None, along: Sequence[torch.Tensor] | _Combination) -> torch.Tensor:
        self._along = along
        if isinstance(along, _Combination):
            by_gradient = (self._reads @ self._error.transpose(0, 1)).transpose(0, 1)
            moved = self._by_target * along.of_target[:, None]
            moved.addcmul_(by_gradient, along.of_gradient[:, None])
        else:
            moved = self._product(self._read, along[0], along[1:])
        return moved if values is None else moved.add_(self._product(values, self._weight, ()))

    def backward_tangent(self, error: torch.Tensor) -> torch.Tensor:
        back, along = self._back(error, self._weight), self._along
        if not isinstance(along, _Combination):
            return back + self._back(self._error, along[0])
        by_gradient = (self._errors @ self._read.transpose(0, 1)).transpose(0, 1)
        by_target = self._back(self._error, along.target[0])
        return back.addcmul(by_target, along.of_target[:, None]).addcmul_(by_gradient, along.of_gradient[:, None])


class _Convolution(_Formed):
    """A convolution behind others."""

    def __init__(self, module: torch.nn.Conv2d) -> None:
        assert not isinstance(module.padding, str)
        self._stride, self._padding = list(module.stride), list(module.padding)

    def forward(self, values: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        self._read, (self._weight, *self._bias) = values.contiguous(), parameters
        return self._convolved(self._read, self._weight, self._bias)

    def _convolved(self, values: torch.Tensor, weight: torch.Tensor, bias: Sequence[torch.Tensor]) -> torch.Tensor:
        samples, n = values.shape[:2]
        flat = [each.flatten() for each in bias]
        convolve = partial(torch.nn.functional.conv2d, stride=self._stride, padding=self._padding)
        if weight.dim() == 4:
            outputs = convolve(values.flatten(0, 1), weight, *flat)
        else:
            outputs = convolve(values.flatten(1, 2), weight.flatten(0, 1), *flat, groups=n)
        return outputs.view(samples, n, -1, *outputs.shape[2:])

    def _adjoint(self, error: torch.Tensor, weight: torch.Tensor, of: int, shared: bool) -> torch.Tensor:
        """Derivative of ``<error, convolution>`` by the inputs (``of`` 0) or by the weights (1), flat."""
        start, groups = (0, 1) if shared else (1, self._read.shape[1])
        results: tuple[torch.Tensor, ...] = torch.ops.aten.convolution_backward(
            error.contiguous().flatten(start, start + 1), self._read.flatten(start, start + 1), weight, None,
            self._stride, self._padding, [1, 1], False, [0, 0], groups, [of == 0, of == 1, False],
        )  # fmt: skip
        return results[of]

    def _back(self, error: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        shared = weight.dim() == 4
        flat = weight if shared else weight.flatten(0, 1)
        return self._adjoint(error, flat, 0, shared).view(self._read.shape)

    def backward(self, error: torch.Tensor) -> torch.Tensor:
        self._error = error.contiguous()
        return self._back(self._error, self._weight)

    def gradients(self) -> list[torch.Tensor]:
        n, shape = self._read.shape[1], self._weight.shape[-4:]
        weight = self._adjoint(self._error, self._error.new_empty(n * shape[0], *shape[1:]), 1, shared=False)
        return [weight.view(n, *shape), *(self._error.sum(dim=(0, 3, 4)) for _ in self._bias)]

    def tangent(self, values: torch.Tensor | None, along: Sequence[torch.Tensor]) -> torch.Tensor:
        self._along, *bias = along
        moved = self._convolved(self._read, self._along, bias)
        if values is not None:
            moved += self._convolved(values.contiguous(), self._weight, ())
        return moved

    def backward_tangent(self, error: torch.Tensor) -> torch.Tensor:
        return self._back(error, self._weight).add_(self._back(self._error, self._along))


class _FirstConvolution(_Formed):
    """A convolution of the images, whose few channels make products with patches the faster form."""

    def __init__(self, module: torch.nn.Conv2d) -> None:
        self._module = module

    def forward(self, values: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        self._shape, (self._weight, *self._bias) = values.shape, parameters
        module, sides = self._module, values.shape[3:]
        assert not isinstance(module.padding, str)
        geometry = zip(sides, module.padding, module.kernel_size, module.stride, strict=True)
        high, wide = ((side + 2 * padding - kernel) // stride + 1 for side, padding, kernel, stride in geometry)
        self._places = high, wide
        self._patches = patches(module, values.flatten(0, 1), self._places).unflatten(0, values.shape[:2])
        return self._product(self._weight, self._bias)

    def _product(self, weight: torch.Tensor, bias: Sequence[torch.Tensor]) -> torch.Tensor:
        outputs: torch.Tensor = weight.flatten(-3) @ self._patches
        for each in bias:
            outputs += each[..., None]
        return outputs.view(*outputs.shape[:3], *self._places)

    def backward(self, error: torch.Tensor) -> torch.Tensor:
        self._error = error.flatten(3)
        return error

    def gradients(self) -> list[torch.Tensor]:
        weight = (self._error @ self._patches.mT).sum(dim=0).unflatten(2, self._weight.shape[-3:])
        return [weight, *(self._error.sum(dim=(0, 3)) for _ in self._bias)]

    def tangent(self, values: torch.Tensor | None, along: Sequence[torch.Tensor]) -> torch.Tensor:
        assert values is None
        self._along, *bias = along
        return self._product(self._along, bias)

    def backward_tangent(self, error: torch.Tensor) -> torch.Tensor:
        weights = torch.cat([self._weight.expand_as(self._along), self._along], dim=1).flatten(2)  # one product of both
        columns = weights.mT @ torch.cat([error.flatten(3), self._error], dim=2)
        module = self._module
        assert not isinstance(module.padding, str)
        images = torch.nn.functional.fold(
            columns.flatten(0, 1), self._shape[3:], module.kernel_size, padding=module.padding, stride=module.stride
        )
        return images.view(self._shape)


class _BatchNorm(_Formed):
    """BatchNorm with the running statistics: a factor and a summand per channel."""

    def __init__(self, module: torch.nn.BatchNorm2d) -> None:
        assert module.running_mean is not None
        assert module.running_var is not None
        self._mean, self._inverse = module.running_mean, (module.running_var + module.eps).rsqrt()

    @staticmethod
    def _per_channel(vector: torch.Tensor) -> torch.Tensor:
        return vector[..., None, None]

    def forward(self, values: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        weight, bias = parameters
        self._read = (values - self._per_channel(self._mean)) * self._per_channel(self._inverse)
        self._factor = self._per_channel(weight * self._inverse)
        return torch.addcmul(self._per_channel(bias), self._read, self._per_channel(weight))

    def backward(self, error: torch.Tensor) -> torch.Tensor:
        self._error = error
        return error * self._factor

    def gradients(self) -> list[torch.Tensor]:
        axes = (0, 3, 4)
        return [(self._error * self._read).sum(dim=axes), self._error.sum(dim=axes)]

    def tangent(self, values: torch.Tensor | None, along: Sequence[torch.Tensor]) -> torch.Tensor:
        weight, bias = (self._per_channel(each) for each in along)
        self._along = weight * self._per_channel(self._inverse)
        moved = torch.addcmul(bias, self._read, weight)
        return moved if values is None else moved.addcmul_(values, self._factor)

    def backward_tangent(self, error: torch.Tensor) -> torch.Tensor:
        return (error * self._factor).addcmul_(self._error, self._along)


class _Smooth(_Plain):
    """Sigmoid, or tanh: both have derivatives that are polynomials of their values."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._is_sigmoid = isinstance(module, torch.nn.Sigmoid)

    def forward(self, values: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        if self._is_sigmoid:
            self._values = values.sigmoid()
            self._slope = self._values - self._values.square()
        else:
            self._values = values.tanh()
            self._slope = 1 - self._values.square()
        return self._values

    def backward(self, error: torch.Tensor) -> torch.Tensor:
        self._error = error
        return error * self._slope

    def tangent(self, values: torch.Tensor | None, along: Sequence[torch.Tensor]) -> torch.Tensor:
        assert values is not None
        self._moved = values
        return values * self._slope

    def backward_tangent(self, error: torch.Tensor) -> torch.Tensor:
        bend = 1 - 2 * self._values if self._is_sigmoid else -2 * self._values  # second derivative over the first
        return bend.mul_(self._moved).mul_(self._error).add_(error).mul_(self._slope)


class _Rectified(_Plain):
    """ReLU or leaky ReLU."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._below = float(module.negative_slope) if isinstance(module, torch.nn.LeakyReLU) else 0.0

    def forward(self, values: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        below, above = values.new_tensor([self._below, 1.0])
        self._slope = torch.lerp(below, above, (values > 0).to(values))  # faster than choosing, where signs are random
        return values * self._slope

    def backward(self, error: torch.Tensor) -> torch.Tensor:
        return error * self._slope

    backward_tangent = backward

    def tangent(self, values: torch.Tensor | None, along: Sequence[torch.Tensor]) -> torch.Tensor:
        assert values is not None
        return values * self._slope


class _Halved(_Plain):
    """Max pooling of windows of two by two: the first of equal values is the largest, as in torch."""

    def forward(self, values: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        self._shape = values.shape
        first, second, third, fourth = self._corners(values)
        above, below = torch.maximum(first, second), torch.maximum(third, fourth)
        # Ones and zeros: to multiply by them is faster than to choose, where it is at random which value is larger.
        pairs = (first, second), (third, fourth), (above, below)
        self._left_above, self._left_below, self._above = ((one >= other).to(values) for one, other in pairs)
        return torch.maximum(above, below)

    @staticmethod
    def _corners(values: torch.Tensor) -> list[torch.Tensor]:
        high, wide = (side // 2 * 2 for side in values.shape[-2:])
        return [values[..., row:high:2, column:wide:2] for row in (0, 1) for column in (0, 1)]

    def backward(self, error: torch.Tensor) -> torch.Tensor:
        even = all(side % 2 == 0 for side in self._shape[-2:])
        spread = error.new_empty(self._shape) if even else error.new_zeros(self._shape)
        corners = self._corners(spread)
        above = error * self._above
        for rows, left, (one, other) in (
            (above, self._left_above, corners[:2]),
            (error - above, self._left_below, corners[2:]),
        ):
            torch.mul(rows, left, out=one)
            torch.sub(rows, one, out=other)
        return spread

    backward_tangent = backward

    def tangent(self, values: torch.Tensor | None, along: Sequence[torch.Tensor]) -> torch.Tensor:
        assert values is not None
        first, second, third, fourth = self._corners(values)
        above, below = torch.lerp(second, first, self._left_above), torch.lerp(fourth, third, self._left_below)
        return below.lerp_(above, self._above)


class _Pooled(_Plain):
    """Max pooling of any other windows."""

    def __init__(self, module: torch.nn.MaxPool2d) -> None:
        self._module = module

    def forward(self, values: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        self._shape = values.shape
        largest, places = self._pooled(values.flatten(0, 1))
        self._places = places.flatten(2).unflatten(0, values.shape[:2])
        self._sides = largest.shape[2:]
        return largest.view(*values.shape[:3], *self._sides)

    def _pooled(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        module: Any = self._module
        pooled: tuple[torch.Tensor, torch.Tensor] = torch.nn.functional.max_pool2d_with_indices(
            values, module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode
        )
        return pooled

    def backward(self, error: torch.Tensor) -> torch.Tensor:
        spread = error.new_zeros(self._shape).flatten(3)  # windows may overlap
        spread.scatter_add_(3, self._places, error.flatten(3))
        return spread.view(self._shape)

    backward_tangent = backward

    def tangent(self, values: torch.Tensor | None, along: Sequence[torch.Tensor]) -> torch.Tensor:
        assert values is not None
        kept: torch.Tensor = values.flatten(3).gather(3, self._places).view(*values.shape[:3], *self._sides)
        return kept


class _Flattened(_Plain):
    def forward(self, values: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        self._shape = values.shape
        return values.flatten(2)

    def backward(self, error: torch.Tensor) -> torch.Tensor:
        return error.reshape(self._shape)

    backward_tangent = backward

    def tangent(self, values: torch.Tensor | None, along: Sequence[torch.Tensor]) -> torch.Tensor:
        return values if values is None else values.flatten(2)  # type: ignore[return-value]


class _Passes:
    """The passes of one evaluation of many clients."""

    def __init__(self, layers: Sequence[_Layer], shapes: Sequence[Sequence[tuple[int, ...]]], sizes: list[int]) -> None:
        self._layers, self._shapes, self._sizes = layers, shapes, sizes

    def _by_layers(self, flat: torch.Tensor) -> list[list[torch.Tensor]]:
        """Vectors ``[..., d]`` as the tensors of each layer."""
        parts = iter(flat.split(self._sizes, dim=-1))
        return [[next(parts).unflatten(-1, shape) for shape in shapes] for shapes in self._shapes]

    def gradient(self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Gradients ``[n, d]`` of the mean cross-entropies.

        Args:
            parameters: ``[d]`` or ``[n, d]``.
            images: ``[n, B, C, H, W]``.
            labels: ``[n, B]``, or probabilities ``[n, B, classes]``.
        """
        gradients: list[torch.Tensor] = []
        for layer in self._backwards(parameters, images, labels):
            gradients[:0] = (each.flatten(1) for each in layer.gradients())
        return torch.cat(gradients, dim=1)

    def products(
        self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inner products of the gradients with a target ``[n, d]`` and with themselves, each ``[n]``; see gradient."""
        self._target = self._by_layers(target)
        parts = [
            layer.products(tensors)
            for layer, tensors in zip(self._backwards(parameters, images, labels), reversed(self._target), strict=True)
            if tensors
        ]
        inner, square = (torch.stack(each).sum(dim=0) for each in zip(*parts, strict=True))
        return inner, square

    def _backwards(self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> Iterator[_Layer]:
        """The layers, last ones first, each after its backward pass."""
        values = images.transpose(0, 1).contiguous()
        for layer, tensors in zip(self._layers, self._by_layers(parameters), strict=True):
            values = layer.forward(values, tensors)
        self._likely = values.softmax(dim=2)
        classes = values.shape[2]
        labels = torch.nn.functional.one_hot(labels, classes) if labels.dim() == 2 else labels
        labels = labels.to(values).transpose(0, 1)
        self._total, self._samples = labels.sum(dim=2, keepdim=True), len(values)
        error = (self._likely * self._total - labels) / self._samples
        for layer in reversed(self._layers):
            error = layer.backward(error)
            yield layer

    def by_inputs(self, along: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Derivatives of ``<g, along>`` by images ``[n, B, C, H, W]`` and labels ``[n, B, classes]``; after gradient.

        Args:
            along: ``[n, d]``.
        """
        return self._by_inputs(self._by_layers(along))

    def products_by_inputs(self, inner: torch.Tensor, square: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Derivatives as of :meth:`by_inputs`, of the products times factors ``[n]``; after products."""
        along = (_Combination(tensors, inner, 2 * square) for tensors in self._target)
        pairs = zip(self._layers, along, strict=True)
        return self._by_inputs([layer.combined(each) if each.target else () for layer, each in pairs])

    def _by_inputs(self, along: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        moved: torch.Tensor | None = None
        for layer, directions in zip(self._layers, along, strict=True):
            moved = layer.tangent(moved, directions)
        assert moved is not None
        centred = (moved - (self._likely * moved).sum(dim=2, keepdim=True)) / self._samples
        error = self._likely * centred * self._total
        for layer in reversed(self._layers):
            error = layer.backward_tangent(error)
        return error.transpose(0, 1), -centred.transpose(0, 1)


class SecondOrder:
    """A network as a sequence of layers with written-out passes, as :meth:`of` takes it apart."""

    def __init__(
        self, layers: Sequence[Callable[[], _Layer]], shapes: Sequence[Sequence[tuple[int, ...]]], sizes: list[int]
    ) -> None:
        self._layers, self._shapes, self._sizes = layers, shapes, sizes

    @classmethod
    def of(cls, network: Network) -> SecondOrder | None:
        """The network, if its layers are known; else None.

        It may be a sequence of plain convolutions, linear layers, BatchNorm with running statistics, max pooling,
        flattening, and the activations ReLU, leaky ReLU, sigmoid and tanh.
        """
        if not network.plain_loss:
            return None
        nn = torch.nn
        modules = [part for part in flat_modules(network.module) if type(part) not in (nn.Identity, nn.Dropout)]
        modules = _pooling_first(modules)
        layers = [_layer(module, index == 0, network) for index, module in enumerate(modules)]
        known = [layer for layer in layers if layer is not None]
        shapes = [[tuple(tensor.shape) for tensor in module.parameters(recurse=False)] for module in modules]
        before = itertools.takewhile(lambda pair: not pair[1], zip(modules, shapes, strict=True))
        if not all(type(module) is nn.Flatten for module, _ in before):
            return None  # other layers expect a tangent, and images have none
        whole = [shape for each in shapes for shape in each] == network.shapes
        return cls(known, shapes, network.sizes) if whole and len(known) == len(layers) else None

    def gradient(self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Gradient ``[d]`` of one client's mean cross-entropy, to be transformed by ``torch.func`` over many.

        It has derivatives by images and by probabilities, once; parameters are constants.

        Args:
            parameters: ``[d]``.
            images: ``[B, C, H, W]``.
            labels: ``[B]``, or probabilities ``[B, classes]``.
        """
        gradient: torch.Tensor = _functions()[0].apply(parameters, images, labels, self._passes())
        return gradient

    def products(
        self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inner products of the gradient with a target ``[d]``, a constant, and with itself; else as :meth:`gradient`.

        Linear layers' gradients are not formed.
        """
        inner, square = _functions()[1].apply(parameters, images, labels, target, self._passes())
        return inner, square

    def _passes(self) -> _Passes:
        return _Passes([layer() for layer in self._layers], self._shapes, self._sizes)


def _pooling_first(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Modules in an order in which activations, which are monotone, see no value that a maximum drops."""
    nn = torch.nn
    for index in range(len(modules) - 1):
        before, after = modules[index : index + 2]
        monotone = isinstance(before, nn.ReLU | nn.Sigmoid | nn.Tanh)
        if isinstance(before, nn.LeakyReLU):
            monotone = before.negative_slope >= 0
        if monotone and type(after) is nn.MaxPool2d:
            modules[index : index + 2] = after, before
    return modules


def _layer(module: torch.nn.Module, first: bool, network: Network) -> Callable[[], _Layer] | None:
    nn, kind = torch.nn, type(module)
    if isinstance(module, nn.Conv2d):
        return partial(_FirstConvolution if first else _Convolution, module) if is_plain(module) else None
    if isinstance(module, nn.Linear) and kind is nn.Linear:
        return partial(_Linear, module, first)
    if isinstance(module, nn.BatchNorm2d):
        running = module.running_mean is not None and network.batch_norm == "eval"
        return partial(_BatchNorm, module) if kind is nn.BatchNorm2d and running and module.affine else None
    if isinstance(module, nn.MaxPool2d) and kind is nn.MaxPool2d and not module.return_indices:
        return _Halved if is_halving(module) else partial(_Pooled, module)
    if isinstance(module, nn.Flatten):
        return _Flattened if (module.start_dim, module.end_dim) == (1, -1) else None
    if kind in (nn.Sigmoid, nn.Tanh):
        return partial(_Smooth, module)
    return partial(_Rectified, module) if kind in (nn.ReLU, nn.LeakyReLU) else None


# long: two operators, each with the one that is its derivative
@cache
def _functions() -> tuple[Any, Any]:
    """Both operators, made at the first call: their base loads torch."""

    def rows(info: Any, dim: int | None, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

    class Last(torch.autograd.Function):
        """A derivative by the inputs, which has none itself."""

        generate_vmap_rule = False

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(*_: Any) -> Any:
            raise NotImplementedError("a gradient of a network is differentiated once by its inputs")

    class ByInputs(Last):
        @staticmethod
        def forward(along: Any, passes: _Passes) -> Any:
            images, labels = passes.by_inputs(along[None])
            return images[0], labels[0]

        @staticmethod
        def vmap(info: Any, in_dims: Any, along: Any, passes: _Passes) -> Any:
            return passes.by_inputs(rows(info, in_dims[0], along)), (0, 0)

    class ProductsByInputs(Last):
        @staticmethod
        def forward(inner: Any, square: Any, passes: _Passes) -> Any:
            images, labels = passes.products_by_inputs(inner[None], square[None])
            return images[0], labels[0]

        @staticmethod
        def vmap(info: Any, in_dims: Any, inner: Any, square: Any, passes: _Passes) -> Any:
            factors = (rows(info, dim, each) for dim, each in zip(in_dims, (inner, square), strict=False))
            return passes.products_by_inputs(*factors), (0, 0)

    class OfInputs(torch.autograd.Function):
        """A function of parameters, images, labels, perhaps more, and the passes; constant but in images and labels."""

        generate_vmap_rule = False

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
            ctx.passes, ctx.soft, ctx.more = inputs[-1], inputs[2].dim() == 2, len(inputs) - 3

        @staticmethod
        def given(info: Any, in_dims: Any, inputs: Any) -> Any:
            """The tensors with a leading axis, but for parameters that all share."""
            parameters = inputs[0] if in_dims[0] is None else inputs[0].movedim(in_dims[0], 0)
            return parameters, *(rows(info, dim, each) for dim, each in zip(in_dims[1:-1], inputs[1:-1], strict=True))

        @staticmethod
        def derivatives(ctx: Any, images: Any, labels: Any) -> Any:
            return None, images, labels if ctx.soft else None, *[None] * ctx.more

    class Gradient(OfInputs):
        @staticmethod
        def forward(parameters: Any, images: Any, labels: Any, passes: _Passes) -> Any:
            return passes.gradient(parameters, images[None], labels[None])[0]

        @staticmethod
        def backward(ctx: Any, along: Any) -> Any:
            return OfInputs.derivatives(ctx, *ByInputs.apply(along, ctx.passes))

        @staticmethod
        def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
            return inputs[-1].gradient(*OfInputs.given(info, in_dims, inputs)), 0

    class Products(OfInputs):
        @staticmethod
        def forward(parameters: Any, images: Any, labels: Any, target: Any, passes: _Passes) -> Any:
            inner, square = passes.products(parameters, images[None], labels[None], target[None])
            return inner[0], square[0]

        @staticmethod
        def backward(ctx: Any, inner: Any, square: Any) -> Any:
            return OfInputs.derivatives(ctx, *ProductsByInputs.apply(inner, square, ctx.passes))

        @staticmethod
        def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
            return inputs[-1].products(*OfInputs.given(info, in_dims, inputs)), (0, 0)

    return Gradient, Products
