"""Whether jobs return what their kind states of them."""

from __future__ import annotations

import itertools

from leakbench.jobs.base import Findings, Job


def check_stated(job: Job, findings: Findings) -> None:
    """Every seed has every setting, every setting every metric, and no list is longer than stated."""
    found = [(replicate.seed, replicate.setting) for replicate in findings.replicates]
    stated = list(itertools.product(job.seeds, job.kind.settings_of(job)))
    assert len(found) == len(stated) and all(each in found for each in stated)
    lengths = job.kind.lengths_of(job)
    for replicate in findings.replicates:
        assert set(replicate.metrics) == set(job.metrics)
        for name, value in replicate.metrics.items():
            axis = job.metrics[name].axis
            assert value is None or isinstance(value, list) == (axis is not None), name
            if isinstance(value, list) and axis is not None:
                assert 0 < len(value) <= lengths.get(name, lengths[axis]), name
