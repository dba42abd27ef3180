"""Checks, functions that say what is wrong with a case; and those of every component's class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MultipleOf
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from leakbench.errors import ConfigError, Infeasible, MissingData
from leakbench.registry import Component
from leakbench.user_code import in_one_line

T = TypeVar("T")
C = TypeVar("C", bound=Component)


class NotAsked(Exception):
    """The check does not apply, and why."""


@dataclass(frozen=True)
class Answer:
    """The outcome of a check.

    Attributes:
        component: name of the component.
        check: name of the check.
        verdict: wrong, ok, or not asked.
        message: what is wrong and what to do, or why it was not asked; empty if ok.
    """

    component: str
    check: str
    verdict: Literal["ok", "wrong", "not asked"]
    message: str = ""


@dataclass(frozen=True)
class Check(Generic[T]):
    """A question with a name. ``ask`` returns what is wrong and what to do, or None; a slow one trains or attacks."""

    name: str
    ask: Callable[[T], str | None]
    slow: bool = False

    def answer(self, component: str, case: T) -> Answer:
        """Ask about one case. An error that the component raises is an answer, and ends no other check."""
        try:
            fault = self.ask(case)
        except NotAsked as reason:
            return Answer(component, self.name, "not asked", str(reason))
        except (Infeasible, MissingData) as reason:
            return Answer(component, self.name, "not asked", f"it says that it cannot run here: {reason}")
        except Exception as error:
            return Answer(component, self.name, "wrong", f"it raises {in_one_line(error)}")
        return Answer(component, self.name, "wrong" if fault else "ok", fault or "")


class Checks(Generic[T]):
    """The checks of one kind of component, in their order."""

    def __init__(self) -> None:
        self.all: list[Check[T]] = []

    def __call__(
        self, name: str, slow: bool = False
    ) -> Callable[[Callable[[T], str | None]], Callable[[T], str | None]]:
        """Decorator that adds a check under a name."""

        def decorate(ask: Callable[[T], str | None]) -> Callable[[T], str | None]:
            self.all.append(Check(name, ask, slow))
            return ask

        return decorate

    def answers(self, component: str, case: T, quick: bool = False) -> Iterator[Answer]:
        """Answers of all checks about a case; what several find alike is said once.

        Args:
            component: name of the component.
            case: the component at work.
            quick: leave out the checks that train or attack.
        """
        first: dict[str, str] = {}
        for check in self.all:
            if quick and check.slow:
                continue
            answer = check.answer(component, case)
            if answer.verdict == "wrong" and answer.message in first:
                answer = replace(
                    answer, verdict="not asked", message=f"as '{first[answer.message]}' says; mend that first"
                )
            elif answer.verdict == "wrong":
                first[answer.message] = check.name
            yield answer


about_classes: Checks[type[Component]] = Checks()


@about_classes("summary")
def summary(component: type[Component]) -> str | None:
    """The first line of the docstring is what `leakbench list` shows."""
    if "__doc__" not in vars(component) or not (vars(component)["__doc__"] or "").strip():
        return 'the class says nothing of itself; begin it with a docstring: """What it does, in a line."""'
    return None


@about_classes("version")
def version(component: type[Component]) -> str | None:
    """The version is a part of every job that uses the component."""
    if not isinstance(component.version, int) or isinstance(component.version, bool) or component.version < 1:
        return f"version={component.version!r}; write version=1, and raise it by one whenever the numbers change"
    return None


@about_classes("parameters described")
def described(component: type[Component]) -> str | None:
    """Descriptions are the documentation of the configuration."""
    silent = [
        name for name in component.model_fields if not any(_description(base, name) for base in component.__mro__)
    ]
    if silent:
        return f'nothing says what {_listed(silent)} is; write Field(..., description="what it is, and its unit")'
    return None


@about_classes("parameters bounded")
def bounded(component: type[Component]) -> str | None:
    """A number without bounds lets a misprint run for hours."""
    free = [name for name, field in component.model_fields.items() if _is_number(field) and not _has_bound(field)]
    if free:
        return f"{_listed(free)} may be any number; say what is allowed: Field(ge=0), gt=, le= or lt="
    return None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _description(base: type, name: str) -> str | None:
    """A class's description of a parameter; a subclass that gives it another default need not repeat it."""
    field = getattr(base, "model_fields", {}).get(name)
    return field.description if field else None


def _is_number(field: FieldInfo) -> bool:
    annotation = field.annotation
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return any(part in (int, float) for part in parts)


def _has_bound(field: FieldInfo) -> bool:
    return any(isinstance(bound, Ge | Gt | Le | Lt | MultipleOf) for bound in _constraints(field))


def _constraints(field: FieldInfo) -> list[Any]:
    inner = [part for each in get_args(field.annotation) for part in getattr(each, "__metadata__", ())]
    return [*field.metadata, *inner]


def made(component: type[C], given: Mapping[str, Any]) -> C:
    """The component with given parameters; those without a default get a plain value inside their bounds.

    Raises:
        ConfigError: no value fits that can be guessed; the message says how to give one.
    """
    guessed = {name: _guess(field) for name, field in component.model_fields.items() if field.is_required()}
    try:
        return component(**{**guessed, **given})
    except ValidationError as error:
        (first, *_) = error.errors()
        place = ".".join(map(str, first["loc"])) or "the parameters"
        raise ConfigError(
            f"{component.name}: {place}: {first['msg']}. Say which parameters to check it with, "
            f"after the file: NAME=VALUE"
        ) from None


class Case(Generic[C]):
    """A component at work, for the checks to look at.

    Args:
        component: the class.
        given: parameters; required ones that are missing get a plain value.
    """

    def __init__(self, component: type[C], given: Mapping[str, Any]) -> None:
        self.component = component
        self.given = given

    @cached_property
    def made(self) -> C:
        """The component with its parameters.

        Raises:
            ConfigError: no parameters fit that can be guessed.
        """
        return made(self.component, self.given)


def _guess(field: FieldInfo) -> Any:
    """A plain value: the first of a choice; a number a tenth of the way from its lower bound to its upper one."""
    annotation = field.annotation
    if get_origin(annotation) is Literal:
        return get_args(annotation)[0]
    low: Any = next(
        (getattr(b, "ge", getattr(b, "gt", None)) for b in _constraints(field) if isinstance(b, Ge | Gt)), 0
    )
    high: Any = next(
        (getattr(b, "le", getattr(b, "lt", None)) for b in _constraints(field) if isinstance(b, Le | Lt)), None
    )
    strict = any(isinstance(bound, Gt) for bound in _constraints(field))
    if annotation is bool:
        return False
    if annotation is int:
        return int(low) + int(strict)
    if annotation is float:
        return low + (high - low) / 10 if high is not None else low + 0.1
    return None
