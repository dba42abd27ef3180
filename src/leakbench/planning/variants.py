"""Variants: labels of the configuration, as components with parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS
from leakbench.data.base import DATASETS
from leakbench.defenses.base import DEFENSES
from leakbench.errors import ConfigError, UnknownName
from leakbench.jobs.base import Variant
from leakbench.models.base import MODELS
from leakbench.planning.mistakes import Where, explain, validated
from leakbench.planning.schemas import Variants, VariantSpec
from leakbench.registry import Component, Registry

C = TypeVar("C", bound=Component)

REGISTRIES: dict[str, Registry[Any]] = {
    "datasets": DATASETS,
    "models": MODELS,
    "defenses": DEFENSES,
    "attacks": ATTACKS,
}
"""Components by the keys under which the configuration names variants of them."""

GRID = ("datasets", "models", "defenses")
"""Axes with one variant per job."""


class Whereabouts(Protocol):
    """Returns the :data:`~leakbench.planning.mistakes.Where` of a mapping, from the keys above it."""

    def __call__(self, *prefix: str) -> Where: ...


def swept(label: str, component: type[C], given: Mapping[str, Any], where: Where) -> Variant[C]:
    """A component with parameters, of which each may be ``{sweep: [values]}``.

    Raises:
        ConfigError: naming the file, the key, the value and what is allowed.
    """
    sweep = {key: value["sweep"] for key, value in given.items() if isinstance(value, dict) and set(value) == {"sweep"}}
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where(key)}: a sweep needs a list of values (found: {values!r})")
        for value in values:
            if not isinstance(value, (str, int, float)):
                raise ConfigError(f"{where(key)}: a sweep takes numbers, words, true and false (found: {value!r})")
    variant = Variant(label, component, {k: v for k, v in given.items() if k not in sweep}, sweep)
    try:
        made = list(variant.settings())
    except ValidationError as error:
        raise explain(error, component, where) from None
    read = {(key, value): getattr(each, key) for setting, each in made for key, value in setting.items()}
    return replace(
        variant,
        sweep={key: _distinct([_number(v, read[key, v]) for v in values], where(key)) for key, values in sweep.items()},
    )


def _number(given: Any, read: Any) -> Any:
    """A swept value as records hold it: a number that YAML takes for text, such as ``1e-3``, is one there too."""
    return read if isinstance(given, str) and isinstance(read, int | float) else given


def _distinct(values: list[Any], where: str) -> list[Any]:
    """Swept values, none of which is there twice: its settings would be the same trials, counted twice.

    Raises:
        ConfigError: one is; ``where`` begins the message.
    """
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"{where}: a sweep takes each value once (found twice: {value!r})")
    return values


class DeclaredVariants:
    """The variants that a paper declares, and components by their own names.

    Args:
        declared: the paper's ``variants``.
        where: the places of the paper's keys.
    """

    def __init__(self, declared: Variants, where: Whereabouts) -> None:
        self._declared = declared
        self._where = where

    def get(self, axis: str, label: str, asked: tuple[str, ...], wrappers: tuple[str, ...] = ()) -> Variant[Any]:
        """The variant that a label names: a declared one, or a component by its own name and with its defaults.

        Args:
            axis: a key of :data:`REGISTRIES`.
            label: as the experiment names it.
            asked: the keys that hold the label.
            wrappers: labels of the attacks around this one.

        Raises:
            ConfigError: no such variant or component, its parameters are wrong, or attacks wrap each other in a circle.
        """
        registry: Registry[Component] = REGISTRIES[axis]
        declared: dict[str, VariantSpec] = getattr(self._declared, axis)
        if label in wrappers:
            circle = " -> ".join((*wrappers, label))
            raise ConfigError(f"{self._where(*asked)()}: the attacks {circle} wrap each other")
        if label in declared:
            keys = ("variants", axis, label)
            component = registry.get(declared[label].name, self._where(*keys)("name"))
            return self._made(label, component, declared[label].model_extra or {}, keys, (*wrappers, label))
        if label in set(registry):
            return swept(label, registry.get(label), {}, self._where(*asked))
        raise UnknownName(registry.kind, label, {*declared, *registry}, self._where(*asked)())

    def _made(
        self,
        label: str,
        component: type[Component],
        given: Mapping[str, Any],
        keys: tuple[str, ...],
        wrappers: tuple[str, ...],
    ) -> Variant[Any]:
        """A component with the parameters below ``keys``.

        A wrapper's parameter ``attack`` is the label of another variant, or itself a name with parameters.
        """
        where, inside = self._where(*keys), given.get("attack")
        if not issubclass(component, Wrapper) or not isinstance(inside, str | Mapping):
            return swept(label, component, given, where)
        wrapped, wraps = self._wrapped(inside, (*keys, "attack"), wrappers)
        if wrapped.sweep:
            raise ConfigError(f"{where('attack')}: '{wrapped.label}' sweeps parameters, and a wrapped attack cannot")
        inner = {"name": wrapped.component.name, **wrapped.parameters}
        return replace(swept(label, component, {**given, "attack": inner}, where), wraps=wraps)

    def _wrapped(
        self, inside: str | Mapping[str, Any], keys: tuple[str, ...], wrappers: tuple[str, ...]
    ) -> tuple[Variant[Any], tuple[str, ...]]:
        """The attack inside a wrapper, and the labels of it and of the attacks inside it."""
        where = self._where(*keys)
        if isinstance(inside, str):
            wrapped = self.get("attacks", inside, keys, wrappers)
            return wrapped, (inside, *wrapped.wraps)
        if set(inside) == {"sweep"}:
            raise ConfigError(f"{where()}: a wrapped attack cannot be swept; make a variant of each")
        spec = validated(VariantSpec, inside, where)
        attack = ATTACKS.get(spec.name, where("name"))
        wrapped = self._made(spec.name, attack, spec.model_extra or {}, keys, wrappers)
        return wrapped, wrapped.wraps
