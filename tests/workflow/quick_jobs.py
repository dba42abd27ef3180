"""A plug-in that replaces what jobs compute, and nothing else, by numbers that follow from the job and the seed.

The tests here are about what runs when. Paths, digests, records, tables, figures and Snakemake are the real ones; a job
takes half a second instead of ten, since it does not import torch.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from leakbench.data.text import pack
from leakbench.jobs.attack import VICTIM_METRICS, AttackJob
from leakbench.jobs.base import Findings, Job, JobKind
from leakbench.jobs.federate import CURVES, FEDERATE_METRICS, FederateJob
from leakbench.jobs.fisher import FISHER_METRICS, FisherJob
from leakbench.jobs.inventory import InventoryJob
from leakbench.jobs.language_model import LANGUAGE_MODEL_METRICS, LanguageModelJob
from leakbench.jobs.membership import MEMBERSHIP_METRICS, MembershipJob
from leakbench.jobs.overhead import OVERHEAD_METRICS, OverheadJob
from leakbench.jobs.prior import PRIOR_METRICS, PriorJob
from leakbench.jobs.release import ReleaseJob
from leakbench.jobs.runner import Placement
from leakbench.jobs.subjects import Images, Sentences
from leakbench.jobs.train import NOISE_PER_TENSOR, TRAINING_METRICS, TrainJob, noise_metric
from leakbench.papers.channel.jobs.calibrate import CALIBRATE_METRICS, DIRECTIONS, OF_IMAGES, VISITS, CalibrateJob
from leakbench.papers.channel.jobs.timing import COUNTS, METHODS, OVERHEADS, TIMING_METRICS, TimingJob
from leakbench.papers.secagg_dp.jobs.round_timing import ROUND_METHODS, ROUND_TIMING_METRICS, RoundTimingJob
from leakbench.papers.secagg_dp.jobs.spectrum import BOUNDS, BY_USERS, GRADIENTS, NOISE, SpectrumJob
from leakbench.papers.tfl_meta.jobs.leakage import LeakageJob
from leakbench.papers.tfl_meta.jobs.protection_cost import COST_METRICS, PARTS, ProtectionCostJob
from leakbench.records import MetricInfo, Outcome, Replicate
from leakbench.report.artifacts import Tables
from leakbench.report.claims import Claim
from leakbench.report.findings import Finding

NO_LPIPS = "the weights are not <staged>"
DIVERGED = "training became non-finite at step 1"


def findings(job: Job) -> Findings:
    """What a job of any kind might find, the same in every process."""
    if job.kinds is not None:
        found = [(setting, findings(combination)) for setting, combination in job.combinations()]
        replicates = [
            each.model_copy(update={"setting": {**each.setting, **setting}})
            for setting, part in found
            for each in part.replicates
        ]
        return Findings(found[0][1].metrics, replicates, {})
    if isinstance(job.kind, AttackJob):
        return Findings(_attack_metrics(job), list(_attacks(job, job.kind)), _pictures(job, job.kind))
    if isinstance(job.kind, TrainJob):
        noisy = {noise_metric(name): NOISE_PER_TENSOR for name in (_counts() if job.kind.noise_per_tensor else ())}
        return Findings(TRAINING_METRICS | noisy, list(_training(job, job.kind)), {})
    if isinstance(job.kind, FederateJob):
        return Findings(FEDERATE_METRICS, list(_federated(job, job.kind)), {})
    if isinstance(job.kind, FisherJob):
        return Findings(FISHER_METRICS, list(_fisher(job, job.kind)), _coordinates(job, job.kind))
    if isinstance(job.kind, ReleaseJob):
        return Findings(job.kind.metrics, list(_released(job, job.kind)), {})
    if isinstance(job.kind, CalibrateJob):
        return Findings(CALIBRATE_METRICS, list(_calibrations(job)), _protected(job, job.kind))
    if isinstance(job.kind, PriorJob):
        metrics: dict[str, Any] = {name: [0.1] if info.axis else 0.1 for name, info in PRIOR_METRICS.items()}
        return Findings(PRIOR_METRICS, [Replicate(seed=0, metrics=metrics)], {})
    if isinstance(job.kind, LanguageModelJob):
        metrics = {name: [3.0] if info.axis else 20.0 for name, info in LANGUAGE_MODEL_METRICS.items()}
        return Findings(LANGUAGE_MODEL_METRICS, [Replicate(seed=0, metrics=metrics)], {})
    if isinstance(job.kind, LeakageJob):
        return Findings(
            job.kind.metrics_of(job.defense.component), list(_leaks(job, job.kind)), _attempted(job, job.kind)
        )
    if isinstance(job.kind, MembershipJob):
        return Findings(MEMBERSHIP_METRICS, list(_members(job, job.kind)), {})
    if isinstance(job.kind, ProtectionCostJob):
        return Findings(COST_METRICS, list(_costs(job, job.kind)), {})
    if isinstance(job.kind, RoundTimingJob):
        return Findings(ROUND_TIMING_METRICS, list(_rounds_timed(job, job.kind)), {})
    if isinstance(job.kind, OverheadJob):
        return Findings(OVERHEAD_METRICS, list(_overheads(job, job.kind)), {})
    if isinstance(job.kind, TimingJob):
        return Findings(TIMING_METRICS, list(_timing(job, job.kind)), {})
    if isinstance(job.kind, SpectrumJob):
        return Findings(GRADIENTS | NOISE | (BY_USERS if job.kind.by_users else {}), list(_spectra(job, job.kind)), {})
    counts = _counts()
    infos = {name: MetricInfo(unit="parameters", direction="none") for name in counts}
    return Findings(infos, [Replicate(seed=0, metrics=dict(counts))], {})


def _counts() -> dict[str, float]:
    """The parameters of every tensor, as the paper prints them."""
    with (files("leakbench.papers.optimal_defense") / "reference" / "table01.csv").open() as file:
        return {row["tensor"]: float(row["paper"]) for row in csv.DictReader(file)}


def _cells(job: Job) -> Iterator[tuple[int, dict[str, Any], random.Random]]:
    """Seeds and settings, with a generator of their own."""
    for seed in job.seeds:
        for setting, _ in job.defense.settings():
            yield seed, dict(setting), random.Random(f"{job.digest}/{seed}/{sorted(setting.items())}")


def _attacks(job: Job, kind: AttackJob) -> Iterator[Replicate]:
    for seed, setting, draw in _cells(job):
        strength = sum(value for value in setting.values() if isinstance(value, float))
        per_victim = 1 if kind.target == "batch_mean" else kind.batch_size * kind.users
        lengths = {"victim": kind.clients} | dict.fromkeys(("image", "sentence"), kind.clients * per_victim)
        metrics: dict[str, Any] = {
            name: [strength + draw.random() for _ in range(lengths[info.axis])] if info.axis in lengths else 32.0
            for name, info in _attack_metrics(job).items()
        }
        unstaged = [name for name in ("lpips", "assigned_lpips") if name in metrics]
        for name, passing in {"psnr": 20.0, "rouge1": 60.0}.items():  # every gate of the configuration
            if name in metrics:
                metrics[name] = [passing + value for value in metrics[name]]
        metrics |= dict.fromkeys(unstaged)
        yield Replicate(seed=seed, setting=setting, metrics=metrics, reasons=dict.fromkeys(unstaged, NO_LPIPS))


def _attack_metrics(job: Job) -> dict[str, MetricInfo]:
    of_samples = {subject.unit: subject.metrics for subject in (Images, Sentences)}
    return of_samples[job.dataset.component.unit] | VICTIM_METRICS


def _training(job: Job, kind: TrainJob) -> Iterator[Replicate]:
    """Seed 1 diverges under the label ``dpsgd``, in its strongest setting."""
    settings = [setting for setting, _ in job.defense.settings()]
    for seed, setting, draw in _cells(job):
        curve: list[float | None] = [2.3 / (1 + step) + draw.random() / 10 for step in range(kind.steps)]
        metrics: dict[str, Any] = {"loss_curve": curve, "final_loss": draw.random(), "accuracy": None, "bits": 32.0}
        reasons = {"accuracy": "the protocol names no evaluation images"}
        outcome = Outcome()
        if job.defense.label == "dpsgd" and seed == 1 and setting == settings[-1]:
            outcome = Outcome(status="diverged", reason=DIVERGED, step=1)
            metrics |= {"loss_curve": [curve[0], *[None] * (kind.steps - 1)], "final_loss": None}
            reasons = dict.fromkeys(("loss_curve", "final_loss", "accuracy"), DIVERGED)
        if kind.noise_per_tensor:
            level = 0.0 if job.defense.label == "none" else 0.1
            metrics |= {noise_metric(name): [level + draw.random() / 100 for _ in curve] for name in _counts()}
        yield Replicate(seed=seed, setting=setting, outcome=outcome, metrics=metrics, reasons=reasons)


def _federated(job: Job, kind: FederateJob) -> Iterator[Replicate]:
    """Accuracies and costs in [0, 1]; curves climb."""
    for seed, setting, draw in _cells(job):
        metrics: dict[str, Any] = {name: draw.random() for name in FEDERATE_METRICS}
        metrics |= {name: [round_ / kind.rounds + draw.random() for round_ in range(kind.rounds)] for name in CURVES}
        yield Replicate(seed=seed, setting=setting, metrics=metrics)


def _fisher(job: Job, kind: FisherJob) -> Iterator[Replicate]:
    """Parts in [0, 1] fall with the strength; pruning lets infinite information pass."""
    for seed, setting, draw in _cells(job):
        strength = sum(value for value in setting.values() if isinstance(value, float))
        metrics: dict[str, Any] = {
            name: [(1 + draw.random() / 10) / (1 + 10 * strength) for _ in range(kind.clients)]
            for name in FISHER_METRICS
        }
        reasons = {}
        if "pruning" in job.defense.component.name:
            metrics["information"], reasons["information"] = [None] * kind.clients, "infinite"
        yield Replicate(seed=seed, setting=setting, metrics=metrics, reasons=reasons)


def _members(job: Job, kind: MembershipJob) -> Iterator[Replicate]:
    """Areas fall from one to a half in the number of users, and faster in the strength; epsilon where there is noise.

    The ends of intervals are 0.02 away. Eq. 9 falls, and says nothing of one user.
    """
    for seed, setting, draw in _cells(job):
        strength = sum(value for value in setting.values() if isinstance(value, float))
        for users in kind.users:
            area = 0.5 + 0.5 / ((1 + 10 * strength) * users) * (0.95 + draw.random() / 20)
            metrics: dict[str, Any] = {}
            for name in MEMBERSHIP_METRICS:
                shift = -0.02 if "_low/" in name else 0.02 if "_high/" in name else 0.0
                metrics[name] = area + shift
            metrics |= {"leaving": 1.0, "dimension": 100.0, "information_bound": 50.0 / users}
            reasons = {}
            if users == 1:
                metrics["information_bound"], reasons["information_bound"] = None, "of one user"
            if strength == 0 or users == 1:
                metrics |= {"epsilon": None, "auc_bound": None}
                reasons |= dict.fromkeys(("epsilon", "auc_bound"), "no guarantee")
            else:
                metrics |= {"epsilon": 1 / strength, "auc_bound": 0.99}
            yield Replicate(seed=seed, setting={**setting, "users": users}, metrics=metrics, reasons=reasons)


def _released(job: Job, kind: ReleaseJob) -> Iterator[Replicate]:
    """The more noise, the less accuracy and the less that attacks find."""
    for seed, setting, draw in _cells(job):
        noise = setting.get("multiplier", 10 / setting["kappa"] if "kappa" in setting else 0.0)
        metrics: dict[str, Any] = {
            name: (0.6 + draw.random() / 10) / (1 + noise / 5) for name in kind.metrics if name.startswith("auc")
        }
        metrics |= {name: (0.8 + draw.random() / 10) / (1 + noise) for name in ("accuracy", "train_accuracy")}
        metrics |= {name: (1 + draw.random() / 10) * (1 + noise) for name in kind.metrics if name not in metrics}
        metrics |= {"inversion_mse_per_class": [1.0] * 10, "epsilon": None}
        yield Replicate(seed=seed, setting=setting, metrics=metrics, reasons={"epsilon": "no guarantee"})


def _calibrations(job: Job) -> Iterator[Replicate]:
    """A power law's eigenvalues; isotropic noise whose variance falls with the capacity, for channels alone."""
    eigenvalues: list[float | None] = [100.0 * (1 + k) ** -1.3 for k in range(DIRECTIONS)]
    for seed, setting, draw in _cells(job):
        metrics: dict[str, Any] = {"images": 100.0, "rank": 200.0, "trace": 256.0}
        metrics |= {"eigenvalues": eigenvalues, "pixel_eigenvalues": eigenvalues}
        kappa = setting.get("kappa")
        if kappa is not None:
            noise = 10.0 / float(kappa) * (1 + draw.random() / 10)
            metrics |= dict.fromkeys(("sigma", "noise_variance", "pixel_noise_variance"), noise)
            metrics |= {"kappa": float(kappa), "capacity": float(kappa), "mmse": noise / (1 + noise)}
            metrics |= {"direction_noise": [noise] * DIRECTIONS, "log_factor": -2 * float(kappa) / 256}
            metrics |= {"fresh_capacity": [float(kappa) * visits**0.5 for visits in VISITS], "log_bound": -3.0}
        elif "direction" in setting:
            metrics["mmse"] = 0.4 / (1 + float(setting["direction"]))
        missing = [name for name in CALIBRATE_METRICS if name not in metrics and name not in OF_IMAGES]
        metrics |= dict.fromkeys(missing)
        reasons = dict.fromkeys(missing, "the defense does not change images")
        yield Replicate(seed=seed, setting=setting, metrics=metrics, reasons=reasons)


