"""One small registry for every kind of plug-in: data sets, models, defenses, attacks.

A component is a frozen pydantic model. Its fields are its parameters, so that the class itself validates and documents
the configuration, and it is registered by one decorator in its file. Its ``version`` is a part of every job that uses
the component: raise it when the numbers change. So is the source of a component outside this package.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from leakbench.errors import ConfigError, UnknownName
from leakbench.paper_folders import paper_rooms
from leakbench.plugins import Source, source_of

LABEL = "^[A-Za-z0-9][A-Za-z0-9._+=-]*$"
"""Pattern of names and labels, which are parts of paths."""

LABEL_WORDS = "a letter or digit, then letters, digits and . _ + = -"
""":data:`LABEL` in words."""


class Component(BaseModel):
    """A named, versioned set of parameters. Frozen, and strict about unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: ClassVar[str]
    version: ClassVar[int]
    source: ClassVar[Source | None] = None
    """Files of the plug-in that registered it; None in this package."""
    added: ClassVar[tuple[str, ...]] = ()
    """Parameters added after records were made: at their defaults they are no part of an identity."""

    @classmethod
    def summary(cls) -> str:
        """First line of the docstring."""
        return (cls.__doc__ or "").strip().split("\n")[0]

    def parameters(self) -> dict[str, Any]:
        """All parameters, resolved, in JSON types; without those of :attr:`added` at their defaults."""
        fields = type(self).model_fields
        unchanged = {name for name in self.added if getattr(self, name) == fields[name].default}
        return self.model_dump(mode="json", exclude=unchanged)


def components_in(value: Any) -> Iterator[Component]:
    """A component and those in its parameters, at any depth; for a collection, those of its values."""
    if isinstance(value, Component):
        yield value
    if isinstance(value, BaseModel):
        value = vars(value)
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for each in value:
        yield from components_in(each)


C = TypeVar("C", bound=Component)


class Registry(Generic[C]):
    """Components of one kind by name.

    At the first look-up these are imported: the modules of ``package``, those of the papers' sub-packages of the same
    name (``leakbench.jobs`` and ``<a paper's package>.jobs``), and the entry points of the group ``package`` of any
    installed distribution.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._classes: dict[str, type[C]] = {}
        self._loaded = False

    def register(self, name: str, *, version: int) -> Callable[[type[C]], type[C]]:
        """Class decorator that gives a component its name and version.

        >>> from pydantic import Field
        >>> noises: Registry[Component] = Registry("noise", "my_package.noises")
        >>> @noises.register("gaussian", version=1)
        ... class Gaussian(Component):
        ...     scale: float = Field(ge=0, description="standard deviation")
        >>> noise = Gaussian(scale=0.1)
        >>> noise.name, noise.version, noise.parameters()
        ('gaussian', 1, {'scale': 0.1})

        Raises:
            ConfigError: the name is no part of a path, or is taken by another class.
        """

        def decorate(cls: type[C]) -> type[C]:
            if not re.fullmatch(LABEL, name):
                raise ConfigError(
                    f"{self.kind} '{name}' of {cls.__module__}.{cls.__qualname__}: a name is a part of paths: "
                    f"{LABEL_WORDS}; register it under another"
                )
            if not cls.__module__.startswith("leakbench."):
                self._load()  # a name of the package is taken, whatever is imported first
            known = self._classes.get(name)
            if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ConfigError(
                    f"{self.kind} '{name}' of {cls.__module__} is already registered by {known.__module__}; "
                    "choose another name"
                )
            cls.name, cls.version, cls.source = name, version, source_of(cls.__module__)
            self._classes[name] = cls
            return cls

        return decorate

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True  # first: a module may look names up while it is imported
        try:
            _import_with_modules(self.package)
            for package in paper_rooms(self.package.removeprefix("leakbench.")):
                _import_with_modules(package)
            for entry in entry_points(group=self.package):
                entry.load()
        except BaseException:
            self._loaded = False
            raise

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._classes))

    def get(self, name: str, where: str = "") -> type[C]:
        """The class registered as ``name``.

        >>> from leakbench.defenses.base import DEFENSES
        >>> DEFENSES.get("gaussian_noise")(scale=0.1).parameters()["scale"]
        0.1

        Args:
            name: as in the configuration.
            where: source of the name (a file and key, or a path), for the error message.

        Raises:
            UnknownName: no such component; the message lists those that exist.
        """
        self._load()
        if name not in self._classes:
            raise UnknownName(self.kind, name, self._classes, where)
        return self._classes[name]


def _import_with_modules(name: str) -> None:
    """Import a package and the modules in it, not those of packages in it; or a module."""
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
        importlib.import_module(f"{name}.{module.name}")
