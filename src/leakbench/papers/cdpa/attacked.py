"""Names of attacked defenses, and the distance that stands for what people see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leakbench.lazy import pd
from leakbench.metrics.assignment import ASSIGNED
from leakbench.report.labels import Reads, reads
from leakbench.report.plots import series_of, values_of
from leakbench.report.style import REFERENCES
from leakbench.report.tidy import SETTING, setting_columns

ROG, POST, IG, DLG = "rog", "rog-post", "ig", "dlg"
NAIVE = "Attackers know nothing of the defense, but for the labels."

DEFENSES = {
    "none": "no defense",
    "grad-drop": "GradDrop",
    "cafl-1": "CAFL",
    "jopeq-2": "JoPEQ",
    "laplace-1": "LDP",
    "soteria": "Soteria",
    "sign-sgd": "SignSGD",
    "sdq": "SDQ",
    "cdpa-rog": "CDPA",
}
"""Labels of attacked defenses -> the paper's names, in the order of its Table III."""


def attacked_by_rog(*attacks: str, defenses: Iterable[str] = DEFENSES) -> Reads:
    """Defenses under ROG, or under further attacks."""
    return reads("rog", defenses=defenses, attacks=(ROG, *attacks))


def shown_defenses(frame: pd.DataFrame, names: Mapping[str, str] = DEFENSES) -> dict[str, str]:
    """The undefended update, the named defenses and those that a user added: label -> name."""
    defended = {label: name for label, name in names.items() if label != "none"}
    return {"none": names["none"], **series_of(frame, defended)}


def distances(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """A perceptual distance of every reconstruction after assignment: LPIPS if each has one, else 1 - SSIM.

    Args:
        frame: tidy table of attacks.

    Returns:
        Its name and the rows, with the distance as ``value``.
    """
    learned = values_of(frame, ASSIGNED + "lpips")
    if len(learned) and learned["value"].notna().all():
        return "LPIPS (AlexNet)", learned
    structural = values_of(frame, ASSIGNED + "ssim")
    return "1 - SSIM", structural.assign(value=1 - structural["value"])


def settings_in_words(frame: pd.DataFrame, defense: str, words: Mapping[str, str]) -> list[str]:
    """Settings of a defense in the order of its record, by the formats of their parameters; "" of an only one."""
    rows = frame[frame["defense"] == defense]
    swept = [column for column in setting_columns(rows) if rows[column].notna().any()]
    settings = rows[swept].drop_duplicates().to_dict("records") if swept else [{}]
    return [
        ", ".join(
            words.get(parameter := str(column).removeprefix(SETTING), parameter + " {value:g}").format(value=value)
            for column, value in setting.items()
        )
        for setting in settings
    ]


def reference_rows(frame: pd.DataFrame) -> dict[str, str]:
    """Reference attackers that an experiment ran: label -> name."""
    return {label: name for label, (name, _) in REFERENCES.items() if label in set(frame["attack"])}
