"""Claims on real per-record gradients: the paper's conditions, its noise and its theorem (E20 to E28).

Every data set, model and measured round is a part of E20 to E24. They are about records at hand: that gradients lie in
a span, or eigenvalues are large, is no guarantee for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from leakbench.lazy import np
from leakbench.papers.secagg_dp import PAPER
from leakbench.report.claims import claim
from leakbench.report.comparisons import certain, level, relative
from leakbench.report.evidence import Evidence, NotRun, Series, same_seeds
from leakbench.report.findings import Finding, Part, decide
from leakbench.report.labels import reads

stated = partial(claim, PAPER)

MEASURED, TOY = ("spectra", "spectra_cnn"), "toy"
NONE = "none"
SPECTRA = tuple(reads(experiment, defenses=NONE) for experiment in MEASURED)
ROUNDS = reads(TOY, defenses=NONE)
FEW = 10
"""Users that do not suffice, in E26."""


def _measured(evidence: Evidence) -> Iterator[tuple[str, Callable[[str], Series], Callable[[str], Series]]]:
    """Every data set and model by name, with its metrics by rounds; those of the last function count no seeds."""
    for experiment in MEASURED:
        for cell, local in evidence.cells(experiment).items():
            counted, aside = (
                partial(each.series, experiment, defense=NONE, sweep="round") for each in (local, local.aside())
            )
            yield cell, counted, aside


def _cells(evidence: Evidence, *metrics: str) -> Iterator[tuple[str, list[Series]]]:
    """A name and the metrics, of one point each, of every data set, model and measured round."""
    for cell, metric_of, _ in _measured(evidence):
        measured = [replace(metric_of(metric), name=WORDS.get(metric, metric)) for metric in metrics]
        for point in measured[0].points:
            yield f"{cell}, round {point:g}", [series.at([point]) for series in measured]


WORDS = {
    "leaving_pooled": "records that leave the span of all others",
    "saved": "noise saved by water-filling",
    "excess_at_epsilon": "excess of water-filling, by the paper's bounds",
    "excess_at_epsilon_repaired": "excess of water-filling, by the repaired bounds",
}
"""Names of metrics in verdicts."""


@stated(
    "E20",
    "Where a model has as many coordinates as there are records, or more, all gradients are linearly independent: "
    "every one leaves the span of all others, so that the condition of Theorem 1 fails for every record.",
    source="Theorem 1 and section 5; the count is ours",
    experiments=SPECTRA,
)
def e20(evidence: Evidence) -> Finding:
    """The rank over the number of gradients, in cells with K >= N D. Some may leave by less than Table S4 counts."""
    parts = []
    for name, (rank, pooled, size) in _cells(evidence, "pooled_rank", "pooled", "dimension"):
        if float(size.values.min()) >= float(pooled.values.max()):
            share = replace(rank, name="rank over the number of gradients", values=rank.values / pooled.values)
            least = 1 - 0.5 / float(pooled.values.max())  # what is more is all of them
            parts.append(level(share, name, "1: independent", at_least=least))
    return decide(evidence, parts)


@stated(
    "E21",
    "Where there are more records than coordinates, the gradients of the records at hand leave that span no more, but "
    "for less than a tenth of them: the condition of Theorem 1 does not tell.",
    source="Theorem 1; our reading of it on data",
    experiments=SPECTRA,
)
def e21(evidence: Evidence) -> Finding:
    """The part of records that leave, in cells with K < N D."""
    parts = []
    for name, (leaving, pooled, size) in _cells(evidence, "leaving_pooled", "pooled", "dimension"):
        if float(size.values.max()) < float(pooled.values.min()):
            parts.append(level(leaving, name, "part of the records", at_most=0.1))
    return decide(evidence, parts)


@stated(
    "E22",
    "Every user's covariance is singular, so that Assumption 3 fails.",
    source="Assumption 3 and section 4.3",
    experiments=SPECTRA,
)
def e22(evidence: Evidence) -> Finding:
    """Directions without variance, of every user."""
    parts = []
    for name, (rank, size) in _cells(evidence, "rank", "dimension"):
        empty = replace(rank, name="K minus the rank of a user's gradients", values=size.values - rank.values)
        parts.append(_least(empty, name, "directions", at_least=0.5))
    return decide(evidence, parts)


def _least(series: Series, name: str, unit: str, at_least: float) -> Part:
    """The least number over seeds and users, of what holds for all gradients: a check, and no test."""
    return certain(float(np.nanmin(series.values)), name, f"least {series.name} ({unit})", at_least)


@stated(
    "E23",
    "The gradients of a linear softmax classifier have rank (classes - 1) (varying pixels + 1) at most, which is below "
    "K: Assumption 3 fails for it with any number of such records.",
    source="section 4.3; the bound is ours",
    experiments=SPECTRA,
)
def e23(evidence: Evidence) -> Finding:
    """Rank, bound and number of coordinates of linear models."""
    parts = []
    for cell, metric_of, aside in _measured(evidence):
        try:
            bound = aside("rank_bound")
        except NotRun:  # no linear model
            continue
        rank, size = metric_of("pooled_rank"), metric_of("dimension")
        bound, rank, size = same_seeds(bound, rank, size)
        over = replace(rank, name="bound minus rank", values=bound.values - rank.values)
        under = replace(rank, name="K minus bound", values=size.values - bound.values)
        for point in rank.points:
            name = f"{cell}, round {point:g}"
            parts += [_least(each.at([point]), name, "dimensions", at_least=-0.5) for each in (over, under)]
    return decide(evidence, parts)


def _levels(series: Series) -> Iterator[tuple[int, Series]]:
    """A series with a list of values as one series per place in the list."""
    for index in range(series.values.shape[-1]):
        yield index, replace(series, values=series.values[..., index : index + 1])


def _by_level(evidence: Evidence, metrics: Sequence[str], grid: str, part: Callable[..., Part] = level) -> list[Part]:
    """A part per cell, metric and level of its grid, whose noise has to be none or more."""
    parts = []
    for cell, metric_of, aside in _measured(evidence):
        metric_of("loss")  # says how many seeds there are; the numbers of a list are no batches
        values = aside(grid).values[0, 0]
        for metric in metrics:
            for index, series in _levels(replace(aside(metric), name=WORDS[metric])):
                for point, one in series.by_point():
                    name = f"{cell}, round {point:g}, {grid} {values[index]:g}"
                    parts.append(part(one, name, "part of isotropic noise's trace", at_least=0.0))
    return parts


@stated(
    "E24",
    "At equal sigma^2 water-filling adds less noise than isotropic noise on real spectra.",
    source="section 5.1, Fig. 4",
    experiments=SPECTRA,
)
def e24(evidence: Evidence) -> Finding:
    """The part saved, at every sigma^2."""
    return decide(evidence, _by_level(evidence, ["saved"], "variance", _least))


@stated(
    "E25a",
    "At equal proven epsilon water-filling adds less noise than isotropic noise on real spectra.",
    source="section 5.1, as stated",
    experiments=SPECTRA,
)
def e25a(evidence: Evidence) -> Finding:
    """Minus the excess by the paper's bounds, at every epsilon."""
    parts = [
        Part(part.name, -part.estimate, f"minus {part.meaning}", at_least=0.0)
        for part in _by_level(evidence, ["excess_at_epsilon"], "epsilon")
    ]
    return decide(evidence, parts)


