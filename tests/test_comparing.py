"""`compare`: whose defense, and which jobs it joins."""

from __future__ import annotations

import json
import math
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from tests.forking import snakemake

from leakbench import comparing
from leakbench.errors import ConfigError
from leakbench.jobs.base import Job
from leakbench.planning.project import Project
from leakbench.report.catalogue import catalogue

ROOT = Path(__file__).resolve().parents[1]

MINE = '''"""Three defenses, one of which is not registered."""

from pydantic import Field

from leakbench.defenses.base import DEFENSES, Defense


@DEFENSES.register("mine", version=1)
class Mine(Defense):
    """Nothing."""

    strength: float = Field(0.5, ge=0, le=1, description="of nothing")
    rate: float = Field(0.5, description="of nothing either")


@DEFENSES.register("my_images", version=1)
class MyImages(Defense):
    """Nothing, to images."""

    acts_on = "data"


class Forgotten(Mine):
    """Not registered."""


def function():
    return 0
'''

pytestmark = pytest.mark.usefixtures("clean_registries")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "config", tmp_path / "checkout" / "config")
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "checkout"


def jobs(root: Path, *compare: Any, scale: str = "smoke", **overrides: Any) -> dict[str, Job]:
    return Project(root, {"compare": list(compare), **overrides}).plan(scale).jobs


