"""Costs of protecting an update: bits that a client sends, and seconds of keys, protecting, adding and recovering.

The methods are those that Zhang, Kang et al. (2023) choose among: noise, Paillier encryption, secret sharing and random
masks, beside the plain update and the same in fixed point. All run in one process, in turns, at the model's
initialisation. Keys and randomness of ciphertexts are the operating system's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.clients import DefendedClients
from leakbench.defenses.fixed_point import AdditiveSharing, FixedPointUpdate, MaskedPair
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.pruning import RandomMask
from leakbench.effort import Effort, Unit
from leakbench.federated.message import RingMessage
from leakbench.federated.paillier import Packing, add, check_key_bits, decrypt, encrypt, generate_keys
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.costs import Times, timed
from leakbench.jobs.victims import Victims, gather_victims
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.records import MetricInfo, Replicate, Value
from leakbench.theory.protection_bits import (
    mask_bits,
    paillier_bits,
    paillier_slots,
    plain_bits,
    sharing_bits,
    sparse_bits,
)

PARTS: Mapping[str, str] = {
    "keygen": "making a key pair",
    "protect": "one client protects the measured values",
    "add": "the server adds the clients' messages",
    "recover": "decrypting the sum, or adding up all shares",
    "step": "one client computes its update",
}
COST_METRICS = {
    "parameters": MetricInfo(unit="parameters", direction="none"),
    "values": MetricInfo(unit="values that were measured, the first of the update", direction="none"),
    "slots": MetricInfo(unit="values in a plaintext", direction="higher"),
    "bits": MetricInfo(unit="bits that a client sends for the whole update, the largest message", direction="lower"),
    "server_bits": MetricInfo(unit="bits of them that go to the server", direction="lower"),
    "formula_bits": MetricInfo(unit="bits by the formula, in expectation", direction="lower"),
} | timed(PARTS)


@dataclass
class Method:
    """One way to send an update.

    Attributes:
        setting: its name and parameters.
        formula: bits of the whole update, in expectation.
        clients: how many send.
        values: coordinates that are measured.
        defense: the mechanism; None for encryption.
        packing: of encryption.
        bits: of the measured values, as sent: all, and to the server.
        times: of every repetition.
    """

    setting: Setting
    formula: float
    clients: int
    values: int
    defense: Defense | None = None
    packing: Packing | None = None
    bits: tuple[int, int] = (0, 0)
    times: list[Times] = field(default_factory=list)

    def run(self, steps: ClientSteps, streams: Streams, device: torch.device) -> Times:
        """One round of all its clients; seconds of ``protect`` are those of one."""
        times = Times()
        if self.packing is None:
            self._defended(steps, streams, times, device)
        else:
            self._encrypted(steps, self.packing, times, device)
        for clock in (times.wall, times.cpu):
            clock["protect"] /= self.clients
        return times

    def _defended(self, steps: ClientSteps, streams: Streams, times: Times, device: torch.device) -> None:
        assert self.defense is not None
        clients = DefendedClients(self.defense, streams, per_server=self.clients)
        with times.of("protect", device):
            message = clients.send(steps, streams)
        in_shares = isinstance(message, RingMessage)
        with times.of("recover" if in_shares else "add", device):
            clients.aggregate(message)
        self.bits = message.bits, message.server_bits if isinstance(message, RingMessage) else message.bits

    def _encrypted(self, steps: ClientSteps, packing: Packing, times: Times, device: torch.device) -> None:
        with times.of("keygen", device):
            key = generate_keys(packing.key_bits)
        rows = steps.gradient[:, : self.values].cpu().numpy()
        with times.of("protect", device):
            vectors = [encrypt(row, key, packing) for row in rows]
        with times.of("add", device):
            total = add(vectors)
        with times.of("recover", device):
            decrypt(total, key)
        size = 8 * len(vectors[0].serialised)
        self.bits = size, size


@JOB_KINDS.register("protection_cost", version=1)
class ProtectionCostJob(JobKind):
    """Bits and seconds of one round by mechanism, on one machine, in one process, in turns.

    A repetition runs every method once, in random order. Encrypting one value per ciphertext is measured on the first
    ``unpacked_values`` of the update: both its bits and its seconds are in proportion to the number of values.
    """

    on_gpu: ClassVar[bool] = False
    metrics: ClassVar[Mapping[str, MetricInfo]] = COST_METRICS
    unit: ClassVar[Unit] = "parameters"

    clients: int = Field(4, ge=2, description="clients whose updates are summed, K; a masked pair is two of them")
    batch_size: int = Field(8, ge=1, description="images of a training step")
    key_bits: tuple[int, ...] = Field(
        (1024, 2048, 3072), min_length=1, description="of Paillier's modulus; 1024 is a toy today"
    )
    unpacked_values: int = Field(64, ge=1, description="values that are encrypted one by one")
    fraction_bits: int = Field(32, ge=0, description="fractional bits of a value, but for additive shares: 20")
    scale: float = Field(0.01, ge=0, description="standard deviation of noise")
    bound: float = Field(1.0, gt=0, description="of the mask that two clients share, r")
    keep: tuple[float, ...] = Field((0.5, 0.9), description="probabilities of keeping a coordinate, rho")
    repetitions: int = Field(5, ge=1, description="times that every method is timed")

    def methods(self, d: int) -> list[Method]:
        """All of them, for updates of d coordinates.

        Raises:
            ConfigError: a modulus whose size there is not.
            Infeasible: a modulus without room for a value.
        """
        k, f = self.clients, self.fraction_bits
        width = FixedPointUpdate(fraction_bits=f).ring.width
        methods = [
            Method({"method": "none"}, plain_bits(d), k, d, NoDefense()),
            Method({"method": "gaussian_noise"}, plain_bits(d), k, d, GaussianNoise(scale=self.scale)),
            *(
                Method(
                    {"method": "random_mask", "keep": keep},
                    sparse_bits(d, keep),
                    k,
                    d,
                    RandomMask(probability=1 - keep, positions="seed"),
                )
                for keep in self.keep
            ),
            Method({"method": "fixed_point"}, width * d, k, d, FixedPointUpdate(clients=k, fraction_bits=f)),
            Method(
                {"method": "masked_pair"},
                width * d + mask_bits(d, self.bound, f),
                2,
                d,
                MaskedPair(bound=self.bound, fraction_bits=f),
            ),
            Method({"method": "additive_sharing"}, sharing_bits(d, k, width), k, d, AdditiveSharing(clients=k)),
        ]
        for bits in self.key_bits:
            check_key_bits(bits)
            for packed in (True, False):
                packing = Packing(bits, k, f, packed=packed)
                slots = paillier_slots(bits, k, f, packing.integer_bits) if packed else 1
                name = "paillier" if packed else "paillier_unpacked"
                values = d if packed else min(d, self.unpacked_values)
                setting: Setting = {"method": name, "key_bits": bits}
                methods.append(Method(setting, paillier_bits(d, bits, slots), k, values, packing=packing))
        return methods

    def settings_of(self, job: Job) -> Iterator[Setting]:
        for method in self.methods(1):  # whatever the size of an update
            yield method.setting

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"repetition": self.repetitions}

    def effort(self, job: Job) -> Effort:
        """Exponentiations: of a packed value they take the square of a key's bits, up to a factor."""
        encrypted = sum(bits**2 for bits in self.key_bits)
        rounds = Effort(self.clients * (self.batch_size + encrypted), 1)
        return rounds.times(len(job.seeds) * (1 + self.repetitions))

    def run(self, job: Job, device: torch.device) -> Findings:
        replicates = [replicate for seed in job.seeds for replicate in self._seed(job, seed, device)]
        return Findings(replicates)

    def _seed(self, job: Job, seed: int, device: torch.device) -> list[Replicate]:
        """One replicate per method, with a list over repetitions of every time."""
        victims = gather_victims(
            job.dataset.single(),
            job.dataset.label,
            job.model.single(),
            seed,
            clients=self.clients,
            batch_size=self.batch_size,
            first_index=0,
            device=device,
            split="train",
        )
        methods = self.methods(victims.network.dimension)
        with torch.no_grad():
            self._repeat(victims, methods, 0, device)  # the first round of each sets up, and is not timed
            for number in range(1, 1 + self.repetitions):
                for method, taken in self._repeat(victims, methods, number, device):
                    method.times.append(taken)
        return [self._replicate(seed, method, victims.network.dimension) for method in methods]

    def _repeat(
        self, victims: Victims, methods: list[Method], number: int, device: torch.device
    ) -> list[tuple[Method, Times]]:
        """A round of every method, in random order, after one computation of the update that all send."""
        streams, step = victims.streams.child("round", number), Times()
        steps = ClientSteps(victims.network, victims.parameters, victims.inputs, victims.labels, victims.streams)
        with step.of("step", device):
            _ = steps.gradient
        timed = []
        for place in torch.randperm(len(methods), generator=torch.Generator().manual_seed(number)).tolist():
            method = methods[place]
            taken = method.run(steps.rows(0, method.clients), Streams(streams.keys[: method.clients]), device)
            taken.wall["step"] = step.wall["step"] / self.clients
            taken.cpu["step"] = step.cpu["step"] / self.clients
            timed.append((method, taken))
        return timed

    def _replicate(self, seed: int, method: Method, d: int) -> Replicate:
        whole, to_server = (size * d / method.values for size in method.bits)
        metrics: dict[str, Value] = {
            "parameters": float(d),
            "values": float(method.values),
            "slots": None if method.packing is None else float(method.packing.slots),
            "bits": whole,
            "server_bits": to_server,
            "formula_bits": float(method.formula),
        }
        for part in PARTS:
            metrics[f"{part}_wall_s"] = [each.wall[part] for each in method.times if part in each.wall] or None
            metrics[f"{part}_cpu_s"] = [each.cpu[part] for each in method.times if part in each.cpu] or None
        missing = [name for name, value in metrics.items() if value is None]
        reasons = dict.fromkeys(missing, "the mechanism has no such part")
        return Replicate(seed=seed, setting=dict(method.setting), metrics=metrics, reasons=reasons)
