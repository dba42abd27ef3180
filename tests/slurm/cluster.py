"""A SLURM cluster on this one host, for tests: a controller, three nodes, two of them with two pretend GPUs.

It needs the packages of ``install.sh``, but neither root, nor a database, nor ``/etc/slurm``: configuration, keys,
sockets and ports are its own, so that it also runs beside a SLURM which this host belongs to. A supervisor process
starts the daemons and stops exactly these again when the test session ends (however it ends) or after a time limit.

By hand, from the repository root: ``python tests/slurm/cluster.py snakemake --profile slurm --config scale=smoke``.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import select
import shlex
import shutil
import signal
import socket
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parent
NODES = ("gpu1", "gpu2", "cpu1")
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
TIME_LIMIT = 3600  # seconds after which the supervisor stops everything, whatever the tests do
# Daemons live in sbin, which the PATH of an ordinary user often leaves out.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def why_not() -> str | None:
    """Why no cluster can be started here; None where one can."""
    missing = [name for name in COMMANDS if shutil.which(name, path=SEARCH_PATH) is None]
    if missing:
        return f"SLURM is not installed ({', '.join(missing)} not found): tests/slurm/install.sh installs it"
    if sys.platform != "linux":
        return f"the one-host SLURM needs Linux, not {sys.platform}"
    return None


class Cluster:
    """The cluster as tests see it: start it with ``with Cluster() as cluster:``."""

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        self.time_limit = time_limit
        # Not pytest's tmp_path: unix sockets lie in here, and their paths must stay below 108 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="leakbench-slurm-"))
        self._supervisor: subprocess.Popen[str] | None = None

    def __enter__(self) -> Cluster:
        try:
            command = [sys.executable, str(HERE / "cluster.py"), "--supervise", str(self.folder), str(self.time_limit)]
            # The supervisor ends when its standard input does, hence also when this process is killed.
            self._supervisor = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            assert self._supervisor.stdout is not None
            if self._supervisor.stdout.readline().strip() != "ready":
                raise RuntimeError(f"the one-host SLURM did not start:\n{self.logs()}")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the daemons and the jobs that still run; remove the cluster's folder."""
        if self._supervisor is not None:
            assert self._supervisor.stdin is not None and self._supervisor.stdout is not None
            self._supervisor.stdin.close()
            self._supervisor.wait(timeout=180)
            self._supervisor.stdout.close()
            self._supervisor = None
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which SLURM's commands, and Snakemake, talk to this cluster."""
        outside = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
        path = os.pathsep.join([str(self.folder / "bin"), SEARCH_PATH])
        return kept | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def run(self, *command: str) -> str:
        """Run one of SLURM's commands; its standard output."""
        return subprocess.run(
            command, env=self.environment, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    def jobs(self, folder: Path | None = None) -> dict[str, dict[str, str]]:
        """Jobs that the controller has seen, of a folder or all: id -> the fields of ``scontrol show job``."""
        found = {}
        for line in self.run("scontrol", "show", "job", "--oneliner").splitlines():
            # Values with spaces (comments of some jobs) lose what follows the first one; no test looks at these.
            fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if "JobId" in fields and folder in (None, Path(fields["WorkDir"])):
                found[fields["JobId"]] = fields
        return found

    def kill_node(self, node: str) -> None:
        """Let a node die: its daemon, and what ran on it."""
        died = [number for number, job in self.jobs().items() if job.get("NodeList") == node]
        self._tell(f"kill {node}")
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):  # gone meanwhile, or somebody else's
                environment = (process / "environ").read_bytes().split(b"\0")
                words = (process / "cmdline").read_text().split("\0")[0]
                if f"SLURM_CONF={self.folder / 'slurm.conf'}".encode() in environment and any(
                    f"SLURM_JOB_ID={number}".encode() in environment or words.startswith(f"slurmstepd: [{number}.")
                    for number in died
                ):
                    os.kill(int(process.name), signal.SIGKILL)

    def start_node(self, node: str) -> None:
        """Bring a node back that was killed."""
        self._tell(f"start {node}")

    def _tell(self, order: str) -> None:
        assert self._supervisor is not None and self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        self._supervisor.stdin.write(f"{order}\n")
        self._supervisor.stdin.flush()
        assert self._supervisor.stdout.readline().strip() == order

    def logs(self) -> str:
        """The last lines of every daemon's log, to say in a failed test."""
        lines = []
        for path in sorted(self.folder.glob("*.log")):
            lines += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-15:]]
        return "\n".join(lines)


# The supervisor: a process of its own, so that it outlives whatever kills the tests.


def configure(folder: Path) -> None:
    """Fill the folder with all that the daemons read."""
    folder.chmod(0o755)  # munge refuses a socket that not everybody can reach
    (folder / "state").mkdir()
    (folder / "bin").mkdir()
    for node in NODES:
        (folder / "spool" / node).mkdir(parents=True)
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    choose_ports(folder)
    # Snakemake's SLURM plug-in hides SLURM_CONF from the srun within a job, and where it runs in a job itself, from all
    # commands. On a real cluster they then read /etc/slurm; here, commands that come first on PATH name the
    # configuration again.
    for name in ("srun", "sbatch", "squeue", "scancel", "scontrol", "sinfo"):
        command = folder / "bin" / name
        real = shutil.which(name, path=SEARCH_PATH)
        command.write_text(f'#!/bin/sh\nSLURM_CONF={shlex.quote(f"{folder}/slurm.conf")} exec {real} "$@"\n')
        command.chmod(0o755)


