"""Claims on measured leakage: at the paper's optimal parameters, and over the strength of protection.

Leakage is by the null attack's prior with alpha = 0.001, in units of that without protection, C1; budgets are in units
of C1 with alpha = 0.5, by which mechanisms are tuned. Clients and seeds are paired. No estimate is zero, since the
prior of a null attack that never succeeds is not: an attack that recovers nothing in as many attempts has some, and
leakage up to :data:`MARGIN` C1 above that counts as none.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leakbench.lazy import np
from leakbench.papers.tfl_meta import PAPER
from leakbench.papers.tfl_meta.budgets import FAILED, LEAKED, TUNED, TUNED_ENCRYPTED
from leakbench.papers.tfl_meta.common import FINE, THRESHOLD, UNPROTECTED
from leakbench.papers.tfl_meta.constants import RECOVERED
from leakbench.report.claims import claim, each_cell
from leakbench.report.comparisons import difference, level, relative, trend
from leakbench.report.evidence import Evidence, NotRun, Series
from leakbench.report.findings import Finding, Part, decide
from leakbench.report.labels import reads

stated = partial(claim, PAPER)

ATTACK, MASKED = "dlg", "masked-dlg"
SECOND, INVERTING = "second_attacker", "ig"
SWEPT, SWEPT_MASKED, FEWER = "swept", "swept_masked", "tuned_fewer"
STOPPED = 0.1
"""Recovery in parts of that without protection, up to which an attack counts as stopped."""
MARGIN = 0.05
"""Tolerance of a recovery rate, and of leakage in units of C1. Ours, since the paper prints none: smaller changes alter
no conclusion."""
UNNEEDED = 2.0
"""Budgets from here on, in units of C1, need no protection."""
NOISE = ("tuned-noise", "tuned-noise-alive", "tuned-noise-exact")
COMPRESSION = ("tuned-compression",)
EXACT = ("tuned-compression", "tuned-noise-exact", "tuned-masks-exact")
"""Mechanisms whose total variation is known."""
ESTIMATED = ("tuned-fewer-noise", "tuned-fewer-compression")
"""Tuned by constants from fewer attempts."""
HALF = 0.5

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


def within_budgets(cell: str, one: Evidence, defenses: tuple[str, ...], experiment: str) -> Iterator[Part]:
    """Leakage over C1 against the budget, or a failed attack's with a margin; per data set, mechanism and budget."""
    c1 = unprotected(one, LEAKED)
    for defense in defenses:
        for budget, leaked in tuned(one, experiment, defense, LEAKED):
            failed = over(one.aside(), experiment, defense, "budget", FAILED).at([budget])
            floor = float(np.nanmean(failed.values) / np.nanmean(c1.values)) + MARGIN
            yield relative(leaked, c1, f"{defense}, epsilon {budget:g} C1, {cell}", at_most=max(budget, floor) - 1)


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
        f"At the optimum of {_words} for a budget of leakage, measured leakage is within it, or at most {MARGIN:g} C1 "
        "above that of an attack that recovers nothing.",
        source=_source,
        experiments=(PLAIN, reads(_experiment, defenses=_defenses, attacks=ATTACK)),
    )(each_cell(_experiment, UNPROTECTED)(partial(within_budgets, defenses=_defenses, experiment=_experiment)))


def no_less(protected: Series, plain: Series, name: str) -> Part:
    """Recovery with protection minus without, of which at most :data:`MARGIN` is missing."""
    return difference(protected, plain, name, "recovery rate", at_least=-MARGIN)


@stated(
    "E15x",
    "At the optimum of noise and of compression attacks recover as much as without protection, or at most "
    f"{MARGIN:g} of the data less, whatever the budget.",
    source="ours, against Theorems 6.1 and 6.4",
    experiments=(PLAIN, reads(TUNED, defenses=(*NOISE, *COMPRESSION), attacks=ATTACK)),
)
@each_cell(TUNED, UNPROTECTED)
def nothing_changes(cell: str, one: Evidence) -> Iterator[Part]:
    """A part per mechanism and budget."""
    plain = unprotected(one, RECOVERED)
    for defense in (*NOISE, *COMPRESSION):
        for budget, protected in tuned(one, TUNED, defense, RECOVERED):
            yield no_less(protected, plain, f"{defense}, epsilon {budget:g} C1, {cell}")


