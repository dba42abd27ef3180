"""Water-filling noise from Gram matrices against dense eigendecompositions, and in blocks."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.theory.vectors import close, normal, row

from leakbench.errors import ConfigError
from leakbench.theory import water_filling
from leakbench.theory.water_filling import (
    added_noise,
    added_trace,
    batch_covariance,
    block_covariance,
    block_spectra,
    block_update,
    filled,
    gaussian_update,
    gram,
    isotropic_suffices,
    total_noise,
    update_spectrum,
)

SMALL = torch.tensor([[3.0, 0], [0, 1], [0, 1]], dtype=torch.float64)
"""Three coordinates of two records."""


def operator(noise: Any, gradients: torch.Tensor, batch: float, variance: Any) -> torch.Tensor:
    """The matrix ``T`` of ``n = T z``: the noise of every unit vector."""
    size = gradients.shape[-2]
    unit = torch.eye(size, dtype=gradients.dtype).expand(*gradients.shape[:-2], size, size)
    result: torch.Tensor = noise(update_spectrum(gradients, batch), variance, unit).mT
    return result


def test_printed_vector() -> None:
    spectrum = update_spectrum(SMALL, 2)
    assert close(spectrum.eigenvalues, 0.5, 2.25, rel=1e-12)
    added = operator(added_noise, SMALL, 2, 1.0)
    expected = torch.zeros(3, 3, dtype=torch.float64)
    expected[1:, 1:] = torch.tensor([[0.8535533906, -0.1464466094], [-0.1464466094, 0.8535533906]])
    torch.testing.assert_close(added, expected, atol=1e-7, rtol=0)
    assert close(added @ added.mT, 0, 0, 0, 0, 0.75, -0.25, 0, -0.25, 0.75, rel=1e-12)
    total = operator(total_noise, SMALL, 2, 1.0)
    torch.testing.assert_close(total @ total.mT, row(2.25, 1, 1).diag())
    torch.testing.assert_close(filled(SMALL @ SMALL.mT / 4, 1.0), row(2.25, 1, 1).diag())
    assert close(added_trace(spectrum.eigenvalues, 1.0, 3), 1.5)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 12), st.sampled_from([1.0, 4.0, 32.0]), st.floats(-7, 4), st.integers(0, 2**31),
    st.booleans(),
)  # fmt: skip
def test_equals_dense_eigendecomposition(
    size: int, records: int, batch: float, exponent: float, seed: int, twice: bool
) -> None:
    """Two clients; with equal records, and records of zero, the rank is less than both sizes."""
    gradients = normal(seed, 2, size, records)
    if twice:
        gradients[..., -1] = gradients[..., 0]
        gradients[1, :, : records // 2] = 0
    variance = 2.0**exponent
    plain = gradients @ gradients.mT / (batch * records)
    lifted = filled(plain, variance)
    scale = max(1.0, float(lifted.abs().max()))
    for noise, covariance in ((added_noise, lifted - plain), (total_noise, lifted)):
        found = operator(noise, gradients, batch, variance)
        torch.testing.assert_close(found @ found.mT, covariance, atol=1e-11 * scale, rtol=0)
    values = update_spectrum(gradients, batch).eigenvalues
    traces = torch.linalg.eigvalsh(lifted - plain)
    assert (traces > -1e-11 * scale).all() and (traces < variance + 1e-11 * scale).all()
    torch.testing.assert_close(added_trace(values, variance, size), traces.sum(dim=-1), atol=1e-10 * scale, rtol=1e-9)


def test_variances_side_by_side() -> None:
    """One spectrum serves all settings; rows as columns, and few rows at a time, change nothing."""
    gradients, draws = normal(3, 4, 9, 5), normal(4, 4, 3, 9)
    variances = row(0.01, 0.2, 5.0)
    spectrum = update_spectrum(gradients, 8)
    for noise in (added_noise, total_noise):
        together = noise(spectrum, variances, draws)
        for m, variance in enumerate(variances.tolist()):
            alone = noise(update_spectrum(gradients[2], 8), variance, draws[2, m : m + 1])
            torch.testing.assert_close(together[2, m], alone[0])
    flipped = update_spectrum(gradients.mT.contiguous().mT, 8)
    torch.testing.assert_close(added_noise(flipped, 0.2, draws), added_noise(spectrum, 0.2, draws))


def test_gram_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = normal(5, 2, 50, 6).float()
    expected = gradients.double().mT @ gradients.double()
    monkeypatch.setattr(water_filling, "_SLAB_BYTES", 8 * 6 * 2 * 7)  # seven rows
    found = gram(gradients)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-13)


def test_float32_gradients() -> None:
    """What has K rows is float32, and as exact as that."""
    gradients, draws = normal(6, 300, 20), normal(7, 4, 300)
    for noise in (added_noise, total_noise):
        exact = noise(update_spectrum(gradients, 4), 0.5, draws)
        found = noise(update_spectrum(gradients.float(), 4), 0.5, draws.float())
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)


def test_empirical_covariance() -> None:
    """Drawn updates: by sampling and then adding noise, and in one draw."""
    gradients, draws = normal(8, 6, 4), 200_000
    spectrum = update_spectrum(gradients, 3)
    sampled = gaussian_update(gradients, 3, normal(9, draws, 4)) + added_noise(spectrum, 0.4, normal(10, draws, 6))
    at_once = gradients.mean(dim=-1) + total_noise(spectrum, 0.4, normal(11, draws, 6))
    expected = filled(gradients @ gradients.mT / 12, 0.4)
    assert float(spectrum.eigenvalues[1]) < 0.4 < float(spectrum.eigenvalues[-1])
    for sent in (sampled, at_once):
        assert float((sent.T.cov() - expected).norm() / expected.norm()) < 0.01
        torch.testing.assert_close(sent.mean(dim=0), gradients.mean(dim=-1), atol=0.01, rtol=0)


def test_two_ways_of_sampling() -> None:
    """Scalars 1, 2, 6 in batches of 2: Gaussian weights are not centred, so their variance is 41/6 and not 7/6."""
    scalars = row(1, 2, 6).unsqueeze(0)
    assert close(batch_covariance(scalars, 2), 7 / 6, rel=1e-12)
    assert close(update_spectrum(scalars, 2).eigenvalues, 0, 0, 41 / 6, rel=1e-12)
    draws = gaussian_update(scalars, 2, normal(12, 200_000, 3))
    assert float(draws.var()) == pytest.approx(41 / 6, rel=0.02) and float(draws.mean()) == pytest.approx(3, abs=0.03)


@pytest.mark.parametrize(("records", "batch"), [(5, 2), (5, 5), (4, 1), (1, 1)])
def test_batches_without_replacement(records: int, batch: int) -> None:
    """All batches, one by one; Gaussian sampling has the larger covariance."""
    gradients = normal(15, 3, records)
    means = torch.stack([gradients[:, list(some)].mean(dim=1) for some in combinations(range(records), batch)])
    centred, found = means - means.mean(dim=0), batch_covariance(gradients, batch)
    torch.testing.assert_close(found, centred.T @ centred / len(means))
    larger = gradients @ gradients.mT / (batch * records) - found
    assert float(torch.linalg.eigvalsh(larger)[0]) > -1e-12


def test_when_noise_is_isotropic() -> None:
    gradients = normal(13, 3, 7, 5)
    gradients *= 2 / gradients.norm(dim=-2, keepdim=True)
    floor = 4 / 8  # C^2 / B
    assert isotropic_suffices(gradients, 8, floor * (1 + 1e-12)) and not isotropic_suffices(gradients, 8, floor * 0.9)
    draws = normal(14, 3, 2, 7)
    torch.testing.assert_close(total_noise(update_spectrum(gradients, 8), floor, draws), floor**0.5 * draws)


class TestBlocks:
    def test_shared_weights_break_the_floor(self) -> None:
        """Both blocks of one coordinate have variance 1, get no noise, and are equal."""
        gradients = torch.ones(2, 1, dtype=torch.float64)
        found = torch.linalg.eigvalsh(block_covariance(gradients, 1, 1.0, 2, "as_printed"))
        assert close(found, 0, 2)
        assert close(torch.linalg.eigvalsh(block_covariance(gradients, 1, 1.0, 2)), 1, 1)
        sent = block_update(block_spectra(gradients, 1, 2), 1.0, normal(0, 5, 2, 1), normal(1, 5, 2), "as_printed")
        torch.testing.assert_close(sent[:, 0], sent[:, 1])

    @pytest.mark.parametrize("form", ["corrected", "as_printed"])
    def test_covariance_is_that_of_the_draws(self, form: Any) -> None:
        gradients, blocks = normal(2, 5, 3), 2
        spectra = block_spectra(gradients, 4, blocks)
        assert [spectrum.dimension for spectrum in spectra] == [3, 2]
        mean = gradients.mean(dim=-1)
        weights, noise = torch.eye(6, dtype=torch.float64).view(6, 2, 3), torch.eye(5, dtype=torch.float64)
        by_weights = block_update(spectra, 0.3, weights, torch.zeros(6, 5, dtype=torch.float64), form) - mean
        by_noise = block_update(spectra, 0.3, torch.zeros(5, 2, 3, dtype=torch.float64), noise, form) - mean
        covariance = block_covariance(gradients, 4, 0.3, blocks, form)
        torch.testing.assert_close(by_weights.mT @ by_weights + by_noise.mT @ by_noise, covariance)
        floor = float(torch.linalg.eigvalsh(covariance)[0])
        assert (floor > 0.3 - 1e-12) == (form == "corrected")

    def test_one_block_is_all(self) -> None:
        gradients, weights, draws = normal(3, 2, 5, 3), normal(4, 2, 4, 1, 3), normal(5, 2, 4, 5)
        (spectrum,) = block_spectra(gradients, 4, 1)
        expected = gaussian_update(gradients, 4, weights[..., 0, :]) + added_noise(spectrum, 0.3, draws)
        for form in ("corrected", "as_printed"):
            torch.testing.assert_close(block_update([spectrum], 0.3, weights, draws, form), expected)


def test_errors() -> None:
    spectrum = update_spectrum(SMALL, 2)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        for noise in (added_noise, total_noise):
            with pytest.raises(ConfigError, match="the variance of noise must be positive"):
                noise(spectrum, bad, normal(0, 1, 3))
        with pytest.raises(ConfigError, match="the variance of noise must be positive"):
            added_trace(spectrum.eigenvalues, bad, 3)
        with pytest.raises(ConfigError, match="the batch size must be positive"):
            update_spectrum(SMALL, bad)
        with pytest.raises(ConfigError, match="the variance of noise"):
            isotropic_suffices(SMALL, 2, bad)
    for blocks in (0, 4):
        with pytest.raises(ConfigError, match="blocks must lie in 1 to K = 3"):
            block_spectra(SMALL, 2, blocks)
        with pytest.raises(ConfigError, match="blocks must lie in 1 to K = 3"):
            block_covariance(SMALL, 2, 1.0, blocks)
    for batch in (0, 3):
        with pytest.raises(ConfigError, match="a batch must lie in 1 to D = 2"):
            batch_covariance(SMALL, batch)
    with pytest.raises(ConfigError, match="finite"):
        update_spectrum(SMALL / 0, 2)
