"""Fisher jobs against sums written out for one client after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.noise import ClippedNoise, GaussianNoise
from leakbench.defenses.optimal import OptimalNoise, OptimalPruning
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.federated.message import DenseMessage, Law, Message
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import Findings, Job
from leakbench.jobs.victims import Victims, gather_victims
from leakbench.models.convnets import SimpleConvNet
from leakbench.randomness import Streams
from leakbench.records import Replicate
from leakbench.theory.fisher import least_error

FisherJobs = Callable[..., Job]
CPU = torch.device("cpu")
INPUTS = 2 * 8 * 8


class Silent(Defense):
    """Sends half of the gradient, and does not state how that is distributed."""

    name: ClassVar[str] = "silent"
    version: ClassVar[int] = 1

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return DenseMessage(steps.gradient / 2)


class Laplace(Defense):
    """Noise that is not normal."""

    name: ClassVar[str] = "laplace"
    version: ClassVar[int] = 1

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        everything = torch.ones_like(steps.gradient)
        return DenseMessage(steps.gradient, law=Law(steps.gradient, everything > 0, 0.5 * everything, normal=False))


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def values(replicate: Replicate, metric: str) -> torch.Tensor:
    found = replicate.metrics[metric]
    assert isinstance(found, list)
    return torch.tensor([torch.nan if value is None else value for value in found], dtype=torch.float64)


@pytest.fixture(scope="module")
def victims() -> Victims:
    """The clients of the jobs."""
    return gather_victims(
        Digits(size=8), "digits8", SimpleConvNet(width=4), 0, clients=3, batch_size=2, first_index=1, device=CPU
    )


@pytest.fixture(scope="module")
def exact(victims: Victims) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients and their squared input derivatives, both ``[3, d]`` in float64."""
    network, parameters = victims.network, victims.parameters
    gradients, squares = [], []
    for inputs, labels in zip(victims.inputs, victims.labels, strict=True):
        gradients.append(network.gradient(parameters, inputs, labels).double())
        jacobian = torch.func.jacfwd(network.gradient, argnums=1)(parameters, inputs, labels)
        squares.append(jacobian.flatten(1).double().square().sum(dim=1))
    return torch.stack(gradients), torch.stack(squares)


def test_isotropic_noise(fisher_job: FisherJobs, exact: tuple[torch.Tensor, torch.Tensor]) -> None:
    gradient, sensitivity = exact
    found = run(fisher_job(GaussianNoise, {}, {"scale": [0.1, 0.2]}, probes=2000)).replicates
    assert [replicate.setting for replicate in found] == [{"scale": 0.1}, {"scale": 0.2}]
    for replicate, scale in zip(found, (0.1, 0.2), strict=True):
        energy = gradient.square().sum(dim=1)
        expected = {
            "energy": energy,
            "u1_kept": torch.ones(3),
            "u2": -(scale**2) * energy,
            "information_kept": torch.ones(3),
            "noise_rms": torch.full((3,), scale),
            "noise_frobenius": torch.full((3,), scale**2 * gradient.shape[1] ** 0.5),
            "passing": torch.ones(3),
        }
        for metric, value in expected.items():
            torch.testing.assert_close(values(replicate, metric), value.double(), rtol=1e-5, atol=0, msg=metric)
        information = sensitivity.sum(dim=1) / scale**2 / INPUTS
        torch.testing.assert_close(values(replicate, "information"), information, rtol=0.05, atol=0)
        assert not replicate.reasons


def test_pruning_passes_on_what_it_keeps(fisher_job: FisherJobs, exact: tuple[torch.Tensor, torch.Tensor]) -> None:
    gradient, sensitivity = exact
    (replicate,) = run(fisher_job(MagnitudePruning, {"fraction": 0.8}, probes=2000)).replicates
    count = int(0.8 * gradient.shape[1])
    for row, (g, a) in enumerate(zip(gradient, sensitivity, strict=True)):
        kept = g.abs().argsort(stable=True)[count:]
        assert values(replicate, "u1_kept")[row] == pytest.approx(float(g[kept].square().sum() / g.square().sum()))
        assert values(replicate, "information_kept")[row] == pytest.approx(float(a[kept].sum() / a.sum()), rel=0.05)
    assert values(replicate, "passing").tolist() == pytest.approx([1 - count / gradient.shape[1]] * 3)
    assert values(replicate, "u2").tolist() == [0, 0, 0]
    assert replicate.metrics["information"] == [None] * 3
    assert replicate.reasons == {"information": "infinite: coordinates travel without noise"}
    assert replicate.outcome.status == "ok"


def test_clipped_coordinates_pass_nothing_on(fisher_job: FisherJobs, exact: tuple[torch.Tensor, torch.Tensor]) -> None:
    gradient, _ = exact
    clip = float(gradient.abs().median())
    (replicate,) = run(fisher_job(ClippedNoise, {"scale": 0.1, "clip": clip})).replicates
    for row, g in enumerate(gradient):
        inside = g.abs() < clip
        assert values(replicate, "passing")[row] == pytest.approx(float(inside.double().mean()), abs=2e-3)
        kept = float((g * g.clamp(-clip, clip)).sum() / g.square().sum())
        assert values(replicate, "u1_kept")[row] == pytest.approx(kept, rel=1e-4)
    assert 0.4 < float(values(replicate, "passing").mean()) < 0.6


def test_optimal_noise_at_equal_u2_tells_less(fisher_job: FisherJobs) -> None:
    budget = {"scale": 1e-3, "scale_mode": "u2"}
    isotropic, optimal = (
        run(fisher_job(defense, budget, probes=500)).replicates[0] for defense in (GaussianNoise, OptimalNoise)
    )
    for replicate in (isotropic, optimal):
        torch.testing.assert_close(values(replicate, "u2"), torch.full((3,), -1e-3).double(), rtol=1e-4, atol=0)
    assert bool((values(optimal, "information") < values(isotropic, "information")).all())


