"""Inventory jobs: the parameters of a model, tensor by tensor."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from leakbench.effort import Unit
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind
from leakbench.lazy import torch
from leakbench.records import MetricInfo, Replicate


@JOB_KINDS.register("inventory", version=1)
class InventoryJob(JobKind):
    """Count the parameters of every tensor of a model for the images of a data set.

    Reads no data, and builds the model without memory for its numbers, on torch's device ``meta``.
    """

    memory_mb: ClassVar[int] = 2000
    minutes: ClassVar[int] = 10
    on_gpu: ClassVar[bool] = False
    unit: ClassVar[Unit] = "multiply-adds"

    seeds: int = Field(1, ge=1, le=1, description="one: nothing here is random")

    def run(self, job: Job, device: torch.device) -> Findings:
        dataset = job.dataset.single()
        with torch.device("meta"):
            module = job.model.single().build(dataset.shape, dataset.classes)
        counts = {name: float(parameter.numel()) for name, parameter in module.named_parameters()}
        metrics = {name: MetricInfo(unit="parameters", direction="none") for name in counts}
        return Findings(metrics, [Replicate(seed=0, metrics=dict(counts))], {})
