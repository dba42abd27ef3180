"""Which cells share a SLURM job, and what time they ask for."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leakbench.running import work
from leakbench.workflow.sharing import SIZES, CellSize, minutes, size_of

RECORD = "results/full/paper/experiment/data/model/defense/train/all.json"


def cell(**fields: Any) -> Any:
    return SimpleNamespace(path=RECORD, digest="0123456789abcdef", uses={}, **fields)


def estimate(root: Path, seconds: float) -> Path:
    path = root / "results" / "full" / "costs.csv"
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("record", "seconds"), (RECORD, seconds)])
    return root


@pytest.mark.parametrize(("seconds", "members"), [(1, 32), (19.9, 32), (20, 8), (74, 8), (75, 3), (299, 3)])
def test_shorter_cells_share_with_more(tmp_path: Path, seconds: float, members: int) -> None:
    size = size_of(estimate(tmp_path, seconds), cell())
    assert size is not None and size.members == members


def test_long_cells_and_unknown_ones_run_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert size_of(tmp_path / "nothing-estimated", cell()) is None
    assert capsys.readouterr().err.count("`leakbench cost --scale full`") == 1
    assert size_of(estimate(tmp_path, 300), cell()) is None


def test_a_cell_that_reads_records_runs_alone(tmp_path: Path) -> None:
    reader = cell()
    reader.uses = {"prior": cell()}
    assert size_of(estimate(tmp_path, 1), reader) is None


def test_a_cell_that_went_wrong_runs_alone(tmp_path: Path) -> None:
    estimate(tmp_path, 1)
    with pytest.raises(OSError, match="gone"), work.attempt(tmp_path, RECORD, cell().digest):
        raise OSError("the disk is gone")
    assert size_of(tmp_path, cell()) is None


def test_a_kept_record_is_put_back_in_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it took, and without an estimate."""
    monkeypatch.setattr(work, "is_kept", lambda *_: True)
    assert size_of(tmp_path, cell()) == SIZES[0]


def test_a_full_group_computes_for_five_to_fifteen_minutes() -> None:
    for shorter, size in zip((CellSize(0, 5.0, 0), *SIZES), SIZES, strict=False):
        usual = (shorter.below_s * size.below_s) ** 0.5
        assert 300 <= size.members * usual <= 600
        assert size.members * size.below_s <= 900


def test_time_limits_grow_to_what_is_declared() -> None:
    size = CellSize(8, 75.0, 8)
    assert [minutes(size, 60, attempt) for attempt in (1, 2, 3)] == [8, 32, 128]
    assert [minutes(size, 10, attempt) for attempt in (1, 2, 3)] == [8, 20, 30]
    assert [minutes(None, 60, attempt) for attempt in (1, 2, 3)] == [60, 120, 180]
