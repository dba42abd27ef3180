"""The attack that needs no training: members have a small loss."""

from __future__ import annotations

from leakbench.attacks.released.base import MEMBERSHIP_ATTACKS, Labelled, MembershipAttack
from leakbench.attacks.released.outputs import ModelOutputs
from leakbench.lazy import torch
from leakbench.models.trained import TrainedModels
from leakbench.randomness import Streams


@MEMBERSHIP_ATTACKS.register("threshold", version=1)
class Threshold(MembershipAttack):
    """The loss, with its sign changed (Yeom et al. 2018); what the area under the curve judges at all thresholds."""

    def score(
        self, target: TrainedModels, members: Labelled, nonmembers: Labelled, candidates: Labelled, streams: Streams
    ) -> torch.Tensor:
        return -ModelOutputs.of(target, candidates).loss
