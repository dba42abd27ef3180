"""Spectrum jobs on small images against dense matrices, written out for one user and one record after the other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from leakbench.data.embedded import Digits
from leakbench.defenses.base import NoDefense
from leakbench.errors import ConfigError
from leakbench.federated.partition import iid_partition
from leakbench.jobs.base import Job, Variant
from leakbench.models.base import Model, build_network
from leakbench.models.lenet import LeNet
from leakbench.models.linear import Linear
from leakbench.papers.secagg_dp.jobs import spectrum
from leakbench.papers.secagg_dp.jobs.spectrum import BY_USERS, GRADIENTS, NOISE, SpectrumJob
from leakbench.randomness import Streams, stream_seed
from leakbench.records import Replicate
from leakbench.theory.aggregate_dp import Aggregation, full_rank_curve
from leakbench.theory.noise_calibration import calibrated_variance
from leakbench.theory.span import LEAVES, SpanSummary, residual, span_summary
from leakbench.theory.water_filling import filled

CPU = torch.device("cpu")
USERS, RECORDS, BATCH, CLIP, RATE, ROUNDS, FRESH, SEED = 4, 10, 3, 4.0, 0.5, 5, 20, 1
PROTOCOL: dict[str, Any] = {
    "users": USERS,
    "records": RECORDS,
    "batch": BATCH,
    "clip": CLIP,
    "rate": RATE,
    "rounds": (0, ROUNDS),
    "fresh": FRESH,
    "compared": USERS,
    "variances": (0.01, 0.3),
    "epsilons": (2.0,),
}


def job(model: type[Model] = Linear, parameters: dict[str, Any] | None = None, **changes: Any) -> Job:
    return Job(
        scale="test",
        paper="paper",
        experiment="experiment",
        dataset=Variant("digits8", Digits, {"size": 8}, {}),
        model=Variant("model", model, parameters or {}, {}),
        defense=Variant("none", NoDefense, {}, {}),
        attack=None,
        kind=SpectrumJob(**(PROTOCOL | changes)),
        part="all",
        seeds=(SEED,),
    )


def replicates(made: Job) -> list[Replicate]:
    return made.kind.run(made, CPU).replicates


def numbers(replicate: Replicate, name: str) -> torch.Tensor:
    return torch.tensor(replicate.metrics[name], dtype=torch.float64)


class Dense:
    """The same training, record after record, for a linear model."""

    def __init__(self) -> None:
        digits = Digits(size=8)
        order = iid_partition(1297, 1, USERS * RECORDS, stream_seed("digits8", SEED, "partition"))[0]
        samples = digits.load("train", order.tolist())
        self.inputs = digits.normalise(samples.values).flatten(1).double()
        self.labels = samples.labels
        fresh = digits.load("test", range(FRESH))
        self.fresh = digits.normalise(fresh.values).flatten(1).double(), fresh.labels
        network = build_network(Linear(), (1, 8, 8), 10, stream_seed("digits8", SEED, "initialisation"))
        weights = network.parameters.double()
        self.weight, self.bias = weights[:640].view(10, 64), weights[640:]
        self.streams = Streams([("digits8", SEED, "client", user) for user in range(USERS)])

    def gradient(self, image: torch.Tensor, label: int) -> torch.Tensor:
        error = torch.softmax(self.weight @ image + self.bias, dim=0)
        error[label] -= 1
        found = torch.cat([torch.outer(error, image).flatten(), error])
        return found * min(1.0, CLIP / float(found.norm()))

    def train(self) -> None:
        for number in range(ROUNDS):
            order = self.streams.child("batch", number).uniform(RECORDS).argsort(dim=1)
            total = torch.zeros(650, dtype=torch.float64)
            for user in range(USERS):
                for place in order[user, :BATCH].tolist():
                    row = user * RECORDS + place
                    total += self.gradient(self.inputs[row], int(self.labels[row]))
            step = RATE * total / (USERS * BATCH)
            self.weight, self.bias = self.weight - step[:640].view(10, 64), self.bias - step[640:]

    def gradients(self) -> torch.Tensor:
        """``[N, K, D]``."""
        pairs = zip(self.inputs, self.labels.tolist(), strict=True)
        every = torch.stack([self.gradient(image, label) for image, label in pairs])
        return every.view(USERS, RECORDS, 650).mT


@pytest.fixture(scope="module")
def found() -> list[Replicate]:
    return replicates(job())


@pytest.fixture(scope="module")
def dense() -> list[tuple[torch.Tensor, Dense]]:
    """Gradients before the first round and after the last one, and the state then."""
    start, end = Dense(), Dense()
    end.train()
    return [(state.gradients(), state) for state in (start, end)]


@pytest.mark.parametrize("index", [0, 1])
class TestAgainstDenseMatrices:
    def test_spectra(self, index: int, found: list[Replicate], dense: list[tuple[torch.Tensor, Dense]]) -> None:
        gradients, _ = dense[index]
        values = torch.linalg.eigvalsh(gradients @ gradients.mT / (BATCH * RECORDS)).flip(-1)
        here = found[index]
        assert here.setting == {"round": (0, ROUNDS)[index]}
        torch.testing.assert_close(numbers(here, "trace"), values.sum(dim=1), rtol=1e-4, atol=0)
        torch.testing.assert_close(numbers(here, "largest"), values[:, 0], rtol=1e-4, atol=0)
        torch.testing.assert_close(numbers(here, "eigenvalues"), values[0, :RECORDS], rtol=1e-3, atol=1e-6)
        norms = gradients.norm(dim=1)
        torch.testing.assert_close(numbers(here, "clipped"), (norms > CLIP * (1 - 1e-9)).double().mean(dim=1))

    def test_noise(self, index: int, found: list[Replicate], dense: list[tuple[torch.Tensor, Dense]]) -> None:
        gradients, _ = dense[index]
        covariance = gradients @ gradients.mT / (BATCH * RECORDS)

        def added(variance: float) -> float:
            traces = (filled(covariance, variance) - covariance).diagonal(dim1=1, dim2=2).sum(dim=1)
            return float(traces.mean())

        here = found[index]
        expected = [added(0.01), added(0.3)]
        assert here.metrics["filled"] == pytest.approx(expected, rel=1e-4)
        assert here.metrics["isotropic"] == pytest.approx([6.5, 195.0])
        saved = [1 - one / even for one, even in zip(expected, (6.5, 195.0), strict=True)]
        assert here.metrics["saved"] == pytest.approx(saved, rel=1e-2)
        setting = Aggregation(USERS, RECORDS, BATCH, CLIP)
        even = 650 * calibrated_variance(setting, 2.0, 100, 1e-4, "gaussian", "as_printed")
        own = added(calibrated_variance(setting, 2.0, 100, 1e-4, "gaussian_filled", "corrected"))
        assert here.metrics["isotropic_at_epsilon"] == pytest.approx([even])
        assert here.metrics["filled_at_epsilon"] == pytest.approx([own], rel=1e-6)
        assert here.metrics["excess_at_epsilon"] == pytest.approx([own / even - 1], rel=1e-3)

    def test_spans(self, index: int, found: list[Replicate], dense: list[tuple[torch.Tensor, Dense]]) -> None:
        gradients, state = dense[index]
        expected: SpanSummary = span_summary(gradients)
        here = found[index].metrics
        assert here["rank"] == expected.ranks.tolist()
        assert here["pooled_rank"] == expected.pooled_rank
        assert here["leaving_per_user"] == pytest.approx(expected.leaving.tolist())
        assert here["leaving_pooled"] == pytest.approx(expected.pooled_leaving)
        assert here["leaving_other_users"] == pytest.approx(expected.alone)
        images, labels = state.fresh
        new = torch.stack([state.gradient(image, int(label)) for image, label in zip(images, labels, strict=True)]).mT
        outside = residual(gradients.movedim(0, 1).flatten(1), new) > LEAVES
        assert here["leaving_fresh"] == pytest.approx(float(outside.double().mean()))
        varying = int((state.inputs.max(dim=0).values > state.inputs.min(dim=0).values).sum())
        assert (here["varying"], here["rank_bound"]) == (varying, 9 * (varying + 1))
        assert (here["dimension"], here["pooled"]) == (650, USERS * RECORDS)

    def test_the_model_is_judged_on_fresh_records(
        self, index: int, found: list[Replicate], dense: list[tuple[torch.Tensor, Dense]]
    ) -> None:
        _, state = dense[index]
        images, labels = state.fresh
        logits = images @ state.weight.T + state.bias
        loss = torch.nn.functional.cross_entropy(logits, labels)
        assert found[index].metrics["loss"] == pytest.approx(float(loss), rel=1e-4)
        assert found[index].metrics["accuracy"] == float((logits.argmax(dim=1) == labels).double().mean())


def test_more_records_than_coordinates_come_in_chunks_and_keep_their_rank() -> None:
    """A linear model's gradients, of which there are more than its 650 coordinates."""
    (here,) = replicates(job(users=20, records=40, batch=4, rounds=(0,), fresh=5, compared=1))
    metrics = here.metrics
    assert isinstance(metrics["rank_bound"], float) and isinstance(metrics["pooled_rank"], float)
    assert metrics["pooled"] == 800 and 400 < metrics["pooled_rank"] <= metrics["rank_bound"] < 650
    assert isinstance(metrics["leaving_pooled"], float) and 0 < metrics["leaving_pooled"] < 0.2


