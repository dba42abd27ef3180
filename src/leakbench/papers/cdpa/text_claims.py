"""Claims of the paper about text, and further ones, checked against our experiments.

Claims of Table V are judged as the paper scores, with the strings [CLS] and [SEP] in the sentences; claims about words
without them. Each attack has claims of its own, so that one that missed its gate leaves the others to be judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from leakbench.lazy import np
from leakbench.papers.cdpa import PAPER
from leakbench.papers.cdpa.further_claims import restored
from leakbench.papers.cdpa.text_attacked import ATTACKED, DLG, INFORMED, LAMPS, TAG, TRAINED, as_printed
from leakbench.papers.cdpa.text_utility import EPOCHS
from leakbench.report.claims import claim, each_cell
from leakbench.report.comparisons import difference, level
from leakbench.report.evidence import Evidence, NotRun, Series
from leakbench.report.findings import Finding, Part, decide
from leakbench.report.labels import Reads, reads

stated = partial(claim, PAPER)

CDPA, LEARNT = "cdpa-text", "cdpa-text-delta"
"""Labels of CDPA under attack, and in training."""
NOISY = "dp-delta"
"""Label of LDP in training."""
WAYS = ("cleared", "robust", "averaged")
"""Endings of the labels of attackers who know CDPA."""
COLUMNS = ("none", "grad-drop-text", "dp")
"""The columns of Table V, but for CDPA's."""
SMALL = 0.5
"""Points of ROUGE that count as zero: the paper prints 0.00."""
CLOSE = 0.05
"""Matthews correlation by which curves count as 'closely aligned'."""
RECOVERED = 60.0
"""Least ROUGE-1 of a sentence that counts as recovered."""
LEARNS = 0.1
"""Least Matthews correlation of undefended training at which a defense can be judged."""
RESTORED = 10.0
"""Points of ROUGE-1 that an informed attacker may miss of the undefended attack."""
POINTS = "points of ROUGE"


def _attacked(attack: str, *defenses: str, references: Sequence[str] = ()) -> Reads:
    """Defenses under an attack; for ``lamp``, also the undefended gradients, by which one of both is chosen."""
    if attack != "lamp":
        return reads(ATTACKED, defenses=defenses, attacks=(attack, *references))
    return reads(ATTACKED, defenses=dict.fromkeys(("none", *defenses)), attacks=(*LAMPS, *references))


def _judged_as(cell: str, one: Evidence, attack: str) -> tuple[str, str]:
    """Name of a part and label of the attack; ``lamp`` is the LAMP with the larger undefended mean of ROUGE-1.

    That is of the words; where they were not scored, as in the paper, it is of the sentence with its special tokens.

    Raises:
        NotRun: there is none.
    """
    if attack != "lamp":
        return cell, attack
    read = partial(one.aside().series_if_any, ATTACKED, defense="none")
    for metric in ("rouge1", as_printed("rouge1")):
        scored = {label: scores for label in LAMPS if (scores := read(metric, attack=label)) is not None}
        if scored:
            label = max(scored, key=lambda label: float(np.nanmean(scored[label].values)))
            return f"{LAMPS[label]}, {cell}", label
    raise NotRun(f"neither {' nor '.join(LAMPS)} was run on undefended gradients")


ORDERS = {"a": ("DLG", DLG), "b": ("TAG", TAG), "c": ("LAMP", "lamp")}
"""Letter of a claim -> the attack, and its label."""


class Read(NamedTuple):
    """Labels of a defense, and of an attack if it is not the claim's."""

    defense: str
    attack: str | None = None


each_attacked = each_cell(ATTACKED)


def _apart(
    cell: str, one: Evidence, *, attack: str, first: Read, second: Read, metric: str = "rouge1"
) -> Iterator[Part]:
    """A score of one defense, or of another attack on it, minus that of a second."""
    name, label = _judged_as(cell, one, attack)
    ours, theirs = (
        one.series(ATTACKED, metric, defense=read.defense, attack=read.attack or label) for read in (first, second)
    )
    yield difference(ours, theirs, name, POINTS)


def _smallest(cell: str, one: Evidence, *, attack: str) -> Iterator[Part]:
    """Every other column minus CDPA."""
    name, label = _judged_as(cell, one, attack)
    for metric in map(as_printed, ("rouge1", "rougeL")):
        read = partial(one.series, ATTACKED, metric, attack=label)
        ours = read(defense=CDPA)
        for other in COLUMNS:
            yield difference(read(defense=other), ours, f"{other}, {name}", POINTS)


