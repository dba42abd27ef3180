"""Membership attacks on models that learned random labels by heart, and on models that saw nothing."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch

from leakbench.attacks.released.base import MEMBERSHIP_ATTACKS, Labelled, MembershipAttack, joined, membership_split
from leakbench.attacks.released.four_branch import FourBranch
from leakbench.attacks.released.lira import LiRA
from leakbench.attacks.released.outputs import ModelOutputs
from leakbench.attacks.released.threshold import Threshold
from leakbench.errors import Infeasible
from leakbench.federated.training import Start, Training, TrainingSet, train_runs
from leakbench.metrics.membership import auc
from leakbench.models.base import build_network
from leakbench.models.convnets import ConvNet
from leakbench.models.linear import MLP
from leakbench.models.trained import TrainedModels
from leakbench.randomness import Streams

RUNS, COUNT, SHAPE, CLASSES = 2, 120, (1, 6, 6), 4
STREAMS = Streams([("membership", run) for run in range(RUNS)])
BY_HEART = Training(steps=120, batch_size=20, rate=0.1, weight_decay=0)
ATTACKS: list[MembershipAttack] = [
    FourBranch(epochs=15),
    Threshold(),
    LiRA(training=BY_HEART, shadows=4),
    LiRA(training=BY_HEART, shadows=4, variance="per_sample"),
]
QUICK: list[MembershipAttack] = [FourBranch(epochs=2), Threshold(), LiRA(training=Training(steps=5), shadows=2)]


def drawn(name: str) -> Labelled:
    images = Streams([(name,)]).normal(COUNT, *SHAPE)[0]
    return Labelled(images, (Streams([(name, "label")]).uniform(COUNT)[0] * CLASSES).long())


@cache
def victims() -> tuple[TrainedModels, TrainedModels, Labelled, Labelled, Labelled]:
    """Models that know the first set by heart, models before training; known members, non-members, candidates."""
    inside, outside = drawn("inside"), drawn("outside")
    network = build_network(MLP(width=32), SHAPE, CLASSES, seed=0)
    trained = train_runs(Start(network, network.parameters), TrainingSet(*inside), STREAMS, BY_HEART).models
    untrained = TrainedModels(network, network.parameters.expand(RUNS, -1), {}, network.parameters.expand(RUNS, -1))
    split = membership_split(COUNT, COUNT, STREAMS)
    members, nonmembers = inside.take(split.training_members), outside.take(split.training_nonmembers)
    candidates = joined(inside.take(split.members), outside.take(split.nonmembers), RUNS)
    return trained, untrained, members, nonmembers, candidates


MEMBER = torch.arange(2 * (COUNT // 3)) < COUNT // 3


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_what_was_learnt_by_heart_is_found(attack: MembershipAttack) -> None:
    trained, untrained, members, nonmembers, candidates = victims()
    assert bool((trained.accuracy(*drawn("inside")) == 1).all())
    found = auc(attack.score(trained, members, nonmembers, candidates, STREAMS), MEMBER)
    assert bool((found.value > 0.8).all()) and bool((found.low > 0.7).all())
    nothing = auc(attack.score(untrained, members, nonmembers, candidates, STREAMS), MEMBER, confidence=0.999)
    assert bool(((nothing.low <= 0.5) & (nothing.high >= 0.5)).all())


@pytest.mark.parametrize("attack", QUICK, ids=lambda attack: attack.name)
class TestEveryAttack:
    def test_runs_do_not_touch_each_other(self, attack: MembershipAttack) -> None:
        trained, _, members, nonmembers, candidates = victims()
        together = attack.score(trained, members, nonmembers, candidates, STREAMS)
        assert together.shape == (RUNS, len(MEMBER))
        for run in range(RUNS):
            part = slice(run, run + 1)
            inside, outside, asked = (
                Labelled(each[0][part], each[1][part]) for each in (members, nonmembers, candidates)
            )
            alone = attack.score(trained.rows(run, run + 1), inside, outside, asked, Streams(STREAMS.keys[part]))
            torch.testing.assert_close(alone[0], together[run], rtol=1e-3, atol=1e-4)

    def test_streams_decide(self, attack: MembershipAttack) -> None:
        trained, _, members, nonmembers, candidates = victims()
        first, again, other = (
            attack.score(trained, members, nonmembers, candidates, streams)
            for streams in (STREAMS, Streams(STREAMS.keys), STREAMS.child("other"))
        )
        assert torch.equal(first, again)
        assert torch.equal(first, other) == isinstance(attack, Threshold)

    def test_samples_shared_by_all_runs(self, attack: MembershipAttack) -> None:
        trained, *_ = victims()
        shared = [drawn("inside"), drawn("outside"), drawn("asked")]
        own = [Labelled(images.expand(RUNS, -1, -1, -1, -1), labels.expand(RUNS, -1)) for images, labels in shared]
        found, expected = (
            attack.score(trained, members, nonmembers, asked, STREAMS) for members, nonmembers, asked in (shared, own)
        )
        torch.testing.assert_close(found, expected)

    def test_candidates_do_not_touch_each_other(self, attack: MembershipAttack) -> None:
        trained, _, members, nonmembers, candidates = victims()
        some = Labelled(candidates.images[:, 10:30], candidates.labels[:, 10:30])
        found, every = (attack.score(trained, members, nonmembers, asked, STREAMS) for asked in (some, candidates))
        order = [scores.argsort(dim=1) for scores in (found, every[:, 10:30])]
        assert torch.equal(*order)  # LiRA's scale depends on all candidates
        if not isinstance(attack, LiRA):
            torch.testing.assert_close(found, every[:, 10:30], rtol=1e-4, atol=1e-4)


def test_the_registry() -> None:
    assert list(MEMBERSHIP_ATTACKS) == ["four_branch", "lira", "threshold"]
    assert MEMBERSHIP_ATTACKS.get("lira") is LiRA


def test_lira_needs_the_initial_parameters() -> None:
    trained, _, members, nonmembers, candidates = victims()
    target = TrainedModels(trained.network, trained.parameters)
    with pytest.raises(Infeasible, match="training started from"):
        ATTACKS[2].score(target, members, nonmembers, candidates, STREAMS)


def test_lira_by_hand() -> None:
    """One shadow model at a time, each from the seeds that name it."""
    trained, _, members, nonmembers, candidates = victims()
    training = Training(steps=20, rate=0.1)
    attack = LiRA(training=training, shadows=3, variance="per_sample")
    scores = attack.score(trained, members, nonmembers, candidates, STREAMS)
    network, run, asked = trained.network, 1, 50
    images, labels = (torch.cat([a[run], b[run]]) for a, b in zip(members, nonmembers, strict=True))
    said = []

    def scaled(parameters: torch.Tensor) -> float:
        logits = network.logits(parameters, candidates.images[run, asked, None])[0].double()
        p = float(logits.softmax(dim=0)[candidates.labels[run, asked]])
        return float(torch.tensor(p / (1 - p)).log())

    for shadow in range(3):
        streams = Streams([("membership", run, "shadow", shadow)])
        half = streams.child("half").uniform(len(images))[0].argsort()[: len(images) // 2]
        alone = train_runs(
            Start(network, network.parameters), TrainingSet(images, labels, half[None]), streams, training
        )
        said.append(scaled(alone.models.parameters[0]))
    expected = torch.tensor(said)
    score = (scaled(trained.parameters[run]) - expected.mean()) / expected.std()
    assert float(scores[run, asked]) == pytest.approx(float(score), rel=1e-2)


class TestModelOutputs:
    def test_against_autograd_one_sample_at_a_time(self) -> None:
        network = build_network(ConvNet(width=2), (1, 9, 9), CLASSES, seed=0)
        images = torch.randn(5, 1, 9, 9, generator=torch.Generator().manual_seed(0))
        labels = torch.tensor([0, 3, 1, 2, 3])
        target = train_runs(
            Start(network, network.parameters), TrainingSet(images, labels), STREAMS, Training(steps=3)
        ).models
        outputs = ModelOutputs.of(target, Labelled(images, labels))
        for run in range(RUNS):
            module = network.trainable_module().eval()
            torch.nn.utils.vector_to_parameters(target.parameters[run].clone(), module.parameters())
            for name, values in target.statistics.items():
                module.get_buffer(name).copy_(values[run])
            *_, weight, _ = module.parameters()
            for row in range(5):
                logits = module(images[row, None])
                loss = torch.nn.functional.cross_entropy(logits, labels[row, None])
                (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
                found = torch.outer(outputs.residual[run, row], outputs.features[run, row])
                torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(outputs.loss[run, row], loss.detach(), rtol=1e-4, atol=1e-5)
                p = logits.detach()[0].double().softmax(dim=0)[labels[row]]
                expected = (p / (1 - p)).log()
                torch.testing.assert_close(outputs.scaled_confidence[run, row].double(), expected, rtol=1e-3, atol=1e-4)

    def test_confidence_that_rounds_to_one(self) -> None:
        logits = torch.tensor([[[40.0, 0.0, 0.0], [0.0, 50.0, 0.0]]])
        outputs = ModelOutputs(logits, torch.zeros(1, 2, 1), torch.tensor([[0, 0]]))
        assert outputs.scaled_confidence[0].tolist() == pytest.approx([40 - 0.693147, -50], rel=1e-5)


class TestFourBranch:
    def test_layers(self) -> None:
        network, starts = FourBranch()._networks(
            ModelOutputs(torch.zeros(RUNS, 1, 10), torch.zeros(RUNS, 1, 84), torch.zeros(RUNS, 1, dtype=torch.int64)),
            STREAMS,
        )
        dense = [shape for name, shape in zip(network.names, network.shapes, strict=True) if len(shape) == 2]
        assert dense == [
            *[(128, 10), (64, 128), (128, 1), (64, 128), (128, 10), (64, 128)],
            *[(256, 5 * 42), (128, 256), (64, 128)],
            *[(256, 256), (128, 256), (64, 128), (2, 64)],
        ]
        assert network.shapes[network.names.index("gradient_image.0.weight")] == (1, 1, 5, 5)
        assert starts.shape == (RUNS, network.dimension) and not torch.equal(starts[0], starts[1])

    def test_dropped_inputs_have_no_influence(self) -> None:
        network, _ = FourBranch()._networks(
            ModelOutputs(torch.zeros(1, 1, 4), torch.zeros(1, 1, 6), torch.zeros(1, 1, dtype=torch.int64)),
            Streams(STREAMS.keys[:1]),
        )
        draw = torch.Generator().manual_seed(0)
        samples, masks = 3 * 4 + 1 + 6, [4, 1, 4, 24, 256, 256, 128, 64]
        rows = torch.randn(3, samples, generator=draw)
        ones = torch.ones(3, sum(masks))

        def judge(rows: torch.Tensor, *kept: torch.Tensor) -> torch.Tensor:
            return network.logits(network.parameters, torch.cat([rows, *kept], dim=1)[:, None, None])

        same = partial(torch.allclose, rtol=0, atol=1e-6)  # sums of other lengths round in other places
        assert same(judge(rows), judge(rows, ones))
        kept = ones.clone()
        kept[:, :2] = 0  # the first two ranked posteriors
        changed = rows.clone()
        changed[:, :2] += 5
        assert same(judge(rows, kept), judge(changed, kept))
        assert not same(judge(rows), judge(changed))
        last = ones.clone()
        last[:, -64:] = 0
        bias = network.unflatten(network.parameters)[network.names[-1]]
        torch.testing.assert_close(judge(rows, last), bias.expand(3, -1))


class TestSplit:
    def test_thirds(self) -> None:
        split = membership_split(20, 11, STREAMS)
        assert all(rows.shape == (RUNS, 3) for rows in split)
        for run in range(RUNS):
            for one, other, size in ((0, 2, 20), (1, 3, 11)):
                rows = torch.cat([split[one][run], split[other][run]]).tolist()
                assert len(set(rows)) == 6 and set(rows) <= set(range(size))
        assert not torch.equal(split.members[0], split.members[1])
        again = membership_split(20, 11, Streams(STREAMS.keys))
        assert all(torch.equal(one, other) for one, other in zip(split, again, strict=True))

    def test_taking_and_joining(self) -> None:
        shared = Labelled(torch.arange(5.0).view(5, 1, 1, 1), torch.arange(5))
        rows = torch.tensor([[4, 0], [2, 2]])
        taken = shared.take(rows)
        assert torch.equal(taken.labels, rows) and torch.equal(taken.images.flatten(1), rows.float())
        assert torch.equal(taken.take(torch.tensor([[1], [0]])).labels, torch.tensor([[0], [2]]))
        mixed = joined(shared, taken, 2)
        assert mixed.images.shape == (2, 7, 1, 1, 1)
        assert torch.equal(mixed.images.flatten(1).long(), mixed.labels)
        assert mixed.labels.tolist() == [[0, 1, 2, 3, 4, 4, 0], [0, 1, 2, 3, 4, 2, 2]]
        alike = joined(shared, shared, 2)
        assert alike.images.shape == (10, 1, 1, 1) and alike.labels.shape == (2, 10)
