"""Output of commands on a terminal: tables, and notes on them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from leakbench.report.findings import SURVIVES, effect_text, lean_text, marked, threshold_text
from leakbench.report.judging import SMOKE_WARNING
from leakbench.staged.root import data_root
from leakbench.staging import Availability, to_do

if TYPE_CHECKING:
    from rich.console import Console


def new_console() -> Console:
    """The console, of 140 columns where there is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140)


WORDS = {
    "running": "runs since {since} on {host}, process {pid}{slurm}",
    "failed": "failed on {host}: {reason}",
    "stopped": "killed or stopped on {host}, started {since}; run it again",
    "stale": "{reason}",
    "unreadable": "{reason}",
    "infeasible": "{reason}",
    "diverged": "{reason}",
}
SHOWN = 20
"""Number of jobs of a list that are printed; --json has all."""


def hours(value: list[float] | None) -> str:
    """The estimate and its interval, ``12 (4 to 40)``."""
    if value is None:
        return ""
    return f"{_amount(value[0])} ({_amount(value[1])} to {_amount(value[2])})"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.2g}" if value >= 0.001 else "<0.001"


def size(value: float | None) -> str:
    """Bytes in decimal units."""
    if value is None:
        return "?"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def print_costs(report: dict[str, Any]) -> None:
    """Print tables by paper, kind of job and artifact, and the basis of the estimates."""
    from rich import box
    from rich.table import Table

    console = new_console()
    devices = [device for device in ("gpu", "cpu") if report["total"][f"{device}_hours"]]
    for title, key in (("paper", "papers"), ("kind of job", "kinds"), ("figure or table", "artifacts")):
        table = Table(title=f"scale {report['scale']}: what is left, by {title}", box=box.SIMPLE_HEAD)
        table.add_column(title, no_wrap=True)
        unknown = ("unknown",) if report["total"]["unknown"] else ()
        for column in ("done", *(f"{device.upper()}-hours" for device in devices), *unknown, "wall hours", "storage"):
            table.add_column(column, justify="right", no_wrap=True)
        rows = report[key] + ([{"name": "all", **report["total"]}] if key != "artifacts" else [])
        for row in rows:
            table.add_row(
                row["name"],
                f"{row['done']} of {row['jobs']}",
                *(hours(row[f"{device}_hours"]) for device in devices),
                *(f"{row[name]} jobs" if row[name] else "" for name in unknown),
                "?" if row["wall_hours"] is None else _amount(row["wall_hours"]),
                size(row["bytes"]),
            )
        console.print(table)
    if report["within"] is not None:
        _print_within(console, report["within"])
    _print_basis(console, report)


def _print_within(console: Console, fitting: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title=f"what fits into {fitting['wall_hours']:g} wall hours, cheapest first", box=box.SIMPLE_HEAD)
    table.add_column("figure or table", no_wrap=True)
    table.add_column("hours that it adds", justify="right", no_wrap=True)
    for row in fitting["artifacts"]:
        table.add_row(row["name"], _amount(row["hours"]))
    console.print(table)


def _print_basis(console: Console, report: dict[str, Any]) -> None:
    console.print("Hours are of devices, with the interval that holds them four times out of five.", soft_wrap=True)
    records = ", ".join(f"{count} of a {device.upper()}" for device, count in report["records"].items())
    console.print(f"From {records} (records below results/, of any scale). The model: docs/costs.md.", soft_wrap=True)
    for reason, count in report["unused_records"].items():
        console.print(f"Left out: {count} records {reason}.", soft_wrap=True)
    if report["assumed_speedup"]:
        low, high = report["assumed_speedup"]
        console.print(
            f"Assumed, for want of records of a GPU: it does {low:g} to {high:g} multiply-adds while a core does one "
            "(--speedup LOW:HIGH), and starts a step no sooner.",
            soft_wrap=True,
        )
    console.print(
        f"Wall hours: at least, with {report['at_a_time']} GPUs or cores at a time (--gpus N), and without queues.",
        soft_wrap=True,
    )
    if not any(report["records"].values()):
        console.print(
            "Without records there is no estimate: `make replicate` makes some of every kind.", soft_wrap=True
        )
    for kind, reason in report["without_estimate"].items():
        console.print(f"No estimate for jobs of kind '{kind}': {reason}.", soft_wrap=True)


