"""The page of an audit: in plain words what leaks, under which knowledge, what was not tried, and what would help."""

from __future__ import annotations

import base64
from pathlib import Path

from leakbench.auditing.findings import CLEAR, EXACT, GUESS, AuditRecord, Behind, Level, Tried

AGREE = 25.0
"""Decibels from which on two starts are said to end in the same picture."""
EXPLAINED = 0.01
"""Part of what mid-grey leaves unexplained, below which a reconstruction is said to explain the update."""

IN_WORDS: dict[Level, str] = {
    "exact": "recovered",
    "recognisable": "recognisable",
    "partial": "partly recovered",
    "nothing": "nothing beyond a guess",
    "unknown": "not compared with true images",
    "failed": "could not run",
}


def page(record: AuditRecord, folder: Path) -> str:
    """The page as HTML; it needs no other file and no network.

    Args:
        record: what was found.
        folder: of the pictures.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader

    loader = ChoiceLoader([PackageLoader("leakbench.auditing"), PackageLoader("leakbench.report")])
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("audit.html.j2").render(
        record=record,
        headline=headline(record),
        in_words=IN_WORDS,
        evidence={each.name: evidence(each) for each in record.tried},
        picture={each.name: _data(folder / each.picture) for each in record.tried if each.picture},
        truth=_data(folder / "truth.png") if record.blind else "",
        exact=EXACT,
        clear=CLEAR,
        guess=GUESS,
        explained=EXPLAINED,
        helped=[row for row in record.behind if row.nearness is not None and helps(row, record)],
    )


def headline(record: AuditRecord) -> str:
    """The finding, in a sentence."""
    best = record.best
    if best is None:
        return "No attack could run on this update; that is no evidence that it leaks nothing."
    knowing = (
        f"an attacker who knows the model, the update, and {best.knows}"
        if best.knows
        else ("an attacker who knows the model and the update alone")
    )
    if best.scores is not None:
        many = "image" if len(best.scores.psnr) == 1 else f"{len(best.scores.psnr)} images"
        return {
            "exact": f"This update gives its {many} away to {knowing}.",
            "recognisable": f"This update lets {knowing} recognise its {many}.",
            "partial": f"This update lets {knowing} make out something of its {many}, no more.",
        }.get(best.level, f"No attack that was tried got beyond a guess about its {many}; others may.")
    if explains(best) and (best.agreement or 0) >= AGREE:
        return (
            f"For {knowing}, different starts end in the same picture, which explains the update: evidence that it "
            "gives its images away."
        )
    return "What was reconstructed was not compared with true images; look at it yourself."


def evidence(tried: Tried) -> str:
    """The evidence for a reconstruction without the truth."""
    if tried.level == "failed":
        return tried.reason
    parts = []
    if tried.unexplained is not None:
        word = "explains the update" if explains(tried) else "does not explain the update"
        parts.append(f"The reconstruction {word}: it leaves {tried.unexplained:.2g} of what mid-grey leaves.")
    if tried.agreement is not None:
        same = "the same picture" if tried.agreement >= AGREE else "different pictures"
        parts.append(
            f"The two best of {tried.starts} starts end in {same} ({tried.agreement:.1f} dB of PSNR between them)."
        )
    return " ".join(parts)


def explains(tried: Tried) -> bool:
    """Whether the reconstruction's update is the captured one, by :data:`EXPLAINED`."""
    return tried.unexplained is not None and tried.unexplained <= EXPLAINED


def helps(row: Behind, record: AuditRecord) -> bool:
    """Whether what is found behind a defense is not recognisable; with true images, no better than a guess."""
    limit = CLEAR if record.blind is None else min(CLEAR, record.blind.mean_psnr + GUESS)
    return row.nearness is not None and row.nearness < limit


def _data(file: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}" if file.is_file() else ""