def _spectra(job: Job, kind: SpectrumJob) -> Iterator[Replicate]:
    """Spectra by a power law, which fall over the rounds; a linear model's rank is at its bound, a network's full."""
    linear, users, pooled = job.model.label == "linear", kind.observed, kind.observed * kind.records
    for seed, _, draw in _cells(job):
        for number in kind.rounds:
            size, rank = (650.0, min(549.0, pooled)) if linear else (2.0 * pooled, float(pooled))
            trace = (1 + draw.random() / 10) / (1 + number)
            leaves = 1.0 if rank == pooled else 0.02
            metrics: dict[str, Any] = {"dimension": size, "pooled": float(pooled), "varying": 60.0, "pooled_rank": rank}
            metrics |= {"rank_bound": 549.0 if linear else None, "rank": [float(kind.records)] * users}
            metrics |= dict.fromkeys(("leaving_pooled", "leaving_other_users", "leaving_fresh"), leaves)
            metrics |= {"leaving_per_user": [1.0] * users, "clipped": [0.1] * users, "trace": [trace] * users}
            metrics |= {"largest": [trace / 3] * users, "loss": trace, "accuracy": 1 - trace / 2}
            metrics["eigenvalues"] = [trace / 3 * (1 + index) ** -1.5 for index in range(kind.records)]
            metrics |= {"variance": list(kind.variances), "epsilon": list(kind.epsilons)}
            metrics["isotropic"] = [size * level for level in kind.variances]
            metrics["saved"] = [trace / (trace + size * level) for level in kind.variances]
            metrics["filled"] = [
                (1 - part) * even for part, even in zip(metrics["saved"], metrics["isotropic"], strict=True)
            ]
            for end in BOUNDS:
                even = [100.0 * size / epsilon for epsilon in kind.epsilons]
                metrics |= {
                    f"isotropic_at_epsilon{end}": even,
                    f"filled_at_epsilon{end}": [1.1 * each for each in even],
                }
                metrics[f"excess_at_epsilon{end}"] = [0.1] * len(even)
            reasons = {} if linear else {"rank_bound": "known for linear models alone"}
            if kind.by_users:
                metrics |= _by_users(kind, trace)
                reasons |= {name: "none" for name in BY_USERS if None in (metrics[name], *_listed(metrics[name]))}
            yield Replicate(seed=seed, setting={"round": number}, metrics=metrics, reasons=reasons)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _by_users(kind: SpectrumJob, trace: float) -> dict[str, Any]:
    rho = [trace * users for users in kind.by_users]
    epsilons = [10 / (each - 1) if each > 1 else None for each in rho]
    floors = [each * kind.clip**2 / kind.records for each in rho]
    return {
        "users": [float(users) for users in kind.by_users],
        "subspace": 5.0,
        "floor": [floor / 2 for floor in floors],
        "pooled_floor": floors,
        "rho": rho,
        "epsilon_of_users": [None if each is None else 2 * each for each in epsilons],
        "epsilon_pooled": epsilons,
        "information": [5 / (users - 1) if users > 1 else None for users in kind.by_users],
    }


