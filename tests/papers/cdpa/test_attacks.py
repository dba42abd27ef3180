"""The attacks of the paper on CDPA: tables, pictures and figures, and the numbers that they show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.papers.drawn import Tables, draw, make, per_seed, series, smoke_tables
from tests.papers.drawn import interval as interval_of_several

from leakbench.papers.cdpa.common import printed
from leakbench.papers.cdpa.tables_attacks import IMPUTED
from leakbench.randomness import generator
from leakbench.report.reconstructions import Row

PAPER = "cdpa"
NAMES = {
    "none": "no defense",
    "grad-drop": "GradDrop",
    "cafl-1": "CAFL",
    "jopeq-2": "JoPEQ",
    "laplace-1": "LDP",
    "soteria": "Soteria",
    "sign-sgd": "SignSGD",
    "sdq": "SDQ",
    "cdpa-rog": "CDPA",
}
UNSEEN = {"mean_image": "mean image", "grey": "constant grey", "noise": "random noise"}


@pytest.fixture
def tables() -> Tables:
    return smoke_tables(PAPER)


def values(frame: pd.DataFrame, **equal: Any) -> pd.DataFrame:
    for column, value in equal.items():
        frame = frame[frame[column] == value]
    return frame


def interval(per_seed: list[float]) -> tuple[float, float, float]:
    """As over several seeds; one seed is its own interval."""
    return (per_seed[0],) * 3 if len(per_seed) == 1 else interval_of_several(per_seed)


def mean_of(cell: str) -> float:
    """The number before the interval."""
    return float(cell.split(" ")[0])


def test_rog_beside_the_paper(tables: Tables) -> None:
    frame = tables["rog"]
    shown = make("table03", tables, paper=PAPER).set_index("defense")
    defended = [name for label, name in NAMES.items() if label in set(frame["defense"])]
    unseen = [name for label, name in UNSEEN.items() if label in set(frame["attack"])]
    assert list(shown.index) == defended + unseen
    theirs: dict[Any, Any] = printed("table03").set_index("defense")["psnr"].to_dict()
    for label, name in NAMES.items():
        if name in defended:
            for column, attack in (("ours", "rog"), ("refined", "rog-post")):
                found = values(frame, metric="assigned_ssim_global", defense=label, attack=attack)
                expected = f"{interval(per_seed(found))[0]:.3g}" if len(found) else "–"
                assert shown.loc[name, f"SSIM, global, {column}"].split(" ")[0] == expected
            row = {"no defense": "none"}.get(name, name)
            assert shown.loc[name, "PSNR (dB), paper"] == (f"{theirs[row]:g}" if row in theirs else "–")
    assert set(shown["LPIPS, ours"]) == {"–"}  # nothing is staged
    assert shown.loc["CDPA", "SSIM, global, paper"] == "0.19"


def test_void_numbers_say_so(tables: Tables) -> None:
    frame = tables["rog"]
    frame.loc[frame["attack"] == "rog", "void"] = True
    shown = make("table03", tables, paper=PAPER).set_index("defense")
    assert "void" in shown.loc["CDPA", "PSNR (dB), ours"]
    assert "void" not in shown.loc["constant grey", "PSNR (dB), ours"]
    assert draw("fig07", tables, paper=PAPER).shows_void


def test_imputation_beside_the_paper(tables: Tables) -> None:
    frame = tables["rog_p"]
    shown = make("table07", tables, paper=PAPER).set_index(["p", "metric"])
    swept = sorted(frame["setting.p"].dropna().unique(), reverse=True)
    assert list(dict.fromkeys(shown.index.get_level_values("p"))) == ["no defense", *(f"{p:g}" for p in swept)]
    for p in swept:
        for column, attack in IMPUTED.items():
            found = values(frame, metric="assigned_psnr", attack=attack, **{"setting.p": p})
            cell = shown.loc[(f"{p:g}", "PSNR (dB)"), f"{column}, ours"]
            assert mean_of(cell) == pytest.approx(interval(per_seed(found))[0], rel=5e-3)
    last = shown.loc[("0.98", "SSIM, global")]
    assert (last["mean, paper"], last["zero, paper"], last["ROG, paper"]) == ("-0.082", "-0.076", "0.19")
    for column, attack in IMPUTED.items():
        expected = interval(per_seed(frame, metric="assigned_psnr", attack=attack, defense="none"))[0]
        assert mean_of(shown.loc[("no defense", "PSNR (dB)"), f"{column}, ours"]) == pytest.approx(expected, rel=5e-3)
    assert "mean of all, paper" not in shown or shown["mean of all, paper"].eq("–").all()


ATTACKERS = {
    "Inverting Gradients": ("inversion", {"ig": "as it is", "ig-adaptive": "maximum likelihood"}),
    "ROG": ("rog", {"rog": "as it is", "rog-dropped": "linear layers dropped", "rog-averaged": "several messages"}),
}


def test_attackers_who_know(tables: Tables) -> None:
    shown = make("tableS1", tables, paper=PAPER)
    drawing = draw("figS3", tables, paper=PAPER)
    assert len(drawing.numbers) == len(shown)
    for attack, (experiment, attackers) in ATTACKERS.items():
        for label, words in attackers.items():
            plain, adapted = (tables[name] for name in (experiment, f"{experiment}_adaptive"))
            frame = plain if words == "as it is" else adapted
            expected = interval(per_seed(frame, metric="assigned_psnr", attack=label, defense="cdpa-rog"))
            row = values(drawing.numbers, attack=attack, defense="CDPA, linear layers", attacker=words).iloc[0]
            assert (row["mean"], row["low"], row["high"]) == pytest.approx(expected)
            cell = values(shown, attack=attack, defense="CDPA, linear layers", attacker=words).iloc[0]["PSNR (dB)"]
            assert mean_of(cell) == pytest.approx(expected[0], rel=5e-3)
            bare = interval(per_seed(frame, metric="assigned_psnr", attack=label, defense="none"))
            row = values(drawing.numbers, attack=attack, defense="no defense", attacker=words).iloc[0]
            assert row["mean"] == pytest.approx(bare[0])
        assert "CDPA, change of the parameters" in set(values(drawing.numbers, attack=attack)["defense"])


def test_distances_stand_for_people(tables: Tables) -> None:
    frame = tables["rog"]
    numbers = draw("fig07", tables, paper=PAPER).numbers
    assert set(numbers["metric"]) == {"1 - SSIM"}
    for label, name in NAMES.items():
        own = values(frame, metric="assigned_ssim", defense=label, attack="rog")["value"]
        assert series(numbers, name)["value"].tolist() == pytest.approx((1 - own).tolist())
    order = [name for name in numbers["series"].unique() if name in NAMES.values()]
    medians = [series(numbers, name)["value"].median() for name in order]
    assert medians == sorted(medians)
    staged = values(frame, metric="assigned_lpips")
    frame.loc[staged.index, "value"] = np.linspace(0, 1, len(staged))
    numbers = draw("fig07", tables, paper=PAPER).numbers
    assert set(numbers["metric"]) == {"LPIPS (AlexNet)"}
    own = values(frame, metric="assigned_lpips", defense="sdq", attack="rog")["value"]
    assert series(numbers, "SDQ")["value"].tolist() == own.tolist()


def test_accuracy_and_similarity(tables: Tables) -> None:
    numbers = draw("fig09", tables, paper=PAPER).numbers
    utility, frame = tables["utility"], tables["rog"]
    model = utility["model"].iloc[-1]
    for name, attacked, trained in (("CDPA *", "cdpa-rog", "cdpa"), ("Soteria", "soteria", "soteria")):
        row = series(numbers, name).iloc[0]
        similarity = interval(per_seed(frame, metric="assigned_ssim_global", defense=attacked, attack="rog"))[0]
        accuracy = interval(per_seed(utility, metric="accuracy", defense=trained, model=model))[0]
        assert (row["ssim"], row["accuracy"]) == pytest.approx((similarity, accuracy))
    assert "LDP" not in set(numbers["series"])  # its epsilon differs; the points of equal epsilon are there
    for epsilon in tables["utility_epsilon"]["setting.epsilon"].dropna().unique():
        equal = {"metric": "assigned_ssim_global", "defense": "laplace-eps", "setting.epsilon": epsilon}
        expected = interval(per_seed(tables["rog_grids"], **equal))[0]
        row = series(numbers, f"LDP $\\epsilon$ = {epsilon:g}").iloc[0]
        assert row["ssim"] == pytest.approx(expected)


class Pictures:
    """Stands for the records: every defense and setting made something else of the same six images."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.victims = torch.rand(6, 3, 5, 5, generator=generator("victims"))

    def reconstructions(self, experiment: str, defense: str, attack: str) -> list[Row]:
        frame = values(self.tables[experiment], defense=defense)
        swept = [name for name in frame if str(name).startswith("setting.") and frame[name].notna().any()]
        settings = len(frame[swept].drop_duplicates()) if swept else 1
        rows = []
        for setting in range(settings):
            draw_ = generator(experiment, defense, attack, setting)
            images = torch.rand(self.victims.shape, generator=draw_)
            rows.append(Row("as in show", self.victims, images, 30 * torch.rand(6, generator=draw_)))
        return rows


