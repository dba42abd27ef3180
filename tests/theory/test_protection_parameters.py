"""Optimal parameters: printed numbers, round trips through total variation, limits and words."""

from __future__ import annotations

import math
from typing import Any, cast, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.theory.vectors import close, normal, row

from leakbench.errors import ConfigError, Infeasible
from leakbench.theory.distortion import (
    binned,
    compression_tv,
    equal_noise_tv,
    exact_sharing_tv,
    noise_steepness,
    noise_tv,
    noise_tv_lower,
    paillier_tv,
    rescaled_compression_tv,
    sharing_tv,
)
from leakbench.theory.leakage_surrogate import Form
from leakbench.theory.protection_parameters import (
    Mechanism,
    UploadLaw,
    bounds_at_optimum,
    certified,
    common_exact_mask,
    common_log_modulus,
    common_mask,
    common_noise_variance,
    dropped_coordinates,
    exact_noise_variance,
    least_parameter,
    log_widening,
    optimal_kept,
    optimal_log_modulus,
    optimal_mask,
    optimal_noise_variance,
    optimum,
    required_tv,
    utility_tv_limit,
)

MECHANISMS = get_args(Mechanism)

TABLE: dict[tuple[float, float, float, int, float], dict[tuple[str, str], tuple[float, float]]] = {
    # C1, C2, epsilon, m, delta -> mechanism, form -> parameter, metric
    (0.6, 4.0, 0.5, 50, 0.25): {
        ("paillier", "as_printed"): (0.7195394696, -2.1),
        ("paillier", "corrected"): (0.7084683651, 0.5),
        ("secret_sharing", "as_printed"): (0.2588685241, -2.1),
        ("secret_sharing", "corrected"): (0.2509637122, 0.5),
        ("compression", "as_printed"): (0.9961599541, 0.5),
    },
    (0.6, 1.25, 0.2, 10, 0.5): {
        ("paillier", "as_printed"): (1.011219651, 0.95),
        ("paillier", "corrected"): (1.0837983867, 0.2),
        ("secret_sharing", "as_printed"): (0.5112825913, 0.95),
        ("secret_sharing", "corrected"): (0.5873094715, 0.2),
        ("compression", "corrected"): (0.8513399225, 0.2),
    },
}


@pytest.mark.parametrize("case", TABLE)
def test_table_1(case: tuple[float, float, float, int, float]) -> None:
    c1, c2, epsilon, size, delta = case
    for (mechanism, form), (parameter, metric) in TABLE[case].items():
        found = optimum(cast(Mechanism, mechanism), c1, c2, epsilon, UploadLaw(size, delta), cast(Form, form))
        assert found.status == "ok" and found.usable() == found.parameter
        assert math.isclose(found.parameter, parameter, rel_tol=1e-9)
        assert math.isclose(found.metric, metric, rel_tol=1e-9)
        assert found.meets == (metric <= epsilon)
        assert not found.branch_ok_paper and not found.branch_ok_valid


def test_noise() -> None:
    assert close(required_tv(0.6, 200, 0.5), 0.0035)
    setting = UploadLaw(steepness=728.86898686)
    found = optimum("randomization", 0.6, 200, 0.5, setting)
    assert found.status == "ok" and found.meets
    assert math.isclose(found.parameter, 4.801960384e-4, rel_tol=1e-8) and math.isclose(found.metric, 0.5)
    assert bounds_at_optimum("randomization", found.tau, setting) == pytest.approx((0.525, 0.525))
    limited = optimum("randomization", 0.6, 200, 0.5, setting, utility_budget=0.3)
    assert limited.status == "infeasible" and "phi = 0.3" in limited.reason and math.isnan(limited.parameter)
    limit = utility_tv_limit("randomization", 0.3)
    assert math.isclose(float(optimal_noise_variance(limit, 728.86898686)), 2.743977362e-4, rel_tol=1e-8)
    assert optimum("randomization", 0.6, 200, 0.5, setting, utility_budget=0.5251).status == "ok"
    small = optimum("randomization", 0.6, 1.25, 0.2, setting)
    assert small.status == "infeasible" and "2 C1 - C2 / 100" in small.reason and small.usable.__doc__
    with pytest.raises(Infeasible, match=r"randomization: .* is 0\.01 at most and 0\.8 is required"):
        small.usable()
    assert math.isclose(0.6 * 2 - 1.25 * float(noise_tv_lower(1e9, 1.0)), 1.1875)


