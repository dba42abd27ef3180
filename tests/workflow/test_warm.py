"""Jobs that are forked from a warm process: like jobs that start by themselves, in all that a caller can see."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leakbench.libraries.torchvision_compat import import_torchvision
from leakbench.workflow.caller import COMMANDS, RUN, folder_of
from leakbench.workflow.warm import LIBRARIES, OCCASIONAL, Needs, serve

ROOT = Path(__file__).resolve().parents[2]

# A plug-in is code that every job runs: what it does here is what a job does.
PLUGINS = {
    "say": """
        import json, os, sys
        print(json.dumps({"pid": os.getpid(), "parent": os.getppid(), "folder": os.getcwd(), "argv": sys.argv[1:],
                          "variable": os.environ["VARIABLE"], "torch": "torch" in sys.modules}))
        print("on standard error", file=sys.stderr)
        sys.exit(7)
    """,
    "die": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "need": """
        import sys
        print("rouge_score.rouge_scorer" in sys.modules)
        import rouge_score.rouge_scorer
    """,
    "fail": "raise OSError('the disk is gone')",
    "wait": """
        import os, pathlib, time
        pathlib.Path("pid").write_text(str(os.getpid()))
        time.sleep(60)
    """,
}


@pytest.fixture
def run() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for Snakemake."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        _until(lambda: not Path(folder_of(process.pid)).exists())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project whose plug-in the test chooses by its name."""
    (tmp_path / "config" / "scales").mkdir(parents=True)
    (tmp_path / "config" / "config.yaml").write_text("papers: []\n")
    for name, source in PLUGINS.items():
        lines = source.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        (tmp_path / f"{name}.py").write_text("\n".join(line[indent:] for line in lines) + "\n")
    return tmp_path


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came to this"
        time.sleep(0.05)


def _call(root: Path, plugin: str, run: subprocess.Popen[bytes] | None, command: str = "merge") -> list[str]:
    """The command line, as a workflow's rule has it."""
    os.environ[RUN] = str(run.pid) if run else ""
    return [sys.executable, "-m", "leakbench", "--set", f"plugins=[{plugin}.py]", command, "results/a/b/c.json"]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN, "")
    monkeypatch.setenv("VARIABLE", "first")


def _done(command: list[str], root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=120)