def test_probes_are_not_those_that_chose_the_pruned_set(fisher_job: FisherJobs, victims: Victims) -> None:
    """With one probe, what is pruned looks most sensitive to that very probe."""
    (replicate,) = run(fisher_job(OptimalPruning, {"fraction": 0.5, "probes": 1}, probes=500)).replicates
    steps = ClientSteps(victims.network, victims.parameters, victims.inputs, victims.labels, victims.streams)
    defense = OptimalPruning(fraction=0.5, probes=1)
    passing = defense.protect_update(steps, victims.streams).law.passing  # type: ignore[union-attr]
    seen = steps.sensitivity(1)
    apparent = torch.where(passing, seen, 0.0).sum(dim=1) / seen.sum(dim=1)
    assert bool((apparent.double() < 0.5 * values(replicate, "information_kept")).all())


def test_a_defense_that_does_not_state_its_law(fisher_job: FisherJobs) -> None:
    (replicate,) = run(fisher_job(Silent)).replicates
    assert replicate.outcome.status == "infeasible"
    missing = {name for name, value in replicate.metrics.items() if value is None}
    assert missing == set(replicate.reasons) and "u1_kept" in missing and "energy" not in missing


def test_information_is_known_for_normal_noise_alone(fisher_job: FisherJobs) -> None:
    (replicate,) = run(fisher_job(Laplace)).replicates
    assert replicate.metrics["information"] == [None] * 3
    assert replicate.reasons == {"information": "known for normal noise alone"}
    torch.testing.assert_close(values(replicate, "u2"), -0.5 * values(replicate, "energy"))


def test_the_undefended_gradient_reveals_everything(fisher_job: FisherJobs) -> None:
    (replicate,) = run(fisher_job(NoDefense)).replicates
    assert values(replicate, "u1_kept").tolist() == pytest.approx([1, 1, 1])
    assert replicate.reasons == {"information": "infinite: coordinates travel without noise"}


def test_coordinates_of_the_first_client(
    fisher_job: FisherJobs, victims: Victims, exact: tuple[torch.Tensor, torch.Tensor]
) -> None:
    found = run(fisher_job(OptimalNoise, {}, {"scale": [0.1, 0.2]}, coordinates=True, probes=500))
    names = victims.network.names
    assert set(found.tensors) == {
        f"seed0/{what}/{name}" for what in ("gradient", "sensitivity", "variance0", "variance1") for name in names
    }

    def flat(what: str) -> torch.Tensor:
        return torch.cat([found.tensors[f"seed0/{what}/{name}"].flatten() for name in names])

    torch.testing.assert_close(flat("gradient").double(), exact[0][0], rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(flat("sensitivity").double().sum(), exact[1][0].sum(), rtol=0.1, atol=0)
    torch.testing.assert_close(flat("variance1"), 4 * flat("variance0"))
    assert run(fisher_job(OptimalNoise, {"scale": 0.1})).tensors == {}


@pytest.mark.parametrize("metric", ["energy", "information"])
def test_a_client_does_not_depend_on_the_others(fisher_job: FisherJobs, metric: str) -> None:
    def first(**protocol: Any) -> float:
        (replicate,) = run(fisher_job(GaussianNoise, {"scale": 0.1}, **protocol)).replicates
        return float(values(replicate, metric)[0])

    assert first(clients=1) == pytest.approx(first(clients=3), rel=1e-4)


def test_exact_sensitivities(fisher_job: FisherJobs, exact: tuple[torch.Tensor, torch.Tensor]) -> None:
    (replicate,) = run(fisher_job(GaussianNoise, {"scale": 0.1}, exact=True)).replicates
    information = exact[1].sum(dim=1) / 0.1**2 / INPUTS
    torch.testing.assert_close(values(replicate, "information"), information, rtol=1e-4, atol=0)


class TestPrior:
    def test_bound_of_the_data(self, fisher_job: FisherJobs) -> None:
        """The mean information of the clients, and the covariance of training images by another hand."""
        images = Digits(size=8).normalise(Digits(size=8).load("train", range(60)).values).flatten(1).double()
        spectrum = torch.linalg.eigvalsh(torch.cov(images.mT)).clamp(min=0)
        found = run(fisher_job(GaussianNoise, {}, {"scale": [0.1, 1e3]}, prior=60)).replicates
        for replicate in found:
            trace = values(replicate, "information").mean() * 64
            (bound,) = least_error(trace[None], spectrum[spectrum > 1e-9]) / 64
            assert replicate.metrics["bound"] == pytest.approx(float(bound), rel=1e-6)
        tight, blind = (replicate.metrics["bound"] for replicate in found)
        assert tight < blind == pytest.approx(float(spectrum.sum()) / 64, rel=1e-3)  # type: ignore[operator]

    @pytest.mark.parametrize(("defense", "bound"), [(NoDefense, 0.0), (Silent, None)])
    def test_without_finite_information(
        self, fisher_job: FisherJobs, defense: type[Defense], bound: float | None
    ) -> None:
        (replicate,) = run(fisher_job(defense, {}, prior=60)).replicates
        assert replicate.metrics["bound"] == bound
        assert ("bound" in replicate.reasons) == (bound is None)

    def test_none_by_default(self, fisher_job: FisherJobs) -> None:
        job = fisher_job(NoDefense)
        assert "bound" not in job.metrics and "bound" not in run(job).replicates[0].metrics
        assert "prior" not in job.kind.parameters()
