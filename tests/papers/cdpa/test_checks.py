"""What holds of CDPA's formulas does, what is stated and wrong does not, and a wrong theory function is found."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.defenses.tensors import fixed, of_seed, streams
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

from leakbench.defenses.quantised import QSGD
from leakbench.federated.fixed_point import FixedPoint
from leakbench.papers.cdpa import PAPER, checks

CHECKS = checks_of(PAPER)

AS_STATED = ("T2a", "T4a", "T5a", "T7b", "T8a", "T8c", "T9a", "T11a")
"""Keys of statements of the paper that do not hold."""


@pytest.mark.parametrize("key", CHECKS)
def test_holds_or_not(key: str) -> None:
    assert_outcome(CHECKS[key], holds=key not in AS_STATED)


@pytest.mark.parametrize("form", ["l2", "as_released"])
@pytest.mark.parametrize("bits", [2, 8])
def test_error_of_qsgd_is_that_of_the_defense(form: Any, bits: int) -> None:
    values = of_seed(3, 50).double()
    levels = 2 ** (bits - 1) - (form == "l2")
    message = QSGD(levels=levels, form=form).protect_update(fixed(values, [50]), streams(0, 1, 2))
    assert message.law is not None and message.law.variance is not None
    variance = message.law.variance
    order = 2 if form == "l2" else math.inf
    torch.testing.assert_close(checks._error_of_qsgd(values, bits, order), variance.mean(dim=1))


def turned(true: Function) -> Function:
    """Grows in p where the true one falls."""
    return lambda *args, **kwargs: 1 / true(*args, **kwargs)


def printed_rule(true: Function) -> Function:
    return lambda clients, keep, *_: true(clients, keep)


def one_client_more(true: Function) -> Function:
    return lambda clients, keep, *rest: true(clients + 1, keep, *rest)


def union(_: Function) -> Function:
    """A one of any client makes a one."""

    def other(words: torch.Tensor, __: int) -> torch.Tensor:
        return words[..., :2, :].sum(dim=-2).to(torch.int16) | 1

    return other


def without_dither(true: Function) -> Function:
    """The server forgets to subtract the dither."""
    return lambda sent, _: sent.lattice.place(sent.points.double()).flatten(1)


def coarse(true: Function) -> Function:
    def other(values: torch.Tensor, sizes: Any, lattice: Any, *args: Any, **kwargs: Any) -> Any:
        return true(values, sizes, type(lattice)(bits=1), *args, **kwargs)

    return other


class _Twice(FixedPoint):
    """Flips twice as often."""

    def flip(self, words: torch.Tensor, positions: Any, keep: float, streams: Any) -> torch.Tensor:
        return super().flip(words, positions, 2 * keep - 1, streams)


MUTATIONS: list[Mutation] = [
    ("T1", "recovery_error", turned),
    ("T2b", "recovery_error", turned),
    ("T2b", "recovery_error", one_client_more),
    ("T3", "likelihood_ratio", times(1 + 1e-7)),
    ("T3", "composed_epsilon", times(1 + 1e-7)),
    ("T4b", "vote_errors", printed_rule),
    ("T4b", "recovery_error", times(1 + 1e-7)),
    ("T5b", "vote", union),
    ("T5b", "least_ones", lambda _: lambda clients, *__: clients + 1),
    ("T6", "dequantise", without_dither),
    ("T7a", "quantise", coarse),
    ("T8b", "convergence_bound", times(1 - 1e-7)),
    ("T8b", "convergence_bound", times(1 + 1e-7)),
    ("T9b", "loss_gap_bound", times(1 + 1e-7)),
    ("T9b", "gradient_gap_bound", turned),
    ("T9b", "recovery_error", one_client_more),
    ("T10", "flip_moments", lambda true: lambda *args: [2 * moment for moment in true(*args)]),
    ("T11b", "rouge_floor", times(1.01)),
    ("T11b", "rouge", lambda true: lambda found, victims: true([text[5:-5] for text in found], victims)),
    ("T12", "FixedPoint", lambda _: _Twice),
    ("X5", "composed_epsilon", times(1 + 1e-7)),
    ("X5", "likelihood_ratio", lambda true: lambda keep, _: true(keep, 1)),
    ("X5", "value_epsilon", times(0.0)),
]


@each_mutation(MUTATIONS)
def test_a_wrong_function_is_noticed(key: str, function: str, mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_noticed(CHECKS[key], function, mutate, monkeypatch)
