"""Tables 1, S1 and S2 and figures 3 and S1, by another hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.papers.drawn import draw, make

from leakbench.papers.secagg_dp import PAPER
from leakbench.papers.secagg_dp.sums import DRAWS, SIDE, distinguished, updates
from leakbench.papers.secagg_dp.tables import ACCOUNTING, levels

N, D, B, C, L = 50, 1200, 32, 10.0, math.log(1e4)


def best(bound: np.ndarray, orders: np.ndarray) -> float:
    return float((bound + L / (orders - 1)).min())


def test_table_1() -> None:
    table = make("table01", {}, paper=PAPER)
    assert len(table) == 6
    total, unit = N * 0.05, C**2 / (B * D)
    orders = 1 + np.logspace(-3, 4, 200_001)

    def filled(lead: float, limit: float) -> float:
        a = orders[orders < limit]
        return best((2 * a * C**2 / D**2 + lead * a * unit / (a - 1)) / (total - lead * a * unit), a)

    slope = 2 * C**2 / (B**2 * total)
    inside = slope + 2 * math.sqrt(slope * L)
    slope = 2 * C**2 / (D**2 * total)
    found = table["as printed"].tolist()
    assert float(found[0]) == pytest.approx(math.log(1 + B / D * (math.exp(inside) - 1)), rel=1e-3)
    assert found[1] == found[3] == "no guarantee"
    assert float(found[2]) == pytest.approx(slope + 2 * math.sqrt(slope * L), rel=1e-3)
    assert float(found[4]) == float(found[5]) == pytest.approx(filled(1, total / unit), rel=1e-3)
    corrected = table["corrected"].tolist()
    assert float(corrected[5]) == pytest.approx(filled(2, total / (2 * unit)), rel=1e-3)
    assert float(table["as printed in Theorem 4"][5]) == pytest.approx(filled(2, total / (2 * unit * B)), rel=1e-3)
    assert float(table["repaired"][5]) == pytest.approx(0.0592510, rel=1e-3)
    assert float(table["repaired"][4]) == pytest.approx(0.0552286, rel=1e-3)


def test_table_s1() -> None:
    table = make("tableS1", {}, paper=PAPER).set_index(["mechanism", "accounting", "rounds"])
    assert len(table) == 15
    composed = "composition (Theorem 3.4)"
    exact = {(name, ACCOUNTING[accounting], rounds): found for name, accounting, rounds, found in levels()}
    rows = {
        ("SGD-DP, row 1", composed, 100): "0.565 0.236 0.114 0.0619 0.0377",
        ("GD-DP, row 3", composed, 100): "0.289 0.0813 0.0235 0.00689 0.00215",
        ("GSGD-DP, row 6 (false)", composed, 100): "0.355 0.116 0.0413 0.0162 0.0072",
        ("GSGD-DP, eq. 35", composed, 100): "0.417 0.147 0.0576 0.0247 0.0118",
        ("GSGD-DP, repaired", composed, 100): "0.374 0.125 0.0461 0.0186 0.0085",
        ("GD-DP, row 3", "Rényi", 100): "0.0108 0.00283 0.00077 0.00022 0.00007",
        ("GSGD-DP, eq. 35", "Rényi", 100): "0.0311 0.0129 0.0059 0.0029 0.0016",
        ("GSGD-DP, repaired", "Rényi", 100): "0.0126 0.00394 0.00148 0.00068 0.00037",
    }
    rows |= {
        ("SGD-DP, row 1 with delta / q", "tight", 100): "0.0345 0.0131 0.00548",
        ("GD-DP, row 3", "tight", 100): "0.0056 0.0017 0.0005",
        ("GSGD-DP, eq. 35", "tight", 100): "0.0248 0.0111 0.00532",
        ("GSGD-DP, repaired", "tight", 100): "0.0082 0.0029 0.0012",
    }
    for row, expected in rows.items():
        for epsilon, variance in zip((1, 2, 4, 8, 16), expected.split(), strict=False):
            digits = len(variance.partition(".")[2])
            assert exact[row][epsilon] == pytest.approx(float(variance), rel=0, abs=0.6 * 10**-digits), (row, epsilon)
            assert table.loc[row, f"epsilon {epsilon}"] == f"{exact[row][epsilon]:.3g}"
    for epsilon, shorter in zip((1, 2, 4, 8, 16), (15.5, 4.87, 1.68, 0.646, 0.291), strict=True):  # of 3750 rounds
        found = float(table.loc[("SGD-DP, row 1", composed, 3800), f"epsilon {epsilon}"])
        assert shorter < found < 1.02 * shorter
    whole = table.astype(float)
    assert (whole.diff(axis=1).iloc[:, 1:] < 0).all(axis=None)


def test_table_s2() -> None:
    table = make("tableS2", {}, paper=PAPER).set_index("epsilon").astype(float)
    row = table.loc["2"]
    assert row["isotropic"] == pytest.approx(907, abs=2) and row["water-filling, at least"] == pytest.approx(
        1152, abs=3
    )
    assert (table[["excess", "excess, repaired"]] > 0).all(axis=None)
    difference = table["water-filling, at least"] - table["isotropic"]
    assert table["excess"].tolist() == pytest.approx(difference.tolist(), abs=6)


def test_figure_3() -> None:
    drawing = draw("fig03", {}, paper=PAPER)
    numbers = drawing.numbers
    maps = {name: rows["value"].to_numpy().reshape(SIDE, SIDE) for name, rows in list(numbers.groupby("series"))[2:]}
    accuracy = numbers.set_index("series")["value"]
    assert accuracy["accuracy, last quarter"] == 1.0
    assert 0.6 < accuracy["accuracy, the rest"] < 0.95
    assert set(maps) == {"others", "sum", "sum'", "x1", "x2", "x3", "x4", "x4'"}
    for quiet in ("x1", "x2", "x3", "others"):
        assert (maps[quiet][12:] == 0).all() and (maps[quiet][:12] > 0).all()
    assert (maps["sum"][12:] == maps["x4"][12:]).all() and (maps["sum'"][12:] == maps["x4'"][12:]).all()
    assert (maps["sum"][:12] != maps["x4"][:12]).all()


def test_accuracy_away_from_the_last_quarter() -> None:
    """That of the nearer of two points in normal noise of variance 3."""
    found = updates(DRAWS)
    gap = (found["x4"] - found["x4'"])[:, :192].norm(dim=1) / (2 * math.sqrt(3))
    expected = float((0.5 * (1 + (gap / math.sqrt(2)).erf())).mean())
    assert distinguished(DRAWS)["the rest"] == pytest.approx(expected, abs=5 * 0.5 / math.sqrt(DRAWS))


def test_figure_s1() -> None:
    numbers = draw("figS1", {}, paper=PAPER).numbers.set_index(["K", "N"])
    assert numbers.loc[(7850, 50), "information"] == pytest.approx(84.3020038, rel=1e-8)
    rho = D * 50 / 11
    orders = 1 + np.logspace(-3, math.log10(rho - 1.001), 200_001)
    bound = (2 * orders * B / D + orders / (orders - 1)) / (rho - orders)
    assert numbers.loc[(11, 50), "epsilon"] == pytest.approx(best(bound, orders), rel=1e-4)
    rows = numbers.loc[7850]
    assert rows["epsilon"].isna().tolist() == [D * users <= 7850 for users in rows.index]
    for _, rows in numbers.groupby(level=0):
        assert (rows["information"].diff().dropna() < 0).all() and (rows["epsilon"].dropna().diff().dropna() < 0).all()
