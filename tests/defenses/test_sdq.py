"""Quantisation as a defense, with noise and without: what arrives, and what it guarantees."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError
from scipy.stats import kstest, multivariate_t

from leakbench.defenses.base import Schedule
from leakbench.defenses.sdq import PUBLISHED, SDQ, JoPEQ, student_epsilon
from leakbench.federated.lattice import Lattice, LatticeMessage
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network
from leakbench.randomness import Streams

Fixed = Callable[[torch.Tensor, torch.Tensor], ClientSteps]
Make = Callable[[torch.Tensor], ClientSteps]
VECTOR = {"epsilon": 2, "sigma2": 1, "nu": 12}


def streams(n: int) -> Streams:
    return Streams([("sdq", index) for index in range(n)])


def updates(n: int, network: Network, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(n, network.dimension, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def steps_of(fixed_steps: Fixed, tiny_network: Network) -> Make:
    def make(gradient: torch.Tensor) -> ClientSteps:
        steps = fixed_steps(gradient, gradient)
        steps.network = tiny_network
        return steps

    return make


@pytest.mark.parametrize("parameters", [{}, {"rounding": "babai"}, {"dimension": 1}, {"clip": 1.0}], ids=repr)
def test_sixteen_bits_change_little(steps_of: Make, tiny_network: Network, parameters: dict[str, Any]) -> None:
    gradient = updates(3, tiny_network)
    message = SDQ(**parameters).protect_update(steps_of(gradient), streams(3))
    assert isinstance(message, LatticeMessage)
    assert not message.overloads.any()
    error = message.view() - gradient
    assert 0 < float(error.abs().max()) < 1e-4
    tensors = len(tiny_network.sizes)
    side = 0 if "clip" in parameters else 32 * tensors * (2 if "dimension" in parameters else 3)
    assert message.bits == 16 * 160 + 1 + side
    assert message.law is not None and message.law.variance is not None
    noisy = message.law.variance > 0  # in tensors of two values each is its row's mean, which travels
    assert not error[~noisy].any()
    assert float((error[noisy].square() / message.law.variance[noisy]).mean()) == pytest.approx(1, abs=0.2)
    assert SDQ(**parameters).privacy(Schedule(160)).epsilon is None


def test_fewer_bits_err_more(steps_of: Make, tiny_network: Network) -> None:
    gradient = updates(3, tiny_network)
    errors = [
        float((SDQ(bits=bits).protect_update(steps_of(gradient), streams(3)).view() - gradient).norm())
        for bits in (2, 4, 8, 16)
    ]
    assert all(coarse > 2.5 * fine for coarse, fine in pairwise(errors))


@pytest.mark.parametrize("form", ["published", "as_released"])
def test_the_released_attack_runs_plain_quantisation(steps_of: Make, tiny_network: Network, form: str) -> None:
    gradient = updates(3, tiny_network)
    noisy = JoPEQ(form=form, bits=8, **VECTOR).protect_update(steps_of(gradient), streams(3)).view()
    plain = SDQ(bits=8).protect_update(steps_of(gradient), streams(3)).view()
    assert torch.equal(noisy, plain) == (form == "as_released")


class Wide(JoPEQ):
    """On a coarse lattice that hardly ends: what goes beyond the usual one is clipped, and of noise that is a part."""

    of_step: ClassVar[Lattice] = Lattice(2, 5, 25.0)

    def lattice(self) -> Lattice:
        return self.of_step


class TestTotalError:
    """Of 200,000 values under a public bound, so that nothing but noise and lattice is in between."""

    @pytest.fixture(scope="class")
    def network(self) -> Network:
        return Network(torch.nn.Linear(400, 500, bias=False))

    @pytest.fixture
    def steps(self, fixed_steps: Fixed, network: Network) -> ClientSteps:
        gradient = torch.rand(1, network.dimension, generator=torch.Generator().manual_seed(1)) - 0.5
        steps = fixed_steps(gradient, gradient)
        steps.network = network
        return steps

    @pytest.mark.parametrize("rounding", ["nearest", "babai"])
    @pytest.mark.parametrize(("epsilon", "sigma2", "nu"), [(2, 1, 12), (4, 0.5, 29)])
    def test_vector(self, steps: ClientSteps, rounding: str, epsilon: float, sigma2: float, nu: int) -> None:
        defense = Wide(epsilon=epsilon, sigma2=sigma2, nu=nu, clip=2.0, rounding=rounding)
        message = defense.protect_update(steps, streams(1))
        assert isinstance(message, LatticeMessage)
        assert float(message.quantised.overloaded.double().mean()) < 1e-4
        error = ((message.view() - steps.gradient) / 2).view(2, -1)
        total = sigma2 * nu / (nu - 2)
        torch.testing.assert_close(torch.cov(error), total * torch.eye(2), rtol=0.03, atol=0.02)
        assert float(Wide.of_step.error_covariance(defense.rounding).trace()) > 0.3 * total  # of 2: the rest is noise
        assert message.law is not None and message.law.variance is not None
        torch.testing.assert_close(message.law.variance, torch.full((1, 200_000), 4 * total))

    @pytest.mark.parametrize(("epsilon", "sigma2", "nu"), [(2, 0.5, 4), (1, 2, 3)])
    def test_the_noise_is_bivariate_t(self, steps: ClientSteps, epsilon: float, sigma2: float, nu: int) -> None:
        defense = JoPEQ(epsilon=epsilon, sigma2=sigma2, nu=nu, bits=16)
        noise = defense._noise(steps, streams(1))
        covariance = defense.noise_covariance()
        assert noise is not None and covariance is not None
        drawn = noise((2, 20_000))[0].double()
        shape = covariance * (nu - 2) / nu
        squared = (drawn * torch.linalg.solve(shape, drawn)).sum(dim=0)
        # P(squared norm <= s) of a bivariate t distribution is 1 - (1 + s / nu)^(-nu / 2).
        assert kstest(squared.numpy(), lambda s: 1 - (1 + s / nu) ** (-nu / 2)).pvalue > 1e-3
        angle = torch.atan2(*torch.linalg.solve(torch.linalg.cholesky(shape), drawn))
        assert kstest((angle / (2 * math.pi) + 0.5).numpy(), "uniform").pvalue > 1e-3

    def test_scalar(self, steps: ClientSteps) -> None:
        defense = JoPEQ(epsilon=4, mechanism="scalar", bits=10, clip=2.0)
        assert defense.dimension == 1
        message = defense.protect_update(steps, streams(1))
        assert isinstance(message, LatticeMessage)
        error = (message.view() - steps.gradient) / 2
        kept = ~message.quantised.overloaded
        assert float(kept.double().mean()) > 0.96
        noise = defense._noise(steps, streams(1))
        assert noise is not None
        drawn = noise((1, 20_000)).flatten()
        scale = math.sqrt(0.25 - message.quantised.lattice.step**2 / 24)
        assert kstest(drawn.numpy(), "laplace", args=(0, scale)).pvalue > 1e-3
        assert float(error[kept].median()) == pytest.approx(0, abs=0.01)
        assert float(error[kept].abs().median()) == pytest.approx(0.5 * math.log(2), rel=0.05)


class TestPrivacy:
    @pytest.mark.parametrize(("epsilon", "sigma2", "nu"), PUBLISHED)
    def test_published_epsilons_are_of_centres_one_apart(self, epsilon: float, sigma2: float, nu: int) -> None:
        found = student_epsilon(1 / math.sqrt(sigma2), nu)
        expected = 3.2 if (sigma2, nu) == (0.2, 4) else epsilon  # one noise under two names
        assert found == pytest.approx(expected, rel=0.045)

    @pytest.mark.parametrize(("distance", "nu"), [(0.5, 3), (2.0, 12), (9.0, 4)])
    def test_against_densities(self, distance: float, nu: int) -> None:
        place = torch.linspace(-40, 40, 16_001, dtype=torch.float64)
        points = torch.stack([place, torch.zeros_like(place)], dim=1).numpy()
        ratio = multivariate_t([0, 0], df=nu).logpdf(points) - multivariate_t([distance, 0], df=nu).logpdf(points)
        assert float(abs(ratio).max()) == pytest.approx(student_epsilon(distance, nu), rel=1e-5)

    @pytest.mark.parametrize("parameters", [VECTOR, {"epsilon": 2, "mechanism": "scalar"}], ids=repr)
    def test_only_a_public_bound_gives_any(self, parameters: dict[str, Any]) -> None:
        schedule = Schedule(dimension=10, rounds=3)
        unbounded = JoPEQ(bits=8, **parameters).privacy(schedule)
        assert unbounded.epsilon is None and "sensitivity is not bounded" in unbounded.basis
        bounded = JoPEQ(bits=8, clip=1.0, **parameters)
        statement = bounded.privacy(schedule)
        assert statement.epsilon == pytest.approx(30 * bounded.block_epsilon()) and statement.delta == 0
        assert bounded.block_epsilon() >= 2  # more than the nominal one: the noise is smaller than the total
        released = JoPEQ(bits=8, clip=1.0, form="as_released", **parameters)
        assert released.privacy(schedule).epsilon is None and released.block_epsilon() == math.inf

    def test_scalar_by_hand(self) -> None:
        """Total 2 x 1^2 less Delta^2 / 12: a scale of nearly one, and values two apart."""
        defense = JoPEQ(epsilon=2, mechanism="scalar", bits=4, clip=1.0)
        step = 2 * 1.5 * math.sqrt(3) / 17
        assert defense.lattice().step == pytest.approx(step)
        assert defense.block_epsilon() == pytest.approx(2 / math.sqrt(1 - step**2 / 24))

    def test_single_values_are_bounded_too(self, fixed_steps: Fixed) -> None:
        network = Network(torch.nn.Linear(3, 1))
        gradient = torch.full((1, 4), 5.0)
        steps = fixed_steps(gradient, gradient)
        steps.network = network
        sent = JoPEQ(bits=16, clip=0.5, **VECTOR).protect_update(steps, streams(1))
        assert isinstance(sent, LatticeMessage)
        assert sent.quantised.plain.shape == (1, 0) and not sent.view().eq(5).any()
        assert sent.law is not None and not sent.law.passing.any() and sent.law.mean.eq(0.5).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epsilon": 2}, "none of those that are published"),
        ({"epsilon": 2, "sigma2": 0.2, "nu": 4}, r"\(3.0, 0.2, 4\)"),
        ({"epsilon": 2, "mechanism": "scalar", "nu": 4}, "'scalar' takes epsilon alone"),
        ({"epsilon": 2, "mechanism": "scalar", "dimension": 2}, "must be 2 for mechanism 'vector' and 1 for 'scalar'"),
        ({"epsilon": 20, "mechanism": "scalar", "bits": 1}, "take more bits or a smaller epsilon"),
        ({"epsilon": 0, "mechanism": "scalar"}, "epsilon"),
    ],
)
def test_what_does_not_fit_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        JoPEQ(**parameters)
