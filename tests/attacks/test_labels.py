"""Labels from gradients: against literal per-row references, and on real images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from leakbench.attacks import labels as module
from leakbench.attacks.base import Observations
from leakbench.attacks.labels import Method, infer_labels
from leakbench.data.base import ImageDataset
from leakbench.data.embedded import Digits, Photos
from leakbench.errors import ConfigError
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.metrics.labels import label_accuracy
from leakbench.models.base import Model, Network, build_network
from leakbench.models.convnets import ConvNet, SimpleConvNet
from leakbench.models.linear import MLP, Linear
from leakbench.randomness import generator

METHODS: tuple[Method, ...] = ("idlg", "distinct", "repeated", "counts")
CLASSES = 10


class Victims:
    """A model, trained for some steps of SGD, and test images."""

    def __init__(self, data: ImageDataset, model: Model, steps: int = 0) -> None:
        self.shape = data.shape
        self.network = build_network(model, data.shape, CLASSES, seed=2)
        self.parameters = self.network.parameters
        train, test = data.load("train", range(32 * max(steps, 1))), data.load("test", range(300))
        for step in range(steps):
            rows = slice(32 * step, 32 * (step + 1))
            images = data.normalise(train.values[rows])
            self.parameters = self.parameters - 0.05 * self.network.gradient(
                self.parameters, images, train.labels[rows]
            )
        self.images, self.labels = data.normalise(test.values), test.labels

    def random(self, n: int, batch: int) -> torch.Tensor:
        """Indices of random images, ``[n, B]``."""
        return torch.randint(0, 300, (n, batch), generator=generator("labels", batch))

    def of_classes(self, classes: torch.Tensor) -> torch.Tensor:
        """Indices of images of these classes, each the next of its class: ``[n, B] -> [n, B]``."""
        order = self.labels.argsort(stable=True).split(self.labels.bincount(minlength=CLASSES).tolist())
        draws = torch.randint(0, 20, classes.shape, generator=generator("draws"))
        return torch.stack([rows[:20] for rows in order])[classes, draws]

    def observe(self, indices: torch.Tensor, local: LocalTraining = ONE_STEP) -> tuple[Observations, torch.Tensor]:
        """What the clients with these images send, and their labels."""
        truth = self.labels[indices]

        def update(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return local.update(self.network, self.parameters, images, labels)

        gradients = torch.func.vmap(update, chunk_size=8)(self.images[indices], truth)
        seen = Observations(self.network, self.parameters, gradients, (indices.shape[1], *self.shape), local)
        return seen, truth

    def accuracy(self, indices: torch.Tensor, method: Method, local: LocalTraining = ONE_STEP) -> torch.Tensor:
        observations, truth = self.observe(indices, local)
        return label_accuracy(infer_labels(observations, method), truth, CLASSES)


def invented(n: int, batch: int, *, bias: bool = True, steps: int = 1) -> Observations:
    """Random numbers for gradients of a small model: any method has to do what it says with them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hidden = torch.nn.Linear(16, 6)
        network = Network(
            torch.nn.Sequential(torch.nn.Flatten(), hidden, torch.nn.ReLU(), torch.nn.Linear(6, 7, bias=bias))
        )
    gradients = torch.randn(n, network.dimension, generator=generator("invented", batch))
    return Observations(network, network.parameters, gradients, (batch, 1, 4, 4), LocalTraining(steps=steps))


def head_of(observations: Observations, row: int) -> tuple[list[list[float]], list[float]]:
    """Gradients of the last layer's weights and biases, as lists."""
    named = observations.network.unflatten(observations.gradients[row])
    return named["3.weight"].tolist(), named["3.bias"].tolist() if "3.bias" in named else []


def idlg(observations: Observations, row: int) -> list[int]:
    weight, bias = head_of(observations, row)
    values = bias or [sum(line) for line in weight]
    return [values.index(min(values))]


def distinct(observations: Observations, row: int) -> list[int]:
    weight, _ = head_of(observations, row)
    smallest = [min(line) for line in weight]
    return sorted(sorted(range(len(smallest)), key=smallest.__getitem__)[: observations.batch_shape[0]])


