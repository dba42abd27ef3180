"""Attackers who choose an attack's strength on clients of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from leakbench.attacks.adaptive import Adaptive, Masked
from leakbench.attacks.base import ATTACKS, Attack, Knowledge, Observations, Reconstruction, observed
from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.attacks.noisy_images import PosteriorMean
from leakbench.attacks.objectives import L2
from leakbench.attacks.one_image import OneImage
from leakbench.attacks.optimisers import LBFGS, Adam, StaircaseAdam
from leakbench.attacks.post_processing import PostProcessed
from leakbench.attacks.presets import DLG, ROG, DLGWolfe, IGOptimalDefense, TAGText
from leakbench.attacks.reference import Grey
from leakbench.attacks.regularisers import PixelBox, TotalVariation
from leakbench.attacks.simulation import Likelihood, Simulated
from leakbench.attacks.tuned import Tuned
from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.clients import PublicMechanism
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.quantised import QSGD
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP
from leakbench.federated.message import DenseMessage, Message
from leakbench.federated.step import ClientSteps
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.runner import Placement, compute
from leakbench.models.base import MODELS, Network, build_network
from leakbench.models.linear import Linear
from leakbench.randomness import Streams, generator
from leakbench.records import Record

SHAPE = (1, 4, 4)


class Says(Defense):
    """Send one number in the place of every coordinate."""

    number: float

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return DenseMessage(torch.full_like(steps.gradient, self.number))


class Echo(Attack):
    """Images that are as bright as the message says, times a factor."""

    factor: float = 1.0

    def varied(self, prior: float, rate: float) -> Attack:
        return self.model_copy(update={"factor": prior * self.factor})

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        images = self.factor * observations.gradients[:, :1, None, None, None].expand(-1, *observations.batch_shape)
        return Reconstruction(images, None, torch.full((len(images),), -1), knowledge.labels)


def echo() -> Attack:
    Echo.name, Echo.version = "echo", 1
    return Echo()


@pytest.fixture
def network() -> Network:
    return build_network(Linear(), SHAPE, classes=3, seed=0)


def bright(level: float = 0.6, count: int = 12) -> torch.Tensor:
    """Images of one level, with a black and a white pixel, which say what the range is."""
    images = torch.full((count, *SHAPE), level)
    images[:, 0, 0, :2] = torch.tensor([0.0, 1.0])
    return images


def known(mechanisms: Sequence[Defense], batch: int = 1) -> Knowledge:
    """Knowledge of observations under these mechanisms; equal ones are one object."""
    copies = {id(defense): PublicMechanism(defense) for defense in mechanisms}
    return Knowledge(
        labels=torch.zeros(len(mechanisms), batch, dtype=torch.int64),
        pixel_range=torch.tensor([0.0, 1.0]).view(2, 1, 1, 1),
        auxiliary_images=bright(),
        auxiliary_labels=torch.arange(12) % 3,
        mechanism=[copies[id(defense)] for defense in mechanisms],
    )


def seen(network: Network, gradients: torch.Tensor, batch: int = 1) -> Observations:
    return observed(network, network.parameters, [DenseMessage(gradients)], (batch, *SHAPE), ONE_STEP)


def streams(count: int) -> Streams:
    return Streams([("tuned", row) for row in range(count)])


class TestChoice:
    RIGHT, LOW, HIGH = Says(number=0.6), Says(number=0.06), Says(number=6.0)

    @pytest.mark.parametrize("batch", [1, 2])
    def test_every_mechanism_gets_the_strength_that_is_best_for_it(self, network: Network, batch: int) -> None:
        """Victims' messages say something else: their choice is that of the clients that the attacker makes up."""
        mechanisms = [self.LOW, self.RIGHT, self.HIGH, self.LOW, self.RIGHT]
        gradients = torch.randn(5, network.dimension, generator=generator("victims"))
        found = Tuned(attack=echo()).reconstruct(seen(network, gradients, batch), known(mechanisms, batch), streams(5))
        factors = torch.tensor([10.0, 1.0, 0.1, 10.0, 1.0])
        expected = (factors * gradients[:, 0])[:, None, None, None, None].expand(-1, batch, *SHAPE)
        torch.testing.assert_close(found.images, expected)
        assert found.chosen["chosen_prior"].tolist() == [10.0, 1.0, 0.1, 10.0, 1.0]
        assert found.chosen["chosen_rate"].tolist() == [1.0] * 5

    def test_nothing_of_the_victims_but_their_model_plays_a_part(self, network: Network) -> None:
        mechanisms = [GaussianNoise(scale=1.0)] * 3
        attack = Tuned(attack=GradientMatching(**QUICK), priors=(0.01, 1.0, 100.0))
        choices = {
            tuple(attack.choose(seen(network, gradients), replace(known(mechanisms), labels=labels), streams(3)))
            for gradients, labels in (
                (torch.zeros(3, network.dimension), torch.zeros(3, 1, dtype=torch.int64)),
                (torch.randn(3, network.dimension, generator=generator("others")), torch.ones(3, 1).long()),
            )
        }
        assert len(choices) == 1

    def test_a_mechanism_chooses_the_same_whatever_stands_beside_it(self, network: Network) -> None:
        noisy, clear = GaussianNoise(scale=0.3), NoDefense()
        attack = Tuned(attack=GradientMatching(**QUICK), priors=(0.01, 1.0, 100.0), made_up=2)
        gradients = torch.randn(4, network.dimension, generator=generator("victims"))
        mixed = attack.reconstruct(seen(network, gradients), known([clear, noisy, clear, noisy]), streams(4))
        for mechanism, rows in ((clear, [0, 2]), (noisy, [1, 3])):
            alone = attack.reconstruct(seen(network, gradients[rows]), known([mechanism] * 2), streams(4).at(rows))
            assert alone.chosen["chosen_prior"].tolist() == mixed.chosen["chosen_prior"][rows].tolist()
            torch.testing.assert_close(alone.images, mixed.images[rows], rtol=1e-3, atol=1e-3)

    def test_each_victim_is_attacked_as_by_the_attack_that_was_chosen(self, network: Network) -> None:
        models = torch.stack([network.parameters * scale for scale in (1.0, 0.5, 2.0)])
        gradients = torch.randn(3, network.dimension, generator=generator("victims"))
        observations = replace(seen(network, gradients), parameters=models)
        knowledge = known([NoDefense(), self.HIGH, NoDefense()])
        attack = Tuned(attack=DLGWolfe(iterations=5, labels="known", regularisers=(TotalVariation(weight=0.1),)))
        assert attack.several_models
        found = attack.reconstruct(observations, knowledge, streams(3))
        for row, factor in enumerate(found.chosen["chosen_prior"].tolist()):
            inside = attack.attack.varied(factor, 1.0)
            alone = inside.reconstruct(observations.at([row]), knowledge.at([row]), streams(3).at([row]))
            torch.testing.assert_close(found.images[row], alone.images[0], rtol=1e-3, atol=1e-3)

    def test_images_are_compared_in_the_order_that_suits(self, network: Network) -> None:
        """An attack that finds the images of a batch backwards is exact, and one that finds their mean is not."""

        class Backwards(Echo):
            def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
                found = super().reconstruct(observations, knowledge, streams)
                assert knowledge.auxiliary_images is not None
                pairs = knowledge.auxiliary_images.unflatten(0, (-1, 2))[: len(observations)]
                if self.factor == 1:
                    return replace(found, images=pairs.flip(1))
                return replace(found, images=pairs.mean(dim=1, keepdim=True).expand_as(pairs))

        Backwards.name, Backwards.version = "backwards", 1
        images = torch.rand(12, *SHAPE, generator=generator("auxiliary"))
        pairs = images.unflatten(0, (-1, 2))[:2]
        assert (pairs.flip(1) - pairs).square().mean() > (pairs.mean(dim=1, keepdim=True) - pairs).square().mean()
        knowledge = replace(known([NoDefense()] * 2, 2), auxiliary_images=images)
        attack = Tuned(attack=Backwards(), priors=(2.0, 1.0))
        found = attack.reconstruct(seen(network, torch.zeros(2, network.dimension), 2), knowledge, streams(2))
        assert found.chosen["chosen_prior"].tolist() == [1.0, 1.0]

    def test_one_image_for_a_batch_is_compared_with_its_mean(self, network: Network) -> None:
        attack = Tuned(attack=OneImage(attack=echo()))
        gradients = torch.zeros(2, network.dimension)
        found = attack.reconstruct(seen(network, gradients, 3), known([self.HIGH] * 2, 3), streams(2))
        assert found.chosen["chosen_prior"].tolist() == [0.1, 0.1] and found.images.shape[1] == 1

    def test_lost_clients_count_as_errors_of_the_whole_range(self, network: Network) -> None:
        class Lost(Echo):
            def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
                found = super().reconstruct(observations, knowledge, streams)
                return replace(found, images=found.images * torch.nan) if self.factor == 1 else found

        Lost.name, Lost.version = "lost", 1
        gradients = torch.zeros(2, network.dimension)
        found = Tuned(attack=Lost()).reconstruct(seen(network, gradients), known([self.RIGHT] * 2), streams(2))
        assert found.chosen["chosen_prior"].tolist() == [10.0, 10.0]  # white is nearer than black

    def test_one_strength_leaves_nothing_to_choose(self, network: Network) -> None:
        """No client is made up."""
        attack = Tuned(attack=DLGWolfe(iterations=3))
        assert len(attack.strengths) == 1
        observations = seen(network, torch.randn(2, network.dimension, generator=generator("victims")))
        found = attack.reconstruct(observations, Knowledge(), streams(2))
        plain = attack.attack.reconstruct(observations, Knowledge(), streams(2))
        assert torch.equal(found.images, plain.images)


