"""Claims of the paper's figures, and further ones, checked against our experiments.

A positive effect speaks for the paper, unless the effect has to stay within a band. Where the paper speaks of every
data set and model, each pair that an experiment holds is a part of the claim. A metric rises by its ranks within
seeds; steps against the trend are listed. Where claims compare what defenses protect (E5b, E5c, E9c, E10, X2), no error
of gradient inversion counts beyond the best guess without a gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from leakbench.lazy import np
from leakbench.metrics.defense_capability import dra_improvement, mia_improvement
from leakbench.papers.channel import PAPER
from leakbench.papers.channel.common import ARCHITECTURES, UNDEFENDED, printed
from leakbench.report.claims import claim, each_cell
from leakbench.report.comparisons import all_within, at_each, certain, difference, either, level, relative, trend
from leakbench.report.evidence import Evidence, NotRun, Series, jackknife_of, same_points, same_seeds
from leakbench.report.findings import Finding, Part, decide
from leakbench.report.labels import reads
from leakbench.report.leakage import NO_REFERENCE, blind_guess
from leakbench.report.style import IMAGE_REFERENCES

if TYPE_CHECKING:
    from leakbench.report.inference import Array, Jackknife

stated = partial(claim, PAPER)

ACCURACY, INVERSION, AUC = "accuracy", "inversion_mse", "auc/"
IG, POSTERIOR, ONE_IMAGE = "ig", "ig-posterior", "ig-one"
MSE = "mse_input"
CHANNELS = ("natural", "white", "personalized")
"""Experiments of released models; each sweeps kappa of the defense of the same label."""
DP = ("dp-sgd", "dp-psac")
LIKENESS = ("psnr", "ssim", "cosine")
GRIDS = ((50.0, 500.0), (100.0, 800.0), (200.0, 1000.0), (300.0, 1500.0))
"""Capacities of the Natural Channel in the paper, and those of the two others."""
READ_OFF = 0.01
"""Accuracy or defense capability that counts as none: Fig. 15 prints no numbers, and is not read off more exactly."""
CHANNEL_COST, DP_COST = 0.11, 0.5
"""Overheads of Table 2: none of the channel's is larger, none of DP-SGD's is smaller."""
COST_BAND = 0.25
"""Largest part by which the seconds that the channel adds differ among models; 18 % in Table 2."""
EIGENVALUE_BAND = 0.03
"""Largest relative distance of eigenvalues from the printed ones."""
FULL_SIZE = {"cifar10": 50_000, "fashion": 60_000}
"""Images of the training splits that the printed eigenvalues are of."""
NATURAL_300, FRESH_OR_ONCE = "natural-300", "natural-300-noise"
BATCHED = ("dp-sgd-1.3", "none", "gaussian-0.01")
"""Defenses of Fig. 6."""
REMOVED, BOUNDED = "eigen-removed", "personalized-all"
INVERTED = ("natural-all", "white-all", BOUNDED)

RELEASED = tuple(reads(channel, defenses=channel) for channel in CHANNELS)
BARE, STEPS = reads(UNDEFENDED, defenses="none"), reads("steps", defenses=NATURAL_300)
COST = reads("cost", defenses="none")
INVERSIONS = reads("inversion", defenses=INVERTED, attacks=IG)
GUESSED = reads("inversion", defenses=("none", *INVERTED), attacks=(IG, *IMAGE_REFERENCES))
"""The same with the reference attackers."""
ADAPTED = reads("inversion_adaptive", defenses=INVERTED, attacks=POSTERIOR)
GUESSES_OF_MEANS, MEAN_IMAGE = ("mean_image", "grey"), ("mean_image",)
"""Reference attackers of Fig. 6, and of Fig. 8."""


def _trends(
    evidence: Evidence,
    experiments: Sequence[str],
    metric: str,
    *,
    rises: bool,
    defense: str | None = None,
    sweep: str = "kappa",
    attack: str | None = None,
) -> Iterator[Part]:
    """Trends of a metric over a parameter, for every data set and model of every experiment."""
    for experiment in experiments:
        for cell, one in evidence.cells(experiment).items():
            series = one.series(experiment, metric, defense=defense or experiment, attack=attack, sweep=sweep)
            yield trend(series, f"{metric}, {defense or experiment}, {cell}", sweep, rises=rises)


def strongest_membership_attack(evidence: Evidence) -> str:
    """The metric of the attack with the largest mean AUC on undefended models; it judges all defenses."""
    names = evidence.metrics(UNDEFENDED, AUC, defense="none")
    areas = {
        name: float(np.nanmean(evidence.series(UNDEFENDED, name, defense="none").values))
        for name in names
        if not name.endswith("_noisy")
    }
    if not areas:
        raise NotRun("no membership attack was measured on undefended models")
    return max(areas, key=lambda name: areas[name])


@stated(
    "E1",
    "Under every channel, accuracy rises with kappa, for every data set and model.",
    source="Fig. 9, 18 and 21",
    experiments=RELEASED,
)
def e1(evidence: Evidence) -> Finding:
    """Accuracy over kappa."""
    return decide(evidence, list(_trends(evidence, CHANNELS, ACCURACY, rises=True)))


@stated(
    "E2",
    "Under every channel, the error of model inversion falls with kappa, for every data set and model.",
    source="Fig. 10, 20 and 23",
    experiments=RELEASED,
)
def e2(evidence: Evidence) -> Finding:
    """Model inversion over kappa."""
    return decide(evidence, list(_trends(evidence, CHANNELS, INVERSION, rises=False)))


@stated(
    "E3",
    "At one kappa, accuracy rises and the error of model inversion falls with the number of steps, for every data set "
    "and model.",
    source="Fig. 12, 13 and 24",
    experiments=(STEPS,),
)
def e3(evidence: Evidence) -> Finding:
    """Both over the number of steps."""
    over = partial(_trends, evidence, ("steps",), defense=NATURAL_300, sweep="steps")
    return decide(evidence, [*over(ACCURACY, rises=True), *over(INVERSION, rises=False)])


@stated(
    "E4",
    "The AUC of membership inference rises with kappa and with the number of steps, and is largest without a defense, "
    "for every data set and model.",
    source="Fig. 19, 22, 25 and 26",
    experiments=(BARE, *RELEASED, STEPS),
)
def e4(evidence: Evidence) -> Finding:
    """The strongest membership attack over kappa, steps, and against the undefended model."""
    parts: list[Part] = []
    for cell, one in evidence.cells(UNDEFENDED).items():
        metric = strongest_membership_attack(one)
        undefended = one.series(UNDEFENDED, metric, defense="none")
        for experiment in CHANNELS:
            if cell not in evidence.cells(experiment):
                continue
            series = one.series(experiment, metric, defense=experiment, sweep="kappa")
            parts.append(trend(series, f"{experiment}, {cell}", "kappa", rises=True))
            largest = series.at(series.points[-1:])
            name = f"undefended against {experiment} at {series.points[-1]:g}, {cell}"
            parts.append(difference(undefended, largest, name, "AUC"))
        if cell in evidence.cells("steps"):
            series = one.series("steps", metric, defense=NATURAL_300, sweep="steps")
            parts.append(trend(series, f"steps, {cell}", "steps", rises=True))
    return decide(evidence, parts)


@stated(
    "E5a",
    "The error of gradient inversion falls with kappa under every channel and on every data set.",
    source="Fig. 14 and 30",
    experiments=(INVERSIONS,),
)
def e5a(evidence: Evidence) -> Finding:
    """Gradient inversion over kappa."""
    parts = [
        part
        for defense in INVERTED
        for part in _trends(evidence, ("inversion",), MSE, rises=False, defense=defense, attack=IG)
    ]
    return decide(evidence, parts)


class _Inverted:
    """Capped errors of gradient inversion over kappa, by channel: of every attacker who was run on this data set.

    Attributes:
        note: on attackers who were not.
    """

    def __init__(self, cell: str, one: Evidence) -> None:
        blind = blind_guess(one, "inversion", MSE)
        read = partial(one.series, metric=MSE, sweep="kappa")
        errors = {label: [read("inversion", defense=label, attack=IG)] for label in INVERTED}
        alone = ""
        try:
            adapted = [read("inversion_adaptive", defense=label, attack=POSTERIOR) for label in INVERTED]
        except NotRun:
            alone = f"{cell}: by the paper's attacker alone"
        else:
            errors = {label: same_points(*errors[label], knows) for label, knows in zip(INVERTED, adapted, strict=True)}
        self._errors = {label: [blind.cap(each) for each in series] for label, series in errors.items()}
        self.note = "; ".join(filter(None, (alone, blind.note)))

    def points(self, label: str) -> tuple[float, ...]:
        """Capacities of a channel."""
        return self._errors[label][0].points

    def larger(self, label: str, kappa: float, natural_kappa: float, name: str) -> Part:
        """A channel's error over that of the Natural Channel, each by the attacker who errs less on all victims."""
        ours, theirs = (
            [each.at([point]) for each in self._errors[channel]]
            for channel, point in ((label, kappa), (INVERTED[0], natural_kappa))
        )
        series = same_seeds(*ours, *theirs)
        jackknife = jackknife_of(*series)
        means = [jackknife.mean(each.values[0]) for each in series]
        least, natural = (np.minimum.reduce(part) for part in (means[: len(ours)], means[len(ours) :]))
        meaning = f"smallest {MSE} of {label} over that of {INVERTED[0]}, minus 1"
        return Part(name, jackknife.estimate(least / natural - 1, ratio=True), meaning, at_least=0.0)


