"""The leaderboard: from tables whose order, losses and strongest attacks are known."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.papers.drawn import draw, make, smoke_tables

from leakbench.errors import RecordError
from leakbench.leaderboard.board import Board, Entry, boards
from leakbench.leaderboard.figures import NO_DEFENSE
from leakbench.leaderboard.history import PLACE
from leakbench.leaderboard.lines import known
from leakbench.leaderboard.tracks import TRACKS, Track
from leakbench.planning.layers import read_yaml
from leakbench.report.artifacts import formats, shows_under_attacked
from leakbench.report.plots import Drawing

SEEDS, VICTIMS = 6, 4
PAPER = "leaderboard"
ACCURACY = 0.9
FIRST = TRACKS[0]

Rows = list[dict[str, Any]]


def row(defense: str, metric: str, value: float, seed: int, index: int = 0, **more: Any) -> dict[str, Any]:
    """A number of a tidy table."""
    kind = "attack" if more.get("attack") is not None else "train"
    known = {"defense": defense, "mechanism": more.pop("mechanism", defense), "kind": kind}
    shared = {"dataset": "digits", "model": "lenet", "attack": None, "void": False, "status": "ok", "axis": None}
    return shared | known | {"metric": metric, "value": value, "seed": seed, "index": index} | more


def trained(defense: str, lost: float, bits: float = 100.0, **more: Any) -> Rows:
    """Training of every seed."""
    numbers = {"accuracy": ACCURACY - lost, "accuracy_lost": lost, "bits": bits}
    return [row(defense, name, value, seed, **more) for seed in range(SEEDS) for name, value in numbers.items()]


def attacked(defense: str, attack: str, psnr: float, identified: float = 1.0, **more: Any) -> Rows:
    """An attack whose victims differ by a little, in another order for every defense."""
    turned = len(defense) % SEEDS
    return [
        row(defense, metric, value, seed, victim, attack=attack, **more)
        for seed in range(SEEDS)
        for victim in range(VICTIMS)
        for metric, value in (
            ("psnr", psnr + 0.1 * ((seed + turned) % SEEDS) + 0.1 * victim),
            ("identified", identified),
        )
    ]


BARE = [
    *trained("none", 0.0),
    *attacked("none", "ig", 30.0),
    *attacked("none", "dlg", 40.0),
    *attacked("none", "mean_image", 12.0, identified=0.0),
    *attacked("none", "grey", 8.0, identified=0.0),
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


def swept(losses: Sequence[float], leakages: Sequence[float | None], name: str = "swept") -> Rows:
    """A defense with a setting per loss; None: it was not attacked."""
    rows: Rows = []
    for number, (lost, psnr) in enumerate(zip(losses, leakages, strict=True)):
        setting = {"setting.scale": float(number)}
        rows += trained(name, lost, **setting)
        rows += attacked(name, "ig", psnr, **setting) if psnr is not None else []
    return rows


def tables(rows: Rows, bare: Rows = BARE, only: Track = FIRST) -> dict[str, pd.DataFrame]:
    """The tables of the leaderboard's experiments; one track alone has attacks."""
    frames = {}
    for track in TRACKS:
        for name, part in zip(track.training, (bare, rows), strict=True):
            frames[name] = _chosen(part, "train", track.training == only.training)
        for name, part in ((track.undefended, bare), (track.defended, rows)):
            frames[name] = _chosen(part, "attack", track is only)
    return frames


def _chosen(part: Rows, kind: str, there: bool) -> pd.DataFrame:
    rows = [each for each in part if each["kind"] == kind and there]
    return pd.DataFrame(rows, columns=None if rows else pd.DataFrame(part).columns)


def board(rows: Rows, bare: Rows = BARE) -> Board:
    """The one leaderboard of these rows."""
    (found,) = boards(tables(rows, bare))
    return found


def entry(rows: Rows, label: str = "swept") -> Entry:
    """One of its defenses."""
    return next(one for one in board(rows).entries if one.label == label)


