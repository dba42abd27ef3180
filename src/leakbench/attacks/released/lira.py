"""The likelihood-ratio attack: what would the model say of this image, had it not been trained on it?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from leakbench.attacks.released.base import MEMBERSHIP_ATTACKS, Labelled, MembershipAttack, joined
from leakbench.attacks.released.outputs import ModelOutputs
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.training import Start, Training, TrainingSet, train_runs
from leakbench.lazy import torch
from leakbench.models.base import Network
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

    training: Training | None = Field(
        None, description="how shadow models are trained; None: as the target was, as far as it is known"
    )
    shadows: int = Field(16, ge=2, description="shadow models per run")
    variance: Literal["pooled", "per_sample"] = Field(
        "pooled",
        description="one for all candidates of a run, as the authors advise for few shadow models, or each its own",
    )

    def effort(self, known: int, targets: int) -> Effort:
        judged = super().effort(known, targets + self.shadows)
        if self.training is None:
            return judged
        return judged.plus(Effort(self.training.batch_size, 1).times(self.training.steps).beside(self.shadows))

    def score(
        self, target: TrainedModels, members: Labelled, nonmembers: Labelled, candidates: Labelled, streams: Streams
    ) -> torch.Tensor:
        """Membership scores ``[runs, n]``, from each candidate's confidence against that of shadow models.

        With a pooled variance the scale of a run's scores depends on all candidates; their order does not.

        Raises:
            Infeasible: the parameters that training started from are unknown.
        """
        if target.initial is None:
            raise Infeasible("attack 'lira' needs the parameters that training started from, for its shadow models")
        if self.training is None:
            raise Infeasible("attack 'lira' has to be told how to train its shadow models")
        victim = ModelOutputs.of(target, candidates).scaled_confidence
        known = joined(members, nonmembers, len(target))
        shared = all(images.dim() == 4 and labels.dim() == 1 for images, labels in (members, nonmembers))
        shadows: TrainedModels | None = None
        scores = []
        for run, (key, start) in enumerate(zip(streams.keys, target.initial, strict=True)):
            auxiliary, queried = (
                Labelled(images if images.dim() == 4 else images[run], labels if labels.dim() == 1 else labels[run])
                for images, labels in (known, candidates)
            )
            same = run > 0 and shared and key == streams.keys[run - 1] and torch.equal(start, target.initial[run - 1])
            if shadows is None or not same:  # targets that differ in their defense alone have the same shadow models
                shadows = self._shadows(target.network, start, auxiliary, key, self.training)
            confidence = ModelOutputs.of(shadows, queried).scaled_confidence
            scores.append((victim[run] - confidence.mean(dim=0)) / self._deviation(confidence))
        return torch.stack(scores)

    def knowing(self, training: Training) -> LiRA:
        """The attack with shadow models trained like the target, unless its parameters say how."""
        return self if self.training is not None else self.model_copy(update={"training": training})

    def _shadows(
        self, network: Network, start: torch.Tensor, known: Labelled, key: tuple[str | int, ...], training: Training
    ) -> TrainedModels:
        streams = Streams([(*key, "shadow", shadow) for shadow in range(self.shadows)])
        size = len(known.labels) // 2
        half = streams.child("half").uniform(len(known.labels)).argsort(dim=1, stable=True)[:, :size]
        return train_runs(Start(network, start), TrainingSet(*known, half), streams, training).models

    def _deviation(self, confidence: torch.Tensor) -> torch.Tensor:
        variance = confidence.var(dim=0)
        if self.variance == "pooled":
            variance = variance.mean()
        return variance.sqrt().clamp(min=1e-12)
