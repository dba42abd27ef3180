"""Jobs that need images say so of text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leakbench.attacks.reference import MeanImage
from leakbench.data.sentences import Sentences
from leakbench.defenses.base import DEFENSES
from leakbench.errors import ConfigError
from leakbench.jobs.base import JOB_KINDS, Job, Variant
from leakbench.jobs.calibration import CalibrationImages
from leakbench.models.linear import MLP

SMALL: dict[str, Any] = {"clients": 2, "batch_size": 2}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "attack": SMALL,
    "fisher": SMALL,
    "timing": {"steps": 1, "repetitions": 1, "batch_size": 4},
    "federate": {"clients": 2, "rounds": 1, "validation": 6, "local": {"steps": 1}},
    "train": SMALL | {"images_per_client": 2, "steps": 1, "rate": 0.1},
}
"""What kinds of jobs must be told."""


def job(kind: str, defense: str = "none") -> Job:
    return Job(
        scale="none",
        paper="none",
        experiment="none",
        dataset=Variant("text", Sentences, {}, {}),
        model=Variant("mlp", MLP, {}, {}),
        defense=Variant("defense", DEFENSES.get(defense), {"kappa": 5} if defense != "none" else {}, {}),
        attack=Variant("mean_image", MeanImage, {}, {}),
        kind=JOB_KINDS.get(kind).model_validate(PROTOCOLS.get(kind, {})),
        part="all",
        seeds=(0,),
    )


@pytest.mark.parametrize("kind", ["calibrate", "fisher", "inverter", "prior", "release", "timing"])
def test_refused(kind: str) -> None:
    made = job(kind)
    with pytest.raises(ConfigError, match=f"'sentences' holds sentences, no images, but jobs of kind '{kind}' need"):
        made.kind.run(made, torch.device("cpu"))


def test_no_sentences_calibrate_a_defense() -> None:
    images = CalibrationImages(Sentences(), torch.device("cpu"))
    with pytest.raises(ConfigError, match="'sentences' holds sentences, no images, but mechanisms that look at"):
        images.calibrated(job("train", "white_channel").defense.settings())


@pytest.mark.parametrize("kind", ["inventory", "federate", "train"])
def test_models_of_images_are_refused(kind: str) -> None:
    made = job(kind)
    with pytest.raises(ConfigError, match=r"'mlp' reads images \(C, H, W\), but .* shape \(12,\)"):
        made.kind.run(made, torch.device("cpu"))
