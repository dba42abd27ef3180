"""Labels by a linear discriminant: against dense algebra and exhaustive search, and on messages that mislead others."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from leakbench.attacks import discriminant
from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.discriminant import SHRINKAGE, _learned, _most_parallel, discriminated
from leakbench.attacks.labels import infer_labels
from leakbench.attacks.most_probable import MAP
from leakbench.attacks.simulation import Likelihood
from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense
from leakbench.defenses.clients import PublicMechanism
from leakbench.defenses.error_feedback import GradDropWithResidual
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.pruning import RandomMask
from leakbench.defenses.quantised import SignSGD
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.federated.step import ClientSteps
from leakbench.metrics.labels import label_accuracy
from leakbench.models.base import build_network
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams, generator

CLASSES, BATCH, N = 10, 4, 12


def test_what_is_learned_is_that_of_dense_matrices() -> None:
    """Classes by least squares, and products in the inverse of the shrunk covariance, written out."""
    draws = generator("dense")
    counts = torch.nn.functional.one_hot(torch.randint(3, (40, 5), generator=draws), 3).sum(dim=1)
    messages = torch.randn(40, 60, generator=draws, dtype=torch.float64) + counts.double() @ torch.randn(
        3, 60, generator=draws, dtype=torch.float64
    )
    of_class = torch.linalg.lstsq(counts.double(), messages).solution
    left = messages - counts.double() @ of_class
    covariance = (1 - SHRINKAGE) * left.T @ left / 40 + SHRINKAGE * left.square().mean(dim=0).diag()
    expected = of_class @ covariance.inverse()
    products, gram = _learned(messages.clone(), counts)
    torch.testing.assert_close(products, expected)
    torch.testing.assert_close(gram, expected @ of_class.T)


def test_the_most_parallel_labels_are_those_of_an_exhaustive_search() -> None:
    """For all but few random problems: one exchange after the other may end early."""
    classes, batch, rows = 5, 4, 200
    draws = generator("parallel")
    vectors = torch.randn(classes, 8, generator=draws, dtype=torch.float64) + 0.5
    truth = torch.randint(classes, (rows, batch), generator=draws).sort(dim=1).values
    messages = vectors[truth].sum(dim=1) + torch.randn(rows, 8, generator=draws, dtype=torch.float64)
    found = _most_parallel(messages @ vectors.T, vectors @ vectors.T, torch.ones(classes).bool(), batch)
    every = torch.tensor(list(itertools.combinations_with_replacement(range(classes), batch)))
    sums = vectors[every].sum(dim=1)
    best = every[(messages @ sums.T / sums.norm(dim=1)).argmax(dim=1)]
    assert (found == best).all(dim=1).float().mean() > 0.97


def test_classes_that_are_not_there_are_never_named() -> None:
    inner, gram = torch.tensor([[1.0, 5.0, 2.0]]).double(), torch.eye(3).double()
    assert _most_parallel(inner, gram, torch.tensor([True, False, True]), 2).tolist() == [[0, 2]]
    assert _most_parallel(inner, gram, torch.tensor([True, True, True]), 1).tolist() == [[1]]


def seen_under(
    defense: Defense | None, local: LocalTraining = ONE_STEP
) -> tuple[Observations, Knowledge, torch.Tensor]:
    """Messages of clients with digits, what an attacker knows who has other digits, and the labels in truth."""
    data = Digits()
    network = build_network(LeNet(), data.shape, CLASSES, seed=3)
    test, train = data.load("test", range(300)), data.load("train", range(512))
    drawn = torch.randint(300, (N, BATCH), generator=generator("clients of a discriminant"))
    images, labels = data.normalise(test.values)[drawn], test.labels[drawn]
    streams = Streams([("clients", row) for row in range(N)])
    steps = ClientSteps(network, network.parameters, images, labels, streams, local)
    messages, mechanism = steps.gradient, None
    if defense is not None:
        messages = PublicMechanism(defense).simulate(steps, streams, streams.child("public")).view()
        mechanism = [PublicMechanism(defense)] * N
    seen = Observations(network, network.parameters, messages, (BATCH, *data.shape), local)
    auxiliary, bounds = data.normalise(train.values), torch.tensor([-3.0, 3.0]).view(2, 1, 1, 1)
    known = Knowledge(
        pixel_range=bounds, auxiliary_images=auxiliary, auxiliary_labels=train.labels, mechanism=mechanism
    )
    return seen, known, labels


def accuracy(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float(label_accuracy(found, truth, CLASSES).mean())


@pytest.mark.parametrize(
    ("defense", "least"),
    [
        (None, 0.99),
        (GaussianNoise(scale=0.05), 0.9),
        (RandomMask(probability=0.7), 0.95),
        (SignSGD(scale="mean_abs"), 0.95),
        (GradDropWithResidual(fraction=0.95), 0.9),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_labels_under_defenses(defense: Defense | None, least: float) -> None:
    """Where the rule for the bias names half of them wrong."""
    seen, known, truth = seen_under(defense)
    found = accuracy(discriminated(seen, known), truth)
    assert found >= least
    if defense is not None:
        assert found > accuracy(infer_labels(seen, "counts"), truth) + 0.1


def test_labels_after_several_local_steps() -> None:
    seen, known, truth = seen_under(None, LocalTraining(steps=2, rate=0.05, batch_size=2))
    assert accuracy(infer_labels(seen, "discriminant", known), truth) > 0.95


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_only_what_is_granted_counts(bad: float) -> None:
    """True labels change nothing; and a row that is not finite leaves the others alone."""
    seen, known, truth = seen_under(None)
    clean = discriminated(seen, known)
    assert torch.equal(discriminated(seen, replace(known, labels=truth)), clean)
    seen.gradients[2] = bad
    found = discriminated(seen, known)
    others = [row for row in range(N) if row != 2]
    assert torch.equal(found[others], clean[others]) and found.shape == (N, BATCH)
    with pytest.raises(Infeasible, match="none are granted"):
        discriminated(seen, Knowledge())
    models = replace(seen, parameters=seen.parameters.expand(N, -1))
    with pytest.raises(Infeasible, match="hold 12 models"):
        discriminated(models, known)


def test_a_wrapper_that_knows_the_mechanism_infers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The likelihood asks for labels, too, and the attack inside takes those that were inferred with the mechanism."""
    seen, known, truth = seen_under(GaussianNoise(scale=0.05))
    calls: list[Any] = []

    def watched(observations: Observations, knowledge: Knowledge) -> torch.Tensor:
        calls.append(knowledge.mechanism)
        return discriminant.discriminated(observations, knowledge)

    monkeypatch.setattr("leakbench.attacks.labels.discriminated", watched)
    inside = MAP(labels="discriminant", iterations=2)
    assert inside.needs == {"auxiliary_images", "pixel_range"} and not inside.several_models
    assert inside.auxiliary(5000) == 5000 and inside.effort(4).passes == 4 * (2 + discriminant.BATCHES)
    found = Likelihood(attack=inside).reconstruct(seen, known, seen_streams())
    assert calls == [known.mechanism] and found.labels is not None
    assert accuracy(found.labels, truth) > 0.9


def seen_streams() -> Streams:
    return Streams([("attacker", row) for row in range(N)])


def test_examples_are_batches_of_auxiliary_images() -> None:
    """By another way: messages of made-up clients that hold the batches which were drawn, one by one."""
    seen, known, _ = seen_under(SignSGD(scale="mean_abs"))
    assert known.auxiliary_images is not None and known.auxiliary_labels is not None and known.mechanism is not None
    drawn = torch.arange(discriminant.BATCHES * BATCH) % 512
    given = replace(
        known, auxiliary_images=known.auxiliary_images[drawn], auxiliary_labels=known.auxiliary_labels[drawn]
    )
    sent = discriminant._messages(seen, given, 0)
    for number in (0, 7):
        rows = drawn[number * BATCH : (number + 1) * BATCH]
        gradient = seen.network.gradient(seen.parameters, known.auxiliary_images[rows], known.auxiliary_labels[rows])
        assert ((sent[number] > 0) == (gradient >= 0)).double().mean() > 0.999
