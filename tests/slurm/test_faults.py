"""What a SLURM cluster does to jobs: kill, cancel, forget, end. What is finished stays, the rest is made again.

All faults are in one run, side by side, since each takes as long as SLURM takes to notice. Jobs take no time here;
they are those of tests/workflow, which compute nothing, and go wrong as ``faulty_jobs.py`` says.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.slurm.sites import TIME_LIMIT, Site, new_site

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

PLUGINS = ["quick_jobs.py", "halved.py", "faulty_jobs.py"]
PAPER = "results/tiny/optimal_defense"
GROUP = [
    f"{PAPER}/pruning_training/digits16/small/{label}/train/all.json" for label in ("gp-80", "gp-90", "none", "op-80")
]
KILLED = f"{PAPER}/cifar_predictors/digits16/small/gp-90/fisher/all.json"
GREEDY = f"{PAPER}/coordinates/digits16/small/optimal-0.1/fisher/all.json"
ENDLESS = f"{PAPER}/noise/digits16/small/dpsgd/ig/all.json"
ON_DEAD_NODE = f"{PAPER}/architecture/digits/simpleconvnet/none/inventory/all.json"
LATE = f"{PAPER}/sgd/digits16/small/gp/train/all.json"
LONG = f"{PAPER}/undefended/digits16/small/none/train/all.json"
FAULTS = dict.fromkeys(GROUP, "third") | {
    KILLED: "killed",
    GREEDY: "memory",
    ENDLESS: "hangs",
    ON_DEAD_NODE: "hangs",
    LONG: "long",
    LATE: "waits",
}

FAILING = [
    f"{PAPER}/noise_training/digits16/small/{label}/train/all.json" for label in ("dpsgd-0.1", "none", "optimal-0.1")
]

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.xdist_group("slurm")]


# A file system whose files arrive late: what a step wrote is out of sight when the step ends, until a test returns it.
LATE_SRUN = """#!/bin/sh
PATH=${PATH#*:} srun "$@"
status=$?
if [ -e RECORD ] && [ ! -e late ]; then mv RECORD late; fi
exit $status
"""


def everything_goes_wrong(site: Site) -> None:
    """One run; each fault befalls a job of its own, as soon as that job is there."""
    site.goes_wrong(FAULTS)
    site.expects(GROUP, seconds=5)
    srun = site.root / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(LATE_SRUN.replace("RECORD", LATE))
    srun.chmod(0o755)
    # The limits that two of the faults reach.
    limits = "  fisher: {gpu: 1, mem_mb: 700 * attempt}\n  attack: {gpu: 1, runtime: attempt}\n"
    site.checkout.replace("slurm/config.yaml", "  merge:\n    turn: 1\n", f"{limits}  merge:\n    turn: 1\n")
    run = site.start(*FAULTS)

    def cancel() -> bool:
        number = next((found for record in GROUP if (found := site.attempted(record))), None)
        if number is not None:
            site.cluster.run("scancel", number)
        return number is not None

    def kill_node() -> bool:
        number = site.attempted(ON_DEAD_NODE)
        if number is not None:
            site.cluster.kill_node(site.jobs()[number]["NodeList"])
        return number is not None

    def arrive() -> bool:
        late = site.root / "late"
        if not late.exists() or time.time() - late.stat().st_ctime < 6:
            return False
        late.rename(site.root / LATE)
        late.touch()  # from now on nothing is late
        return True

    def requeue() -> bool:
        steps = site.steps()
        if len(steps) < 20:
            return False
        site.cluster.run("scontrol", "requeue", steps[0][0])
        return True

    def hurry() -> bool:
        return site.hurry(2)

    def run_twice() -> bool:
        if len(site.runs) == 1 and list((site.root / ".snakemake" / "locks").glob("*")):
            site.start(LATE)
        if site.runs[-1] is run or site.runs[-1].poll() is None:
            return False
        (site.root / "released").touch()
        return True

    to_do = [cancel, kill_node, arrive, requeue, hurry, run_twice]
    end = time.monotonic() + TIME_LIMIT
    while run.poll() is None and time.monotonic() < end:
        to_do = [action for action in to_do if not action()]
        time.sleep(0.5)
    assert not to_do, f"{[action.__name__ for action in to_do]} never came\n{site.said(0)}"


def cope(cluster: Cluster, folder: Path) -> Site:
    """A checkout in which everything went wrong, and one run coped."""
    site = new_site(cluster, folder, *PLUGINS)
    try:
        everything_goes_wrong(site)
    finally:
        site.stop()
    return site


@dataclass(frozen=True)
class Failed:
    """A checkout in which a cell of a group failed, in two runs, and what was to be seen in between."""

    site: Site
    statuses: tuple[int, int]
    jobs_of_first: dict[str, dict[str, str]]


def fail_twice(cluster: Cluster, folder: Path) -> Failed:
    """Run a group with a cell that fails, and, with nothing repaired, run it again."""
    site = new_site(cluster, folder, *PLUGINS)
    site.goes_wrong({FAILING[0]: "fails"})
    site.expects(FAILING, seconds=5)
    try:
        site.start("--retries", "0", *FAILING)
        first, jobs = site.finish(), site.jobs()
        site.start("--retries", "0", *FAILING)
        return Failed(site, (first, site.finish()), jobs)
    finally:
        site.stop()


RUNS = {"cope": cope, "fail_twice": fail_twice}


@pytest.fixture(scope="module")
def site(runs: dict[str, Future[Any]]) -> Site:
    """A checkout in which everything went wrong, and one run coped."""
    site: Site = runs["cope"].result()
    return site


def again(site: Site, record: str) -> tuple[dict[str, str], dict[str, str]]:
    """The SLURM job in which a job went wrong, and the one that made its record."""
    first, last = site.attempted(record), site.record(record)["provenance"]["slurm_job_id"]
    assert first is not None
    return site.jobs()[first], site.jobs()[last]


def test_one_run_copes_with_everything(site: Site) -> None:
    assert site.runs[0].returncode == 0, site.said(0)
    for record in FAULTS:
        assert site.record(record)["outcome"]["status"] == "ok"
    assert not list((site.root / "work").rglob("*.json"))  # nothing is left behind


def test_group_is_one_job_on_one_gpu(site: Site) -> None:
    ran = site.ran()
    (first,) = {ran[record][0][0] for record in GROUP if len(ran[record]) == 2}
    job = site.jobs()[first]
    assert job["Comment"] == "rule_gpu32_train"
    assert job["TresPerJob"] == "gres:gpu:1"
    assert "cpu=1,mem=8000M" in job["TRES"]  # those of one cell
    assert job["TimeLimit"] == "00:08:00"  # two minutes for each of four
    parents = {parent for record in GROUP for number, parent in ran[record] if number == first}
    assert len(parents) == 1  # the cells were forked from the same warm process


def test_cancelled_group_loses_the_current_cell_alone(site: Site) -> None:
    ran = site.ran()
    (cancelled,) = {site.attempted(record) for record in GROUP} - {None}
    assert cancelled is not None
    assert site.jobs()[cancelled]["JobState"] == "CANCELLED"
    twice = [record for record in GROUP if len(ran[record]) == 2]
    assert len(twice) == 1 and site.attempted(twice[0])  # the one that was running
    made_by = sorted(site.record(record)["provenance"]["slurm_job_id"] for record in GROUP)
    assert made_by.count(cancelled) == 2  # finished before: not computed again
    assert f"JOB {cancelled} ON " in site.said(0) and " CANCELLED AT " in site.said(0)


def test_killed_job_is_said_and_made_again(site: Site) -> None:
    first, last = again(site, KILLED)
    assert (first["JobState"], last["JobState"]) == ("FAILED", "COMPLETED")
    assert "leakbench: the process of this job was killed; did it run out of memory?" in site.said(0)


def test_job_that_takes_too_much_memory_gets_more(site: Site) -> None:
    """Here SLURM itself looks and ends the step. Where a cgroup does, the job's state is OUT_OF_MEMORY."""
    first, last = again(site, GREEDY)
    assert (first["JobState"], last["JobState"]) == ("FAILED", "COMPLETED")
    assert "mem=700M" in first["TRES"] and "mem=1400M" in last["TRES"]
    assert "exceeded memory limit" in site.said(0)


def test_job_that_takes_too_long_gets_more_time(site: Site) -> None:
    first, last = again(site, ENDLESS)
    assert first["JobState"] == "TIMEOUT"
    # A minute per attempt. On a slow machine one attempt can pass before the job begins, and is not seen here.
    limits = (first["TimeLimit"], last["TimeLimit"])
    assert limits in (("00:01:00", "00:02:00"), ("00:02:00", "00:03:00"))
    assert "SLURM status is: 'TIMEOUT'" in site.said(0)


def test_job_of_a_dead_node_runs_elsewhere(site: Site) -> None:
    _, last = again(site, ON_DEAD_NODE)  # the same job: SLURM itself queues it again
    assert last["Restarts"] == "1" and last["JobState"] == "COMPLETED"
    assert last["NodeList"] in ("gpu1", "gpu2")  # the dead one is cpu1
    assert len(site.ran()[ON_DEAD_NODE]) == 2


def test_long_job_goes_on_when_slurm_queues_it_again(site: Site) -> None:
    steps = site.steps()
    (number,) = {job for job, _, _ in steps}
    assert site.jobs()[number]["Restarts"] == "1"
    first, second = (
        [step for _, process, step in steps if process == each] for each in dict.fromkeys(p for _, p, _ in steps)
    )
    assert first[0] == 0 and second[-1] == 99
    assert second[0] in (first[-1], first[-1] + 1)  # told to end, it saved what it had


def test_file_that_arrives_late_is_waited_for(site: Site) -> None:
    assert (site.root / "late").exists()
    assert len(site.ran()[LATE]) == 1


def test_second_run_of_the_same_is_refused_in_plain_words(site: Site) -> None:
    assert site.runs[1].returncode != 0
    said = site.said(1)
    assert f"leakbench: another run works in this folder: process {site.runs[0].pid} on " in said
    assert "wait until the other has ended" in said and "Directory cannot be locked" in said


def test_failing_cell_stops_no_other_of_its_group(runs: dict[str, Future[Any]]) -> None:
    """Snakemake deletes all its records. The next run puts the good ones back, and runs the bad one alone."""
    failed: Failed = runs["fail_twice"].result()
    site = failed.site
    assert failed.statuses[0] != 0
    said = site.said(0)
    assert "leakbench: 1 of the jobs that were started left no record." in said
    assert f"{FAILING[0]}: failed: OSError: the disk is gone" in said
    (first,) = failed.jobs_of_first

    assert failed.statuses[1] != 0
    ran = site.ran()
    for record in FAILING[1:]:
        assert site.record(record)["provenance"]["slurm_job_id"] == first
        assert len(ran[record]) == 1
    comments = sorted(job["Comment"] for number, job in site.jobs().items() if number != first)
    assert comments[0] == "rule_gpu32_train" and comments[1].startswith("rule_train_")
