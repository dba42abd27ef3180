"""Networks behind an attack: their formulas, their sizes, and what the attack hands to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from tests.attacks.literal import Problem

from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.interpolation import bicubic_kernel, downsample, upsample
from leakbench.attacks.post_processing import PostProcessed
from leakbench.attacks.presets import ROG
from leakbench.attacks.restoration.networks import UNet, Unfolding, data_step, transfer
from leakbench.attacks.restoration.prior import Prior, Restoration, restored
from leakbench.errors import ConfigError, Infeasible
from leakbench.models.convnets import SimpleConvNet
from leakbench.randomness import Streams

SMALL = Restoration(factor=2, channels=(3, 4), unfolding_channels=(3, 4), iterations=2, blocks=1, hidden=4)
CPU = torch.device("cpu")


def draws(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def prior(shape: tuple[int, int, int] = (1, 8, 8), restoration: Restoration = SMALL) -> Prior:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        networks = restoration.build(shape, 10)
        for table in (module for module in networks.modules() if isinstance(module, torch.nn.Embedding)):
            torch.nn.init.uniform_(table.weight, 0.5, 1.5)  # classes that differ
    return Prior.of(restoration, networks.state_dict(), shape, 10, CPU)


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_the_kernel_is_that_of_downsampling(factor: int) -> None:
    images = draws(1, 1, 8 * factor, 8 * factor)
    weights, first = bicubic_kernel(factor)
    found = downsample(images, factor)
    for row, column in ((3, 3), (3, 4), (4, 3)):
        rows, columns = (
            slice(start, start + len(weights)) for start in (factor * row + first, factor * column + first)
        )
        assert float(found[0, 0, row, column]) == pytest.approx(float(weights @ images[0, 0, rows, columns] @ weights))


def matrix(factor: int, height: int, width: int) -> torch.Tensor:
    """Downsampling of images that go on on their other side, ``[h w, H W]``."""
    weights, first = bicubic_kernel(factor)
    lines = []
    for side in (height, width):
        line = torch.zeros(side // factor, side, dtype=torch.float64)
        for pixel in range(side // factor):
            for place, weight in enumerate(weights.tolist()):
                line[pixel, (factor * pixel + first + place) % side] += weight
        lines.append(line)
    return torch.kron(*lines)


@pytest.mark.parametrize("factor", [2, 3])
def test_data_steps_solve_their_equations(factor: int) -> None:
    small, images, alpha = draws(2, 1, 4, 3), draws(2, 1, 4 * factor, 3 * factor), torch.tensor(0.3)
    found = data_step(small, images, transfer(factor, images), alpha)
    down = matrix(factor, 4 * factor, 3 * factor)
    left = down.T @ down + 0.3 * torch.eye(down.shape[1], dtype=torch.float64)
    right = small.flatten(1) @ down + 0.3 * images.flatten(1)
    torch.testing.assert_close(found.flatten(1), torch.linalg.solve(left, right.T).T, rtol=0, atol=1e-6)


def test_sizes_of_the_released_networks() -> None:
    """17.02 million in USRNet (Zhang et al. 2020): 17,010,624 of the prior step, and what weighs the steps."""
    with torch.device("meta"):
        networks = Restoration().build((3, 128, 128), 1000)
    unfolding, generator, denoiser = (networks[name] for name in ("unfolding", "generator", "denoiser"))
    assert isinstance(unfolding, Unfolding) and isinstance(generator, UNet) and isinstance(denoiser, UNet)
    assert sum(part.numel() for part in unfolding.prior.parameters()) == 17_010_624
    assert unfolding.iterations == 8 and unfolding.factor == 4
    shapes = [tuple(layer.weight.shape[:2]) for layer in denoiser.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert shapes == [
        *[(64, 3), (128, 64), (256, 128), (512, 256)],
        *[(512, 512), (256, 768), (128, 384)],
        *[(64, 192), (3, 67)],
    ]
    conditional = sum(part.numel() for part in generator.parameters())
    plain = sum(part.numel() for part in denoiser.parameters())
    assert conditional - plain == 2 * 1000 * (512 + 512 + 768 + 256 + 384 + 128)


def test_images_per_row_and_class() -> None:
    """In evaluation an image does not depend on its neighbours; of the generator it depends on its class."""
    networks, small = prior().networks, draws(3, 1, 4, 4).float()
    one, two = (restored(SMALL, networks, small, torch.tensor(labels)) for labels in ([1, 2, 3], [1, 2, 4]))
    alone = restored(SMALL, networks, small[1:2], torch.tensor([2]))
    for found, other, single in zip(one, two, alone, strict=True):
        assert torch.equal(found[:2], other[:2])
        torch.testing.assert_close(found[1:2], single)
    assert one[0].shape == one[1].shape == (3, 1, 8, 8) and one[2].shape == small.shape
    assert not torch.allclose(one[0][2], two[0][2]) and torch.equal(one[1], two[1])


@pytest.mark.parametrize(
    ("shape", "more"),
    [((1, 10, 10), {}), ((1, 8, 8), {"channels": (2, 2, 2)}), ((1, 9, 9), {}), ((1, 8, 8), {"factor": 3})],
)
def test_images_that_do_not_fit(shape: tuple[int, int, int], more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="do not fit images of"):
        Restoration.model_validate(SMALL.model_dump() | more).build(shape, 10)


class Known(Attack):
    """Leaves what it is told to."""

    name: ClassVar[str] = "known"
    version: ClassVar[int] = 1
    found: ClassVar[Reconstruction]

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        return self.found


class TestPostProcessed:
    BOX = torch.tensor([-2.0, 3.0]).view(2, 1, 1, 1)
    LABELS = torch.tensor([[1, 2], [3, 4]])

    def refined(self, latents: torch.Tensor, **parameters: Any) -> torch.Tensor:
        images = -2 + 5 * upsample(latents, (8, 8))
        Known.found = Reconstruction(images, torch.ones(2), torch.full((2,), -1), self.LABELS)
        problem = Problem(SimpleConvNet(width=2), (1, 8, 8))
        attack = PostProcessed(attack=Known(), **parameters)
        assert attack.needs == {"prior", "pixel_range"}
        knowledge = Knowledge(pixel_range=self.BOX, prior=prior())
        found = attack.reconstruct(problem.observations, knowledge, problem.streams)
        assert found == replace(Known.found, images=found.images)
        return (found.images + 2) / 5

    def test_is_the_mean_of_two_networks_at_the_latent(self) -> None:
        latents = draws(2, 2, 1, 4, 4).float()
        generated, unfolded, _ = restored(SMALL, prior().networks, latents.flatten(0, 1), self.LABELS.flatten())
        expected = (0.5 * generated + 0.5 * unfolded).view(2, 2, 1, 8, 8)
        torch.testing.assert_close(self.refined(latents), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(self.refined(latents, generator=1.0).flatten(0, 1), generated, rtol=0, atol=1e-4)

    def test_without_labels(self) -> None:
        Known.found = Reconstruction(torch.zeros(1, 1, 1, 8, 8), None, torch.tensor([-1]))
        problem = Problem(SimpleConvNet(width=2), (1, 8, 8))
        with pytest.raises(Infeasible, match="attack 'known' finds no labels"):
            PostProcessed(attack=Known()).reconstruct(
                problem.observations, Knowledge(pixel_range=self.BOX, prior=prior()), problem.streams
            )

    def test_around_rog(self) -> None:
        assert PostProcessed(attack=ROG()).needs == {"labels", "pixel_range", "prior"}
