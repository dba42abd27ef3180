"""Loops that are saved and go on: their places, what is written when, and what is of no use."""

# ruff: noqa: PT012 - what is killed is a block of statements

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from leakbench.errors import ConfigError
from leakbench.records import atomic_write
from leakbench.running import snapshots
from leakbench.running.checkpoint import EVERY, FOLDER, State, Stopped, loop, opened, packed, unpacked
from leakbench.running.snapshots import PROGRESS, Spent

IDENTITY = {"job": "a", "torch": "1"}


class Killed(BaseException):
    """What a SIGKILL would be, in one process."""


@pytest.fixture(autouse=True)
def _at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EVERY, "0")


def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EVERY, "1000")


def state(value: float) -> Callable[[], State]:
    return lambda: {"value": torch.tensor(value)}


def saved(folder: Path) -> list[tuple[str, int]]:
    """Loops with a state in the snapshot, by name and steps done; no other states are in the folder."""
    if not (folder / FOLDER / PROGRESS).exists():
        return []
    entries = json.loads((folder / FOLDER / PROGRESS).read_text())["loops"]
    states = {path.name for path in folder.rglob("*.safetensors")}
    assert states == {file for *_, file in entries if file}
    return [(name, done) for name, _, done, file in entries if file]


def opening(
    folder: Path, identity: Mapping[str, str] = IDENTITY, spent: Spent | None = None
) -> AbstractContextManager[Any]:
    return opened(folder, lambda: identity, lambda: spent or Spent())


def count(name: str, total: int, until: int | None = None, shared: str | None = None) -> list[int]:
    """Steps that are done, in a loop that adds up their numbers; killed before step ``until``."""
    done = []
    with loop(name, total, quiet=True, shared=shared) as steps:
        found = float(steps.saved["value"]) if steps.saved else 0.0
        for step in steps.steps:
            if step == until:
                raise Killed
            done.append(step)
            found += step
            steps.tick(state(found))
    assert found == sum(range(total))
    return done


def test_outside_of_a_job_nothing_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert count("adding", 4) == [0, 1, 2, 3]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("until", range(5))
def test_a_killed_loop_goes_on(tmp_path: Path, until: int) -> None:
    with pytest.raises(Killed), opening(tmp_path):
        count("adding", 5, until)
    with opening(tmp_path):
        assert count("adding", 5) == list(range(until, 5))
        assert count("adding", 5) == list(range(5)), "another loop of the same name"
    with opening(tmp_path):
        assert count("adding", 5) == count("adding", 5) == [], "both have ended"
        assert count("other", 2) == [0, 1]
    assert saved(tmp_path) == [("adding", 5), ("adding", 5), ("other", 2)]


def test_short_loops_are_like_a_long_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended is written with the next state of any loop."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setenv(EVERY, "10")
    with pytest.raises(Killed), opening(tmp_path):
        for number in range(4):
            clock[0] += 4
            count("adding", 2)
            assert saved(tmp_path) == ([("adding", 2), ("adding", 2), ("adding", 1)] if number >= 2 else [])
        clock[0] += 10
        count("adding", 3, until=2)
    assert saved(tmp_path) == [("adding", 2)] * 4 + [("adding", 1)]
    with opening(tmp_path):
        assert [count("adding", 2) for _ in range(4)] == [[]] * 4
        assert count("adding", 3) == [1, 2]


def nested(rounds: int, inner: int, kill: tuple[int, int, int] | None = None) -> list[tuple[int, int, int]]:
    """Two loops in every step of another; what they do, by round, loop and step."""
    done = []
    with loop("rounds", rounds, quiet=True) as outer:
        total = float(outer.saved["total"]) if outer.saved else 0.0
        for number in outer.steps:
            parts = []
            for place in range(2):
                with loop("clients", inner, quiet=True) as steps:
                    own = float(steps.saved["value"]) if steps.saved else 0.0
                    for step in steps.steps:
                        if kill == (number, place, step):
                            raise Killed
                        done.append((number, place, step))
                        own += (1 + number) * (1 + place) * step
                        steps.tick(state(own))
                parts.append(own)
            total += sum(parts)
            outer.tick(lambda: {"total": torch.tensor(total)})  # noqa: B023
    assert total == sum((1 + number) * 3 * step for number in range(rounds) for step in range(inner))
    return done


