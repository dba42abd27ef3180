"""Calls of Snakemake, each in a process of its own that finds it imported: starting takes most of a dry run.

The processes are forked from one that has imported Snakemake, what the Snakefile imports, and all components, and that
has read the package's own sources for their digests. It has seen no configuration and loaded no plug-in.
"""

from __future__ import annotations

import gc
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@cache
def _server() -> subprocess.Popen[str]:
    """The process to fork from, which ends with this one."""
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def snakemake(arguments: Sequence[str], folder: Path, timeout: float = 900.0) -> tuple[int, str]:
    """Do what ``python -m snakemake`` does in a folder; returns the exit status and what it printed.

    Args:
        arguments: after the command's name.
        folder: to run in.
        timeout: seconds, enough for a whole run on a busy machine.

    Raises:
        TimeoutError: it takes longer.
    """
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.NamedTemporaryFile("r") as output:
        request = {"arguments": list(arguments), "folder": str(folder), "output": output.name}
        print(json.dumps({**request, "environment": dict(os.environ)}), file=server.stdin, flush=True)
        if not select.select([server.stdout], [], [], timeout)[0]:
            server.kill()
            _server.cache_clear()
            raise TimeoutError(f"snakemake {' '.join(arguments)}: {output.read()}")
        return int(server.stdout.readline()), output.read()


def _import() -> None:
    """Import what any call imports."""
    import snakemake.cli  # noqa: F401

    from leakbench.jobs.base import JOB_KINDS
    from leakbench.planning.variants import REGISTRIES
    from leakbench.workflow.snakefile import Workflow

    for registry in (*REGISTRIES.values(), JOB_KINDS):
        list(registry)
    flow = Workflow(ROOT, {})
    for paper in flow.project.papers:
        flow.judging_digest("smoke", paper)
    gc.freeze()  # the collector of a forked process would copy every page


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
    sys.argv[:] = ["snakemake", *arguments]


def _run() -> None:
    from snakemake.cli import main
    from snakemake.workflow import Workflow

    Workflow._rundir = str(Path.cwd())  # the folder in which it was imported
    main()


def _main() -> None:
    _import()
    for line in iter(sys.stdin.readline, ""):
        job = os.fork()
        if not job:
            _take_over(json.loads(line))
            _run()
        _, status = os.waitpid(job, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _main()
