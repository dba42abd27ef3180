"""Fisher jobs: leakage and utility of a defended gradient, from its law alone; nothing is attacked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from pydantic import Field

from leakbench.data.base import Dataset, image_dataset
from leakbench.data.covariance import moments_of
from leakbench.defenses.base import Defense
from leakbench.defenses.clients import DefendedClients
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.message import Law
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.victims import SAME_OR_DISTINCT, OfSeeds, gather_victims
from leakbench.lazy import torch
from leakbench.models.base import BatchNorm, Network
from leakbench.records import MetricInfo, Outcome, Replicate
from leakbench.theory.fisher import information_trace, least_error
from leakbench.theory.optimal_noise import RATIO_CEILING, RATIO_FLOOR, variance_ratio
from leakbench.theory.utility import u1, u2

FISHER_METRICS = {
    "energy": MetricInfo(unit="<g, g>, gradient g", direction="none", axis="victim"),
    "u1_kept": MetricInfo(unit="<g, E y> / <g, g>, message y", direction="higher", axis="victim"),
    "u2": MetricInfo(unit="minus the variance of <g, y>", direction="higher", axis="victim"),
    "information": MetricInfo(unit="tr J_F per input dimension", direction="higher", axis="victim"),
    "information_kept": MetricInfo(
        unit="part of tr J_F that passes, under equal noise", direction="higher", axis="victim"
    ),
    "noise_rms": MetricInfo(unit="root mean square of the standard deviations", direction="none", axis="victim"),
    "noise_frobenius": MetricInfo(unit="Frobenius norm of the covariance", direction="none", axis="victim"),
    "passing": MetricInfo(unit="part of the coordinates that follow the gradient", direction="none", axis="victim"),
    "floored": MetricInfo(unit="part of the coordinates below the floor of the ratio", direction="none", axis="victim"),
    "capped": MetricInfo(unit="part of the coordinates at the limit of the ratio", direction="none", axis="victim"),
}
BOUND = {
    "bound": MetricInfo(
        unit="least squared error per input, by tr J_F, of normal inputs with the data's covariance", direction="higher"
    )
}
INFINITE = "infinite: coordinates travel without noise"
"""The reason why there is no number of the information."""
NEEDS_LAW = ("u1_kept", "u2", "information", "information_kept", "noise_rms", "noise_frobenius", "passing")


@JOB_KINDS.register("fisher", version=1)
class FisherJob(JobKind):
    """Fisher information of each client's message about its images, and the two utilities of Chen et al. (2024).

    Input sensitivities are estimated with fresh directions: those by which a defense chose the coordinates to prune, or
    to put noise on, would make it look better than it is. The information is that of the mean of a normal message; a
    covariance that depends on the data may reveal more, which is not counted.
    """

    minutes: ClassVar[int] = 30
    added: ClassVar[tuple[str, ...]] = ("victims", "prior")
    metrics: ClassVar[Mapping[str, MetricInfo]] = FISHER_METRICS

    clients: int = Field(ge=1, description="clients per seed")
    batch_size: int = Field(ge=1, description="images per client, B")
    first_index: int = Field(1, ge=0, description="where the clients' images start in the test split")
    victims: OfSeeds = Field("same", description=SAME_OR_DISTINCT)
    batch_norm: BatchNorm = Field("eval", description="what the clients' BatchNorm layers normalise with")
    probes: int = Field(100, ge=1, description="random directions per sensitivity")
    exact: bool = Field(False, description="exact sensitivities instead, along every pixel of an image")
    prior: int | None = Field(
        None,
        ge=2,
        description="training images at most whose covariance is the prior of a bound on the error of attackers; by "
        "default there is none",
    )
    coordinates: bool = Field(False, description="keep the first client's gradient, sensitivities and noise variances")

    @property
    def distinct_victims(self) -> bool:
        return self.victims == "distinct"

    def metrics_of(self, job: Job) -> Mapping[str, MetricInfo]:
        return FISHER_METRICS if self.prior is None else FISHER_METRICS | BOUND

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"victim": self.clients}

    def effort(self, job: Job) -> Effort:
        directions = math.prod(job.dataset.single().shape) if self.exact else self.probes
        one = Effort(directions, 1).plus(Effort(1, 1).times(job.defense.count))
        return one.beside(self.clients * self.batch_size).times(len(job.seeds))

    def volume(self, job: Job) -> float:
        return float(len(job.seeds) * job.defense.count * self.clients)

    def run(self, job: Job, device: torch.device) -> Findings:
        replicates: list[Replicate] = []
        tensors: dict[str, torch.Tensor] = {}
        variances = None if self.prior is None else _prior_variances(job.dataset.single(), self.prior)
        for seed in job.seeds:
            measured, kept = self._measure_seed(job, seed, device)
            replicates += measured
            tensors |= kept
        if variances is not None:
            for replicate in replicates:
                _add_bound(replicate, variances)
        return Findings(replicates, tensors)

    def _measure_seed(
        self, job: Job, seed: int, device: torch.device
    ) -> tuple[list[Replicate], dict[str, torch.Tensor]]:
        victims = gather_victims(
            image_dataset(job.dataset.single(), "jobs of kind 'fisher'"),
            job.dataset.label,
            job.model.single(),
            seed,
            clients=self.clients,
            batch_size=self.batch_size,
            first_index=self.first_index,
            of_seeds=self.victims,
            device=device,
        ).in_mode(self.batch_norm)
        network = victims.network
        steps = ClientSteps(network, victims.parameters, victims.inputs, victims.labels, victims.streams)
        undefended = _Undefended(
            steps.gradient,
            steps.exact_sensitivity if self.exact else steps.sensitivity(self.probes, "rademacher", draw=1),
            inputs=victims.inputs[0].numel(),
        )
        replicates: list[Replicate] = []
        coordinates = {"gradient": undefended.gradient[0], "sensitivity": undefended.sensitivity[0]}
        for number, (setting, defense) in enumerate(job.defense.settings()):
            law, reason = _law_of(defense, steps)
            replicates.append(_replicate(seed, setting, undefended, law, reason))
            if self.coordinates and law is not None and law.variance is not None:
                coordinates[f"variance{number}"] = law.variance[0]
        return replicates, self._shown(network, seed, coordinates)

    def _shown(self, network: Network, seed: int, flat: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Vectors ``[d]`` for the record, by parameter; empty unless the protocol asks for them."""
        if not self.coordinates:
            return {}
        return {
            f"seed{seed}/{name}/{parameter}": part.contiguous()
            for name, vector in flat.items()
            for parameter, part in network.unflatten(vector).items()
        }


