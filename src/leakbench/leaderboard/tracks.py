"""The tracks of the leaderboard: threat models with a version, which are never mixed.

A track's ensemble of attacks, its victims and its budget are those of its experiments in ``grid.yaml``. Whatever
changes a number of a track raises its version, and its rows begin anew.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from leakbench.metrics.assignment import ASSIGNED
from leakbench.report.labels import Reads, reads
from leakbench.report.style import IMAGE_REFERENCES, SENTENCE_REFERENCES

ALLOWED = 0.02
"""Loss of accuracy at which defenses are ranked, as a part of the test images; that of ``allowed`` in the grid."""


TRAINING = ("training_undefended", "training")
"""Experiments that measure utility and cost on images, without a defense and with one."""


class Measure(NamedTuple):
    """A number of a reconstruction that says what leaked; more is less private.

    Attributes:
        metric: of records, per victim.
        name: for axes and captions.
        unit: behind numbers.
        factor: from the metric's unit.
        references: attackers that guess, by label.
        most: what counts as all: an image is seen whole long before its PSNR ends, and a few such would be the mean.
    """

    metric: str
    name: str
    unit: str
    factor: float
    references: Collection[str]
    most: float = math.inf

    def __str__(self) -> str:
        """``PSNR (dB)``."""
        return f"{self.name} ({self.unit})"


PSNR = Measure("psnr", "PSNR", "dB", 1.0, ("class_mean", *IMAGE_REFERENCES), most=50.0)
"""Leakage of a single image, whose label is known."""
ASSIGNED_PSNR = PSNR._replace(metric=ASSIGNED + PSNR.metric, references=tuple(IMAGE_REFERENCES))
"""Leakage of several images, whose order no attacker can know."""
TOKENS = Measure("token_recovery", "tokens found", "%", 100.0, tuple(SENTENCE_REFERENCES))
"""Leakage of a sentence: the part of its tokens that its reconstruction holds, wherever they stand."""


_ON_IMAGES, _BY_PIXELS = "acts on images, and clients hold sentences", "differentiates by pixels, and tokens have none"
OF_IMAGES: Mapping[str, str] = {
    "natural-channel": _ON_IMAGES,
    "white-channel": _ON_IMAGES,
    "personalized-channel": _ON_IMAGES,
    "soteria": _BY_PIXELS,
    "optimal-noise": _BY_PIXELS,
    "optimal-pruning": _BY_PIXELS,
    "ats": _ON_IMAGES,
    "ats-random": _ON_IMAGES,
    "precode": _ON_IMAGES,
}
"""Defenses that do not apply to sentences, and why."""


class Track(NamedTuple):
    """A threat model.

    Attributes:
        key: a letter.
        version: of the track; rows of different versions are not compared.
        name: in words.
        undefended: experiment of the undefended gradient and the reference attackers.
        defended: experiment of the defenses.
        measure: of leakage.
        training: experiments that measure utility and cost, without a defense and with one.
        without: defenses that cannot be here, and why.
        weaker: experiments, undefended and defended, of a weaker attacker with the same victims, whose attacks this one
            can run too; None without any.
    """

    key: str
    version: int
    name: str
    undefended: str
    defended: str
    measure: Measure = PSNR
    training: tuple[str, str] = TRAINING
    without: Mapping[str, str] = {}
    weaker: tuple[str, str] | None = None

    @property
    def title(self) -> str:
        """``Track A (version 1): one message about one image``."""
        return f"Track {self.key} (version {self.version}): {self.name}"


TRACKS = (
    Track("A", 7, "one message about one image, label known, untrained model", "single_undefended", "single"),
    Track("B", 6, "one message about eight images, labels inferred", "batch_undefended", "batch", ASSIGNED_PSNR),
    Track("C", 6, "one message about one image, label known, along training", "trained_undefended", "trained"),
    Track("D", 6, "two local steps on four images, labels inferred", "local_undefended", "local", ASSIGNED_PSNR),
    Track("E", 6, "messages of three rounds about one image, label known", "rounds_undefended", "rounds"),
    Track("F", 6, "the sum of four users, an image each, labels inferred", "sum_undefended", "sum", ASSIGNED_PSNR),
    Track(
        "G",
        5,
        "one message about eight images, to a server that changes the model",
        "malicious_undefended",
        "malicious",
        ASSIGNED_PSNR,
        weaker=("batch_undefended", "batch"),
    ),
    Track(
        "H",
        5,
        "the sum of four users, eight images each, to a server that changes the model",
        "malicious_sum_undefended",
        "malicious_sum",
        ASSIGNED_PSNR,
    ),
    Track(
        "I",
        4,
        "one message about eight images, under a fully connected model, labels inferred",
        "connected_undefended",
        "connected",
        ASSIGNED_PSNR,
    ),
    Track(
        "T",
        2,
        "one message about one sentence, label known, untrained model",
        "text_undefended",
        "text",
        TOKENS,
        ("text_training_undefended", "text_training"),
        OF_IMAGES,
    ),
)

READ: tuple[str | Reads, ...] = (
    *dict.fromkeys(name for track in TRACKS for name in track.training),
    *(
        each
        for track in TRACKS
        # A track with a weaker one has its blind guesses.
        for each in (
            track.undefended if track.weaker else reads(track.undefended, attacks=track.measure.references),
            track.defended,
        )
    ),
)
"""Experiments that figures and tables read."""
