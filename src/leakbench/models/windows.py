"""Derivatives of a network's features by its inputs, each within the window of the inputs that the feature sees.

Behind convolutions and pooling a feature depends on a window of every map before it. The windows of all features have
one size, so their backward passes are one batch of windows, a fraction of the whole maps; behind max pooling the
window begins at the value that the feature is. A convolution passes such a batch back by a product with the matrix of
its weights where windows are small, and by a transposed convolution elsewhere. Activations, BatchNorm with running
statistics and pooling that does not overlap are local: spread over its window, the error at their output is multiplied
by their slopes, which are zero outside the map.

Far from the features windows are most of a map. Where a map between is small, its values' own derivatives by the inputs
are found first, within small windows, and one product with the errors there does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.models.stacked import flat_modules, is_plain

SPARSE = 16
"""Entries per weight up to which a convolution's matrix is faster than the convolution. Only speed depends on it."""


@dataclass
class _Stage:
    """A layer and the local modules behind it.

    Attributes:
        layer: a convolution or linear layer; None at the beginning.
        local: activations, BatchNorm and max pooling.
        factors: by which they divide the sides of a map.
    """

    layer: torch.nn.Module | None
    local: list[torch.nn.Module]
    factors: tuple[int, int] = (1, 1)


class _Error(NamedTuple):
    """Derivatives of ``f`` features of ``b`` images by a map.

    Attributes:
        values: within the windows, ``[b, f, C, h, w]``.
        corners: row and column at which a window begins, each ``[b, f]``, perhaps outside the map; None where windows
            are whole maps.
    """

    values: torch.Tensor
    corners: tuple[torch.Tensor, torch.Tensor] | None


class _Before(NamedTuple):
    """Derivatives of the values of a map by the images.

    Attributes:
        by_images: ``[b, values, inputs]``.
        high: rows of the map.
        wide: its columns.
    """

    by_images: torch.Tensor
    high: int
    wide: int


class _Passed:
    """A stage after its forward pass.

    Args:
        stage: its modules.
        weight: of its layer; None at the beginning.
        read: shape of what the layer reads.
        slopes: derivatives of its local modules by the layer's outputs, ``[B, C, H, W]`` or ``[B, units]``.
    """

    def __init__(self, stage: _Stage, weight: torch.Tensor | None, read: torch.Size, slopes: torch.Tensor) -> None:
        self.stage, self.slopes = stage, slopes
        self._weight, self.read = weight, read
        self._matrix: torch.Tensor | None = None

    def units_back(self, error: torch.Tensor, images: slice) -> torch.Tensor:
        """The error at a linear layer's inputs, ``[b, f, inputs]``, from that behind the stage."""
        error = error * self.slopes[images, None]
        return error if self._weight is None else error @ self._weight

    def maps_back(self, error: _Error, images: slice) -> _Error:
        """The error before the stage, from that behind it."""
        values, corners = error
        rows, columns = self.stage.factors
        if rows > 1 or columns > 1:
            values = values.repeat_interleave(rows, dim=-2).repeat_interleave(columns, dim=-1)
            corners = corners and (rows * corners[0], columns * corners[1])
        slopes = self.slopes[images]
        high, wide = slopes.shape[2:]
        if corners is not None and (values.shape[-2] > high or values.shape[-1] > wide):
            values, corners = _whole(_Error(values, corners), high, wide), None
        if corners is not None:
            values = _windows(slopes, *corners, *values.shape[3:]).mul_(values)
        elif self.stage.local:
            rest = (0, wide - values.shape[-1], 0, high - values.shape[-2])  # what no pooling window holds
            values = torch.nn.functional.pad(values, rest) * slopes[:, None]
        return self.layer_back(_Error(values, corners))

    def layer_back(self, error: _Error) -> _Error:
        """The error at the layer's inputs, from that at its outputs."""
        layer, weight = self.stage.layer, self._weight
        if weight is None:
            return error
        assert isinstance(layer, torch.nn.Conv2d)
        values, corners = error
        stride, (up, left) = layer.stride, (int(padding) for padding in layer.padding)
        geometry = zip(values.shape[3:], layer.kernel_size, stride, strict=True)
        high, wide = ((side - 1) * step + kernel for side, kernel, step in geometry)
        crop = [0, 0, 0, 0]
        if corners is None:
            crop = [-left, self.read[3] - wide + left, -up, self.read[2] - high + up]
        else:
            corners = stride[0] * corners[0] - up, stride[1] * corners[1] - left
        pad, (b, f) = torch.nn.functional.pad, values.shape[:2]
        if high * wide > SPARSE * weight[0, 0].numel():
            whole = torch.nn.functional.conv_transpose2d(values.flatten(0, 1), weight, stride=stride)
            return _Error(pad(whole, crop).unflatten(0, (b, f)), corners)
        if self._matrix is None:
            self._matrix = pad(_matrix(weight, stride, values.shape[3:], (high, wide)), crop)
        before = values.flatten(2) @ self._matrix.flatten(3).flatten(0, 2)
        return _Error(before.unflatten(2, self._matrix.shape[3:]), corners)


