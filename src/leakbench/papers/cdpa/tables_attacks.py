"""Tables III and VII, and the supplement S1: attacks in numbers, the paper's beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from leakbench.lazy import pd
from leakbench.metrics.assignment import ASSIGNED
from leakbench.papers.cdpa.attacked import IG, NAIVE, POST, ROG, attacked_by_rog, reference_rows, shown_defenses
from leakbench.papers.cdpa.common import printed, table
from leakbench.report.artifacts import Tables
from leakbench.report.gate_verdicts import VOID
from leakbench.report.labels import reads
from leakbench.report.plots import judged, values_of
from leakbench.report.style import IMAGE_REFERENCES
from leakbench.report.tidy import SETTING
from leakbench.report.under_attacked import COLUMN, DAGGER
from leakbench.report.wording import INTERVALS, NONE

P = SETTING + "p"
LPIPS = ASSIGNED + "lpips"
METRICS = {
    ASSIGNED + "psnr": "PSNR (dB)",
    ASSIGNED + "ssim": "SSIM",
    ASSIGNED + "ssim_global": "SSIM, global",
    LPIPS: "LPIPS",
}
"""Ours, after assignment within a batch."""
SIMILARITY = (
    "The paper's SSIM is, in its public code, that of the whole image as one window ('global'); the other is the usual "
    "one of 11x11 windows. LPIPS where AlexNet's weights are staged. Ours are after assignment within a batch, whose "
    "order a gradient does not tell."
)
PRINTED = {ASSIGNED + "psnr": "psnr", ASSIGNED + "ssim_global": "ssim", LPIPS: "lpips"}
"""Our metric -> the paper's that is computed alike."""
IMPUTED = {"ROG": ROG, "mean": "rog-imputed-mean", "mean of all": "rog-imputed-mean-update", "zero": "rog-imputed-zero"}
"""Replacement of outliers -> the attack."""
PRINTED_IMPUTED = {"mean": "impute_mean", "zero": "impute_0"}
"""Replacement of outliers -> column of the paper's Table VII, whose caption has the mean of each tensor."""


@table(
    3,
    title="ROG against every defense",
    caption="Mean over images of what ROG reconstructs (lower PSNR and SSIM, and higher LPIPS, are less leakage): the "
    f"paper's numbers, ours, and ours after the networks that refine the images. {SIMILARITY} {NAIVE} The last rows "
    "are attackers that never see an update: what is worse than they are has learnt nothing from it. The paper's are "
    f"of one batch; it prints none for SignSGD and SDQ. {INTERVALS}",
    experiments=(attacked_by_rog(POST, *IMAGE_REFERENCES),),
)
def table03(tables: Tables) -> pd.DataFrame:
    """A row per defense, then one per reference attacker."""
    frame, theirs = tables["rog"], printed("table03").set_index("defense")
    rows = []
    for label, name in shown_defenses(frame).items():
        row = {"defense": name}
        for metric, words in METRICS.items():
            if metric in PRINTED:
                row[f"{words}, paper"] = _paper(theirs, {"no defense": "none"}.get(name, name), PRINTED[metric])
            row[f"{words}, ours"] = cell(frame, metric, defense=label, attack=ROG)
            row[f"{words}, refined"] = cell(frame, metric, defense=label, attack=POST)
        rows.append(row)
    for attack, name in reference_rows(frame).items():
        seen = {
            f"{words}, ours": cell(frame, metric, mechanism="none", attack=attack) for metric, words in METRICS.items()
        }
        rows.append({"defense": name, **seen})
    return pd.DataFrame(rows, columns=list(rows[0])).fillna(NONE)