@stated(
    "E15y",
    "So they do at the optimum for epsilon = C1, whether C1 and C2 are estimated from one attempt or more; noise by "
    "its exact total variation.",
    source="ours; section 7 leaves the number of attempts open",
    experiments=(PLAIN, reads(FEWER, defenses=ESTIMATED, attacks=ATTACK)),
)
@each_cell(FEWER, UNPROTECTED)
def nothing_changes_with_attempts(cell: str, one: Evidence) -> Iterator[Part]:
    """A part per mechanism and number of attempts."""
    plain = unprotected(one, RECOVERED)
    for defense in ESTIMATED:
        for attempts, protected in over(one, FEWER, defense, "estimated").by_point():
            if np.isfinite(protected.values).any():
                yield no_less(protected, plain, f"{defense}, {attempts:g} attempts, {cell}")


@stated(
    "E2",
    "Measured leakage differs from C1 by C2 TV at most, where TV is known.",
    source="Lemmas E.2 and E.4, eq. 3's proof",
    experiments=(PLAIN, reads(TUNED, defenses=EXACT, attacks=ATTACK)),
)
@each_cell(TUNED, UNPROTECTED)
def near_c1(cell: str, one: Evidence) -> Iterator[Part]:
    """Leakage over C1, minus 1, against ``x / C1 = 2 - epsilon / C1``, which a tuned mechanism has.

    TV is known of compression, and of noise and masks that are tuned by exact laws, for uploads as the paper models
    them.
    """
    c1 = unprotected(one, LEAKED)
    for defense in EXACT:
        for budget, leaked in tuned(one, TUNED, defense, LEAKED):
            radius = UNNEEDED - budget
            yield relative(leaked, c1, f"{defense}, x = {radius:g} C1, {cell}", at_least=-radius, at_most=radius)


def falls(cell: str, one: Evidence, defense: str, sweep: str) -> Iterator[Part]:
    """Rank correlation of the recovery rate with the parameter, per data set."""
    yield trend(over(one, SWEPT, defense, sweep), cell, f"the {sweep}", rises=False)


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
    )(each_cell(SWEPT)(partial(falls, defense=_defense, sweep=_sweep)))


@stated(
    "E16d",
    "An attacker who leaves out the coordinates that were dropped recovers as much as without protection, or at most "
    f"{MARGIN:g} of the data less, while half of them, or fewer, are dropped.",
    source="ours; the paper's attacker does not know which",
    experiments=(PLAIN, reads(SWEPT_MASKED, defenses="compression", attacks=MASKED)),
)
@each_cell(SWEPT_MASKED, UNPROTECTED)
def masks_are_known(cell: str, one: Evidence) -> Iterator[Part]:
    """A part per part that is dropped."""
    plain = unprotected(one, RECOVERED)
    for dropped, rate in over(one, SWEPT_MASKED, "compression", "probability", attack=MASKED).by_point():
        if dropped <= HALF:
            yield no_less(rate, plain, f"dropped {dropped:g}, {cell}")


@stated(
    "E16e",
    f"Where noise or compression leaves DLG {MARGIN:g} of the data at most, a second attacker, inverting gradients, "
    "recovers no more than that either.",
    source="ours; problem (1) asks for the budget under every attacker, and the constants are of one",
    experiments=(
        reads(SWEPT, defenses=("noise", "compression"), attacks=ATTACK),
        reads(SECOND, defenses=("noise", "compression"), attacks=INVERTING),
    ),
)
def the_second_fails_too(evidence: Evidence) -> Finding:
    """Recovery of the second attacker, per data set, mechanism and parameter that stops the first."""
    parts = []
    for cell, local in evidence.cells(SWEPT, SECOND).items():
        for defense, sweep in (("noise", "scale"), ("compression", "probability")):
            first = over(local.aside(), SWEPT, defense, sweep)
            for point, rate in over(local, SECOND, defense, sweep, attack=INVERTING).by_point():
                if point in first.points and np.nanmean(first.at([point]).values) <= MARGIN:
                    parts.append(level(rate, f"{defense}, {sweep} {point:g}, {cell}", "recovery rate", at_most=MARGIN))
    if not parts:
        raise NotRun("no noise and no compression of this scale stops DLG")
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
            if np.nanmean(rates.at([last]).values) > STOPPED * recovered:
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
