"""Training runs side by side, against torch's own modules and optimiser, one run after the other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.gradients import BatchGradients, SampleGradients
from leakbench.federated.training import Start, Training, TrainingRuns, TrainingSet, train_runs
from leakbench.models.base import Model, Network, build_network
from leakbench.models.convnets import ConvNet, SimpleConvNet
from leakbench.randomness import Streams

RUNS, COUNT, SHAPE = 3, 10, (1, 9, 9)
TRAINING = Training(steps=7, batch_size=4, rate=0.1)  # epochs of 4, 4 and 2 images; it stops inside the third
MODELS: list[Model] = [SimpleConvNet(width=2), ConvNet(width=2)]
STREAMS = Streams([("training", run) for run in range(RUNS)])


def network_of(model: Model) -> Network:
    return build_network(model, SHAPE, 5, seed=0)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(RUNS, COUNT, *SHAPE, generator=draw), torch.randint(5, (RUNS, COUNT), generator=draw)


def starts(network: Network) -> torch.Tensor:
    return network.parameters * torch.tensor([1.0, 0.9, 1.1])[:, None]


def literal(
    network: Network, start: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, run: int, training: Training
) -> tuple[torch.nn.Module, list[float]]:
    """One run as one would write it by hand."""
    module = network.trainable_module()
    losses: list[float] = []
    torch.nn.utils.vector_to_parameters(start.clone(), module.parameters())
    optimiser = torch.optim.SGD(
        module.parameters(), lr=training.rate, momentum=training.momentum, weight_decay=training.weight_decay
    )
    for epoch in range(100):
        order = STREAMS.child("order", epoch).uniform(len(images))[run].argsort()
        for rows in order.split(training.batch_size):
            if len(losses) == training.steps:
                return module, losses
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(module(images[rows]), labels[rows])
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
    raise AssertionError


def assert_literal(found: TrainingRuns, run: int, module: torch.nn.Module, losses: list[float]) -> None:
    expected = torch.cat([part.detach().flatten() for part in module.parameters()])
    torch.testing.assert_close(found.models.parameters[run], expected, rtol=1e-4, atol=1e-5)
    buffers = {name: buffer for name, buffer in module.named_buffers() if "running" in name}
    assert set(found.models.statistics) == set(buffers)
    for name, buffer in buffers.items():
        torch.testing.assert_close(found.models.statistics[name][run], buffer, rtol=1e-4, atol=1e-5)
    assert found.curves[run].tolist() == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("together", [1, 2, None])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_run_is_that_of_torch(model: Model, together: int | None) -> None:
    network, (images, labels) = network_of(model), data()
    found = train_runs(
        Start(network, starts(network)),
        TrainingSet(images, labels),
        STREAMS,
        TRAINING,
        gradients=BatchGradients(together),
    )
    assert found.diverged_at.tolist() == [-1] * RUNS
    for run, start in enumerate(starts(network)):
        module, losses = literal(network, start, images[run], labels[run], run, TRAINING)
        assert_literal(found, run, module, losses)
        logits = module.eval()(images[run]).detach()
        torch.testing.assert_close(found.models.logits(images)[run], logits, rtol=1e-3, atol=1e-4)
        accuracy = (logits.argmax(dim=1) == labels[run]).float().mean()
        assert found.models.accuracy(images, labels)[run] == pytest.approx(float(accuracy))
    assert found.models.initial is not None and torch.equal(found.models.initial, starts(network))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_shared_images_and_start(model: Model) -> None:
    network, (images, labels) = network_of(model), data()
    found = train_runs(Start(network, network.parameters), TrainingSet(images[0], labels[0]), STREAMS, TRAINING)
    for run in range(RUNS):
        assert_literal(found, run, *literal(network, network.parameters, images[0], labels[0], run, TRAINING))
    assert not torch.allclose(found.models.parameters[0], found.models.parameters[1], atol=1e-3)  # other orders


def test_a_longer_run_passes_through_the_states_of_a_shorter_one() -> None:
    network, (images, labels) = network_of(MODELS[0]), data()
    longer, shorter = (
        train_runs(
            Start(network, network.parameters),
            TrainingSet(images, labels),
            STREAMS,
            TRAINING.model_copy(update={"steps": steps}),
        )
        for steps in (7, 4)
    )
    assert torch.equal(longer.curves[:, :4], shorter.curves)


def test_runs_on_some_of_the_images() -> None:
    network, (images, labels) = network_of(MODELS[0]), data()
    rows = torch.tensor([[0, 2, 4, 6, 8], [9, 3, 1, 5, 7], [0, 1, 2, 3, 4]])
    for inputs, targets in ((images, labels), (images[0], labels[0])):
        found = train_runs(Start(network, network.parameters), TrainingSet(inputs, targets, rows), STREAMS, TRAINING)
        for run in range(RUNS):
            own = [each[run] if each is images or each is labels else each for each in (inputs, targets)]
            start = network.parameters
            expected = literal(network, start, own[0][rows[run]], own[1][rows[run]], run, TRAINING)
            assert_literal(found, run, *expected)


@pytest.mark.parametrize("together", [1, 2])
def test_adam_is_that_of_torch(together: int) -> None:
    network, (images, labels) = network_of(MODELS[0]), data()
    training = Training(steps=5, batch_size=COUNT, optimiser="adam", rate=0.01, weight_decay=0.1)
    found = train_runs(
        Start(network, network.parameters),
        TrainingSet(images, labels),
        STREAMS,
        training,
        gradients=BatchGradients(together),
    )
    for run in range(RUNS):
        module = network.trainable_module()
        optimiser = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=0.1)
        for _ in range(5):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(images[run]), labels[run]).backward()
            optimiser.step()
        expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
        torch.testing.assert_close(found.models.parameters[run], expected, rtol=1e-3, atol=1e-4)


def test_no_steps() -> None:
    network, (images, labels) = network_of(MODELS[1]), data()
    found = train_runs(Start(network, network.parameters), TrainingSet(images, labels), STREAMS, Training(steps=0))
    assert torch.equal(found.models.parameters, network.parameters.expand(RUNS, -1))
    assert found.curves.shape == (RUNS, 0)


def test_a_run_depends_on_its_own_stream_and_data_alone() -> None:
    network, (images, labels) = network_of(MODELS[1]), data()
    together = train_runs(Start(network, starts(network)), TrainingSet(images, labels), STREAMS, TRAINING)
    for run in range(RUNS):
        part = slice(run, run + 1)
        alone = train_runs(
            Start(network, starts(network)[part]),
            TrainingSet(images[part], labels[part]),
            Streams(STREAMS.keys[part]),
            TRAINING,
        )
        assert torch.equal(alone.models.parameters[0], together.models.parameters[run])


def test_cumulative_averages_of_batch_norm_are_refused() -> None:
    layers = [torch.nn.Flatten(), torch.nn.BatchNorm1d(81, momentum=None), torch.nn.Linear(81, 5)]
    network, (images, labels) = Network(torch.nn.Sequential(*layers)), data()
    with pytest.raises(ConfigError, match=r"'1\.running_mean': cumulative averages"):
        train_runs(Start(network, network.parameters), TrainingSet(images, labels), STREAMS, TRAINING)


def test_batches_can_be_transformed() -> None:
    """Fresh noise at every step: every image is known by its row, and the noise by the step's streams."""
    network, (images, labels) = network_of(MODELS[0]), data()
    seen = []

    def transform(batch: torch.Tensor, targets: torch.Tensor, rows: torch.Tensor, streams: Streams) -> torch.Tensor:
        for run in range(RUNS):
            assert torch.equal(batch[run], images[run][rows[run]]) and torch.equal(targets[run], labels[run][rows[run]])
        seen.append((rows, streams.keys))
        return batch + streams.normal(*batch.shape[1:])

    found = train_runs(
        Start(network, network.parameters), TrainingSet(images, labels), STREAMS, TRAINING, transform=transform
    )
    assert [len(rows[0]) for rows, _ in seen] == [4, 4, 2, 4, 4, 2, 4]
    assert torch.equal(torch.cat([rows for rows, _ in seen[:3]], dim=1).sort(dim=1).values[0], torch.arange(COUNT))
    assert [keys for _, keys in seen] == [[(*key, "step", step) for key in STREAMS.keys] for step in range(7)]
    first = images[1][seen[0][0][1]] + STREAMS.child("step", 0).normal(4, *SHAPE)[1]
    expected = network.loss(network.parameters, first, labels[1][seen[0][0][1]])
    assert float(found.curves[1, 0]) == pytest.approx(float(expected), rel=1e-5)


