"""The mean of those who stay, and who they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.secure_training import SecureAggregation
from leakbench.randomness import Streams


def test_the_mean_of_those_who_stay() -> None:
    pytest.importorskip("cryptography")
    values = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    secure = SecureAggregation()
    mean, bits = secure.mean(values)
    assert mean.dtype == values.dtype and bits > 32 * 9
    torch.testing.assert_close(mean, values.mean(dim=0), atol=2**-16, rtol=0)
    torch.testing.assert_close(secure.mean(values, [1])[0], values[[0, 2, 3]].mean(dim=0), atol=2**-16, rtol=0)
    torch.testing.assert_close(secure.mean(values, [], [3])[0], values[:3].mean(dim=0), atol=2**-16, rtol=0)
    fine = SecureAggregation(threshold=3, width=64, fraction_bits=40).mean(values)[0]
    torch.testing.assert_close(fine, values.mean(dim=0), atol=1e-7, rtol=1e-6)
    clipped = SecureAggregation(threshold=3, clip=0.25).mean(values)[0]
    torch.testing.assert_close(clipped, values.clamp(-0.25, 0.25).mean(dim=0), atol=2**-16, rtol=0)
    with pytest.raises(Infeasible, match="1 of 4 users sent a vector; the threshold is 3"):
        secure.mean(values, [0, 1, 3])
    with pytest.raises(Infeasible, match="overflows"):
        SecureAggregation(fraction_bits=30).mean(values)


def test_clients_drop_out_independently() -> None:
    streams = Streams([("drop", client, round_) for round_ in range(100) for client in range(20)])
    dropped = SecureAggregation(threshold=2, dropout=0.3).dropped(streams)
    assert float(dropped.float().mean()) == pytest.approx(0.3, abs=4 * (0.21 / 2000) ** 0.5)
    assert torch.equal(dropped, SecureAggregation(threshold=3, dropout=0.3).dropped(streams))
    assert not bool(SecureAggregation(threshold=2).dropped(streams).any())
    more = SecureAggregation(threshold=2, dropout=0.5).dropped(streams)
    assert bool((more | ~dropped).all())


def test_they_leave_at_either_time() -> None:
    streams = Streams([("drop", client) for client in range(2000)])
    secure = SecureAggregation(dropout=0.3, early=0.2)
    early, dropped = secure.gone(streams), secure.dropped(streams)
    assert float(early.float().mean()) == pytest.approx(0.2, abs=4 * (0.16 / 2000) ** 0.5)
    assert float((early & dropped).float().mean()) == pytest.approx(0.06, abs=0.022)  # independent
    assert not bool(SecureAggregation(dropout=0.3).gone(streams).any())


def test_a_round_without_those_who_left() -> None:
    pytest.importorskip("cryptography")
    streams = Streams([("leaving", client) for client in range(20)])
    secure = SecureAggregation(dropout=0.14, early=0.1)
    left = (secure.gone(streams) | secure.dropped(streams)).unflatten(0, (2, 10))
    assert bool(secure.gone(streams).any() & secure.dropped(streams).any()) and int(left.sum(dim=1).max()) <= 4
    values = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    found = secure.updates(values, streams, torch.tensor([True, True]))
    expected = [part[~gone].mean(dim=0) for part, gone in zip(values.unflatten(0, (2, 10)), left, strict=True)]
    torch.testing.assert_close(found.values, torch.stack(expected), atol=2**-16, rtol=0)
    assert not found.failed


@pytest.mark.parametrize(
    ("parameters", "honest"),
    [
        ({}, 10),
        ({"colluders": 3}, 7),
        ({"dropout": 0.1}, 6),
        ({"early": 0.1}, 6),
        ({"dropout": 0.1, "threshold": 8, "colluders": 5}, 3),
    ],
)
def test_the_least_number_of_honest_clients(parameters: dict[str, Any], honest: int) -> None:
    assert SecureAggregation(**parameters).honest(10) == honest


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"threshold": 5}, "threshold 5 of 10 users; it is more than half of them, from 6 to 10"),
        ({"threshold": 11}, "threshold 11 of 10 users"),
        ({"colluders": 6}, "fewer than the threshold, 6 of 10"),
    ],
)
def test_thresholds_that_do_not_fit(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SecureAggregation(**parameters).honest(10)


@pytest.mark.parametrize(
    "parameters",
    [
        {"threshold": 1},
        {"threshold": 3, "colluders": 3},
        {"early": 1},
        {"threshold": 2, "width": 16},
        {"threshold": 2, "fraction_bits": 31},
        {"threshold": 2, "clip": 0},
        {"threshold": 2, "dropout": 1},
    ],
)
def test_bad_parameters(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SecureAggregation(**parameters)
