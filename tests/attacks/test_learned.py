"""Learned inversion: exact where the map is linear, blind to the truth, and never beside a mechanism of another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from sklearn.linear_model import Ridge

import leakbench.attacks.auxiliary as auxiliary
import leakbench.attacks.learned as learned
from leakbench.attacks.auxiliary import made_up, messages_of
from leakbench.attacks.base import Knowledge, Observations, observed
from leakbench.attacks.learned import RidgeInversion
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.clients import DefendedClients, Examples, PublicMechanism
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP
from leakbench.federated.message import DenseMessage, Message
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network, build_network
from leakbench.models.linear import Linear
from leakbench.randomness import Streams, generator

SHAPE = (1, 3, 3)
CLASSES = 3
VICTIMS = 4


class Projected(Defense):
    """Sends a linear map of the image alone, in the place of a gradient."""

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        size = steps.images[0].numel()
        matrix = torch.randn(size, steps.gradient.shape[1], generator=generator("projected"))
        return DenseMessage(5 + steps.images.flatten(1) @ matrix)


@pytest.fixture
def network() -> Network:
    return build_network(Linear(), SHAPE, classes=CLASSES, seed=0)


def victims(clients: int = VICTIMS) -> Examples:
    images = torch.rand(clients, 1, *SHAPE, generator=generator("victims"))
    return Examples(images, torch.arange(clients)[:, None] % CLASSES)


def streams(purpose: str, clients: int = VICTIMS) -> Streams:
    return Streams([("learned", client, purpose) for client in range(clients)])


def knowledge(*defenses: Defense, images: int = 40) -> Knowledge:
    copies = {id(defense): PublicMechanism(defense) for defense in defenses}
    return Knowledge(
        labels=victims(len(defenses)).labels,
        pixel_range=torch.tensor([0.0, 1.0]).view(2, 1, 1, 1),
        auxiliary_images=torch.rand(images, *SHAPE, generator=generator("auxiliary")),
        auxiliary_labels=torch.arange(images) % CLASSES,
        mechanism=[copies[id(defense)] for defense in defenses],
    )


def seen(network: Network, *defenses: Defense) -> Observations:
    """A client under each defense, with the images of :func:`victims`."""
    held = victims(len(defenses))
    messages = []
    for row, defense in enumerate(defenses):
        own = Streams([("learned", row, "defense")])

        def compute(batch: Examples, own: Streams = own) -> ClientSteps:
            return ClientSteps(network, network.parameters, batch.inputs, batch.labels, own)

        clients = DefendedClients(defense, own, Examples(*(part[row : row + 1] for part in held)))
        steps = clients.step(compute, own)
        messages.append(steps.message)
    return observed(network, network.parameters, messages, (1, *SHAPE), ONE_STEP)


def test_a_linear_map_is_inverted(network: Network) -> None:
    projected = Projected()
    defenses = [projected] * VICTIMS
    found = RidgeInversion().reconstruct(seen(network, *defenses), knowledge(*defenses), streams("attack"))
    torch.testing.assert_close(found.images, victims().inputs, atol=1e-3, rtol=0)
    assert found.objective is not None and float(found.objective.max()) < 1e-6
    assert found.labels is not None and torch.equal(found.labels, victims().labels)
    assert found.diverged_at.tolist() == [-1] * VICTIMS


def test_is_the_ridge_regression_of_scaled_messages(network: Network) -> None:
    noisy = GaussianNoise(scale=0.05)
    observations, known = seen(network, noisy), knowledge(noisy)
    attack, strength = RidgeInversion(images=30, draws=3), 0.1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learned, "STRENGTHS", (strength,))
        found = attack.reconstruct(observations, known, streams("attack", 1))
    assert known.labels is not None and known.auxiliary_images is not None and known.auxiliary_labels is not None
    some = replace(known, auxiliary_images=known.auxiliary_images[:30])
    thrice = replace(observations, repeats=observations.gradients[:, None].expand(-1, 3, -1))
    clients = made_up(thrice, some, streams("attack", 1), each=30, labels=known.labels)
    assert clients.observations.repeats is not None
    messages = clients.observations.repeats.double().mean(dim=1)
    weights = torch.where(known.auxiliary_labels[:30] == 0, 2.0, 1.0).double()
    centre = (weights / weights.sum()) @ messages
    scale = torch.cat([
        part.square().mean().rsqrt().expand(part.shape[1])
        for part in (messages - centre).split(list(network.sizes), dim=1)
    ])  # fmt: skip
    features = (messages - centre) * scale
    penalty = strength * float((weights[:, None] * features.square()).sum() / 30)
    theirs = Ridge(alpha=penalty, solver="svd").fit(
        features.numpy(), clients.images.flatten(1).numpy(), sample_weight=weights.numpy()
    )
    expected = theirs.predict(((observations.gradients - centre) * scale).numpy()).clip(0, 1)
    torch.testing.assert_close(found.images.flatten(1), torch.tensor(expected).float(), atol=1e-4, rtol=1e-4)


def test_pixels_are_valid(network: Network) -> None:
    projected = Projected()
    observations = replace(seen(network, projected), gradients=100 * torch.ones(1, network.dimension))
    found = RidgeInversion().reconstruct(observations, knowledge(projected), streams("attack", 1))
    assert float(found.images.min()) >= 0 and float(found.images.max()) <= 1


def test_each_victim_is_under_its_own_mechanism_and_beside_nobody(network: Network) -> None:
    most, noisy = MagnitudePruning(fraction=0.7), GaussianNoise(scale=0.1)
    defenses = [most, noisy, most, noisy]
    observations, known = seen(network, *defenses), knowledge(*defenses)
    together = RidgeInversion().reconstruct(observations, known, streams("attack"))
    assert known.mechanism is not None and known.labels is not None
    for row in range(VICTIMS):
        part = slice(row, row + 1)
        alone = RidgeInversion().reconstruct(
            replace(observations, gradients=observations.gradients[part]),
            replace(known, mechanism=known.mechanism[part], labels=known.labels[part]),
            Streams(streams("attack").keys[part]),
        )
        assert torch.equal(alone.images, together.images[part])
    swapped = replace(known, mechanism=[known.mechanism[1], *known.mechanism[1:]])
    other = RidgeInversion().reconstruct(observations, swapped, streams("attack"))
    assert not torch.equal(other.images[0], together.images[0]) and torch.equal(other.images[1:], together.images[1:])


def test_in_parts_it_learns_the_same(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = GaussianNoise(scale=0.1)
    images = []
    for together in (7, 256):
        monkeypatch.setattr(auxiliary, "MEMORY_BUDGET", 16 * together * network.dimension)
        attack = RidgeInversion(images=30)
        images.append(attack.reconstruct(seen(network, noisy), knowledge(noisy), streams("attack", 1)).images)
    torch.testing.assert_close(*images, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("defense", "draws"), [(GaussianNoise(scale=0.1), 3), (MagnitudePruning(fraction=0.5), 1)])
def test_what_is_random_is_drawn_several_times(
    network: Network, defense: Defense, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []

    def watched(*arguments: Any, **others: Any) -> Iterator[tuple[slice, torch.Tensor]]:
        for part, messages in messages_of(*arguments, **others):
            sent.append((len(messages), messages.shape[1]))
            yield part, messages

    for module in (learned, auxiliary):
        monkeypatch.setattr(module, "messages_of", watched)
    RidgeInversion(draws=3).reconstruct(seen(network, defense), knowledge(defense), streams("attack", 1))
    assert sent == [(1, 2), (40, draws)]


def test_it_reads_the_first_of_several_messages(network: Network) -> None:
    none = NoDefense()
    observations = seen(network, none)
    others = torch.stack([observations.gradients, torch.zeros_like(observations.gradients)], dim=1)
    one, several = (
        RidgeInversion().reconstruct(each, knowledge(none), streams("attack", 1)).images
        for each in (observations, replace(observations, repeats=others))
    )
    assert torch.equal(one, several)


def test_a_class_without_an_auxiliary_image(network: Network) -> None:
    projected = Projected()
    known = knowledge(projected)
    known = replace(known, auxiliary_labels=torch.ones(40, dtype=torch.int64))
    found = RidgeInversion().reconstruct(seen(network, projected), known, streams("attack", 1))
    torch.testing.assert_close(found.images, victims(1).inputs, atol=1e-3, rtol=0)


def test_where_it_cannot_run(network: Network) -> None:
    none = NoDefense()
    observations, known = seen(network, none), knowledge(none)
    assert RidgeInversion().needs == {"labels", "pixel_range", "auxiliary_images", "mechanism"}
    with pytest.raises(Infeasible, match="these clients hold 2 each"):
        RidgeInversion().reconstruct(replace(observations, batch_shape=(2, *SHAPE)), known, streams("attack", 1))
    with pytest.raises(Infeasible, match="1 is too few"):
        RidgeInversion().reconstruct(observations, knowledge(none, images=1), streams("attack", 1))
    models = network.parameters.expand(1, -1)
    with pytest.raises(Infeasible, match="one model at a time"):
        RidgeInversion().reconstruct(replace(observations, parameters=models), known, streams("attack", 1))
