"""Your own defense beside the published ones (the key ``compare``), and the jobs that it joins; your own attack.

A compared defense joins every experiment that compares mechanisms. That is decided from the plan alone; what only a
running job can detect (a law that the message does not state, an attack without an adaptive attacker) becomes the
outcome ``infeasible``, as for any defense.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from leakbench.defenses.base import Defense, NoDefense
from leakbench.errors import ConfigError
from leakbench.plugins import load_plugin
from leakbench.registry import LABEL, Component, Registry

if TYPE_CHECKING:
    from leakbench.jobs.base import JobKind, Variant


class ComparedSpec(BaseModel):
    """A component of yours. The other keys are its parameters, and any may be ``{sweep: [values]}``."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="module:Class, path/to/file.py:Class, an entry point, or a registered name")
    label: str | None = Field(
        None,
        pattern=LABEL,
        description="its name in paths and figures (default: the name that the class is registered under)",
    )


class Comparison(NamedTuple):
    """Whether a compared defense belongs to the jobs of one kind of an experiment."""

    label: str
    paper: str
    experiment: str
    kind: str
    left_out: str | None
    """Why it does not belong there; None where it does."""


C = TypeVar("C", bound=Component)


def component_named(registry: Registry[C], base: type[C], name: str, root: Path, where: str) -> type[C]:
    """The class named by ``module:Class``, ``file.py:Class``, an entry point or a registered name.

    Args:
        registry: of its kind.
        base: class of its kind.
        name: as in the configuration.
        root: folder of relative paths.
        where: source of the name, for the error message.

    Raises:
        ConfigError: nothing has this name, or it is not registered, or of another kind.
    """
    kind = registry.kind
    source, colon, attribute = name.rpartition(":")
    candidate: Any
    if colon:
        module = load_plugin(str(root / source) if source.endswith(".py") else source, where)
        candidate = getattr(module, attribute, None)
        if candidate is None:
            raise ConfigError(f"{where}: '{source}' has no class '{attribute}'")
    elif name.endswith(".py"):
        raise ConfigError(f"{where}: which class of '{name}'? Give it as {name}:My{kind.capitalize()}")
    else:
        entries = [entry.load() for entry in entry_points(group=registry.package, name=name)]
        candidate = next((entry for entry in entries if isinstance(entry, type)), None) or registry.get(name, where)
    if not (isinstance(candidate, type) and issubclass(candidate, base)):
        raise ConfigError(f"{where}: '{name}' is no {kind}; derive it from {base.__module__}.{base.__name__}")
    if "name" not in vars(candidate):
        above = f'@{kind.upper()}S.register("its_name", version=1)'
        raise ConfigError(f"{where}: '{name}' is not registered; put {above} above the class")
    return candidate


def left_out(
    defense: Variant[Defense],
    listed: Sequence[Variant[Defense]],
    datasets: Sequence[Variant[Any]],
    kinds: Variant[JobKind],
) -> str | None:
    """The reason why a compared defense has no jobs of this kind in an experiment; None where it has.

    Args:
        defense: the compared one.
        listed: the defenses of the experiment.
        datasets: the data sets of the experiment.
        kinds: a kind of job of the experiment, with its protocol.
    """
    mechanisms = {variant.component for variant in listed}
    if mechanisms <= {NoDefense}:
        return "the experiment holds the undefended reference alone"
    if len(mechanisms) == 1:
        return f"the experiment is about settings of one mechanism, '{listed[0].component.name}'"
    acts_on = defense.component.acts_on
    if acts_on not in kinds.component.faces:
        return f"jobs of kind '{kinds.label}' say nothing of a defense that acts on {acts_on}"
    if acts_on in ("data", "model") and all(variant.component.unit == "sentences" for variant in datasets):
        return f"a defense that acts on {acts_on} changes images, and the clients hold sentences"
    if both := sorted(set(defense.sweep) & set(kinds.sweep)):
        return f"the protocol sweeps '{both[0]}' too, and a setting has one value under each name"
    return None
