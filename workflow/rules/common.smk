# The plan behind the rules. All of the logic is in src/leakbench/workflow.py; nothing here imports torch.

from pathlib import Path

from snakemake.exceptions import WorkflowError

from leakbench.workflow import LeakbenchError, Workflow

try:
    flow = Workflow(Path(workflow.basedir), config)
    flow.name_run()
    if workflow.is_main_process:
        flow.unlock_if_alone(Path(".snakemake"))
except LeakbenchError as error:
    raise WorkflowError(str(error)) from None


# None of these is asked for in a dry run.
onstart:
    if workflow.is_main_process:
        flow.tidy_work()


onsuccess:
    if workflow.is_main_process:
        flow.tidy_work()


onerror:
    if workflow.is_main_process:
        flow.tidy_work()


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
    """Records that a job reads; most read none. Asked before Snakemake looks for its own record, this moves an
    unreadable one aside."""
    if workflow.is_main_process:
        flow.quarantine_unreadable(workflow.dryrun, **parts)
    return flow.used(**parts)