THE_STRONGER = "by the stronger of the paper's attacker and the one who knows the noise's covariance"


@stated(
    "E5b",
    f"At equal kappa the error of gradient inversion, {THE_STRONGER}, is larger under the White and the Personalized "
    "Channel than under the Natural Channel.",
    source="Fig. 14 and 30, whose attacker does not adapt",
    experiments=(GUESSED, ADAPTED),
)
@each_cell("inversion")
def e5b(cell: str, one: Evidence) -> Iterator[Part | str]:
    """White and personalized noise over natural noise, at every kappa."""
    inverted = _Inverted(cell, one)
    for label in INVERTED[1:]:
        for kappa in inverted.points(label):
            if kappa in inverted.points(INVERTED[0]):
                yield inverted.larger(label, kappa, kappa, f"{label} at {kappa:g}, {cell}")
    yield inverted.note


@stated(
    "E5c",
    "On the paper's own grids, 50 to 300 nats for the Natural Channel and 500 to 1,500 for the others, setting by "
    f"setting, the error of gradient inversion, {THE_STRONGER}, is larger under the White and the Personalized "
    "Channel.",
    source="Fig. 14 and 30, whose attacker does not adapt; their grids are those of Fig. 9, 18 and 21 as we read them",
    experiments=(GUESSED, ADAPTED),
)
@each_cell("inversion")
def e5c(cell: str, one: Evidence) -> Iterator[Part | str]:
    """White and personalized noise over natural noise, the smallest capacity against the smallest, and so on."""
    inverted = _Inverted(cell, one)
    for label in INVERTED[1:]:
        for small, large in GRIDS:
            if small in inverted.points(INVERTED[0]) and large in inverted.points(label):
                name = f"{label} at {large:g} against natural-all at {small:g}, {cell}"
                yield inverted.larger(label, large, small, name)
    yield inverted.note


