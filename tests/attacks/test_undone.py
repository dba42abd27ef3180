"""Undone changes of images: against covariance matrices spelt out, and where there is nothing to undo."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from leakbench.attacks.base import Attack, Knowledge, Mechanism, Observations, Reconstruction
from leakbench.attacks.undone import Undone
from leakbench.data.embedded import Digits
from leakbench.defenses.base import DEFENSES, Defense
from leakbench.defenses.clients import PublicMechanism, calibrated
from leakbench.defenses.transformations import TransformationSearch
from leakbench.federated.client_data import ClientData
from leakbench.models.base import build_network
from leakbench.models.linear import Linear
from leakbench.randomness import Streams

SIDE = 8
AUXILIARY = 60
EITHER_WAY = {"policies": [[7]]}  # a translation, up or down


class _Found(Attack):
    """An attack that ends at given images."""

    given: Any = None

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        return Reconstruction(self.given, None, torch.full((len(self.given),), -1))


def victims(count: int, defense: Defense) -> tuple[torch.Tensor, torch.Tensor, PublicMechanism, Knowledge]:
    """Images of two for each client, as they are and as the defense changed them, and the attacker's knowledge."""
    data = Digits(size=SIDE)
    auxiliary, held = data.load("train", range(AUXILIARY)), data.load("test", range(2 * count))
    clean, inputs = data.normalise(held.values).unflatten(0, (count, 2)), data.normalise(auxiliary.values)
    mechanism = PublicMechanism(calibrated(defense, ClientData(inputs[None])))
    streams = Streams([("victim", client) for client in range(count)])
    changed = mechanism.protected(clean, held.labels.unflatten(0, (count, 2)), streams)
    known = Knowledge(
        auxiliary_images=inputs,
        auxiliary_labels=auxiliary.labels,
        mechanism=[cast(Mechanism, mechanism)] * count,
        pixel_range=data.pixel_range(torch.device("cpu")),
    )
    return clean, changed, mechanism, known


def undone(changed: torch.Tensor, known: Knowledge, **parameters: Any) -> torch.Tensor:
    network = build_network(Linear(), (1, SIDE, SIDE), 10, seed=0)
    batch = (changed.shape[1], 1, SIDE, SIDE)
    seen = Observations(network, network.parameters, torch.zeros(len(changed), network.dimension), batch)
    attack = Undone.model_construct(attack=_Found.model_construct(given=changed), **{"draws": 8} | parameters)
    return attack.reconstruct(seen, known, Streams([("attacker", row) for row in range(len(changed))])).images


def test_victims_do_not_depend_on_who_is_attacked_beside_them() -> None:
    _, changed, _, known = victims(4, TransformationSearch.model_validate(EITHER_WAY))
    assert known.mechanism is not None
    alone = [undone(changed[row : row + 1], replace(known, mechanism=known.mechanism[:1])) for row in range(4)]
    torch.testing.assert_close(undone(changed, known), torch.cat(alone))


def test_images_of_users_are_undone_as_those_of_one_client() -> None:
    """The ways of changing an image are those of each user's mechanism."""
    _, changed, mechanism, known = victims(4, TransformationSearch.model_validate(EITHER_WAY))
    users = PublicMechanism(mechanism.defense, users=2)
    back = undone(changed, replace(known, mechanism=[users] * 4), draws=32)
    truth = undone(changed, known, draws=32)
    moved = (truth - changed).flatten(1).norm(dim=1)
    assert float(moved.max()) > 0.1
    assert float((back - truth).flatten(1).norm(dim=1).mean()) < 0.5 * float(moved.mean())


def test_by_covariance_matrices() -> None:
    """Image by image and draw by draw, in the whole space of pixels."""
    _, changed, mechanism, known = victims(4, TransformationSearch.model_validate(EITHER_WAY))
    assert known.auxiliary_images is not None and known.auxiliary_labels is not None
    ours = undone(changed, known, error=0.05)
    inputs = known.auxiliary_images.flatten(1).double().numpy()
    ways = []
    for draw in range(8):
        alike = Streams([("undone", draw)] * AUXILIARY)
        labels = known.auxiliary_labels[:, None]
        before = mechanism.protected(known.auxiliary_images[:, None], labels, alike).flatten(1).double().numpy()
        noise = 0.05 * inputs.var(axis=0, ddof=1).mean() * np.eye(SIDE**2)
        covariance = np.cov(before, rowvar=False, ddof=0) + noise
        crossed = (inputs - inputs.mean(axis=0)).T @ (before - before.mean(axis=0)) / AUXILIARY
        law = multivariate_normal(before.mean(axis=0), covariance)
        ways.append((law, before.mean(axis=0), crossed @ np.linalg.inv(covariance)))
    assert known.pixel_range is not None
    low, high = known.pixel_range.flatten().tolist()
    for actual, found in zip(ours.flatten(0, 1), changed.flatten(0, 1), strict=True):
        pixels = found.flatten().double().numpy()
        _, mean, back = max(ways, key=lambda way: way[0].logpdf(pixels))
        expected = inputs.mean(axis=0) + back @ (pixels - mean)
        assert actual.flatten().tolist() == pytest.approx(expected.clip(low, high).tolist(), abs=1e-4)


@pytest.mark.parametrize("parameters", [EITHER_WAY, {}, {"policies": [[0]]}])
def test_the_way_back_comes_nearer_to_the_images(parameters: dict[str, Any]) -> None:
    clean, changed, _, known = victims(16, TransformationSearch.model_validate(parameters))
    before, after = (float((each - clean).square().mean()) for each in (changed, undone(changed, known)))
    assert after < 0.6 * before


def test_images_that_were_not_changed_stay() -> None:
    _, changed, _, known = victims(3, DEFENSES.get("none")())
    assert torch.equal(undone(changed, known), changed)


def test_clients_under_other_settings_do_not_matter() -> None:
    _, changed, mechanism, known = victims(3, TransformationSearch.model_validate(EITHER_WAY))
    _, other, another, _ = victims(2, DEFENSES.get("none")())
    both = Knowledge(**vars(known) | {"mechanism": [mechanism] * 3 + [another] * 2})
    together = undone(torch.cat([changed, other]), both)
    torch.testing.assert_close(together[:3], undone(changed, known))
    assert torch.equal(together[3:], other)
