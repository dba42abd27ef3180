"""Memory: freed blocks stay in the process, and errors for want of it are recognised."""

from __future__ import annotations

import ctypes

from leakbench.lazy import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of <malloc.h>


def keep_freed_memory() -> bool:
    """Make glibc reuse freed blocks instead of returning each to the system; returns whether that was possible.

    Every optimiser step allocates the same megabytes again. By default glibc maps and unmaps them each time, and the
    kernel clears every page: a fifth to a third of a step's time. The peak is unchanged.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1) and mallopt(_M_MMAP_MAX, 0))


def out_of_memory(error: Exception) -> bool:
    """Whether torch ran out of memory: on a CPU it raises a plain RuntimeError, which names its allocator."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
