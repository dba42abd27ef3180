"""Leakage jobs: recovery rates of an attack on clients' data, and the Bayesian privacy leakage that they imply.

An attack runs many times, with fresh starts and fresh randomness of the defense, on clients' uploads from several
models. Counted recoveries are an attacker's belief, and its distance to the prior belief is leakage.
Source: Zhang, Kang et al. (2023), section 7, Algorithms 1 to 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal, NamedTuple, get_args

from pydantic import Field, field_validator, model_validator

from leakbench.attacks.base import Attack
from leakbench.defenses.base import Defense
from leakbench.defenses.tuned import SMALLEST_SPREAD, Tuned, Tuning
from leakbench.effort import Effort
from leakbench.errors import ConfigError, Infeasible
from leakbench.jobs.base import JOB_KINDS, Findings, Job, Setting
from leakbench.lazy import torch
from leakbench.papers.tfl_meta.jobs.attempts import AttackedClients, Attempts, AttemptsProtocol
from leakbench.papers.tfl_meta.theory.leakage_estimation import (
    SMOOTHING,
    Constants,
    bootstrap_constants,
    class_belief,
    constants,
    null_prior,
    population_prior,
    recovery_counts,
    uniform_prior,
)
from leakbench.randomness import generator
from leakbench.records import MetricInfo, Outcome, Replicate, Value
from leakbench.theory.leakage_surrogate import leakage

Prior = Literal["null", "null_upper", "uniform", "population"]
PRIORS: tuple[Prior, ...] = get_args(Prior)
"""Prior beliefs of an attacker: the rate at which what is reconstructed from another client's upload passes for a datum
(the paper leaves the prior open, and all else depends on it), the upper end of that rate's interval, the same for every
candidate, or one in the client's data."""
CONFIDENCE = 0.95
"""Confidence of the upper end of the null attack's rate, one-sided."""


def _of_clients(unit: str, direction: Literal["higher", "lower", "none"] = "higher") -> MetricInfo:
    return MetricInfo(unit=unit, direction=direction, axis="client")


RECOVERY_METRICS = {
    "recovery": _of_clients("part of data and attempts in which the similarity exceeds the threshold"),
    "recovery_low": _of_clients("the same, low end of Wilson's 95 % interval"),
    "recovery_high": _of_clients("the same, high end of Wilson's 95 % interval"),
    "null_recovery": _of_clients("the same, of reconstructions from another client's upload", "none"),
    "psnr": _of_clients("dB, mean over data and attempts, after assignment"),
    "ssim": _of_clients("structural similarity, mean over data and attempts, after assignment"),
    "classes": _of_clients("nats^(1/2), leakage about classes, null prior (Algorithm 3, corrected)"),
    "classes_sum": _of_clients("sum of the estimates of Algorithm 3 as printed", "none"),
    "diverged": MetricInfo(unit="attempts that became non-finite, of all clients and models", direction="none"),
    "bits": MetricInfo(unit="bits on the wire per client and step", direction="lower"),
    "trials": MetricInfo(unit="attempts on an upload of each client at all models, M T", direction="none"),
}
LAW_METRICS = {
    "delta": _of_clients("half the range of an upload's coordinate over batches, the largest", "none"),
    "delta_median": _of_clients("the same, the median over coordinates", "none"),
    "sigma_median": _of_clients("standard deviation of a coordinate over batches, the median of positive ones", "none"),
    "dead": _of_clients("part of the coordinates that are the same for all batches", "none"),
    "steepness": _of_clients(f"A, standard deviations of {SMALLEST_SPREAD:g} at least", "none"),
    "dimension": MetricInfo(unit="parameters", direction="none"),
}

TUNING_METRICS = {
    "tau": MetricInfo(unit="total variation that the budget asks for", direction="none"),
    "parameter": MetricInfo(unit="of the mechanism: modulus, bound of masks, variance, or part kept", direction="none"),
}
"""Metrics of defenses that are tuned to a budget."""
NO_PARAMETER = {"parameter": "no protection is needed"}
EXCLUDED = "infinite: the prior excludes what attempts found"


