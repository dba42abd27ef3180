"""One image for a whole batch: the leakage of its mean image from a batch gradient (Tan et al. 2024, Fig. 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS, Grant, Knowledge, Observations, Reconstruction
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.randomness import Streams


@ATTACKS.register("one_image", version=1)
class OneImage(Wrapper):
    """The attack inside, searching for one image whose gradient is that of the batch.

    Its label is soft: the mean of the batch's one-hot labels. Compare it with the mean of the batch (the protocol's
    ``target: batch_mean``).
    """

    adds: ClassVar[frozenset[Grant]] = frozenset({"labels"})
    adapts: ClassVar[bool] = False

    def effort(self, samples: int) -> Effort:
        return self.attack.effort(1)

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        batch, *shape = observations.batch_shape
        if not observations.local.is_gradient(batch):
            raise Infeasible("attack 'one_image' needs a gradient of the whole batch, not several local steps")
        assert knowledge.labels is not None
        classes = observations.network.head.outputs
        soft = torch.nn.functional.one_hot(knowledge.labels, classes).to(observations.gradients).mean(1, keepdim=True)
        one = replace(observations, batch_shape=(1, *shape))
        reconstruction = self.attack.reconstruct(one, replace(knowledge, labels=soft), streams)
        return replace(reconstruction, labels=None if reconstruction.labels is None else knowledge.labels)
