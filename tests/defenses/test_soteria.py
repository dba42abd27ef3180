"""Soteria: scores, which columns are zero, and what travels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.federated.test_features import loop

from leakbench.defenses.base import Schedule
from leakbench.defenses.soteria import Soteria
from leakbench.errors import ConfigError
from leakbench.federated.features import FeatureSensitivity
from leakbench.federated.message import SparseMessage
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network
from leakbench.randomness import Streams, generator


def clients(network: Network, n: int = 3, batch: int = 2) -> ClientSteps:
    draw = generator("soteria")
    images = torch.randn(n, batch, 1, 8, 8, generator=draw)
    labels = torch.randint(0, 10, (n, batch), generator=draw)
    return ClientSteps(network, network.parameters, images, labels, Streams([("soteria", row) for row in range(n)]))


def sensitivity(features: list[list[float]], norms: list[list[float]]) -> FeatureSensitivity:
    return FeatureSensitivity(torch.tensor(features)[None], torch.tensor(norms)[None])


def test_scores_by_hand() -> None:
    """Of one image, ||d r|| / |r| = 2, 4, 1, 8: two of four are features 0 and 2."""
    known = sensitivity([[1.0, -0.5, 2.0, 0.25]], [[2.0, 2.0, 2.0, 2.0]])
    assert Soteria(fraction=0.5).pruned_features(known).tolist() == [[True, False, True, False]]
    assert Soteria(fraction=0.49).pruned_features(known).tolist() == [[False, False, True, False]]


def test_of_a_batch_both_norms_run_over_the_images() -> None:
    """Scores sqrt(3^2 + 4^2) / sqrt(0 + 1) = 5 and 6 / sqrt(4 + 4) = 2.1, though image 0 alone says infinity and 3."""
    known = sensitivity([[0.0, 2.0], [1.0, 2.0]], [[3.0, 6.0], [4.0, 0.0]])
    assert Soteria(fraction=0.5).pruned_features(known).tolist() == [[False, True]]


def test_a_feature_of_zero_is_pruned_last() -> None:
    known = sensitivity([[0.0, 1.0, 0.0, 1.0]], [[0.0, 9.0, 2.0, 8.0]])
    assert Soteria(fraction=0.5).pruned_features(known).tolist() == [[False, True, False, True]]
    assert Soteria(fraction=0.75).pruned_features(known).tolist() == [[True, True, False, True]]


def test_as_released_against_its_formula() -> None:
    draw = generator("released")
    features, norms = torch.randn(3, 4, 11, generator=draw), torch.rand(3, 4, 11, generator=draw)
    found = Soteria(fraction=0.5, form="as_released").pruned_features(FeatureSensitivity(features, norms))
    for client in range(3):
        scores = np.zeros(11)
        for image in range(4):
            for feature in range(11):
                norm, value = float(norms[client, image, feature]), float(features[client, image, feature])
                scores[feature] += abs(norm / (value + 0.1))
        assert found[client].tolist() == (scores < np.percentile(scores, 50)).tolist()
        assert int(found[client].sum()) == 5  # strictly below the median of eleven


@pytest.mark.parametrize(("layer", "name"), [(-1, "fc_layers.3"), (0, "fc_layers.1"), (1, "fc_layers.3")])
def test_columns_of_the_lowest_scores_are_zero_and_nothing_else(tiny_network: Network, layer: int, name: str) -> None:
    steps = clients(tiny_network)
    message = Soteria(fraction=0.5, layer=layer).protect_update(steps, steps.streams)
    place = tiny_network.linear_layers[name]
    for client in range(3):
        read = tiny_network.features(tiny_network.parameters, steps.images[client], name)
        norms = loop(tiny_network, tiny_network.parameters, steps.images[client], name)
        scores = norms.square().sum(dim=0).sqrt() / read.square().sum(dim=0).sqrt()
        lowest = sorted(range(place.inputs), key=scores.tolist().__getitem__)[: place.inputs // 2]
        expected = steps.gradient[client].clone()
        place.weights(expected)[:, lowest] = 0  # a view
        assert torch.equal(message.view()[client], expected)
    assert message.marked is not None
    marked = torch.zeros_like(message.marked)
    marked[:, place.weight] = message.marked[:, place.weight]
    assert torch.equal(marked, message.marked)
    assert int(message.marked.sum()) == 3 * place.outputs * (place.inputs // 2)


@settings(max_examples=20)
@given(st.floats(0, 1))
def test_number_of_columns_and_bits(tiny_network: Network, fraction: float) -> None:
    steps = clients(tiny_network, 1)
    message = Soteria(fraction=fraction, layer=0).protect_update(steps, steps.streams)
    assert isinstance(message, SparseMessage)
    columns = int(fraction * 16)
    assert int((~message.kept).sum()) == 2 * columns
    assert message.bits == 32 * (tiny_network.dimension - 2 * columns) + min(16, 4 * columns)


def test_settings_share_the_jacobian(tiny_network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = clients(tiny_network)
    Soteria(fraction=0.1).protect_update(steps, steps.streams)
    monkeypatch.setattr("leakbench.federated.features.FeatureJacobian.sensitivity", None)
    Soteria(fraction=0.9).protect_update(steps, steps.streams)


def test_a_row_does_not_depend_on_the_batch_it_is_in(tiny_network: Network) -> None:
    steps = clients(tiny_network)
    together = Soteria(fraction=0.5, layer=0).protect_update(steps, steps.streams).view()
    for row in range(3):
        own = ClientSteps(
            tiny_network,
            tiny_network.parameters,
            steps.images[row : row + 1],
            steps.labels[row : row + 1],
            Streams(steps.streams.keys[row : row + 1]),
        )
        alone = Soteria(fraction=0.5, layer=0).protect_update(own, own.streams).view()
        torch.testing.assert_close(alone[0], together[row])


@pytest.mark.parametrize("layer", [2, -3])
def test_no_such_layer(tiny_network: Network, layer: int) -> None:
    steps = clients(tiny_network)
    with pytest.raises(ConfigError, match=rf"no fully connected layer {layer}; the model has .*fc_layers.1"):
        Soteria(fraction=0.5, layer=layer).protect_update(steps, steps.streams)


@pytest.mark.parametrize("wrong", [{"fraction": -0.1}, {"fraction": 1.1}, {"fraction": 0.5, "form": "other"}], ids=str)
def test_parameters_outside_their_ranges(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Soteria(**wrong)


def test_no_guarantee() -> None:
    statement = Soteria(fraction=0.5).privacy(Schedule(10))
    assert statement.epsilon is None and "no guarantee" in statement.basis
