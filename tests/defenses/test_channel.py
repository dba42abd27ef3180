"""Channels of a given capacity: the paper's numbers, the noise that is drawn, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from leakbench.data.covariance import moments_of
from leakbench.defenses.base import DEFENSES, Defense, NoDefense, Schedule
from leakbench.defenses.channel import (
    ChannelReport,
    DataNoise,
    EigenCompression,
    NaturalChannel,
    ParameterChannel,
    PersonalizedChannel,
    Rectangle,
    WhiteChannel,
    gradient_eigenvalues,
)
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.client_data import ClientData
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network
from leakbench.randomness import Streams

Channel = NaturalChannel | WhiteChannel | PersonalizedChannel
CHANNELS: list[type[Channel]] = [NaturalChannel, WhiteChannel, PersonalizedChannel]
LABELS = torch.zeros(1, 1, dtype=torch.int64)
ROTATED = torch.tensor([[3.31045346, 1.26220648], [1.26220648, 1.68954654]]).double()
THREE = torch.tensor([[4, 1.2, 0.5], [1.2, 2, 0.3], [0.5, 0.3, 1]]).double()


def streams(n: int = 1) -> Streams:
    return Streams([("channel", client) for client in range(n)])


def data_of(covariance: torch.Tensor, shape: tuple[int, int, int] | None = None) -> ClientData:
    """One client whose images have exactly this covariance: a pair around the mean per column of a root."""
    d = len(covariance)
    values, vectors = torch.linalg.eigh(covariance.double())
    root = (vectors * values.clamp(min=0).sqrt()).T * math.sqrt((2 * d - 1) / 2)
    return ClientData((torch.cat([root, -root]) + 0.5).view(1, 2 * d, *(shape or (1, 1, d))))


def some_data(n: int = 1, constant: tuple[int, ...] = (), side: int = 4) -> ClientData:
    make = torch.Generator().manual_seed(0)
    mix = torch.randn(side * side, side * side, generator=make)
    flat = torch.randn(n, 300, side * side, generator=make) @ mix
    flat[..., list(constant)] = 0.7
    return ClientData(flat.view(n, 300, 1, side, side))


def calibrated(channel: Channel, data: ClientData) -> tuple[DataNoise, ChannelReport]:
    """The noise of its first client."""
    ready = channel.calibrate(data)
    assert isinstance(ready, NaturalChannel | WhiteChannel | PersonalizedChannel)
    return ready.data_noise[0], ready.reports[0]


def full(noise: DataNoise) -> torch.Tensor:
    return noise.covariance.diag() if noise.covariance.dim() == 1 else noise.covariance


def literal_capacity(signal: torch.Tensor, noise: torch.Tensor) -> float:
    """``1/2 ln det(Sigma + N) / det(N)`` by determinants."""
    return 0.5 * float(torch.logdet(signal + noise) - torch.logdet(noise))


class TestTheNumbersOfThePaper:
    def test_two_dimensions(self) -> None:
        noise, report = calibrated(NaturalChannel(kappa=1), data_of(ROTATED))
        assert report.scale == pytest.approx(1.27400677194, rel=1e-7)
        assert report.trace == pytest.approx(2.54801354, rel=1e-7) and report.mean_variance == report.trace / 2
        assert (report.kappa, report.dimension, report.rank, report.images) == (1, 2, 2, 4)
        assert report.capacity == pytest.approx(1, abs=1e-9)
        noise, report = calibrated(WhiteChannel(kappa=1), data_of(ROTATED))
        expected = torch.tensor([[1.9266068, 0.73457477], [0.73457477, 0.98327673]]).double()
        torch.testing.assert_close(noise.covariance, expected, rtol=1e-6, atol=1e-6)
        assert report.trace == pytest.approx(2.90988353, rel=1e-7) and report.capacity == pytest.approx(1)
        assert report.scale == pytest.approx(1 / (math.e - 1))

    def test_falling_eigenvalues(self) -> None:
        data = data_of((1 / torch.arange(1, 11)).diag())
        assert calibrated(NaturalChannel(kappa=2), data)[1].scale == pytest.approx(0.53104731438, rel=1e-6)
        white = calibrated(WhiteChannel(kappa=2), data)[0].covariance
        assert float(white[0, 0]) == pytest.approx(2.03324478172, rel=1e-5)
        assert float(white[9, 9]) == pytest.approx(0.20332447817, rel=1e-5)

    @pytest.mark.parametrize(
        ("rank", "first", "nats"), [("corrected", 1.74593012, 1), ("as_printed", 3.16544502, 2 / 3)]
    )
    def test_a_missing_direction(self, rank: Any, first: float, nats: float) -> None:
        data = data_of(torch.tensor([3.0, 1.0, 0.0]).diag())
        assert calibrated(NaturalChannel(kappa=1), data)[1].scale == pytest.approx(1.06639045952, rel=1e-6)
        noise, report = calibrated(WhiteChannel(kappa=1, rank=rank), data)
        torch.testing.assert_close(
            noise.covariance, torch.tensor([first, first / 3, 0]).double().diag(), rtol=1e-5, atol=1e-6
        )
        assert report.rank == 2 and report.kappa == 1
        assert report.capacity == pytest.approx(nats) == noise.capacity()

    @pytest.mark.parametrize(
        ("kappa", "exact", "bound", "nats"),
        [
            (0.5, 3.77359429, 3.88123031, 0.48943407),
            (1, 1.38646164, 1.39690142, 0.99529907),
            (3, 0.15822206, 0.15825567, 2.99974655),
        ],
    )
    def test_personalized(self, kappa: float, exact: float, bound: float, nats: float) -> None:
        for solution, sigma, reached in (("exact", exact, kappa), ("bound", bound, nats)):
            channel = PersonalizedChannel(kappa=kappa, solution=solution, mask=((1, 2, 4),))
            noise, report = calibrated(channel, data_of(THREE))
            assert report.scale == pytest.approx(sigma, rel=1e-6)
            assert report.capacity == pytest.approx(reached, rel=1e-6)
            torch.testing.assert_close(noise.covariance / sigma, torch.tensor([1, 2, 4]).double(), rtol=1e-5, atol=0)

    def test_the_bound_depends_on_the_order_of_pixels(self) -> None:
        """Theorem 3 goes through leading blocks; the exact solution does not."""
        sigma = torch.tensor([[2, 0.8], [0.8, 1]]).double()
        found = {}
        for solution in ("exact", "bound"):
            for flip in (False, True):
                mask = ((50.0, 1.0) if flip else (1.0, 50.0),)
                channel = PersonalizedChannel(kappa=1, solution=solution, mask=mask)
                found[solution, flip] = calibrated(channel, data_of(sigma.flip(0, 1) if flip else sigma))[1].scale
        assert found["exact", False] == pytest.approx(0.32910170, rel=1e-6) == found["exact", True]
        assert found["bound", False] == pytest.approx(0.32926038, rel=1e-6)
        assert found["bound", True] == pytest.approx(0.33486201, rel=1e-6)

    @pytest.mark.parametrize(("kappa", "sigma"), [(0.5, 5.44948643), (1, 2.07057781), (2, 0.57588480)])
    def test_uncorrelated_pixels(self, kappa: float, sigma: float) -> None:
        data = data_of(torch.tensor([4.0, 3, 2, 1]).diag())
        for solution in ("exact", "bound"):
            channel = PersonalizedChannel(kappa=kappa, solution=solution, mask=((1, 1, 50, 50),))
            assert calibrated(channel, data)[1].scale == pytest.approx(sigma, rel=1e-6)

    def test_the_toy(self) -> None:
        """``F = W^2 D``, ``D ~ N(-1, 1)``: on data one variance does for every W; on parameters it has to move."""
        data = ClientData(torch.tensor([-1.0, -2.0, 0.0, 0.0, -2.0, -1.0]).double().view(1, 6, 1, 1, 1))
        unit = float(data.moments[0].covariance)
        assert calibrated(NaturalChannel(kappa=1), data)[1].scale == pytest.approx(unit * 0.15651764275)
        for w, variance in ((2, 2.50428228399), (6, 22.53854055596)):
            gradients = 2 * w * data.images.view(1, 6, 1) / math.sqrt(unit)
            eigenvalue = gradient_eigenvalues(gradients)[0, 0]
            assert float(eigenvalue) / math.expm1(2) == pytest.approx(variance)

    def test_figure_17(self) -> None:
        weights = PersonalizedChannel(kappa=1).weights((3, 32, 32)).view(3, 32, 32)
        expected = torch.ones(32, 32)
        expected[12:20, 8:24] = 50
        assert weights.dtype == torch.float64
        assert torch.equal(weights, expected.double().expand(3, -1, -1))
        small = Rectangle(weight=3).weights(16, 8)
        assert (small == 3).nonzero().tolist() == [[row, column] for row in range(6, 10) for column in range(2, 6)]


@given(seed=st.integers(0, 999), d=st.integers(1, 6), kappa=st.floats(0.05, 20), kind=st.sampled_from(CHANNELS))
def test_capacity_by_determinants(seed: int, d: int, kappa: float, kind: type[Channel]) -> None:
    make = torch.Generator().manual_seed(seed)
    root = torch.randn(d, d, generator=make).double()
    sigma = root @ root.T + 0.1 * torch.eye(d)
    mask = {"mask": (tuple((torch.rand(d, generator=make) * 9 + 0.1).tolist()),)} if kind is PersonalizedChannel else {}
    noise, report = calibrated(kind(kappa=kappa, **mask), data_of(sigma))
    assert report.capacity == pytest.approx(kappa, rel=1e-9)
    assert literal_capacity(sigma, full(noise)) == pytest.approx(kappa, rel=1e-4)  # the noise itself is float32
    assert report.trace == pytest.approx(float(full(noise).trace()), rel=1e-5)
    if mask:
        bound = calibrated(PersonalizedChannel(kappa=kappa, solution="bound", **mask), data_of(sigma))[1]
        assert bound.scale >= report.scale * (1 - 1e-9) and bound.capacity <= kappa * (1 + 1e-9)


@pytest.mark.parametrize("constant", [(), (0, 3, 15)], ids=["full rank", "borders"])
@pytest.mark.parametrize("kind", CHANNELS)
def test_the_noise_that_is_drawn_has_that_covariance(kind: type[Channel], constant: tuple[int, ...]) -> None:
    data, n = some_data(constant=constant), 30_000
    ready = kind(kappa=4).calibrate(data)
    noise, report = calibrated(kind(kappa=4), data)
    assert report.rank == 16 - len(constant) and report.capacity == pytest.approx(4)
    clean = torch.full((1, n, 1, 4, 4), 0.25)
    noisy, labels = ready.protect_dataset(clean, LABELS, streams())
    assert labels is LABELS and float(clean.std()) == 0
    found, expected = moments_of(noisy[0] - 0.25), full(noise)
    spread = ((expected.diagonal()[:, None] * expected.diagonal() + expected.square()) / n).sqrt()
    assert bool(((found.covariance - expected).abs() <= 5 * spread + 1e-9).all())
    assert bool((found.mean.abs() <= 5 * (expected.diagonal() / n).sqrt() + 1e-9).all())
    # What an attacker who finds the noisy image itself is left with.
    assert float((noisy - clean).square().mean()) == pytest.approx(report.mean_variance, rel=0.05)
    if kind is WhiteChannel:
        assert float((noisy - clean).flatten(2)[..., list(constant)].abs().sum()) < 1e-2
        torch.testing.assert_close(expected, report.scale * data.moments[0].covariance, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("constant", [(), (0, 3, 15)], ids=["full rank", "borders"])
@pytest.mark.parametrize("panel", [3, 16, 384])
def test_white_noise_by_panels(constant: tuple[int, ...], panel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A triangular root with a row per direction; its products leave out zeros alone."""
    data = some_data(constant=constant)
    noise, report = calibrated(WhiteChannel(kappa=4), data)
    assert noise.root.shape == (16 - len(constant), 16) and not bool(noise.root.tril(-1).any())
    root = noise.root.double()
    torch.testing.assert_close(root.T @ root, report.scale * data.moments[0].covariance, rtol=1e-4, atol=1e-5)
    normal = torch.randn(2, 5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("leakbench.defenses.channel.PANEL", panel)
    expected = normal.flatten(2)[..., : len(root)] @ noise.root
    torch.testing.assert_close(noise.colour(normal), expected.view_as(normal), rtol=1e-5, atol=1e-5)


class TestDraws:
    def test_are_those_of_every_capacity_and_channel(self) -> None:
        data = some_data()
        clean = torch.zeros(1, 20, 1, 4, 4)

        def standard(channel: Channel) -> torch.Tensor:
            """The standard normal draws behind its noise."""
            noisy = channel.calibrate(data).protect_dataset(clean, LABELS, streams())[0].flatten(2).double()
            root = calibrated(channel, data)[0].root.double()
            return noisy / root if root.dim() == 1 else noisy @ torch.linalg.inv(root)

        reference = standard(NaturalChannel(kappa=1))
        for kind in CHANNELS:
            for kappa in (1, 50):
                torch.testing.assert_close(standard(kind(kappa=kappa)), reference, rtol=1e-3, atol=1e-3)

    def test_of_an_image_do_not_depend_on_others(self) -> None:
        data = some_data(3)
        ready = WhiteChannel(kappa=3).calibrate(data)
        images = torch.cat([data.images] * 2, dim=1)
        labels = torch.zeros(3, 600, dtype=torch.int64)
        noisy = ready.protect_dataset(images, labels, streams(3))[0]
        few = ready.protect_dataset(images[:, :10], labels[:, :10], streams(3))[0]
        torch.testing.assert_close(few, noisy[:, :10], rtol=1e-5, atol=1e-5)
        assert not torch.allclose(noisy[:, :256] - images[:, :256], noisy[:, 256:512] - images[:, 256:512])
        for client in range(3):
            alone = WhiteChannel(kappa=3).calibrate(ClientData(data.images[client : client + 1]))
            own = slice(client, client + 1)
            found = alone.protect_dataset(images[own], labels[own], Streams([("channel", client)]))[0]
            torch.testing.assert_close(found, noisy[own])
        # One data set may speak for all clients.
        shared = WhiteChannel(kappa=3).calibrate(ClientData(data.images[:1]))
        torch.testing.assert_close(shared.protect_dataset(images, labels, streams(3))[0][:1], noisy[:1])

    def test_once(self) -> None:
        data = some_data()
        ready = NaturalChannel(kappa=3).calibrate(data)
        assert ready.protect_dataset(data.images, LABELS, streams())[0] is not data.images
        assert ready.protect_data(data.images, LABELS, streams())[0] is data.images

    @pytest.mark.parametrize("kind", CHANNELS)
    def test_fresh(self, kind: type[Channel]) -> None:
        data = some_data(2)
        ready = kind(kappa=3, noise="fresh").calibrate(data)
        batch = data.images[:, :5]
        assert ready.protect_dataset(batch, LABELS, streams(2))[0] is batch
        first, second = (
            ready.protect_data(batch, LABELS, streams(2).child("step", step))[0] - batch for step in range(2)
        )
        again = ready.protect_data(batch, LABELS, streams(2).child("step", 0))[0] - batch
        assert torch.equal(first, again) and not torch.allclose(first, second)
        draws = torch.stack([streams(2).child("step", s, "channel").normal(5, 1, 4, 4) for s in range(2)])
        assert isinstance(ready, NaturalChannel | WhiteChannel | PersonalizedChannel)
        for client, noise in enumerate(ready.data_noise):
            for step, found in enumerate((first, second)):
                torch.testing.assert_close(found[client], noise.colour(draws[step, client]), rtol=1e-4, atol=1e-5)


class TestStatement:
    def test_once(self) -> None:
        """As printed, White spends less than kappa, and says so; rounds do not matter."""
        channel = WhiteChannel(kappa=3, rank="as_printed")
        ready = channel.calibrate(some_data(constant=(0, 1, 2, 3)))
        for rounds in (1, 1000):
            assert channel.privacy(Schedule(10, rounds)).capacity == 3
            statement = ready.privacy(Schedule(10, rounds))
            assert statement.capacity == pytest.approx(3 * 12 / 16)
            assert statement.epsilon is None and "once per image" in statement.basis
        assert statement.as_dict()["capacity"] == statement.capacity

    def test_fresh(self) -> None:
        """``f(sigma / v)`` after v visits: less than v kappa."""
        schedule = Schedule(10, rounds=1000, sampling_rate=0.0128)
        channel = NaturalChannel(kappa=3, noise="fresh")
        assert channel.privacy(schedule).capacity == pytest.approx(12.8 * 3)
        data = some_data()
        statement = channel.calibrate(data).privacy(schedule)
        noise = full(calibrated(channel, data)[0])
        assert statement.capacity == pytest.approx(literal_capacity(data.moments[0].covariance, noise / 12.8), rel=1e-4)
        assert "12.8 visits" in statement.basis
        assert channel.privacy(Schedule(10, rounds=7)).capacity == pytest.approx(21)

    def test_no_other_defense_speaks_of_it(self) -> None:
        assert NoDefense().privacy(Schedule(10)).as_dict() == {
            "epsilon": None,
            "delta": None,
            "basis": "no formal guarantee",
        }
        assert ParameterChannel(kappa=2).privacy(Schedule(10, rounds=5)).capacity == 10


class TestCalibration:
    @pytest.mark.parametrize("name", ["natural_channel", "white_channel", "personalized_channel", "eigen_compression"])
    def test_comes_first(self, name: str, fixed_steps: Callable[..., ClientSteps]) -> None:
        component = DEFENSES.get(name)
        defense = component(**({} if name == "eigen_compression" else {"kappa": 1}))
        data, gradient = some_data(), torch.ones(1, 9)
        for verb in (defense.protect_dataset, *([] if name == "eigen_compression" else [defense.protect_data])):
            with pytest.raises(Infeasible, match=f"'{name}' has seen no data"):
                verb(data.images, LABELS, streams())
        with pytest.raises(Infeasible, match="calibrate it"):
            defense.protect_update(fixed_steps(gradient, gradient), streams())
        ready = defense.calibrate(data)
        assert ready.protect_update(fixed_steps(gradient, gradient), streams()).view() is gradient
        assert ready is not defense and ready.parameters() == defense.parameters()
        with pytest.raises(Infeasible):
            defense.protect_dataset(data.images, LABELS, streams())
        pair = some_data(2)
        with pytest.raises(ConfigError, match="calibrated for 2 clients, not for 3"):
            defense.calibrate(pair).protect_dataset(torch.zeros(3, 5, 1, 4, 4), LABELS, streams(3))

    def test_is_nothing_to_other_defenses(self) -> None:
        defense, data = NoDefense(), some_data()
        assert defense.calibrate(data) is defense
        images, labels = defense.protect_dataset(data.images, LABELS, streams())
        assert images is data.images and labels is LABELS

    @pytest.mark.parametrize("kind", CHANNELS)
    def test_images_that_are_all_the_same_have_no_capacity(self, kind: type[Channel]) -> None:
        data = ClientData(torch.full((1, 5, 1, 4, 4), 0.3))
        with pytest.raises(ConfigError, match=r"all eigenvalues are zero: constant data|rank of the data's covariance"):
            kind(kappa=3).calibrate(data)

    @pytest.mark.parametrize(
        ("channel", "message"),
        [
            (NaturalChannel(kappa=1e6), "no variance that this number format can hold"),
            (WhiteChannel(kappa=1e6), "no variance that this number format can hold"),
            (PersonalizedChannel(kappa=1, mask=((1, 1), (1, 1))), "2 rows of 2 numbers; the images have 4 rows of 4"),
            (PersonalizedChannel(kappa=1, mask=((1, 1, 1, 1), (1, 1, 1), (1,), ())), "4 rows of 0, 1, 3, 4 numbers"),
            (PersonalizedChannel(kappa=1, mask=((1, 1, 0, 1),) * 4), "must be positive"),
            (EigenCompression(direction=16), "have no direction 16; the last one is 15"),
        ],
        ids=repr,
    )
    def test_what_does_not_fit(self, channel: Defense, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            channel.calibrate(some_data())

    def test_data_that_do_not_fit(self) -> None:
        with pytest.raises(ConfigError, match=r"\[5, 1, 4, 4\]; the data of clients are \[n, N, C, H, W\]"):
            ClientData(torch.zeros(5, 1, 4, 4))
        with pytest.raises(ConfigError, match="at least 2 images"):
            NaturalChannel(kappa=1).calibrate(ClientData(torch.zeros(1, 1, 1, 4, 4)))

    @pytest.mark.parametrize("given", [{"kappa": 0}, {"kappa": -1}, {"kappa": 1, "noise": "often"}])
    def test_parameters_that_do_not_fit(self, given: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            NaturalChannel(**given)
        with pytest.raises(ValidationError, match="empty"):
            Rectangle(top=0.5, bottom=0.5)

    def test_settings_share_what_is_found_in_the_data(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []
        plain = torch.linalg.eigh
        monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: calls.append(1) or plain(matrix))  # type: ignore[func-returns-value]
        data = some_data()
        for kappa in (1, 2, 3):
            NaturalChannel(kappa=kappa).calibrate(data)
            WhiteChannel(kappa=kappa).calibrate(data)
        assert len(calls) == 1


class TestEigenCompression:
    @pytest.mark.parametrize("direction", [0, 3])
    def test_takes_one_direction_and_nothing_else(self, direction: int) -> None:
        data = some_data(2)
        ready = EigenCompression(direction=direction).calibrate(data)
        assert isinstance(ready, EigenCompression)
        kept = ready.protect_dataset(data.images, LABELS, streams(2))[0]
        for client in range(2):
            before, after = data.moments[client], moments_of(kept[client])
            removed = ready.removed[client]
            assert removed.eigenvalue == pytest.approx(float(before.eigenvalues[direction]))
            torch.testing.assert_close(after.mean, before.mean, rtol=0, atol=1e-4)
            expected = before.covariance - removed.eigenvalue * torch.outer(removed.direction, removed.direction)
            torch.testing.assert_close(after.covariance, expected, rtol=0, atol=1e-3)
            image = data.images[client, 7].flatten().double()
            along = (image - before.mean) @ removed.direction
            literal = image - along * removed.direction
            torch.testing.assert_close(kept[client, 7].flatten().double(), literal, rtol=0, atol=1e-4)

    def test_applies_to_other_images(self) -> None:
        """What is known of one data set, to a batch of another."""
        ready = EigenCompression(direction=0).calibrate(some_data())
        images = torch.randn(3, 2, 1, 4, 4, generator=torch.Generator().manual_seed(1))
        kept = ready.protect_dataset(images, LABELS, streams(3))[0]
        twice = ready.protect_dataset(kept, LABELS, streams(3))[0]
        assert not torch.allclose(kept, images)
        torch.testing.assert_close(twice, kept, rtol=0, atol=1e-5)


class TestParameterChannel:
    def steps(self, network: Network, batch: int = 4, scale: float = 1.0) -> ClientSteps:
        make = torch.Generator().manual_seed(0)
        images = torch.rand(2, batch, 1, 8, 8, generator=make)
        labels = torch.randint(10, (2, batch), generator=make)
        return ClientSteps(network, scale * network.parameters, images, labels, streams(2))

    @pytest.mark.parametrize("signal", ["sample", "mean"])
    def test_capacity_of_the_whole_covariance(self, tiny_network: Network, signal: Any) -> None:
        """By determinants of ``[d, d]``, once per step: the variance moves with the model."""
        variances = []
        for scale in (1.0, 3.0):
            steps = self.steps(tiny_network, scale=scale)
            law = ParameterChannel(kappa=2, signal=signal).protect_update(steps, streams(2)).law
            assert law is not None and law.variance is not None and torch.equal(law.mean, steps.gradient)
            for client in range(2):
                covariance = steps.per_sample_gradient[client].double().T.cov() / (4 if signal == "mean" else 1)
                variance = law.variance[client]
                assert bool((variance == variance[0]).all())
                noise = float(variance[0]) * torch.eye(len(covariance)).double()
                assert literal_capacity(covariance, noise) == pytest.approx(2, rel=1e-4)
                variances.append(float(variance[0]))
        assert len(set(variances)) == 4

    def test_gram_matrix(self) -> None:
        gradients = torch.randn(2, 5, 9, generator=torch.Generator().manual_seed(0))
        found = gradient_eigenvalues(gradients)
        for client in range(2):
            literal = torch.linalg.eigvalsh(gradients[client].double().T.cov()).flip(0)
            torch.testing.assert_close(found[client, :4], literal[:4], rtol=1e-5, atol=1e-6)
        assert found.shape == (2, 5) and not found[:, 4].any()

    def test_one_image_has_no_covariance(self, tiny_network: Network) -> None:
        with pytest.raises(Infeasible, match="at least 2 images"):
            ParameterChannel(kappa=1).protect_update(self.steps(tiny_network, batch=1), streams(2))


def test_a_client_whose_gradients_are_lost_does_not_stop_the_others() -> None:
    gradients = torch.randn(3, 4, 9, generator=torch.Generator().manual_seed(0))
    lost = gradients.clone()
    lost[1, 2, 5] = torch.nan
    values, expected = gradient_eigenvalues(lost), gradient_eigenvalues(gradients)
    torch.testing.assert_close(values[[0, 2]], expected[[0, 2]])
    assert values[1].tolist() == [1.0] * 4
