"""What the paper states of text, checked against our experiments, and what else those say about it.

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
from leakbench.papers.cdpa.text_attacked import ATTACKED, DLG, INFORMED, LAMPS, TAG, TRAINED, as_printed
from leakbench.papers.cdpa.text_utility import EPOCHS
from leakbench.report.claims import claim
from leakbench.report.comparisons import difference, level
from leakbench.report.evidence import Evidence, NotRun, Series, jackknife_of, same_seeds
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
"""Of Table V, but for CDPA's own."""
SMALL = 0.5
"""Points of ROUGE that count as zero: the paper prints 0.00."""
CLOSE = 0.05
"""Matthews correlation by which curves count as 'closely aligned'."""
FOUND = 60.0
"""ROUGE-1 from which on an attack is said to find a sentence."""
LEARNS = 0.1
"""Matthews correlation of undefended training below which nothing has been learnt that a defense could cost."""
RESTORED = 10.0
"""Points of ROUGE-1 that an informed attacker may miss of the undefended attack."""
POINTS = "points of ROUGE"


def _cells(evidence: Evidence, attack: str, *experiments: str) -> Iterator[tuple[str, Evidence, str]]:
    """Name, evidence and the attack's label of every data set and model; of ``lamp`` that of the better LAMP."""
    for cell, one in evidence.cells(*(experiments or (ATTACKED,))).items():
        label = _lamp(one) if attack == "lamp" else attack
        yield (f"{LAMPS[label]}, {cell}" if attack == "lamp" else cell), one, label


def _attacked(attack: str, *defenses: str, references: Sequence[str] = ()) -> Reads:
    """Defenses under an attack. Which LAMP is ``lamp`` the undefended gradients say."""
    if attack != "lamp":
        return reads(ATTACKED, defenses=defenses, attacks=(attack, *references))
    return reads(ATTACKED, defenses=dict.fromkeys(("none", *defenses)), attacks=(*LAMPS, *references))


def _lamp(one: Evidence) -> str:
    """The LAMP with the larger mean ROUGE-1 of the undefended gradients.

    Raises:
        NotRun: there is none.
    """
    means = {}
    for label in LAMPS:
        try:
            found = one.aside().series(ATTACKED, "rouge1", defense="none", attack=label)
        except NotRun as reason:
            missing = reason
            continue
        means[label] = float(np.nanmean(found.values))
    if not means:
        raise missing
    return max(means, key=lambda label: means[label])


ORDERS = {"a": ("DLG", DLG), "b": ("TAG", TAG), "c": ("LAMP", "lamp")}
"""Letter of a claim -> the attack, and its label."""


class Read(NamedTuple):
    """Where a score is read: labels of a defense, and of an attack if it is not the claim's own."""

    defense: str
    attack: str | None = None


def _apart(
    evidence: Evidence,
    attack: str,
    first: Read,
    second: Read,
    metric: str = "rouge1",
    gated: bool = True,
) -> Finding:
    """A score of one defense, or of another attack on it, minus that of a second."""
    parts = []
    for cell, one, label in _cells(evidence, attack):
        ours, theirs = (
            one.series(ATTACKED, metric, defense=read.defense, attack=read.attack or label) for read in (first, second)
        )
        parts.append(difference(ours, theirs, cell, POINTS))
    return decide(evidence, parts, gated=gated)


def _smallest(evidence: Evidence, attack: str) -> Finding:
    """Every other column minus CDPA."""
    parts = []
    for cell, one, label in _cells(evidence, attack):
        for metric in map(as_printed, ("rouge1", "rougeL")):
            read = partial(one.series, ATTACKED, metric, attack=label)
            own = read(defense=CDPA)
            parts += [difference(read(defense=other), own, f"{other}, {cell}", POINTS) for other in COLUMNS]
    return decide(evidence, parts)


def _nothing(evidence: Evidence, metric: str, attack: str) -> Finding:
    """Level of a score under CDPA."""
    parts = [
        level(one.series(ATTACKED, metric, defense=CDPA, attack=label), cell, "%", at_most=SMALL)
        for cell, one, label in _cells(evidence, attack)
    ]
    return decide(evidence, parts)


for _letter, (_name, _label) in ORDERS.items():
    stated(
        f"E18{_letter}",
        f"Under {_name} the sentences found from CDPA have the smallest ROUGE-1 and ROUGE-L of all columns.",
        source="Table V",
        experiments=(_attacked(_label, CDPA, *COLUMNS),),
    )(partial(_smallest, attack=_label))
for _letter, (_name, _label) in ORDERS.items():
    stated(
        f"E19{_letter}",
        f"Under {_name} the sentences found from CDPA have a ROUGE-2 of zero, to half a point.",
        source="Table V",
        experiments=(_attacked(_label, CDPA),),
    )(partial(_nothing, metric=as_printed("rouge2"), attack=_label))
