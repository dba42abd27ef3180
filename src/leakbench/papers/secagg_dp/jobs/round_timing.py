"""Seconds of a round of users whose noise adds up: random batches, all records, and water-filling (Zhang et al. 2024).

The paper compares the times of its three mechanisms. Timed are the computations of all users in a round and the
server's sum, at the model's initialisation, in one process and in turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from leakbench.defenses.aggregate import SummedUsers
from leakbench.defenses.clients import DefendedClients, Examples
from leakbench.defenses.distributed_noise import DistributedNoise
from leakbench.defenses.water_filling import WaterFilling
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.batches import without_replacement
from leakbench.federated.layered_steps import LayeredSteps
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.costs import Times, timed
from leakbench.jobs.victims import Victims, gather_victims
from leakbench.lazy import torch
from leakbench.models.layered import LayeredNetwork
from leakbench.records import MetricInfo, Replicate, Value

RoundMethod = Literal["sgd", "gd", "gsgd"]
ROUND_METHODS: tuple[RoundMethod, ...] = get_args(RoundMethod)
"""Isotropic noise on random batches, and on all records; Gaussian sampling of all records with water-filling."""

ROUND_TIMING_METRICS = timed({"round": "one round of all users"}) | {
    "noise_variance": MetricInfo(unit="sigma^2 of one user's noise", direction="lower")
}


@JOB_KINDS.register("round_timing", version=1)
class RoundTimingJob(JobKind):
    """Time a round of three mechanisms at equal epsilon on one machine, in one process, in turns.

    A repetition times every mechanism once, in random order. The gradients of records are computed layer by layer.
    """

    metrics: ClassVar[Mapping[str, MetricInfo]] = ROUND_TIMING_METRICS

    clients: int = Field(50, ge=2, description="users, N")
    images_per_client: int = Field(ge=2, description="records of each, D")
    batch_size: int = Field(32, ge=1, description="of random batches, and scale of Gaussian sampling, B")
    clip: float = Field(10.0, gt=0, description="bound on the norm of a record's gradient, C")
    epsilon: float = Field(2.0, gt=0, description="of all rounds, which noise is calibrated for")
    rounds: int = Field(100, ge=1, description="rounds of training, T")
    delta: float = Field(1e-4, gt=0, lt=1, description="of all rounds")
    repetitions: int = Field(10, ge=1, description="times that every mechanism is timed")

    @model_validator(mode="after")
    def _part_of_all(self) -> RoundTimingJob:
        if self.batch_size > self.images_per_client:
            raise ValueError(
                f"batch_size ({self.batch_size}) must be at most images_per_client ({self.images_per_client})"
            )
        return self

    def mechanisms(self) -> dict[RoundMethod, SummedUsers]:
        """The three mechanisms with the paper's accounting; Gaussian sampling with that of Theorem 4."""
        shared: dict[str, Any] = {
            "clip": self.clip,
            "users": self.clients,
            "records": self.images_per_client,
            "epsilon": self.epsilon,
            "rounds": self.rounds,
            "delta": self.delta,
        }
        return {
            "sgd": DistributedNoise(batch=self.batch_size, bound="as_printed", **shared),
            "gd": DistributedNoise(**shared),
            "gsgd": WaterFilling(batch=self.batch_size, **shared),
        }

    def settings_of(self, job: Job) -> Iterator[Setting]:
        for method in ROUND_METHODS:
            yield {"method": method}

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"repetition": self.repetitions}

    def effort(self, job: Job) -> Effort:
        records = self.batch_size + 2 * self.images_per_client
        records += round(self.mechanisms()["gsgd"].passes(self.images_per_client))
        rounds = Effort(self.clients * records, len(ROUND_METHODS))
        return rounds.times(len(job.seeds) * (1 + self.repetitions))

    def run(self, job: Job, device: torch.device) -> Findings:
        replicates = [replicate for seed in job.seeds for replicate in self._seed(job, seed, device)]
        return Findings(replicates)

    def _seed(self, job: Job, seed: int, device: torch.device) -> Iterator[Replicate]:
        """One replicate per mechanism, with a list over repetitions of every time.

        Raises:
            Infeasible: the model cannot be computed layer by layer.
        """
        victims = gather_victims(
            job.dataset.single(),
            job.dataset.label,
            job.model.single(),
            seed,
            clients=self.clients,
            batch_size=self.images_per_client,
            first_index=0,
            device=device,
            split="train",
        )
        layered = LayeredNetwork.of(victims.network)
        if layered is None:
            raise Infeasible("round_timing is for sequences of linear layers and convolutions; this model is none")
        mechanisms = self.mechanisms()
        times: dict[RoundMethod, list[Times]] = {method: [] for method in ROUND_METHODS}
        with torch.no_grad():
            for repetition in range(-1, self.repetitions):  # the first round of each sets up, and is not timed
                draws = torch.Generator().manual_seed(repetition + 1)
                for place in torch.randperm(len(ROUND_METHODS), generator=draws).tolist():
                    method, taken = ROUND_METHODS[place], Times()
                    with taken.of("round", device):
                        self._round(method, mechanisms[method], victims, layered, repetition + 1)
                    if repetition >= 0:
                        times[method].append(taken)
        for method in ROUND_METHODS:
            metrics: dict[str, Value] = {
                "round_wall_s": [each.wall["round"] for each in times[method]],
                "round_cpu_s": [each.cpu["round"] for each in times[method]],
                "noise_variance": mechanisms[method].noise_level,
            }
            yield Replicate(seed=seed, setting={"method": method}, metrics=metrics)

    def _round(
        self, method: RoundMethod, defense: SummedUsers, victims: Victims, layered: LayeredNetwork, number: int
    ) -> torch.Tensor:
        streams, samples = victims.streams.child("round", number), Examples(victims.inputs, victims.labels)
        if method == "sgd":
            device = samples.inputs.device
            chosen = without_replacement(streams.child("batch"), self.images_per_client, self.batch_size, device)
            row = torch.arange(len(chosen), device=chosen.device)[:, None]
            samples = samples.at((row, chosen))

        def compute(batch: Examples) -> LayeredSteps:
            return LayeredSteps(victims.network, layered, victims.parameters[None], *batch, streams)

        clients = DefendedClients(defense, victims.streams, samples, per_server=self.clients)
        return clients.aggregate(clients.step(compute, streams.child("defense")).message)
