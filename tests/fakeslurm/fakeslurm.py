"""A stand-in for SLURM's commands, for tests of what Snakemake hands to sbatch. No cluster, nothing to install.

``install(FOLDER, STATE)`` writes the commands into FOLDER, to be put first on PATH; what they know is in STATE.
A submitted job starts at once, in the background, whatever it asks for. It runs the command it was submitted with or,
where there is a ``STATE/instead``, that shell script, which costs less than Snakemake within Snakemake. Further:

* ``STATE/<id>.json``: the arguments that sbatch was called with, without the job's own command line;
* ``STATE/<id>.state``: RUNNING, then COMPLETED or FAILED, or CANCELLED;
* ``STATE/<id>.pid``: the process group that the job runs in;
* ``STATE/accounts``: the accounts that the user may charge, where a test gives some;
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

# What a job's process does: run the command ($1), then put the outcome into the state file ($2), in one piece.
JOB = 'if sh -c "$1"; then word=COMPLETED; else word=FAILED; fi; echo $word > "$2.new"; mv "$2.new" "$2"'


def install(folder: Path, state: Path) -> None:
    """Write the commands, each a line of shell around this file."""
    folder.mkdir(parents=True, exist_ok=True)
    state.mkdir(parents=True, exist_ok=True)
    for name in COMMANDS:
        words = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), name, str(state)]
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        command.chmod(0o755)


def stop_jobs(state: Path) -> None:
    """Stop the jobs that still run, for the end of a test."""
    for record in state.glob("*.state"):
        if record.read_text().strip() == "RUNNING":
            scancel(state, [record.stem])


def sbatch(state: Path, arguments: list[str]) -> int:
    """Note the arguments, start the job, print its id."""
    flags = [word for word in arguments if not word.startswith("--wrap=")]
    (command,) = (word.removeprefix("--wrap=") for word in arguments if word.startswith("--wrap="))
    number = 1
    while True:  # there may be two submissions at a time: whoever creates the file has the number
        try:
            with (state / f"{number}.json").open("x") as file:
                json.dump(flags, file)
            break
        except FileExistsError:
            number += 1
    instead = state / "instead"
    if instead.exists():
        command = instead.read_text()
    comment = flags[flags.index("--comment") + 1]
    environment = os.environ | {"SLURM_JOB_ID": str(number), "FAKESLURM_COMMENT": comment}
    if any(flag.startswith(("--gpus=", "--gres=")) for flag in flags):
        environment["CUDA_VISIBLE_DEVICES"] = "0"
    record = state / f"{number}.state"
    record.write_text("RUNNING")
    with Path(flags[flags.index("--output") + 1].replace("%j", str(number))).open("wb") as log:
        job = subprocess.Popen(
            ["sh", "-c", JOB, "job", command, str(record)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (state / f"{number}.pid").write_text(str(job.pid))
    print(number)
    return 0


def srun(state: Path, arguments: list[str]) -> int:
    """Run the command behind the flags."""
    while arguments[0].startswith("-"):
        arguments = arguments[1:]
    os.execvp(arguments[0], arguments)


def squeue(state: Path, arguments: list[str]) -> int:
    """Print the state of all jobs."""
    for record in state.glob("*.state"):
        print(f"{record.stem}|{record.read_text().strip()}")
    return 0


def scancel(state: Path, arguments: list[str]) -> int:
    """Stop jobs, named by their ids."""
    for number in arguments:
        if number.isdigit():
            (state / f"{number}.state").write_text("CANCELLED")
            with contextlib.suppress(ProcessLookupError):  # it may end meanwhile
                os.killpg(int((state / f"{number}.pid").read_text()), signal.SIGKILL)
    return 0


def scontrol(state: Path, arguments: list[str]) -> int:
    """The lines of the configuration that the plug-in reads."""
    print("MaxArraySize = 1001\nMinJobAge = 300 sec")
    return 0


def sinfo(state: Path, arguments: list[str]) -> int:
    """The partitions; the star marks the default."""
    print("PARTITION\nmain*\ngpu")
    return 0


def sacct(state: Path, arguments: list[str]) -> int:
    """There is no accounting here."""
    print("Slurm accounting storage is disabled", file=sys.stderr)
    return 1


def sacctmgr(state: Path, arguments: list[str]) -> int:
    """The user's accounts."""
    accounts = state / "accounts"
    if not accounts.exists():
        return sacct(state, arguments)
    print(accounts.read_text())
    return 0


COMMANDS = {
    "sbatch": sbatch,
    "srun": srun,
    "squeue": squeue,
    "scancel": scancel,
    "scontrol": scontrol,
    "sinfo": sinfo,
    "sacct": sacct,
    "sacctmgr": sacctmgr,
    "sshare": sacctmgr,
}

if __name__ == "__main__":
    sys.exit(COMMANDS[sys.argv[1]](Path(sys.argv[2]), sys.argv[3:]))