GRIDS = {
    "fig12": ("soteria-grid", "Soteria 20%"),
    "fig14": ("laplace-eps", "LDP $\\epsilon=1$"),
    "fig15": ("grad-drop-grid", "GradDrop 20%"),
    "fig17": ("cafl-grid", "CAFL 30%"),
}


@pytest.mark.parametrize("name", ["fig06", *GRIDS])
def test_pictures(tables: Tables, name: str) -> None:
    kept: Any = Pictures(tables)
    drawing = draw(name, tables, kept, paper=PAPER)
    bare = kept.reconstructions("rog", "none", "rog")[0]
    order = bare.psnr.argsort(descending=True).tolist()
    first = series(drawing.numbers, "no defense")
    assert first["image"].tolist() == order
    assert first["psnr"].tolist() == bare.psnr[order].tolist()
    label, words = GRIDS.get(name, ("sdq", "SDQ"))
    row = kept.reconstructions("rog" if name == "fig06" else "rog_grids", label, "rog")[0]
    assert series(drawing.numbers, words)["psnr"].tolist() == row.psnr[order].tolist()
    rows = list(dict.fromkeys(drawing.numbers["series"]))
    ax = drawing.figure.axes[6 * (1 + rows.index(words))]
    pixels = np.asarray(ax.images[0].get_array())
    assert np.array_equal(pixels, row.images[order[0]].permute(1, 2, 0).numpy())


