"""The mean of those who stay, and who they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from leakbench.errors import Infeasible
from leakbench.federated.secure_training import SecureAggregation
from leakbench.randomness import Streams


def test_the_mean_of_those_who_stay() -> None:
    pytest.importorskip("cryptography")
    values = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    secure = SecureAggregation(threshold=2)
    mean, bits = secure.mean(values)
    assert mean.dtype == values.dtype and bits > 32 * 9
    torch.testing.assert_close(mean, values.mean(dim=0), atol=2**-16, rtol=0)
    torch.testing.assert_close(secure.mean(values, [1, 3])[0], values[[0, 2]].mean(dim=0), atol=2**-16, rtol=0)
    fine = SecureAggregation(threshold=2, width=64, fraction_bits=40).mean(values)[0]
    torch.testing.assert_close(fine, values.mean(dim=0), atol=1e-7, rtol=1e-6)
    clipped = SecureAggregation(threshold=2, clip=0.25).mean(values)[0]
    torch.testing.assert_close(clipped, values.clamp(-0.25, 0.25).mean(dim=0), atol=2**-16, rtol=0)
    with pytest.raises(Infeasible, match="1 of 4 users sent a vector; the threshold is 2"):
        secure.mean(values, [0, 1, 3])
    with pytest.raises(Infeasible, match="overflows"):
        SecureAggregation(threshold=2, fraction_bits=30).mean(values)


def test_clients_drop_out_independently() -> None:
    streams = Streams([("drop", client, round_) for round_ in range(100) for client in range(20)])
    dropped = SecureAggregation(threshold=2, dropout=0.3).dropped(streams)
    assert float(dropped.float().mean()) == pytest.approx(0.3, abs=4 * (0.21 / 2000) ** 0.5)
    assert torch.equal(dropped, SecureAggregation(threshold=3, dropout=0.3).dropped(streams))
    assert not bool(SecureAggregation(threshold=2).dropped(streams).any())
    more = SecureAggregation(threshold=2, dropout=0.5).dropped(streams)
    assert bool((more | ~dropped).all())


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"threshold": 1},
        {"threshold": 2, "width": 16},
        {"threshold": 2, "fraction_bits": 31},
        {"threshold": 2, "clip": 0},
        {"threshold": 2, "dropout": 1},
    ],
)
def test_bad_parameters(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SecureAggregation(**parameters)