@stated(
    "E6",
    "PSNR, SSIM and cosine similarity rise with kappa: those of model inversion under the Natural Channel, those of "
    "gradient inversion under every channel.",
    source="Fig. 27 to 29 and 31 to 33",
    experiments=(reads("natural", defenses="natural"), INVERSIONS),
)
def e6(evidence: Evidence) -> Finding:
    """Likeness of what is reconstructed, over kappa."""
    parts: list[Part] = []
    for name in LIKENESS:
        parts += _trends(evidence, ("natural",), f"inversion_{name}", rises=True)
        for defense in INVERTED:
            parts += _trends(evidence, ("inversion",), name, rises=True, defense=defense, attack=IG)
    return decide(evidence, parts)


class _Plane:
    """Accuracy and defense capability of every setting of the defenses on one data set.

    Improvements are those over the undefended model of the same seed, and are then averaged, as in the figures.
    """

    def __init__(self, one: Evidence) -> None:
        metric = strongest_membership_attack(one)
        read: list[tuple[str, str, str | None]] = [(UNDEFENDED, "none", None)]
        read += [(channel, channel, "kappa") for channel in CHANNELS] + [("dp", label, "multiplier") for label in DP]
        series = [
            one.series(experiment, name, defense=defense, sweep=sweep)
            for experiment, defense, sweep in read
            for name in (ACCURACY, metric, INVERSION)
        ]
        series = same_seeds(*series)
        self.jackknife: Jackknife = jackknife_of(*series)
        _, auc, mse = (one.values for one in series[:3])
        rest = iter(series[3:])
        self.points = {label: one.points for (_, label, _), one in zip(read, series[::3], strict=True)}
        """By defense, its settings."""
        self.accuracy: dict[str, Array] = {}
        """By defense, of every setting: mean accuracies ``[1 + S, settings]``."""
        self._improved: dict[str, tuple[Array, Array]] = {}
        for _, label, _ in read[1:]:
            accuracies, areas, errors = (next(rest).values for _ in range(3))
            self.accuracy[label] = self.jackknife.mean(accuracies)
            of_mia = _where_known(mia_improvement, areas, auc)
            self._improved[label] = of_mia, _where_known(dra_improvement, errors, mse)

    def capability(self, label: str) -> Array:
        """GDC, the mean of the seeds', ``[1 + S, settings]``; NaN where every run was lost."""
        mia, dra = self._improved[label]
        return self.jackknife.mean((mia + dra) / 2)

    def hypervolume(self, label: str) -> Array:
        """The area of accuracies and capabilities that some setting reaches both of, ``[1 + S]``; from 0 and 0."""
        accuracy, capability = self.accuracy[label], np.maximum(self.capability(label), 0.0)  # NaN stays NaN
        order = np.argsort(-accuracy, axis=1)
        accuracy, capability = (np.take_along_axis(part, order, 1) for part in (accuracy, capability))
        best = np.maximum.accumulate(capability, axis=1)
        widths = accuracy - np.concatenate([accuracy[:, 1:], np.zeros_like(accuracy[:, :1])], axis=1)
        area: Array = (widths * best).sum(axis=1)
        return area

    def mean_improvements(self, labels: Sequence[str]) -> tuple[Array, Array]:
        """Mean ``IMP_MIA`` and ``IMP_DRA`` over all settings of some defenses, each ``[1 + S]``."""
        mia, dra = (
            np.concatenate([self.jackknife.mean(self._improved[label][part]) for label in labels], axis=1)
            for part in (0, 1)
        )
        return mia.mean(axis=1), dra.mean(axis=1)