def test_the_least_leakage_comes_first_and_what_loses_too_much_last() -> None:
    """By the strongest attack of each, not by a fixed one."""
    first, second, last = board(defended()).rows
    assert [one.entry.label for one in (first, second, last)] == ["even", "odd", "costly"]
    assert first.entry.shown and first.entry.shown.leakage and first.entry.shown.leakage.attack == "ig"
    assert second.entry.shown and second.entry.shown.leakage and second.entry.shown.leakage.attack == "dlg"
    difference = second.entry.shown.leakage.mean.value - first.entry.shown.leakage.mean.value
    assert difference == pytest.approx(5.0) and (first.tier, second.tier) == (1, 2)
    assert last.entry.excluded == "loses 10.0 points"


def test_noise_alone_is_in_the_first_tier_and_excluded_and_nothing_in_the_last() -> None:
    """And a copy shares the tier of its original."""
    rows = [*defended(), *attacked("idle", "ig", 29.9), *attacked("idle", "dlg", 39.9), *trained("idle", 0.0)]
    copied = [each | {"defense": "copy"} for each in rows if each["defense"] == "odd"]
    found = {one.entry.label: one for one in board([*rows, *copied]).rows}
    assert found["costly"].tier == 1 and found["costly"].entry.excluded
    assert found["idle"].tier == max(one.tier or 0 for one in found.values())
    assert found["copy"].tier == found["odd"].tier and not found["copy"].entry.excluded


def test_no_defense_leaks_less_than_the_best_guess() -> None:
    """Whoever sees noise can still send the mean image; the best guess is not that of another data set's mean."""
    found = board(defended())
    hidden = entry(defended(), "costly").shown
    assert hidden and hidden.leakage and hidden.leakage.attack == "mean_image"
    assert np.array_equal(hidden.leakage.values, found.guess.values) and found.guess.identified == 0
    assert found.undefended.mean.value > 40 and found.undefended.identified == 1


def test_who_errs_more_than_the_guess_may_still_identify() -> None:
    """A noisy image is far from its victim, and farther from all others."""
    hidden = entry(defended(), "costly").shown
    assert hidden and hidden.leakage and hidden.leakage.attack == "mean_image" and hidden.leakage.identified == 1


def test_a_victim_that_is_seen_whole_counts_as_50_db() -> None:
    """Beyond that a few exact images would be the mean."""
    shown = entry([*attacked("exact", "ig", 140.0), *trained("exact", 0.0)], "exact").shown
    assert shown and shown.leakage and (shown.leakage.values == 50).all()


def test_a_defense_that_no_attack_applies_to_is_not_said_to_protect() -> None:
    """Infeasible attacks are no evidence: the line stands last, without a number and without a tier."""
    silent = [
        *trained("silent", 0.0),
        *[each | {"value": math.nan, "status": "infeasible"} for each in attacked("silent", "ig", 0.0)],
    ]
    last = board([*defended(), *silent]).rows[-1]
    assert last.entry.label == "silent" and last.tier is None and last.entry.excluded == "no attack applies"
    front = draw("fig02", tables([*defended(), *silent]), paper=PAPER).numbers.set_index("defense")["front"]
    assert not front["silent"] and front["even"]


def test_whose_attack_fails_guesses() -> None:
    """Half of the trials of the better attack diverged: for these its attacker has the best guess."""
    rows = defended()
    for each in rows:
        if each["defense"] == "odd" and each["attack"] == "dlg" and each["index"] % 2:
            each["value"] = math.nan
        if (each["defense"], each["attack"], each["metric"]) == ("odd", "ig", "identified"):
            each["value"] = 0.0
    shown = entry(rows, "odd").shown
    assert shown and shown.leakage and shown.leakage.attack == "dlg"
    assert shown.leakage.values[:, 1] == pytest.approx(board(rows).guess.values[:, 1])
    assert shown.leakage.identified == 0.5


