"""Surrogate model: an update of many local steps as a gradient at a point between both models (Zhu et al., ICML 2023).

A client that took steps from ``w_0`` to ``w_T`` moved along gradients at the models in between. The direction of
``w_0 - w_T`` is matched with one gradient of all its images at ``w = (1 - a) w_0 + a w_T``, whose ``a`` is learned with
them. No step is repeated, so that an evaluation costs as much as for a single step, and the order of images, their
batches and the number of steps play no part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field, model_validator

from leakbench.attacks.base import ATTACKS, Knowledge, Observations
from leakbench.attacks.engine import Cost, TrialData
from leakbench.attacks.gradient_matching import GradientMatching, Search
from leakbench.attacks.objectives import Cosine, Objective
from leakbench.attacks.optimisers import Adam, Bounds, Optimiser
from leakbench.attacks.regularisers import Regulariser, TotalVariation
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP
from leakbench.lazy import torch
from leakbench.models.base import Statistics
from leakbench.randomness import Streams


@ATTACKS.register("surrogate", version=1)
class Surrogate(GradientMatching):
    """Surrogate Model Extension (Zhu et al. 2023): one gradient between both models explains many local steps.

    As the authors' code on CIFAR-100: unsigned Adam from 1 (0.001 for ``a``), 1,000 iterations, TV 0.01, ``a`` from
    0.5.
    """

    objective: Objective = Cosine()
    regularisers: tuple[Regulariser, ...] = (TotalVariation(weight=0.01),)
    optimiser: Optimiser = Adam(rate=1.0, signed=False, decay="steps")
    iterations: int = Field(1000, ge=1, description="evaluations of the objective's gradient per restart")
    box: bool = True
    between: float = Field(0.5, ge=0, le=1, description="first a: 0 the model before local training, 1 the one after")
    between_rate: float = Field(
        0.001, ge=0, description="step size of a, as a part of that of the images; 0 leaves it where it starts"
    )

    @model_validator(mode="after")
    def _projection_of_a_needs_adam(self) -> Surrogate:
        if self.optimiser.kind == "lbfgs":
            raise ValueError("optimiser: a is projected onto 0 to 1, which quasi-Newton steps cannot be; choose adam")
        return self

    @property
    def several_rounds(self) -> bool:
        return False

    @property
    def repeats_steps(self) -> bool:
        return False

    def _search(self, observations: Observations, knowledge: Knowledge) -> Search:
        if observations.local.is_gradient(observations.batch_shape[0]):
            raise Infeasible(
                "attack 'surrogate' looks for a model between those before and after several local steps, and clients "
                "take one; list gradient matching ('ig_library', ...)"
            )
        return _SurrogateSearch(self, replace(observations, later=()), knowledge)


class _SurrogateSearch(Search):
    """The last variable of a trial is how far ``a`` is from its start, in units of :attr:`Surrogate.between_rate`."""

    draws: ClassVar[bool] = False

    attack: Surrogate

    def __init__(self, attack: Surrogate, observations: Observations, knowledge: Knowledge) -> None:
        super().__init__(attack, observations, knowledge)
        self.local = observations.local
        self.observations = replace(observations, local=ONE_STEP)

    def starts(self, streams: Streams) -> torch.Tensor:
        points = super().starts(streams)
        return torch.cat([points, points.new_zeros(len(points), 1)], dim=1)

    def candidates(self, variables: torch.Tensor, given: TrialData) -> tuple[torch.Tensor, torch.Tensor | None]:
        return super().candidates(variables[..., :-1], given)

    def bounds(self) -> Bounds:
        attack, like = self.attack, self.observations.gradients
        scores = self.shape[0] * self.network.head.outputs if attack.labels == "joint" else 0
        free = like.new_full((self.variables + scores,), torch.inf)
        low, high = super().bounds() or (-free, free)
        ends = like.new_tensor([[-attack.between], [1 - attack.between]])
        ends = ends / attack.between_rate if attack.between_rate else 0 * ends
        return torch.cat([low, ends[0]]), torch.cat([high, ends[1]])

    def between(self, variables: torch.Tensor) -> torch.Tensor:
        """``a``: the part of the way from the model before local training to the one after, ``[...]``."""
        return self.attack.between + self.attack.between_rate * variables[..., -1]

    def update(
        self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, statistics: Statistics | None
    ) -> torch.Tensor:
        """Gradients at the surrogate, as many as the client took steps."""
        return self.local.steps * self.network.gradient(parameters, images, labels, statistics)

    def cost(self) -> Cost:
        matched, shared, rate = super().cost(), self.observations.parameters, self.local.rate

        def cost(variables: torch.Tensor, data: TrialData) -> torch.Tensor:
            before = data.get("parameters", shared)
            surrogate = before - self.between(variables) * rate * data["target"]
            return matched(variables, {**data, "parameters": surrogate})

        return cost
