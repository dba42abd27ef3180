"""The results of checks on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from leakbench.contract.check import Answer
from leakbench.report.terminal import new_console


def print_answers(answers: Sequence[Answer]) -> None:
    """Print the results of the contract's checks, each with a sign, a word and a colour, and the number of faults."""
    from rich.table import Table
    from rich.text import Text

    signs = {"ok": ("+", "bold blue"), "wrong": ("x", "bold red"), "not asked": ("-", "dim")}
    console = new_console()
    for component in dict.fromkeys(answer.component for answer in answers):
        table = Table(title=component)
        for column in ("check", "", "what is wrong, and what to do"):
            table.add_column(column, no_wrap=column != "what is wrong, and what to do")
        for answer in answers:
            if answer.component == component:
                sign, style = signs[answer.verdict]
                message = Text(answer.message, style="dim" if answer.verdict == "not asked" else "")
                table.add_row(answer.check, Text(f"{sign} {answer.verdict}", style=style), message)
        console.print(table)
    wrong = sum(answer.verdict == "wrong" for answer in answers)
    console.print(
        "Nothing is wrong." if not wrong else f"{wrong} of {len(answers)} checks say that something is wrong."
    )
