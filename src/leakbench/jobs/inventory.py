"""Inventory jobs: the parameters of a model, tensor by tensor."""

from __future__ import annotations

from pydantic import Field

from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind
from leakbench.lazy import torch
from leakbench.records import MetricInfo, Replicate


@JOB_KINDS.register("inventory", version=1)
class InventoryJob(JobKind):
    """Count the parameters of every tensor of a model for the images of a data set. Reads no data."""

    seeds: int = Field(1, ge=1, le=1, description="one: nothing here is random")

    def run(self, job: Job, device: torch.device) -> Findings:
        from leakbench.models.base import build_network

        dataset = job.dataset.single()
        network = build_network(job.model.single(), dataset.shape, dataset.classes, seed=0)
        counts = dict(zip(network.names, map(float, network.sizes), strict=True))
        metrics = {name: MetricInfo(unit="parameters", direction="none") for name in counts}
        return Findings(metrics, [Replicate(seed=0, metrics=dict(counts))], {})
