"""Gaussian sampling, water-filling and noise that users add together: literal loops, covariances, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import leakbench.defenses.aggregate as aggregate
import leakbench.federated.step as step_module
from leakbench.defenses.aggregate import SummedUsers
from leakbench.defenses.base import Schedule
from leakbench.defenses.distributed_noise import LEAST_SCALE, DistributedNoise
from leakbench.defenses.dp_sgd import DPPSAC, DPSGD, ClippedGradients
from leakbench.defenses.gaussian_sampling import GaussianSampling
from leakbench.defenses.water_filling import WaterFilling, filled_diagonal
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network
from leakbench.randomness import Streams
from leakbench.theory.water_filling import update_spectrum

CLIENTS, RECORDS = 3, 5
EVERY = [
    DistributedNoise(clip=2, variance=0.1),
    GaussianSampling(clip=2, batch=2),
    GaussianSampling(clip=2, batch=2, variance=0.1),
    WaterFilling(clip=2, batch=2, variance=0.1),
    WaterFilling(clip=2, batch=2, variance=0.1, blocks=3),
    WaterFilling(clip=2, batch=2, variance=0.1, form="as_printed"),
    WaterFilling(clip=2, batch=2, variance=0.1, blocks=3, form="as_printed"),
    WaterFilling(clip=2, batch=2, variance=9.0),
]


def streams(n: int = CLIENTS) -> Streams:
    return Streams([("aggregate", client) for client in range(n)])


@pytest.fixture(scope="module")
def steps(tiny_network: Network) -> ClientSteps:
    return make_steps(tiny_network, CLIENTS)


def make_steps(network: Network, clients: int, records: int = RECORDS) -> ClientSteps:
    make = torch.Generator().manual_seed(0)
    images = torch.rand(clients, records, 1, 8, 8, generator=make)
    labels = torch.randint(10, (clients, records), generator=make)
    return ClientSteps(network, network.parameters, images, labels, streams(clients))


def given(gradients: torch.Tensor) -> ClientSteps:
    """Clients with these gradients of records, ``[n, D, d]``."""
    n, records, dimension = gradients.shape
    whole = SimpleNamespace(
        per_sample_gradient=gradients,
        sample_gradients=lambda: iter([(slice(0, n), gradients)]),
        images=torch.zeros(n, records, 1),
        network=SimpleNamespace(dimension=dimension),
    )
    return cast(ClientSteps, whole)


def many(gradients: torch.Tensor, draws: int) -> ClientSteps:
    """One client's gradients ``[D, d]``, so many times over."""
    return given(gradients.expand(draws, -1, -1))


def covariance_of(defense: ClippedGradients, gradients: torch.Tensor, draws: int = 60_000) -> torch.Tensor:
    """Of what is sent, about its stated mean; draws are made in parts, whose streams take most of the time."""
    message = defense.protect_update(many(gradients, draws), FastStreams(draws))
    assert message.law is not None and message.law.variance is not None
    away = (message.view() - message.law.mean).double()
    found = away.T @ away / draws
    assert float(away.mean(dim=0).norm()) < 5 * math.sqrt(float(found.trace()) / draws)
    torch.testing.assert_close(found.diagonal(), message.law.variance[0].double(), rtol=0.03, atol=1e-9)
    return found


class FastStreams(Streams):
    """One generator for all rows: a generator for each would take a minute."""

    def __init__(self, rows: int, seed: int = 0) -> None:
        self.keys, self.seed = [("fast", row) for row in range(rows)], seed
        self.make = torch.Generator().manual_seed(seed)

    def child(self, *name: str | int) -> Streams:
        return FastStreams(len(self.keys), self.seed + 1)

    def normal(self, *shape: int, device: torch.device | None = None) -> torch.Tensor:
        return torch.randn(len(self.keys), *shape, generator=self.make)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def filled(covariance: torch.Tensor, floor: float) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    found: torch.Tensor = vectors @ values.clamp(min=floor).diag() @ vectors.T
    return found


