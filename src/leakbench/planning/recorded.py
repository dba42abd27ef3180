"""The job of a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from leakbench.attacks.base import ATTACKS
from leakbench.errors import ConfigError
from leakbench.jobs.base import JOB_KINDS, Job, JobKind, Variant
from leakbench.planning.variants import GRID, REGISTRIES
from leakbench.registry import Registry


def job_of(resolved: Mapping[str, Any]) -> Job:
    """The job of a record, but for the records that it used: the inverse of :meth:`Job.resolved`.

    Args:
        resolved: the record's ``job``.

    Raises:
        ConfigError: its components are not registered, or have other parameters by now.
    """
    try:
        kinds = _kinds(resolved["kind"], resolved["seeds"])
        dataset, model, defense = (_variant(REGISTRIES[axis], resolved[axis.removesuffix("s")]) for axis in GRID)
        return Job(
            scale=resolved["scale"],
            paper=resolved["paper"],
            experiment=resolved["experiment"],
            dataset=dataset,
            model=model,
            defense=defense,
            attack=_variant(ATTACKS, resolved["attack"]) if resolved["attack"] else None,
            kind=kinds.first,
            part=resolved["part"],
            seeds=tuple(resolved["seeds"]),
            kinds=kinds if kinds.sweep else None,
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise ConfigError(
            f"a record of {resolved.get('experiment')}: not a job of today's components: {error}"
        ) from None


def _variant(registry: Registry[Any], described: Mapping[str, Any]) -> Variant[Any]:
    component = registry.get(described["name"])
    return Variant(described["label"], component, described["parameters"], described["sweep"])


def _kinds(described: Mapping[str, Any], seeds: list[int]) -> Variant[JobKind]:
    """The kind of job with its protocol, and what that sweeps."""
    protocol = described["protocol"] | ({"seeds": len(seeds)} if seeds else {})
    return Variant(described["name"], JOB_KINDS.get(described["name"]), protocol, described.get("sweep", {}))
