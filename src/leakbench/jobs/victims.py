"""The clients of one repetition: their samples, their model and their random streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakbench.data.base import Dataset, Split
from leakbench.federated.partition import iid_partition
from leakbench.lazy import torch
from leakbench.models.base import BatchNorm, Model, Network, build_network
from leakbench.randomness import Streams, stream_seed


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
        """The same clients, whose BatchNorm layers normalise as told."""
        return replace(self, network=self.network.in_mode(batch_norm))


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
) -> Victims:
    """Clients whose samples follow each other in the test split from ``first_index`` on.

    Every repetition attacks the same samples, as the papers do; the seed draws the model's initialisation and the
    randomness of defenses and attacks. Of the train split the seed draws the samples, too, at random from all of it.

    Args:
        dataset: whose samples are attacked.
        label: the data set's label, which names the random streams.
        model: what the clients compute with.
        seed: of the repetition.
        clients: how many, n.
        batch_size: samples that each holds, B.
        first_index: of the test split alone.
        device: where to put them.
        split: where the samples are from.

    Raises:
        ConfigError: the train split has too few samples.
    """
    if split == "train":
        seed_of_parts = stream_seed(label, seed, "partition")
        rows: Sequence[int] = (
            iid_partition(dataset.length("train"), clients, batch_size, seed_of_parts).flatten().tolist()
        )
    else:
        rows = range(first_index, first_index + clients * batch_size)
    samples = dataset.load(split, rows)
    values = samples.values.unflatten(0, (clients, batch_size)).to(device)
    network = build_network(model, dataset.shape, dataset.classes, stream_seed(label, seed, "initialisation"), device)
    return Victims(
        network=network,
        parameters=network.parameters,
        values=values,
        inputs=dataset.normalise(values),
        labels=samples.labels.unflatten(0, (clients, batch_size)).to(device),
        streams=Streams([(label, seed, "client", client) for client in range(clients)]),
    )
