"""A captured gradient or update of one client, with the model that it belongs to, read from files and checked."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from leakbench.attacks.base import Observations
from leakbench.errors import ConfigError
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.lazy import torch
from leakbench.models.base import BatchNorm, Network
from leakbench.plugins import load_plugin
from leakbench.user_code import in_one_line

Kind = Literal["gradient", "update", "weights"]
"""Content of the file: the gradient of the mean loss, parameters after minus before, or the parameters after."""


@dataclass(frozen=True)
class Request:
    """The user's description of the captured file.

    Attributes:
        update: safetensors file, a tensor per parameter under the names of ``named_parameters()``.
        model: ``file.py:Name`` of a torch module's class, or of a function that returns a module; no arguments.
        before: safetensors file of the state dict at which the gradient, or the first local step, was computed.
        shape: ``(C, H, W)`` of one network input.
        classes: number of classes.
        kind: of the file's content.
        batch: images behind it, B.
        labels: of the batch, where they are known.
        local: the client's local training.
        batch_norm: what the client's BatchNorm layers normalised with.
        mean: per channel, or one for all: network inputs are ``(pixels - mean) / std`` with pixels in [0, 1].
        std: likewise.
    """

    update: Path
    model: str
    before: Path
    shape: tuple[int, int, int]
    classes: int
    kind: Kind = "gradient"
    batch: int = 1
    labels: tuple[int, ...] = ()
    local: LocalTraining = ONE_STEP
    batch_norm: BatchNorm = "train"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def described(self) -> dict[str, Any]:
        """All of it in JSON types, always in the same order."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"update": str(self.update), "before": str(self.before), "local": self.local.model_dump()}


@dataclass(frozen=True)
class Captured:
    """The server's view of one client.

    Attributes:
        observations: of the one client.
        mean: ``[C, 1, 1]``.
        std: ``[C, 1, 1]``.
        digests: SHA-256 of the files that were read, by their paths as given.
        assumptions: what the files do not say and the attacks take for granted, a sentence each.
    """

    observations: Observations
    mean: torch.Tensor
    std: torch.Tensor
    digests: Mapping[str, str] = field(default_factory=dict)
    assumptions: Sequence[str] = ()

    @property
    def network(self) -> Network:
        """The architecture, with the buffers of the time before."""
        return self.observations.network

    @property
    def pixel_range(self) -> torch.Tensor:
        """Network inputs of black and white, ``[2, C, 1, 1]``."""
        return torch.stack([-self.mean / self.std, (1 - self.mean) / self.std])

    def pixels(self, inputs: torch.Tensor) -> torch.Tensor:
        """Network inputs ``[..., C, H, W]`` as pixels in [0, 1]."""
        return (inputs * self.std + self.mean).clamp(0, 1)


def capture(request: Request, device: torch.device) -> Captured:
    """Read the files and check that they fit each other.

    Raises:
        ConfigError: a file is missing or damaged, the model cannot be built or run, tensors are missing, surplus, of
            another shape or not finite, nothing was learned, or labels do not fit; the message says what to do.
    """
    _check_numbers(request)
    module = _module(request.model)
    before = _tensors(request.before, "--before")
    _load(module, before, request)
    network = Network(module, device, request.batch_norm)
    update = _update(network, _tensors(request.update, "the update"), request)
    _check_output(network, request, device)
    mean, std = (
        per_channel(values, request.shape[0], key).to(device)
        for key, values in (("--mean", request.mean), ("--std", request.std))
    )
    local = request.local if request.kind != "gradient" else ONE_STEP
    seen = Observations(network, network.parameters, update[None].to(device), (request.batch, *request.shape), local)
    seen.check()
    digests = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in (request.update, request.before)}
    return Captured(seen, mean, std, digests, list(_assumptions(network, request)))


