"""Constants from counted recoveries: printed numbers, the algorithms literally, sampling, error bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from tests.theory.vectors import close, row

from leakbench.errors import ConfigError
from leakbench.papers.tfl_meta.theory import leakage_estimation
from leakbench.papers.tfl_meta.theory.leakage_estimation import (
    VACUOUS,
    attempts_made,
    attempts_needed,
    bootstrap_constants,
    c1_error,
    certain_constants,
    class_belief,
    constants,
    data_belief,
    failure_probability,
    metric_error,
    null_prior,
    population_prior,
    recovery_counts,
    relative_error,
    sufficient_attempts,
    uniform_prior,
)
from leakbench.theory.leakage_surrogate import LARGEST_LEAKAGE, Form, leakage

COUNTS, ATTEMPTS = row(7, 3, 0, 10, 20), 10


def test_printed_numbers() -> None:
    raw = data_belief(COUNTS, ATTEMPTS)
    assert close(raw, 0.175, 0.075, 0, 0.25, 0.5) and close(leakage(raw, uniform_prior(4)), 0.3450650)
    uniform = constants(COUNTS.unsqueeze(0), ATTEMPTS, uniform_prior(4))
    assert close(uniform.belief, 0.17647059, 0.08235294, 0.01176471, 0.24705882, 0.48235294, rel=1e-6)
    assert close(uniform.c1, 0.3082608) and close(uniform.xi, math.log(17)) and close(uniform.c2, 144)
    assert close(2 * uniform.c1 / uniform.c2, 0.0042814, rel=1e-5)
    rare = constants(COUNTS.unsqueeze(0), ATTEMPTS, row(0.005, 0.005, 0.005, 0.005, 0.98))
    assert close(rare.c1, 0.4142068) and close(rare.xi, 3.8526476) and close(rare.c2, 1109.53633)
    unsmoothed = constants(COUNTS.unsqueeze(0), ATTEMPTS, uniform_prior(4), smoothing=0)
    assert close(unsmoothed.c1, 0.3450650) and float(unsmoothed.xi) == math.inf == float(unsmoothed.c2)


def test_priors_decide() -> None:
    """At S = 8 a failed attack leaks more than a perfect one under the uniform prior."""
    failed, perfect = torch.eye(9, dtype=torch.float64)[8], torch.cat([torch.full((8,), 0.125).double(), row(0)])
    assert close(leakage(failed, uniform_prior(8)), 0.7159229) and close(leakage(perfect, uniform_prior(8)), 0.2003575)
    rare = population_prior(8, 400)
    assert close(leakage(failed, rare), 0.0835582) and close(leakage(perfect, rare), 0.8024510)
    null = null_prior(row(0, 3), 9)
    assert close(null, 0.025, 0.175, 0.8)


@given(st.integers(1, 40), st.integers(0, 40), st.floats(0.5, 0.999))
def test_the_upper_end_of_a_rate(trials: int, successes: int, confidence: float) -> None:
    """Clopper and Pearson's, from another function of scipy; without a success it has a closed form."""
    successes = min(successes, trials)
    interval = binomtest(successes, trials, alternative="less").proportion_ci(confidence, method="exact")
    prior = null_prior(row(successes, 0), trials, confidence)
    assert close(2 * prior[0], interval.high, rel=1e-9) and close(2 * prior[1], 1 - (1 - confidence) ** (1 / trials))
    assert close(prior.sum(), 1, rel=1e-12) and bool((prior >= 0).all())
    assert bool((prior[:2] > null_prior(row(successes, 0), trials)[:2]).all()) or confidence < 0.9


@given(st.integers(1, 6), st.integers(1, 300), st.integers(1, 6), st.floats(1e-4, 2))
def test_certain_recovery(models: int, attempts: int, data: int, alpha: float) -> None:
    """The ratios of the docstring, one by one."""
    certain = certain_constants(models, attempts, data, alpha)
    q, w = 1 / (2 * data * (models * attempts + 1)), alpha * (data + 1)
    of_datum = math.log((attempts + w * q) / ((data * attempts + w) * q))
    of_misses = math.log((data * attempts + w) / w)
    assert close(certain.xi, max(of_datum, of_misses), rel=1e-9)
    assert close(certain.c2, math.expm1(2 * max(of_datum, of_misses)) / 2, rel=1e-9)


