"""The caller of a warm process (``warm.py``): hands over a command, waits, and exits as the job does.

Every step of the workflow starts one, so it imports next to nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys

RUN = "LEAKBENCH_WARM"
"""Environment variable with the process id of the run's Snakemake; if empty, every job starts by itself."""

COMMANDS = ("run", "merge", "draw", "judge")
"""Commands that a warm process makes faster."""

STARTED = b"\x00"
"""First byte of the answer to a caller, before the job's process id in four bytes."""

RELAYED = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that the caller relays to the job, which saves its state and ends."""


def delegate(arguments: list[str]) -> int | None:
    """Have a command run by the warm process of this run; returns its exit status, or None to run it here."""
    run = os.environ.get(RUN)
    if not run or command_of(arguments) is None:
        return None
    try:
        connection = connect(int(run))
        socket.send_fds(connection, [STARTED], [0, 1, 2])
        request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
        connection.sendall(json.dumps(request).encode() + b"\n")
        started = connection.recv(5, socket.MSG_WAITALL)
        if len(started) < 5:
            raise ConnectionError("it ended")
    except OSError as error:
        print(f"leakbench: no warm process ({error}); this job imports by itself", file=sys.stderr)
        return None
    relayed: list[int] = []

    def relay(number: int, _: object) -> None:
        relayed.append(number)
        try:
            os.kill(int.from_bytes(started[1:]), number)
        except ProcessLookupError:
            pass

    for number in RELAYED:
        signal.signal(number, relay)
    status = connection.recv(1)
    if not status and relayed:
        return 128 + relayed[0]
    if not status:
        print("leakbench: the process of this job was killed; did it run out of memory?", file=sys.stderr)
        return 128 + signal.SIGKILL
    return status[0]


def command_of(arguments: list[str]) -> str | None:
    """The command in a command line, if a warm process makes it faster."""
    return next((word for word in arguments if word in COMMANDS), None)


def folder_of(run: int) -> str:
    """Folder of a run's socket on this host."""
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"leakbench-{os.getuid()}-{socket.gethostname()}-{run}")


def locked(folder: str) -> int:
    """A descriptor that holds the lock of a run's folder until it is closed."""
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def connect(run: int) -> socket.socket:
    """A connection to the warm process of a run, which is started if there is none.

    Raises:
        PermissionError: another user could have put a socket there.
    """
    folder = folder_of(run)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    status, path = os.lstat(folder), os.path.join(folder, "socket")
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is open to others")
    connection = socket.socket(socket.AF_UNIX)
    lock = locked(folder)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        _start(run, path)
        connection.connect(path)  # queues until the new process accepts
    finally:
        os.close(lock)
    return connection


def _start(run: int, path: str) -> None:
    """Start the warm process of a run, at this socket."""
    import subprocess

    if os.path.lexists(path):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(128)
        subprocess.Popen(
            [sys.executable, "-m", "leakbench.workflow.warm", str(run), str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is Snakemake's, which then ends the callers
        )