@dataclass
class Clipped:
    """DP-SGD by the book, with a norm per run."""

    norms: torch.Tensor
    scale: float
    calls: int = 0

    def factors(self, norms: torch.Tensor, runs: slice) -> torch.Tensor:
        self.calls += 1
        return (self.norms[runs, None] / norms).clamp(max=1)

    def release(self, total: torch.Tensor, batch_size: int, streams: Streams, runs: slice) -> torch.Tensor:
        noise: torch.Tensor = self.scale * streams.normal(total.shape[1])
        return (total + noise) / batch_size


class TestSampleGradients:
    @pytest.mark.parametrize("together", [1, 2])
    def test_without_clipping_and_noise_nothing_changes(self, together: int) -> None:
        network, (images, labels) = network_of(MODELS[0]), data()
        plain = train_runs(Start(network, starts(network)), TrainingSet(images, labels), STREAMS, TRAINING)
        hook = Clipped(torch.full((RUNS,), 1e9), 0.0)
        found = train_runs(
            Start(network, starts(network)),
            TrainingSet(images, labels),
            STREAMS,
            TRAINING,
            gradients=SampleGradients(hook, together),
        )
        torch.testing.assert_close(found.models.parameters, plain.models.parameters, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.curves, plain.curves, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("together", [1, 2])
    @pytest.mark.parametrize("unknown", [(), ("StackedNetworks",), ("StackedNetworks", "LayeredNetwork")])
    def test_a_step_by_hand_in_parts(
        self, together: int, unknown: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for way in unknown:
            monkeypatch.setattr(f"leakbench.federated.gradients.{way}.of", lambda _: None)
        monkeypatch.setattr("leakbench.federated.gradients.MEMORY_BUDGET", 1)  # one sample at a time
        network, (images, labels) = network_of(MODELS[0]), data()
        training = Training(steps=1, batch_size=4, rate=0.5, weight_decay=0)
        norms = torch.tensor([0.1, 0.5, 2.0])
        hook = Clipped(norms, 0.3)
        found = train_runs(
            Start(network, network.parameters),
            TrainingSet(images, labels),
            STREAMS,
            training,
            gradients=SampleGradients(hook, together),
        )
        assert hook.calls == 4 * (3 if together == 1 else 2)
        noise = STREAMS.child("step", 0).normal(network.dimension)
        order = STREAMS.child("order", 0).uniform(COUNT).argsort(dim=1)[:, :4]
        for run in range(RUNS):
            total = 0.3 * noise[run]
            for row in order[run]:
                gradient = network.gradient(network.parameters, images[run, row, None], labels[run, row, None])
                total = total + gradient * min(1.0, float(norms[run] / gradient.norm()))
            torch.testing.assert_close(
                found.models.parameters[run], network.parameters - 0.5 * total / 4, rtol=1e-4, atol=1e-5
            )

    def test_batch_norm_mixes_samples(self) -> None:
        network, (images, labels) = network_of(MODELS[1]), data()
        with pytest.raises(Infeasible, match="per-sample gradients"):
            train_runs(
                Start(network, network.parameters),
                TrainingSet(images, labels),
                STREAMS,
                TRAINING,
                gradients=SampleGradients(Clipped(torch.ones(RUNS), 0.0)),
            )


@pytest.mark.parametrize("together", [1, 3])
def test_a_run_that_diverges_stops_alone(together: int) -> None:
    network, (images, labels) = network_of(MODELS[1]), data()
    start = starts(network)
    broken = images.clone()
    broken[1, STREAMS.child("order", 0).uniform(COUNT).argsort(dim=1)[1, 5]] = torch.inf  # seen in step 1
    found, good = (
        train_runs(
            Start(network, start), TrainingSet(inputs, labels), STREAMS, TRAINING, gradients=BatchGradients(together)
        )
        for inputs in (broken, images)
    )
    assert found.diverged_at.tolist() == [-1, 1, -1]
    assert found.curves[1].isnan().tolist() == [False] + [True] * 6
    assert bool(found.models.parameters.isfinite().all())
    assert all(bool(values.isfinite().all()) for values in found.models.statistics.values())
    torch.testing.assert_close(found.models.parameters[::2], good.models.parameters[::2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("parameters", "images", "labels", "name"),
    [((2, -1), (COUNT, *SHAPE), (COUNT,), "parameters"), ((-1,), (2, COUNT, *SHAPE), (COUNT,), "images")]
    + [((-1,), (COUNT, *SHAPE), labels, "labels") for labels in ((4,), (2, COUNT))],
)
def test_shapes_are_checked(
    parameters: tuple[int, ...], images: tuple[int, ...], labels: tuple[int, ...], name: str
) -> None:
    network = network_of(MODELS[0])
    with pytest.raises(ConfigError, match=f"3 runs: {name} of shape"):
        train_runs(
            Start(network, network.parameters.expand(parameters)),
            TrainingSet(torch.zeros(images), torch.zeros(labels, dtype=torch.int64)),
            STREAMS,
            TRAINING,
        )


def test_rows_and_large_batches_of_trained_models(monkeypatch: pytest.MonkeyPatch) -> None:
    network, (images, labels) = network_of(MODELS[1]), data()
    models = train_runs(Start(network, starts(network)), TrainingSet(images, labels), STREAMS, TRAINING).models
    whole, features = models.logits_and_features(images[0])
    assert whole.shape == (RUNS, COUNT, 5) and features.shape == (RUNS, COUNT, network.head.inputs)
    monkeypatch.setattr("leakbench.models.trained.MEMORY_BUDGET", 3 * 4 * 200 * 81)  # three images at a time
    torch.testing.assert_close(models.logits(images[0]), whole, rtol=1e-4, atol=1e-5)
    part = models.rows(1, 3)
    assert len(part) == 2 and part.initial is not None
    torch.testing.assert_close(part.logits(images[0]), whole[1:], rtol=1e-4, atol=1e-5)
