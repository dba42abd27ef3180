"""Spans of gradients: literal projections, ranks of a linear model's gradients, and what leaving a span does."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.theory.vectors import close, normal

from leakbench.errors import ConfigError
from leakbench.papers.secagg_dp.theory.gaussian_divergence import renyi_divergence
from leakbench.theory.span import (
    LEAVES,
    Reading,
    leave_one_out,
    pooled,
    rank,
    residual,
    span_residuals,
    span_summary,
)

AXES = torch.tensor([[1.0, 0], [0, 1], [0, 0]], dtype=torch.float64)


def literal(others: torch.Tensor, vector: torch.Tensor) -> float:
    """Distance from an orthonormal basis of the columns, in parts of the vector."""
    if others.shape[1] == 0:
        return 1.0
    left, values, _ = np.linalg.svd(others.numpy(), full_matrices=False)
    basis = left[:, values > 1e-10 * values[0]]
    rest = vector.numpy() - basis @ (basis.T @ vector.numpy())
    return float(np.linalg.norm(rest) / np.linalg.norm(vector.numpy()))


def literal_readings(gradients: torch.Tensor, reading: Reading) -> torch.Tensor:
    users, _, records = gradients.shape
    found = torch.zeros(users, records, dtype=torch.float64)
    for user in range(users):
        for record in range(records):
            kept = [
                gradients[u, :, r]
                for u in range(users)
                for r in range(records)
                if (u != user if reading == "other_users" else (u, r) != (user, record))
                and (u == user or reading != "per_user")
            ]
            others = torch.stack(kept, dim=1) if kept else gradients.new_zeros(gradients.shape[1], 0)
            found[user, record] = literal(others, gradients[user, :, record])
    return found


def test_printed_vector() -> None:
    vectors = torch.tensor([[1.0, 1], [1, 1], [0, 1]], dtype=torch.float64)
    assert close(residual(AXES, vectors), 0, 0.57735027, rel=1e-8)
    for vector, expected in zip(vectors.T, (0, 0.57735027), strict=True):
        assert close(leave_one_out(torch.column_stack([AXES, vector]))[2], expected, rel=1e-8)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 3), st.integers(1, 4), st.integers(1, 14), st.integers(1, 14), st.integers(0, 2**31),
    st.sampled_from(["pooled", "per_user", "other_users"]), st.booleans(),
)  # fmt: skip
def test_readings(users: int, records: int, size: int, inner: int, seed: int, reading: Reading, scaled: bool) -> None:
    """Gradients in a random subspace, of sizes that differ by orders of magnitude."""
    gradients = normal(seed, size, inner) @ normal(seed + 1, users, inner, records)
    if scaled:
        gradients = gradients * 10 ** (2 * normal(seed + 2, users, 1, records)).clamp(-4, 4)
    found, expected = span_residuals(gradients, reading), literal_readings(gradients, reading)
    unclear = (expected > 1e-8) & (expected < 1e-4)
    assert ((found > LEAVES) == (expected > LEAVES))[~unclear].all()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


def test_repeated_and_zero_records() -> None:
    gradients = normal(0, 1, 9, 4)
    gradients[..., 3] = -3 * gradients[..., 0]
    gradients[..., 2] = 0
    found = span_residuals(gradients, "per_user")[0]
    assert close(found[[0, 2, 3]], 0, 0, 0) and float(found[1]) > 0.5
    assert int(rank(gradients)) == 2
    assert int(rank(torch.zeros(3, 2))) == 0 and close(leave_one_out(torch.zeros(3, 2)), 0, 0)
    assert close(residual(torch.zeros(3, 1), torch.ones(3, 1)), 1)


def test_more_coordinates_than_records() -> None:
    """Independent gradients: every record leaves, so noiseless sums are never private (the usual case of a network)."""
    summary = span_summary(normal(1, 3, 40, 5).float())
    assert summary.ranks.tolist() == [5, 5, 5] and summary.pooled_rank == 15
    assert close(summary.leaving, 1, 1, 1) and summary.pooled_leaving == summary.alone == 1


def test_fewer_coordinates_than_records() -> None:
    """Per user some leave and in all none does; a direction that one user alone has."""
    gradients = normal(2, 3, 6, 5)
    gradients[:2, 5] = 0
    summary = span_summary(gradients)
    assert summary.pooled_rank == 6 and summary.ranks.tolist() == [5, 5, 5]
    assert close(summary.leaving, 1, 1, 1) and summary.pooled_leaving == 0 and summary.alone == pytest.approx(1 / 3)


def test_linear_softmax() -> None:
    """Rank of all gradients of a linear classifier: (classes - 1) (pixels that vary + 1), whatever the records."""
    records, pixels, classes = 500, 20, 4
    inputs = normal(3, records, pixels + 1).sigmoid()
    inputs[:, :6] = 0
    inputs[:, -1] = 1
    errors = normal(4, records, classes).softmax(dim=1)
    errors[torch.arange(records), torch.arange(records) % classes] -= 1
    gradients = (errors.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1).mT
    assert int(rank(gradients)) == 3 * 15 < gradients.shape[0]
    torch.testing.assert_close(gradients.mT @ gradients, (errors @ errors.mT) * (inputs @ inputs.mT))
    assert (leave_one_out(gradients) < LEAVES).all()


def test_leaving_is_infinite_divergence() -> None:
    """Gaussian weights and no noise: the divergence to records where it is replaced is infinite exactly then."""
    gradients = normal(5, 3, 7, 2)
    gradients[0, :, 0] = gradients[1].sum(dim=-1)
    found = span_residuals(gradients)
    leaves = (found > LEAVES)[0]
    assert leaves.tolist() == [False, True]
    everything = pooled(gradients)
    for record in range(2):
        replaced = everything.clone()
        replaced[:, record] = 0
        pair = [(m.sum(dim=-1) / 2, m @ m.mT / 2) for m in (everything, replaced)]
        for order in (1.001, 1.2):
            divergence = float(renyi_divergence(*pair[1], *pair[0], order))
            assert math.isinf(divergence) == bool(leaves[record])


def test_replaced_gradients_in_the_theorem_s_words() -> None:
    """A replaced gradient may leave the span of all records, also where no record leaves that of the others."""
    gradients = normal(6, 2, 5, 4)
    gradients[:, 4] = 0
    inside, outside = normal(7, 5, 3), normal(8, 5, 3)
    inside[4] = 0
    assert (span_residuals(gradients) < LEAVES).all()
    assert (residual(pooled(gradients), inside) < LEAVES).all()
    assert (residual(pooled(gradients), outside) > 1e-3).all()


def test_errors() -> None:
    for call in (rank, leave_one_out, span_residuals, span_summary):
        with pytest.raises(ConfigError, match="finite"):
            call(torch.full((2, 3, 2), math.nan))
    for one in (lambda: span_residuals(AXES.unsqueeze(0), "other_users"), lambda: span_summary(AXES.unsqueeze(0))):
        with pytest.raises(ConfigError, match="2 users at least, found 1"):
            one()
