"""Optimal variances and pruning sets: the paper's algebra on small numbers, and what holds for all numbers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.vectors import close, row

from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network, build_network
from leakbench.models.linear import Linear
from leakbench.randomness import Streams
from leakbench.theory.optimal_noise import Form, ScaleMode, pruned, scale_variance, variance_ratio

MODES: tuple[ScaleMode, ...] = ("rms", "fro", "u2")


def trace(sensitivity: torch.Tensor, variance: torch.Tensor) -> float:
    """Trace of the Fisher information."""
    return float((sensitivity / variance).sum())


def removed(ratio: torch.Tensor, count: int, form: Form = "corrected") -> set[int]:
    return set(pruned(ratio, (count + 0.5) / len(ratio), form).nonzero().flatten().tolist())


class TestVectors:
    """Numbers computed by hand."""

    a, g = row(4, 1, 9), row(1, 2, 0.5)

    def test_noise(self) -> None:
        ratio = variance_ratio(self.a, self.g)
        assert close(ratio, 2, 0.5, 6)
        variance = scale_variance(ratio, self.g, 10, "u2")
        assert close(variance, 3.6363636, 0.9090909, 10.9090909)
        isotropic = scale_variance(torch.ones(3, dtype=torch.float64), self.g, 10, "u2")
        assert close(isotropic, *[1.9047619] * 3)
        assert close(trace(self.a, variance), 3.025)
        assert close(trace(self.a, isotropic), 7.35)
        assert close(trace(self.a, isotropic) / trace(self.a, variance), 2.4297521)

    @pytest.mark.parametrize("mode", MODES)
    def test_nothing_to_scale_gets_no_noise(self, mode: ScaleMode) -> None:
        zeros = torch.zeros_like(self.g)
        assert close(scale_variance(zeros, self.g, 10, mode), 0, 0, 0)
        if mode == "u2":
            assert close(scale_variance(torch.ones_like(self.g), zeros, 10, mode), 0, 0, 0)

    @pytest.mark.parametrize(("power", "expected"), [(1.0, 3.025), (2.0, 7.35), (0.5, 3.8436533)])
    def test_no_other_power_of_the_ratio_does_as_well(self, power: float, expected: float) -> None:
        variance = scale_variance(variance_ratio(self.a, self.g) ** power, self.g, 10, "u2")
        assert close(trace(self.a, variance), expected)

    def test_as_printed_squares_the_numerator(self) -> None:
        ratio = variance_ratio(self.a, self.g, "as_printed")
        assert close(ratio, 4, 0.5, 18)
        assert close(trace(self.a, scale_variance(ratio, self.g, 10, "u2")), 3.675)

    def test_least_squares(self) -> None:
        def gradient(x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = torch.func.grad(lambda theta: 0.5 * (theta @ x - 0.5) ** 2)(row(1, 2))
            return result

        x = row(3, -1)
        g, jacobian = gradient(x), torch.func.jacfwd(gradient)(x)
        a = jacobian.square().sum(dim=1)
        assert close(g, 1.5, -0.5) and close(jacobian, 3.5, 6, -1, -1.5) and close(a, 48.25, 3.25)
        ratio = variance_ratio(a, g)
        assert close(ratio, 4.6308147, 3.6055513)
        assert removed(ratio, 1) == {0}  # magnitude pruning would remove index 1
        variance = scale_variance(ratio, g, 2, "u2")
        assert close(variance, 0.81811304, 0.63698263)
        assert close(trace(a, variance), 64.0793598)
        assert close(trace(a, scale_variance(torch.ones_like(g), g, 2, "u2")), 64.375)
        assert close(trace(a, scale_variance(variance_ratio(a, g, "as_printed"), g, 2, "u2")), 74.0)

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [
            ("rms", (0.01066667, 0.00533333, 0.00266667, 0.02133333)),
            ("fro", (0.04338609, 0.02169305, 0.01084652, 0.08677218)),
            ("u2", (0.03137255, 0.01568627, 0.00784314, 0.06274510)),
        ],
    )
    def test_scale_modes(self, mode: ScaleMode, expected: tuple[float, ...]) -> None:
        variance = scale_variance(row(2, 1, 0.5, 4), row(1, 4, 0.25, 0.0625).sqrt(), 0.1, mode)
        assert close(variance, *expected)

    @pytest.mark.parametrize(("mode", "sigma"), [("rms", 0.1), ("fro", 0.01701)])
    def test_equal_scales_differ_in_size_between_modes(self, mode: ScaleMode, sigma: float) -> None:
        ones = torch.ones(119_530, dtype=torch.float64)
        assert close(scale_variance(ones, ones, 0.1, mode)[0].sqrt(), sigma, rel=5e-4)

    def test_zero_ratios_get_no_noise(self) -> None:
        ratio = row(2, 0, 4, 0, 0.5)
        assert close(scale_variance(ratio, ratio, 0.1, "rms"), 0.01538462, 0, 0.03076923, 0, 0.00384615)
        assert close(scale_variance(ratio, ratio, 0.1, "fro"), 0.04444444, 0, 0.08888889, 0, 0.01111111)
        for mode in MODES:
            assert scale_variance(torch.zeros(2, 5), torch.ones(2, 5), 0.1, mode).eq(0).all()

    def test_pruning(self) -> None:
        a, b = row(4, 1, 9, 2, 0.5), row(1, 4, 0.25, 2, 0.01)
        ratio = variance_ratio(a, b.sqrt())
        assert close(ratio.square(), 4, 0.25, 36, 1, 50)
        assert [removed(ratio, count) for count in range(6)] == [
            set(),
            {4},
            {4, 2},
            {4, 2, 0},
            {4, 2, 0, 3},
            {0, 1, 2, 3, 4},
        ]
        assert removed(ratio, 3, "as_printed") == {1, 3, 0}  # the wrong end

    @pytest.mark.parametrize(("fraction", "d", "count"), [(0.8, 119_530, 95_624), (0.9, 119_530, 107_577)])
    def test_count(self, fraction: float, d: int, count: int) -> None:
        assert int(pruned(torch.arange(d), fraction).sum()) == count

    def test_count_rounds_down_what_floats_leave_below_a_whole_number(self) -> None:
        assert 0.7 * 2_904_970 < 2_033_479
        assert int(pruned(torch.arange(2_904_970), 0.7).sum()) == 2_033_478

    def test_floors_and_ceiling(self) -> None:
        tiny = row(1e-7, -1e-7, 0)
        assert close(variance_ratio(row(1e-8, 1e-8, 1e-8), tiny), *[100] * 3)
        assert close(variance_ratio(row(1e-8, 1e-8, 1e-8), tiny, "as_printed"), *[0.01] * 3)
        assert close(variance_ratio(row(1e-8, 1e-8, 1e-8), tiny, "as_released"), 1000, 1000, 10_000)
        assert close(variance_ratio(row(1e-8, 1e-8, 1e-8), tiny, "as_released", 1e-6), *[100] * 3)
        assert close(variance_ratio(row(1e6, 1e-6), row(0, 1e-9)), 1e6, 1e3)


class TestSoftmaxRegression:
    """The sensitivities of one linear layer have a formula."""

    weight_sensitivities = (0.06296444, 0.01266589, 0.08674965, 0.10684708, 0.00190222, 0.06201910)
    sensitivities = (*weight_sensitivities, 0.00448460, 0.01832664, 0.01153956)

    @pytest.fixture
    def network(self) -> Network:
        return build_network(Linear(), (1, 1, 2), 3, seed=0)

    def steps(self, network: Network, streams: Streams) -> ClientSteps:
        parameters = torch.tensor([0.2, -0.1, 0.4, 0.3, -0.5, 0.1, 0.1, 0.0, -0.1])
        image = torch.tensor([1.0, 2.0]).view(1, 1, 1, 1, 2)
        return ClientSteps(network, parameters, image, torch.tensor([[1]]), streams)

    def test_exact(self, network: Network) -> None:
        class Basis(Streams):
            """Probes whose mean of squares is exact: the two pixels, times the root of their number."""

            def child(self, *name: str | int) -> Streams:
                return self

            def normal(self, *shape: int, device: torch.device | None = None) -> torch.Tensor:
                return (math.sqrt(2) * torch.eye(2)).view(1, *shape)

        steps = self.steps(network, Basis([("any",)]))
        residual = (0.24593387, -0.39510030, 0.14916643)
        weights = [delta * x for delta in residual for x in (1, 2)]
        assert close(steps.gradient, *weights, *residual, rel=1e-5)
        sensitivity = steps.sensitivity(2)
        assert close(sensitivity, *self.sensitivities, rel=2e-5)
        ratio = variance_ratio(sensitivity, steps.gradient)[0]
        order = [0, 5, 2, 8, 3, 7, 4, 6, 1]
        for count in range(10):
            assert removed(ratio, count) == set(order[:count])
            assert removed(ratio, count, "as_printed") == set(order[9 - count :])

    def test_estimated(self, network: Network) -> None:
        sensitivity = self.steps(network, Streams([("softmax",)])).sensitivity(4000)
        assert close(sensitivity, *self.sensitivities, rel=0.1)


sizes = st.shared(st.integers(1, 7), key="d")
positive = st.floats(1e-3, 1e3)
rows = sizes.flatmap(lambda d: st.lists(positive, min_size=d, max_size=d)).map(lambda values: row(*values))
# Eighths have exact squares, so that equal ratios stay equal, and unequal ones unequal.
eighths = sizes.flatmap(lambda d: st.lists(st.integers(1, 12), min_size=d, max_size=d)).map(
    lambda values: row(*values) / 8
)
modes = st.sampled_from(MODES)


@given(rows, positive, positive, modes)
def test_equal_ratios_give_isotropic_noise(g: torch.Tensor, ratio: float, scale: float, mode: ScaleMode) -> None:
    variance = scale_variance(torch.full_like(g, ratio), g, scale, mode)
    isotropic = {
        "rms": scale**2,
        "fro": scale / math.sqrt(len(g)),
        "u2": scale / float(g.square().sum()),
    }
    assert close(variance, *[isotropic[mode]] * len(g))


@given(rows, rows, st.floats(1e-2, 1e2), modes)
def test_variances_do_not_depend_on_the_unit_of_sensitivity(
    a: torch.Tensor, g: torch.Tensor, unit: float, mode: ScaleMode
) -> None:
    variance = scale_variance(variance_ratio(a, g), g, 0.3, mode)
    torch.testing.assert_close(scale_variance(variance_ratio(unit * a, g), g, 0.3, mode), variance)


@given(rows, rows, positive)
def test_scale_modes_mean_what_they_say(a: torch.Tensor, g: torch.Tensor, scale: float) -> None:
    ratio = variance_ratio(a, g)
    rms, fro, u2 = (scale_variance(ratio, g, scale, mode) for mode in MODES)
    assert close(rms.mean().sqrt(), scale)
    assert close(torch.linalg.matrix_norm(torch.diag(fro)), scale)
    assert close((g * u2 * g).sum(), scale)
    for variance in (rms, fro, u2):
        torch.testing.assert_close(variance / variance.sum(), ratio / ratio.sum())


@given(rows, rows, rows)
def test_no_diagonal_covariance_of_equal_utility_beats_the_optimum(
    a: torch.Tensor, g: torch.Tensor, other: torch.Tensor
) -> None:
    optimum = scale_variance(variance_ratio(a, g), g, 2.0, "u2")
    rival = 2.0 * other / (g.square() * other).sum()
    assert trace(a, rival) >= trace(a, optimum) * (1 - 1e-9)
    assert close(trace(a, optimum), float((a.sqrt() * g).sum() ** 2 / 2))


@given(eighths, st.integers(0, 7))
def test_squared_ratios_prune_the_same_set(ratio: torch.Tensor, count: int) -> None:
    assert removed(ratio, min(count, len(ratio))) == removed(ratio.square(), min(count, len(ratio)))


@given(rows, rows, st.integers(0, 7))
def test_no_other_set_that_keeps_as_much_utility_reveals_less(a: torch.Tensor, g: torch.Tensor, count: int) -> None:
    kept = ~pruned(variance_ratio(a, g), (min(count, len(a)) + 0.5) / len(a) if count < len(a) else 1.0)
    b = g.square()
    utility, revealed = float(b[kept].sum()), float(a[kept].sum())
    for chosen in itertools.product([False, True], repeat=len(a)):
        other = torch.tensor(chosen)
        if b[other].sum() >= utility * (1 + 1e-9):
            assert a[other].sum() >= revealed * (1 - 1e-9)


@given(st.integers(0, 16), st.integers(1, 4), st.integers(0, 3), st.sampled_from(["corrected", "as_printed"]))
def test_the_number_pruned_is_exact_under_ties(sixteenths: int, times: int, levels: int, form: Form) -> None:
    ratio = (torch.arange(16 * times) * 7 % (levels + 1)).double()
    gone = pruned(ratio, sixteenths / 16, form)
    assert int(gone.sum()) == sixteenths * times
    if gone.any() and not gone.all():
        inside, outside = ratio[gone], ratio[~gone]
        assert inside.min() >= outside.max() if form == "corrected" else inside.max() <= outside.min()
        border = ratio == (inside.min() if form == "corrected" else inside.max())
        assert gone[border].int().diff().le(0).all()  # the earlier first among equals


@pytest.mark.parametrize("form", ["corrected", "as_printed"])
def test_fraction_0_is_the_identity_and_fraction_1_sends_nothing(form: Form) -> None:
    ratio = torch.tensor([[1.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
    assert not pruned(ratio, 0.0, form).any()
    assert pruned(ratio, 1.0, form).all()


def test_as_released_prunes_all_ties_and_everything_at_fraction_0() -> None:
    ratio = torch.tensor([[3.0, 1.0, 2.0, 2.0, 2.0, 0.0]])
    assert pruned(ratio, 2 / 6, "as_released").tolist() == [[True, False, True, True, True, False]]
    assert pruned(ratio, 0.0, "as_released").all()
    assert pruned(ratio, 1.0, "as_released").all()


def test_as_released_equals_corrected_without_ties() -> None:
    ratio = torch.rand(3, 50, generator=torch.Generator().manual_seed(0))
    for fraction in (0.1, 0.5, 0.98):
        assert torch.equal(pruned(ratio, fraction, "as_released"), pruned(ratio, fraction))


@pytest.mark.parametrize("form", ["corrected", "as_printed", "as_released"])
@pytest.mark.parametrize("mode", MODES)
def test_rows_do_not_mix(form: Form, mode: ScaleMode) -> None:
    draw = torch.Generator().manual_seed(1)
    a, g = torch.rand(4, 9, generator=draw), torch.randn(4, 9, generator=draw)
    ratio = variance_ratio(a, g, form)
    variance, gone = scale_variance(ratio, g, 0.5, mode), pruned(ratio, 0.4, form)
    for index in range(4):
        alone = variance_ratio(a[index], g[index], form)
        torch.testing.assert_close(scale_variance(alone, g[index], 0.5, mode), variance[index])
        assert torch.equal(pruned(alone, 0.4, form), gone[index])