def _prior_variances(dataset: Dataset, count: int) -> torch.Tensor:
    """Eigenvalues of the covariance of training images as network inputs, float64 ``[pixels]``."""
    images = image_dataset(dataset, "the field 'prior' of jobs of kind 'fisher'")
    rows = range(min(count, images.length("train")))
    return moments_of(images.normalise(images.load("train", rows).values)).eigenvalues


def _add_bound(replicate: Replicate, variances: torch.Tensor) -> None:
    """Add the bound that follows from the mean information of a seed's clients; infinite information leaves 0.

    The information about one image alone is that of all inputs of a batch, per input, times the image's pixels: images
    are independent, and the bound of all is the sum of theirs.
    """
    information = replicate.metrics.get("information")
    reason = replicate.reasons.get("information", "")
    if isinstance(information, list) and None not in information:
        trace = torch.tensor(information, dtype=torch.float64).mean() * len(variances)
        replicate.metrics["bound"] = float(least_error(trace, variances)) / len(variances)
    elif reason == INFINITE:
        replicate.metrics["bound"] = 0.0
    else:
        replicate.metrics["bound"], replicate.reasons["bound"] = None, reason


@dataclass(frozen=True)
class _Undefended:
    """The undefended gradients and their sensitivities.

    Attributes:
        gradient: ``[n, d]``.
        sensitivity: of each coordinate to the client's images, ``[n, d]``.
        inputs: dimension of a client's images together.
    """

    gradient: torch.Tensor
    sensitivity: torch.Tensor
    inputs: int

    @cached_property
    def metrics(self) -> dict[str, torch.Tensor]:
        """Metrics that no defense changes, one value per client."""
        return {
            "energy": self.gradient.square().sum(dim=1),
            "floored": (self.gradient.abs() < RATIO_FLOOR).float().mean(dim=1),
            "capped": (variance_ratio(self.sensitivity, self.gradient) >= RATIO_CEILING).float().mean(dim=1),
        }

    def under(self, law: Law) -> dict[str, torch.Tensor]:
        """Metrics of a defended message, one value per client; sums over many coordinates are made in float64."""
        g, a = self.gradient.double(), self.sensitivity.double()
        variance = torch.zeros_like(g) if law.variance is None else law.variance.double()
        information = information_trace(a, variance, law.passing) / self.inputs
        return {
            "u1_kept": u1(g, law.mean.double()) / g.square().sum(dim=1),
            "u2": u2(g, variance) + 0.0,  # no -0 in records
            "information": information if _summable(law) else torch.full_like(information, torch.nan),
            "information_kept": torch.where(law.passing, a, 0.0).sum(dim=1) / a.sum(dim=1),
            "noise_rms": variance.mean(dim=1).sqrt(),
            "noise_frobenius": variance.norm(dim=1),
            "passing": law.passing.double().mean(dim=1),
        }


def _law_of(defense: Defense, steps: ClientSteps) -> tuple[Law | None, str]:
    """The law of the clients' messages, or the reason why it is unknown."""
    try:
        message = DefendedClients(defense, steps.streams).send(steps, steps.streams.child("defense"))
    except Infeasible as error:  # such as a mechanism that has to see the clients' data first
        return None, str(error)
    return message.law, "" if message.law else "the defense does not state how its messages are distributed"


def _replicate(seed: int, setting: Setting, undefended: _Undefended, law: Law | None, reason: str) -> Replicate:
    """The metrics of one setting; without a law, those that need one are null, with the reason."""
    replicate = Replicate(seed=seed, setting=dict(setting), metrics={})
    values = dict(undefended.metrics)
    if law is None:
        replicate.outcome = Outcome(status="infeasible", reason=reason)
        replicate.reasons = dict.fromkeys(NEEDS_LAW, reason)
    else:
        values |= undefended.under(law)
    for name in FISHER_METRICS:
        if name not in values:
            replicate.metrics[name] = None
            continue
        numbers = values[name].double()
        finite = numbers.isfinite().tolist()
        replicate.metrics[name] = [value if ok else None for value, ok in zip(numbers.tolist(), finite, strict=True)]
        if not all(finite):
            replicate.reasons[name] = _why_not(name, law)
    return replicate


def _why_not(name: str, law: Law | None) -> str:
    if name != "information" or law is None:
        return "not finite"
    if _summable(law):
        return INFINITE
    return "known for independent noise alone" if law.normal else "known for normal noise alone"


def _summable(law: Law) -> bool:
    """Whether the information is a sum over coordinates that follows from the variance."""
    return law.normal and law.independent