@pytest.mark.parametrize("kill", [(r, p, s) for r in range(2) for p in range(2) for s in range(3)])
def test_loops_inside_loops(tmp_path: Path, kill: tuple[int, int, int]) -> None:
    every = [(r, p, s) for r in range(2) for p in range(2) for s in range(3)]
    with pytest.raises(Killed), opening(tmp_path):
        nested(2, 3, kill)
    number, place, step = kill
    expected = [("rounds", 1)] if number else []
    expected += [("clients", 3 if place else step)] if place or step else []
    expected += [("clients", step)] if place and step else []
    assert saved(tmp_path) == expected, "what earlier rounds saved is gone"
    with opening(tmp_path):
        assert nested(2, 3) == every[every.index(kill) :]
    assert saved(tmp_path) == [("rounds", 2)]


@pytest.mark.parametrize("writes", range(32))
def test_killed_while_saving(tmp_path: Path, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step writes a state and the list; killed between the two, the snapshot of the step before is whole."""
    left = writes

    def killing(path: Path, content: bytes) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        atomic_write(path, content)

    with monkeypatch.context() as patched, pytest.raises(Killed), opening(tmp_path):
        patched.setattr(snapshots, "atomic_write", killing)
        count("adding", 2)
        nested(2, 3)
    with opening(tmp_path):
        again = [*count("adding", 2), *nested(2, 3)]
    rounds = [[(r, p, s) for p in range(2) for s in range(3)] for r in range(2)]
    steps = [0, 1, *rounds[0], "round", *rounds[1], "round"][writes // 2 :]
    assert again == [step for step in steps if step != "round"]


def test_a_broken_state_around_discards_those_inside(tmp_path: Path) -> None:
    with pytest.raises(Killed), opening(tmp_path):
        nested(2, 3, (1, 0, 2))
    (outer, inner) = json.loads((tmp_path / FOLDER / PROGRESS).read_text())["loops"]
    assert (outer[:3], inner[:3]) == (["rounds", 2, 1], ["clients", 3, 2])
    (tmp_path / FOLDER / outer[-1]).write_bytes(b"")
    with opening(tmp_path):
        assert nested(2, 3)[0] == (0, 0, 0)


@pytest.mark.parametrize("saves", [True, False])
def test_a_step_that_begins_again(tmp_path: Path, saves: bool) -> None:
    """A loop inside that failed leaves nothing to the one that takes its place."""
    with pytest.raises(Killed), opening(tmp_path) as job, loop("chunks", 9, quiet=True) as outer:
        outer.tick(state(4.0), 0)
        with pytest.raises(MemoryError), loop("descent", 9, quiet=True, ends=False) as inner:
            inner.tick(state(1.0))
            raise MemoryError
        if not saves:
            job._due = math.inf
        outer.tick(state(2.0), 0)
        raise Killed
    with opening(tmp_path), loop("chunks", 9, quiet=True) as outer:
        assert float(outer.saved["value"]) == (2.0 if saves else 4.0)
        with loop("descent", 9, quiet=True, ends=False) as inner:
            assert inner.done == (0 if saves else 1), "a loop belongs to the state around it"


def test_a_loop_that_ends_early_is_followed_by_others(tmp_path: Path) -> None:
    def early() -> int:
        with loop("searching", 9, quiet=True) as steps:
            for step in steps.steps:
                if step == 3:
                    break
                steps.tick(state(step))
            return steps.done

    with pytest.raises(Killed), opening(tmp_path):
        assert early() == 3
        count("adding", 5, until=2)
    with opening(tmp_path):
        assert early() == 3
        assert count("adding", 5) == [2, 3, 4]


@pytest.mark.parametrize("other", [("other", 5), ("adding", 6)])
def test_another_loop_takes_nothing(tmp_path: Path, other: tuple[str, int]) -> None:
    """Nor does what follows it, as it may follow from it."""
    with pytest.raises(Killed), opening(tmp_path):
        count("adding", 5)
        count("adding", 5, until=2)
    with opening(tmp_path):
        assert count(*other) == list(range(other[1]))
        assert count("adding", 5) == list(range(5))


def test_a_state_inside_brings_the_one_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the loop around has moved on since its last save, it is saved with what is inside."""
    seldom(monkeypatch)
    with pytest.raises(Killed), opening(tmp_path) as job, loop("rounds", 9, quiet=True) as outer:
        outer.tick(state(0.5), 0)
        for number in range(3):
            outer.tick(state(float(number)))
        with loop("clients", 9, quiet=True) as inner:
            job._due = 0.0
            inner.tick(state(7.0))
        raise Killed
    assert saved(tmp_path) == [("rounds", 3), ("clients", 1)]
    with opening(tmp_path), loop("rounds", 9, quiet=True) as outer:
        assert (outer.done, float(outer.saved["value"])) == (3, 2.0)


def test_a_state_before_the_first_step_is_saved_too(tmp_path: Path) -> None:
    with opening(tmp_path), loop("chunks", 9, quiet=True) as outer:
        outer.tick(state(4.0), 0)
        with loop("descent", 9, quiet=True, ends=False) as inner:
            inner.tick(state(0.0))
    with opening(tmp_path), loop("chunks", 9, quiet=True) as outer:
        assert (outer.done, float(outer.saved["value"])) == (0, 4.0)


def test_a_step_may_be_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opening(tmp_path), loop("adding", 10) as steps:
        steps.tick(state(1.0), 4)
    with opening(tmp_path), loop("adding", 10) as steps:
        assert steps.steps == range(4, 10)
        steps.tick(state(1.0), 6)
    said = capsys.readouterr().err
    assert "going on after 4 of 10 steps of 'adding'" in said and "adding: 10/10 steps" in said


@pytest.mark.parametrize("fault", ["truncated", "altered", "empty", "no tensors"])
def test_a_broken_file_is_named_and_removed(tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Killed), opening(tmp_path):
        count("adding", 2)
        count("adding", 5, until=3)
    progress = tmp_path / FOLDER / PROGRESS
    name = json.loads(progress.read_text())["loops"][1][-1]
    broken = progress.with_name(name)
    content = broken.read_bytes()
    if fault == "no tensors":
        broken.unlink()
        broken = broken.with_name(f"{hashlib.sha256(b'words').hexdigest()}.safetensors")
        progress.write_text(progress.read_text().replace(name, broken.name))
        content = b"words"
    broken.write_bytes(
        {"truncated": content[:-1], "altered": content[:-1] + b"x", "empty": b"", "no tensors": content}[fault]
    )
    with opening(tmp_path):
        assert count("adding", 2) == [], "what is good is used"
        assert count("adding", 5) == [0, 1, 2, 3, 4]
    said = capsys.readouterr().err
    assert f"{broken}: broken checkpoint" in said and said.count("broken checkpoint") == 1
    assert not broken.exists()


@pytest.mark.parametrize("other", [{"job": "b", "torch": "1"}, {"job": "a", "torch": "2"}])
def test_a_checkpoint_of_something_else_is_discarded(
    tmp_path: Path, other: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Killed), opening(tmp_path, spent=Spent(1, 1, 1)):
        count("adding", 5, until=3)
    with opening(tmp_path, other) as job:
        assert count("adding", 5) == [0, 1, 2, 3, 4]
        assert job.earlier == Spent()
    (name,) = (name for name in other if other[name] != IDENTITY[name])
    said = f"a checkpoint with {name} {IDENTITY[name]}, and this is {other[name]}; discarded"
    assert said in capsys.readouterr().err
    assert saved(tmp_path) == [("adding", 5)]


def test_a_folder_that_says_nothing_is_discarded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FOLDER / "other").mkdir(parents=True)
    with opening(tmp_path):
        count("adding", 2)
    assert "does not say what it is of; discarded" in capsys.readouterr().err
    assert not (tmp_path / FOLDER / "other").exists()


