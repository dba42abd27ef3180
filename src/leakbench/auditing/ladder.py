"""The attacks that an audit tries, from the weakest knowledge to the strongest, and those that it does not try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from leakbench.attacks.analytic import Analytic
from leakbench.attacks.base import Attack
from leakbench.attacks.presets import DLGWolfe, IGLibrary, IGOptimalDefense
from leakbench.attacks.regularisers import TotalVariation
from leakbench.attacks.spear import Spear

SMOOTH, SMOOTH_BATCH, FAINT = 1e-2, 2e-2, 1e-4
"""Weights of total variation: the leaderboard's on single images and on batches, and that of the authors' script."""
SMOOTHNESS = "the range of valid pixels; that images are smooth"


class Rung(NamedTuple):
    """An attack, and what its attacker knows beside the model and the update.

    Attributes:
        name: short, for files.
        title: for people.
        knows: in words; empty where it knows nothing more.
        attack: of the suite; labels that it takes are inferred from the update unless ``labels``.
        labels: whether it is given the true labels.
        restarts: independent starts.
    """

    name: str
    title: str
    knows: str
    attack: Attack
    labels: bool
    restarts: int

    @property
    def searches(self) -> bool:
        """Whether it is a search, which can start anywhere; else it computes the images."""
        return self.attack.name not in (Analytic.name, Spear.name)


def rungs(batch: int, *, labels_known: bool, iterations: int, restarts: int) -> Iterator[Rung]:
    """The attacks to try on one client's update, the weakest knowledge first.

    Presets of the suite: of Inverting Gradients, those with which the leaderboard attacks single images and batches,
    besides one with little smoothness, since the right weight depends on how much the model's gradients differ.

    Args:
        batch: images behind the update.
        labels_known: whether the labels are known.
        iterations: evaluations of the objective per start.
        restarts: starts of every search.
    """
    if batch == 1:
        yield Rung("analytic", "Ratio of two gradients of the first layer", "", Analytic(), False, 1)
    else:
        yield Rung("spear", "SPEAR, the factors of the first layer's gradient", "", Spear(), False, 1)
    dlg = DLGWolfe(iterations=iterations)
    yield Rung("dlg", "Deep Leakage from Gradients, labels searched for", "", dlg, False, restarts)
    smooth = _inverting(batch, iterations, SMOOTH if batch == 1 else SMOOTH_BATCH)
    yield Rung("ig", "Inverting Gradients, labels inferred", SMOOTHNESS, smooth, False, restarts)
    faint = _inverting(batch, iterations, FAINT)
    yield Rung("ig-faint", "Inverting Gradients, faint prior, labels inferred", SMOOTHNESS, faint, False, restarts)
    if labels_known:
        knows = f"the labels; {SMOOTHNESS}"
        yield Rung("ig-labels", "Inverting Gradients, labels known", knows, smooth, True, restarts)
        yield Rung("ig-faint-labels", "Inverting Gradients, faint prior, labels known", knows, faint, True, restarts)


def _inverting(batch: int, iterations: int, weight: float) -> Attack:
    """Inverting Gradients as the leaderboard runs it on single images or on batches, with a weight of smoothness."""
    preset = IGOptimalDefense if batch == 1 else IGLibrary
    return preset(iterations=iterations, regularisers=(TotalVariation(weight=weight),))


def not_tried(*, labels_known: bool, truth: bool) -> Iterator[tuple[str, str]]:
    """Attackers of the literature that an audit of one update leaves out, each with the reason."""
    if not labels_known:
        yield "attackers who know the labels", "none were given (--labels)"
    yield "learned inversion, generative priors and denoisers", "they need images of the same kind, of no client"
    yield "attackers who see several rounds of the same client", "one update was given"
    yield "a malicious server", "it changes the model before it is sent, and this model is taken as it is"
    yield "statistics of BatchNorm sent with the update", "they are in no file that was given"
    yield "membership inference", "it asks whether a given image was there, and not what was there"
    if not truth:
        yield "comparison with the true images", "none were given (--truth)"
