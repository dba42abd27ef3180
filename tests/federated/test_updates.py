"""The loop of updates: hooks around every update, what continues after a kill, and runs that end alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakbench.federated.updates import Hook, Runs, finite_rows, run_updates
from leakbench.running.checkpoint import EVERY, opened


class Killed(BaseException):
    """A SIGKILL, in one process."""


class Log(Hook):
    """Notes when it runs."""

    def __init__(self, calls: list[tuple[str, int]]) -> None:
        self.updates, self.calls = 0, calls

    def before(self, step: int) -> None:
        self.calls.append(("before", step))

    def after(self, step: int) -> None:
        self.updates += 1
        self.calls.append(("after", step))


def halved(runs: Runs, step: int) -> None:
    moved = runs.parameters / 2
    runs.advance(step, moved, runs.parameters.sum(dim=1), torch.ones(len(runs), dtype=torch.bool))


def test_hooks_run_around_every_update() -> None:
    calls: list[tuple[str, int]] = []
    run_updates("x", 2, lambda step: calls.append(("update", step)), {}, [Log(calls)])
    assert calls == [(name, step) for step in range(2) for name in ("before", "update", "after")]


@pytest.mark.parametrize("killed", range(1, 4))
def test_a_killed_loop_continues_with_its_models_and_hooks(
    killed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVERY, "0")
    steps: list[int] = []

    def attempt(killed_at: int | None = None) -> tuple[Runs, Log]:
        runs = Runs(torch.tensor([[8.0, 4.0], [2.0, 6.0]]), 4, {"mean": torch.tensor([[1.0], [2.0]])})
        log = Log([])

        def update(step: int) -> None:
            if step == killed_at:
                raise Killed
            steps.append(step)
            halved(runs, step)

        with opened(tmp_path, lambda: {"job": "1"}):
            run_updates("halving", 4, update, {"runs": runs}, [log])
        return runs, log

    with pytest.raises(Killed):
        attempt(killed)
    runs, log = attempt()
    assert steps == [0, 1, 2, 3] and log.updates == 4 and log.calls[0] == ("before", killed)
    assert runs.parameters.tolist() == [[0.5, 0.25], [0.125, 0.375]]
    assert runs.losses.tolist() == [[12.0, 6.0, 3.0, 1.5], [8.0, 4.0, 2.0, 1.0]]
    assert runs.statistics["mean"].tolist() == [[1.0], [2.0]]


class TestRuns:
    @staticmethod
    def advanced(runs: Runs, step: int, finite: list[bool]) -> None:
        moved, statistics = runs.parameters + 1, {"mean": runs.statistics["mean"] + 1}
        runs.advance(step, moved, torch.full((len(runs),), float(step)), torch.tensor(finite), statistics)

    def test_a_run_ends_before_the_update_at_which_it_diverges_and_stays(self) -> None:
        runs = Runs(torch.zeros(3, 2), 3, {"mean": torch.zeros(3, 1)})
        for step, finite in enumerate(([True, True, True], [True, False, True], [True, True, True])):
            self.advanced(runs, step, finite)
        assert runs.diverged_at.tolist() == [-1, 1, -1] and runs.alive.tolist() == [True, False, True]
        assert runs.parameters[:, 0].tolist() == [3, 1, 3] and runs.statistics["mean"][:, 0].tolist() == [3, 1, 3]
        assert runs.losses.isnan().tolist() == [[False] * 3, [False, True, True], [False] * 3]

    def test_a_run_that_was_stopped_does_not_diverge(self) -> None:
        runs = Runs(torch.zeros(2, 2), 2, {"mean": torch.zeros(2, 1)})
        runs.stopped[0] = True
        self.advanced(runs, 0, [False, True])
        assert runs.diverged_at.tolist() == [-1, -1] and runs.alive.tolist() == [False, True]
        assert runs.losses[:, 0].isnan().tolist() == [True, False] and runs.parameters[:, 0].tolist() == [0, 1]

    def test_some_of_the_runs(self) -> None:
        runs = Runs(torch.zeros(3, 2), 1)
        runs.advance(0, torch.ones(1, 2), torch.tensor([5.0]), torch.tensor([True]), rows=slice(1, 2))
        assert runs.parameters[:, 0].tolist() == [0, 1, 0] and runs.losses[1].tolist() == [5.0]


def test_rows_are_finite_if_loss_and_values_are() -> None:
    loss = torch.tensor([1.0, torch.nan, 1.0])
    values = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, torch.inf]])
    assert finite_rows(loss, values).tolist() == [True, False, False]