def test_certain_recovery_in_numbers() -> None:
    """S = 2 images, M = 2 models, T = 16 attempts, alpha = 1/2."""
    assert close(certain_constants(2, 16, 2).xi, math.log((16 + 1.5 / 132) / (33.5 / 132)), rel=1e-12)


def algorithm_2(recovered: list[list[bool]], attempts: int) -> list[float]:
    """The listing from its loop over attempts on, line by line."""
    data = len(recovered[0])
    counts = [0] * (data + 1)
    for attempt in recovered:
        flag = 0
        for d, hit in enumerate(attempt):
            if hit:
                counts[d] += 1
                flag += 1
        counts[data] += data - flag
    return [count / (data * attempts) for count in counts]


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 1000), st.sampled_from(["as_printed", "corrected"]))
def test_algorithm_2(data: int, attempts: int, seed: int, form: Form) -> None:
    made = attempts_made(attempts, form)
    recovered = torch.rand(made, data, generator=torch.Generator().manual_seed(seed)) < 0.4
    found = data_belief(recovery_counts(recovered), attempts)
    assert found.tolist() == pytest.approx(algorithm_2(recovered.tolist(), attempts), rel=1e-12)
    whole = 1 if form == "corrected" else (attempts + 1) / attempts
    assert float(found.sum()) == pytest.approx(whole, rel=1e-12)
    if form == "as_printed":
        with pytest.raises(ConfigError, match="beliefs of T attempts must sum to 1"):
            constants(recovery_counts(recovered).unsqueeze(0), attempts, uniform_prior(data), smoothing=0)


def test_algorithm_3() -> None:
    counts = row(50, 30)
    assert close(class_belief(counts, 8, 10, "as_printed"), 2.5, 1.5)
    assert close(class_belief(counts, 8, 10), 0.625, 0.375, 0)
    assert close(class_belief(row(20, 10), 8, 10), 0.25, 0.125, 0.625)


def test_models_and_clients() -> None:
    """Beliefs are averaged over models, ratios are not; C1 is averaged over clients, and xi the largest."""
    recovered = torch.rand(3, 2, 16, 4, generator=torch.Generator().manual_seed(1)) < 0.5
    prior = null_prior(torch.ones(3, 4), 50)
    found = constants(recovery_counts(recovered), 16, prior)
    for client in range(3):
        beliefs = [data_belief(recovery_counts(recovered[client, m]), 16, prior[client], 0.5) for m in range(2)]
        mean = (beliefs[0] + beliefs[1]) / 2
        assert close(found.c1[client], float(leakage(mean, prior[client])), rel=1e-12)
        largest = max(float((belief.log() - prior[client].log()).abs().max()) for belief in beliefs)
        assert close(found.xi[client], largest, rel=1e-12)
    whole = found.system()
    assert close(whole.c1, float(found.c1.mean())) and close(whole.xi, float(found.xi.max()))
    assert close(whole.c2, float(found.c2.max()))


def literal_bootstrap(recovered: torch.Tensor, prior: torch.Tensor, seed: int, resamples: int) -> list[float]:
    """C1 of every resample, gathered attempt by attempt."""
    models, attempts, _ = recovered.shape
    drawn = torch.randint(attempts, (resamples, models, attempts), generator=torch.Generator().manual_seed(seed))
    return [
        float(
            constants(recovery_counts(torch.stack([recovered[m][rows[m]] for m in range(models)])), attempts, prior).c1
        )
        for rows in drawn
    ]


