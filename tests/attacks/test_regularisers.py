"""Penalties on candidates, by hand on small arrays."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from leakbench.attacks.regularisers import (
    BatchNormStatistics,
    EmbeddingNorm,
    PixelBox,
    Regulariser,
    Scene,
    TotalVariation,
)
from leakbench.models.base import Network, Statistics, build_network
from leakbench.models.convnets import ConvNet, SimpleConvNet
from leakbench.randomness import generator

Form = Literal["anisotropic", "isotropic", "squared"]
FORMS: tuple[Form, ...] = ("anisotropic", "isotropic", "squared")
EMPTY = Scene(None, lambda _: {}, {})
IMAGE = torch.tensor([[1.0, 3.0, 2.0], [0.0, 3.0, 5.0]]).view(1, 1, 2, 3)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("anisotropic", (2 + 1 + 3 + 2) / 4 + (1 + 0 + 3) / 3),
        ("isotropic", ((4 + 1) ** 0.5 + (1 + 0) ** 0.5) / 2),  # at the two pixels with both neighbours
        ("squared", (4 + 1 + 9 + 4) / 4 + (1 + 0 + 9) / 3),
    ],
)
def test_total_variation(form: Form, expected: float) -> None:
    penalty = TotalVariation(weight=7, form=form)
    assert float(penalty(IMAGE, EMPTY)) == pytest.approx(expected)
    turned = IMAGE.flip(-1).mT if form != "isotropic" else IMAGE + 5
    assert float(penalty(turned, EMPTY)) == pytest.approx(expected)
    # The mean over all images and channels, and not their sum.
    half = torch.cat([IMAGE, torch.zeros_like(IMAGE)])
    assert float(penalty(half, EMPTY)) == pytest.approx(expected / 2, rel=1e-5)
    assert float(penalty(half.transpose(0, 1), EMPTY)) == pytest.approx(expected / 2, rel=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_total_variation_of_constant_images(form: Form) -> None:
    """Nothing, with a finite slope, alone and under vmap."""
    constant = torch.full((2, 3, 4, 4), 0.3)
    penalty = TotalVariation(weight=1, form=form)
    slope, value = torch.func.grad_and_value(lambda images: penalty(images, EMPTY))(constant)
    assert float(value) == pytest.approx(0, abs=1e-5) and torch.equal(slope, torch.zeros_like(slope))
    slopes = torch.func.vmap(torch.func.grad(lambda images: penalty(images, EMPTY)))(torch.stack([constant] * 3))
    assert torch.equal(slopes, torch.zeros_like(slopes))


@pytest.mark.parametrize("form", FORMS)
def test_slope_of_total_variation(form: Form) -> None:
    penalty = TotalVariation(weight=1, form=form)
    draw = generator("total variation")
    images, direction = torch.randn(2, 2, 3, 5, 4, generator=draw).double()

    def value(at: torch.Tensor) -> torch.Tensor:
        return penalty(at, EMPTY)

    step = 1e-7
    difference = (value(images + step * direction) - value(images - step * direction)) / (2 * step)
    torch.testing.assert_close((torch.func.grad(value)(images) * direction).sum(), difference, rtol=1e-5, atol=1e-8)


def test_pixel_box() -> None:
    """Two channels with ranges of their own; 1.5 above, 0.5 below, four values inside or on the edge."""
    low, high = torch.tensor([[0.0, -1.0], [1.0, 2.0]]).view(2, 2, 1, 1)
    images = torch.tensor([[0.0, 2.5, 0.3], [-1.5, 2.0, 0.0]]).view(1, 2, 1, 3)
    scene = Scene(torch.stack([low, high]), lambda _: {}, {})
    slope, value = torch.func.grad_and_value(lambda at: PixelBox(weight=1)(at, scene))(images)
    assert float(value) == pytest.approx((1.5**2 + 0.5**2) / 6)
    torch.testing.assert_close(slope.flatten(), torch.tensor([0, 2 * 1.5, 0, -2 * 0.5, 0, 0]) / 6)


class TestEmbeddingNorm:
    # Two sentences of three positions: lengths 5 and 13; 10, and padding that does not count.
    SENTENCES = torch.tensor(
        [
            [[3.0, 4.0, 1.0], [5.0, 12.0, 1.0], [7.0, 7.0, 0.0]],
            [[6.0, 8.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        ]
    )
    MEAN = (5 + 13 + 10) / 3

    def test_by_hand(self) -> None:
        """The mean is over all tokens of a batch: what is penalised is not each of them."""
        slope, value = torch.func.grad_and_value(lambda at: EmbeddingNorm(weight=7, norm=1.5)(at, EMPTY))(
            self.SENTENCES
        )
        assert float(value) == pytest.approx((self.MEAN - 1.5) ** 2)
        tokens = self.SENTENCES[..., 2:]
        directions = tokens * torch.nn.functional.normalize(self.SENTENCES[..., :2], dim=-1)
        torch.testing.assert_close(slope[..., :2], 2 * (self.MEAN - 1.5) * directions / 3)
        assert (slope[..., :2][tokens.expand_as(slope[..., :2]) == 0] == 0).all()

    def test_default_is_the_models(self) -> None:
        scene = Scene(None, lambda _: {}, {}, word_length=torch.tensor(2.0))
        assert float(EmbeddingNorm(weight=1)(self.SENTENCES, scene)) == pytest.approx((self.MEAN - 2) ** 2)
        assert float(EmbeddingNorm(weight=1, norm=4)(self.SENTENCES, scene)) == pytest.approx((self.MEAN - 4) ** 2)
        assert EmbeddingNorm(weight=1, norm=self.MEAN)(self.SENTENCES, scene) < 1e-9

    def test_slope_against_differences(self) -> None:
        sentences = self.SENTENCES.double()
        sentences[1, 1] = torch.tensor([0.5, -2.0, 1.0])
        direction = torch.randn(2, 3, 3, generator=generator("embedding norm")).double()
        direction[..., 2] = 0  # which positions are tokens is known

        def value(at: torch.Tensor) -> torch.Tensor:
            return EmbeddingNorm(weight=1, norm=1.4)(at, EMPTY)

        step = 1e-6
        difference = (value(sentences + step * direction) - value(sentences - step * direction)) / (2 * step)
        torch.testing.assert_close((torch.func.grad(value)(sentences) * direction).sum(), difference)


class TestBatchNormStatistics:
    @staticmethod
    def scene(network: Network, statistics: Statistics) -> Scene:
        return Scene(None, lambda images: network.batch_statistics(network.parameters, images), statistics)

    def test_by_hand(self) -> None:
        """Distances 5 and 2 of means, 1 of the first variance and none of the second."""
        found = {
            "a.running_mean": torch.tensor([3.0, 4.0]),
            "a.running_var": torch.tensor([2.0, 1.0]),
            "b.running_mean": torch.tensor([1.0]),
            "b.running_var": torch.tensor([6.0]),
        }
        target = {
            "b.running_mean": torch.tensor([-1.0]),
            "b.running_var": torch.tensor([6.0]),
            "a.running_mean": torch.tensor([0.0, 0.0]),
            "a.running_var": torch.tensor([1.0, 1.0]),
        }
        scene = Scene(None, lambda _: found, target)
        assert float(BatchNormStatistics(weight=9)(IMAGE, scene)) == pytest.approx(5 + 2 + 1)

    @pytest.mark.parametrize("mode", ["eval", "train"])
    def test_zero_at_the_images_that_the_statistics_are_of(self, mode: Any) -> None:
        network = build_network(ConvNet(width=1), (3, 9, 9), 10, seed=0).in_mode(mode)
        images = torch.randn(2, 2, 3, 9, 9, generator=generator("statistics"))
        scene = self.scene(network, network.batch_statistics(network.parameters, images[0]))
        penalty = BatchNormStatistics(weight=1)
        slope, value = torch.func.grad_and_value(lambda at: penalty(at, scene))(images[0])
        assert value == 0 and slope.isfinite().all()  # a norm has no derivative at zero; torch's choice is finite
        assert penalty(images[1], scene) > 0.1

    def test_networks_without_such_layers(self) -> None:
        network = build_network(SimpleConvNet(width=2), (1, 8, 8), 10, seed=0)
        scene = self.scene(network, network.running_statistics)
        penalty = BatchNormStatistics(weight=1)(torch.ones(2, 1, 8, 8).double(), scene)
        assert penalty == 0 and penalty.dim() == 0 and penalty.dtype == torch.float64


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "total_variation", "form": "isotropic"},
        {"kind": "pixel_box"},
        {"kind": "batch_norm"},
        {"kind": "embedding_norm"},
    ],
)
def test_from_plain_values(given: dict[str, Any]) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(Regulariser)
    regulariser = adapter.validate_python(given | {"weight": 0.5})
    assert adapter.validate_python(regulariser.model_dump(mode="json")) == regulariser
    assert regulariser.needs == ({"pixel_range"} if given["kind"] == "pixel_box" else set())
    for wrong in ({}, {"weight": -1}, {"weight": 1, "shape": "round"}):
        with pytest.raises(ValidationError):
            adapter.validate_python(given | wrong)


@pytest.mark.parametrize("form", FORMS)
def test_derivatives_of_total_variation(form: Form) -> None:
    """Against finite differences, of one batch and of several under vmap."""
    images = torch.randn(2, 3, 2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    penalty = partial(TotalVariation(weight=1, form=form), scene=EMPTY)
    assert torch.autograd.gradcheck(penalty, (images[0].requires_grad_(),))
    together = torch.func.vmap(torch.func.grad(penalty))(images)
    torch.testing.assert_close(together, torch.stack([torch.func.grad(penalty)(each) for each in images]))
