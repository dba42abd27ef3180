"""Clients that attackers make up: they are defended as the victims are, and are none of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakbench.attacks.auxiliary import made_up
from leakbench.attacks.base import Knowledge, Observations, observed
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.clients import PublicMechanism
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP
from leakbench.federated.message import DenseMessage
from leakbench.models.base import Network, build_network
from leakbench.models.linear import Linear
from leakbench.randomness import Streams, generator

SHAPE = (1, 4, 4)
STREAMS = Streams([("test", row) for row in range(4)])


@pytest.fixture
def network() -> Network:
    return build_network(Linear(), SHAPE, classes=3, seed=0)


def seen(network: Network, parameters: torch.Tensor | None = None, messages: int = 1) -> Observations:
    model = network.parameters if parameters is None else parameters
    gradients = torch.randn(4, network.dimension, generator=generator("victims"))
    repeats = gradients[:, None].expand(-1, messages, -1) if messages > 1 else None
    return observed(network, model, [DenseMessage(gradients)], (2, *SHAPE), ONE_STEP, repeats=repeats)


def known(*defenses: Defense) -> Knowledge:
    copies = {id(defense): PublicMechanism(defense) for defense in defenses}
    images = torch.randn(12, *SHAPE, generator=generator("auxiliary"))
    return Knowledge(
        labels=torch.zeros(4, 2, dtype=torch.int64),
        auxiliary_images=images,
        auxiliary_labels=torch.arange(12) % 3,
        mechanism=[copies[id(defense)] for defense in defenses],
    )


def test_undefended_messages_are_the_gradients_of_auxiliary_images(network: Network) -> None:
    none = NoDefense()
    knowledge = known(none, none, none, none)
    clients = made_up(seen(network), knowledge, STREAMS, each=2, first=4)
    assert clients.victim.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert clients.knowledge.labels is not None and knowledge.auxiliary_images is not None
    for row in range(8):
        rows = [(4 + 2 * row + place) % 12 for place in range(2)]
        assert torch.equal(clients.images[row], knowledge.auxiliary_images[rows])
        assert clients.knowledge.labels[row].tolist() == [place % 3 for place in rows]
        expected = network.gradient(network.parameters, clients.images[row], clients.knowledge.labels[row])
        torch.testing.assert_close(clients.observations.gradients[row], expected)


def test_labels_are_the_attackers_to_choose(network: Network) -> None:
    none = NoDefense()
    labels = torch.tensor([[0, 1], [2, 2], [1, 0], [0, 0]])
    clients = made_up(seen(network), known(none, none, none, none), STREAMS, each=2, labels=labels)
    assert clients.knowledge.labels is not None
    assert torch.equal(clients.knowledge.labels, labels[clients.victim])
    expected = network.gradient(network.parameters, clients.images[3], labels[1])
    torch.testing.assert_close(clients.observations.gradients[3], expected)


def test_parts_are_those_of_a_whole(network: Network) -> None:
    """Clients that begin at a later image have its randomness."""
    noisy = GaussianNoise(scale=1.0)
    knowledge = known(noisy, noisy, noisy, noisy)
    whole = made_up(seen(network), knowledge, STREAMS, each=3).observations.gradients[:3]
    single, alone = replace(seen(network), gradients=torch.zeros(1, network.dimension)), known(noisy)
    for number in range(3):
        (part,) = made_up(single, alone, Streams(STREAMS.keys[:1]), 1, 2 * number).observations.gradients
        torch.testing.assert_close(part, whole[number])


def test_each_is_under_the_mechanism_and_the_model_of_its_observation(network: Network) -> None:
    half, most = MagnitudePruning(fraction=0.5), MagnitudePruning(fraction=0.9)
    models = torch.stack([network.parameters * scale for scale in (1.0, 0.5, 2.0, 0.1)])
    clients = made_up(seen(network, models), known(most, half, most, half), STREAMS, each=1)
    assert clients.victim.tolist() == [0, 2, 1, 3]
    assert clients.knowledge.labels is not None and clients.knowledge.mechanism is not None
    for row, of in enumerate(clients.victim.tolist()):
        mechanism = clients.knowledge.mechanism[row]
        assert isinstance(mechanism, PublicMechanism) and mechanism.defense is (most if of in (0, 2) else half)
        gradient = network.gradient(models[of], clients.images[row], clients.knowledge.labels[row])
        sent = clients.observations.gradients[row]
        kept = sent != 0
        assert int(kept.sum()) == network.dimension - int(network.dimension * (0.9 if of in (0, 2) else 0.5))
        torch.testing.assert_close(sent[kept], gradient[kept])


def test_all_mechanisms_get_the_same_images(network: Network) -> None:
    none, noisy = NoDefense(), GaussianNoise(scale=1.0)
    both = made_up(seen(network), known(none, noisy, none, noisy), STREAMS, each=2, first=10)
    assert both.victim.tolist() == [0, 0, 2, 2, 1, 1, 3, 3]
    assert torch.equal(both.images[:4], both.images[4:])
    one = made_up(seen(network).at([1, 3]), known(none, noisy, none, noisy).at([1, 3]), STREAMS.at([1, 3]), 2, first=10)
    assert torch.equal(one.observations.gradients, both.observations.gradients[4:])


def test_each_message_has_fresh_noise(network: Network) -> None:
    noisy = GaussianNoise(scale=1.0)
    clients = made_up(seen(network, messages=3), known(noisy, noisy, noisy, noisy), STREAMS, each=1)
    repeats = clients.observations.repeats
    assert repeats is not None and repeats.shape == (4, 3, network.dimension)
    assert torch.equal(repeats[:, 0], clients.observations.gradients)
    assert not torch.equal(repeats[:, 0], repeats[:, 1])
    assert not torch.equal(repeats[0] - repeats[0, :1], repeats[1] - repeats[1, :1])


def test_a_defense_of_images_protects_them(network: Network) -> None:
    class Black(Defense):
        def protect_data(
            self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros_like(images), labels

    black = Black()
    clients = made_up(seen(network), known(black, black, black, black), STREAMS, each=1)
    assert clients.knowledge.labels is not None
    expected = network.gradient(network.parameters, torch.zeros(2, *SHAPE), clients.knowledge.labels[0])
    torch.testing.assert_close(clients.observations.gradients[0], expected)
    assert clients.images.any()


def test_knowledge_of_the_victims_is_not_carried_over(network: Network) -> None:
    """Each field that is about single observations is that of the made-up clients, and only kinds that are granted."""
    noisy = GaussianNoise(scale=0.5)
    knowledge = known(noisy, noisy, noisy, noisy)
    clients = made_up(seen(network), knowledge, STREAMS, each=3)
    assert clients.knowledge.granted() == knowledge.granted()
    assert clients.knowledge.noise_variance is None


@pytest.mark.parametrize("lacking", ["auxiliary_images", "auxiliary_labels", "mechanism"])
def test_it_needs_images_and_the_mechanism(network: Network, lacking: str) -> None:
    none = NoDefense()
    with pytest.raises(Infeasible, match="auxiliary images and the mechanism"):
        made_up(seen(network), replace(known(none, none, none, none), **{lacking: None}), STREAMS, each=1)


def test_later_rounds_are_under_their_models(network: Network) -> None:
    none = NoDefense()
    second = seen(network, network.parameters + 0.1)
    clients = made_up(replace(seen(network), later=(second,)), known(none, none, none, none), STREAMS, each=1)
    (later,) = clients.observations.later
    assert clients.knowledge.labels is not None
    for row in range(4):
        expected = network.gradient(network.parameters + 0.1, clients.images[row], clients.knowledge.labels[row])
        torch.testing.assert_close(later.gradients[row], expected)


def test_later_rounds_draw_afresh(network: Network) -> None:
    noisy = GaussianNoise(scale=1.0)
    clients = made_up(
        replace(seen(network), later=(seen(network),)), known(noisy, noisy, noisy, noisy), STREAMS, each=1
    )
    assert not torch.equal(clients.observations.gradients, clients.observations.later[0].gradients)
