"""Means and intervals over seeds, against scipy's t-distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leakbench.report.statistics import over_seeds

NAN = math.nan


def a_frame(values: dict[int, list[float]], **columns: Any) -> pd.DataFrame:
    """Values per seed, one row each."""
    return pd.DataFrame(
        [{"seed": seed, "value": value} | columns for seed, several in values.items() for value in several]
    )


def summary(values: dict[int, list[float]]) -> dict[str, float]:
    (row,) = over_seeds(a_frame(values, defense="gp"), ["defense"]).to_dict("records")
    assert row.pop("defense") == "gp"
    return {str(key): float(value) for key, value in row.items()}


def test_three_seeds_by_hand() -> None:
    """Mean 2, standard deviation 1; the 97.5 % quantile of t with two degrees of freedom is 4.302653."""
    half = 4.302652729911275 / math.sqrt(3)
    assert summary({0: [1.0], 1: [2.0], 2: [3.0]}) == pytest.approx(
        {"mean": 2.0, "low": 2.0 - half, "high": 2.0 + half, "seeds": 3, "lost": 0}
    )


@given(
    means=st.lists(st.floats(-100, 100), min_size=2, max_size=8).filter(lambda means: max(means) - min(means) > 1e-3)
)
def test_intervals_are_those_of_scipy(means: list[float]) -> None:
    found = summary({seed: [mean] for seed, mean in enumerate(means)})
    low, high = stats.t.interval(0.95, len(means) - 1, loc=np.mean(means), scale=stats.sem(means))
    assert found == pytest.approx({"mean": np.mean(means), "low": low, "high": high, "seeds": len(means), "lost": 0})


def test_images_of_a_seed_are_averaged_first() -> None:
    """Images that share a model are one replicate, however many they are."""
    assert summary({0: [0.0, 1.0, 2.0, 5.0], 1: [4.0]}) == summary({0: [2.0], 1: [4.0]})


def test_one_seed_has_no_interval() -> None:
    assert summary({7: [1.0, 3.0]}) == {"mean": 2.0, "low": 2.0, "high": 2.0, "seeds": 1, "lost": 0}


def test_lost_values_are_left_out_and_counted() -> None:
    found = summary({0: [1.0, NAN], 1: [3.0, 3.0], 2: [NAN, NAN]})
    low, high = stats.t.interval(0.95, 1, loc=2.0, scale=stats.sem([1.0, 3.0]))
    assert found == pytest.approx({"mean": 2.0, "low": low, "high": high, "seeds": 2, "lost": 3})


def test_nothing_is_left() -> None:
    found = summary({0: [NAN], 1: [NAN, NAN]})
    assert (found["seeds"], found["lost"]) == (0, 3)
    assert math.isnan(found["mean"]) and math.isnan(found["low"]) and math.isnan(found["high"])


def test_groups_stay_apart_even_without_a_key() -> None:
    """The undefended gradient has no pruning ratio: NaN is a group like any other."""
    frame = pd.concat(
        [a_frame({0: [float(i)], 1: [float(i + 2)]}, mechanism="m", ratio=ratio) for i, ratio in enumerate([NAN, 0.5])]
    )
    found = over_seeds(frame, ["mechanism", "ratio"]).sort_values("mean")
    assert found["mean"].tolist() == [1.0, 2.0]
    assert found["ratio"].isna().tolist() == [True, False]
    assert found["seeds"].tolist() == [2, 2]


def test_the_order_of_rows_does_not_matter() -> None:
    frame = a_frame({0: [1.0, NAN, 4.0], 1: [2.0], 2: [0.1, 0.2]}, a="x")
    shuffled = frame.sample(frac=1, random_state=0)
    pd.testing.assert_frame_equal(over_seeds(frame, ["a"]), over_seeds(shuffled, ["a"]))