def pick(values: list[float], negative: list[int], impact: float, batch: int) -> list[int]:
    """Algorithm 1 of LLG; where noise makes more than ``batch`` sums negative, the smallest count."""
    found = sorted(negative, key=values.__getitem__)[:batch]
    for label in found:
        values[label] -= impact
    while len(found) < batch:
        label = values.index(min(values))
        found.append(label)
        values[label] -= impact
    return sorted(found)


def repeated(observations: Observations, row: int) -> list[int]:
    weight, _ = head_of(observations, row)
    batch, sums = observations.batch_shape[0], [sum(line) for line in weight]
    negative = [label for label, value in enumerate(sums) if value < 0]
    impact = sum(sums[label] for label in negative) / batch * (1 + 1 / len(sums))
    return pick(sums, negative, impact, batch)


def counts(observations: Observations, row: int) -> list[int]:
    _, bias = head_of(observations, row)
    batch, steps = observations.batch_shape[0], observations.local.steps
    inputs = torch.randn(64, 1, 4, 4, generator=generator("label inference"))
    logits = observations.network.logits(observations.parameters, inputs)
    mean = (logits.exp() / logits.exp().sum(dim=1, keepdim=True)).mean(dim=0).tolist()
    left = [batch * (g / steps - p) for g, p in zip(bias, mean, strict=True)]
    return pick(left, [label for label, value in enumerate(bias) if value < 0], -1, batch)


REFERENCES: dict[Method, Callable[[Observations, int], list[int]]] = {
    "idlg": idlg,
    "distinct": distinct,
    "repeated": repeated,
    "counts": counts,
}


@pytest.mark.parametrize(
    ("method", "batch", "bias", "steps"),
    [
        ("idlg", 1, True, 1),
        ("idlg", 1, False, 1),
        ("distinct", 3, True, 1),
        ("distinct", 7, False, 1),
        *(("repeated", batch, batch % 2 == 0, 1) for batch in (1, 2, 5, 16)),
        *(("counts", batch, True, steps) for batch, steps in ((1, 1), (2, 3), (5, 1), (16, 4))),
    ],
)
def test_a_literal_reference_row_by_row(method: Method, batch: int, bias: bool, steps: int) -> None:
    observations = invented(40, batch, bias=bias, steps=steps)
    found = infer_labels(observations, method)
    assert found.dtype == torch.int64 and found.shape == (40, batch)
    assert found.tolist() == [REFERENCES[method](observations, row) for row in range(40)]


def test_llg_by_hand() -> None:
    """Row sums -3, -1, 1, 2, and 0: impact -4/4 * 6/5; first the negative classes, then twice the smallest."""
    network = Network(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1, 5)))
    gradients = torch.tensor([[-3.0, -1, 1, 2, 0, 0, 0, 0, 0, 0]])
    seen = Observations(network, network.parameters, gradients, (4, 1, 1, 1))
    assert infer_labels(seen, "repeated").tolist() == [[0, 0, 0, 1]]  # -3, -1.8, -0.6


@pytest.mark.parametrize("steps", [0, 10])
@pytest.mark.parametrize(
    ("data", "model"),
    [
        (Digits(), SimpleConvNet(width=8)),
        (Photos(), SimpleConvNet(width=8)),
        (Digits(), ConvNet(width=4)),
        (Photos(), ConvNet(width=4)),
        (Digits(), Linear()),
        (Photos(), Linear()),
        (Photos(), MLP(activation="sigmoid")),
    ],
    ids=lambda value: value.name,
)
def test_the_label_of_a_single_image_is_exact(data: ImageDataset, model: Model, steps: int) -> None:
    assert Victims(data, model, steps).accuracy(torch.arange(40)[:, None], "idlg").eq(1).all()