def _nothing(cell: str, one: Evidence, *, metric: str, attack: str) -> Iterator[Part]:
    """Level of a score under CDPA."""
    name, label = _judged_as(cell, one, attack)
    yield level(one.series(ATTACKED, metric, defense=CDPA, attack=label), name, "%", at_most=SMALL)


for _letter, (_name, _label) in ORDERS.items():
    stated(
        f"E18{_letter}",
        f"Under {_name} the sentences found from CDPA have the smallest ROUGE-1 and ROUGE-L of all columns.",
        source="Table V",
        experiments=(_attacked(_label, CDPA, *COLUMNS),),
    )(each_attacked(partial(_smallest, attack=_label)))
for _letter, (_name, _label) in ORDERS.items():
    stated(
        f"E19{_letter}",
        f"Under {_name} the sentences found from CDPA have a ROUGE-2 of zero, to half a point.",
        source="Table V",
        experiments=(_attacked(_label, CDPA),),
    )(each_attacked(partial(_nothing, metric=as_printed("rouge2"), attack=_label)))
for _letter, (_name, _label) in ORDERS.items():
    stated(
        f"E20{_letter}",
        f"Under {_name} no word of the sentence is found from CDPA: ROUGE-1 of the words is zero, to half a point.",
        source="Table VI and section 6.2, 'minimal to no alignment'; as the paper scores, [CLS] and [SEP] are 20 %",
        experiments=(_attacked(_label, CDPA),),
    )(each_attacked(partial(_nothing, metric="rouge1", attack=_label)))


def _learnt(one: Evidence, defense: str) -> list[tuple[int, Series]]:
    """Matthews correlation after the epochs that the paper names, or the last; that of diverged runs zero."""
    curve = one.series(TRAINED, "mcc_curve", defense=defense)
    curve = dataclasses.replace(curve, values=np.nan_to_num(curve.values, nan=0.0))
    epochs = [epoch for epoch in EPOCHS if epoch - 1 in curve.points] or [int(curve.points[-1]) + 1]
    return [(epoch, curve.at([epoch - 1])) for epoch in epochs]


def _learning(evidence: Evidence) -> dict[str, Evidence]:
    """The data sets and models that are learnt without a defense, by name.

    Raises:
        NotRun: there are none.
    """
    cells = {
        cell: one
        for cell, one in evidence.cells(TRAINED).items()
        if max(float(scores.values.mean()) for _, scores in _learnt(one.aside(), "none")) >= LEARNS
    }
    if not cells:
        raise NotRun(f"no model has learnt anything: undefended, Matthews correlations are below {LEARNS}")
    return cells


def _ahead(evidence: Evidence, ahead: str, behind: str, at_least: float) -> Finding:
    """Matthews correlation of one defense minus that of another."""
    parts = []
    for cell, one in _learning(evidence).items():
        for (epoch, ours), (_, theirs) in zip(_learnt(one, ahead), _learnt(one, behind), strict=True):
            name = f"epoch {epoch}, against {behind}, {cell}"
            parts.append(difference(ours, theirs, name, "Matthews correlation", at_least=at_least))
    return decide(evidence, parts)


@stated(
    "E21a",
    "CDPA learns as well as no defense: its Matthews correlation is at most 0.05 lower, wherever anything is learnt.",
    source="Fig. 11, 'closely aligns'; the margin is ours",
    experiments=(reads(TRAINED, defenses=(LEARNT, "none")),),
    champion=LEARNT,
)
def e21a(evidence: Evidence) -> Finding:
    """CDPA minus no defense."""
    return _ahead(evidence, LEARNT, "none", -CLOSE)


@stated(
    "E21b",
    "LDP learns least: its Matthews correlation is the smallest of the four, wherever anything is learnt.",
    source="Fig. 11, 'underperforms across all experiments'",
    experiments=(reads(TRAINED, defenses=("none", "grad-drop-text", LEARNT, NOISY)),),
)
def e21b(evidence: Evidence) -> Finding:
    """The others minus LDP, whose noise is of the parameters' change."""
    parts = []
    for cell, one in _learning(evidence).items():
        noisy = _learnt(one, NOISY)
        for other in ("none", "grad-drop-text", LEARNT):
            for (epoch, theirs), (_, ours) in zip(_learnt(one, other), noisy, strict=True):
                parts.append(difference(theirs, ours, f"epoch {epoch}, {other}, {cell}", "Matthews correlation"))
    return decide(evidence, parts)


