"""A network that takes white noise off images: their posterior mean, learned from auxiliary ones.

It knows what no linear estimate does: pixels are bounded, backgrounds are black, edges are sharp.

Imported where it is trained: a class that inherits from torch's needs torch.
"""

from __future__ import annotations

import hashlib
import itertools
import math

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
KEPT = 2
"""Networks that a process keeps, for the next attack with the same auxiliary images."""


class Residual(nn.Module):
    """A U-Net from noisy and clipped images beside each other to the latter's errors ``[n, C, H, W]``, zero at first.

    On noise of one covariance that of :mod:`leakbench.attacks.restoration.networks` did as well in thrice the time.

    Args:
        before: channels of what it sees.
        colours: channels of the images, C.
    """

    def __init__(self, before: int, colours: int) -> None:
        super().__init__()
        first, *others = itertools.pairwise((before, *CHANNELS))
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


class Denoiser:
    """A network that finds images from noisy ones, told how noisy they are.

    Args:
        colours: channels of the images, C.
        pixel_range: least and largest value of a pixel, ``[2, C, 1, 1]``.

    Attributes:
        span: range of a pixel, the mean over channels.
    """

    def __init__(self, colours: int, pixel_range: torch.Tensor) -> None:
        self.low, self.high = pixel_range
        self.span = float((self.high - self.low).mean())
        with seeded(stream_seed("denoiser")):
            self.network = Residual(2 * colours + 1, colours).to(pixel_range.device)

    def __call__(self, noisy: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
        """Clean images ``[n, C, H, W]`` from noisy ones and the standard deviations of their noise, ``[n]``."""
        return self.estimate(noisy, deviation).clamp(self.low, self.high)

    def estimate(self, noisy: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
        """The same, of which pixels may be invalid."""
        valid = noisy.clamp(self.low, self.high)
        level = (deviation / self.span).view(-1, 1, 1, 1).expand(-1, 1, *noisy.shape[2:])
        estimate: torch.Tensor = valid + self.network(torch.cat([noisy, valid, level], dim=1))
        return estimate

    def train(self, images: torch.Tensor, levels: tuple[float, float], iterations: int) -> None:
        """Minimise the squared error in units of the noise, in so many steps. The draws are always the same."""
        device, draws = images.device, generator("denoiser", "noise")
        low, high = (math.log(self.span * level) for level in levels)
        optimiser = torch.optim.Adam(self.network.parameters(), RATE, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=iterations, pct_start=RISING)
        with torch.enable_grad():
            for _ in range(iterations):
                clean = images[torch.randint(len(images), (BATCH,), generator=draws).to(device)]
                deviation = (low + (high - low) * torch.rand(BATCH, generator=draws)).exp().to(device)
                standard = torch.randn(clean.shape, generator=draws).to(device)
                errors = self.estimate(clean + deviation.view(-1, 1, 1, 1) * standard, deviation) - clean
                loss = (errors.square().flatten(1).mean(dim=1) / (self.span * deviation)).mean()
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), LONGEST)
                optimiser.step()
                schedule.step()
        self.network.requires_grad_(False)


_kept: dict[str, Denoiser] = {}


def trained_denoiser(
    images: torch.Tensor, pixel_range: torch.Tensor, levels: tuple[float, float], iterations: int
) -> Denoiser:
    """Train a network on white noise of every level; or take the one that this process has trained so before.

    Args:
        images: clean, ``[N, C, H, W]``.
        pixel_range: least and largest value of a pixel, ``[2, C, 1, 1]``.
        levels: smallest and largest standard deviation of the noise, in ranges of a pixel; its logarithm is uniform.
        iterations: steps of training.
    """
    bounds = pixel_range.to(images)
    content = b"".join(part.cpu().contiguous().numpy().tobytes() for part in (images, bounds))
    key = f"{hashlib.sha256(content).hexdigest()} {tuple(images.shape)} {images.device} {levels} {iterations}"
    if key not in _kept:
        while len(_kept) >= KEPT:
            _kept.pop(next(iter(_kept)))
        denoiser = Denoiser(images.shape[1], bounds)
        denoiser.train(images, levels, iterations)
        _kept[key] = denoiser
    return _kept[key]