def test_a_convolutional_network_has_no_bound_on_the_rank() -> None:
    (here,) = replicates(job(LeNet, {"width": 2}, rounds=(0,), measured=2))
    assert here.metrics["rank_bound"] is None and "linear" in here.reasons["rank_bound"]
    assert here.metrics["pooled_rank"] == 2 * RECORDS and here.metrics["leaving_pooled"] == 1.0
    assert len(here.metrics["rank"]) == 2  # type: ignore[arg-type]


class TestFewCoordinates:
    PROTOCOL = PROTOCOL | {"classes": (3, 5), "features": 4, "auxiliary": 40, "by_users": (1, 2, 4), "rounds": (0,)}

    @pytest.fixture(scope="class")
    def found(self) -> Replicate:
        (here,) = replicates(job(**self.PROTOCOL))
        return here

    def scores(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the users' records, by another way to principal components; and labels 0 and 1."""
        digits = Digits(size=8)
        samples = digits.load("train", range(1297))
        rows = ((samples.labels == 3) | (samples.labels == 5)).nonzero()[:, 0]
        order = iid_partition(len(rows), 1, USERS * RECORDS + 40, stream_seed("digits8", SEED, "partition"))[0]
        images = digits.normalise(samples.values[rows[order]]).flatten(1).double()
        held, free = images[: USERS * RECORDS], images[USERS * RECORDS :]
        values, vectors = torch.linalg.eigh(torch.cov(free.T))
        axes = vectors.flip(1)[:, :4] / values.flip(0)[:4].sqrt()
        return (held - free.mean(dim=0)) @ axes, (samples.labels[rows[order]][: USERS * RECORDS] == 5).long()

    def test_it_is_theorem_3_in_the_known_subspace(self, found: Replicate) -> None:
        features, labels = self.scores()
        # The sign of a component is free, and changes the model's gradients: compare what does not depend on the model.
        network = build_network(Linear(), (1, 1, 4), 2, stream_seed("digits8", SEED, "initialisation"))
        flat = network.parameters.double()
        weight, bias = flat[:8].view(2, 4), flat[8:]
        spectrum_of_signs = []
        for signs in torch.cartesian_prod(*[torch.tensor([1.0, -1.0], dtype=torch.float64)] * 4):
            inputs = features * signs
            error = torch.softmax(inputs @ weight.T + bias, dim=1)[:, 1] - labels
            rows = math.sqrt(2) * error[:, None] * torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)
            rows = rows * (CLIP / rows.norm(dim=1, keepdim=True).clamp(min=CLIP))
            covariances = rows.view(USERS, RECORDS, 5).mT @ rows.view(USERS, RECORDS, 5) / RECORDS
            single = torch.linalg.eigvalsh(covariances)[:, 0].cumsum(dim=0)
            pooled = torch.stack([torch.linalg.eigvalsh(covariances[:n].sum(dim=0))[0] for n in (1, 2, 4)])
            spectrum_of_signs.append(torch.cat([single[[0, 1, 3]], pooled]))
        mine = torch.cat([numbers(found, "floor"), numbers(found, "pooled_floor")])
        gaps = [float((mine - other).abs().max() / mine.max()) for other in spectrum_of_signs]
        assert min(gaps) < 1e-4 < sorted(gaps)[1]

    def test_rho_epsilon_and_information_follow(self, found: Replicate) -> None:
        metrics, floors = found.metrics, found.metrics["pooled_floor"]
        assert isinstance(floors, list) and metrics["users"] == [1.0, 2.0, 4.0] and metrics["subspace"] == 5
        assert metrics["rho"] == pytest.approx([RECORDS * float(floor or 0) / CLIP**2 for floor in floors])
        for floor, epsilon in zip(floors, metrics["epsilon_pooled"], strict=True):  # type: ignore[arg-type]
            assert floor is not None
            if floor <= CLIP**2 / RECORDS:
                assert epsilon is None and "says nothing" in found.reasons["epsilon_pooled"]
            else:
                assert epsilon == full_rank_curve(RECORDS, BATCH, CLIP, floor).guarantee(1e-4).epsilon
        information = metrics["information"]
        assert isinstance(information, list) and information[0] is None
        assert information[2] == pytest.approx(5 / (3 * BATCH) + 2.5 * math.log(4 / 3))

    def test_a_small_clipping_norm_lets_the_theorem_speak(self) -> None:
        protocol = self.PROTOCOL | {"clip": 0.1, "users": 8, "by_users": (1, 8)}
        (here,) = replicates(job(**protocol))
        epsilons = here.metrics["epsilon_pooled"]
        assert isinstance(epsilons, list) and epsilons[1] is not None
        assert epsilons[0] is None or epsilons[0] > epsilons[1]

    def test_metrics_by_users_are_there_only_if_asked_for(self) -> None:
        made = job(rounds=(0,), measured=2)
        assert set(made.metrics) == set(replicates(made)[0].metrics) == {*GRADIENTS, *NOISE}
        made = job(**self.PROTOCOL)
        assert set(made.metrics) == set(replicates(made)[0].metrics) == {*GRADIENTS, *NOISE, *BY_USERS}


def test_training_that_is_not_finite_ends() -> None:
    first, last = replicates(job(rate=1e38, clip=1e30, rounds=(0, 4), measured=2))
    assert first.outcome.status == "ok"
    assert last.outcome.status == "diverged" and set(last.metrics.values()) == {None}
    assert last.reasons.keys() == last.metrics.keys()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 11}, "batch"),
        ({"measured": 5}, "measured"),
        ({"by_users": (1, 9)}, "by_users"),
        ({"features": 5, "auxiliary": 5}, "auxiliary"),
        ({"rounds": (3, 1)}, "ascend"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        job(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"users": 200}, "users \\* records"),
        ({"fresh": 600}, "fresh"),
        ({"features": 65, "auxiliary": 80}, "principal components"),
    ],
)
def test_too_few_images_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replicates(job(**changes))


def test_a_span_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "MEMORY", 10**6)
    with pytest.raises(ConfigError, match="measured"):
        replicates(job())
