"""Attackers of flipped bits: by hand, and what they reach on a toy network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.attacks.test_adaptive import ECHO, NOTHING, improved, small

from leakbench.attacks.adaptive import DroppedLayers, Imputed, Masked
from leakbench.attacks.analytic import Analytic
from leakbench.attacks.base import Attack, Knowledge, Observations
from leakbench.attacks.bits import Averaged, ClearedBits, Robust
from leakbench.attacks.presets import DLG, IGCDPA, TAG, DLGWolfe
from leakbench.data.embedded import Digits, Photos
from leakbench.errors import Infeasible
from leakbench.federated.step import ClientSteps
from leakbench.metrics.image import psnr
from leakbench.models.base import Network, build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams

CLEARED = ClearedBits(attack=ECHO)


def flipped(gradients: torch.Tensor, keep: float, seed: int = 0, only: slice = slice(None)) -> torch.Tensor:
    """Gradients as integers of sixteen bits with four decimals, whose bits 2 and 3 are flipped now and then."""
    draw = torch.Generator().manual_seed(seed)
    part = gradients[:, only]
    integers = (part.double() * 1e4).round().clamp(-32767, 32767).long()
    magnitude = integers.abs()
    for weight in (8192, 4096):
        magnitude = magnitude ^ (torch.rand(part.shape, generator=draw) > keep).long() * weight
    sent = gradients.clone()
    sent[:, only] = (torch.where(integers < 0, -magnitude, magnitude) / 1e4).float()
    return sent


def words(seen: Observations) -> Observations:
    """All coordinates are words."""
    return replace(seen, coded=torch.ones_like(seen.gradients))


class TestClearedBits:
    def test_by_hand(self, tiny_network: Network) -> None:
        """0.0001 and what flips make of it; -0.1234; 2.7813, which honestly has bit 2; what no integer can be."""
        rows = [0.0001, 0.4097, 0.8193, 1.2289, -0.1234, -0.9426, 2.7813, 5.0, 0.00004]
        seen = improved(CLEARED, words(small(tiny_network, rows)))
        expected = [0.0001, 0.0001, 0.0001, 0.0001, -0.1234, -0.1234, 1.9621, 3.2767 - 1.2288, 0.0]
        torch.testing.assert_close(seen.gradients[0], torch.tensor(expected), rtol=0, atol=1e-6)

    @given(values=st.lists(st.floats(-0.40625, 0.40625, width=32), min_size=1, max_size=20), seed=st.integers(0, 99))
    def test_whatever_is_flipped_comes_back(self, tiny_network: Network, values: list[float], seed: int) -> None:
        honest = (torch.tensor([values]).double() * 1e4).round() / 1e4
        sent = flipped(torch.tensor([values]), keep=0.5, seed=seed)
        seen = improved(CLEARED, words(small(tiny_network, sent[0].tolist())))
        torch.testing.assert_close(seen.gradients.double(), honest, rtol=0, atol=1e-7)

    def test_other_encodings(self, tiny_network: Network) -> None:
        """Five decimals and bits 5 and 6, as for text: flips are worth 0.01024 and 0.00512."""
        wrapper = ClearedBits(attack=ECHO, decimals=5, positions=(5, 6))
        seen = improved(wrapper, words(small(tiny_network, [0.00123, 0.00123 + 0.01024, -0.00123 - 0.00512, 0.5])))
        torch.testing.assert_close(
            seen.gradients[0], torch.tensor([0.00123, 0.00123, -0.00123, 0.32767 - 0.01536]), rtol=0, atol=1e-7
        )

    def test_coordinates_that_are_no_words_stay(self, tiny_network: Network) -> None:
        """As a message says that protects some layers: an attacker clears what it would not find flipped otherwise."""
        seen = small(tiny_network, [0.123456, 0.5, 0.123456, 0.5])
        seen = improved(CLEARED, replace(seen, coded=torch.tensor([[0.0, 0.0, 1.0, 1.0]])))
        torch.testing.assert_close(seen.gradients, torch.tensor([[0.123456, 0.5, 0.1235, 0.0904]]))

    def test_a_message_without_words_stays(self, tiny_network: Network) -> None:
        seen = small(tiny_network, [0.123456, 0.5])
        assert improved(CLEARED, seen) is seen

    @given(
        values=st.lists(st.floats(-0.40625, 0.40625, width=32), min_size=1, max_size=20),
        rate=st.sampled_from([3e-3, 0.1]),
    )
    def test_words_of_another_unit(self, tiny_network: Network, values: list[float], rate: float) -> None:
        """The change of the parameters, in units of the gradient: a flip is 0.4096 over the rate."""
        honest = (torch.tensor([values]).double() * 1e4).round() / 1e4
        sent = (flipped(torch.tensor([values]), keep=0.5) / rate).tolist()
        units = torch.full((1, len(values)), 1 / rate)
        seen = improved(CLEARED, replace(small(tiny_network, sent[0]), coded=units))
        torch.testing.assert_close(seen.gradients.double() * rate, honest, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("positions", [(0,), (16,), ()])
    def test_bits_that_are_not_there(self, positions: tuple[int, ...]) -> None:
        with pytest.raises(ValidationError):
            ClearedBits(attack=ECHO, positions=positions)


class TestImputedLayers:
    def test_other_layers_neither_count_nor_change(self, tiny_network: Network) -> None:
        gradients = torch.linspace(-0.1, 0.1, tiny_network.dimension)
        last = slice(tiny_network.dimension - 10, None)
        gradients[0] = gradients[-1] = 0.9
        seen = improved(
            Imputed(attack=ECHO, outliers="above", threshold=0.4, value="mean", layers=("fc_layers.3.bias",)),
            small(tiny_network, gradients.tolist()),
        ).gradients[0]
        assert torch.equal(seen[:-10], gradients[:-10]) and seen[0] == 0.9
        assert float(seen[-1]) == pytest.approx(float(gradients[last][:-1].mean()))
        assert torch.equal(seen[-10:-1], gradients[-10:-1])

    def test_the_mean_of_each_tensor(self, tiny_network: Network) -> None:
        """Against a loop: Table VII's caption, beside the mean of all coordinates."""
        draw = torch.Generator().manual_seed(0)
        rows = torch.randn(2, tiny_network.dimension, generator=draw)
        for mean_of in ("tensor", "update"):
            wrapper = Imputed(attack=ECHO, outliers="above", threshold=1.5, value="mean", mean_of=mean_of)
            seen = improved(wrapper, small(tiny_network, *rows.tolist())).gradients
            sizes = tiny_network.sizes if mean_of == "tensor" else [tiny_network.dimension]
            for row, found in zip(rows, seen, strict=True):
                for part, filled in zip(row.split(list(sizes)), found.split(list(sizes)), strict=True):
                    kept = [value for value in part.tolist() if abs(value) <= 1.5]
                    mean = sum(kept) / max(1, len(kept))
                    expected = [value if abs(value) <= 1.5 else mean for value in part.tolist()]
                    assert filled.tolist() == pytest.approx(expected, abs=1e-6)

    def test_a_threshold_is_in_the_unit_that_was_sent(self, tiny_network: Network) -> None:
        seen = replace(small(tiny_network, [0.5, 0.5, 4.5]), coded=torch.tensor([[0.0, 10.0, 10.0]]))
        found = improved(Imputed(attack=ECHO, outliers="above", threshold=0.4), seen).gradients
        assert found.tolist() == [[0.0, 0.5, 0.0]]


