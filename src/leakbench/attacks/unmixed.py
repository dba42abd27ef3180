"""Images out of the mixtures that MixUp leaves: the labels of the mixtures say who was mixed with whom.

A batch ``X`` becomes ``M X`` with ``M = w I + (1 - w) P`` for a permutation ``P``, and its labels ``Y`` become ``M Y``.
What a search for images and labels finds is both. Each row of the mixed labels names the class of its heavier image and
that of its lighter one; images of one class are told apart by their edges, of which mixtures share some.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from pydantic import Field

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS, Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.randomness import Streams

WEIGHTS = 101
"""Weights from 1/2 to 1 that are tried."""
ROUNDING = 1e-9
"""Squared error of labels that is none."""
ALIKE = 1e-6
"""Difference of log-likelihoods, per pixel, that is none."""
MOST = 1_000
"""Ways to tell images of one class apart that are tried."""


@ATTACKS.register("unmixed", version=1)
class Unmixed(Wrapper):
    """Take the images out of their mixtures, by the labels that the attack inside finds with them.

    Gradient matching inside optimises labels with the images, whatever it does without this wrapper. The labels of
    the batch are those granted, or what the mixed labels add up to. Images come in the order of their labels.
    """

    error: float = Field(
        0.01,
        gt=0,
        description="variance of what the attack inside errs by, as a part of the images' variance; what no mixing of "
        "labels explains is added, twice",
    )

    @property
    def _inside(self) -> Attack:
        """The attack inside, which optimises labels if it can."""
        inside = self.attack
        if not isinstance(inside, GradientMatching):
            return inside
        return type(inside).model_validate({**inside.parameters(), "labels": "joint"})

    def effort(self, samples: int) -> Effort:
        return self._inside.effort(samples)

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        """Reconstruct the images behind the mixtures that the attack inside finds.

        Raises:
            Infeasible: that finds no labels as probabilities.
        """
        mixtures = self._inside.reconstruct(observations, knowledge, streams)
        if mixtures.probabilities is None:
            raise Infeasible(
                f"attack 'unmixed' needs an attack that optimises labels with the images, and '{self.attack.name}' "
                "does not; list gradient matching ('dlg', ...) inside"
            )
        images, labels = mixtures.images.clone(), []
        for row, mixed in enumerate(mixtures.probabilities.double()):
            if not bool(images[row].isfinite().all() and mixed.isfinite().all()):
                labels.append(mixed.argmax(dim=1))
                continue
            given = None if knowledge.labels is None else knowledge.labels[row]
            mixing = fitted(mixed, counted(mixed) if given is None else given.sort().values)
            images[row] = unmixed(images[row], mixing, self.error + 2 * mixing.misfit)
            labels.append(mixing.labels)
        if knowledge.pixel_range is not None:
            images = images.clamp(*knowledge.pixel_range)
        return replace(mixtures, images=images, labels=torch.stack(labels), probabilities=None)


class Mixing(NamedTuple):
    """The way in which a batch was mixed.

    Attributes:
        labels: of the images, ascending, ``[B]``.
        weight: of the heavier image in each mixture.
        heavier: place of the heavier image of each mixture among ``labels``, ``[B]``.
        lighter: that of the other image; of images of one class, as good as any other.
        misfit: variance of the labels around this mixing, over that among its mixtures; 0 where these are all alike.
    """

    labels: torch.Tensor
    weight: float
    heavier: torch.Tensor
    lighter: torch.Tensor
    misfit: float

    def ways(self) -> Iterator[torch.Tensor]:
        """The matrices ``M``, ``[B, B]``: the lighter images of every class in any order."""
        batch = len(self.labels)
        classes = [(self.labels == label).nonzero().flatten().tolist() for label in self.labels.unique()]
        one = torch.eye(batch, dtype=torch.float64, device=self.labels.device)
        for orders in itertools.islice(itertools.product(*map(itertools.permutations, classes)), MOST):
            renamed = torch.tensor(list(itertools.chain.from_iterable(orders)), device=self.labels.device)
            yield self.weight * one[self.heavier] + (1 - self.weight) * one[renamed[self.lighter]]


def counted(mixed: torch.Tensor) -> torch.Tensor:
    """The labels of a batch, ascending ``[B]``, from mixed ones ``[B, classes]``: mixing leaves their sum as it is."""
    total, batch = mixed.sum(dim=0), len(mixed)
    counts = total.floor()
    left = batch - int(counts.sum())
    counts[(total - counts).argsort(descending=True, stable=True)[:left]] += 1
    return torch.arange(len(total), device=mixed.device).repeat_interleave(counts.long())[:batch]


def fitted(mixed: torch.Tensor, labels: torch.Tensor) -> Mixing:
    """The mixing of labels ``[B]`` that is nearest to mixed labels ``[B, classes]`` by least squares.

    The heavier labels are assigned first: whatever the weight, they are those that mixed labels have most of. Where the
    weight leaves no trace it is 1: nothing was mixed.
    """
    one = torch.nn.functional.one_hot(labels, mixed.shape[1]).to(mixed)
    heavier = _assigned(-mixed @ one.T)
    best, least = None, math.inf
    for weight in torch.linspace(1.0, 0.5, WEIGHTS).tolist():
        rest = mixed - weight * one[heavier]
        lighter = _assigned(torch.cdist(rest, (1 - weight) * one).square())
        exact = weight * one[heavier] + (1 - weight) * one[lighter]
        squares = float((mixed - exact).square().sum())
        if squares < least - ROUNDING:
            spread = float((exact - exact.mean(dim=0)).square().sum())
            best, least = Mixing(labels, weight, heavier, lighter, squares / spread if spread else 0.0), squares
    assert best is not None
    return best


def unmixed(mixtures: torch.Tensor, mixing: Mixing, error: float) -> torch.Tensor:
    """The images ``[B, C, H, W]`` behind mixtures: those whose edges have least to do with each other's.

    They are the mean, which mixing leaves as it is, and by least squares what differs from it, where ``error`` is the
    variance of errors in mixtures over that of images. Some ways of mixing have the same correlations, such as a ring
    and the same one backwards: of these the one with the smoothest images is taken. Where all images are of one class,
    mixtures stay: nothing says how they were mixed.
    """
    if len(mixing.labels.unique()) == 1:
        return mixtures
    values, one = mixtures.double(), torch.eye(len(mixtures)).to(mixtures.device, torch.float64)
    mean, edges = values.mean(dim=0, keepdim=True), _edges(values)
    products, ways = edges @ edges.T, list(mixing.ways())
    surprises = [_surprise(products, matrix @ matrix.T + error * one) for matrix in ways]
    likely = [matrix for matrix, each in zip(ways, surprises, strict=True) if each < min(surprises) + ALIKE]

    def behind(matrix: torch.Tensor) -> torch.Tensor:
        away = torch.linalg.solve(matrix.T @ matrix + error * one, matrix.T @ (values - mean).flatten(1))
        images: torch.Tensor = mean + away.view_as(values)
        return images

    smoothest: torch.Tensor = min(map(behind, likely), key=lambda images: float(_edges(images).abs().sum()))
    return smoothest.to(mixtures)


def _edges(images: torch.Tensor) -> torch.Tensor:
    """Differences of neighbouring pixels, ``[B, ...]``."""
    return torch.cat([images.diff(dim=axis).flatten(1) for axis in (-1, -2)], dim=1)


def _surprise(products: torch.Tensor, covariance: torch.Tensor) -> float:
    """Negative log-likelihood of normal signals with inner products ``[B, B]``, up to their number and a constant.

    Their covariance is the one given, ``[B, B]``, up to the factor that suits them best.
    """
    power = torch.linalg.solve(covariance, products).trace()
    return float(len(products) * power.clamp(min=torch.finfo(power.dtype).tiny).log() + covariance.logdet())


def _assigned(costs: torch.Tensor) -> torch.Tensor:
    """The column of every row in the assignment with the least costs ``[B, B]``."""
    from scipy.optimize import linear_sum_assignment

    return torch.as_tensor(linear_sum_assignment(costs.cpu().numpy())[1], device=costs.device)
