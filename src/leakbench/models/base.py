"""Models: recipes for torch modules, and the functional view of a module that everything else computes with."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Literal, TypeAlias

from pydantic import Field

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.randomness import seeded
from leakbench.registry import Component, Registry


class Model(Component):
    """A classifier architecture. ``width`` is the number of channels of its first layer; the others follow it.

    >>> class Small(Model):
    ...     width: int = 4
    ...     def build(self, shape, classes):
    ...         nn, (channels, height, width) = torch.nn, image_shape(shape, self)
    ...         layers = nn.Conv2d(channels, self.width, 3, padding=1), nn.ReLU(), nn.Flatten()
    ...         return nn.Sequential(*layers, nn.Linear(self.width * height * width, classes))
    >>> Network(Small().build((1, 28, 28), classes=10)).dimension
    31410
    """

    width: int = Field(ge=1, description="channels of the first layer; the other layers scale with it")

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        """A freshly initialised module that returns ``classes`` logits, for samples of a shape: images ``(C, H, W)``.

        Initialisation is torch's default and draws from the global generator.

        Raises:
            ConfigError: the samples are not what the model reads, such as text for a model of images.
        """
        raise NotImplementedError


def image_shape(shape: tuple[int, ...], model: Model) -> tuple[int, int, int]:
    """The shape ``(C, H, W)`` of a model's images.

    Raises:
        ConfigError: the samples are no images.
    """
    if len(shape) != 3:
        raise ConfigError(f"model '{model.name}' reads images (C, H, W), but the data set's samples have shape {shape}")
    channels, height, width = shape
    return channels, height, width


def pooled(side: int, shape: tuple[int, ...], model: Model) -> int:
    """The side that images have left after a model's convolutions and poolings.

    Raises:
        ConfigError: none is left.
    """
    if side < 1:
        raise ConfigError(
            f"model '{model.name}': images of {shape[1]}x{shape[2]} vanish in its pooling layers; use larger ones"
        )
    return side


BatchNorm = Literal["eval", "train"]
"""Statistics that BatchNorm layers normalise with: the module's running ones, or the batch's."""

Statistics: TypeAlias = "dict[str, torch.Tensor]"
"""Mean and variance that BatchNorm layers normalise with, by the names of the module's buffers."""

FROZEN_SEED = 0
"""Draws parameters that are frozen, in all repetitions."""

MODELS: Registry[Model] = Registry("model", "leakbench.models")


@dataclass(frozen=True)
class LinearLayer:
    """Coordinates of a fully connected layer in the flat parameter vector.

    Attributes:
        outputs: number of its units; of the last layer: of classes, C.
        inputs: number of features that it reads, F.
        weight: the coordinates of its weights ``[outputs, inputs]``.
        bias: the coordinates of its biases; None where it has none.
    """

    outputs: int
    inputs: int
    weight: slice
    bias: slice | None

    def weights(self, flat: torch.Tensor) -> torch.Tensor:
        """Its weights out of flat vectors, ``[..., d] -> [..., outputs, inputs]``."""
        weights: torch.Tensor = flat[..., self.weight].unflatten(-1, (self.outputs, self.inputs))
        return weights