def test_void_attacks_are_left_out() -> None:
    """An attack that misses its gate says nothing of any defense."""
    rows = [each | {"void": each["attack"] == "dlg"} for each in defended()]
    bare = [each | {"void": each["attack"] == "dlg"} for each in BARE]
    found = board(rows, bare)
    assert found.void == ("dlg",)
    assert all("dlg" not in one.attacks for each in found.entries for one in each.settings)
    assert found.undefended.mean.value < 40
    assert draw_from(rows, bare).figure.axes[0].get_xlabel().endswith("too weak: dlg")


@pytest.mark.parametrize(("weak", "marked"), [(1, True), (0, False)])
def test_under_attacked_defenses_are_marked(weak: int, marked: bool) -> None:
    """In the shown setting alone; the list of all settings marks the setting. Leakage stays the strongest attack's."""
    rows = [*swept([0.0, 0.0], [30.0, 15.0]), *defended()]
    rows = [
        each | {"under_attacked": each["defense"] == "swept" and each.get("setting.scale") == weak} for each in rows
    ]
    found = entry(rows)
    assert [one.under_attacked for one in found.settings] == [weak == 0, weak == 1]
    name = "swept †" if marked else "swept"
    assert found.name == name
    for figure in ("fig01", "fig03"):
        drawing = draw(figure, tables(rows), paper=PAPER)
        names = [label.get_text() for label in drawing.figure.axes[0].get_yticklabels()]
        assert name in names and sum("†" in each for each in names) == marked
        marks = drawing.numbers.drop_duplicates("defense").set_index("defense")["under_attacked"]
        assert marks["swept"] == marked and not marks["even"]
        assert shows_under_attacked(drawing) is marked
    listed = make("table01", tables(rows), paper=PAPER).set_index("defense")["under_attacked"]
    assert listed["swept"] == marked and listed.sum() == marked
    every = make("table02", tables(rows), paper=PAPER)
    assert every.loc[every["under_attacked"], "setting"].tolist() == [f"scale {weak}"]
    assert formats(make("table01", tables(rows), paper=PAPER), ["c"])["tex"].decode().count("†") == marked


def test_every_number_of_a_line_is_of_one_computed_setting() -> None:
    """It loses 1 point at 29 dB and 3 at 19: nothing between is made up, and both are shown."""
    rows = swept([0.0, 0.01, 0.03, 0.2], [None, 29.0, 19.0, None])
    one = entry(rows)
    assert one.shown and one.shown.words == "scale 1" and one.beyond and one.beyond.words == "scale 2"
    numbers = draw("fig01", tables(rows), paper=PAPER).numbers.iloc[0]
    assert numbers["setting"] == "scale 1" and numbers["loss"] == pytest.approx(0.01)
    assert numbers["beyond_setting"] == "scale 2" and numbers["beyond_loss"] == pytest.approx(0.03)
    assert numbers["leakage"] - numbers["beyond_leakage"] == pytest.approx(10)
    line = make("table01", tables(rows), paper=PAPER).iloc[0]
    assert re.fullmatch(r"\d\d\.\d dB, tier 1, 3\.00", line["next"]) and line["loss"].startswith("1.00")


def test_an_excluded_defense_stands_by_the_setting_that_loses_least() -> None:
    """Which need not be its weakest: noise may cost more the less it hides."""
    one = entry(swept([0.2, 0.05, math.nan, 0.1], [30.0, 20.0, 10.0, 15.0]))
    assert one.shown and one.shown.words == "scale 1" and one.excluded == "loses 5.0 points" and one.beyond is None


