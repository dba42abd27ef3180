"""What the paper's artifacts on text show follows from tidy tables and kept sentences, by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.papers.drawn import Tables, draw, interval, make, per_seed, series, smoke_tables
from tests.report.synthetic import ROOT, tidy_tables

from leakbench.data.text import pack
from leakbench.papers.cdpa.common import printed
from leakbench.papers.cdpa.text_attacked import DEFENSES, ROUGES, chosen_lamp
from leakbench.planning.project import Project

PAPER = "cdpa"
LEARNT = {
    "none": "none",
    "grad-drop-text": "GradDrop",
    "dp": "LDP, of the gradient",
    "dp-delta": "LDP",
    "cdpa-text-delta": "CDPA",
}
VICTIMS = ["[CLS] the cat sees us. [SEP]", "[CLS] who do you think that will question seamus first? [SEP]"]


@pytest.fixture
def tables() -> Tables:
    tables = smoke_tables(PAPER)
    frame = tables["text_attacks"]
    tables["text_attacks"] = ahead(frame, "lamp-l1l2")
    # The smoke scale trains with one reading of LDP.
    learnt = tables["text_utility"]
    tables["text_utility"] = pd.concat([learnt, learnt[learnt["defense"] == "dp-delta"].assign(defense="dp")])
    return tables


def ahead(frame: pd.DataFrame, lamp: str) -> pd.DataFrame:
    """A table in which this LAMP finds more of undefended sentences than the other, and less of all others."""
    mine = (frame["attack"] == lamp) & frame["metric"].str.startswith("rouge")
    return frame.assign(value=frame["value"] + np.where(mine, np.where(frame["defense"] == "none", 9.0, -30.0), 0.0))


class Sentences:
    """Stands for the records: what an attack finds says which attack and defense it was."""

    def __init__(self, victims: list[str], found: Mapping[tuple[str, str], str] | None = None) -> None:
        self.victims, self.found = victims, found or {}

    def tensors(self, experiment: str, defense: str, work: str, seed: int = 0) -> dict[str, torch.Tensor]:
        assert (experiment, seed) == ("text_attacks", 0)
        words = self.found.get((defense, work), f"[CLS] by {work} from {defense} [SEP]")
        found = [[f"{words} of {place}"] for place in range(len(self.victims))]
        return {
            "seed0/victims": pack([[victim] for victim in self.victims]),
            "seed0/reconstructions": pack([found]),
        }


def numbers_of(cell: str) -> float:
    return float(cell.split(" ")[0])


class TestScores:
    def test_beside_the_paper(self, tables: Tables) -> None:
        frame = tables["text_attacks"]
        shown = make("table05", tables, Sentences(VICTIMS), paper=PAPER).set_index(["attack", "defense"])
        theirs = printed("table05").set_index(["attack", "defense"])
        labels = {"DLG": ("DLG", "dlg-text"), "TAG": ("TAG", "tag"), "LAMP (L1 + L2)": ("LAMP", "lamp-l1l2")}
        for name, (paper, attack) in labels.items():
            for label, defense in DEFENSES.items():
                row = shown.loc[name, defense]
                known = (paper, defense) in theirs.index
                for metric, words in ROUGES.items():
                    stated = f"{float(theirs.loc[(paper, defense), metric]):g}" if known else "–"  # type: ignore[arg-type]
                    assert row[f"{words}, paper"] == stated
                    for column, suffix in (("words", ""), ("as printed", "_with_special")):
                        values = per_seed(frame, metric=metric + suffix, attack=attack, defense=label)
                        expected = math.fsum(values) / len(values)
                        assert numbers_of(row[f"{words}, {column}"]) == pytest.approx(expected, rel=5e-3)

    def test_the_other_lamp_has_no_printed_numbers(self, tables: Tables) -> None:
        assert chosen_lamp(tables["text_attacks"]) == "lamp-l1l2"
        shown = make("table05", tables, Sentences(VICTIMS), paper=PAPER).set_index("attack")
        assert set(shown.loc["LAMP (cosine)", "R-1, paper"]) == {"–"}
        tables["text_attacks"] = ahead(ahead(tables["text_attacks"], "lamp-cos"), "lamp-cos")
        shown = make("table05", tables, Sentences(VICTIMS), paper=PAPER).set_index(["attack", "defense"])
        assert shown.loc[("LAMP (cosine)", "CDPA"), "R-1, paper"] == "19.78"

    def test_the_floor(self, tables: Tables) -> None:
        """Six and eleven words with the special ones: 4 of 12, and 4 of 22."""
        shown = make("table05", tables, Sentences(VICTIMS), paper=PAPER).set_index("attack")
        floor = shown.loc["no word in common (floor)"]
        assert numbers_of(floor["R-1, as printed"]) == pytest.approx(100 * (4 / 12 + 4 / 22) / 2, abs=0.05)
        assert (floor["R-2, as printed"], floor["R-1, words"]) == ("0", "0")

    def test_attackers_who_see_nothing(self, tables: Tables) -> None:
        shown = make("table05", tables, Sentences(VICTIMS), paper=PAPER).set_index("attack")
        values = per_seed(tables["text_attacks"], metric="rougeL", attack="frequent_words")
        assert numbers_of(shown.loc["frequent words", "R-L, words"]) == pytest.approx(np.mean(values), rel=5e-3)

    def test_void_numbers_say_so(self, tables: Tables) -> None:
        frame = tables["text_attacks"]
        frame.loc[frame["attack"] == "dlg-text", "void"] = True
        shown = make("table05", tables, Sentences(VICTIMS), paper=PAPER).set_index(["attack", "defense"])
        assert "void" in shown.loc[("DLG", "CDPA"), "R-1, words"]
        assert "void" not in shown.loc[("TAG", "CDPA"), "R-1, words"]


class TestOneSentence:
    def test_the_papers_where_it_is_attacked(self, tables: Tables) -> None:
        found = {("dp", "tag"): "[CLS] who will question us first [SEP]"}
        shown = make("table06", tables, Sentences(VICTIMS, found), paper=PAPER).set_index(["attack", "defense"])
        assert shown.loc[("truth", "–"), "ours"] == shown.loc[("truth", "–"), "paper"] == VICTIMS[1]
        row = shown.loc[("TAG", "DP")]
        assert row["ours"] == found["dp", "tag"] + " of 1"
        assert row["paper"].startswith("[CLS] just? someone seamustor")
        # who, will, question and first: 4 of 7 words, and of the truth's 9.
        assert numbers_of(row["R-1, ours"]) == pytest.approx(200 * 4 / 16, rel=5e-3)
        assert shown.loc[("LAMP (L1 + L2)", "GradDrop"), "R-1, paper"] == f"{200 * 8 / 18:.3g}"
        assert shown.loc[("LAMP (L1 + L2)", "CDPA"), "R-1, paper"] == "0"
        assert shown.loc[("LAMP (cosine)", "CDPA"), "paper"] == "–"
        assert shown.loc[("DLG", "random mask"), "ours"] == "[CLS] by dlg-text from random-mask [SEP] of 1"

    def test_else_the_first(self, tables: Tables) -> None:
        shown = make("table06", tables, Sentences(VICTIMS[:1]), paper=PAPER)
        assert shown.loc[0, "ours"] == VICTIMS[0]
        assert shown["ours"].iloc[-1].endswith("of 0")

    def test_void_numbers_say_so(self, tables: Tables) -> None:
        frame = tables["text_attacks"]
        frame.loc[frame["attack"] == "tag", "void"] = True
        shown = make("table06", tables, Sentences(VICTIMS), paper=PAPER).set_index(["attack", "defense"])
        assert "void" in shown.loc[("TAG", "none"), "R-1, ours"]
        assert "void" not in shown.loc[("DLG", "none"), "R-1, ours"]


class TestCurves:
    def test_means_and_intervals_of_all_defenses(self, tables: Tables) -> None:
        drawing = draw("fig11", tables, paper=PAPER)
        numbers, frame = drawing.numbers, tables["text_utility"]
        for (dataset, model), here in numbers.groupby(["dataset", "model"]):
            assert here["series"].drop_duplicates().tolist() == [
                "none",
                "GradDrop",
                "LDP",
                "LDP, of the gradient",
                "CDPA",
            ]
            for label, name in LEARNT.items():
                cell = {"dataset": dataset, "model": model, "defense": label}
                row = series(here, name, step=3).iloc[0]
                expected = interval(per_seed(frame, metric="mcc_curve", index=2, **cell))
                assert (row["mean"], row["low"], row["high"]) == pytest.approx(expected)

    def test_a_panel_per_cell(self, tables: Tables) -> None:
        """The smoke scale has one data set; another makes four panels, of which three are filled."""
        frame = tables["text_utility"]
        other = frame[frame["model"] == frame["model"].iloc[0]].assign(dataset="other")
        tables["text_utility"] = pd.concat([frame, other])
        axes = draw("fig11", tables, paper=PAPER).figure.axes
        assert len(axes) == 4
        assert [ax.get_visible() for ax in axes] == [True, True, True, False]

    def test_a_defense_that_always_diverges_is_named(self, tables: Tables) -> None:
        frame = tables["text_utility"]
        frame.loc[(frame["defense"] == "dp-delta"), "value"] = math.nan
        drawing = draw("fig11", tables, paper=PAPER)
        assert "LDP (diverged)" in [text.get_text() for text in drawing.figure.legends[0].get_texts()]

    def test_the_epochs_that_the_paper_names(self, tables: Tables) -> None:
        frame = tables["text_utility"]
        curves = frame[frame["metric"] == "mcc_curve"]
        longer = pd.concat([curves.assign(index=curves["index"] + 12 * turn) for turn in range(3)])
        tables["text_utility"] = pd.concat([frame[frame["metric"] != "mcc_curve"], longer[longer["index"] < 30]])
        shown = make("tableS4", tables, paper=PAPER)
        assert list(shown.columns) == ["data set", "model", "defense", "epoch 20", "epoch 30", "best validation"]
        first = shown[shown["defense"] == "CDPA"].iloc[0]
        cell = {"dataset": first["data set"], "model": first["model"], "defense": "cdpa-text-delta"}
        for column, values in (
            ("epoch 20", per_seed(curves, index=7, **cell)),
            ("epoch 30", per_seed(curves, index=5, **cell)),
            ("best validation", per_seed(frame, metric="mcc_at_best", **cell)),
        ):
            assert numbers_of(first[column]) == pytest.approx(np.mean(values), rel=5e-3)
        assert len(draw("fig11", tables, paper=PAPER).figure.axes[0].get_lines()) == len(LEARNT) + 1  # epoch 20

    def test_shorter_training_has_its_last_epoch(self, tables: Tables) -> None:
        shown = make("tableS4", tables, paper=PAPER)
        assert list(shown.columns) == ["data set", "model", "defense", "epoch 12", "best validation"]


def test_attackers_who_know(tables: Tables) -> None:
    numbers = draw("figS4", tables, paper=PAPER).numbers
    plain, adapted = tables["text_attacks"], tables["text_adaptive"]

    def shown(attack: str, defense: str, attacker: str) -> Any:
        chosen = (numbers["attack"] == attack) & (numbers["defense"] == defense) & (numbers["attacker"] == attacker)
        return numbers[chosen].iloc[0]["mean"]

    words = {"cleared": "masked bits cleared", "robust": "robust matching", "averaged": "several messages"}
    for attack, label in (("TAG", "tag"), ("LAMP (cosine)", "lamp-cos")):
        for way, name in words.items():
            values = per_seed(adapted, metric="rouge1", attack=f"{label}-{way}", defense="cdpa-text")
            assert shown(attack, "CDPA", name) == pytest.approx(np.mean(values))
        naive, bare = (
            per_seed(plain, metric="rouge1", attack=label, defense=defense) for defense in ("cdpa-text", "none")
        )
        assert shown(attack, "CDPA", "as it is") == pytest.approx(np.mean(naive))
        assert shown(attack, "no defense", "as it is") == pytest.approx(np.mean(bare))
        guessed = per_seed(plain, metric="rouge1", attack="random_sentence")
        assert shown(attack, "none seen", "random sentence") == pytest.approx(np.mean(guessed))


def test_void_attacks_are_hollow(tables: Tables) -> None:
    assert not draw("figS4", tables, paper=PAPER).shows_void
    frame = tables["text_attacks"]
    frame.loc[frame["attack"] == "tag", "void"] = True
    drawing = draw("figS4", tables, paper=PAPER)
    assert drawing.shows_void
    ticks = [[label.get_text() for label in ax.get_yticklabels()] for ax in drawing.figure.axes[:2]]
    assert [["void" in words for words in of_attack] for of_attack in ticks] == [
        [True, False, False, False],
        [False] * 4,
    ]


class TestAdapters:
    """On tables of the scale ``laptop``: that of ``smoke`` leaves these experiments out."""

    def test_ranks_beside_the_whole_model(self) -> None:
        read = ("text_adapters", "text_adapters_trained", "text_attacks", "text_exact")
        tables = tidy_tables(Project(ROOT, {"papers": [PAPER]}).plan("laptop"), PAPER, only=read)
        lost = tables["text_adapters"]
        unread = (lost["model"] == "bert-lora-8") & (lost["attack"] == "dager")
        lost.loc[unread, "value"] = math.nan
        shown = make("tableS7", tables, paper=PAPER).set_index(["travels", "rank"])
        assert list(shown.columns) == ["DAGER", "LAMP (cosine)", "TAG", "DLG", "frequent words"]
        states = {"text_adapters": "adapters at their start", "text_adapters_trained": "adapters after an epoch"}
        assert list(shown.index) == [
            ("all parameters", "–"),
            *((state, rank) for state in states.values() for rank in ("8", "16", "32")),
        ]
        for experiment, state in states.items():
            for rank in ("8", "16", "32"):
                for attack, column in {"dager": "DAGER", "lamp-cos": "LAMP (cosine)", "dlg-text": "DLG"}.items():
                    rows = tables[experiment]
                    rows = rows[(rows["model"] == f"bert-lora-{rank}") & (rows["attack"] == attack)]
                    mean = rows[rows["metric"] == "token_accuracy"].groupby("seed")["value"].mean().mean()
                    found = shown.loc[(state, rank), column]
                    assert found == "–" if math.isnan(mean) else numbers_of(found) == pytest.approx(mean, rel=1e-2)
        assert shown.loc[("adapters at their start", "8"), "DAGER"] == "–"
        for experiment, attack, column in (("text_exact", "dager", "DAGER"), ("text_attacks", "tag", "TAG")):
            rows = tables[experiment]
            rows = rows[(rows["defense"] == "none") & (rows["attack"] == attack)]
            mean = rows[rows["metric"] == "token_accuracy"].groupby("seed")["value"].mean().mean()
            assert numbers_of(shown.loc[("all parameters", "–"), column]) == pytest.approx(mean, rel=1e-2)


class TestExact:
    def test_beside_the_search(self, tables: Tables) -> None:
        shown = make("tableS6", tables, paper=PAPER).set_index("defense")
        assert list(shown.index) == ["none", "CDPA, last layer"]
        exact = tables["text_exact"]
        for label, name in {"none": "none", "cdpa-text-last": "CDPA, last layer"}.items():
            for column, metric in {"tokens": "token_accuracy", "R-1": "rouge1", "R-L": "rougeL"}.items():
                rows = exact[(exact["defense"] == label) & (exact["metric"] == metric) & (exact["attack"] == "dager")]
                mean = rows.groupby("seed")["value"].mean().mean()
                assert numbers_of(shown.loc[name, column]) == pytest.approx(mean, rel=1e-2)
        assert shown.loc["CDPA, last layer", "R-1, TAG"] == "–" != shown.loc["none", "R-1, TAG"]
