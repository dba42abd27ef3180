"""Claims of the paper's only experiment: the order of three mechanisms in accuracy, and in time.

Accuracy is that at the learning rate with the least training loss, as in Fig. 5, and its mean over the grid of epsilon
is judged, per model, paired by seed. A mechanism that diverges at every rate has no number there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from leakbench.lazy import np
from leakbench.papers.secagg_dp import PAPER
from leakbench.papers.secagg_dp.accuracy import CNN, HOME
from leakbench.report.claims import claim, each_cell
from leakbench.report.comparisons import difference, relative
from leakbench.report.evidence import Evidence, NotRun, Series, same_points
from leakbench.report.findings import Finding, Part, decide
from leakbench.report.labels import reads
from leakbench.report.wording import numbers

stated = partial(claim, PAPER)

MARGIN = 0.01
"""Tolerance of "at least as accurate": Fig. 5 prints no numbers, and is not read off more exactly."""
ENDINGS = ("", CNN)
"""Endings of the experiments of the linear model, and of the CNN."""


def tuned(evidence: Evidence, defense: str, experiment: str) -> Series:
    """Accuracy over epsilon, at the learning rate that has the least training loss, mean over seeds, at each.

    Raises:
        NotRun: there are no such numbers, or all rates diverged at some epsilon.
    """
    rates = _rates(evidence, experiment, defense)
    read = partial(evidence.aside().series, experiment, defense=defense, sweep="epsilon")
    losses = [read("final_loss", where={"rate": rate}) for rate in rates]
    evidence.series(experiment, "accuracy", defense=defense, sweep="epsilon", where={"rate": rates[0]})
    accuracies = [read("accuracy", where={"rate": rate}) for rate in rates]
    losses, accuracies = same_points(*losses), same_points(*accuracies)
    means = np.stack([one.values.mean(axis=(1, 2)) for one in losses])  # NaN where a seed diverged
    if not np.isfinite(means).any(axis=0).all():
        raise NotRun(f"{defense} diverged at every learning rate at some epsilon")
    best = np.nanargmin(np.where(np.isfinite(means), means, np.inf), axis=0)
    values = np.stack([accuracies[rate].values[place] for place, rate in enumerate(best)])
    return replace(accuracies[0], name=f"accuracy of {defense}", values=values)


def _rates(evidence: Evidence, experiment: str, defense: str) -> list[float]:
    rates = evidence.aside().swept(experiment, "rate", defense=defense)
    if not rates:
        raise NotRun(f"{experiment} has no learning rates of {defense}")
    return rates


def over_the_grid(series: Series) -> Series:
    """Its mean over the points that it has."""
    return replace(series, points=(0.0,), values=series.values.mean(axis=0, keepdims=True))


def compared(evidence: Evidence, better: str, worse: str, at_least: float, endings: Sequence[str]) -> Iterator[Part]:
    """Differences in accuracy of two mechanisms, per model, mean over the epsilons that both have."""
    for ending in endings:
        ours, theirs = HOME[better] + ending, HOME[worse] + ending
        for cell, local in evidence.cells(ours, theirs).items():
            a, b = same_points(tuned(local, better, ours), tuned(local, worse, theirs))
            grid = numbers(a.points)
            yield difference(over_the_grid(a), over_the_grid(b), f"{cell}, epsilon {grid}", "test accuracy", at_least)


def _order(
    key: str,
    statement: str,
    *,
    source: str,
    better: str,
    worse: str,
    at_least: float = 0.0,
    endings: Sequence[str] = ENDINGS,
) -> None:
    """State a claim that one mechanism is more accurate than another."""
    labels: dict[str, list[str]] = {}
    for defense in (better, worse):
        labels.setdefault(HOME[defense], []).append(defense)
    read = [reads(home + ending, defenses=both) for ending in endings for home, both in labels.items()]

    def find(evidence: Evidence) -> Finding:
        return decide(evidence, list(compared(evidence, better, worse, at_least, endings)))

    stated(key, statement, source=source, experiments=read, champion=better)(find)


_order(
    "E10",
    f"At equal epsilon GD-DP is at least as accurate as GSGD-DP, to {MARGIN:g}.",
    source="section 5.3, Fig. 5",
    better="gd",
    worse="gsgd",
    at_least=-MARGIN,
)


_order(
    "E11a",
    "At equal epsilon GSGD-DP is more accurate than SGD-DP, if an epoch is a round for both.",
    source="section 5.3, Fig. 5",
    better="gsgd",
    worse="sgd",
)


_order(
    "E11b",
    "At equal epsilon GSGD-DP is more accurate than SGD-DP, if an epoch of SGD-DP is all of a user's batches.",
    source="section 5.3, Fig. 5; another reading",
    better="gsgd",
    worse="sgd-epochs",
)


_order(
    "E11c",
    "At equal epsilon GSGD-DP is more accurate than SGD-DP whose sampling amplifies delta, too.",
    source="Fig. 5; our correction of row 1 of Table 1",
    better="gsgd",
    worse="sgd-amplified",
)


_order(
    "E11d",
    "At equal epsilon of the linear model by tight accounting of both, GSGD-DP is more accurate than SGD-DP.",
    source="section 5.3, Fig. 5; our accounting",
    better="gsgd-tight",
    worse="sgd-tight",
    endings=("",),
)


SAME_LOSS = 0.01
"""Tolerance of the loss in training through the protocol, relative."""


@stated(
    "E13",
    f"SGD-DP through secure aggregation ends with the training loss that it has in the clear, to {SAME_LOSS:.0%}.",
    source="ours: whether Fig. 5 may be computed in the clear",
    experiments=(reads("accuracy_batches", defenses="sgd"), reads("accuracy_secure", defenses="sgd-secure")),
)
def e13(evidence: Evidence) -> Finding:
    """Training loss through the protocol over that in the clear, minus 1, at the one epsilon and rate of both."""
    read = evidence.aside()
    where = {name: read.swept("accuracy_secure", name, defense="sgd-secure")[0] for name in ("epsilon", "rate")}
    secure, clear = (
        evidence.series(experiment, "final_loss", defense=defense, where=where)
        for experiment, defense in (("accuracy_secure", "sgd-secure"), ("accuracy_batches", "sgd"))
    )
    cell = ", ".join(f"{name} {value:g}" for name, value in where.items())
    return decide(evidence, [relative(secure, clear, cell, at_least=-SAME_LOSS, at_most=SAME_LOSS)])


@stated(
    "E12",
    "A round of SGD-DP takes less time than one of GD-DP, and that less than one of GSGD-DP: processor time where it "
    "is computed on a CPU.",
    source="section 5.3, which does not say how it was timed",
    experiments=(reads("accuracy_times", defenses="none"),),
)
@each_cell("accuracy_times")
def e12(cell: str, one: Evidence) -> Iterator[Part]:
    """Time of a round over that of the slower mechanism, minus 1, per model.

    On a CPU other programs stretch wall time, and not that of the processor; a GPU has wall time alone.
    """
    seconds = partial(one.series, "accuracy_times", _clock(one), defense="none")
    methods = ("sgd", "gd", "gsgd")
    times = {method: replace(seconds(where={"method": method}), name=f"seconds of {method}") for method in methods}
    for fast, slow in itertools.pairwise(methods):
        yield relative(times[fast], times[slow], f"{fast} against {slow}, {cell}", at_most=0.0)


def _clock(one: Evidence) -> str:
    """The time by which rounds are compared."""
    on_cpu = one.aside().series_if_any("accuracy_times", "round_cpu_s", defense="none", where={"method": "sgd"})
    return "round_cpu_s" if on_cpu else "round_wall_s"
