"""Trends: Page's test, no clear reversal, and every step against the trend in the note."""

from __future__ import annotations

import numpy as np
import pytest

from leakbench.report.comparisons import all_within, difference, either, level, relative, trend
from leakbench.report.evidence import NotRun, Series
from leakbench.report.inference import LEVEL, seeds_for_a_trend

NAN = np.nan


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


def test_a_clear_reversal_is_no_trend() -> None:
    """0.303, 0.627, 0.372: the rank correlation is above zero, and the fall is many standard errors."""
    peak = series([[0.30, 0.31, 0.30], [0.62, 0.63, 0.63], [0.37, 0.37, 0.38]])
    part = trend(peak, "", "kappa", rises=True)
    assert part.estimate.value == pytest.approx(0.5) and part.verdict == "contradicted"
    assert part.note.startswith("falls between 10 and 20 (") and part.note.endswith("standard errors)")


def test_a_step_within_one_standard_error_is_none() -> None:
    """It is listed, also where the trend is reproduced."""
    nearly = series([[0.1, 0.1, 0.1, 0.1], [0.5, 0.52, 0.51, 0.5], [0.49, 0.55, 0.5, 0.48], [0.9, 0.91, 0.9, 0.9]])
    part = trend(nearly, "", "kappa", rises=True)
    assert part.verdict == "reproduced" and part.note == "falls between 10 and 20 (0.2 standard errors)"
    noisy = series([[0.1, 0.9, 0.5], [0.5, 0.4, 0.5], [0.6, 0.1, 0.75]])
    assert trend(noisy, "", "kappa", rises=True).verdict == "inconclusive"


def test_seeds_that_would_decide_a_trend() -> None:
    """As many as Page's test needs; a step against the trend has to be told from none, too, and decides alone."""
    weak = series([[0.1, 0.3, 0.2], [0.3, 0.2, 0.3], [0.4, 0.4, 0.1], [0.5, 0.3, 0.6]])
    needed = trend(weak, "", "kappa", rises=True).seeds_needed(LEVEL / 2)
    blocks = weak.values[..., 0].T
    assert needed == seeds_for_a_trend(blocks, LEVEL / 2)
    peak = series([[0.10, 0.2, 0.1], [0.5, 0.6, 0.5], [0.45, 0.61, 0.48]])
    part = trend(peak, "", "kappa", rises=True)
    step = difference(peak.at([20.0]), peak.at([10.0]), "", "").estimate
    assert part.inside and part.seeds_needed(LEVEL / 2) == step.seeds_needed(0.0, LEVEL / 6)
    falling = trend(weak, "", "kappa", rises=False)
    assert not falling.inside
    least, by_ranks = falling.seeds_needed(LEVEL / 2), seeds_for_a_trend(blocks, LEVEL / 8)
    assert least is not None and by_ranks is not None and least <= by_ranks


def test_two_seeds_show_no_trend() -> None:
    part = trend(series([[0.1, 0.1], [0.5, 0.52], [0.9, 0.91]]), "", "kappa", rises=True)
    assert part.verdict == "inconclusive" and part.estimate.value == 1


def test_seeds_that_miss_a_point_are_no_replicates() -> None:
    """Two seeds of five points are left, which Page's test alone would take for a trend."""
    rising = np.array([[0.1, 0.11, 0.1], [0.3, 0.31, NAN], [0.5, 0.52, 0.5], [0.7, 0.71, 0.7], [0.9, 0.91, 0.9]])
    assert trend(series(rising.tolist()), "", "kappa", rises=True).verdict == "inconclusive"
    rising[1, 2] = 0.3
    assert trend(series(rising.tolist()), "", "kappa", rises=True).verdict == "reproduced"


def test_batches_that_all_seeds_share_are_no_replicates() -> None:
    """Two batches that move every seed alike, one up and one down: eight seeds are no evidence of a trend."""
    draw = np.random.default_rng(0)
    shared = np.array([[0.0, 0.1], [1.0, 0.0], [2.0, 0.2]])[:, None]  # points, seeds, batches
    values = np.broadcast_to(shared, (3, 8, 2)) + 0.01 * draw.normal(size=(3, 8, 2))
    one = Series("accuracy", (0.0, 1.0, 2.0), tuple(range(8)), values)
    assert trend(one, "", "kappa", rises=True).verdict == "inconclusive"


def test_of_two_points_the_difference_is_tested() -> None:
    part = trend(series([[0.1, 0.12, 0.11], [0.3, 0.33, 0.31]]), "", "kappa", rises=True)
    assert part.meaning == "change of accuracy with kappa" and part.verdict == "reproduced"
    assert part.estimate.value == pytest.approx(0.203, abs=1e-3)


def test_a_trend_needs_two_points() -> None:
    with pytest.raises(NotRun, match="two values of kappa; the grid of accuracy has 0"):
        trend(series([[0.1, 0.2]]), "", "kappa", rises=True)


def test_a_seed_without_numbers_is_no_replicate() -> None:
    """Its job diverged: two seeds are left, which decide nothing."""
    lost, whole = series([[1.0, NAN, 1.01]]), series([[0.5, 0.51, 0.5]])
    for part in (level(lost, "", "", at_least=0.0), difference(lost, whole, "", ""), relative(lost, whole, "", 0.0)):
        assert part.estimate.seeds == 2 and part.verdict == "inconclusive"


def test_one_of_several_holds_at_bonferronis_level() -> None:
    """The p-value of the best times their number; all have to fail, and NaN decides nothing."""
    low, high = series([[0.1, 0.12, 0.11]]), series([[0.5, 0.52, 0.51]])
    at = [level(low, "a", "dB", at_least=0.3), level(high, "b", "dB", at_least=0.3)]
    found = either(at, "a or b")
    assert (found.name, found.verdict, found.estimate) == ("a or b", "reproduced", at[1].estimate)
    assert (found.p_holds, found.p_fails) == (2 * at[1].p_holds, at[1].p_fails)
    assert either(at[:1] * 2, "").verdict == "contradicted" and either(at[:1] * 2, "").p_fails == at[0].p_fails
    doubtful = level(series([[0.3, 0.4, 0.38, 0.4]]), "", "dB", at_least=0.3)
    assert doubtful.inside
    assert either([doubtful, *at[:1]], "").seeds_needed(LEVEL / 2) == doubtful.seeds_needed(LEVEL / 4)
    unknown = level(series([[0.5, 0.5]]), "", "dB", at_least=0.3)
    assert either([unknown, unknown], "").verdict == "inconclusive"


def test_settings_that_differ_little() -> None:
    """Every two are compared: with a unit by differences of either sign, without one by ratios."""
    seeds = {"a": [1.0, 1.01, 0.99], "b": [1.1, 1.11, 1.1], "c": [2.0, 2.0, 2.01]}
    named = {name: series([row]) for name, row in seeds.items()}
    parts = {part.name: part for part in all_within(named, 0.5, "here: ", "dB")}
    assert {name: part.verdict for name, part in parts.items()} == {
        "here: a and b": "reproduced",
        "here: a and c": "contradicted",
        "here: b and c": "contradicted",
    }
    # Twice as much is half as much the other way round.
    for most, verdict in ((1.1, "reproduced"), (0.5, "contradicted")):
        for a, b in (("a", "c"), ("c", "a")):
            (part,) = all_within({a: named[a], b: named[b]}, most, "")
            assert (part.name, part.verdict) == (f"{a} and {b}", verdict)
