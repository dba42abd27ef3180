"""The tracks of the leaderboard: threat models with a version, which are never mixed.

A track's ensemble of attacks, its victims and its budget are those of its experiments in ``grid.yaml``. Whatever
changes a number of a track raises its version, and its rows begin anew.
"""

from __future__ import annotations

from typing import NamedTuple

from leakbench.metrics.assignment import ASSIGNED
from leakbench.report.labels import Reads, reads
from leakbench.report.style import IMAGE_REFERENCES

ASSIGNED_PSNR = ASSIGNED + "psnr"
ALLOWED = 0.02
"""Loss of accuracy at which defenses are ranked, as a part of the test images; that of ``allowed`` in the grid."""


class Track(NamedTuple):
    """A threat model.

    Attributes:
        key: a letter.
        version: of the track; rows of different versions are not compared.
        name: in words.
        undefended: experiment of the undefended gradient and the reference attackers.
        defended: experiment of the defenses.
        metric: PSNR per image in dB; of several images, whose order no attacker can know, after assignment.
        weaker: experiments, undefended and defended, of a weaker attacker with the same victims, whose attacks this one
            can run too; None without any.
    """

    key: str
    version: int
    name: str
    undefended: str
    defended: str
    metric: str = "psnr"
    weaker: tuple[str, str] | None = None

    @property
    def title(self) -> str:
        """``Track A (version 1): one message, untrained model``."""
        return f"Track {self.key} (version {self.version}): {self.name}"


TRACKS = (
    Track("A", 1, "one message about one image, untrained model", "single_undefended", "single"),
    Track("B", 2, "one message about eight images, labels inferred", "batch_undefended", "batch", ASSIGNED_PSNR),
    Track("C", 1, "one message about one image, along training", "trained_undefended", "trained"),
    Track("D", 2, "two local steps on four images, labels inferred", "local_undefended", "local", ASSIGNED_PSNR),
    Track("E", 1, "messages of three rounds about one image", "rounds_undefended", "rounds"),
    Track("F", 1, "the sum of four users, an image each, labels inferred", "sum_undefended", "sum", ASSIGNED_PSNR),
    Track(
        "G",
        1,
        "one message about eight images, to a server that changes the model",
        "malicious_undefended",
        "malicious",
        ASSIGNED_PSNR,
        weaker=("batch_undefended", "batch"),
    ),
    Track(
        "H",
        1,
        "the sum of four users, eight images each, to a server that changes the model",
        "malicious_sum_undefended",
        "malicious_sum",
        ASSIGNED_PSNR,
    ),
)

TRAINING = ("training_undefended", "training")
"""Experiments that measure utility and cost, for all tracks."""

READ: tuple[str | Reads, ...] = (
    *TRAINING,
    *(
        each
        for track in TRACKS
        # A track with a weaker one has its blind guesses.
        for each in (
            track.undefended if track.weaker else reads(track.undefended, attacks=IMAGE_REFERENCES),
            track.defended,
        )
    ),
)
"""Experiments that figures and tables read."""
