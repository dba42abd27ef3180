"""The claims about CDPA on text, on tables that are made so that each verdict is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
import pytest
from tests.papers.verdicts import Case, Tables, judge
from tests.report.tables import cube, rows, table

from leakbench.papers.cdpa.text_attacked import DEFENSES, as_printed

judged = partial(judge, "cdpa")

CELL = ("cola-short", "bert")
TRAINED = (("cola", "bert"), ("rotten_tomatoes", "bert"), ("cola", "distilbert"))
UNDEFENDED = {"dlg-text": 50.0, "tag": 70.0, "lamp-cos": 75.0, "lamp-l1l2": 65.0}
LOSSES = {
    "none": 0.0,
    "grad-drop-text": 5.0,
    "random-mask": -5.0,
    "dp": -30.0,
    "cdpa-text": -np.inf,
    "cdpa-text-released": -np.inf,
}
"""What each defense adds to the undefended score; minus infinity makes it next to nothing."""


def scored(defense: str, attack: str, words: float, pairs: float, *, void: bool = False) -> pd.DataFrame:
    """ROUGE of the words, and as printed, where special tokens count for 20 points."""
    metrics = {"rouge1": words, "rougeL": words, "rouge2": pairs}
    metrics |= {as_printed(name): 20 * (name != "rouge2") + 0.8 * value for name, value in metrics.items()}
    metrics["distortion"] = {"dp": 5e-3, "none": 0.0}.get(defense, 4e-4)
    spread = {"distortion": 1e-6}
    return table(
        *(
            rows(
                defense,
                name,
                cube([mean], units=3, spread=spread.get(name, 1e-3)),
                attack=attack,
                cell=CELL,
                void=void,
            )
            for name, mean in metrics.items()
        )
    )


def found(
    changes: Mapping[tuple[str, str], float] | None = None, pairs: float = 0.05, void: Sequence[str] = ()
) -> Tables:
    """Scores as in Table V, roughly; ``changes`` by defense and attack."""
    parts = [scored("none", "frequent_words", 12.0, 0.0), scored("none", "random_sentence", 8.0, 0.0)]
    for attack, undefended in UNDEFENDED.items():
        for defense in DEFENSES:
            score = max(undefended + LOSSES[defense], 0.04 if defense == "cdpa-text-released" else 0.1)
            score = (changes or {}).get((defense, attack), score)
            two = pairs if defense == "cdpa-text" else 10.0
            parts.append(scored(defense, attack, score, two, void=attack in void))
    return {"text_attacks": table(*parts)}


def everywhere(defense: str, score: float) -> Tables:
    """A defense's score under every attack."""
    return found({(defense, attack): score for attack in UNDEFENDED})


def informed(scores: Mapping[str, float]) -> Tables:
    """Attackers who know CDPA, by what they do, around both attacks."""
    parts = [
        scored(defense, f"{attack}-{way}", score if defense == "cdpa-text" else 70.0, 1.0)
        for attack in ("tag", "lamp-cos")
        for way, score in scores.items()
        for defense in ("none", "cdpa-text")
    ]
    return found() | {"text_adaptive": table(*parts)}


def learnt(rounds: int = 30, **last: float) -> Tables:
    """Matthews correlation that climbs to 0.6, or ``last`` by the defense's mechanism, in every cell."""
    ends = {"none": 0.6, "grad-drop-text": 0.58, "dp": 0.5, "dp-delta": 0.2, "cdpa-text-delta": 0.59}
    ends |= {name.replace("_", "-"): value for name, value in last.items()}
    climb = np.minimum(np.arange(1, rounds + 1) / min(rounds, 20), 1)
    parts = [
        rows(defense, "loss_curve", cube((end * climb).tolist()), cell=cell).assign(metric="mcc_curve", axis="round")
        for cell in TRAINED
        for defense, end in ends.items()
    ]
    return {"text_utility": table(*parts)}


CASES: dict[str, Case] = {
    "E18a": (found, lambda: found({("cdpa-text", "dlg-text"): 25.0})),
    "E18b": (found, lambda: found({("dp", "tag"): 0.0})),
    "E18c": (found, lambda: found({("cdpa-text", "lamp-cos"): 85.0})),
    "E19a": (found, lambda: found(pairs=3.0)),
    "E19b": (found, lambda: found(pairs=3.0)),
    "E19c": (found, lambda: found(pairs=3.0)),
    "E20a": (found, lambda: everywhere("cdpa-text", 5.0)),
    "E20b": (found, lambda: everywhere("cdpa-text", 5.0)),
    "E20c": (found, lambda: everywhere("cdpa-text", 5.0)),
    "E21a": (learnt, lambda: learnt(cdpa_text_delta=0.5)),
    "E21b": (learnt, lambda: learnt(dp_delta=0.595)),
    "E22a": (found, lambda: found({("none", "dlg-text"): 90.0})),
    "E22b": (found, lambda: found({("none", "tag"): 90.0})),
    "E23a": (found, lambda: everywhere("grad-drop-text", 60.0)),
    "E23b": (found, lambda: everywhere("grad-drop-text", 60.0)),
    "X7a": (found, lambda: everywhere("none", 40.0)),
    "X7b": (found, lambda: everywhere("none", 40.0)),
    "X8a": (lambda: informed({"cleared": 66.0, "robust": 10.0}), lambda: informed({"cleared": 50.0, "robust": 10.0})),
    "X8b": (lambda: informed({"averaged": 70.0}), lambda: informed({"averaged": 60.0})),
    "X9a": (found, lambda: everywhere("random-mask", 90.0)),
    "X9b": (found, lambda: everywhere("random-mask", 90.0)),
    "X10a": (found, lambda: everywhere("cdpa-text", 30.0)),
    "X10b": (found, lambda: everywhere("cdpa-text", 30.0)),
    "X11": (found, lambda: {"text_attacks": swapped(found()["text_attacks"])}),
    "X12": (lambda: everywhere("cdpa-text", 30.0), lambda: everywhere("cdpa-text-released", 30.0)),
}
OF_STRENGTH = ("E22a", "E22b", "X7a", "X7b", "X11")
"""What no gate keeps from being judged."""


