"""What travels, what it costs, and what the server decodes."""

from __future__ import annotations

import pytest
import torch

from leakbench.federated.message import DenseMessage, Law, Received, SparseMessage


def kept(d: int, *counts: int) -> torch.Tensor:
    return torch.stack([torch.arange(d) < count for count in counts])


def test_dense() -> None:
    values = torch.randn(3, 7)
    message = DenseMessage(values)
    assert message.bits == 32 * 7
    assert message.view() is values
    assert message.law is None and message.noise_variance is None


@pytest.mark.parametrize(
    ("d", "count", "bits"),
    [
        (1024, 1024, 32 * 1024 + 1024),  # a bitmap, one bit per coordinate
        (1024, 103, 32 * 103 + 1024),
        (1024, 102, 32 * 102 + 102 * 10),  # ten bits per index are shorter from here on
        (1024, 1, 32 + 10),
        (1024, 0, 0),
        (1025, 50, 32 * 50 + 50 * 11),  # one more coordinate needs one more bit
        (1, 1, 33),
    ],
)
def test_sparse_positions_travel_as_a_bitmap_or_as_indices(d: int, count: int, bits: int) -> None:
    assert SparseMessage(torch.ones(1, d), kept(d, count)).bits == bits


def test_size_is_that_of_the_largest_client() -> None:
    assert SparseMessage(torch.ones(3, 64), kept(64, 2, 5, 0)).bits == 32 * 5 + 5 * 6


def test_what_was_not_kept_decodes_as_zero_whatever_it_was() -> None:
    values = torch.tensor([[1.0, torch.nan, torch.inf], [4.0, 5.0, 6.0]])
    mask = torch.tensor([[True, False, False], [False, True, True]])
    assert SparseMessage(values, mask).view().tolist() == [[1, 0, 0], [0, 5, 6]]


def test_noise_is_known_from_the_law() -> None:
    values, passing = torch.randn(2, 3), torch.ones(2, 3, dtype=torch.bool)
    variance = torch.rand(2, 3)
    assert DenseMessage(values, law=Law(values, passing, variance)).noise_variance is variance
    assert DenseMessage(values, law=Law(values, passing)).noise_variance is None


def test_what_was_pruned_has_mean_zero_and_does_not_pass() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0]])
    mask = torch.tensor([[True, False, True]])
    law = SparseMessage(values, mask).law
    assert law.mean.tolist() == [[1, 0, 3]] and law.passing is mask and law.variance is None


def test_what_depends_on_messages_alone_is_computed_once() -> None:
    received, made = Received(torch.ones(2, 3)), 0

    def sums() -> torch.Tensor:
        nonlocal made
        made += 1
        return received.values.sum(dim=1)

    found = [received.once(key, sums).tolist() for key in ("sums", "sums", ("sums", 2))]
    assert made == 2 and found == [[3.0, 3.0]] * 3
    assert Received(received.values).once("sums", lambda: 7) == 7
