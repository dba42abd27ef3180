"""A network that takes noise of a known covariance off images: their posterior mean, learned from auxiliary ones.

It knows what no linear estimate does: pixels are bounded, backgrounds are black, edges are sharp. To see that estimate
beside the image would not help: mean and covariance fit the auxiliary images, of which they are, better than others.

Imported where it is trained: a class that inherits from torch's needs torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from leakbench.data.covariance import root
from leakbench.lazy import torch
from leakbench.randomness import generator, seeded, stream_seed

nn = torch.nn

CHANNELS = (16, 32, 64)
"""Width of each level; every level but the first halves the side."""
GROUPS = 4
"""Sets of channels that are normalised together."""
BATCH = 16
"""Images per step."""
RATE = 2e-3
"""Highest step size of Adam, which rises to it and falls to zero."""
LONGEST = 0.1
"""Norm to which gradients are clipped."""
RISING = 0.1
"""Part of the steps in which the step size rises."""


class Residual(nn.Module):
    """A U-Net from noisy and clipped images ``[n, 2 C, H, W]`` to the latter's errors ``[n, C, H, W]``, zero at first.

    That of :mod:`leakbench.attacks.restoration.networks` denoises as well and takes three times as long.

    Args:
        colours: channels of the images.
    """

    def __init__(self, colours: int) -> None:
        super().__init__()
        first, *others = itertools.pairwise((2 * colours, *CHANNELS))
        self.down = nn.ModuleList([nn.Sequential(_layer(*first), _layer(first[1], first[1]))])
        self.up = nn.ModuleList()
        for above, below in others:
            self.down.append(nn.Sequential(_layer(above, below, stride=2), _layer(below, below)))
            self.up.insert(0, _layer(above + below, above))
        self.last = nn.Conv2d(CHANNELS[0], colours, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        if self.last.bias is not None:
            nn.init.zeros_(self.last.bias)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        levels = []
        for layer in self.down:
            values = layer(values)
            levels.append(values)
        levels.pop()
        for layer in self.up:
            beside = levels.pop()
            larger = nn.functional.interpolate(values, size=beside.shape[-2:])
            values = layer(torch.cat([larger, beside], dim=1))
        output: torch.Tensor = self.last(values)
        return output


def _layer(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride=stride, padding=1), nn.GroupNorm(GROUPS, after), nn.SiLU())


def trained_denoiser(
    images: torch.Tensor, noise: torch.Tensor, error: float, pixel_range: torch.Tensor, iterations: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Train a network to find the images from noisy ones, by their squared error.

    Its draws are always the same: victims of one setting share the network, whoever is attacked beside them.

    Args:
        images: clean, ``[N, C, H, W]``.
        noise: covariance of the noise, ``[d]`` if it is diagonal, else ``[d, d]``, with ``d = C H W``.
        error: largest standard deviation of further, independent noise; each image has another one.
        pixel_range: least and largest value of a pixel, ``[2, C, 1, 1]``.
        iterations: steps of training.

    Returns:
        A function from noisy images ``[n, C, H, W]`` to clean ones.
    """
    device, (low, high), colour = images.device, pixel_range.to(images), root(noise).to(images)
    with seeded(stream_seed("denoiser")):
        network = Residual(images.shape[1]).to(device)

    def denoised(noisy: torch.Tensor) -> torch.Tensor:
        valid = noisy.clamp(low, high)
        estimate: torch.Tensor = valid + network(torch.cat([noisy, valid], dim=1))
        return estimate

    draws = generator("denoiser", "noise")
    optimiser = torch.optim.Adam(network.parameters(), RATE, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=iterations, pct_start=RISING)
    with torch.enable_grad():
        for _ in range(iterations):
            clean = images[torch.randint(len(images), (BATCH,), generator=draws).to(device)]
            known, other = torch.randn(2, BATCH, len(noise), generator=draws).to(device)
            known = known * colour if colour.dim() == 1 else known @ colour.T
            other = error * torch.rand(BATCH, 1, generator=draws).to(device) * other
            loss = (denoised(clean + (known + other).view_as(clean)) - clean).square().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), LONGEST)
            optimiser.step()
            schedule.step()
    network.requires_grad_(False)
    return lambda noisy: denoised(noisy).clamp(low, high)