for _letter, (_name, _label) in ORDERS.items():
    stated(
        f"E20{_letter}",
        f"Under {_name} no word of the sentence is found from CDPA: ROUGE-1 of the words is zero, to half a point.",
        source="Table VI and section 6.2, 'minimal to no alignment'; as the paper scores, [CLS] and [SEP] are 20 %",
        experiments=(_attacked(_label, CDPA),),
    )(partial(_nothing, metric="rouge1", attack=_label))


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
        if max(float(found.values.mean()) for _, found in _learnt(one.aside(), "none")) >= LEARNS
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
        partial(
            _apart,
            attack="lamp",
            first=Read("none"),
            second=Read("none", _label),
            metric=as_printed("rouge1"),
            gated=False,
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
        partial(
            _apart,
            attack=_label,
            first=Read("grad-drop-text"),
            second=Read("none"),
            metric=as_printed("rouge1"),
        )
    )


def _finds(evidence: Evidence, attack: str) -> Finding:
    """Level of the undefended score."""
    parts = [
        level(one.series(ATTACKED, "rouge1", defense="none", attack=label), cell, "%", at_least=FOUND)
        for cell, one, label in _cells(evidence, attack)
    ]
    return decide(evidence, parts, gated=False)


for _letter, (_name, _label) in STRONG.items():
    stated(
        f"X7{_letter}",
        f"{_name} finds undefended sentences: ROUGE-1 of the words is at least 60.",
        source="Not in the paper, which counts [CLS] and [SEP]; below that, defenses are not told apart",
        experiments=(_attacked(_label, "none"),),
    )(partial(_finds, attack=_label))


def _restored(evidence: Evidence, attack: str) -> Finding:
    """ROUGE-1 of the best informed attacker minus that of the undefended attack."""
    parts = []
    for cell, one, label in _cells(evidence, attack, ATTACKED, INFORMED):
        plain = one.series(ATTACKED, "rouge1", defense="none", attack=label)
        known = {}
        for way in WAYS:
            try:
                known[way] = one.series(INFORMED, "rouge1", defense=CDPA, attack=f"{label}-{way}")
            except NotRun as reason:
                missing = reason
        if not known:
            raise missing
        series = same_seeds(plain, *known.values())
        resamples = jackknife_of(*series)
        undefended, *means = (resamples.mean(each.values[0]) for each in series)
        best = np.nanmax(np.stack(means), axis=0)
        said = ", ".join(f"{way} {mean[0] - undefended[0]:+.1f}" for way, mean in zip(known, means, strict=True))
        meaning = f"best informed attacker minus the undefended one ({POINTS})"
        estimate = resamples.estimate(best - undefended)
        parts.append(Part(cell, estimate, meaning, at_least=-RESTORED, note=f"points: {said}"))
    return decide(evidence, parts)


for _letter, _name, _label in (("a", "TAG", TAG), ("b", "LAMP (cosine)", "lamp-cos")):
    stated(
        f"X8{_letter}",
        f"Under {_name}, an attacker who clears the flipped bits, fits robustly or takes the median of several "
        "messages comes within 10 points of the ROUGE-1 of the undefended attack.",
        source="Not in the paper, which argues that such attackers fail (section 6)",
        experiments=(
            _attacked(_label, "none"),
            reads(INFORMED, defenses=CDPA, attacks=[f"{_label}-{way}" for way in WAYS]),
        ),
    )(partial(_restored, attack=_label))


for _letter, (_name, _label) in STRONG.items():
    stated(
        f"X9{_letter}",
        f"Under {_name}, dropping the smallest fifth of the coordinates hides less than masking a random fifth.",
        source="Not in the paper, whose GradDrop may be either",
        experiments=(_attacked(_label, "grad-drop-text", "random-mask"),),
    )(partial(_apart, attack=_label, first=Read("grad-drop-text"), second=Read("random-mask")))


for _letter, (_name, _label) in STRONG.items():
    stated(
        f"X10{_letter}",
        f"What {_name} finds from CDPA is less than the most frequent words are right by chance.",
        source="Not in the paper, whose Table V is at the floor of its score",
        experiments=(_attacked(_label, "none", CDPA, references=["frequent_words"]),),
    )(
        partial(
            _apart,
            attack=_label,
            first=Read("none", "frequent_words"),
            second=Read(CDPA),
        )
    )


@stated(
    "X11",
    "CDPA changes the gradient less than the Gaussian noise of 0.005 that the paper calls the weaker defense.",
    source="Not in the paper: root mean square; by Table V CDPA hides more",
    experiments=(_attacked(TAG, "dp", CDPA),),
)
def x11(evidence: Evidence) -> Finding:
    """Distortion of the noise minus that of CDPA, which no attack changes."""
    parts = []
    for cell, one in evidence.cells(ATTACKED).items():
        read = partial(one.series, ATTACKED, "distortion", attack=TAG)
        parts.append(difference(read(defense="dp"), read(defense=CDPA), cell, "root mean square"))
    return decide(evidence, parts, gated=False)


stated(
    "X12",
    "What TAG finds from CDPA is less where integers are read ten times too large, as the public code does on text.",
    source="Not in the paper",
    experiments=(_attacked(TAG, CDPA, f"{CDPA}-released"),),
)(partial(_apart, attack=TAG, first=Read(CDPA), second=Read(f"{CDPA}-released")))