def test_large_models() -> None:
    assert math.isclose(math.expm1(float(log_widening(0.9, 10**5))), 2.302611603e-5, rel_tol=1e-9)
    assert close(dropped_coordinates(row(0.9, 0.175), 10**5), 2.3025585838, 0.1923717076, rel=1e-9)
    assert close(dropped_coordinates(0.9, 10**5, "rescaled"), 2.3025585838 / 2, rel=1e-4)


levels = st.floats(1e-6, 1 - 1e-6)
sizes = st.integers(1, 10**6)
widths = st.floats(1e-3, 10)


@settings(deadline=None)
@given(levels, sizes, widths)
def test_round_trips(tau: float, size: int, delta: float) -> None:
    """The corrected optimum reaches tau; the printed one 1 - tau."""
    for form, reached in (("corrected", tau), ("as_printed", 1 - tau)):
        n = optimal_log_modulus(tau, delta, size, cast(Form, form))
        r = optimal_mask(tau, delta, size, cast(Form, form))
        # coordinates amplify the rounding of a parameter
        assert float(paillier_tv(n, delta, size)) == pytest.approx(reached, abs=1e-15 * size * 10 + 1e-12)
        assert float(sharing_tv(r, delta, size)) == pytest.approx(reached, abs=1e-15 * size * 10 + 1e-12)
    exact = optimal_mask(tau, delta, size, "exact")
    assert float(exact_sharing_tv(exact, delta, size)) == pytest.approx(tau, rel=1e-8)
    assert exact <= optimal_mask(tau, delta, size) * (1 + 1e-12)
    rho = optimal_kept(tau, size)
    assert float(compression_tv(rho, size)) == pytest.approx(tau, abs=1e-15 * size * 10 + 1e-12)
    rescaled = optimal_kept(tau, size, "rescaled")
    assert float(rescaled_compression_tv(rescaled, delta, size)) == pytest.approx(tau, abs=1e-15 * size * 10 + 1e-12)


def test_out_of_range() -> None:
    tau = row(-0.1, 0.0, 1.0, 1.1)
    assert bool(optimal_log_modulus(tau, 0.1, 3).isnan().all()) and bool(optimal_mask(tau, 0.1, 3).isnan().all())
    kept = optimal_kept(tau, 3)
    assert kept[:3].tolist() == [1, 1, 0] and bool(kept[3].isnan())
    assert bool(optimal_noise_variance(row(0, 0.0101), 1.0).isnan().all())
    assert close(optimal_noise_variance(0.01, 4.0), 0.25)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(MECHANISMS), st.floats(0, 0.8), st.floats(0.01, 1e4), st.floats(0, 2), sizes)
def test_statuses(mechanism: Mechanism, c1: float, c2: float, epsilon: float, size: int) -> None:
    """The corrected optimum meets the budget, one of 0.1 % less does not, and a status says why there is none."""
    tau = (2 * c1 - epsilon) / c2
    found = optimum(mechanism, c1, c2, epsilon, UploadLaw(size, 0.3, 5.0))
    most = {"randomization": 0.01, "compression": 1.0}.get(mechanism, 1.0)
    if tau <= 0:
        assert found.status == "no protection needed" and found.metric == 2 * c1 and found.meets
    elif tau > most or (tau == most and mechanism in ("paillier", "secret_sharing")):
        assert found.status == "infeasible" and "required" in found.reason and math.isnan(found.metric)
        assert not found.meets
    else:
        assert found.status == "ok" and found.meets
        assert found.metric == pytest.approx(epsilon, abs=1e-9 * max(1, c2))
        assert 2 * c1 - c2 * 0.999 * found.variation > epsilon
    assert found.branch_ok_paper == (epsilon >= c1) and found.branch_ok_valid == (epsilon >= 1.5 * c1)


