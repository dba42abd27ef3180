"""What mechanisms share whose guarantee is that of a sum over many users, who all add randomness to it.

A server that sees single messages sees far more than the guarantee says: it rests on secure aggregation.
Source: Zhang et al. (2024), Table 1; the bounds are in :mod:`leakbench.theory.aggregate_dp`.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from leakbench.defenses.base import PrivacyStatement, Schedule
from leakbench.defenses.dp_sgd import ClippedGradients
from leakbench.errors import Infeasible
from leakbench.theory.aggregate_dp import Aggregation, Mechanism
from leakbench.theory.noise_calibration import total_epsilon


class SummedUsers(ClippedGradients):
    """Mechanisms for one of N users with D records each. Both are for the guarantee alone, and may be left out."""

    users: int | None = Field(
        None, ge=2, description="users whose messages are summed and who do not collude with the server, N"
    )
    records: int | None = Field(None, ge=2, description="records of each user, D")

    def stated(self, schedule: Schedule, mechanism: Mechanism, batch: int | None, variance: float) -> PrivacyStatement:
        """The guarantee of a row of Table 1, corrected, over all rounds of a schedule, composed as the paper does.

        Args:
            schedule: of the training.
            mechanism: the row.
            batch: B; None: D.
            variance: ``sigma^2``, of one user, positive.
        """
        if self.users is None or self.records is None:
            return PrivacyStatement(
                None, None, "not stated: it takes the number of users and of records of each (users, records)"
            )
        setting = Aggregation(self.users, self.records, self.records if batch is None else batch, self.clip)
        try:
            epsilon = total_epsilon(setting, variance, schedule.rounds, schedule.delta, mechanism)
        except Infeasible as error:
            return PrivacyStatement(None, None, f"no guarantee: {error}")
        basis = (
            f"{schedule.rounds} round(s) of secure aggregation over {self.users} users, of whom none drops out or "
            "colludes; neighbours differ in one record of one user, replaced"
        )
        return PrivacyStatement(epsilon, schedule.delta, basis)

    def _hold(self, found: int, expected: int | None) -> None:
        """Raise where clients take another number of records than the guarantee speaks of.

        Raises:
            Infeasible: they do.
        """
        if expected is not None and found != expected:
            raise Infeasible(f"'{self.name}' is told of {expected} records per step, and these clients take {found}")


class AllRecords(SummedUsers):
    """Mechanisms that take all D records of a user, and weight them as randomly as if they were batches of B."""

    batch: int = Field(ge=1, description="scale of the sampling, as if of batches of so many records, B; at most D")

    @model_validator(mode="after")
    def _part_of_all(self) -> AllRecords:
        if self.records is not None and self.batch > self.records:
            raise ValueError(f"batch ({self.batch}) must be at most records ({self.records})")
        return self

    def all_records(self, found: int) -> int:
        """D, if a user's step may have so many records.

        Raises:
            Infeasible: it is one, below B, or not the D of the guarantee.
        """
        self._hold(found, self.records)
        if found < 2:
            raise Infeasible(f"'{self.name}' samples among a client's records: it takes 2 or more, and there is 1")
        if found < self.batch:
            raise Infeasible(
                f"'{self.name}' with batch {self.batch} on {found} records per client: B is at most D; "
                "the protocol's batch_size is D here, all that a client holds"
            )
        return found
