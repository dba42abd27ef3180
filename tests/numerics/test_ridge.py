"""Ridge regression beside scikit-learn's, and its leave-one-out errors beside fits that leave samples out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from leakbench.numerics.ridge import ridge
from leakbench.randomness import generator


def problem(samples: int, features: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Features, three targets, two queries and weights, in float64."""
    draws = generator("ridge", seed)
    x = torch.randn(samples, features, generator=draws, dtype=torch.float64) + 3
    y = x[:, :3] ** 2 + torch.randn(samples, 3, generator=draws, dtype=torch.float64)
    queries = torch.randn(2, features, generator=draws, dtype=torch.float64) + 3
    weights = 0.5 + 4 * torch.rand(samples, generator=draws, dtype=torch.float64)
    return x, y, queries, weights


def unit(x: torch.Tensor, weights: torch.Tensor) -> float:
    """The mean eigenvalue of the weighted, centred Gram matrix."""
    centred = x - (weights / weights.sum()) @ x
    return float((weights[:, None] * centred.square()).sum() / len(x))


def everyone(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(x), dtype=torch.bool)


@settings(max_examples=20, deadline=None)
@given(samples=st.integers(2, 12), features=st.integers(3, 20), strength=st.sampled_from([1e-3, 0.1, 10.0]))
def test_is_that_of_scikit_learn(samples: int, features: int, strength: float) -> None:
    x, y, queries, weights = problem(samples, features)
    ours = ridge(x, y, queries, weights, everyone(x), [strength])
    penalty = strength * unit(x, weights)
    theirs = Ridge(alpha=penalty, solver="svd").fit(x.numpy(), y.numpy(), sample_weight=weights.numpy())
    np.testing.assert_allclose(ours.values.numpy(), theirs.predict(queries.numpy()), rtol=1e-6, atol=1e-6)


def test_is_kernel_ridge_of_centred_data() -> None:
    x, y, queries, weights = problem(9, 30)
    equal = torch.ones_like(weights)
    ours = ridge(x, y, queries, equal, everyone(x), [0.2])
    centre, level = x.mean(dim=0), y.mean(dim=0)
    theirs = KernelRidge(alpha=0.2 * unit(x, equal)).fit((x - centre).numpy(), (y - level).numpy())
    np.testing.assert_allclose(ours.values.numpy(), theirs.predict((queries - centre).numpy()) + level.numpy())


@pytest.mark.parametrize("features", [4, 30])
@pytest.mark.parametrize("strength", [1e-3, 0.3])
@pytest.mark.parametrize("moved", [False, True])
def test_errors_are_those_of_leaving_each_sample_out(features: int, strength: float, moved: bool) -> None:
    x, y, queries, weights = problem(11, features)
    penalty = strength * unit(x, weights)
    judged = torch.arange(11) % 3 != 0
    asked = x + torch.randn(x.shape, generator=generator("asked"), dtype=x.dtype) if moved else x
    errors = []
    for row in judged.nonzero().flatten().tolist():
        rest = torch.arange(11) != row
        fitted = Ridge(alpha=penalty, solver="svd").fit(
            x[rest].numpy(), y[rest].numpy(), sample_weight=weights[rest].numpy()
        )
        errors.append(np.square(fitted.predict(asked[row : row + 1].numpy()) - y[row].numpy()).mean())
    found = ridge(x, y, queries, weights, judged, [strength], asked[judged] if moved else None)
    assert found.error == pytest.approx(np.mean(errors), rel=1e-6)


@pytest.mark.parametrize("strength", [1e-6, 1e-4])
def test_errors_of_small_strengths_survive_float32(strength: float) -> None:
    x, y, queries, weights = (values.float() for values in problem(60, 5000))
    exact = ridge(x.double(), y.double(), queries.double(), weights.double(), everyone(x), [strength])
    found = ridge(x, y, queries, weights, everyone(x), [strength])
    assert found.error == pytest.approx(exact.error, rel=1e-3)
    torch.testing.assert_close(found.values, exact.values, rtol=1e-3, atol=1e-3)


def test_takes_the_strength_of_the_least_error() -> None:
    x, y, queries, weights = problem(20, 40)
    strengths = [1e-4, 1e-2, 1.0, 100.0]
    each = [ridge(x, y, queries, weights, everyone(x), [strength]) for strength in strengths]
    best = min(each, key=lambda one: one.error)
    found = ridge(x, y, queries, weights, everyone(x), strengths)
    assert (found.strength, found.error) == (best.strength, best.error)
    assert torch.equal(found.values, best.values) and len({one.error for one in each}) == 4


def test_features_that_say_nothing_predict_the_weighted_mean() -> None:
    x, y, queries, weights = problem(6, 5)
    found = ridge(torch.ones_like(x), y, queries, weights, everyone(x), [1e-6, 1.0])
    torch.testing.assert_close(found.values, ((weights / weights.sum()) @ y).expand(2, 3))
    assert np.isfinite(found.error)
