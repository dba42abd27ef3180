"""One client's training and the images of others: what jobs on released models and on their shadow models share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Literal

from pydantic import Field, model_validator

from leakbench.attacks.released.base import Labelled, MembershipSplit, Target, membership_split
from leakbench.data.base import Dataset, image_dataset
from leakbench.effort import Effort
from leakbench.errors import ConfigError
from leakbench.federated.training import Training
from leakbench.jobs.base import Findings, Job, JobKind, Setting
from leakbench.jobs.victims import initial_network
from leakbench.lazy import torch
from leakbench.models.base import Model, Network
from leakbench.models.sizes import multiply_adds, parameter_counts
from leakbench.randomness import Streams


@dataclass(frozen=True)
class ClientImages:
    """The client's images and the others, as network inputs; clean.

    Attributes:
        dataset: that they are of.
        label: of the data set, which names random streams.
        members: the client's.
        evaluation: those that judge accuracy, and non-members.
        auxiliary: those that model inversion knows.
    """

    dataset: Dataset
    label: str
    members: Labelled
    evaluation: Labelled
    auxiliary: Labelled

    def key(self, seed: int) -> tuple[str | int, ...]:
        """The name of the random streams of a seed."""
        return self.label, seed, "client", 0

    def split(self, seed: int) -> MembershipSplit:
        """Samples that membership attacks know, and those that they are asked about; the same for all defenses."""
        streams = Streams([(*self.key(seed), "membership")])
        return membership_split(len(self.members.labels), len(self.evaluation.labels), streams)

    def parts(self, seed: int) -> list[Labelled]:
        """Known members and non-members, members and non-members to judge."""
        sets = (self.members, self.evaluation)
        return [_chosen(sets[place % 2], rows[0]) for place, rows in enumerate(self.split(seed))]


def _chosen(samples: Labelled, rows: torch.Tensor) -> Labelled:
    rows = rows.to(samples.labels.device)
    return Labelled(samples.images[rows], samples.labels[rows])


class ClientTraining(JobKind):
    """Base of kinds that train models on one client's images.

    Where ``steps`` are swept, the models of a run are snapshots of one training.
    """

    images: int | None = Field(None, ge=6, description="the victim's: the first of the train split; all by default")
    evaluation: tuple[int, int] | None = Field(
        None, description="test images that judge accuracy, and non-members: from, to (exclusive); by default one half"
    )
    auxiliary: tuple[int, int] | None = Field(
        None, description="test images that model inversion knows: from, to (exclusive); by default the second half"
    )
    steps: int = Field(10_000, ge=1, description="optimiser steps")
    batch_size: int = Field(64, ge=1, description="images per step")
    optimiser: Literal["sgd", "adam"] = Field("sgd", description="the client's optimiser")
    rate: float = Field(0.01, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(5e-4, ge=0, description="times the parameters, added to the gradient")

    @model_validator(mode="after")
    def _images_of_one_purpose(self) -> ClientTraining:
        ranges = [part for part in (self.evaluation, self.auxiliary) if part is not None]
        if any(start < 0 or stop - start < 1 for start, stop in ranges):
            raise ValueError("evaluation and auxiliary need a first image and one after the last")
        if len(ranges) == 2 and max(ranges[0][0], ranges[1][0]) < min(ranges[0][1], ranges[1][1]):
            raise ValueError("evaluation and auxiliary share images: what inversion knows must not judge accuracy")
        if len(ranges) == 1:
            raise ValueError("evaluation and auxiliary: give both, or neither for the two halves of the test split")
        return self

    def run(self, job: Job, device: torch.device) -> Findings:
        return self.results(job, device, [self])[0]

    def run_swept(self, job: Job, device: torch.device) -> Iterator[tuple[Setting, Findings]]:
        for settings, jobs in _by_training(job):
            kinds = [_client(each) for each in jobs]
            longest = max(range(len(jobs)), key=lambda place: kinds[place].steps)
            yield from zip(settings, kinds[longest].results(jobs[longest], device, kinds), strict=True)

    def effort_swept(self, job: Job) -> Effort:
        efforts = []
        for _, jobs in _by_training(job):
            longest = max(jobs, key=lambda each: _client(each).steps)
            trained = _client(longest).training_effort(longest)
            efforts.append(reduce(Effort.plus, (_client(each).attack_effort(each) for each in jobs), trained))
        return reduce(Effort.plus, efforts)

    def effort(self, job: Job) -> Effort:
        return self.training_effort(job).plus(self.attack_effort(job))

    def results(self, job: Job, device: torch.device, kinds: Sequence[ClientTraining]) -> list[Findings]:
        """The findings for each of some numbers of steps.

        Args:
            job: the one that takes the most steps.
            device: to compute on.
            kinds: protocols that differ from the job's in ``steps`` alone, by at most its number.
        """
        raise NotImplementedError

    def training_effort(self, job: Job) -> Effort:
        """The effort of training."""
        raise NotImplementedError

    def attack_effort(self, job: Job) -> Effort:
        """The effort of what follows for one number of steps."""
        raise NotImplementedError

    @property
    def training(self) -> Training:
        """The victim's training."""
        return Training(
            steps=self.steps,
            batch_size=self.batch_size,
            optimiser=self.optimiser,
            rate=self.rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )

    def sizes(self, job: Job) -> tuple[int, int]:
        """Numbers of members and of evaluation images, from the plan alone."""
        dataset = job.dataset.single()
        start, stop = self.evaluation or (0, dataset.expected("test") // 2)
        return self.images or dataset.expected("train"), stop - start

    def shadow_training(self, members: int, others: int) -> Training:
        """The training of an undefended model on half of the samples that membership attacks know.

        It takes as many epochs as the victim's: of ``members`` samples, where attacks know a third of the smaller set,
        and as many of the other.
        """
        steps = max(1, round(self.steps * (min(members, others) // 3) / members))
        return self.training.model_copy(update={"steps": steps})

    def load(self, job: Job, device: torch.device) -> ClientImages:
        """The images of all.

        Raises:
            ConfigError: there are fewer than the protocol asks for.
        """
        dataset = image_dataset(job.dataset.single(), f"jobs of kind '{self.name}'")
        available, test = dataset.length("train"), dataset.length("test")
        count = available if self.images is None else self.images
        if count > available:
            raise ConfigError(f"images: {count} is more than the train split of '{dataset.name}' has ({available})")
        parts = (self.evaluation or (0, test // 2), self.auxiliary or (test // 2, test))
        loaded = [dataset.load("train", range(count)), *(dataset.load("test", range(*part)) for part in parts)]
        sets = [Labelled(dataset.normalise(images.to(device)), labels.to(device)) for images, labels in loaded]
        if len(sets[1].labels) < 6:
            raise ConfigError("evaluation: membership attacks need at least 6 images")
        return ClientImages(dataset, job.dataset.label, *sets)

    def network(self, job: Job, seed: int, device: torch.device) -> Network:
        """The model before training, which the public knows."""
        return initial_network(job.dataset.single(), job.dataset.label, job.model.single(), seed, device)


def target_of(job: Job) -> Target:
    """Sizes of the job's model, from the plan alone."""
    dataset = job.dataset.single()
    return _sizes(job.model.single(), dataset.shape, dataset.classes)


@cache
def _sizes(model: Model, shape: tuple[int, ...], classes: int) -> Target:
    *_, weights, _ = parameter_counts(model, shape, classes).values()
    return Target(multiply_adds(model, shape, classes), classes, weights // classes)


def _by_training(job: Job) -> Iterator[tuple[list[Setting], list[Job]]]:
    """The combinations of the swept fields, those together that differ in ``steps`` alone."""
    groups: dict[str, tuple[list[Setting], list[Job]]] = {}
    for setting, one in job.combinations():
        same = json.dumps({key: value for key, value in one.kind.parameters().items() if key != "steps"})
        settings, jobs = groups.setdefault(same, ([], []))
        settings.append(setting)
        jobs.append(one)
    yield from groups.values()


def _client(job: Job) -> ClientTraining:
    assert isinstance(job.kind, ClientTraining)
    return job.kind
