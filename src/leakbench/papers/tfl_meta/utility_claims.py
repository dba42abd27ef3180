"""Claims on the measured loss of utility: accuracy after a whole training, paired by seed.

The bounds are of one round; utility is accuracy, so C4 = 1, and a bound of 1 or more says nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from leakbench.lazy import np
from leakbench.papers.tfl_meta import PAPER
from leakbench.papers.tfl_meta.budgets import TUNED, UTILITY, UTILITY_ENCRYPTED, UTILITY_PAIRS, UTILITY_TUNED
from leakbench.papers.tfl_meta.common import UNPROTECTED
from leakbench.papers.tfl_meta.leakage_claims import ATTACK, COMPRESSION, GATED, NOISE, PLAIN, UNNEEDED
from leakbench.report.claims import claim, each_cell, noting
from leakbench.report.comparisons import at_each, certain, difference
from leakbench.report.evidence import Evidence, NotRun, Series, same_seeds
from leakbench.report.findings import Finding, Part, decide
from leakbench.report.labels import reads
from leakbench.theory.distortion import NOISE_UPPER

stated = partial(claim, PAPER)

FIXED = "fixed-point"
SAME = {"accuracy": 1e-3, "final_loss": 1e-4}
"""Differences that float32 leaves after a training, so that numbers are equal: in parts of the images, and nats."""
SLIGHT = 0.01
"""Loss of accuracy that counts as none. Ours, as the claim is: the paper prints no accuracies."""
EXACT: tuple[tuple[str, str, str | None], ...] = (
    (UTILITY, "shares", None),
    (UTILITY_PAIRS, "masks", "bound"),
    (UTILITY_PAIRS, "tuned-masks", "budget"),
    (UTILITY_ENCRYPTED, "tuned-encrypted", "budget"),
)
"""Experiment, defense and swept parameter of the mechanisms whose sums are exact."""
SWEPT = (("noise", "scale"), ("compression", "probability"))
"""Defenses of :data:`UTILITY` and the parameter that each sweeps."""


def _exact_in(name: str) -> list[str]:
    """The defenses of an experiment that sum exactly."""
    return [defense for experiment, defense, _ in EXACT if experiment == name]


@stated(
    "E11",
    "Encryption, shares and masks, whose sums are exact, cost no utility: accuracy and loss are those in the same "
    f"fixed point, to {SAME['accuracy']:g} and {SAME['final_loss']:g} nats.",
    source="Lemmas G.3 and H.2",
    experiments=[
        reads(name, defenses=(FIXED, *_exact_in(name))) for name in (UTILITY, UTILITY_PAIRS, UTILITY_ENCRYPTED)
    ],
)
@each_cell(UTILITY, UTILITY_PAIRS, UTILITY_ENCRYPTED, gated=False)
def exact_sums(cell: str, one: Evidence) -> Iterator[Part]:
    """Largest difference over seeds, per data set, defense and value of its parameter."""
    for (experiment, defense, sweep), (metric, most) in itertools.product(EXACT, SAME.items()):
        plain = one.series(experiment, metric, defense=FIXED)
        for point, protected in one.series(experiment, metric, defense=defense, sweep=sweep).by_point():
            if sweep == "budget" and point >= UNNEEDED:
                continue
            a, b = same_seeds(protected, plain)
            worst = float(np.abs(a.values - b.values).max())
            where = "" if sweep is None else f", {sweep} {point:g}"
            yield certain(worst, f"{metric}, {defense}{where}, {cell}", "largest difference over seeds", at_most=most)


@stated(
    "E11a",
    f"The fixed point that exact sums need costs no accuracy, to {SLIGHT:g}.",
    source="ours; the paper's sums are of real numbers",
    experiments=[reads(name, defenses=(FIXED, "none")) for name in (UTILITY, UTILITY_PAIRS)],
)
@each_cell(UTILITY, UTILITY_PAIRS, gated=False)
def fixed_point(cell: str, one: Evidence) -> Iterator[Part]:
    """Accuracy in fixed point minus that in floating point, per data set and number of clients."""
    for experiment in (UTILITY, UTILITY_PAIRS):
        read = partial(one.series, experiment, "accuracy")
        name = f"{experiment}, {cell}"
        yield difference(read(defense=FIXED), read(defense="none"), name, "accuracy", at_least=-SLIGHT)


def bounds_of_settings(local: Evidence) -> Iterator[tuple[str, float, Series, Series]]:
    """Name, the paper's bound, accuracy without protection and with it, of every trained setting of one cell."""
    aside = local.aside()
    read = partial(aside.series, UNPROTECTED, defense="none", attack=ATTACK, where=GATED)
    size, steepness = (float(np.nanmean(read(metric).values)) for metric in ("dimension", "steepness"))
    plain = local.series(UTILITY, "accuracy", defense="none")
    for defense, sweep in SWEPT:
        for point, series in local.series(UTILITY, "accuracy", defense=defense, sweep=sweep).by_point():
            reach = NOISE_UPPER * min(1.0, point**2 * steepness)
            bound = reach if defense == "noise" else -float(np.expm1(size * np.log1p(-point)))
            yield f"{defense}, {sweep} {point:g}", bound, plain, series
    for defense in (*NOISE, *COMPRESSION):
        accuracy = local.series(UTILITY_TUNED, "accuracy", defense=defense, sweep="budget")
        metric = "parameter" if defense in NOISE else "tau"
        tuned = aside.series(TUNED, metric, defense=defense, attack=ATTACK, sweep="budget", where=GATED)
        for budget, series, strength in at_each(accuracy, tuned):
            if budget >= UNNEEDED or not np.isfinite(strength.values).any() or not np.isfinite(series.values).any():
                continue
            value = float(np.nanmean(strength.values))
            bound = NOISE_UPPER * min(1.0, value * steepness) if defense in NOISE else value
            yield f"{defense}, epsilon {budget:g} C1", bound, plain, series


@stated(
    "E12",
    "Noise and compression lose less accuracy than their bounds, 3/2 min(1, sigma_eps^2 A) and 1 - rho^m, where those "
    "are below 1.",
    source="Lemmas F.2 and I.2; Theorems 6.1 and 6.4",
    experiments=(
        PLAIN,
        reads(TUNED, defenses=(*NOISE, *COMPRESSION), attacks=ATTACK),
        reads(UTILITY, defenses=("none", *dict(SWEPT))),
        reads(UTILITY_TUNED, defenses=(*NOISE, *COMPRESSION)),
    ),
)
def within_bounds(evidence: Evidence) -> Finding:
    """Loss of accuracy minus its bound, per data set, mechanism and parameter whose bound is below 1."""
    parts, void = list[Part](), 0
    for cell, local in evidence.cells(UTILITY, UTILITY_TUNED, UNPROTECTED, TUNED).items():
        for words, bound, plain, series in bounds_of_settings(local):
            if bound >= 1:
                void += 1
                continue
            # Gain of accuracy against minus the bound: loss within the bound is a gain above it.
            parts.append(difference(series, plain, f"{words}, bound {bound:.2g}, {cell}", "accuracy", at_least=-bound))
    if not parts:
        raise NotRun(f"all bounds of this scale, {void}, are 1 or more, and so say nothing")
    note = f"{void} more bounds are 1 or more, and say nothing" if void else ""
    return noting(decide(evidence, parts, gated=False), note)
