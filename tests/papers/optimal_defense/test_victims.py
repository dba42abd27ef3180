"""A loss stands beside the error of reconstructing the same images: what is attacked is the training set."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakbench.planning.project import Project

PROJECT = Project(Path(__file__).resolve().parents[3])
SCALES = ("smoke", "laptop", "overnight", "full")
TRAINED_ON_MORE = {"pruning_training", "noise_training", "released_training"}


@pytest.mark.parametrize("scale", SCALES)
def test_training_sets_are_what_is_attacked(scale: str) -> None:
    seen: dict[str, dict[str, set[tuple[object, ...]]]] = {}
    for job in PROJECT.plan(scale).jobs_of("optimal_defense").values():
        if job.kind.name in ("attack", "train") and job.experiment not in TRAINED_ON_MORE:
            kind = job.kind.model_dump()
            each = kind["images_per_client" if job.kind.name == "train" else "batch_size"]
            images = (kind["clients"], each, kind["first_index"], kind["victims"])
            seen.setdefault(job.experiment, {}).setdefault(job.kind.name, set()).add(images)
    both = {name: images for name, images in seen.items() if len(images) == 2}
    assert {"undefended", "pruning", "noise"} <= set(both)
    assert all(images["attack"] == images["train"] and len(images["train"]) == 1 for images in both.values()), both
