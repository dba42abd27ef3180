"""Base classes of mechanisms whose guarantee is that of a sum over many users, each of whom adds randomness.

The guarantee rests on secure aggregation: a server that sees single messages learns far more. The noise is given, or it
is the least with which all rounds together have a given epsilon.
Source: Zhang et al. (2024), Table 1; the bounds are in :mod:`leakbench.theory.aggregate_dp`, their inversion in
:mod:`leakbench.theory.noise_calibration`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from pydantic import Field, model_validator

from leakbench.defenses.base import PrivacyStatement, Schedule
from leakbench.defenses.dp_sgd import ClippedGradients
from leakbench.errors import Infeasible
from leakbench.federated.layered_steps import LayeredSteps
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.models.record_gradients import RecordGradients
from leakbench.theory.aggregate_dp import Aggregation, Form, Mechanism, forms
from leakbench.theory.noise_calibration import Proved, calibrated_variance, total_epsilon

_least_variance = lru_cache(maxsize=256)(calibrated_variance)
"""Cached, since the accountant of sampled batches takes a minute."""


class SummedUsers(ClippedGradients):
    """Mechanisms for one of N users with D records each. Both enter the guarantee alone, and may be left out.

    Noise is given by its ``variance``, or calibrated: the least that has ``epsilon`` over all ``rounds`` together.
    """

    needs_noise: ClassVar[bool] = True
    """Whether noise is required."""

    variance: float | None = None
    epsilon: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="of all rounds together; instead of variance"
    )
    rounds: int | None = Field(None, ge=1, description="rounds that epsilon is of, T; with epsilon alone")
    delta: float | None = Field(None, gt=0, lt=1, description="that epsilon is stated at; with epsilon alone")
    bound: Form = Field(
        "corrected",
        description="which bound of a round the guarantee takes; as_printed: that of Table 1, corrected: what holds of "
        "the paper's, repaired: the tighter one by the Frobenius norm",
    )
    accounting: Proved = Field(
        "composition",
        description="how rounds add up; composition is the paper's, tight the least epsilon that is proved",
    )
    users: int | None = Field(
        None, ge=2, description="least number of users in a sum who do not collude with the server, N"
    )
    records: int | None = Field(None, ge=2, description="records of each user, D")

    @model_validator(mode="after")
    def _variance_or_epsilon(self) -> SummedUsers:
        if self.epsilon is None:
            if self.variance is None and self.needs_noise:
                raise ValueError("give variance, or epsilon with rounds and delta")
            if self.rounds is not None or self.delta is not None:
                raise ValueError("rounds and delta belong to epsilon, which is not given")
            return self
        if self.variance:
            raise ValueError(f"give variance ({self.variance:g}) or epsilon ({self.epsilon:g}), and not both")
        needed = {name: getattr(self, name) for name in ("rounds", "delta", "users", "records")}
        if missing := [name for name, value in needed.items() if value is None]:
            raise ValueError(f"epsilon takes rounds, delta, users and records; missing: {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _known_bound(self) -> SummedUsers:
        mechanism, _ = self.row
        if self.bound not in forms(mechanism):
            raise ValueError(f"bound is one of {', '.join(forms(mechanism))} here, found {self.bound}")
        return self

    @property
    def row(self) -> tuple[Mechanism, int | None]:
        """The mechanism's row of Table 1, and its B; None: D."""
        raise NotImplementedError

    @property
    def noise_level(self) -> float:
        """``sigma^2`` of one user: as given, or calibrated to epsilon (and cached).

        Raises:
            Infeasible: no noise has that epsilon.
        """
        if self.epsilon is None:
            return self.variance or 0.0
        assert self.rounds is not None and self.delta is not None
        mechanism, _ = self.row
        return _least_variance(
            self._aggregation(), self.epsilon, self.rounds, self.delta, mechanism, self.bound, self.accounting
        )

    def _aggregation(self) -> Aggregation:
        assert self.users is not None and self.records is not None
        _, batch = self.row
        return Aggregation(self.users, self.records, self.records if batch is None else batch, self.clip)

    def stated(self, schedule: Schedule) -> PrivacyStatement:
        """The guarantee of the mechanism's row of Table 1 over all rounds of a schedule, by its bound and accounting.

        Where noise was calibrated, delta is that of the calibration. There is no statement for a schedule that does
        not say all that the bound assumes, or says otherwise: rounds, clients, records, and how they are sampled.

        Args:
            schedule: of the training.
        """
        if (reason := self._misfit(schedule)) is not None:
            return PrivacyStatement(None, None, f"not stated: {reason}")
        delta, (mechanism, _) = self.delta or schedule.delta, self.row
        try:
            level = self.noise_level
            epsilon = total_epsilon(
                self._aggregation(), level, schedule.rounds, delta, mechanism, self.bound, self.accounting
            )
        except Infeasible as error:
            return PrivacyStatement.none(f"{error}")
        basis = (
            f"{schedule.rounds} round(s), of which the server sees the sum alone, with the messages of {self.users} "
            "users at least who do not collude with it; neighbours differ in one record of one user, replaced; "
            f"{self._noise}"
        )
        if (self.bound, self.accounting) != ("corrected", "composition"):
            basis += f"; bound {self.bound}, accounting {self.accounting}"
        if self.epsilon is not None:
            basis += f"; calibrated, sigma^2 = {level:.6g}"
        return PrivacyStatement(epsilon, delta, basis)

    @property
    def _noise(self) -> str:
        """The noise that the guarantee is of, in words."""
        return "noise is taken as continuous"

    def _misfit(self, schedule: Schedule) -> str | None:
        """Say what of a schedule the guarantee does not hold for, and what to change; None if it holds."""
        if self.users is None or self.records is None:
            return "it takes the number of users and of records of each (users, records)"
        if self.rounds is not None and schedule.rounds != self.rounds:
            return (
                f"its noise is calibrated for {self.rounds} round(s), and the schedule has {schedule.rounds}; set "
                f"rounds to {schedule.rounds}"
            )
        if schedule.clients is None or schedule.records is None or schedule.batch is None or schedule.sampling is None:
            return "this kind of job does not say how many clients are summed, and which of their records they take"
        if schedule.clients < self.users:
            return (
                f"it is told of {self.users} users, and a sum may hold no more than {schedule.clients} who do not "
                f"collude with the server; set users to {schedule.clients} at most, or let fewer drop out or collude"
            )
        if schedule.records != self.records:
            return (
                f"it is told of {self.records} records per user, and clients hold {schedule.records}; set records to "
                f"{schedule.records}"
            )
        return self._other_sampling(schedule)

    def _other_sampling(self, schedule: Schedule) -> str | None:
        """Say the same of the records of a step, and of what becomes of messages."""
        mechanism, batch = self.row
        taken = batch if mechanism == "sgd" else self.records
        if schedule.batch != taken:
            return (
                f"it is told of {taken} records per step, and clients take {schedule.batch}; set the job's batch_size"
            )
        if mechanism == "sgd" and schedule.sampling != "independent":
            return (
                "batches amplify privacy where they are drawn anew at each step, and here they are "
                f"{schedule.sampling}; set the job's sampling to independent"
            )
        if schedule.clipped:
            return "coordinates are clipped after the noise and before the sum; set no secure_aggregation.clip"
        return None

    def bounded_mean(self, steps: ClientSteps) -> torch.Tensor:
        if not isinstance(steps, LayeredSteps):
            return super().bounded_mean(steps)
        return torch.cat([self.bounded(gradients).mean() for _, gradients in steps.record_gradients()])

    def bounded(self, gradients: RecordGradients) -> RecordGradients:
        """Each gradient with a norm of at most C."""
        return gradients.scaled(self.factors(gradients.norms()))

    def _check_records(self, taken: int, expected: int | None) -> None:
        """Reject clients that take another number of records than the guarantee assumes.

        Raises:
            Infeasible: the numbers differ.
        """
        if expected is not None and taken != expected:
            raise Infeasible(f"'{self.name}' is told of {expected} records per step, and these clients take {taken}")


class AllRecords(SummedUsers):
    """Mechanisms that weight all D records of a user at random, with the variance of batches of B."""

    batch: int = Field(ge=1, description="scale of the sampling, as if of batches of so many records, B; at most D")

    @model_validator(mode="after")
    def _part_of_all(self) -> AllRecords:
        if self.records is not None and self.batch > self.records:
            raise ValueError(f"batch ({self.batch}) must be at most records ({self.records})")
        return self

    def all_records(self, taken: int) -> int:
        """D, if a user's step may have so many records.

        Raises:
            Infeasible: it is one, below B, or not the D of the guarantee.
        """
        self._check_records(taken, self.records)
        if taken < 2:
            raise Infeasible(f"'{self.name}' samples among a client's records: it takes 2 or more, and there is 1")
        if taken < self.batch:
            raise Infeasible(
                f"'{self.name}' with batch {self.batch} on {taken} records per client: B is at most D; "
                "the protocol's batch_size is D here, all that a client holds"
            )
        return taken
