"""The kit: components by file, module or class, and the answers of all checks about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leakbench.contract import attacks, data_and_models, defenses
from leakbench.contract.check import Answer, Case, Checks, about_classes
from leakbench.errors import ConfigError
from leakbench.jobs.runner import Placement
from leakbench.planning.project import Project
from leakbench.planning.variants import REGISTRIES
from leakbench.plugins import load_plugin
from leakbench.registry import Component

KINDS: dict[str, tuple[Checks[Any], type[Case[Any]]]] = {
    "defenses": (defenses.checks, defenses.DefenseCase),
    "attacks": (attacks.checks, attacks.AttackCase),
    "datasets": (data_and_models.data_checks, data_and_models.DatasetCase),
    "models": (data_and_models.model_checks, data_and_models.ModelCase),
}


def components_of(source: str, command: str = "leakbench check") -> list[tuple[str, type[Component]]]:
    """Components that a file, a module or ``either:Class`` registers, with their kinds; or those of a registered name.

    >>> components_of("grey")
    [('attacks', <class 'leakbench.attacks.reference.Grey'>)]

    Args:
        source: a file, a module, either with ``:Class``, or a registered name.
        command: that was given it, for error messages.

    Raises:
        ConfigError: nothing importable is there, or it registers nothing; it cannot be loaded.
    """
    every = [(kind, registry.get(name)) for kind, registry in REGISTRIES.items() for name in registry]
    if not source.endswith(".py") and ":" not in source and (named := [e for e in every if e[1].name == source]):
        return named
    path, _, attribute = source.partition(":")
    if path.endswith(".py"):
        path = str(Path(path).resolve())
    module = load_plugin(path, command).__name__
    registered = [
        (kind, registry.get(name))
        for kind, registry in REGISTRIES.items()
        for name in registry
        if registry.get(name).__module__ == module
    ]
    chosen = [each for each in registered if not attribute or each[1].__name__ == attribute]
    if not chosen:
        what = f"no class '{attribute}'" if attribute else "nothing"
        raise ConfigError(
            f'{source}: it registers {what}; put @DEFENSES.register("its_name", version=1) above the class '
            "(or ATTACKS, DATASETS, MODELS)"
        )
    return chosen


def answers(source: str, given: Mapping[str, Any]) -> Iterator[Answer]:
    """Answers of all checks about the components of ``source``.

    >>> [answer.check for answer in answers("grey", {}) if answer.verdict == "wrong"]
    []

    Args:
        source: a file, a module, either with ``:Class``, or a registered name.
        given: parameters to check with; required ones that are missing get a plain value.

    Raises:
        ConfigError: there is nothing to check.
    """
    for kind, component in components_of(source):
        yield from check_component(kind, component, given)


def configured_answers(project: Project) -> Iterator[Answer]:
    """Answers of the quick checks about the user's components that ``compare`` and ``ensemble`` name.

    Args:
        project: its configuration names them, with parameters.
    """
    for kind, variants in (("defenses", project.compared), ("attacks", project.ensemble)):
        for variant in variants:
            if variant.component.source is not None:
                setting, _ = next(variant.settings())
                yield from check_component(kind, variant.component, {**variant.parameters, **setting}, quick=True)


def check_component(
    kind: str, component: type[Component], given: Mapping[str, Any], quick: bool = False
) -> Iterator[Answer]:
    """Answers of all checks about one component of a kind of :data:`KINDS`.

    >>> from leakbench.data.embedded import Digits
    >>> [(answer.check, answer.verdict) for answer in check_component("datasets", Digits, {"size": 8})][-1]
    ('normalisation', 'ok')

    Args:
        kind: a key of :data:`KINDS`.
        component: the class.
        given: parameters to check with; required ones that are missing get a plain value.
        quick: leave out the checks that train or attack, and those of how the class is written.
    """
    Placement("cpu").resolve()  # one thread, as jobs have: several cost more than they gain on what is so small
    checks, case_of = KINDS[kind]
    if not quick:
        yield from about_classes.answers(component.name, component)
    case = case_of(component, given)
    try:
        _ = case.made
    except ConfigError as error:
        yield Answer(component.name, "parameters fit", "wrong", str(error))
        return
    yield from checks.answers(component.name, case, quick)