def test_diverged_training_loses_everything() -> None:
    """Also where one seed alone diverged: the mean over the others would flatter."""
    rows = swept([0.0, 0.0], [30.0, 15.0])
    for each in rows:
        if each.get("setting.scale") == 1.0 and each["metric"] == "accuracy_lost" and each["seed"] == 2:
            each["value"] = math.nan
    one = entry(rows)
    assert math.isinf(one.settings[1].loss.value) and one.shown is one.settings[0]
    alone = [each | {"value": math.nan} if each["metric"] == "accuracy_lost" else each for each in rows]
    assert entry(alone).excluded == "training diverges"


def test_a_missing_training_is_not_a_diverged_one() -> None:
    """As in figures that are drawn while records are missing."""
    rows = [each for each in defended() if (each["defense"], each["kind"]) != ("odd", "train")]
    assert entry(rows, "odd").excluded == "training is missing"
    words = [text.get_text() for text in draw("fig01", tables(rows), paper=PAPER).figure.axes[0].texts]
    assert "training is missing" in " ".join(words) and "diverges" not in " ".join(words)
    assert make("table02", tables(rows), paper=PAPER).set_index("defense").loc["odd", "loss"] == "–"


def test_the_tenth_that_leaks_most() -> None:
    """The mean of three of 24 victims."""
    shown = entry(defended(), "even").shown
    assert shown and shown.leakage
    most = np.sort(shown.leakage.values.ravel())[-3:]
    assert shown.leakage.worst == pytest.approx(most.mean()) and shown.leakage.worst > shown.leakage.mean.value


def test_a_board_for_every_size_of_the_cohort() -> None:
    """Larger cohorts average noise away: what is too strong for 8 clients may serve with 32."""
    sizes = {8: [0.0, 0.05], 32: [0.0, 0.01]}
    rows = [each for each in swept([0.0, 0.0], [30.0, 15.0]) if each["kind"] == "attack"]
    for size, losses in sizes.items():
        costs = [each for each in swept(losses, [30.0, 15.0]) if each["kind"] == "train"]
        rows += [each | {"setting.clients": float(size)} for each in costs]
    bare = [each for each in BARE if each["kind"] == "attack"]
    bare += [each | {"setting.clients": float(size)} for size in sizes for each in trained("none", 0.0)]
    few, many = boards(tables(rows, bare))
    assert (few.cohort, many.cohort) == (8, 32)
    for found, words in ((few, "scale 0"), (many, "scale 1")):
        (one,) = found.entries
        assert one.shown and one.shown.words == words and len(one.settings) == 2


def test_states_of_training_are_attackers_choices() -> None:
    """Along training, a defense leaks what it leaks at the worst moment."""
    rows = trained("even", 0.0)
    rows += [each | {"setting.epoch": 1.0} for each in attacked("even", "ig", 18.0)]
    rows += [each | {"setting.epoch": 10.0} for each in attacked("even", "ig", 22.0)]
    shown = entry(rows, "even").shown
    assert shown and shown.leakage and shown.leakage.attack == "ig, epoch 10"
    assert set(shown.attacks) == {"ig, epoch 1", "ig, epoch 10"}


def test_missing_references_are_an_error_in_plain_words() -> None:
    """Nothing is ranked without the undefended row and a guess."""
    with pytest.raises(RecordError, match=r"Track A .*: no guess to compare with"):
        board(defended(), [each for each in BARE if each["attack"] not in ("mean_image", "grey")])


def test_a_track_whose_attacks_all_miss_their_gate_says_so_and_the_others_stand() -> None:
    found = tables(defended())
    weak = next(track for track in TRACKS[1:] if track.measure.metric == "psnr")
    for name in (weak.undefended, weak.defended):
        void = FIRST.undefended if name == weak.undefended else FIRST.defended
        found[name] = found[void].assign(void=~found[void]["attack"].isin(["mean_image", "grey"]))
    (judged,) = boards(found)
    assert judged.track is FIRST
    reason = "no attack passes its gate without a defense"
    shown = [text.get_text() for ax in draw("fig01", found, paper=PAPER).figure.axes for text in ax.texts]
    assert shown.count(reason) == 1
    table = make("table01", found, paper=PAPER).set_index("track")
    assert table.loc[weak.key, "excluded"] == reason