class Network:
    """A module as a function of one flat parameter vector, so that parameters batch like any other tensor.

    Parameters of the module that require no gradient are frozen: they are no part of the vector, so they neither train
    nor travel, and are as known as the architecture. A module all of whose parameters are so trains as a whole.

    The mode concerns BatchNorm alone; all other layers run as in evaluation. In mode ``train`` BatchNorm normalises
    with the mean and the biased variance of the batch, as torch does, and no running statistics are updated.

    >>> network = Network(torch.nn.Linear(3, 2))
    >>> network.dimension, network.logits(network.parameters, torch.ones(5, 3)).shape
    (8, torch.Size([5, 2]))
    >>> tuned = torch.nn.Sequential(torch.nn.Linear(3, 4).requires_grad_(False), torch.nn.Linear(4, 2))
    >>> Network(tuned).names
    ['1.weight', '1.bias']

    Args:
        module: the architecture with its parameters and buffers; the network takes it over.
        device: where to compute.
        batch_norm: what BatchNorm layers normalise with.

    Attributes:
        plain_loss: whether :meth:`loss` is the cross-entropy of :meth:`logits` alone, as faster ways to it assume.
        batch_norm: the mode.
        names: names of parameters that train, in the module's order.
        shapes: their shapes.
        dimension: number of parameters that train, d.
        frozen: the other parameters, by name.
    """

    plain_loss: ClassVar[bool] = True

    def __init__(
        self, module: torch.nn.Module, device: torch.device | str = "cpu", batch_norm: BatchNorm = "eval"
    ) -> None:
        self._module = module.eval().to(device)
        self.batch_norm: BatchNorm = batch_norm
        named = trained_parameters(self._module)
        every = dict(self._module.named_parameters())
        self.frozen = {name: tensor.detach() for name, tensor in every.items() if name not in named}
        self._buffers = dict(self._module.named_buffers())
        self._normalising = [
            name
            for name, layer in self._module.named_modules()
            if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None
        ]
        self._unbuffered = _without_running_statistics(self._module, self._normalising)
        self._other_buffers = dict(self._unbuffered.named_buffers())
        self.device = torch.device(device)
        self.names = list(named)
        self.shapes = [tuple(tensor.shape) for tensor in named.values()]
        self.sizes = [tensor.numel() for tensor in named.values()]
        self.dimension = sum(self.sizes)

    def in_mode(self, batch_norm: BatchNorm) -> Network:
        """The same architecture, parameters and buffers in another mode of BatchNorm."""
        other = copy.copy(self)
        other.batch_norm = batch_norm
        return other

    def holding(self, module: torch.nn.Module) -> Network:
        """A network of the same kind, in the same mode, of another module, which it takes over."""
        return Network(module, self.device, self.batch_norm)

    def without(self, name: str) -> Network:
        """The same network with shorter parameter vectors, which lack a tensor that no output depends on.

        Attackers who vary the inputs behind a layer need not carry the zeros of its gradient along.

        Raises:
            KeyError: there is no such tensor.
        """
        if name not in self.names:
            raise KeyError(name)
        other = copy.copy(self)
        for cached in ("linear_layers", "head", "first_linear"):
            other.__dict__.pop(cached, None)
        place = self.names.index(name)
        for attribute in ("names", "shapes", "sizes"):
            every = getattr(self, attribute)
            setattr(other, attribute, every[:place] + every[place + 1 :])
        other.dimension = sum(other.sizes)
        return other

    @property
    def module(self) -> torch.nn.Module:
        """The architecture, in torch's mode of evaluation, with parameters and buffers: not to be changed."""
        return self._module

    def trainable_module(self) -> torch.nn.Module:
        """A copy of the module, parameters and buffers included, that ``torch.optim`` can train, but what is frozen."""
        module = copy.deepcopy(self._module).train()
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name not in self.frozen)
        return module

    @property
    def running_statistics(self) -> Statistics:
        """Statistics that BatchNorm layers normalise with in mode ``eval``; empty without BatchNorm."""
        kinds = ("running_mean", "running_var")
        return {key: self._buffers[key] for name in self._normalising for key in (f"{name}.{kind}" for kind in kinds)}

    @property
    def state_size(self) -> int:
        """Number of elements of the module's state that training changes: parameters, and buffers that torch saves.

        Saved are BatchNorm's statistics and counters of batches, but not the positions of tokens, for example.
        """
        saved = self._module.state_dict()
        return self.dimension + sum(buffer.numel() for name, buffer in self._buffers.items() if name in saved)

    @property
    def couples_samples(self) -> bool:
        """Whether the logits of a sample depend on the rest of its batch.

        They do where BatchNorm normalises with the batch's statistics; other layers of torch treat samples alone.
        """
        return any(
            isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
            and (self.batch_norm == "train" or layer.running_mean is None)
            for layer in self._module.modules()
        )

    def _linear(self, name: str) -> LinearLayer | None:
        """The module ``name``, where it is linear and its parameters are its own; else None."""
        module = self._module.get_submodule(name)
        ends = itertools.accumulate(self.sizes)
        places = {key: slice(end - size, end) for key, size, end in zip(self.names, self.sizes, ends, strict=True)}
        prefix = f"{name}." if name else ""
        weight, bias = (places.get(f"{prefix}{part}") for part in ("weight", "bias"))
        if not isinstance(module, torch.nn.Linear) or weight is None:
            return None
        return LinearLayer(module.out_features, module.in_features, weight, bias)

    @cached_property
    def linear_layers(self) -> dict[str, LinearLayer]:
        """All linear layers that own their parameters, by the names of their modules, in the module's order."""
        layers = {name: self._linear(name) for name, _ in self._module.named_modules()}
        return {name: layer for name, layer in layers.items() if layer is not None}

    @cached_property
    def head(self) -> LinearLayer:
        """The last layer, which computes the logits: the owner of the module's last parameters.

        Raises:
            ConfigError: the last parameters are not those of a linear layer.
        """
        name = self.names[-1].rpartition(".")[0] if self.names else ""
        layer = self._linear(name)
        if layer is None:
            kind = type(self._module.get_submodule(name)).__name__
            raise ConfigError(
                f"the model's last parameters belong to '{name}', a {kind}; what reads the last fully connected layer "
                "needs a model that ends with a torch.nn.Linear"
            )
        return layer

    @cached_property
    def first_linear(self) -> LinearLayer | None:
        """The linear layer that reads the flattened image itself; None where another module may come before it.

        Modules run in a known order in a ``torch.nn.Sequential`` alone, so the layer is looked for there alone.
        """
        for name, module in self._module.named_modules():
            if type(module) is not torch.nn.Sequential and not isinstance(module, torch.nn.Flatten | torch.nn.Identity):
                return self._linear(name)
        return None

    def rows_within(self, budget: int, batch_shape: tuple[int, ...]) -> int:
        """Number of batches of ``batch_shape`` to differentiate at once in ``budget`` bytes; at least one.

        A rough estimate: differentiating a gradient holds about ten vectors of the size of the parameters and some two
        hundred floats per input pixel.
        """
        return max(1, budget // (4 * (10 * self.dimension + 200 * math.prod(batch_shape))))

    @property
    def parameters(self) -> torch.Tensor:
        """The module's own parameters that train, float32 ``[d]``."""
        named = dict(self._module.named_parameters())
        return torch.cat([named[name].detach().reshape(-1) for name in self.names])

    def unflatten(self, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        """A flat vector ``[d]`` as named tensors."""
        parts = torch.split(parameters, self.sizes)
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def tensors(self, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
        """All named tensors of a model with these parameters, ``[d]``: these, and the frozen ones."""
        return self.frozen | self.unflatten(parameters)

    def logits(
        self, parameters: torch.Tensor, images: torch.Tensor, statistics: Statistics | None = None
    ) -> torch.Tensor:
        """``[B, classes]`` for parameters ``[d]`` and images ``[B, C, H, W]``.

        Args:
            parameters: flat, in the order of the module.
            images: network inputs.
            statistics: what BatchNorm normalises with, in either mode, instead of running or batch statistics.
        """
        if self.batch_norm == "train" and not statistics:
            module, buffers = self._unbuffered, self._other_buffers
        else:
            module, buffers = self._module, self._buffers | (statistics or {})
        output: torch.Tensor = torch.func.functional_call(module, self.unflatten(parameters) | buffers, (images,))
        return output

    def batch_statistics(self, parameters: torch.Tensor, images: torch.Tensor) -> Statistics:
        """Mean and biased variance of every BatchNorm layer's inputs, when a batch runs through in the network's mode.

        A network in mode ``eval`` that is given the statistics of a batch in mode ``train`` computes the logits of mode
        ``train``. Works inside the transforms of ``torch.func``.

        Args:
            parameters: ``[d]``.
            images: ``[B, C, H, W]``.

        Returns:
            ``<layer>.running_mean`` and ``<layer>.running_var``, each ``[channels]``; empty without BatchNorm.
        """
        return self.logits_and_statistics(parameters, images)[1] if self._normalising else {}

    def logits_and_statistics(
        self, parameters: torch.Tensor, images: torch.Tensor, *, unbiased: bool = False
    ) -> tuple[torch.Tensor, Statistics]:
        """:meth:`logits` and :meth:`batch_statistics` in one pass.

        Args:
            parameters: ``[d]``.
            images: ``[B, C, H, W]``.
            unbiased: variances as torch's running statistics have them; biased where there is a single value.
        """
        measured: Statistics = {}

        def collect(name: str, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            axes = [axis for axis in range(inputs[0].dim()) if axis != 1]
            several = math.prod(inputs[0].shape[axis] for axis in axes) > 1
            measured[f"{name}.running_mean"] = inputs[0].mean(axes)
            measured[f"{name}.running_var"] = inputs[0].var(axes, correction=int(unbiased and several))

        module = self._module if self.batch_norm == "eval" else self._unbuffered
        hooks = [
            module.get_submodule(name).register_forward_pre_hook(partial(collect, name)) for name in self._normalising
        ]
        try:
            output = self.logits(parameters, images)
        finally:
            for hook in hooks:
                hook.remove()
        return output, measured

    def moving_average(self, running: Statistics, batch: Statistics) -> Statistics:
        """Running statistics after a batch, as torch's training mode updates them; any leading axes.

        Args:
            running: the statistics before.
            batch: those of the batch, with unbiased variances.

        Raises:
            ConfigError: a layer averages over all batches (``momentum=None``).
        """
        moved: Statistics = {}
        for key, before in running.items():
            layer = self._module.get_submodule(key.rpartition(".")[0])
            assert isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
            if layer.momentum is None:
                raise ConfigError(f"BatchNorm '{key}': cumulative averages (momentum=None) are not supported")
            moved[key] = torch.lerp(before, batch[key], layer.momentum)
        return moved

    def logits_and_features(
        self, parameters: torch.Tensor, images: torch.Tensor, statistics: Statistics | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """:meth:`logits`, ``[B, classes]``, and the last layer's inputs, ``[B, F]``.

        The gradient of a sample's loss by the weights of that layer is the outer product
        ``(softmax(logits) - one_hot(label)) x features``, that by its biases the first factor.

        Raises:
            ConfigError: the last parameters are not those of a linear layer.
        """
        _ = self.head  # raises
        return self._logits_and_inputs(self.names[-1].rpartition(".")[0], parameters, images, statistics)

    def features(self, parameters: torch.Tensor, images: torch.Tensor, layer: str) -> torch.Tensor:
        """Inputs of a fully connected layer, ``[B, F]``; ``layer`` is one of :attr:`linear_layers`.

        Raises:
            ConfigError: no such layer, or it does not read one vector per image.
        """
        if layer not in self.linear_layers:
            raise ConfigError(f"no fully connected layer is called '{layer}'; there are {list(self.linear_layers)}")
        inputs = self._logits_and_inputs(layer, parameters, images)[1]
        if inputs.dim() != 2:
            raise ConfigError(f"layer '{layer}' reads {tuple(inputs.shape)} and not one vector per image")
        return inputs

    def _logits_and_inputs(
        self, name: str, parameters: torch.Tensor, images: torch.Tensor, statistics: Statistics | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """:meth:`logits`, and the inputs of the module ``name``."""
        inputs: list[torch.Tensor] = []
        module = self._module if self.batch_norm == "eval" or statistics else self._unbuffered
        hook = module.get_submodule(name).register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
        try:
            output = self.logits(parameters, images, statistics)
        finally:
            hook.remove()
        return output, inputs[0]

    def loss(
        self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, statistics: Statistics | None = None
    ) -> torch.Tensor:
        """Mean cross-entropy of a batch; a scalar.

        Args:
            parameters: ``[d]``.
            images: ``[B, C, H, W]``.
            labels: ``[B]``, or probabilities ``[B, classes]``.
            statistics: as for :meth:`logits`.
        """
        return torch.nn.functional.cross_entropy(self.logits(parameters, images, statistics), labels)

    def module_loss(
        self, module: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, key: tuple[str | int, ...]
    ) -> torch.Tensor:
        """The loss of a step that trains :meth:`trainable_module`, or a copy of it; a scalar.

        Args:
            module: in its own mode, with its own parameters.
            images: ``[B, C, H, W]``.
            labels: ``[B]``.
            key: name of the step's random stream, for models that draw.
        """
        return torch.nn.functional.cross_entropy(module(images), labels)

    def gradient(
        self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, statistics: Statistics | None = None
    ) -> torch.Tensor:
        """Gradient of :meth:`loss` with respect to the parameters, ``[d]``."""
        result: torch.Tensor = torch.func.grad(self.loss)(parameters, images, labels, statistics)
        return result


def trained_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters of a module that train, by name, in its order: see :class:`Network`."""
    named = dict(module.named_parameters())
    return {name: tensor for name, tensor in named.items() if tensor.requires_grad} or named


def _without_running_statistics(module: torch.nn.Module, layers: list[str]) -> torch.nn.Module:
    """The module with BatchNorm layers that normalise with the batch's statistics: they hold no others.

    Unlike layers in torch's training mode they update nothing in place, which ``torch.func`` could not transform.
    """
    if not layers:
        return module
    other = copy.deepcopy(module)
    for name in layers:
        layer = other.get_submodule(name)
        for buffer in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(layer, buffer, None)
    return other


def build_network(
    model: Model, shape: tuple[int, ...], classes: int, seed: int, device: torch.device | str = "cpu"
) -> Network:
    """A network whose initialisation depends on ``seed`` alone; the global generator is left as it was.

    What is frozen does not depend on it: like weights that were trained beforehand, it is the same in all repetitions,
    whose models can then be computed with side by side.

    >>> from leakbench.models.lenet import LeNet
    >>> network = build_network(LeNet(), (1, 28, 28), classes=10, seed=0)
    >>> images, labels = torch.zeros(2, 1, 28, 28), torch.tensor([3, 7])
    >>> network.dimension, network.gradient(network.parameters, images, labels).shape
    (13426, torch.Size([13426]))
    """
    with seeded(seed):
        module = model.build(shape, classes)
        trained = trained_parameters(module)
        if len(trained) < len(list(module.parameters())):
            torch.manual_seed(FROZEN_SEED)
            fixed = model.build(shape, classes).named_parameters()
            module.load_state_dict({name: tensor for name, tensor in fixed if name not in trained}, strict=False)
    return Network(module, device)