@table(
    7,
    title="Imputed outliers",
    caption="An attacker replaces what is larger than 0.4 in every tensor of CDPA's update by the mean of the tensor's "
    "other coordinates, by that of the whole update's ('mean of all'), or by zero, and runs ROG; beside it ROG without "
    f"that (the paper's: its Table VIII). Imputing also replaces honest values that large. {SIMILARITY} {INTERVALS}",
    experiments=(reads("rog_p", defenses=("none", "cdpa-rog-p"), attacks=IMPUTED.values()),),
    leaves_out="it is about the outliers that CDPA's flipped bits make",
)
def table07(tables: Tables) -> pd.DataFrame:
    """A row per probability of keeping a bit and metric; the first rows are the undefended update."""
    frame = tables["rog_p"]
    imputed, naive = printed("table07").set_index(["p", "metric"]), printed("table08").set_index("p")
    rows = []
    for metric, words in METRICS.items():
        rows.append(
            {"p": "no defense", "metric": words}
            | {f"{name}, ours": cell(frame, metric, defense="none", attack=attack) for name, attack in IMPUTED.items()}
        )
    for p in sorted(frame[P].dropna().unique(), reverse=True):
        for metric, words in METRICS.items():
            row = {"p": f"{p:g}", "metric": words}
            for name, attack in IMPUTED.items():
                theirs: str = NONE
                if metric in PRINTED and name == "ROG":
                    theirs = _paper(naive, p, PRINTED[metric])
                elif metric in PRINTED and name in PRINTED_IMPUTED:
                    theirs = _paper(imputed, (p, PRINTED[metric]), PRINTED_IMPUTED[name])
                row[f"{name}, paper"] = theirs
                row[f"{name}, ours"] = cell(frame[frame[P] == p], metric, attack=attack)
            rows.append(row)
    return pd.DataFrame(rows, columns=list(rows[-1])).fillna(NONE)


ADAPTIVE: Mapping[str, Mapping[str, str]] = {
    "Inverting Gradients": {
        IG: "as it is",
        "ig-cleared": "masked bits cleared",
        "ig-robust": "robust matching",
        "ig-adaptive": "maximum likelihood",
    },
    "ROG": {
        ROG: "as it is",
        "rog-cleared": "masked bits cleared",
        "rog-dropped": "linear layers dropped",
        "rog-robust": "robust matching",
        "rog-averaged": "several messages",
        "rog-adaptive": "maximum likelihood",
    },
}
"""Attack -> labels of attackers, and what those who know CDPA do first."""
UNDEFENDED = {"Inverting Gradients": ("inversion", "inversion_adaptive"), "ROG": ("rog", "rog_adaptive")}
"""Attack -> experiments: of the undefended update and the references, and of attackers who know CDPA."""
ABOUT_CDPA = "its attackers know the bits that CDPA flips"
PROTECTED = {"none": "no defense", "cdpa-rog": "CDPA, linear layers", "cdpa-rog-all": "CDPA, all layers"}
CHANGES = {"Inverting Gradients": "cdpa-ig-delta", "ROG": "cdpa-rog-delta"}
"""Attack -> CDPA of linear layers whose words hold the change of the parameters."""


def protected(attack: str) -> dict[str, str]:
    """Labels of what attackers who know CDPA are run on -> names."""
    return PROTECTED | {CHANGES[attack]: "CDPA, change of the parameters"}


BY_INFORMED = tuple(
    declared
    for attack, (plain, adapted) in UNDEFENDED.items()
    for declared in (
        reads(plain, defenses=("none", "cdpa-rog"), attacks=(next(iter(ADAPTIVE[attack])), *IMAGE_REFERENCES)),
        reads(adapted, defenses=protected(attack), attacks=ADAPTIVE[attack]),
    )
)
INFORMED = (
    "The paper argues that nobody can undo the flipped bits and runs no such attacker. 'Masked bits cleared' sets them "
    "to zero in every received integer, 'linear layers dropped' ignores these layers, 'robust matching' finds "
    "out which coordinates stay far off (it needs to know what a flip weighs), 'several messages' takes the median "
    "of messages of the same client about the same images, 'maximum likelihood' sums over the bits that may have been "
    "flipped, and in Inverting Gradients chooses the weight of its prior on clients that the attacker makes up. All of "
    "them are run on the undefended update, too, since they search for longer. Words hold the update in units of the "
    "gradient, or the change of the parameters, as in training: for ROG at its step of 0.003, for Inverting Gradients "
    "at 0.1."
)


