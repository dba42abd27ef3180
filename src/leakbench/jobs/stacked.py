"""Seeds side by side: their models are those of different clients, so that one search attacks all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leakbench.attacks.base import KNOWN_OF_ROWS, SEEN_OF_ROWS, Knowledge, Observations, OfRound, Words
from leakbench.attacks.rows import joined
from leakbench.lazy import torch

MOST = {"cpu": 2**18, "cuda": 2**24}
"""Per kind of device, clients of one seed times parameters up to which seeds are attacked together. With more, the
observations of one seed keep the device busy, and convolutions with a model per row take longer than those with one:
``benchmarks/stacked_seeds.py``."""


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
    parts = {name: joined([getattr(one, name) for one in observations]) for name in SEEN_OF_ROWS}
    parameters = torch.cat([one.parameters.expand(len(one), -1) for one in observations])
    later = tuple(map(side_by_side, zip(*(one.later for one in observations), strict=True)))
    return replace(observations[0], parameters=parameters, later=later, **parts)


def joint_knowledge(knowledge: Sequence[Knowledge]) -> Knowledge:
    """Knowledge of observations that are put side by side; what is not about one of them is taken of the first."""
    rounds = zip(*(one.of_later or () for one in knowledge), strict=True)
    later = tuple(OfRound(*map(joined, zip(*each, strict=True))) for each in rounds)
    of_rows = {name: joined([getattr(one, name) for one in knowledge]) for name in KNOWN_OF_ROWS}
    words = [one.words for one in knowledge if one.words is not None]
    return replace(knowledge[0], **of_rows, words=Words.side_by_side(words) if words else None, of_later=later or None)