def _check_numbers(request: Request) -> None:
    if request.labels and len(request.labels) != request.batch:
        raise ConfigError(f"--labels: {len(request.labels)} labels for --batch {request.batch}; give one per image")
    wrong = [label for label in request.labels if not 0 <= label < request.classes]
    if wrong:
        raise ConfigError(
            f"--labels: {wrong[0]} is no class; --classes {request.classes} allows 0 to {request.classes - 1}"
        )
    if request.kind == "gradient" and request.local != ONE_STEP:
        raise ConfigError(
            "--steps, --rate and --local-batch describe local training, whose result is no gradient; say --kind update "
            "(parameters after minus before) or --kind weights (parameters after)"
        )
    size = request.local.batch_size
    if size is not None and request.batch % size:
        raise ConfigError(f"--local-batch {size} does not divide --batch {request.batch}, the client's images")


def per_channel(values: Sequence[float], channels: int, key: str) -> torch.Tensor:
    """A number per channel, or one for all, as ``[C, 1, 1]``.

    Args:
        values: as given.
        channels: of the images, C.
        key: the name of the values, for the error message; those of a standard deviation end with ``std``.

    Raises:
        ConfigError: there are as many as neither, one is not finite, or a standard deviation is not above zero.
    """
    if len(values) not in (1, channels):
        raise ConfigError(f"{key}: {len(values)} numbers for images of {channels} channels; give one, or {channels}")
    numbers = torch.tensor(values, dtype=torch.float32)
    for value, number in zip(values, numbers.tolist(), strict=True):
        if not math.isfinite(number):
            raise ConfigError(f"{key}: {value} is not a finite number")
        if key.endswith("std") and number <= 0:
            raise ConfigError(f"{key}: {value} is not above zero")
    return numbers.expand(channels)[:, None, None]


def _module(source: str) -> torch.nn.Module:
    path, colon, name = source.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise ConfigError(f"--model {source}: expected FILE.py:NAME, a module's class or a function that returns one")
    try:
        loaded = load_plugin(path, "--model")
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"--model {source}: {path} cannot be imported: {type(error).__name__}: {error}") from error
    make: Callable[[], object] | None = getattr(loaded, name, None)
    if make is None:
        there = sorted(each for each, value in vars(loaded).items() if callable(value) and not each.startswith("_"))
        raise ConfigError(
            f"--model {source}: {path} defines no '{name}'. It defines: {', '.join(there) or '(nothing)'}."
        )
    try:
        module = make()
    except Exception as error:
        raise ConfigError(
            f"--model {source}: {name}() raises {type(error).__name__}: {error}. It is called without arguments; write "
            "a function that gives yours"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"--model {source}: {name}() returns a {type(module).__name__}, and no torch.nn.Module")
    return module


def _tensors(path: Path, where: str) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ConfigError(f"{where}: no file {path}; write it with safetensors.torch.save_file")
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except SafetensorError as error:
        raise ConfigError(
            f"{path}: no file of safetensors ({error}); write it with safetensors.torch.save_file(tensors, path)"
        ) from None
    return tensors


def _load(module: torch.nn.Module, before: Mapping[str, torch.Tensor], request: Request) -> None:
    try:
        module.load_state_dict(before)
    except RuntimeError as error:
        fault = " ".join(str(error).split())
        raise ConfigError(
            f"{request.before}: not the state of {request.model}: {fault} Save it with "
            "save_file(model.state_dict(), path)"
        ) from None
    buffers = dict(module.named_buffers())  # masks may hold minus infinity
    for name, tensor in before.items():
        if bool((tensor.isnan() if name in buffers else ~tensor.isfinite()).any()):
            raise ConfigError(
                f"{request.before}: '{name}' holds values that are not finite; save the state of a model that computes"
            )