class TestAveraged:
    REPEATS = torch.tensor([[[1.0, 2.0, -1.0], [9.0, 2.0, -1.0], [1.0, 8.0, -3.0], [1.0, 3.0, -1.0]]])

    @pytest.mark.parametrize(
        ("statistic", "expected"),
        [("mean", [3.0, 3.75, -1.5]), ("median", [1.0, 2.0, -1.0]), ("mode", [1.0, 2.0, -1.0])],
    )
    def test_by_hand(self, tiny_network: Network, statistic: Any, expected: list[float]) -> None:
        seen = improved(
            Averaged(attack=ECHO, statistic=statistic), replace(small(tiny_network, [0.0] * 3), repeats=self.REPEATS)
        )
        assert seen.gradients.tolist() == [expected]

    def test_one_message(self, tiny_network: Network) -> None:
        with pytest.raises(Infeasible, match="every client sends one message"):
            Averaged(attack=ECHO).reconstruct(small(tiny_network, [0.0]), NOTHING, Streams([("one",)]))

    def test_flips_are_voted_out(self) -> None:
        gradients = 0.1 * torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
        repeats = torch.stack([flipped(gradients, keep=0.98, seed=seed) for seed in range(9)], dim=1)
        rounded = (gradients * 1e4).round() / 1e4
        assert float((repeats[:, 0] - rounded).abs().max()) > 0.4
        for statistic, largest in (("median", 1e-6), ("mode", 1e-6), ("mean", 0.4)):
            wrapper = Averaged.model_validate({"attack": {"name": "tag"}, "statistic": statistic})
            network = build_network(SimpleConvNet(width=2), (1, 8, 8), 10, seed=0)
            seen = Observations(network, network.parameters, repeats[:, 0], (1, 1, 8, 8), repeats=repeats)
            found = wrapper.improve(seen, NOTHING, Streams([("one",)])).gradients
            assert float((found - rounded).abs().max()) < largest