def test_what_attempts_took_adds_up(tmp_path: Path) -> None:
    with pytest.raises(Killed), opening(tmp_path, spent=Spent(10, 8, 500)) as job:
        assert job.earlier == Spent()
        count("adding", 5, until=3)
    with pytest.raises(Killed), opening(tmp_path, spent=Spent(2, 1, 300)) as job:
        count("adding", 5, until=4)
    with opening(tmp_path) as job:
        count("adding", 5)
        assert job.earlier == Spent(12, 9, 500)
    (tmp_path / FOLDER / PROGRESS).write_text("[")
    with opening(tmp_path) as job:
        count("adding", 5)
        assert job.earlier == Spent()


def test_a_full_disk_does_not_end_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """fsync raises ENOSPC, as it does where a disk is full."""
    full = True

    def fsync(_: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with opening(tmp_path):
        assert count("adding", 5) == [0, 1, 2, 3, 4]
        said = capsys.readouterr().err
        assert said.count("no checkpoint") == 1 and "no space left on device" in said
        assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing half-written"
        full = False
        count("other", 2)
    assert saved(tmp_path) == [("adding", 5), ("other", 2)], "what was not written is, when there is room again"


def test_told_to_end_it_saves_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seldom(monkeypatch)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as stopped, opening(tmp_path), loop("adding", 9, quiet=True) as steps:
        for step in range(9):
            if step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)  # SLURM tells every process, and the caller tells the job
            steps.tick(state(step))
    assert stopped.value.code == 128 + signal.SIGTERM
    assert "told to end (SIGTERM), saved after 5 of 9 steps of 'adding'" in capsys.readouterr().err
    assert saved(tmp_path) == [("adding", 5)]
    assert signal.getsignal(signal.SIGTERM) == before


