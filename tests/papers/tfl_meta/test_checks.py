"""What holds of the formulas does, what is stated and wrong does not, and a wrong theory function is found."""

from __future__ import annotations

import dataclasses
import math

import pytest
from tests.papers.theorems import (
    Function,
    Mutate,
    Mutation,
    assert_noticed,
    assert_outcome,
    checks_of,
    each_mutation,
    times,
)

from leakbench.papers.tfl_meta import PAPER, checks
from leakbench.report.claims import claims_of
from leakbench.report.evidence import Evidence

CHECKS = checks_of(PAPER)

AS_STATED = {
    "T3a",
    "T3b",
    "T5",
    "T9a",
    "T9b",
    "T19a",
    "T21",
    "T22a",
    "T23a",
    "T24a",
    "T25a",
    "T26a",
    "T27",
    "T28",
    "T29",
}
"""Keys of statements of the paper that do not hold."""


@pytest.mark.parametrize("key", CHECKS)
def test_holds_or_not(key: str) -> None:
    assert_outcome(CHECKS[key], holds=key not in AS_STATED, trials=4)


def test_the_verdict_is_that_of_the_check() -> None:
    claims = {entry.key: entry for entry in claims_of(PAPER)}
    assert claims["T19a"].find(Evidence({})).verdict == "contradicted"
    assert claims["T19b"].find(Evidence({})).verdict == "reproduced"


def test_random_models_are_many_and_cover_the_cases() -> None:
    toy = checks._toys()
    ratio = toy.x / toy.c1
    assert len(ratio) >= 1e5
    for low, high in ((0, 0.5), (0.5, 0.75), (0.75, 1), (1, math.inf)):
        assert int(((ratio >= low) & (ratio < high)).sum()) > 5000


def plus(term: float) -> Mutate:
    return lambda true: lambda *args, **kwargs: true(*args, **kwargs) + term


def of_toys(**changes: float) -> Mutate:
    """The random models with something scaled."""

    def mutate(true: Function) -> Function:
        toy = true()
        return lambda: dataclasses.replace(toy, **{name: by * getattr(toy, name) for name, by in changes.items()})

    return mutate


def exact(factor: float) -> Mutate:
    return lambda true: lambda: (factor * true()[0], true()[1])


def dear(mechanism: str) -> Mutate:
    return lambda true: lambda name, *args: (9.0, 9.0) if name == mechanism else true(name, *args)


MUTATIONS: list[Mutation] = [
    ("T1", "leakage", lambda true: lambda *args: true(*args).square()),
    ("T2", "leakage_bounds", lambda true: lambda c1, x: true(c1, 0.3 * x)),
    ("T2", "_toys", of_toys(leaked=1.5)),
    ("T4", "printed_bound", times(0.5)),
    ("T6", "_toys", of_toys(c1=1.1)),
    ("T7", "paillier_tv", lambda true: lambda *args: 1 - true(*args)),
    ("T7", "efficiency_loss_bound", times(-1.0)),
    ("T8", "optimal_log_modulus", plus(1e-6)),
    ("T8", "optimal_mask", times(1 + 1e-9)),
    ("T8", "optimal_noise_variance", times(0.99)),
    ("T8", "optimal_kept", lambda true: lambda tau, size: true(tau, size, "rescaled")),
    ("T9c", "optimal_mask", lambda true: lambda tau, delta, size, _: true(tau, delta, size)),
    ("T10", "utility_loss_bound", times(-1.0)),
    ("T13a", "_noise", exact(0.05)),
    ("T13a", "_noise", exact(10.0)),
    ("T13b", "_noise", exact(0.5)),
    ("T17a", "c1_error", times(0.1)),
    ("T17b", "_errors", lambda true: lambda: true().assign(covered=0.9)),
    ("T18", "_errors", lambda true: lambda: true().assign(error=lambda frame: frame["error"] ** 0.5)),
    ("T18", "_errors", lambda true: lambda: true().assign(bound=lambda frame: frame["bound"] ** 2)),
    ("T19b", "data_belief", times(1 + 1e-6)),
    ("T20", "bounds_at_optimum", dear("paillier")),
    ("T20", "bounds_at_optimum", dear("compression")),
    ("T22b", "amplification", times(0.0)),
    ("T23b", "rescaled_compression_tv", times(0.95)),
    ("T24b", "compression_tv", lambda true: lambda kept, size, _: true(kept, size)),
    ("T26b", "exact_sharing_tv", times(0.95)),
    ("T30", "certain_constants", lambda true: lambda models, _, *args: true(models, 100, *args)),
    ("T30", "certain_constants", lambda true: lambda *args: dataclasses.replace(true(*args), c2=true(*args).xi.exp())),
]


@each_mutation(MUTATIONS)
def test_a_wrong_function_is_noticed(key: str, function: str, mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert key not in AS_STATED
    assert_noticed(CHECKS[key], function, mutate, monkeypatch)