def _protected(job: Job, kind: CalibrateJob) -> dict[str, Any]:
    if not kind.pictures:
        return {}
    import torch

    draws = torch.Generator().manual_seed(0)
    clean = torch.rand(kind.pictures, *job.dataset.single().shape, generator=draws)
    settings = [setting for setting, _ in job.defense.settings()]
    noise = torch.randn(len(settings), *clean.shape, generator=draws)
    return {"seed0/clean": clean, "seed0/protected": clean + 0.3 * noise}


def _timing(job: Job, kind: TimingJob) -> Iterator[Replicate]:
    """Plain SGD takes 100 seconds, every other method some more."""
    for seed, _, draw in _cells(job):
        for place, method in enumerate(METHODS):
            metrics: dict[str, Any] = {
                name: 1e6 if name in COUNTS else [100.0 * (1 + place) + draw.random() for _ in range(kind.repetitions)]
                for name in TIMING_METRICS
            }
            metrics |= {name: [float(place)] * kind.repetitions for name in OVERHEADS}
            yield Replicate(seed=seed, setting={"method": method}, metrics=metrics)


def _rounds_timed(job: Job, kind: RoundTimingJob) -> Iterator[Replicate]:
    """In their order, each mechanism takes a second more than the one before."""
    for seed, _, draw in _cells(job):
        for place, method in enumerate(ROUND_METHODS):
            seconds = [1.0 + place + 0.1 * draw.random() for _ in range(kind.repetitions)]
            metrics: dict[str, Any] = {
                name: seconds if info.axis else 0.1 for name, info in ROUND_TIMING_METRICS.items()
            }
            yield Replicate(seed=seed, setting={"method": method}, metrics=metrics)


