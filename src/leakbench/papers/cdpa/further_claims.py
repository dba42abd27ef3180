"""Claims that the paper does not make: about informed attackers, skewed clients and the privacy of a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from leakbench.federated.fixed_point import FixedPoint
from leakbench.lazy import torch
from leakbench.papers.cdpa import PAPER
from leakbench.papers.cdpa.checks import KEEP, keep_probabilities
from leakbench.papers.cdpa.claims import IMPUTED, LOST, OTHERS, PSNR, SENT, accuracy, beside_others, trained
from leakbench.papers.cdpa.common import MASK
from leakbench.randomness import Streams, generator
from leakbench.report.checks import Checked, agreement, checked, float64, required, theorem_of
from leakbench.report.claims import claim, each_cell
from leakbench.report.comparisons import at_each, difference, either, level
from leakbench.report.evidence import Evidence, NotRun, Series, jackknife_of, same_points, same_seeds
from leakbench.report.findings import Part
from leakbench.report.labels import Reads, reads
from leakbench.theory.bit_votes import composed_epsilon, epsilon_per_bit, likelihood_ratio, value_epsilon

stated = partial(claim, PAPER)
theorem = partial(theorem_of, PAPER)

SENT_ALL = "cdpa-rog-all"
"""Label of CDPA under attack that flips bits of every layer."""
SENT_DELTA, TRAINED_DELTA = "cdpa-rog-delta", "cdpa-ig-delta"
"""Labels of CDPA whose words hold the change of the parameters: of ROG's local training, and of one step of 0.1."""
SKEWED = reads("skewed", defenses=("none", "cdpa-variants"))
LAYERS = "cdpa-layers"
"""Label of CDPA in training, by the layers that it protects."""
IN_WORDS = "the paper's words on layers; its public code, and so CDPA elsewhere here, protects all linear layers"
RESTORED = 2.0
"""dB that an informed attacker may miss of the undefended reconstruction."""
RECOGNISED = 15.0
"""dB after imputation at which outliers, and not privacy, kept the plain attacker away; Table VII has 9.4."""


def informed(attack: str) -> list[str]:
    """Labels of the attackers that know CDPA and are else like ``attack``."""
    ways = ("cleared", "robust") if attack == "ig" else ("cleared", "dropped", "robust", "averaged")
    return [f"{attack}-{way}" for way in (*ways, "adaptive")]


def _knowing(experiment: str, attack: str, defense: str) -> tuple[Reads, Reads]:
    """An attack on the undefended update, and attackers who know a defense, on both."""
    adaptive = reads(f"{experiment}_adaptive", defenses=("none", defense), attacks=informed(attack))
    return reads(experiment, defenses="none", attacks=attack), adaptive


def restored(
    cell: str,
    one: Evidence,
    attack: str,
    experiments: tuple[str, str],
    defense: str,
    attackers: Iterable[str],
    metric: str = "psnr",
    unit: str = "dB",
    missed: float = RESTORED,
) -> Iterator[Part | str]:
    """Compare the informed attackers of a defense with each of the same attackers on the undefended update.

    They search for as long there, so that none gains by its longer search. The attack that they wrap is one of those on
    the undefended update. Attackers who miss their gate are left out, unless all do.

    Args:
        cell: name of the data set and model.
        one: its evidence.
        attack: label of the attack inside.
        experiments: with the undefended attack, and with the informed attackers.
        defense: label of the defense that they know.
        attackers: their labels.
        metric: what they reach; more is better for them.
        unit: of the metric.
        missed: how much less than the undefended attack they may reach.

    Raises:
        NotRun: no informed attacker has numbers with and without the defense.
    """
    plain = one.series(experiments[0], metric, defense="none", attack=attack)
    labels = [label for label in attackers if _pair(one.aside(), experiments[1], metric, defense, label)]
    if not labels:
        raise NotRun(f"no informed attacker has numbers of {defense} and of none in {experiments[1]}")
    void = [label for label in labels if _is_void(one, experiments[1], metric, label)]
    strong = [label for label in labels if label not in void] or labels
    yield f"without {', '.join(void)}, too weak on the undefended update" if len(strong) < len(labels) else ""
    known = {label: pair for label in strong if (pair := _pair(one, experiments[1], metric, defense, label))}
    series = same_seeds(plain, *(each for pair in known.values() for each in pair))
    jackknife = jackknife_of(*series)
    undefended, *means = (jackknife.mean(each.values[0]) for each in series)
    ours, theirs = means[::2], means[1::2]
    gaps = ", ".join(
        f"{label} {here[0] - there[0]:+.1f}" for label, here, there in zip(known, ours, theirs, strict=True)
    )
    for rival, reached in zip((attack, *known), (undefended, *theirs), strict=True):
        against = f"minus that of {rival} undefended ({unit})"
        parts = [
            Part("", jackknife.estimate(best - reached), f"{metric} of {label} {against}", at_least=-missed)
            for label, best in zip(known, ours, strict=True)
        ]
        note = f"{unit}: {gaps}" if rival == attack else ""
        yield replace(either(parts, f"{cell}, {rival}"), note=note)


