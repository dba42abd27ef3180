"""Errors in the user's code: the line that they came through, among those of this package and of libraries."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

from leakbench.errors import LeakbenchError


def in_one_line(error: BaseException) -> str:
    """The message of an error; where it is none of ours, its type and the user's line that it came through."""
    lines = str(error).split("\n")
    message = next((line.strip() for line in lines if line.strip()), "")
    if isinstance(error, LeakbenchError) and message:
        return message
    place = user_line(error)
    return f"{type(error).__name__}: {message}".rstrip(": ") + (f" ({place})" if place else "")


def user_line(error: BaseException) -> str | None:
    """The innermost line of the user's code that an error came through, as ``file.py, line 3``; None without such.

    The user's code is what is neither in this package nor installed.
    """
    others = [Path(__file__).resolve().parent, *installed()]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        if file.is_file() and not any(file.is_relative_to(folder) for folder in others):
            return f"{shown(frame.filename)}, line {frame.lineno}"
    return None


def shown(file: str) -> str:
    """A file's path, relative to the current folder where that is above it."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def installed() -> set[Path]:
    """The folders of the standard library and of installed distributions."""
    return {Path(sysconfig.get_path(each)).resolve() for each in ("purelib", "platlib", "stdlib")}
