"""Defended clients: the verbs of a defense in their order, round after round."""

from __future__ import annotations

import pytest
import torch
from pydantic import Field

from leakbench.defenses.base import ClientState, Defense, Round
from leakbench.defenses.channel import NaturalChannel
from leakbench.defenses.clients import DefendedClients, Examples, calibrated
from leakbench.defenses.noise import GaussianNoise
from leakbench.errors import Infeasible
from leakbench.federated.client_data import ClientData
from leakbench.federated.message import DenseMessage, Message
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network, build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.randomness import Streams

CLIENTS = 4


class Counting(Defense):
    """Add the number of the round and what the client sent before; the client remembers what it sent."""

    name = "counting"
    version = 1

    def initial_state(self, steps: ClientSteps) -> ClientState:
        return {"sent": torch.zeros_like(steps.gradient)}

    def protect_round(self, steps: ClientSteps, round: Round) -> tuple[Message, ClientState]:
        sent = steps.gradient + round.number + round.state["sent"]
        return DenseMessage(sent), {"sent": sent}


class PublicMask(Defense):
    """Send half of the coordinates, which everyone knows and which a server's clients share."""

    name = "public_mask"
    version = 1
    fraction: float = Field(0.5, ge=0, le=1, description="coordinates that are dropped")

    def protect_round(self, steps: ClientSteps, round: Round) -> tuple[Message, ClientState]:
        kept = round.public.uniform(steps.gradient.shape[1]) >= self.fraction
        return DenseMessage(steps.gradient * kept, marked=~kept), round.state


@pytest.fixture(scope="module")
def network() -> Network:
    return build_network(SimpleConvNet(width=2), (1, 8, 8), 10, seed=3)


@pytest.fixture(scope="module")
def samples() -> Examples:
    draws = torch.Generator().manual_seed(1)
    return Examples(torch.randn(CLIENTS, 6, 1, 8, 8, generator=draws), torch.randint(10, (CLIENTS, 6), generator=draws))


def streams(*name: str | int) -> Streams:
    return Streams([("test", "client", client, *name) for client in range(CLIENTS)])


def steps_of(network: Network, batch: Examples) -> ClientSteps:
    return ClientSteps(network, network.parameters, *batch, streams())


def test_verbs_in_order(network: Network, samples: Examples) -> None:
    channel = calibrated(NaturalChannel(kappa=5), ClientData(samples.inputs))
    clients = DefendedClients(channel, streams(), samples)
    expected, labels = channel.protect_dataset(*samples, streams().child("data"))
    assert torch.equal(clients.samples.inputs, expected)
    sent = clients.step(lambda batch: steps_of(network, batch), streams("step", 0, "defense"))
    assert torch.equal(sent.message.view(), steps_of(network, Examples(expected, labels)).gradient)
    assert torch.equal(sent.steps.images, expected)


def test_noise_is_that_of_the_mechanism_alone(network: Network, samples: Examples) -> None:
    noise = GaussianNoise(scale=0.1)
    clients = DefendedClients(noise, streams())
    steps = steps_of(network, samples)
    found = clients.send(steps, streams("step", 0, "defense")).view()
    assert torch.equal(found, noise.protect_update(steps, streams("step", 0, "defense")).view())


def test_data_are_looked_at_only_where_a_defense_asks(samples: Examples) -> None:
    noise = GaussianNoise(scale=0.1)
    assert calibrated(noise, None) is noise  # type: ignore[arg-type]
    with pytest.raises(Infeasible, match="has seen no data"):
        DefendedClients(NaturalChannel(kappa=5), streams(), samples)


def test_state_goes_from_round_to_round(network: Network, samples: Examples) -> None:
    steps = steps_of(network, samples)
    clients = DefendedClients(Counting(), streams())
    first, second, third = (clients.send(steps, streams(number)).view() for number in range(3))
    assert torch.equal(first, steps.gradient)
    assert torch.equal(second, steps.gradient + 1 + first)
    assert torch.equal(third, steps.gradient + 2 + second)
    assert torch.equal(Counting().protect_update(steps, streams()).view(), first)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_restored_clients_go_on(rounds: int, network: Network, samples: Examples) -> None:
    steps = steps_of(network, samples)
    whole = DefendedClients(Counting(), streams())
    killed = DefendedClients(Counting(), streams())
    for number in range(rounds):
        assert torch.equal(whole.send(steps, streams(number)).view(), killed.send(steps, streams(number)).view())
    resumed = DefendedClients(Counting(), streams())
    resumed.restore(killed.state())
    for number in range(rounds, 4):
        assert torch.equal(whole.send(steps, streams(number)).view(), resumed.send(steps, streams(number)).view())


def test_public_randomness_is_of_a_server_and_a_round(network: Network, samples: Examples) -> None:
    steps = steps_of(network, samples)
    clients = DefendedClients(PublicMask(), streams(), per_server=2)
    masks = [clients.send(steps, streams("step", number)).marked for number in range(2)]
    first, second = (mask for mask in masks if mask is not None)
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    assert not torch.equal(first[0], second[0])


def test_servers_average_their_clients(network: Network, samples: Examples) -> None:
    steps = steps_of(network, samples)
    clients = DefendedClients(GaussianNoise(scale=0.0), streams(), per_server=2)
    found = clients.aggregate(clients.send(steps, streams()))
    assert torch.equal(found, steps.gradient.unflatten(0, (2, 2)).mean(dim=1))