def print_status(report: dict[str, Any]) -> None:
    """Print tables by paper and artifact, and lists of jobs that fail, run or cannot be used."""
    from rich import box
    from rich.table import Table

    console = new_console()
    words = [word for word in WORDS if report["total"][word]]
    for title, key in (("paper", "papers"), ("figure or table", "artifacts")):
        table = Table(title=f"scale {report['scale']}, by {title}", box=box.SIMPLE_HEAD)
        table.add_column(title, no_wrap=True)
        table.add_column("done", justify="right", no_wrap=True)
        for column in words:
            table.add_column(column, justify="right", no_wrap=True)
        for row in report[key] + ([report["total"]] if key == "papers" else []):
            counts = (str(row[word] or "") for word in words)
            table.add_row(row["name"], f"{row['done']} of {row['jobs']}", *counts)
        console.print(table)
    for standing, words_of in WORDS.items():
        for row in report[standing][:SHOWN]:
            slurm = f", SLURM job {row['slurm_job_id']}" if row.get("slurm_job_id") else ""
            text = words_of.format(**{"reason": "", **row}, slurm=slurm)
            console.print(f"{standing}: {row['record']}: {text}", soft_wrap=True, markup=False, highlight=False)
        if len(report[standing]) > SHOWN:
            console.print(f"{standing}: and {len(report[standing]) - SHOWN} more; --json lists all", soft_wrap=True)


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table."""
    from rich.table import Table

    console = new_console()
    if not rows:
        console.print(f"{title}: none")
        return
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(", ".join(value) if isinstance(value, dict) else str(value) for value in row.values()))
    console.print(table)


SURVIVES_LEGEND = f"{SURVIVES}: the verdict outlives Holm's correction for the number of the paper's claims tested"
VERDICTS = {"reproduced": "bold blue", "contradicted": "bold yellow", "inconclusive": "magenta", "not run": "dim"}


def print_claims(rows: list[dict[str, Any]]) -> None:
    """Print verdicts, each with a sign, a word and a colour."""
    from rich.table import Table
    from rich.text import Text

    console = new_console()
    for paper, scale in dict.fromkeys((row["paper"], row["scale"]) for row in rows):
        table = Table(title=f"claims of {paper}, scale {scale}", show_lines=True)
        for column in ("claim", "verdict", "effect", "statement"):
            table.add_column(column, no_wrap=column in ("claim", "verdict"))
        for row in rows:
            if row["paper"] == paper:
                verdict = Text(marked(row), style=VERDICTS[row["verdict"]])
                statement = Text.assemble(row["statement"], (f" ({row['source']})", "dim"))
                undecided = lean_text(row["lean"], row["seeds_needed"])
                printed = f"paper: {row['printed']}" if row["printed"] else ""
                by_paper = f"by the paper's own numbers: {row['by_paper']}" if row["by_paper"] else ""
                covered = f"coverage: {row['coverage']}" if row["coverage"] else ""
                threshold = threshold_text(row["at_least"], row["at_most"])
                lines = (printed, by_paper, row["meaning"], threshold, undecided, covered, row["note"])
                for line in filter(None, lines):
                    statement.append(f"\n{line}", style="dim")
                table.add_row(row["claim"], verdict, effect_text(row["effect"], row["low"], row["high"]), statement)
        console.print(table)
    console.print(SURVIVES_LEGEND)
    if any(row["scale"] == "smoke" for row in rows):
        console.print(SMOKE_WARNING)


def print_staged(needs: Sequence[Availability], scale: str) -> None:
    """Print a table of staged and missing files, with their sums and faults."""
    from rich.filesize import decimal
    from rich.table import Table

    console = new_console()
    table = Table(title=f"what scale {scale} needs, in {data_root()}", show_lines=True)
    for column in ("name", "for", "state", "size", "terms", "to do"):
        table.add_column(column, no_wrap=column == "size", overflow="fold")
    for each in needs:
        table.add_row(
            each.need.name,
            ", ".join(each.need.papers),
            each.state,
            ("" if each.need.staged is None else "?") if each.size is None else decimal(each.size),
            each.need.staged.terms if each.need.staged else "",
            to_do(each),
        )
    console.print(table)
    there = sum(each.size or 0 for each in needs if each.ready)
    console.print(f"staged: {decimal(there)} on disk", highlight=False)
    absent = [each for each in needs if not each.ready]
    if absent:
        unknown = sum(each.size is None for each in absent)
        to_fetch = decimal(sum(each.size or 0 for each in absent)) + (
            f" and {unknown} of unknown size" if unknown else ""
        )
        names = ", ".join(each.need.name for each in absent)
        console.print(f"missing: {names}; to fetch: about {to_fetch}", highlight=False)
    for each in needs:
        for fault in each.faults:
            console.print(fault, highlight=False, soft_wrap=True, markup=False)