def clients(model: Any, data: Any, count: int, seed: int = 0) -> tuple[ClientSteps, Knowledge, torch.Tensor]:
    """Clients of one image; what their attacker knows; the pixels."""
    network = build_network(model, data.shape, data.classes, seed=seed)
    samples = data.load("test", range(1, 1 + count))
    streams = Streams([("bits", client) for client in range(count)])
    inputs, labels = data.normalise(samples.values)[:, None], samples.labels[:, None]
    box = data.normalise(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, data.channels, 1, 1))
    steps = ClientSteps(network, network.parameters, inputs, labels, streams)
    return steps, Knowledge(labels=labels, pixel_range=box), samples.values


def decibels(
    attack: Attack, steps: ClientSteps, gradients: torch.Tensor, knowledge: Knowledge, pixels: torch.Tensor, data: Any
) -> float:
    """Mean PSNR; ``attack`` sees ``gradients``."""
    coded = torch.zeros_like(gradients)
    coded[:, steps.network.head.weight] = 1
    seen = Observations(steps.network, steps.parameters, gradients, (1, *data.shape), coded=coded)
    found = attack.reconstruct(seen, knowledge, steps.streams.child("attack"))
    return float(psnr(data.denormalise(found.images[:, 0]).clamp(0, 1), pixels).mean())


class TestRobust:
    def test_ignores_what_stays_far_off(self) -> None:
        """A few flips in LeNet's last layer: matching all fails, finding the flips does not."""
        data = Digits(size=8)
        steps, knowledge, pixels = clients(LeNet(width=4), data, 1)
        gradients = steps.gradient.clone()
        gradients[:, -100::9] += 0.8
        finish = DLGWolfe(iterations=50, labels="known")
        robust = Robust(attack=finish, iterations=100)
        assert decibels(finish, steps, gradients, knowledge, pixels, data) < 20
        assert decibels(robust, steps, gradients, knowledge, pixels, data) > 35

    def test_residuals_are_those_of_the_gradient(self) -> None:
        data = Digits(size=8)
        steps, knowledge, _ = clients(LeNet(width=4), data, 2)
        seen: list[Observations] = []

        class Finish(TAG):
            def reconstruct(self, observations: Observations, *others: Any) -> Any:
                seen.append(observations)
                return super().reconstruct(observations, *others)

        class First(Robust):
            pass

        given = torch.linspace(0.5, 1, steps.network.dimension).expand(2, -1)
        observations = Observations(steps.network, steps.parameters, steps.gradient, (1, 1, 8, 8), weights=given)
        First(attack=Finish(iterations=1), iterations=3, residual=1e-3).reconstruct(
            observations, knowledge, steps.streams
        )
        first, second = seen  # the first search is the attack, too, but for objective, optimiser and iterations
        assert first.start is None and first.weights is given
        assert second.start is not None and second.weights is not None
        assert knowledge.labels is not None
        for row in range(2):
            gradient = steps.network.gradient(steps.parameters, second.start[row], knowledge.labels[row])
            trusted = (gradient - steps.gradient[row]).abs() < 1e-3
            assert 0 < int(trusted.sum()) < len(trusted)
            assert torch.equal(second.weights[row], given[row] * trusted)

    def test_around_gradient_matching_alone(self) -> None:
        with pytest.raises(ValidationError, match="is no gradient matching"):
            Robust(attack=Analytic())
        assert Masked(attack=Robust(attack=DLG())).needs == set()
        assert Robust(attack=TAG()).needs == {"labels"}


class Toy(SimpleConvNet):
    """Three convolutions with ReLU, and a linear layer without a bias."""

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        nn, w = torch.nn, self.width
        return nn.Sequential(
            nn.Conv2d(shape[0], w, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(w, 2 * w, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * w, 2 * w, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * w * shape[1] * shape[2] // 16, classes, bias=False),
        )


@pytest.mark.slow
def test_flipped_bits_stop_those_alone_who_do_not_clear_them() -> None:
    """Deng et al. 2024, Section 4: four decimals, bits 2 and 3, one in fifty flipped, the last layer alone."""
    data = Photos(size=16)
    steps, knowledge, pixels = clients(Toy(width=16), data, 2)
    last = steps.network.head.weight
    sent = flipped(steps.gradient, keep=0.98, only=last)
    assert 0.03 < float((sent - steps.gradient)[:, last].abs().gt(0.3).float().mean()) < 0.05
    ig = IGCDPA()
    outliers = {"outliers": "above", "threshold": 0.4, "layers": ("7",)}

    def reached(attack: Attack, gradients: torch.Tensor) -> float:
        return decibels(attack, steps, gradients, knowledge, pixels, data)

    undefended = reached(ig, steps.gradient)
    assert undefended > 18
    naive = reached(ig, sent)
    assert naive < 10
    assert abs(reached(ClearedBits(attack=ig), sent) - undefended) < 2
    assert reached(Imputed.model_validate({"attack": ig, **outliers}), sent) > naive + 3
    assert reached(DroppedLayers(attack=ig, layers=("7",)), sent) > naive + 3