def _pair(one: Evidence, experiment: str, metric: str, defense: str, attack: str) -> tuple[Series, Series] | None:
    """Numbers of an attacker with a defense and without; None where either was not measured."""
    read = partial(one.series_if_any, experiment, metric, attack=attack)
    defended, free = read(defense=defense), read(defense="none")
    return None if defended is None or free is None else (defended, free)


def _is_void(one: Evidence, experiment: str, metric: str, attack: str) -> bool:
    """Whether an attack missed its gate."""
    aside = one.aside()
    aside.series_if_any(experiment, metric, defense="none", attack=attack)
    return bool(aside.void)


UNDER_ROG, UNDER_IG = ("rog", "rog_adaptive"), ("inversion", "inversion_adaptive")
"""Experiments with an attack, and with attackers who know CDPA."""


KNOWING_ROG = (
    "Under ROG, an attacker who clears the flipped bits, leaves the layer out, fits robustly, takes the median of "
    "several messages or maximises the likelihood of one"
)
KNOWING_IG = (
    "Under Inverting Gradients, an attacker who clears the flipped bits, fits robustly or maximises the likelihood of "
    "the message"
)
COMES_NEAR = "comes within 2 dB of what the best of them reconstructs from the undefended update"
ARGUED = "Not in the paper, which argues that such attackers fail (section 6)"


def _informed_claim(key: str, who: str, against: str, experiments: tuple[str, str], attack: str, defense: str) -> None:
    """State a claim about the best informed attacker of a defense."""
    judge = partial(
        restored,
        attack=attack,
        experiments=experiments,
        defense=defense,
        attackers=informed(attack),
        metric=PSNR if attack == "rog" else "psnr",  # of single images
    )
    stated(key, f"{who} {COMES_NEAR}{against}.", source=ARGUED, experiments=_knowing(experiments[0], attack, defense))(
        each_cell(*experiments)(judge)
    )


_informed_claim("X1a", KNOWING_ROG, "", UNDER_ROG, "rog", SENT)
_informed_claim("X1b", KNOWING_ROG, ", where all layers are protected", UNDER_ROG, "rog", SENT_ALL)
_informed_claim("X1c", KNOWING_IG, "", UNDER_IG, "ig", SENT)
_informed_claim("X1d", KNOWING_ROG, ", where words hold the change of the parameters", UNDER_ROG, "rog", SENT_DELTA)
_informed_claim(
    "X1e", KNOWING_IG, ", where words hold the change of the parameters, as in training", UNDER_IG, "ig", TRAINED_DELTA
)


@stated(
    "X2",
    "Outliers replaced by zero, ROG reaches 15 dB at p = 0.98.",
    source="Not in the paper: Table VII has 9.4 dB",
    experiments=(reads("rog_p", defenses="cdpa-rog-p", attacks=IMPUTED[1]),),
)
@each_cell("rog_p")
def x2(cell: str, one: Evidence) -> Iterator[Part]:
    """PSNR after imputation."""
    read = partial(one.series, "rog_p", PSNR, defense="cdpa-rog-p", attack=IMPUTED[1], sweep="p")
    yield level(read().at([0.98]), cell, "dB", at_least=RECOGNISED)


@stated(
    "X3",
    "Where clients' labels differ, voting on bits costs accuracy.",
    source="Not in the paper, whose clients are i.i.d.",
    experiments=(SKEWED,),
)
@each_cell("skewed")
def x3(cell: str, one: Evidence) -> Iterator[Part]:
    """FedAvg minus the vote, for every concentration of the labels."""
    plain = accuracy(one, "skewed", "none", "alpha")
    voted = accuracy(one, "skewed", "cdpa-variants", "alpha", variant="as_printed")
    for alpha, theirs, ours in at_each(plain, voted):
        yield difference(theirs, ours, f"alpha = {alpha:g}, {cell}", "part")


def _last_layer(one: Evidence, experiment: str, sweep: str | None = None) -> Series:
    """Accuracies of CDPA that protects the last layer alone."""
    return accuracy(one, experiment, LAYERS, sweep, layers="last")


@stated(
    "X13a",
    "With its last layer alone protected, CDPA is at least as accurate as every other defense, to a tenth of a point.",
    source=f"Table IV; {IN_WORDS}",
    experiments=(trained(*OTHERS), reads("readings", defenses=LAYERS)),
)
@each_cell("utility", "readings")
def x13a(cell: str, one: Evidence) -> Iterator[Part]:
    """CDPA minus the others."""
    yield from beside_others(cell, one, _last_layer(one, "readings"))


