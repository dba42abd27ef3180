"""Experiments on text, names of attacks and defenses, and the choice between both forms of LAMP."""

from __future__ import annotations

from collections.abc import Mapping

from leakbench.lazy import pd
from leakbench.metrics.text import WITH_SPECIAL
from leakbench.report.plots import values_of

ATTACKED, INFORMED, TRAINED = "text_attacks", "text_adaptive", "text_utility"
"""Experiments: every defense under attack, attackers who know CDPA, and federated fine-tuning."""
EXACT = "text_exact"
"""Experiment of DAGER on every defense."""
ADAPTERS, TRAINED_ADAPTERS = "text_adapters", "text_adapters_trained"
"""Experiments on low-rank adapters, at their start and after an epoch."""

DLG, TAG = "dlg-text", "tag"
LAMPS = {"lamp-cos": "LAMP (cosine)", "lamp-l1l2": "LAMP (L1 + L2)"}
"""Labels of LAMP by what it matches gradients in; the paper does not say which it ran."""

DEFENSES = {
    "none": "none",
    "grad-drop-text": "GradDrop",
    "random-mask": "random mask",
    "dp": "DP",
    "cdpa-text": "CDPA",
    "cdpa-text-released": "CDPA, as released",
}
"""Labels of attacked defenses -> the paper's names, in the order of its Table V, and two that it does not have."""

ROUGES = {"rouge1": "R-1", "rouge2": "R-2", "rougeL": "R-L"}
SCORING = (
    "ROUGE F-measures in percent. The paper's are, as released by the authors of LAMP, of sentences that still hold "
    "[CLS] and [SEP], two words that always match; 'as printed' scores ours so, 'words' without them."
)
CHOICE = (
    "LAMP is the one of its two forms (cosine, or L1 and L2) that finds more words of the undefended gradients, "
    "whatever it finds of the others."
)


def as_printed(metric: str) -> str:
    """The metric as the paper scores it."""
    return metric + WITH_SPECIAL


def chosen_lamp(frame: pd.DataFrame) -> str:
    """Label of the LAMP with the larger mean ROUGE-1, special tokens left out, of the undefended gradients."""
    scores = values_of(frame[frame["attack"].isin(LAMPS)], "rouge1", mechanism="none")
    means = scores.groupby("attack")["value"].mean().dropna().to_dict()
    return max(LAMPS, key=lambda label: float(means.get(label, -1)))


def shown_attacks(frame: pd.DataFrame) -> Mapping[str, tuple[str, str | None]]:
    """Attacks of a table: label -> name and the paper's name, which is None for the LAMP that was not chosen."""
    lamp = chosen_lamp(frame)
    names: dict[str, tuple[str, str | None]] = {DLG: ("DLG", "DLG"), TAG: ("TAG", "TAG")}
    names[lamp] = LAMPS[lamp], "LAMP"
    names |= {label: (name, None) for label, name in LAMPS.items() if label != lamp}
    return {label: name for label, name in names.items() if label in set(frame["attack"])}
