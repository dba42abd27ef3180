"""Table 1, the leaderboard to copy into a paper, and Table 2, every setting that was computed."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from leakbench.lazy import pd
from leakbench.leaderboard import PAPER
from leakbench.leaderboard.board import HEADLINE, LOSSES, READ, boards
from leakbench.leaderboard.figures import INTERVALS, MEASURED, percent, ratio, settings_of
from leakbench.report.artifacts import Tables, artifact
from leakbench.report.under_attacked import COLUMN
from leakbench.report.wording import NONE, setting_in_words

if TYPE_CHECKING:
    from leakbench.report.statistics import Estimate

table = partial(artifact, PAPER, "table", experiments=READ, any_sweep=True)


@table(
    1,
    title="Leaderboard",
    caption=f"Leakage (dB) at an equal loss of accuracy, by the strongest attack, least first. {MEASURED} Setting, "
    f"strongest attack, bits and time are those of the strongest computed setting that loses at most "
    f"{percent(HEADLINE)} points. 'Seen': how often the strongest attack shows a victim better than the best guess "
    "does (0.5: no better). 'p': of leaking as much as the first, after Holm's correction. A dash: every setting loses "
    f"more. {INTERVALS}",
)
def table01(tables: Tables) -> pd.DataFrame:
    """A row per defense, and those of no defense and of the best guess."""
    rows: list[dict[str, Any]] = []
    for board in boards(tables):
        cell = {"data": board.dataset, "model": board.model}
        for number, place in enumerate(board.places, start=1):
            one, setting = place.defense, place.setting
            rows.append(
                cell
                | {"#": str(number), "defense": one.label}
                | {f"at {percent(allowed)} points": level(place.leakage[allowed]) for allowed in LOSSES}
                | {"p": NONE if math.isnan(place.p_value) else p_value(place.p_value)}
                | {
                    "setting": NONE if setting is None else setting_in_words(one.settings[setting]) or NONE,
                    "strongest attack": NONE if setting is None else one.strongest[setting],
                    "seen": NONE if setting is None else f"{place.guessed.value:.2f}",
                    "bits": NONE if setting is None else ratio(one.bits[setting]),
                    "time": NONE if setting is None else ratio(1 + one.overhead[setting]),
                    COLUMN: place.under_attacked,
                }
            )
        for name, reached in (("no defense", board.undefended), ("best guess", board.guess)):
            levels = {f"at {percent(allowed)} points": level(reached) for allowed in LOSSES}
            rows.append(cell | {"#": NONE, "defense": name, **levels, COLUMN: False})
    return pd.DataFrame(rows).fillna(NONE)


def level(estimate: Estimate) -> str:
    """``17.3 [15.1, 18.9]``; a dash where nothing is known."""
    if math.isnan(estimate.value):
        return NONE
    if math.isnan(estimate.low):
        return f"{estimate.value:.1f}"
    return f"{estimate.value:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]"


def p_value(value: float) -> str:
    """Two digits, the resolution of the resamples."""
    return "< 0.01" if value < 0.01 else f"{value:.2f}"


def _loss(points: float) -> str:
    return NONE if math.isnan(points) else "diverged" if math.isinf(points) else f"{points:.1f}"


@table(
    2,
    title="Every setting of every defense",
    caption="What was computed: leakage (dB), the attack that reaches it, loss (percentage points), bits and time "
    f"over those of an undefended step. {MEASURED} 'Front': no other setting beats it in leakage, loss and bits.",
)
def table02(tables: Tables) -> pd.DataFrame:
    """A row per setting."""
    frames = []
    for board in boards(tables):
        points = settings_of(board)
        frames.append(
            pd.DataFrame(
                {
                    "data": points["dataset"],
                    "model": points["model"],
                    "defense": points["defense"],
                    "setting": points["setting"],
                    "leakage": points["leakage_db"].map("{:.1f}".format),
                    "strongest attack": points["strongest"],
                    "loss": points["loss"].map(_loss),
                    "bits": points["bits"].map(ratio),
                    "time": points["time"].map(ratio),
                    "front": points["front"].map({True: "yes", False: ""}),
                    COLUMN: points[COLUMN],
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
