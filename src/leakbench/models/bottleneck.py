"""A variational bottleneck in front of the last layer: PRECODE's extension of a model (Scheliga et al., WACV 2022).

Features ``f`` become ``mean, raw = W f + b`` and ``deviation = softplus(raw)``, a code ``z = mean + deviation noise``
with standard normal noise, and features again, ``V z + c``, which the last layer reads. The loss gains ``beta`` times
the divergence of the code's law from the standard normal one, averaged over the batch.

The network has no randomness of its own. The noise of an image is an input like its pixels: rows below the image, so
that it goes wherever images go. Images without such rows have none, and their code is its mean.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import ClassVar, NamedTuple

from leakbench.lazy import torch
from leakbench.models.base import LinearLayer, Network, Statistics
from leakbench.randomness import generator, seeded


class Bottleneck(NamedTuple):
    """The parts of a bottleneck that are no layers.

    Attributes:
        width: number of components of the code, K.
        beta: weight of the divergence in the loss.
        height: of images without rows of noise.
    """

    width: int
    beta: float
    height: int


@cache
def _code() -> type[torch.nn.Module]:
    """The class is made on first use, since its base is torch's."""

    class Code(torch.nn.Module):
        """The code without noise: the first half of what the encoder says."""

        def forward(self, statistics: torch.Tensor) -> torch.Tensor:
            return statistics.chunk(2, dim=-1)[0]

    return Code


def extended(network: Network, shape: tuple[int, ...], width: int, beta: float, seed: int) -> ExtendedNetwork:
    """The network with a bottleneck in front of its last layer, which keeps its parameters; a new one.

    The last layer's module becomes a sequence of encoder, code, decoder and itself, so that it is still the last one.
    The encoder and the decoder are initialised as torch does, from the seed alone.

    >>> network = Network(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)))
    >>> more = extended(network, (1, 2, 2), width=2, beta=1e-3, seed=0)
    >>> more.names
    ['1.0.weight', '1.0.bias', '1.2.weight', '1.2.bias', '1.3.weight', '1.3.bias']

    Args:
        network: which stays as it is.
        shape: ``(C, H, W)`` of an image.
        width: number of components of the code, K.
        beta: weight of the divergence in the loss.
        seed: of the initialisation.

    Raises:
        ConfigError: the last parameters are not those of a linear layer.
    """
    features, name = network.head.inputs, network.names[-1].rpartition(".")[0]
    module = copy.deepcopy(network.module)
    head = module.get_submodule(name)
    with seeded(seed):
        encoder, decoder = torch.nn.Linear(features, 2 * width), torch.nn.Linear(width, features)
    sequence = torch.nn.Sequential(encoder, _code()(), decoder, head)
    if name:
        above, _, last = name.rpartition(".")
        setattr(module.get_submodule(above), last, sequence)
    else:
        module = sequence
    return ExtendedNetwork(module, network, Bottleneck(width, beta, shape[1]))


class ExtendedNetwork(Network):
    """A network with a bottleneck, for images ``[..., C, H, W]``, and for those with rows of noise below.

    Args:
        module: the architecture, with the bottleneck somewhere in it.
        like: the network whose device and mode this one has.
        bottleneck: its other parts.
    """

    plain_loss: ClassVar[bool] = False

    def __init__(self, module: torch.nn.Module, like: Network, bottleneck: Bottleneck) -> None:
        super().__init__(module, like.device, like.batch_norm)
        self.bottleneck = bottleneck
        self._code = next(name for name, each in module.named_modules() if isinstance(each, _code()))

    def holding(self, module: torch.nn.Module) -> Network:
        return ExtendedNetwork(module, self, self.bottleneck)

    @property
    def coders(self) -> tuple[LinearLayer, LinearLayer]:
        """The encoder and the decoder."""
        sequence = self._code.rpartition(".")[0]
        prefix = f"{sequence}." if sequence else ""
        return self.linear_layers[f"{prefix}0"], self.linear_layers[f"{prefix}2"]

    def logits(
        self, parameters: torch.Tensor, images: torch.Tensor, statistics: Statistics | None = None
    ) -> torch.Tensor:
        return self._logits_and_encoded(parameters, images, statistics)[0]

    def loss(
        self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, statistics: Statistics | None = None
    ) -> torch.Tensor:
        """Mean cross-entropy of a batch, and ``beta`` times the mean divergence of its codes; a scalar."""
        return self._loss(*self._logits_and_encoded(parameters, images, statistics), labels)

    def module_loss(
        self, module: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, key: tuple[str | int, ...]
    ) -> torch.Tensor:
        noise = torch.randn(len(images), self.bottleneck.width, generator=generator(*key, "code"))
        with self._coding(module, noise.to(images)) as seen:
            logits = module(images)
        return self._loss(logits, seen[0], labels)

    def _loss(self, logits: torch.Tensor, encoded: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        divergences = divergence(*encoded.chunk(2, dim=-1))
        return torch.nn.functional.cross_entropy(logits, labels) + self.bottleneck.beta * divergences.mean()

    def _logits_and_encoded(
        self, parameters: torch.Tensor, images: torch.Tensor, statistics: Statistics | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and what the encoder says of each image, ``[B, 2 K]``."""
        height, width = self.bottleneck.height, self.bottleneck.width
        below = images[..., height:, :].movedim(-3, -2).flatten(-3)[..., :width]
        module = self._module if self.batch_norm == "eval" or statistics else self._unbuffered
        with self._coding(module, below if below.shape[-1] else None) as seen:
            output = super().logits(parameters, images[..., :height, :], statistics)
        return output, seen[0]

    @contextmanager
    def _coding(self, module: torch.nn.Module, noise: torch.Tensor | None) -> Iterator[list[torch.Tensor]]:
        """Let a module of this architecture draw its code with ``noise``; yields what its encoder will say."""
        seen: list[torch.Tensor] = []

        def code(_: torch.nn.Module, given: tuple[torch.Tensor, ...], mean: torch.Tensor) -> torch.Tensor:
            seen.append(given[0])
            return mean if noise is None else mean + deviation(given[0].chunk(2, dim=-1)[1]) * noise

        hook = module.get_submodule(self._code).register_forward_hook(code)
        try:
            yield seen
        finally:
            hook.remove()


def with_rows(images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Images ``[..., C, H, W]`` with numbers ``[..., K]`` in rows below, row by row of all channels; zeros fill up."""
    *_, channels, _, width = images.shape
    rows = math.ceil(noise.shape[-1] / (channels * width))
    padded = torch.nn.functional.pad(noise, (0, rows * channels * width - noise.shape[-1]))
    below = padded.unflatten(-1, (rows, channels, width)).movedim(-2, -3)
    return torch.cat([images, below], dim=-2)


def deviation(raw: torch.Tensor) -> torch.Tensor:
    """Standard deviations of the code's components, ``[...]``, from the encoder's second half, ``[...]``."""
    return torch.nn.functional.softplus(raw)


def divergence(mean: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence of the codes' normal laws from the standard normal one, in nats, ``[...]``."""
    spread = deviation(raw)
    return (mean.square() + spread.square() - 1 - 2 * spread.log()).sum(dim=-1) / 2
