"""The likelihood-ratio attack: what would the model say of this image, had it not been trained on it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from leakbench.attacks.released.base import MEMBERSHIP_ATTACKS, Labelled, MembershipAttack, Target, joined
from leakbench.attacks.released.outputs import ModelOutputs
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.gradients import batch_gradients
from leakbench.federated.training import Start, Training, TrainingRuns, TrainingSet, train_runs
from leakbench.lazy import torch
from leakbench.models.trained import TrainedModels
from leakbench.randomness import Streams


@MEMBERSHIP_ATTACKS.register("lira", version=2)
class LiRA(MembershipAttack):
    """Offline LiRA (Carlini et al. 2022): how unlikely a candidate's confidence is among shadow models without it.

    Shadow models are trained like the victim, without a defense and from the same public parameters, on random halves
    of the samples that the attacker knows, candidates not among them. Targets of one seed, model and data set may share
    them: see :meth:`shadowed`. The logit-scaled confidences ``log(p / (1 - p))`` that they give a candidate are fitted
    with a normal distribution; the score is how many of its standard deviations the victim's confidence lies above its
    mean. Shadow models' confidences are ``[shadows, n]`` for ``n`` candidates.
    """

    training: Training | None = Field(
        None, description="how shadow models are trained; None: as the target was, as far as it is known"
    )
    shadows: int = Field(16, ge=2, description="shadow models per run")
    variance: Literal["pooled", "per_sample"] = Field(
        "pooled",
        description="one for all candidates of a run, as the authors advise for few shadow models, or each its own",
    )

    _confidences: Any = PrivateAttr(None)

    def effort(self, known: int, targets: int, of: Target) -> Effort:
        judged = super().effort(known, targets, of)
        if self.training is None:
            return judged
        judged = super().effort(known, targets + self.shadows, of)
        return judged.plus(Effort(self.training.batch_size, 1).times(self.training.steps).beside(self.shadows))

    def score(
        self, target: TrainedModels, members: Labelled, nonmembers: Labelled, candidates: Labelled, streams: Streams
    ) -> torch.Tensor:
        """Membership scores ``[runs, n]``, from each candidate's confidence against that of shadow models.

        With a pooled variance the scale of a run's scores depends on all candidates; their order does not.

        Raises:
            Infeasible: the parameters that training started from are unknown, or there are other candidates than the
                confidences of the shadow models that the attack was given are of.
        """
        victim = ModelOutputs.of(target, candidates).scaled_confidence
        scores = []
        for run, confidence in enumerate(self._shadow_confidences(target, members, nonmembers, candidates, streams)):
            scores.append((victim[run] - confidence.mean(dim=0)) / self._deviation(confidence))
        return torch.stack(scores)

    def _shadow_confidences(
        self, target: TrainedModels, members: Labelled, nonmembers: Labelled, candidates: Labelled, streams: Streams
    ) -> Iterator[torch.Tensor]:
        """Confidences of the shadow models on the candidates, ``[shadows, n]`` for every run."""
        if self._confidences is not None:
            if self._confidences.shape[1] != candidates.images.shape[-4]:
                raise Infeasible("attack 'lira' was given shadow models' confidences on other candidates")
            yield from [self._confidences.to(target.parameters.device)] * len(target)
            return
        if target.initial is None:
            raise Infeasible("attack 'lira' needs the parameters that training started from, for its shadow models")
        if self.training is None:
            raise Infeasible("attack 'lira' has to be told how to train its shadow models")
        known = joined(members, nonmembers, len(target))
        shared = all(images.dim() == 4 and labels.dim() == 1 for images, labels in (members, nonmembers))
        shadows: TrainedModels | None = None
        for run, (key, start) in enumerate(zip(streams.keys, target.initial, strict=True)):
            auxiliary, queried = (
                Labelled(images if images.dim() == 4 else images[run], labels if labels.dim() == 1 else labels[run])
                for images, labels in (known, candidates)
            )
            same = run > 0 and shared and key == streams.keys[run - 1] and torch.equal(start, target.initial[run - 1])
            if shadows is None or not same:  # targets that differ in their defense alone have the same shadow models
                training = self.training
                shadows = train_shadows(Start(target.network, start), auxiliary, key, training, self.shadows).models
            yield ModelOutputs.of(shadows, queried).scaled_confidence

    def knowing(self, training: Training) -> LiRA:
        """The attack with shadow models trained like the target, unless its parameters say how."""
        return self if self.training is not None else self.model_copy(update={"training": training})

    def shadowed(self, confidences: torch.Tensor) -> LiRA:
        """The attack with shadow models that were trained before.

        Args:
            confidences: logit-scaled ones that they give the candidates, ``[shadows, n]``.
        """
        attack = self.model_copy()
        attack._confidences = confidences
        return attack

    def _deviation(self, confidence: torch.Tensor) -> torch.Tensor:
        variance = confidence.var(dim=0)
        if self.variance == "pooled":
            variance = variance.mean()
        return variance.sqrt().clamp(min=1e-12)


def train_shadows(
    start: Start,
    known: Labelled,
    key: tuple[str | int, ...],
    training: Training,
    shadows: int,
    snapshots: Sequence[int] = (),
) -> TrainingRuns:
    """Models trained on random halves of some samples.

    Args:
        start: the model before training.
        known: the samples.
        key: words that name their random streams.
        training: that of all of them.
        shadows: number of models.
        snapshots: as in :func:`~leakbench.federated.training.train_runs`.
    """
    streams = Streams([(*key, "shadow", shadow) for shadow in range(shadows)])
    size = len(known.labels) // 2
    half = streams.child("half").uniform(len(known.labels)).argsort(dim=1, stable=True)[:, :size]
    gradients = batch_gradients(start.network, start.parameters.device)
    data = TrainingSet(*known, half)
    return train_runs(start, data, streams, training, gradients=gradients, snapshots=snapshots)
