"""The leaderboard: from tables whose order, losses and strongest attacks are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.papers.drawn import draw, make, smoke_tables

from leakbench.errors import RecordError
from leakbench.leaderboard.board import Board, boards
from leakbench.report.artifacts import formats, shows_under_attacked
from leakbench.report.plots import Drawing

SEEDS, VICTIMS = 4, 10
PAPER = "leaderboard"
ACCURACY = 0.9

Rows = list[dict[str, Any]]


def row(defense: str, metric: str, value: float, seed: int, index: int = 0, **more: Any) -> dict[str, Any]:
    """A number of a tidy table."""
    attacked = more.get("attack") is not None
    own = {"defense": defense, "mechanism": more.pop("mechanism", defense), "kind": "attack" if attacked else "train"}
    shared = {"dataset": "digits", "model": "lenet", "attack": None, "void": False, "status": "ok", "axis": None}
    return shared | own | {"metric": metric, "value": value, "seed": seed, "index": index} | more


def trained(defense: str, lost: float, bits: float = 100.0, **more: Any) -> Rows:
    """Training of every seed, whose accuracies differ between seeds as those without a defense do."""
    return [
        row(defense, metric, value, seed, **more)
        for seed in range(SEEDS)
        for metric, value in (("accuracy", ACCURACY + 0.01 * seed - lost), ("bits", bits))
    ]


def attacked(defense: str, attack: str, psnr: float, **more: Any) -> Rows:
    """An attack whose victims differ by a little, the same for all."""
    return [
        row(defense, "psnr", psnr + 0.1 * (seed + victim), seed, victim, attack=attack, **more)
        for seed in range(SEEDS)
        for victim in range(VICTIMS)
    ]


BARE = [
    *trained("none", 0.0),
    *attacked("none", "ig", 30.0),
    *attacked("none", "dlg", 40.0),
    *attacked("none", "mean_image", 12.0),
    *attacked("none", "grey", 8.0),
]


def defended() -> Rows:
    """``even`` leaks 20 dB at no loss, ``odd`` 25 dB; ``costly`` hides all and loses 10 points."""
    return [
        *trained("even", 0.0, bits=50.0),
        *attacked("even", "ig", 20.0),
        *attacked("even", "dlg", 5.0),
        *trained("odd", 0.0),
        *attacked("odd", "ig", 15.0),
        *attacked("odd", "dlg", 25.0),
        *trained("costly", 0.1),
        *attacked("costly", "ig", 5.0),
        *attacked("costly", "dlg", 4.0),
    ]


def swept(losses: list[float], leakages: list[float]) -> Rows:
    """A defense with a setting per loss."""
    return [
        each
        for number, (lost, psnr) in enumerate(zip(losses, leakages, strict=True))
        for each in (
            *trained("swept", lost, **{"setting.scale": float(number)}),
            *attacked("swept", "ig", psnr, **{"setting.scale": float(number)}),
        )
    ]


def board(rows: Rows, bare: Rows = BARE) -> Board:
    """The one leaderboard of these rows."""
    (found,) = boards({"undefended": pd.DataFrame(bare), "defended": pd.DataFrame(rows)})
    return found


def test_the_least_leakage_comes_first_and_what_loses_too_much_last() -> None:
    """By the strongest attack of each, not by a fixed one."""
    places = board(defended()).places
    assert [place.defense.label for place in places] == ["even", "odd", "costly"]
    first, second, last = places
    assert first.defense.strongest == ("ig",) and second.defense.strongest == ("dlg",)
    assert second.leakage[0.02].value - first.leakage[0.02].value == pytest.approx(5.0)
    assert second.above_best.value == pytest.approx(5.0) and second.p_value < 0.05
    assert last.setting is None and math.isnan(last.leakage[0.05].value) and math.isnan(last.p_value)


def test_no_defense_leaks_less_than_the_best_guess() -> None:
    """Whoever sees noise can still send the mean image; the best guess is not that of another data set's mean."""
    found = board(defended())
    hidden = next(one for one in found.defenses if one.label == "costly")
    assert hidden.strongest == ("mean_image",)
    assert hidden.leakage[0, 0] == found.guess.value
    assert found.undefended.value > 40


def test_a_defense_that_no_attack_applies_to_is_not_said_to_protect() -> None:
    """Infeasible attacks are no evidence: the line stands last, without a number."""
    silent = [
        *trained("silent", 0.0),
        *[each | {"value": math.nan, "status": "infeasible"} for each in attacked("silent", "ig", 0.0)],
    ]
    place = board([*defended(), *silent]).places[-1]
    assert place.defense.label == "silent" and place.setting is None
    assert math.isnan(place.leakage[0.02].value)
    front = draw("fig02", tables([*defended(), *silent]), paper=PAPER).numbers.set_index("defense")["front"]
    assert not front["silent"] and front["even"]