Part = tuple[int, int]
"""Numbers of models and of attempts at each, M and T."""


def leakage_metric_name(constant: str, prior: Prior, smoothing: float | None = None, trials: int | None = None) -> str:
    """``xi/null``; with another smoothing than the first ``xi/null/0.001``; of the first 8 attempts ``xi/null/n8``.

    >>> leakage_metric_name("leakage", "uniform", 0.001, 32)
    'leakage/uniform/0.001/n32'
    """
    return f"{constant}/{prior}" + ("" if smoothing is None else f"/{smoothing:g}") + of_trials(trials)


def of_trials(trials: int | None) -> str:
    """The end of the name of what is estimated from some of the attempts, ``/n8``; empty for all."""
    return "" if trials is None else f"/n{trials}"


def _constants_metrics(smoothing: tuple[float, ...], fewer: tuple[Part, ...]) -> dict[str, MetricInfo]:
    what = {
        "leakage": "nats^(1/2), root of the Jensen-Shannon divergence of belief and prior; C1 without a defense",
        "xi": "nats, largest log ratio of belief and prior",
        "failed": "nats^(1/2), leakage if no attempt recovered anything",
    }
    metrics = {}
    for (name, unit), prior, alpha in itertools.product(what.items(), PRIORS, smoothing):
        words = f"{unit}; {prior} prior" + (f", alpha = {alpha:g}" if alpha != smoothing[0] else "")
        suffix = None if alpha == smoothing[0] else alpha
        metrics[leakage_metric_name(name, prior, suffix)] = _of_clients(words)
        if name == "failed":
            continue
        for part in fewer:
            few = "{} models, {} attempts at each".format(*part)
            metrics[leakage_metric_name(name, prior, suffix, math.prod(part))] = _of_clients(f"{words}, {few}")
        for end in ("low", "high") if suffix is None else ():
            metrics[leakage_metric_name(f"{name}_{end}", prior)] = _of_clients(f"{words}, {end} end of 95 %, bootstrap")
    for name, part in itertools.product(("recovery", "null_recovery"), fewer):
        known = RECOVERY_METRICS[name]
        metrics[name + of_trials(math.prod(part))] = known.model_copy(
            update={"unit": f"{known.unit}; some models and attempts"}
        )
    return metrics


