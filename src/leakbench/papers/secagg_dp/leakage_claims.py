"""Claims on the leakage of the sum of N users' updates, by attacks on single rounds; the paper has none.

The paper's premises are that a sum leaks less the more users there are, on average (eq. 9), that without noise it
hides no record in the worst case (Theorem 1), and that its mechanisms do. A negative effect of a trend speaks against
it. Intervals are over seeds, each of which draws the records that it asks about, the model, the batches and the
mechanism's randomness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from leakbench.lazy import np
from leakbench.papers.secagg_dp import PAPER
from leakbench.papers.secagg_dp.leakage import ATTACK, AUC, BATCHES, DRAWN, INVERSION, MEMBERSHIP, PSNR
from leakbench.report.claims import claim, each_cell
from leakbench.report.comparisons import at_each, difference, level, trend
from leakbench.report.evidence import Evidence, NotRun, Series
from leakbench.report.findings import Part
from leakbench.report.labels import reads

stated = partial(claim, PAPER)

NONE, SAMPLED, ISOTROPIC, FILLED = "none", "sampled-members", "isotropic-members", "filled-members"
MEAN_IMAGE = "mean_image"
FALLEN = 0.25
"""Part of its value at two users at which eq. 9's bound counts as small."""
CHANCE, BAND = 0.5, 0.05
NO_MORE = 0.5
"""dB by which an attack may exceed the mean image and show no more than it. Ours, as the claim is: nobody sees it."""
MEMBERS = reads(MEMBERSHIP, defenses=NONE)


def by_users(
    evidence: Evidence,
    experiment: str,
    metric: str,
    defense: str,
    attack: str | None = None,
    where: Mapping[str, str | float] | None = None,
) -> Series:
    """A metric over the number of users, each averaged by itself, since larger sums have more images."""
    count = "bits" if attack else "dimension"  # any metric that every record has once
    grid = evidence.aside().series(experiment, count, defense=defense, attack=attack, sweep="users", where=where)
    parts = {}
    for users in grid.points:
        setting = {**(where or {}), "users": users}
        with suppress(NotRun):  # such as a bound that says nothing of one user
            parts[users] = evidence.series(experiment, metric, defense=defense, attack=attack, where=setting)
    if not parts:
        raise NotRun(f"there is no {metric} of {defense} in {experiment}")
    first, *_ = parts.values()
    return replace(first, points=tuple(parts), values=np.concatenate([part.values for part in parts.values()]))


def variances(evidence: Evidence, defense: str) -> tuple[float, ...]:
    """The grid of sigma^2 of a mechanism, at its largest number of users."""
    aside = evidence.aside()
    first = max(users_of(evidence))
    return aside.series(MEMBERSHIP, AUC, defense=defense, sweep="variance", where={"users": first}).points


def users_of(evidence: Evidence) -> tuple[float, ...]:
    """Numbers of users at which membership is attacked without a defense."""
    return evidence.aside().series(MEMBERSHIP, "dimension", defense=NONE, sweep="users").points


@stated(
    "L1a",
    "Without any noise, reconstructions from the sum get worse as the number of users grows.",
    source="eq. 9, on average; the attack is ours",
    experiments=(reads(INVERSION, defenses=NONE, attacks=ATTACK),),
)
@each_cell(INVERSION)
def inversion_falls(cell: str, one: Evidence) -> Iterator[Part]:
    """Trend of the PSNR."""
    yield trend(by_users(one, INVERSION, PSNR, NONE, ATTACK), cell, "the number of users", rises=False)


@stated(
    "L1b",
    "Without any noise, membership of a record in the sum gets harder to see as the number of users grows.",
    source="eq. 9, on average; the attack is ours",
    experiments=(MEMBERS,),
)
@each_cell(MEMBERSHIP)
def membership_falls(cell: str, one: Evidence) -> Iterator[Part]:
    """Trend of the AUC."""
    yield trend(by_users(one, MEMBERSHIP, AUC, NONE), cell, "the number of users", rises=False)


@stated(
    "L1c",
    f"The largest sum shows no more of its images than the mean image, which needs no gradient, to {NO_MORE:g} dB.",
    source="ours: whether a sum alone hides images",
    experiments=(reads(INVERSION, defenses=NONE, attacks=(ATTACK, MEAN_IMAGE)),),
)
@each_cell(INVERSION)
def sum_hides_images(cell: str, one: Evidence) -> Iterator[Part]:
    """The mean image against the attack, at the largest number of users."""
    attacked, mean = (by_users(one, INVERSION, PSNR, NONE, attack) for attack in (ATTACK, MEAN_IMAGE))
    last = max(attacked.points)
    yield difference(mean.at([last]), attacked.at([last]), f"{cell}, {last:g} users", "dB", at_least=-NO_MORE)


