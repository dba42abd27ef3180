"""Training of modules by torch's optimisers: what a loop saves of it, and the loop of what attackers train."""

from __future__ import annotations

from collections.abc import Callable

from leakbench.lazy import torch
from leakbench.numerics.stateful import named, part_of
from leakbench.running.checkpoint import State, loop, packed, unpacked

SPANS = 100
"""Training is described by the mean losses of so many spans of equal length."""


def module_state(
    module: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> dict[str, torch.Tensor]:
    """Parameters, buffers, the optimiser's moments, and learning rates, by name."""
    found = named("module", module.state_dict())
    for place, moments in optimiser.state_dict()["state"].items():
        found |= named(f"optimiser.{place}", {name: value for name, value in moments.items() if value is not None})
    rates = [group["lr"] for group in optimiser.param_groups]
    return found | {"rates": packed([rates, schedule.state_dict() if schedule else None])}


def restore_module(
    module: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    saved: State,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> None:
    """Be as :func:`module_state` found them; nothing happens where nothing was saved."""
    if not saved:
        return
    module.load_state_dict(part_of(saved, "module"))
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in part_of(saved, "optimiser").items():
        place, name = key.split(".", 1)
        moments.setdefault(int(place), {})[name] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    rates, of_schedule = unpacked(saved["rates"])
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate
    if schedule is not None:
        schedule.load_state_dict(of_schedule)


def train(
    name: str,
    module: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    losses: Callable[[torch.Tensor], torch.Tensor],
    *,
    samples: int,
    batch_size: int,
    steps: int,
    draws: torch.Generator,
    device: torch.device,
    clip: float | None = None,
) -> tuple[list[list[float | None]], int | None]:
    """Train a module in place, on batches of an order drawn anew in every epoch.

    The optimiser's rate falls to a tenth along a cosine.

    Args:
        name: of the loop, as its checkpoints and its progress show it.
        module: what is trained.
        optimiser: of its parameters, at the rate of the first step.
        losses: of the rows of a batch, ``[B]``: one or more losses ``[k]``, whose sum is minimised.
        samples: how many rows there are.
        batch_size: rows of a step; all where there are fewer.
        steps: at least one.
        draws: draws the orders, and what ``losses`` takes from it.
        device: of the module and of the rows.
        clip: the largest norm of a step's gradient.

    Returns:
        The mean of every loss per span of training (None where it is not finite), and the step at which one became
        non-finite.
    """
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, eta_min=optimiser.defaults["lr"] / 10)
    size = min(batch_size, samples)
    order = torch.empty(0, dtype=torch.int64)
    seen: list[torch.Tensor] = []

    def state() -> dict[str, torch.Tensor]:
        own = {"order": order, "seen": torch.stack(seen), "draws": draws.get_state()}
        return module_state(module, optimiser, schedule) | own

    with torch.enable_grad(), loop(name, steps) as todo:
        restore_module(module, optimiser, todo.saved, schedule)
        if todo.saved:
            order, seen = todo.saved["order"], list(todo.saved["seen"].to(device))
            draws.set_state(todo.saved["draws"])
        for _ in todo.steps:
            if len(order) < size:  # the rest of an epoch that fills no batch is left out
                order = torch.randperm(samples, generator=draws)
            rows, order = order[:size].to(device), order[size:]
            found = losses(rows)
            optimiser.zero_grad()
            found.sum().backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimiser.step()
            schedule.step()
            seen.append(found.detach())
            todo.tick(state)
    every = torch.stack(seen).cpu()
    broken = (~every.isfinite().all(dim=1)).nonzero().flatten().tolist()
    spans = [part.mean(dim=0) for part in every.tensor_split(min(SPANS, steps))]
    curves = [
        [float(value) if bool(value.isfinite()) else None for value in curve] for curve in zip(*spans, strict=True)
    ]
    return curves, broken[0] if broken else None
