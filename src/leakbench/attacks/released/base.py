"""Interfaces of attacks on a released model.

Gradient inversion attacks one step of training; these attack the trained model. Several trained runs of one
architecture are attacked side by side, and row ``i`` of every result depends on run ``i`` and its stream alone.
"""

from __future__ import annotations

from typing import NamedTuple

from leakbench.effort import FORWARD, Effort
from leakbench.federated.training import Training
from leakbench.lazy import torch
from leakbench.models.trained import TrainedModels
from leakbench.randomness import Streams
from leakbench.registry import Component, Registry


class Labelled(NamedTuple):
    """Network inputs ``[n, C, H, W]`` and labels ``[n]`` of all runs; either may have a leading axis of runs."""

    images: torch.Tensor
    labels: torch.Tensor

    def take(self, rows: torch.Tensor) -> Labelled:
        """The samples of each run at its ``rows``, ``[runs, k]``."""
        rows = rows.to(self.images.device)
        runs = torch.arange(len(rows), device=rows.device)[:, None]
        images, labels = self
        return Labelled(
            images[rows] if images.dim() == 4 else images[runs, rows],
            labels[rows] if labels.dim() == 1 else labels[runs, rows],
        )

    def labels_of(self, runs: int) -> torch.Tensor:
        """Labels ``[runs, n]``."""
        return self.labels.expand(runs, -1)


def joined(first: Labelled, second: Labelled, runs: int) -> Labelled:
    """The samples of both, one after the other; with an axis of runs where one of them has it."""
    if first.images.dim() == second.images.dim():
        images = torch.cat([first.images, second.images], dim=-4)
    else:
        each = [images if images.dim() == 5 else images.expand(runs, *images.shape) for images, _ in (first, second)]
        images = torch.cat(each, dim=1)
    return Labelled(images, torch.cat([first.labels_of(runs), second.labels_of(runs)], dim=1))


class MembershipSplit(NamedTuple):
    """Indices of samples that train a membership attack and of those judged, each ``[runs, k]``, no two the same.

    Members are samples of the victim's training set, non-members of its test set.
    """

    training_members: torch.Tensor
    training_nonmembers: torch.Tensor
    members: torch.Tensor
    nonmembers: torch.Tensor


def membership_split(members: int, nonmembers: int, streams: Streams) -> MembershipSplit:
    """A third of both sets trains the attack and a second third is judged, as many members as non-members.

    The partial knowledge of Liu et al. 2022 (ML-Doctor), which Tan et al. 2024 take over.

    Args:
        members: size of the victim's training set.
        nonmembers: size of its test set.
        streams: one per run, which shuffle both sets.
    """
    third = min(members, nonmembers) // 3
    orders = [
        streams.child(name).uniform(count).argsort(dim=1, stable=True)
        for name, count in (("members", members), ("nonmembers", nonmembers))
    ]
    training, judged = slice(0, third), slice(third, 2 * third)
    return MembershipSplit(*(order[:, part] for part in (training, judged) for order in orders))


class Target(NamedTuple):
    """Sizes of an attacked model: multiply-adds of a sample's forward and backward pass, classes, last features."""

    multiply_adds: float
    classes: int
    features: int


class MembershipAttack(Component):
    """Tells the samples that a model was trained on from others.

    The attacker has the model, and samples whose membership it knows. It never sees that of the candidates.
    """

    def knowing(self, training: Training) -> MembershipAttack:
        """The attack of someone who knows how the target was trained."""
        return self

    def effort(self, known: int, targets: int, of: Target) -> Effort:
        """Computation for attacking models that differ in their defense alone, in passes through such a model.

        Args:
            known: number of samples whose membership is known; as many are judged.
            targets: number of models.
            of: their sizes.
        """
        return Effort(2 * FORWARD * known, 1).beside(targets)

    def score(
        self, target: TrainedModels, members: Labelled, nonmembers: Labelled, candidates: Labelled, streams: Streams
    ) -> torch.Tensor:
        """Membership scores of the candidates, ``[runs, n]``: members score higher. Scales differ among attacks.

        A candidate's score does not depend on the other candidates, unless the attack says so.

        Args:
            target: the released models.
            members: samples that they were trained on.
            nonmembers: samples that they were not trained on.
            candidates: the samples in question.
            streams: one per run.
        """
        raise NotImplementedError


class Inversion(NamedTuple):
    """An attacker's estimates of classes.

    ``images``: network inputs, ``[runs, k, C, H, W]``; where a trial became non-finite, they are not finite either.
    ``loss``: the model's cross-entropy on each of them, ``[runs, k]``.
    """

    images: torch.Tensor
    loss: torch.Tensor


class ModelInversion(Component):
    """Recovers a typical image of a class."""

    def effort(self, classes: int) -> Effort:
        """Computation for inverting one target."""
        return Effort(classes, 1)

    def invert(self, target: TrainedModels, auxiliary: torch.Tensor, labels: torch.Tensor) -> Inversion:
        """One image per run and label, all side by side; none depends on the others.

        Args:
            target: the released models.
            auxiliary: network inputs that none of them was trained on, ``[m, C, H, W]``.
            labels: classes to recover, ``[k]``.
        """
        raise NotImplementedError


MEMBERSHIP_ATTACKS: Registry[MembershipAttack] = Registry("membership attack", "leakbench.attacks.released")
MODEL_INVERSIONS: Registry[ModelInversion] = Registry("model inversion", "leakbench.attacks.released")