@stated(
    "L2",
    f"Where eq. 9's bound has fallen to {FALLEN:g} of what it is for two users, membership of a record in the sum "
    "can still be seen.",
    source="eq. 9, which is of averages; the attack is ours",
    experiments=(MEMBERS, reads(BATCHES, defenses=NONE)),
)
@each_cell(MEMBERSHIP, BATCHES)
def seen_where_the_bound_is_small(cell: str, one: Evidence) -> Iterator[Part]:
    """A level per number of users, of users who take all records and of users who take batches."""
    for experiment, metric, words in ((MEMBERSHIP, AUC, ""), (BATCHES, DRAWN, ", batches")):
        areas = by_users(one, experiment, metric, NONE)
        bounds = by_users(one.aside(), experiment, "information_bound", NONE)
        bound_of = {users: float(np.nanmean(bound.values)) for users, bound in bounds.by_point()}
        for users, bound in bound_of.items():
            if bound <= FALLEN * bound_of[min(bound_of)]:
                yield level(areas.at([users]), f"{cell}{words}, {users:g} users", "AUC", at_least=CHANCE)


@stated(
    "L3",
    "Where members' gradients leave the span of all others in the sum, so that epsilon is infinite, Gaussian "
    "sampling without noise lets membership be seen.",
    source="Theorem 1, made an attack",
    experiments=(reads(MEMBERSHIP, defenses=SAMPLED),),
)
@each_cell(MEMBERSHIP)
def seen_where_epsilon_is_infinite(cell: str, one: Evidence) -> Iterator[Part]:
    """A level per number of users."""
    areas = by_users(one, MEMBERSHIP, AUC, SAMPLED)
    leaving = by_users(one.aside(), MEMBERSHIP, "leaving", SAMPLED)
    for users, area, part in at_each(areas, leaving):
        if np.nanmin(part.values) == 1:
            yield level(area, f"{cell}, {users:g} users", "AUC", at_least=CHANCE)


def _to_chance(cell: str, one: Evidence, defense: str) -> Iterator[Part]:
    variance = max(variances(one, defense))
    areas = by_users(one, MEMBERSHIP, AUC, defense, where={"variance": variance})
    last = max(areas.points)
    name = f"{cell}, sigma^2 {variance:g}, {last:g} users"
    yield level(areas.at([last]), name, "AUC", CHANCE - BAND, CHANCE + BAND)


for _key, _defense, _words in (("L4a", ISOTROPIC, "isotropic noise"), ("L4b", FILLED, "water-filling")):
    stated(
        _key,
        f"At the largest sigma^2 and number of users, {_words} brings membership to chance: within {BAND:g} of "
        f"{CHANCE:g}.",
        source="Theorem 4 and Table 1; the attack is ours",
        experiments=(reads(MEMBERSHIP, defenses=(NONE, _defense)),),
    )(each_cell(MEMBERSHIP)(partial(_to_chance, defense=_defense)))


@stated(
    "L5",
    "No attack sees more than (epsilon, delta) of the mechanism leaves to any.",
    source="Table 1 and Theorem 4, corrected; the bound on the AUC follows from the definition of (epsilon, delta)",
    experiments=(reads(MEMBERSHIP, defenses=(NONE, ISOTROPIC, FILLED)),),
)
@each_cell(MEMBERSHIP)
def within_the_guarantee(cell: str, one: Evidence) -> Iterator[Part]:
    """A difference per mechanism, variance and number of users that has a guarantee."""
    for defense in (ISOTROPIC, FILLED):
        for variance in variances(one, defense):
            where = {"variance": variance}
            try:
                bounds = by_users(one.aside(), MEMBERSHIP, "auc_bound", defense, where=where)
            except NotRun:  # no guarantee at this variance
                continue
            areas = by_users(one, MEMBERSHIP, AUC, defense, where=where)
            for users, bound, area in at_each(bounds, areas):
                yield difference(bound, area, f"{cell}, {defense}, sigma^2 {variance:g}, {users:g} users", "AUC")
