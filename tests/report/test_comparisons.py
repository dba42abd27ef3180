"""Trends and rank correlations, beside scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from leakbench.report.comparisons import rank_correlation, trend
from leakbench.report.evidence import NotRun, Series


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=9))
def test_rank_correlation_is_spearmans(values: list[int]) -> None:
    found = float(rank_correlation(np.array(values, dtype=float)))
    if len(set(values)) == 1:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(spearmanr(range(len(values)), values).statistic)


def test_rank_correlation_of_rows() -> None:
    rows = np.array([[1.0, 2, 3], [3, 2, 1], [1, np.nan, 3]])
    np.testing.assert_allclose(rank_correlation(rows), [1, -1, np.nan])


def series(values: list[list[float]]) -> Series:
    """Values by point, then seed."""
    cube = np.array(values)[:, :, None]
    return Series("accuracy", tuple(float(10 * p) for p in range(len(cube))), tuple(range(cube.shape[1])), cube)


def test_a_trend() -> None:
    rising = series([[0.1, 0.12, 0.11], [0.3, 0.33, 0.31], [0.5, 0.52, 0.55]])
    part = trend(rising, "a with b", "kappa", rises=True)
    assert part.verdict == "reproduced" and part.estimate.value == 1 and part.note == ""
    assert part.meaning == "rank correlation of accuracy with kappa"
    assert trend(rising, "a with b", "kappa", rises=False).verdict == "contradicted"


def test_steps_against_the_trend_are_listed() -> None:
    dipping = series([[0.1, 0.1, 0.11], [0.5, 0.52, 0.51], [0.3, 0.31, 0.3], [0.9, 0.91, 0.9]])
    part = trend(dipping, "a with b", "kappa", rises=True)
    assert part.note == "falls between 10 and 20" and part.estimate.value == pytest.approx(0.8)
    noisy = series([[0.1, 0.9, 0.5], [0.5, 0.4, 0.5], [0.6, 0.1, 0.75]])
    assert trend(noisy, "", "kappa", rises=True).verdict == "inconclusive"


def test_a_trend_needs_two_points() -> None:
    with pytest.raises(NotRun, match="two values of kappa; the grid of accuracy has 0"):
        trend(series([[0.1, 0.2]]), "", "kappa", rises=True)
