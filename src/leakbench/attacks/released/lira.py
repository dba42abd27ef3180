"""The likelihood-ratio attack: what would the model say of this image, had it not been trained on it?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from leakbench.attacks.released.base import MEMBERSHIP_ATTACKS, Labelled, MembershipAttack, joined
from leakbench.attacks.released.evidence import Evidence
from leakbench.errors import Infeasible
from leakbench.federated.training import Training, train_runs
from leakbench.lazy import torch
from leakbench.models.trained import TrainedModels
from leakbench.randomness import Streams


@MEMBERSHIP_ATTACKS.register("lira", version=1)
class LiRA(MembershipAttack):
    """Offline LiRA (Carlini et al. 2022): how unlikely a candidate's confidence is among shadow models without it.

    Shadow models are trained like the victim, from the same public parameters, on random halves of the samples that
    the attacker knows, candidates not among them. The logit-scaled confidences ``log(p / (1 - p))`` that they give a
    candidate are fitted with a normal distribution; the score is how many of its standard deviations the victim's
    confidence lies above its mean.
    """

    training: Training = Field(description="how shadow models are trained: as the victim was, as far as it is known")
    shadows: int = Field(16, ge=2, description="shadow models per run")
    variance: Literal["pooled", "per_sample"] = Field(
        "pooled",
        description="one for all candidates of a run, as the authors advise for few shadow models, or each its own",
    )

    def score(
        self,
        target: TrainedModels,
        members: Labelled,
        nonmembers: Labelled,
        candidates: Labelled,
        streams: Streams,
    ) -> torch.Tensor:
        """As the class says.

        With a pooled variance the scale of a run's scores depends on all candidates; their order does not.

        Raises:
            Infeasible: the parameters that training started from are unknown.
        """
        if target.initial is None:
            raise Infeasible("attack 'lira' needs the parameters that training started from, for its shadow models")
        victim = Evidence.of(target, candidates).scaled_confidence
        known = joined(members, nonmembers, len(target))
        scores = []
        for run, (key, start) in enumerate(zip(streams.keys, target.initial, strict=True)):
            shadows = Streams([(*key, "shadow", shadow) for shadow in range(self.shadows)])
            own, asked = (
                Labelled(images if images.dim() == 4 else images[run], labels if labels.dim() == 1 else labels[run])
                for images, labels in (known, candidates)
            )
            half = shadows.child("half").uniform(len(own.labels)).argsort(dim=1, stable=True)[:, : len(own.labels) // 2]
            trained = train_runs(target.network, start, *own, shadows, self.training, rows=half)
            confidence = Evidence.of(trained.models, asked).scaled_confidence
            scores.append((victim[run] - confidence.mean(dim=0)) / self._deviation(confidence))
        return torch.stack(scores)

    def _deviation(self, confidence: torch.Tensor) -> torch.Tensor:
        variance = confidence.var(dim=0)
        if self.variance == "pooled":
            variance = variance.mean()
        return variance.sqrt().clamp(min=1e-12)
