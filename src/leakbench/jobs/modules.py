"""Training of modules by torch's optimisers: the state of such training, and that of the networks of attackers."""

from __future__ import annotations

from collections.abc import Callable

from leakbench.federated.updates import Part, run_updates
from leakbench.lazy import torch
from leakbench.numerics.stateful import named, part_of
from leakbench.running.checkpoint import State, packed, unpacked

SPANS = 100
"""Number of spans of training, of equal length, whose mean losses records hold."""


class ModuleTraining:
    """The state of a module in training: parameters, buffers, the optimiser's moments, and learning rates.

    Args:
        module: the trained module.
        optimiser: of its parameters.
        schedule: of the optimiser's rate; constant by default.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimiser: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    ) -> None:
        self.module, self.optimiser, self.schedule = module, optimiser, schedule

    def state(self) -> dict[str, torch.Tensor]:
        """Tensors by name, and learning rates as bytes."""
        tensors = named("module", self.module.state_dict())
        for place, moments in self.optimiser.state_dict()["state"].items():
            tensors |= named(
                f"optimiser.{place}", {name: value for name, value in moments.items() if value is not None}
            )
        rates = [group["lr"] for group in self.optimiser.param_groups]
        return tensors | {"rates": packed([rates, self.schedule.state_dict() if self.schedule else None])}

    def restore(self, saved: State) -> None:
        """Return to a state."""
        self.module.load_state_dict(part_of(saved, "module"))
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in part_of(saved, "optimiser").items():
            place, name = key.split(".", 1)
            moments.setdefault(int(place), {})[name] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})
        rates, of_schedule = unpacked(saved["rates"])
        for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = rate
        if self.schedule is not None:
            self.schedule.load_state_dict(of_schedule)


class _Batches:
    """Batches of an order drawn anew in every epoch; the rest of an epoch that fills no batch is left out."""

    def __init__(self, samples: int, size: int, draws: torch.Generator) -> None:
        self.samples, self.size, self.draws = samples, size, draws
        self.order = torch.empty(0, dtype=torch.int64)

    def take(self) -> torch.Tensor:
        """The rows of the next batch, ``[B]``."""
        if len(self.order) < self.size:
            self.order = torch.randperm(self.samples, generator=self.draws)
        rows, self.order = self.order[: self.size], self.order[self.size :]
        return rows

    def state(self) -> dict[str, torch.Tensor]:
        """The remaining order, and the generator, which others may draw from, too."""
        return {"order": self.order, "draws": self.draws.get_state()}

    def restore(self, saved: State) -> None:
        """Return to a state."""
        self.order = saved["order"]
        self.draws.set_state(saved["draws"])


class _Losses:
    """The losses ``[k]`` of every step so far."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.values: list[torch.Tensor] = []

    def state(self) -> dict[str, torch.Tensor]:
        """All of them, ``[steps, k]``."""
        return {"values": torch.stack(self.values)}

    def restore(self, saved: State) -> None:
        """Return to a state."""
        self.values = list(saved["values"].to(self.device))


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
        name: of the loop, for checkpoints and progress.
        module: the module to train.
        optimiser: of its parameters, at the rate of the first step.
        losses: of the rows of a batch, ``[B]``: one or more losses ``[k]``, whose sum is minimised.
        samples: number of rows.
        batch_size: rows of a step; all where there are fewer.
        steps: at least one.
        draws: draws the orders, and the randomness of ``losses``.
        device: of the module and of the rows.
        clip: the largest norm of a step's gradient.

    Returns:
        The mean of every loss per span of training (None where it is not finite), and the step at which one became
        non-finite.
    """
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, eta_min=optimiser.defaults["lr"] / 10)
    batches = _Batches(samples, min(batch_size, samples), draws)
    seen = _Losses(device)

    def update(_: int) -> None:
        values = losses(batches.take().to(device))
        optimiser.zero_grad()
        values.sum().backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimiser.step()
        schedule.step()
        seen.values.append(values.detach())

    parts: dict[str, Part] = {"module": ModuleTraining(module, optimiser, schedule), "batches": batches, "losses": seen}
    with torch.enable_grad():
        run_updates(name, steps, update, parts)
    every = torch.stack(seen.values).cpu()
    broken = (~every.isfinite().all(dim=1)).nonzero().flatten().tolist()
    spans = [part.mean(dim=0) for part in every.tensor_split(min(SPANS, steps))]
    curves = [
        [float(value) if bool(value.isfinite()) else None for value in curve] for curve in zip(*spans, strict=True)
    ]
    return curves, broken[0] if broken else None
