"""Attempts of an attack on clients' uploads from several models, and how like the clients' data they come out.

Source: Zhang, Kang et al. (2023), section 7, Algorithms 1 and 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pydantic import Field, field_validator

from leakbench.attacks.base import Attack, Grant, Knowledge, Observations, Reconstruction
from leakbench.data.base import ImageDataset, image_dataset
from leakbench.defenses.base import Defense
from leakbench.defenses.clients import DefendedClients, Examples
from leakbench.defenses.tuned import SMALLEST_SPREAD
from leakbench.errors import ConfigError
from leakbench.federated.batches import without_replacement
from leakbench.federated.message import Message, gains, stacked
from leakbench.federated.partition import dirichlet_partition, iid_partition
from leakbench.federated.step import ClientSteps
from leakbench.federated.updates import Runs, run_updates
from leakbench.jobs.base import Job, JobKind, Setting
from leakbench.jobs.victims import initial_network
from leakbench.lazy import torch
from leakbench.metrics.assignment import assign, reorder
from leakbench.metrics.image import psnr, ssim
from leakbench.models.base import Network
from leakbench.randomness import Streams, stream_seed
from leakbench.records import Value
from leakbench.theory.distortion import noise_steepness

AUXILIARY = 512
"""Test images, at most, that reference attackers have."""

ROWS = 64 * 2**20
"""Coordinates of uploads that are attacked at once; only memory depends on it."""


class AttemptsProtocol(JobKind):
    """The clients, their models and uploads, and what an attacker is granted."""

    victim_fields: ClassVar[tuple[str, ...]] = ("clients", "images_per_client", "alpha", "batch_size")

    clients: int = Field(4, ge=2, description="clients, K; another one's upload is each one's null attack")
    images_per_client: int = Field(ge=1, description="images of each client, from the train split")
    alpha: float | None = Field(None, gt=0, description="concentration of the clients' labels; null: i.i.d.")
    batch_size: int = Field(2, ge=1, description="images of an upload, S")
    models: int = Field(ge=1, description="models, M")
    attempts: int = Field(ge=1, description="attacks on each client at each model, T")
    steps: int = Field(ge=0, description="steps of SGD that a model is trained for, R")
    training_batch: int = Field(8, ge=1, description="images of such a step")
    rate: float = Field(gt=0, description="learning rate of such a step")
    law_batches: int = Field(400, ge=2, description="batches of each client that say how its upload varies")
    knowledge: tuple[Grant, ...] = Field(("pixel_range",), description="side knowledge: labels, pixel_range")

    @field_validator("knowledge")
    @classmethod
    def _of_images(cls, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        unknown = sorted(set(grants) - {"labels", "pixel_range", "noise_variance"})
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: allowed are labels, pixel_range, noise_variance")
        return grants

    def granted_to(self, attack: Attack) -> set[Grant]:
        """Side knowledge that an attack may have."""
        return set(self.knowledge) if attack.observes else {*self.knowledge, "auxiliary_images"}


class Attempts(NamedTuple):
    """Results of attempts, each ``[K, M, T, S]``: similarity of a client's data to what comes of its upload.

    ``null_psnr``, ``null_ssim``: to what comes of the next client's upload.
    ``shown``: pixels of the first attempt at the first model, ``[K, S, C, H, W]``. ``diverged``: attempts that became
    non-finite.
    """

    psnr: torch.Tensor
    ssim: torch.Tensor
    null_psnr: torch.Tensor
    null_ssim: torch.Tensor
    shown: torch.Tensor
    diverged: float
    bits: float

    def passed(self, test: Setting) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether the attack recovers a datum, and the null attack does, by one test, boolean."""
        by_ssim, threshold = "similarity" in test, float(test["threshold"])
        pair = (self.ssim, self.null_ssim) if by_ssim else (self.psnr, self.null_psnr)
        return pair[0] > threshold, pair[1] > threshold


@dataclass(frozen=True)
class _Clients:
    """The clients of one seed: models and data.

    Attributes:
        network: the architecture.
        parameters: of every model, ``[M, d]``.
        images: pixels of the attacked batches, ``[K, S, C, H, W]``.
        labels: ``[K, S]``.
        held: network inputs of all images, ``[K, N, C, H, W]``, and their labels, ``[K, N]``.
    """

    network: Network
    parameters: torch.Tensor
    images: torch.Tensor
    labels: torch.Tensor
    held: tuple[torch.Tensor, torch.Tensor]


