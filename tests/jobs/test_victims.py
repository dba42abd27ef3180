"""Victims of several seeds: the same samples, or the next ones for each."""

from __future__ import annotations

import pytest
import torch

from leakbench.data.embedded import Digits
from leakbench.errors import ConfigError
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.fisher import FisherJob
from leakbench.jobs.victims import OfSeeds, Victims, gather_victims
from leakbench.models.convnets import SimpleConvNet

DATASET = Digits(size=8)


def gathered(seed: int, of_seeds: OfSeeds) -> Victims:
    return gather_victims(
        DATASET,
        "digits8",
        SimpleConvNet(width=2),
        seed,
        clients=2,
        batch_size=3,
        first_index=5,
        device=torch.device("cpu"),
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