def test_images_of_a_batch_are_assigned_before_they_are_judged() -> None:
    """No attacker can know the order of a batch."""
    several = next(track for track in TRACKS if track.measure.metric == "assigned_psnr")
    found = tables(defended())
    for mine, theirs in ((several.undefended, FIRST.undefended), (several.defended, FIRST.defended)):
        rows = found[theirs]
        psnr = rows[rows["metric"] == "psnr"]
        found[mine] = pd.concat([rows, psnr.assign(metric="assigned_psnr", value=psnr["value"] + 1.0)])
    first, second = boards(found)
    assert second.track is several
    assert second.undefended.mean.value == pytest.approx(first.undefended.mean.value + 1)


def test_an_attacker_may_do_what_a_weaker_one_does() -> None:
    """A malicious server's own attack finds more without a defense, and less under one, where it searches instead."""
    malicious = next(track for track in TRACKS if track.weaker)
    weaker = next(track for track in TRACKS if (track.undefended, track.defended) == malicious.weaker)
    assert weaker.measure.metric == malicious.measure.metric == "assigned_psnr"
    found = tables(defended())
    for mine, theirs, gain in (
        (malicious.undefended, FIRST.undefended, 5.0),
        (malicious.defended, FIRST.defended, -5.0),
        (weaker.undefended, FIRST.undefended, 0.0),
        (weaker.defended, FIRST.defended, 0.0),
    ):
        rows = found[theirs]
        psnr = rows[(rows["metric"] == "psnr") & rows["attack"].isin(["ig", "mean_image", "grey"])]
        found[mine] = psnr.assign(metric="assigned_psnr", value=psnr["value"] + gain * (psnr["attack"] == "ig"))
        if mine in (malicious.undefended, malicious.defended):
            found[mine] = found[mine][found[mine]["attack"] == "ig"].assign(attack="robbing")
    first, honest, strong = boards(found)
    assert (first.track, honest.track, strong.track) == (FIRST, weaker, malicious)
    assert strong.undefended.attack == "robbing" and strong.guess.mean == honest.guess.mean
    assert strong.undefended.mean.value == pytest.approx(honest.undefended.mean.value + 5)
    for strong_row, honest_row in zip(strong.rows, honest.rows, strict=True):
        shown, other = strong_row.entry.shown, honest_row.entry.shown
        assert shown and other and shown.leakage and other.leakage
        assert shown.leakage.attack == other.leakage.attack != "robbing" and shown.leakage.mean == other.leakage.mean
        assert set(shown.attacks) == {"ig", "robbing"}


def test_the_front_holds_what_nothing_beats() -> None:
    """``even`` beats ``odd`` in leakage and bits at the same loss; ``costly`` leaks less than both."""
    drawing = draw("fig02", tables(defended()), paper=PAPER)
    best = drawing.numbers.set_index("defense")["front"]
    assert dict(best) == {"even": True, "odd": False, "costly": True}


def draw_from(rows: Rows, bare: Rows) -> Drawing:
    """The matrix of these rows."""
    return draw("fig03", tables(rows, bare), paper=PAPER)


def test_the_matrix_frames_the_strongest_attack() -> None:
    numbers = draw("fig03", tables(defended()), paper=PAPER).numbers
    framed = numbers[numbers["strongest"]].set_index("defense")["attack"]
    # Against the third defense nothing betters a guess.
    assert dict(framed) == {"no defense": "dlg", "even": "ig", "odd": "dlg"}


def test_the_table_carries_the_undefended_row_and_the_guess() -> None:
    """Beside them every defense has its line, and costs over the undefended ones."""
    found = make("table01", tables(defended()), paper=PAPER).set_index("defense")
    assert list(found.index) == ["even", "odd", "costly", "no defense", "best guess"]
    assert found.loc["even", "bits"] == "0.5x" and found.loc["odd", "bits"] == "1x"
    assert found["strongest attack"].tolist() == ["ig", "dlg", "mean_image", "dlg", "mean_image"]
    assert found.loc["costly", "excluded"] == "loses 10.0 points" and found.loc["even", "excluded"] == "–"