def test_told_to_end_between_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seldom(monkeypatch)
    with pytest.raises(Stopped) as stopped, opening(tmp_path):
        count("adding", 2)
        os.kill(os.getpid(), signal.SIGUSR1)
        pytest.fail("it went on")
    assert stopped.value.code == 128 + signal.SIGUSR1
    assert "told to end (SIGUSR1), saved between loops" in capsys.readouterr().err
    assert saved(tmp_path) == [("adding", 2)], "what had ended"


def test_told_to_end_before_the_next_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first loop ended early, without another step."""
    seldom(monkeypatch)
    with pytest.raises(Stopped), opening(tmp_path):
        count("adding", 2)
        with loop("other", 9, quiet=True):
            os.kill(os.getpid(), signal.SIGTERM)
        count("adding", 2)
    assert saved(tmp_path) == [("adding", 2)]


def test_told_to_end_and_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seldom(monkeypatch)

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(Stopped), opening(tmp_path), loop("adding", 9, quiet=True) as steps:
        os.kill(os.getpid(), signal.SIGTERM)
        steps.tick(state(1.0))
    assert "not saved" in capsys.readouterr().err


def test_large_states_are_saved_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that takes four seconds is followed by 400 seconds of work, and a quick one by 300."""
    clock, slow = [0.0], 0.0
    monkeypatch.delenv(EVERY)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def state() -> State:
        clock[0] += slow
        return {"value": torch.zeros(1)}

    with opening(tmp_path), loop("adding", 99, quiet=True) as steps:
        for moment, slow, done in ((299, 0.0, 0), (300, 0.0, 2), (600, 4.0, 3), (1003, 0.0, 3), (1004, 0.0, 5)):  # noqa: B007
            clock[0] = moment
            steps.tick(state)
            assert saved(tmp_path) == ([("adding", done)] if done else [])


def test_seconds_have_to_be_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EVERY, "often")
    with pytest.raises(ConfigError, match="LEAKBENCH_CHECKPOINT_S=often: expected seconds"), opening(tmp_path):
        pass


