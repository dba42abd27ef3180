"""Why jobs left no record, in plain words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from leakbench.running import work
from leakbench.workflow import endings

RECORD = "results/full/paper/experiment/data/model/defense/train/all.json"
SINCE = "2026-11-23T10:00:00+00:00"
LOG = "logs/full/paper/experiment/data/model/defense/train/all.log"


def started(root: Path, **changes: object) -> None:
    """The state of a job on a host that gave no sign of life for long."""
    path = work.folder_of(root, RECORD) / work.STATE
    path.parent.mkdir(parents=True)
    state = {"digest": "0", "host": "node12", "pid": 1, "slurm_job_id": "417", "started": SINCE, "error": None}
    path.write_text(json.dumps(state | changes))
    os.utime(path, (0, 0))


def test_nothing_is_said_where_nothing_went_wrong(tmp_path: Path) -> None:
    assert list(endings.endings(tmp_path, SINCE)) == []


def test_what_a_job_said(tmp_path: Path) -> None:
    started(tmp_path, error="OSError: the disk is gone")
    count, _, line = endings.endings(tmp_path, SINCE)
    assert "1 of the jobs" in count
    assert line == f"  {RECORD}: failed: OSError: the disk is gone ({LOG})"


def test_an_earlier_run_is_not_spoken_of(tmp_path: Path) -> None:
    started(tmp_path, error="OSError: the disk is gone", started="2026-11-23T09:59:59+00:00")
    assert list(endings.endings(tmp_path, SINCE)) == []


@pytest.mark.parametrize("word", endings.REASONS)
def test_what_slurm_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    started(tmp_path)
    monkeypatch.setattr(endings, "_slurm_state", lambda job: word if job == "417" else None)
    *_, line = endings.endings(tmp_path, SINCE)
    assert line == f"  {RECORD}: was killed, in SLURM job 417 on node12: {endings.REASONS[word]} ({word}) ({LOG})"


def test_slurm_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    *_, line = endings.endings(tmp_path, SINCE)
    assert line == f"  {RECORD}: was killed, in SLURM job 417 on node12 ({LOG})"


def test_a_record_that_was_made_after_all(tmp_path: Path) -> None:
    started(tmp_path)
    (tmp_path / RECORD).parent.mkdir(parents=True)
    (tmp_path / RECORD).touch()
    assert list(endings.endings(tmp_path, SINCE)) == []