@stated(
    "E25b",
    "At equal proven epsilon it adds more, by the paper's bounds and by the repaired ones.",
    source="section 5.1; our correction",
    experiments=SPECTRA,
)
def e25b(evidence: Evidence) -> Finding:
    """The excess by both pairs of bounds."""
    metrics = ["excess_at_epsilon", "excess_at_epsilon_repaired"]
    return decide(evidence, _by_level(evidence, metrics, "epsilon"))


def _by_clip(evidence: Evidence) -> Iterator[tuple[float, Callable[[str], Series]]]:
    """Every clipping norm, with its metrics by rounds, ``[rounds, seeds, numbers of users]``."""
    for clip in evidence.swept(TOY, "clip"):
        where = {"clip": clip}
        evidence.series(TOY, "loss", defense=NONE, sweep="round", where=where)  # says how many seeds there are
        yield clip, partial(evidence.aside().series, TOY, defense=NONE, sweep="round", where=where)


@stated(
    "E26",
    f"Even where records outnumber coordinates, {FEW} users are too few for Theorem 2 to give epsilon = 1 for a round "
    "of the trained model.",
    source="Theorem 2, Remark 1",
    experiments=(ROUNDS,),
)
def e26(evidence: Evidence) -> Finding:
    """One over epsilon, 0 where there is none, by clipping norm in the last measured round."""
    parts = []
    for clip, metric in _by_clip(evidence):
        rho, users = metric("rho"), metric("users").values[0, 0]
        few, point = int(np.flatnonzero(users <= FEW)[-1]), rho.points[-1]
        try:
            epsilon = metric("epsilon_pooled").at([point])
        except NotRun:  # there is none in any round
            epsilon = replace(rho, name="none", values=np.full_like(rho.values, np.nan)).at([point])
        inverse = np.nan_to_num(1 / epsilon.values[..., few : few + 1])
        name = f"C = {clip:g}, N = {users[few]:g}, round {point:g}"
        parts.append(level(replace(epsilon, name="1 / epsilon", values=inverse), name, "0: none", at_most=1.0))
    return decide(evidence, parts)


@stated(
    "E27",
    "While the model is trained, the smallest eigenvalues that Theorem 2 needs fall.",
    source="ours, beside Theorem 2",
    experiments=(ROUNDS,),
)
def e27(evidence: Evidence) -> Finding:
    """The floor of all users' covariances in the last measured round over that in the first, by clipping norm."""
    parts = []
    for clip, metric in _by_clip(evidence):
        floor, users = metric("pooled_floor"), metric("users").values[0, 0]
        if len(floor.points) < 2:
            raise NotRun("one round alone was measured")
        (*_, (_, series)) = _levels(floor)
        ends = (("last", series.points[-1]), ("first", series.points[0]))
        last, first = (replace(series.at([point]), name=f"Lambda in the {name} round") for name, point in ends)
        parts.append(relative(last, first, f"C = {clip:g}, N = {users[-1]:g}", at_most=0.0))
    return decide(evidence, parts)


@stated(
    "E28",
    "Epsilon of Theorem 2 falls with the number of users, where the theorem says anything.",
    source="Theorem 2, Remark 1",
    experiments=(ROUNDS,),
)
def e28(evidence: Evidence) -> Finding:
    """The least step of rho = D Lambda / C^2, which epsilon falls in, with the number of users in every measured round.

    From where rho exceeds 1; below, the theorem gives no epsilon. A sum over more users is no smaller, so that nothing
    is tested.
    """
    parts = []
    for clip, metric in _by_clip(evidence):
        rho = metric("rho")
        for point, values in zip(rho.points, rho.values, strict=True):
            steps = np.diff(values, axis=-1)[values[:, :-1] > 1]
            if steps.size:
                name = f"C = {clip:g}, round {point:g}"
                parts.append(certain(float(steps.min()), name, "least step of rho with N", at_least=0.0))
    if not parts:
        raise NotRun("rho exceeds 1 in no measured round, so that the theorem gives no epsilon")
    return decide(evidence, parts)
