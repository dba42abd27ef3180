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


def nothing_but_readable(**parts):
    """No input files. Asked before Snakemake looks for the record, this moves an unreadable one aside."""
    if workflow.is_main_process:
        flow.quarantine_unreadable(workflow.dryrun, **parts)
    return []
