"""Model inversion against torch's own Adam, one class and one run at a time."""

from __future__ import annotations

import pytest
import torch

from leakbench.attacks.released.base import MODEL_INVERSIONS, Inversion
from leakbench.attacks.released.inversion import MeanStart
from leakbench.federated.training import Start, Training, TrainingSet, train_runs
from leakbench.models.base import Model, build_network
from leakbench.models.convnets import ConvNet
from leakbench.models.linear import Linear
from leakbench.models.trained import TrainedModels
from leakbench.randomness import Streams

SHAPE, CLASSES, RUNS = (1, 9, 9), 4, 3
LABELS = torch.arange(CLASSES)


def scene(model: Model) -> tuple[TrainedModels, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    images, labels = torch.randn(40, *SHAPE, generator=draw), torch.randint(CLASSES, (40,), generator=draw)
    network = build_network(model, SHAPE, CLASSES, seed=0)
    streams = Streams([("inversion", run) for run in range(RUNS)])
    training = Training(steps=20, batch_size=16, rate=0.05)
    return train_runs(
        Start(network, network.parameters), TrainingSet(images, labels), streams, training
    ).models, images[:7] + 0.2


def test_a_linear_model_is_inverted() -> None:
    target, auxiliary = scene(Linear())
    before = MeanStart(iterations=0).invert(target, auxiliary, LABELS)
    assert torch.equal(before.images, auxiliary.mean(dim=0).expand(RUNS, CLASSES, *SHAPE))
    found = MeanStart().invert(target, auxiliary, LABELS)
    assert float(before.loss.min()) > 0.3 and float(found.loss.max()) < 0.01
    assert not torch.allclose(found.images[0], found.images[1], atol=1e-3)
    logits = target.logits(found.images)
    assert torch.equal(logits.argmax(dim=2), LABELS.expand(RUNS, -1))


@pytest.mark.parametrize("model", [Linear(), ConvNet(width=2)], ids=lambda model: model.name)
class TestSideBySide:
    def test_every_trial_is_that_of_torch(self, model: Model) -> None:
        target, auxiliary = scene(model)
        found = MeanStart(iterations=5).invert(target, auxiliary, LABELS)
        for run in (0, 2):
            module = target.network.trainable_module().eval()
            torch.nn.utils.vector_to_parameters(target.parameters[run].clone(), module.parameters())
            for name, values in target.statistics.items():
                module.get_buffer(name).copy_(values[run])
            for label in (1, 3):
                image = auxiliary.mean(dim=0)[None].clone().requires_grad_()
                optimiser = torch.optim.Adam([image], lr=1e-2)
                for _ in range(5):
                    optimiser.zero_grad()
                    torch.nn.functional.cross_entropy(module(image), torch.tensor([label])).backward()
                    optimiser.step()
                torch.testing.assert_close(found.images[run, label], image.detach()[0], rtol=1e-3, atol=1e-4)
                loss = torch.nn.functional.cross_entropy(module(image), torch.tensor([label])).detach()
                torch.testing.assert_close(found.loss[run, label], loss, rtol=1e-3, atol=1e-4)

    def test_neither_classes_nor_runs_depend_on_what_is_beside_them(self, model: Model) -> None:
        target, auxiliary = scene(model)
        attack = MeanStart(iterations=5)
        every = attack.invert(target, auxiliary, LABELS)
        some: Inversion = attack.invert(target.rows(1, 3), auxiliary, torch.tensor([3, 0]))
        for one, other in zip(some, every, strict=True):
            torch.testing.assert_close(one, other[1:][:, [3, 0]], rtol=1e-3, atol=1e-4)

    def test_a_run_that_is_not_finite_leaves_the_others_alone(self, model: Model) -> None:
        target, auxiliary = scene(model)
        parameters = target.parameters.clone()
        parameters[1] = torch.nan
        broken = TrainedModels(target.network, parameters, target.statistics)
        found, good = (MeanStart(iterations=3).invert(each, auxiliary, LABELS) for each in (broken, target))
        assert bool(found.loss[1].isnan().all()) and bool(found.images[1].isnan().all())
        torch.testing.assert_close(found.images[::2], good.images[::2])


def test_the_registry() -> None:
    assert list(MODEL_INVERSIONS) == ["mean_start"] and MODEL_INVERSIONS.get("mean_start") is MeanStart
