"""What a defense gives an attacker who knows it: marks, the variance of its noise, and the attacker it declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from tests.defenses.test_noise import EVERY, normal, streams

from leakbench.attacks.adaptive import Adaptive, Wrapper
from leakbench.attacks.base import ATTACKS
from leakbench.attacks.presets import TAG
from leakbench.defenses.base import DEFENSES, Defense
from leakbench.defenses.noise import ClippedNoise, GaussianNoise
from leakbench.defenses.optimal import OptimalClippedNoise, OptimalNoise, OptimalPruning
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.federated.message import Message
from leakbench.federated.step import ClientSteps

Fixed = Callable[[torch.Tensor, torch.Tensor], ClientSteps]
NOISY = {"gaussian_noise", "clipped_noise", "optimal_noise", "optimal_clipped_noise"}
MARKING = {"clipped_noise", "optimal_clipped_noise", "magnitude_pruning", "optimal_pruning", "random_mask"}


BY_PARAMETERS: Mapping[str, Mapping[str, Any]] = {"cafl": {"epsilon": 1, "fraction": 0.5, "form": "as_printed"}}


def declared_by(name: str) -> tuple[Mapping[str, Any], ...]:
    """Wrappers that a defense declares; where they depend on its parameters, those for the parameters here."""
    if name in BY_PARAMETERS:
        return DEFENSES.get(name)(**BY_PARAMETERS[name]).adaptive
    return DEFENSES.get(name).adaptive


@pytest.mark.parametrize("name", DEFENSES)
def test_a_declared_attacker_is_a_stack_of_wrappers(name: str) -> None:
    for wrapper in declared_by(name):
        parameters = {key: value for key, value in wrapper.items() if key != "name"}
        component = ATTACKS.get(wrapper["name"])
        assert issubclass(component, Wrapper) and component is not Adaptive
        component(**parameters, **{"attack": TAG()})


@pytest.mark.parametrize("name", EVERY)
def test_a_declared_attacker_finds_what_it_needs(fixed_steps: Fixed, name: str) -> None:
    """Wrappers that work with marks, or with the variance, stand beside defenses that give them."""
    message = DEFENSES.get(name)(**EVERY[name]).protect_update(
        fixed_steps(normal(2, 40), normal(2, 40) ** 2), streams(2)
    )
    declared = {wrapper["name"] for wrapper in declared_by(name)}
    assert (message.marked is not None) == (name in MARKING) >= ("masked" in declared)
    assert (message.noise_variance is not None) == (name in NOISY) >= ("weighted" in declared)
    for known in (message.marked, message.noise_variance):
        assert known is None or known.shape == message.view().shape


class TestMarks:
    @pytest.mark.parametrize("defense", [MagnitudePruning(fraction=0.4), OptimalPruning(fraction=0.4)], ids=repr)
    def test_what_was_pruned(self, fixed_steps: Fixed, defense: MagnitudePruning | OptimalPruning) -> None:
        gradient = normal(3, 40)
        message = defense.protect_update(fixed_steps(gradient, normal(3, 40, 1).square()), streams(3))
        assert message.marked is not None and message.marked.dtype == torch.bool
        assert torch.equal(message.marked, message.view().eq(0)) and message.marked.sum(dim=1).tolist() == [16] * 3
        assert torch.equal(message.view()[~message.marked], gradient[~message.marked])

    def test_a_zero_that_was_sent_is_not_marked(self, fixed_steps: Fixed) -> None:
        """Dead units have gradients of exactly zero; of two equal ones, the first is pruned."""
        gradient = torch.tensor([[0.0, 3.0, 0.0, 1.0]])
        message = MagnitudePruning(fraction=0.25).protect_update(fixed_steps(gradient, gradient), streams(1))
        assert message.marked is not None and message.marked.tolist() == [[True, False, False, False]]

    @pytest.mark.parametrize("cls", [ClippedNoise, OptimalClippedNoise])
    def test_what_was_clipped(self, fixed_steps: Fixed, cls: type[ClippedNoise | OptimalClippedNoise]) -> None:
        gradient = torch.tensor([[0.3, -2.0, 0.05, 1.0, -0.2]])
        steps = fixed_steps(gradient, torch.ones_like(gradient))
        exact = cls(scale=0, clip=1).protect_update(steps, streams(1))
        assert exact.marked is not None and exact.marked.tolist() == [[False, True, False, True, False]]
        everything = cls(scale=0, clip=0.01).protect_update(steps, streams(1))
        assert everything.marked is not None and everything.marked.all()

    @pytest.mark.parametrize("cls", [ClippedNoise, OptimalClippedNoise])
    def test_the_message_alone_says_what_is_marked(
        self, fixed_steps: Fixed, cls: type[ClippedNoise | OptimalClippedNoise]
    ) -> None:
        """Noise moves clipped coordinates inside, and others out of range."""
        gradient = 0.5 * normal(3, 400)
        message = cls(scale=0.5, clip=1).protect_update(fixed_steps(gradient, normal(3, 400, 1).square()), streams(3))
        assert message.marked is not None
        assert torch.equal(message.marked, message.view().abs() >= 1)
        assert not torch.equal(message.marked, gradient.abs() >= 1)

    @pytest.mark.parametrize("cls", [OptimalClippedNoise])
    def test_optimal_noise_spares_what_was_clipped(self, fixed_steps: Fixed, cls: type[OptimalClippedNoise]) -> None:
        gradient = normal(3, 40)
        message = cls(scale=0.1, clip=1).protect_update(fixed_steps(gradient, normal(3, 40, 1).square()), streams(3))
        assert message.marked is not None and message.noise_variance is not None
        assert bool(message.marked[gradient.abs() >= 1].all())
        assert torch.equal(message.noise_variance == 0, gradient.abs() >= 1)

    @pytest.mark.parametrize("cls", [ClippedNoise, OptimalClippedNoise])
    def test_the_law_knows_what_was_clipped(
        self, fixed_steps: Fixed, cls: type[ClippedNoise | OptimalClippedNoise]
    ) -> None:
        gradient = normal(3, 40)
        steps = fixed_steps(gradient, normal(3, 40, 1).square())
        law = cls(scale=0.1, clip=1).protect_update(steps, streams(3)).law
        assert law is not None and law.normal
        assert torch.equal(law.passing, gradient.abs() < 1) and not bool(law.passing.all())
        assert torch.equal(law.mean, gradient.clamp(-1, 1))


class TestNoiseVariance:
    CLIENTS, SIZE = 6000, 12

    def message_of(self, fixed_steps: Fixed, defense: Defense) -> Message:
        """Thousands of clients with one gradient: they differ in nothing but their streams."""
        gradient = normal(1, self.SIZE).expand(self.CLIENTS, -1)
        sensitivity = normal(1, self.SIZE, 1).square().expand(self.CLIENTS, -1)
        return defense.protect_update(fixed_steps(gradient, sensitivity), streams(self.CLIENTS))

    @pytest.mark.parametrize("mode", ["rms", "fro", "u2"])
    @pytest.mark.parametrize(
        ("cls", "parameters"),
        [
            (GaussianNoise, {}),
            (ClippedNoise, {"clip": 0.8}),
            (OptimalNoise, {}),
            (OptimalClippedNoise, {"clip": 0.8}),
        ],
    )
    def test_is_that_of_what_is_sent(
        self, fixed_steps: Fixed, cls: type[Defense], parameters: dict[str, Any], mode: str
    ) -> None:
        message = self.message_of(fixed_steps, cls(**parameters, **{"scale": 0.3, "scale_mode": mode}))
        variance = message.noise_variance
        assert variance is not None and torch.equal(variance, variance[:1].expand_as(variance))
        quiet = variance[0] == 0
        assert bool(quiet.any()) == (cls is OptimalClippedNoise)
        found = message.view().double().var(dim=0)
        # The relative standard deviation of an estimated variance is sqrt(2 / n), here 0.018.
        torch.testing.assert_close(found[~quiet], variance[0, ~quiet].double(), rtol=0.09, atol=0)
        assert bool((found[quiet] < 1e-12).all())
        clip = parameters.get("clip", torch.inf)
        mean = message.view().mean(dim=0)
        error = (mean - normal(1, self.SIZE)[0].clamp(-clip, clip)).abs()
        assert bool((error <= 5 * (variance[0] / self.CLIENTS).sqrt() + 1e-5).all())
