"""The checks of the theorems of Chen, Gürsoy and Lei (2024) hold, and a wrong theory function makes them fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.papers.theorems import (
    Mutate,
    Mutation,
    always,
    assert_noticed,
    assert_outcome,
    checks_of,
    each_mutation,
    times,
)

from leakbench.defenses.noise import ClippedNoise
from leakbench.papers.optimal_defense import PAPER
from leakbench.papers.optimal_defense.theory.cramer_rao import error_bound
from leakbench.papers.optimal_defense.theory.probes import chebyshev_coverage
from leakbench.papers.optimal_defense.theory.pruning_budget import keep_probabilities
from leakbench.theory.optimal_noise import pruned

CHECKS = checks_of(PAPER)


@pytest.mark.parametrize("key", CHECKS)
def test_holds(key: str) -> None:
    assert_outcome(CHECKS[key])


def power(exponent: float) -> Mutate:
    """Variances that spend the budget on another power of the ratio."""

    def other(a: torch.Tensor, b: torch.Tensor, budget: Any) -> torch.Tensor:
        ratio = (a / b) ** exponent
        return torch.as_tensor(budget).unsqueeze(-1) * ratio / (b * ratio).sum(dim=-1, keepdim=True)

    return always(other)


MUTATIONS: list[Mutation] = [
    ("T1", "optimal_variance", power(0.48)),
    ("T1", "optimal_variance", power(1.0)),
    ("T1", "optimal_variance", times(1.001)),
    ("T1", "minimal_trace", times(0.999)),
    ("T1", "minimal_trace", times(1.001)),
    ("T1", "gain_over_isotropic", times(1.001)),
    ("T1", "isotropic_variance", times(1.001)),
    ("T1", "u2", times(1.001)),
    ("T1", "information_trace", always(lambda a, variance: (a / variance.sqrt()).sum(dim=-1))),
    ("T2", "information_trace", always(lambda a, variance: (a.sqrt() / variance).sum(dim=-1))),
    ("T2", "information_trace", times(1 + 1e-6)),
    ("T2", "gaussian_information", times(1 + 1e-6)),
    ("T2", "gaussian_information", lambda true: lambda jacobian, variance: true(jacobian, variance.sqrt())),
    ("T3", "error_bound", always(lambda trace, prior, *_: error_bound(trace, prior, "smallest_eigenvalue"))),
    ("T3", "error_bound", always(lambda trace, prior, *_: error_bound(trace, prior, "parameter_count", 6))),
    ("T3", "error_bound", times(1.01)),
    ("T3", "linear_gaussian_error", times(0.99)),
    ("T4", "mixed_error_bound", times(1.01)),
    ("T4", "mixed_error_bound", always(lambda traces, _, prior: error_bound(traces.amin(dim=-1), prior))),
    ("T5", "keep_probabilities", always(lambda a, b, c: keep_probabilities(a, b, c, "as_printed"))),
    ("T5", "keep_probabilities", always(lambda a, b, c: keep_probabilities(a / b, b, c))),
    ("T5", "keep_probabilities", times(0.99)),
    ("T5", "keep_probabilities", always(lambda _, b, c: (c / b.sum(dim=-1)).unsqueeze(-1).expand_as(b))),
    ("T6", "optimal_variance", lambda true: lambda a, b, budget: true(a + 1e-9, b, budget)),
    ("T6", "variance_ratio", lambda true: lambda a, g: true(a, g) ** 1.1),
    ("T6", "scale_variance", times(1.001)),
    ("T6", "keep_probabilities", lambda true: lambda a, b, c: true(a / b**0.6, b, c)),
    ("T6", "pruned", always(lambda ratio, part: pruned(ratio, part, "as_printed"))),
    ("T6", "OptimalClippedNoise", always(ClippedNoise)),
    ("T7", "relative_std", times(1.2)),
    ("T7", "exact_coverage", always(chebyshev_coverage)),
    ("T7", "exact_coverage", times(0.95)),
    ("T7", "chebyshev_coverage", times(1.3)),
    ("T7", "mean_power", always(lambda *_: 1.0)),
]


@each_mutation(MUTATIONS)
def test_a_wrong_function_is_noticed(key: str, function: str, mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(CHECKS[key], function, mutate, monkeypatch)
