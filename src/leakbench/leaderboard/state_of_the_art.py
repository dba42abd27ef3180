"""The page on the state of the art: what every attack assumes, costs and reaches, and the lines that one overturned.

Nothing in its tables is typed: grants and numbers of evaluations are those of the classes, what attacks reach is what
docs/attacks.md says beside its commands, and lines are those that were published.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS, Attack
from leakbench.leaderboard.history import PLACE, SINCE, history, history_path
from leakbench.records import atomic_write
from leakbench.report.published import SCALES, rewritten

if TYPE_CHECKING:
    from leakbench.planning.project import Project

PAGE, MEASURED = "docs/state-of-the-art.md", "docs/attacks.md"
ON = {
    "analytic": "one image behind a fully connected first layer, any local steps",
    "spear": "a batch behind a fully connected first layer with ReLU, one step",
    "cocktail_party": "large batches and sums behind a fully connected first layer, any local steps",
    "cocktail_party_as_released": "large batches and sums behind a fully connected first layer, any local steps",
    "surrogate": "several local steps, in any order",
    "unordered": "several local steps, whole epochs in any order",
    "dager": "sentences behind attention",
    "learned_inversion": "one image, behind any mechanism",
    "ridge_inversion": "one image, behind any mechanism",
    "idlg": "one image",
}
"""Updates that an attack is for, where these are not images, or sentences, of any number."""
_CELL = re.compile(r"(?<!\\)\|")


def write_page(project: Project) -> list[Path]:
    """Write the tables of the page anew, and return it if it changed; nothing where there is no documentation.

    Raises:
        ConfigError: the page does not have exactly one place for them.
    """
    path = project.root / PAGE
    if not path.is_file():
        return []
    _, text = rewritten(path, tables(project))
    if text == path.read_text(encoding="utf-8"):
        return []
    atomic_write(path, text.encode())
    return [path]


def tables(project: Project) -> str:
    """Both tables, as Markdown."""
    measured = measurements((project.root / MEASURED).read_text(encoding="utf-8"))
    order = list(measured)
    lines = [
        "| attack | on | granted beside model and update | evaluations | published | here |",
        "|---|---|---|---:|---|---|",
    ]
    # As attacks.md has them, whose rows speak of those above: "the same".
    for attack in sorted(
        shown(), key=lambda attack: order.index(attack.name) if attack.name in measured else len(order)
    ):
        name = attack.name
        cells = [f"[`{name}`](reference/attacks.md#{name})", ON.get(name, attack.reconstructs)]
        cells += [", ".join(f"`{grant}`" for grant in sorted(attack.needs)) or "nothing", _evaluations(attack)]
        rows = measured.get(name, [])
        cells += [_joined([row[0] for row in rows]), _joined([row[1] for row in rows])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", "### Lines that an attack overturned", "", *_overturned(project)])


def shown() -> Iterator[Attack]:
    """Every attack of the suite in its default form, by name: no wrapper, no reference attacker, nor all parameters."""
    for name in ATTACKS:
        attack = ATTACKS.get(name)
        if not attack.observes or issubclass(attack, Wrapper) or not attack.__module__.startswith("leakbench."):
            continue
        try:
            yield attack()
        except ValidationError:  # parameters without a default
            continue


def measurements(page: str) -> dict[str, list[tuple[str, str]]]:
    """Published and own numbers by the attack's name: the rows of docs/attacks.md that have any."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for cells in _table(page, "attacker"):
        name, iterations, model, data, psnr, part, *_ = cells
        if named := re.match(r"`(\w+)`", name):
            text = f"{psnr} dB at the median, {part} recovered; {data}, {model}, {iterations} iterations"
            rows.setdefault(named[1], []).append(("", text))
    for cells in _table(page, "name"):
        if (named := re.match(r"`(\w+)`(.*)", cells[0])) and cells[2]:
            beside = named[2].strip(" ,")
            rows.setdefault(named[1], []).append((cells[1], f"{beside}: {cells[2]}" if beside else cells[2]))
    return rows


def _table(page: str, first: str) -> Iterator[list[str]]:
    """The rows of the table whose first column is called so."""
    match = re.search(rf"^\| {first} \|.*\n\|[-:| ]+\n((?:\|.*\n)+)", page, flags=re.MULTILINE)
    for line in match[1].splitlines() if match else []:
        yield [cell.strip() for cell in _CELL.split(line)[1:-1]]


def _joined(texts: list[str]) -> str:
    return "<br>".join(dict.fromkeys(text for text in texts if text))


def _evaluations(attack: Attack) -> str:
    passes = attack.effort(1).passes
    if passes <= 1:
        return "no search"
    return f"{passes:,.0f}"


def _overturned(project: Project) -> list[str]:
    """Lines whose leakage rose when another attack became the strongest, over all versions of a track."""
    scales = [scale for scale in SCALES if (project.root / history_path(scale)).is_file()]
    if not scales:
        return ["No line of the leaderboard is published yet."]
    rows = [row for scale in scales for row in _rows_of(project, scale)]
    if not rows:
        named = ", ".join(f"`{scale}`" for scale in scales)
        return [f"None of the published lines (scale {named}) has been overturned yet."]
    return ["| day | scale | track | cell | defense | before | after |", "|---|---|---|---|---|---|---|", *rows]


def _rows_of(project: Project, scale: str) -> Iterator[str]:
    last: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in history(project, scale):
        place = tuple(str(line[name]) for name in PLACE if name != "version")
        before, last[place] = last.get(place), line
        if not before or line["strongest"] == before["strongest"] or None in (line["leakage"], before["leakage"]):
            continue
        if line["leakage"] <= before["leakage"]:
            continue
        cells = [line[SINCE], f"`{scale}`", f"{line['track']}, version {line['version']}"]
        cohort = [f"{line['cohort']:.0f} clients"] if line["cohort"] else []
        cells += [", ".join([line["dataset"], line["model"], *cohort]), f"`{line['defense']}`"]
        cells += [f"{each['leakage']:.1f} {each['unit']} by `{each['strongest']}`" for each in (before, line)]
        yield f"| {' | '.join(cells)} |"
