"""Partitions of images over clients: at random, or skewed towards some of the labels."""

from __future__ import annotations

from leakbench.errors import ConfigError
from leakbench.lazy import np, torch


def iid_partition(count: int, clients: int, size: int, seed: int) -> torch.Tensor:
    """Disjoint clients of equal size, at random: rows ``[clients, size]`` of ``count`` images.

    Raises:
        ConfigError: there are too few images.
    """
    _check(count, clients, size)
    order = np.random.default_rng(seed).permutation(count)[: clients * size]
    return torch.from_numpy(order.reshape(clients, size))


def dirichlet_partition(labels: torch.Tensor, clients: int, size: int, alpha: float, seed: int) -> torch.Tensor:
    """Disjoint clients of equal size, with label proportions that differ.

    Each client draws its proportions from a symmetric Dirichlet law, as Hsu et al. (2019), "Measuring the Effects of
    Non-Identical Data Distribution for Federated Visual Classification", do: ``alpha`` to infinity gives all clients
    the same mix of labels, ``alpha`` to zero a single label to each. Client after client then takes images of every
    class from those that are left. Where a class has run out, its share goes to the client's other classes in
    proportion, and where all of them have, to the remaining classes: late clients of a data set that is used up follow
    their proportions less. Within a class, images are drawn at random.

    Args:
        labels: of all images, int64 ``[N]``.
        clients: their number.
        size: images per client.
        alpha: concentration.
        seed: of the random numbers.

    Returns:
        Rows of the images, int64 ``[clients, size]``.

    Raises:
        ConfigError: there are too few images.
    """
    _check(len(labels), clients, size)
    draw, classes = np.random.default_rng(seed), int(labels.max()) + 1
    proportions = draw.dirichlet(np.full(classes, alpha), clients)
    shuffled = draw.permutation(len(labels))
    pools = [shuffled[labels.numpy()[shuffled] == label] for label in range(classes)]
    left = np.array([len(pool) for pool in pools])
    rows = []
    for wanted in proportions:
        taken = _filled(wanted, left, size)
        parts = [pool[n - k : n] for pool, n, k in zip(pools, left.tolist(), taken.tolist(), strict=True)]
        rows.append(draw.permutation(np.concatenate(parts)))
        left = left - taken
    return torch.from_numpy(np.stack(rows))


def _check(count: int, clients: int, size: int) -> None:
    if clients * size > count:
        raise ConfigError(f"{clients} clients of {size} images each need {clients * size} images; there are {count}")


def _filled(proportions: np.ndarray, left: np.ndarray, size: int) -> np.ndarray:
    """Number of images to take of each class, ``size`` in all: in proportion, as far as they go."""
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        weights = np.where(taken < left, proportions, 0.0)
        if not weights.sum() > 0:
            weights = (left - taken).astype(float)
        taken = np.minimum(taken + _rounded(missing * weights / weights.sum(), missing), left)
    return taken


def _rounded(shares: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers of the given sum next to ``shares``: those with the largest remainders are rounded up."""
    whole: np.ndarray = np.floor(shares).astype(np.int64)
    up = np.argsort(whole - shares, kind="stable")[: total - int(whole.sum())]
    whole[up] += 1
    return whole