def _where_known(improvement: Callable[..., Array], *values: Array) -> Array:
    """An improvement, which rejects NaN, where all values are numbers; NaN elsewhere."""
    values = tuple(np.broadcast_arrays(*values))
    known = np.isfinite(values).all(axis=0)
    improved = np.full(known.shape, np.nan)
    improved[known] = improvement(*(value[known] for value in values))
    return improved


PLANE = (BARE, *RELEASED, reads("dp", defenses=DP))


each_plane = each_cell(*(entry.experiment for entry in PLANE))


@stated(
    "E7a",
    "No setting of DP-SGD or DP-PSAC has both an accuracy and a defense capability that are higher by more than "
    f"{READ_OFF:g} than those of a setting of the Natural Channel.",
    source="Fig. 15",
    experiments=PLANE,
)
@each_plane
def e7a(cell: str, one: Evidence) -> Iterator[Part]:
    """The lead of each Natural setting over each of DP, in one of both numbers."""
    plane = _Plane(one)
    ours = plane.accuracy["natural"], plane.capability("natural")
    for label in DP:
        theirs = plane.accuracy[label], plane.capability(label)
        settings = itertools.product(enumerate(plane.points["natural"]), enumerate(plane.points[label]))
        for (i, kappa), (j, multiplier) in settings:
            name = f"kappa {kappa:g} over {label} {multiplier:g}, {cell}"
            leads = [
                Part(name, plane.jackknife.estimate(a[:, i] - b[:, j]), f"lead in {number}", at_least=-READ_OFF)
                for number, a, b in zip(("accuracy", "capability"), ours, theirs, strict=True)
            ]
            yield either(leads, name)