def test_tiers_in_words() -> None:
    """A row per tier, least leakage first, and one for what loses too much."""
    rows = [*defended(), *trained("near", 0.0), *attacked("near", "ig", 20.0)]
    found = make("table03", tables(rows), paper=PAPER)
    assert found[["board", "tier", "defenses"]].to_numpy().tolist() == [
        [f"A ({FIRST.name}), digits, lenet", tier, defenses]
        for tier, defenses in (("1", "even, near"), ("2", "odd"), ("excluded", "costly"))
    ]
    levels = make("table01", tables(rows), paper=PAPER).set_index("defense")["leakage"].str.partition(" ")[0]
    assert found["leakage"].iloc[1] == levels["odd"] and levels["even"] in found["leakage"].iloc[0]


def test_latex_to_copy() -> None:
    """Ranked defenses alone; the best tier is bold; a label, and no caption of ours."""
    tex = formats(make("table01", tables(defended()), paper=PAPER), ["c"])["tex"].decode()
    assert r"\toprule" in tex and r"\label{tab:leakbench-a-digits-lenet}" in tex and r"\caption" not in tex
    assert "even" in tex and "costly" not in tex and "no defense" in tex
    best = make("table01", tables([*trained("even", 0.0), *attacked("even", "ig", 20.0)]), paper=PAPER)
    assert r"\textbf{even}" in formats(best, ["c"])["tex"].decode()


def test_a_compared_defense_is_the_most_visible() -> None:
    """``even`` is not in the grid."""
    ax = draw(
        "fig01", tables([*defended(), *attacked("qsgd", "ig", 18.0), *trained("qsgd", 0.0)]), paper=PAPER
    ).figure.axes[0]
    weights = {label.get_text(): label.get_fontweight() for label in ax.get_yticklabels()}
    assert weights["even"] == "bold" and weights["qsgd"] != "bold"


@pytest.mark.parametrize("name", ["fig01", "fig02", "fig03"])
def test_figures_of_the_smoke_scale_show_every_defense(name: str) -> None:
    """Also one that a user compares, since no list of defenses is written down anywhere."""
    found = smoke_tables(PAPER)
    expected = set(found["training"]["defense"])
    assert set(draw(name, found, paper=PAPER).numbers["defense"]) == expected | (
        {NO_DEFENSE} if name == "fig03" else set()
    )
    assert set(make("table02", found, paper=PAPER)["defense"]) == expected


def test_leakage_over_the_budget() -> None:
    """The line never falls: whoever has a larger budget may also spend less."""
    spent = {"ig": 100.0, "dlg": 300.0}
    budgets = {"evaluations": spent, "auxiliary": {"ig": 0.0, "dlg": 512.0}, "device_s": {"ig": 6.0, "dlg": 3.0}}
    rows = [
        *defended(),
        *(
            row(defense, metric, budget, seed, attack=attack)
            for defense in ("even", "odd")
            for metric, of_attacks in budgets.items()
            for attack, budget in of_attacks.items()
            for seed in range(SEEDS)
        ),
    ]
    numbers = draw("fig04", tables(rows), paper=PAPER).numbers.set_index("attack")
    table = make("table04", tables(rows), paper=PAPER).set_index("attack")
    assert list(table.loc["dlg", ["gradients", "auxiliary"]]) == ["300", "512"]
    assert [float(one) for one in table["seconds"]] == pytest.approx([6 / VICTIMS, 3 / VICTIMS], rel=0.1)
    assert [float(one) for one in table["leakage"]] == pytest.approx(list(numbers["leakage"]), abs=0.051)
    assert dict(numbers["evaluations"]) == spent and list(numbers.index) == ["ig", "dlg"]
    middle = 0.1 * (SEEDS - 1) / 2 + 0.1 * (VICTIMS - 1) / 2
    assert numbers.loc["ig", "best_so_far"] == pytest.approx((20 + 15) / 2 + middle)
    assert numbers.loc["dlg", "best_so_far"] == pytest.approx((20 + 25) / 2 + middle)


