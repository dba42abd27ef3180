"""The two modes of BatchNorm, against torch's own training mode."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch

from leakbench.models.base import Network, Statistics, build_network
from leakbench.models.convnets import ConvNet, SimpleConvNet

SHAPE = (3, 9, 9)


def literal() -> torch.nn.Module:
    """A module with both kinds of layer and running statistics that are not the initial ones."""
    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        layers = {
            "first": nn.Conv2d(3, 4, 3),
            "normal": nn.BatchNorm2d(4),
            "bend": nn.Tanh(),
            "flat": nn.Flatten(),
            "middle": nn.Linear(4 * 7 * 7, 6),
            "narrow": nn.BatchNorm1d(6, eps=1e-3),
            "untracked": nn.BatchNorm1d(6, track_running_stats=False),
            "drop": nn.Dropout(0.5),
            "last": nn.Linear(6, 5),
        }
        module = nn.Sequential(OrderedDict(layers))
        for name in ("normal", "narrow"):
            nn.init.uniform_(module.get_buffer(f"{name}.running_mean"), -1, 1)
            nn.init.uniform_(module.get_buffer(f"{name}.running_var"), 0.5, 2)
            nn.init.uniform_(module.get_parameter(f"{name}.weight"), 0.5, 2)
            nn.init.normal_(module.get_parameter(f"{name}.bias"))
    return module


def trained(module: torch.nn.Module) -> torch.nn.Module:
    """A copy in torch's training mode, but for dropout."""
    module = copy.deepcopy(module).train().requires_grad_(True)
    for layer in module.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.eval()
    return module


