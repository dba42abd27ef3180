"""Inventory jobs: the parameters of a model, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field

from leakbench.effort import Unit
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
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

    def metrics_of(self, job: Job) -> Mapping[str, MetricInfo]:
        return dict.fromkeys(job.parameter_counts(), MetricInfo(unit="parameters", direction="none"))

    def settings_of(self, job: Job) -> Iterator[Setting]:
        yield {}

    def run(self, job: Job, device: torch.device) -> Findings:
        counts = {name: float(count) for name, count in job.parameter_counts().items()}
        return Findings([Replicate(seed=0, metrics=dict(counts))])