@JOB_KINDS.register("leakage", version=4)
class LeakageJob(AttemptsProtocol):
    """Count what an attack recovers of every client's batch: attempts at several models, all searched side by side.

    ``models`` networks are trained for ``steps`` steps of SGD on all clients' images (Algorithm 1). Every client
    uploads the gradient of the first ``batch_size`` of its images at each model, ``attempts`` times, with fresh
    randomness of the defense, and every upload is attacked once, from a fresh start (Algorithm 2). A datum is recovered
    if its similarity to the reconstruction that is assigned to it exceeds a threshold. The attacker knows the model at
    which a gradient was taken. A diverged attempt recovers nothing. Reference attackers
    also have test images, which no client holds.
    """

    memory_mb: ClassVar[int] = 16000
    minutes: ClassVar[int] = 240
    uses_attacks: ClassVar[bool] = True
    gated_metrics: ClassVar[Mapping[str, MetricInfo]] = RECOVERY_METRICS

    thresholds: tuple[float, ...] = Field(
        (25.0,), description="of PSNR in dB, one setting each; the first counts where one number is needed"
    )
    ssim_thresholds: tuple[float, ...] = Field((), description="of SSIM, one more setting each")
    smoothing: tuple[float, ...] = Field((SMOOTHING,), description="alpha of beliefs; intervals are of the first")
    resamples: int = Field(1000, ge=1, description="of the bootstrap over attempts")
    fewer: tuple[Part, ...] = Field(
        (), description="models and attempts, M and T, of which the first ones alone are counted, too, for constants"
    )
    keep_attempts: bool = Field(False, description="keep which attempt recovered what, and which null attack")
    constants: str | None = Field(
        None,
        description="experiment of the same paper whose job 'leakage' estimated the constants on this data set: its "
        "null attacks are the prior, and defenses that are tuned to a budget are tuned by it",
    )

    @field_validator("thresholds", "smoothing")
    @classmethod
    def _some_and_distinct(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if not values or len(set(values)) < len(values):
            raise ValueError("one or more values, each once")
        return values

    @model_validator(mode="after")
    def _parts_of_all(self) -> LeakageJob:
        if len({*self.thresholds, *self.ssim_thresholds}) < len(self.thresholds + self.ssim_thresholds):
            raise ValueError("ssim_thresholds: one of them is a threshold of PSNR, too")
        if self.batch_size > self.images_per_client:
            raise ValueError(f"batch_size: at most images_per_client ({self.images_per_client}), got {self.batch_size}")
        for models, attempts in self.fewer:
            if not (1 <= models <= self.models and 1 <= attempts <= self.attempts):
                raise ValueError(f"fewer: at most models ({self.models}) and attempts ({self.attempts}), at least 1")
        totals = [math.prod(part) for part in self.fewer]
        if twice := sorted({total for total in totals if totals.count(total) > 1}):
            raise ValueError(f"fewer: models times attempts has to differ; {twice[0]} is there twice")
        if self.fewer and self.constants:
            raise ValueError("fewer: the prior is that of the constants, of all their attempts; give fewer there")
        return self

    def reads(self, attack: Attack | None) -> Mapping[str, str]:
        return {self.name: "constants"} if self.constants else {}

    def effort(self, job: Job) -> Effort:
        trained = Effort(self.training_batch, 1).times(self.steps).beside(self.models)
        law = Effort(self.law_batches * self.batch_size, 1).times(self.clients)
        one = Effort(self.batch_size, 1).plus(job.attack_effort(self.batch_size))
        uploads = one.beside(self.models * self.attempts * self.clients).times(job.defense.count)
        return trained.plus(law).plus(uploads).times(len(job.seeds))

    def volume(self, job: Job) -> float:
        samples = job.defense.count * len(self.tests) * self.clients * self.batch_size
        return len(job.seeds) * float(samples * math.prod(job.dataset.single().shape))

    @property
    def distinct_victims(self) -> bool:
        return True

    def metrics_of(self, job: Job) -> Mapping[str, MetricInfo]:
        tuning = TUNING_METRICS if issubclass(job.defense.component, Tuned) else {}
        return RECOVERY_METRICS | _constants_metrics(self.smoothing, self.fewer) | LAW_METRICS | tuning

    @property
    def tests(self) -> list[Setting]:
        """Tests of recovery: settings of the replicates of one setting of the defense."""
        by_ssim: list[Setting] = [{"threshold": each, "similarity": "ssim"} for each in self.ssim_thresholds]
        return [{"threshold": each} for each in self.thresholds] + by_ssim

    def settings_of(self, job: Job) -> Iterator[Setting]:
        for setting, _ in job.defense.settings():
            yield from self.at_thresholds(setting)

    def at_thresholds(self, setting: Setting) -> list[Setting]:
        """Settings of the replicates of one setting of the defense."""
        return [{**setting, **test} for test in self.tests]

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"client": self.clients}

    def run(self, job: Job, device: torch.device) -> Findings:
        assert job.attack is not None
        settings = list(job.defense.settings())
        replicates: list[Replicate] = []
        tensors: dict[str, torch.Tensor] = {}
        try:
            for attack, places in list(job.faced(dict(enumerate(defense for _, defense in settings)))):
                missing = sorted(attack.needs - self.granted_to(attack))
                if missing:
                    raise Infeasible(f"attack '{job.attack.label}' needs {', '.join(missing)}, which is not granted")
                for seed in job.seeds:
                    measurement = _Measurement(self, job, attack, seed, device)
                    of_seed, tensors_of_seed = measurement.of([settings[place] for place in places])
                    replicates += of_seed
                    tensors |= tensors_of_seed
        except Infeasible as error:
            outcome = Outcome(status="infeasible", reason=str(error))
            return Findings(job.without_numbers(outcome))
        return Findings(replicates, tensors)


