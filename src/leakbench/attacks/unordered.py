"""Federated averaging without its order: many local steps, whose batches and labels the server does not know.

A client goes through its images in an order that it draws anew in every epoch. The attack (Dimitrov et al., TMLR 2022)
holds a copy of all images for each epoch, simulates the client's steps on the copies in the order that they happen to
have, and asks that every epoch holds the same images in some order: a function of a set of images, such as the largest
response of random filters, must have the same value in each. At last the copies of an image are looked for, by the
assignment with the smallest error, and averaged.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leakbench.attacks.base import ATTACKS, Knowledge, Observations, Reconstruction
from leakbench.attacks.engine import Cost, Minimum, TrialData
from leakbench.attacks.gradient_matching import GradientMatching, LabelHandling, Search
from leakbench.attacks.labels import infer_labels
from leakbench.attacks.objectives import Cosine, Objective
from leakbench.attacks.optimisers import Adam, Optimiser
from leakbench.attacks.regularisers import Regulariser, TotalVariation
from leakbench.errors import Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.lazy import np, torch
from leakbench.randomness import Streams, generator

OTHER_LABEL = 1e6
"""Cost of assigning a copy to one with another label; errors of inputs are far smaller."""


class SameImages(BaseModel):
    """The penalty on epochs that hold different images, whatever the order of each (Dimitrov et al. 2022, section 4.2).

    The mean, over all pairs of epochs, of the mean squared difference of a function that no order changes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    weight: float = Field(0.1, ge=0, description="factor of the penalty")
    over: Literal["mean", "max"] = Field("max", description="what the function takes over the images of an epoch")
    filters: int = Field(96, ge=0, description="random filters of 3x3 whose outputs it takes; 0: the pixels themselves")

    def drawn(self, channels: int, like: torch.Tensor) -> torch.Tensor | None:
        """The filters, which are always the same, ``[filters, C, 3, 3]``; None of pixels."""
        if not self.filters:
            return None
        draws = torch.randn(self.filters, channels, 3, 3, generator=generator("filters of epochs"))
        return draws.to(like) / math.sqrt(9 * channels)

    def __call__(self, epochs: torch.Tensor, filters: torch.Tensor | None) -> torch.Tensor:
        """The penalty without its weight: images ``[E, N, C, H, W]`` to a scalar, with what :meth:`drawn` returns."""
        values = epochs
        if filters is not None:
            outputs = torch.nn.functional.conv2d(epochs.flatten(0, 1), filters, padding=1)
            values = outputs.unflatten(0, epochs.shape[:2])
        of_sets = values.mean(dim=1) if self.over == "mean" else values.amax(dim=1)
        penalty: torch.Tensor = 2 * of_sets.var(dim=0, correction=0).mean()  # the mean over pairs is twice the variance
        return penalty


@ATTACKS.register("unordered", version=1)
class Unordered(GradientMatching):
    """Data leakage in federated averaging (Dimitrov et al. 2022): a copy of the images for every epoch, in any order.

    Labels are a set too: each restart gives them to places at random. The authors' weights belong to a distance that
    counts later layers less, which is not here: distance, total variation and optimiser are those of Inverting
    Gradients, and the penalty on epochs is theirs (the largest response of 96 filters).
    """

    objective: Objective = Cosine()
    regularisers: tuple[Regulariser, ...] = (TotalVariation(weight=0.01),)
    optimiser: Optimiser = Adam(rate=0.1, signed=True, decay="steps")
    iterations: int = Field(1000, ge=1, description="evaluations of the objective's gradient per restart")
    box: bool = True
    labels: LabelHandling = Field(
        "interpolated", description="known: granted, as a set; or how to infer them beforehand; not joint"
    )
    same_images: SameImages = Field(SameImages(), description="penalty on epochs that hold different images")

    @model_validator(mode="after")
    def _labels_are_a_set(self) -> Unordered:
        if self.labels == "joint":
            raise ValueError("labels: 'joint' scores belong to places, and here labels are a set; infer them instead")
        return self

    @property
    def several_rounds(self) -> bool:
        return False

    def _search(self, observations: Observations, knowledge: Knowledge) -> Search:
        return _UnorderedSearch(self, replace(observations, later=()), knowledge)


