"""docs/attacks.md says what the classes say: every attack, every number, every example."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from tests.docs.test_documented_commands import ROOT, blocks, checkout, run

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS, Attack, Grant, Knowledge, Observations
from leakbench.attacks.gradient_matching import GradientMatching, LabelHandling
from leakbench.attacks.labels import Method
from leakbench.attacks.objectives import L1L2, L2
from leakbench.attacks.optimisers import Adam, StaircaseAdam
from leakbench.attacks.presets import IGOptimalDefense
from leakbench.attacks.regularisers import EmbeddingNorm, TotalVariation
from leakbench.attacks.released.base import MEMBERSHIP_ATTACKS, MODEL_INVERSIONS
from leakbench.attacks.sentences import Reordering, SentenceMatching
from leakbench.attacks.tuned import Tuned
from leakbench.attacks.unknowns import Pixels, Upsampled
from leakbench.defenses.base import DEFENSES
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.release import ReleaseJob
from leakbench.planning.layers import overlay
from leakbench.planning.project import Project
from leakbench.records import read_record
from leakbench.registry import Registry

__all__ = ["checkout"]  # a fixture

PAGE = ROOT / "docs" / "attacks.md"
OURS = [name for name in ATTACKS if ATTACKS.get(name).__module__.startswith("leakbench.attacks.")]
WRAPPERS = [name for name in OURS if issubclass(ATTACKS.get(name), Wrapper)]
PRESETS = [
    name
    for name in OURS
    if GradientMatching in ATTACKS.get(name).__mro__[1:] and not issubclass(ATTACKS.get(name), SentenceMatching)
]
PRESETS_OF_SENTENCES = [name for name in OURS if SentenceMatching in ATTACKS.get(name).__mro__[1:]]
# What a component asks for and has no default.
REQUIRED: dict[str, dict[str, Any]] = {
    "gradient_matching": {"objective": L2(), "optimiser": Adam(rate=0.1), "iterations": 1},
    "sentence_matching": {"objective": L2(), "optimiser": Adam(rate=0.1), "iterations": 1},
    "dropped_layers": {"layers": ("fc",)},
}


def table(first: str) -> list[dict[str, str]]:
    """The table whose first column is called so: rows by column, without the marks of code."""
    (found,) = re.findall(rf"^\| {first} \|.*\n(?:\|.*\n)+", PAGE.read_text(), flags=re.MULTILINE)
    header, _, *rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in found.strip().splitlines()
    ]
    return [dict(zip(header, (cell.replace("`", "") for cell in row), strict=True)) for row in rows]


def names(cell: str) -> set[str]:
    return set(cell.split(", ")) - {"nothing"}


def default(name: str) -> Attack:
    within = {"name": "dlg"} if name == "robust" else {"name": "analytic"}  # it wraps gradient matching alone
    inside: dict[str, Any] = {"attack": within} if name in WRAPPERS else {}
    return ATTACKS.get(name)(**REQUIRED.get(name, {}), **inside)


def test_every_attack_is_on_the_page_with_its_needs() -> None:
    rows = {row["attack"]: names(row["needs"]) for row in table("attack")}
    assert rows == {name: set(default(name).needs) for name in OURS}  # what is inside needs nothing
    assert len(rows) == len(table("attack"))


@pytest.mark.parametrize(
    ("column", "registry"), [("membership attack", MEMBERSHIP_ATTACKS), ("model inversion", MODEL_INVERSIONS)]
)
def test_every_attack_on_a_released_model_is_on_the_page(column: str, registry: Registry[Any]) -> None:
    assert sorted(row[column] for row in table(column)) == list(registry)


def test_every_number_of_the_presets() -> None:
    expected = {}
    for name in PRESETS:
        preset = ATTACKS.get(name)()
        assert isinstance(preset, GradientMatching)
        variation = [part for part in preset.regularisers if isinstance(part, TotalVariation)]
        assert len(variation) == len(preset.regularisers) <= 1  # the table has a column for this one alone
        assert all(part.form == "anisotropic" for part in variation)
        # As the text above the table says.
        assert preset.batch_norm == "as_client"
        if name == "rog":
            assert preset.unknown == Upsampled(factor=4, interpolation="bicubic") and preset.start == "uniform"
        else:
            assert preset.unknown == Pixels() and preset.start == "normal"
        adam = preset.optimiser if isinstance(preset.optimiser, Adam) else None
        weight = f" ({preset.objective.l1_weight:g})" if isinstance(preset.objective, L1L2) else ""
        expected[name] = {
            "preset": name,
            "objective": preset.objective.kind + weight,
            "TV": f"{variation[0].weight:g}" if variation else "0",
            "optimiser": ("signed " if adam and adam.signed else "") + preset.optimiser.kind,
            "step": f"{preset.optimiser.rate:g}",
            "schedule": adam.decay if adam else "none",
            "iterations": str(preset.iterations),
            "restarts": str(preset.restarts),
            "box": "yes" if preset.box else "no",
            "labels": preset.labels,
            "keep": preset.keep,
            "stop below": "–" if preset.stop_below is None else f"{preset.stop_below:g}",
        }
    assert {row["preset"]: row for row in table("preset")} == expected


def test_every_number_of_the_presets_of_sentences() -> None:
    expected = {}
    for name in PRESETS_OF_SENTENCES:
        preset = ATTACKS.get(name)()
        assert isinstance(preset, SentenceMatching)
        assert preset.batch_norm == "as_client" and preset.scale == "inputs" and preset.labels == "known"
        assert preset.stop_below is None and preset.unknown == Pixels()
        tries, optimiser = preset.reordering, preset.optimiser
        assert isinstance(optimiser, Adam | StaircaseAdam) and not optimiser.signed
        assert tries is None or tries.burn_in == 0.1
        penalty = [
            f"{part.weight:g} ({part.norm:g})" for part in preset.regularisers if isinstance(part, EmbeddingNorm)
        ]
        assert len(penalty) == len(preset.regularisers) <= 1
        weight = f" ({preset.objective.l1_weight:g})" if isinstance(preset.objective, L1L2) else ""
        assert getattr(preset.objective, "floor", 0) == 0
        if isinstance(optimiser, StaircaseAdam):
            schedule = f"{optimiser.factor:g} every {optimiser.every}"
        else:
            schedule = optimiser.decay
        expected[name] = {
            "preset of sentences": name,
            "objective": preset.objective.kind + weight,
            "embedding norm": penalty[0] if penalty else "–",
            "optimiser": optimiser.kind,
            "step": f"{optimiser.rate:g}",
            "schedule": schedule,
            "iterations": str(preset.iterations),
            "starts": str(preset.starts),
            "permutations": str(preset.permutations),
            "start norm": "–" if preset.start_norm is None else f"{preset.start_norm:g}",
            "reordering": f"{tries.candidates} every {tries.every}" if tries else "–",
            "fluency": f"{tries.fluency:g}" if tries else "–",
            "keep": preset.keep,
        }
    assert {row["preset of sentences"]: row for row in table("preset of sentences")} == expected


def test_fields_of_sentences() -> None:
    rows = {row["field"]: row["what it does"] for row in table("field")}
    named = {name for cell in rows for name in cell.split(", ")}
    assert named == set(SentenceMatching.model_fields) - set(GradientMatching.model_fields)
    assert set(Reordering.model_fields) <= set(re.findall(r"\w+", rows["reordering"]))


def test_grants() -> None:
    public = {"inputs", "words", "auxiliary_labels", "of_later"}  # of sentences, beside a grant, and of later rounds
    assert [row["grant"] for row in table("grant")] == list(get_args(Grant))
    assert set(get_args(Grant)) == set(Knowledge.__dataclass_fields__) - public
    granted = AttackJob(clients=1, batch_size=1).knowledge
    said = "the default is " + "`{}`, `{}`, `{}` and `{}`".format(*granted)
    assert said in " ".join(PAGE.read_text().split())
    # No other field of what an attack sees is a grant.
    assert not set(Knowledge.__dataclass_fields__) & set(Observations.__dataclass_fields__)


def test_parts() -> None:
    rows = {row["part"]: row["kinds"] for row in table("part")}
    fields = GradientMatching.model_fields
    assert set(rows) == set(fields) - {"iterations"}
    for part in ("objective", "regularisers", "optimiser", "unknown"):
        schema = GradientMatching.model_json_schema()["properties"][part]
        kinds = set((schema.get("items") or schema)["discriminator"]["mapping"])
        assert kinds <= set(re.findall(r"\w+", rows[part])), part
    for part in ("start", "labels", "batch_norm", "keep"):
        assert set(get_args(fields[part].annotation)) <= set(re.findall(r"\w+", rows[part])), part


def test_label_methods() -> None:
    assert {row["method"] for row in table("method")} == set(get_args(Method)) < set(get_args(LabelHandling))


def test_wrappers_and_who_declares_them() -> None:
    assert {row["wrapper"] for row in table("wrapper")} == set(WRAPPERS)
    declared = {
        name: [str(wrapper["name"]) for wrapper in DEFENSES.get(name).adaptive]
        for name in DEFENSES
        if DEFENSES.get(name).adaptive and DEFENSES.get(name).__module__.startswith("leakbench.")
    }
    assert {row["defense"]: row["wrappers"].split(", ") for row in table("defense")} == declared


def lay_over(checkout: Path, additions: list[dict[str, Any]]) -> None:
    for addition in additions:
        path = checkout / "config" / ("config.yaml" if "plugins" in addition else "papers/optimal_defense.yaml")
        path.parent.mkdir(exist_ok=True)
        content = yaml.safe_load(path.read_text()) if path.is_file() else {}
        path.write_text(yaml.safe_dump(overlay(content, addition)))


def test_examples_of_variants(checkout: Path) -> None:
    examples = [yaml.safe_load(block) for block in blocks(PAGE, "yaml")]
    plain = [
        example
        for example in examples
        if not {"retrieval", "membership", "users"} & set(re.findall(r"\w+", str(example)))
    ]
    assert len(plain) == 6
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
    (example,) = [yaml.safe_load(block)["variants"]["attacks"] for block in blocks(PAGE, "yaml") if "tag-sen" in block]
    tag, lamp = (ATTACKS.get(given.pop("name"))(**given) for given in example.values())
    assert isinstance(tag, SentenceMatching) and isinstance(lamp, SentenceMatching)
    assert tag.needs == lamp.needs == {"labels"}
    assert lamp.start_norm is None and lamp.reordering and lamp.reordering.burn_in == 0.1


def test_example_of_attacks_on_a_sum() -> None:
    (example,) = [
        found for block in blocks(PAGE, "yaml") if "attack" in (found := yaml.safe_load(block)).get("jobs", {})
    ]
    protocol = example["jobs"]["attack"]
    for users in protocol.pop("users")["sweep"]:
        job = AttackJob(clients=1, batch_size=1, users=users, **protocol)
        assert job.secure_aggregation is not None and job.secure_aggregation.width == 64


def test_example_of_attacks_on_a_released_model() -> None:
    (example,) = [
        found for block in blocks(PAGE, "yaml") if "release" in (found := yaml.safe_load(block)).get("jobs", {})
    ]
    job = ReleaseJob(images=6, auxiliary=(1, 2), steps=1, evaluation=(0, 1), **example["jobs"]["release"])
    assert [attack.name for attack in job.membership] == ["threshold", "four_branch", "lira"]
    assert job.inversion and job.inversion.parameters()["iterations"] == 600


def test_tutorial(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(checkout))  # no weights for LPIPS
    (code,) = blocks(PAGE, "python")
    (checkout / "retrieval.py").write_text(code)
    examples = [yaml.safe_load(block) for block in blocks(PAGE, "yaml")]
    lay_over(checkout, [example for example in examples if "retrieval" in str(example)])

    assert '"retrieval"' in run([sys.executable, "-m", "leakbench", "list", "attacks", "--json"], checkout)
    (path,) = re.findall(r"`leakbench run (\S+)`", PAGE.read_text())
    assert ": ok" in run([sys.executable, "-m", "leakbench", "run", path], checkout)
    metrics = read_record(checkout / path).replicates[0].metrics
    assert metrics["label_accuracy"] == [1.0] and isinstance(metrics["psnr"], list)