def test_printed_is_undefined() -> None:
    pair: tuple[Mechanism, ...] = ("paillier", "secret_sharing")
    for mechanism in pair:
        for epsilon in (1.2, 1.3):
            found = optimum(mechanism, 0.6, 4.0, epsilon, UploadLaw(5, 0.1), "as_printed")
            assert found.status == "undefined" and "root" in found.reason and not found.meets
        assert optimum(mechanism, 0.6, 1.2, 0.0, UploadLaw(5, 0.1), "as_printed").status == "infeasible"
    assert optimum("compression", 0.6, 1.2, 0.0, UploadLaw(5)).parameter == 0.0
    assert optimum("compression", 0.6, 1.0, 0.0, UploadLaw(5)).status == "infeasible"
    huge = optimum("paillier", 0.6, 4.0, 0.5, UploadLaw(1, 1e300))
    assert huge.parameter == pytest.approx(math.exp(huge.log_parameter)) and huge.status == "ok"


def test_certified() -> None:
    assert certified(1.0, row(0.9, 1.0, 1.4, 1.5), "as_printed").tolist() == [False, True, True, True]
    assert certified(1.0, row(0.9, 1.0, 1.4, 1.5)).tolist() == [False, False, False, True]


def test_clients_that_differ() -> None:
    delta = row(0.1, 0.2, 0.4)
    found = common_mask(0.9, delta, 5)
    assert math.isclose(found, 0.51214, rel_tol=1e-5)
    assert float(sharing_tv(found, delta, 5).mean()) == pytest.approx(0.9, rel=1e-12)
    assert math.exp(2 * common_log_modulus(0.9, delta, 5)) == pytest.approx(2 * found)
    for same in (row(0.3), row(0.3, 0.3)):
        assert common_mask(0.9, same, 5) == pytest.approx(float(optimal_mask(0.9, 0.3, 5)), rel=1e-12)
    slopes = row(10.0, 300.0)
    variance = common_noise_variance(0.005, slopes)
    assert float(noise_tv_lower(variance, slopes).mean()) == pytest.approx(0.005, rel=1e-12)
    assert common_noise_variance(0.01, slopes) == pytest.approx(0.1)
    with pytest.raises(Infeasible, match=r"reaches a total variation of 0\.01"):
        common_noise_variance(0.011, slopes)
    with pytest.raises(Infeasible, match=r"over clients reaches 0\.999999, and 1 is required"):
        least_parameter(lambda r: 1 - 1 / (1 + r).unsqueeze(0), 1.0, 0.1, 1e6)
    assert least_parameter(lambda r: r.unsqueeze(0), 0.5, 0.7) == 0.7


@settings(max_examples=6, deadline=None)
@given(st.floats(1e-5, 0.99), st.integers(1, 200))
def test_exact_noise_variance(tau: float, size: int) -> None:
    alike = float(exact_noise_variance(tau, torch.full((size,), 0.5)))
    assert float(equal_noise_tv(alike / 0.25, size)) == pytest.approx(tau, rel=1e-8)
    sigma = normal(size, size).exp()
    found = float(exact_noise_variance(tau, sigma))
    assert float(noise_tv(found, sigma)) == pytest.approx(tau, rel=1e-10)


def test_exact_noise_variance_side_by_side() -> None:
    sigma = normal(1, 500).exp()
    tau = row(-0.1, 0.0, 0.003, 0.01, 0.5, 1.0)
    found = exact_noise_variance(tau, sigma)
    assert found.isnan().tolist() == [True, True, False, False, False, True]
    bound = optimal_noise_variance(tau, noise_steepness(sigma))
    assert bool((found[2:4] < bound[2:4]).all())
    assert bool(exact_noise_variance(row(0.0), sigma).isnan().all())


@settings(max_examples=6, deadline=None)
@given(st.floats(1e-4, 0.99), st.integers(1, 40))
def test_exact_noise_variance_of_clients(tau: float, size: int) -> None:
    """The mean of clients whose spreads lie orders of magnitude apart."""
    sigma = normal(size, 3, size).exp() * row(1e-2, 1.0, 10.0).unsqueeze(-1)
    found = float(exact_noise_variance(tau, *binned(sigma)))
    assert float(torch.stack([noise_tv(found, client) for client in sigma]).mean()) == pytest.approx(tau, rel=2e-3)


