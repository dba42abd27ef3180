"""Images from a model that a malicious server changed: exact ones, mixtures, and what defenses leave of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.attacks.test_analytic import layers, observe, tied, victims

from leakbench.attacks.adaptive import Masked
from leakbench.attacks.base import ClientSetup, Knowledge, Observations
from leakbench.attacks.robbing import RobbingTheFed, expected_alone
from leakbench.data.base import ImageDataset
from leakbench.data.embedded import Digits, Photos
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.models.base import Model, Network, build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.lenet import LeNet
from leakbench.models.linear import MLP, Linear
from leakbench.models.resnet import ResNet18
from leakbench.randomness import Streams


def auxiliary(data: ImageDataset) -> Knowledge:
    return Knowledge(auxiliary_images=data.normalise(data.load("train", range(400)).values))


def attacked(attack: RobbingTheFed, observations: Observations, knowledge: Knowledge) -> torch.Tensor:
    streams = Streams([("robbing", row) for row in range(len(observations))])
    found = attack.reconstruct(observations, knowledge, streams)
    assert found.diverged_at.eq(-1).all()
    return found.images


def alone(network: Network, images: torch.Tensor) -> torch.Tensor:
    """Whether each image ``[n, B]`` is the only one of its client in its bin, by the first layer's activations."""
    layer = next(iter(network.linear_layers.values()))
    assert layer.bias is not None
    parameters = network.parameters
    active = images.flatten(2) @ layer.weights(parameters).T + parameters[layer.bias] > 0
    place = active.sum(dim=2)
    return (place[:, :, None] == place[:, None]).sum(dim=2) == 1


