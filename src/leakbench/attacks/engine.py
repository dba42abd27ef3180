"""Batched minimisation: one loop optimises many independent trials of one model.

A trial is one observation with one starting point, as a flat vector of variables. Everything in the loop is either
vectorised over trials (``torch.func.vmap`` of the objective's gradient) or acts on each row alone (the optimiser), so a
trial takes the same path whatever else shares its batch. A trial that becomes non-finite is frozen and marked; it
neither stops nor touches the others. Nothing in the loop waits for the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias, TypedDict

from leakbench.attacks.base import KnownInputs
from leakbench.attacks.optimisers import Bounds, Descent, Optimiser
from leakbench.lazy import torch
from leakbench.libraries.memory import out_of_memory
from leakbench.models.base import Statistics
from leakbench.numerics.footprint import bytes_per_row
from leakbench.numerics.stateful import named, part_of
from leakbench.running.checkpoint import loop
from leakbench.running.progress import Tick, progress

CPU_BUDGET = 256 * 2**20
"""Working memory of one vectorised evaluation on a CPU, in bytes. On a GPU it is a part of what is free."""

GPU_PART = 0.6

WIDE = 48 * 2**20
"""A CPU evaluates trials one by one where one of them holds more bytes than this. Such a trial is not held up by
dispatching, and the grouped convolutions that vmap makes of per-trial weight gradients are slow there."""

COMPILED = False
"""Whether evaluations go through torch.compile: minutes to start, then faster, and other last digits. Set by
:class:`leakbench.jobs.runner.Placement`."""

CHECK_EVERY = 64
"""Iterations between checks whether any trial still moves: a check waits for the device."""


class TrialData(TypedDict, total=False):
    """The attacker's data on one trial; or on ``n``, with a leading axis.

    ``target``: the observed gradient, ``[d]``. ``labels``: ``[B]``. ``weights``: trust in each coordinate, ``[d]``.
    ``statistics``: of BatchNorm layers. ``inputs``: those that are known ``where`` they are, both ``batch_shape``.
    ``unit`` of the variables and ``word_length``, the mean length of word embeddings: of sentences. ``parameters``: the
    client's model, ``[d]``, if it is not that of all. ``row``: the observation, where the mechanism is run on
    candidates. ``code_noise``: of a bottleneck, ``[B, K]``, where it is known. ``expected``: of the law of its images,
    which decoding takes. ``later``: the data on later rounds.
    """

    target: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    statistics: Statistics
    inputs: KnownInputs
    unit: torch.Tensor
    word_length: torch.Tensor
    parameters: torch.Tensor
    row: torch.Tensor
    code_noise: torch.Tensor
    expected: tuple[torch.Tensor, ...]
    later: list[TrialData]


Cost: TypeAlias = "Callable[[torch.Tensor, TrialData], torch.Tensor]"
"""``cost(variables [D], data) -> scalar`` of one trial."""

Evaluation: TypeAlias = "Callable[[torch.Tensor, TrialData], tuple[torch.Tensor, torch.Tensor]]"
"""``evaluate(points [n, D], data) -> gradient [n, D], value [n]`` of many."""


Interlude: TypeAlias = "Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]"
"""``interlude(iteration, points [n, D], trials [n]) -> points [n, D]``: what moves trials between steps, by other means
than derivatives. Called after the step of every iteration, from 0 on, with the indices of the trials."""


class Minimum(NamedTuple):
    """Final ``points [n, D]``, ``objective [n]`` and ``diverged_at [n]`` (-1: never) of each trial."""

    points: torch.Tensor
    objective: torch.Tensor
    diverged_at: torch.Tensor


def minimise(
    cost: Cost,
    points: torch.Tensor,
    data: Callable[[torch.Tensor], TrialData],
    optimiser: Optimiser,
    iterations: int,
    *,
    bounds: Bounds | None = None,
    stop_below: float | None = None,
    keep: Literal["last", "best"] = "last",
    interlude: Interlude | None = None,
    chunk: int | None = None,
) -> Minimum:
    """Minimise ``cost`` over every trial's variables.

    Args:
        cost: objective of one trial.
        points: starting points, ``[n, D]``.
        data: from trials (their indices) to what is known of them.
        optimiser: how trials move.
        iterations: evaluations of every trial.
        bounds: what every step projects onto.
        stop_below: a trial whose objective falls below this stops there.
        keep: which iterate is the result: the last one, or the best one by the objective.
        interlude: what happens between steps, to an optimiser that may be interrupted (Adam, which keeps its
            moments).
        chunk: trials per vectorised evaluation; as many as fit in memory by default. The results do not depend on it,
            but for a chunk of one: other kernels then round in other places, which signed steps can amplify.
    """
    trials = torch.arange(len(points), device=points.device)
    parts: list[Minimum] = []
    name = "matching gradients"
    with progress(name, iterations * len(points)) as tick, loop(name, len(points), quiet=True) as chunks:

        def completed() -> dict[str, torch.Tensor]:
            joined = zip(Minimum._fields, zip(*parts, strict=True), strict=True) if parts else ()
            return {"chunk": torch.tensor(size), **{field: torch.cat(tensors) for field, tensors in joined}}

        if chunks.saved:
            size = int(chunks.saved["chunk"])
            if chunks.done:
                parts.append(Minimum(*(chunks.saved[field].to(points.device) for field in Minimum._fields)))
                tick(iterations * chunks.done)
        else:
            size = chunk or chunk_size(cost, points[:1], data(trials[:1]))
            size = min(size, max(2, len(points)))
            chunks.tick(completed, 0)  # the free memory decides the size, which may be another one next time
        while (first := chunks.done) < len(points):
            rows = trials[first : first + size]
            # Kernels round a batch of one differently, and signs amplify that: a lone trial runs beside its copy.
            # A compiled step has one shape.
            least = size if COMPILED else min(size, 2)
            computed = torch.cat([rows, rows[-1:].expand(least - len(rows))]) if len(rows) < least else rows
            evaluate = evaluation(cost, vectorised=size > 1)

            def advance(steps: int = 1, trials: int = len(rows)) -> None:
                tick(steps * trials)

            try:
                # No name for the descent: a failed one would stay in memory while the next one starts.
                minimum = _descend(
                    evaluate,
                    optimiser.start(points[computed], iterations, bounds),
                    data(computed),
                    iterations,
                    stop_below,
                    keep,
                    advance,
                    interlude,
                    computed,
                )
            except RuntimeError as error:
                if size == 1 or not out_of_memory(error):
                    raise
                size = (len(computed) + 1) // 2  # and once more from the start
                chunks.tick(completed, 0)
                continue
            parts.append(Minimum(*(tensor[: len(rows)] for tensor in minimum)))
            chunks.tick(completed, len(rows))
    return Minimum(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _descend(
    evaluate: Evaluation,
    descent: Descent,
    data: TrialData,
    iterations: int,
    stop_below: float | None,
    keep: Literal["last", "best"],
    tick: Tick,
    interlude: Interlude | None,
    trials: torch.Tensor,
) -> Minimum:
    n, device = len(descent.points), descent.points.device
    diverged_at = torch.full((n,), -1, device=device)
    resting = torch.zeros(n, dtype=torch.bool, device=device)  # converged or good enough
    stopped = torch.zeros_like(resting)
    held, held_value = descent.points, torch.full((n,), torch.inf, device=device, dtype=descent.points.dtype)
    with loop(f"descent of {n}", iterations, quiet=True, ends=False) as steps:
        if steps.saved:
            descent.restore(part_of(steps.saved, "descent"))
            diverged_at, resting, stopped, held, held_value = (
                steps.saved[name].to(device) for name in ("diverged_at", "resting", "stopped", "held", "held_value")
            )
            tick(steps.done)

        def state() -> dict[str, torch.Tensor]:
            marks = {"diverged_at": diverged_at, "resting": resting, "stopped": stopped}
            return {**named("descent", descent.state()), **marks, "held": held, "held_value": held_value}

        for iteration in steps.steps:
            gradient, value = evaluate(descent.points, data)
            finite = value.isfinite() & torch.linalg.vector_norm(gradient, ord=torch.inf, dim=1).isfinite()
            moving = (diverged_at < 0) & ~resting
            diverged_at = torch.where(moving & ~finite, iteration, diverged_at)
            moving = moving & finite
            if keep == "best":
                held, held_value = _hold(moving & (value < held_value), descent.points, value, held, held_value)
            if stop_below is not None:
                now = moving & (value < stop_below)
                held, held_value = _hold(now, descent.points, value, held, held_value)
                stopped, moving = stopped | now, moving & ~now
            resting = resting | stopped | descent.tell(value, gradient, moving)
            if interlude is not None:
                moved = interlude(iteration, descent.points, trials)
                descent.points = torch.where(moving[:, None], moved, descent.points)
            tick()
            if iteration % CHECK_EVERY == CHECK_EVERY - 1 and not bool(moving.any()):
                tick(iterations - 1 - iteration)
                break
            steps.tick(state)
    final = torch.where(stopped[:, None], held, descent.accepted)
    _, value = evaluate(final, data)
    diverged_at = torch.where((diverged_at < 0) & ~value.isfinite(), iterations, diverged_at)
    if keep == "best":
        better = ~(value <= held_value)  # also where the last is NaN
        final, value = torch.where(better[:, None], held, final), torch.where(better, held_value, value)
    return Minimum(final, value, diverged_at)


def _hold(
    now: torch.Tensor, points: torch.Tensor, value: torch.Tensor, held: torch.Tensor, held_value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.where(now[:, None], points, held), torch.where(now, value, held_value)


def evaluation(cost: Cost, *, vectorised: bool) -> Evaluation:
    """Gradient and value of ``cost`` for many trials: by vmap, or of one trial alone as its only row."""
    return _compiled(cost, vectorised) if COMPILED else _eager(cost, vectorised)


def _eager(cost: Cost, vectorised: bool) -> Evaluation:
    single = torch.func.grad_and_value(cost)
    if vectorised:
        evaluate: Evaluation = torch.func.vmap(single)
        return evaluate

    def alone(points: torch.Tensor, data: TrialData) -> tuple[torch.Tensor, torch.Tensor]:
        gradient, value = single(points[0], _first_row(data))
        return gradient[None], value[None]

    return alone


@lru_cache(maxsize=1)
def _compiled(cost: Cost, vectorised: bool) -> Evaluation:
    """The same one for all chunks of an attack."""
    return _Compiled(_eager(cost, vectorised))


class _Compiled:
    """An evaluation through torch.compile: both derivatives in one graph, as one CUDA graph on a GPU.

    Where the compiler fails, it says so and goes on without.
    """

    def __init__(self, evaluate: Evaluation) -> None:
        self._plain = evaluate
        self._run: Evaluation | None = None

    def __call__(self, points: torch.Tensor, data: TrialData) -> tuple[torch.Tensor, torch.Tensor]:
        if self._run is not None:
            gradient, value = self._run(points, data)
            return gradient.clone(), value.clone()  # the next run of a CUDA graph writes where this one did
        mode = "reduce-overhead" if points.device.type == "cuda" else "default"
        compiled: Evaluation = torch.compile(self._plain, fullgraph=True, dynamic=False, mode=mode)
        try:
            gradient, value = compiled(points, data)
            self._run = compiled
        except Exception as error:  # the compiler's stages raise whatever they like
            if out_of_memory(error):
                raise
            reason = str(error).strip().split("\n")[0]
            print(f"compiling failed, going on without: {type(error).__name__}: {reason}", file=sys.stderr)
            self._run = self._plain
            gradient, value = self._run(points, data)
        return gradient.clone(), value.clone()


def _first_row(data: TrialData) -> TrialData:
    from torch.utils._pytree import tree_map

    row: TrialData = tree_map(lambda tensor: tensor[0], data)
    return row


def chunk_size(cost: Cost, points: torch.Tensor, data: TrialData) -> int:
    """Number of trials to evaluate at once, from the footprints of one and of two; one where two do not fit.

    Args:
        cost: objective of one trial.
        points: the variables of one trial, ``[1, D]``.
        data: what is known of it.
    """
    from torch.utils._pytree import tree_map

    evaluate = _eager(cost, vectorised=True)

    def computation(rows: int) -> object:
        return evaluate(*tree_map(lambda tensor: tensor.expand(rows, *tensor.shape[1:]), (points, data)))

    return rows_at_once(computation, points.device)


def rows_at_once(computation: Callable[[int], object], device: torch.device) -> int:
    """Number of rows of a vectorised computation to take at once; one where two do not fit.

    Args:
        computation: computes a number of rows.
        device: where.
    """
    try:
        per_row = bytes_per_row(computation)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return 1
    if device.type != "cpu":
        return max(1, int(GPU_PART * _free(device)) // per_row)
    return 1 if per_row > WIDE else max(1, CPU_BUDGET // per_row)


def _free(device: torch.device) -> int:
    """Free bytes of a GPU, those in torch's cache included."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached
