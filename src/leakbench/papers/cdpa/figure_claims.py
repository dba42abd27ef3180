"""Claims that the paper makes by its figures, and by the order of a table: Fig. 5, 8, 9, 10, 12 to 17, Table III.

Figures 9, 10 and 12 to 17 put accuracy beside what ROG reconstructs. The two are of different data and models, as they
are in the paper; of several trained models the largest counts, as there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from leakbench.lazy import np
from leakbench.papers.cdpa import PAPER
from leakbench.papers.cdpa.claims import (
    CDPA,
    GUESSED,
    LPIPS,
    POINT,
    PSNR,
    ROWS,
    SENT,
    SIZE,
    SSIM,
    accuracy,
    by_rog,
    carbon,
    harm,
    trained,
    worse,
)
from leakbench.report.claims import claim, each_cell, noting
from leakbench.report.comparisons import certain, difference, either, relative
from leakbench.report.evidence import Evidence, Series, jackknife_of, same_seeds
from leakbench.report.findings import Finding, Part, decide
from leakbench.report.labels import reads
from leakbench.report.leakage import blind_guess

stated = partial(claim, PAPER)

TRAINED_AS = {
    "grad-drop": "grad-drop",
    "cafl-1": "cafl",
    "jopeq-2": "jopeq",
    "laplace-1": "laplace",
    "soteria": "soteria",
}
"""Rows of Table III -> the label of the same mechanism in training."""
ORDER = ("none", "grad-drop", "soteria", "laplace-1", "jopeq-2", "cafl-1", SENT)
"""Table III by PSNR, the largest first."""
GRIDS = {
    "soteria-grid": "fraction",
    "sdq-grid": "bits",
    "qsgd-grid": "levels",
    "grad-drop-grid": "fraction",
    "cafl-grid": "fraction",
    "laplace-eps": "epsilon",
}
"""Baselines of Fig. 12 to 17 -> the swept parameter; signSGD and JoPEQ's triples have settings of their own."""
SINGLE = ("sign-sgd", "jopeq-1", "jopeq-2", "jopeq-3", "jopeq")
TRAINED_IN = {"laplace-eps": "utility_epsilon", "sign-sgd": "utility", "jopeq": "utility"}
"""Baselines that are trained in another experiment than ``utility_grids`` -> that one."""
CORNERS = ("accuracy", "carbon", "size", "privacy")
"""Corners of Fig. 10."""
SEEDLESS = ("carbon", "size")
"""Corners that no seed changes."""
TIMED_ONCE = "time was measured once for all seeds, which intervals do not show"
NEAR = 0.025
"""Accuracy that a usable setting may miss of CDPA's, as a part: what CDPA itself may lose in E16."""


@stated(
    "E24",
    "CDPA's training loss in the last round is at most a tenth above FedAvg's, for every model.",
    source="Fig. 5, lower row, which has no numbers; the margin is ours",
    experiments=(trained(CDPA, "none"),),
    champion=CDPA,
)
@each_cell("utility")
def e24(cell: str, one: Evidence) -> Iterator[Part]:
    """Loss over loss."""
    ours, theirs = (one.series("utility", "loss_curve", defense=defense) for defense in (CDPA, "none"))
    yield relative(ours.at([max(ours.points)]), theirs.at([max(theirs.points)]), cell, at_most=0.1)


@stated(
    "E25",
    "At the same rate Soteria hides more than GradDrop under DLG and under Inverting Gradients: its LPIPS is larger.",
    source="Section 6, text of Fig. 8",
    experiments=(GUESSED,),
)
@each_cell("inversion")
def e25(cell: str, one: Evidence) -> Iterator[Part | str]:
    """Soteria against GradDrop."""
    for attack in ("dlg", "ig"):
        metric, grows, note = harm(one, "inversion", attack, "soteria")
        blind = blind_guess(one, "inversion", metric)
        yield from (note, blind.note)
        read = partial(one.series, "inversion", metric, attack=attack)
        soteria, dropped = (blind.cap(read(defense=label)) for label in ("soteria", "grad-drop"))
        yield worse(soteria, dropped, f"{attack}, {cell}", metric, grows)


