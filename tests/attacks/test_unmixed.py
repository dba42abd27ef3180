"""Mixtures taken apart: against all ways of mixing, and behind a search that finds mixtures and their labels."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakbench.attacks.adaptive import Adaptive, Masked
from leakbench.attacks.analytic import Analytic
from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.presets import DLGWolfe
from leakbench.attacks.tuned import Tuned
from leakbench.attacks.unmixed import Unmixed, counted, fitted, unmixed
from leakbench.data.embedded import Digits
from leakbench.defenses.clients import DefendedClients, Examples, calibrated
from leakbench.defenses.mixup import MixUp
from leakbench.errors import Infeasible
from leakbench.federated.client_data import ClientData
from leakbench.federated.step import ClientSteps
from leakbench.metrics.assignment import assign
from leakbench.models.base import build_network
from leakbench.models.lenet import LeNet
from leakbench.models.linear import Linear
from leakbench.randomness import Streams

DATA = Digits(size=8)


class _Found(Attack):
    """An attack that ends at given images and labels."""

    given: Any = None
    soft: Any = None

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        ended = torch.full((len(self.given),), -1)
        return Reconstruction(self.given, None, ended, probabilities=self.soft)


def victims(n: int, size: int) -> Examples:
    held = DATA.load("test", range(n * size))
    return Examples(DATA.normalise(held.values).unflatten(0, (n, size)), held.labels.unflatten(0, (n, size)))


def matrix(weight: float, order: tuple[int, ...]) -> torch.Tensor:
    one = torch.eye(len(order), dtype=torch.float64)
    return weight * one + (1 - weight) * one[list(order)]


def distance(found: torch.Tensor, images: torch.Tensor) -> float:
    """Largest error of an image ``[B, ...]`` to the nearest of those found, which are in any order."""
    apart = torch.cdist(images.flatten(1), found.flatten(1), p=torch.inf)
    return float(apart.amin(dim=1).max())


@pytest.mark.parametrize("labels", [[3, 1, 8, 0], [3, 1, 3, 0], [3, 3, 3, 0], [2, 2, 5, 5]])
def test_every_way_of_mixing_is_found(labels: list[int]) -> None:
    """Images of independent pixels, few of them far from zero, in all orders, with weights on both sides of a half."""
    images = torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(0)) ** 3
    classes = torch.tensor(labels)
    one = torch.nn.functional.one_hot(classes, 10).double()
    for weight, order in itertools.product((0.3, 0.65), itertools.permutations(range(4))):
        mixing = matrix(weight, order)
        mixtures = (mixing @ images.flatten(1).double()).view_as(images).float()
        found = fitted(mixing @ one, counted(mixing @ one))
        assert found.labels.tolist() == sorted(labels) and found.misfit < 1e-3
        traceless = torch.equal(classes, classes[list(order)])
        expected = mixtures if traceless else images
        assert distance(unmixed(mixtures, found, 1e-9), expected) < 1e-2, (weight, order)


def test_against_all_assignments_of_labels() -> None:
    """Noisy labels: the least squares of any weight and any two assignments, in words."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        labels = torch.randint(10, (3,), generator=generator).sort().values
        one = torch.nn.functional.one_hot(labels, 10).double()
        order = torch.randperm(3, generator=generator)
        mixed = matrix(0.8, tuple(order.tolist())) @ one + 0.02 * torch.randn(3, 10, generator=generator).double()
        found = fitted(mixed, labels)
        orders = [list(each) for each in itertools.permutations(range(3))]
        least = min(
            float((mixed - weight * one[heavier] - (1 - weight) * one[lighter]).square().sum())
            for weight in torch.linspace(0.5, 1, 101).tolist()
            for heavier in orders
            for lighter in orders
        )
        exact = found.weight * one[found.heavier] + (1 - found.weight) * one[found.lighter]
        assert float((mixed - exact).square().sum()) == pytest.approx(least)
        assert found.misfit == pytest.approx(least / float((exact - exact.mean(dim=0)).square().sum()))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.floats(0, 1), st.randoms(use_true_random=False))
def test_labels_are_counted(labels: list[int], weight: float, random: Any) -> None:
    order = list(range(len(labels)))
    random.shuffle(order)
    one = torch.nn.functional.one_hot(torch.tensor(labels), 5).double()
    assert counted(matrix(weight, tuple(order)) @ one).tolist() == sorted(labels)


