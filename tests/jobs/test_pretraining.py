"""Pretraining: torch's own, repeatable, and one epoch after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from leakbench.data.embedded import Digits
from leakbench.errors import ConfigError
from leakbench.jobs.pretraining import Diverged, Pretraining, pretrained, trajectory
from leakbench.models.base import Network, build_network
from leakbench.models.convnets import ConvNet, SimpleConvNet
from leakbench.randomness import generator
from leakbench.running.checkpoint import opened
from leakbench.running.snapshots import Spent

DIGITS = Digits(size=9)
SOME = Pretraining(samples=20, batch_size=8, rate=0.05)
CPU = torch.device("cpu")


def start() -> Network:
    return build_network(ConvNet(width=2), DIGITS.shape, DIGITS.classes, seed=4)


def after(epoch: int, seed: int = 0, pretraining: Pretraining = SOME) -> Network:
    return pretrained(start(), DIGITS, "digits9", seed, epoch, pretraining, CPU)


def state(network: Network) -> dict[str, torch.Tensor]:
    return {"parameters": network.parameters} | dict(network._module.named_buffers())


def same(first: Network, second: Network) -> bool:
    theirs = state(second)
    return all(torch.equal(values, theirs[name]) for name, values in state(first).items())


def literal(epochs: int) -> Network:
    """The loop of every tutorial."""
    module = start().trainable_module()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    samples = DIGITS.load("train", range(20))
    for epoch in range(epochs):
        order = torch.randperm(20, generator=generator("digits9", 0, "pretraining", epoch))
        for first in (0, 8, 16):
            rows = order[first : first + 8]
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                module(DIGITS.normalise(samples.values[rows])), samples.labels[rows]
            )
            loss.backward()
            optimiser.step()
    return Network(module)


def test_equals_a_literal_loop() -> None:
    trained, expected = state(after(2)), state(literal(2))
    for name, values in expected.items():
        torch.testing.assert_close(trained[name], values, rtol=1e-4, atol=1e-5)
    assert trained["1.num_batches_tracked"] == 6


def test_no_epoch_is_no_training() -> None:
    network = start()
    assert pretrained(network, DIGITS, "digits9", 0, 0, SOME, CPU) is network


def test_longer_training_passes_through_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state at the start of every later epoch, as an optimiser of three epochs sees it."""
    shorter = [after(epoch) for epoch in (1, 2)]
    assert same(shorter[0], after(1)) and not same(shorter[0], shorter[1])
    seen: list[torch.Tensor] = []

    class Watching(torch.optim.SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            seen.append(torch.cat([part.detach().flatten() for part in self.param_groups[0]["params"]]))
            super().zero_grad(set_to_none)

    monkeypatch.setattr(torch.optim, "SGD", Watching)
    longest = after(3)
    assert torch.equal(seen[3], shorter[0].parameters) and torch.equal(seen[6], shorter[1].parameters)
    assert not same(longest, shorter[1])


def test_states_of_one_training() -> None:
    """Three steps are an epoch; without epochs before it, the first state is the network as it was."""
    given = (start(), DIGITS, "digits9", 0)
    states = trajectory(*given, 2, SOME, CPU, states=3, apart=3)
    assert all(same(state, after(epoch)) for epoch, state in enumerate(states, 2))
    between = trajectory(*given, 0, SOME, CPU, states=4, apart=2)
    assert same(between[0], start()) and same(between[3], after(2))
    assert not same(between[1], between[2]) and not any(part.requires_grad for part in state(between[1]).values())


def test_the_seed_draws_the_order() -> None:
    assert not same(after(1, seed=0), after(1, seed=1))


def test_the_network_itself_is_not_changed() -> None:
    network, before = start().in_mode("train"), start()
    trained = pretrained(network, DIGITS, "digits9", 0, 1, SOME, CPU)
    assert same(network, before) and trained.batch_norm == "train"
    assert not any(tensor.requires_grad for tensor in state(trained).values())


def test_it_learns() -> None:
    untrained = build_network(SimpleConvNet(width=8), DIGITS.shape, DIGITS.classes, seed=4)
    schedule = Pretraining(samples=100, batch_size=10, rate=0.05)
    trained = pretrained(untrained, DIGITS, "digits9", 0, 8, schedule, CPU)
    samples = DIGITS.load("train", range(100))
    inputs = DIGITS.normalise(samples.values)
    before, now = (float(network.loss(network.parameters, inputs, samples.labels)) for network in (untrained, trained))
    assert now < 0.5 * before


def test_diverged() -> None:
    with pytest.raises(Diverged, match="non-finite in epoch 1"):
        after(3, pretraining=Pretraining(samples=20, batch_size=2, rate=1e30))


def test_more_images_than_there_are() -> None:
    available = DIGITS.length("train")
    with pytest.raises(
        ConfigError, match=rf"pretraining.samples: {available + 1} is more than .*'digits' .*{available}"
    ):
        after(1, pretraining=Pretraining(samples=available + 1))
    with pytest.raises(ValidationError):
        Pretraining(samples=0)


def test_jobs_share_the_training(tmp_path: Path) -> None:
    def job(name: str, seed: int = 0, of: str | None = "small") -> tuple[Network, bool]:
        """The network that a job trains, and whether another job had trained it."""
        before = list((tmp_path / "shared").rglob("*.safetensors"))
        with opened(tmp_path / name, lambda: {"job": name}, Spent, tmp_path / "shared"):
            trained = pretrained(start(), DIGITS, "digits9", seed, 2, SOME, CPU, of=of)
        return trained, list((tmp_path / "shared").rglob("*.safetensors")) == before

    first, shared = job("first")
    assert not shared and same(first, after(2))
    second, shared = job("second")
    assert shared and same(second, first)
    assert not job("third", seed=1)[1] and not job("fourth", of="large")[1]
    assert same(job("fifth", of=None)[0], first)
