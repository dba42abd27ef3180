"""The kit: components by file, module or class, and the answers of all checks about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leakbench.contract import attacks, data_and_models, defenses
from leakbench.contract.check import HEAVY, Answer, Case, Checks, about_classes, imports_of
from leakbench.errors import ConfigError
from leakbench.planning.variants import REGISTRIES
from leakbench.plugins import load_plugin
from leakbench.registry import Component

KINDS: dict[str, tuple[Checks[Any], type[Case[Any]]]] = {
    "defenses": (defenses.checks, defenses.DefenseCase),
    "attacks": (attacks.checks, attacks.AttackCase),
    "datasets": (data_and_models.data_checks, data_and_models.DatasetCase),
    "models": (data_and_models.model_checks, data_and_models.ModelCase),
}


def components_of(source: str) -> list[tuple[str, type[Component]]]:
    """Components that a file, a module or ``either:Class`` registers, with their kinds; or those of a registered name.

    >>> components_of("grey")
    [('attacks', <class 'leakbench.attacks.reference.Grey'>)]

    Raises:
        ConfigError: nothing importable is there, or it registers nothing; it cannot be loaded.
    """
    every = [(kind, registry.get(name)) for kind, registry in REGISTRIES.items() for name in registry]
    if not source.endswith(".py") and ":" not in source and (named := [e for e in every if e[1].name == source]):
        return named
    path, _, attribute = source.partition(":")
    if path.endswith(".py"):
        path = str(Path(path).resolve())
    module = _loaded(path)
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


def _loaded(source: str) -> str:
    """The name of a loaded module or file."""
    try:
        return load_plugin(source, "leakbench check").__name__
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{source}: it cannot be imported: {type(error).__name__}: {error}") from error


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
    components = components_of(source)
    path = source.partition(":")[0]
    if path != components[0][1].name:
        heavy = imports_of(str(Path(path).resolve()) if path.endswith(".py") else path)
        advice = f"importing it imports {', '.join(heavy)}; write: from leakbench.lazy import {', '.join(heavy)}"
        advice = advice.replace("import numpy", "import np").replace("import pandas", "import pd")
        yield Answer(path, f"plans without {HEAVY[0]}", "wrong" if heavy else "ok", advice if heavy else "")
    for kind, component in components:
        yield from check_component(kind, component, given)


def check_component(kind: str, component: type[Component], given: Mapping[str, Any]) -> Iterator[Answer]:
    """Answers of all checks about one component of a kind of :data:`KINDS`.

    >>> from leakbench.data.embedded import Digits
    >>> [(answer.check, answer.verdict) for answer in check_component("datasets", Digits, {"size": 8})][-1]
    ('normalisation', 'ok')
    """
    checks, case_of = KINDS[kind]
    yield from about_classes.answers(component.name, component)
    case = case_of(component, given)
    try:
        _ = case.made
    except ConfigError as error:
        yield Answer(component.name, "parameters fit", "wrong", str(error))
        return
    yield from checks.answers(component.name, case)
