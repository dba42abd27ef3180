"""Training of modules by torch's optimisers: what a loop saves of it."""

from __future__ import annotations

from leakbench.lazy import torch
from leakbench.numerics.stateful import named, part_of
from leakbench.running.checkpoint import State, packed, unpacked


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