def test_idlg_without_a_bias_reads_the_weights() -> None:
    victims = Victims(Digits(), MLP(activation="sigmoid"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [torch.nn.Flatten(), torch.nn.Linear(784, 20), torch.nn.ReLU(), torch.nn.Linear(20, 10, bias=False)]
    victims.network = Network(torch.nn.Sequential(*layers))
    victims.parameters = victims.network.parameters
    assert victims.network.head.bias is None
    assert victims.accuracy(torch.arange(40)[:, None], "idlg").eq(1).all()


@pytest.mark.parametrize("batch", [4, 10])
def test_distinct_labels_of_an_untrained_network(batch: int) -> None:
    victims = Victims(Digits(), SimpleConvNet(width=16))
    order = torch.rand(30, CLASSES, generator=generator("classes")).argsort(dim=1)[:, :batch]
    accuracy = victims.accuracy(victims.of_classes(order), "distinct")
    assert accuracy.eq(1).float().mean() > 0.9


class TestRepeatedLabels:
    @pytest.mark.parametrize("data", [Digits(), Photos()], ids=lambda data: data.name)
    def test_random_batches_of_8(self, data: ImageDataset) -> None:
        victims = Victims(data, SimpleConvNet(width=16))
        indices = victims.random(40, 8)
        assert max(victims.labels[row].bincount().max() for row in indices) > 2
        assert self.guess(victims, indices) < 0.5
        assert victims.accuracy(indices, "repeated").mean() > 0.75
        assert victims.accuracy(indices, "counts").mean() > 0.95

    def test_batches_of_16_with_many_repeats(self) -> None:
        """Half of one class and a quarter of another, as Wainakh et al. have them."""
        victims = Victims(Digits(), SimpleConvNet(width=16))
        order = torch.rand(40, CLASSES, generator=generator("classes")).argsort(dim=1)
        rest = torch.randint(0, CLASSES, (40, 4), generator=generator("rest"))
        indices = victims.of_classes(torch.cat([order[:, :1].expand(-1, 8), order[:, 1:2].expand(-1, 4), rest], dim=1))
        assert self.guess(victims, indices) < 0.5
        assert victims.accuracy(indices, "repeated").mean() > 0.75
        assert victims.accuracy(indices, "counts").mean() > 0.95

    def test_more_labels_than_classes(self) -> None:
        """A class with no more than its share has a positive gradient: LLG misses it, and counting does not."""
        victims = Victims(Digits(), SimpleConvNet(width=16))
        indices = victims.random(40, 16)
        assert victims.accuracy(indices, "repeated").mean() > self.guess(victims, indices) + 0.05
        assert victims.accuracy(indices, "counts").mean() > 0.95

    @pytest.mark.parametrize(
        "local", [LocalTraining(steps=4, rate=0.05), LocalTraining(steps=4, rate=0.05, batch_size=2)]
    )
    def test_several_local_steps(self, local: LocalTraining) -> None:
        victims = Victims(Digits(), SimpleConvNet(width=8))
        indices = victims.random(20, 8)
        for method in ("repeated", "counts"):
            assert victims.accuracy(indices, method, local).mean() > 0.75, method

    def guess(self, victims: Victims, indices: torch.Tensor) -> float:
        guessed = torch.randint(0, CLASSES, (100, *indices.shape), generator=generator("guess"))
        truth = victims.labels[indices].expand_as(guessed)
        return float(label_accuracy(guessed.flatten(0, 1), truth.flatten(0, 1), CLASSES).mean())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 0.0])
def test_rows_without_meaning_leave_the_others_alone(method: Method, bad: float) -> None:
    observations = invented(6, 1 if method == "idlg" else 5)
    clean = infer_labels(observations, method)
    observations.gradients[2] = bad
    found = infer_labels(observations, method)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(found[others], clean[others])
    assert found.min() >= 0 and found.max() < 7 and torch.equal(found, found.sort(dim=1).values)


@pytest.mark.parametrize(
    ("method", "observations", "message"),
    [
        ("idlg", invented(1, 2), "there are 2; choose 'repeated'"),
        ("distinct", invented(1, 8), "8 images cannot have different labels out of 7; choose 'repeated'"),
        ("counts", invented(1, 2, bias=False), "bias, and it has none; choose 'repeated'"),
    ],
)
def test_a_method_that_does_not_fit(method: Method, observations: Observations, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        infer_labels(observations, method)


def test_the_dummies_of_counts_are_always_the_same() -> None:
    victims = Victims(Digits(), SimpleConvNet(width=2))
    observations, _ = victims.observe(torch.arange(4).view(2, 2))
    first = module._mean_softmax(observations)
    torch.rand(3)
    assert torch.equal(module._mean_softmax(observations), first)
    assert float(first.sum()) == pytest.approx(1)
