"""The source of a plug-in is a part of the identity of the jobs that use a component of it, and of no others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.planning.checkout import CONFIG, PAPER, Checkout, put

from leakbench.jobs.base import Job
from leakbench.jobs.runner import Placement, run_job
from leakbench.planning.recorded import job_of
from leakbench.records import read_record

PLUGIN = """
from helper_of_my_plugin import FACTOR
from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS
from leakbench.attacks.presets import DLG
from leakbench.data.base import DATASETS
from leakbench.data.embedded import Digits
from leakbench.defenses.base import DEFENSES, Defense
from leakbench.federated.message import DenseMessage
from leakbench.jobs.base import JOB_KINDS
from leakbench.jobs.fisher import FisherJob
from leakbench.models.base import MODELS
from leakbench.models.convnets import SimpleConvNet

@DEFENSES.register("my_defense", version=1)
class MyDefense(Defense):
    def protect_update(self, steps, streams):
        return DenseMessage(FACTOR * steps.gradient)

@DATASETS.register("my_digits", version=1)
class MyDigits(Digits):
    pass

@MODELS.register("my_model", version=1)
class MyModel(SimpleConvNet):
    pass

@ATTACKS.register("my_attack", version=1)
class MyAttack(DLG):
    pass

@ATTACKS.register("my_wrapper", version=1)
class MyWrapper(Wrapper):
    pass

@JOB_KINDS.register("my_kind", version=1)
class MyKind(FisherJob):
    pass
"""

ADAPTED = """
from typing import ClassVar
from leakbench.defenses.base import DEFENSES
from leakbench.defenses.pruning import MagnitudePruning

@DEFENSES.register("wrapped_for", version=1)
class WrappedFor(MagnitudePruning):
    fraction: float = 0.5
    adaptive: ClassVar = ({"name": "my_wrapper"},)
