"""Image metrics against their formulas, and LPIPS only where there are weights for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity

from leakbench.libraries.torchvision_compat import import_torchvision
from leakbench.metrics import image
from leakbench.metrics.image import (
    IMAGE_METRICS,
    MAX_PSNR,
    PERCEPTUAL,
    identified,
    image_metrics,
    lpips,
    ssim_global,
)
from leakbench.randomness import generator


def pictures(n: int, channels: int, side: int) -> torch.Tensor:
    """Smooth images in [0, 1], so that structure exists."""
    coarse = torch.rand(n, channels, 5, 5, generator=generator("pictures"))
    return torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1)


def compare(estimate: torch.Tensor, truth: torch.Tensor) -> dict[str, list[float]]:
    """All metrics but LPIPS, with pixels as inputs."""
    values = image_metrics(estimate, truth, estimate, truth)
    assert list(values) == list(IMAGE_METRICS)
    return {name: value.tolist() for name, value in values.items() if not isinstance(value, str)}


@pytest.fixture(autouse=True)
def no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty torch home, and no network kept from or for another test."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    image._lpips_network.cache_clear()
    yield
    image._lpips_network.cache_clear()


@pytest.mark.parametrize(("channels", "side"), [(1, 8), (1, 28), (3, 32)])
def test_identical_images(channels: int, side: int) -> None:
    truth = pictures(3, channels, side)
    found = compare(truth.clone(), truth)
    assert found["psnr"] == [MAX_PSNR] * 3
    assert found["ssim"] == pytest.approx([1] * 3, abs=1e-5)
    assert found["ssim_global"] == pytest.approx([1] * 3, abs=1e-6)
    assert found["mse"] == found["mse_input"] == [0] * 3
    assert found["cosine"] == pytest.approx([1] * 3, abs=1e-6)


def test_formulas() -> None:
    draw = generator("formulas")
    truth = torch.rand(4, 3, 16, 16, generator=draw)
    estimate = (truth + 0.2 * torch.randn(truth.shape, generator=draw)).clamp(0, 1)
    found = compare(estimate, truth)
    for index in range(4):
        x, y = (tensor[index].double().flatten().numpy() for tensor in (estimate, truth))
        mse = np.mean((x - y) ** 2)
        assert found["mse"][index] == pytest.approx(mse, rel=1e-5)
        assert found["psnr"][index] == pytest.approx(10 * math.log10(1 / mse), abs=1e-4)
        assert found["cosine"][index] == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-6)


@pytest.mark.parametrize(("channels", "side"), [(1, 16), (1, 28), (3, 32)])
def test_ssim_is_that_of_scikit_image(channels: int, side: int) -> None:
    """Over all pixels of the mirrored image; scikit-image leaves out a border of half a window."""
    truth = pictures(4, channels, side)
    noise = 0.1 * torch.randn(truth.shape, generator=generator("ssim")) * torch.arange(4).view(4, 1, 1, 1)
    estimate = (truth + noise).clamp(0, 1)
    expected = [
        structural_similarity(
            *(np.pad(tensor[index].double(), ((0, 0), (5, 5), (5, 5)), "reflect") for tensor in (estimate, truth)),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1,
            channel_axis=0,
        )
        for index in range(4)
    ]
    assert expected[0] == 1 and expected[3] < 0.9
    assert compare(estimate, truth)["ssim"] == pytest.approx(expected, abs=1e-4)


def test_the_papers_error_in_normalised_inputs() -> None:
    """Mean squared error 0.0495 in inputs of standard deviation 0.3081: 23.28 dB."""
    truth_input = torch.zeros(1, 1, 8, 8)
    estimate_input = truth_input + math.sqrt(0.0495)
    estimate, truth = (0.3081 * tensor + 0.5 for tensor in (estimate_input, truth_input))
    found = image_metrics(estimate, truth, estimate_input, truth_input)
    assert not isinstance(found["psnr"], str) and not isinstance(found["mse_input"], str)
    assert float(found["mse_input"]) == pytest.approx(0.0495)
    assert float(found["psnr"]) == pytest.approx(23.28, abs=0.005)


def test_pixels_are_clamped_and_inputs_are_not() -> None:
    truth = torch.full((1, 1, 8, 8), 1.0)
    found = compare(torch.full((1, 1, 8, 8), 3.0), truth)
    assert found["mse"] == [0] and found["psnr"] == [MAX_PSNR]
    assert found["mse_input"] == [4]


def test_images_do_not_mix() -> None:
    truth = pictures(3, 3, 32)
    estimate = truth.flip(0)
    together = compare(estimate, truth)
    for index in range(3):
        alone = compare(estimate[index : index + 1], truth[index : index + 1])
        assert {name: values[0] for name, values in alone.items()} == pytest.approx(
            {name: values[index] for name, values in together.items()}, rel=1e-5
        )


BODIES = {"lpips": "alexnet", "lpips_vgg": "vgg16"}
by_network = pytest.mark.parametrize("metric", PERCEPTUAL)


class TestLpips:
    """With made-up convolutions under the names of the trained ones; the fitted layers ship with the package."""

    @pytest.fixture
    def staged(self, metric: str) -> None:
        body = getattr(import_torchvision().models, BODIES[metric])
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            torch.manual_seed(0)
            shapes = {name: tensor.shape for name, tensor in body().state_dict().items()}
        draw = generator(metric)
        state = {
            name: torch.randn(shape, generator=draw) / shape[1:].numel() ** 0.5
            if name.startswith("features")
            else torch.zeros(1).expand(shape)  # unused, and too large to write
            for name, shape in shapes.items()
        }
        path = PERCEPTUAL[metric].path
        path.parent.mkdir(parents=True)
        torch.save(state, path)
        assert path.stat().st_size < 70e6

    @by_network
    def test_null_where_weights_are_not_staged(self, metric: str) -> None:
        truth = pictures(2, 3, 32)
        reason = lpips(truth, truth, metric)
        assert isinstance(reason, str)
        assert PERCEPTUAL[metric].weights in reason and f"`leakbench stage {metric}`" in reason

    @pytest.mark.parametrize("metric", ["lpips"])
    def test_null_where_images_are_too_small(self, staged: None, metric: str) -> None:
        truth = pictures(2, 1, 31)
        reason = lpips(truth, truth)
        assert isinstance(reason, str)
        assert "31x31" in reason and "32x32" in reason

    @by_network
    @pytest.mark.parametrize("channels", [1, 3])
    def test_against_torchmetrics(
        self, staged: None, metric: str, channels: int, recwarn: pytest.WarningsRecorder
    ) -> None:
        """Its port of the same network, image by image: the fitted layers of both are the same numbers."""
        truth = pictures(3, channels, 32)
        noise = 0.1 * torch.randn(truth.shape, generator=generator("lpips")) * torch.arange(3).view(3, 1, 1, 1)
        estimate = (truth + noise).clamp(0, 1)
        distance = image_metrics(estimate, truth, estimate, truth)[metric]
        assert not [each for each in recwarn if "weight" in str(each.message)]
        assert isinstance(distance, torch.Tensor) and distance.shape == (3,) and not distance.requires_grad
        assert float(distance[0]) == 0
        assert 0 < float(distance[1]) < float(distance[2])

        from torchmetrics.functional.image import learned_perceptual_image_patch_similarity

        network: Any = PERCEPTUAL[metric].name
        for index in range(3):
            first, second = (tensor[index : index + 1].expand(-1, 3, -1, -1) for tensor in (estimate, truth))
            expected = learned_perceptual_image_patch_similarity(first, second, net_type=network, normalize=True)
            torch.testing.assert_close(distance[index], expected.detach())
        assert image._lpips_network(network) is image._lpips_network(network)

    def test_the_file_moves_with_its_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        network = PERCEPTUAL["lpips"]
        assert network.path == tmp_path / "hub" / "checkpoints" / network.weights
        monkeypatch.delenv("TORCH_HOME")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert network.path == tmp_path / "cache" / "torch" / "hub" / "checkpoints" / network.weights
        assert network.path.parents[1] == Path(torch.hub.get_dir())


class TestGlobalSsim:
    def test_by_hand(self) -> None:
        """Two black and two white pixels: against themselves, their negative, and constant 127.5 of 255."""
        truth = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).view(1, 1, 2, 2).expand(3, -1, -1, -1)
        estimate = torch.cat([truth[:1], 1 - truth[:1], torch.full((1, 1, 2, 2), 0.5)])
        assert ssim_global(estimate, truth).tolist() == pytest.approx([1, -0.99641, 0.00359], abs=5e-6)
        in_bytes = ssim_global(255 * estimate, 255 * truth, data_range=255)
        torch.testing.assert_close(in_bytes, ssim_global(estimate, truth))

    def test_colours_against_a_loop(self) -> None:
        """Luminance, contrast and structure as three factors, in YCrCb, of images of 0 to 255."""
        draw = generator("ycrcb")
        truth = 255 * torch.rand(3, 3, 6, 5, generator=draw)
        estimate = (truth + 60 * torch.randn(truth.shape, generator=draw)).clamp(0, 255)
        found = ssim_global(estimate / 255, truth / 255).tolist()
        c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
        for index in range(3):
            total = 0.0
            for weight, x, y in zip((0.8, 0.1, 0.1), ycrcb(estimate[index]), ycrcb(truth[index]), strict=True):
                sx, sy, covariance = x.std(), y.std(), np.mean((x - x.mean()) * (y - y.mean()))
                luminance = (2 * x.mean() * y.mean() + c1) / (x.mean() ** 2 + y.mean() ** 2 + c1)
                contrast = (2 * sx * sy + c2) / (sx**2 + sy**2 + c2)
                total += weight * luminance * contrast * (covariance + c2 / 2) / (sx * sy + c2 / 2)
            assert found[index] == pytest.approx(total, abs=1e-4)  # the matrix is rounded to six digits

    def test_it_does_not_see_where_things_are(self) -> None:
        """The same permutation of both images' pixels changes nothing, unlike the index with windows."""
        truth, estimate = pictures(2, 1, 16), pictures(2, 1, 16).flip(0)
        order = torch.randperm(256, generator=generator("permutation"))
        one, other = (each.flatten(2)[..., order].view_as(each) for each in (estimate, truth))
        torch.testing.assert_close(ssim_global(one, other), ssim_global(estimate, truth))
        assert float((image.ssim(one, other) - image.ssim(estimate, truth)).abs().max()) > 0.05

    @pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
    def test_constant_images(self, value: float) -> None:
        constant = torch.full((1, 3, 4, 4), value)
        assert float(ssim_global(constant, constant)) == pytest.approx(1)


def ycrcb(rgb: torch.Tensor) -> list[Any]:
    """ITU-R BT.601 of one image ``[3, H, W]`` of 0 to 255."""
    red, green, blue = rgb.double().numpy()
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    return [luma, (red - luma) * 0.5 / (1 - 0.299) + 128, (blue - luma) * 0.5 / (1 - 0.114) + 128]


def test_a_victim_in_the_line_up_is_no_rival_of_itself() -> None:
    line_up = torch.rand(99, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert identified(line_up[:30] + 1e-3, line_up[:30], line_up).all()