def test_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    recovered = torch.rand(2, 12, 3, generator=torch.Generator().manual_seed(2)) < 0.3
    prior = population_prior(3, 300)
    found = bootstrap_constants(recovered, prior, torch.Generator().manual_seed(5), resamples=41, confidence=0.9)
    values = sorted(literal_bootstrap(recovered, prior, 5, 41))
    assert float(found["c1"].low) == pytest.approx(values[2], rel=1e-12)
    assert float(found["c1"].high) == pytest.approx(values[38], rel=1e-12)
    assert found["xi"].low <= found["xi"].high and found["c2"].high > found["c2"].low
    monkeypatch.setattr(leakage_estimation, "_CHUNK", 3 * 24)
    parts = bootstrap_constants(recovered, prior, torch.Generator().manual_seed(5), resamples=41, confidence=0.9)
    assert parts == found
    several = torch.stack([recovered, ~recovered])
    both = bootstrap_constants(several, prior, torch.Generator().manual_seed(5), resamples=20)
    assert both["c1"].low.shape == (2,)
    unsmoothed = bootstrap_constants(recovered, prior, torch.Generator().manual_seed(5), smoothing=0.0, resamples=20)
    assert not unsmoothed["xi"].high.isnan()


def test_bootstrap_covers() -> None:
    """The interval's width is that of the sampling law: C1 of 200 attempts of one datum, without smoothing."""
    generator, true = torch.Generator().manual_seed(3), 0.6
    prior = row(0.1, 0.9)
    target = leakage(row(true, 1 - true), prior)
    recovered = torch.rand(100, 1, 200, 1, generator=generator) < true
    found = bootstrap_constants(recovered, prior, generator, smoothing=0.0, resamples=400)["c1"]
    covered = float(((found.low <= target) & (target <= found.high)).double().mean())
    assert 0.87 <= covered <= 1


KAPPA = row(*[0.1] * 8, 0.2)


def test_sample_sizes() -> None:
    assert close(attempts_needed(0.2, 0.05, KAPPA), 4327) and close(sufficient_attempts(0.2, 0.05, KAPPA), 4415)
    assert close(failure_probability(5000, 0.2, KAPPA), 0.0203654, rel=1e-5)
    assert failure_probability(4327, 0.2, KAPPA) <= 0.05 < failure_probability(4326, 0.2, KAPPA)
    assert close(relative_error(4327, 0.05, KAPPA), 0.2, rel=1e-3)
    assert float(relative_error(10, 0.05, KAPPA)) == math.inf
    possible = torch.cat([row(0.0), KAPPA])
    assert close(attempts_needed(0.2, 0.05, possible), 4327) and close(sufficient_attempts(0.2, 0.05, possible), 4415)
    scaled = attempts_needed(0.2, 0.05, KAPPA, data=8)
    assert 4327 / 8 < scaled < 4327 / 2
    literal = 2 * (8 * math.exp(-0.04 * 900 * 0.8 / 3) + math.exp(-0.04 * 900 * 0.2 / 3))
    assert close(failure_probability(900, 0.2, KAPPA, data=8), literal)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 1), st.floats(0.001, 0.5), st.lists(st.floats(0.01, 1), min_size=2, max_size=6))
def test_sample_sizes_in_general(relative: float, failure: float, weights: list[float]) -> None:
    kappa = row(*weights) / sum(weights)
    needed = attempts_needed(relative, failure, kappa)
    assert needed <= sufficient_attempts(relative, failure, kappa)
    assert failure_probability(needed, relative, kappa) <= failure * (1 + 1e-9)
    if needed > 1:
        assert failure_probability(needed - 1, relative, kappa) > failure * (1 - 1e-9)
    assert float(relative_error(needed, failure, kappa)) <= relative * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(st.floats(1, 1e6), st.floats(0.001, 0.5), st.lists(st.floats(0.01, 1), min_size=2, max_size=6))
def test_an_error_has_its_probability(attempts: float, failure: float, weights: list[float]) -> None:
    kappa = row(*weights) / sum(weights)
    for data in (1, 3):
        relative = relative_error(attempts, failure, kappa, data)
        if relative <= 1:
            assert close(failure_probability(attempts, relative, kappa, data), failure, rel=1e-6)


def test_error_of_c1() -> None:
    assert close(c1_error(row(0.01, 0.1, 0.3)), 0.1418643881, 0.4615724649, 0.8548174995, rel=1e-9)
    assert close(c1_error(VACUOUS), LARGEST_LEAKAGE, rel=1e-9) and math.isclose(VACUOUS, 0.28716, abs_tol=1e-5)
    assert close(c1_error(0.38567), 1, rel=1e-4) and close(c1_error(1e-10), math.sqrt(2e-10), rel=1e-6)
    assert c1_error(row(0, 1, 2)).tolist() == [0, math.inf, math.inf]
    assert close(metric_error(0.1), 2 * 0.4615724649) and close(metric_error(0.1, "as_printed"), 1.5 * 0.4615724649)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.floats(0.001, 0.95))
