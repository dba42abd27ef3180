"""The membership attack of the paper on channels: four views of a sample, each read by a network of its own."""

from __future__ import annotations

import itertools
import math
from functools import cache

from pydantic import Field

from leakbench.attacks.released.base import MEMBERSHIP_ATTACKS, Labelled, MembershipAttack, Target
from leakbench.attacks.released.outputs import ModelOutputs
from leakbench.effort import Effort
from leakbench.federated.gradients import MEMORY_BUDGET, BatchGradients
from leakbench.federated.training import Start, Training, TrainingSet, train_runs
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.models.trained import TrainedModels
from leakbench.randomness import Streams, stream_seed

EMBEDDING, FUSION = 64, (256, 256, 128, 64)
"""Outputs of each branch, and inputs of the four layers that read all of them."""


BRANCH, GRADIENT = (128, EMBEDDING), (256, 128, EMBEDDING)
"""Units of the branches of posteriors, loss and label, and of that of the gradient."""


def _multiply_adds(classes: int, features: int) -> float:
    """Multiply-adds of the networks for one sample, forward and backward, which takes twice as many."""
    inputs = ((classes, *BRANCH), (1, *BRANCH), (classes, *BRANCH), ((classes // 2) * (features // 2), *GRADIENT))
    layers = [pair for sizes in (*inputs, (*FUSION, 2)) for pair in itertools.pairwise(sizes)]
    return 3.0 * (25 * classes * features + sum(before * after for before, after in layers))


def _mask_sizes(classes: int, features: int) -> list[int]:
    """Inputs that may be dropped: those of the four branches, and those of the layers that judge the embeddings."""
    return [classes, 1, classes, classes * features, *FUSION]


@cache
def _module() -> type[torch.nn.Module]:
    """The class is made on first use, since its base is torch's."""
    nn = torch.nn

    class FourBranches(nn.Module):
        """Reads samples as rows ``[B, 1, 1, columns]``: what :func:`_columns` makes, and perhaps dropout masks.

        Masks are factors, 0 or ``1 / (1 - p)``, one for every input of every layer that drops inputs.
        """

        def __init__(self, classes: int, features: int) -> None:
            super().__init__()

            def branch(*sizes: int) -> torch.nn.Sequential:
                layers: list[torch.nn.Module] = []
                for before, after in itertools.pairwise(sizes):
                    layers += [nn.Linear(before, after), nn.ReLU()]
                return nn.Sequential(*layers[:-1])

            self.classes, self.features = classes, features
            self.columns = [classes, 1, classes, classes, features]
            self.masks = _mask_sizes(classes, features)
            self.posteriors = branch(classes, *BRANCH)
            self.loss = branch(1, *BRANCH)
            self.label = branch(classes, *BRANCH)
            self.gradient_image = nn.Sequential(
                nn.Conv2d(1, 1, 5, padding=2), nn.BatchNorm2d(1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
            )
            self.gradient = branch((classes // 2) * (features // 2), *GRADIENT)
            self.fusion = nn.ModuleList(
                nn.Linear(before, after) for before, after in zip(FUSION, (*FUSION[1:], 2), strict=True)
            )

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            rows = rows.flatten(1)
            samples = sum(self.columns)
            posteriors, loss, label, residual, features = rows[:, :samples].split(self.columns, dim=1)
            gradient = (residual[:, :, None] * features[:, None, :]).flatten(1)
            views = [posteriors, loss, label, gradient]
            masks = rows[:, samples:].split(self.masks, dim=1) if rows.shape[1] > samples else None
            if masks is not None:
                views = [view * mask for view, mask in zip(views, masks, strict=False)]
            image = views[3].unflatten(1, (1, self.classes, self.features))
            values = torch.cat(
                [
                    self.posteriors(views[0]),
                    self.loss(views[1]),
                    self.label(views[2]),
                    self.gradient(self.gradient_image(image)),
                ],
                dim=1,
            )
            for index, layer in enumerate(self.fusion):
                values = values if index == 0 else torch.relu(values)
                values = layer(values if masks is None else values * masks[4 + index])
            return values

    return FourBranches


def _columns(outputs: ModelOutputs) -> torch.Tensor:
    """Ranked posteriors, loss, label, and both factors of the last layer's gradient: ``[runs, n, 1, 1, columns]``."""
    ranked = outputs.posteriors.sort(dim=-1, descending=True).values
    parts = [ranked, outputs.loss[..., None], outputs.one_hot, outputs.residual, outputs.features]
    return torch.cat(parts, dim=-1)[:, :, None, None]


@MEMBERSHIP_ATTACKS.register("four_branch", version=1)
class FourBranch(MembershipAttack):
    """The white-box attack of Tan et al. 2024 with the layers of ML-Doctor (Liu et al. 2022).

    Ranked posteriors, loss and one-hot label each pass through 128 and 64 units, the gradient of the last layer's
    weights as an image through a 5x5 convolution, BatchNorm, 2x2 pooling and 256, 128 and 64 units. Layers of 256, 128,
    64 and 2 units judge the four embeddings. Inputs of every branch and of these layers are dropped out in training.

    Gradients are those of single samples, in closed form; ML-Doctor's code adds up those of all samples so far. The
    convolution keeps the image's size, which the paper leaves open.
    """

    rate: float = Field(1e-3, gt=0, description="learning rate of Adam; ML-Doctor's 1e-5 leaves small sets unlearnt")
    epochs: int = Field(50, ge=1, description="passes over the samples whose membership is known")
    batch_size: int = Field(64, ge=1, description="samples per step")
    dropout: float = Field(0.2, ge=0, lt=1, description="part of the inputs that is dropped")

    def effort(self, known: int, targets: int, of: Target) -> Effort:
        """Its training, too, in passes through the attacked models: by the multiply-adds of both."""
        steps = self.epochs * math.ceil(known / self.batch_size)
        size = _multiply_adds(of.classes, of.features) / of.multiply_adds
        return super().effort(known, targets, of).plus(Effort(size * self.batch_size, 1).times(steps).beside(targets))

    def score(
        self, target: TrainedModels, members: Labelled, nonmembers: Labelled, candidates: Labelled, streams: Streams
    ) -> torch.Tensor:
        known = [ModelOutputs.of(target, samples) for samples in (members, nonmembers)]
        columns = torch.cat([_columns(outputs) for outputs in known], dim=1)
        labels = torch.cat([torch.full_like(known[0].labels, 1), torch.full_like(known[1].labels, 0)], dim=1)
        network, starts = self._networks(known[0], streams)
        masks = sum(_mask_sizes(known[0].logits.shape[-1], known[0].features.shape[-1]))

        def drop(rows: torch.Tensor, _: torch.Tensor, __: torch.Tensor, streams: Streams) -> torch.Tensor:
            kept = streams.uniform(rows.shape[1], 1, 1, masks, device=rows.device) >= self.dropout
            return torch.cat([rows, kept / (1 - self.dropout)], dim=-1)

        steps = self.epochs * math.ceil(labels.shape[1] / self.batch_size)
        training = Training(steps=steps, batch_size=self.batch_size, optimiser="adam", rate=self.rate, weight_decay=0)
        together = network.rows_within(MEMORY_BUDGET, (self.batch_size, *columns.shape[2:]))
        trained = train_runs(
            Start(network, starts),
            TrainingSet(columns, labels),
            streams,
            training,
            transform=drop,
            gradients=BatchGradients(together),
        )
        outside, inside = trained.models.logits(_columns(ModelOutputs.of(target, candidates))).unbind(dim=-1)
        return inside - outside

    def _networks(self, outputs: ModelOutputs, streams: Streams) -> tuple[Network, torch.Tensor]:
        """The architecture, and each run's initialisation ``[runs, d]``."""
        classes, features = outputs.logits.shape[-1], outputs.features.shape[-1]
        networks = []
        with torch.random.fork_rng(devices=[]):
            for key in streams.keys:
                torch.manual_seed(stream_seed(*key, "initialisation"))
                networks.append(Network(_module()(classes, features), outputs.logits.device))
        return networks[0], torch.stack([network.parameters for network in networks])
