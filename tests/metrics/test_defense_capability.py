"""One number for what a defense takes from two attacks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakbench.errors import ConfigError
from leakbench.metrics.defense_capability import defense_capability, dra_improvement, mia_improvement


@pytest.mark.parametrize(
    ("undefended_auc", "auc", "undefended_mse", "mse", "mia", "dra", "both"),
    [(0.8, 0.6, 0.1, 0.4, 0.25, 0.75, 0.5), (0.75, 0.75, 0.3, 0.2, 0.0, -0.5, -0.25)],
)
def test_small_numbers(
    undefended_auc: float, auc: float, undefended_mse: float, mse: float, mia: float, dra: float, both: float
) -> None:
    assert mia_improvement(auc, undefended_auc) == pytest.approx(mia)
    assert dra_improvement(mse, undefended_mse) == pytest.approx(dra)
    assert defense_capability(auc, mse, undefended_auc, undefended_mse) == pytest.approx(both)


def test_arrays() -> None:
    """Settings by seeds, each seed with its own undefended attack."""
    auc, mse = np.array([[0.6, 0.5], [0.7, 0.75]]), np.array([[0.4, 0.2], [0.1, 0.3]])
    found = defense_capability(auc, mse, [0.8, 0.75], [0.1, 0.2])
    assert found.shape == (2, 2)
    for setting in range(2):
        for seed, (a, m) in enumerate(((0.8, 0.1), (0.75, 0.2))):
            by_hand = ((a - auc[setting, seed]) / a + (1 / m - 1 / mse[setting, seed]) / (1 / m)) / 2
            assert found[setting, seed] == pytest.approx(by_hand)


areas, errors = st.floats(0.01, 1), st.floats(1e-6, 1e6)


@given(areas, areas, errors, errors)
def test_limits(auc: float, undefended_auc: float, mse: float, undefended_mse: float) -> None:
    assert dra_improvement(mse, undefended_mse) < 1 and mia_improvement(auc, undefended_auc) < 1
    assert (dra_improvement(mse, undefended_mse) > 0) == (1 - undefended_mse / mse > 0)
    assert mia_improvement(0.5, undefended_auc) <= 0.5
    assert defense_capability(undefended_auc, undefended_mse, undefended_auc, undefended_mse) == 0
    assert dra_improvement(math.inf, undefended_mse) == 1  # nothing at all is found


def test_errors() -> None:
    for bad in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match=r"the AUC must lie in \(0, 1\]"):
            mia_improvement([0.5, bad], 0.8)
        with pytest.raises(ConfigError, match="the AUC without a defense"):
            mia_improvement(0.5, bad)
    for bad in (0.0, -0.1, math.nan):
        with pytest.raises(ConfigError, match="the MSE must lie"):
            dra_improvement([0.5, bad], 0.8)
        with pytest.raises(ConfigError, match="the MSE without a defense"):
            dra_improvement(0.5, bad)
    with pytest.raises(ConfigError, match="the MSE without a defense"):
        dra_improvement(0.5, math.inf)