def fault(root: Path, *compare: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        jobs(root, *compare)
    return str(caught.value)


def joined(root: Path, compare: Any, scale: str = "smoke") -> dict[tuple[str, str, str], str | None]:
    found = Project(root, {"compare": compare}).plan(scale).comparisons()
    return {(each.paper, each.experiment, each.kind): each.left_out for each in found}


@pytest.mark.parametrize("scale", ["smoke", "laptop", "full"])
def test_the_other_jobs_stay_as_they_are(root: Path, scale: str) -> None:
    before = {path: job.digest for path, job in jobs(root, scale=scale).items()}
    after = {path: job.digest for path, job in jobs(root, "../mine.py:Mine", scale=scale).items()}
    new = set(after) - set(before)
    assert {path: after[path] for path in before} == before
    assert {Path(path).parts[6] for path in new} == {"mine"}
    assert {Path(path).parts[2] for path in new} == set(Project(root).settings.papers)


def test_every_attack_of_an_experiment_attacks_it(root: Path) -> None:
    planned = jobs(root, "../mine.py:Mine")
    for experiment, neighbour in (("pruning", "gp"), ("adaptive", "gp"), ("equal_utility", "dpsgd-u2")):
        folder = f"results/smoke/optimal_defense/{experiment}/digits16/small"
        by = {
            label: {
                job.path.rpartition(f"/{label}/")[2] for path, job in planned.items() if f"{folder}/{label}/" in path
            }
            for label in ("mine", neighbour)
        }
        assert by["mine"] == by[neighbour] != set()


def test_where_a_defense_of_updates_belongs(root: Path) -> None:
    found = joined(root, "../mine.py:Mine")
    assert found["optimal_defense", "pruning", "attack"] is None
    assert found["cdpa", "text_utility", "federate"] is None
    assert found["tfl_meta", "swept", "leakage"] is None
    assert "reference alone" in str(found["optimal_defense", "undefended", "attack"])
    assert "settings of one mechanism, 'cdpa'" in str(found["cdpa", "utility_p", "federate"])
    assert "acts on updates" in str(found["channel", "dp", "release"])
    assert found["channel", "compression", "attack"] is None
    assert "acts on updates" in str(found["channel", "compression", "calibrate"])


def test_where_a_defense_of_images_belongs(root: Path) -> None:
    found = joined(root, "../mine.py:MyImages")
    assert found["channel", "dp", "release"] is found["channel", "calibration", "calibrate"] is None
    assert "acts on data" in str(found["secagg_dp", "membership", "membership"])
    assert "sentences" in str(found["cdpa", "text_attacks", "attack"])


def test_a_sweep_that_the_protocol_makes_too_is_left_out(root: Path) -> None:
    found = joined(root, {"name": "../mine.py:Mine", "rate": {"sweep": [1, 2]}}, "full")
    assert "sweeps 'rate' too" in str(found["secagg_dp", "accuracy_all", "train"])
    assert found["secagg_dp", "membership", "membership"] is None


def test_figures_that_leave_it_out_are_listed_with_the_reason(root: Path) -> None:
    rows = catalogue(Project(root, {"compare": "../mine.py:Mine"}), "compared", "smoke")
    found = {(row["paper"], row["artifact"]): row for row in rows if row["artifact"]}
    assert found["optimal_defense", "fig04"]["left out"] == ""
    assert found["optimal_defense", "fig04"]["experiment"] == "pruning"
    assert found["optimal_defense", "fig14"]["left out"] == "it takes the noise of one mechanism apart"
    assert ("optimal_defense", "table01") not in found


def test_parameters_sweeps_and_labels(root: Path) -> None:
    planned = jobs(
        root,
        {"name": "../mine.py:Mine", "label": "weak", "strength": {"sweep": [0.1, 0.2]}},
        {"name": "../mine.py:Mine", "label": "strong", "strength": 0.9},
    )
    folder = "results/smoke/optimal_defense/pruning/digits16/small"
    assert planned[f"{folder}/weak/ig/all.json"].defense.sweep == {"strength": [0.1, 0.2]}
    assert planned[f"{folder}/strong/ig/all.json"].defense.parameters == {"strength": 0.9}


def test_a_registered_name_a_module_and_an_entry_point_are_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("theirs", "leakbench.defenses.noise:GaussianNoise", "leakbench.defenses")
    monkeypatch.setattr(comparing, "entry_points", lambda name, **_: [entry] if name == "theirs" else [])
    ways = ("gaussian_noise", "leakbench.defenses.noise:GaussianNoise", "theirs")
    by_name, by_module, by_entry = (set(jobs(root, {"name": way, "scale": 0.1})) for way in ways)
    assert by_name == by_module == by_entry
    assert "results/smoke/optimal_defense/pruning/digits16/small/gaussian_noise/ig/all.json" in by_name


@pytest.mark.parametrize(
    ("compare", "message"),
    [
        ("../mine.py:Forgotten", "is not registered; put @DEFENSES.register"),
        ("../mine.py:function", "is no defense; derive it from leakbench.defenses.base.Defense"),
        ("../mine.py:Missing", "has no class 'Missing'"),
        ("../mine.py", "Give it as ../mine.py:MyDefense"),
        ("../nowhere.py:Mine", "no Python file at"),
        ("no_such_package:Mine", "cannot import 'no_such_package'"),
        ("gausian_noise", "did you mean 'gaussian_noise'"),
        ("gaussian_noise", "compare.0.scale: this key is missing"),
        ({"name": "../mine.py:Mine", "strength": 2}, "compare.0.strength: Input should be less than or equal to 1"),
        ({"name": "../mine.py:Mine", "rate": math.inf}, "compare.0.rate: Input should be a finite number (found: inf)"),
        ({"name": "../mine.py:Mine", "label": "a b"}, "compare.0.label: expected a letter or digit, then letters, dig"),
        ({"nmae": "../mine.py:Mine"}, "compare.0.name: this key is missing"),
        (5, "compare.0: expected a name, or a mapping with the key 'name' (found: 5)"),
        ({"name": "../mine.py:Mine", "strenght": 1}, "unknown key 'strenght'; did you mean 'strength'?"),
        ({"name": "../mine.py:Mine", "label": "gp"}, "'gp' is a defense of paper 'optimal_defense' already"),
    ],
)
def test_what_is_wrong_is_said(root: Path, compare: Any, message: str) -> None:
    assert message in fault(root, compare)


def test_two_need_two_labels(root: Path) -> None:
    assert "'mine' is there twice" in fault(root, "../mine.py:Mine", {"name": "../mine.py:Mine", "strength": 0.1})


def test_one_may_be_named_without_a_list(root: Path) -> None:
    assert set(Project(root, {"compare": "../mine.py:Mine"}).plan("smoke").jobs) == set(jobs(root, "../mine.py:Mine"))


def test_snakemake_runs_the_new_cells(root: Path) -> None:
    """The paths of all workflows: Snakemake, the rule's command with its overrides, the job."""
    for name in ("workflow", "Snakefile", "slurm"):
        source = ROOT / name
        shutil.copytree(source, root / name) if source.is_dir() else shutil.copy(source, root)
    record = "results/smoke/optimal_defense/pruning_training/digits16/small/mine/train/all.json"
    status, said = snakemake(["--cores", "1", "--config", "compare=../mine.py:Mine", "--", record], root)
    assert status == 0, said
    job = json.loads((root / record).read_text())["job"]
    assert job["defense"] == {
        "label": "mine",
        "name": "mine",
        "version": 1,
        "parameters": {"strength": 0.5, "rate": 0.5},
        "sweep": {},
    }


class TestEnsemble:
    """`ensemble`: attacks that join every track of the leaderboard, and nothing else."""

    def jobs(self, root: Path, *given: Any) -> list[Job]:
        project = Project(root, {"ensemble": list(given)})
        return [job for job in project.plan("smoke").jobs.values() if job.attack and job.attack.label == "stronger"]

    def test_it_joins_every_track(self, root: Path) -> None:
        found = self.jobs(root, {"name": "dlg_wolfe", "label": "stronger", "iterations": 9})
        tracks = {"single", "single_undefended", "trained", "trained_undefended"}
        assert {(job.paper, job.experiment) for job in found} == {("leaderboard", track) for track in tracks}
        entries = {job.defense.label for job in found if job.experiment == "single"}
        assert len(entries) == 21 and all(
            job.attack and job.attack.first.parameters()["iterations"] == 9 for job in found
        )

    def test_the_jobs_of_others_are_the_same(self, root: Path) -> None:
        alone = Project(root).plan("smoke").jobs
        beside = Project(root, {"ensemble": [{"name": "dlg_wolfe", "label": "stronger"}]}).plan("smoke").jobs
        assert {path: job.digest for path, job in beside.items() if path in alone} == {
            path: job.digest for path, job in alone.items()
        }

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"name": "qsgd"}, "unknown attack 'qsgd'"),
            (
                {"name": "dlg_wolfe", "label": "stronger", "iterations": {"sweep": [9, 99]}},
                "'stronger' sweeps iterations; an attack of a track has one strength",
            ),
            ("../mine.py:Mine", "'../mine.py:Mine' is no attack; derive it from leakbench.attacks.base.Attack"),
            ("../mine.py", r"which class of '../mine.py'\? Give it as ../mine.py:MyAttack"),
            (
                {"name": "ridge_inversion", "label": "ridge"},
                "ensemble: 'ridge' is an attack of paper 'leaderboard' already",
            ),
        ],
    )
    def test_mistakes_are_explained(self, root: Path, given: Any, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            self.jobs(root, given)
