"""The theorems of Tan et al. (2024) hold but for what is stated wrongly; a wrong theory function makes checks fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.papers.theorems import (
    Function,
    Mutate,
    Mutation,
    always,
    assert_noticed,
    assert_outcome,
    checks_of,
    each_mutation,
    times,
)

from leakbench.papers.channel import PAPER
from leakbench.papers.channel.misprints import STEPS
from leakbench.report.claims import claims_of
from leakbench.report.evidence import Evidence
from leakbench.theory.capacity import natural_variance, white_variances

CHECKS = checks_of(PAPER)


AS_STATED = ("T11a", "T12a", "T13a", "T14a", "T15a", "T16a")
"""Keys of statements of the paper that do not hold."""


@pytest.mark.parametrize("key", CHECKS)
def test_holds_or_not(key: str) -> None:
    assert_outcome(CHECKS[key], holds=key not in AS_STATED, trials=4)


def test_what_is_stated_wrongly_is_a_row_beside_its_correction() -> None:
    claims = {entry.key: entry for entry in claims_of(PAPER)}
    for key in AS_STATED:
        corrected = key.replace("a", "b")
        assert "as stated" in claims[key].source and "our" in claims[corrected].source
        assert claims[key].find(Evidence({})).verdict == "contradicted"
        assert claims[corrected].find(Evidence({})).verdict == "reproduced"


def test_theorem_4_is_off_by_a_factor_of_two() -> None:
    assert CHECKS["T12a"]().margin == pytest.approx(-0.5, abs=1e-5)


def of_the_mean(eigenvalues: torch.Tensor, kappa: torch.Tensor) -> torch.Tensor:
    """Natural noise as if all eigenvalues were their mean."""
    return white_variances(eigenvalues, kappa).mean(dim=-1)


def without_noise_in_k(true: Function) -> Function:
    """Theorem 3 with ``k_i = beta_i``."""
    return lambda covariance, weights: true(covariance, weights)._replace(k=weights)


def without_explanation(true: Function) -> Function:
    """Theorem 3 with ``u`` too small."""

    def other(covariance: torch.Tensor, weights: torch.Tensor) -> Any:
        found = true(covariance, weights)
        return found._replace(u=found.u / 2)

    return other


def from_logged(factor: float) -> Mutate:
    def mutate(true: Function) -> Function:
        def other(*args: Any) -> Any:
            found = true(*args)
            return found._replace(value=factor * found.value)

        return other

    return mutate


def swapped(true: Function) -> Function:
    """Data noise for parameter noise."""
    return lambda weight, other, space: true(weight, other, "data" if space == "parameter" else "parameter")


MUTATIONS: list[Mutation] = [
    ("T1", "natural_variance", times(1 + 1e-7)),
    ("T1", "natural_variance", always(of_the_mean)),
    ("T1", "capacity", times(0.5)),
    ("T1", "capacity", lambda true: lambda values, sigma: true(values.amax(dim=-1, keepdim=True), sigma)),
    ("T2", "white_variances", times(1 + 1e-7)),
    ("T2", "white_variances", always(lambda v, k: natural_variance(v, k).unsqueeze(-1).expand_as(v))),
    ("T2", "white_factor", times(1 + 1e-7)),
    ("T2", "white_factor", lambda true: lambda rank, kappa: true(rank + 1, kappa)),
    ("T2", "directional_information", times(2)),
    ("T2", "gaussian_capacity", times(1 + 1e-7)),
    ("T3", "capacity_bound", times(0.999)),
    ("T3", "capacity_bound", times(1 + 1e-7)),
    ("T3", "blocks", without_noise_in_k),
    ("T3", "blocks", without_explanation),
    ("T3", "bound_variance", times(0.999)),
    ("T3", "personalized_variance", times(1 + 1e-7)),
    ("T3", "personalized_capacity", times(1 + 1e-7)),
    ("T4", "gaussian_error", times(0.5)),
    ("T4", "error_bound", from_logged(1.001)),
    ("T4", "error_bound", lambda true: lambda power, told, size: true(power, told / 2, size)),
    ("T4", "gaussian_log_entropy_power", always(lambda values: values.mean(dim=-1).log())),
    ("T4", "diagonal_error", times(1 + 1e-7)),
    ("T5", "white_variances", lambda true: lambda values, kappa: true(values, 1.1 * kappa)),
    ("T5", "natural_variance", times(2)),
    ("T5", "diagonal_error", times(1 + 1e-7)),
    ("T6", "white_variances", lambda true: lambda values, kappa: true(values, 1.1 * kappa)),
    ("T6", "natural_variance", times(1.1)),
    ("T7", "batch_capacity", lambda true: lambda values, sigma, size, *_: true(values, sigma, size)),
    ("T7", "batch_capacity", lambda true: lambda values, sigma, size, *_: true(values, sigma, size, "dp")),
    ("T7", "batch_capacity", times(1 + 1e-7)),
    ("T7", "step_capacity", lambda true: lambda size, sigma: true(1 / size, sigma)),
    ("T7", "step_capacity", times(0.5)),
    ("T8", "coordinate_loss", times(-1)),
    ("T8", "coordinate_loss", times(1.001)),
    ("T8", "coordinate_capacity", times(1 + 1e-7)),
    ("T8", "direction_loss", lambda true: lambda values, sigma: true(1 / values, sigma)),
    ("T8", "without_directions", always(lambda values, _: values)),
    ("T9", "equivalent_variance", times(1 + 1e-7)),
    ("T9", "coordinate_capacity", times(2)),
    ("T9", "without_directions", always(lambda values, _: values)),
    ("T10", "toy_capacity", swapped),
    ("T10", "toy_variance", swapped),
    ("T10", "toy_variance", times(1 + 1e-7)),
    ("T10", "next_weight", times(0.5)),
    ("T11b", "personalized_capacity", times(1 + 1e-7)),
    (
        "T11b",
        "personalized_capacity",
        lambda true: lambda covariance, weights, sigma: true(covariance, weights, 2 * sigma),
    ),
    ("T12b", "step_capacity", times(0.999)),
    ("T12b", "step_capacity", times(1.001)),
    ("T12b", "finite_step_capacity", times(2)),
    ("T12b", "batch_capacity", times(3)),
    ("T12b", "multiplier_capacity", times(2)),
    ("T13b", "composed_epsilon", times(1.01)),
    ("T13b", "composed_epsilon", lambda true: lambda *args: true(*args, conversion="classical")),
    ("T14b", "accumulated_capacity", times(1 + 1e-7)),
    ("T14b", "accumulated_capacity", lambda true: lambda values, sigma, visits, _: true(values, sigma, visits, "once")),
    ("T14b", "gaussian_capacity", times(1 + 1e-7)),
    ("T15b", "information_factor", lambda true: lambda total, size: true(STEPS * total, size)),
]


@each_mutation(MUTATIONS)
def test_a_wrong_function_is_noticed(key: str, function: str, mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(CHECKS[key], function, mutate, monkeypatch)
