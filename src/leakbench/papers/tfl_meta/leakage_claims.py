"""Claims on measured leakage: at the paper's optimal parameters, and over the strength of protection.

Leakage is by the null attack's prior with alpha = 0.001, in units of that without protection, C1; clients and seeds
are paired. No estimate is zero, since the prior of a null attack that never succeeds is not: leakage below
:data:`FLOOR` C1 counts as none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from leakbench.lazy import np
from leakbench.papers.tfl_meta import PAPER
from leakbench.papers.tfl_meta.budgets import LEAKED, TUNED, TUNED_ENCRYPTED, XI
from leakbench.papers.tfl_meta.common import FINE, THRESHOLD, UNPROTECTED
from leakbench.papers.tfl_meta.constants import RECOVERED
from leakbench.report.claims import claim
from leakbench.report.comparisons import certain, difference, relative, trend
from leakbench.report.evidence import Evidence, NotRun, Series
from leakbench.report.findings import Finding, Part, decide
from leakbench.report.labels import reads

stated = partial(claim, PAPER)

ATTACK, MASKED = "dlg", "masked-dlg"
SWEPT, SWEPT_MASKED = "swept", "swept_masked"
FLOOR = 0.1
"""Leakage that counts as none, in units of C1."""
MARGIN = 0.05
"""Tolerance of a recovery rate that stays. Ours, since the paper prints none: smaller changes alter no conclusion."""
UNNEEDED = 2.0
"""Budgets from here on, in units of C1, need no protection."""
NOISE = ("tuned-noise", "tuned-noise-alive", "tuned-noise-exact")
COMPRESSION = ("tuned-compression",)
EXACT = ("tuned-compression", "tuned-noise-exact", "tuned-masks-exact")
"""Mechanisms whose total variation is known."""
HALF = 0.5
SENSITIVE = 10.0

GATED = {"threshold": THRESHOLD}
PLAIN = reads(UNPROTECTED, defenses="none", attacks=ATTACK)


def unprotected(evidence: Evidence, metric: str) -> Series:
    """A metric of every client without protection."""
    return evidence.series(UNPROTECTED, metric, defense="none", attack=ATTACK, where=GATED)


def over(
    evidence: Evidence, experiment: str, defense: str, sweep: str, metric: str = RECOVERED, attack: str = ATTACK
) -> Series:
    """A metric of every client over the parameter of a defense."""
    return evidence.series(experiment, metric, defense=defense, attack=attack, sweep=sweep, where=GATED)


def tuned(evidence: Evidence, experiment: str, defense: str, metric: str) -> Iterator[tuple[float, Series]]:
    """A metric at every budget that asks for protection, and has a parameter, in units of C1."""
    for budget, series in over(evidence, experiment, defense, "budget", metric).by_point():
        if budget < UNNEEDED and np.isfinite(series.values).any():
            yield budget, series


def within_budgets(evidence: Evidence, defenses: tuple[str, ...], experiment: str = TUNED) -> Finding:
    """Leakage over C1 against the budget, per data set, mechanism and budget."""
    parts = list[Part]()
    for cell, local in evidence.cells(experiment, UNPROTECTED).items():
        c1 = unprotected(local, LEAKED)
        for defense in defenses:
            for budget, leaked in tuned(local, experiment, defense, LEAKED):
                name = f"{defense}, epsilon {budget:g} C1, {cell}"
                parts.append(relative(leaked, c1, name, at_most=max(budget, FLOOR) - 1))
    return decide(evidence, parts)


WITHIN: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "E15a": ("Gaussian noise", "Theorem 6.1", NOISE, TUNED),
    "E15b": ("compression", "Theorem 6.4", COMPRESSION, TUNED),
    "E15c": ("masks", "Theorem 6.3, corrected", ("tuned-masks",), TUNED),
    "E15d": ("masks as printed", "Theorem 6.3, Table 1, as stated", ("tuned-masks-printed",), TUNED),
    "E15e": (
        "masks by their exact law",
        "Theorem 6.3; our correction of the law of a share",
        ("tuned-masks-exact",),
        TUNED,
    ),
    "E15f": ("Paillier's scheme", "Theorem 6.2, corrected", ("tuned-encrypted",), TUNED_ENCRYPTED),
}
for _key, (_words, _source, _defenses, _experiment) in WITHIN.items():
    stated(
        _key,
        f"At the optimum of {_words} for a budget of leakage, measured leakage is within it.",
        source=_source,
        experiments=(PLAIN, reads(_experiment, defenses=_defenses, attacks=ATTACK)),
    )(partial(within_budgets, defenses=_defenses, experiment=_experiment))


@stated(
    "E15x",
    "At the optimum of noise and of compression attacks recover as much as without protection, or at most "
    f"{MARGIN:g} of the data less, whatever the budget.",
    source="ours, against Theorems 6.1 and 6.4",
    experiments=(PLAIN, reads(TUNED, defenses=(*NOISE, *COMPRESSION), attacks=ATTACK)),
)
def nothing_changes(evidence: Evidence) -> Finding:
    """Recovery with protection minus without, per data set, mechanism and budget."""
    parts = []
    for cell, local in evidence.cells(TUNED, UNPROTECTED).items():
        plain = unprotected(local, RECOVERED)
        for defense in (*NOISE, *COMPRESSION):
            for budget, protected in tuned(local, TUNED, defense, RECOVERED):
                name = f"{defense}, epsilon {budget:g} C1, {cell}"
                parts.append(difference(protected, plain, name, "recovery rate", at_least=-MARGIN))
    return decide(evidence, parts)


@stated(
    "E2",
    "Measured leakage differs from C1 by C2 TV at most, where TV is known.",
    source="Lemmas E.2 and E.4, eq. 3's proof",
    experiments=(PLAIN, reads(TUNED, defenses=EXACT, attacks=ATTACK)),
)
def near_c1(evidence: Evidence) -> Finding:
    """Leakage over C1, minus 1, against ``x / C1 = 2 - epsilon / C1``, which a tuned mechanism has.

    TV is known of compression, and of noise and masks that are tuned by exact laws, for uploads as the paper models
    them.
    """
    parts = []
    for cell, local in evidence.cells(TUNED, UNPROTECTED).items():
        c1 = unprotected(local, LEAKED)
        for defense in EXACT:
            for budget, leaked in tuned(local, TUNED, defense, LEAKED):
                name, radius = f"{defense}, x = {UNNEEDED - budget:g} C1, {cell}", UNNEEDED - budget
                parts.append(relative(leaked, c1, name, at_least=-radius, at_most=radius))
    return decide(evidence, parts)


def falls(evidence: Evidence, defense: str, sweep: str, experiment: str = SWEPT, attack: str = ATTACK) -> Finding:
    """Rank correlation of the recovery rate with the parameter, per data set."""
    parts = [
        trend(over(local, experiment, defense, sweep, attack=attack), cell, f"the {sweep}", rises=False)
        for cell, local in evidence.cells(experiment).items()
    ]
    return decide(evidence, parts)


for _key, _words, _defense, _sweep in (
    ("E16a", "the standard deviation of noise", "noise", "scale"),
    ("E16b", "the part of coordinates that are dropped", "compression", "probability"),
    ("E16c", "the bound of masks", "masks", "bound"),
):
    stated(
        _key,
        f"Recovery falls as {_words} grows.",
        source="Assumption 5.1, for what an attack recovers",
        experiments=(reads(SWEPT, defenses=_defense, attacks=ATTACK),),
    )(partial(falls, defense=_defense, sweep=_sweep))


@stated(
    "E16d",
    "An attacker who leaves out the coordinates that were dropped recovers as much as without protection, or at most "
    f"{MARGIN:g} of the data less, while half of them, or fewer, are dropped.",
    source="ours; the paper's attacker does not know which",
    experiments=(PLAIN, reads(SWEPT_MASKED, defenses="compression", attacks=MASKED)),
)
def masks_are_known(evidence: Evidence) -> Finding:
    """Recovery with protection minus without, per data set and part that is dropped."""
    parts = []
    for cell, local in evidence.cells(SWEPT_MASKED, UNPROTECTED).items():
        plain = unprotected(local, RECOVERED)
        for dropped, rate in over(local, SWEPT_MASKED, "compression", "probability", attack=MASKED).by_point():
            if dropped <= HALF:
                name = f"dropped {dropped:g}, {cell}"
                parts.append(difference(rate, plain, name, "recovery rate", at_least=-MARGIN))
    return decide(evidence, parts)


def less_when_stopped(evidence: Evidence, prior: str) -> Finding:
    """C1 minus leakage at the strongest noise and compression, in which the attack fails, per data set."""
    metric = f"leakage/{prior}/{FINE:g}"
    parts = []
    for cell, local in evidence.cells(SWEPT, UNPROTECTED).items():
        plain = unprotected(local, metric)
        recovered = float(np.nanmean(unprotected(local.aside(), RECOVERED).values))
        for defense, sweep in (("noise", "scale"), ("compression", "probability")):
            rates = over(local.aside(), SWEPT, defense, sweep)
            last = rates.points[-1]
            if np.nanmean(rates.at([last]).values) > FLOOR * recovered:
                continue
            leaked = over(local, SWEPT, defense, sweep, metric).at([last])
            parts.append(difference(plain, leaked, f"{defense}, {sweep} {last:g}, {cell}", "nats^(1/2)"))
    if not parts:
        raise NotRun("no noise and no compression of this scale stops the attack")
    return decide(evidence, parts)


for _key, _words, _prior in (
    ("L1a", "the same probability for every candidate, misses among them", "uniform"),
    ("L1b", "what a null attack recovers", "null"),
):
    stated(
        _key,
        f"With {_words}, for a prior, protection that stops the attack leaks less than none.",
        source="eq. 2 and Algorithm 2, whose prior the paper leaves open",
        experiments=(PLAIN, reads(SWEPT, defenses=("noise", "compression"), attacks=ATTACK)),
    )(partial(less_when_stopped, prior=_prior))


@stated(
    "L2",
    f"C2 is {SENSITIVE:g} times as large, or more, with alpha = 0.001 as with alpha = 0.5, so that the total "
    "variation that a budget asks for is set by how beliefs are smoothed.",
    source="ours; eq. 18 has no value where a datum is never recovered",
    experiments=(PLAIN,),
)
def smoothing_decides(evidence: Evidence) -> Finding:
    """log10 of the ratio of both C2, of the largest xi over clients, least over seeds, per data set.

    Where a datum is never recovered the ratio follows from the number of attempts, so that seeds test nothing.
    """
    parts = []
    for cell, local in evidence.cells(UNPROTECTED).items():
        fine, coarse = (_largest(unprotected(local, metric)) for metric in (f"{XI}/{FINE:g}", XI))
        logarithm = (np.log(np.expm1(2 * fine.values)) - np.log(np.expm1(2 * coarse.values))) / np.log(10)
        meaning = "log10 of C2 with alpha 0.001 over that with 0.5, least over seeds (decades)"
        parts.append(certain(float(np.nanmin(logarithm)), cell, meaning, at_least=float(np.log10(SENSITIVE))))
    return decide(evidence, parts)


def _largest(series: Series) -> Series:
    return replace(series, values=np.nanmax(series.values, axis=-1, keepdims=True))
