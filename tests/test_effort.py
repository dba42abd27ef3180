"""What jobs take, counted from the plan alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakbench.attacks.base import ATTACKS, Attack
from leakbench.attacks.released.base import Target
from leakbench.attacks.released.lira import LiRA
from leakbench.data.base import DATASETS
from leakbench.effort import Effort
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.federated.training import Training
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import JOB_KINDS, Job, Variant
from leakbench.models.lenet import LeNet5
from leakbench.models.sizes import multiply_adds
from leakbench.planning.project import Project
from leakbench.planning.recorded import job_of

ROOT = Path(__file__).resolve().parents[1]
PROJECT = Project(ROOT)


def job(scale: str, path: str) -> Job:
    return PROJECT.job(f"results/{scale}/{path}/all.json")


@pytest.mark.parametrize("scale", PROJECT.scales)
@pytest.mark.parametrize("paper", PROJECT.settings.papers)
def test_every_shipped_job_has_an_effort(scale: str, paper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any data staged, except where a data set of text is bounded."""
    monkeypatch.setenv("LEAKBENCH_DATA", "/nowhere")
    for path, each in PROJECT.plan(scale).jobs_of(paper).items():
        assert each.effort.passes > 0 and each.effort.steps > 0, path
        assert each.volume > 0, path


def test_every_kind_of_job_and_attack_is_counted_somewhere() -> None:
    planned = [each for scale in PROJECT.scales for each in PROJECT.plan(scale).jobs.values()]
    # No grid trains inverters, whose effort their own tests count: the board's ridge regression takes seconds.
    assert {each.kind.name for each in planned} == set(JOB_KINDS) - {"inverter"}


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_has_an_effort(name: str) -> None:
    component = ATTACKS.get(name)
    given = {
        "attack": {"name": "tag_text" if name == "sentence" else "ig_library"},
        "objective": {"kind": "l2"},
        "optimiser": {"kind": "adam", "rate": 0.1},
        "iterations": 7,
        "layers": ("fc",),
    }
    fields = {key: value for key, value in given.items() if key in component.model_fields}
    found = component(**fields).effort(3)
    assert found.passes > 0 and found.steps > 0


def test_counting_needs_no_torch() -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom leakbench.planning.project import Project\n"
        "jobs = Project(Path.cwd()).plan('full').jobs_of('tfl_meta').values()\n"
        "assert all(job.effort.passes > 0 for job in jobs)\nassert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_gradient_matching_by_hand() -> None:
    """3 clients of 3 seeds, each with a gradient of 1 image and as many again as there are iterations."""
    found = job("smoke", "tfl_meta/skewed/digits8/lenet/none/leakage-dlg").effort
    # 20 steps on 8 images; uploads of 200 batches of 2 of 3 clients; 8 attempts on 3 clients, 80 iterations each.
    assert found.passes == 3 * (20 * 8 + 3 * 200 * 2 + 8 * 3 * (2 + 80 * 2))
    assert found.steps == 3 * (20 + 3 + 1 + 80)


def test_water_filling_takes_eigenpairs_beside() -> None:
    """Of each user's 60 records in every round: their Gram matrix and its tridiagonal form."""
    gd, gsgd = (
        job("smoke", f"secagg_dp/accuracy_all/digits16/linear-zero/{name}/train").effort for name in ("gd", "gsgd")
    )
    runs = 3 * 2 * 2
    assert gsgd.passes - gd.passes == pytest.approx(runs * 20 * 20 * (10 * 60**2 + 2 / 3 * 60**3) / (3 * 7850))
    assert gsgd.steps == gd.steps


def test_training_by_hand() -> None:
    """Three seeds, two step sizes and two settings; 20 steps of 20 clients with all of their 60 images."""
    found = job("smoke", "secagg_dp/accuracy_all/digits16/linear-zero/gd/train").effort
    runs = 3 * 2 * 2
    assert found.passes == pytest.approx(runs * (20 * 20 * 60 + (20 * 60 + 500) / 3))
    assert found.steps == 2 * 20 * 2 + runs  # seeds side by side, settings one after the other; and an evaluation each


