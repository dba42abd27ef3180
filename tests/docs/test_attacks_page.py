"""Pages on attacks agree with the classes: grants, methods, names and every example."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import yaml
from tests.docs.test_documented_commands import ROOT, blocks, checkout, run

from leakbench.attacks.base import ATTACKS, Grant, Knowledge, Observations
from leakbench.attacks.gradient_matching import GradientMatching, LabelHandling
from leakbench.attacks.labels import Method
from leakbench.attacks.presets import IGOptimalDefense
from leakbench.attacks.robbing import RobbingTheFed
from leakbench.attacks.sentences import SentenceMatching
from leakbench.attacks.tuned import Tuned
from leakbench.cli import main
from leakbench.defenses.base import DEFENSES
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.release import ReleaseJob
from leakbench.models.base import build_network
from leakbench.models.linear import MLP
from leakbench.planning.layers import overlay
from leakbench.planning.project import Project
from leakbench.randomness import Streams
from leakbench.records import read_record

__all__ = ["checkout"]  # a fixture

DOCS = ROOT / "docs"
ATTACKS_PAGE, THREATS, HOW_TO = DOCS / "attacks.md", DOCS / "threat-models.md", DOCS / "add-an-attack.md"


def examples() -> list[dict[str, Any]]:
    return [yaml.safe_load(block) for page in (HOW_TO, THREATS, ATTACKS_PAGE) for block in blocks(page, "yaml")]


def table(page: Path, first: str) -> list[dict[str, str]]:
    """The table whose first column is called so: rows by column."""
    (text,) = re.findall(rf"^\| {first} \|.*\n(?:\|.*\n)+", page.read_text(), flags=re.MULTILINE)
    header, _, *rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.strip().splitlines()
    ]
    return [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("page", "first", "column"),
    [(THREATS, "threat model", "list"), (ATTACKS_PAGE, "attacker", "attacker"), (ATTACKS_PAGE, "name", "name")],
)
def test_attacks_that_tables_name_are_there(page: Path, first: str, column: str) -> None:
    known = {*ATTACKS, *DEFENSES, *AttackJob.model_fields, *get_args(LabelHandling), "labels", "assigned_psnr"}
    for row in table(page, first):
        for name in re.findall(r"`(\w+)", row[column]):
            assert name in known or (name.endswith("_") and any(each.startswith(name) for each in known))


def test_grants() -> None:
    public = {"inputs", "words", "auxiliary_labels", "of_later"}  # of sentences, beside a grant, and of later rounds
    assert [row["grant"].strip("`") for row in table(THREATS, "grant")] == list(get_args(Grant))
    powers = {"modified_model"}  # what an attacker may do
    assert set(get_args(Grant)) - powers == set(Knowledge.__dataclass_fields__) - public
    granted = AttackJob(clients=1, batch_size=1).knowledge
    said = "the default is " + "`{}`, `{}`, `{}` and `{}`".format(*granted)
    assert said in " ".join(THREATS.read_text().split())
    # No other field of what an attack sees is a grant.
    assert not set(Knowledge.__dataclass_fields__) & set(Observations.__dataclass_fields__)


def test_label_methods() -> None:
    assert (
        {row["method"].strip("`") for row in table(ATTACKS_PAGE, "method")}
        == set(get_args(Method))
        < set(get_args(LabelHandling))
    )


def lay_over(checkout: Path, additions: list[dict[str, Any]]) -> None:
    for addition in additions:
        path = checkout / "config" / ("config.yaml" if "plugins" in addition else "papers/optimal_defense.yaml")
        path.parent.mkdir(exist_ok=True)
        content = yaml.safe_load(path.read_text()) if path.is_file() else {}
        path.write_text(yaml.safe_dump(overlay(content, addition)))


def test_examples_of_variants(checkout: Path) -> None:
    plain = [
        example
        for example in examples()
        if not {"retrieval", "membership", "users"} & set(re.findall(r"\w+", str(example)))
    ]
    assert len(plain) == 5
    lay_over(checkout, plain)
    plan = Project(checkout).plan("smoke")
    built = {
        job.attack.label: job.attack.single()
        for job in plan.jobs.values()
        if job.attack and job.paper == "optimal_defense"
    }
    longer = built["ig-long"]
    assert longer == IGOptimalDefense(iterations=8000, restarts=4)
    mine = built["mine"]
    assert isinstance(mine, GradientMatching) and mine.needs == {"pixel_range"} and len(mine.regularisers) == 2
    robust = built["ig-robust"].parameters()
    assert [robust["attack"]["name"], robust["attack"]["attack"]["name"]] == ["imputed", "ig_cdpa"]
    tuned = built["ig-tuned"].against(DEFENSES.get("magnitude_pruning").adaptive)
    assert isinstance(tuned, Tuned) and tuned.plain and len(tuned.strengths) == 6
    adaptive = built["ig-adaptive"].against(DEFENSES.get("magnitude_pruning").adaptive)
    assert adaptive.name == "likelihood" and adaptive.parameters()["attack"]["name"] == "ig_optimal_defense"
    (gate,) = plan.experiment_gates("optimal_defense", "pruning")
    assert gate.attack == "ig" and gate.spec.margin == 3
    (refined, rog) = sorted(
        (job for job in plan.jobs.values() if job.experiment == "local_steps"), key=lambda job: len(job.uses)
    )[::-1]
    assert list(refined.uses.values()) == plan.experiment_jobs("optimal_defense", "networks") and not rog.uses
    (learned,) = (job for job in plan.experiment_jobs("optimal_defense", "learned") if job.attack)
    assert list(learned.uses.values()) == plan.experiment_jobs("optimal_defense", "inverters")


def test_examples_of_sentences() -> None:
    (example,) = [each["variants"]["attacks"] for each in examples() if "tag-sen" in str(each)]
    tag, lamp = (ATTACKS.get(given.pop("name"))(**given) for given in example.values())
    assert isinstance(tag, SentenceMatching) and isinstance(lamp, SentenceMatching)
    assert tag.needs == lamp.needs == {"labels"}
    assert lamp.start_norm is None and lamp.reordering and lamp.reordering.burn_in == 0.1


def test_example_of_attacks_on_a_sum() -> None:
    (protocol,) = [
        each["jobs"]["attack"] for each in examples() if "secure_aggregation" in each.get("jobs", {}).get("attack", {})
    ]
    for users in protocol.pop("users")["sweep"]:
        job = AttackJob(clients=1, batch_size=1, users=users, **protocol)
        assert job.secure_aggregation is not None and job.secure_aggregation.width == 64


def test_example_of_a_malicious_server() -> None:
    (protocol,) = [
        each["jobs"]["attack"] for each in examples() if "knowledge" in each.get("jobs", {}).get("attack", {})
    ]
    assert protocol.pop("attacks")[0] == "robbing"
    for users in protocol.pop("users")["sweep"]:
        job = AttackJob(clients=1, batch_size=8, users=users, **protocol)
        assert job.malicious_server and RobbingTheFed().needs <= set(job.knowledge)


@pytest.mark.usefixtures("clean_registries")
def test_an_attack_that_changes_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [block for block in blocks(HOW_TO, "python") if "prepare" in block]
    (tmp_path / "loud.py").write_text(code)
    main(["check", str(tmp_path / "loud.py"), "--json"])
    answers = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    assert not [each for each in answers.values() if each["verdict"] == "wrong"]
    loud, network = ATTACKS.get("loud")(), build_network(MLP(width=8), (1, 8, 8), 10, seed=0)
    with torch.no_grad():
        sent = loud.prepare(network, (1, 1, 8, 8), Knowledge())
    images, labels = torch.rand(2, 1, 1, 8, 8), torch.tensor([[3], [4]])
    gradients = torch.stack([sent.gradient(sent.parameters, *each) for each in zip(images, labels, strict=True)])
    seen = Observations(sent, sent.parameters, gradients, (1, 1, 8, 8))
    found = loud.reconstruct(seen, Knowledge(), Streams([("loud", row) for row in range(2)]))
    torch.testing.assert_close(found.images, images, rtol=0, atol=1e-4)


def test_example_of_attacks_on_a_released_model() -> None:
    (example,) = [each for each in examples() if "release" in each.get("jobs", {})]
    job = ReleaseJob(images=6, auxiliary=(1, 2), steps=1, evaluation=(0, 1), **example["jobs"]["release"])
    assert [attack.name for attack in job.membership] == ["threshold", "four_branch", "lira"]
    assert job.inversion and job.inversion.parameters()["iterations"] == 600


def test_tutorial(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(checkout))  # no weights for LPIPS
    code, _ = blocks(HOW_TO, "python")
    (checkout / "retrieval.py").write_text(code)
    lay_over(checkout, [example for example in examples() if "retrieval" in str(example)])

    assert '"retrieval"' in run(["leakbench", "list", "attacks", "--json"], checkout)
    (path,) = re.findall(r"`leakbench run (\S+)`", HOW_TO.read_text())
    assert ": ok" in run(["leakbench", "run", path], checkout)
    metrics = read_record(checkout / path).replicates[0].metrics
    assert metrics["label_accuracy"] == [1.0] and isinstance(metrics["psnr"], list)
