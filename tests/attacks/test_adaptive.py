"""Attackers that know the defense: what they change of what an attack sees, and that it helps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.defenses.test_knowledge import declared_by

from leakbench.attacks.adaptive import (
    Adaptive,
    DroppedLayers,
    Imputed,
    Masked,
    Weighted,
    Wrapper,
)
from leakbench.attacks.base import ATTACKS, Attack, Grant, Knowledge, Observations, Reconstruction
from leakbench.attacks.most_probable import MAP
from leakbench.attacks.noisy_images import PosteriorMean
from leakbench.attacks.plug_and_play import Denoising
from leakbench.attacks.post_processing import PostProcessed
from leakbench.attacks.presets import TAG, IGOptimalDefense
from leakbench.attacks.reference import Grey
from leakbench.attacks.regularisers import BatchNormStatistics, PixelBox, TotalVariation
from leakbench.attacks.simulation import Simulated
from leakbench.data.embedded import Digits
from leakbench.defenses.base import DEFENSES, ActsOn
from leakbench.defenses.clients import PublicMechanism
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.errors import ConfigError, Infeasible, ObservationError, UnknownName
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network, build_network
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams

STREAMS = Streams([("adaptive", row) for row in range(3)])
NOTHING = Knowledge()


class Echo(Attack):
    """Remembers what it sees, and tells the wrappers nothing."""

    name: ClassVar[str] = "echo"
    version: ClassVar[int] = 7
    seen: ClassVar[list[Observations]] = []
    loud: bool = False

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"labels"})

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        self.seen.append(observations)
        images = torch.zeros(len(observations), *observations.batch_shape)
        return Reconstruction(images, None, torch.full((len(observations),), -1))


ECHO = Echo()


class NegativeWithNoise(GaussianNoise):
    """Changes images and updates, so that every attacker who knows it has something to take back."""

    name: ClassVar[str] = "negative_with_noise"
    acts_on: ClassVar[ActsOn] = "data"

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return -images, labels


def small(network: Network, *rows: list[float]) -> Observations:
    """Observations of a few coordinates, of which no attack computes anything."""
    return Observations(network, network.parameters, torch.tensor(rows), (1, 1, 8, 8))


def improved(wrapper: Wrapper, observations: Observations, knowledge: Knowledge = NOTHING) -> Observations:
    """What the attack inside is given, by the way that jobs take."""
    Echo.seen.clear()
    wrapper.reconstruct(observations, knowledge, STREAMS)
    (seen,) = Echo.seen
    return seen


def variance_of(observations: Observations, seed: int = 1) -> torch.Tensor:
    return torch.rand(observations.gradients.shape, generator=torch.Generator().manual_seed(seed)) + 0.1


class TestMasked:
    def test_by_hand(self, observations: Observations) -> None:
        seen = improved(Masked(attack=ECHO), observations)
        assert observations.marked is not None and seen.weights is not None
        assert torch.equal(seen.weights, 1.0 - observations.marked.float())
        assert seen == replace(observations, weights=seen.weights)  # and nothing else has changed
        assert observations.weights is None

    def test_a_known_gain_is_taken_back(self, observations: Observations) -> None:
        gain = torch.tensor([[1.0], [2.0], [4.0]])
        repeats = torch.stack([observations.gradients, -observations.gradients], dim=1)
        scaled = replace(
            observations, gradients=gain * observations.gradients, gain=gain, repeats=gain[:, :, None] * repeats
        )
        scaled.check()
        seen, plain = (improved(Masked(attack=Masked(attack=ECHO)), one) for one in (scaled, observations))
        assert seen.gain is None and torch.equal(seen.gradients, observations.gradients)
        assert seen.repeats is not None and torch.equal(seen.repeats, repeats)
        assert seen.weights is not None and plain.weights is not None and torch.equal(seen.weights, plain.weights)
        with pytest.raises(ObservationError, match="gain of shape"):
            replace(observations, gain=gain[:, 0]).check()

    def test_marked_coordinates_have_no_influence(self, observations: Observations) -> None:
        assert observations.marked is not None
        attack, streams = Masked(attack=IGOptimalDefense(iterations=5)), STREAMS
        labels, bounds = torch.tensor([[1], [2], [3]]), torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1)
        knowledge = Knowledge(labels=labels, pixel_range=bounds)
        changed = replace(observations, gradients=torch.where(observations.marked, 1e3, observations.gradients))
        unmarked = replace(changed, marked=torch.zeros_like(observations.marked))
        first, second, third = (
            attack.reconstruct(given, knowledge, streams) for given in (observations, changed, unmarked)
        )
        assert torch.equal(first.images, second.images) and torch.equal(first.objective, second.objective)  # type: ignore[arg-type]
        assert not torch.allclose(first.images, third.images, atol=0.1)

    def test_without_marks(self, observations: Observations) -> None:
        with pytest.raises(Infeasible, match="the defense marks no coordinates"):
            Masked(attack=ECHO).reconstruct(replace(observations, marked=None), NOTHING, STREAMS)

    def test_recovers_more_of_a_pruned_gradient(self) -> None:
        """LeNet is smooth, so what was pruned was small and not zero; at 0.9 the naive attack takes it for zero."""
        digits = Digits(size=8)
        network = build_network(LeNet(width=4), digits.shape, 10, seed=0)
        victims = digits.load("test", range(8))
        streams = Streams([("victim", client) for client in range(8)])
        inputs, labels = digits.normalise(victims.values)[:, None], victims.labels[:, None]
        steps = ClientSteps(network, network.parameters, inputs, labels, streams)
        message = MagnitudePruning(fraction=0.9).protect_update(steps, streams)
        seen = Observations(network, network.parameters, message.view(), (1, *digits.shape), marked=message.marked)
        bounds = digits.normalise(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1))
        knowledge = Knowledge(labels=labels, pixel_range=bounds)
        naive = IGOptimalDefense(iterations=60)
        errors = [
            (digits.denormalise(attack.reconstruct(seen, knowledge, streams).images[:, 0]) - victims.values)
            .square()
            .flatten(1)
            .mean(dim=1)
            for attack in (naive, Masked(attack=naive))
        ]
        assert errors[1].median() < 0.9 * errors[0].median()


class TestDroppedLayers:
    # 160 parameters: conv_layers.0 (18 + 2), conv_layers.3 (72 + 4), fc_layers.1 (32 + 2), fc_layers.3 (20 + 10)
    @pytest.mark.parametrize(
        ("layers", "dropped"),
        [
            (("fc_layers.3.bias",), [(150, 160)]),
            (("fc_layers.1",), [(96, 130)]),
            (("conv_layers",), [(0, 96)]),
            (("conv_layers.0.weight", "fc_layers"), [(0, 18), (96, 160)]),
            (("fc_layers", "fc_layers.3"), [(96, 160)]),
        ],
    )
    def test_names_and_how_they_begin(
        self, observations: Observations, layers: tuple[str, ...], dropped: list[tuple[int, int]]
    ) -> None:
        expected = torch.ones_like(observations.gradients)
        for first, last in dropped:
            expected[:, first:last] = 0
        seen = improved(DroppedLayers(attack=ECHO, layers=layers), observations)
        assert seen.weights is not None and torch.equal(seen.weights, expected)

    @pytest.mark.parametrize("layer", ["fc_layers.30", "fc", "fc_layers.", "", "weight"])
    def test_layers_that_are_not_there(self, observations: Observations, layer: str) -> None:
        with pytest.raises(UnknownName) as caught:
            DroppedLayers(attack=ECHO, layers=("fc_layers.1", layer)).reconstruct(observations, NOTHING, STREAMS)
        assert str(caught.value).startswith(f"attack 'dropped_layers': unknown layer '{layer}'")
        assert "Allowed: conv_layers.0.bias, conv_layers.0.weight, conv_layers.3.bias" in str(caught.value)

    def test_something_is_left(self, observations: Observations) -> None:
        with pytest.raises(ConfigError, match="no layer is left to match; name fewer"):
            DroppedLayers(attack=ECHO, layers=("conv_layers", "fc_layers")).reconstruct(observations, NOTHING, STREAMS)
        with pytest.raises(ValidationError):
            DroppedLayers(attack=ECHO, layers=())


class TestImputed:
    ROWS: ClassVar[list[list[float]]] = [[1.0, -2.0, 9.0, 0.5, 3.0], [0.0, 0.25, -0.25, 8.0, 0.5]]

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("zero", [[1.0, -2.0, 0.0, 0.5, 0.0], [0.0, 0.25, -0.25, 0.0, 0.5]]),
            ("mean", [[1.0, -2.0, -0.5 / 3, 0.5, -0.5 / 3], [0.0, 0.25, -0.25, 0.125, 0.5]]),
        ],
    )
    def test_above(self, tiny_network: Network, value: Any, expected: list[list[float]]) -> None:
        wrapper = Imputed(attack=ECHO, outliers="above", threshold=2.5, value=value)
        before = small(tiny_network, *self.ROWS)
        seen = improved(wrapper, before)
        torch.testing.assert_close(seen.gradients, torch.tensor(expected))
        assert before.gradients.tolist() == self.ROWS and seen.weights is None
        at_the_bound = wrapper.model_copy(update={"threshold": 3.0})
        assert improved(at_the_bound, before).gradients[0, 4] == 3

    @pytest.mark.parametrize(
        ("threshold", "outlying"),
        [  # absolute deviations (0, 3, 8, 0.5, 2) from 1 and (0.25, 0, 0.5, 7.75, 0.25) from 0.25; medians 2 and 0.25
            (3.0, [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]),
            (1.4, [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0]]),
            (0.9, [[0, 1, 1, 0, 1], [1, 0, 1, 1, 1]]),
            (40.0, [[0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]),
        ],
    )
    def test_mad(self, tiny_network: Network, threshold: float, outlying: list[list[int]]) -> None:
        rows = small(tiny_network, *self.ROWS)
        wrapper = Imputed(attack=ECHO, threshold=threshold)
        assert wrapper.find(rows.gradients, rows.marked).int().tolist() == outlying
        assert wrapper.find(rows.gradients + 5, rows.marked).int().tolist() == outlying

    def test_a_sparse_gradient_has_no_typical_deviation(self, tiny_network: Network) -> None:
        sparse = small(tiny_network, [0.0, 0.0, 0.0, 4.0, -1.0])
        assert torch.equal(improved(Imputed(attack=ECHO), sparse).gradients, sparse.gradients)

    @pytest.mark.parametrize("value", ["zero", "mean"])
    def test_marked(self, observations: Observations, value: Any) -> None:
        assert observations.marked is not None
        seen = improved(Imputed(attack=ECHO, outliers="marked", value=value), observations)
        for found, sent, marked in zip(seen.gradients, observations.gradients, observations.marked, strict=True):
            expected = sent.clone()
            expected[marked] = 0.0 if value == "zero" else sent[~marked].mean()
            torch.testing.assert_close(found, expected)
        with pytest.raises(Infeasible, match="marks no coordinates"):
            improved(Imputed(attack=ECHO, outliers="marked"), replace(observations, marked=None))

    def test_a_row_of_outliers_alone(self, tiny_network: Network) -> None:
        wrapper = Imputed(attack=ECHO, outliers="above", threshold=1, value="mean")
        assert improved(wrapper, small(tiny_network, [2.0, 3.0])).gradients.tolist() == [[0, 0]]


class TestWeighted:
    def test_by_hand(self, tiny_network: Network) -> None:
        """Inverse to the variance and 1 at its mean, 2; the floor is half of that here."""
        rows = small(tiny_network, [0.0] * 4)
        knowledge = Knowledge(noise_variance=torch.tensor([[4.0, 2.0, 1.5, 0.5]]))
        seen = improved(Weighted(attack=ECHO, floor=0.5), rows, knowledge)
        assert seen.weights is not None
        torch.testing.assert_close(seen.weights, torch.tensor([[0.5, 1.0, 4 / 3, 2.0]]))
        low = improved(Weighted(attack=ECHO, floor=1e-6), rows, knowledge).weights
        torch.testing.assert_close(low, torch.tensor([[0.5, 1.0, 4 / 3, 4.0]]))

    @given(variance=st.floats(1e-6, 1e6), size=st.integers(1, 9))
    def test_equal_noise_has_no_say(self, tiny_network: Network, variance: float, size: int) -> None:
        knowledge = Knowledge(noise_variance=torch.full((1, size), variance))
        weights = improved(Weighted(attack=ECHO), small(tiny_network, [0.0] * size), knowledge).weights
        torch.testing.assert_close(weights, torch.ones(1, size))

    def test_rows_have_scales_of_their_own_and_those_without_noise_are_as_they_were(
        self, observations: Observations
    ) -> None:
        variance = variance_of(observations)
        one = improved(Weighted(attack=ECHO), observations, Knowledge(noise_variance=variance)).weights
        scaled = variance * torch.tensor([1.0, 100.0, 0.0])[:, None]
        other = improved(Weighted(attack=ECHO), observations, Knowledge(noise_variance=scaled)).weights
        assert one is not None and other is not None
        torch.testing.assert_close(other[:2], one[:2])
        assert torch.equal(other[2], torch.ones_like(other[2]))

    def test_without_noise(self, observations: Observations) -> None:
        for variance in (None, torch.zeros_like(observations.gradients)):
            with pytest.raises(Infeasible, match="the defense adds no noise of a known variance"):
                improved(Weighted(attack=ECHO), observations, Knowledge(noise_variance=variance))
        assert Weighted(attack=ECHO).needs == {"labels", "noise_variance"}


class TestStacking:
    def test_weights_multiply(self, observations: Observations) -> None:
        variance = variance_of(observations)
        knowledge = Knowledge(noise_variance=variance)
        layers = ("fc_layers",)
        singles = [
            improved(wrapper, observations, knowledge).weights
            for wrapper in (Masked(attack=ECHO), Weighted(attack=ECHO), DroppedLayers(attack=ECHO, layers=layers))
        ]
        stack = Masked(attack=Weighted(attack=DroppedLayers(attack=ECHO, layers=layers)))
        other = DroppedLayers(attack=Weighted(attack=Masked(attack=ECHO)), layers=layers)
        product = torch.ones_like(variance)
        for weights in singles:
            assert weights is not None
            product = product * weights
        for wrapper in (stack, other):
            found = improved(wrapper, observations, knowledge).weights
            assert found is not None
            torch.testing.assert_close(found, product)
        given = replace(observations, weights=torch.full_like(variance, 3.0))
        found = improved(stack, given, knowledge).weights
        torch.testing.assert_close(found, 3 * product)

    def test_the_outermost_comes_first(self, tiny_network: Network) -> None:
        """Zeros in the place of outliers move the median that the next wrapper sees."""
        rows = small(tiny_network, [1.0, 2.0, 3.0, 9.0, 50.0])
        above = {"outliers": "above", "threshold": 40.0}
        seen = improved(Imputed(attack=Imputed(attack=ECHO, threshold=3.5), **above), rows)  # deviations 1, 0, 1, 7, 2
        assert seen.gradients.tolist() == [[1, 2, 3, 0, 0]]
        seen = improved(Imputed(attack=Imputed(attack=ECHO, **above), threshold=3.5), rows)  # 2, 1, 0, 6, 47
        assert seen.gradients.tolist() == [[1, 2, 3, 9, 0]]

    def test_needs_add_up(self) -> None:
        assert Masked(attack=ECHO).needs == Imputed(attack=ECHO).needs == {"labels"}
        assert Masked(attack=Weighted(attack=ECHO)).needs == {"labels", "noise_variance"}


class TestAdaptive:
    @pytest.mark.parametrize("name", [name for name in DEFENSES if DEFENSES.get(name).adaptive])
    def test_is_the_stack_that_the_defense_declares(self, name: str, observations: Observations) -> None:
        declared = declared_by(name)
        # The attacker of mixtures asks for labels that are searched for, too.
        inside = ATTACKS.get("dlg").model_validate({"iterations": 1}) if name == "mixup" else ECHO
        attack = Adaptive(attack=inside).against(declared)
        for wrapper in reversed(declared):  # the last one is the outermost
            parameters = {key: value for key, value in wrapper.items() if key != "name"}
            assert attack == ATTACKS.get(wrapper["name"])(**parameters, **{"attack": attack.attack})  # type: ignore[attr-defined]
            attack = attack.attack  # type: ignore[attr-defined]
        assert attack == inside
        if inside is not ECHO:
            return
        stack = Adaptive(attack=ECHO).against(declared)
        knowledge = Knowledge(
            pixel_range=torch.tensor([-3.0, 3.0]).view(2, 1, 1, 1),
            noise_variance=variance_of(observations),
            auxiliary_images=1 + torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)),
            auxiliary_labels=torch.zeros(5, dtype=torch.long),
            data_noise=[torch.ones(64)] * 3,
            mechanism=[PublicMechanism(NegativeWithNoise(scale=0.1))] * 3,
        )
        if name == "precode":
            with pytest.raises(Infeasible, match="looks for the noise of a bottleneck"):
                stack.reconstruct(observations, knowledge, STREAMS)
            return
        seen = improved(stack, observations, knowledge)  # type: ignore[arg-type]
        changed = [name for name in ("weights", "score", "send") if getattr(seen, name) is not None]
        found = stack.reconstruct(observations, knowledge, STREAMS).images  # inside it is black
        assert changed or bool(found.any()) or not torch.equal(seen.gradients, observations.gradients)

    def test_other_attacks_stay_as_they_are(self) -> None:
        declared = ({"name": "masked"},)
        assert ECHO.against(declared) is ECHO
        assert Weighted(attack=ECHO).against(declared) == Weighted(attack=ECHO)

    def test_the_prior_counts_where_the_defense_is_known(self) -> None:
        weak = ATTACKS.get("ig_optimal_defense").model_validate({})
        attack = Adaptive(attack=weak, prior=1e4)
        inside = attack.against(({"name": "masked"},)).attack  # type: ignore[attr-defined]
        assert [each.weight for each in inside.regularisers] == pytest.approx([1e-2])
        assert attack.ignorant == weak and [each.weight for each in weak.regularisers] == [1e-6]  # type: ignore[attr-defined]
        assert "prior" not in Adaptive(attack=weak).parameters()  # identities of records from before it stay

    def test_the_search_may_be_longer_where_the_defense_is_known(self) -> None:
        short = ATTACKS.get("dlg").model_validate({"iterations": 3})
        attack = Adaptive(attack=short, iterations=7)
        assert attack.against(({"name": "masked"},)).attack == short.model_copy(update={"iterations": 7})  # type: ignore[attr-defined]
        assert attack.ignorant == short and attack.effort(1) == short.model_copy(update={"iterations": 7}).effort(1)
        assert "iterations" not in Adaptive(attack=short).parameters()
        with pytest.raises(ValueError, match="'echo' has no iterations; leave them out"):
            Adaptive(attack=ECHO, iterations=7)

    def test_inside_other_wrappers(self) -> None:
        declared = ({"name": "simulated", "draws": 2}, {"name": "masked"})
        found = Imputed(attack=Adaptive(attack=ECHO)).against(declared)
        assert found == Imputed(attack=Masked(attack=Simulated(attack=ECHO, draws=2)))
        twice = Adaptive(attack=Adaptive(attack=ECHO)).against(({"name": "masked"},))
        assert twice == Masked(attack=Masked(attack=ECHO))

    def test_without_a_declaration_the_defense_is_simulated(self) -> None:
        assert Adaptive(attack=ECHO).against(()) == Simulated(attack=ECHO)
        assert Masked(attack=Adaptive(attack=ECHO)).against(()) == Masked(attack=Simulated(attack=ECHO))

    def test_a_wrong_declaration(self) -> None:
        with pytest.raises(UnknownName, match="declaration 'adaptive': unknown attack 'maskd'; did you mean 'masked'"):
            Adaptive(attack=ECHO).against(({"name": "maskd"},))

    def test_denoises_as_it_is_told(self) -> None:
        """The attack inside and declared wrappers, where they can; others as they are."""
        declared, denoising = ({"name": "posterior_mean"}, {"name": "masked"}), Denoising(levels=3)
        outer = Adaptive(attack=MAP(), denoising=denoising).against(declared)
        assert isinstance(outer, Masked) and isinstance(outer.attack, PosteriorMean)
        assert outer.attack.denoising == denoising and outer.attack.attack == MAP(denoising=denoising)
        ig = IGOptimalDefense(iterations=5)
        assert Adaptive(attack=ig, denoising=denoising).against([{"name": "posterior_mean"}]) == PosteriorMean(
            attack=ig, denoising=denoising
        )
        assert Adaptive(attack=ig).against([{"name": "posterior_mean"}]) == PosteriorMean(attack=ig)
        assert "denoising" not in Adaptive(attack=MAP()).parameters()


class TestIdentity:
    def test_holds_the_attack_inside(self) -> None:
        wrapper = Masked(attack=Imputed(attack=TAG(iterations=9), threshold=2))
        parameters = wrapper.parameters()
        tag = {"name": "tag", "version": TAG.version, **TAG(iterations=9).parameters()}
        assert parameters == {
            "attack": {
                "name": "imputed",
                "version": Imputed.version,
                "outliers": "mad",
                "threshold": 2.0,
                "value": "zero",
                "layers": [],
                "attack": tag,
            }
        }
        assert json.loads(json.dumps(parameters)) == parameters

    def test_tells_attacks_of_equal_parameters_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = Masked(attack=ECHO).parameters()
        assert Masked(attack=Echo(loud=True)).parameters() != before
        monkeypatch.setattr(Echo, "version", 8)
        versioned = Masked(attack=ECHO).parameters()
        monkeypatch.setattr(Echo, "name", "other")
        assert len({str(each) for each in (before, versioned, Masked(attack=ECHO).parameters())}) == 3

    @pytest.mark.parametrize(
        "wrapper", [Masked(attack=TAG(iterations=9)), Simulated(attack=Masked(attack=IGOptimalDefense()), draws=3)]
    )
    def test_goes_there_and_back(self, wrapper: Wrapper) -> None:
        assert type(wrapper)(**wrapper.parameters()) == wrapper


class TestInside:
    def test_by_name(self) -> None:
        found = Masked(attack={"name": "simulated", "draws": 2, "attack": {"name": "tag", "iterations": 3}})
        assert found == Masked(attack=Simulated(attack=TAG(iterations=3), draws=2))

    def test_reference_attackers_are_refused(self) -> None:
        with pytest.raises(ValidationError, match="'grey' is a reference attacker: it ignores what a wrapper would"):
            Masked(attack=Grey())
        with pytest.raises(ValidationError, match="'mean_image' is a reference attacker"):
            Adaptive(attack={"name": "mean_image"})

    @pytest.mark.parametrize("attack", ["tag", 3, None, []])
    def test_nonsense(self, attack: Any) -> None:
        with pytest.raises(ValidationError):
            Masked(attack=attack)
        with pytest.raises(UnknownName):
            Masked(attack={"name": "tga"})


class TestCheck:
    def test_what_fits(self, observations: Observations) -> None:
        observations.check()
        replace(observations, marked=None, weights=torch.ones_like(observations.gradients)).check()

    @pytest.mark.parametrize("name", ["parameters", "gradients", "marked", "weights"])
    def test_shapes(self, observations: Observations, name: str) -> None:
        rows = () if name == "parameters" else (3,)
        changes: dict[str, Any] = {name: torch.ones(*rows, 159)}
        with pytest.raises(ObservationError) as caught:
            replace(observations, **changes).check()
        assert str(caught.value) == f"{name} of shape {[*rows, 159]}; the model asks for {[*rows, 160]}"

    def test_numbers_of_rows(self, observations: Observations) -> None:
        with pytest.raises(ObservationError, match=r"marked of shape \[2, 160\]; the model asks for \[3, 160\]"):
            replace(observations, marked=torch.ones(2, 160, dtype=torch.bool)).check()

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    def test_values(self, observations: Observations, value: float) -> None:
        gradients = observations.gradients.clone()
        gradients[2, 7] = value
        with pytest.raises(ObservationError) as caught:
            replace(observations, gradients=gradients).check()
        said = "holds values that are not finite"
        assert str(caught.value) == f"observation 2 of 3 {said}; look at what the defense sends"
        gradients[0] = value
        with pytest.raises(ObservationError) as caught:
            replace(observations, gradients=gradients).check()
        assert str(caught.value) == f"observation 0 of 3 {said}, as do 1 others; look at what the defense sends"


def test_without_prior() -> None:
    """Penalties on what clean images are like go, whatever is around them; others stay."""
    kept = BatchNormStatistics(weight=0.1)
    regularisers = (TotalVariation(weight=0.1), kept, PixelBox(weight=1.0))
    search = IGOptimalDefense(iterations=9, regularisers=regularisers)
    free = search.without_prior()
    assert free == search.model_copy(update={"box": False, "regularisers": (kept,)}) and search.box
    assert Simulated(attack=Masked(attack=search), draws=3).without_prior() == Simulated(
        attack=Masked(attack=free), draws=3
    )
    assert Masked(attack=PostProcessed(attack=search)).without_prior() == Masked(attack=free)
    assert ECHO.without_prior() is ECHO
