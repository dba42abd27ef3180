"""The network that makes images of messages (Wu et al. 2023), as jobs train it and attacks use it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakbench.lazy import torch
from leakbench.numerics.stateful import named, part_of


@dataclass(frozen=True)
class Inverter:
    """Fully connected layers with ReLU between them and a sigmoid behind, on centred and scaled messages.

    Attributes:
        centre: what is subtracted from a message, ``[1, d]``.
        scale: what it is then multiplied by, ``[1, d]``.
        layers: ``[n, d]`` to pixels in [0, 1], ``[n, C H W]``.
    """

    centre: torch.Tensor
    scale: torch.Tensor
    layers: torch.nn.Sequential

    @classmethod
    def of(cls, state: Mapping[str, torch.Tensor], device: torch.device) -> Inverter:
        """The network that had this :meth:`state`, on a device."""
        weights = part_of(state, "layers")
        matrices = {int(name.split(".")[0]): tensor for name, tensor in weights.items() if tensor.dim() == 2}
        outputs = [matrices[place].shape[0] for place in sorted(matrices)]
        with torch.random.fork_rng(devices=[]):
            layers = untrained(state["centre"].shape[1], outputs)
        layers.load_state_dict(weights)
        return cls(state["centre"].to(device), state["scale"].to(device), layers.requires_grad_(False).to(device))

    def state(self) -> dict[str, torch.Tensor]:
        """All tensors by name."""
        return {"centre": self.centre, "scale": self.scale, **named("layers", self.layers.state_dict())}

    def pixels(self, messages: torch.Tensor) -> torch.Tensor:
        """Pixels ``[n, C H W]`` of messages ``[n, d]``."""
        pixels: torch.Tensor = self.layers((messages - self.centre) * self.scale)
        return pixels


def untrained(inputs: int, widths: Sequence[int]) -> torch.nn.Sequential:
    """The layers with torch's initialisation, drawn from the global generator; the last width is that of the output."""
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise([inputs, *widths]):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1], torch.nn.Sigmoid())
