"""From configuration to jobs and back: what every shipped scale stands for, and what is said about mistakes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import jsonschema  # which Snakemake brings
import pytest
import yaml
from tests.planning.checkout import CONFIG, OVERLAY, PAPER, ROOT, SMOKE, Change, Checkout, put

from leakbench.attacks.base import ATTACKS
from leakbench.defenses.base import DEFENSES
from leakbench.errors import ConfigError
from leakbench.gates import Gate, GateSpec, gates_of, value_of
from leakbench.jobs.base import JOB_KINDS, Job, Variant
from leakbench.metrics.image import IMAGE_METRICS
from leakbench.paper_folders import paper_folders
from leakbench.planning.project import Project, find_root
from leakbench.planning.variants import REGISTRIES
from leakbench.report.schemas import schema_texts
from leakbench.workflow.snakefile import Workflow

SCALES = sorted(path.stem for path in (ROOT / "config" / "scales").glob("*.yaml"))

GATE = {"metric": "psnr", "margin": 2}
EMPTY: dict[str, Any] = {"title": "", "datasets": [], "models": [], "defenses": [], "jobs": {}}  # an experiment


# Every shipped scale -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
def test_a_path_names_its_job_and_a_job_its_path(scale: str) -> None:
    jobs, other = Project(ROOT).plan(scale).jobs, Project(ROOT)
    assert jobs
    for path, job in jobs.items():
        assert job.path == path
        assert other.job(path).resolved() == job.resolved()
        assert len(PurePosixPath(path).parts) == 9
    assert len({job.digest for job in jobs.values()}) == len(jobs)


@pytest.mark.parametrize("scale", SCALES)
def test_jobs_belong_to_their_experiment(scale: str) -> None:
    plan = Project(ROOT).plan(scale)
    found = [
        job.path
        for paper, spec in plan.papers.items()
        for experiment in spec.experiments
        for job in plan.experiment_jobs(paper, experiment)
    ]
    assert sorted(found) == sorted(plan.jobs)


@pytest.mark.parametrize("scale", SCALES)
def test_every_variant_is_used(scale: str) -> None:
    """What a paper declares, at full; what a scale adds to it, there."""
    for paper, spec in Project(ROOT).plan(scale).papers.items():
        folder = paper_folders()[paper]
        shipped = yaml.safe_load(folder.grid.read_text())["variants"]
        overlay = yaml.safe_load(folder.scale(scale).read_text()) if folder.scale(scale).is_file() else {}
        added = overlay.get("variants", {})
        for axis, declared in (shipped if scale == "full" else added).items():
            used = {label for one in spec.experiments.values() for label in getattr(one, axis, ())}
            if axis == "attacks":
                used = {
                    label for one in spec.experiments.values() for jobs in one.jobs.values() for label in jobs.attacks
                }
            new = set(declared) if scale == "full" else set(declared) - set(shipped.get(axis, ()))
            assert new <= used, (paper, axis)


@pytest.mark.parametrize("scale", SCALES)
def test_reference_attackers_stand_beside_the_undefended_gradient_only(scale: str) -> None:
    attacks = [job for job in Project(ROOT).plan(scale).jobs.values() if job.attack]
    references = [job for job in attacks if job.attack and not job.attack.component.observes]
    of_images, of_text = {"mean_image", "grey", "noise"}, {"random_sentence", "frequent_words"}
    if scale == "overnight":  # whose attacks are on images, and are none of the leaderboard's
        of_text = set()
    else:
        of_images |= {"class_mean"}
    assert {job.attack.label for job in references if job.attack} == of_images | of_text
    assert {job.defense.component.name for job in references} == {"none"}


def test_reference_attackers_are_left_out_of_a_mixed_experiment(checkout: Checkout) -> None:
    checkout.edit(PAPER, put("experiments", "undefended", "defenses", value=["none", "gp"]))
    attacked = {(job.defense.label, job.attack.label) for job in checkout.jobs().values() if job.attack}
    references = {"mean_image", "grey", "noise"}
    assert {("none", "ig"), ("gp", "ig"), *(("none", label) for label in references)} <= attacked
    assert not attacked & {("gp", label) for label in references}


def test_the_papers_own_protocol() -> None:
    """Numbers of the paper's text, through anchors and merge keys of YAML."""
    jobs = Project(ROOT).plan("full").jobs
    train = jobs["results/full/optimal_defense/noise_training/mnist/simpleconvnet/none/train/all.json"]
    assert train.kind.parameters() == {
        "seeds": 5,
        "split_seeds": False,
        "clients": 4,
        "batch_size": 16,
        "images_per_client": 1024,
        "first_index": 1,
        "steps": 192,
        "optimiser": "adam",
        "rate": 1e-3,
        "evaluation": [5001, 6025],
        "batch_norm": "eval",
        "noise_per_tensor": True,
    }
    pruned = jobs["results/full/optimal_defense/pruning_training/mnist/simpleconvnet/gp-80/train/all.json"]
    assert pruned.kind.parameters() == train.kind.parameters() | {"rate": 5e-4, "noise_per_tensor": False}
    attack = jobs["results/full/optimal_defense/noise/mnist/simpleconvnet/dpsgd/ig/all.json"].attack
    assert attack is not None
    assert attack.single().parameters() == {
        "objective": {"kind": "cosine"},
        "regularisers": [{"kind": "total_variation", "weight": 1e-6, "form": "anisotropic"}],
        "optimiser": {"kind": "adam", "rate": 0.2, "signed": True, "decay": "steps"},
        "unknown": {"kind": "pixels"},
        "iterations": 2000,
        "restarts": 1,
        "start": "normal",
        "box": True,
        "labels": "known",
        "batch_norm": "as_client",
        "stop_below": None,
        "keep": "last",
    }


