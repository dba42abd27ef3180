"""Strengths of a defense that are worth attacking, chosen by what they cost before anything is attacked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from leakbench.jobs.base import Job, Setting
from leakbench.records import Record

LOST = "accuracy_lost"
"""Metric of training: what a defense costs."""

AT_MOST = 2
"""Settings that bracket an allowed loss, for one protocol of training."""


def bracketing(losses: Sequence[float], allowed: float) -> list[int]:
    """Places of the settings on either side of an allowed loss: the last one within it, and the next, which loses more.

    Where all lose more, the one that loses least stands for them, and where none does the last.

    >>> bracketing([0.0, 0.01, 0.05, 0.3], allowed=0.02)
    [1, 2]
    >>> bracketing([0.3, 0.1, 0.2], allowed=0.02), bracketing([0.0, 0.01], allowed=0.02)
    ([1], [1])

    Args:
        losses: of the settings of a sweep, from weak to strong; NaN, where nothing is known, counts as too much.
        allowed: loss.
    """
    within = [place for place, loss in enumerate(losses) if loss <= allowed]
    if not within:
        known = [math.inf if math.isnan(loss) else loss for loss in losses]
        return [known.index(min(known))]
    return [place for place in (within[-1], within[-1] + 1) if place < len(losses)]


def mean_losses(record: Record, metric: str, names: Sequence[str]) -> Mapping[tuple[object, ...], dict[str, float]]:
    """Means over seeds by setting of the defense, for each protocol that a record sweeps; infinite where a run failed.

    Args:
        record: of training.
        metric: the loss.
        names: parameters that the defense sweeps.
    """
    losses: dict[tuple[object, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for replicate in record.replicates:
        protocol = tuple(sorted((key, value) for key, value in replicate.setting.items() if key not in names))
        value = replicate.metrics.get(metric)
        losses[protocol][_key(replicate.setting, names)].append(value if isinstance(value, float) else math.inf)
    return {
        protocol: {setting: sum(values) / len(values) for setting, values in by_setting.items()}
        for protocol, by_setting in losses.items()
    }


def worth_attacking(job: Job, record: Record, metric: str, allowed: float) -> list[int]:
    """Places of the settings of a job's defense that bracket an allowed loss, for any protocol of training.

    Settings that are no sweep of one parameter have no order, so that each is worth it.

    Args:
        job: an attack.
        record: of training under the same defense.
        metric: the loss in it.
        allowed: loss.
    """
    settings = [setting for setting, _ in job.defense.settings()]
    names = list(job.defense.sweep)
    if len(names) != 1:
        return list(range(len(settings)))
    chosen: set[int] = set()
    for by_setting in mean_losses(record, metric, names).values():
        losses = [by_setting.get(_key(setting, names), math.nan) for setting in settings]
        chosen.update(bracketing(losses, allowed))
    return sorted(chosen)


def _key(setting: Setting, names: Sequence[str]) -> str:
    """The defense's part of a setting."""
    return repr([setting[name] for name in names])
