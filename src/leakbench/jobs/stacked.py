"""Seeds side by side: their models are those of different clients, so that one search attacks all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from leakbench.attacks.base import Knowledge, Observations
from leakbench.lazy import torch
from leakbench.randomness import Streams

MOST = {"cpu": 2**18, "cuda": 2**24}
"""Per kind of device, clients of one seed times parameters up to which seeds are attacked together. With more, the
observations of one seed keep the device busy, and convolutions with a model per row take longer than those with one:
``benchmarks/stacked_seeds.py``."""

_OF_ROWS = ("labels", "noise_variance", "batch_statistics", "data_noise", "inputs", "mechanism")
"""Knowledge about each observation; the rest is the same for all."""


def worthwhile(clients: int, dimension: int, device: torch.device) -> bool:
    """Whether several seeds with so many clients each are attacked faster together than one by one.

    Neither the number of seeds nor that of the defense's settings counts: a job's numbers are those of its parts.
    """
    return clients * dimension <= MOST.get(device.type, MOST["cuda"])


def side_by_side(observations: Sequence[Observations]) -> Observations:
    """Observations of several models of one architecture as those of clients that hold a model each.

    Raises:
        ValueError: they hold what attacks add (weights, simulations, starts).
    """
    if any(each is not None for one in observations for each in (one.weights, one.send, one.score, one.start)):
        raise ValueError("observations are put side by side before an attack changes them")
    parameters = [one.parameters.expand(len(one), -1) for one in observations]
    keys = [key for one in observations if one.public is not None for key in one.public.keys]
    return replace(
        observations[0],
        parameters=torch.cat(parameters),
        gradients=torch.cat([one.gradients for one in observations]),
        marked=_joined([one.marked for one in observations]),
        coded=_joined([one.coded for one in observations]),
        gain=_joined([one.gain for one in observations]),
        step=_joined([one.step for one in observations]),
        beyond=_joined([one.beyond for one in observations]),
        repeats=_joined([one.repeats for one in observations]),
        public=Streams(keys) if keys else None,
    )


def joint_knowledge(knowledge: Sequence[Knowledge]) -> Knowledge:
    """Knowledge of observations that are put side by side; what is not about one of them is taken of the first."""
    return replace(knowledge[0], **{name: _joined([getattr(one, name) for one in knowledge]) for name in _OF_ROWS})


def _joined(parts: Sequence[Any]) -> Any:
    """Tensors, or dictionaries, tuples and lists of them, one after the other; None where all are."""
    first = parts[0]
    if all(part is None for part in parts):
        return None
    if isinstance(first, torch.Tensor):
        return torch.cat(list(parts))
    if isinstance(first, dict):
        return {name: torch.cat([part[name] for part in parts]) for name in first}
    if isinstance(first, list):
        return [each for part in parts for each in part]
    return type(first)(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