def test_configuration_is_read_without_heavy_imports() -> None:
    code = """
import sys
from pathlib import Path
from leakbench.workflow.snakefile import Workflow
flow = Workflow(Path(sys.argv[1]), {})
for scale in flow.project.scales:
    for job in flow.project.plan(scale).jobs.values():
        assert flow.project.job(job.path).digest
assert flow.targets() and flow.scorecard_inputs("full")
print(sorted({"torch", "numpy", "pandas", "matplotlib", "scipy", "torchvision", "sklearn"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_schemas_are_those_of_the_classes() -> None:
    """Regenerate them with `make schemas`."""
    folder = ROOT / "workflow" / "schemas"
    assert {path.name: path.read_text() for path in folder.iterdir()} == schema_texts()


YAML = [file for folder in ("config", "src/leakbench") for file in sorted((ROOT / folder).rglob("*.yaml"))]


@pytest.mark.parametrize("file", YAML, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_fits_the_schema_that_it_names(file: Path) -> None:
    """As editors read it."""
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", file.read_text())
    assert named
    schema = (file.parent / named[1]).resolve()
    kinds = {"config": "config.yaml", "paper": "grid.yaml", "scale": "scales", "overlay": "scales"}
    kept = "scales" if file.name == "so_far.yaml" else ""  # an overlay to copy
    assert kinds[schema.name.partition(".")[0]] in (file.name, file.parent.name, kept)
    assert (schema.name == "scale.schema.json") is (file.parent == ROOT / "config" / "scales")
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text()))
    validator.validate(yaml.safe_load(file.read_text()))


def test_schemas_reject_keys_that_do_not_exist() -> None:
    overlay = json.loads((ROOT / "workflow" / "schemas" / "overlay.schema.json").read_text())
    scale = json.loads((ROOT / "workflow" / "schemas" / "scale.schema.json").read_text())
    wrong: dict[str, Any] = {"experiments": {"noise": {"modles": []}}}
    assert not jsonschema.Draft202012Validator(overlay).is_valid(wrong)
    assert not jsonschema.Draft202012Validator(scale).is_valid({"description": "", "papers": {"channel": wrong}})


# Overlays, sweeps, parts ---------------------------------------------------------------------------------------------


def test_a_scale_lies_over_the_paper() -> None:
    full, smoke = (Project(ROOT).plan(scale).papers["optimal_defense"] for scale in ("full", "smoke"))
    assert full.experiments["noise"].datasets == ["mnist"] and smoke.experiments["noise"].datasets == ["digits16"]
    assert full.experiments["noise"].defenses == smoke.experiments["noise"].defenses
    assert smoke.variants.attacks["ig"].model_extra == {"iterations": 120}


def test_a_sweep_is_one_job_of_several_settings(checkout: Checkout) -> None:
    both = {"name": "clipped_noise", "scale": {"sweep": [0.1, 0.2]}, "clip": {"sweep": [1, 2, 4]}}
    checkout.edit(SMOKE, put(*OVERLAY.split("."), "variants", "defenses", "dpsgd", value=both))
    job = checkout.jobs()["results/smoke/optimal_defense/noise/digits16/small/dpsgd/ig/all.json"]
    settings = [(dict(setting), defense.parameters()) for setting, defense in job.defense.settings()]
    assert [setting for setting, _ in settings] == [
        {"scale": scale, "clip": clip} for scale in (0.1, 0.2) for clip in (1, 2, 4)
    ]
    assert all(parameters | setting == parameters for setting, parameters in settings)
    assert job.defense.resolved() == {
        "label": "dpsgd",
        "name": "clipped_noise",
        "version": DEFENSES.get("clipped_noise").version,
        "parameters": {"scale_mode": "rms"},
        "sweep": {"scale": [0.1, 0.2], "clip": [1, 2, 4]},
    }


def test_a_number_that_yaml_takes_for_text_is_a_number(checkout: Checkout) -> None:
    noise = {"name": "clipped_noise", "scale": {"sweep": yaml.safe_load("[1e-3, 1]")}, "clip": yaml.safe_load("1e-1")}
    checkout.edit(SMOKE, put(*OVERLAY.split("."), "variants", "defenses", "dpsgd", value=noise))
    job = checkout.jobs()["results/smoke/optimal_defense/noise/digits16/small/dpsgd/ig/all.json"]
    resolved = job.defense.resolved()
    assert resolved["parameters"]["clip"] == 0.1
    assert resolved["sweep"] == {"scale": [0.001, 1]} and isinstance(resolved["sweep"]["scale"][1], int)


def test_seeds_can_be_jobs_of_their_own(checkout: Checkout) -> None:
    before = checkout.jobs()
    checkout.edit(PAPER, put("experiments", "noise_training", "jobs", "train", "split_seeds", value=True))
    after = checkout.jobs()
    path = "results/smoke/optimal_defense/noise_training/digits16/small/none/train/{}.json"
    assert path.format("all") not in after
    parts = [after[path.format(f"seed{seed}")] for seed in range(3)]
    assert [part.seeds for part in parts] == [(0,), (1,), (2,)]
    assert len({part.digest for part in parts}) == 3
    assert len(after) == len(before) + 3 * 2


# What makes a job another job ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registry", "name", "touched"),
    [
        (DEFENSES, "magnitude_pruning", lambda job: job.defense.component.name == "magnitude_pruning"),
        (
            REGISTRIES["attacks"],
            "ig_optimal_defense",
            lambda job: (
                job.paper in ("optimal_defense", "leaderboard") and job.attack and job.attack.label.startswith("ig")
            ),
        ),
        (REGISTRIES["models"], "simpleconvnet", lambda job: job.model.component.name == "simpleconvnet"),
        (REGISTRIES["datasets"], "digits", lambda job: job.dataset.component.name == "digits"),
        (JOB_KINDS, "train", lambda job: job.kind.name == "train" or "train" in job.uses),
    ],
)
def test_versions_enter_the_jobs_that_use_them(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, registry: Any, name: str, touched: Callable[[Job], bool]
) -> None:
    before, jobs = checkout.digests(), checkout.jobs()
    monkeypatch.setattr(registry.get(name), "version", 99)
    after = checkout.digests()
    assert {path for path in before if before[path] != after[path]} == {
        path for path, job in jobs.items() if touched(job)
    }


@pytest.mark.parametrize(
    ("file", "change"),
    [
        (PAPER, put("title", value="Another title")),
        (PAPER, put("citation", value="Somebody else")),
        (PAPER, put("experiments", "noise", "title", value="Another title")),
        (SMOKE, put("description", value="in other words")),
        (PAPER, put("variants", "defenses", "gp-80", value={"fraction": 0.8, "name": "magnitude_pruning"})),
        (PAPER, put("variants", "defenses", "dpsgd-0.1", "scale_mode", value="rms")),  # what is the default anyway
        (PAPER, put("variants", "defenses", "unused", value={"name": "magnitude_pruning", "fraction": 0.1})),
        (PAPER, put("experiments", "empty", value=EMPTY)),
        (SMOKE, put("papers", "optimal_defense", "experiments", "noise", "gates", "ig", "margin", value=4)),
        (PAPER, put("experiments", "pruning", "gates", "ig", "metric", value="ssim")),
    ],
    ids=lambda value: "" if callable(value) else value,
)  # fmt: skip
def test_words_and_spellings_do_not_change_jobs(checkout: Checkout, file: str, change: Change) -> None:
    before = checkout.digests()
    checkout.edit(file, change)
    assert checkout.digests() == before


@pytest.mark.parametrize(
    ("file", "change", "touched"),
    [
        (PAPER, put("variants", "defenses", "gp-80", "fraction", value=0.81), 6),
        (SMOKE, put("papers", "optimal_defense", "variants", "models", "small", "width", value=25), 109),
        (SMOKE, put("papers", "optimal_defense", "variants", "attacks", "ig", "iterations", value=201), 29),
        (PAPER, put("experiments", "noise", "jobs", "attack", "first_index", value=2), 2),
    ],
    ids=["defense", "model", "attack", "protocol"],
)
def test_parameters_change_the_jobs_that_have_them(checkout: Checkout, file: str, change: Change, touched: int) -> None:
    before = checkout.digests()
    checkout.edit(file, change)
    after = checkout.digests()
    assert before.keys() == after.keys()
    assert sum(before[path] != after[path] for path in before) == touched


# Gates ---------------------------------------------------------------------------------------------------------------

JUDGING = (
    *("undefended", "cifar_pruning", "inversion", "inversion_single", "rog", "text_attacks", "constants"),
    *("undefended_release", "single_undefended", "trained_undefended", "batch_undefended", "local_undefended"),
    *("rounds_undefended", "sum_undefended", "malicious_undefended", "malicious_sum_undefended", "text_undefended"),
    "connected_undefended",
)
"""Experiments whose undefended cells judge the attacks of others."""
UNGATED = ("released_pruning", "released_noise", "released_cifar")
"""Experiments that repeat what authors printed, beside whose numbers they stand: they rank nothing."""
UNDEFENDED = "results/smoke/optimal_defense/undefended/digits16/{}/none/{}/{}.json"


@pytest.mark.parametrize("scale", SCALES)
def test_every_attack_experiment_has_gates(scale: str) -> None:
    plan = Project(ROOT).plan(scale)
    for paper, spec in plan.papers.items():
        for experiment in spec.experiments:
            observing = {
                (job.dataset.label, job.model.label, job.attack.label)
                for job in plan.experiment_jobs(paper, experiment)
                if job.attack and job.attack.component.observes
            } | {
                (job.dataset.label, job.model.label, job.kind.name)
                for job in plan.experiment_jobs(paper, experiment)
                if job.attack is None and job.kind.gated_metrics
            }
            gates = plan.experiment_gates(paper, experiment)
            if experiment in UNGATED:
                assert not gates
                continue
            assert {(gate.dataset, gate.model, gate.attack) for gate in gates} == observing
            for gate in gates:
                ((judging, defense),) = {(job.experiment, job.defense.label) for job in gate.undefended}
                assert judging in {experiment, *JUDGING} and defense == "none"


@pytest.mark.parametrize("scale", SCALES)
def test_gates_of_batches_assign_their_images_first(scale: str) -> None:
    """A gradient does not know the order of its images, which alone can fail an attack."""
    plan = Project(ROOT).plan(scale)
    several = []
    for paper, spec in plan.papers.items():
        for gate in (gate for experiment in spec.experiments for gate in plan.experiment_gates(paper, experiment)):
            sizes = [
                value_of(job, setting, "batch_size") * value_of(job, setting, "users")
                for job in gate.undefended
                if job.kind.name == "attack"
                for setting, _ in job.combinations()
            ]
            if max(sizes, default=1) > 1:
                several.append(gate.spec.metric)
    assert several and not set(several) & set(IMAGE_METRICS)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "full"])
def test_released_models_read_the_shadow_models_of_their_seed_and_architecture(scale: str) -> None:
    plan = Project(ROOT, {"papers": ["channel"]}).plan(scale)
    released = [job for job in plan.jobs.values() if job.kind.name == "release"]
    assert released
    for job in released:
        source = job.uses["shadows"]
        assert (source.dataset.label, source.model.label, source.part) == (job.dataset.label, job.model.label, job.part)


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"metric": "psnr"}, "metric"),
        ({"reference": "mean_image"}, "reference"),
        ({"reference": "accuracy"}, "reference"),
        ({"undefended": "natural"}, "trains no undefended model 'lenet5' on data set 'digits16'"),
    ],
)
def test_mistakes_in_gates_of_models(gate: dict[str, Any], message: str) -> None:
    jobs = list(Project(ROOT, {"papers": ["channel"]}).plan("smoke").jobs.values())
    asked = {"metric": "accuracy", "reference": "chance", "margin": 0.1, "undefended": "undefended_release"} | gate
    where = lambda *keys: ".".join(keys)  # noqa: E731
    with pytest.raises(ConfigError, match=message):
        list(gates_of("natural", "release", GateSpec(**asked), jobs, where))


def gated(checkout: Checkout, experiment: str = "noise") -> list[Gate]:
    return Project(checkout.root).plan("smoke").experiment_gates("optimal_defense", experiment)


def test_a_gate_is_judged_by_all_parts_of_its_undefended_cell(checkout: Checkout) -> None:
    (gate,) = gated(checkout)
    assert [job.path for job in gate.undefended] == [UNDEFENDED.format("small", "ig", "all")]
    assert [job.path for job in gate.reference] == [UNDEFENDED.format("small", "mean_image", "all")]
    assert (gate.spec.margin, gate.spec.metric) == (3.0, "assigned_psnr")
    checkout.edit(PAPER, put("experiments", "undefended", "jobs", "attack", "split_seeds", value=True))
    (gate,) = gated(checkout)
    assert [job.path for job in gate.undefended] == [
        UNDEFENDED.format("small", "ig", f"seed{seed}") for seed in range(6)
    ]
    assert len(gate.reference) == 6


def test_every_cell_has_a_gate_and_needs_an_undefended_one(checkout: Checkout) -> None:
    models = put(*OVERLAY.split("."), "experiments", "noise", "models", value=["small", "simpleconvnet"])
    checkout.edit(SMOKE, models)
    assert "no undefended gradient of dataset 'digits16' and model 'simpleconvnet' with 'ig'. Allowed: (none)." in (
        checkout.fault()
    )
    both = ["simpleconvnet", "small"]
    checkout.edit(SMOKE, put(*OVERLAY.split("."), "experiments", "undefended", "models", value=both))
    assert [(gate.model, [job.path for job in gate.undefended]) for gate in gated(checkout)] == [
        (model, [UNDEFENDED.format(model, "ig", "all")]) for model in ("small", "simpleconvnet")
    ]


ATTACKED = ("experiments", "undefended", "jobs", "attack")


def test_the_reference_may_stand_in_another_experiment_with_the_same_victims(checkout: Checkout) -> None:
    checkout.edit(PAPER, put(*ATTACKED, "attacks", value=["ig"]))
    lacking = (
        "experiment 'undefended' lacks attack 'mean_image' on the undefended gradient of dataset 'digits16' and model "
        "'small', and no other experiment has it on the same victims (seeds, clients, batch_size, first_index, "
        "victims, unlike, users, target)"
    )
    assert checkout.fault().endswith(f"gates.ig.reference: {lacking}")
    checkout.edit(PAPER, put("experiments", "pictures", "jobs", "attack", "attacks", value=["ig", "mean_image"]))
    assert checkout.fault().endswith(lacking)  # one seed, of other victims
    references = {"attacks": ["mean_image"], "seeds": 5, "clients": 4, "batch_size": 16}
    elsewhere = EMPTY | {"datasets": ["mnist"], "models": ["simpleconvnet"], "defenses": ["none"]}
    checkout.edit(PAPER, put("experiments", "blind", value=elsewhere | {"jobs": {"attack": references}}))
    overlay = {"datasets": ["digits16"], "models": ["small"]}
    attacked = {"seeds": 7, "clients": 1, "victims": "distinct", "batch_size": 4}
    given = put(*OVERLAY.split("."), "experiments", "blind", value=overlay | {"jobs": {"attack": attacked}})
    checkout.edit(SMOKE, given)
    (gate,) = gated(checkout)
    assert [job.experiment for job in gate.reference] == ["blind"]  # which has a seed to spare


@pytest.mark.parametrize(
    "other", [{"first_index": 2}, {"seeds": 5}, {"clients": 2}, {"batch_size": 8}, {"victims": "same"}, {"users": 2}]
)
def test_a_reference_on_other_victims_is_none(checkout: Checkout, other: dict[str, Any]) -> None:
    """The undefended attack moves to an experiment whose victims differ in one thing from those of the reference."""
    moved = {"attacks": ["ig"], "seeds": 6, "clients": 1, "victims": "distinct", "batch_size": 4}
    checkout.edit(PAPER, lambda paper: paper["experiments"]["noise"]["gates"]["ig"].pop("undefended"))
    for key, value in {"defenses": ["none", "dpsgd"], "jobs": {"attack": moved | other}}.items():
        checkout.edit(SMOKE, put(*OVERLAY.split("."), "experiments", "noise", key, value=value))
    if other == {"seeds": 5}:
        assert [job.experiment for job in gated(checkout)[0].reference] == ["undefended"]  # it has all five
    else:
        assert "experiment 'noise' lacks attack 'mean_image'" in checkout.fault()


def test_an_experiment_may_hold_its_undefended_cells_itself(checkout: Checkout) -> None:
    checkout.edit(PAPER, put("experiments", "noise", "defenses", value=["none", "dpsgd"]))
    checkout.edit(PAPER, lambda paper: paper["experiments"]["noise"]["gates"]["ig"].pop("undefended"))
    (gate,) = gated(checkout)
    assert [job.path for job in gate.undefended] == [
        UNDEFENDED.replace("undefended", "noise").format("small", "ig", "all")
    ]


# Wrapped attacks -----------------------------------------------------------------------------------------------------


def wrap(checkout: Checkout, experiment: str = "noise", **attacks: Any) -> None:
    """Declare attacks, and let an experiment run them beside ``ig``."""
    for label, spec in attacks.items():
        checkout.edit(PAPER, put("variants", "attacks", label, value=spec))
    checkout.edit(
        PAPER, put("experiments", experiment, "jobs", "attack", "attacks", value=["ig", *attacks, "mean_image"])
    )


def against_of_clever(checkout: Checkout) -> dict[str, Any]:
    """Resolves how the attack ``clever`` adapts to the defense ``optimal`` in the experiment ``noise``."""
    (job,) = (job for path, job in checkout.jobs().items() if "/noise/" in path and "/optimal/clever/" in path)
    against: dict[str, Any] = job.resolved()["attack"]["against"]
    return against


def attack_of(checkout: Checkout, label: str) -> Variant[Any]:
    (attack,) = {job.attack.label: job.attack for job in checkout.jobs().values() if job.attack}.keys() & {label}
    return next(job.attack for job in checkout.jobs().values() if job.attack and job.attack.label == attack)


def test_a_wrapped_attack_is_a_variant(checkout: Checkout) -> None:
    wrap(
        checkout,
        inner={"name": "simulated", "attack": "ig", "draws": 3},
        outer={"name": "imputed", "threshold": 2.5, "attack": "inner"},
    )
    outer = attack_of(checkout, "outer")
    assert outer.wraps == ("inner", "ig") and attack_of(checkout, "inner").wraps == ("ig",)
    assert attack_of(checkout, "ig").wraps == ()
    parameters = outer.resolved()["parameters"]
    ig = attack_of(checkout, "ig").resolved()
    assert parameters == {
        "outliers": "mad",
        "threshold": 2.5,
        "value": "zero",
        "layers": [],
        "attack": {
            "name": "simulated",
            "version": ATTACKS.get("simulated").version,
            "draws": 3,
            "attack": {"name": "ig_optimal_defense", "version": ig["version"], **ig["parameters"]},
        },
    }
    assert parameters["attack"]["attack"]["iterations"] == 120  # as the scale says


def test_a_wrapped_attack_may_be_given_in_place(checkout: Checkout) -> None:
    inline = {"name": "masked", "attack": {"name": "masked", "attack": {"name": "tag", "iterations": 5}}}
    mixed = {"name": "masked", "attack": {"name": "simulated", "draws": 2, "attack": "ig"}}
    wrap(checkout, inline=inline, mixed=mixed)
    attack = attack_of(checkout, "inline")
    assert attack.wraps == () and attack_of(checkout, "mixed").wraps == ("ig",)
    inside = attack.resolved()["parameters"]["attack"]["attack"]
    assert (inside["name"], inside["iterations"], inside["objective"]["kind"]) == ("tag", 5, "l1_l2")
    assert attack_of(checkout, "mixed").single().attack.attack.iterations == 120


def test_what_a_wrapper_holds_makes_it_another_job(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(checkout, clever={"name": "adaptive", "attack": "ig"}, masked_ig={"name": "masked", "attack": "ig"})

    def touched(before: dict[str, str]) -> set[tuple[str, str]]:
        after = checkout.digests()
        parts = (PurePosixPath(path).parts for path in before if before[path] != after[path])
        return {(defense, attack) for _, _, _, experiment, _, _, defense, attack, _ in parts if experiment == "noise"}

    every = {(defense, attack) for defense in ("dpsgd", "optimal") for attack in ("ig", "clever", "masked_ig")}
    before = checkout.digests()
    monkeypatch.setattr(ATTACKS.get("ig_optimal_defense"), "version", 99)
    assert touched(before) == every
    before = checkout.digests()
    monkeypatch.setattr(ATTACKS.get("masked"), "version", 99)
    assert touched(before) == {pair for pair in every if pair[1] == "masked_ig"}
    before = checkout.digests()
    monkeypatch.setattr(ATTACKS.get("likelihood"), "version", 99)  # what both kinds of noise declare
    assert touched(before) == {pair for pair in every if pair[1] == "clever"}
    against = against_of_clever(checkout)
    assert (against["name"], against["attack"]["name"]) == ("likelihood", "ig_optimal_defense")


def test_a_defense_that_declares_nothing_is_simulated(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEFENSES.get("optimal_clipped_noise"), "adaptive", ())
    wrap(checkout, clever={"name": "adaptive", "attack": "ig"})
    against = against_of_clever(checkout)
    assert (against["name"], against["attack"]["name"]) == ("simulated", "ig_optimal_defense")


# What is said of wrappers that are wrong, and where; the attacks that are declared beside ``clever``.
WRONG_WRAPPERS: list[tuple[Any, str, str, dict[str, Any]]] = [
    ({"name": "masked"}, ".attack", "this key is missing", {}),
    ({"name": "masked", "attack": "igg"}, ".attack", "unknown attack 'igg'; did you mean 'ig'? Allowed: ", {}),
    ({"name": "masked", "attack": 3}, ".attack", "Input should be a valid dictionary or instance of Attack", {}),
    ({"name": "masked", "attack": {"iterations": 3}}, ".attack.name", "this key is missing", {}),
    ({"name": "masked", "attack": {"name": "tga"}}, ".attack.name", "unknown attack 'tga'; did you mean 'tag'? ", {}),
    ({"name": "masked", "attack": {"name": "tag", "iteration": 3}}, ".attack.iteration",
     "unknown key 'iteration'; did you mean 'iterations'? Allowed: batch_norm, box", {}),
    ({"name": "masked", "attack": {"name": "tag", "iterations": 0}}, ".attack.iterations", "Input should be", {}),
    ({"name": "masked", "attack": {"name": "tag", "optimiser": {"kind": "adam", "ratee": 1}}},
     ".attack.optimiser.ratee", "unknown key 'ratee'; did you mean 'rate'? Allowed: decay, kind, rate, signed.", {}),
    ({"name": "masked", "attack": {"name": "masked", "attack": "igg"}}, ".attack.attack", "unknown attack 'igg'", {}),
    ({"name": "masked", "attac": "ig"}, ".attac", "unknown key 'attac'; did you mean 'attack'? Allowed: attack.", {}),
    ({"name": "simulated", "attack": "ig", "draws": 0}, ".draws", "Input should be greater than or equal to 1", {}),
    # References.
    ({"name": "masked", "attack": "grey"}, ".attack", "'grey' is a reference attacker: it ignores what a wrapper", {}),
    ({"name": "adaptive", "attack": {"name": "noise"}}, ".attack", "'noise' is a reference attacker: it ignores", {}),
    ({"name": "masked", "attack": {"name": "masked", "attack": "grey"}}, ".attack.attack", "'grey' is a reference", {}),
    # Circles.
    ({"name": "masked", "attack": "clever"}, ".attack", "the attacks clever -> clever wrap each other", {}),
    ({"name": "masked", "attack": {"name": "masked", "attack": "clever"}}, ".attack.attack", "the attacks clever -> cl",
     {}),
    ({"name": "masked", "attack": "other"}, "other.attack", "the attacks clever -> other -> clever wrap each other",
     {"other": {"name": "masked", "attack": "clever"}}),
    # Sweeps.
    ({"name": "masked", "attack": "many"}, ".attack", "'many' sweeps parameters, and a wrapped attack cannot",
     {"many": {"name": "tag", "iterations": {"sweep": [1, 2]}}}),
    ({"name": "masked", "attack": {"name": "tag", "iterations": {"sweep": [1, 2]}}}, ".attack",
     "'tag' sweeps parameters, and a wrapped attack cannot", {}),
    ({"name": "masked", "attack": {"sweep": ["ig", "tag"]}}, ".attack", "a wrapped attack cannot be swept; make a", {}),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "below", "said", "others"), WRONG_WRAPPERS, ids=str)
def test_a_wrong_wrapper_is_explained(
    checkout: Checkout, spec: dict[str, Any], below: str, said: str, others: dict[str, Any]
) -> None:
    for label, other in others.items():
        checkout.edit(PAPER, put("variants", "attacks", label, value=other))
    wrap(checkout, clever=spec)
    place = f"clever{below}" if below.startswith(".") else below
    assert checkout.fault().startswith(f"{PAPER}: variants.attacks.{place}: {said}")


# Mistakes in the parts of gradient matching. Pydantic's name of a place holds the part's kind, which is no key of the
# file.
WRONG_PARTS: list[tuple[dict[str, Any], str, str]] = [
    ({"optimiser": {"kind": "adam", "ratee": 0.1}}, "optimiser.ratee",
     "unknown key 'ratee'; did you mean 'rate'? Allowed: decay, kind, rate, signed."),
    ({"optimiser": {"kind": "adam", "rate": 0}}, "optimiser.rate", "Input should be greater than 0 (found: 0)"),
    ({"optimiser": {"kind": "adam"}}, "optimiser.rate", "this key is missing"),
    ({"optimiser": {"kind": "adan", "rate": 1}}, "optimiser.kind",
     "unknown kind 'adan'; did you mean 'adam'? Allowed: adam, lbfgs, staircase_adam."),
    ({"optimiser": {"rate": 0.1}}, "optimiser.kind", "this key is missing. Allowed: adam, lbfgs, staircase_adam."),
    ({"optimiser": "adam"}, "optimiser", "Input should be a valid dictionary or object to extract"),
    ({"optimiser": {"kind": "lbfgs", "adam": 1}}, "optimiser.adam", "unknown key 'adam'. Allowed: history, kind, line"),
    ({"objective": {"kind": "l1_l2", "l1": 1}}, "objective.l1", "unknown key 'l1'"),
    ({"objective": {"kind": 7}}, "objective.kind",
     "unknown kind '7'. Allowed: cosine, cosine_per_tensor, l1, l1_l2, l2, profile."),
    ({"regularisers": [{"kind": "pixel_box", "weight": 1}, {"kind": "total_variation", "weigth": 1}]},
     "regularisers.1.weigth", "unknown key 'weigth'; did you mean 'weight'? Allowed: form, kind, weight."),
    ({"regularisers": [{"kind": "total_variation", "weight": 1, "form": "round"}]}, "regularisers.0.form",
     "Input should be 'anisotropic', 'isotropic' or 'squared' (found: 'round')"),
    ({"regularisers": [{"kind": "tv", "weight": 1}]}, "regularisers.0.kind",
     "unknown kind 'tv'. Allowed: batch_norm, embedding_norm, pixel_box, total_variation."),
    ({"regularisers": [{"weight": 1}]}, "regularisers.0.kind",
     "this key is missing. Allowed: batch_norm, embedding_norm, pixel_box, total_variation."),
]  # fmt: skip


@pytest.mark.parametrize(("given", "below", "said"), WRONG_PARTS, ids=str)
def test_a_wrong_part_of_an_attack_is_explained(
    checkout: Checkout, given: dict[str, Any], below: str, said: str
) -> None:
    for key, value in given.items():
        checkout.edit(PAPER, put("variants", "attacks", "ig", key, value=value))
    assert checkout.fault().startswith(f"{PAPER}: variants.attacks.ig.{below}: {said}")


def test_an_adaptive_attack_is_judged_by_the_one_that_it_wraps(checkout: Checkout) -> None:
    wrap(checkout, clever={"name": "adaptive", "attack": "ig"}, outer={"name": "imputed", "attack": "clever"})
    for label in ("clever", "outer"):
        checkout.edit(PAPER, put("experiments", "noise", "gates", label, value=GATE | {"undefended": "undefended"}))
    for gate, label in zip(gated(checkout), ("ig", "clever", "outer"), strict=True):
        assert gate.attack == label
        assert [job.path for job in gate.undefended] == [UNDEFENDED.format("small", "ig", "all")]


def test_a_wrapper_with_an_undefended_cell_is_judged_by_that_one(checkout: Checkout) -> None:
    imputed = {"name": "imputed", "attack": "ig"}
    wrap(checkout, clever=imputed)
    wrap(checkout, "undefended", clever=imputed)
    checkout.edit(PAPER, put("experiments", "noise", "gates", "clever", value=GATE | {"undefended": "undefended"}))
    clever = gated(checkout)[1]
    assert [job.path for job in clever.undefended] == [UNDEFENDED.format("small", "clever", "all")]


def test_undefended_cell_of_an_adaptive_attack_judges_it(checkout: Checkout) -> None:
    """Adapted to the exact gradient, it is another attack than the one that it wraps."""
    adaptive = {"name": "adaptive", "attack": "ig"}
    wrap(checkout, clever=adaptive)
    wrap(checkout, "undefended", clever=adaptive)
    checkout.edit(PAPER, put("experiments", "noise", "gates", "clever", value=GATE | {"undefended": "undefended"}))
    clever = gated(checkout)[1]
    assert [job.path for job in clever.undefended] == [UNDEFENDED.format("small", "clever", "all")]


# Plug-ins ------------------------------------------------------------------------------------------------------------

PLUGIN = """
from leakbench.defenses.base import DEFENSES, Defense

