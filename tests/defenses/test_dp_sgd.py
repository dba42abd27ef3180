"""DP-SGD: a literal loop, Opacus, and what is guaranteed."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from leakbench.defenses.base import Schedule
from leakbench.defenses.dp_sgd import DPPSAC, DPSGD
from leakbench.errors import Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network
from leakbench.randomness import Streams

CLIENTS, BATCH = 2, 5


def streams() -> Streams:
    return Streams([("dp", client) for client in range(CLIENTS)])


@pytest.fixture(scope="module")
def steps(tiny_network: Network) -> ClientSteps:
    make = torch.Generator().manual_seed(0)
    images = torch.rand(CLIENTS, BATCH, 1, 8, 8, generator=make)
    labels = torch.randint(10, (CLIENTS, BATCH), generator=make)
    return ClientSteps(tiny_network, tiny_network.parameters, images, labels, streams())


def median_norm(steps: ClientSteps) -> float:
    """A clipping norm that some gradients exceed and others do not."""
    return float(steps.per_sample_gradient.norm(dim=2).median())


@pytest.mark.parametrize("cls", [DPSGD, DPPSAC])
def test_is_the_literal_loop(steps: ClientSteps, cls: type[DPSGD]) -> None:
    bound, r = median_norm(steps), 0.1
    defense = cls(clip=bound, multiplier=0.7)
    message = defense.protect_update(steps, streams())
    normal = streams().normal(steps.network.dimension)
    norms = []
    for client in range(CLIENTS):
        total = torch.zeros(steps.network.dimension)
        for image, label in zip(steps.images[client], steps.labels[client], strict=True):
            gradient = steps.network.gradient(steps.parameters, image[None], label[None])
            norm = float(gradient.norm())
            factor = min(1.0, bound / norm) if cls is DPSGD else bound / (norm + r / (norm + r))
            norms.append(factor * norm)
            total += factor * gradient
        noisy = (total + 0.7 * bound * normal[client]) / BATCH
        torch.testing.assert_close(message.view()[client], noisy)
        assert message.law is not None and message.law.variance is not None
        torch.testing.assert_close(message.law.mean[client], total / BATCH)
        torch.testing.assert_close(message.law.variance[client], torch.full_like(total, (0.7 * bound / BATCH) ** 2))
    assert max(norms) <= bound * (1 + 1e-6)
    assert min(norms) < 0.99 * bound
    if cls is DPPSAC:
        assert max(norms) < bound


def test_gradients_within_the_bound_are_untouched(steps: ClientSteps) -> None:
    message = DPSGD(clip=1e3, multiplier=0).protect_update(steps, streams())
    torch.testing.assert_close(message.view(), steps.gradient)


def test_a_gradient_of_zero_stays() -> None:
    norms = torch.tensor([0.0, 1.0, 4.0])
    assert DPSGD(clip=2, multiplier=1).factors(norms).tolist() == [1, 1, 0.5]
    factors = DPPSAC(clip=2, multiplier=1, r=0.5).factors(norms)
    torch.testing.assert_close(factors, torch.tensor([2.0, 2 / (1 + 0.5 / 1.5), 2 / (4 + 0.5 / 4.5)]))


def test_opacus_sums_the_same_clipped_gradients(steps: ClientSteps) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        bound = median_norm(steps)
        ours = BATCH * DPSGD(clip=bound, multiplier=0).protect_update(steps, streams()).view()
        for client in range(CLIENTS):
            module = GradSampleModule(steps.network.trainable_module())
            plain = torch.optim.SGD(module.parameters(), lr=0.1)
            optimiser = DPOptimizer(plain, noise_multiplier=0.0, max_grad_norm=bound, expected_batch_size=BATCH)
            torch.nn.functional.cross_entropy(module(steps.images[client]), steps.labels[client]).backward()
            optimiser.clip_and_accumulate()
            theirs = torch.cat([parameter.summed_grad.flatten() for parameter in module.parameters()])
            torch.testing.assert_close(ours[client], theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


def test_several_local_steps_have_no_gradient_per_image(steps: ClientSteps) -> None:
    longer = ClientSteps(
        steps.network, steps.parameters, steps.images, steps.labels, streams(), LocalTraining(steps=2, rate=0.1)
    )
    with pytest.raises(Infeasible, match="per-sample gradients exist for one local step"):
        DPSGD(multiplier=1).protect_update(longer, streams())


class TestPrivacy:
    @pytest.mark.parametrize(("multiplier", "epsilon"), [(0.8, 1.561), (0.57, 4.594), (0.46, 10.361)])
    def test_of_the_papers_setting(self, multiplier: float, epsilon: float) -> None:
        """64 of 50,000 images, 10,000 steps: not what the paper prints, but what its accountant gives,
        up to the grid of orders."""
        schedule = Schedule(dimension=10, rounds=10_000, sampling_rate=64 / 50_000)
        for cls in (DPSGD, DPPSAC):
            statement = cls(multiplier=multiplier).privacy(schedule)
            assert statement.epsilon == pytest.approx(epsilon, rel=2e-3) and statement.delta == 1e-5
        assert "one image" in statement.basis and "0.00128" in statement.basis and statement.capacity is None

    def test_one_release_of_all_images(self) -> None:
        """Below the classical epsilon of the Gaussian mechanism, ``sqrt(2 ln(1.25 / delta)) / z``, and above a half."""
        statement = DPSGD(multiplier=10).privacy(Schedule(dimension=10))
        classical = math.sqrt(2 * math.log(1.25e5)) / 10
        assert statement.epsilon is not None and classical / 2 < statement.epsilon < classical
        assert "every image" in statement.basis

    def test_monotone(self) -> None:
        def epsilon(multiplier: float = 1.0, rounds: int = 10, rate: float | None = 0.1, clip: float = 1.0) -> float:
            schedule = Schedule(10, rounds, sampling_rate=rate)
            value = DPSGD(multiplier=multiplier, clip=clip).privacy(schedule).epsilon
            assert value is not None
            return value

        assert epsilon(2.0) < epsilon() < epsilon(rounds=20) < epsilon(rounds=20, rate=0.2)
        assert epsilon() == epsilon(clip=9) and epsilon(rate=None) > epsilon()

    def test_none_without_noise(self) -> None:
        statement = DPSGD(multiplier=0).privacy(Schedule(10))
        assert statement.epsilon is None and "no guarantee" in statement.basis