@stated(
    "E7b",
    "In the plane of accuracy and defense capability, the Natural Channel's settings cover a larger area than those of "
    "DP-SGD and DP-PSAC.",
    source="Fig. 15",
    experiments=PLANE,
)
@each_plane
def e7b(cell: str, one: Evidence) -> Iterator[Part]:
    """The difference of hypervolumes."""
    plane = _Plane(one)
    for label in DP:
        gap = plane.hypervolume("natural") - plane.hypervolume(label)
        meaning = "hypervolume of the Natural Channel minus that of a DP method (accuracy times capability)"
        yield Part(f"{label}, {cell}", plane.jackknife.estimate(gap), meaning, at_least=0.0)


@stated(
    "E8",
    "On average the channels improve more against reconstruction than DP does, DP more against membership inference, "
    "and the largest defense capability is a channel's.",
    source="Fig. 16",
    experiments=PLANE,
)
@each_plane
def e8(cell: str, one: Evidence) -> Iterator[Part]:
    """Mean improvements of the channels against those of DP, and a channel's capability over each DP setting's."""
    plane = _Plane(one)
    (our_mia, our_dra), (dp_mia, dp_dra) = plane.mean_improvements(CHANNELS), plane.mean_improvements(DP)
    for name, gap, meaning in (
        ("reconstruction", our_dra - dp_dra, "mean IMP_DRA of the channels minus that of DP"),
        ("membership", dp_mia - our_mia, "mean IMP_MIA of DP minus that of the channels"),
    ):
        yield Part(f"{name}, {cell}", plane.jackknife.estimate(gap), meaning, at_least=0.0)
    channels = [(label, place) for label in CHANNELS for place in range(len(plane.points[label]))]
    for label in DP:
        for place, multiplier in enumerate(plane.points[label]):
            rival = plane.capability(label)[:, place]
            leads = [
                Part(
                    "",
                    plane.jackknife.estimate(plane.capability(ours)[:, at] - rival),
                    f"GDC of {ours} minus DP's",
                    0.0,
                )
                for ours, at in channels
            ]
            yield either(leads, f"capability over {label} {multiplier:g}, {cell}")


@stated(
    "E9a",
    "With the batch size, the error of the batch's mean image falls under DP-SGD, rises without a defense, and rises "
    "more under constant noise.",
    source="Fig. 6, if the mean of local data is that of the batch",
    experiments=(reads("batch_size", defenses=BATCHED, attacks=ONE_IMAGE),),
)
def e9a(evidence: Evidence) -> Finding:
    """Slopes of the error over the logarithm of the batch size.

    Not capped: means of larger batches are guessed better without a gradient, so that capped errors would fall where
    nothing leaks. E9c takes errors as parts of the guess's.
    """
    return _slopes(evidence, "batch_size")


