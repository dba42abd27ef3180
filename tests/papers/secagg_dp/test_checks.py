"""What holds of the formulas does, what is stated and wrong does not, and a wrong theory function is found."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
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

from leakbench.papers.secagg_dp import PAPER
from leakbench.report.claims import claims_of
from leakbench.report.evidence import Evidence

CHECKS = checks_of(PAPER)

AS_STATED = ("T7a", "T9a", "T14a", "T15a", "T16a")
"""Keys of statements of the paper that do not hold."""


@pytest.mark.parametrize("key", CHECKS)
def test_holds_or_not(key: str) -> None:
    assert_outcome(CHECKS[key], holds=key not in AS_STATED, trials=12)


def test_the_verdict_is_that_of_the_check() -> None:
    claims = {entry.key: entry for entry in claims_of(PAPER)}
    assert claims["T14a"].find(Evidence({})).verdict == "contradicted"
    assert claims["T14b"].find(Evidence({})).verdict == "reproduced"


class _Scaled:
    """A curve whose bound is a part of the true one."""

    def __init__(self, curve: Any, factor: float) -> None:
        self.limit, self._curve, self._factor = curve.limit, curve, factor

    def epsilon(self, order: float) -> float:
        return float(self._factor * self._curve.epsilon(order))


def smaller(factor: float) -> Mutate:
    return lambda true: lambda *args, **kwargs: _Scaled(true(*args, **kwargs), factor)


def printed_row(true: Function) -> Function:
    """The last row of Table 1 whatever the form."""

    def other(setting: Any, variance: float, mechanism: str, form: str = "corrected") -> Any:
        return true(setting, variance, mechanism, "as_printed" if mechanism == "gaussian_filled" else form)

    return other


def not_amplified(true: Function) -> Function:
    def other(setting: Any, *args: Any) -> Any:
        found = true(setting, *args)
        return dataclasses.replace(found, epsilon=found.epsilon * setting.rate)

    return other


def isotropic(_: Function) -> Function:
    """Adds the floor where the true one lifts to it."""
    return lambda covariance, floor: covariance + floor * torch.eye(covariance.shape[-1], dtype=covariance.dtype)


MUTATIONS: list[Mutation] = [
    ("T1", "leave_one_out", lambda true: lambda columns: true(columns[..., 1:])),
    ("T1", "renyi_divergence", times(0.0)),
    ("T2", "leave_one_out", times(1e-9)),
    ("T3", "rank", lambda true: lambda gradients: true(gradients) + 1),
    ("T3", "least_eigenvalue", lambda true: lambda gradients: true(gradients) + 1e-6),
    ("T4", "full_rank_curve", smaller(0.5)),
    ("T4", "least_eigenvalue", times(3.0)),
    ("T5", "full_rank_curve", lambda true: lambda records, batch, _, floor: true(records, batch, 1.0, 1 / floor)),
    ("T6", "round_curve", printed_row),
    ("T6", "round_curve", smaller(0.5)),
    ("T7b", "round_curve", smaller(0.9)),
    ("T8", "filled", isotropic),
    ("T8", "added_trace", times(1 + 1e-6)),
    ("T9b", "traces", lambda true: lambda *args: true(*args)[::-1]),
    ("T10", "filled", lambda _: lambda covariance, _floor: covariance),
    ("T11", "round_guarantee", not_amplified),
    ("T12", "filled", isotropic),
    ("T13", "information_bound", lambda true: lambda users, *rest: true(users, *rest) * users),
    ("T14b", "block_covariance", lambda true: lambda *args: true(*args[:-1], "as_printed")),
    ("T15b", "least_eigenvalue", times(4.0)),
    ("T16b", "filled", times(2.0)),
]


@each_mutation(MUTATIONS)
def test_a_wrong_function_is_noticed(key: str, function: str, mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(CHECKS[key], function, mutate, monkeypatch)