def errors(found: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Largest error of each image ``[n, B]`` to the nearest of those found, which are in any order."""
    return torch.cdist(images.flatten(2), found.flatten(2), p=torch.inf).amin(dim=2)


@pytest.mark.parametrize(
    ("model", "form"),
    [
        *((model, "module") for model in (LeNet(), SimpleConvNet(width=4), Linear(), ResNet18(width=4))),
        (MLP(width=12, activation="sigmoid"), "module"),
        (MLP(width=128), "parameters"),
    ],
    ids=str,
)
@pytest.mark.parametrize("granted", [True, False])
def test_images_that_are_alone_are_exact(model: Model, form: Any, granted: bool) -> None:
    data = Photos(size=16)
    images, labels = victims(data, n=3, batch=8)
    knowledge = auxiliary(data) if granted else Knowledge()
    attack = RobbingTheFed(form=form)
    network = attack.prepare(build_network(model, data.shape, data.classes, seed=0), (8, *data.shape), knowledge)
    found = attacked(attack, observe(network, images, labels), knowledge)
    single = alone(network, images)
    assert single.sum() >= 16
    assert errors(found, images)[single].max() < 0.02
    assert (errors(found, images)[~single] > 0.1).all()


def literal(seen: Observations, row: int) -> list[torch.Tensor]:
    """The paper's ratio of differences, bin after bin, where there is one."""
    layer = next(iter(seen.network.linear_layers.values()))
    assert layer.bias is not None
    weights, biases = layer.weights(seen.gradients[row].double()), seen.gradients[row, layer.bias].double()
    images = []
    for unit in range(len(biases)):
        above = unit + 1 < len(biases)
        weight = weights[unit] - (weights[unit + 1] if above else 0.0)
        bias = biases[unit] - (biases[unit + 1] if above else 0.0)
        if weight.norm() > 1e-4 * weights.norm(dim=1).max():
            images.append((weight / bias).float())
    return images


@pytest.mark.parametrize("form", ["module", "parameters"])
def test_against_ratios_of_neighbouring_units(form: Any) -> None:
    data = Digits(size=8)
    images, labels = victims(data, n=3, batch=5)
    network = build_network(MLP(width=40), data.shape, data.classes, seed=1)
    attack = RobbingTheFed(form=form, bins=50)
    network = attack.prepare(network, (5, *data.shape), auxiliary(data))
    seen = observe(network, images, labels)
    found = attacked(attack, seen, auxiliary(data)).flatten(2)
    known = auxiliary(data).auxiliary_images
    assert known is not None
    mean = known.mean(dim=0).flatten()
    for row in range(3):
        ratios = literal(seen, row)
        assert 3 <= len(ratios) <= 5
        # The mean image stands for implausible images, and for those that are not found.
        far = 10 * known.flatten(1).var(dim=0, correction=0).mean()
        expected = [each if (each - mean).square().mean() < far else mean for each in ratios]
        expected += [mean] * (5 - len(ratios))
        torch.testing.assert_close(found[row], torch.stack(expected), rtol=0, atol=0.02)


@pytest.mark.parametrize(("bins", "batch"), [(16, 4), (32, 16)])
def test_as_many_are_alone_as_the_formula_says(bins: int, batch: int) -> None:
    """With brightness of the assumed distribution, over many clients."""
    clients, generator = 400 // batch, torch.Generator().manual_seed(0)
    images = torch.randn(clients, batch, 1, 4, 4, generator=generator)
    brightness = 0.4 * torch.randn(clients, batch, 1, 1, 1, generator=generator)
    images = images - images.mean(dim=(2, 3, 4), keepdim=True) + brightness
    labels = torch.randint(10, (clients, batch), generator=generator)
    attack = RobbingTheFed(bins=bins, spread=0.4)
    network = attack.prepare(build_network(MLP(width=8), (1, 4, 4), 10, seed=0), (batch, 1, 4, 4), Knowledge())
    exact = errors(attacked(attack, observe(network, images, labels), Knowledge()), images) < 0.02
    expected = expected_alone(bins, batch)
    assert float(exact.double().mean()) == pytest.approx(expected, abs=3 * (expected * (1 - expected) / 400) ** 0.5)


@pytest.mark.parametrize("amplification", [1.0, 1e4])
def test_the_rest_of_the_model_still_works(amplification: float) -> None:
    data = Photos(size=16)
    images, _ = victims(data, n=1, batch=32)
    honest = build_network(LeNet(), data.shape, data.classes, seed=0)
    before = honest.parameters.clone()
    network = RobbingTheFed(amplification=amplification).prepare(honest, (8, *data.shape), auxiliary(data))
    logits, others = (each.logits(each.parameters, images[0]) for each in (honest, network))
    assert torch.equal(honest.parameters, before)
    assert (logits.argmax(dim=1) == others.argmax(dim=1)).double().mean() > 0.9
    assert network.head == honest.head.__class__(
        honest.head.outputs,
        honest.head.inputs,
        *(
            slice(part.start + network.dimension - honest.dimension, part.stop + network.dimension - honest.dimension)
            for part in (honest.head.weight, honest.head.bias)
            if part
        ),
    )


def test_units_that_agree_are_averaged() -> None:
    """Noise of single ratios is far larger."""
    data = Digits(size=8)
    images, labels = victims(data, n=6, batch=4)
    attack, knowledge = RobbingTheFed(bins=200), auxiliary(data)
    network = attack.prepare(build_network(LeNet(), data.shape, data.classes, 0), (4, *data.shape), knowledge)
    seen = observe(network, images, labels)
    noise = torch.randn(seen.gradients.shape, generator=torch.Generator().manual_seed(0))
    previous = 0.0
    for scale in (1e-4, 1e-3, 1e-2, 1e-1):
        noisy = Observations(seen.network, seen.parameters, seen.gradients + scale * noise, seen.batch_shape)
        found = attacked(attack, noisy, knowledge).flatten(2)
        error = float(torch.cdist(images.flatten(2), found).amin(dim=2).square().mean() / 64)
        assert previous < error < 1.0  # no worse than the mean image, roughly
        previous = error
        if scale == 1e-3:
            single = torch.stack([torch.stack(literal(noisy, row)) for row in range(6)])
            naive = float(torch.cdist(images.flatten(2), single).amin(dim=2).square().mean() / 64)
            assert error < naive / 10


@pytest.mark.parametrize("form", ["module", "parameters"])
def test_amplified_gradients_drown_noise_of_a_fixed_size(form: Any) -> None:
    data = Digits(size=8)
    images, labels = victims(data, n=6, batch=4)
    knowledge, found = auxiliary(data), []
    for amplification in (1.0, 1e4):
        attack = RobbingTheFed(form=form, amplification=amplification)
        honest = build_network(MLP(width=128), data.shape, data.classes, 0)
        network = attack.prepare(honest, (4, *data.shape), knowledge)
        seen = observe(network, images, labels)
        noise = 0.1 * torch.randn(seen.gradients.shape, generator=torch.Generator().manual_seed(0))
        noisy = Observations(network, seen.parameters, seen.gradients + noise, seen.batch_shape)
        found.append(errors(attacked(attack, noisy, knowledge), images)[alone(network, images)])
    plain, amplified = found
    assert min(len(plain), len(amplified)) >= 16
    assert amplified.quantile(0.9) < 0.1 and plain.quantile(0.1) > 1


@pytest.mark.parametrize(("kept", "bound"), [(0.5, 0.2), (0.1, 0.8)])
def test_units_that_lack_coordinates_complete_each_other(kept: float, bound: float) -> None:
    data = Digits(size=8)
    images, labels = victims(data, n=4, batch=2)
    attack, knowledge = RobbingTheFed(bins=128), auxiliary(data)
    network = attack.prepare(build_network(LeNet(), data.shape, data.classes, 0), (2, *data.shape), knowledge)
    seen = observe(network, images, labels)
    there = torch.rand(seen.gradients.shape, generator=torch.Generator().manual_seed(0)) < kept
    masked = Observations(
        seen.network, seen.parameters, seen.gradients.where(there, 0.0), seen.batch_shape, marked=~there
    )
    found = attacked(attack, masked, knowledge).flatten(2)
    error = torch.cdist(images.flatten(2), found).amin(dim=2).square() / 64
    assert error.median() < bound * float(images.var())


def test_small_coordinates_that_lack_are_small() -> None:
    data = Digits(size=8)
    images, labels = victims(data, n=4, batch=2)
    attack, knowledge = RobbingTheFed(bins=64), auxiliary(data)
    network = attack.prepare(build_network(LeNet(), data.shape, data.classes, 0), (2, *data.shape), knowledge)
    seen = observe(network, images, labels)
    there = seen.gradients.abs() > seen.gradients.abs().quantile(0.5, dim=1, keepdim=True)
    pruned = Observations(
        seen.network, seen.parameters, seen.gradients.where(there, 0.0), seen.batch_shape, marked=~there
    )
    error = torch.cdist(images.flatten(2), attacked(attack, pruned, knowledge).flatten(2)).amin(dim=2).square() / 64
    assert error.median() < 0.2 * float(images.var())


@pytest.mark.parametrize("gradient", [0.0, 1.0])
def test_what_shows_no_image_is_the_mean_image_inside_the_range(gradient: float) -> None:
    data = Digits(size=8)
    knowledge = Knowledge(
        auxiliary_images=auxiliary(data).auxiliary_images, pixel_range=data.pixel_range(torch.device("cpu"))
    )
    attack = RobbingTheFed(bins=16)
    network = attack.prepare(build_network(LeNet(), data.shape, data.classes, 0), (3, *data.shape), knowledge)
    seen = Observations(network, network.parameters, torch.full((1, network.dimension), gradient), (3, *data.shape))
    found = attacked(attack, seen, knowledge)
    assert found.isfinite().all() and found.min() >= knowledge.pixel_range.min()  # type: ignore[union-attr]
    if not gradient:
        torch.testing.assert_close(found, knowledge.auxiliary_images.mean(dim=0).expand_as(found))  # type: ignore[union-attr]


def test_noisy_images_leave_the_range() -> None:
    """A posterior mean needs the noise as it is."""
    data = Digits(size=8)
    images, labels = victims(data, n=3, batch=4)
    images = images + torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    low, high = (data.normalise(torch.full((1, *data.shape), value)).flatten()[0] for value in (0.0, 1.0))
    knowledge = replace(auxiliary(data), pixel_range=torch.stack([low, high]))
    attack = RobbingTheFed()
    network = attack.prepare(build_network(LeNet(), data.shape, data.classes, 0), (4, *data.shape), knowledge)
    seen = observe(network, images, labels)
    valid, noisy = (attacked(each, seen, knowledge) for each in (attack, attack.without_prior()))
    assert torch.equal(noisy.clamp(low, high), valid) and not torch.equal(noisy, valid)
    assert attack.without_prior().parameters() == attack.parameters()


def test_wrappers_send_the_same_model() -> None:
    data = Digits(size=8)
    attack, honest = RobbingTheFed(bins=16), build_network(LeNet(), (1, 8, 8), 10, 0)
    wrapped = Masked(attack=attack)
    assert wrapped.changes_model and wrapped.needs == {"modified_model"}
    one, other = (each.prepare(honest, (2, 1, 8, 8), auxiliary(data)) for each in (attack, wrapped))
    assert torch.equal(one.parameters, other.parameters) and one.names == other.names


@pytest.mark.parametrize(
    ("network", "form", "reason"),
    [
        (build_network(SimpleConvNet(width=2), (1, 9, 9), 10, 0), "parameters", "form: module suits any"),
        (build_network(MLP(width=20, activation="sigmoid"), (1, 9, 9), 10, 0), "parameters", "form: module suits any"),
        (build_network(Linear(), (1, 9, 9), 10, 0), "parameters", "form: module suits any"),
        (
            layers(torch.nn.Flatten(), torch.nn.Linear(81, 10, bias=False), torch.nn.ReLU(), torch.nn.Linear(10, 10)),
            "parameters",
            "the first layer has none",
        ),
        (tied(), "parameters", "'3.weight' is the same tensor"),
    ],
)
def test_no_such_model(network: Network, form: Any, reason: str) -> None:
    attack = RobbingTheFed(form=form)
    with pytest.raises(Infeasible, match=f"attack 'robbing_the_fed'.*{reason}"):
        attack.prepare(network, (2, 1, 9, 9), Knowledge())
    for each in (attack, Masked(attack=attack)):
        with pytest.raises(Infeasible, match=f"attack 'robbing_the_fed'.*{reason}"):
            each.check_clients(ClientSetup(Linear(), network, ONE_STEP, (2, 1, 9, 9)))


def test_what_the_plan_shows() -> None:
    network, shape = build_network(LeNet(), (1, 16, 16), 10, 0), (2, 1, 16, 16)
    RobbingTheFed().check_clients(ClientSetup(LeNet(), network, LocalTraining(rate=0.1), shape))
    with pytest.raises(Infeasible, match="clients take several; list gradient matching"):
        RobbingTheFed().check_clients(ClientSetup(LeNet(), network, LocalTraining(steps=2), shape))
    with pytest.raises(Infeasible, match="measures images"):
        RobbingTheFed().check_clients(ClientSetup(LeNet(), network, ONE_STEP, (2, 20)))


@pytest.mark.parametrize(("form", "reason"), [("module", "a model without it"), ("parameters", "measure one number")])
def test_an_honest_model(form: Any, reason: str) -> None:
    network = build_network(MLP(width=20), (1, 9, 9), 10, 0)
    seen = Observations(network, network.parameters, torch.ones(1, network.dimension), (2, 1, 9, 9))
    with pytest.raises(Infeasible, match=f"attack 'robbing_the_fed'.*{reason}"):
        attacked(RobbingTheFed(form=form), seen, Knowledge())


def test_several_steps_and_sentences() -> None:
    data = Digits(size=8)
    images, labels = victims(data, n=1, batch=2)
    attack = RobbingTheFed(bins=8)
    network = attack.prepare(build_network(LeNet(), data.shape, data.classes, 0), (2, *data.shape), Knowledge())
    with pytest.raises(Infeasible, match="clients take several"):
        attacked(attack, observe(network, images, labels, LocalTraining(steps=2, rate=0.1)), Knowledge())
    with pytest.raises(Infeasible, match="measures images"):
        attack.prepare(network, (2, 6, 9), Knowledge())