def _largest(evidence: Evidence, experiment: str) -> tuple[str, Evidence]:
    """The last cell of an experiment: the largest model."""
    return list(evidence.cells(experiment).items())[-1]


@stated(
    "E26",
    "CDPA is in the upper left corner of Fig. 9: no other row of Table III is more accurate by a tenth of a point or "
    "more, and every one has a larger SSIM under ROG.",
    source="Fig. 9; Tables III and IV have its numbers",
    experiments=(trained(CDPA, *TRAINED_AS.values()), by_rog(SENT, *TRAINED_AS)),
    champion=CDPA,
)
def e26(evidence: Evidence) -> Finding:
    """Accuracies, and SSIM."""
    (model, accurate), (attacked, seen) = _largest(evidence, "utility"), _largest(evidence, "rog")
    ours, alike = accuracy(accurate, "utility", CDPA), partial(seen.series, "rog", SSIM, attack="rog")
    blind = blind_guess(seen, "rog", SSIM)
    hidden, parts = blind.cap(alike(defense=SENT)), []
    for sent, label in TRAINED_AS.items():
        theirs = accuracy(accurate, "utility", label)
        parts.append(difference(ours, theirs, f"against {label}, {model}", "part", at_least=-POINT))
        parts.append(difference(blind.cap(alike(defense=sent)), hidden, f"against {sent}, {attacked}", "SSIM"))
    return noting(decide(evidence, parts), blind.note)


@stated(
    "E27",
    "CDPA is the most balanced defense of Fig. 10: its worst corner, scaled from the worst to the best defense, is "
    "better than that of every other row of Table III.",
    source="Fig. 10, which has no numbers; the scale is ours",
    experiments=(
        trained("none", CDPA, *TRAINED_AS.values()),
        reads("rog", defenses=("none", SENT, *TRAINED_AS), attacks="rog"),
    ),
    champion=CDPA,
)
def e27(evidence: Evidence) -> Finding:
    """CDPA's scaled scores minus the least of every other defense's.

    Not capped: the scale of Fig. 10 runs from the worst defense to the best, whatever either leaks.
    """
    (model, accurate), (attacked, seen) = _largest(evidence, "utility"), _largest(evidence, "rog")
    metric, grows, note = harm(seen, "rog", "rog", SENT, LPIPS, SSIM)
    labels = {"none": "none", **TRAINED_AS, SENT: CDPA}
    series = same_seeds(
        *(
            each
            for sent, label in labels.items()
            for each in (
                accuracy(accurate, "utility", label),
                accurate.series("utility", SIZE, defense=label),
                seen.series("rog", metric, defense=sent, attack="rog"),
            )
        )
    )
    jackknife = jackknife_of(*series)
    means = np.stack([jackknife.mean(each.values[0]) for each in series]).reshape(len(labels), 3, -1)
    emitted = [carbon(accurate, label) for label in labels.values()]
    times = np.broadcast_to([[[each]] for each, _ in emitted], (len(labels), 1, means.shape[-1]))
    means = np.concatenate([means[:, :1], times, means[:, 1:]], axis=1)  # in the order of CORNERS
    better = np.array([1.0, -1.0, -1.0, 1.0 if grows else -1.0])[:, None]  # carbon is time, times a constant
    scores = means * better
    scores[:, 1] = means[0, 1] / means[:, 1]
    low, high = scores.min(axis=0), scores.max(axis=0)
    scaled = np.where(high > low, (scores - low) / np.where(high > low, high - low, 1.0), 1.0)
    worst = scaled.min(axis=1)
    corners = [place for place in range(4) if (scaled[-1, place] < 1).any()] or [0]  # else it is the best by definition
    parts = []
    for place, (other, label) in itertools.product(corners, enumerate(TRAINED_AS.values(), start=1)):
        name = f"{CORNERS[place]} against {label}, {model}; {attacked}"
        meaning = f"scaled {CORNERS[place]} of cdpa minus the least scaled score of {label}"
        better = scaled[-1, place] - worst[other]
        if CORNERS[place] in SEEDLESS and np.ptp(better) < 1e-12:  # no seed changes the difference
            parts.append(certain(float(better[0]), name, meaning, at_least=0.0))
        else:
            parts.append(Part(name, jackknife.estimate(better), meaning, at_least=0.0))
    return noting(decide(evidence, parts), note, "" if emitted[0][1] else TIMED_ONCE)


