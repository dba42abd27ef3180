# The plan behind the rules. All of the logic is in src/leakbench/workflow/; nothing here imports torch.

import os
from pathlib import Path

from leakbench.workflow.snakefile import Workflow, last_words

with last_words():
    flow = Workflow(Path(workflow.basedir), config)
    if not workflow.is_main_process:
        flow.name_job()
    else:
        flow.check_targets()
        flow.name_run()
        flow.unlock_if_alone(Path(".snakemake"))


# None of these is asked for in a dry run.
onstart:
    if workflow.is_main_process:
        flow.check_compared()
        flow.tidy_work()
    if groups_form():
        flow.requeue_preempted()


onsuccess:
    if workflow.is_main_process:
        flow.tidy_work()


onerror:
    if workflow.is_main_process:
        flow.tidy_work()
        flow.say_endings()


# Scales, papers and labels never hold a slash. Which of them exist is checked by looking the path up, so that a
# misspelt target gets an error that names the part at fault.
wildcard_constraints:
    scale="[^/]+",
    paper="[^/]+",
    experiment="[^/]+",
    dataset="[^/]+",
    model="[^/]+",
    defense="[^/]+",
    part="[^/]+",


def used_records(**parts):
    """Records that a job reads; most read none. Asked before Snakemake looks for its own record, this moves one aside
    that is unreadable, or another job's."""
    if workflow.is_main_process:
        flow.look_at_record(workflow.persistence, workflow.dryrun, **parts)
    return flow.used(**parts)


def groups_form():
    """Whether this Snakemake submits jobs to a cluster. One in a SLURM job gets its jobs by name."""
    return workflow.is_main_process and not workflow.local_exec


def offered_resources():
    """Resources of which this run has some: those with a limit (`resources` in slurm/config.yaml). A laptop's run offers
    no GPU, and its jobs ask for none. A Snakemake in a SLURM job has the GPU that the job was given."""
    if workflow.is_main_process:
        return workflow.global_resources
    return {"gpu"} if "SLURM_GPUS" in os.environ else set()


def shared_job(wildcards):
    """The group of small cells with which a job shares a SLURM job, if it does."""
    if groups_form():
        return flow.share(**wildcards)
    # A cell that cannot be computed does not stop the others of its group. Snakemake hands this setting to no job, and
    # knows its settings from when it asks for groups on.
    if not workflow.is_main_process:
        workflow.execution_settings.keep_going = True


def time_limit(minutes, wildcards, attempt):
    """Minutes of a job that takes some in a first attempt; fewer where small cells share the SLURM job."""
    return flow.minutes(minutes, attempt, **wildcards) if groups_form() else minutes * attempt