def _overheads(job: Job, kind: OverheadJob) -> Iterator[Replicate]:
    """A defense takes about half as long again, and sends half; none takes no longer and sends all."""
    more, sent = (0.0, 1.0) if job.defense.label == "none" else (0.5, 0.5)
    for seed, setting, draw in _cells(job):
        metrics: dict[str, Any] = {
            name: [1.0 + more + draw.random() / 10 for _ in range(kind.repetitions)] if info.axis else 0.1
            for name, info in OVERHEAD_METRICS.items()
        }
        metrics["overhead"] = [more + (draw.random() - 0.5) / 10 for _ in range(kind.repetitions)]
        metrics |= {"bits": sent * 32 * 2410, "bits_ratio": sent}
        yield Replicate(seed=seed, setting=setting, metrics=metrics)


def _costs(job: Job, kind: ProtectionCostJob) -> Iterator[Replicate]:
    """Bits by the formulas; in their order, each method takes a second more than the one before."""
    d = 2410
    for seed, _, draw in _cells(job):
        for place, method in enumerate(kind.methods(d)):
            metrics: dict[str, Any] = dict.fromkeys(("bits", "server_bits", "formula_bits"), float(method.formula))
            metrics |= {"parameters": float(d), "values": float(method.values), "slots": None}
            for part in PARTS:
                seconds = [1.0 + place + draw.random() for _ in range(kind.repetitions)]
                metrics |= {f"{part}_{clock}_s": seconds for clock in ("wall", "cpu")}
            assert set(metrics) == set(COST_METRICS)
            reasons = {"slots": "not counted"}
            yield Replicate(seed=seed, setting=dict(method.setting), metrics=metrics, reasons=reasons)