def test_a_forked_job_is_like_its_caller(
    root: Path, run: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = _done(_call(root, "say", None), root)
    warm = _done(_call(root, "say", run), root)
    monkeypatch.setenv("VARIABLE", "second")
    other = _done(_call(root, "say", run), root)
    assert [done.returncode for done in (cold, warm, other)] == [7, 7, 7]
    assert {done.stderr for done in (cold, warm, other)} == {"on standard error\n"}
    said = [json.loads(done.stdout) for done in (cold, warm, other)]
    for key in ("folder", "argv", "torch"):
        assert len({json.dumps(each[key]) for each in said}) == 1, key
    assert [each["variable"] for each in said] == ["first", "first", "second"]
    assert said[1]["parent"] == said[2]["parent"] and said[1]["pid"] != said[2]["pid"]


def test_libraries_are_imported_when_a_command_comes_again(root: Path, run: subprocess.Popen[bytes]) -> None:
    said = [json.loads(_done(_call(root, "say", run, "run"), root).stdout)["torch"] for _ in range(3)]
    assert said == [False, True, True]


def test_what_a_job_needed_the_next_one_finds(root: Path, run: subprocess.Popen[bytes]) -> None:
    def said(plugin: str) -> str:
        return _done(_call(root, plugin, run), root).stdout.strip()

    assert [said("need"), said("need"), said("need")] == ["False", "True", "True"]


@pytest.mark.parametrize("plugin", ["fail", "nothing"])
def test_errors_read_the_same(root: Path, run: subprocess.Popen[bytes], plugin: str) -> None:
    cold, warm = (_done(_call(root, plugin, each), root) for each in (None, run))
    assert cold.returncode == warm.returncode == 1
    last = cold.stderr.splitlines()[-1]
    assert last in warm.stderr.splitlines()[-1] and ("disk is gone" in last or "nothing.py" in last)


def test_a_killed_job_fails(root: Path, run: subprocess.Popen[bytes]) -> None:
    done = _done(_call(root, "die", run), root)
    assert done.returncode == 128 + signal.SIGKILL
    assert "was killed; did it run out of memory?" in done.stderr
    assert json.loads(_done(_call(root, "say", run), root).stdout)  # the next job does not notice


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_job_dies_with_its_caller(root: Path, run: subprocess.Popen[bytes], end: signal.Signals) -> None:
    caller = subprocess.Popen(
        _call(root, "wait", run),
        cwd=root,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    _until(lambda: (root / "pid").exists() and (root / "pid").read_text() != "")
    job = int((root / "pid").read_text())
    os.kill(job, 0)
    caller.send_signal(end)
    caller.wait(timeout=30)

    def gone() -> bool:
        try:
            os.kill(job, 0)
        except ProcessLookupError:
            return True
        return False

    _until(gone)


def test_it_ends_with_its_run(root: Path, run: subprocess.Popen[bytes]) -> None:
    warm = json.loads(_done(_call(root, "say", run), root).stdout)["parent"]
    os.kill(warm, 0)
    run.kill()
    run.wait()
    _until(lambda: not Path(folder_of(run.pid)).exists())


def test_one_that_nobody_calls_leaves_nothing(run: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakbench.workflow.warm.IDLE_S", 0.0)
    folder = Path(folder_of(run.pid))
    folder.mkdir()
    before = signal.getsignal(signal.SIGCHLD)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        assert serve(run.pid, listener, Needs.open()) is None
    signal.signal(signal.SIGCHLD, before)
    assert run.poll() is None and not folder.exists()


def test_a_dead_one_is_replaced(root: Path, run: subprocess.Popen[bytes]) -> None:
    first = json.loads(_done(_call(root, "say", run), root).stdout)["parent"]
    os.kill(first, signal.SIGKILL)
    _until(lambda: json.loads(_done(_call(root, "say", run), root).stdout)["parent"] != first)


def test_a_folder_open_to_others_is_refused(root: Path, run: subprocess.Popen[bytes]) -> None:
    folder = Path(folder_of(run.pid))
    folder.mkdir()
    folder.chmod(0o777)
    done = _done(_call(root, "say", run), root)
    assert "is open to others); this job imports by itself" in done.stderr and done.returncode == 7
    assert list(folder.iterdir()) == []
    shutil.rmtree(folder)


def test_callers_and_the_warm_process_know_the_same_commands() -> None:
    assert LIBRARIES.keys() == set(COMMANDS)


def test_a_caller_imports_next_to_nothing() -> None:
    """Every step of the workflow starts one."""
    slow = {"contextlib", "dataclasses", "pathlib", "subprocess", "tempfile"}
    code = f"import sys, leakbench.workflow.caller; print(*{slow} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "\n"


def test_every_library_exists() -> None:
    import_torchvision()  # looking for a submodule imports what is above it
    for library in {*OCCASIONAL, *(name for names in LIBRARIES.values() for name in names)}:
        assert importlib.util.find_spec(library) is not None, library


def test_an_import_that_starts_processes_sees_their_end() -> None:
    """The warm process leaves its children to the system, and codecarbon waits for one of its own."""
    code = (
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from leakbench.workflow.warm import import_libraries; import_libraries(['leakbench.libraries.energy'])\n"
        "assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        assert process.wait(120) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_records_are_the_same(run: subprocess.Popen[bytes], tmp_path: Path) -> None:
    for folder in ("config", "workflow"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    path = "results/smoke/optimal_defense/pruning/digits16/small/op/train/all.json"
    command = [sys.executable, "-m", "leakbench", "run", path]
    replicates = []
    for each in ("", str(run.pid), str(run.pid)):  # the last one finds the libraries imported
        os.environ[RUN] = each
        done = _done(command, tmp_path)
        assert done.returncode == 0, done.stderr
        replicates.append(json.loads((tmp_path / path).read_text())["replicates"])
        (tmp_path / path).unlink()
    assert replicates[0] == replicates[1] == replicates[2]
