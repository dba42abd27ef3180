"""The clients of one repetition: their samples, their model and their random streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leakbench.data.base import Dataset, Split
from leakbench.defenses.base import Defense
from leakbench.errors import ConfigError
from leakbench.federated.partition import iid_partition
from leakbench.lazy import torch
from leakbench.models.base import BatchNorm, Model, Network, build_network
from leakbench.randomness import Streams, stream_seed

OfSeeds = Literal["same", "distinct"]
"""Whether all seeds of a job attack the same samples, or each has victims of its own."""
SAME_OR_DISTINCT = (
    "same: all seeds have the same victims, as in the papers; distinct: each has the next ones, so that a seed draws "
    "its model and its victims"
)
"""Description of the field of protocols."""
BLOCK = 256
"""Samples that are loaded at once to look at their labels."""


@dataclass(frozen=True)
class Victims:
    """``n`` clients with ``B`` samples each.

    Attributes:
        network: the shared model.
        parameters: its initial parameters, ``[d]``.
        values: images in [0, 1], ``[n, B, C, H, W]``, or token ids ``[n, B, L]``.
        inputs: the same as network inputs.
        labels: ``[n, B]``.
        streams: one random stream per client, the same for every defense and attack.
    """

    network: Network
    parameters: torch.Tensor
    values: torch.Tensor
    inputs: torch.Tensor
    labels: torch.Tensor
    streams: Streams

    def in_mode(self, batch_norm: BatchNorm) -> Victims:
        """The same clients, with BatchNorm layers in another mode."""
        return replace(self, network=self.network.in_mode(batch_norm))

    def under(self, defense: Defense, label: str, seed: int) -> Victims:
        """The same clients, with the model that a defense makes of theirs; themselves where it makes none.

        Args:
            defense: the mechanism.
            label: of the data set, as for :func:`gather_victims`.
            seed: of the repetition, likewise.
        """
        if not defense.overrides("extend"):
            return self
        network = model_under(defense, self.network, tuple(self.inputs.shape[2:]), label, seed)
        return replace(self, network=network, parameters=network.parameters)


def unlike_rows(dataset: Dataset, first_index: int, clients: int, batch_size: int) -> list[int]:
    """Samples of the test split from ``first_index`` on, without those whose label their batch has already.

    Every batch begins after the last sample of the one before.

    >>> from leakbench.data.embedded import Digits
    >>> dataset = Digits(size=8)
    >>> dataset.load("test", range(9, 14)).labels.tolist()
    [9, 0, 1, 2, 3]
    >>> unlike_rows(dataset, first_index=9, clients=2, batch_size=2)
    [9, 10, 11, 12]

    Raises:
        ConfigError: the split ends before, or there are fewer classes than samples in a batch.
    """
    rows: list[int] = []
    seen: set[int] = set()
    length = dataset.length("test")
    while len(rows) < clients * batch_size:
        block = range(first_index, min(length, first_index + BLOCK))
        if not block or batch_size > dataset.classes:
            raise ConfigError(
                f"unlike: the test split of '{dataset.name}' has no {clients} batches of {batch_size} samples with "
                "labels of their own; take smaller batches, fewer clients, or a smaller first_index"
            )
        for row, label in zip(block, dataset.load("test", block).labels.tolist(), strict=True):
            if label not in seen and len(rows) < clients * batch_size:
                rows.append(row)
                seen = set() if len(rows) % batch_size == 0 else seen | {label}
        first_index = block.stop
    return rows


def initial_network(
    dataset: Dataset, label: str, model: Model, seed: int, device: torch.device, *number: int
) -> Network:
    """The model of a repetition, or one of several by its number, as it is initialised: see :func:`gather_victims`."""
    start = stream_seed(label, seed, "initialisation", *number)
    return build_network(model, dataset.shape, dataset.classes, start, device)


def model_under(defense: Defense, network: Network, shape: tuple[int, ...], label: str, seed: int) -> Network:
    """The model that clients train under a defense, initialised for a repetition: see :meth:`Victims.under`."""
    return defense.extend(network, shape, stream_seed(label, seed, "extension"))


def gather_victims(
    dataset: Dataset,
    label: str,
    model: Model,
    seed: int,
    *,
    clients: int,
    batch_size: int,
    first_index: int,
    device: torch.device,
    split: Split = "test",
    of_seeds: OfSeeds = "same",
    unlike: bool = False,
) -> Victims:
    """Clients that hold consecutive samples of the test split, from ``first_index`` on.

    The seed draws the model's initialisation and the randomness of defenses and attacks. By default every repetition
    attacks the same samples, as the papers do; else each has the samples after those of the seed before. With
    ``split="train"`` the seed also draws the samples, from the whole split.

    >>> from leakbench.data.embedded import Digits
    >>> from leakbench.models.convnets import SimpleConvNet
    >>> dataset, model, device = Digits(size=16), SimpleConvNet(width=2), torch.device("cpu")
    >>> victims = gather_victims(
    ...     dataset, "digits16", model, seed=0, clients=4, batch_size=2, first_index=1, device=device
    ... )
    >>> victims.values.shape, victims.labels[0].tolist(), victims.streams.keys[3]
    (torch.Size([4, 2, 1, 16, 16]), [1, 2], ('digits16', 0, 'client', 3))

    Args:
        dataset: the data set of the samples.
        label: the data set's label, which names the random streams.
        model: the clients' model.
        seed: of the repetition.
        clients: number of clients, n.
        batch_size: samples of each client, B.
        first_index: first sample, in the test split alone.
        device: of the tensors.
        split: of the samples.
        of_seeds: whether all seeds have the same samples of the test split, or distinct ones.
        unlike: whether samples of the test split are passed over whose label their batch has already.

    Raises:
        ConfigError: the split has too few samples.
    """
    if split == "train":
        seed_of_parts = stream_seed(label, seed, "partition")
        rows: Sequence[int] = (
            iid_partition(dataset.length("train"), clients, batch_size, seed_of_parts).flatten().tolist()
        )
    elif unlike:
        rows = unlike_rows(dataset, first_index, clients, batch_size)
    else:
        count = clients * batch_size
        first_index += seed * count if of_seeds == "distinct" else 0
        rows = range(first_index, first_index + count)
    samples = dataset.load(split, rows)
    values = samples.values.unflatten(0, (clients, batch_size)).to(device)
    network = initial_network(dataset, label, model, seed, device)
    return Victims(
        network=network,
        parameters=network.parameters,
        values=values,
        inputs=dataset.normalise(values),
        labels=samples.labels.unflatten(0, (clients, batch_size)).to(device),
        streams=Streams([(label, seed, "client", client) for client in range(clients)]),
    )