@stated(
    "E28",
    "No setting of a baseline gives both: each is less accurate than CDPA by 2.5 points or more, or ROG's "
    "reconstructions are more like the images than CDPA's.",
    source="Fig. 12 to 17, which have no numbers; the margin is ours",
    experiments=(
        trained(CDPA, "sign-sgd", "jopeq"),
        reads("utility_epsilon", defenses="laplace-eps"),
        reads("utility_grids", defenses=(*(set(GRIDS) - {"laplace-eps"}), "jopeq-1", "jopeq-2", "jopeq-3")),
        by_rog(SENT),
        reads("rog_grids", defenses=(*GRIDS, *SINGLE), attacks="rog"),
    ),
    champion=CDPA,
)
def e28(evidence: Evidence) -> Finding:
    """CDPA against every setting, by accuracy or by unlikeness."""
    sizes = {name: _largest(evidence, name)[1] for name in ("utility", "utility_epsilon", "utility_grids")}
    (attacked, seen), grids = _largest(evidence, "rog"), _largest(evidence, "rog_grids")[1]
    ours, blind = accuracy(sizes["utility"], "utility", CDPA), blind_guess(seen, "rog", SSIM)
    hidden, parts = blind.cap(seen.series("rog", SSIM, defense=SENT, attack="rog")), []
    for label in (*GRIDS, *SINGLE):
        sweep = GRIDS.get(label)
        where = TRAINED_IN.get(label, "utility_grids")
        usable = accuracy(sizes[where], where, label, sweep)
        alike = blind.cap(grids.series("rog_grids", SSIM, defense=label, attack="rog", sweep=sweep))
        for point in usable.points:
            name = f"{label}{f' at {sweep} {point:g}' if sweep else ''}, {attacked}"
            parts.append(_one_or_the_other(name, (ours, usable.at([point])), (alike.at([point]), hidden)))
    return noting(decide(evidence, parts), blind.note)


def _one_or_the_other(name: str, accurate: tuple[Series, Series], alike: tuple[Series, Series]) -> Part:
    """The accuracy of CDPA beyond the margin, or the baseline's SSIM beyond CDPA's."""
    ours, theirs, shown, hidden = same_seeds(*accurate, *alike)
    return either(
        [
            difference(ours, theirs, f"{name}: accuracy", "part", at_least=NEAR),
            difference(shown, hidden, f"{name}: SSIM", "SSIM", at_least=0.0),
        ],
        name,
    )


@stated(
    "E29",
    "Under ROG, PSNR falls from no defense over GradDrop, Soteria, LDP, JoPEQ and CAFL to CDPA.",
    source="Table III, of one batch; the paper says so of CDPA alone",
    experiments=(by_rog(SENT, *ROWS),),
)
@each_cell("rog")
def e29(cell: str, one: Evidence) -> Iterator[Part | str]:
    """Each row against the next one."""
    blind = blind_guess(one, "rog", PSNR)
    yield blind.note
    for above, below in itertools.pairwise(ORDER):
        more, less = (blind.cap(one.series("rog", PSNR, defense=label, attack="rog")) for label in (above, below))
        yield difference(more, less, f"{above} against {below}, {cell}", "dB")