for _letter, (_name, _label) in {"a": ("DLG", DLG), "b": ("TAG", TAG)}.items():
    stated(
        f"E22{_letter}",
        f"LAMP finds more of undefended sentences than {_name}.",
        source="Table V",
        experiments=(_attacked("lamp", "none", references=[_label]),),
    )(
        each_cell(ATTACKED, gated=False)(
            partial(_apart, attack="lamp", first=Read("none"), second=Read("none", _label), metric=as_printed("rouge1"))
        )
    )


STRONG = dict(zip("ab", list(ORDERS.values())[1:], strict=True))
"""The attacks that find sentences: TAG and LAMP."""

for _letter, (_name, _label) in STRONG.items():
    stated(
        f"E23{_letter}",
        f"{_name} finds more of a sentence from GradDrop than without a defense.",
        source="Table V, 75.1 of 70.1 and 82.2 of 74.5, on which the paper does not comment",
        experiments=(_attacked(_label, "grad-drop-text", "none"),),
    )(
        each_attacked(
            partial(
                _apart, attack=_label, first=Read("grad-drop-text"), second=Read("none"), metric=as_printed("rouge1")
            )
        )
    )


def _recovers(cell: str, one: Evidence, *, attack: str) -> Iterator[Part]:
    """Level of the undefended score."""
    name, label = _judged_as(cell, one, attack)
    yield level(one.series(ATTACKED, "rouge1", defense="none", attack=label), name, "%", at_least=RECOVERED)


for _letter, (_name, _label) in STRONG.items():
    stated(
        f"X7{_letter}",
        f"{_name} finds undefended sentences: ROUGE-1 of the words is at least 60.",
        source="Not in the paper, which counts [CLS] and [SEP]; below that, defenses are not told apart",
        experiments=(_attacked(_label, "none"),),
    )(each_cell(ATTACKED, gated=False)(partial(_recovers, attack=_label)))


for _letter, _name, _label in (("a", "TAG", TAG), ("b", "LAMP (cosine)", "lamp-cos")):
    stated(
        f"X8{_letter}",
        f"Under {_name}, an attacker who clears the flipped bits, fits robustly or takes the median of several "
        "messages comes within 10 points of the ROUGE-1 that the best of them has of the undefended gradient.",
        source="Not in the paper, which argues that such attackers fail (section 6)",
        experiments=(
            _attacked(_label, "none"),
            reads(INFORMED, defenses=("none", CDPA), attacks=[f"{_label}-{way}" for way in WAYS]),
        ),
    )(
        each_cell(ATTACKED, INFORMED)(
            partial(
                restored,
                attack=_label,
                experiments=(ATTACKED, INFORMED),
                defense=CDPA,
                attackers=[f"{_label}-{way}" for way in WAYS],
                metric="rouge1",
                unit=POINTS,
                missed=RESTORED,
            )
        )
    )


for _letter, (_name, _label) in STRONG.items():
    stated(
        f"X9{_letter}",
        f"Under {_name}, dropping the smallest fifth of the coordinates hides less than masking a random fifth.",
        source="Not in the paper, whose GradDrop may be either",
        experiments=(_attacked(_label, "grad-drop-text", "random-mask"),),
    )(each_attacked(partial(_apart, attack=_label, first=Read("grad-drop-text"), second=Read("random-mask"))))


for _letter, (_name, _label) in STRONG.items():
    stated(
        f"X10{_letter}",
        f"{_name} scores less on CDPA than a guess of the most frequent words.",
        source="Not in the paper, whose Table V is at the floor of its score",
        experiments=(_attacked(_label, "none", CDPA, references=["frequent_words"]),),
    )(each_attacked(partial(_apart, attack=_label, first=Read("none", "frequent_words"), second=Read(CDPA))))


@stated(
    "X11",
    "CDPA changes the gradient less than the Gaussian noise of 0.005 that the paper calls the weaker defense.",
    source="Not in the paper: root mean square; by Table V CDPA hides more",
    experiments=(_attacked(TAG, "dp", CDPA),),
)
@each_cell(ATTACKED, gated=False)
def x11(cell: str, one: Evidence) -> Iterator[Part]:
    """Distortion of the noise minus that of CDPA, which no attack changes."""
    read = partial(one.series, ATTACKED, "distortion", attack=TAG)
    yield difference(read(defense="dp"), read(defense=CDPA), cell, "root mean square")


stated(
    "X12",
    "What TAG finds from CDPA is less where integers are read ten times too large, as the public code does on text.",
    source="Not in the paper",
    experiments=(_attacked(TAG, CDPA, f"{CDPA}-released"),),
)(each_attacked(partial(_apart, attack=TAG, first=Read(CDPA), second=Read(f"{CDPA}-released"))))