def _leaks(job: Job, kind: LeakageJob) -> Iterator[Replicate]:
    """Half of what clients hold is recovered; every gate is passed."""
    infos = kind.metrics_of(job.defense.component)
    plain = {"dimension": 2410.0, "diverged": 0.0, "bits": 32.0, "tau": 0.001, "parameter": 0.5}
    plain |= {"psnr": 30.0, "steepness": 1e6, "delta": 0.5, "dead": 0.0}
    for seed, setting, draw in _cells(job):
        for threshold in kind.thresholds:
            metrics: dict[str, Any] = {}
            for name, info in infos.items():
                value = plain.get(name, 0.5)
                metrics[name] = [value + draw.random() / 10 for _ in range(kind.clients)] if info.axis else value
            yield Replicate(seed=seed, setting={**setting, "threshold": threshold}, metrics=metrics)


def _attempted(job: Job, kind: LeakageJob) -> dict[str, Any]:
    """Images, which attempts recovered some, and what constants are."""
    import torch

    settings = len(list(job.defense.settings()))
    shape = (kind.clients, kind.batch_size, *job.dataset.single().shape)
    attempts = (settings * len(kind.thresholds), kind.clients, kind.models, kind.attempts, kind.batch_size)
    found: dict[str, Any] = {}
    for seed in job.seeds:
        draws = torch.Generator().manual_seed(seed)
        found[f"seed{seed}/victims"] = torch.rand(shape, generator=draws)
        found[f"seed{seed}/reconstructions"] = torch.rand(attempts[0], *shape, generator=draws)
        if kind.keep_attempts:
            found[f"seed{seed}/recovered"] = (torch.rand(attempts, generator=draws) < 0.5).byte()
        if settings == 1:
            found[f"seed{seed}/null"] = torch.zeros(kind.clients, kind.batch_size)
    return found


