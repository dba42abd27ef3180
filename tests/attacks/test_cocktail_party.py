"""Unmixing of a fully connected layer's gradient: against a literal loop, with and without the negentropy."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.test_analytic import layers, observe, refused, tied, victims

from leakbench.attacks.adaptive import Masked
from leakbench.attacks.base import ATTACKS, Knowledge, Observations, Reconstruction
from leakbench.attacks.cocktail_party import NORMAL, CocktailParty, CocktailPartyAsReleased, scaled, whitened
from leakbench.attacks.optimisers import Adam
from leakbench.data.embedded import Digits, Photos
from leakbench.federated.local import LocalTraining
from leakbench.models.base import Network, build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.linear import MLP, Linear
from leakbench.randomness import Streams


def attack(observations: Observations, cocktail: CocktailParty) -> Reconstruction:
    streams = Streams([("cocktail", row) for row in range(len(observations))])
    return cocktail.reconstruct(observations, Knowledge(), streams)


def errors(result: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Root mean squared error of each image ``[n, B]`` to the nearest reconstruction, which are in any order."""
    nearest: torch.Tensor = torch.cdist(images.flatten(2), result.flatten(2)).amin(dim=2)
    return nearest.div(images[0, 0].numel() ** 0.5)


def independent(n: int, batch: int, side: int = 16) -> torch.Tensor:
    """Images of independent, uniform pixels, of which no prior on images knows anything."""
    return torch.rand(n, batch, 1, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 0.7


def literal(seen: Observations, row: int, settings: CocktailParty) -> torch.Tensor:
    """The images of a client by the steps of the authors' code, with the negentropy of Hyvarinen and Oja."""
    batch, layer = seen.batch_shape[0], seen.network.first_linear
    assert layer is not None and layer.bias is not None
    gradient = seen.gradients[row].double()
    mixtures, slopes = layer.weights(gradient), gradient[layer.bias]
    mean = mixtures.mean(dim=1, keepdim=True)
    centred = mixtures - mean
    values, vectors = torch.linalg.eigh(centred @ centred.T / (centred.shape[1] - 1))
    strongest = values.argsort(descending=True)[:batch]
    whitening = vectors[:, strongest].T / values[strongest].sqrt()[:, None]
    # Signs of eigenvectors are free: as those of the signals that are searched.
    whitening = (
        whitening * ((whitening @ mixtures) * whitened(mixtures[None], batch)[0]).sum(dim=1, keepdim=True).sign()
    )
    white = whitening @ centred
    w_hat = torch.eye(batch, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([w_hat], lr=settings.optimiser.rate)
    for _ in range(settings.iterations):
        rows = w_hat / w_hat.norm(dim=1, keepdim=True)
        signals = rows @ white
        negentropy = -((torch.log(torch.cosh(signals)).mean(dim=1) - NORMAL) ** 2).mean()
        if settings.form == "as_released":
            negentropy = torch.tensor(0.0)
        images = (signals + rows @ whitening @ mean).view(seen.batch_shape)
        alike = (torch.exp((rows @ rows.T).abs() * settings.temperature) - 1).mean()
        smooth = images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()
        loss = settings.negentropy * negentropy + settings.decorrelation * alike + settings.total_variation * smooth
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    rows = (w_hat / w_hat.norm(dim=1, keepdim=True)).detach()
    unmixed = rows @ whitening @ mixtures
    mixing = torch.linalg.lstsq(unmixed.T, mixtures.T).solution.T
    factors = torch.linalg.lstsq(mixing, slopes[:, None]).solution
    result: torch.Tensor = (unmixed / factors).view(seen.batch_shape)
    return result


@pytest.mark.parametrize("form", ["corrected", "as_released"])
def test_it_equals_a_literal_loop(form: str) -> None:
    images, labels = victims(Photos(size=16), n=2, batch=3)
    seen = observe(build_network(MLP(width=30), (3, 16, 16), 10, seed=0), images, labels)
    settings = CocktailParty.model_validate({"iterations": 30, "form": form, "total_variation": 0.5})
    result = attack(seen, settings).images
    for row in range(2):
        torch.testing.assert_close(result[row], literal(seen, row, settings).float(), rtol=0, atol=5e-3)


def test_the_negentropy_is_what_unmixes_independent_signals() -> None:
    """Without prior, the released form stays where it begins, at the whitened mixtures."""
    images = independent(2, 4)
    labels = torch.arange(8).view(2, 4)
    seen = observe(build_network(MLP(width=60), (1, 16, 16), 10, seed=0), images, labels)
    forms = [
        CocktailParty.model_validate(
            {"total_variation": 0, "negentropy": 100, "decorrelation": 0.1, "iterations": 300, "form": form}
        )
        for form in ("corrected", "as_released")
    ]
    corrected, released = (attack(seen, form).images for form in forms)
    assert errors(corrected, images).max() < 0.25 < 0.3 < errors(released, images).mean()
    layer = seen.network.first_linear
    assert layer is not None and layer.bias is not None
    mixtures, slopes = layer.weights(seen.gradients.double()), seen.gradients.double()[:, layer.bias]
    start = scaled(whitened(mixtures, 4), mixtures, slopes)
    torch.testing.assert_close(released.flatten(2), start.float(), rtol=0, atol=1e-4)


def test_the_presets_are_apart() -> None:
    images, labels = victims(Photos(size=16), n=1, batch=3)
    seen = observe(build_network(MLP(width=30), (3, 16, 16), 10, seed=0), images, labels)
    released = CocktailPartyAsReleased(iterations=20)
    without = CocktailParty.model_validate({**released.parameters(), "form": "corrected", "negentropy": 0})
    corrected = CocktailParty.model_validate({**released.parameters(), "form": "corrected", "negentropy": 50})
    assert torch.equal(attack(seen, released).images, attack(seen, without).images)
    assert not torch.allclose(attack(seen, released).images, attack(seen, corrected).images, atol=1e-3)
    assert ATTACKS.get("cocktail_party") is CocktailParty and CocktailParty().form == "corrected"
    assert ATTACKS.get("cocktail_party_as_released")().parameters() == {
        "form": "as_released",
        "negentropy": 1.0,
        "total_variation": 3.1,
        "decorrelation": 1.47,
        "temperature": 12.4,
        "optimiser": {"kind": "adam", "rate": 0.001, "signed": False, "decay": "none"},
        "iterations": 25_000,
    }


@pytest.mark.parametrize(
    "local", [LocalTraining(), LocalTraining(steps=3, rate=0.5), LocalTraining(steps=4, batch_size=2)]
)
def test_scale_and_sign_follow_from_the_biases(local: LocalTraining) -> None:
    """Signals that are the images but for a factor give these back, after any local steps: all mix the same images."""
    images, labels = victims(Digits(size=8), n=2, batch=4)
    seen = observe(build_network(MLP(width=40), (1, 8, 8), 10, seed=0), images, labels, local)
    layer = seen.network.first_linear
    assert layer is not None and layer.bias is not None
    mixtures, slopes = layer.weights(seen.gradients.double()), seen.gradients.double()[:, layer.bias]
    factors = torch.tensor([-3.0, 0.2, 5.0, -0.1]).double()[:, None]
    torch.testing.assert_close(
        scaled(factors * images.flatten(2).double(), mixtures, slopes).float(), images.flatten(2), rtol=0, atol=1e-3
    )


def test_whitening() -> None:
    mixtures = torch.randn(2, 7, 50, generator=torch.Generator().manual_seed(0)).double() + 1
    signals = whitened(mixtures, 3)
    assert torch.allclose(torch.stack([each.cov() for each in signals]), torch.eye(3).double())
    values = torch.linalg.eigvalsh(torch.stack([each.cov() for each in mixtures]))
    for row in range(2):
        back = torch.linalg.lstsq(
            signals[row].T - signals[row].mean(1), mixtures[row].T - mixtures[row].mean(1)
        ).solution
        assert float(back.square().sum()) == pytest.approx(float(values[row, -3:].sum()))


def test_what_cannot_be_unmixed_is_marked_and_leaves_the_others_alone() -> None:
    images, labels = victims(Digits(size=8), n=4, batch=3)
    seen = observe(build_network(MLP(width=40), (1, 8, 8), 10, seed=0), images, labels)
    settings = CocktailParty(iterations=5)
    expected = attack(seen, settings).images
    seen.gradients[0, 0] = torch.nan
    seen.gradients[1] = 0.0
    result = attack(seen, settings)
    assert result.diverged_at.tolist() == [0, 0, -1, -1] and result.images[:2].eq(0).all()
    torch.testing.assert_close(result.images[2:], expected[2:], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("network", "batch", "reason"),
    [
        (build_network(SimpleConvNet(width=2), (1, 9, 9), 10, 0), 2, "begins otherwise"),
        (build_network(MLP(width=3), (1, 9, 9), 10, 0), 4, "a batch of 4 needs .* at least 4 units .* has 3 and 81"),
        (layers(torch.nn.Flatten(), torch.nn.Linear(81, 10, bias=False), torch.nn.ReLU()), 2, "that layer has none"),
        (build_network(Linear(), (1, 9, 9), 10, 0), 10, "those of 10 logits add up to zero, so that they mix 9"),
        (tied(), 2, "'3.weight' is the same tensor"),
    ],
)
@pytest.mark.parametrize("cocktail", [CocktailParty(iterations=1), CocktailPartyAsReleased(iterations=1)])
def test_infeasible(network: Network, batch: int, reason: str, cocktail: CocktailParty) -> None:
    refused(cocktail, network, batch, f"{reason}.*; list gradient matching", LocalTraining(steps=2))


@pytest.mark.parametrize("batch", [9, 10])
def test_the_rank_of_a_gradient_of_logits(batch: int) -> None:
    images, labels = independent(1, batch, side=9), torch.arange(batch)[None]
    seen = observe(build_network(Linear(), (1, 9, 9), 10, 0), images, labels)
    layer = seen.network.first_linear
    assert layer is not None
    assert int(torch.linalg.matrix_rank(layer.weights(seen.gradients), rtol=1e-5)) == 9


def test_strength() -> None:
    varied = CocktailParty().varied(0.5, 2.0)
    assert varied.total_variation == 1.55 and varied.optimiser == Adam(rate=0.02)
    assert not CocktailParty().repeats_steps and not Masked(attack=CocktailParty()).repeats_steps
    assert CocktailParty().needs == frozenset() and CocktailParty().effort(100).passes == 3000