@stated(
    "E9b",
    "With the batch size, the error of the data set's mean image falls under DP-SGD, rises without a defense, and "
    "rises more under constant noise.",
    source="Fig. 6, if the mean of local data is that of the data set",
    experiments=(reads("dataset_mean", defenses=BATCHED, attacks=ONE_IMAGE),),
)
def e9b(evidence: Evidence) -> Finding:
    """The same against the mean training image.

    Not capped: whoever has other images knows their mean without a gradient, so that no error would be left.
    """
    return _slopes(evidence, "dataset_mean")


@stated(
    "E9c",
    "The same holds of the error of the batch's mean image as a part of that of the best guess without a gradient, "
    "beyond which no error counts.",
    source="Not in the paper: Fig. 6 as leakage",
    experiments=(reads("batch_size", defenses=BATCHED, attacks=(ONE_IMAGE, *GUESSES_OF_MEANS)),),
)
def e9c(evidence: Evidence) -> Finding:
    """Slopes of what is left of the guess's error, whose victims are those of the same batch size."""
    return _slopes(evidence, "batch_size", leaked=True)


def _slopes(evidence: Evidence, experiment: str, *, leaked: bool = False) -> Finding:
    """Trends of the error, or of its part of the guess's, over the logarithm of the batch size.

    Raises:
        NotRun: there is one batch size alone, or no guess.
    """
    read = partial(evidence.series, experiment, MSE, attack=ONE_IMAGE, sweep="batch_size")
    series, meaning = [read(defense=label) for label in BATCHED], "slope of the MSE over ln B"
    if leaked:
        blind = blind_guess(evidence, experiment, MSE, attacks=GUESSES_OF_MEANS, sweep="batch_size")
        if blind.series is None:
            raise NotRun(NO_REFERENCE)
        series = [*map(blind.cap, series), blind.series]
        meaning = "slope of the MSE, as a part of the best guess's, over ln B"
    series = same_points(*series)
    jackknife = jackknife_of(*series)
    means = [jackknife.mean(one.values) for one in series]
    if leaked:
        guess = means.pop()
        means = [one / guess for one in means]
    dp, undefended, constant = (_slope(np.log(series[0].points), one) for one in means)
    more = jackknife.estimate(constant - undefended)
    return decide(
        evidence,
        [
            Part("DP-SGD", jackknife.estimate(-dp), f"{meaning}, sign turned", at_least=0.0),
            Part("undefended", jackknife.estimate(undefended), meaning, at_least=0.0),
            Part("constant noise", more, f"{meaning}, minus undefended", at_least=0.0),
        ],
    )


def _slope(x: Array, y: Array) -> Array:
    """Slope of the least-squares line, ``[P]`` and ``[..., P] -> [...]``.

    Raises:
        NotRun: there is one point alone.
    """
    if len(x) < 2:
        raise NotRun("a slope needs two batch sizes")
    centred = x - x.mean()
    slope: Array = (y - y.mean(axis=-1, keepdims=True)) @ centred / (centred**2).sum()
    return slope


@stated(
    "E10",
    "Removing the first eigen-direction of the images raises the error of gradient inversion more than removing the "
    "second, and that more than removing the eleventh, on every data set.",
    source="Fig. 8",
    experiments=(reads("compression", defenses=("none", REMOVED), attacks=(IG, *MEAN_IMAGE)),),
)
@each_cell("compression")
def e10(cell: str, one: Evidence) -> Iterator[Part | str]:
    """Differences between directions that follow each other, of capped errors."""
    blind = blind_guess(one, "compression", MSE, attacks=MEAN_IMAGE)
    yield blind.note
    series = blind.cap(one.series("compression", MSE, defense=REMOVED, attack=IG, sweep="direction"))
    for before, after in itertools.pairwise(series.points):
        name = f"direction {before:g} against {after:g}, {cell}"
        yield difference(series.at([before]), series.at([after]), name, "squared normalised input")


