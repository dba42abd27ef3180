"""What tests of defenses that know the network's tensors share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import torch

from leakbench.federated.step import ClientSteps
from leakbench.randomness import Streams


def fixed(gradient: torch.Tensor, sizes: list[int]) -> ClientSteps:
    """Clients whose gradients ``[n, d]`` are given, and consist of tensors of these sizes."""
    assert gradient.shape[1] == sum(sizes)
    return cast(ClientSteps, SimpleNamespace(gradient=gradient, network=SimpleNamespace(sizes=sizes)))


def streams(*clients: int) -> Streams:
    """Of these clients."""
    return Streams([("tensors", client) for client in clients])


def of_seed(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