def adaptive_rows(tables: Tables, attack: str, metric: str) -> pd.DataFrame:
    """Attackers of CDPA on images, as :func:`informed_rows`."""
    plain, adapted = (tables[name] for name in UNDEFENDED[attack])
    return informed_rows(plain, adapted, metric, ADAPTIVE[attack], protected(attack))


def informed_rows(
    plain: pd.DataFrame, adapted: pd.DataFrame, metric: str, attackers: Mapping[str, str], protected: Mapping[str, str]
) -> pd.DataFrame:
    """Means with intervals: naive and informed attackers, with and without CDPA, and reference attackers.

    Args:
        plain: table of the reference attackers, and of the naive one where it ran there.
        adapted: table of the informed attackers.
        metric: which is summarised.
        attackers: label -> name, the naive one first.
        protected: labels of no defense and of CDPA -> name.

    Returns:
        Columns ``defense``, ``attacker``, ``mean``, ``low``, ``high``, ``seeds``, ``lost``, ``void``.
    """
    groups = []
    for defense, words in protected.items():
        for label, name in attackers.items():
            here, there = (values_of(frame, metric, defense=defense, attack=label) for frame in (plain, adapted))
            groups.append((words, name, here if len(here) else there))
    for label, name in reference_rows(plain).items():
        groups.append(("none seen", name, values_of(plain, metric, mechanism="none", attack=label)))
    summaries = [
        judged(rows, ["metric"]).drop(columns="metric").assign(defense=defense, attacker=attacker)
        for defense, attacker, rows in groups
        if len(rows)
    ]
    return pd.concat(summaries, ignore_index=True)


@table(
    "S1",
    title="Attackers who know CDPA",
    caption=f"{INFORMED} Mean PSNR (dB) and SSIM of reconstructions under CDPA at p = 0.98, beside those of the "
    f"undefended update and of attackers that never see one. {INTERVALS}",
    experiments=BY_INFORMED,
    leaves_out=ABOUT_CDPA,
)
def table_s1(tables: Tables) -> pd.DataFrame:
    """A row per attack, defense and attacker."""
    rows = []
    for attack in ADAPTIVE:
        metrics = {words: adaptive_rows(tables, attack, name) for name, words in METRICS.items() if name != LPIPS}
        first = next(iter(metrics.values()))
        for place, row in enumerate(first.to_dict("records")):
            cells = {words: with_interval(summaries.iloc[place]) for words, summaries in metrics.items()}
            rows.append({"attack": attack, "defense": row["defense"], "attacker": row["attacker"], **cells})
    return pd.DataFrame(rows)


def _paper(reference: pd.DataFrame, row: object, column: str) -> str:
    values: dict[Any, Any] = reference[column].to_dict()
    return f"{values[row]:g}" if row in values else NONE


def cell(frame: pd.DataFrame, metric: str, **equal: str) -> str:
    """Mean and interval over seeds; where the attack missed its gate, with that."""
    rows = values_of(frame, metric, **equal)
    return NONE if rows.empty else with_interval(judged(rows, ["metric"]).iloc[0])


def with_interval(row: pd.Series) -> str:
    """A mean and its interval; with a mark where the cell is under-attacked, and a word where the attack is void."""
    if math.isnan(row["mean"]):
        return NONE
    interval = "" if row["low"] == row["high"] else f" [{row['low']:.3g}, {row['high']:.3g}]"
    mark = f" {DAGGER}" if row.get(COLUMN, False) else ""
    return f"{row['mean']:.3g}{interval}{mark}" + (f" ({VOID})" if row["void"] else "")
