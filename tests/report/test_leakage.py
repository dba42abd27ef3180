"""Numbers of attacks capped at the best guess without a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.report.tables import rows, table

from leakbench.report.evidence import Evidence, NotRun, Series
from leakbench.report.leakage import BlindGuess, blind_guess

METRIC = "assigned_mse_input"


def series(values: list[list[float]]) -> Series:
    """Errors at one point, by seed and batch."""
    return Series("error", (0.0,), tuple(range(len(values))), np.asarray([values], dtype=float))


def test_each_batch_has_its_own_guess() -> None:
    guess = BlindGuess(series([[1.0, 2.0], [3.0, 4.0]]))
    capped = guess.cap(series([[0.5, 2.5], [5.0, np.nan]]))
    np.testing.assert_array_equal(capped.values, [[[0.5, 2.0], [3.0, np.nan]]])  # a diverged attack stays lost


def test_likeness_is_capped_from_below() -> None:
    """The best guess has the largest PSNR, and less than that leaks nothing."""
    parts = [
        rows("none", "assigned_psnr", [[[value]]], attack=attack)
        for attack, value in {"mean_image": 12.0, "grey": 10.0}.items()
    ]
    guess = blind_guess(Evidence({"undefended": table(*parts)}), "undefended", "assigned_psnr")
    capped = guess.cap(Series("psnr", (0.1, 0.2), (0,), np.array([[[8.0]], [[20.0]]])))
    np.testing.assert_array_equal(capped.values, [[[12.0]], [[20.0]]])


def test_each_protocol_has_its_own_guess() -> None:
    """The best guess of the mean of one image need not be that of the mean of many."""
    options: dict[str, Any] = {"points": [1.0, 8.0], "sweep": "batch_size"}
    errors = {"mean_image": [[[3.0]], [[1.0]]], "grey": [[[2.0]], [[2.0]]]}
    parts = [rows("none", METRIC, values, attack=attack, **options) for attack, values in errors.items()]
    guess = blind_guess(Evidence({"batches": table(*parts)}), "batches", METRIC, sweep="batch_size")
    assert guess.series is not None and guess.series.values.ravel().tolist() == [2.0, 1.0]
    capped = guess.cap(Series("error", (8.0, 16.0), (0,), np.array([[[5.0]], [[5.0]]])))
    assert capped.points == (8.0,) and capped.values.ravel().tolist() == [1.0]


def test_seeds_that_did_not_guess_are_left_out() -> None:
    capped = BlindGuess(series([[1.0]])).cap(series([[2.0], [2.0]]))
    assert capped.seeds == (0,)


def test_other_victims_cap_nothing() -> None:
    with pytest.raises(NotRun, match="different numbers of batches"):
        BlindGuess(series([[1.0, 1.0]])).cap(series([[2.0, 2.0, 2.0]]))


def test_the_least_error_on_average_is_the_best_guess() -> None:
    """An attacker has to choose before he sees a batch: the mean image, though grey is better on the first."""
    errors = {"mean_image": [2.0, 2.0], "grey": [1.0, 4.0]}
    parts = [rows("none", METRIC, [[values]], attack=attack) for attack, values in errors.items()]
    guess = blind_guess(Evidence({"undefended": table(*parts)}), "undefended", METRIC)
    assert guess.series is not None and guess.series.values.tolist() == [[[2.0, 2.0]]] and not guess.note


def test_without_a_guess_errors_stay() -> None:
    evidence = Evidence({"undefended": rows("none", METRIC, [[[1.0]]], attack="ig")})
    guess = blind_guess(evidence, "undefended", METRIC)
    errors = series([[9.0]])
    assert guess.cap(errors) is errors and guess.note.startswith("no reference attacker was measured")


def test_settings_that_leak_nothing_are_one() -> None:
    errors = np.array([[0.5, 1.0, 1.0 - 1e-13, 1.0], [0.5, 0.6, 0.7, 0.8]])
    losses = np.array([[4.0, np.nan, 2.0, 3.0], [4.0, 3.0, 2.0, 1.0]])
    merged = BlindGuess(None).merge(errors, losses, np.array([1.0, 1.0]))
    np.testing.assert_array_equal(merged, [[0.5, np.nan, 1.0, np.nan], [0.5, 0.6, 0.7, 0.8]])