def _matrix(weight: torch.Tensor, stride: Sequence[int], outputs: Sequence[int], inputs: Sequence[int]) -> torch.Tensor:
    """The convolution of a window, transposed, as a matrix ``[O, *outputs, C, *inputs]``."""
    matrix = weight.new_zeros(weight.shape[0], *outputs, weight.shape[1], *inputs)
    of_output, row, column, channel, down, right = matrix.stride()
    diagonals = row + stride[0] * down, column + stride[1] * right
    shape = (weight.shape[0], *outputs, *weight.shape[1:])
    matrix.as_strided(shape, (of_output, *diagonals, channel, down, right)).copy_(weight[:, None, None])
    return matrix


def _windows(maps: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, high: int, wide: int) -> torch.Tensor:
    """Windows ``[b, f, C, high, wide]`` of maps ``[b, C, H, W]``, zero outside, from corners ``[b, f]``."""
    pads = list[int]()
    for corner, side, size in ((columns, maps.shape[3], wide), (rows, maps.shape[2], high)):
        pads += [max(0, -int(corner.min())), max(0, int(corner.max()) + size - side)]
    every = torch.nn.functional.pad(maps, pads).unfold(2, high, 1).unfold(3, wide, 1)
    image = torch.arange(len(maps), device=maps.device)[:, None]
    windows: torch.Tensor = every[image, :, rows + pads[2], columns + pads[0]]
    return windows