def flattened(network: Network, tensors: Mapping[str, torch.Tensor], where: str, model: str) -> torch.Tensor:
    """Tensors by the names of the parameters, in the order of the network's, ``[d]``.

    Args:
        network: the architecture.
        tensors: as given.
        where: source of the tensors, for error messages.
        model: its name, likewise.

    Raises:
        ConfigError: tensors are missing, surplus, of another shape or not finite.
    """
    surplus = tensors.keys() - set(network.names)
    missing = [name for name in network.names if name not in tensors]
    if missing or surplus:
        raise ConfigError(
            f"{where}: not the parameters of {model}: missing {', '.join(missing) or 'none'}; unknown "
            f"{', '.join(sorted(surplus)) or 'none'}. Names are those of model.named_parameters()"
        )
    for name, shape in zip(network.names, network.shapes, strict=True):
        if tuple(tensors[name].shape) != shape:
            raise ConfigError(
                f"{where}: '{name}' has the shape {list(tensors[name].shape)}; the model's has {list(shape)}"
            )
        if not bool(tensors[name].isfinite().all()):
            raise ConfigError(
                f"{where}: '{name}' holds values that are not finite; nothing can be said of such an update"
            )
    return torch.cat([tensors[name].reshape(-1).float() for name in network.names]).to(network.device)


def _update(network: Network, tensors: Mapping[str, torch.Tensor], request: Request) -> torch.Tensor:
    """The update in the order of the network's parameters, as the gradient that attacks match, ``[d]``."""
    if request.kind != "gradient":  # a state dict after training holds buffers, and what did not train
        others = {*dict(network.module.named_buffers()), *network.frozen}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in others}
    flat = flattened(network, tensors, str(request.update), request.model)
    if request.kind == "weights":
        flat = flat - network.parameters
    if not bool(flat.any()):
        raise ConfigError(f"{request.update}: nothing but zeros; was it saved before backward() or after zero_grad()?")
    if request.kind != "gradient":
        flat = -flat / request.local.rate
    if not bool(flat.isfinite().all()):  # in float32
        raise ConfigError(
            f"{request.update}: not finite as a gradient in float32; a gradient is the update over --rate "
            f"({request.local.rate:g}), so look at both"
        )
    return flat


def _check_output(network: Network, request: Request, device: torch.device) -> None:
    images = torch.zeros(max(request.batch, 2), *request.shape, device=device)
    try:
        logits = network.logits(network.parameters, images)
    except Exception as error:
        raise ConfigError(
            f"--shape {','.join(map(str, request.shape))}: {request.model} does not take such images: "
            f"{type(error).__name__}: {error}"
        ) from error
    if logits.shape != (len(images), request.classes):
        raise ConfigError(
            f"--classes {request.classes}: {request.model} returns {list(logits.shape)} for {len(images)} images, not "
            f"[{len(images)}, {request.classes}]"
        )
    labels = torch.zeros(len(images), dtype=torch.int64, device=device)
    try:
        torch.func.vmap(network.gradient, in_dims=(None, 0, None))(network.parameters, images[None], labels)
    except Exception as error:
        raise ConfigError(
            f"--model {request.model}: attacks differentiate it for many batches at once (torch.func.vmap), and there "
            f"it raises {in_one_line(error)}. Give a forward pass that neither branches on values of tensors nor calls "
            "item() (torch.where chooses instead), draws no random numbers, and changes no tensor in place"
        ) from error


def _assumptions(network: Network, request: Request) -> list[str]:
    kinds = {type(layer).__name__ for layer in network.module.modules()}
    sentences = ["The loss is the mean cross-entropy of the batch, without weight decay or label smoothing."]
    if network.running_statistics:
        by = "the batch's own statistics (training mode)" if request.batch_norm == "train" else "the running statistics"
        sentences.append(f"BatchNorm layers normalised with {by}; --batch-norm says otherwise.")
    if any("Dropout" in kind for kind in kinds):
        sentences.append("Dropout was off: with it on, no attack here repeats the client's computation exactly.")
    if request.kind != "gradient":
        steps, size = request.local.steps, request.local.batch_size or request.batch
        sentences.append(
            f"Local training was plain SGD: {steps} steps on {size} images each, rate {request.local.rate:g}."
        )
    return sentences