def test_without_a_line_up_nobody_is_said_to_be_identified() -> None:
    rows = [each for each in defended() if each["metric"] != "identified"]
    shown = entry(rows, "even").shown
    assert shown and shown.leakage and math.isnan(shown.leakage.identified)
    assert make("table01", tables(rows), paper=PAPER).set_index("defense").loc["even", "identified"] == "–"


def test_latex_of_a_partial_table_says_so() -> None:
    made = make("table01", tables(defended()), paper=PAPER)
    assert "PARTIAL: 5 of 8 records" in formats(made, ["c"], "5 of 8 records")["tex"].decode()


def test_lines_are_json() -> None:
    """Also those of training that diverged."""
    assert known({"loss": math.inf, "low": math.nan, "tier": 1, "defense": "even"}) == {
        "loss": None, "low": None, "tier": 1, "defense": "even",
    }  # fmt: skip


SENTENCES = next(track for track in TRACKS if track.key == "T")


def on_sentences(rows: Rows) -> Rows:
    """The same attacks with a part of the tokens in the place of dB, by attackers and guesses of sentences."""
    names = {"mean_image": "frequent_words", "grey": "random_sentence", "ig": "tag", "dlg": "dager"}
    return [
        each | {"metric": "token_recovery", "value": each["value"] / 100, "attack": names[each["attack"]]}
        if each["metric"] == "psnr"
        else each | {"attack": names.get(each["attack"])}
        for each in rows
    ]


def test_a_track_whose_leakage_is_no_psnr() -> None:
    """Parts of tokens count in percent, and everything else is as of images."""
    found = tables(on_sentences(defended()), on_sentences(BARE), SENTENCES)
    (sentences,) = boards(found)
    images = board(defended())
    assert sentences.track is SENTENCES and sentences.guess.attack == "frequent_words"
    for mine, theirs in zip(sentences.rows, images.rows, strict=True):
        assert (mine.entry.label, mine.tier) == (theirs.entry.label, theirs.tier)
        assert mine.entry.shown and theirs.entry.shown and mine.entry.shown.leakage and theirs.entry.shown.leakage
        assert mine.entry.shown.leakage.mean.value == pytest.approx(theirs.entry.shown.leakage.mean.value)
    table = make("table01", found, paper=PAPER)
    assert r"Leakage (\%)" in table.attrs["latex"] and "left out" in set(make("table03", found, paper=PAPER)["tier"])
    for name in ("fig01", "fig02", "fig03", "fig04", "fig05"):
        drawing = draw(name, found, paper=PAPER)
        said = " ".join(ax.get_xlabel() + ax.get_ylabel() for ax in drawing.figure.axes)
        assert "dB" not in said and ("%" in said or name == "fig05")
    lines = draw("fig01", found, paper=PAPER).numbers
    assert {*PLACE, "leakage", "unit", "strongest"} <= set(lines)  # what the published history and its page read
    assert set(lines["unit"]) == {"%"} and set(make("fig01", tables(defended()), paper=PAPER).numbers["unit"]) == {"dB"}


def test_what_is_left_out_of_sentences_does_not_apply() -> None:
    """Of every defense that is not in the track's grid a reason is shown, and no defense is in both."""
    grid = read_yaml(Path(str(files("leakbench.leaderboard") / "grid.yaml")))
    entries = set(grid["experiments"]["text"]["defenses"])
    assert entries | set(SENTENCES.without) == set(grid["variants"]["defenses"])
    assert not entries & set(SENTENCES.without)
