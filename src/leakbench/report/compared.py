"""Compared defenses in tidy tables: each of their settings has a label of its own.

Figures know the parameters of the paper's defenses, not those of a compared one, over which a mean would be
meaningless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leakbench.lazy import pd
from leakbench.report.style import setting_of_mechanism
from leakbench.report.tidy import SETTING, setting_columns
from leakbench.report.wording import exact

if TYPE_CHECKING:
    from leakbench.jobs.base import Variant

Frames = Mapping[str, "pd.DataFrame"]
"""Tidy tables by the name of their experiment."""
Places = Mapping[str, int]
"""Labels of compared defenses, each with the number of settings of its mechanism that come before."""


def places_of(compared: Iterable[Variant[Any]]) -> Places:
    """The :data:`Places` of the defenses that ``compare`` names."""
    counts = dict[str, int]()
    places = {}
    for variant in compared:
        name = variant.component.name
        places[variant.label] = counts.get(name, 0)
        counts[name] = places[variant.label] + len(list(variant.settings()))
    return places


def settings_apart(frame: pd.DataFrame, places: Places) -> pd.DataFrame:
    """A tidy table in which every setting of a compared defense is a defense of its own: ``signs, probability=0.1``.

    Parameters that other defenses of the table have as well stay columns, since figures have an axis for them. Settings
    of one mechanism are numbered, so that colours and markers differ.

    Args:
        frame: tidy table of an experiment.
        places: of the compared defenses.
    """
    compared = frame["defense"].isin(places)
    if not compared.any():
        return frame
    columns = [name for name in setting_columns(frame) if frame.loc[~compared, name].isna().all()]
    keys = ["defense", "mechanism", *columns]
    result = frame.drop(columns=columns)
    numbers = dict(places)
    for _, rows in frame[compared].groupby(keys, sort=False, dropna=False):
        (row,) = rows[keys].head(1).to_dict("records")
        label, there = row["defense"], frame.index.isin(rows.index)
        setting = {name.removeprefix(SETTING): row[name] for name in columns if not pd.isna(row[name])}
        numbered = setting_of_mechanism(row["mechanism"], numbers[label])
        result["defense"] = result["defense"].mask(there, in_setting(label, setting))
        result["mechanism"] = result["mechanism"].mask(there, numbered)
        numbers[label] += 1
    return result


def defenses_apart(frame: pd.DataFrame, places: Places) -> pd.DataFrame:
    """A tidy table in which compared defenses that share a mechanism have numbered ones, as in :func:`settings_apart`.

    Args:
        frame: tidy table of an experiment.
        places: of the compared defenses.
    """
    if not frame["defense"].isin(places).any():
        return frame
    named = zip(frame["defense"], frame["mechanism"], strict=True)
    return frame.assign(mechanism=[setting_of_mechanism(name, places.get(label, 0)) for label, name in named])


def in_setting(label: str, setting: Mapping[str, Any]) -> str:
    """The name of a defense in one of its settings."""
    return ", ".join([label, *(f"{name}={exact(value)}" for name, value in setting.items())])


def of_setting(name: str) -> tuple[str, dict[str, str]]:
    """The label and the setting, as text, of what :func:`in_setting` names; labels have no commas."""
    label, *setting = name.split(", ")
    return label, dict(part.split("=", 1) for part in setting)


def stand_ins(tables: Frames, places: Places, champion: str, parameter: str) -> Iterator[tuple[str, Frames | None]]:
    """The tables with each compared defense in place of the champion, by the name of the defense.

    Only defenses that are in every table with the champion.

    Args:
        tables: by the names of their experiments.
        places: of the compared defenses.
        champion: label of the defense whose place they take.
        parameter: that the champion is compared over; the one parameter that a compared defense sweeps takes its place,
            and a defense that does not sweep exactly one has no tables (None). Empty: each setting takes the place.
    """
    if not parameter:
        tables = {name: settings_apart(frame, places) for name, frame in tables.items()}
    with_champion = [frame["defense"] for frame in tables.values() if (frame["defense"] == champion).any()]
    for name in dict.fromkeys(name for defenses in with_champion for name in defenses):
        if of_setting(name)[0] not in places or not all((defenses == name).any() for defenses in with_champion):
            continue
        swept = {
            column
            for frame in tables.values()
            for column in setting_columns(frame)
            if frame.loc[frame["defense"] == name, column].notna().any()
        }
        if parameter and len(swept) != 1:
            yield name, None
            continue
        renamed = dict.fromkeys(swept, SETTING + parameter) if parameter else {}
        yield name, {key: _in_its_place(frame, name, places, champion, renamed) for key, frame in tables.items()}


def _in_its_place(
    frame: pd.DataFrame, name: str, labels: Collection[str], champion: str, renamed: Mapping[str, str]
) -> pd.DataFrame:
    """One defense as the champion, its columns renamed, without the champion and the other compared defenses."""
    stand_in = frame[frame["defense"] == name].assign(defense=champion)
    stand_in = stand_in.drop(columns=set(renamed.values()) - set(renamed), errors="ignore").rename(columns=renamed)
    of_labels = [of_setting(each)[0] in labels for each in frame["defense"]]
    others = frame[~(pd.Series(of_labels, frame.index) | (frame["defense"] == champion))]
    return pd.concat([others, stand_in], ignore_index=True)


def without(frame: pd.DataFrame, labels: Collection[str]) -> pd.DataFrame:
    """A tidy table without the compared defenses."""
    return frame[~frame["defense"].isin(labels)]