class TestGaussianSampling:
    @pytest.mark.parametrize("variance", [0.0, 0.3])
    def test_is_the_literal_loop(self, steps: ClientSteps, variance: float) -> None:
        bound = float(steps.per_sample_gradient.norm(dim=2).median())
        message = GaussianSampling(clip=bound, batch=2, variance=variance).protect_update(steps, streams())
        xi = streams().normal(RECORDS)
        normal = streams().child("isotropic").normal(steps.network.dimension)
        for client in range(CLIENTS):
            update, mean, square = (torch.zeros(steps.network.dimension) for _ in range(3))
            for record in range(RECORDS):
                gradient = steps.network.gradient(
                    steps.parameters, steps.images[client, record][None], steps.labels[client, record][None]
                )
                gradient *= min(1.0, bound / float(gradient.norm()))
                update += (1 / RECORDS + xi[client, record] / math.sqrt(2 * RECORDS)) * gradient
                mean += gradient / RECORDS
                square += gradient.square() / (2 * RECORDS)
            torch.testing.assert_close(message.view()[client], update + math.sqrt(variance) * normal[client])
            assert message.law is not None and message.law.variance is not None and not message.law.independent
            torch.testing.assert_close(message.law.mean[client], mean)
            torch.testing.assert_close(message.law.variance[client], square + variance)

    def test_covariance(self) -> None:
        """Eq. 16 and 17: ``G G^T / (B D)``; the scalars 1, 2, 6 with B = 2 have the variance 41 / 6."""
        scalars = torch.tensor([[1.0], [2.0], [6.0]])
        found = covariance_of(GaussianSampling(clip=10, batch=2), scalars)
        assert float(found) == pytest.approx(41 / 6, rel=0.02)
        gradients = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
        expected = (gradients.T @ gradients / (3 * 6)).double()
        assert relative(covariance_of(GaussianSampling(clip=10, batch=3), gradients), expected) < 0.02
        noisy = covariance_of(GaussianSampling(clip=10, batch=3, variance=0.4), gradients)
        assert relative(noisy, expected + 0.4 * torch.eye(4)) < 0.02


TABLE = torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 1.0]])  # per record; as columns, eigenvalues 0, 0.5, 2.25