def test_failed_trials_of_one_attack_leave_another_as_the_strongest() -> None:
    """Half of the victims of the better attack diverged: it is not judged by the other half."""
    rows = defended()
    for each in rows:
        if each["defense"] == "odd" and each["attack"] == "dlg" and each["index"] % 2:
            each["value"] = math.nan
    found = next(one for one in board(rows).defenses if one.label == "odd")
    assert found.strongest == ("ig",)


def test_void_attacks_are_left_out() -> None:
    """An attack that misses its gate says nothing of any defense."""
    rows = [each | {"void": each["attack"] == "dlg"} for each in defended()]
    bare = [each | {"void": each["attack"] == "dlg"} for each in BARE]
    found = board(rows, bare)
    assert found.void == ("dlg",) and all("dlg" not in one.quality for one in found.defenses)
    assert found.undefended.value < 40
    drawing = draw_from(rows, bare)
    assert drawing.figure.axes[0].get_xlabel().endswith("too weak: dlg")


def weakly(weak: int) -> Rows:
    """Two settings within the allowed loss, one of which is under-attacked; the second leaks least."""
    rows = swept([0.0, 0.0], [30.0, 15.0])
    rows += [each for scale in (0.0, 1.0) for each in attacked("swept", "dlg", 10.0, **{"setting.scale": scale})]
    marks = [each | {"under_attacked": each.get("setting.scale") == weak} for each in rows]
    return [*marks, *(each | {"under_attacked": False} for each in defended())]


@pytest.mark.parametrize(("weak", "chosen"), [(1, True), (0, False)])
def test_under_attacked_defenses_are_marked(weak: int, chosen: bool) -> None:
    """In the chosen setting alone; the list of all settings marks the setting. Leakage stays the strongest attack's."""
    rows = weakly(weak)
    (place,) = (place for place in board(rows).places if place.defense.label == "swept")
    assert place.defense.under_attacked == (weak == 0, weak == 1) and place.under_attacked is chosen
    unmarked = board([{**each, "under_attacked": False} for each in rows])
    assert repr([each.leakage for each in board(rows).places]) == repr([each.leakage for each in unmarked.places])
    name = "swept †" if chosen else "swept"
    for figure in ("fig01", "fig03"):
        drawing = draw(figure, tables(rows), paper=PAPER)
        names = [label.get_text() for label in drawing.figure.axes[0].get_yticklabels()]
        assert name in names and sum("†" in each for each in names) == chosen
        marks = drawing.numbers.drop_duplicates("defense").set_index("defense")["under_attacked"]
        assert marks["swept"] == chosen and not marks["even"]
        assert shows_under_attacked(drawing) is chosen
    texts = [text.get_text() for text in draw("fig02", tables(rows), paper=PAPER).figure.axes[0].texts]
    assert sum("†" in each for each in texts) == chosen  # the other setting is faint, and has no name
    listed = make("table01", tables(rows), paper=PAPER).set_index("defense")["under_attacked"]
    assert listed["swept"] == chosen and listed.sum() == chosen
    every = make("table02", tables(rows), paper=PAPER)
    assert every.loc[every["under_attacked"], "setting"].tolist() == [f"scale {weak}"]
    assert formats(make("table01", tables(rows), paper=PAPER), ["c"])["tex"].decode().count("†") == chosen


def test_strengths_between_those_computed_are_joined_by_lines() -> None:
    """Loses 1 point at 30 dB and 3 at 20 dB: 25 dB at 2 points, and nothing at half a point."""
    found = board(swept([0.01, 0.03], [29.0, 19.0]))
    (one,) = found.defenses
    offset = one.leakage[0, 0] - 29.0  # what victims add to each alike
    assert one.at(0.02)[0] == pytest.approx(24.0 + offset)
    assert one.at(0.03 + 1e-9)[0] == pytest.approx(19.0 + offset)
    assert math.isnan(one.at(0.005)[0])
    assert found.places[0].setting == 0  # the strongest that was computed within 2 points


def test_diverged_training_loses_everything() -> None:
    """Also where one seed alone diverged: the mean over the others would flatter."""
    rows = swept([0.0, 0.0], [30.0, 15.0])
    for each in rows:
        if each.get("setting.scale") == 1.0 and each["metric"] == "accuracy" and each["seed"] == 2:
            each["value"] = math.nan
    (one,) = board(rows).defenses
    assert np.isinf(one.loss[0, 1]) and one.chosen(0.05) == 0
    assert one.at(0.05)[0] == one.leakage[0, 0]  # nothing is joined to it