class _UnorderedSearch(Search):
    """The search for the images of all epochs, ``[E N, C, H, W]``, which the simulated client takes once, in order.

    Attributes:
        epochs: number of epochs.
        placed: labels of all copies, ``[trials, E N]``; alike in all epochs of a trial.
    """

    draws: ClassVar[bool] = False

    attack: Unordered
    placed: torch.Tensor

    def __init__(self, attack: Unordered, observations: Observations, knowledge: Knowledge) -> None:
        images, *shape = observations.batch_shape
        local, self._client = observations.local, observations
        size = local.batch_size or images
        if local.steps * size % images:
            raise Infeasible(
                f"attack 'unordered' needs whole epochs: {local.steps} local steps on {size} images each are "
                f"{local.steps * size / images:.2f} epochs of {images}"
            )
        self.epochs = local.steps * size // images
        copies = replace(
            observations,
            batch_shape=(self.epochs * images, *shape),
            local=LocalTraining(steps=local.steps, rate=local.rate, batch_size=size),
            start=None if observations.start is None else observations.start.repeat(1, self.epochs, 1, 1, 1),
        )
        super().__init__(attack, copies, knowledge)

    def _labels(self) -> torch.Tensor:
        if self.attack.labels == "known":
            assert self.knowledge.labels is not None
            return self.knowledge.labels.sort(dim=1).values  # the order is not granted
        assert self.attack.labels != "joint"
        return infer_labels(self._client, self.attack.labels, replace(self.knowledge, mechanism=None))

    def starts(self, streams: Streams) -> torch.Tensor:
        assert self.labels is not None
        keys = streams.child("places").uniform(self.attack.restarts, self.labels.shape[1], device=self.labels.device)
        held = self.labels[:, None].expand(-1, self.attack.restarts, -1)
        self.placed = held.gather(2, keys.argsort(dim=2)).flatten(0, 1).repeat(1, self.epochs)
        return super().starts(streams)

    def trial_data(self, trials: torch.Tensor) -> TrialData:
        return {**super().trial_data(trials), "labels": self.placed[trials]}

    def cost(self) -> Cost:
        matched, penalty = super().cost(), self.attack.same_images
        filters = penalty.drawn(self.shape[1], self.observations.gradients)

        def cost(variables: torch.Tensor, data: TrialData) -> torch.Tensor:
            value = matched(variables, data)
            if self.epochs == 1 or not penalty.weight:
                return value
            images, _ = self.candidates(variables, data)
            return value + penalty.weight * penalty(images.unflatten(0, (self.epochs, -1)), filters)

        return cost

    def result(self, minimum: Minimum, trials: torch.Tensor) -> Reconstruction:
        """The means of the copies of each image."""
        images, _ = self.candidates(minimum.points, self.given(trials))
        copies = images.unflatten(1, (self.epochs, -1))
        labels = self.placed[trials][:, : copies.shape[2]]
        averaged = torch.stack([averaged_copies(*row) for row in zip(copies, labels, strict=True)])
        return Reconstruction(averaged, minimum.objective, minimum.diverged_at, labels)


def averaged_copies(epochs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The images of the first epoch, each averaged with its copies in the others, ``[N, C, H, W]``.

    Args:
        epochs: ``[E, N, C, H, W]``; each epoch's images in an order of its own.
        labels: of the places in every epoch, ``[N]``.
    """
    from scipy.optimize import linear_sum_assignment

    flat = epochs.flatten(2).double().nan_to_num()
    other = OTHER_LABEL * (labels[:, None] != labels).double()
    total = epochs[0].clone()
    for copies, images in zip(flat[1:], epochs[1:], strict=True):
        cost = torch.cdist(flat[0], copies, compute_mode="donot_use_mm_for_euclid_dist").square() + other
        order = linear_sum_assignment(cost.cpu().numpy())[1]
        total = total + images[torch.from_numpy(np.asarray(order)).to(images.device)]
    return total / len(epochs)