class TestWaterFilling:
    def test_a_covariance_by_hand(self) -> None:
        for form in ("corrected", "as_printed"):
            found = covariance_of(WaterFilling(clip=10, batch=2, variance=1, form=form), TABLE)
            assert relative(found, torch.tensor([2.25, 1, 1]).double().diag()) < 0.02

    @pytest.mark.parametrize("form", ["corrected", "as_printed"])
    @pytest.mark.parametrize(("records", "dimension"), [(3, 8), (9, 5)])
    def test_the_floor(self, form: str, records: int, dimension: int) -> None:
        gradients = torch.randn(records, dimension, generator=torch.Generator().manual_seed(2))
        gradients[-1] = gradients[0]  # records may be equal
        plain = (gradients.T @ gradients / (2 * records)).double()
        floor = float(torch.linalg.eigvalsh(plain)[-2]) * 0.9
        found = covariance_of(WaterFilling(clip=10, batch=2, variance=floor, form=form), gradients)
        assert relative(found, filled(plain, floor)) < 0.02
        assert float(torch.linalg.eigvalsh(found)[0]) > 0.97 * floor

    def test_clipping_comes_first(self) -> None:
        clipped = TABLE / TABLE.norm(dim=1, keepdim=True)
        expected = filled((clipped.T @ clipped / 4).double(), 0.1)
        assert relative(covariance_of(WaterFilling(clip=1, batch=2, variance=0.1), TABLE), expected) < 0.02

    def test_blocks(self) -> None:
        """Each block keeps the floor by itself; weights that blocks share correlate them, and break it."""
        gradients = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
        plain = (gradients.T @ gradients / (2 * 4)).double()
        floor = 0.2
        diagonal = torch.block_diag(*(filled(plain[rows, rows], floor) for rows in (slice(0, 3), slice(3, 6))))
        apart = covariance_of(WaterFilling(clip=10, batch=2, variance=floor, blocks=2), gradients)
        assert relative(apart, diagonal) < 0.02
        shared = covariance_of(WaterFilling(clip=10, batch=2, variance=floor, blocks=2, form="as_printed"), gradients)
        across = plain.clone()
        across[:3, :3], across[3:, 3:] = diagonal[:3, :3], diagonal[3:, 3:]
        assert relative(shared, across) < 0.02
        assert float(torch.linalg.eigvalsh(across)[0]) < 0.75 * floor < float(torch.linalg.eigvalsh(apart)[0])

    def test_the_floor_breaks_as_far_as_to_zero(self) -> None:
        """Two records (1, 1) with B = 1: blocks of one coordinate are at the floor, and both coordinates the same."""
        gradients = torch.ones(2, 2)
        sent = WaterFilling(clip=2, batch=1, variance=1, blocks=2, form="as_printed").protect_update(
            many(gradients, 50), streams(50)
        )
        torch.testing.assert_close(sent.view()[:, 0], sent.view()[:, 1])
        sent = WaterFilling(clip=2, batch=1, variance=1, blocks=2).protect_update(many(gradients, 50), streams(50))
        assert not torch.allclose(sent.view()[:, 0], sent.view()[:, 1])

    def test_above_every_eigenvalue_it_is_isotropic(self, steps: ClientSteps) -> None:
        """Certain from sigma^2 = C^2 / B on: no eigenvalue is needed, and none changes a number."""
        defense = WaterFilling(clip=1, batch=2, variance=0.6)
        message = defense.protect_update(steps, streams())
        plain = DistributedNoise(clip=1, variance=0.6)
        assert message.law is not None and message.law.variance is not None
        assert bool((message.law.variance == 0.6).all())
        normal = streams().normal(1, steps.network.dimension)[:, 0]
        torch.testing.assert_close(message.view(), plain.bounded_mean(steps) + math.sqrt(0.6) * normal)

    def test_diagonal(self) -> None:
        gradients = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(4))
        for floor in (1e-4, 0.3, 50.0):
            found = filled_diagonal(update_spectrum(gradients, 2), floor)
            for client in range(2):
                covariance = gradients[client] @ gradients[client].T / 8
                torch.testing.assert_close(found[client], filled(covariance, floor).diagonal(), rtol=1e-4, atol=1e-6)

    def test_a_client_that_diverged_leaves_the_others_alone(self) -> None:
        gradients = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(5))
        for form in ("corrected", "as_printed"):
            defense = WaterFilling(clip=10, batch=2, variance=0.01, form=form)
            healthy = defense.protect_update(given(gradients), streams()).view()
            broken = gradients.clone()
            broken[1, 2, 3] = torch.nan
            sent = defense.protect_update(given(broken), streams()).view()
            assert not bool(sent[1].isfinite().any())
            torch.testing.assert_close(sent[[0, 2]], healthy[[0, 2]])


class TestDistributedNoise:
    def test_is_dp_sgd_of_another_parameter(self, steps: ClientSteps) -> None:
        bound = float(steps.per_sample_gradient.norm(dim=2).median())
        ours = DistributedNoise(clip=bound, variance=0.09).protect_update(steps, streams())
        theirs = DPSGD(clip=bound, multiplier=RECORDS * 0.3 / bound).protect_update(steps, streams())
        torch.testing.assert_close(ours.view(), theirs.view())
        assert ours.law is not None and theirs.law is not None
        torch.testing.assert_close(ours.law.variance, theirs.law.variance)
        torch.testing.assert_close(ours.noise_variance, torch.full_like(ours.view(), 0.09))

    def test_covariance(self) -> None:
        found = covariance_of(DistributedNoise(clip=10, variance=0.25), TABLE)
        assert relative(found, 0.25 * torch.eye(3).double()) < 0.02

    def test_the_sum_of_users_has_the_noise_of_all(self) -> None:
        defense = DistributedNoise(clip=10, variance=0.25)
        message = defense.protect_update(many(TABLE, 40_000), FastStreams(40_000))
        updates = defense.aggregate(message, 4) - TABLE.mean(dim=0)
        assert float(updates.var()) == pytest.approx(0.25 / 4, rel=0.02)


