"""Calls of Snakemake and of commands, each in a process that finds them imported: starting takes most of a short one.

The processes are forked from one that has imported all components and what the command imports, and for Snakemake has
read the package's own sources for their digests. It has seen no configuration and loaded no plug-in.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@cache
def _server(libraries: str) -> subprocess.Popen[str]:
    """The process to fork from, which ends with this one."""
    command = [sys.executable, __file__, libraries]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def snakemake(arguments: Sequence[str], folder: Path, timeout: float = 900.0) -> tuple[int, str]:
    """Do what ``python -m snakemake`` does in a folder; returns the exit status and what it printed.

    Args:
        arguments: after the command's name.
        folder: to run in.
        timeout: seconds, enough for a whole run on a busy machine.

    Raises:
        TimeoutError: it takes longer.
    """
    return _forked("snakemake", "snakemake", arguments, folder, timeout)


def run_module(name: str, arguments: Sequence[str], folder: Path, timeout: float = 900.0) -> tuple[int, str]:
    """Do what ``python -m name`` does in a folder, with torch and the libraries of figures imported.

    See :func:`snakemake`.
    """
    return _forked("torch", name, arguments, folder, timeout)


def _forked(libraries: str, name: str, arguments: Sequence[str], folder: Path, timeout: float) -> tuple[int, str]:
    server = _server(libraries)
    assert server.stdin is not None and server.stdout is not None
    with tempfile.NamedTemporaryFile("r") as output:
        request = {"module": name, "arguments": list(arguments), "folder": str(folder), "output": output.name}
        print(json.dumps({**request, "environment": dict(os.environ)}), file=server.stdin, flush=True)
        if not select.select([server.stdout], [], [], timeout)[0]:
            server.kill()
            _server.cache_clear()
            raise TimeoutError(f"{name} {' '.join(arguments)}: {output.read()}")
        return int(server.stdout.readline()), output.read()


def _import_snakemake() -> None:
    """Import what any call of Snakemake imports."""
    import snakemake.cli  # noqa: F401

    from leakbench.workflow.snakefile import Workflow
    from leakbench.workflow.warm import import_components

    import_components("run")
    flow = Workflow(ROOT, {})
    for paper in flow.project.papers:
        flow.judging_digest("smoke", paper)
    gc.freeze()  # the collector of a forked process would copy every page


def _import_torch() -> None:
    """Import what most commands import."""
    import leakbench.cli  # noqa: F401
    from leakbench.workflow.warm import LIBRARIES, import_components, import_libraries

    for libraries in LIBRARIES.values():
        import_libraries(libraries)
    import_components("draw")


def _take_over(request: dict[str, object]) -> None:
    """Become the process that was asked for: its streams, environment, folder and arguments."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(str(request["output"]), os.O_WRONLY | os.O_APPEND)
    for stream, standard in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(stream, standard)
    environment, arguments = request["environment"], request["arguments"]
    assert isinstance(environment, dict) and isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    sys.path[0] = str(request["folder"])
    sys.argv[:] = [str(request["module"]), *arguments]


def _run(name: str) -> None:
    if name != "snakemake":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    from snakemake.cli import main
    from snakemake.workflow import Workflow

    Workflow._rundir = str(Path.cwd())  # the folder in which it was imported
    main()


def _main() -> None:
    {"snakemake": _import_snakemake, "torch": _import_torch}[sys.argv[1]]()
    for line in iter(sys.stdin.readline, ""):
        job = os.fork()
        if not job:
            request = json.loads(line)
            _take_over(request)
            _run(request["module"])
            sys.exit()
        _, status = os.waitpid(job, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _main()