def test_a_release_by_hand() -> None:
    """One training of 60 steps for each of three seeds, and attacks on nine snapshots; shadow models are another job's.

    Their branches' multiply-adds, forward and backward, are 3 (840 * 25 + 2 * (1,280 + 8,192) + 128 + 8,192 + 210 * 256
    + 32,768 + 8,192 + 65,536 + 32,768 + 8,192 + 128) for ten classes and 84 features.
    """
    found = job("smoke", "channel/steps/digits16/lenet5/natural-300/release").effort
    trained, small = 60 * 32, 3 * (840 * 25 + 18_944 + 8_320 + 53_760 + 40_960 + 106_496 + 128)
    known = 2 * (256 // 3)
    inversion, four_branch = 31 * 10, 3 * 3 * 64 * small / multiply_adds(LeNet5(), (1, 16, 16), 10)
    judged = (256 + 300) / 3 + 4 * known * 2 / 3  # three membership attacks, and one again on protected images
    assert found.passes == pytest.approx(3 * trained + 3 * 3 * (inversion + four_branch + judged))


def test_shadow_models_are_trained_once_for_all_settings() -> None:
    shadows, training = 4, Training(steps=10, batch_size=8, optimiser="adam", rate=0.1, weight_decay=0)
    one, three = (
        LiRA(shadows=shadows).knowing(training).effort(30, targets, Target(1e6, 10, 84)) for targets in (1, 3)
    )
    assert one.passes == pytest.approx(shadows * 10 * 8 + (1 + shadows) * 20)
    assert three.passes - one.passes == pytest.approx(2 * 20)


def test_settings_are_counted_side_by_side_in_attacks() -> None:
    one = job("smoke", "optimal_defense/undefended/digits16/small/none/ig")
    five = job("smoke", "optimal_defense/pruning/digits16/small/gp/ig")
    assert five.effort.passes == five.defense.count * one.effort.passes
    assert five.effort.steps == one.effort.steps


def attack_effort(name: str, samples: int, **parameters: object) -> Effort:
    return ATTACKS.get(name).model_validate(parameters).effort(samples)


def test_wrappers_take_what_the_attack_inside_takes() -> None:
    inside, library = {"name": "rog", "iterations": 10}, {"name": "ig_library", "iterations": 10}
    plain = attack_effort("rog", 4, iterations=10)
    assert plain == Effort(40, 10)
    assert attack_effort("imputed", 4, attack=inside) == plain
    assert attack_effort("robust", 4, attack=inside, iterations=5) == Effort(60, 15)
    assert attack_effort("one_image", 4, attack=library) == Effort(10, 10)


@pytest.mark.parametrize(
    "attack",
    [
        Variant("cocktail", ATTACKS.get("cocktail_party"), {"iterations": 70}, {}),
        Variant("masked", ATTACKS.get("masked"), {"attack": {"name": "cocktail_party", "iterations": 70}}, {}),
    ],
    ids=lambda attack: attack.label,
)
def test_unmixing_repeats_no_local_steps(attack: Variant[Attack]) -> None:
    """Clients take four steps on an image each; a step of the attack costs the same whatever they take."""
    plain = replace(job("smoke", "optimal_defense/undefended/digits16/small/none/ig"), attack=attack)
    assert isinstance(plain.kind, AttackJob)
    several = replace(plain, kind=plain.kind.model_copy(update={"local": LocalTraining(steps=4, rate=0.1)}))
    clients = plain.kind.clients * plain.kind.batch_size * len(plain.seeds)
    assert several.effort.passes - plain.effort.passes == 3 * clients
    assert several.effort.steps - plain.effort.steps == 3 * len(plain.seeds)


def test_an_attack_that_cannot_face_the_defense_takes_nothing() -> None:
    class Refuses(Attack):
        def against(self, adaptive: Sequence[Mapping[str, Any]]) -> Attack:
            raise Infeasible("it cannot face this defense")

    plain = job("smoke", "optimal_defense/undefended/digits16/small/none/ig")
    assert replace(plain, attack=Variant("refuses", Refuses, {}, {})).attack_effort(3) == Effort(0, 0)


@pytest.mark.parametrize("paper", PROJECT.settings.papers)
def test_records_say_what_job_they_are_of(paper: str) -> None:
    for each in PROJECT.plan("smoke").jobs_of(paper).values():
        said = {key: value for key, value in each.resolved().items() if key != "uses"}
        again = job_of(each.resolved())
        assert again.resolved() == said
        assert again.effort == each.effort


def test_a_record_of_components_that_changed() -> None:
    resolved = job("smoke", "optimal_defense/undefended/digits16/small/none/ig").resolved()
    resolved["kind"]["protocol"]["shoe_size"] = 42
    with pytest.raises(ConfigError, match="not a job of today's components"):
        job_of(resolved)


def test_data_sets_have_their_published_sizes_before_they_are_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKBENCH_DATA", "/nowhere")
    assert DATASETS.get("mnist")().expected("train") == 60_000
    assert DATASETS.get("cola")().expected("test") == 1043
    assert DATASETS.get("digits")().expected("test") == 500
