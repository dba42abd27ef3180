"""Attackers who choose the strength of an attack on clients of their own: by nothing that they do not know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.auxiliary import MadeUp, made_up
from leakbench.attacks.base import ATTACKS, Attack, Grant, Knowledge, Observations, Reconstruction
from leakbench.attacks.rows import joined, rows_of_each
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.metrics.assignment import assign, reorder
from leakbench.randomness import Streams
from leakbench.records import MetricInfo

Factor = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


@ATTACKS.register("tuned", version=1)
class Tuned(Wrapper):
    """The attack inside, with the strength that does best on simulated clients, for each mechanism.

    Simulated clients hold auxiliary images under the victims' models and send them through the mechanism. Every
    strength attacks them; the one with the smallest mean squared error attacks all victims of the mechanism. Knowledge
    about victims plays no part.
    """

    adds: ClassVar[frozenset[Grant]] = frozenset({"auxiliary_images", "mechanism"})
    outermost: ClassVar[bool] = True
    chooses: ClassVar[Mapping[str, MetricInfo]] = {
        "chosen_prior": MetricInfo(unit="factor of the priors' weights", direction="none", axis="victim"),
        "chosen_rate": MetricInfo(unit="factor of the step size", direction="none", axis="victim"),
        "chosen_wrappers": MetricInfo(unit="1 with the wrappers inside, 0 without", direction="none", axis="victim"),
    }

    priors: tuple[Factor, ...] = Field(
        (0.1, 1.0, 10.0), min_length=1, description="factors to try of the weights of all regularisers"
    )
    rates: tuple[Positive, ...] = Field(
        (1.0,), min_length=1, description="factors to try of the step size; nothing to L-BFGS with a line search"
    )
    plain: bool = Field(
        True,
        description="whether the attack without the wrappers that know the defense is tried, too: what they add then "
        "does no harm, but for chance in the choice, at twice the cost",
    )
    made_up: int = Field(1, ge=1, description="clients that the attacker makes up per observation")

    @property
    def strengths(self) -> list[Strength]:
        """The attacks to choose from; of equal ones the first."""
        forms = [(1.0, self.attack), *([(0.0, self.attack.ignorant)] if self.plain else [])]
        different: list[Strength] = []
        for wrappers, attack in forms:
            for rate in self.rates:
                for prior in self.priors:
                    strength = Strength(prior, rate, wrappers, attack.varied(prior, rate))
                    if all(strength.attack != other.attack for other in different):
                        different.append(strength)
        return different

    def effort(self, samples: int) -> Effort:
        total, strengths = self.attack.effort(samples), self.strengths
        for strength in strengths if len(strengths) > 1 else []:
            total = total.plus(strength.attack.effort(samples).beside(self.made_up))
        return total

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        if self.reconstructs != "images":
            raise Infeasible(f"attack '{self.name}' makes up clients that hold images; '{self.attack.name}' is of text")
        strengths, choice = self.strengths, self.choose(observations, knowledge, streams)
        rows: dict[int, list[int]] = {}
        for row, chosen in enumerate(choice):
            rows.setdefault(chosen, []).append(row)
        parts = [
            strengths[chosen].attack.reconstruct(observations.at(some), knowledge.at(some), streams.at(some))
            for chosen, some in rows.items()
        ]
        parts = [replace(part, probabilities=None) for part in parts]  # not all strengths have them
        by_choice = {each.name: joined([getattr(part, each.name) for part in parts]) for each in fields(Reconstruction)}
        back = torch.tensor([row for some in rows.values() for row in some]).argsort().tolist()
        numbers = torch.tensor([strengths[chosen][:3] for chosen in choice], dtype=torch.float64)
        return replace(Reconstruction(**by_choice).at(back), chosen=dict(zip(self.chooses, numbers.T, strict=True)))

    def choose(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> list[int]:
        """The place in :attr:`strengths` of the one that is best for each observation.

        Raises:
            Infeasible: the attacker lacks auxiliary images or the mechanism.
        """
        strengths = self.strengths
        if len(strengths) == 1:
            return [0] * len(observations)
        clients = made_up(observations, knowledge, streams, self.made_up)
        errors = torch.stack([self._errors(strength.attack, clients, streams) for strength in strengths])
        choice = [0] * len(observations)
        assert knowledge.mechanism is not None
        for rows, of_clients in zip(
            rows_of_each(knowledge.mechanism), rows_of_each(clients.knowledge.mechanism or ()), strict=True
        ):
            best = int(errors[:, of_clients].mean(dim=1).argmin())
            for row in rows:
                choice[row] = best
        return choice

    def _errors(self, attack: Attack, clients: MadeUp, streams: Streams) -> torch.Tensor:
        """Mean squared error of an attack on each made-up client, in the range of the auxiliary images; 1 if lost."""
        numbers = enumerate(clients.victim.tolist())
        of_clients = Streams([(*streams.keys[row], "tuning", place % self.made_up) for place, row in numbers])
        images = attack.reconstruct(clients.observations, clients.knowledge, of_clients).images
        pool = clients.knowledge.auxiliary_images
        assert pool is not None
        low, high = pool.amin(dim=(0, 2, 3), keepdim=True), pool.amax(dim=(0, 2, 3), keepdim=True)
        width = (high - low).where(high > low, 1.0)
        estimate, truth = ((inputs - low) / width for inputs in (images, clients.images))
        if estimate.shape[1] == 1:  # one image may stand for a batch
            truth = truth.mean(dim=1, keepdim=True)
        ordered = reorder(estimate, assign(estimate, truth)).flatten(1)
        errors = (ordered.clamp(0, 1) - truth.flatten(1)).double().square().mean(dim=1)
        return errors.where(ordered.isfinite().all(dim=1), 1.0)


class Strength(NamedTuple):
    """A way to attack: the factors of :meth:`Attack.varied`, whether wrappers are inside (1 or 0), and the attack."""

    prior: float
    rate: float
    wrappers: float
    attack: Attack
