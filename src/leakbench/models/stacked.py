"""Gradients of many small networks at once on a CPU, each with weights and images of its own: all by matrix products.

Under vmap, convolutions with weights of their own become grouped ones, for which a CPU has no fast kernel, and a loop
over small networks waits for operators to be called. Here a convolution computes tiles of ``s x s`` outputs, each from
the ``(s + k - 1)^2`` inputs that it needs, as one batched matrix product of all networks: a few times the
multiplications, in the one operation that is fast for small channel numbers too. Samples are the innermost axis, so
that gathering tiles copies runs of samples. A pooling window lies inside a tile: its maximum is one of slices of the
product, taken before the activation, which is monotone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.models.record_gradients import Formed, Outer, Part, RecordGradients

TILE = 2
"""Outputs of a tile along each axis. Larger tiles copy less and multiply more."""


class _Layer(Protocol):
    """A layer of ``n`` networks: inputs and outputs ``[n, ..., samples]``, parameters ``[n, size]`` as in torch."""

    @property
    def size(self) -> int: ...

    def forward(self, inputs: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor: ...

    def backward(self, gradient: torch.Tensor, *, first: bool) -> torch.Tensor:
        """The gradient by the inputs, from that by the outputs; unused of the first layer."""
        ...

    def sums(self, by_parameters: torch.Tensor) -> None:
        """Write the gradient by the parameters, after :meth:`backward`."""
        ...

    def records(self) -> Part:
        """The gradients of single samples by the parameters, after :meth:`backward`."""
        ...


class StackedNetworks:
    """Copies of a network, as :meth:`of` takes it apart."""

    def __init__(self, layers: list[_Layer]) -> None:
        self._layers = layers

    @classmethod
    def of(cls, network: Network) -> StackedNetworks | None:
        """The network, if it is a sequence of small convolutions, linear layers and what goes with them; else None.

        It may hold square convolutions of stride one with biases, (leaky) ReLUs behind convolutions and linear
        layers, max pooling of windows of two behind convolutions, flattening, and nothing with buffers.
        """
        layers = _layers(list(flat_modules(network.trainable_module()))) if network.plain_loss else None
        if layers is None or sum(layer.size for layer in layers) != network.dimension:
            return None
        return cls(layers)

    def gradient_and_loss(
        self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients ``[n, d]`` of the mean cross-entropies ``[n]`` of one batch of each network.

        Args:
            parameters: ``[n, d]``.
            images: ``[n, B, C, H, W]``.
            labels: ``[n, B]``.
        """
        samples = images.shape[1]
        gradient, losses = self._errors(parameters, images, labels)
        by_parameters = torch.empty_like(parameters)
        parts = self._parts(by_parameters)
        for index in self._backward(gradient / samples):
            self._layers[index].sums(parts[index])
        return by_parameters, losses.mean(dim=1)

    def record_gradients(self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> RecordGradients:
        """The gradients of the cross-entropies of single samples.

        Args:
            parameters: ``[n, d]``.
            images: ``[n, B, C, H, W]``.
            labels: ``[n, B]``.
        """
        gradient, losses = self._errors(parameters, images, labels)
        parts = [self._layers[index].records() for index in self._backward(gradient)]
        return RecordGradients(parts[::-1], losses)

    def _parts(self, vectors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts: tuple[torch.Tensor, ...] = vectors.split([layer.size for layer in self._layers], dim=1)
        return parts

    def _errors(
        self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-entropies' derivatives by the logits, ``[n, classes, B]``, and the cross-entropies, ``[n, B]``."""
        n, samples = images.shape[:2]
        values = images.flatten(2).transpose(1, 2).reshape(n, *images.shape[2:], samples)
        for layer, part in zip(self._layers, self._parts(parameters), strict=True):
            values = layer.forward(values, part)
        logarithms = values.log_softmax(dim=1)
        losses = -logarithms.gather(1, labels[:, None])[:, 0]
        gradient = logarithms.exp()
        gradient.scatter_add_(1, labels[:, None], torch.full((n, 1, samples), -1.0, dtype=gradient.dtype))
        return gradient, losses

    def _backward(self, gradient: torch.Tensor) -> Iterator[int]:
        """Layers, the last first, each after its pass backward."""
        for index in reversed(range(len(self._layers))):
            gradient = self._layers[index].backward(gradient, first=index == 0)
            yield index


def flat_modules(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The modules of nested sequences, in the order in which they run; any other module is one of them."""
    if type(module) is torch.nn.Sequential:
        for part in module:
            yield from flat_modules(part)
    else:
        yield module


def _layers(modules: list[torch.nn.Module]) -> list[_Layer] | None:
    """Modules as layers that take their activation and pooling along; None where one does not fit."""
    nn, layers, flat = torch.nn, list[_Layer](), False
    while modules:
        module = modules.pop(0)
        if type(module) is nn.Flatten:
            flat = (module.start_dim, module.end_dim) == (1, -1)
            if not flat:
                return None
            continue
        slope = _slope(modules[0]) if modules else None
        if slope is not None:
            modules.pop(0)
        if type(module) is nn.Linear and flat and module.bias is not None:
            layers.append(_Linear(module.in_features, module.out_features, slope))
        elif type(module) is nn.Conv2d and not flat and _is_plain(module):
            pool = bool(modules) and is_halving(modules[0])
            if pool:
                modules.pop(0)
            layers.append(
                _Convolution(
                    module.in_channels, module.out_channels, module.kernel_size[0], int(module.padding[0]), slope, pool
                )
            )
        else:
            return None
    return layers if layers and isinstance(layers[-1], _Linear) else None


def _slope(module: torch.nn.Module) -> float | None:
    """Slope of an activation for negative inputs; None for other modules."""
    if type(module) is torch.nn.ReLU:
        return 0.0
    if type(module) is torch.nn.LeakyReLU and module.negative_slope >= 0:
        return float(module.negative_slope)
    return None


def _is_plain(module: torch.nn.Conv2d) -> bool:
    square = len({*module.kernel_size}) == 1 and len({*module.padding}) == 1 and not isinstance(module.padding, str)
    simple = (*module.stride, *module.dilation, module.groups) == (1,) * 5 and module.padding_mode == "zeros"
    return square and simple and module.bias is not None


def is_plain(module: torch.nn.Module) -> bool:
    """Whether a module is a convolution of all channels, without dilation, and with zeros around."""
    if type(module) is not torch.nn.Conv2d or isinstance(module.padding, str):
        return False
    return (*module.dilation, module.groups) == (1, 1, 1) and module.padding_mode == "zeros"


def is_halving(module: torch.nn.Module) -> bool:
    """Whether it is max pooling of windows of two by two, one beside the other."""
    if type(module) is not torch.nn.MaxPool2d or module.ceil_mode or module.return_indices:
        return False
    return all(value in (2, (2, 2)) for value in (module.kernel_size, module.stride)) and (
        module.padding in (0, (0, 0)) and module.dilation in (1, (1, 1))
    )


@dataclass
class _Linear:
    inputs: int
    outputs: int
    slope: float | None

    @property
    def size(self) -> int:
        return self.outputs * (self.inputs + 1)

    def forward(self, inputs: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
        self._shape, self._read = inputs.shape, inputs.flatten(1, -2)
        self._weight = parameters[:, : self.outputs * self.inputs].unflatten(1, (self.outputs, self.inputs))
        values = torch.baddbmm(parameters[:, -self.outputs :, None], self._weight, self._read)
        self._values = _activated(values, self.slope)
        return self._values

    def backward(self, gradient: torch.Tensor, *, first: bool) -> torch.Tensor:
        self._error = _before_activation(gradient, self._values, self.slope)
        return gradient if first else torch.bmm(self._weight.transpose(1, 2), self._error).view(self._shape)

    def sums(self, by_parameters: torch.Tensor) -> None:
        by_parameters[:, : -self.outputs] = torch.bmm(self._error, self._read.transpose(1, 2)).flatten(1)
        by_parameters[:, -self.outputs :] = self._error.sum(dim=2)

    def records(self) -> Part:
        return Outer(self._error.mT, self._read.mT, bias=True)


def _activated(values: torch.Tensor, slope: float | None) -> torch.Tensor:
    return values if slope is None else torch.nn.functional.leaky_relu_(values, slope)


def _before_activation(gradient: torch.Tensor, values: torch.Tensor, slope: float | None) -> torch.Tensor:
    """The gradient by the activation's input, whose sign is that of its output ``values``."""
    if slope is None:
        return gradient
    before: torch.Tensor = torch.ops.aten.leaky_relu_backward(gradient, values, slope, True)
    return before


def _where_positive(values: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
    """``values`` where ``sign`` is positive, else zero, in one pass."""
    positive: torch.Tensor = torch.ops.aten.threshold_backward(values, sign, 0)
    return positive


class _Convolution:
    """A convolution, an activation and max pooling of 2 x 2.

    A tile's outputs are ordered by place in the pooling window, place of the window in the tile, channel.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, padding: int, slope: float | None, pool: bool) -> None:
        self.inputs, self.outputs, self.kernel, self.padding = inputs, outputs, kernel, padding
        self.slope, self.window = slope, 2 if pool else 1
        self.size = outputs * (inputs * kernel**2 + 1)

    @cached_property
    def _place(self) -> torch.Tensor:
        """Zeros and ones ``[k k, s s e e]``: the weight between each input of a tile and each output."""
        k, w, q, e = self.kernel, self.window, TILE // self.window, TILE + self.kernel - 1
        one_axis = torch.zeros(k, w, q, e)
        taps, places = torch.arange(k)[:, None], torch.arange(TILE)[None]
        one_axis[taps, places % w, places // w, taps + places] = 1.0
        return torch.einsum("awqe,bvrf->abwvqref", one_axis, one_axis).reshape(k * k, -1)

    def forward(self, inputs: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
        (n, c, *sides, samples), o, k, w = inputs.shape, self.outputs, self.kernel, self.window
        kept = [(side + 2 * self.padding - k + 1) // w * w for side in sides]  # a pooling window is whole
        s, q, e = TILE, TILE // w, TILE + k - 1
        tiles = [-(-side // s) for side in kept]
        ends = [s * count + k - 1 - side - self.padding for count, side in zip(tiles, sides, strict=True)]
        if self.padding or any(ends):
            inputs = torch.nn.functional.pad(inputs, (0, 0, self.padding, ends[1], self.padding, ends[0]))
        self._padded = inputs = inputs.contiguous()
        strides = inputs.stride()
        patches = inputs.as_strided(
            (n, c, e, e, *tiles, samples), (*strides[:4], s * strides[2], s * strides[3], 1)
        ).reshape(n, c * e * e, -1)
        weights = (parameters[:, :-o].reshape(n * o * c, k * k) @ self._place).view(n, o, c, s * s, e * e)
        weights = weights.permute(0, 3, 1, 2, 4).reshape(n, s * s * o, c * e * e)
        values = self._pooled(torch.bmm(weights, patches))
        values.view(n, q * q, o, -1).add_(parameters[:, None, -o:, None])
        self._values = _activated(values, self.slope)
        self._read = (weights, patches, sides, tiles, kept, samples)
        whole = self._values.view(n, q, q, o, *tiles, samples).permute(0, 3, 4, 1, 5, 2, 6)
        rows, columns = (side // w for side in kept)
        return whole.reshape(n, o, tiles[0] * q, tiles[1] * q, samples)[:, :, :rows, :columns]

    def _pooled(self, values: torch.Tensor) -> torch.Tensor:
        """Maxima over windows; differences that tell the winners are kept. The first of equals wins, as in torch."""
        if self.window == 1:
            return values
        a, b, c, d = values.unflatten(1, (4, -1)).unbind(1)
        upper, lower = torch.maximum(a, b), torch.maximum(c, d)
        self._winners = (b - a, d - c, lower - upper)
        return torch.maximum(upper, lower)

    def _spread(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient by the pooling's inputs."""
        if self.window == 1:
            return gradient
        right, lower_right, below = self._winners
        lower = _where_positive(gradient, below)
        upper = gradient - lower
        b, d = _where_positive(upper, right), _where_positive(lower, lower_right)
        return torch.stack([upper - b, b, lower - d, d], dim=1).flatten(1, 2)

    def backward(self, gradient: torch.Tensor, *, first: bool) -> torch.Tensor:
        weights, _, sides, tiles, kept, samples = self._read
        n, c, o, w = len(gradient), self.inputs, self.outputs, self.window
        q, e = TILE // w, TILE + self.kernel - 1
        ends = [q * count - side // w for count, side in zip(tiles, kept, strict=True)]
        if any(ends):
            gradient = torch.nn.functional.pad(gradient, (0, 0, 0, ends[1], 0, ends[0]))
        gradient = gradient.reshape(n, o, tiles[0], q, tiles[1], q, samples).permute(0, 3, 5, 1, 2, 4, 6)
        self._pooled_error = _before_activation(gradient.reshape(n, q * q * o, -1), self._values, self.slope)
        self._error = self._spread(self._pooled_error)
        if first:
            return gradient
        by_patches = torch.bmm(weights.transpose(1, 2), self._error).view(n, c, e, e, *tiles, samples)
        return self._folded(by_patches, sides)

    def sums(self, by_parameters: torch.Tensor) -> None:
        patches, s = self._read[1], TILE
        n, c, o, e = len(by_parameters), self.inputs, self.outputs, s + self.kernel - 1
        by_parameters[:, -o:] = self._pooled_error.unflatten(1, (-1, o)).sum(dim=(1, 3))
        by_weights = torch.bmm(self._error, patches.transpose(1, 2)).view(n, s * s, o, c, e * e)
        by_weights = by_weights.permute(0, 2, 3, 1, 4).reshape(n * o * c, -1) @ self._place.T
        by_parameters[:, :-o] = by_weights.view(n, -1)

    def records(self) -> Part:
        _, _, _, tiles, _, samples = self._read
        n, o, k, w = len(self._error), self.outputs, self.kernel, self.window
        q = TILE // w
        errors = self._error.view(n, w, w, q, q, o, *tiles, samples).permute(0, 8, 5, 6, 3, 1, 7, 4, 2)
        errors = errors.reshape(n * samples, o, -1)
        images = self._padded.movedim(4, 1).flatten(0, 1)
        columns = images.unfold(3, k, 1).permute(0, 1, 4, 2, 3).flatten(1, 2).flatten(2)  # a row more is a shift of it
        width = self._padded.shape[3] - k + 1
        shifted = (columns.narrow(2, row * width, errors.shape[2]) for row in range(k))
        by_rows = torch.stack([torch.bmm(errors, inputs.mT) for inputs in shifted], dim=2)
        gradients = by_rows.unflatten(3, (-1, k)).transpose(2, 3).flatten(1)
        return Formed(torch.cat([gradients, errors.sum(dim=2)], dim=1).unflatten(0, (n, samples)))

    def _folded(self, patches: torch.Tensor, sides: list[int]) -> torch.Tensor:
        """Sums where tiles overlap: ``[n, c, e, e, tiles, tiles, samples]`` to ``[n, c, H, W, samples]``."""
        (n, c, e, _, rows, columns, samples), p, s = patches.shape, self.padding, TILE
        blocks = -(-e // s)
        total = patches.new_zeros(n, c, rows + blocks - 1, s, columns + blocks - 1, s, samples)
        for i in range(blocks):
            for j in range(blocks):
                part = patches[:, :, i * s : (i + 1) * s, j * s : (j + 1) * s].permute(0, 1, 4, 2, 5, 3, 6)
                total[:, :, i : i + rows, : part.shape[3], j : j + columns, : part.shape[5]] += part
        whole = total.view(n, c, (rows + blocks - 1) * s, -1, samples)
        short = [max(0, p + side - have) for side, have in zip(sides, whole.shape[2:4], strict=True)]
        if any(short):  # inputs that no whole pooling window reads
            whole = torch.nn.functional.pad(whole, (0, 0, 0, short[1], 0, short[0]))
        return whole[:, :, p : p + sides[0], p : p + sides[1]]
