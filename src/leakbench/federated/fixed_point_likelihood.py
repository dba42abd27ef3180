"""Densities of values before they became fixed-point words some of whose bits were flipped, given the words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from leakbench.federated.fixed_point import FixedPoint
from leakbench.lazy import torch

NEGLIGIBLE = -40.0
"""Logarithm of a part of a mixture at which it plays no role; exponentials of less are slow."""


def before_flips(
    form: FixedPoint, words: torch.Tensor, masked: Sequence[int], keep: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The integers of the words that flips may have made of ``words``, and logarithms of the flips' probabilities.

    Args:
        form: format of the words.
        words: ``[n, k]``, int16.
        masked: positions of the bits that may have been flipped, from the left.
        keep: p.

    Returns:
        Floats ``[n, k, 2^masked]`` and ``[2^masked]``.
    """
    sets = [some for count in range(len(masked) + 1) for some in itertools.combinations(masked, count)]
    patterns = torch.tensor([form.mask(some) for some in sets], device=words.device).to(torch.int16)
    flips = torch.tensor([len(some) for some in sets], device=words.device)
    weights = torch.xlogy(flips, 1 - keep) + (len(masked) - flips) * math.log(keep)
    return form.integers(words[..., None] ^ patterns).to(torch.get_default_dtype()), weights


class Origins(NamedTuple):
    """Words that may have become those that were received, ``2^k`` for ``k`` masked bits.

    Attributes:
        words: as integers, ``[n, words, 2^k]``, the smallest magnitude first.
        weights: logarithms of their probabilities, of the shape of ``words``.
        saturated: which of them stand for all values beyond, boolean, of the shape of ``words``; None where none can.
        precision: half the inverse variance of a value around its word, ``[n, words]``.
        zero: what was received as zero, boolean ``[n, words]``.
    """

    words: torch.Tensor
    weights: torch.Tensor
    saturated: torch.Tensor | None
    precision: torch.Tensor
    zero: torch.Tensor

    @property
    def reach(self) -> torch.Tensor:
        """Distances from the first word within which the others are :data:`NEGLIGIBLE`, ``[n, words]``."""
        apart = (self.words[..., 1:] - self.words[..., :1]).abs()
        least = self.weights[..., 1:] - self.weights[..., :1] - NEGLIGIBLE
        within = torch.where(apart > 0, apart / 2 - least / (2 * self.precision[..., None] * apart), -torch.inf)
        nearest = torch.nn.functional.pad(within, (0, 1), value=torch.inf).amin(dim=-1)
        return nearest if self.saturated is None else nearest.masked_fill(self.saturated.any(dim=-1), -torch.inf)

    def mixture(self, at: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logarithms of the densities of values over all words, and their derivatives, each ``[m]``.

        Args:
            at: places of the values among the ``n * words`` coordinates, ``[m]``.
            values: in units of a word, ``[m]``.
        """
        words, weights = self.words.flatten(0, 1)[at], self.weights.flatten(0, 1)[at]
        precision, zero = self.precision.flatten()[at], self.zero.flatten()[at]
        turned = torch.where(zero & (values < 0), -1.0, 1.0)  # a negative zero was received as zero
        apart = (turned * values)[:, None] - words
        if self.saturated is not None:
            signs = words.sign()
            within = (apart * signs).clamp(max=0) * signs
            apart = torch.where(self.saturated.flatten(0, 1)[at], within, apart)
        of_words = weights - apart.square() * precision[:, None]
        likeliest = of_words.amax(dim=1, keepdim=True)
        shares = (of_words - likeliest).clamp(min=NEGLIGIBLE).exp()
        total = shares.sum(dim=1)
        return likeliest[:, 0] + total.log(), (apart * shares).sum(dim=1) * precision * turned * (-2 / total)


class WordDensity:
    """The density of values before they became words, of those that were received.

    Most values are near one word alone. The others are few, and are taken out for the mixture.
    """

    def __init__(self, origins: Origins) -> None:
        self._origins, self._curvature = origins, -2 * origins.precision
        self._nearest, self._weight = (each[..., 0].contiguous() for each in (origins.words, origins.weights))
        self._reach = origins.reach

    def __call__(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logarithm, ``[n]``, of values in units of a word, ``[n, words]``, and its derivative by them."""
        apart = values - self._nearest
        slope = apart * self._curvature
        density = (apart * slope).mul_(0.5).add_(self._weight)
        at = (apart.abs_() > self._reach).flatten().nonzero()[:, 0]
        if len(at):
            of_some, by_some = self._origins.mixture(at, values.flatten()[at])
            density.view(-1)[at], slope.view(-1)[at] = of_some, by_some
        return density.sum(dim=1), slope