@stated(
    "E11",
    "Noise on the data costs less than 11 % of the training time of every model, in seconds that differ by less than "
    "25 % from model to model; DP-SGD costs more than half of it, and more for larger models.",
    source="Table 2",
    experiments=(COST,),
)
def e11(evidence: Evidence) -> Finding:
    """Overheads, and seconds of what the channel does once: wall time on a GPU, processor time on a CPU."""
    sized: list[tuple[float, str, Series]] = []
    parts: list[Part] = []
    seconds: dict[str, Series] = {}
    for cell, one in evidence.cells("cost").items():
        read, clock = partial(one.series, "cost", defense="none"), _clock(one)
        once = read(f"overhead_once{clock}", where={"method": "channel"})
        opacus = read(f"overhead{clock}", where={"method": "opacus"})
        parts.append(level(once, f"channel, {cell}", "part of SGD's time", at_most=CHANNEL_COST))
        parts.append(level(opacus, f"DP-SGD, {cell}", "part of SGD's time", at_least=DP_COST))
        parameters = float(read("parameters", where={"method": "sgd"}).values.max())
        sized.append((parameters, cell, opacus))
        seconds[cell] = read(f"once{clock or '_wall'}_s", where={"method": "channel"})
    for (_, smaller, less), (_, larger, more) in itertools.pairwise(sorted(sized, key=lambda entry: entry[0])):
        parts.append(difference(more, less, f"DP-SGD, {larger} against {smaller}", "part of SGD's time"))
    parts += all_within(seconds, COST_BAND, "channel, all models: ")
    return decide(evidence, parts)


def _clock(one: Evidence) -> str:
    """Ending of the metrics by which one compares: processor time on a CPU, wall time on a GPU, which has no other."""
    where = {"method": "opacus"}
    return "_cpu" if one.aside().series_if_any("cost", "overhead_cpu", defense="none", where=where) else ""


@stated(
    "E14",
    "Noise of a capacity on the parameters, calibrated at every step, costs more training time than noise of that "
    "capacity on the data, for every model.",
    source="Section 5.1, which prints no numbers",
    experiments=(COST,),
)
@each_cell("cost")
def e14(cell: str, one: Evidence) -> Iterator[Part]:
    """The overhead of the parameter channel minus that of what the data channel does once."""
    read, clock = partial(one.series, "cost", defense="none"), _clock(one)
    parameter, once = (
        read(f"{metric}{clock}", where={"method": method})
        for metric, method in (("overhead", "parameter_channel"), ("overhead_once", "channel"))
    )
    yield difference(parameter, once, cell, "part of SGD's time")


@stated(
    "E12",
    "The largest, second and eleventh eigenvalue of the training images are the printed ones, within 3 %.",
    source="Fig. 8",
    experiments=(reads("calibration", defenses="none", datasets=FULL_SIZE),),
)
def e12(evidence: Evidence) -> Finding:
    """Eigenvalues over the printed ones; only of the data sets and sizes that the paper's are of."""
    parts = []
    for cell, one in evidence.cells("calibration").items():
        dataset = cell.split(" ")[0]
        images = one.series("calibration", "images", defense="none").values.max()
        if FULL_SIZE.get(dataset) != images:
            continue
        eigenvalues = one.series("calibration", "pixel_eigenvalues", defense="none").values[0, 0]
        of_paper = printed("fig08")
        for direction, eigenvalue in of_paper.loc[of_paper["dataset"] == dataset, ["direction", "eigenvalue"]].values:
            ratio = eigenvalues[int(direction)] / eigenvalue - 1
            name, meaning = f"direction {direction:g}, {cell}", "eigenvalue over the printed one, minus 1"
            parts.append(certain(ratio, name, meaning, at_least=-EIGENVALUE_BAND, at_most=EIGENVALUE_BAND))
    if not parts:
        raise NotRun("eigenvalues are printed for the whole training splits of CIFAR-10 and Fashion-MNIST")
    return decide(evidence, parts)