class FeatureWindows:
    """The features that a fully connected layer reads, of a network that :meth:`of` takes apart before this layer."""

    def __init__(self, network: Network, maps: list[_Stage], units: list[_Stage]) -> None:
        self._network, self._maps, self._units = network, maps, units
        self._prefixes = {module: f"{name}." if name else "" for name, module in network.module.named_modules()}

    @classmethod
    def of(cls, network: Network, layer: str) -> FeatureWindows | None:
        """The network, if what comes before ``layer`` is a sequence that treats samples alone; else None.

        It may hold convolutions with zeros around them, activations, BatchNorm with running statistics and max pooling
        of windows side by side, then a flattening, then linear layers and activations.
        """
        modules = dict(network.module.named_modules())
        if network.couples_samples or layer not in modules:
            return None
        stages, maps = [_Stage(None, [])], list[_Stage]()
        for module in flat_modules(network.module):
            if module is modules[layer]:
                return cls(network, maps, stages) if maps else None
            if isinstance(module, torch.nn.Flatten):
                if maps or (module.start_dim, module.end_dim) != (1, -1):
                    return None
                maps, stages = stages, [_Stage(None, [])]
            elif type(module) is torch.nn.Linear if maps else is_plain(module):
                stages.append(_Stage(module, []))
            else:
                factors = _factors(module)
                if factors is None:
                    return None
                rows, columns = stages[-1].factors
                stages[-1].local.append(module)
                stages[-1].factors = rows * factors[0], columns * factors[1]
        return None

    def sensitivity(
        self, parameters: torch.Tensor, images: torch.Tensor, together: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and the norms of their derivatives by their own image, both ``[B, F]``.

        Args:
            parameters: ``[d]``.
            images: ``[B, C, H, W]``.
            together: features of single images in one backward pass, roughly.
        """
        tensors = self._network.tensors(parameters)
        maps, values = self._forward(self._maps, tensors, images)
        units, features = self._forward(self._units, tensors, values.flatten(1))
        count, shape = features.shape[1], values.shape[1:]
        met = _meeting(maps, count, images[0].numel()) if len(units) == 1 and not units[0].stage.local else 0
        size, norms = max(1, together // count), list[torch.Tensor]()
        for start in range(0, len(images), size):
            part = slice(start, min(start + size, len(images)))
            some = max(1, together // (part.stop - part.start))
            errors = _errors_of_units(maps, units, shape, part, some)
            if len(units) == 1 and not units[0].stage.local:
                errors = _errors_of_values(maps[-1], part, some)
            before = _derivatives(maps[:met], part, some) if met else None
            norms.append(torch.cat([_norms(maps[met:-1], error, part, before) for error in errors], dim=1))
        return features, torch.cat(norms)

    def _forward(
        self, stages: Sequence[_Stage], tensors: Mapping[str, torch.Tensor], values: torch.Tensor
    ) -> tuple[list[_Passed], torch.Tensor]:
        """The stages after their forward pass, and their outputs."""
        passed = []
        for stage in stages:
            weight, read = None, values.shape
            if stage.layer is not None:
                values = self._called(stage.layer, tensors, values)
                weight = tensors[f"{self._prefixes[stage.layer]}weight"]
            with torch.enable_grad():
                before = values.detach().requires_grad_()
                after = before
                for module in stage.local:
                    after = self._called(module, tensors, after)
                (slopes,) = torch.autograd.grad(after.sum(), before)
            passed.append(_Passed(stage, weight, read, slopes))
            values = after.detach()
        return passed, values

    def _called(
        self, module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], values: torch.Tensor
    ) -> torch.Tensor:
        parameters = {name: tensors[f"{self._prefixes[module]}{name}"] for name, _ in module.named_parameters()}
        result: torch.Tensor = torch.func.functional_call(module, parameters, (values,))
        return result


def _errors_of_values(last: _Passed, images: slice, together: int) -> Iterator[_Error]:
    """Errors before the last stage of maps, of features that are its values."""
    (rows, columns), slopes = last.stage.factors, last.slopes[images]
    high, wide = slopes.shape[2] // rows, slopes.shape[3] // columns
    cells = slopes.unfold(2, rows, rows).unfold(3, columns, columns).flatten(4)  # one of each is not zero, at most
    place = cells.abs().argmax(dim=4, keepdim=True)
    value, place = cells.gather(4, place)[..., 0], place[..., 0]
    row = (place // columns + rows * torch.arange(high, device=slopes.device)[:, None]).flatten(1)
    column = (place % columns + columns * torch.arange(wide, device=slopes.device)).flatten(1)
    value = value.flatten(1)
    channel = torch.arange(slopes.shape[1], device=slopes.device)
    of_feature = channel.repeat_interleave(high * wide)
    for some in torch.arange(value.shape[1], device=slopes.device).split(together):
        values = value[:, some, None] * (of_feature[some, None] == channel)
        yield last.layer_back(_Error(values[..., None, None], (row[:, some], column[:, some])))


def _errors_of_units(
    maps: Sequence[_Passed], units: Sequence[_Passed], shape: Sequence[int], images: slice, together: int
) -> Iterator[_Error]:
    """Errors before the last stage of maps, of features behind linear layers or activations of vectors."""
    slopes = units[-1].slopes
    for some in torch.eye(slopes.shape[1], dtype=slopes.dtype, device=slopes.device).split(together):
        error = some.expand(len(slopes[images]), *some.shape)
        for passed in reversed(units):
            error = passed.units_back(error, images)
        yield maps[-1].maps_back(_Error(error.unflatten(2, shape), None), images)


def _norms(maps: Sequence[_Passed], error: _Error, images: slice, before: _Before | None = None) -> torch.Tensor:
    """Norms of the derivatives by the images, ``[b, f]``, from those by the outputs of the maps.

    ``before`` has the derivatives of what the maps read; None where that is the images.
    """
    for passed in reversed(maps):
        error = passed.maps_back(error, images)
    values = error.values.flatten(2)
    if before is not None:
        values = _whole(error, before.high, before.wide).flatten(2) @ before.by_images
    norms: torch.Tensor = torch.linalg.vector_norm(values, dim=2)
    return norms


def _derivatives(maps: Sequence[_Passed], images: slice, together: int) -> _Before:
    """The derivatives of the last map's values by the images."""
    parts = []
    for error in _errors_of_values(maps[-1], images, together):
        for passed in reversed(maps[:-1]):
            error = passed.maps_back(error, images)
        parts.append(_whole(error, *maps[0].slopes.shape[2:]).flatten(2))
    rows, columns = maps[-1].stage.factors
    high, wide = maps[-1].slopes.shape[2:]
    return _Before(torch.cat(parts, dim=1), high // rows, wide // columns)


def _whole(error: _Error, high: int, wide: int) -> torch.Tensor:
    """The error on the whole map, zero outside its windows, ``[b, f, C, high, wide]``."""
    values, corners = error
    if corners is None:
        return values
    flat, below, right = values.flatten(0, 1), -corners[0].flatten(), -corners[1].flatten()
    return _windows(flat, below[:, None], right[:, None], high, wide).view(*values.shape[:3], high, wide)


def _meeting(maps: Sequence[_Passed], features: int, inputs: int) -> int:
    """Number of stages whose derivatives by the images are best found first; 0 if none are.

    By counts of products: of windows back to the images for every feature, against those for every value of the map
    between, and one product of both.
    """

    def back(chain: Sequence[_Passed]) -> int:
        """Products of one value's window, from the output of the last stage to the images."""
        total, side = 0, 1
        for passed in reversed(chain):
            side *= passed.stage.factors[0]
            if isinstance(layer := passed.stage.layer, torch.nn.Conv2d):
                kernel = layer.kernel_size[0]
                after = (side - 1) * layer.stride[0] + kernel
                each = kernel**2 if after**2 > SPARSE * kernel**2 else after**2
                total += side**2 * layer.out_channels * layer.in_channels * each
                side = min(after, passed.read[2])
        return total

    whole, best = features * back(maps), 0
    for met in range(2, len(maps)):
        values = maps[met - 1].slopes[0].numel() // math.prod(maps[met - 1].stage.factors)
        cost = features * (back(maps[met:]) + values * inputs) + values * back(maps[:met])
        if cost < whole:
            whole, best = cost, met
    return best


def _factors(module: torch.nn.Module) -> tuple[int, int] | None:
    """By which a local module divides the sides of a map; None where it is no such module."""
    nn = torch.nn
    if type(module) in (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Identity, nn.BatchNorm2d):
        return 1, 1
    if type(module) is not nn.MaxPool2d or module.ceil_mode:
        return None
    rows, columns = _pair(module.kernel_size)
    apart = _pair(module.stride) == (rows, columns)
    return (rows, columns) if apart and _pair(module.padding) == (0, 0) and _pair(module.dilation) == (1, 1) else None


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
