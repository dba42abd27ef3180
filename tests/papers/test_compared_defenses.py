"""Every figure and table shows the defenses that ``compare`` puts into its experiments, or says why it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
from matplotlib.text import Text
from tests.conftest import registries_as_they_were
from tests.report.synthetic import ROOT, record_of, tidy_tables
from tests.workflow.quick_jobs import findings

from leakbench.planning.plan import Plan
from leakbench.planning.project import Project
from leakbench.records import write_record, write_tensors
from leakbench.report.artifacts import Artifact, Made, Tables, artifact_of, artifacts
from leakbench.report.claims import Claim, claims_of
from leakbench.report.compared import places_of, settings_apart
from leakbench.report.record_tensors import RecordTensors

MINE = '''"""A defense of updates and one of images."""

from pydantic import Field

from leakbench.defenses.base import DEFENSES, Defense


@DEFENSES.register("mine", version=1)
class Mine(Defense):
    """Nothing."""

    strength: float = Field(0.5, description="of nothing")


@DEFENSES.register("my_images", version=1)
class MyImages(Mine):
    """Nothing, to images."""

    acts_on = "data"
'''
LABELS = ("myplain", "myswept", "myimages")
PLACES = {"myplain": 0, "myswept": 1, "myimages": 0}
SWEEP = {"sweep": [0.371, 0.642]}


class Compared(NamedTuple):
    """A plan with compared defenses, and the tidy tables of all papers."""

    root: Path
    plan: Plan
    tables: dict[str, Tables]

    def stored(self, entry: Artifact) -> RecordTensors:
        """The tensors that an artifact reads, written when they are first asked for, of any experiment."""
        jobs = {name: self.plan.experiment_jobs(entry.paper, name) for name in entry.tensors}
        for job in (job for of_experiment in jobs.values() for job in of_experiment):
            if not (self.root / job.path).exists():
                record, tensors = record_of(job), findings(replace(job, experiment="pictures")).tensors
                if tensors:
                    record.tensors = write_tensors((self.root / job.path).with_suffix(".safetensors"), tensors)
                write_record(self.root / job.path, record)
        return RecordTensors(self.root, jobs)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    root = tmp_path_factory.mktemp("compared")
    (root / "mine.py").write_text(MINE)
    of_updates, of_images = (f"{root}/mine.py:{name}" for name in ("Mine", "MyImages"))
    specs = [
        {"name": of_updates, "label": LABELS[0]},
        {"name": of_updates, "label": LABELS[1], "strength": SWEEP},
        {"name": of_images, "label": LABELS[2], "strength": SWEEP},
    ]
    with registries_as_they_were():
        project = Project(ROOT, {"compare": specs})
        assert places_of(project.compared) == PLACES
        plan = project.plan("smoke")
        yield Compared(root, plan, {paper: evaluated(tidy_tables(plan, paper)) for paper in plan.papers})


def evaluated(tables: dict[str, pd.DataFrame]) -> Tables:
    """With the same accuracy of every training: no defense costs too much to be shown."""
    for frame in tables.values():
        frame.loc[frame["metric"] == "accuracy", "value"] = 0.9
        frame.loc[frame["metric"] == "accuracy_lost", "value"] = 0.0
    return tables


def defenses_of(tables: Tables, *, apart: bool) -> set[str]:
    """The compared ones, each setting by its name if it stands apart."""
    frames = [settings_apart(frame, PLACES) if apart else frame for frame in tables.values()]
    names = {name for frame in frames for name in frame["defense"].unique()}
    return {name for name in names if name.startswith(LABELS)}


def shown(made: Made) -> list[str]:
    """What a reader sees: of a figure the words in it, as long as they may be, and its numbers."""
    if isinstance(made, pd.DataFrame):
        return [made.to_string()]
    return [
        " ".join(word for text in made.figure.findobj(Text) for word in text.get_text().split()),
        made.numbers.to_string(),
    ]


@pytest.mark.parametrize("entry", artifacts(), ids=lambda entry: f"{entry.paper}-{entry.name}")
def test_it_shows_compared_defenses_or_says_why_not(compared: Compared, entry: Artifact) -> None:
    tables = {name: compared.tables[entry.paper][name] for name in entry.experiments}
    there = defenses_of(tables, apart=not entry.any_sweep)
    if entry.leaves_out:
        assert there, "nothing is left out of it"
        assert not entry.leaves_out.endswith("."), "the end of a sentence"
    if not there:
        return
    with pd.option_context("display.max_colwidth", None):
        found = shown(entry.made(tables, compared.stored(entry), PLACES))
    missing = {name for name in there for text in found if name not in text}
    assert missing == (there if entry.leaves_out else set())


def test_a_trade_off_joins_the_settings_of_a_defense(compared: Compared) -> None:
    entry = artifact_of("figures/smoke/optimal_defense/fig04.csv")
    tables = {name: compared.tables[entry.paper][name] for name in entry.experiments}
    made = entry.made(tables, compared.stored(entry), PLACES)
    assert not isinstance(made, pd.DataFrame)
    numbers = made.numbers[made.numbers["series"] == "myswept"]
    assert numbers["strength"].tolist() == SWEEP["sweep"]
    own = tables["pruning"]
    own = own[(own["defense"] == "myswept") & (own["metric"] == "final_loss")]
    expected = [own.loc[own["setting.strength"] == value, "value"].mean() for value in SWEEP["sweep"]]
    assert numbers["y"].tolist() == pytest.approx(expected)


CLAIMS = [entry for paper in dict.fromkeys(each.paper for each in artifacts()) for entry in claims_of(paper)]


@pytest.mark.parametrize(
    "entry", [entry for entry in CLAIMS if entry.champion], ids=lambda entry: f"{entry.paper}-{entry.key}"
)
def test_claims_stay_the_papers(compared: Compared, entry: Claim) -> None:
    tables = {name: compared.tables[entry.paper][name] for name in entry.experiments}
    alone = entry.judge({name: frame[~frame["defense"].isin(LABELS)] for name, frame in tables.items()})
    beside = entry.judge_beside(tables, PLACES)
    assert replace(beside, note=alone.note) == alone
    if alone.verdict != "not run":
        assert f"with myplain instead of {entry.champion}: " in beside.note
        assert f"with myswept{'' if entry.over else ', strength=0.371'} instead of" in beside.note