@stated(
    "E13",
    "The models have the numbers of parameters that the paper prints, to three digits.",
    source="Table 2",
    experiments=(reads("architectures", defenses="none", models=ARCHITECTURES),),
)
@each_cell("architectures")
def e13(cell: str, one: Evidence) -> Iterator[Part]:
    """Parameters over the printed ones, by architecture."""
    of_paper = printed("table02").drop_duplicates("architecture").set_index("architecture")["parameters"]
    model, tensors = cell.split(" ")[-1], one.metrics("architectures", "", defense="none")
    if model in of_paper.index and tensors:
        count = sum(float(one.series("architectures", name, defense="none").values.max()) for name in tensors)
        number = float(of_paper[model])
        last_digit = 0.005 * 10 ** math.floor(math.log10(number)) / number
        meaning = "parameters over the printed number, minus 1"
        yield certain(count / number - 1, model, meaning, at_least=-last_digit, at_most=last_digit)


@stated(
    "X1",
    "Noise drawn afresh at every step protects less against membership inference than noise drawn once.",
    source="Not in the paper, which does not say when noise is drawn; the total it states fits neither",
    experiments=(BARE, reads("noise_mode", defenses=FRESH_OR_ONCE)),
)
@each_cell(UNDEFENDED, "noise_mode")
def x1(cell: str, one: Evidence) -> Iterator[Part]:
    """AUC under fresh noise minus AUC under noise drawn once."""
    metric = strongest_membership_attack(one)
    fresh, once = (
        one.series("noise_mode", metric, defense=FRESH_OR_ONCE, where={"noise": mode}) for mode in ("fresh", "once")
    )
    yield difference(fresh, once, cell, "AUC")


@stated(
    "X2",
    "An attacker who knows the covariance of the channel's noise reconstructs better than one who does not.",
    source="Not in the paper: the posterior mean of the reconstruction",
    experiments=(GUESSED, ADAPTED),
)
@each_cell("inversion", "inversion_adaptive")
def x2(cell: str, one: Evidence) -> Iterator[Part | str]:
    """Capped error of the plain attacker over that of the adaptive one, at every kappa."""
    blind = blind_guess(one, "inversion", MSE)
    yield blind.note
    for defense in INVERTED:
        plain, adaptive = (
            blind.cap(one.series(experiment, MSE, defense=defense, attack=attack, sweep="kappa"))
            for experiment, attack in (("inversion", IG), ("inversion_adaptive", POSTERIOR))
        )
        for kappa, theirs, ours in at_each(plain, adaptive):
            yield relative(theirs, ours, f"{defense} at {kappa:g}, {cell}", at_least=0.0)


@stated(
    "X3",
    "The noise that Theorem 3's bound asks for leaves at least half of the capacity that was asked for.",
    source="Not in the paper, whose Appendix G says that the bound gives part of the benefit away",
    experiments=(reads("calibration", defenses=BOUNDED),),
)
@each_cell("calibration")
def x3(cell: str, one: Evidence) -> Iterator[Part]:
    """The capacity reached over kappa, minus one half, at every kappa."""
    series = one.series("calibration", "capacity", defense=BOUNDED, sweep="kappa")
    for kappa, reached in zip(series.points, series.values[:, 0, 0], strict=True):
        part = reached / kappa - 0.5
        yield certain(part, f"{kappa:g} nats, {cell}", "capacity over kappa, minus 1/2", at_least=0.0)


@stated(
    "X4",
    "Without a defense the error of gradient inversion is larger on a trained network than on an untrained one.",
    source="Not in the paper, which does not say whether the network is trained",
    experiments=(
        reads("inversion", defenses="none", attacks=IG),
        reads("inversion_trained", defenses="none", attacks=IG),
    ),
)
@each_cell("inversion", "inversion_trained", gated=False)
def x4(cell: str, one: Evidence) -> Iterator[Part]:
    """Error after training over that before; an attack that trained networks defeat is the point, so gates are moot."""
    before, after = (
        one.series(experiment, MSE, defense="none", attack=IG) for experiment in ("inversion", "inversion_trained")
    )
    yield relative(after, before, cell, at_least=0.0)