def test_common_exact_mask() -> None:
    delta = row(0.1, 0.2, 0.4)
    for tau in (1e-5, 0.3, 0.999):
        found = exact_sharing_tv(common_exact_mask(tau, delta, 5), delta, 5)
        assert float(found.mean()) == pytest.approx(tau, rel=1e-9)
    alone = float(optimal_mask(0.2, 0.3, 7, "exact"))
    assert common_exact_mask(0.2, row(0.3, 0.3), 7) == pytest.approx(alone, rel=1e-12)
    with pytest.raises(Infeasible, match=r"and 1\.1 is required"):
        common_exact_mask(1.1, delta, 5)


def test_utility_budget() -> None:
    assert utility_tv_limit("compression", 0.2, 0.5) == pytest.approx(0.4)
    assert utility_tv_limit("compression", 0.5, 0.5) == utility_tv_limit("randomization", 1.5) == math.inf
    assert utility_tv_limit("paillier", 0.0) == utility_tv_limit("secret_sharing", 0.0) == math.inf
    setting = UploadLaw(50, 0.25)
    assert optimum("compression", 0.6, 4.0, 0.5, setting, utility_budget=0.17).status == "infeasible"
    assert optimum("compression", 0.6, 4.0, 0.5, setting, utility_budget=0.175).status == "ok"
    assert optimum("paillier", 0.6, 4.0, 0.5, setting, utility_budget=0.0).status == "ok"


def test_bounds_at_optimum() -> None:
    setting = UploadLaw(50, 0.25, 2.0)
    assert bounds_at_optimum("paillier", 0.004, setting, 2.0, 3.0) == (0.0, 0.012)
    assert bounds_at_optimum("compression", 0.004, setting, 2.0, 3.0) == (0.008, 0.012)
    assert bounds_at_optimum("randomization", 0.004, setting, 2.0, 3.0) == pytest.approx((1.2, 1.8))
    utility, bits = bounds_at_optimum("secret_sharing", 0.004, setting, clients=3)
    assert utility == 0 and bits == pytest.approx(3 * 50 * math.log2(float(optimal_mask(0.004, 0.25, 50)))) and bits < 0
    with pytest.raises(Infeasible, match="randomization: by its lower bound"):
        bounds_at_optimum("randomization", 0.02, setting)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"epsilon": -0.1}, "budget epsilon must not be negative"),
    ({"c1": -0.1}, "C1 must not be negative"),
    ({"c2": 0.0}, "C2 must be positive"),
    ({"setting": UploadLaw(0, 0.1)}, "coordinates must be 1 at least"),
    ({"setting": UploadLaw(5, 0.0)}, "delta must be positive and finite, found 0"),
    ({"setting": UploadLaw(5)}, "delta must be positive and finite, found nan"),
    ({"mechanism": "randomization", "setting": UploadLaw(5, 0.1)}, "A must be positive"),
    ({"mechanism": "noise"}, "the mechanisms are paillier, secret_sharing, randomization, compression"),
    ({"utility_budget": -1.0}, "budget of utility must not be negative"),
    ({"largest_utility": 0.0}, "C4 must be positive"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD)
def test_errors(wrong: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"mechanism": "secret_sharing", "c1": 0.6, "c2": 4.0, "epsilon": 0.5}
    with pytest.raises(ConfigError, match=message):
        optimum(**arguments | {"setting": UploadLaw(5, 0.1)} | wrong)


def test_errors_of_clients() -> None:
    with pytest.raises(ConfigError, match="lower end of the search"):
        least_parameter(lambda r: r.unsqueeze(0), 0.5, 0.0)
    with pytest.raises(ConfigError, match="delta must be positive"):
        common_mask(0.5, row(0.1, 0.0), 5)
    with pytest.raises(ConfigError, match="A must be positive"):
        common_noise_variance(0.005, row(0.1, -1.0))
