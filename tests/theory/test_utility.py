"""Utilities, against the loss that noisy steps take off."""

from __future__ import annotations

import torch
from tests.theory.vectors import close, normal, row

from leakbench.theory.utility import u1, u2


def test_by_hand() -> None:
    g = row(1, -2, 0.5)
    assert close(u1(g, g), 5.25)
    assert close(u1(g, row(1, 0, 0.5)), 1.25)
    assert close(u1(g, row(1, -1, 0.5)), 3.25)  # clipped at 1
    assert close(u2(g, row(2, 0.5, 4)), -5)
    assert u1(g.expand(3, 2, 3), g).shape == u2(g.expand(3, 2, 3), g.square()).shape == (3, 2)


def test_are_mean_and_variance_of_the_decrease_for_small_steps() -> None:
    """Noisy, clipped steps on a least-squares loss."""
    theta, x, variance, rate = row(1, 2), row(3, -1), row(0.4, 1.3), 1e-5

    def loss(theta: torch.Tensor) -> torch.Tensor:
        return (theta @ x - 0.5).square() / 2

    g = torch.func.grad(loss)(theta)
    mean = g.clamp(-1, 1)
    sent = mean + variance.sqrt() * normal(0, 100_000, 2)
    decrease = (loss(theta) - loss(theta - rate * sent)) / rate
    assert close(decrease.mean(), float(u1(g, mean)), rel=0.01)
    assert close(decrease.var(), -float(u2(g, variance)), rel=0.02)
