"""Protocol fields given as ``{sweep: [...]}``: what they make of a plan, and what is said about mistakes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.planning.checkout import PAPER, SMOKE, Checkout, put

KEYS = ("experiments", "noise", "jobs", "attack")
IG = "results/smoke/optimal_defense/noise/digits16/small/dpsgd/ig/all.json"


def test_one_job_stands_for_all_combinations(checkout: Checkout) -> None:
    before = checkout.digests()
    checkout.edit(PAPER, put(*KEYS, "epoch", value={"sweep": [0, 1, 5]}))
    checkout.edit(SMOKE, put("papers", "optimal_defense", *KEYS, "batch_norm", value={"sweep": ["eval", "train"]}))
    jobs, after = checkout.jobs(), checkout.digests()
    assert before.keys() == after.keys()
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {path for path, job in jobs.items() if job.experiment == "noise" and job.kind.name == "attack"}
    assert jobs[IG].resolved()["kind"]["sweep"] == {"epoch": [0, 1, 5], "batch_norm": ["eval", "train"]}
    found = [
        (setting, {key: value for key, value in job.kind.parameters().items() if key in setting})
        for setting, job in jobs[IG].combinations()
    ]
    expected = [{"epoch": epoch, "batch_norm": mode} for epoch in (0, 1, 5) for mode in ("eval", "train")]
    assert found == [(setting, setting) for setting in expected]


def test_seeds_are_those_of_an_unswept_job(checkout: Checkout) -> None:
    checkout.edit(PAPER, put(*KEYS, "epoch", value={"sweep": [0, 1]}))
    checkout.edit(PAPER, put(*KEYS, "split_seeds", value=True))
    jobs = checkout.jobs()
    parts = [jobs[IG.replace("all.json", f"seed{seed}.json")] for seed in range(3)]
    assert [part.seeds for part in parts] == [(0,), (1,), (2,)]
    assert all(len(list(part.combinations())) == 2 for part in parts)


MISTAKES: list[tuple[str, Any, str]] = [
    ("seeds", {"sweep": [1, 2]}, "'seeds' cannot be swept. Allowed: allowed, auxiliary, batch_norm, batch_size"),
    ("split_seeds", {"sweep": [True]}, "'split_seeds' cannot be swept. Allowed: "),
    ("epoch", {"sweep": 3}, "a sweep needs a list of values (found: 3)"),
    ("epoch", {"sweep": []}, "a sweep needs a list of values (found: [])"),
    ("epoch", {"sweep": [0, -1]}, "Input should be greater than or equal to 0 (found: -1)"),
    ("epcoh", {"sweep": [0, 1]}, "unknown key 'epcoh'; did you mean 'epoch'? Allowed: allowed, auxiliary"),
    ("batch_norm", {"sweep": ["eval", "of"]}, "Input should be 'eval' or 'train' (found: 'of')"),
    ("local", {"sweep": [{"steps": 2}]}, "a sweep takes numbers, words, true and false (found: {'steps': 2})"),
    ("knowledge", {"sweep": [["labels"]]}, "a sweep takes numbers, words, true and false (found: ['labels'])"),
    ("local.stps", 2, "unknown key 'stps'; did you mean 'steps'? Allowed: batch_size, rate, steps."),
    ("pretraining.momentum", 1, "Input should be less than 1 (found: 1)"),
    ("attacks", {"sweep": ["ig"]}, "Input should be a valid list"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "said"), MISTAKES, ids=lambda value: str(value)[:30])
def test_a_mistake_is_explained(checkout: Checkout, key: str, value: Any, said: str) -> None:
    place = (*KEYS, *key.split("."))
    overlay = put("papers", "optimal_defense", *place, value=value)
    checkout.edit(SMOKE, overlay)
    assert checkout.fault().startswith(f"{SMOKE}: papers.optimal_defense.{'.'.join(place)}: {said}")


@pytest.mark.usefixtures("clean_registries")
def test_a_clash_with_a_defense_is_named(checkout: Checkout) -> None:
    plugin = """
from leakbench.defenses.base import DEFENSES, Defense

@DEFENSES.register("epochal", version=1)
class Epochal(Defense):
    epoch: int = 0
"""
    (checkout.root / "epochal_plugin.py").write_text(plugin)
    checkout.edit("config/config.yaml", put("plugins", value=["epochal_plugin.py"]))
    swept = {"name": "epochal", "epoch": {"sweep": [1, 2]}}
    checkout.edit(PAPER, put("variants", "defenses", "often", value=swept))
    checkout.edit(PAPER, put("experiments", "noise", "defenses", value=["often"]))
    assert checkout.jobs()
    checkout.edit(PAPER, put(*KEYS, "epoch", value={"sweep": [0, 1]}))
    assert checkout.fault().startswith(
        f"{PAPER}: {'.'.join(KEYS)}.epoch: defense 'often' sweeps a parameter of this name too"
    )
