"""Compared defenses in tidy tables: each of their settings has a label of its own.

Figures know the parameters of the paper's defenses, and not those of a compared one. A mean over them would be of
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from leakbench.lazy import pd
from leakbench.report.tidy import SETTING, setting_columns


def settings_apart(frame: pd.DataFrame, labels: Collection[str]) -> pd.DataFrame:
    """A tidy table in which every setting of a compared defense is a defense: ``signs, probability=0.1``.

    Parameters that other defenses of the table have as well stay columns, since figures have an axis for them.

    Args:
        frame: tidy table of an experiment.
        labels: of the compared defenses.
    """
    own = frame["defense"].isin(labels)
    columns = [name for name in setting_columns(frame) if own.any() and frame.loc[~own, name].isna().all()]
    if not columns:
        return frame
    found = frame.drop(columns=columns)
    settings = frame.loc[own, columns].to_dict("records")
    found.loc[own, "defense"] = [
        in_setting(label, {name.removeprefix(SETTING): value for name, value in setting.items() if not pd.isna(value)})
        for label, setting in zip(frame.loc[own, "defense"], settings, strict=True)
    ]
    return found


def in_setting(label: str, setting: Mapping[str, Any]) -> str:
    """The name of a defense in one of its settings."""
    return ", ".join([label, *(f"{name}={_in_words(value)}" for name, value in setting.items())])


def _in_words(value: object) -> str:
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else str(value)


def of_setting(name: str) -> tuple[str, dict[str, str]]:
    """The label and the setting, as text, of what :func:`in_setting` names; labels have no commas."""
    label, *setting = name.split(", ")
    return label, dict(part.split("=", 1) for part in setting)
