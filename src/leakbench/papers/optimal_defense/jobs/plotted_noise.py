"""Training that measures what the released code plots as Fig. 14."""

from __future__ import annotations

from leakbench.federated.message import Message
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import JOB_KINDS
from leakbench.jobs.train import TrainJob
from leakbench.lazy import torch
from leakbench.theory.optimal_noise import unsigned_ratio

PROBES = 10
"""Random directions per sensitivity, k, as the defense has by default, so that both take the same."""


@JOB_KINDS.register("plotted_noise", version=1)
class PlottedNoiseJob(TrainJob):
    """Train as jobs of kind ``train`` do; ``noise_per_tensor`` is what the notebook of Chen et al. (2024) plots.

    That is no noise that is added: the last client's ratio of sensitivity to gradient without the gradient's absolute
    value (:func:`leakbench.theory.optimal_noise.unsigned_ratio`), as standard deviations of root mean square one.
    """

    def noise_variance(self, steps: ClientSteps, message: Message) -> torch.Tensor | None:
        ratio = unsigned_ratio(steps.sensitivity(PROBES), steps.gradient)
        plotted = ratio / ratio.mean(dim=1, keepdim=True)
        last: torch.Tensor = plotted.unflatten(0, (-1, self.clients))[:, -1]
        return last