@pytest.mark.parametrize("value", [None, [1, 0.1, float("inf"), None, "é"], {"a": [True, 1e-320]}])
def test_packed_values_come_back(value: object) -> None:
    assert unpacked(packed(value)) == value
    (nan,) = unpacked(packed([float("nan")]))
    assert nan != nan
    assert json.dumps(unpacked(packed(value))) == json.dumps(value)


def test_states_may_share_memory_and_be_of_any_type(tmp_path: Path) -> None:
    one = torch.arange(6.0).view(2, 3)
    given = {
        "one": one,
        "same": one,
        "turned": one.T,
        "spread": one[:1].expand(4, 3),
        "empty": torch.empty(0, 3),
        "flag": torch.tensor(True),
        "double": one.double(),
        "bytes": torch.arange(5, dtype=torch.uint8),
    }
    with opening(tmp_path), loop("adding", 2, quiet=True) as steps:
        steps.tick(lambda: given)
    with opening(tmp_path), loop("adding", 2, quiet=True) as steps:
        assert steps.saved.keys() == given.keys()
        for name, tensor in given.items():
            assert torch.equal(steps.saved[name], tensor) and steps.saved[name].dtype == tensor.dtype, name


class TestSharedLoops:
    """Work that several jobs of a run have in common is done once."""

    def job(self, root: Path, name: str, loops: Sequence[tuple[str, int, str | None]], **identity: str) -> list[int]:
        """Steps that a job does in each loop; loops of ``all`` are shared under this name."""
        of_job = {**IDENTITY, "job": name, **identity}
        with opened(root / name, lambda: of_job, Spent, root / "shared"):
            return [len(count(each, total, shared=shared)) for each, total, shared in loops]

    def test_the_first_job_computes_for_the_others(self, tmp_path: Path) -> None:
        assert self.job(tmp_path, "first", [("train", 3, "model"), ("attack", 2, None)]) == [3, 2]
        assert self.job(tmp_path, "second", [("train", 3, "model"), ("attack", 2, None)]) == [0, 2]

    @pytest.mark.parametrize(
        ("loops", "identity"),
        [
            ([("train", 3, "another model")], {}),
            ([("train", 4, "model")], {}),
            ([("train", 3, None)], {}),
            ([("train", 3, "model")], {"device": "another"}),
            ([("train", 3, "model")], {"sources": "changed"}),
        ],
    )
    def test_what_differs_is_computed(
        self, tmp_path: Path, loops: list[tuple[str, int, str | None]], identity: dict[str, str]
    ) -> None:
        self.job(tmp_path, "first", [("train", 3, "model")])
        assert self.job(tmp_path, "second", loops, **identity) == [loops[0][1]]

    def test_a_killed_job_leaves_nothing(self, tmp_path: Path) -> None:
        with (
            pytest.raises(Killed),
            opened(tmp_path / "first", lambda: IDENTITY, Spent, tmp_path / "shared"),
        ):
            count("train", 3, until=2, shared="model")
        assert self.job(tmp_path, "second", [("train", 3, "model")]) == [3]

    def test_a_job_that_borrowed_goes_on_without_the_lender(self, tmp_path: Path) -> None:
        """Its own snapshot holds what it took."""
        self.job(tmp_path, "first", [("train", 3, "model")])
        for until, done in ((2, None), (None, 2)):
            with contextlib.suppress(Killed), opened(tmp_path / "second", lambda: IDENTITY, Spent, tmp_path / "shared"):
                assert count("train", 3, shared="model") == []
                assert len(count("attack", 4, until=until)) == done
            shutil.rmtree(tmp_path / "shared", ignore_errors=True)

    def test_a_broken_state_is_computed_again(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.job(tmp_path, "first", [("train", 3, "model")])
        (file,) = (tmp_path / "shared").rglob("*.safetensors")
        file.write_bytes(file.read_bytes()[:-1])
        assert self.job(tmp_path, "second", [("train", 3, "model")]) == [3]
        assert "broken checkpoint" in capsys.readouterr().err

    def test_a_full_disk_does_not_end_a_job(self, tmp_path: Path) -> None:
        (tmp_path / "shared").write_text("in the way")
        assert self.job(tmp_path, "first", [("train", 3, "model")]) == [3]