@stated(
    "X13b",
    "With its last layer alone protected, CDPA loses at most 0.2 points of FedAvg's accuracy.",
    source=f"Table IV; {IN_WORDS}",
    experiments=(trained("none"), reads("readings", defenses=LAYERS)),
)
@each_cell("utility", "readings")
def x13b(cell: str, one: Evidence) -> Iterator[Part]:
    """CDPA minus FedAvg."""
    yield difference(_last_layer(one, "readings"), accuracy(one, "utility", "none"), cell, "part", at_least=-LOST)


@stated(
    "X13c",
    "Where clients' labels differ, voting on the bits of the last layer alone costs accuracy.",
    source="Not in the paper, whose clients are i.i.d.; X3 is of all linear layers",
    experiments=(reads("skewed", defenses=("none", LAYERS)),),
)
@each_cell("skewed")
def x13c(cell: str, one: Evidence) -> Iterator[Part]:
    """FedAvg minus the vote, for every concentration of the labels."""
    for alpha, theirs, ours in at_each(accuracy(one, "skewed", "none", "alpha"), _last_layer(one, "skewed", "alpha")):
        yield difference(theirs, ours, f"alpha = {alpha:g}, {cell}", "part")


@stated(
    "X4",
    "Where clients' labels differ, the unbiased mean of the same words recovers more than half of what voting loses.",
    source="Not in the paper: `corrected`",
    experiments=(SKEWED,),
)
@each_cell("skewed")
def x4(cell: str, one: Evidence) -> Iterator[Part]:
    """The corrected server's accuracy minus the middle between the vote's and FedAvg's."""
    variant = partial(accuracy, one, "skewed", "cdpa-variants", "alpha")
    series = same_points(
        variant(variant="corrected"), variant(variant="as_printed"), accuracy(one, "skewed", "none", "alpha")
    )
    for alpha in series[0].points:
        at = [each.at([alpha]) for each in series]
        jackknife = jackknife_of(*at)
        corrected, voted, plain = (jackknife.mean(each.values[0]) for each in at)
        meaning = "accuracy of corrected minus the middle between vote and FedAvg (part)"
        estimate = jackknife.estimate(corrected - (voted + plain) / 2)
        yield Part(f"alpha = {alpha:g}, {cell}", estimate, meaning, at_least=0.0)


@theorem(
    "X5",
    "The epsilon that the paper states is of one bit: masked bits add up, and two values that differ in a bit in clear "
    "are told apart with certainty.",
    source="Not in the paper, whose Table VIII lists epsilon of a bit beside accuracy",
)
def epsilon_of_a_bit_is_not_that_of_a_message() -> Checked:
    """Masked bits add up, and the others tell values apart with certainty.

    Of ``k`` masked bits in each of ``n`` values the enumerated ratio is ``e^(k n epsilon)``; of words that differ in a
    bit in clear no output is possible from both.
    """
    keeps = keep_probabilities("composition", 10)
    slacks = []
    for masked, values in ((1, 2), (2, 1), (2, 2), (2, 3)):
        ratios = float64([likelihood_ratio(float(keep), masked * values) for keep in keeps])
        composed = float64([composed_epsilon(float(keep), masked, values) for keep in keeps])
        of_bit = float64([epsilon_per_bit(float(keep)) for keep in keeps])
        slacks += [ratios.log() / of_bit - 1, required(agreement(ratios, composed.exp()))]
    form, trials = FixedPoint(), 2000
    draw = generator(PAPER, "theory", "words in clear")
    first, second = torch.randint(-4095, 4096, (2, 1, trials), generator=draw).double()
    sent = [
        form.flip(form.encode(values / form.scale)[0], MASK, 0.6, Streams([(PAPER, "theory", "flips", number)]))
        for number, values in enumerate((first, second))
    ]
    clear = [words & ~form.mask(MASK) for words in sent]
    apart = (clear[0] != clear[1]) == (first != second)
    slacks.append(required(apart.double() - 0.5))
    slacks.append(required(float64([value_epsilon(keep, len(MASK)) for keep in KEEP]) - 1e300))
    return checked(slacks, len(keeps) * 4 + trials, "excess of a message's epsilon over that of a bit, relative")


@stated(
    "X6",
    "What ROG makes of CDPA is further from the image than plain grey, so that PSNR says how far the search strayed.",
    source="Not in the paper, which ranks defenses by it (Table III)",
    experiments=(reads("rog", defenses=("none", SENT), attacks=("grey", "rog")),),
)
@each_cell("rog")
def x6(cell: str, one: Evidence) -> Iterator[Part]:
    """PSNR of grey minus that of ROG on CDPA."""
    grey = one.series("rog", PSNR, defense="none", attack="grey")
    sent = one.series("rog", PSNR, defense=SENT, attack="rog")
    yield difference(grey, sent, cell, "dB")
