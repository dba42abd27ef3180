"""Seeds side by side: rows keep what is theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakbench.attacks.adaptive import Masked
from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.presets import DLGWolfe, IGScript
from leakbench.jobs.stacked import MOST, joint_knowledge, side_by_side, worthwhile
from leakbench.models.base import build_network
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams

ROWS = 2


def observed(seed: int) -> Observations:
    network = build_network(LeNet(width=2), (1, 8, 8), 4, seed)
    gradients = torch.full((ROWS, network.dimension), float(seed))
    return Observations(
        network,
        network.parameters,
        gradients,
        (1, 1, 8, 8),
        marked=gradients > 1,
        gain=gradients[:, :1],
        public=Streams([("public", seed, row) for row in range(ROWS)]),
    )


def test_every_row_has_its_model() -> None:
    parts = [observed(seed) for seed in range(3)]
    joint = side_by_side(parts)
    joint.check()
    assert len(joint) == 3 * ROWS
    for seed, part in enumerate(parts):
        rows = slice(ROWS * seed, ROWS * (seed + 1))
        assert torch.equal(joint.parameters[rows], part.parameters.expand(ROWS, -1))
        assert part.marked is not None and joint.marked is not None and torch.equal(joint.marked[rows], part.marked)
        assert part.gain is not None and joint.gain is not None and torch.equal(joint.gain[rows], part.gain)
        assert part.public is not None and joint.public is not None
        assert joint.public.keys[rows] == part.public.keys
    assert joint.repeats is None


def test_one_seed_alone_has_a_model_per_row_too() -> None:
    """So that its numbers are those that it has among others."""
    assert side_by_side([observed(0)]).parameters.dim() == 2


def test_knowledge_of_rows_is_joined_and_the_rest_is_shared() -> None:
    grey, variances = torch.zeros(2, 1, 1, 1), [torch.ones(64) * seed for seed in range(2)]
    parts = [
        Knowledge(
            labels=torch.full((ROWS, 1), seed),
            pixel_range=grey,
            data_noise=[variances[seed]] * ROWS,
            batch_statistics={"mean": torch.full((ROWS, 3), float(seed))},
        )
        for seed in range(2)
    ]
    joint = joint_knowledge(parts)
    assert joint.labels is not None and joint.labels.flatten().tolist() == [0, 0, 1, 1]
    assert joint.pixel_range is grey
    assert joint.data_noise == [variances[0], variances[0], variances[1], variances[1]]
    assert joint.batch_statistics is not None and joint.batch_statistics["mean"].shape == (2 * ROWS, 3)
    assert joint.noise_variance is None


def test_what_an_attack_adds_is_added_later() -> None:
    begun = replace(observed(0), weights=torch.ones_like(observed(0).gradients))
    with pytest.raises(ValueError, match="before an attack changes them"):
        side_by_side([begun, observed(1)])


def test_small_models_and_few_clients() -> None:
    cpu = torch.device("cpu")
    assert worthwhile(1, MOST["cpu"], cpu) and not worthwhile(2, MOST["cpu"], cpu)
    assert worthwhile(2, MOST["cpu"], torch.device("cuda"))


def test_attacks_that_work_with_one_model() -> None:
    assert IGScript().several_models and Masked(attack=DLGWolfe()).several_models
    counting = DLGWolfe(labels="counts")
    assert not counting.several_models and not Masked(attack=counting).several_models
    assert not IGScript(batch_norm="estimated").several_models