class _Measured(NamedTuple):
    """Results of one setting of a defense.

    Attributes:
        replicates: one per test of recovery.
        recovered: which attempts recovered which data, and which null attacks, ``[K, M, T, S]`` each, per test.
        shown: pixels of some reconstructions, ``[K, S, C, H, W]``.
        constants: by the first test, by name.
    """

    replicates: list[Replicate]
    recovered: list[tuple[torch.Tensor, torch.Tensor]]
    shown: torch.Tensor
    constants: dict[str, torch.Tensor]


class _Measurement:
    """One seed of a job."""

    def __init__(self, kind: LeakageJob, job: Job, attack: Attack, seed: int, device: torch.device) -> None:
        self.kind, self.job, self.seed = kind, job, seed
        self.attacked = AttackedClients(kind, job, attack, seed, device)
        self.clients = self.attacked.clients

    def of(self, settings: list[tuple[Setting, Defense]]) -> tuple[list[Replicate], dict[str, torch.Tensor]]:
        """A replicate per setting of the defense and threshold, and the tensors to keep."""
        law, law_metrics = self.attacked.law()
        measured = self._measured(settings, law_metrics)
        tensors = dict(law)
        if len(settings) == 1:
            tensors |= measured[0].constants
        tensors["victims"] = self.clients.images.cpu()
        tensors["reconstructions"] = torch.stack([each.shown for each in measured for _ in self.kind.tests])
        recovered = [attempts for each in measured for attempts in each.recovered]
        if self.kind.keep_attempts and recovered:
            for name, attempts in zip(("recovered", "null_recovered"), zip(*recovered, strict=True), strict=True):
                tensors[name] = torch.stack(attempts).byte()
        replicates = [replicate for each in measured for replicate in each.replicates]
        return replicates, {f"seed{self.seed}/{name}": tensor for name, tensor in tensors.items()}

    def _measured(self, settings: list[tuple[Setting, Defense]], law: dict[str, Value]) -> list[_Measured]:
        """Settings of the defense, tuned to their budgets where they have one, in one search."""
        tuned: dict[int, tuple[Defense, Tuning | None]] = {}
        measured: dict[int, _Measured] = {}
        for place, (setting, defense) in enumerate(settings):
            try:
                tuning = defense.tuning(self.job.kept) if isinstance(defense, Tuned) else None
                tuned[place] = (tuning.defense if tuning else defense, tuning)
            except Infeasible as error:
                measured[place] = self._beyond_budget(setting, str(error))
        attempts = self.attacked.attempts([defense for defense, _ in tuned.values()])
        for (place, (_, tuning)), of_setting in zip(tuned.items(), attempts, strict=True):
            measured[place] = self._judged(settings[place][0], tuning, of_setting, law)
        return [measured[place] for place in range(len(settings))]

    def _judged(self, setting: Setting, tuning: Tuning | None, attempts: Attempts, law: dict[str, Value]) -> _Measured:
        """One setting of the defense by its attempts."""
        values: dict[str, Value] = {
            "psnr": attempts.psnr.flatten(1).mean(dim=1).tolist(),
            "ssim": attempts.ssim.flatten(1).mean(dim=1).tolist(),
            "diverged": attempts.diverged,
            "bits": attempts.bits,
            "trials": float(self.kind.models * self.kind.attempts),
        }
        if tuning is not None:
            values |= {"tau": tuning.tau, "parameter": tuning.parameter}
        reasons = {} if tuning is None or tuning.parameter is not None else NO_PARAMETER
        passed = [attempts.passed(test) for test in self.kind.tests]
        measured = _Measured([], passed, attempts.shown, {})
        for test, (recovered, null) in zip(self.kind.tests, passed, strict=True):
            counted = self._counted(recovered, null, test)
            metrics = values | counted.values | law
            missing = [name for name, value in counted.values.items() if isinstance(value, list) and None in value]
            replicate = Replicate(seed=self.seed, setting={**setting, **test}, metrics=metrics)
            replicate.reasons = reasons | dict.fromkeys(missing, EXCLUDED)
            measured.replicates.append(replicate)
            if test == self.kind.tests[0]:
                measured.constants.update(counted.constants)
        return measured

    def _beyond_budget(self, setting: Setting, reason: str) -> _Measured:
        """A setting whose budget no parameter meets."""
        outcome, settings = Outcome(status="infeasible", reason=reason), self.kind.at_thresholds(setting)
        lost = self.job.without_numbers(outcome, seeds=[self.seed], settings=settings)
        return _Measured(lost, [], torch.full_like(self.clients.images, torch.nan).cpu(), {})

    def _counted(self, recovered: torch.Tensor, null: torch.Tensor, test: Setting) -> _Counted:
        """Recovery rates and constants.

        Args:
            recovered: ``[K, M, T, S]``.
            null: whether what comes of the next client's upload passes for a datum, ``[K, M, T, S]``.
            test: of recovery.
        """
        kind = self.kind
        successes, of = self._null(null, test)
        priors = self._priors(successes, of)
        values = _rates(recovered, null) | self._classes(recovered, priors["null"])
        low, high = _wilson(recovered.flatten(1).sum(dim=1), recovered[0].numel())
        values |= {"recovery_low": low, "recovery_high": high}
        estimates = self._constants(recovered, priors)
        values |= self._named(estimates)
        failed = self._constants(torch.zeros_like(recovered[:, :1]), priors)
        values |= {
            name.replace("leakage", "failed"): c1 for name, c1 in self._named(failed).items() if "xi" not in name
        }
        for prior in PRIORS:
            draw = generator(self.job.dataset.label, self.seed, "bootstrap")
            ends = bootstrap_constants(recovered, priors[prior], draw, kind.smoothing[0], kind.resamples)
            for name, end in (("leakage", ends["c1"]), ("xi", ends["xi"])):
                values[leakage_metric_name(f"{name}_low", prior)] = _finite(end.low)
                values[leakage_metric_name(f"{name}_high", prior)] = _finite(end.high)
        first = estimates["null", kind.smoothing[0]]
        tensors = {"c1": first.c1, "xi": first.xi, "null": successes, "null_trials": torch.tensor(of)}
        for part in kind.fewer:
            fewer, null_of = (each[:, : part[0], : part[1]] for each in (recovered, null))
            trials = math.prod(part)
            few = self._constants(fewer, self._priors(null_of.double().flatten(1, 2).sum(dim=1), trials))
            values |= self._named(few, trials)
            values |= {name + of_trials(trials): rate for name, rate in _rates(fewer, null_of).items()}
            first = few["null", kind.smoothing[0]]
            tensors |= {"c1" + of_trials(trials): first.c1, "xi" + of_trials(trials): first.xi}
        return _Counted(values, tensors)

    def _constants(self, recovered: torch.Tensor, priors: Mapping[Prior, torch.Tensor]) -> Estimates:
        """Constants of what was recovered, ``[K, M, T, S]``, by every prior and alpha."""
        counts, attempts = recovery_counts(recovered), recovered.shape[2]
        return {
            (prior, alpha): constants(counts, attempts, priors[prior], alpha)
            for prior, alpha in itertools.product(PRIORS, self.kind.smoothing)
        }

    def _named(self, estimates: Estimates, trials: int | None = None) -> dict[str, Value]:
        """Metrics of constants."""
        values = dict[str, Value]()
        for (prior, alpha), estimate in estimates.items():
            suffix = None if alpha == self.kind.smoothing[0] else alpha
            values[leakage_metric_name("leakage", prior, suffix, trials)] = _finite(estimate.c1)
            values[leakage_metric_name("xi", prior, suffix, trials)] = _finite(estimate.xi)
        return values

    def _null(self, null: torch.Tensor, test: Setting) -> tuple[torch.Tensor, int]:
        """Successes of null attacks for every datum, ``[K, S]``, and trials; those of ``constants`` if that is given.

        Raises:
            ConfigError: it has other clients.
        """
        successes, trials = null.double().flatten(1, 2).sum(dim=1), null[0, :, :, 0].numel()
        kept = self.job.kept.get(self.kind.name)
        if kept is None:
            return successes, trials
        source = self.job.uses[self.kind.name].kind
        assert isinstance(source, LeakageJob)
        key = f"seed{self.seed}/null"
        if key not in kept:
            raise ConfigError(
                f"constants: experiment '{self.kind.constants}' has no seed {self.seed}; give it more seeds"
            )
        for field in ("clients", "images_per_client", "alpha", "batch_size"):
            if getattr(source, field) != getattr(self.kind, field):
                raise ConfigError(
                    f"constants: experiment '{self.kind.constants}' has {field} {getattr(source, field)}, and this one "
                    f"{getattr(self.kind, field)}; they are of other clients"
                )
        if source.tests[0] != test:
            return successes, trials
        return kept[key].double(), int(kept[f"seed{self.seed}/null_trials"])

    def _priors(self, successes: torch.Tensor, trials: int) -> dict[Prior, torch.Tensor]:
        """Every prior, ``[K, S + 1]``."""
        size, clients = self.kind.batch_size, self.kind.clients
        return {
            "null": null_prior(successes, trials),
            "null_upper": null_prior(successes, trials, CONFIDENCE),
            "uniform": uniform_prior(size).expand(clients, -1),
            "population": population_prior(size, self.kind.images_per_client).expand(clients, -1),
        }

    def _classes(self, recovered: torch.Tensor, prior: torch.Tensor) -> dict[str, Value]:
        """Algorithm 3: leakage about the classes in a client's batch."""
        size, attempts = self.kind.batch_size, self.kind.attempts
        leakages: list[float | None] = []
        sums: list[float | None] = []
        for labels, hits, before in zip(self.clients.labels.cpu(), recovered, prior, strict=True):
            classes, of = labels.unique(return_inverse=True)
            belongs = torch.nn.functional.one_hot(of, len(classes)).double()
            counts = hits.double().sum(dim=1) @ belongs
            belief = class_belief(counts, size, attempts).mean(dim=0)
            leakages.append(float(leakage(belief, torch.cat([before[:-1] @ belongs, before[-1:]]))))
            sums.append(float(class_belief(counts, size, attempts, "as_printed").sum(dim=-1).mean()))
        return {"classes": leakages, "classes_sum": sums}


Estimates = dict[tuple[Prior, float], Constants]
"""Constants by prior and alpha."""


class _Counted(NamedTuple):
    values: dict[str, Value]
    constants: dict[str, torch.Tensor]


def _rates(recovered: torch.Tensor, null: torch.Tensor) -> dict[str, Value]:
    """Rates of both attacks for every client."""
    both = {"recovery": recovered, "null_recovery": null}
    return {name: attempts.double().flatten(1).mean(dim=1).tolist() for name, attempts in both.items()}


def _finite(values: torch.Tensor) -> list[float | None]:
    return [float(value) if value.isfinite() else None for value in values]


def _wilson(hits: torch.Tensor, trials: int) -> tuple[Value, Value]:
    """Wilson's 95 % interval of rates, for every client."""
    from scipy.stats import binomtest

    ends = [binomtest(int(count), trials).proportion_ci(method="wilson") for count in hits]
    return [float(end.low) for end in ends], [float(end.high) for end in ends]
