"""Identities of jobs outlive every change of the code that changes no number: a record stays good.

``identities.json`` holds the digest of every job at every scale. Where an identity is meant to change, with a version
or the configuration, write the file anew: ``pytest -n0 tests/planning/test_identities.py --update-identities``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leakbench.planning.project import Project

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("identities.json")
SCALES = ("smoke", "laptop", "full")


def identities(scale: str) -> dict[str, dict[str, str]]:
    """Digests by the job's path within its experiment, by experiment."""
    digests: dict[str, dict[str, str]] = {}
    for path, job in Project(ROOT).plan(scale).jobs.items():
        experiment, _, cell = path.removeprefix(f"results/{scale}/{job.paper}/").partition("/")
        digests.setdefault(f"{job.paper}/{experiment}", {})[cell] = job.digest
    return digests


@pytest.mark.parametrize("scale", SCALES)
def test_every_job_keeps_its_identity(scale: str) -> None:
    expected = json.loads(FILE.read_text())[scale]
    actual = identities(scale)
    assert actual.keys() == expected.keys()
    for experiment, digests in expected.items():
        assert actual[experiment] == digests, experiment


@pytest.mark.skipif("not config.getoption('--update-identities')", reason="writes only when asked to")
def test_write_identities() -> None:
    FILE.write_text(json.dumps({scale: identities(scale) for scale in SCALES}, indent=0, sort_keys=True) + "\n")
