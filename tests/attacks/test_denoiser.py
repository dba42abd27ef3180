"""The denoiser that auxiliary images train: what it takes off, that it is kept, and what it does for a search."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.most_probable import MAP
from leakbench.attacks.plug_and_play import TRAINED_ON, Denoising
from leakbench.attacks.presets import DLG
from leakbench.attacks.restoration.denoiser import Denoiser, trained_denoiser
from leakbench.attacks.unknowns import Pixels
from leakbench.data.embedded import Digits
from leakbench.models.base import build_network
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams, generator

DATA = Digits(size=8)
STEPS = 600


@pytest.fixture(scope="module")
def auxiliary() -> torch.Tensor:
    return DATA.normalise(DATA.load("train", range(500)).values)


@pytest.fixture(scope="module")
def bounds() -> torch.Tensor:
    return DATA.normalise(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1))


@pytest.fixture(scope="module")
def denoiser(auxiliary: torch.Tensor, bounds: torch.Tensor) -> Denoiser:
    return trained_denoiser(auxiliary, bounds, TRAINED_ON, STEPS)


@pytest.mark.parametrize(("level", "part"), [(0.05, 0.85), (0.2, 0.6), (0.5, 0.45)])
def test_takes_noise_of_any_level_off(denoiser: Denoiser, bounds: torch.Tensor, level: float, part: float) -> None:
    """Images that it was not trained on keep that part of the squared error of clipping, at most."""
    clean = DATA.normalise(DATA.load("test", range(200)).values)
    deviation = level * denoiser.span
    noisy = clean + deviation * torch.randn(clean.shape, generator=generator("test", "denoiser"))
    found = denoiser(noisy, torch.full((200,), deviation))
    assert bool(((found >= bounds[0]) & (found <= bounds[1])).all()) and not found.requires_grad
    after, before = ((images - clean).square().mean() for images in (found, noisy.clamp(*bounds)))
    assert float(after) < part * float(before)


def test_finds_images_in_noisy_messages(auxiliary: torch.Tensor, bounds: torch.Tensor) -> None:
    """Gradients with noise: a squared error that is a twentieth less than under the normal law alone, or better."""
    network = build_network(LeNet(), (1, 8, 8), classes=10, seed=0)
    victims, classes = DATA.load("test", range(32)), DATA.load("train", range(500)).labels
    clean = DATA.normalise(victims.values)[:, None]
    labels = victims.labels[:, None]
    gradients = torch.stack([network.gradient(network.parameters, *row) for row in zip(clean, labels, strict=True)])
    noise = torch.randn(gradients.shape, generator=generator("test", "noisy messages"))
    messages = gradients + 0.5 * gradients.square().mean().sqrt() * noise
    seen = Observations(network, network.parameters, messages, (1, 1, 8, 8))
    known = Knowledge(labels, bounds, auxiliary, auxiliary_labels=classes)
    streams = Streams([("noisy messages", row) for row in range(32)])
    denoising = Denoising(levels=5, evaluations=15, last=60, training=STEPS)
    attacks = (MAP(iterations=60), MAP(iterations=60, denoising=denoising))
    before, after = (
        float((attack.reconstruct(seen, known, streams).images.clamp(*bounds) - clean).square().mean())
        for attack in attacks
    )
    assert after < 0.95 * before, (after, before)


def test_is_trained_once_and_always_the_same(auxiliary: torch.Tensor, bounds: torch.Tensor) -> None:
    """A process keeps two."""

    def short(count: int) -> Denoiser:
        return trained_denoiser(auxiliary[:count].clone(), bounds, TRAINED_ON, 3)

    first = short(400)
    assert short(400) is first and short(300) is not first and short(400) is first
    assert short(200) is not first and short(400) is not first
    for ours, theirs in zip(short(400).network.parameters(), first.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_begins_with_a_law() -> None:
    with pytest.raises(ValidationError, match="denoising: it begins with what a law of images expects"):
        MAP(unknown=Pixels(), denoising=Denoising())
    with pytest.raises(ValidationError, match="lowest: levels fall"):
        Denoising(highest=0.02)
    for untrained in ({"lowest": 0.01}, {"highest": 0.8}):
        with pytest.raises(ValidationError, match=next(iter(untrained))):
            Denoising(**untrained)
    assert "denoising" not in MAP().parameters() and not hasattr(DLG(), "denoising")
    assert MAP(denoising=Denoising()).without_prior() == MAP().without_prior()
    assert MAP(denoising=Denoising(levels=3)).effort(2).steps == 150 + 2 * 30 + 150
    assert MAP(denoising=Denoising(levels=3, last=7)).effort(2).steps == 150 + 2 * 30 + 7
