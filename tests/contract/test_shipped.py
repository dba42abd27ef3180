"""Every shipped component keeps to its contract."""

from __future__ import annotations

from typing import Any

import pytest

from leakbench.contract.kit import check_component
from leakbench.data.staged import StagedDataset
from leakbench.data.text import TextDataset
from leakbench.errors import MissingData
from leakbench.planning.variants import REGISTRIES

# Parameters that have no default and that no plain value can be guessed for.
GIVEN: dict[str, dict[str, Any]] = {
    "distributed_noise": {"variance": 1e-4},
    "water_filling": {"variance": 1e-4, "batch": 2},
    "gaussian_sampling": {"batch": 2},
    "cafl": {"epsilon": 1.0, "fraction": 0.5, "iterations": 10},  # of the solver, at every candidate
    "dropped_layers": {"layers": ("fc_layers.1",)},
    "jopeq": {"epsilon": 4, "sigma2": 0.85, "nu": 50},
    "paillier": {"toy": True, "key_bits": 64, "clients": 2, "fraction_bits": 8, "integer_bits": 3},
    "gradient_matching": {"objective": {"kind": "l2"}, "optimiser": {"kind": "adam", "rate": 0.1}},
    "sentence_matching": {"objective": {"kind": "l2"}, "optimiser": {"kind": "adam", "rate": 0.1}},
}
KNOWN = {name: {"likelihood as sent"} for name in ("cdpa", "optimal_rounding", "censor")}
"""Checks that say something is wrong, as they should: these likelihoods are softer than the law of what is sent, so
that a search finds its way (mixtures of words, steps of a mean size, right angles of a width)."""
pytestmark = pytest.mark.slow
SHIPPED = [
    (kind, name)
    for kind, registry in REGISTRIES.items()
    for name in registry
    if registry.get(name).__module__.startswith("leakbench.")
]


@pytest.mark.parametrize(("kind", "name"), SHIPPED, ids=lambda part: part)
def test_nothing_is_wrong(kind: str, name: str) -> None:
    component = REGISTRIES[kind].get(name)
    if issubclass(component, StagedDataset | TextDataset) and not _staged(component):
        pytest.skip("not staged")
    wrong = [answer for answer in check_component(kind, component, GIVEN.get(name, {})) if answer.verdict == "wrong"]
    assert {answer.check for answer in wrong} == KNOWN.get(name, set()), wrong


def _staged(component: type[Any]) -> bool:
    try:
        return bool(component().length("train"))
    except MissingData:
        return False
