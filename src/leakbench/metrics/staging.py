"""Weights of learned metrics, fetched where there is a network."""

from __future__ import annotations

from pathlib import Path

from leakbench.errors import MissingData
from leakbench.libraries.torchvision_compat import import_torchvision
from leakbench.metrics.image import lpips_weights
from leakbench.staged.manifest import Staged

WEIGHTS = ("lpips",)

_ALEXNET = "7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02"
"""SHA-256 of the file; its name holds the first digits."""


def staged_weights(name: str) -> Staged:
    """Weights of a metric as something to stage. They lie in torch's cache, not in the data root."""
    assert name in WEIGHTS
    path = lpips_weights()

    def files() -> list[Path]:
        if not path.is_file():
            raise MissingData(
                f"{name}: no file {path}. Run `leakbench stage {name}`; without it the metric is left out"
            )
        return [path]

    terms = "BSD-3-Clause (torchvision); trained on ImageNet, whose terms may apply"
    return Staged(name, terms, 244_000_000, path.parent, files, digest=_ALEXNET)


def stage_weights(name: str) -> str:
    """Fetch the weights of a metric; returns what was done.

    Raises:
        MissingData: they cannot be fetched from here.
    """
    assert name in WEIGHTS
    path = lpips_weights()
    if path.is_file():
        return f"{name}: already at {path}"
    models = import_torchvision().models
    try:
        models.AlexNet_Weights.IMAGENET1K_V1.get_state_dict(progress=True, check_hash=True)
    except OSError as error:
        raise MissingData(
            f"{name}: cannot fetch AlexNet's weights ({error}); run this where there is a network, or copy "
            f"{path.name} to {path.parent}"
        ) from None
    return f"{name}: fetched to {path}"
