"""Weights of learned metrics, fetched where there is a network."""

from __future__ import annotations

from leakbench.errors import MissingData
from leakbench.metrics.image import lpips_weights
from leakbench.torchvision_compat import import_torchvision

WEIGHTS = ("lpips",)


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