def test_loss_is_paired_by_seed() -> None:
    """Seeds differ by a point each and the defense loses 1 in every one: the interval is that point."""
    (one,) = board(swept([0.01], [30.0])).defenses
    assert one.loss[:, 0] == pytest.approx(np.full(len(one.loss), 0.01))


def test_a_seed_that_is_attacked_and_not_trained_loses_nothing() -> None:
    """Training costs more than an attack, so that a scale may train fewer seeds."""
    every = [each for each in swept([0.01], [30.0]) if each["kind"] == "attack" or each["seed"] != 2]
    (one,) = board(every, [each for each in BARE if each["kind"] == "attack" or each["seed"] != 2]).defenses
    known = one.loss[~np.isnan(one.loss)]
    assert known == pytest.approx(np.full(len(known), 0.01)) and len(known) > 0.9 * one.loss.size


def test_missing_references_are_an_error_in_plain_words() -> None:
    """Nothing is ranked without the undefended row and a guess."""
    with pytest.raises(RecordError, match=r"digits with lenet: an attack without a defense, a guess and a training"):
        board(defended(), [each for each in BARE if each["attack"] not in ("mean_image", "grey")])


def test_the_front_holds_what_nothing_beats() -> None:
    """``even`` beats ``odd`` in leakage and bits at the same loss; ``costly`` leaks less than both."""
    drawing = draw("fig02", tables(defended()), paper=PAPER)
    best = drawing.numbers.set_index("defense")["front"]
    assert dict(best) == {"even": True, "odd": False, "costly": True}


def tables(rows: Rows) -> dict[str, pd.DataFrame]:
    """The tables of the leaderboard's experiments."""
    return {"undefended": pd.DataFrame(BARE), "defended": pd.DataFrame(rows)}


def draw_from(rows: Rows, bare: Rows) -> Drawing:
    """The matrix of these rows."""
    return draw("fig03", {"undefended": pd.DataFrame(bare), "defended": pd.DataFrame(rows)}, paper=PAPER)


def test_the_matrix_frames_the_strongest_attack() -> None:
    """And leaves out what loses too much."""
    numbers = draw("fig03", tables(defended()), paper=PAPER).numbers
    framed = numbers[numbers["strongest"]].set_index("defense")["attack"]
    assert dict(framed) == {"even": "ig", "odd": "dlg"}


def test_the_table_carries_the_undefended_row_and_the_guess() -> None:
    """Beside them every defense has its place, and costs over the undefended ones."""
    found = make("table01", tables(defended()), paper=PAPER).set_index("defense")
    assert list(found.index) == ["even", "odd", "costly", "no defense", "best guess"]
    assert found.loc["even", "bits"] == "0.5x" and found.loc["odd", "bits"] == "1x"
    assert found.loc["costly", "at 2 points"] == "–"
    assert found.loc["even", "seen"] == "1.00"  # every victim better than every guess


@pytest.mark.parametrize("name", ["fig01", "fig02"])
def test_figures_of_the_smoke_scale_show_every_defense(name: str) -> None:
    """Also one that a user compares, since no list of defenses is written down anywhere."""
    found = smoke_tables(PAPER)
    expected = set(found["defended"]["defense"])
    assert set(draw(name, found, paper=PAPER).numbers["defense"]) == expected
    assert set(make("table02", found, paper=PAPER)["defense"]) == expected


def test_a_matrix_without_a_defense_says_why() -> None:
    """Where all lose more than the headline allows."""
    drawing = draw("fig03", tables(swept([0.3], [20.0])), paper=PAPER)
    (said,) = drawing.figure.axes[0].texts
    assert said.get_text() == "every defense loses more than 2 points" and drawing.numbers.empty


def test_a_missing_training_is_not_a_diverged_one() -> None:
    """As in figures that are drawn while records are missing."""
    rows = [each for each in defended() if (each["defense"], each["kind"]) != ("odd", "train")]
    place = next(place for place in board(rows).places if place.defense.label == "odd")
    assert np.isnan(place.defense.loss).all() and place.setting is None
    words = [text.get_text() for text in draw("fig01", tables(rows), paper=PAPER).figure.axes[0].texts]
    assert "training is missing" in " ".join(words) and "training diverges" not in " ".join(words)
    assert make("table02", tables(rows), paper=PAPER).set_index("defense").loc["odd", "loss"] == "–"
