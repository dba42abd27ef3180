"""Numbers that papers print: the CSV files in their ``reference`` folders, and as tidy tables that claims can read.

A paper's module ``printed`` has a function ``tables`` without arguments, which puts the printed numbers in the places
of those that a perfect replication would have: a table per experiment, with the columns of tidy tables. Only what is
printed is in them, so that claims on other numbers find nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from leakbench.errors import ConfigError
from leakbench.lazy import pd
from leakbench.paper_folders import paper_folders
from leakbench.report.artifacts import Tables
from leakbench.report.tidy import COLUMNS, SETTING

MODULE = "printed"
"""Module of a paper's folder that lays its printed numbers out as tidy tables."""


@dataclass(frozen=True)
class Printed:
    """A printed number, and its place in an experiment's tidy table.

    >>> number = Printed(("mnist", "lenet5"), "noise", "psnr", 12.1, attack="ig", setting={"scale": 0.1})
    >>> number.value, number.setting["scale"]
    (12.1, 0.1)

    Attributes:
        cell: labels of the data set and the model, as the paper's grid has them at the scale ``full``.
        defense: its label.
        metric: as records name it, in their unit.
        attack: its label; None for training.
        setting: values of swept parameters.
    """

    cell: tuple[str, str]
    defense: str
    metric: str
    value: float
    attack: str | None = None
    setting: Mapping[str, str | float] = field(default_factory=dict)


def tidy_table(numbers: Iterable[Printed]) -> pd.DataFrame:
    """Printed numbers as a tidy table: of one seed, by no attack that missed a gate.

    >>> table = tidy_table([Printed(("cifar10", "lenet5"), "gp", "accuracy", 0.61, setting={"fraction": 0.9})])
    >>> table[["dataset", "defense", "metric", "value", "setting.fraction"]].values.tolist()
    [['cifar10', 'gp', 'accuracy', 0.61, 0.9]]
    """
    shared = dict.fromkeys(COLUMNS) | {"void": False, "distinct": False, "seed": 0, "status": "ok", "index": 0}
    rows = [
        shared
        | {"dataset": number.cell[0], "model": number.cell[1], "defense": number.defense, "attack": number.attack}
        | {"metric": number.metric, "value": number.value}
        | {SETTING + key: value for key, value in number.setting.items()}
        for number in numbers
    ]
    return pd.DataFrame(rows)


def printed_numbers(paper: str, name: str) -> pd.DataFrame:
    """The paper's numbers in ``reference/<name>.csv``.

    >>> printed_numbers("channel", "table02").columns.tolist()
    ['architecture', 'parameters', 'method', 'seconds', 'std', 'overhead']
    """
    return pd.read_csv(paper_folders()[paper].reference / f"{name}.csv", encoding="utf-8")


@cache
def printed_tables(paper: str) -> Tables:
    """The paper's printed numbers as tidy tables by experiment; empty for a paper that has no module for them.

    Raises:
        ConfigError: the module has no function ``tables``.
    """
    folder = paper_folders().get(paper)
    if folder is None or not folder.holds(MODULE):
        return {}
    module = importlib.import_module(f"{folder.package}.{MODULE}")
    if not callable(make := getattr(module, "tables", None)):
        raise ConfigError(f"{module.__file__}: expected a function 'tables' that returns tidy tables by experiment")
    tables: Tables = make()
    return tables
