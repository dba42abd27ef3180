"""Lattices: nearest points, errors of dithered quantisation, what travels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakbench.federated.lattice import (
    Lattice,
    LatticeMessage,
    PointRounding,
    dequantise,
    lattice_law,
    quantise,
)
from leakbench.randomness import Streams

GENERATOR = torch.tensor([[1, 0], [1 / math.sqrt(3), 2 / math.sqrt(3)]], dtype=torch.float64)
ROUNDINGS: tuple[PointRounding, ...] = ("nearest", "babai")


def streams(n: int) -> Streams:
    return Streams([("lattice", index) for index in range(n)])


def of_step(step: float, dimension: int = 2, bits: int = 8) -> Lattice:
    """A lattice of a given Delta."""
    assert dimension in (1, 2)
    return Lattice(1 if dimension == 1 else 2, bits, step * (2**bits + 1) / 2)


class TestPoints:
    def test_steps(self) -> None:
        assert Lattice().step == pytest.approx(4.577567e-5, rel=1e-6)
        noisy = Lattice(radius=1.5 * math.sqrt(1 + 0.2 * 4 / 2))
        assert noisy.radius == pytest.approx(1.774824, abs=1e-6) and noisy.step == pytest.approx(5.416250e-5, rel=1e-6)

    def test_the_generator_is_a_hexagonal_one(self) -> None:
        found = of_step(1.0).place(torch.eye(2, dtype=torch.float64))
        torch.testing.assert_close(found, GENERATOR)
        released = np.array([[np.sqrt(3) / 2, 0], [1 / 2, 1]])
        np.testing.assert_allclose(found.numpy(), released / np.linalg.det(released))

    def test_by_hand(self) -> None:
        lattice = of_step(0.1)
        x = torch.tensor([[0.3], [-0.2]], dtype=torch.float64)
        dither = lattice.place(torch.tensor([[0.2], [-0.3]], dtype=torch.float64))  # u = (.02, -.03) over Delta
        torch.testing.assert_close(dither[:, 0], torch.tensor([0.02, -0.02309401], dtype=torch.float64))
        coordinates = torch.linalg.solve(GENERATOR, x + dither)
        torch.testing.assert_close(coordinates[:, 0], torch.tensor([0.32, -0.35320508], dtype=torch.float64))
        integers = lattice.round(x + dither, "babai")
        assert integers[:, 0].tolist() == [3, -4]
        output = lattice.place(integers) - dither
        torch.testing.assert_close(output[:, 0], torch.tensor([0.28, -0.26558112], dtype=torch.float64))
        torch.testing.assert_close((output - x)[:, 0], torch.tensor([-0.02, -0.06558112], dtype=torch.float64))

    def test_scalar_by_hand(self) -> None:
        lattice = of_step(0.1, dimension=1)
        x, dither = torch.tensor([[0.337]], dtype=torch.float64), 0.02
        for rounding in ROUNDINGS:
            found = lattice.place(lattice.round(x + dither, rounding)) - dither
            assert found.item() == pytest.approx(0.38)  # 0.357 is rounded to 0.4

    @given(points=st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=20))
    def test_nearest_is_nearest(self, points: list[tuple[float, float]]) -> None:
        lattice = of_step(0.37)
        x = torch.tensor(points, dtype=torch.float64).T
        around = torch.cartesian_prod(torch.arange(-3.0, 4), torch.arange(-3.0, 4)).double().T
        start = (torch.linalg.solve(GENERATOR, x) / lattice.step).round()
        every = lattice.place((start[:, :, None] + around[:, None]).flatten(1)).view(2, -1, 49)
        least = (every - x[:, :, None]).norm(dim=0).min(dim=1).values
        nearest, babai = ((lattice.place(lattice.round(x, rounding)) - x).norm(dim=0) for rounding in ROUNDINGS)
        torch.testing.assert_close(nearest, least, rtol=0, atol=1e-12)
        assert (nearest <= babai + 1e-12).all()
        assert torch.equal(lattice.round(x, "nearest"), lattice.round(x, "nearest").round())
        assert nearest.max() <= 2 / 3 * lattice.step + 1e-12  # the radius of the hexagon

    @pytest.mark.parametrize("rounding", ROUNDINGS)
    def test_lattice_points_stay(self, rounding: PointRounding) -> None:
        lattice = of_step(0.1)
        coordinates = torch.cartesian_prod(torch.arange(-5.0, 6), torch.arange(-5.0, 6)).double().T
        assert torch.equal(lattice.round(lattice.place(coordinates), rounding), coordinates)


@pytest.mark.parametrize(
    ("rounding", "covariance"),
    [
        ("babai", [[8.333e-4, 4.811e-4], [4.811e-4, 1.3889e-3]]),
        ("nearest", [[9.259e-4, 0], [0, 9.259e-4]]),
    ],
)
def test_the_error_is_uniform_and_independent(rounding: PointRounding, covariance: list[list[float]]) -> None:
    """400,000 blocks at Delta = 0.1, by the public bound 1: nothing but the lattice is in between."""
    lattice = of_step(0.1)
    values = torch.rand(1, 800_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 0.5
    quantised = quantise(values, [800_000], lattice, rounding, streams(1), bound=1.0)
    assert not quantised.overloads.any()
    error = (dequantise(quantised, streams(1)) - values).view(2, -1)
    expected = torch.tensor(covariance, dtype=torch.float64)
    torch.testing.assert_close(lattice.error_covariance(rounding), expected, rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(torch.cov(error), expected, rtol=0.01, atol=5e-6)
    assert error.mean(dim=1).abs().max() < 4 * (1.4e-3 / 400_000) ** 0.5
    mixed = torch.corrcoef(torch.cat([error, values.view(2, -1)]))[:2, 2:]
    assert mixed.abs().max() < 0.01
    # Uniform on the cell: of its area, a smaller copy of it holds the square of their ratio.
    if rounding == "babai":
        inside = torch.linalg.solve(GENERATOR, error).abs().amax(dim=0) < 0.05 * 0.6
    else:
        angles = torch.arange(6, dtype=torch.float64) * math.pi / 3 + math.pi / 6
        normals = torch.stack([angles.cos(), angles.sin()], dim=1)
        assert (normals @ error).max() <= 0.1 / math.sqrt(3) + 1e-9
        inside = ((normals @ error) < 0.6 * 0.1 / math.sqrt(3)).all(dim=0)
    assert float(inside.double().mean()) == pytest.approx(0.36, abs=4 * (0.36 * 0.64 / 400_000) ** 0.5)


def test_the_scalar_error_is_uniform() -> None:
    lattice = of_step(0.1, dimension=1)
    values = torch.rand(1, 200_000, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    quantised = quantise(values, [200_000], lattice, "nearest", streams(1), bound=1.0)
    error = dequantise(quantised, streams(1)) - values
    assert error.abs().max() <= 0.05 + 1e-9
    assert float(error.square().mean()) == pytest.approx(0.01 / 12, rel=0.01)
    assert lattice.error_covariance("nearest").item() == pytest.approx(0.01 / 12)
    assert abs(float(torch.corrcoef(torch.cat([error, values]))[0, 1])) < 0.01


def literal(values: np.ndarray, draws: np.ndarray, bits: int) -> np.ndarray:
    """One tensor as the public code does it, with the odd pad that it forgets; float64."""
    gamma = 1.5
    delta = 2 * gamma / (2**bits + 1)
    edge = gamma - delta / 2
    matrix = GENERATOR.numpy()
    padded = np.append(values, np.zeros(len(values) % 2)).reshape(2, -1)
    mean = padded.mean(axis=1, keepdims=True)
    sigma = np.linalg.norm(padded - mean) / padded.shape[1] ** 0.5
    dither = matrix @ ((draws - 0.5) * delta)
    x = (padded - mean) / (3 * sigma) + dither
    coordinates = delta * np.round(np.linalg.inv(matrix) @ x / delta)
    coordinates = np.clip(coordinates, -edge, edge)
    out: np.ndarray = ((matrix @ coordinates - dither) * 3 * sigma + mean).reshape(-1)[: len(values)]
    return out


@pytest.mark.parametrize("bits", [1, 4, 16])
def test_whole_updates_against_the_released_way(bits: int) -> None:
    sizes, n = [6, 1, 0, 7, 20, 4], 3
    values = torch.randn(n, sum(sizes), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    values[0, 3] = 40.0  # beyond the range
    quantised = quantise(values, sizes, Lattice(bits=bits), "babai", streams(n))
    found = dequantise(quantised, streams(n))
    dither = streams(n).child("dither")
    start = 0
    for size in sizes:
        part, sent = values[:, start : start + size], found[:, start : start + size]
        if size < 2:
            assert torch.equal(part, sent)
        else:
            draws = dither.uniform(2, (size + 1) // 2).numpy()
            for row in range(n):
                expected = literal(part[row].numpy(), draws[row].astype(np.float64), bits)
                np.testing.assert_allclose(sent[row].numpy(), expected, atol=1e-7)
        start += size


def test_clipped_blocks_are_counted() -> None:
    values = torch.zeros(2, 4000)
    values[0, 7], values[0, 3000] = 1.0, 1.0  # in different blocks; scale: 3 sigma of nearly nothing
    values[1] = torch.randn(4000, generator=torch.Generator().manual_seed(6))
    quantised = quantise(values, [4000], Lattice(bits=16), "nearest", streams(2))
    assert quantised.overloads.tolist() == [2, 0]
    assert quantised.overloaded[0].nonzero().flatten().tolist() == [7, 1000]
    assert quantised.points.abs().max() == 2**15
    law = lattice_law(values, quantised, "nearest")
    assert (~law.passing[0]).nonzero().flatten().tolist() == [7, 1000, 2007, 3000]  # whole blocks


@pytest.mark.parametrize("dimension", [1, 2])
@pytest.mark.parametrize("value", [0.0, 0.3, -1e6])
def test_constant_tensors_come_back(value: float, dimension: int) -> None:
    assert dimension in (1, 2)
    lattice = Lattice(1 if dimension == 1 else 2)
    values = torch.full((2, 50), value)
    found = dequantise(quantise(values, [20, 30], lattice, "nearest", streams(2)), streams(2))
    torch.testing.assert_close(found, values, rtol=1e-6, atol=0)
    assert value or not found.any()


def test_what_is_not_finite_stays_so() -> None:
    values = torch.ones(1, 10)
    values[0, 2], values[0, 8] = torch.nan, torch.inf
    found = dequantise(quantise(values, [5, 5], Lattice(), "nearest", streams(1)), streams(1))
    assert not found[0, :5].isfinite().all() and not found[0, 5:].isfinite().all()


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_row_depends_on_its_stream_alone(rounding: PointRounding) -> None:
    values = torch.randn(3, 31, generator=torch.Generator().manual_seed(7))
    together = dequantise(quantise(values, [10, 21], Lattice(bits=3), rounding, streams(3)), streams(3))
    for index in range(3):
        own = Streams([("lattice", index)])
        alone = dequantise(quantise(values[index : index + 1], [10, 21], Lattice(bits=3), rounding, own), own)
        assert torch.equal(alone[0], together[index])


class TestBits:
    @pytest.mark.parametrize(
        ("sizes", "dimension", "bits", "expected"),
        [
            ([10, 7], 2, 16, 16 * 18 + 1 + 2 * 96),  # seven values take four blocks
            ([10, 7], 1, 16, 16 * 17 + 1 + 2 * 64),
            ([10, 1, 0], 2, 16, 16 * 10 + 1 + 96 + 32),
            ([10], 2, 1, math.ceil(10 * math.log2(3)) + 96),
            ([], 2, 16, 0),
        ],
    )
    def test_size(self, sizes: list[int], dimension: int, bits: int, expected: int) -> None:
        assert dimension in (1, 2)
        lattice = Lattice(1 if dimension == 1 else 2, bits)
        assert quantise(torch.randn(2, sum(sizes)), sizes, lattice, "babai", streams(2)).bits == expected

    def test_a_public_bound_needs_no_side_information(self) -> None:
        quantised = quantise(torch.randn(2, 11), [10, 1], Lattice(1, 16), "nearest", streams(2), bound=1.0)
        assert quantised.bits == 16 * 11 + 1 and quantised.plain.shape == (2, 0)

    def test_sixteen_bits_are_half_but_for_little(self) -> None:
        """Of a million values: one level more than 2^16, and three floats."""
        quantised = quantise(torch.zeros(1, 10**6), [10**6], Lattice(), "nearest", streams(1))
        assert 0 < quantised.bits - 16 * 10**6 < 96 + 25


def test_law() -> None:
    values = torch.randn(1, 200_001, generator=torch.Generator().manual_seed(8))
    for rounding in ROUNDINGS:
        quantised = quantise(values, [200_000, 1], Lattice(bits=4), rounding, streams(1))
        message = LatticeMessage(quantised, streams(1), lambda q=quantised, r=rounding: lattice_law(values, q, r))  # type: ignore[misc]
        law = message.law
        assert law.mean is values and not law.normal and law.variance is not None
        error = (message.view() - values)[:, :200_000]
        for half in (slice(0, 100_000), slice(100_000, 200_000)):
            assert float(error[:, half].square().mean()) == pytest.approx(float(law.variance[0, half.start]), rel=0.02)
        assert law.variance[0, -1] == 0 and law.passing.all()
        assert message.bits == quantised.bits and message.view() is message.view()
