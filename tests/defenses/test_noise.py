"""Isotropic noise, plain and after clipping, and what it guarantees."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from leakbench.defenses.base import DEFENSES, Defense, NoDefense, Schedule
from leakbench.defenses.noise import ClippedNoise, GaussianNoise
from leakbench.defenses.optimal import OptimalClippedNoise, OptimalNoise, OptimalPruning
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.federated.message import DenseMessage
from leakbench.federated.step import ClientSteps
from leakbench.randomness import Streams

Fixed = Callable[[torch.Tensor, torch.Tensor], ClientSteps]
EVERY = {
    "none": {},
    "gaussian_noise": {"scale": 0.3},
    "clipped_noise": {"scale": 0.3, "clip": 0.5},
    "magnitude_pruning": {"fraction": 0.4},
    "random_mask": {"probability": 0.4},
    "optimal_noise": {"scale": 0.3},
    "optimal_clipped_noise": {"scale": 0.3, "clip": 0.5},
    "optimal_pruning": {"fraction": 0.4},
    "rounding": {"scale": 0.3},
    "optimal_rounding": {"scale": 0.3},
}

# Tested in test_channel.py, test_transformations.py, test_mixup.py, test_precode.py, test_dp_sgd.py and
# test_aggregate_noise.py: what acts on images or the model, and what needs the gradient of each.
ON_DATA = {"natural_channel", "white_channel", "personalized_channel", "eigen_compression", "ats", "mixup", "precode"}
PER_SAMPLE = {"parameter_channel", "dp_sgd", "dp_psac", "distributed_noise", "gaussian_sampling", "water_filling"}
# Tested in files of their own: what needs to know the network's layers.
PER_TENSOR = {"laplace", "soteria", "sign_sgd", "grad_drop", "qsgd", "cafl", "sdq", "jopeq", "cdpa"}
PER_TENSOR |= {"grad_drop_residual", "ef_sign_sgd", "truncated_svd", "power_sgd", "censor"}
# Tested in test_fixed_point_sums.py and test_tuned.py: sums of integers, and what becomes one of the others.
IN_FIXED_POINT = {"fixed_point", "masked_pair", "additive_sharing", "paillier"}
BUDGETED = {"tuned"}


def streams(n: int) -> Streams:
    return Streams([("noise", index) for index in range(n)])


def normal(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_none_is_the_identity(fixed_steps: Fixed) -> None:
    gradient = normal(3, 10)
    message = NoDefense().protect_update(fixed_steps(gradient, gradient), streams(3))
    assert message.view() is gradient
    images, labels = torch.rand(3, 2, 1, 4, 4), torch.zeros(3, 2)
    protected = NoDefense().protect_data(images, labels, streams(3))
    assert protected[0] is images and protected[1] is labels
    assert NoDefense().privacy(Schedule(10)).epsilon is None


def test_the_server_averages_consecutive_clients() -> None:
    values = torch.arange(12.0).view(6, 2)
    update = NoDefense().aggregate(DenseMessage(values), 3)
    assert update.tolist() == [[2, 3], [8, 9]]


@pytest.mark.parametrize("name", EVERY)
def test_a_row_does_not_depend_on_the_batch_it_is_in(fixed_steps: Fixed, name: str) -> None:
    defense = DEFENSES.get(name)(**EVERY[name])
    gradient, sensitivity = normal(5, 40), normal(5, 40, 1).square()
    together = defense.protect_update(fixed_steps(gradient, sensitivity), streams(5)).view()
    for index in range(5):
        row = slice(index, index + 1)
        alone = defense.protect_update(fixed_steps(gradient[row], sensitivity[row]), Streams([("noise", index)])).view()
        assert torch.equal(alone, together[row])
    assert name == "none" or not torch.equal(together, gradient)


def test_the_table_above_names_every_defense() -> None:
    own = {name for name in DEFENSES if DEFENSES.get(name).__module__.startswith("leakbench.")}
    assert own == set(EVERY) | ON_DATA | PER_SAMPLE | PER_TENSOR | IN_FIXED_POINT | BUDGETED


@pytest.mark.parametrize(
    ("mode", "variance"),
    [("rms", 0.3**2), ("fro", 0.3 / math.sqrt(20_000)), ("u2", 0.3 / (20_000 * 4.0))],
)
@pytest.mark.parametrize("cls", [GaussianNoise, ClippedNoise])
def test_variance(fixed_steps: Fixed, cls: type[GaussianNoise | ClippedNoise], mode: str, variance: float) -> None:
    gradient = torch.full((2, 20_000), 2.0)
    defense = cls(scale=0.3, scale_mode=mode)
    noise = defense.protect_update(fixed_steps(gradient, gradient), streams(2)).view()
    noise -= 2.0 if cls is GaussianNoise else 1.0  # clipped at 1
    assert float(noise.var()) == pytest.approx(variance, rel=0.03)
    assert abs(float(noise.mean())) < 4 * math.sqrt(variance / 40_000)
    assert not torch.equal(noise[0], noise[1])


@pytest.mark.parametrize("cls", [GaussianNoise, ClippedNoise])
def test_equal_streams_draw_equal_noise_at_every_scale(
    fixed_steps: Fixed, cls: type[GaussianNoise | ClippedNoise]
) -> None:
    steps = fixed_steps(torch.zeros(2, 50), torch.zeros(2, 50))
    small, large = (cls(scale=scale).protect_update(steps, streams(2)).view() for scale in (0.5, 1.0))
    assert torch.equal(2 * small, large)


def test_clipping_bounds_every_coordinate(fixed_steps: Fixed) -> None:
    gradient = torch.tensor([[0.3, -2.0, 0.05, 1.0, -0.2]])
    sent = ClippedNoise(scale=0, clip=1).protect_update(fixed_steps(gradient, gradient), streams(1)).view()
    torch.testing.assert_close(sent, torch.tensor([[0.3, -1.0, 0.05, 1.0, -0.2]]))
    sent = ClippedNoise(scale=0.1, clip=0.1).protect_update(fixed_steps(gradient, gradient), streams(1)).view()
    noise = 0.1 * streams(1).normal(5)
    torch.testing.assert_close(sent, torch.tensor([[0.1, -0.1, 0.05, 0.1, -0.1]]) + noise)


class TestPrivacy:
    def test_by_hand(self) -> None:
        """Sensitivity 2 P sqrt(d) = 0.4, so rho = 3 x 0.4^2 / (2 x 2^2) = 0.06."""
        statement = ClippedNoise(scale=2.0, clip=0.02).privacy(Schedule(dimension=100, rounds=3, delta=1e-5))
        assert statement.epsilon == pytest.approx(0.06 + 2 * math.sqrt(0.06 * math.log(1e5)))
        assert statement.epsilon == pytest.approx(1.7223, abs=1e-4)
        assert statement.delta == 1e-5
        assert "3 round(s)" in statement.basis and "whole batch" in statement.basis

    def test_frobenius_scale(self) -> None:
        """A covariance of norm s has the variance s / sqrt(d)."""
        schedule = Schedule(dimension=100)
        fro = ClippedNoise(scale=0.4, scale_mode="fro", clip=0.02).privacy(schedule)
        rms = ClippedNoise(scale=math.sqrt(0.4 / 10), clip=0.02).privacy(schedule)
        assert fro.epsilon == pytest.approx(rms.epsilon)

    def test_monotone(self) -> None:
        def epsilon(scale: float = 1.0, clip: float = 0.1, rounds: int = 1, delta: float = 1e-5, d: int = 50) -> float:
            value = ClippedNoise(scale=scale, clip=clip).privacy(Schedule(d, rounds, delta)).epsilon
            assert value is not None
            return value

        assert epsilon(scale=0.5) > epsilon() > epsilon(scale=2.0) > epsilon(scale=20.0) > 0
        assert epsilon(clip=0.2) > epsilon() and epsilon(rounds=2) > epsilon() and epsilon(delta=1e-6) > epsilon()
        assert epsilon(d=51) > epsilon()

    @pytest.mark.parametrize(
        "defense",
        [
            GaussianNoise(scale=10),
            ClippedNoise(scale=0),
            ClippedNoise(scale=10, scale_mode="u2"),
            MagnitudePruning(fraction=0.99),
            OptimalNoise(scale=10),
            OptimalClippedNoise(scale=10),
            OptimalPruning(fraction=0.99),
        ],
        ids=repr,
    )
    def test_none_where_there_is_none(self, defense: Defense) -> None:
        statement = defense.privacy(Schedule(dimension=10))
        assert statement.epsilon is None and statement.delta is None
        assert statement.as_dict() == {"epsilon": None, "delta": None, "basis": statement.basis}
        assert "no " in statement.basis
