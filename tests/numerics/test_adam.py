"""Adam on a stack of problems, against torch's."""

from __future__ import annotations

import pytest
import torch

from leakbench.numerics.adam import Adam
from leakbench.randomness import generator


@pytest.mark.parametrize("rate", [1e-3, 0.2])
def test_equals_torch(rate: float) -> None:
    draw = generator("adam")
    start, matrix = torch.randn(3, 7, generator=draw).double(), torch.randn(7, 7, generator=draw).double()
    theirs = [row.clone().requires_grad_() for row in start]
    optimisers = [torch.optim.Adam([row], lr=rate) for row in theirs]
    ours, adam = start.clone(), Adam(start)
    for step in range(50):
        for row, optimiser in zip(theirs, optimisers, strict=True):
            row.grad = (row.detach() @ matrix).sin() * 10.0 ** (step % 5 - 3)
            optimiser.step()
        ours = ours - rate * adam.direction((ours @ matrix).sin() * 10.0 ** (step % 5 - 3))
    torch.testing.assert_close(ours, torch.stack([row.detach() for row in theirs]), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(ours, start, atol=5 * rate)


def test_rows_do_not_mix() -> None:
    draw = generator("adam rows")
    gradients = torch.randn(5, 2, 9, generator=draw)
    broken = gradients.clone()
    broken[2, 0, 3] = torch.nan
    one, other = Adam(gradients[0]), Adam(gradients[0])
    for gradient, spoilt in zip(gradients, broken, strict=True):
        torch.testing.assert_close(other.direction(spoilt)[1], one.direction(gradient)[1], rtol=0, atol=0)


def test_the_first_step_is_the_sign() -> None:
    gradient = torch.tensor([3.0, -1e-3, 0.0])
    torch.testing.assert_close(Adam(gradient).direction(gradient), torch.tensor([1.0, -1.0, 0.0]), rtol=1e-4, atol=0)


def test_the_gradient_is_left_as_it_was() -> None:
    gradient = torch.tensor([3.0, -1.0])
    adam = Adam(gradient)
    first = adam.direction(gradient)
    kept = first.clone()
    adam.direction(-gradient)
    assert gradient.tolist() == [3, -1] and torch.equal(first, kept)
