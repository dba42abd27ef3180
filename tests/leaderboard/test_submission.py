"""A submission is made and verified, and one that was changed is not."""

from __future__ import annotations

import datetime
import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import registries_as_they_were
from tests.forking import run_module

from leakbench.errors import ConfigError
from leakbench.leaderboard import submission
from leakbench.leaderboard.submission import FILE, LINES, RECORDS, SOURCE, Submission
from leakbench.planning.project import Project
from leakbench.publishing.recomputation import Recomputed

ROOT = Path(__file__).parents[2]
DEFENSE = '''
from leakbench.defenses.base import DEFENSES, Defense
from leakbench.federated.message import DenseMessage


@DEFENSES.register("halved", version=1)
class Halved(Defense):
    """Send half of the gradient."""

    biased = "half of it is sent"

    def protect_update(self, steps, streams):
        return DenseMessage(steps.gradient / 2)
'''
ATTACK = '''
from pydantic import Field

from leakbench.attacks.base import ATTACKS
from leakbench.attacks.presets import IGOptimalDefense


@ATTACKS.register("short", version=1)
class Short(IGOptimalDefense):
    """Inverting Gradients in a hurry."""

    iterations: int = Field(20, ge=1, description="steps")
'''
EASY = {"margin": 0.5, "reference": "mean_image"}
# The smallest leaderboard that a defense joins.
SMALL = {
    "experiments": {
        name: {
            "defenses": ["qsgd", "sign-sgd"],
            "jobs": {"attack": {"attacks": ["ig"], "seeds": 5}},
            "gates": {"ig": EASY},
        }
        for name in ("single", "trained")
    }
    | {
        name: {"jobs": {"attack": {"attacks": ["ig", "mean_image"], "seeds": 5}}, "gates": {"ig": EASY}}
        for name in ("single_undefended", "trained_undefended")
    }
    | {
        "training_undefended": {"jobs": {"train": {"steps": 10}}},
        "training": {
            "defenses": ["qsgd", "sign-sgd"],
            "jobs": {"train": {"steps": 10}, "overhead": {"repetitions": 2}},
        },
    },
}
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("submission")]


@pytest.fixture(scope="module", autouse=True)
def _no_plugin_stays() -> Iterator[None]:
    """Submitted components are loaded into this process too, and do not outlive the tests of this file."""
    with registries_as_they_were():
        yield


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("config", "workflow"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder)
    (folder / "config" / "papers").mkdir()
    (folder / "config" / "papers" / "leaderboard.yaml").write_text(yaml.safe_dump(SMALL))
    (folder / "halved.py").write_text(DEFENSE)
    (folder / "short.py").write_text(ATTACK)
    return folder


def leakbench(checkout: Path, *words: str) -> tuple[int, str]:
    return run_module("leakbench", words, checkout)


@pytest.fixture(scope="module")
def made(checkout: Path) -> Path:
    status, said = leakbench(checkout, "submit", "halved.py")
    assert status == 0, said
    return checkout / "submissions" / "halved"


def test_a_defense(checkout: Path, made: Path) -> None:
    found = submission.read(made)
    assert (found.kind, found.name, found.label, found.scale) == ("defense", "halved.py:Halved", "halved", "smoke")
    assert (made / SOURCE / "halved.py").read_text() == DEFENSE
    lines = json.loads((made / LINES).read_text())
    assert [(line["track"], line["defense"]) for line in lines] == [("A", "halved"), ("C", "halved")]
    assert all("tier" not in line and line["leakage"] > 0 and line["loss"] is not None for line in lines)
    records = {path.parts[-3] for path in (made / RECORDS).rglob("*.gz")}
    assert records == {"halved", "none"}
    status, said = leakbench(checkout, "submit", "--verify", str(made), "--part", "0.3")
    assert status == 0 and said.count("identical") == 3 and "3 records hold" in said, said


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("[0.1]", "expected a mapping, such as '{scale: {sweep: [0.01, 0.1]}}'"),
        ("0.1", "expected a mapping, such as '{scale: {sweep: [0.01, 0.1]}}'"),
        ("{scale: [}", "the value is no YAML: while parsing"),
        ("{scale: {sweep: []}}", "scale: a sweep needs a list of values (found: [])"),
        ("{scale: {sweep: 0.1}}", "scale: a sweep needs a list of values (found: 0.1)"),
    ],
)
def test_parameters_are_a_mapping(checkout: Path, given: str, fault: str) -> None:
    status, said = leakbench(checkout, "submit", "halved.py", "--parameters", given)
    assert status == 1 and f"--parameters {given}: {fault}" in said


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("halved.py", "--label", "bad/label"), "--label: expected a letter or digit"),
        (("lost.py",), "leakbench submit: no Python file at"),
    ],
)
def test_mistakes_are_told_before_anything_is_checked(checkout: Path, words: tuple[str, ...], fault: str) -> None:
    status, said = leakbench(checkout, "submit", *words)
    assert status == 1 and said.startswith(f"leakbench: {fault}")


