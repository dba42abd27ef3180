"""A client tells a malicious server's model from honest ones, trained or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leakbench.attacks.base import Knowledge
from leakbench.attacks.robbing import RobbingTheFed
from leakbench.data.embedded import Digits
from leakbench.jobs.pretraining import Pretraining, trajectory
from leakbench.metrics.visibility import VISIBILITY, visibility
from leakbench.models.base import Model, Network, build_network
from leakbench.models.convnets import ConvNet, SimpleCNN, SimpleConvNet
from leakbench.models.lenet import LeNet
from leakbench.models.linear import MLP, Linear
from leakbench.models.resnet import ResNet18

DATA = Digits(size=16)
THRESHOLDS = {"parallel_units": 0.5, "stable_rank": 1.2, "ordered_biases": 0.9, "added_parameters": 0.0}
"""What honest models stay below; of ranks, above."""
HONEST: list[Model] = [
    LeNet(),
    LeNet(initialisation="default", activation="relu", batch_norm=True),
    SimpleConvNet(),
    SimpleCNN(),
    ConvNet(width=16),
    ResNet18(width=16),
    Linear(),
    Linear(start="zero"),
    *(MLP(width=width) for width in (12, 64, 200)),
]


def suspected(network: Network, agreed: int) -> list[str]:
    measured = visibility(network.unflatten(network.parameters), agreed)
    assert measured.keys() == VISIBILITY.keys()
    return [
        name
        for name, value in measured.items()
        if (0 < value < THRESHOLDS[name] if name == "stable_rank" else value > THRESHOLDS[name])
    ]


@pytest.mark.parametrize("model", HONEST, ids=str)
def test_honest_models_are_not_suspected(model: Model) -> None:
    for seed in range(3):
        network = build_network(model, DATA.shape, DATA.classes, seed)
        assert suspected(network, network.dimension) == []


@pytest.mark.parametrize("model", [LeNet(initialisation="default", activation="relu"), MLP(width=64)], ids=str)
def test_nor_are_trained_ones(model: Model) -> None:
    network = build_network(model, DATA.shape, DATA.classes, 0)
    training = Pretraining(optimiser="adamw", rate=1e-2)
    (trained,) = trajectory(network, DATA, "digits16", 0, 5, training, torch.device("cpu"))
    assert not torch.equal(trained.parameters, network.parameters)
    assert suspected(trained, trained.dimension) == []


@pytest.mark.parametrize(
    ("model", "form", "expected"),
    [
        (LeNet(), "module", ["parallel_units", "stable_rank", "ordered_biases", "added_parameters"]),
        (MLP(width=64), "parameters", ["parallel_units", "stable_rank", "ordered_biases"]),
    ],
)
def test_the_malicious_ones_are(model: Model, form: Any, expected: list[str]) -> None:
    honest = build_network(model, DATA.shape, DATA.classes, 0)
    sent = RobbingTheFed(form=form, bins=32).prepare(honest, (8, *DATA.shape), Knowledge())
    assert suspected(sent, honest.dimension) == expected
    measured = visibility(sent.unflatten(sent.parameters), honest.dimension)
    assert measured["parallel_units"] == pytest.approx(1) and measured["ordered_biases"] == pytest.approx(1)
    assert measured["stable_rank"] == pytest.approx(1)


def test_by_hand() -> None:
    """Twelve units of which half point one way and half another; biases in reverse order."""
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 12))
    weights = torch.zeros(12, 16)
    weights[:6, 0], weights[6:, 1] = 2.0, -1.0
    module[1].load_state_dict({"weight": weights, "bias": -torch.arange(12.0)})
    measured = visibility(module.state_dict(), agreed=102)
    assert measured == {
        "parallel_units": 0.0,  # 36 of the 66 pairs are at right angles
        "stable_rank": pytest.approx((6 * 4 + 6) / (6 * 4)),
        "ordered_biases": pytest.approx(1.0),
        "added_parameters": 1.0,
    }