def _pictures(job: Job, kind: AttackJob) -> dict[str, Any]:
    """Images of the experiments whose pictures are drawn, and all sentences; only these import torch."""
    settings = len(list(job.defense.settings()))
    if job.dataset.component.unit == "sentences":
        said = [[f"[CLS] {number} words. [SEP]"] * kind.batch_size for number in range(kind.clients)]
        packed = {f"seed{seed}/victims": pack(said) for seed in job.seeds}
        return packed | {f"seed{seed}/reconstructions": pack(said).expand(settings, -1, -1, -1) for seed in job.seeds}
    if "pictures" not in job.experiment:
        return {}
    import torch

    shape = (kind.clients, kind.batch_size, *job.dataset.single().shape)
    found = {}
    for seed in job.seeds:
        victims, reconstructions = (torch.Generator().manual_seed(seed + offset) for offset in (0, 1000))
        found[f"seed{seed}/victims"] = torch.rand(shape, generator=victims)
        found[f"seed{seed}/reconstructions"] = torch.rand(settings, *shape, generator=reconstructions)
        found[f"seed{seed}/assignment"] = torch.arange(kind.batch_size).flip(0).expand(settings, kind.clients, -1)
    return found


def _coordinates(job: Job, kind: FisherJob) -> dict[str, Any]:
    """Ten coordinates of every tensor, and a first one that is zero."""
    if not kind.coordinates:
        return {}
    import torch

    draws = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {}
    for name in _counts():
        gradient, sensitivity = torch.randn(11, generator=draws), torch.rand(11, generator=draws)
        gradient[0] = 0.0
        parts = {"gradient": gradient, "sensitivity": sensitivity, "variance0": sensitivity / (1 + gradient.abs())}
        found |= {f"seed0/{kind_of_value}/{name}": part for kind_of_value, part in parts.items()}
    return found


def _run(_: JobKind, job: Job, device: object) -> Findings:
    return findings(job)


if __name__.startswith("leakbench_plugin_"):  # a test that imports this file wants its functions alone
    kinds = (
        *(AttackJob, TrainJob, FederateJob, FisherJob, CalibrateJob, InventoryJob, PriorJob, LanguageModelJob),
        *(LeakageJob, MembershipJob, ReleaseJob, TimingJob, RoundTimingJob, OverheadJob, SpectrumJob),
        ProtectionCostJob,
    )
    for kind_of_job in kinds:
        kind_of_job.run = _run  # type: ignore[method-assign, assignment]
    _judge = Claim.judge
    _CHECKED = Finding("reproduced", effect=0.25, meaning="slack")  # theorems are checked by computing, with torch

    def _judge_quickly(self: Claim, tables: Tables) -> Finding:
        return _judge(self, tables) if self.experiments else _CHECKED

    Claim.judge = _judge_quickly  # type: ignore[method-assign]
    Placement.resolve = lambda _: SimpleNamespace(type="cpu")  # type: ignore[method-assign, assignment, return-value]
