"""Plug-ins: modules and Python files outside this package that register components, and their source.

The source is a part of the identity of every job that uses a component of a plug-in: after an edit the job runs again,
whether or not the component's ``version`` was raised.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from leakbench.errors import ConfigError
from leakbench.sources import imported_files, source_digest
from leakbench.user_code import installed, shown, user_line

PREFIX = "leakbench_plugin_"
"""Begins the module names of plug-ins that are files."""


@dataclass(frozen=True)
class Source:
    """The Python files of a plug-in: one that registers components, and all that it imports from its folder or package.

    Attributes:
        name: of the module, or of the file.
        digest: of all files.
        files: digests of the files by their paths relative to the folder.
    """

    name: str
    digest: str
    files: Mapping[str, str]


def load_plugin(source: str, where: str = "") -> ModuleType:
    """Import a module by dotted name, or a Python file by path, so that its components register themselves.

    A file may import modules beside it. One that was imported already is not run again.

    Args:
        source: dotted name, or path that ends in ``.py``.
        where: source of the name, for the error message.

    Raises:
        ConfigError: nothing importable is there; the message names the file and line at fault.
    """
    where = where or "plugins"
    try:
        if source.endswith(".py"):
            return _load_file(Path(source).resolve(), f"{where}: no Python file at '{source}'")
        return importlib.import_module(source)
    except ConfigError as error:
        raise ConfigError(f"{where}: {place}: {error}" if (place := user_line(error)) else str(error)) from None
    except ModuleNotFoundError as error:
        raise ConfigError(f"{where}: cannot import '{source}' ({error}); name a module or a .py file") from error
    except SyntaxError as error:
        raise ConfigError(f"{where}: {shown(error.filename or source)}, line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code:
            raise  # 0 would end this command as if all were well
        place = user_line(error) or source
        raise ConfigError(f"{where}: {place}: it cannot be imported: {type(error).__name__}: {error}") from error


def _load_file(path: Path, missing: str) -> ModuleType:
    name = f"{PREFIX}{path.stem}"
    if getattr(sys.modules.get(name), "__file__", None) == str(path):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(missing)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, and for good: an import may be in a function
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def source_of(module: str) -> Source | None:
    """The source of an imported module, as it is on disk; None for this package, and for modules without a file.

    Args:
        module: its name in ``sys.modules``.
    """
    path = getattr(sys.modules.get(module), "__file__", None)
    if module.partition(".")[0] == "leakbench" or path is None or not Path(path).is_file():
        return None
    file = Path(path).resolve()
    base, follow = _surroundings(module, file)
    files = imported_files([file], [base], follow)
    digests = {str(each.relative_to(base)): source_digest([each], [base]) for each in files}
    name = file.name if module.startswith(PREFIX) else module
    return Source(name, source_digest(files, [base]), digests)


def _surroundings(module: str, file: Path) -> tuple[Path, Callable[[str], bool]]:
    """The folder of a plug-in's modules, and a predicate for the names of modules that belong to it.

    A module in a package belongs with that package; any other module or file with the modules beside it, unless these
    are installed distributions.
    """
    top = module.partition(".")[0]
    depth = module.count(".") + (file.name == "__init__.py")
    if depth:
        return file.parents[depth], lambda name: name.partition(".")[0] == top
    return file.parent, lambda name: file.parent not in installed() and name.partition(".")[0] != "leakbench"
