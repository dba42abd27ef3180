"""A fork server with the heavy libraries preloaded, the *warm process* of one run of Snakemake on one host.

Importing torch costs as much as a small job computes. So jobs of a run are forked from its warm process. When a command
is requested for the second time, the process imports the libraries of that command, leakbench's components and the
modules that read the configuration; libraries that only some jobs need follow once a job has needed them. Imports
compute no numbers, so a forked job is the same as one that starts by itself. The process ends with its run; later edits
of the code do not reach it.

The caller (``caller.py``) hands over its arguments, environment, folder and standard streams, waits, and exits as the
job does. If the caller dies, so does the job; signals that ask the caller to end are relayed to the job, which may save
its state first.
The key ``warm`` of config/config.yaml turns all of this off.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from leakbench.libraries.torchvision_compat import import_torchvision
from leakbench.workflow.caller import STARTED, command_of, connect, folder_of, locked

_ALWAYS = ("pydantic", "yaml")
_TABLES = (*_ALWAYS, "pandas", "pyarrow.parquet")
_PICTURES = ("matplotlib.pyplot", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf")
_TORCH = ("torch", "torch._dynamo", "torch._decomp.decompositions_for_jvp")
LIBRARIES = {
    "run": (*_ALWAYS, *_TORCH, "torchmetrics.functional.image", "scipy.optimize", "safetensors.torch"),
    "merge": _TABLES,
    "draw": (*_TABLES, "pyarrow.dataset", "pandas.io.formats.style", *_PICTURES, "scipy.stats", "tabulate"),
    "judge": (*_TABLES, *_TORCH, "tabulate"),
}
"""Libraries that jobs of a command import."""

OCCASIONAL = (
    "torch",
    "torchmetrics.functional.image",
    "safetensors.torch",
    "transformers.models.bert.modeling_bert",
    "transformers.models.distilbert.modeling_distilbert",
    "transformers.models.gpt2.modeling_gpt2",
    "rouge_score.rouge_scorer",
    "dp_accounting.rdp",
    "sklearn.metrics",
    "leakbench.libraries.energy",
)
"""Slow libraries that only some jobs import."""

IDLE_S = 600.0
"""Seconds without a caller after which the process ends; the next caller starts another."""


@dataclass(frozen=True)
class Needs:
    """A pipe by which forked jobs report occasional libraries that they imported to the warm process."""

    read: int
    write: int

    @classmethod
    def open(cls) -> Needs:
        """A new pipe."""
        return cls(*os.pipe())

    def report(self, before: Collection[str]) -> None:
        """Report the libraries that this job imported and that were not loaded ``before``."""
        needed = [library for library in OCCASIONAL if library in sys.modules and library not in before]
        if needed:
            os.write(self.write, ("\n".join(needed) + "\n").encode())  # short enough to arrive whole

    def reported(self) -> list[str]:
        """Libraries reported since the last call, without waiting."""
        libraries: list[str] = []
        while select.select([self.read], [], [], 0)[0]:
            libraries += os.read(self.read, select.PIPE_BUF).decode().split()
        return [library for library in dict.fromkeys(libraries) if library not in sys.modules]


@dataclass(frozen=True)
class Request:
    """A command to run, with the environment and folder of its caller."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str

    @property
    def command(self) -> str | None:
        """The command, if a warm process makes it faster."""
        return command_of(self.arguments)


def start(run: int) -> None:
    """Start the warm process of a run before a job asks for it."""
    with contextlib.suppress(OSError):  # then jobs import by themselves
        connect(run).close()


def serves(run: str) -> bool:
    """Whether a warm process of this run waits on this host."""
    return run.isdecimal() and Path(folder_of(int(run)), "socket").exists()


def serve(run: int, listener: socket.socket, needs: Needs) -> tuple[Request, list[int], socket.socket] | None:
    """Fork a job for every caller until the run ends or callers stop coming.

    Args:
        run: the process id of its Snakemake.
        listener: where callers connect.
        needs: where forked jobs report what they imported.

    Returns:
        In a forked process, the request, the standard streams of its caller and the connection to it; in the warm
        process None, at its end.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # only its caller waits for a forked job
    folder = folder_of(run)
    asked: Counter[str | None] = Counter()
    called = time.monotonic()
    while _alive(run):
        if select.select([listener], [], [], 1.0)[0]:
            called = time.monotonic()
            connection, _ = listener.accept()
            with contextlib.suppress(OSError, ValueError, TypeError):  # a caller that died while it asked
                request, streams = _receive(connection)
                asked[request.command] += 1
                if asked[request.command] == 2:
                    import_libraries(LIBRARIES[str(request.command)])
                    import_components(str(request.command))
                import_libraries(needs.reported())
                if os.fork() == 0:
                    listener.close()
                    return request, streams, connection
                for stream in streams:
                    os.close(stream)
            connection.close()
        elif time.monotonic() - called > IDLE_S:
            lock = locked(folder)
            if not select.select([listener], [], [], 0)[0]:
                shutil.rmtree(folder)  # who waits for the lock finds no folder then, and imports by itself
                return None
            os.close(lock)
    shutil.rmtree(folder)
    return None


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _receive(connection: socket.socket) -> tuple[Request, list[int]]:
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as lines:
        return Request(**json.loads(lines.readline())), streams


def import_libraries(libraries: Sequence[str]) -> None:
    """Import libraries that are there."""
    ignored = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else what an import starts never seems to end
    for library in libraries:
        with contextlib.suppress(ImportError):  # the job that needs it says so
            if library.startswith(("torchmetrics", "transformers")):
                import_torchvision()
            importlib.import_module(library)
    signal.signal(signal.SIGCHLD, ignored)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # jobs that ended meanwhile
            pass
    gc.freeze()  # the collector of a forked job would copy every page


def import_components(command: str) -> None:
    """Import all components, the modules that read the configuration, and for drawing and judging the papers."""
    with contextlib.suppress(Exception):  # the job says so
        from leakbench.jobs.base import JOB_KINDS
        from leakbench.planning.variants import REGISTRIES

        for registry in (*REGISTRIES.values(), JOB_KINDS):
            list(registry)
        if command in ("draw", "judge"):
            from leakbench.report.artifacts import artifacts

            artifacts()
    gc.freeze()


def _take_over(request: Request, streams: Sequence[int]) -> None:
    """Take over the streams, folder, environment and arguments of the caller."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
        os.close(stream)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv[1:] = request.arguments


def _work(
    request: Request,
    streams: Sequence[int],
    connection: socket.socket,
    needs: Needs,
    main: Callable[[Sequence[str]], int],
) -> NoReturn:
    """Run the command in this forked process, and tell the caller its exit status."""
    before = frozenset(sys.modules)

    def end_with_caller() -> None:
        connection.recv(1)  # the caller sends nothing: this returns when it is gone
        os.kill(os.getpid(), signal.SIGKILL)

    status = 1
    try:
        connection.sendall(STARTED + os.getpid().to_bytes(4))
        _take_over(request, streams)
        threading.Thread(target=end_with_caller, daemon=True).start()
        status = main(request.arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        with contextlib.suppress(OSError):
            needs.report(before)
        with contextlib.suppress(OSError):
            connection.sendall(bytes([status]))
        os._exit(status)  # skip the exit handlers of the warm process


def _main() -> None:
    run, descriptor = map(int, sys.argv[1:])
    needs = Needs.open()
    job = serve(run, socket.socket(fileno=descriptor), needs)
    if job is not None:
        from leakbench.cli import main

        _work(*job, needs, main)


if __name__ == "__main__":
    _main()
