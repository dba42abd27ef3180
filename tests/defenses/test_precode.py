"""PRECODE: clients that draw noise in their model, and attackers who read it."""

from __future__ import annotations

import pytest
import torch
from tests.defenses.tensors import streams

from leakbench.attacks.analytic import Analytic
from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.bottleneck import Bottleneck, noise_read
from leakbench.attacks.presets import DLGWolfe
from leakbench.defenses.base import Schedule
from leakbench.defenses.clients import DefendedClients, Examples
from leakbench.defenses.precode import Precode
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Model, Network, build_network
from leakbench.models.bottleneck import ExtendedNetwork
from leakbench.models.lenet import LeNet
from leakbench.models.linear import MLP, Linear

SHAPE, CLASSES, WIDTH = (1, 8, 8), 10, 6
DEFENSE = Precode(width=WIDTH)


def network(model: Model | None = None) -> ExtendedNetwork:
    new = DEFENSE.extend(build_network(model or LeNet(width=2), SHAPE, CLASSES, seed=0), SHAPE, seed=1)
    assert isinstance(new, ExtendedNetwork)
    return new


def batch(n: int, size: int) -> Examples:
    draw = torch.Generator().manual_seed(0)
    return Examples(torch.randn(n, size, *SHAPE, generator=draw), torch.randint(CLASSES, (n, size), generator=draw))


def steps_of(model: Network, examples: Examples, *clients: int, local: LocalTraining = ONE_STEP) -> ClientSteps:
    defended = DefendedClients(DEFENSE, streams(*clients), examples)
    sent = defended.step(
        lambda given: ClientSteps(model, model.parameters, *given, streams(*clients), local), streams(*clients)
    )
    assert torch.equal(sent.message.view(), sent.steps.gradient)
    return sent.steps


def seen_of(model: Network, steps: ClientSteps, local: LocalTraining = ONE_STEP) -> Observations:
    size = steps.images.shape[1]
    return Observations(model, model.parameters, steps.gradient, (size, *SHAPE), local)


def test_messages_repeat_and_every_client_draws_for_itself() -> None:
    model, examples = network(), batch(2, 3)
    both = steps_of(model, examples, 0, 1)
    assert torch.equal(both.gradient, steps_of(model, examples, 0, 1).gradient)
    alone = steps_of(model, Examples(examples.inputs[1:], examples.labels[1:]), 1)
    torch.testing.assert_close(alone.gradient[0], both.gradient[1])
    below = both.images[..., SHAPE[1] :, :].flatten(2)[..., :WIDTH]
    assert len(below.flatten(0, 1).unique(dim=0)) == 6
    assert torch.equal(both.images[..., : SHAPE[1], :], examples.inputs)


def test_noise_has_a_standard_normal_law() -> None:
    examples = batch(4, 500)
    rows, labels = DEFENSE.protect_data(*examples, streams(*range(4)))
    below = rows[..., SHAPE[1] :, :].flatten(2)[..., :WIDTH].flatten()
    assert labels is examples.labels
    assert (
        abs(float(below.mean())) < 5 / len(below) ** 0.5 and abs(float(below.std()) - 1) < 5 / (2 * len(below)) ** 0.5
    )


def test_a_model_without_the_bottleneck_is_refused() -> None:
    plain, examples = build_network(LeNet(width=2), SHAPE, CLASSES, seed=0), batch(1, 2)
    steps = ClientSteps(plain, plain.parameters, *examples, streams(0))
    with pytest.raises(Infeasible, match="changes the model"):
        DEFENSE.protect_update(steps, streams(0))
    seen = Observations(plain, plain.parameters, steps.gradient, (2, *SHAPE))
    with pytest.raises(Infeasible, match="has none"):
        Bottleneck(attack=DLGWolfe()).improve(seen, Knowledge(), streams(0))


def test_the_noise_of_single_images_is_read_exactly() -> None:
    model = network()
    steps = steps_of(model, batch(3, 1), 0, 1, 2)
    truth = steps.images[..., SHAPE[1] :, :].flatten(2)[..., :WIDTH]
    torch.testing.assert_close(noise_read(model, seen_of(model, steps)), truth, rtol=1e-2, atol=1e-2)
    noise = Bottleneck(attack=DLGWolfe()).improve(seen_of(model, steps), Knowledge(), streams(0, 1, 2)).code_noise
    assert noise is not None and noise.known


@pytest.mark.parametrize(
    ("size", "local", "form"),
    [(2, ONE_STEP, "read"), (1, ONE_STEP, "search"), (1, LocalTraining(steps=2, rate=0.1), "read")],
)
def test_other_noise_is_searched_for(size: int, local: LocalTraining, form: str) -> None:
    model = network()
    seen = seen_of(model, steps_of(model, batch(2, size), 0, 1, local=local), local)
    noise = Bottleneck.model_validate({"attack": DLGWolfe(), "noise": form}).improve(seen, Knowledge(), streams(0, 1))
    assert noise.code_noise is not None and not noise.code_noise.known
    assert noise.code_noise.values.shape == (2, size, WIDTH) and noise.weights is not None
    behind = model.names[-6:]
    for name, weights in model.unflatten(noise.weights[0]).items():
        assert bool((weights == (0 if name in behind else 1)).all())


def test_a_model_that_begins_with_the_bottleneck_is_matched_whole() -> None:
    model = network(Linear())
    seen = seen_of(model, steps_of(model, batch(1, 1), 0))
    assert Bottleneck(attack=DLGWolfe()).improve(seen, Knowledge(), streams(0)).weights is None


@pytest.mark.parametrize("model", [Linear(), MLP(width=8)])
def test_a_fully_connected_first_layer_is_read_as_ever(model: Model) -> None:
    extended, examples = network(model), batch(2, 1)
    seen = seen_of(extended, steps_of(extended, examples, 0, 1))
    found = Analytic().reconstruct(seen, Knowledge(), streams(0, 1)).images
    torch.testing.assert_close(found, examples.inputs, rtol=1e-3, atol=1e-3)


def test_noise_is_no_secret_and_no_guarantee() -> None:
    assert DEFENSE.privacy(Schedule(dimension=10)).epsilon is None
    assert "bottleneck" in DEFENSE.not_simulated and Precode.acts_on == "model"
