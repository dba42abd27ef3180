"""Laplace noise: what it draws, what is clipped, and what it guarantees."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.defenses.tensors import fixed, of_seed, streams

from leakbench.defenses.base import Schedule
from leakbench.defenses.laplace import Laplace, laplace
from leakbench.federated.message import Message

SIZES = [30, 7, 1]
FORMS: list[dict[str, Any]] = [
    {},
    {"bound": 0.5},
    {"form": "as_released"},
    {"form": "as_released_normaliser"},
]


def noise_of(client: int, d: int) -> torch.Tensor:
    return laplace(streams(client), d)[0]


def test_draws_have_the_distribution() -> None:
    """The empirical distribution function of 200,000 draws is within 0.005 (Kolmogorov: beyond that 2 in 10,000)."""
    draws = noise_of(0, 200_000).double().sort().values
    exact = torch.where(draws < 0, 0.5 * draws.exp(), 1 - 0.5 * (-draws).exp())
    empirical = (torch.arange(len(draws)) + 0.5) / len(draws)
    assert float((exact - empirical).abs().max()) < 0.005
    assert bool(draws.isfinite().all())


def test_the_ends_of_the_uniform_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([[0.0, 0.5, 1 - 2**-24, 0.5 - 2**-25, 0.25, 0.75]])
    own = streams(0)
    monkeypatch.setattr(own, "uniform", lambda *_, **__: ends)
    found = laplace(own, 6)[0].double()
    assert found.tolist()[:2] == [0, 0]
    assert found[2:4].tolist() == pytest.approx([23 * math.log(2), -24 * math.log(2)], rel=1e-6)
    assert found[4:].tolist() == pytest.approx([-math.log(2), math.log(2)], rel=1e-6)


def literal(gradient: torch.Tensor, epsilon: float, client: int, choice: dict[str, Any]) -> list[float]:
    """One coordinate after the other."""
    noise, found, first = noise_of(client, len(gradient)).tolist(), [], 0
    form, bound = choice.get("form", "clipped"), choice.get("bound")
    for size in SIZES:
        part = gradient[first : first + size].double()
        mean = float(part.mean())
        spread = 3 * math.sqrt(float((part - mean).square().mean()))
        if bound is not None or form == "as_released":
            mean, spread = 0.0, bound or 1.0
        for place, value in enumerate(part.tolist()):
            normal = (value - mean) / spread if spread else 0.0
            if form == "clipped":
                normal = max(-1.0, min(1.0, normal))
            scale = (4 if form == "as_released" else 2) / epsilon
            found.append(mean + spread * (normal + scale * noise[first + place]))
        first += size
    return found


@pytest.mark.parametrize("choice", FORMS, ids=str)
def test_against_a_loop(choice: dict[str, Any]) -> None:
    gradient = of_seed(3, 38)
    gradient[:, 4] = 30.0  # beyond three standard deviations
    message = Laplace(epsilon=2, **choice).protect_update(fixed(gradient, SIZES), streams(0, 1, 2))
    for client in range(3):
        expected = literal(gradient[client], 2, client, choice)
        assert message.view()[client].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    alone = Laplace(epsilon=2, **choice).protect_update(fixed(gradient[1:2], SIZES), streams(1))
    torch.testing.assert_close(alone.view()[0], message.view()[1])
    assert message.bits == 32 * 38 and message.marked is None


@pytest.mark.parametrize("choice", FORMS, ids=str)
def test_the_law(choice: dict[str, Any]) -> None:
    many = 5000
    gradient = of_seed(1, 38)
    gradient[0, 4] = 30.0
    steps = fixed(gradient.expand(many, -1), SIZES)
    message: Message = Laplace(epsilon=2, **choice).protect_update(steps, streams(*range(many)))
    law = message.law
    assert law is not None and law.variance is not None and not law.normal
    variance = law.variance[0].double()
    # Of Laplace noise the variance of an estimated variance is 5 / n times its square.
    found = message.view().double().var(dim=0)
    torch.testing.assert_close(found, variance, rtol=5 * math.sqrt(5 / many), atol=1e-10)
    error = (message.view().double().mean(dim=0) - law.mean[0]).abs()
    assert bool((error < 5 * (variance / many).sqrt() + 1e-5).all())
    clips = choice.get("form", "clipped") == "clipped"
    assert bool(law.passing.all()) == (not clips) and bool(law.passing[0, 4]) == (not clips)
    if not clips:
        assert torch.equal(law.mean[0], gradient[0])


def test_a_constant_tensor_is_sent_as_it_is() -> None:
    """It has no spread of its own, so no noise: one more reason why the default guarantees nothing."""
    gradient = torch.cat([torch.full((1, 30), 0.25), of_seed(1, 8)], dim=1)
    sent = Laplace(epsilon=1).protect_update(fixed(gradient, SIZES), streams(0)).view()
    assert torch.equal(sent[:, :30], gradient[:, :30]) and torch.equal(sent[:, 37:], gradient[:, 37:])
    assert not torch.equal(sent[:, 30:37], gradient[:, 30:37])


class TestPrivacy:
    @given(st.floats(-1, 1), st.floats(-1, 1), st.floats(-20, 20), st.floats(0.1, 8))
    def test_densities_of_a_clipped_coordinate_differ_by_at_most_epsilon(
        self, one: float, other: float, seen: float, epsilon: float
    ) -> None:
        """The claim itself: ``|ln p(y | x) - ln p(y | x')| <= epsilon`` at the mechanism's scale."""
        scale = Laplace(epsilon=epsilon, bound=1.0)._noise_scale
        assert abs(abs(seen - one) - abs(seen - other)) / scale <= epsilon * (1 + 1e-12)

    def test_it_is_tight(self) -> None:
        assert (abs(9 - -1) - abs(9 - 1)) / Laplace(epsilon=0.7, bound=1.0)._noise_scale == pytest.approx(0.7)

    def test_coordinates_and_rounds_add(self) -> None:
        statement = Laplace(epsilon=4, bound=0.1).privacy(Schedule(dimension=5130, rounds=95))
        assert statement.epsilon == 4 * 5130 * 95 and statement.delta == 0
        assert "per coordinate" in statement.basis and "whole batch" in statement.basis

    @pytest.mark.parametrize("choice", [choice for choice in FORMS if "bound" not in choice], ids=str)
    def test_none_without_constants(self, choice: dict[str, Any]) -> None:
        statement = Laplace(epsilon=4, **choice).privacy(Schedule(dimension=10))
        assert statement.epsilon is None and statement.delta is None and "no guarantee" in statement.basis
        assert ("40 in all" in statement.basis) == (choice == {})


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0}, {"epsilon": 1, "bound": 0}, {"epsilon": 1, "bound": 1, "form": "as_released"}], ids=str
)
def test_parameters_outside_their_ranges(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Laplace(**wrong)
