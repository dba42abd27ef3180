"""Reference attackers: what they say does not depend on the gradient."""

from __future__ import annotations

import pytest
import torch

from leakbench.attacks.base import Attack, Knowledge, Observations
from leakbench.attacks.presets import IGOptimalDefense
from leakbench.attacks.reference import ClassMean, Grey, MeanImage, Noise
from leakbench.data.base import ImageDataset
from leakbench.data.embedded import Digits, Photos
from leakbench.models.base import Network
from leakbench.randomness import Streams

RANGE = torch.tensor([[-1.0, -0.5, 0.0], [1.0, 0.5, 2.0]]).view(2, 3, 1, 1)
MEAN = torch.arange(3 * 4 * 4.0).view(3, 4, 4)
AUXILIARY = torch.stack([MEAN - 1, MEAN + 1])
STREAMS = Streams([("reference", 0), ("reference", 1)])


def observations(network: Network, gradients: torch.Tensor) -> Observations:
    return Observations(network, network.parameters, gradients, (5, 3, 4, 4))


@pytest.mark.parametrize("attack", [MeanImage(), ClassMean(), Grey(), Noise()], ids=lambda attack: attack.name)
def test_gradients_are_ignored(attack: Attack, tiny_network: Network) -> None:
    knowledge = Knowledge(
        pixel_range=RANGE,
        auxiliary_images=AUXILIARY,
        auxiliary_labels=torch.tensor([0, 1]),
        labels=torch.ones(2, 5, dtype=torch.long),
    )
    zeros, nans = torch.zeros(2, 160), torch.full((2, 160), torch.nan)
    first = attack.reconstruct(observations(tiny_network, zeros), knowledge, STREAMS.child("one"))
    second = attack.reconstruct(observations(tiny_network, nans), knowledge, STREAMS.child("one"))
    assert torch.equal(first.images, second.images) and first.images.shape == (2, 5, 3, 4, 4)
    assert first.objective is None and first.diverged_at.tolist() == [-1, -1]
    assert not attack.observes and IGOptimalDefense.observes


def test_mean_image_is_the_mean_for_every_image(tiny_network: Network) -> None:
    seen = observations(tiny_network, torch.zeros(2, 160))
    found = MeanImage().reconstruct(seen, Knowledge(auxiliary_images=AUXILIARY), STREAMS)
    assert all(torch.equal(image, MEAN) for image in found.images.flatten(0, 1))
    found.images.zero_()  # its own memory
    assert MEAN.max() == 47


def test_class_mean_is_the_mean_of_images_with_the_label(tiny_network: Network) -> None:
    """And the mean of all, where no auxiliary image has it."""
    images, labels = torch.cat([AUXILIARY, MEAN[None] + 6]), torch.tensor([0, 3, 3])
    wanted = torch.tensor([[0, 3, 7, 3, 0], [7, 7, 0, 0, 3]])
    known = Knowledge(auxiliary_images=images, auxiliary_labels=labels, labels=wanted)
    found = ClassMean().reconstruct(observations(tiny_network, torch.zeros(2, 160)), known, STREAMS).images
    for row, label in ((row, label) for row in range(2) for label in range(5)):
        same = images[labels == wanted[row, label]]
        torch.testing.assert_close(found[row, label], (same if len(same) else images).mean(dim=0))


@pytest.mark.parametrize("data", [Digits(size=8), Photos(size=8)], ids=lambda data: data.name)
def test_grey_is_the_middle_of_all_pixels(data: ImageDataset, tiny_network: Network) -> None:
    seen = Observations(tiny_network, tiny_network.parameters, torch.zeros(2, 160), (5, *data.shape))
    bounds = data.normalise(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, data.channels, 1, 1))
    found = Grey().reconstruct(seen, Knowledge(pixel_range=bounds), STREAMS).images
    assert found.shape == (2, 5, *data.shape)
    torch.testing.assert_close(data.denormalise(found), torch.full_like(found, 0.5), rtol=0, atol=1e-6)


def test_noise_is_the_clamped_start_of_each_stream(tiny_network: Network) -> None:
    seen = observations(tiny_network, torch.zeros(2, 160))
    found = Noise().reconstruct(seen, Knowledge(pixel_range=RANGE), STREAMS.child("noise")).images
    normal = STREAMS.child("noise").normal(5, 3, 4, 4)
    assert torch.equal(found, torch.max(torch.min(normal, RANGE[1]), RANGE[0]))
    inside = (found > RANGE[0]) & (found < RANGE[1])
    assert 0.3 < inside.float().mean() < 0.9 and not torch.equal(found[0], found[1])


@pytest.mark.parametrize("attack", [MeanImage(), ClassMean(), Grey(), Noise()], ids=lambda attack: attack.name)
def test_everything_stays_on_the_device_of_the_gradients(attack: Attack, tiny_network: Network) -> None:
    knowledge = Knowledge(
        pixel_range=RANGE.to("meta"),
        auxiliary_images=AUXILIARY.to("meta"),
        auxiliary_labels=torch.zeros(2, dtype=torch.long, device="meta"),
        labels=torch.zeros(2, 5, dtype=torch.long, device="meta"),
    )
    found = attack.reconstruct(observations(tiny_network, torch.zeros(2, 160, device="meta")), knowledge, STREAMS)
    assert found.images.device.type == found.diverged_at.device.type == "meta"


def test_needs_are_names_of_knowledge() -> None:
    everything = Knowledge(labels=torch.zeros(1, 1), pixel_range=RANGE, auxiliary_images=AUXILIARY).granted()
    assert everything == {"labels", "pixel_range", "auxiliary_images"}
    assert Knowledge().granted() == frozenset()
    assert Knowledge(pixel_range=RANGE).granted() == {"pixel_range"}
    assert MeanImage().needs == {"auxiliary_images"}
    assert Grey().needs == Noise().needs == {"pixel_range"}