def test_nothing_of_an_earlier_submission_stays(
    checkout: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(made, tmp_path)
    for name in (f"{SOURCE}/old.py", f"{RECORDS}/results/old.json.gz"):
        (folder / name).touch()
    monkeypatch.setattr(submission, "_compute", lambda *_: None)
    submission.submit(project(checkout, made), "defense", "halved", folder, cores=1)
    assert submission.read(folder).files == submission.read(made).files


def test_the_draw_is_by_numbers_alone(checkout: Path, made: Path) -> None:
    jobs = submission.jobs_of(project(checkout, made), "defense", "halved")
    records = {path: submission._read(made / RECORDS / f"{path}.gz", job) for path, job in jobs.items()}
    first = next(path for path in records if "/train/" in path)

    def order(seed: int = 0, **changed: Any) -> list[str]:
        every = records | {first: records[first].model_copy(update=changed)}
        return sorted(records, key=submission._draw(every, seed))

    words = records[first].provenance.model_copy(update={"started": "later"})
    replicates = records[first].replicates
    assert order() == order(provenance=words, replicates=replicates[::-1])
    other = replicates[0].model_copy(update={"metrics": dict.fromkeys(replicates[0].metrics, 0.5)})
    assert order() not in (order(seed=1), order(replicates=[other, *replicates[1:]]))


def test_an_attack(checkout: Path) -> None:
    status, said = leakbench(checkout, "submit", "short.py", "--label", "hasty")
    assert status == 0, said
    folder = checkout / "submissions" / "hasty"
    lines = json.loads((folder / LINES).read_text())
    assert {line["defense"] for line in lines} == {"qsgd", "sign-sgd"}
    assert all(line["strongest"] in ("hasty", "mean_image") for line in lines)
    status, said = leakbench(checkout, "submit", "--verify", str(folder))
    assert status == 0 and "identical" in said, said


def copied(made: Path, folder: Path) -> Path:
    return Path(shutil.copytree(made, folder / "copy"))


def signed(folder: Path) -> None:
    """Write the digests of changed files, as a cheat would."""
    content = yaml.safe_load((folder / FILE).read_text())
    content["files"] = {path: hashlib.sha256((folder / path).read_bytes()).hexdigest() for path in content["files"]}
    (folder / FILE).write_text(yaml.safe_dump(content))


def project(checkout: Path, folder: Path) -> Project:
    return Project(checkout, submission.read(folder).overrides(folder))


def verified(checkout: Path, folder: Path, part: float = 0.01) -> list[Recomputed]:
    return submission.verify(project(checkout, folder), folder, part)


def claim(folder: Path) -> None:
    lines = json.loads((folder / LINES).read_text())
    lines[0]["leakage"] -= 3
    (folder / LINES).write_text(json.dumps(lines))


def doctor(folder: Path) -> None:
    """Make reconstructions worse by 3 dB."""
    for path in (folder / RECORDS).rglob("halved/ig/all.json.gz"):
        record = json.loads(gzip.decompress(path.read_bytes()))
        for replicate in record["replicates"]:
            replicate["metrics"]["psnr"] = [value - 3 for value in replicate["metrics"]["psnr"]]
        path.write_bytes(gzip.compress(json.dumps(record).encode(), mtime=0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / SOURCE / "halved.py").write_text(DEFENSE + "# later"), "changed since"),
        (lambda folder: (folder / "more.txt").write_text("more"), "not listed in"),
        (lambda folder: (folder / LINES).unlink(), "missing, and listed in"),
        (lambda folder: (folder / FILE).write_text("kind: guess"), "not a submission"),
    ],
)
def test_what_was_changed_is_named(made: Path, tmp_path: Path, change: Callable[[Path], Any], said: str) -> None:
    folder = copied(made, tmp_path)
    change(folder)
    with pytest.raises(ConfigError, match=said):
        submission.read(folder)


