"""Tables 1 to 3: the leaderboard to copy into a paper, every setting that was computed, and the tiers in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from leakbench.lazy import pd
from leakbench.leaderboard import PAPER
from leakbench.leaderboard.board import Board, Computed, Entry, Row, boards, unjudged
from leakbench.leaderboard.figures import MEASURED, NO_DEFENSE, TIERED, in_words, percent, ratio, settings_of
from leakbench.leaderboard.tracks import ALLOWED, READ
from leakbench.report.artifacts import LATEX, Tables, artifact, escaped
from leakbench.report.under_attacked import COLUMN, DAGGER
from leakbench.report.wording import NONE

if TYPE_CHECKING:
    from leakbench.report.inference import Estimate

table = partial(artifact, PAPER, "table", experiments=READ, any_sweep=True, in_parts=True)

EXCLUDED = "excluded"
"""Instead of a tier: loses more than is allowed in every setting."""
LEFT_OUT = "left out"
"""Instead of a tier: does not apply to the track."""


@table(
    1,
    title="Leaderboard",
    caption=f"Leakage (dB, in track T %) at a loss of at most {percent(ALLOWED)} percentage points of accuracy, by the "
    f"strongest attack. {MEASURED} {TIERED} 'Worst': mean of the tenth of the victims that leaks most. 'Identified': "
    "part of the victims that the reconstruction picks out of a line-up. 'Next': leakage, tier and loss of the next "
    "stronger setting, which costs more, if it stood among the others. Defenses with 'excluded' lose more in every "
    "setting; theirs is the one that loses least. Bits and time are those of training, over the undefended ones; a "
    "dash: not measured. Intervals: 95 %, over seeds. Settings are parameters of mechanisms: an epsilon is no "
    "guarantee of what was trained.",
)
def table01(tables: Tables) -> pd.DataFrame:
    """A row per defense, and those of no defense and of the best guess; its LaTeX holds the ranked ones alone."""
    rows: list[dict[str, Any]] = []
    every = boards(tables)
    for board in every:
        of_board = {"track": board.track.key, "data": board.dataset, "model": board.model}
        of_board |= {} if board.cohort is None else {"clients": str(board.cohort)}
        rows += [of_board | _line(row, board.track.measure.unit) for row in board.rows]
        for name, reached in ((NO_DEFENSE, board.undefended), ("best guess", board.guess)):
            seen = {"worst": f"{reached.worst:.1f}", "identified": _part(reached.identified)}
            seen["strongest attack"] = reached.attack
            rows.append(
                of_board | {"tier": NONE, "defense": name, "leakage": _level(reached.mean), **seen, COLUMN: False}
            )
    for cell in unjudged(tables):
        named = {"track": cell.track.key, "data": cell.dataset, "model": cell.model}
        rows.append(named | {"defense": NONE, "excluded": cell.unjudged, COLUMN: False})
    made = pd.DataFrame(rows).fillna(NONE)
    made.attrs[LATEX] = "\n\n".join(map(_latex, every)) + "\n"
    return made


def _line(row: Row, unit: str) -> dict[str, Any]:
    entry, shown, beyond = row.entry, row.entry.shown, row.entry.beyond
    leakage = shown.leakage if shown else None
    return {
        "tier": NONE if row.tier is None else str(row.tier),
        "defense": entry.label,
        "leakage": _level(leakage.mean) if leakage else NONE,
        "worst": f"{leakage.worst:.1f}" if leakage else NONE,
        "identified": _part(leakage.identified) if leakage else NONE,
        "setting": (shown.words or NONE) if shown else NONE,
        "loss": _loss(shown.loss) if shown else NONE,
        "next": _next(beyond, row.beyond_tier, unit),
        "strongest attack": leakage.attack if leakage else NONE,
        "bits": ratio(shown.bits) if shown else NONE,
        "time": ratio(shown.time) if shown else NONE,
        "excluded": entry.excluded or NONE,
        COLUMN: shown is not None and shown.under_attacked,
    }


def _next(beyond: Computed | None, tier: int | None, unit: str) -> str:
    """``26.9 dB, tier 6, 2.05 ± 0.51`` points."""
    if beyond is None or beyond.leakage is None:
        return NONE
    return f"{beyond.leakage.mean.value:.1f} {unit}, tier {tier}, {_loss(beyond.loss)}"


def _level(estimate: Estimate) -> str:
    """``17.3 [15.1, 18.9]``."""
    if math.isnan(estimate.low):
        return f"{estimate.value:.1f}"
    return f"{estimate.value:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]"


def _loss(loss: Estimate) -> str:
    """``1.24 ± 0.41`` points: to a hundredth, since settings are chosen by it."""
    if math.isnan(loss.value):
        return NONE
    if math.isinf(loss.value):
        return "diverged"
    half = loss.high - loss.value
    return f"{100 * loss.value:.2f}" + ("" if math.isnan(half) else f" ± {100 * half:.2f}")


def _part(value: float) -> str:
    return NONE if math.isnan(value) else f"{100 * value:.0f} %"


def _latex(board: Board) -> str:
    """The ranked defenses as a table of booktabs with a label; the best tier is bold, and the caption left to write."""
    cell = "-".join(filter(None, (board.track.key.lower(), board.dataset, board.model, str(board.cohort or ""))))
    lines = [
        r"\begin{table}",
        r"\centering",
        r"\begin{tabular}{rlrrrr}",
        r"\toprule",
        rf"Tier & Defense & Leakage ({escaped(board.track.measure.unit)}) & Worst tenth & Loss (points) & Bits \\",
        r"\midrule",
    ]
    for row in board.rows:
        shown = row.entry.shown
        if row.entry.excluded or shown is None or shown.leakage is None:
            continue
        name = f"{row.entry.label} ({shown.words})" if shown.words else row.entry.label
        cells = [str(row.tier), escaped(name) + (f"$^{DAGGER}$" if shown.under_attacked else "")]
        cells += [f"{shown.leakage.mean.value:.1f}", f"{shown.leakage.worst:.1f}"]
        cells += [f"{100 * shown.loss.value:.2f}", ratio(shown.bits).replace("x", r"$\times$")]
        lines.append(" & ".join(rf"\textbf{{{part}}}" if row.tier == 1 else part for part in cells) + r" \\")
    lines += [r"\midrule"]
    for name, reached in ((NO_DEFENSE, board.undefended), ("best guess", board.guess)):
        lines.append(rf" & {name} & {reached.mean.value:.1f} & {reached.worst:.1f} & & \\")
    lines += [r"\bottomrule", r"\end{tabular}", rf"\label{{tab:leakbench-{cell}}}", r"\end{table}"]
    head = [f"% {board.title}", f"% {in_words(board)}, at most {percent(ALLOWED)} points lost."]
    return "\n".join([*head, *lines])


@table(
    2,
    title="Every setting of every defense",
    caption="What was computed: leakage (dB, in track T %), the attack that reaches it, loss (percentage points), "
    f"bits and time over those of an undefended step. {MEASURED} A dash: not attacked, since the setting is on "
    "neither side of the allowed loss. 'Front': no other setting beats it in leakage, loss and bits.",
)
def table02(tables: Tables) -> pd.DataFrame:
    """A row per setting."""
    points = pd.concat([settings_of(board) for board in boards(tables)], ignore_index=True)
    cell = ["track", "dataset", "model", *(["cohort"] if points["cohort"].notna().any() else []), "defense", "setting"]
    return points[cell].assign(
        leakage=points["leakage"].map(lambda value: NONE if math.isnan(value) else f"{value:.1f}"),
        strongest=points["strongest"].replace("", NONE),
        loss=points["loss"].map(
            lambda value: NONE if math.isnan(value) else f"{value:.2f}" if math.isfinite(value) else "diverged"
        ),
        bits=points["bits"].map(ratio),
        time=points["time"].map(ratio),
        front=points["front"].map({True: "yes", False: ""}),
        **{COLUMN: points[COLUMN]},
    )


@table(
    3,
    title="Tiers in words",
    leads=True,
    caption=f"The defenses of each tier, from the first, which leaks least, at a loss of at most {percent(ALLOWED)} "
    f"percentage points of accuracy, and their leakage (dB, in track T %). 'Excluded' lose more in every setting; "
    f"'left out' do not apply. {TIERED}",
)
def table03(tables: Tables) -> pd.DataFrame:
    """A row per tier of each board, and those of excluded defenses and of others that do not apply."""
    rows: list[dict[str, str]] = []
    for board in boards(tables):
        cohort = [f"{board.cohort} clients"] if board.cohort else []
        name = ", ".join([f"{board.track.key} ({board.track.name})", board.dataset, board.model, *cohort])
        of_tier: dict[str, list[Entry]] = {}
        for row in board.rows:
            of_tier.setdefault(EXCLUDED if row.entry.excluded else str(row.tier), []).append(row.entry)
        for tier, entries in of_tier.items():
            defenses = ", ".join(entry.name for entry in entries)
            rows.append({"board": name, "tier": tier, "defenses": defenses, "leakage": _range(entries)})
        for reason, labels in itertools.groupby(board.track.without, key=board.track.without.__getitem__):
            rows.append(
                {"board": name, "tier": LEFT_OUT, "defenses": f"{', '.join(labels)}: {reason}", "leakage": NONE}
            )
    for cell in unjudged(tables):
        name = ", ".join([f"{cell.track.key} ({cell.track.name})", cell.dataset, cell.model])
        rows.append({"board": name, "tier": NONE, "defenses": cell.unjudged, "leakage": NONE})
    return pd.DataFrame(rows)


def _range(entries: Sequence[Entry]) -> str:
    """``15.1 to 18.9``; a dash where nothing is known."""
    shown = [entry.shown.leakage.mean.value for entry in entries if entry.shown and entry.shown.leakage]
    if not shown:
        return NONE
    low, high = f"{min(shown):.1f}", f"{max(shown):.1f}"
    return low if low == high else f"{low} to {high}"