QUICK: dict[str, Any] = {
    "objective": {"kind": "cosine"},
    "optimiser": {"kind": "adam", "rate": 0.1},
    "regularisers": [{"kind": "total_variation", "weight": 0.1}],
    "iterations": 4,
}


class TestStrengths:
    def weights(self, attack: Attack) -> list[float]:
        while not isinstance(attack, GradientMatching):
            attack = attack.attack  # type: ignore[attr-defined]
        return [part.weight for part in attack.regularisers]

    def test_weights_and_steps_of_gradient_matching(self) -> None:
        parts = (TotalVariation(weight=0.1), PixelBox(weight=2.0))
        attack = IGOptimalDefense(regularisers=parts).varied(10, 0.5)
        assert isinstance(attack, IGOptimalDefense) and self.weights(attack) == [1.0, 20.0]
        assert attack.optimiser == Adam(rate=0.1, signed=True, decay="steps")
        assert StaircaseAdam(rate=0.2).times(2).rate == 0.4
        assert LBFGS(rate=1.0).times(0.5).rate == 0.5

    def test_a_line_search_has_no_step_size(self) -> None:
        attack = GradientMatching(objective=L2(), optimiser=LBFGS(line_search="strong_wolfe"), iterations=1)
        assert attack.varied(3, 3) == attack
        assert len(Tuned(attack=attack, rates=(0.1, 1, 10)).strengths) == 1
        assert len(Tuned(attack=DLG(), rates=(0.1, 1, 10)).strengths) == 3

    @pytest.mark.parametrize("wrapper", ["masked", "simulated", "likelihood", "robust", "one_image", "post_processed"])
    def test_wrappers_forward_them(self, wrapper: str) -> None:
        inside = GradientMatching(**QUICK)
        attack = ATTACKS.get(wrapper)(**{"attack": inside if wrapper == "robust" else Masked(attack=inside)})
        varied = attack.varied(0.5, 2)
        assert self.weights(varied) == [0.05] and type(varied) is type(attack)
        assert self.weights(attack) == [0.1]

    def test_a_denoiser_has_a_prior_too(self) -> None:
        attack = PosteriorMean(attack=GradientMatching(**QUICK), error=0.2).varied(10, 1)
        assert isinstance(attack, PosteriorMean) and attack.error == 2.0 and self.weights(attack) == [1.0]

    def test_a_denoiser_and_the_plain_attack_are_joined(
        self, network: Network, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Some victims get the one, some the other, whose reconstructions know of no noise."""
        attack = Tuned(attack=PosteriorMean(attack=echo()), priors=(1.0,))
        monkeypatch.setattr(Tuned, "choose", lambda *_: [0, 1])
        knowledge = replace(known([NoDefense()] * 2), data_noise=[torch.ones(16)] * 2)
        parts = [strength.attack for strength in attack.strengths]
        victims = seen(network, torch.tensor([[0.3], [0.6]]).expand(-1, network.dimension))
        alone = [part.reconstruct(victims, knowledge, streams(2)).images for part in parts]
        joint = attack.reconstruct(victims, knowledge, streams(2)).images
        torch.testing.assert_close(joint, torch.stack([alone[0][0], alone[1][1]]))
        assert not torch.equal(alone[0], alone[1])

    def test_what_knows_the_defense_is_left_out_of_the_plain_attack(self) -> None:
        inside = GradientMatching(**QUICK)
        assert Masked(attack=Likelihood(attack=inside)).ignorant == inside
        assert OneImage(attack=Masked(attack=inside)).ignorant == OneImage(attack=inside)
        refined = Masked(attack=PostProcessed(attack=Simulated(attack=ROG())))
        assert refined.ignorant == PostProcessed(attack=ROG())
        tried = [
            (each.prior, each.wrappers, type(each.attack)) for each in Tuned(attack=Masked(attack=inside)).strengths
        ]
        assert tried == [
            *((factor, 1, Masked) for factor in (0.1, 1, 10)),
            *((factor, 0, GradientMatching) for factor in (0.1, 1, 10)),
        ]
        assert len(Tuned(attack=Masked(attack=inside), plain=False).strengths) == 3
        assert len(Tuned(attack=inside).strengths) == 3

    def test_the_plain_attack_wins_where_wrappers_do_harm(self, network: Network) -> None:
        class Harm(Masked):
            def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
                return replace(observations, gradients=torch.zeros_like(observations.gradients))

        Harm.name, Harm.version = "harm", 1
        gradients = torch.rand(2, network.dimension, generator=generator("victims"))
        attack = Tuned(attack=Harm(attack=echo()))
        found = attack.reconstruct(seen(network, gradients), known([Says(number=0.6)] * 2), streams(2))
        assert found.chosen["chosen_wrappers"].tolist() == [0.0, 0.0]
        assert torch.equal(found.images[:, 0, 0, 0, 0], gradients[:, 0])

    def test_it_adapts_to_the_defense(self) -> None:
        attack = Tuned(attack=Adaptive(attack=GradientMatching(**QUICK)))
        against = attack.against(QSGD.adaptive)
        assert isinstance(against, Tuned) and isinstance(against.attack, Likelihood)
        assert isinstance(attack.against(()), Tuned) and against.needs == {"auxiliary_images", "mechanism", "labels"}

    def test_evaluations_on_clients_of_its_own_are_counted(self) -> None:
        inside = GradientMatching(**QUICK)
        assert inside.effort(3) == (12, 4)
        assert Tuned(attack=inside).effort(3) == (4 * 12, 4 * 4)
        assert Tuned(attack=Masked(attack=inside), made_up=5).effort(3) == ((6 * 5 + 1) * 12, 7 * 4)
        assert Tuned(attack=DLGWolfe(iterations=4)).effort(3) == (12, 4)


class TestRefusals:
    def test_it_is_the_outermost(self) -> None:
        inside = Tuned(attack=DLG())
        for wrapper in (Masked, Adaptive, OneImage, Tuned):
            with pytest.raises(ValidationError, match="'tuned' goes around other wrappers"):
                wrapper(attack=inside)

    def test_reference_attackers(self) -> None:
        with pytest.raises(ValidationError, match="'grey' is a reference attacker"):
            Tuned(attack=Grey())

    @pytest.mark.parametrize("given", [{"priors": ()}, {"priors": (-1,)}, {"rates": (0,)}, {"made_up": 0}])
    def test_numbers(self, given: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            Tuned(attack=DLG(), **given)

    def test_sentences(self, network: Network) -> None:
        with pytest.raises(Infeasible, match="clients that hold images; 'tag_text' is of text"):
            Tuned(attack=TAGText()).reconstruct(
                seen(network, torch.zeros(1, network.dimension)), Knowledge(), streams(1)
            )

    @pytest.mark.parametrize("lacking", ["auxiliary_images", "mechanism"])
    def test_without_images_or_the_mechanism(self, network: Network, lacking: str) -> None:
        knowledge = replace(known([NoDefense()]), **{lacking: None})
        with pytest.raises(Infeasible, match="auxiliary images and the mechanism"):
            Tuned(attack=echo()).reconstruct(seen(network, torch.zeros(1, network.dimension)), knowledge, streams(1))


GRANTED = ("labels", "pixel_range", "auxiliary_images", "mechanism")
SMALL = {"name": "ig_optimal_defense", "iterations": 3, "regularisers": [{"kind": "total_variation", "weight": 0.1}]}


def run(levels: list[int], seeds: tuple[int, ...], knowledge: Any = GRANTED, inside: Any = SMALL) -> Findings | Record:
    parameters = {"attack": {"name": "adaptive", "attack": inside}, "priors": (0.01, 1, 100)}
    job = Job(
        scale="test",
        paper="test",
        experiment="tuned",
        dataset=Variant("digits", Digits, {"size": 8}, {}),
        model=Variant("lenet", MODELS.get("lenet"), {"width": 4}, {}),
        defense=Variant("qsgd", QSGD, {}, {"levels": levels}),
        attack=Variant("tuned", Tuned, parameters, {}),
        kind=AttackJob(clients=2, batch_size=1, knowledge=knowledge, auxiliary=16),
        part="all",
        seeds=seeds,
    )
    return compute(job, Placement("cpu").resolve())


class TestJobs:
    def test_records_show_the_choice_which_no_other_setting_changes(self) -> None:
        """Seeds are attacked together and choose together; settings do not see each other."""
        both, one = run([63, 1], (0, 1)).replicates, run([1], (0, 1)).replicates
        for together, alone in zip([each for each in both if each.setting["levels"] == 1], one, strict=True):
            assert together.metrics == alone.metrics
            assert together.metrics["chosen_prior"] == one[0].metrics["chosen_prior"]
            assert set(Tuned.chooses) <= set(together.metrics)

    def test_what_it_needs_must_be_granted(self) -> None:
        (replicate,) = run([1], (0,), knowledge=("labels", "pixel_range")).replicates
        assert replicate.outcome.status == "infeasible"
        assert "needs auxiliary_images, mechanism" in str(replicate.outcome.reason)
