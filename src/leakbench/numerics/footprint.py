"""The footprint of a computation, peak memory and operators called, measured by running it once.

Counted where every operator ends up, below vmap and autograd, so the numbers depend on the computation alone: not on
the device, the allocator, or what else runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from leakbench.lazy import torch


@dataclass(frozen=True)
class Footprint:
    """``bytes``: the largest sum of tensors made and alive at one time. ``dispatches``: operators called."""

    bytes: int
    dispatches: int


@cache
def _recorder() -> type[Any]:
    """The class is made on first use, since its base is torch's."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Recorder(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.alive: dict[int, int] = {}
            self.total = self.peak = self.dispatches = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self._look((args, kwargs), made=False)  # what is not known yet was there before
            result = function(*args, **(kwargs or {}))
            self.dispatches += 1
            self._look(result, made=True)
            return result

        def _look(self, tree: Any, *, made: bool) -> None:
            for leaf in tree_leaves(tree):
                if isinstance(leaf, torch.Tensor):
                    self._hold(leaf.untyped_storage(), made)

        def _hold(self, storage: torch.UntypedStorage, made: bool) -> None:
            key = storage._cdata
            if key not in self.alive:
                self.alive[key] = storage.nbytes() if made else 0
                self.total += self.alive[key]
                self.peak = max(self.peak, self.total)
                weakref.finalize(storage, self._release, key)

        def _release(self, key: int) -> None:
            self.total -= self.alive.pop(key, 0)

    return Recorder


def footprint(computation: Callable[[], object]) -> Footprint:
    """Run a computation and measure its footprint. Its result counts until the end.

    >>> footprint(lambda: torch.zeros(1000) + 1)
    Footprint(bytes=8000, dispatches=2)
    """
    with _recorder()() as recorder:
        result = computation()
    del result
    return Footprint(recorder.peak, recorder.dispatches)


def bytes_per_row(computation: Callable[[int], object]) -> int:
    """Bytes that a second row adds to the peak of ``computation(rows)``, which is run with one row and with two."""
    one, two = (footprint(partial(computation, rows)).bytes for rows in (1, 2))
    return max(1, two - one)