def test_theorem_7_1(seed: int, size: int, relative: float) -> None:
    """Beliefs off by ``relative`` at most, in any direction that keeps the sum, move C1 by B at most."""
    generator = torch.Generator().manual_seed(seed)
    kappa, prior = torch.rand(2, size, generator=generator, dtype=torch.float64).square() + 1e-6
    kappa, prior = kappa / kappa.sum(), prior / prior.sum()
    shift = (torch.rand(size, generator=generator, dtype=torch.float64) * 2 - 1) * kappa
    shift -= kappa * shift.sum()
    shift *= relative / (shift / kappa).abs().max()
    change = (leakage(kappa + shift, prior) - leakage(kappa, prior)).abs()
    assert change <= c1_error(relative)


def test_lemma_c1_by_sampling() -> None:
    """The lemma's event fails no more often than it says."""
    attempts, beta = 2000, 0.05
    relative = float(relative_error(attempts, beta, KAPPA))
    drawn = np.random.default_rng(7).binomial(attempts, KAPPA.numpy(), (2000, len(KAPPA)))
    estimates = torch.as_tensor(drawn) / attempts
    failed = ((estimates - KAPPA).abs() > relative * KAPPA).any(dim=-1).double().mean()
    assert float(failed) <= beta


def test_errors() -> None:
    for attempts in (0, -1):
        with pytest.raises(ConfigError, match="one attempt at least, found T = "):
            data_belief(COUNTS, attempts)
    with pytest.raises(ConfigError, match="found T = 0"):
        recovery_counts(torch.zeros(0, 3))
    with pytest.raises(ConfigError, match="found S = 0"):
        recovery_counts(torch.zeros(3, 0))
    with pytest.raises(ConfigError, match="two at least, found 1"):
        data_belief(row(3), 3)
    with pytest.raises(ConfigError, match="counts of recoveries must not be negative"):
        data_belief(row(-1, 4), 3)
    with pytest.raises(ConfigError, match="smoothing alpha must not be negative"):
        data_belief(COUNTS, ATTEMPTS, uniform_prior(4), -1)
    with pytest.raises(ConfigError, match="prior, which is missing"):
        data_belief(COUNTS, ATTEMPTS, smoothing=0.5)
    with pytest.raises(ConfigError, match="cannot recover more than 80"):
        class_belief(row(50, 31), 8, 10)
    with pytest.raises(ConfigError, match="larger than the batch, found 8 and 8"):
        population_prior(8, 8)
    with pytest.raises(ConfigError, match="found S = 0"):
        uniform_prior(0)
    with pytest.raises(ConfigError, match="cannot succeed 4 times in 3"):
        null_prior(row(4), 3)
    with pytest.raises(ConfigError, match="found T = 0"):
        null_prior(row(0), 0)
    with pytest.raises(ConfigError, match=r"upper end of a rate must lie in \(0, 1\), found 1"):
        null_prior(row(0), 1, 1.0)
    with pytest.raises(ConfigError, match="one model at least, found M = 0"):
        certain_constants(0, 1, 1)
    with pytest.raises(ConfigError, match="resamples and a confidence"):
        bootstrap_constants(torch.ones(1, 2, 1), row(0.5, 0.5), torch.Generator(), resamples=0)
    with pytest.raises(ConfigError, match=r"relative errors in \(0, 1\], found 1\.5"):
        attempts_needed(1.5, 0.05, KAPPA)
    with pytest.raises(ConfigError, match=r"failure must lie in \(0, 1\), found 2"):
        relative_error(10, 2.0, KAPPA)
    with pytest.raises(ConfigError, match="relative error must not be negative"):
        c1_error(-0.1)
    with pytest.raises(ConfigError, match="number of attempts T must be positive"):
        failure_probability(0, 0.1, KAPPA)