def test_lines_are_those_of_the_records(checkout: Path, made: Path, tmp_path: Path) -> None:
    folder = copied(made, tmp_path)
    claim(folder)
    signed(folder)
    with pytest.raises(ConfigError, match=r"halved: leakage is .*, and .* by the records"):
        verified(checkout, folder)


def test_records_that_were_doctored_differ(checkout: Path, made: Path, tmp_path: Path) -> None:
    """First from the lines, and where these are doctored too, from what the source computes."""
    folder = copied(made, tmp_path)
    doctor(folder)
    signed(folder)
    with pytest.raises(ConfigError, match="by the records"):
        verified(checkout, folder)
    planned = project(checkout, folder)
    jobs = submission.jobs_of(planned, "defense", "halved")
    records = {path: submission._read(folder / RECORDS / f"{path}.gz", job) for path, job in jobs.items()}
    (folder / LINES).write_text(json.dumps(submission.lines_of(planned, records, "defense", "halved")))
    signed(folder)
    found = {tuple(each.path.split("/")[-3:-1]): each.difference for each in verified(checkout, folder, part=1.0)}
    assert found["halved", "ig"] == pytest.approx(3) and found["halved", "train"] == found["none", "ig"] == 0


def test_another_source_has_other_records(checkout: Path, made: Path, tmp_path: Path) -> None:
    folder = copied(made, tmp_path)
    (folder / SOURCE / "halved.py").write_text(DEFENSE.replace("/ 2", "/ 3"))
    signed(folder)
    with pytest.raises(ConfigError, match="of another version of the component"):
        verified(checkout, folder)


def test_what_breaks_its_contract_is_not_submitted(checkout: Path) -> None:
    (checkout / "broken.py").write_text(
        DEFENSE.replace("halved", "broken").replace("DenseMessage(steps.gradient / 2)", "None")
    )
    status, said = leakbench(checkout, "submit", "broken.py")
    assert status == 1 and "mend this first" in said and "Message" in said
    assert not (checkout / "submissions" / "broken").exists()


def test_a_submission_says_what_it_is_of() -> None:
    found = Submission(
        kind="attack", name="ig_script", label="mine", scale="smoke", leakbench="1", date=datetime.date(2026, 11, 25)
    )
    assert found.overrides(Path("x")) == {
        "papers": ["leaderboard"],
        "scale": "smoke",
        "ensemble": [{"name": "ig_script", "label": "mine"}],
    }


def test_a_record_of_no_defense_decides_on_gates_and_is_computed_again(
    checkout: Path, made: Path, tmp_path: Path
) -> None:
    folder = copied(made, tmp_path)
    planned = project(checkout, folder)
    (path,) = (
        each
        for each in submission.jobs_of(planned, "defense", "halved")
        if "single_undefended" in each and "/ig/" in each
    )
    file = folder / RECORDS / f"{path}.gz"
    record = json.loads(gzip.decompress(file.read_bytes()))
    record["replicates"][0]["metrics"]["ssim"][0] += 0.1
    file.write_bytes(gzip.compress(json.dumps(record).encode(), mtime=0))
    signed(folder)
    found = {each.path: each.difference for each in verified(checkout, folder, part=1.0)}
    assert found[path] == pytest.approx(0.1)
