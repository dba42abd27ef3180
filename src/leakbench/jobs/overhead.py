"""Overhead of a training step under a defense over the undefended step, in seconds and in bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.defenses.base import ActsOn, Defense, NoDefense
from leakbench.defenses.clients import DefendedClients, Examples
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.batches import without_replacement
from leakbench.federated.client_data import ClientData
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import EVERYTHING, JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.costs import Times
from leakbench.jobs.subjects import check_defense, check_vocabulary
from leakbench.jobs.victims import Victims, gather_victims
from leakbench.lazy import torch
from leakbench.models.base import BatchNorm
from leakbench.records import MetricInfo, Outcome, Replicate, Value

OVERHEAD_METRICS = {
    f"{part}_{clock}_s": MetricInfo(
        unit=f"seconds of {words}, not reproducible: {what}",
        direction="lower",
        axis=None if part == "once" else "repetition",
    )
    for part, what in {
        "client": "a step of one client, its share of what all compute side by side",
        "server": "the server's update from the messages of all clients",
        "once": "what one client does before training, likewise its share",
    }.items()
    for clock, words in {"cpu": "processor time", "wall": "wall time"}.items()
} | {
    "overhead": MetricInfo(
        unit="seconds of a step of all clients and the server, over those of the undefended step in the same "
        "repetition, minus one; not reproducible: processor time on a CPU, wall time on a GPU",
        direction="lower",
        axis="repetition",
    ),
    "bits": MetricInfo(unit="bits on the wire per client and step, the largest message", direction="lower"),
    "bits_ratio": MetricInfo(unit="these bits over those of the undefended message", direction="lower"),
}


@JOB_KINDS.register("overhead", version=1)
class OverheadJob(JobKind):
    """Time the step of every setting of a defense and the undefended one, on one machine, in one process, in turns.

    A repetition draws a batch of every client and takes the step of each once, in random order, at the model's
    initialisation. All clients are computed side by side; nothing is shared between the steps. The client's part is
    protecting its batch, the gradient, and the message. The server's part is ``aggregate``, with the clients' work
    there, such as adding shares up. The law of a message is counted where the defense computes it with the message.

    Calibration and ``protect_dataset`` come once, before training, and are timed once. A mechanism that calibrates
    itself lazily does so in the first step, which is not timed.
    """

    metrics: ClassVar[Mapping[str, MetricInfo]] = OVERHEAD_METRICS
    faces: ClassVar[frozenset[ActsOn]] = EVERYTHING

    clients: int = Field(ge=1, description="clients per round, n")
    batch_size: int = Field(ge=1, description="images per client and step, B")
    images_per_client: int = Field(ge=1, description="size of a client's data, which defenses are calibrated with")
    repetitions: int = Field(10, ge=1, description="times that every step is timed")
    split: Literal["test", "train"] = Field(
        "test",
        description="which split the clients' images are of: of the test split those from first_index on, of the train "
        "split as many drawn at random, anew for each seed",
    )
    first_index: int = Field(1, ge=0, description="where the clients' images start in the test split")
    batch_norm: BatchNorm = Field("eval", description="what the clients' BatchNorm layers normalise with")

    @model_validator(mode="after")
    def _part_of_all(self) -> OverheadJob:
        if self.batch_size > self.images_per_client:
            raise ValueError(
                f"batch_size ({self.batch_size}) must be at most images_per_client ({self.images_per_client})"
            )
        return self

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"repetition": self.repetitions}

    def effort(self, job: Job) -> Effort:
        step = Effort(self.clients * self.batch_size, 1)
        return step.times(len(job.seeds) * (1 + self.repetitions) * (1 + job.defense.count))

    def volume(self, job: Job) -> float:
        return float(len(job.seeds) * job.defense.count * self.repetitions)

    def run(self, job: Job, device: torch.device) -> Findings:
        check_vocabulary(job.dataset.single(), job.model.single())
        with torch.no_grad():
            return Findings([each for seed in job.seeds for each in _Bench(self, job, seed, device).replicates()])


@dataclass
class _Contender:
    """A setting of the defense, or none, and the times of its steps.

    Attributes:
        clients: under the calibrated defense; None where it cannot be applied.
        victims: the same with the model that they train.
        once: seconds of calibration and of protecting the data set.
        steps: seconds of all clients (``client``) and of the server, by repetition.
        bits: of one client's largest message.
        outcome: not ok where its steps cannot be taken, or diverge.
    """

    setting: Setting
    victims: Victims
    clients: DefendedClients | None = None
    once: Times = field(default_factory=Times)
    steps: list[Times] = field(default_factory=list)
    bits: int = 0
    outcome: Outcome = field(default_factory=Outcome)


class _Bench:
    """The clients of one seed, and all that is timed on them."""

    def __init__(self, kind: OverheadJob, job: Job, seed: int, device: torch.device) -> None:
        self.kind, self.job, self.seed, self.device = kind, job, seed, device
        self.dataset = job.dataset.single()
        self.victims = gather_victims(
            self.dataset,
            job.dataset.label,
            job.model.single(),
            seed,
            clients=kind.clients,
            batch_size=kind.images_per_client,
            first_index=kind.first_index,
            device=device,
            split=kind.split,
        ).in_mode(kind.batch_norm)
        if job.defense.component.overrides("calibrate"):  # the libraries' set-up at their first call is not timed
            torch.linalg.eigh(torch.eye(8, dtype=torch.float64, device=device))
        self.undefended = self._contender({}, NoDefense())
        self.contenders = [self._contender(setting, defense) for setting, defense in job.defense.settings()]

    def _contender(self, setting: Setting, defense: Defense) -> _Contender:
        """A setting with calibrated clients; statistics of the images are computed anew for each."""
        made, victims = _Contender(setting, self.victims), self.victims
        try:
            check_defense(self.dataset, defense)
            made.victims = victims.under(defense, self.job.dataset.label, self.seed)
            with made.once.of("once", self.device):
                if defense.overrides("calibrate"):
                    defense = defense.calibrate(ClientData(victims.inputs, self.dataset.classes))
                samples = Examples(victims.inputs, victims.labels)
                made.clients = DefendedClients(defense, victims.streams, samples, per_server=self.kind.clients)
        except Infeasible as error:
            made.outcome = Outcome(status="infeasible", reason=str(error))
        return made

    def replicates(self) -> Iterator[Replicate]:
        """One per setting, with a list over repetitions of every time."""
        every = [self.undefended, *self.contenders]
        for number in range(1 + self.kind.repetitions):
            order = torch.randperm(len(every), generator=torch.Generator().manual_seed(number))
            for contender in (every[place] for place in order.tolist()):
                if contender.clients is not None and contender.outcome.status == "ok":
                    taken = self._step(contender, contender.clients, number)
                    contender.steps += [taken] if number else []  # the first step of each sets up, and is not timed
        for contender in self.contenders:
            yield self._replicate(contender)

    def _step(self, contender: _Contender, clients: DefendedClients, number: int) -> Times:
        """Take one step of all clients and of the server; stores bits, and the outcome if it fails."""
        victims, times = contender.victims, Times()
        streams = victims.streams.child("step", number)
        for_defense = streams.child("defense")
        drawn, held = victims.streams.child("batch", number), self.kind.images_per_client
        chosen = without_replacement(drawn, held, self.kind.batch_size, self.device)
        row = torch.arange(self.kind.clients, device=self.device)[:, None]
        batch = clients.take((row, chosen))

        def compute(batch: Examples) -> ClientSteps:
            return ClientSteps(victims.network, victims.parameters, *batch, streams)

        try:
            with times.of("client", self.device):
                _, message = clients.step(compute, for_defense, batch)
            with times.of("server", self.device):
                update = clients.aggregate(message)
        except Infeasible as error:
            contender.outcome = Outcome(status="infeasible", reason=str(error), step=number)
            return times
        contender.bits = max(contender.bits, message.bits)
        if not bool(update.isfinite().all()):
            contender.outcome = Outcome(
                status="diverged", reason=f"the server's update became non-finite at step {number}", step=number
            )
        return times

    def _replicate(self, contender: _Contender) -> Replicate:
        outcome, undefended = contender.outcome, self.undefended
        if outcome.status == "ok" and undefended.outcome.status != "ok":
            outcome = undefended.outcome.model_copy(update={"reason": f"undefended, {undefended.outcome.reason}"})
        if outcome.status != "ok":
            (lost,) = self.job.without_numbers(outcome, seeds=[self.seed], settings=[contender.setting])
            return lost
        n, metrics = self.kind.clients, dict[str, Value]()
        for clock in ("cpu", "wall"):
            taken = [getattr(step, clock) for step in contender.steps]
            metrics[f"client_{clock}_s"] = [seconds["client"] / n for seconds in taken]
            metrics[f"server_{clock}_s"] = [seconds["server"] for seconds in taken]
            metrics[f"once_{clock}_s"] = getattr(contender.once, clock)["once"] / n
        steps = zip(contender.steps, undefended.steps, strict=True)
        pairs = [(defended.computing(self.device), plain.computing(self.device)) for defended, plain in steps]
        metrics["overhead"] = overhead = [defended / plain - 1 if plain > 0 else None for defended, plain in pairs]
        metrics |= {"bits": float(contender.bits), "bits_ratio": contender.bits / undefended.bits}
        reasons = {"overhead": "the undefended step took less than the clock can tell"} if None in overhead else {}
        return Replicate(seed=self.seed, setting=dict(contender.setting), metrics=metrics, reasons=reasons)