"""

pytestmark = pytest.mark.usefixtures("clean_registries")


@pytest.fixture
def plugged(checkout: Checkout) -> Checkout:
    """A checkout with a plug-in, a helper that it imports, a file beside them, and a second plug-in."""
    (checkout.root / "my_plugin.py").write_text(PLUGIN)
    (checkout.root / "helper_of_my_plugin.py").write_text("FACTOR = 0.5")
    (checkout.root / "beside_my_plugin.py").write_text("FACTOR = 0.5")
    (checkout.root / "adapted_plugin.py").write_text(ADAPTED)
    checkout.edit(CONFIG, put("plugins", value=["my_plugin.py", "adapted_plugin.py"]))
    return checkout


def edit(checkout: Checkout, file: str) -> None:
    """Append a comment, as an edit between two runs."""
    with (checkout.root / file).open("a") as stream:
        stream.write("\n# edited\n")
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(checkout.root)):
            del sys.modules[name]


def experiment(checkout: Checkout, **changes: Any) -> None:
    """Change the experiment ``noise_training``, which attacks and trains."""
    for key, value in changes.items():
        checkout.edit(PAPER, put("experiments", "noise_training", *key.split("__"), value=value))
    checkout.edit("papers/optimal_defense/scales/smoke.yaml", lambda scale: scale["experiments"].pop("noise_training"))


FEW: dict[str, Any] = {"datasets": ["digits"], "models": ["simpleconvnet"], "defenses": ["none"]}
TRAIN = {"train": {"clients": 1, "batch_size": 1, "images_per_client": 1, "steps": 1, "rate": 0.1}}


def attacked(**attack: Any) -> dict[str, Any]:
    """An experiment that runs one attack beside ``ig``."""
    return {"jobs": {"attack": {"clients": 1, "batch_size": 1, "attacks": ["ig", *attack]}}}


USES: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Job], bool]]] = {
    "defense": ({"defenses": ["none", "my_defense"], "jobs": TRAIN}, {}, lambda job: job.defense.label == "my_defense"),
    "dataset": ({"datasets": ["digits", "my_digits"], "jobs": TRAIN}, {}, lambda job: job.dataset.label == "my_digits"),
    "model": ({"models": ["small", "my_model"], "jobs": TRAIN}, {}, lambda job: job.model.label == "my_model"),
    "kind": (
        {"jobs": TRAIN | {"my_kind": {"clients": 1, "batch_size": 1}}},
        {},
        lambda job: job.kind.name == "my_kind",
    ),
    "attack": (attacked(my_attack={}), {}, lambda job: bool(job.attack and job.attack.label == "my_attack")),
    "attack inside a wrapper": (
        attacked(inside={}),
        {"inside": {"name": "adaptive", "attack": {"name": "my_attack"}}},
        lambda job: bool(job.attack and job.attack.label == "inside"),
    ),
    "attack that adapts": (
        {"defenses": ["none", "wrapped_for"], **attacked(clever={})},
        {"clever": {"name": "adaptive", "attack": "ig"}},
        lambda job: job.defense.label == "wrapped_for" and bool(job.attack and job.attack.label == "clever"),
    ),
}


@pytest.mark.parametrize("case", USES)
def test_an_edit_changes_the_jobs_that_use_the_plugin(plugged: Checkout, case: str) -> None:
    changes, attacks, uses = USES[case]
    for label, spec in attacks.items():
        plugged.edit(PAPER, put("variants", "attacks", label, value=spec))
    experiment(plugged, **(FEW | changes), gates={})
    plugged.edit(
        PAPER, lambda paper: paper["experiments"].update(noise_training=paper["experiments"]["noise_training"])
    )

    jobs = plugged.jobs()
    using = {path for path, job in jobs.items() if uses(job)}
    before = {path: job.digest for path, job in jobs.items()}
    assert using and len(using) < len(jobs)
    for file in ("my_plugin.py", "helper_of_my_plugin.py"):
        edit(plugged, file)
        after = plugged.digests()
        assert {path for path in before if before[path] != after[path]} == using, file
        before = after
    edit(plugged, "beside_my_plugin.py")
    assert plugged.digests() == before


def test_jobs_that_use_no_plugin_do_not_know_of_it(plugged: Checkout) -> None:
    with_plugins = plugged.digests()
    plugged.edit(CONFIG, put("plugins", value=[]))
    assert plugged.digests() == with_plugins
    assert not any("plugins" in job.resolved() for job in plugged.jobs().values())


@pytest.mark.parametrize("name", ["my_plugin.py:MyDefense", "my_plugin:MyDefense"])
def test_a_compared_defense(checkout: Checkout, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (checkout.root / "my_plugin.py").write_text(PLUGIN)
    (checkout.root / "helper_of_my_plugin.py").write_text("FACTOR = 0.5")
    monkeypatch.syspath_prepend(checkout.root)
    plain = checkout.digests()
    before = {path: job.digest for path, job in checkout.jobs(compare=name).items()}
    edit(checkout, "helper_of_my_plugin.py")
    after = {path: job.digest for path, job in checkout.jobs(compare=name).items()}
    changed = {path for path in before if before[path] != after[path]}
    assert changed == before.keys() - plain.keys() and changed


def test_a_record_knows_its_plugins(plugged: Checkout) -> None:
    protocol = TRAIN["train"] | {"images_per_client": 2, "steps": 2}
    experiment(plugged, **FEW | {"defenses": ["my_defense"], "models": ["simpleconvnet"]}, jobs={"train": protocol})
    (job,) = (job for job in plugged.jobs().values() if job.experiment == "noise_training")
    run_job(job, plugged.root, Placement(device="cpu"))
    record = read_record(plugged.root / job.path)
    assert record.job["plugins"] == [["my_plugin.py", job.plugins[0].digest]]
    assert set(record.provenance.plugins["my_plugin.py"]) == {"my_plugin.py", "helper_of_my_plugin.py"}
    assert job_of(record.job).resolved() == record.job == job.resolved()
