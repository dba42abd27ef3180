"""Protection mechanisms whose parameter meets a budget of leakage, by the metric of Zhang, Kang et al. (2023)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.defenses.base import DEFENSES, Defense, NoDefense
from leakbench.defenses.fixed_point import MaskedPair
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.paillier import Paillier
from leakbench.defenses.pruning import RandomMask
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.message import Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.theory.distortion import binned, noise_steepness
from leakbench.theory.leakage_surrogate import amplification
from leakbench.theory.protection_parameters import (
    Mechanism,
    UploadLaw,
    common_exact_mask,
    common_log_modulus,
    common_mask,
    common_noise_variance,
    exact_noise_variance,
    optimal_dropped_log,
    optimum,
)

SMALLEST_SPREAD = 1e-4
"""Default lower bound on the standard deviations of coordinates: those of dead ones would make ``A`` infinite."""

SOURCE = "leakage"
"""Kind of job that estimates the constants of leakage."""


@dataclass(frozen=True)
class UploadConstants:
    """The constants of leakage and the spread of uploads, which determine a parameter.

    Attributes:
        c1: ``C1``, nats^(1/2), the mean over clients.
        xi: nats, the largest over clients, models and data.
        sigma: standard deviations of uploads' coordinates, ``[K, d]``.
        delta: half-widths of their range, ``[K]``.
    """

    c1: float
    xi: float
    sigma: torch.Tensor
    delta: torch.Tensor

    @classmethod
    def of(cls, kept: Mapping[str, torch.Tensor], estimated: int | None = None) -> UploadConstants:
        """The constants of a system, from the tensors of a job of kind ``leakage``, all its seeds together.

        Args:
            kept: tensors by name.
            estimated: from how many of its attempts ``C1`` and ``xi`` are; None: from all.

        Raises:
            ConfigError: there are none, since the job has several settings of a defense, or did not count these
                attempts alone.
        """

        def every(name: str) -> torch.Tensor:
            parts = [kept[key] for key in sorted(kept) if key.endswith(f"/{name}")]
            if not parts and name in ("sigma", "delta", "c1"):
                raise ConfigError("constants: the experiment's job sweeps its defense; constants are of one, 'none'")
            if not parts:
                raise ConfigError(
                    f"estimated: the experiment of the constants has none from {estimated} attempts; add models and "
                    "attempts whose product that is to its field fewer"
                )
            return torch.cat(parts)

        end = "" if estimated is None else f"/n{estimated}"
        sigma, delta = every("sigma"), every("delta")
        return cls(c1=float(every("c1" + end).mean()), xi=float(every("xi" + end).max()), sigma=sigma, delta=delta)


@dataclass(frozen=True)
class Tuning:
    """A mechanism tuned to a budget.

    Attributes:
        defense: the mechanism with its parameter; none where no protection is needed.
        tau: required total variation; negative where no protection is needed.
        parameter: ``n``, ``r``, the variance or ``rho``; None without protection.
    """

    defense: Defense
    tau: float
    parameter: float | None


@DEFENSES.register("tuned", version=1)
class Tuned(Defense):
    """The mechanism that meets a budget of leakage with the least distortion (Zhang et al. 2023, Theorems 6.1 to 6.4).

    Jobs that read the constants of leakage (``constants`` of their protocol) tune it: clients that differ share one
    parameter, at which their mean total variation meets the budget. The printed formulas assume identical clients, and
    take the widest range of an upload. ``exact_mean`` takes the exact total variation of noise, and of a value plus a
    mask, in place of a bound and a model.
    """

    added: ClassVar[tuple[str, ...]] = ("estimated",)

    mechanism: Mechanism = Field(description="what is tuned")
    budget: float = Field(ge=0, description="epsilon over C1")
    form: Literal["corrected", "as_printed", "exact_mean"] = Field("corrected", description="formulas; see the class")
    smallest_spread: float = Field(SMALLEST_SPREAD, gt=0, description="least standard deviation of a coordinate")
    key_bits: int = Field(2048, ge=16, description="least modulus of Paillier, which decides: n* has a bit or two")
    clients: int = Field(4, ge=1, description="most clients whose updates are summed")
    estimated: int | None = Field(
        None, ge=1, description="attempts at all models, M T, that C1 and C2 are estimated from; null: all there are"
    )

    @model_validator(mode="after")
    def _known_exactly(self) -> Tuned:
        if self.form == "exact_mean" and self.mechanism not in ("randomization", "secret_sharing"):
            raise ValueError(
                f"form: exact_mean is of randomization and secret_sharing; {self.mechanism} has no other law"
            )
        return self

    def tune(self, kept: Mapping[str, Mapping[str, torch.Tensor]]) -> Defense:
        return self.tuning(kept).defense

    def tuning(self, kept: Mapping[str, Mapping[str, torch.Tensor]]) -> Tuning:
        """The mechanism with its parameter, from tensors of a job of kind ``leakage``; arguments as for :meth:`tune`.

        Raises:
            Infeasible: no parameter meets the budget, or a printed formula has no value.
            ConfigError: the protocol names no constants, or there are none.
        """
        if SOURCE not in kept:
            raise ConfigError(
                f"'{self.name}' is tuned by the constants of leakage; name the experiment that has them: constants"
            )
        return self.made(UploadConstants.of(kept[SOURCE], self.estimated))

    def made(self, constants: UploadConstants) -> Tuning:
        """The mechanism with its parameter.

        Raises:
            Infeasible: no parameter meets the budget, or a printed formula has no value.
        """
        sigma = constants.sigma.double().clamp(min=self.smallest_spread)
        steepness = torch.stack([noise_steepness(each) for each in sigma])
        setting = UploadLaw(sigma.shape[1], float(constants.delta.max()), float(steepness.mean()))
        best = optimum(
            self.mechanism,
            constants.c1,
            float(amplification(constants.xi)),
            self.budget * constants.c1,
            setting,
            "as_printed" if self.form == "as_printed" else "corrected",
        )
        exactly = self.form == "exact_mean" and 0 < best.tau < 1  # also where the bound has no solution
        if best.status == "no protection needed":
            return Tuning(NoDefense(), best.tau, None)
        parameter = self._exact(best.tau, sigma, constants.delta) if exactly else best.usable()
        if self.form == "corrected":
            parameter = self._common(best.tau, parameter, constants.delta.double(), steepness, setting.size)
        return Tuning(self._with(parameter, best.tau, setting.size), best.tau, parameter)

    def _exact(self, tau: float, sigma: torch.Tensor, delta: torch.Tensor) -> float:
        if self.mechanism == "randomization":
            return float(exact_noise_variance(tau, *binned(sigma)))
        return common_exact_mask(tau, delta, sigma.shape[1])

    def _common(self, tau: float, parameter: float, delta: torch.Tensor, steepness: torch.Tensor, size: float) -> float:
        """One parameter for clients that differ, by bisection; compression is the same for all."""
        if self.mechanism == "randomization":
            return common_noise_variance(tau, steepness)
        if self.mechanism == "secret_sharing":
            return common_mask(tau, delta, size)
        if self.mechanism == "paillier":
            return math.exp(common_log_modulus(tau, delta, size))
        return parameter

    def _with(self, parameter: float, tau: float, size: float) -> Defense:
        if self.mechanism == "randomization":
            return GaussianNoise(scale=math.sqrt(parameter))
        if self.mechanism == "secret_sharing":
            return MaskedPair(bound=parameter)
        if self.mechanism == "paillier":
            bits = 8 * math.ceil(max(self.key_bits, math.log2(parameter)) / 8)
            return Paillier(key_bits=bits, toy=bits < 1024, clients=self.clients)
        # Not 1 - rho, which would lose digits.
        return RandomMask(probability=-math.expm1(-float(optimal_dropped_log(tau, size))))

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        raise Infeasible(
            f"'{self.name}' needs the constants of leakage; name their experiment in the protocol's field constants, "
            "which jobs of kinds leakage and train have"
        )
