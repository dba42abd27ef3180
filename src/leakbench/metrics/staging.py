"""Weights of learned metrics, fetched where there is a network."""

from __future__ import annotations

from pathlib import Path

from leakbench.errors import MissingData
from leakbench.libraries.torchvision_compat import import_torchvision
from leakbench.metrics.image import PERCEPTUAL
from leakbench.staged.manifest import Staged

WEIGHTS = tuple(PERCEPTUAL)

_FILES = {
    "lpips": ("7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02", 244_000_000),
    "lpips_vgg": ("397923af8e79cdbb6a7127f12361acd7a2f83e06b05044ddf496e83de57a5bf0", 553_000_000),
}
"""SHA-256 and bytes of the files."""


def staged_weights(name: str) -> Staged:
    """Weights of a metric as something to stage. They lie in torch's cache, not in the data root."""
    path = PERCEPTUAL[name].path

    def files() -> list[Path]:
        if not path.is_file():
            raise MissingData(
                f"{name}: no file {path}. Run `leakbench stage {name}`; without it the metric is left out"
            )
        return [path]

    terms = "BSD-3-Clause (torchvision); trained on ImageNet, whose terms may apply"
    digest, size = _FILES[name]
    return Staged(name, terms, size, path.parent, files, digest=digest)


def stage_weights(name: str) -> str:
    """Fetch the weights of a metric; returns what was done.

    Raises:
        MissingData: they cannot be fetched from here.
    """
    network = PERCEPTUAL[name]
    path = network.path
    if path.is_file():
        return f"{name}: already at {path}"
    models = import_torchvision().models
    try:
        weights = {"lpips": models.AlexNet_Weights, "lpips_vgg": models.VGG16_Weights}[name]
        weights.IMAGENET1K_V1.get_state_dict(progress=True, check_hash=True)
    except OSError as error:
        raise MissingData(
            f"{name}: cannot fetch {network.title}'s weights ({error}); run this where there is a network, or copy "
            f"{path.name} to {path.parent}"
        ) from None
    return f"{name}: fetched to {path}"