class AttackedClients:
    """The clients of one seed, with their models, and the attack on them."""

    def __init__(self, kind: AttemptsProtocol, job: Job, attack: Attack, seed: int, device: torch.device) -> None:
        self.kind, self.attack, self.seed, self.device = kind, attack, seed, device
        self.label, self.model = job.dataset.label, job.model.single()
        self.dataset = image_dataset(job.dataset.single(), "jobs of kind 'leakage'")
        self.clients = self._clients(self.dataset)

    def _clients(self, dataset: ImageDataset) -> _Clients:
        kind, count = self.kind, dataset.length("train")
        seed = stream_seed(self.label, self.seed, "partition")
        if kind.alpha is None:
            rows = iid_partition(count, kind.clients, kind.images_per_client, seed)
        else:
            labels = dataset.load("train", range(count)).labels
            rows = dirichlet_partition(labels, kind.clients, kind.images_per_client, kind.alpha, seed)
        samples = dataset.load("train", rows.flatten().tolist())
        pixels = samples.values.unflatten(0, tuple(rows.shape)).to(self.device)
        labels = samples.labels.unflatten(0, tuple(rows.shape)).to(self.device)
        networks = [
            initial_network(dataset, self.label, self.model, self.seed, self.device, number)
            for number in range(kind.models)
        ]
        held = dataset.normalise(pixels), labels
        parameters = self._trained(networks[0], torch.stack([network.parameters for network in networks]), held)
        size = kind.batch_size
        return _Clients(networks[0], parameters, pixels[:, :size], labels[:, :size], held)

    def _trained(
        self, network: Network, parameters: torch.Tensor, held: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Algorithm 1: all models after R steps on batches of their own, ``[M, d]``.

        Raises:
            ConfigError: a model became non-finite.
        """
        streams = Streams([(self.label, self.seed, "model", number) for number in range(self.kind.models)])
        images, labels = (part.flatten(0, 1) for part in held)
        size = min(self.kind.training_batch, len(labels))
        runs = Runs(parameters, self.kind.steps)

        def update(step: int) -> None:
            rows = without_replacement(streams.child("batch", step), len(labels), size, self.device)
            steps = ClientSteps(network, runs.parameters, images[rows], labels[rows], streams)
            moved = runs.parameters - self.kind.rate * steps.gradient
            runs.advance(step, moved, steps.loss, moved.isfinite().all(dim=1))

        run_updates("training models", self.kind.steps, update, {"runs": runs})
        if not bool(runs.alive.all()):
            raise ConfigError(f"the models became non-finite in {self.kind.steps} steps; lower rate ({self.kind.rate})")
        return runs.parameters

    def attempts(self, defenses: Sequence[Defense]) -> list[Attempts]:
        """All uploads of every client under each of several settings, attacked."""
        kind, clients = self.kind, self.clients
        rows = kind.attempts * kind.clients
        at_once = max(1, ROWS // (rows * clients.network.dimension))
        parts: list[list[tuple[torch.Tensor, ...]]] = [[] for _ in defenses]
        bits = [0.0] * len(defenses)
        for models in torch.arange(kind.models).split(at_once):
            numbers = models.tolist()
            beside = max(1, at_once // len(numbers))
            for first in range(0, len(defenses), beside):
                places = range(len(defenses))[first : first + beside]
                several = [[self._uploads(defenses[place], number) for number in numbers] for place in places]
                reconstruction = self._attack(list(itertools.chain(*several)), numbers * len(several))
                lost = reconstruction.diverged_at >= 0
                results = (*self._similarities(reconstruction, lost), lost)
                for place, messages, *of_setting in zip(
                    places, several, *(each.chunk(len(several)) for each in results), strict=True
                ):
                    bits[place] = max([bits[place], *(message.bits for message in messages)])
                    parts[place].append(tuple(of_setting))

        def by_client(values: torch.Tensor) -> torch.Tensor:
            """From rows ordered by model, attempt and client to ``[K, M, T, S]``."""
            ordered: torch.Tensor = values.unflatten(0, (kind.models, kind.attempts, kind.clients)).movedim(2, 0).cpu()
            return ordered

        attempts: list[Attempts] = []
        for of_setting, size in zip(parts, bits, strict=True):
            *scores, pixels, diverged = (torch.cat(each) for each in zip(*of_setting, strict=True))
            psnr, ssim, null_psnr, null_ssim = map(by_client, scores)
            shown = pixels[: kind.clients].cpu()
            attempts.append(Attempts(psnr, ssim, null_psnr, null_ssim, shown, float(diverged.sum()), size))
        return attempts

    def _keys(self, model: int) -> list[tuple[str | int, ...]]:
        """Keys of the random streams of all uploads at a model: attempt after attempt, in each client after client."""
        attempts, clients = range(self.kind.attempts), range(self.kind.clients)
        return [(self.label, self.seed, "upload", model, *at) for at in itertools.product(attempts, clients)]

    def _uploads(self, defense: Defense, model: int) -> Message:
        """All clients' uploads at a model, attempt after attempt: each is the first of its client."""
        clients, times, size = self.clients, self.kind.attempts, self.kind.batch_size
        streams = Streams(self._keys(model))
        samples = Examples(clients.held[0][:, :size].repeat(times, 1, 1, 1, 1), clients.labels.repeat(times, 1))
        defended = DefendedClients(defense, streams, samples, per_server=self.kind.clients)
        batch = defended.protect_data(defended.take(), streams.child("defense"))
        steps = ClientSteps(clients.network, clients.parameters[model], *batch, streams)
        return defended.send(steps, streams.child("defense"))

    def _attack(self, messages: list[Message], models: list[int]) -> Reconstruction:
        """Uploads at some models, a message for each, as observations of one search."""
        clients, rows = self.clients, self.kind.attempts * self.kind.clients
        parameters = clients.parameters[models]
        views = [message.view() for message in messages]
        observations = Observations(
            clients.network,
            parameters[0] if len(set(models)) == 1 else parameters.repeat_interleave(rows, dim=0),
            torch.cat(views),
            (self.kind.batch_size, *clients.held[0].shape[2:]),
            marked=stacked([message.marked for message in messages]),
            gain=gains(messages, views),
        )
        observations.check()
        granted = self.kind.granted_to(self.attack)
        variance = stacked([message.noise_variance for message in messages])
        knowledge = Knowledge(
            labels=clients.labels.repeat(len(observations) // len(clients.labels), 1) if "labels" in granted else None,
            pixel_range=self.dataset.pixel_range(self.device) if "pixel_range" in granted else None,
            noise_variance=variance if "noise_variance" in granted else None,
            auxiliary_images=self._auxiliary() if "auxiliary_images" in granted else None,
        )
        streams = Streams([key for model in models for key in self._keys(model)]).child("attack")
        return self.attack.reconstruct(observations, knowledge, streams)

    def _auxiliary(self) -> torch.Tensor:
        """Network inputs of test images, ``[m, C, H, W]``."""
        rows = range(min(AUXILIARY, self.dataset.length("test")))
        return self.dataset.normalise(self.dataset.load("test", rows).values.to(self.device))

    def _similarities(self, reconstruction: Reconstruction, lost: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """PSNR and SSIM to the clients' data, both of the null attack, ``[n, S]`` each; assigned pixels.

        A null attack compares a client's data with what comes of the next client's upload. Diverged attempts are as far
        from everything as black from white.
        """
        images = self.clients.images
        pixels = self.dataset.denormalise(reconstruction.images).nan_to_num().clamp(0, 1)
        truth = images.repeat(len(pixels) // len(images), 1, 1, 1, 1)

        def measured(guesses: torch.Tensor, failed: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
            assigned = reorder(guesses, assign(guesses, truth))
            scores = [
                metric(assigned.flatten(0, 1), truth.flatten(0, 1)).view(truth.shape[:2]) for metric in (psnr, ssim)
            ]
            return assigned, [each.masked_fill(failed[:, None], 0.0) for each in scores]

        def of_the_next_client(values: torch.Tensor) -> torch.Tensor:
            turned: torch.Tensor = values.unflatten(0, (-1, len(images))).roll(-1, dims=1).flatten(0, 1)
            return turned

        assigned, scores = measured(pixels, lost)
        _, null = measured(of_the_next_client(pixels), of_the_next_client(lost))
        return *scores, *null, assigned

    def law(self) -> tuple[dict[str, torch.Tensor], dict[str, Value]]:
        """Spread of uploads at the first model over batches of the clients' own images."""
        images, labels = self.clients.held
        spread, half = [], []
        for client in range(self.kind.clients):
            streams = Streams([(self.label, self.seed, "law", client, batch) for batch in range(self.kind.law_batches)])
            rows = without_replacement(streams, labels.shape[1], self.kind.batch_size, self.device)
            uploads = ClientSteps(
                self.clients.network, self.clients.parameters[0], images[client][rows], labels[client][rows], streams
            ).gradient.double()
            spread.append(uploads.std(dim=0).cpu())
            half.append(((uploads.amax(dim=0) - uploads.amin(dim=0)) / 2).cpu())
        sigma, delta = torch.stack(spread), torch.stack(half)
        moving = sigma > 0
        return {"sigma": sigma, "delta": delta.amax(dim=1)}, {
            "delta": delta.amax(dim=1).tolist(),
            "delta_median": delta.median(dim=1).values.tolist(),
            "sigma_median": [float(row[live].median()) for row, live in zip(sigma, moving, strict=True)],
            "dead": (~moving).double().mean(dim=1).tolist(),
            "steepness": [float(noise_steepness(row.clamp(min=SMALLEST_SPREAD))) for row in sigma],
            "dimension": float(sigma.shape[1]),
        }
