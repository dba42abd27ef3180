"""Tables 1, S1, S2 and S7 and figures S1 to S3, by another hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.papers.drawn import draw, make

from leakbench.papers.tfl_meta import PAPER

M, DELTA = 2410, 0.5


def test_table_1() -> None:
    table = make("table01", {}, paper=PAPER).set_index("mechanism")
    assert list(table.index) == ["Paillier", "secret sharing", "Gaussian noise", "compression"]
    for t, at, epsilon, c2 in ((0.008, "t = 0.008", 0.4, 50.0), (0.56, "t = 0.56", 0.1, 1.25)):
        printed, right, reached = (table[f"{name}, {at}"] for name in ("as printed", "corrected", "reached"))
        for row, root in (("Paillier", 2 * M), ("secret sharing", M)):
            assert float(printed[row]) == pytest.approx(t ** (-1 / root) - 1, rel=1e-3)
            assert float(right[row]) == pytest.approx((1 - t) ** (-1 / root) - 1, rel=1e-3)
            assert float(reached[row]) == pytest.approx(0.8 - c2 * (1 - t), rel=1e-3)
        assert float(right["compression"]) == pytest.approx(M * (1 - (1 - t) ** (1 / M)), rel=1e-3)
        assert float(reached["compression"]) == pytest.approx(epsilon)
    variance = 100 * 0.008 * 0.0077**2 / math.sqrt(M)
    assert float(table.loc["Gaussian noise", "corrected, t = 0.008"]) == pytest.approx(variance, rel=1e-3)
    assert table.loc["Gaussian noise", "as printed, t = 0.56"] == "infeasible"


def test_table_s1() -> None:
    table = make("tableS1", {}, paper=PAPER).set_index("x / C1")
    counts = table[["models", "eq. 3", "eq. 4", "eq. 6", "C1 + x", "C1 - x"]].replace(",", "", regex=True).astype(int)
    assert (counts.iloc[:-1].sum() == counts.loc["any"]).all() and counts.loc["any", "models"] >= 1e5
    assert (counts[["C1 + x", "C1 - x"]] == 0).all(axis=None)
    for safe in ("up to 1/2", "1 or more"):
        assert (counts.loc[safe, ["eq. 3", "eq. 4"]] == 0).all()
    for unsafe in ("1/2 to 3/4", "3/4 to 1"):
        assert (counts.loc[unsafe, ["eq. 3", "eq. 4", "eq. 6"]] > 100).all()
    assert counts.loc["1 or more", "eq. 6"] > 0.9 * counts.loc["1 or more", "models"]
    assert 1.15 < float(table.loc["any", "eq. 3, worst"]) < 1.25
    assert 1.5 < float(table.loc["any", "eq. 4, worst"]) < 1.75


def test_table_s2() -> None:
    table = make("tableS2", {}, paper=PAPER)
    assert len(table) == 48
    cells = table.drop(columns=["C1", "C2", "epsilon", "t", "certified"])
    statuses = {"no protection needed", "infeasible", "undefined"}
    assert statuses <= set(cells.to_numpy().ravel())
    for _, row in table.iterrows():
        c1, c2, epsilon = (float(row[name]) for name in ("C1", "C2", "epsilon"))
        t = (2 * c1 - epsilon) / c2
        expected = "ok" if 0 < t < 1 else "infeasible" if t > 0 else "no protection needed"
        for name, most in (("Paillier and sharing, corrected", 1.0), ("compression", 1.0), ("Gaussian noise", 0.01)):
            wanted = "infeasible" if t > most else expected
            if wanted == "ok":
                assert row[name] == f"TV {t:.3g}, reached {epsilon:.3g}"
            else:
                assert row[name] == wanted
        printed = row["Paillier and sharing, as printed"]
        if 0 < t < 1:
            assert printed.endswith("violates" if t > 0.5 else "more than asked")
        else:
            assert printed == ("undefined" if t <= 0 else "infeasible")
        certified = "by both" if epsilon > 1.49 * c1 else "by the paper alone" if epsilon >= c1 else "by neither"
        assert row["certified"] == certified


def test_figure_s1() -> None:
    numbers = draw("figS1", {}, paper=PAPER).numbers
    for _, rows in numbers.groupby("series"):
        late = rows[rows["T"] >= 1000]
        assert np.polyfit(np.log(late["T"]), np.log(late["error"]), 1)[0] == pytest.approx(-0.5, abs=0.04)
        assert (rows["error"] < rows["bound"].fillna(math.inf)).all() and rows["bound"].notna().any()
        assert (rows["covered"] == 1).all()


def test_figure_s2() -> None:
    numbers = draw("figS2", {}, paper=PAPER).numbers
    lower, upper = numbers["1/100 min(1, sigma_eps^2 A)"], numbers["3/2 min(1, sigma_eps^2 A)"]
    exact = numbers.filter(regex="coordinate|ones")
    assert exact.shape[1] == 3
    for name in exact:
        values = exact[name]
        assert (values >= lower).all() and (values <= upper).all() and (values.diff().dropna() >= -1e-12).all()
    one = numbers.set_index(numbers["sigma_eps^2 A"].round(6))["1 coordinate"]
    assert one[1.0] == pytest.approx(0.1660640750, rel=1e-8)


def test_figure_s3() -> None:
    drawing = draw("figS3", {}, paper=PAPER)
    numbers = drawing.numbers
    assert set(numbers["region"]) == {
        "no protection needed",
        "all four mechanisms",
        "all but noise",
        "all but noise; printed n*, r* violate",
        "none",
    }
    t = (2 * numbers["C1"] - numbers["epsilon"]) / numbers["C2"]
    assert ((numbers["region"] == "no protection needed") == (t <= 0)).all()
    assert ((numbers["region"] == "all four mechanisms") == ((t > 0) & (t <= 0.01))).all()
    assert ((numbers["region"] == "none") == (t > 1)).all()
    assert set(numbers.loc[numbers["region"] == "none", "C2"]) == {1.25}
    assert len(drawing.figure.axes) == 4


def test_table_s7() -> None:
    """The optimum of problem (7) where its bound on the loss is phi at most, 150 t of noise and t of compression."""
    table = make("tableS7", {}, paper=PAPER)
    first = make("table01", {}, paper=PAPER).set_index("mechanism")
    bounds = {"Paillier": 0.0, "secret sharing": 0.0, "Gaussian noise": 150.0, "compression": 1.0}
    for _, row in table.iterrows():
        mechanism, phi = row["mechanism"], float(row["phi"])
        for t in (0.008, 0.56):
            unbudgeted, bound = first.loc[mechanism, f"corrected, t = {t:g}"], bounds[mechanism] * t
            met = bound <= phi or (mechanism == "Gaussian noise" and phi >= 1.5)  # which no bound exceeds
            assert row[f"answer, t = {t:g}"] == (unbudgeted if met else "infeasible"), (mechanism, phi, t)
            wanted = "–" if unbudgeted == "infeasible" else f"{bound:.3g}"
            assert row[f"bound on the loss, t = {t:g}"] == wanted
    assert table["answer, t = 0.008"].eq("infeasible").sum() == 4