@pytest.mark.parametrize("defense", EVERY, ids=repr)
class TestEveryOne:
    def test_a_client_does_not_depend_on_the_others(self, steps: ClientSteps, defense: ClippedGradients) -> None:
        together = defense.protect_update(steps, streams()).view()
        for client in range(CLIENTS):
            alone = ClientSteps(
                steps.network,
                steps.parameters,
                steps.images[client : client + 1],
                steps.labels[client : client + 1],
                Streams(streams().keys[client : client + 1]),
            )
            sent = defense.protect_update(alone, Streams(streams().keys[client : client + 1])).view()
            torch.testing.assert_close(sent[0], together[client], rtol=1e-4, atol=1e-5)
            assert torch.equal(sent, defense.protect_update(alone, Streams(streams().keys[client : client + 1])).view())

    def test_parts_that_fit_in_memory_give_the_same(
        self, tiny_network: Network, defense: ClippedGradients, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = defense.protect_update(make_steps(tiny_network, 4), streams(4))
        monkeypatch.setattr(step_module, "MEMORY_BUDGET", 2 * 12 * RECORDS * tiny_network.dimension)
        steps = make_steps(tiny_network, 4)
        assert [part for part, _ in steps.sample_gradients()] == [slice(0, 2), slice(2, 4)]
        torch.testing.assert_close(defense.protect_update(steps, streams(4)).view(), whole.view(), rtol=1e-4, atol=1e-5)
        assert "per_sample_gradient" not in vars(steps)  # of which nothing is kept
        selected = steps.rows(1, 4)
        found = defense.protect_update(selected, Streams(streams(4).keys[1:])).view()
        torch.testing.assert_close(found, whole.view()[1:], rtol=1e-4, atol=1e-5)
        assert "per_sample_gradient" not in vars(steps)

    def test_training_of_several_steps_is_refused(self, steps: ClientSteps, defense: ClippedGradients) -> None:
        longer = ClientSteps(
            steps.network, steps.parameters, steps.images, steps.labels, streams(), LocalTraining(steps=2, rate=0.1)
        )
        with pytest.raises(Infeasible, match="per-sample gradients exist for one local step"):
            defense.protect_update(longer, streams())


def test_clipping_is_that_of_dp_sgd() -> None:
    assert issubclass(DPPSAC, DPSGD) and issubclass(DPSGD, ClippedGradients)
    norms = torch.tensor([0.0, 1.0, 4.0])
    assert WaterFilling(clip=2, batch=1, variance=1).factors(norms).tolist() == [1, 1, 0.5]


def schedule(defense: SummedUsers, **change: Any) -> Schedule:
    """All that the bound assumes, of 50 users with 1,200 records and 100 rounds."""
    mechanism, batch = defense.row
    drawn: dict[str, Any] = {"batch": batch, "sampling": "independent"}
    drawn = drawn if mechanism == "sgd" else {"batch": 1200, "sampling": "all"}
    told: dict[str, Any] = {"rounds": 100, "clients": 50, "records": 1200} | drawn
    return Schedule(7850, **(told | change))


class TestPrivacy:
    """Rows of Table 1 by hand, at N = 50, D = 1200, B = 32, C = 10, sigma^2 = 0.05 and delta = 1e-4 of a round."""

    SETTING: ClassVar[dict[str, Any]] = {"clip": 10, "users": 50, "records": 1200}
    LOG = math.log(2e4)  # half of delta is the rounds'

    def epsilon(self, defense: SummedUsers, rounds: int = 1) -> float:
        statement = defense.privacy(schedule(defense, rounds=rounds, delta=1e-4))
        assert statement.epsilon is not None and statement.delta == 1e-4
        assert f"{rounds} round(s)" in statement.basis and "50 users" in statement.basis
        return statement.epsilon

    def least(self, divergence: Callable[[float], float], limit: float = 1e6) -> float:
        orders = (1 + (limit - 1) * place / 200_000 for place in range(1, 200_000))
        return min(divergence(order) + self.LOG / (order - 1) for order in orders)

    def test_all_records(self) -> None:
        slope = 2 * 10**2 / (1200**2 * 50 * 0.05)
        expected = slope + 2 * math.sqrt(slope * self.LOG)
        assert self.epsilon(DistributedNoise(variance=0.05, **self.SETTING)) == pytest.approx(expected, rel=1e-6)
        assert self.epsilon(DistributedNoise(variance=0.05, batch=1200, **self.SETTING)) == pytest.approx(expected)

    def test_random_batches(self) -> None:
        slope, rate = 2 * 10**2 / (32**2 * 50 * 0.05), 32 / 1200
        log = math.log(2e4 * rate)
        inside = slope + 2 * math.sqrt(slope * log)
        found = self.epsilon(DistributedNoise(variance=0.05, batch=32, **self.SETTING))
        assert found == pytest.approx(math.log1p(rate * math.expm1(inside)), rel=1e-6)

    def test_gaussian_sampling_and_water_filling(self) -> None:
        for defense, lead in ((GaussianSampling, 1), (WaterFilling, 2)):

            def divergence(order: float, lead: int = lead) -> float:
                above = 2 * order * 100 / 1200**2 + lead * order * 100 / ((order - 1) * 32 * 1200)
                return above / (50 * 0.05 - lead * order * 100 / (32 * 1200))

            expected = self.least(divergence, 50 * 0.05 * 32 * 1200 / (lead * 100))
            assert self.epsilon(defense(batch=32, variance=0.05, **self.SETTING)) == pytest.approx(expected, rel=1e-4)
        blocks = WaterFilling(batch=32, variance=0.05, blocks=5, **self.SETTING)
        assert self.epsilon(blocks) == pytest.approx(expected, rel=1e-4)

    def test_rounds_add_up(self) -> None:
        for defense in (
            DistributedNoise(variance=0.05, **self.SETTING),
            DistributedNoise(variance=0.05, batch=32, **self.SETTING),
            WaterFilling(batch=32, variance=0.05, **self.SETTING),
        ):
            assert self.epsilon(defense) < self.epsilon(defense, 10) < 10 * self.epsilon(defense, 10)

    @pytest.mark.parametrize(
        ("defense", "reason"),
        [
            (DistributedNoise(variance=0.05), "takes the number of users and of records"),
            (WaterFilling(batch=2, variance=0.05, users=50), "takes the number of users and of records"),
            (GaussianSampling(batch=2, users=50, records=4), "no guarantee that holds for all data"),
            (
                WaterFilling(batch=2, variance=1e-9, users=50, records=4),
                "no guarantee: Theorem 4: no order alpha is left",
            ),
            (
                WaterFilling(batch=2, variance=9, users=50, records=4, blocks=2, form="as_printed"),
                "share their weights",
            ),
        ],
        ids=repr,
    )
    def test_none_where_there_is_none(self, defense: ClippedGradients, reason: str) -> None:
        statement = defense.privacy(Schedule(10, clients=50, records=4, batch=4, sampling="all"))
        assert statement.epsilon is None and statement.delta is None and reason in statement.basis

    def test_the_data_are_those_that_it_speaks_of(self, steps: ClientSteps) -> None:
        told = {"users": 3, "records": 6}
        for defense in (
            DistributedNoise(variance=1, **told),
            DistributedNoise(variance=1, batch=4, **told),
            GaussianSampling(batch=2, **told),
            WaterFilling(batch=2, variance=1, **told),
        ):
            with pytest.raises(Infeasible, match=r"is told of [46] records per step, and these clients take 5"):
                defense.protect_update(steps, streams())
        DistributedNoise(variance=1, batch=RECORDS, **told).protect_update(steps, streams())


class TestCalibration:
    """Noise of a given epsilon. The levels are those of the paper's setting, to three digits."""

    ASKED: ClassVar[dict[str, Any]] = {"clip": 10, "users": 50, "records": 1200, "delta": 1e-4, "rounds": 100}

    def mechanisms(self, epsilon: float, **others: Any) -> list[Any]:
        asked = self.ASKED | {"epsilon": epsilon} | others
        return [
            DistributedNoise(batch=32, bound="as_printed", **asked),
            DistributedNoise(**asked),
            WaterFilling(batch=32, bound="as_printed", **asked),
            WaterFilling(batch=32, **asked),
            WaterFilling(batch=32, bound="repaired", **asked),
            GaussianSampling(batch=32, bound="as_printed", **asked),
        ]

    @pytest.mark.parametrize(
        ("epsilon", "levels"),
        [
            (1, (0.565, 0.289, 0.355, 0.417, 0.374)),
            (2, (0.236, 0.0813, 0.116, 0.147, 0.125)),
            (4, (0.114, 0.0235, 0.0413, 0.0576, 0.0461)),
            (8, (0.0619, 0.00689, 0.0162, 0.0247, 0.0186)),
            (16, (0.0377, 0.00215, 0.0072, 0.0118, 0.0085)),
        ],
    )
    def test_levels_of_the_papers_setting(self, epsilon: float, levels: tuple[float, ...]) -> None:
        found = [defense.noise_level for defense in self.mechanisms(epsilon)]
        assert found == pytest.approx([*levels, levels[2]], rel=8e-3)

    def test_more_rounds_and_other_accounting(self) -> None:
        asked = self.ASKED | {"epsilon": 2}
        batches = DistributedNoise(batch=32, bound="as_printed", **(asked | {"rounds": 3750}))
        assert batches.noise_level == pytest.approx(4.87, rel=2e-3)
        found = [
            cls(accounting="renyi", bound=bound, **asked, **more).noise_level
            for cls, bound, more in (
                (DistributedNoise, "corrected", {}),
                (WaterFilling, "corrected", {"batch": 32}),
                (WaterFilling, "repaired", {"batch": 32}),
            )
        ]
        assert found == pytest.approx([0.00283, 0.0129, 0.00394], rel=5e-3)

    def test_what_is_stated_is_what_was_asked(self) -> None:
        for defense in self.mechanisms(2):
            statement = defense.privacy(schedule(defense))
            assert statement.epsilon == pytest.approx(2, rel=1e-6) and statement.epsilon <= 2
            assert statement.delta == 1e-4
            assert f"sigma^2 = {defense.noise_level:.6g}" in statement.basis
            assert (f"bound {defense.bound}" in statement.basis) == (defense.bound != "corrected")

    def test_noise_has_that_level(self, steps: ClientSteps) -> None:
        told = {"clip": 2, "users": CLIENTS, "records": RECORDS, "delta": 1e-4, "rounds": 7, "epsilon": 3}
        for cls, more in ((DistributedNoise, {}), (DistributedNoise, {"batch": RECORDS}), (WaterFilling, {"batch": 2})):
            asked = cls(**told, **more)
            given = cls(clip=2, users=CLIENTS, records=RECORDS, variance=asked.noise_level, **more)
            assert given.noise_level == asked.noise_level > 0
            ours, theirs = (defense.protect_update(steps, streams()).view() for defense in (asked, given))
            assert torch.equal(ours, theirs)

    def test_another_schedule_is_not_stated(self) -> None:
        for defense in self.mechanisms(2):
            for change, reason in (
                ({"rounds": 99}, "calibrated for 100 round(s), and the schedule has 99; set rounds to 99"),
                ({"clients": 49}, "told of 50 users, and a sum may hold no more than 49 who do not collude"),
                ({"records": 8}, "told of 1200 records per user, and clients hold 8; set records to 8"),
                ({"batch": 5}, "records per step, and clients take 5"),
                ({"clipped": True}, "set no secure_aggregation.clip"),
                ({"sampling": None}, "does not say how many clients are summed"),
            ):
                statement = defense.privacy(schedule(defense, **change))
                assert statement.epsilon is None and statement.delta is None and reason in statement.basis

    def test_batches_that_are_not_drawn_anew_amplify_nothing(self) -> None:
        """Shuffled ones are not independent of each other; of all records there is nothing to draw."""
        batches, everything = self.mechanisms(2)[:2]
        statement = batches.privacy(schedule(batches, sampling="shuffled"))
        assert statement.epsilon is None and "set the job's sampling to independent" in statement.basis
        assert everything.privacy(schedule(everything, sampling="shuffled")).epsilon is not None

    def test_more_honest_users_than_it_is_told_of(self) -> None:
        """Their noise is there, too, so that epsilon is lower than stated."""
        for defense in self.mechanisms(2):
            assert defense.privacy(schedule(defense, clients=51)).epsilon == pytest.approx(2, rel=1e-6)

    def test_the_search_waits_and_is_done_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def search(*arguments: Any) -> float:
            asked.append(arguments)
            return 0.5

        monkeypatch.setattr(aggregate, "_least_variance", lru_cache(search))
        defense = DistributedNoise(**self.ASKED, epsilon=2)
        assert not asked
        assert defense.noise_level == defense.noise_level == 0.5
        assert DistributedNoise(**self.ASKED, epsilon=2).noise_level == 0.5
        assert len(asked) == 1

    def test_a_target_that_no_noise_reaches(self) -> None:
        defense = DistributedNoise(**(self.ASKED | {"epsilon": 1e-300}))
        with pytest.raises(Infeasible, match="no variance"):
            _ = defense.noise_level
        statement = defense.privacy(schedule(defense))
        assert statement.epsilon is None and "no variance" in statement.basis

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"variance": 0.1}, r"give variance \(0.1\) or epsilon \(2\), and not both"),
            ({"epsilon": None}, "give variance, or epsilon with rounds and delta"),
            ({"epsilon": None, "variance": 0.1}, "rounds and delta belong to epsilon"),
            ({"rounds": None, "users": None}, "missing: rounds, users"),
            ({"delta": 1.0}, "less than 1"),
            ({"epsilon": 0}, "greater than 0"),
            ({"epsilon": math.inf}, "finite"),
            ({"bound": "repaired"}, "bound is one of as_printed, corrected here, found repaired"),
            ({"accounting": "poisson_renyi"}, "'composition', 'optimal', 'renyi' or 'tight'"),
        ],
    )
    def test_what_does_not_fit_together(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            DistributedNoise(**(self.ASKED | {"epsilon": 2} | change))

    def test_sampling_without_noise_needs_no_target(self) -> None:
        assert GaussianSampling(batch=2).noise_level == 0
        with pytest.raises(ValidationError, match="rounds and delta belong to epsilon"):
            GaussianSampling(batch=2, rounds=3)


class TestDiscreteNoise:
    """On a grid, with the sensitivity and the divergence that the guarantee speaks of."""

    def told(self, **change: Any) -> DistributedNoise:
        return DistributedNoise(**({"clip": 2.0, "variance": 0.04, "noise": "discrete", "places": 10} | change))

    def test_messages_lie_on_the_grid_around_the_mean(self, steps: ClientSteps) -> None:
        message = self.told().protect_update(steps, streams())
        units = message.view().double() * 2**10
        assert units.equal(units.round())
        assert message.law is not None and message.law.variance is not None
        plain = DistributedNoise(clip=2.0, variance=0.04).bounded_mean(steps)
        assert float((message.law.mean - plain).abs().max()) <= RECORDS * 2**-10
        assert message.law.variance.unique().tolist() == pytest.approx([0.04])
        draws = [Streams([("discrete", seed, client) for client in range(CLIENTS)]) for seed in range(200)]
        errors = torch.stack([self.told().protect_update(steps, each).view() for each in draws]) - message.law.mean
        assert float(errors.std()) == pytest.approx(0.2, rel=0.05)

    def test_no_record_counts_for_more_than_its_norm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Sums of two data sets that differ in one record are no further apart than 2 C / B, in units of the grid."""
        monkeypatch.setattr(Streams, "discrete_normal", lambda self, _, size: torch.zeros(len(self), size).double())
        make = torch.Generator().manual_seed(0)
        for _ in range(20):
            table = 3 * torch.randn(RECORDS, 30, generator=make)
            other = table.clone()
            other[0] = -table[0]
            ours, theirs = (self.told().protect_update(many(each, 1), streams(1)).view() for each in (table, other))
            assert float((ours - theirs).double().norm()) <= 2 * 2.0 / RECORDS

    @pytest.mark.parametrize("users", [2, 3, 8])
    def test_the_divergence_of_a_sum_is_that_of_normal_noise(self, users: int) -> None:
        """By convolving the laws, at the least scale that there is, for shifts and orders."""
        scale, reach = float(LEAST_SCALE), 200
        places = torch.arange(-reach, reach + 1, dtype=torch.float64)
        law = (-(places**2) / (2 * scale**2)).exp()
        one = (law / law.sum()).numpy()
        total = one
        for _ in range(users - 1):
            total = np.convolve(total, one)
        for shift in (1, 7, 30):
            for order in (1.5, 4.0, 16.0):
                ours, theirs = total[shift:], total[: len(total) - shift]
                both = (ours > 1e-290) & (theirs > 1e-290)
                logs = order * np.log(ours[both]) + (1 - order) * np.log(theirs[both])
                exact = float(np.log(np.exp(logs - logs.max()).sum()) + logs.max()) / (order - 1)
                assert exact <= order * shift**2 / (2 * users * scale**2) * (1 + 1e-6)

    def test_its_guarantee(self) -> None:
        asked = {**TestCalibration.ASKED, "epsilon": 2, "batch": 32}
        normal, discrete = (DistributedNoise(**asked, noise=noise) for noise in ("normal", "discrete"))
        statement = discrete.privacy(schedule(discrete, places=16))
        assert statement.epsilon == normal.privacy(schedule(normal)).epsilon
        assert "noise is discrete, on multiples of 2^-16" in statement.basis
        coarse = discrete.privacy(schedule(discrete, places=12))
        assert coarse.epsilon is None and "set secure_aggregation.fraction_bits to 16" in coarse.basis
        with pytest.raises(ValidationError, match="accounting tight is of continuous noise"):
            DistributedNoise(**asked, noise="discrete", accounting="tight")

    def test_a_grid_that_does_not_fit(self, steps: ClientSteps) -> None:
        with pytest.raises(Infeasible, match="more places"):
            self.told(places=3).protect_update(steps, streams())
        with pytest.raises(Infeasible, match="fewer places"):
            self.told(places=22, variance=100.0).protect_update(steps, streams())


class TestBadInput:
    @pytest.mark.parametrize("cls", [GaussianSampling, WaterFilling])
    def test_batches_are_no_larger_than_the_data(self, cls: type[Any]) -> None:
        extra = {} if cls is GaussianSampling else {"variance": 1}
        with pytest.raises(Infeasible, match=r"with batch 3 on 2 records per client: B is at most D"):
            cls(batch=3, **extra).protect_update(many(TABLE, 2), streams(2))
        with pytest.raises(Infeasible, match="it takes 2 or more, and there is 1"):
            cls(batch=1, **extra).protect_update(many(TABLE[:1], 2), streams(2))

    @pytest.mark.parametrize(
        ("cls", "parameters"),
        [
            (WaterFilling, {"batch": 2, "variance": 0}),
            (WaterFilling, {"batch": 2, "variance": -1}),
            (WaterFilling, {"batch": 2, "variance": math.inf}),
            (WaterFilling, {"batch": 2}),
            (WaterFilling, {"batch": 0, "variance": 1}),
            (WaterFilling, {"batch": 2, "variance": 1, "blocks": 0}),
            (WaterFilling, {"batch": 2, "variance": 1, "clip": 0}),
            (DistributedNoise, {"variance": 0}),
            (DistributedNoise, {"variance": 1, "batch": 3, "records": 2}),
            (DistributedNoise, {"variance": 1, "users": 1}),
            (WaterFilling, {"batch": 2, "variance": 1, "records": 1}),
            (GaussianSampling, {"batch": 2, "variance": -0.1}),
            (GaussianSampling, {"batch": 3, "records": 2}),
        ],
    )
    def test_parameters(self, cls: type[Any], parameters: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            cls(**parameters)

    def test_more_blocks_than_coordinates(self) -> None:
        with pytest.raises(ConfigError, match="water_filling in 4 blocks of 3 coordinates"):
            WaterFilling(batch=2, variance=1, blocks=4).protect_update(many(TABLE, 2), streams(2))
