"""Tracks and the experiments of the grid behind them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from leakbench.attacks.base import ClientSetup
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Job
from leakbench.jobs.train import TrainJob
from leakbench.leaderboard.tracks import TRACKS
from leakbench.models.base import Network, build_network
from leakbench.planning.project import Project

PROJECT = Project(Path(__file__).resolve().parents[2])


@cache
def jobs(scale: str) -> dict[str, Job]:
    return dict(PROJECT.plan(scale).jobs_of("leaderboard"))


@pytest.mark.parametrize("scale", ["laptop", "full"])
def test_attacks_read_the_models_and_clients_of_their_tracks(scale: str) -> None:
    """No cell is planned to be infeasible."""
    networks: dict[tuple[str, str], Network] = {}
    attacks: set[str] = set()
    for path, job in jobs(scale).items():
        if not isinstance(job.kind, AttackJob) or job.attack is None or job.defense.label != "none":
            continue
        dataset, model = job.dataset.single(), job.model.single()
        if dataset.unit != "images":
            continue
        place = (job.dataset.label, job.model.label)
        if place not in networks:
            networks[place] = build_network(model, dataset.shape, dataset.classes, seed=0)
        samples = job.kind.batch_size * job.kind.users
        job.attack.single().check_clients(
            ClientSetup(model, networks[place], job.kind.local, (samples, *dataset.shape))
        )
        attacks.add(path.split("/")[-2])
    assert {"ig", "robbing", *(("spear", "cocktail") if scale == "full" else ())} <= attacks


@pytest.mark.parametrize("scale", ["smoke", "laptop", "full"])
def test_defenses_are_attacked_as_they_are_trained(scale: str) -> None:
    """Noise that is calibrated on a client's images has the same size in the losses and in the attacks of a line."""
    trained = {job.kind.images_per_client for job in jobs(scale).values() if isinstance(job.kind, TrainJob)}
    attacks = [
        job.kind
        for job in jobs(scale).values()
        if isinstance(job.kind, AttackJob) and job.dataset.single().unit == "images"
    ]
    assert attacks and {kind.calibration for kind in attacks} <= trained


def test_every_track_has_cells_at_full() -> None:
    experiments = {path.split("/")[3] for path in jobs("full")}
    for track in TRACKS:
        assert {track.undefended, track.defended, *track.training} <= experiments
