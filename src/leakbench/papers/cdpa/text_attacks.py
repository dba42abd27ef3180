"""Tables V and VI, and the supplement S4: how much of sentences attacks recover."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from leakbench.data.text import unpack
from leakbench.lazy import pd
from leakbench.metrics.assignment import reorder
from leakbench.metrics.text import rouge, rouge_floor, without_special
from leakbench.papers.cdpa.attacked import reference_rows, shown_defenses
from leakbench.papers.cdpa.attacks import draw_attackers
from leakbench.papers.cdpa.common import figure, printed, table
from leakbench.papers.cdpa.tables_attacks import ABOUT_CDPA, cell, informed_rows
from leakbench.papers.cdpa.text_attacked import (
    ATTACKED,
    CHOICE,
    DEFENSES,
    DLG,
    INFORMED,
    LAMPS,
    ROUGES,
    SCORING,
    TAG,
    as_printed,
    shown_attacks,
)
from leakbench.report.artifacts import Tables
from leakbench.report.gate_verdicts import VOID
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing
from leakbench.report.record_tensors import RecordTensors
from leakbench.report.style import SENTENCE_REFERENCES, panels
from leakbench.report.wording import INTERVALS, NONE

EXPLAINED = (
    "Not in the paper: 'random mask' hides a random fifth of the coordinates, as the public code of LAMP does, where "
    "GradDrop drops the smallest fifth of every tensor; 'CDPA, as released' reads integers ten times too large, as the "
    "paper's public code does on text"
)


@table(
    5,
    title="DLG, TAG and LAMP against every defense",
    caption=f"Mean over sentences of what attacks find of single sentences; labels, lengths and special tokens are "
    f"known. {SCORING} {CHOICE} Only beside it stand the paper's numbers of LAMP. {EXPLAINED}. The last rows "
    "are attackers that never see an update, and the floor: the mean score of reconstructions that share no word with "
    f"their sentence and have as many. {INTERVALS}",
    experiments=(reads(ATTACKED, defenses=DEFENSES, attacks=(DLG, TAG, *LAMPS, *SENTENCE_REFERENCES)),),
    tensors=(ATTACKED,),
)
def table05(tables: Tables, stored: RecordTensors) -> pd.DataFrame:
    """A row per attack and defense, one per reference attacker, and the floor."""
    frame, theirs = tables[ATTACKED], printed("table05").set_index(["attack", "defense"])
    rows = []
    for attack, (name, paper) in shown_attacks(frame).items():
        for label, defense in shown_defenses(frame, DEFENSES).items():
            row = {"attack": name, "defense": defense}
            for metric, words in ROUGES.items():
                stated = theirs[metric].to_dict().get((paper, defense))
                row[f"{words}, paper"] = NONE if stated is None else f"{stated:g}"
                row[f"{words}, as printed"] = cell(frame, as_printed(metric), defense=label, attack=attack)
                row[f"{words}, words"] = cell(frame, metric, defense=label, attack=attack)
            rows.append(row)
    for attack, name in reference_rows(frame).items():
        row = {"attack": name, "defense": NONE}
        for metric, words in ROUGES.items():
            row[f"{words}, as printed"] = cell(frame, as_printed(metric), mechanism="none", attack=attack)
            row[f"{words}, words"] = cell(frame, metric, mechanism="none", attack=attack)
        rows.append(row)
    rows.append({"attack": "no word in common (floor)", "defense": NONE} | _floors(frame, stored))
    return pd.DataFrame(rows, columns=list(rows[0])).fillna(NONE)


def _floors(frame: pd.DataFrame, stored: RecordTensors) -> dict[str, str]:
    """Scores of reconstructions as long as the victims that share only [CLS] and [SEP] with them."""
    victims = _flat(unpack(stored.tensors(ATTACKED, "none", next(iter(shown_attacks(frame))))["seed0/victims"]))
    lengths = [len(re.findall("[a-z0-9]+", sentence.lower())) for sentence in victims]
    floor = f"{sum(rouge_floor(length, length) for length in lengths) / len(lengths):.3g}"
    floors = {"R-1": floor, "R-2": "0", "R-L": floor}
    return {f"{words}, as printed": value for words, value in floors.items()} | {
        f"{words}, words": "0" for words in floors
    }


def _flat(nested: Sequence[Any]) -> list[str]:
    """Sentences out of batches of sentences."""
    return [sentence for batch in nested for sentence in batch]


@table(
    6,
    title="Reconstructions of one sentence",
    caption="What every attack makes of one sentence of the first seed, as decoded, beside what the paper prints of "
    "its own, under the same defense. The sentence is the paper's where that is among those attacked, else the first "
    f"of them. {CHOICE} R-1: ROUGE-1 of the words, without special tokens, of both. {EXPLAINED}. The paper prints the "
    "same string for GradDrop and for DP under DLG.",
    experiments=(reads(ATTACKED, defenses=DEFENSES, attacks=(DLG, TAG, *LAMPS)),),
    tensors=(ATTACKED,),
)
def table06(tables: Tables, stored: RecordTensors) -> pd.DataFrame:
    """The sentence, then a row per attack and defense."""
    frame, theirs = tables[ATTACKED], printed("table06").set_index(["attack", "defense"])["sentence"].to_dict()
    truth: str | None = None
    of_paper, rows, place = theirs["truth", "none"], [], 0
    for attack, (name, paper) in shown_attacks(frame).items():
        for label, defense in shown_defenses(frame, DEFENSES).items():
            victims, recovered = _sentences(stored, label, attack)
            if truth is None:
                place = next((row for row, victim in enumerate(victims) if _same(victim, of_paper)), 0)
                truth = victims[place]
                rows.append({"attack": "truth", "defense": NONE, "paper": of_paper, "ours": truth})
            stated = theirs.get((paper, defense)) if paper else None
            rows.append({"attack": name, "defense": defense, "paper": stated or NONE, "ours": recovered[place]})
            rows[-1] |= {"R-1, paper": _score(stated, of_paper), "R-1, ours": _score(recovered[place], victims[place])}
            if frame.loc[(frame["attack"] == attack) & (frame["defense"] == label), "void"].any():
                rows[-1]["R-1, ours"] += f" ({VOID})"
    return pd.DataFrame(rows).fillna(NONE)


def _sentences(stored: RecordTensors, defense: str, attack: str) -> tuple[list[str], list[str]]:
    """The sentences of the first seed, and their reconstructions in the first setting."""
    tensors = stored.tensors(ATTACKED, defense, attack)
    recovered = tensors["seed0/reconstructions"][0]
    if "seed0/assignment" in tensors:
        recovered = reorder(recovered, tensors["seed0/assignment"][0])
    return _flat(unpack(tensors["seed0/victims"])), _flat(unpack(recovered))


def _same(first: str, second: str) -> bool:
    """Whether two sentences have the same words."""
    a, b = (re.findall("[a-z0-9]+", without_special(sentence).lower()) for sentence in (first, second))
    return a == b


def _score(sentence: str | None, truth: str) -> str:
    if sentence is None:
        return NONE
    return f"{float(rouge([without_special(sentence)], [without_special(truth)])['rouge1']):.3g}"


ADAPTIVE: Mapping[str, Mapping[str, str]] = {
    "TAG": {
        TAG: "as it is",
        "tag-cleared": "masked bits cleared",
        "tag-robust": "robust matching",
        "tag-averaged": "several messages",
    },
    LAMPS["lamp-cos"]: {
        "lamp-cos": "as it is",
        "lamp-cos-cleared": "masked bits cleared",
        "lamp-cos-robust": "robust matching",
        "lamp-cos-averaged": "several messages",
    },
}
"""Attack -> labels of attackers, and what those who know CDPA do first."""
ADAPTED = {attack: informed for attack, *informed in ADAPTIVE.values()}
"""Labels of attacks -> those of the attackers who know CDPA."""
PROTECTED = "cdpa-text"
LOOKED_AT = {"none": "no defense", PROTECTED: "CDPA"}


@figure(
    "S4",
    title="Attackers of text who know CDPA",
    caption="The paper argues that nobody can undo the flipped bits and runs no such attacker. 'Masked bits cleared' "
    "sets them to zero in every received integer, 'robust matching' finds out which coordinates stay far off, 'several "
    "messages' takes the median of messages of the same client about the same sentence. Mean ROUGE-1 without special "
    "tokens under CDPA at p = 0.999 on all layers; black: the undefended gradient; grey lines: attackers that never "
    f"see an update. {INTERVALS}",
    experiments=(
        reads(ATTACKED, defenses=LOOKED_AT, attacks=(*ADAPTED, *SENTENCE_REFERENCES)),
        reads(INFORMED, defenses=LOOKED_AT, attacks=[label for labels in ADAPTED.values() for label in labels]),
    ),
    leaves_out=ABOUT_CDPA,
)
def fig_s4(tables: Tables) -> Drawing:
    """One panel per attack: a row per attacker."""
    drawn, axes = panels(len(ADAPTIVE), width=4.2, height=2.4)
    numbers: list[dict[str, object]] = []
    looks = {"no defense": ("none", 0.0, True), "CDPA": ("cdpa", 0.0, True)}
    for ax, (attack, attackers) in zip(axes, ADAPTIVE.items(), strict=True):
        rows = informed_rows(tables[ATTACKED], tables[INFORMED], "rouge1", attackers, LOOKED_AT)
        numbers += draw_attackers(ax, rows, attack, attackers.values(), looks)
        ax.set(xlabel="ROUGE-1 of the words (%)", xlim=(-3, 103))
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return Drawing(drawn, pd.DataFrame(numbers))