def choose_ports(folder: Path) -> None:
    """Write SLURM's configuration with ports that nobody uses at the moment."""
    values = {"DIR": str(folder), "HOST": socket.gethostname().split(".")[0], "USER": getpass.getuser()}
    ports = free_ports(1 + len(NODES))
    values |= {f"{name.upper()}_PORT": str(port) for name, port in zip(("controller", *NODES), ports, strict=True)}
    for name in ("slurm.conf", "gres.conf"):
        (folder / name).write_text(string.Template((HERE / name).read_text()).substitute(values))


def free_ports(count: int) -> list[int]:
    """Ports that are free on all interfaces, from below those that the kernel gives to outgoing connections."""
    ports: set[int] = set()
    while len(ports) < count:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", random.SystemRandom().randrange(10_000, 32_000)))
            ports.add(one.getsockname()[1])
    return list(ports)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask every tenth of a second until the condition holds; whether it came to hold in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


class Supervisor:
    """Starts the daemons, in the order in which they need each other, and stops them in reverse."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": SEARCH_PATH}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> bool:
        folder = self.folder
        configure(folder)
        munge_socket = folder / "munge.socket"
        self.daemon(
            "munged",
            "--foreground",
            f"--socket={munge_socket}",
            f"--key-file={folder / 'munge.key'}",
            f"--pid-file={folder / 'munged.pid'}",
            f"--seed-file={folder / 'munged.seed'}",
        )
        if not wait_until(munge_socket.exists, 20):
            return False
        # Between the choice of a port and its use, another process may take it: the daemon dies, and others are chosen.
        for _ in range(3):
            # -i: a first start, without a saved state.
            self.daemon("slurmctld", "-D", "-i", "-f", str(folder / "slurm.conf"))
            for node in NODES:
                self.start_node(node)
            if wait_until(lambda: self.all_idle() or self.any_died(), 60) and not self.any_died():
                return True
            for name in ("slurmctld", *NODES):
                self.daemons[name].kill()
                self.daemons.pop(name).wait()
            choose_ports(folder)
        return False

    def start_node(self, node: str) -> None:
        self.daemon("slurmd", "-D", "-N", node, "-f", str(self.folder / "slurm.conf"), name=node)

    def obey(self, order: str) -> None:
        """``kill NODE`` or ``start NODE``."""
        verb, node = order.split()
        if verb == "start":
            self.start_node(node)
        else:
            self.daemons[node].kill()
            self.daemons[node].wait()

    def daemon(self, *command: str, name: str | None = None) -> None:
        name = name or command[0]
        with (self.folder / f"{name}.out.log").open("wb") as output:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/"
            )

    def ask(self, *command: str) -> str:
        """What one of SLURM's commands answers; nothing where it does not answer."""
        try:
            result = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=20)
        except subprocess.TimeoutExpired:
            return ""
        return result.stdout

    def any_died(self) -> bool:
        return any(daemon.poll() is not None for daemon in self.daemons.values())

    def all_idle(self) -> bool:
        states = self.ask("sinfo", "--noheader", "--Node", "--partition=main", "--format=%t").split()
        return states == ["idle"] * len(NODES)

    def stop(self) -> None:
        if "slurmctld" in self.daemons and self.daemons["slurmctld"].poll() is None:
            self.ask("scancel", f"--user={getpass.getuser()}")
            states = "--states=running,completing,pending"
            wait_until(lambda: not self.ask("squeue", "--noheader", "--format=%i", states).split(), 15)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        # A job's own supervisor is no child of ours; the folder on its command line or in its environment marks it.
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "comm").read_text().strip() != "slurmstepd":
                    continue
                if f"{self.folder}/".encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue  # gone meanwhile, or somebody else's


def supervise(folder: Path, time_limit: float) -> int:
    """Start, say so, obey what standard input says until it or the time ends, stop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))
    supervisor = Supervisor(folder)
    started = False
    try:
        started = supervisor.start()
        print("ready" if started else "failed", flush=True)
        end = time.monotonic() + time_limit
        while started and select.select([sys.stdin], [], [], max(end - time.monotonic(), 0))[0]:
            order = sys.stdin.readline().strip()
            if not order:
                break
            supervisor.obey(order)
            print(order, flush=True)
        return int(not started)
    finally:
        supervisor.stop()
        if started:  # otherwise the logs are still to be read
            shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--supervise"]:
        return supervise(Path(arguments[1]), float(arguments[2]))
    if not arguments or arguments[0].startswith("-"):
        print("usage: cluster.py COMMAND [ARGUMENT...]: run a command on a one-host SLURM, then stop it")
        return 2
    reason = why_not()
    if reason is not None:
        print(f"cluster.py: {reason}", file=sys.stderr)
        return 2
    with Cluster(time_limit=24 * 3600) as cluster:
        return subprocess.run(arguments, env=cluster.environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