def swapped(frame: pd.DataFrame) -> pd.DataFrame:
    """DP and CDPA under each other's label."""
    return frame.assign(defense=frame["defense"].replace({"dp": "cdpa-text", "cdpa-text": "dp"}))


@pytest.mark.parametrize("key", [key for key in CASES if not key.startswith("E21")])
def test_gates_keep_claims_of_defenses_from_being_judged(key: str) -> None:
    for case, verdict in zip(CASES[key], ("reproduced", "contradicted"), strict=True):
        tables = {name: frame.assign(void=True) for name, frame in case().items()}
        finding = judged(key, tables)
        assert finding.verdict == (verdict if key in OF_STRENGTH else "inconclusive")
        assert ("missed its gate" in finding.note) is (key not in OF_STRENGTH)


class TestLamp:
    def test_the_one_that_finds_more_is_judged(self) -> None:
        """The other form of LAMP finds all of CDPA's sentences, but less of the undefended ones."""
        changes = {("none", "lamp-l1l2"): 80.0, ("cdpa-text", "lamp-cos"): 74.0}
        assert judged("E18c", found({("cdpa-text", "lamp-cos"): 74.0})).verdict == "contradicted"
        assert judged("E18c", found(changes | {("grad-drop-text", "lamp-l1l2"): 70.0})).verdict == "reproduced"

    def test_the_other_is_not_asked_for_its_gate(self) -> None:
        assert judged("E18c", found(void=["lamp-l1l2"])).verdict == "reproduced"
        assert judged("E18c", found(void=["lamp-cos"])).verdict == "inconclusive"

    def test_one_of_them_is_enough(self) -> None:
        frame = found()["text_attacks"]
        finding = judged("X7b", {"text_attacks": frame[frame["attack"] != "lamp-cos"]})
        assert finding.verdict == "reproduced" and finding.effect == pytest.approx(65, abs=0.01)


def test_a_weak_attack_leaves_the_others_to_be_judged() -> None:
    tables = found(void=["dlg-text"])
    assert [judged(key, tables).verdict for key in ("E18a", "E18b", "E18c")] == [
        "inconclusive",
        "reproduced",
        "reproduced",
    ]


class TestEpochs:
    def test_both_are_judged(self) -> None:
        """At epoch 20 CDPA is where it should be, later it is not."""
        tables = learnt()
        frame = tables["text_utility"]
        late = (frame["defense"] == "cdpa-text-delta") & (frame["index"] >= 25)
        frame.loc[late, "value"] = 0.3
        finding = judged("E21a", tables)
        assert finding.verdict == "contradicted" and "epoch 30" in finding.note and "epoch 20" not in finding.note

    def test_short_training_is_judged_at_its_end(self) -> None:
        finding = judged("E21a", learnt(rounds=6))
        assert finding.verdict == "reproduced" and "epoch 6" in finding.meaning

    def test_what_nobody_learns_is_not_judged(self) -> None:
        """Of CoLA alone nothing is learnt; there CDPA would be far behind."""
        tables = learnt()
        frame = tables["text_utility"]
        cola = frame["dataset"] == "cola"
        frame.loc[cola, "value"] = 0.05
        frame.loc[cola & (frame["defense"] == "cdpa-text-delta"), "value"] = -0.5
        assert judged("E21a", tables).verdict == "reproduced"
        frame["value"] = 0.0
        finding = judged("E21a", tables)
        assert finding.verdict == "not run" and "no model has learnt anything" in finding.note

    def test_a_run_that_diverged_classifies_nothing(self) -> None:
        tables = learnt()
        frame = tables["text_utility"]
        frame.loc[(frame["defense"] == "cdpa-text-delta") & (frame["seed"] < 9), "value"] = np.nan
        finding = judged("E21a", tables)
        assert finding.verdict == "contradicted" and finding.effect == pytest.approx(0.25 * 0.59 - 0.6, abs=1e-3)


def test_attackers_are_named_with_what_they_miss() -> None:
    finding = judged("X8a", informed({"cleared": 66.0, "robust": 10.0}))
    assert finding.effect == pytest.approx(-4, abs=0.01)
    assert "tag-cleared -4.0, tag-robust -60.0" in finding.note


def test_sentences_are_averaged_over_their_batch() -> None:
    """Three clients with two sentences each: the bootstrap resamples clients."""
    frame = found()["text_attacks"]
    scores = frame[frame["metric"] != "distortion"]
    doubled = pd.concat(
        [scores.assign(index=2 * scores["index"] + place, value=scores["value"] + 4 * place) for place in (0, 1)]
    ).assign(axis="sentence")
    victims = frame[frame["metric"] == "distortion"].assign(metric="alignment")
    finding = judged("X7a", {"text_attacks": table(doubled, victims)})
    assert finding.effect == pytest.approx(72, abs=0.01) and "12 seeds x 3 batches" in finding.note