def test_pictures_of_quantisers(tables: Tables) -> None:
    numbers = draw("fig13", tables, Pictures(tables), paper=PAPER).numbers
    shown = set(numbers["series"])
    assert {"no defense", "SignSGD"} <= shown
    for level in tables["rog_grids"]["setting.bits"].dropna().unique():
        assert f"SDQ {level:g}-bit" in shown


def test_pictures_of_a_weak_attack_say_so(tables: Tables) -> None:
    frame = tables["rog"]
    assert not draw("fig06", tables, Pictures(tables), paper=PAPER).shows_void
    frame.loc[frame["attack"] == "rog", "void"] = True
    drawing = draw("fig06", tables, Pictures(tables), paper=PAPER)
    assert drawing.shows_void
    assert any("void" in text.get_text() for text in drawing.figure.texts)


def test_both_attacks_side_by_side(tables: Tables) -> None:
    kept: Any = Pictures(tables)
    drawing = draw("fig08", tables, kept, paper=PAPER)
    frame = tables["inversion"]
    for label, name in NAMES.items():
        if label in set(frame["defense"]):
            own = series(drawing.numbers, name)
            assert own["attack"].tolist() == ["dlg", "ig"]
            for row in own.to_dict("records"):
                found = per_seed(frame, metric="assigned_ssim", defense=label, attack=row["attack"])
                assert row["mean"] == pytest.approx(1 - math.fsum(found) / len(found))
    assert [ax.get_xlabel() for ax in drawing.figure.axes[:6]] == [f"no. {place}" for place in (0, 1, 2, 0, 1, 2)]
    titles = [ax.get_xlabel() for ax in drawing.figure.axes[6:12]]
    rows = [kept.reconstructions("inversion", "none", attack)[0] for attack in ("dlg", "ig")]
    assert titles == [f"{value:.1f} dB" for row in rows for value in row.psnr[:3].tolist()]
