"""Victims of several seeds: the same samples, or the next ones for each."""

from __future__ import annotations

import pytest
import torch

from leakbench.data.embedded import Digits
from leakbench.errors import ConfigError
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.fisher import FisherJob
from leakbench.jobs.victims import OfSeeds, Victims, gather_victims, unlike_rows
from leakbench.models.convnets import SimpleConvNet

DATASET = Digits(size=8)
CPU = torch.device("cpu")


def gathered(seed: int, of_seeds: OfSeeds) -> Victims:
    return gather_victims(
        DATASET,
        "digits8",
        SimpleConvNet(width=2),
        seed,
        clients=2,
        batch_size=3,
        first_index=5,
        device=CPU,
        of_seeds=of_seeds,
    )


def test_the_same() -> None:
    first, second = (gathered(seed, "same") for seed in (0, 1))
    torch.testing.assert_close(first.values, second.values, rtol=0, atol=0)
    assert not torch.equal(first.parameters, second.parameters)


def test_distinct_ones_follow_each_other() -> None:
    every = DATASET.load("test", range(5, 5 + 3 * 6)).values
    values = torch.cat([gathered(seed, "distinct").values.flatten(0, 1) for seed in range(3)])
    torch.testing.assert_close(values, every, rtol=0, atol=0)
    same, distinct = (gathered(1, which) for which in ("same", "distinct"))
    assert torch.equal(same.parameters, distinct.parameters) and same.streams.keys == distinct.streams.keys


def test_seeds_beyond_the_split_are_an_error() -> None:
    with pytest.raises((ConfigError, IndexError)):
        gathered(10_000, "distinct")


@pytest.mark.parametrize("kind", [AttackJob, FisherJob])
def test_protocols_say_which(kind: type[AttackJob | FisherJob]) -> None:
    """At its default the field is no part of an identity."""
    same, distinct = kind(clients=1, batch_size=1), kind(clients=1, batch_size=1, victims="distinct")
    assert not same.distinct_victims and distinct.distinct_victims
    assert "victims" not in same.parameters() and distinct.parameters()["victims"] == "distinct"


def test_samples_of_unlike_labels() -> None:
    """Against a search written out; the batches begin where the ones before ended."""
    labels = DATASET.load("test", range(400)).labels.tolist()
    batches, index = [], 5
    for _ in range(3):
        batch: list[int] = []
        while len(batch) < 6:
            if labels[index] not in {labels[row] for row in batch}:
                batch.append(index)
            index += 1
        batches.append(batch)
    assert [row for batch in batches for row in batch] == unlike_rows(DATASET, 5, clients=3, batch_size=6)
    assert batches[-1][-1] > 5 + 3 * 6 - 1  # some were passed over

    victims = gather_victims(
        DATASET, "digits8", SimpleConvNet(width=2), 0, clients=3, batch_size=6, first_index=5, device=CPU, unlike=True
    )
    assert victims.labels.tolist() == [[labels[row] for row in batch] for batch in batches]


@pytest.mark.parametrize(("clients", "batch_size"), [(1, 11), (1000, 5)])
def test_too_few_samples_of_unlike_labels(clients: int, batch_size: int) -> None:
    with pytest.raises(ConfigError, match="labels of their own; take smaller batches"):
        unlike_rows(DATASET, 1, clients, batch_size)


def test_unlike_samples_are_the_same_for_all_seeds() -> None:
    assert "unlike" not in AttackJob(clients=1, batch_size=1).parameters()
    with pytest.raises(ValueError, match="seeds cannot count off their own"):
        AttackJob(clients=1, batch_size=1, unlike=True, victims="distinct")
