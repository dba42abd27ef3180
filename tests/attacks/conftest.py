"""What tests of attacks share."""

from __future__ import annotations

import pytest
import torch

from leakbench.attacks.base import Observations
from leakbench.models.base import Network


@pytest.fixture(scope="module")
def observations(tiny_network: Network) -> Observations:
    """Three clients; the gradient of each has a few marked coordinates."""
    draw = torch.Generator().manual_seed(0)
    gradients = torch.randn(3, tiny_network.dimension, generator=draw)
    marked = torch.rand(gradients.shape, generator=draw) < 0.3
    return Observations(tiny_network, tiny_network.parameters, gradients, (1, 1, 8, 8), marked=marked)