def batches(clients: int = 3, images: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(11)
    return torch.randn(clients, images, *SHAPE, generator=draw), torch.randint(0, 5, (clients, images), generator=draw)


def modules() -> list[torch.nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return [literal(), ConvNet(width=2).build(SHAPE, 5)]


@pytest.mark.parametrize("module", modules(), ids=["literal", "convnet"])
class TestTrainMode:
    def test_logits_and_gradient_are_torchs_own(self, module: torch.nn.Module) -> None:
        network = Network(copy.deepcopy(module), batch_norm="train")
        parameters = network.parameters
        images, labels = batches()
        together = torch.func.vmap(network.logits, in_dims=(None, 0))(parameters, images)
        gradients = torch.func.vmap(network.gradient, in_dims=(None, 0, 0))(parameters, images, labels)
        for client in range(3):
            theirs = trained(module)
            logits = theirs(images[client])
            loss = torch.nn.functional.cross_entropy(logits, labels[client])
            gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(theirs.parameters()))])
            torch.testing.assert_close(network.logits(parameters, images[client]), logits.detach())
            torch.testing.assert_close(together[client], logits.detach(), rtol=1e-4, atol=1e-5)
            alone = network.gradient(parameters, images[client], labels[client])
            torch.testing.assert_close(alone, gradient, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(gradients[client], gradient, rtol=1e-4, atol=1e-5)

    def test_nothing_is_updated(self, module: torch.nn.Module) -> None:
        network = Network(copy.deepcopy(module), batch_norm="train")
        images, labels = batches()
        network.gradient(network.parameters, images[0], labels[0])
        network.batch_statistics(network.parameters, images[0])
        for name, buffer in module.named_buffers():
            assert torch.equal(dict(network._module.named_buffers())[name], buffer)
        assert not any(
            layer._forward_pre_hooks for layer in (*network._module.modules(), *network._unbuffered.modules())
        )

    def test_batch_statistics_make_the_eval_network_compute_the_same(self, module: torch.nn.Module) -> None:
        network = Network(copy.deepcopy(module), batch_norm="train")
        parameters, (images, _) = network.parameters, batches()
        statistics: Statistics = torch.func.vmap(network.batch_statistics, in_dims=(None, 0))(parameters, images)
        assert set(statistics) == {name for name, _ in module.named_buffers() if "running" in name}
        evaluated = network.in_mode("eval")
        assert evaluated.batch_norm == "eval" and network.batch_norm == "train"
        theirs = torch.func.vmap(evaluated.logits, in_dims=(None, 0, 0))(parameters, images, statistics)
        ours = torch.func.vmap(network.logits, in_dims=(None, 0))(parameters, images)
        torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)
        for client in range(3):
            own = network.batch_statistics(parameters, images[client])
            torch.testing.assert_close(own, {name: values[client] for name, values in statistics.items()})
            assert not torch.allclose(evaluated.logits(parameters, images[client]), ours[client], atol=1e-2)

    def test_statistics_that_are_given_win_in_both_modes(self, module: torch.nn.Module) -> None:
        evaluated = Network(copy.deepcopy(module))
        network, (images, labels) = evaluated.in_mode("train"), batches()
        statistics = network.batch_statistics(network.parameters, images[1])
        given = [mode.gradient(mode.parameters, images[0], labels[0], statistics) for mode in (network, evaluated)]
        assert torch.equal(*given)
        assert not torch.allclose(given[0], network.gradient(network.parameters, images[0], labels[0]), atol=1e-3)

    def test_eval_mode_is_the_module_in_evaluation(self, module: torch.nn.Module) -> None:
        network, (images, _) = Network(copy.deepcopy(module), batch_norm="train").in_mode("eval"), batches()
        theirs = copy.deepcopy(module).eval()(images[0]).detach()
        assert torch.equal(network.logits(network.parameters, images[0]), theirs)

    def test_derivatives_of_gradients(self, module: torch.nn.Module) -> None:
        """Forward over reverse, as sensitivities need it, against central differences in double precision."""
        network = Network(copy.deepcopy(module).double(), batch_norm="train")
        images, labels = batches(1)
        images = images[0].double()
        direction = torch.randn(images.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

        def gradient(inputs: torch.Tensor) -> torch.Tensor:
            return network.gradient(network.parameters, inputs, labels[0])

        derivative = torch.func.jvp(gradient, (images,), (direction,))[1]
        step = 1e-6
        difference = (gradient(images + step * direction) - gradient(images - step * direction)) / (2 * step)
        torch.testing.assert_close(derivative, difference, rtol=1e-4, atol=1e-6)


def test_batch_statistics_by_hand() -> None:
    """Of the inputs of the first layer, in either mode; of deeper layers, as the mode normalises before them."""
    network = Network(literal(), batch_norm="train")
    parameters, images = network.parameters, batches()[0][0]
    inputs = literal().get_submodule("first")(images).detach()
    mean = inputs.mean((0, 2, 3))
    variance = (inputs - mean.view(1, -1, 1, 1)).square().mean((0, 2, 3))
    train, evaluated = (network.in_mode(mode).batch_statistics(parameters, images) for mode in ("train", "eval"))
    for found in (train, evaluated):
        torch.testing.assert_close(found["normal.running_mean"], mean)
        torch.testing.assert_close(found["normal.running_var"], variance)
    before = torch.nn.Sequential(*list(trained(literal()).children())[:5])(images).detach()
    torch.testing.assert_close(train["narrow.running_mean"], before.mean(0))
    torch.testing.assert_close(train["narrow.running_var"], (before - before.mean(0)).square().mean(0))
    assert not torch.allclose(evaluated["narrow.running_mean"], train["narrow.running_mean"], atol=1e-2)


def test_batch_statistics_can_be_differentiated() -> None:
    network = Network(literal(), batch_norm="train")
    parameters, images = network.parameters, batches()[0]

    def spread(batch: torch.Tensor) -> torch.Tensor:
        found = network.batch_statistics(parameters, batch)
        return torch.stack([values.square().sum() for values in found.values()]).sum()

    slopes = torch.func.vmap(torch.func.grad(spread))(images)
    direct = images[2].clone().requires_grad_()
    (expected,) = torch.autograd.grad(spread(direct), direct)
    assert expected.abs().max() > 0
    torch.testing.assert_close(slopes[2], expected, rtol=1e-4, atol=1e-5)


def test_a_single_image_is_normalised_over_its_pixels() -> None:
    model = ConvNet(width=2)
    network = build_network(model, SHAPE, 5, seed=0).in_mode("train")
    images, _ = batches()
    theirs = trained(network.trainable_module())
    expected = torch.cat([theirs(image[None]) for image in images[0]]).detach()
    together = torch.func.vmap(network.logits, in_dims=(None, 0))(network.parameters, images[0][:, None])[:, 0]
    torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-5)


def test_without_batch_norm_the_modes_are_the_same() -> None:
    network = build_network(SimpleConvNet(width=2), SHAPE, 5, seed=0)
    images, labels = batches()
    assert network.batch_statistics(network.parameters, images[0]) == {}
    gradients = [network.in_mode(mode).gradient(network.parameters, images[0], labels[0]) for mode in ("eval", "train")]
    assert torch.equal(*gradients)


def test_a_trainable_copy_leaves_the_network_alone() -> None:
    network = Network(literal())
    before, buffers = network.parameters, copy.deepcopy(dict(network._module.named_buffers()))
    module = network.trainable_module()
    module(batches()[0][0]).sum().backward()
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    assert module.training and not torch.equal(Network(module).parameters, before)
    assert torch.equal(network.parameters, before)
    for name, buffer in network._module.named_buffers():
        assert torch.equal(buffer, buffers[name])
