"""Tests of the checks of a paper's theorems: what they return, and that a wrong theory function makes them fail."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from leakbench.report.checks import Check, Theorem
from leakbench.report.claims import claims_of

Function = Callable[..., Any]
Mutate = Callable[[Function], Function]
Mutation = tuple[str, str, Mutate]
"""Key of a theorem, name of a function that its check calls, and how to make that wrong."""


def checks_of(paper: str) -> dict[str, Check]:
    """Checks by the keys of their claims, in the order of the claims."""
    return {entry.key: entry.find.check for entry in claims_of(paper) if isinstance(entry.find, Theorem)}


def assert_outcome(check: Check, *, holds: bool = True, trials: int = 20) -> None:
    """The outcome is complete, the same each time, and of enough random cases."""
    outcome = check()
    assert outcome.holds == holds and math.isfinite(outcome.margin)
    assert (outcome.margin >= 0) == outcome.holds
    assert outcome.trials >= trials and outcome.what
    assert check() == outcome


def each_mutation(mutations: Sequence[Mutation]) -> pytest.MarkDecorator:
    """Parametrise a test by ``key``, ``function`` and ``mutate``."""
    ids = [f"{key}-{function}-{place}" for place, (key, function, _) in enumerate(mutations)]
    return pytest.mark.parametrize(("key", "function", "mutate"), mutations, ids=ids)


def assert_noticed(check: Check, function: str, mutate: Mutate, patch: pytest.MonkeyPatch) -> None:
    """The check does not hold with a wrong function in the place of a true one."""
    module = sys.modules[check.__module__]
    patch.setattr(module, function, mutate(getattr(module, function)))
    outcome = check()
    assert not outcome.holds and not outcome.margin >= 0


def times(factor: float) -> Mutate:
    return lambda true: lambda *args, **kwargs: factor * true(*args, **kwargs)


def always(other: Function) -> Mutate:
    return lambda _: other
