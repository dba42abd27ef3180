"""The kind of processor that computes: on another kind sums are rounded otherwise, and searches end elsewhere."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
"""File in which Linux describes processors."""
PARTS = ("model name", "cpu family", "model")
"""Lines of it that tell kinds apart: on virtual machines the name is often that of a whole line of products."""


@cache
def processor() -> str:
    """The processor as its maker calls it, with its family and model where Linux says them.

    >>> bool(processor())
    True
    """
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return platform.processor() or platform.machine()
    return processor_in(text) or platform.machine()


def processor_in(description: str) -> str:
    r"""The first processor of a description by Linux; empty where it has no name.

    >>> processor_in("vendor_id: A\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\ncpu family\t: 6")
    'AMD EPYC, family 25, model 17'
    """
    first = description.split("\n\n")[0]
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    name, *numbers = (known.get(part, "") for part in PARTS)
    named = [f"{word} {number}" for word, number in zip(("family", "model"), numbers, strict=True) if number]
    return ", ".join([name, *named]) if name else ""