@given(st.integers(1, 5), st.integers(0, 99), st.floats(1e-3, 10))
def test_the_mean_stays_and_large_errors_leave_nothing_else(size: int, seed: int, error: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    mixtures = torch.randn(size, 1, 3, 3, generator=generator)
    mixed = torch.rand(size, 10, generator=generator).double().softmax(dim=1)
    mixing = fitted(mixed, torch.randint(10, (size,), generator=generator).sort().values)
    found = unmixed(mixtures, mixing, error)
    torch.testing.assert_close(found.mean(dim=0), mixtures.mean(dim=0), rtol=0, atol=1e-4)
    if len(mixing.labels.unique()) == 1:
        assert found is mixtures
    else:
        flat = unmixed(mixtures, mixing, 1e9)
        torch.testing.assert_close(flat, mixtures.mean(dim=0, keepdim=True).expand_as(flat), rtol=0, atol=1e-4)


def observed(n: int, size: int) -> tuple[Examples, Examples, Observations, Streams]:
    """Clients' images, their mixtures, and what the server sees."""
    held, streams = victims(n, size), Streams([("unmixed", client) for client in range(n)])
    network = build_network(LeNet(), DATA.shape, DATA.classes, seed=1)
    defense = calibrated(MixUp(), ClientData(held.inputs, DATA.classes))
    mixed = DefendedClients(defense, streams, held).protect_data(held, streams)
    steps = ClientSteps(network, network.parameters, *mixed, streams)
    return held, mixed, Observations(network, network.parameters, steps.gradient, (size, *DATA.shape)), streams


def error(found: Reconstruction, images: torch.Tensor) -> torch.Tensor:
    """Mean squared error of each client's pixels, ``[n]``, whatever the order of its images."""
    pixels, truth = (DATA.denormalise(each.flatten(0, 1)).view_as(each) for each in (found.images, images))
    rows = torch.arange(len(images))[:, None]
    return (pixels.clamp(0, 1)[rows, assign(pixels, truth)] - truth).square().flatten(1).mean(dim=1)


@pytest.mark.parametrize("granted", [True, False])
def test_a_search_for_mixtures_and_labels_becomes_one_for_images(granted: bool) -> None:
    held, mixed, seen, streams = observed(4, 2)
    known = Knowledge(labels=held.labels if granted else None)
    attack = DLGWolfe.model_validate({"iterations": 120, "restarts": 2, "labels": "known" if granted else "joint"})
    adapted = Adaptive(attack=attack).against(MixUp().adaptive)
    assert isinstance(adapted, Unmixed) and adapted.needs == attack.needs
    assert adapted.effort(2) == attack.effort(2)
    plain = attack.model_copy(update={"labels": "joint"}).reconstruct(seen, known, streams)
    found = adapted.reconstruct(seen, known, streams)
    assert found.labels is not None and found.probabilities is None
    assert found.labels.tolist() == held.labels.sort(dim=1).values.tolist()
    hidden = error(Reconstruction(mixed.inputs, None, plain.diverged_at), held.inputs) > 1e-3
    assert 0 < int(hidden.sum()) < 4 or bool(hidden.all())
    assert float(error(found, held.inputs)[hidden].mean()) < 0.5 * float(error(plain, held.inputs)[hidden].mean())


def test_what_was_not_found_stays_as_it_is() -> None:
    held = victims(3, 2)
    soft = torch.nn.functional.one_hot(held.labels, 10).float()
    images = held.inputs.clone()
    images[1], soft[2] = torch.nan, torch.nan
    attack = Unmixed.model_construct(attack=_Found.model_construct(given=images, soft=soft), error=1e-9)
    network = build_network(Linear(), DATA.shape, 10, seed=0)
    seen = Observations(network, network.parameters, torch.zeros(3, network.dimension), (2, *DATA.shape))
    found = attack.reconstruct(seen, Knowledge(), Streams([("row", row) for row in range(3)]))
    assert distance(found.images[0], images[0]) < 1e-4
    assert found.images[1].isnan().all() and torch.equal(found.images[2], images[2])
    assert found.labels is not None and found.labels[0].tolist() == held.labels[0].sort().values.tolist()


@pytest.mark.parametrize("inside", [Analytic(), Masked(attack=DLGWolfe(iterations=1))], ids=lambda each: each.name)
def test_an_attack_without_mixed_labels_inside(inside: Attack) -> None:
    network = build_network(Linear(), DATA.shape, 10, seed=0)
    marked = torch.zeros(1, network.dimension, dtype=torch.bool)
    seen = Observations(network, network.parameters, torch.ones(1, network.dimension), (1, *DATA.shape), marked=marked)
    known = Knowledge(labels=torch.tensor([[3]]))
    if isinstance(inside, Masked):
        inside = inside.model_copy(update={"attack": DLGWolfe.model_validate({"iterations": 1, "labels": "known"})})
    with pytest.raises(Infeasible, match=f"'{inside.name}' does not; list gradient matching"):
        Unmixed(attack=inside).reconstruct(seen, known, Streams([("row", 0)]))


def test_it_is_one_of_several_strengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search alone has labels as probabilities, and mixtures that were taken apart have none."""
    held, _, seen, streams = observed(3, 2)
    inside = DLGWolfe(iterations=3)
    attack = Tuned.model_validate({"attack": Unmixed(attack=inside), "priors": [1], "rates": [1]})
    forms = [strength.attack.name for strength in attack.strengths]
    choice = [forms.index("dlg_wolfe"), forms.index("unmixed"), forms.index("dlg_wolfe")]
    monkeypatch.setattr(Tuned, "choose", lambda *_: choice)
    found = attack.reconstruct(seen, Knowledge(labels=held.labels), streams)
    for row, form in enumerate([inside, Unmixed(attack=inside), inside]):
        alone = form.reconstruct(seen, Knowledge(labels=held.labels), streams)
        torch.testing.assert_close(found.images[row], alone.images[row], rtol=1e-3, atol=1e-3)
    assert found.probabilities is None