@DEFENSES.register("from_elsewhere", version=3)
class FromElsewhere(Defense):
    strength: float = 2.5
"""


@pytest.mark.usefixtures("clean_registries")
@pytest.mark.parametrize("plugin", ["folder/my_plugin.py", "my_plugin_module"])
def test_a_plugin_becomes_jobs(checkout: Checkout, monkeypatch: pytest.MonkeyPatch, plugin: str) -> None:
    file = checkout.root / (plugin if plugin.endswith(".py") else f"{plugin}.py")
    file.parent.mkdir(exist_ok=True)
    file.write_text(PLUGIN)
    monkeypatch.syspath_prepend(checkout.root)
    checkout.edit("config/config.yaml", put("plugins", value=[plugin]))
    checkout.edit(PAPER, put("variants", "defenses", "strong", value={"name": "from_elsewhere", "strength": 5}))
    checkout.edit(PAPER, put("experiments", "noise_training", "defenses", value=["none", "from_elsewhere", "strong"]))

    jobs = checkout.jobs()
    assert "from_elsewhere" in set(DEFENSES)
    for label, strength in {"from_elsewhere": 2.5, "strong": 5.0}.items():
        path = f"results/smoke/optimal_defense/noise_training/digits16/small/{label}/train/all.json"
        assert jobs[path].defense.resolved() == {
            "label": label,
            "name": "from_elsewhere",
            "version": 3,
            "parameters": {"strength": strength},
            "sweep": {},
        }


def test_a_plugin_that_is_not_there(checkout: Checkout) -> None:
    checkout.edit("config/config.yaml", put("plugins", value=["lost.py"]))
    assert checkout.fault() == f"config/config.yaml: plugins: no Python file at '{checkout.root / 'lost.py'}'"
    assert checkout.fault(plugins=["lost_module"]).startswith("command line: plugins: cannot import 'lost_module'")


# Mistakes: file, key, value, and what would be right -----------------------------------------------------------------

# File, key and value of a mistake; what is said about it; and the place that is named where it is not that key.
MISTAKES: list[tuple[Any, ...]] = [
    # Keys.
    (CONFIG, "sclae", "smoke", "unknown key 'sclae'; did you mean 'scale'? Allowed: compare, data_root, ensemble"),
    (PAPER, "titel", "x", "unknown key 'titel'; did you mean 'title'? Allowed: citation, experiments, title"),
    (PAPER, "experiments.noise.dataset", [], "unknown key 'dataset'; did you mean 'datasets'? Allowed: datasets"),
    (PAPER, "variants.defence", {}, "unknown key 'defence'; did you mean 'defenses'? Allowed: attacks, datasets"),
    (SMOKE, "paper", {}, "unknown key 'paper'; did you mean 'papers'? Allowed: description, device, extends, papers."),
    (SMOKE, f"{OVERLAY}.experiments.noise.modles", [], "unknown key 'modles'; did you mean 'models'? Allowed: "),
    # Wrong types.
    (PAPER, "experiments.noise.defenses", "dpsgd", "Input should be a valid list (found: 'dpsgd')"),
    (PAPER, "experiments.noise.title", None, "Input should be a valid string (found: None)"),
    (PAPER, "citation", 2024, "Input should be a valid string (found: 2024)"),
    (SMOKE, f"{OVERLAY}.experiments.noise.datasets", [16], "Input should be a valid string (found: 16)", ".0"),
    (SMOKE, "papers", ["optimal_defense"], "Input should be a valid dictionary (found: ['optimal_defense'])"),
    # Components.
    (PAPER, "variants.defenses.gp.name", "magnitude", "unknown defense 'magnitude'; did you mean 'magnitude_pruning'"),
    (SMOKE, f"{OVERLAY}.variants.datasets.digits16.name", "digit", "unknown dataset 'digit'; did you mean 'digits'? "),
    # Labels.
    (PAPER, "experiments.noise.defenses", ["dpsdg"], "unknown defense 'dpsdg'; did you mean 'dpsgd'? Allowed: add"),
    (SMOKE, f"{OVERLAY}.experiments.noise.datasets", ["mnits"], "unknown dataset 'mnits'; did you mean 'mnist'?"),
    (PAPER, "experiments.noise.jobs.attack.attacks", ["igg"], "unknown attack 'igg'; did you mean 'ig'? Allowed: ada"),
    (PAPER, "variants.defenses.a/b", {"name": "none"}, "expected a letter or digit, then letters", ".[key]"),
    # Kinds of job, and their protocols.
    (PAPER, "experiments.noise.jobs.atack", {}, "unknown kind of job 'atack'; did you mean 'attack'? Allowed: attack"),
    (PAPER, "experiments.noise.jobs.attack.client", 3, "unknown key 'client'; did you mean 'clients'? Allowed: "),
    (SMOKE, f"{OVERLAY}.experiments.noise.jobs.attack.seeds", 0, "Input should be greater than or equal to 1"),
    (PAPER, "experiments.noise.jobs.train.attacks", ["ig"], "kind 'train' runs no attacks; remove the key 'attacks'"),
    (PAPER, "experiments.noise.jobs.attack.attacks", [], "kind 'attack' needs a list of attacks"),
    # Parameters.
    (PAPER, "variants.defenses.gp-80.part", 0.8, "unknown key 'part'. Allowed: fraction."),
    (PAPER, "variants.defenses.gp-80.fraction", "much", "Input should be a valid number, unable to"),
    (PAPER, "variants.defenses.gp-80.fraction", 1.5, "Input should be less than or equal to 1 (found: 1.5)"),
    (SMOKE, f"{OVERLAY}.variants.attacks.ig.iterations", 0, "Input should be greater than or equal to 1 (found: 0)"),
    # Sweeps.
    (SMOKE, f"{OVERLAY}.variants.defenses.gp.fraction", {"sweep": 1}, "a sweep needs a list of values (found: 1)"),
    (SMOKE, f"{OVERLAY}.variants.defenses.gp.fraction", {"sweep": []}, "a sweep needs a list of values (found: [])"),
    (SMOKE, f"{OVERLAY}.variants.defenses.gp.fraction", {"sweep": [2]}, "Input should be less than or equal to 1"),
    (SMOKE, f"{OVERLAY}.variants.defenses.gp.fraction", {"sweep": ["1e-1", 0.1]}, "a sweep takes each value once (fou"),
    (SMOKE, f"{OVERLAY}.variants.defenses.gp.part", {"sweep": [1]}, "unknown key 'part'. Allowed: fraction."),
    # Gates.
    (PAPER, "experiments.noise.gate", {}, "unknown key 'gate'; did you mean 'gates'? Allowed: datasets, defenses"),
    (PAPER, "experiments.noise.gates.ig.metrc", "mse", "unknown key 'metrc'; did you mean 'metric'? Allowed: margin"),
    (PAPER, "experiments.noise.gates.ig.metric", "pnsr", "unknown metric 'pnsr'; did you mean 'psnr'? Allowed: "),
    (PAPER, "experiments.noise.gates.igg", GATE, "unknown attack 'igg'; did you mean 'ig'? Allowed: ig."),
    (PAPER, "experiments.noise_training.gates.ig", GATE, "unknown attack 'ig'. Allowed: (none)."),
    (PAPER, "experiments.undefended.gates.mean_image", GATE, "a reference attacker ignores the gradient and has no ga"),
    (PAPER, "experiments.noise.gates.ig.undefended", "x", "unknown experiment 'x'. Allowed: adaptive, archit"),
    (PAPER, "experiments.noise.gates.ig.undefended", "pruning", "experiment 'pruning' attacks no undefended gradient "
     "of dataset 'digits16' and model 'small' with 'ig'. Allowed: inferred_labels, pictures, readings, undefended."),
    (PAPER, "experiments.noise.gates.ig.undefended", None, "experiment 'noise' attacks no undefended gradient of data"),
    (SMOKE, f"{OVERLAY}.experiments.noise.gates.ig.margin", "much", "Input should be a valid number, unable to"),
    (SMOKE, f"{OVERLAY}.experiments.noise.gates.ig.margin", 0, "Input should be greater than 0 (found: 0)"),
    (SMOKE, f"{OVERLAY}.experiments.noise.gates.ig.at_least", 18, "unknown key 'at_least'. Allowed: margin, metric, "),
    (PAPER, "experiments.noise.gates.ig.reference", "ig", "attack 'ig' looks at the gradient, and is no blind guess"),
    (PAPER, "experiments.noise.gates.ig.reference", "mean", "experiment 'undefended' lacks attack 'mean' on the undef"),
    # Papers and scales.
    (CONFIG, "papers", ["optimal"], "unknown paper 'optimal'; did you mean 'optimal_defense'? Allowed: "),
    (CONFIG, "scale", "laptpo", "unknown scale 'laptpo'; did you mean 'laptop'? Allowed: full, laptop, overnight, "),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake[1].removeprefix(OVERLAY)}={mistake[2]}")
def test_a_mistake_is_explained(checkout: Checkout, mistake: tuple[Any, ...]) -> None:
    file, key, value, said, *below = mistake
    checkout.edit(file, put(*key.split("."), value=value))
    assert checkout.fault().startswith(f"{file}: {key}{''.join(below)}: {said}")


def test_keys_that_are_missing(checkout: Checkout) -> None:
    checkout.edit(PAPER, lambda paper: paper["variants"]["attacks"].update(bare={"name": "gradient_matching"}))
    checkout.edit(PAPER, put("experiments", "noise", "jobs", "attack", "attacks", value=["bare"]))
    assert checkout.fault() == f"{PAPER}: variants.attacks.bare.objective: this key is missing"
    checkout.edit(PAPER, put("experiments", "noise", "jobs", "attack", "attacks", value=["gradient_matching"]))
    assert checkout.fault() == f"{PAPER}: experiments.noise.jobs.attack.attacks.objective: this key is missing"
    checkout.edit(PAPER, lambda paper: paper["variants"]["defenses"]["gp"].pop("name"))
    assert checkout.fault() == f"{PAPER}: variants.defenses.gp.name: this key is missing"
    checkout.edit(PAPER, lambda paper: paper.pop("citation"))
    assert checkout.fault() == f"{PAPER}: citation: this key is missing"


def test_parameters_that_do_not_fit_together(checkout: Checkout) -> None:
    checkout.edit(SMOKE, put(*f"{OVERLAY}.experiments.noise.jobs.train.batch_size".split("."), value=3))
    place = f"{SMOKE}: {OVERLAY}.experiments.noise.jobs.train"
    assert checkout.fault().startswith(f"{place}: images_per_client (4) must be a multiple of batch_size (3)")


def test_two_jobs_of_one_path(checkout: Checkout) -> None:
    checkout.edit(PAPER, put("experiments", "noise", "defenses", value=["dpsgd", "dpsgd"]))
    path = "results/smoke/optimal_defense/noise/digits16/small/dpsgd/ig/all.json"
    assert checkout.fault().startswith(
        f"{PAPER}: experiments.noise.defenses: two jobs would write {path}; a label is listed twi"
    )
    checkout.edit(PAPER, put("experiments", "noise", "defenses", value=["dpsgd"]))
    checkout.edit(PAPER, lambda paper: paper["variants"]["attacks"].update(train=paper["variants"]["attacks"]["ig"]))
    checkout.edit(PAPER, put("experiments", "noise", "jobs", "attack", "attacks", value=["train"]))
    assert "or an attack is labelled like a kind of job" in checkout.fault()


def test_a_scale_for_a_paper_that_is_not_there(checkout: Checkout) -> None:
    checkout.edit(SMOKE, put("papers", "optimal", value={}))
    assert checkout.fault().startswith(f"{SMOKE}: papers: unknown paper 'optimal'; did you mean 'optimal_defense'?")


def test_the_file_at_fault_is_the_one_with_the_last_word(checkout: Checkout) -> None:
    """Of the same variant, one parameter is the paper's and one the scale's."""
    checkout.edit(PAPER, put("variants", "attacks", "ig", "restarts", value=-1))
    assert checkout.fault().startswith(f"{PAPER}: variants.attacks.ig.restarts:")
    checkout.edit(SMOKE, put(*OVERLAY.split("."), "variants", "attacks", "ig", "restarts", value=-2))
    assert checkout.fault().startswith(f"{SMOKE}: {OVERLAY}.variants.attacks.ig.restarts:")
    assert checkout.fault("full").startswith(f"{PAPER}: variants.attacks.ig.restarts:")


def test_an_unknown_scale(checkout: Checkout) -> None:
    assert (
        checkout.fault("smok")
        == "scale: unknown scale 'smok'; did you mean 'smoke'? Allowed: full, laptop, overnight, smoke."
    )
    assert checkout.fault(papers="x").startswith("command line: papers: Input should be a valid list (found: 'x')")


@pytest.mark.parametrize("content", ["", "[1, 2]", "title: [", "title: \xff"])
def test_files_that_are_no_configuration(checkout: Checkout, content: str) -> None:
    (checkout.root / PAPER).write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=f"{PAPER}: (expected a mapping|not valid YAML)"):
        checkout.jobs()


RECORD = "results/smoke/optimal_defense/pruning/digits16/small/gp/ig/all.json"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("smoke", "smok", "unknown scale 'smok'; did you mean 'smoke'? Allowed: full, laptop, overnight, smoke."),
        ("optimal_defense", "optimal", "unknown paper 'optimal'"),
        ("/pruning/", "/prunning/", "unknown experiment 'prunning'; did you mean 'pruning'? Allowed: adaptive"),
        ("digits16", "mnist", "unknown dataset 'mnist'. Allowed: digits16."),
        ("small", "large", "unknown model 'large'. Allowed: small."),
        ("/gp/", "/gpp/", "unknown defense 'gpp'; did you mean 'gp'? Allowed: gp, op."),
        ("/ig/", "/igg/", "unknown attack 'igg'; did you mean 'ig'? Allowed: ig, train."),
        ("/ig/", "/noise/", "unknown attack 'noise'. Allowed: ig, train."),
        ("all.json", "seed0.json", "unknown part 'seed0.json'. Allowed: all.json."),
        ("/all.json", ".json", "not a record's path; expected results/<scale>/<paper>/"),
        ("all.json", "all.txt", "not a record's path"),
        ("results/", "figures/", "not a record's path"),
    ],
)  # fmt: skip
def test_paths_that_name_no_job(old: str, new: str, fault: str) -> None:
    path = RECORD.replace(old, new, 1)
    with pytest.raises(ConfigError) as caught:
        Project(ROOT).job(path)
    assert str(caught.value).startswith(f"{path}: {fault}")


def test_the_root_is_found_from_below(checkout: Checkout, tmp_path_factory: pytest.TempPathFactory) -> None:
    below = checkout.root / "results" / "smoke"
    below.mkdir(parents=True)
    assert find_root(below) == find_root(checkout.root) == checkout.root.resolve()
    outside = tmp_path_factory.mktemp("outside")
    with pytest.raises(ConfigError, match="run from a checkout of the project, or give --root"):
        find_root(outside)


class TestRecordsThatJobsRead:
    """An attack that needs trained networks, and the experiment that trains them."""

    @staticmethod
    def add(content: dict[str, Any]) -> None:
        content["variants"]["attacks"]["refined"] = {"name": "post_processed", "attack": "ig"}
        experiments = content["experiments"]
        few = {"datasets": ["mnist"], "models": ["small"], "defenses": ["none"]}
        experiments["networks"] = EMPTY | few | {"jobs": {"prior": {"steps": 9}}}
        attack = {"clients": 1, "batch_size": 1, "prior": "networks", "attacks": ["ig", "refined"]}
        experiments["refining"] = EMPTY | few | {"jobs": {"attack": attack}}

    @pytest.fixture
    def reading(self, checkout: Checkout) -> Checkout:
        content = yaml.safe_load((checkout.root / PAPER).read_text())
        datasets, models = (content["experiments"]["undefended"][kind] for kind in ("datasets", "models"))

        def change(content: dict[str, Any]) -> None:
            self.add(content)
            for name in ("networks", "refining"):
                content["experiments"][name] |= {"datasets": datasets[:1], "models": models[:1]}

        checkout.edit(PAPER, change)
        return checkout

    @staticmethod
    def job(checkout: Checkout, label: str) -> Job:
        (found,) = (
            job
            for job in checkout.jobs().values()
            if job.experiment == "refining" and job.attack and job.attack.label == label
        )
        return found

    def test_only_who_needs_a_record_reads_it(self, reading: Checkout) -> None:
        used = self.job(reading, "refined").uses["prior"]
        assert used.path.split("/")[3:] == [*used.path.split("/")[3:6], "none", "prior", "all.json"]
        assert used.experiment == "networks" and not self.job(reading, "ig").uses
        before = {label: self.job(reading, label).digest for label in ("ig", "refined")}
        reading.edit(PAPER, put("experiments", "networks", "jobs", "prior", "steps", value=10))
        after = {label: self.job(reading, label).digest for label in ("ig", "refined")}
        assert before["ig"] == after["ig"] and before["refined"] != after["refined"]

    def test_snakemake_is_told(self, reading: Checkout) -> None:
        flow = Workflow(reading.root, yaml.safe_load((reading.root / CONFIG).read_text()))
        names = ("scale", "paper", "experiment", "dataset", "model", "defense", "attack", "part")
        for label in ("ig", "refined"):
            job = self.job(reading, label)
            parts = dict(zip(names, job.path.removesuffix(".json").split("/")[1:], strict=True))
            assert flow.used(**parts) == [used.path for used in job.uses.values()]
        assert flow.used(**parts) == [self.job(reading, "refined").uses["prior"].path]

    @pytest.mark.parametrize(
        ("keys", "value", "message"),
        [
            (("refining", "jobs", "attack", "prior"), "network", "did you mean 'networks'"),
            (("refining", "jobs", "attack", "prior"), {"sweep": ["networks"]}, "'prior' cannot be swept"),
            (("networks", "defenses"), ["none", "gp"], "has several jobs 'prior'"),
        ],
    )
    def test_mistakes(self, reading: Checkout, keys: tuple[str, ...], value: Any, message: str) -> None:
        reading.edit(PAPER, put("experiments", *keys, value=value))
        fault = reading.fault()
        assert fault.startswith(f"{PAPER}: experiments.refining.jobs.attack.prior: ") and message in fault

    def test_networks_of_another_cell(self, reading: Checkout) -> None:
        """A network serves attacks on the model, the defense and the protocol that it was trained for alone."""

        def change(content: dict[str, Any]) -> None:
            content["variants"]["attacks"]["learned"] = {"name": "learned_inversion"}
            experiments = content["experiments"]
            experiments["networks"] |= {"jobs": {"inverter": {"epochs": 9}}, "defenses": ["none", "gp"]}
            attack = {"clients": 1, "batch_size": 1, "inverter": "networks", "attacks": ["learned"]}
            experiments["refining"] |= {"jobs": {"attack": attack}, "defenses": ["gp"]}

        reading.edit(PAPER, change)
        (job,) = (job for job in reading.jobs().values() if job.experiment == "refining")
        assert job.uses["inverter"].defense.label == "gp"
        where = f"{PAPER}: experiments.refining.jobs.attack.inverter: "
        for keys, value, message in (
            (("refining", "jobs", "attack", "epoch"), 2, "'networks' trains with epoch: 0, and the attack has 2"),
            (("networks", "defenses"), ["none"], "'networks' trains for defense 'none', and the attack is on 'gp'"),
        ):
            reading.edit(PAPER, put("experiments", *keys, value=value))
            fault = reading.fault()
            assert fault.startswith(where) and message in fault
            reading.edit(PAPER, put("experiments", "refining", "jobs", "attack", "epoch", value=0))
