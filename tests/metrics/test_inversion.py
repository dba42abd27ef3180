"""Scores of model inversion against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from leakbench.metrics.inversion import INVERSION_METRICS, class_centres, inversion_metrics

RUNS, CLASSES, SHAPE = 2, 4, (3, 16, 16)


def drawn(*shape: int) -> torch.Tensor:
    coarse = torch.rand(*shape[:-2], 4, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return torch.nn.functional.interpolate(coarse.flatten(0, -4), shape[-2:], mode="bicubic").view(shape)


def test_centres() -> None:
    images, labels = drawn(7, *SHAPE), torch.tensor([0, 2, 0, 0, 3, 2, 3])
    centres = class_centres(images, labels, 4)
    assert centres.shape == (4, *SHAPE)
    for label in (0, 2, 3):
        torch.testing.assert_close(centres[label], images[labels == label].mean(dim=0))
    assert bool(centres[1].isnan().all())


@pytest.mark.parametrize("shared", [True, False])
def test_medians_over_classes_by_hand(shared: bool) -> None:
    centres = drawn(CLASSES, *SHAPE) if shared else drawn(RUNS, CLASSES, *SHAPE)
    noise = torch.randn(RUNS, CLASSES, *SHAPE, generator=torch.Generator().manual_seed(1))
    images = centres + 0.3 * noise * torch.arange(1.0, 1 + RUNS * CLASSES).view(RUNS, CLASSES, 1, 1, 1)
    found = inversion_metrics(images, centres)
    assert list(found) == list(INVERSION_METRICS)
    for run in range(RUNS):
        own = centres if shared else centres[run]
        pairs = [(x.double().numpy(), y.double().numpy()) for x, y in zip(images[run], own, strict=True)]
        mirrored = [[np.pad(each, ((0, 0), (5, 5), (5, 5)), "reflect") for each in pair] for pair in pairs]
        mse = [np.mean((x - y) ** 2) for x, y in pairs]
        expected = {
            "mse": mse,
            "psnr": [10 * np.log10(4 / error) for error in mse],
            "ssim": [
                structural_similarity(
                    x, y, data_range=2, channel_axis=0, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
                )
                for x, y in mirrored
            ],
            "cosine": [np.sum(x * y) / np.linalg.norm(x) / np.linalg.norm(y) for x, y in pairs],
        }
        for name, values in expected.items():
            assert float(found[name][run]) == pytest.approx(np.median(values), rel=1e-3, abs=1e-4)


def test_the_range_of_the_inputs_and_perfect_images() -> None:
    """An error of 0.04 is 20 dB of a range of 2, and 13.98 of 1."""
    centres = drawn(CLASSES, *SHAPE)
    images = (centres + 0.2)[None]
    assert float(inversion_metrics(images, centres)["psnr"]) == pytest.approx(20, abs=1e-3)
    assert float(inversion_metrics(images, centres, data_range=1.0)["psnr"]) == pytest.approx(13.9794, abs=1e-3)
    perfect = inversion_metrics(centres[None], centres)
    assert float(perfect["mse"]) == 0
    assert float(perfect["ssim"]) == pytest.approx(1, abs=1e-5) and float(perfect["cosine"]) == pytest.approx(1)


def test_a_run_that_diverged_has_no_scores_and_the_others_theirs() -> None:
    centres = drawn(CLASSES, *SHAPE)
    images = centres.expand(2, -1, -1, -1, -1).clone() + 0.1
    images[0, 1] = torch.nan
    found = inversion_metrics(images, centres)
    for value in found.values():
        assert value.isnan().tolist() == [True, False]
