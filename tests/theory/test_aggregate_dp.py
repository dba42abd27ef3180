"""Bounds on the privacy of sums of updates: printed numbers, and the exact divergence of neighbours."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.theory.vectors import close, normal, row

from leakbench.errors import ConfigError, Infeasible
from leakbench.papers.secagg_dp.theory.gaussian_divergence import renyi_divergence
from leakbench.theory.aggregate_dp import (
    Aggregation,
    Form,
    Mechanism,
    amplified,
    forms,
    full_rank_curve,
    full_rank_repaired,
    information_bound,
    least_eigenvalue,
    round_curve,
    round_guarantee,
)
from leakbench.theory.renyi_curves import RenyiCurve
from leakbench.theory.water_filling import filled

MNIST = Aggregation(users=50, records=1200, batch=32, clip=10.0)
ROUNDING = 1e-9


class TestPrintedNumbers:
    def test_theorem_2(self) -> None:
        """Ten users with smallest eigenvalues 0.05."""
        curve = full_rank_curve(100, 8, 1.0, 0.5)
        assert curve.limit == pytest.approx(50)
        assert curve.epsilon(5) == pytest.approx(0.0455555556, rel=1e-8)
        assert curve.epsilon(5) + math.log(1e4) / 4 == pytest.approx(2.3481406485, rel=1e-9)
        best = curve.guarantee(1e-4)
        assert best.epsilon == pytest.approx(0.584920, rel=1e-6) and best.order == pytest.approx(25.64, rel=1e-3)
        assert full_rank_repaired(100, 8, 1.0, 0.5).epsilon(5) == pytest.approx(0.0186234627, rel=1e-8)

    @pytest.mark.parametrize(
        ("mechanism", "form", "epsilon", "limit", "least", "order"),
        [
            ("gd", "as_printed", 0.00177777778, math.inf, 0.0452965, 408.17),
            ("sgd", "as_printed", 2.5, math.inf, 0.1227668, 11.858),
            ("gaussian", "as_printed", 0.0029514275, 960, 0.0564359, None),
            ("gaussian", "repaired", 0.0018556793, 961, 0.0552286, None),
            ("gaussian_filled", "as_printed", 0.0029514275, 960, 0.0564359, None),
            ("gaussian_filled", "corrected", 0.0042089094, 480, 0.0684622, 216.4),
            ("gaussian_filled", "repaired", 0.0018819691, 1 + 960 / math.sqrt(2), 0.0592510, None),
        ],
    )
    def test_table(
        self, mechanism: Mechanism, form: Form, epsilon: float, limit: float, least: float, order: float | None
    ) -> None:
        curve = round_curve(MNIST, 0.05, mechanism, form)
        assert curve.epsilon(32) == pytest.approx(epsilon, rel=1e-7) and curve.limit == pytest.approx(limit)
        found = round_guarantee(MNIST, 0.05, 1e-4, mechanism, form)
        assert found.epsilon == pytest.approx(least, rel=2e-6)
        assert order is None or found.order == pytest.approx(order, rel=1e-3)

    def test_printed_range_of_theorem_4(self) -> None:
        """Orders up to 15 and not 480; the same bound at these, and a larger epsilon."""
        curve = round_curve(MNIST, 0.05, "gaussian_filled", "theorem_as_printed")
        assert curve.limit == pytest.approx(15)
        with pytest.raises(ConfigError, match=r"Theorem 4 holds for orders alpha in \(1, 15\)"):
            curve.epsilon(32)
        assert curve.epsilon(14.9) == round_curve(MNIST, 0.05, "gaussian_filled").epsilon(14.9)
        assert round_guarantee(MNIST, 0.05, 1e-4, "gaussian_filled", "theorem_as_printed").epsilon > 0.6

    def test_amplification(self) -> None:
        inside = round_curve(MNIST, 0.05, "sgd").guarantee(1e-4)
        assert inside.epsilon == pytest.approx(1.7746601, rel=1e-7)
        assert amplified(inside.epsilon, 32 / 1200) == pytest.approx(0.1227668, rel=1e-6)
        tight = round_guarantee(MNIST, 0.05, 1e-4, "sgd", "corrected")
        at = round_curve(MNIST, 0.05, "sgd").guarantee(1e-4 * 1200 / 32)
        assert tight.epsilon == amplified(at.epsilon, 32 / 1200) < 0.1227668 and tight.delta == 1e-4
        assert round_guarantee(MNIST, 0.05, 0.5, "sgd") == round_guarantee(MNIST, 0.05, 0.5, "sgd", "as_printed")

    def test_information(self) -> None:
        assert information_bound(50, 32, 7850) == pytest.approx(84.3020038, rel=1e-9)
        assert information_bound(50, 32, 7850, 2.0) == pytest.approx(84.3020038 + 5.0063776, rel=1e-8)


def mean_and_covariance(gradients: torch.Tensor, batch: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a user's update under Gaussian sampling."""
    return gradients.mean(dim=-1), gradients @ gradients.mT / (batch * gradients.shape[-1])


def scene(seed: int, users: int, size: int, records: int, clip: float, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Clipped gradients ``[N, K, D]``, and those of the first user with one record replaced ``[K, D]``."""
    drawn = normal(seed, users, size, records)
    if kind == "axes":  # as far apart as can be
        drawn = torch.eye(size).double()[:, torch.arange(users * records) % size].T.reshape(users, records, size).mT
    scaled = clip * drawn / drawn.norm(dim=1, keepdim=True)
    other = scaled[0].clone()
    if kind == "opposite":
        other[:, 0] = -other[:, 0] + 0.1 * clip * normal(seed + 1, size)
    else:
        other[:, 0] = normal(seed + 1, size)
    other[:, 0] *= clip / other[:, 0].norm().clamp(min=clip if kind == "opposite" else 0)
    return scaled, other


@st.composite
def neighbours(draw: st.DrawFn, most: int = 4) -> tuple[Aggregation, torch.Tensor, torch.Tensor]:
    users, records = draw(st.integers(2, 4)), draw(st.integers(1, 8))
    clip, size, seed = draw(st.sampled_from([1.0, 10.0])), draw(st.integers(1, most)), draw(st.integers(0, 2**31))
    batch = draw(st.sampled_from([1, records]))
    kind = draw(st.sampled_from(["random", "opposite", "axes"]))
    return Aggregation(users, records, batch, clip), *scene(seed, users, size, records, clip, kind)


def exact(first: torch.Tensor, second: torch.Tensor, setting: Aggregation, order: float, floor: float = 0.0) -> float:
    """Divergence of the sums, where all users' covariances are filled up to a floor."""

    def summed(gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, covariance = mean_and_covariance(gradients, setting.batch)
        return mean.sum(dim=0), (filled(covariance, floor) if floor else covariance).sum(dim=0)

    return float(renyi_divergence(*summed(first), *summed(torch.cat([second.unsqueeze(0), first[1:]])), order))


def bounded(divergence: float, curve: RenyiCurve, order: float) -> bool:
    return divergence <= curve.epsilon(order) * (1 + ROUNDING) + 1e-12


def between(limit: float, part: float) -> float:
    """An order inside the range of a curve."""
    return 1 + (min(limit, 1e6) - 1) * part


PARTS = st.one_of(st.floats(1e-3, 0.999), st.floats(0.9, 0.999999))


@settings(max_examples=80, deadline=None)
@given(neighbours(), PARTS)
def test_theorem_2_holds(case: tuple[Aggregation, torch.Tensor, torch.Tensor], part: float) -> None:
    """With the sum of smallest eigenvalues, and with the smallest one of the sum, which is larger."""
    setting, first, second = case
    summed = float(least_eigenvalue(first).sum())
    side_by_side = torch.cat(list(first), dim=-1)
    joint = setting.users * float(least_eigenvalue(side_by_side))
    assert joint >= summed * (1 - ROUNDING)
    unit = setting.clip**2 / setting.records
    assume(joint > unit * 1.01)
    for floor in (summed, joint):
        if floor > unit * 1.01:
            curve = full_rank_curve(setting.records, setting.batch, setting.clip, floor)
            order = between(curve.limit, part)
            assert bounded(exact(first, second, setting, order), curve, order)
    after = setting.users * float(least_eigenvalue(torch.cat([second, *first[1:]], dim=-1)))
    if (floor := min(joint, after)) > unit * 1.01:
        curve = full_rank_repaired(setting.records, setting.batch, setting.clip, floor)
        order = between(curve.limit, part)
        assert bounded(exact(first, second, setting, order), curve, order)


@settings(max_examples=120, deadline=None)
@given(neighbours(), PARTS, st.floats(-1.5, 4))
def test_filled_covariances(case: tuple[Aggregation, torch.Tensor, torch.Tensor], part: float, exponent: float) -> None:
    """Theorem 4 with its full range of orders, and the repaired bound; the latter is below the former."""
    setting, first, second = case
    variance = setting.clip**2 / (setting.batch * setting.records) * math.exp(exponent)
    for form in ("corrected", "theorem_as_printed", "repaired"):
        try:
            curve = round_curve(setting, variance, "gaussian_filled", form)
        except Infeasible:
            continue
        order = between(curve.limit, part)
        assert bounded(exact(first, second, setting, order, variance), curve, order)
        if form == "corrected":
            assert round_curve(setting, variance, "gaussian_filled", "repaired").epsilon(order) <= curve.epsilon(order)


@settings(max_examples=80, deadline=None)
@given(neighbours(), PARTS, st.floats(-1.5, 4))
def test_isotropic_noise(case: tuple[Aggregation, torch.Tensor, torch.Tensor], part: float, exponent: float) -> None:
    """On Gaussian sampling; and on all records, where only means differ."""
    setting, first, second = case
    variance = setting.clip**2 / (setting.batch * setting.records) * math.exp(exponent)
    noise = setting.users * variance * torch.eye(first.shape[1]).double()
    (mean, covariance), (other, changed) = (
        (found[0] + rest[0].sum(dim=0), found[1] + rest[1].sum(dim=0))
        for rest in [mean_and_covariance(first[1:], setting.batch)]
        for found in (mean_and_covariance(first[0], setting.batch), mean_and_covariance(second, setting.batch))
    )
    for form in ("as_printed", "repaired"):
        try:
            curve = round_curve(setting, variance, "gaussian", form)
        except Infeasible:
            continue
        order = between(curve.limit, part)
        assert bounded(float(renyi_divergence(mean, covariance + noise, other, changed + noise, order)), curve, order)
    curve = round_curve(setting, variance, "gd")
    assert bounded(float(renyi_divergence(mean, noise, other, noise, 1 + part)), curve, 1 + part)


class TestRefuted:
    def test_subspace_without_division(self) -> None:
        """Records 1, 1 become 0, 1: Assumption 4 without 1/D takes the eigenvalue 2 for 1, and is beaten."""
        first, second = row(1, 1).view(1, 2), row(0, 1).view(1, 2)
        (mean, covariance), (other, changed) = mean_and_covariance(first, 1), mean_and_covariance(second, 1)
        found = float(renyi_divergence(mean, covariance, other, changed, 1.9))
        assert found == pytest.approx(5.68264035, rel=1e-8)
        assert close(least_eigenvalue(first), 1) and close(least_eigenvalue(first, "as_printed"), 2)
        right, wrong = full_rank_curve(2, 1, 1.0, 1.0).epsilon(1.9), full_rank_curve(2, 1, 1.0, 2.0).epsilon(1.9)
        assert right == pytest.approx(40.1111111, rel=1e-8) and wrong == pytest.approx(1.91005291, rel=1e-8)
        assert wrong < found < right

    def test_last_row_of_the_table(self) -> None:
        """Two coordinates, a record turns by a right angle: infinite divergence at an order that the row allows."""
        setting, order, variance = Aggregation(50, 4, 1, 1.0), 37.125, 0.1875
        first = torch.zeros(50, 2, 4, dtype=torch.float64)
        first[0] = torch.tensor([[1 / 5**0.5, 0, 0, 0], [-2 / 5**0.5, 1, 1, 1]], dtype=torch.float64)
        second = torch.tensor([[2 / 5**0.5, 0, 0, 0], [1 / 5**0.5, 1, 1, 1]], dtype=torch.float64)
        printed = round_curve(setting, variance, "gaussian_filled", "as_printed")
        assert printed.epsilon(order) == pytest.approx(52.2404844, rel=1e-8) and order < printed.limit
        assert exact(first, second, setting, order, variance) == math.inf
        for form in ("corrected", "repaired"):
            with pytest.raises(ConfigError, match="orders alpha in"):
                round_curve(setting, variance, "gaussian_filled", form).epsilon(order)
        before, after = (filled(mean_and_covariance(gradients, 1)[1], variance) for gradients in (first[0], second))
        rest = 49 * variance * torch.eye(2).double()
        mixed = (1 - order) * (before + rest) + order * (after + rest)
        assert float(torch.linalg.eigvalsh(mixed)[0]) == pytest.approx(-0.11980651, rel=1e-6)
        least = 4 * float(torch.linalg.eigvalsh(after - before)[0])
        assert least == pytest.approx(-1.08838982, rel=1e-6) and -math.sqrt(2) < least

    def test_order_of_covariances(self) -> None:
        """Eq. 38: what is added may fall by more than the record's own covariance, by a twentieth of it here."""
        one, other = row(1, -2) / 5**0.5, row(2, 1) / 5**0.5
        base = row(0, 3).diag()
        before, after = (base + torch.outer(vector, vector) for vector in (one, other))
        change = (filled(after, 1.0) - after) - (filled(before, 1.0) - before)
        least = torch.linalg.eigvalsh(change + torch.outer(other, other))[0]
        assert float(least) == pytest.approx(-0.05643195, rel=1e-5)

    def test_filling_without_gaussian_sampling(self) -> None:
        """All records and noise that fills: where an eigenvalue exceeds the floor there is no noise, and no privacy."""
        gradients = torch.tensor([[3.0, 0], [0, 1], [0, 1]], dtype=torch.float64)
        other = gradients.clone()
        other[0, 0] = 2.5
        added = [filled(cov, 1.0) - cov for _, cov in (mean_and_covariance(g, 2) for g in (gradients, other))]
        means = [g.mean(dim=-1) for g in (gradients, other)]
        for order in (1.0001, 2.0, 50.0):
            assert float(renyi_divergence(means[0], added[0], means[1], added[1], order)) == math.inf
        for mechanism in ("sgd_filled", "gd_filled"):
            with pytest.raises(Infeasible, match=f"{mechanism}.*no differential privacy"):
                round_curve(MNIST, 1.0, mechanism)


def test_directions() -> None:
    """Of Theorem 2's bound: falls with users and eigenvalues, grows with C, and without limit at C^2 / D."""
    epsilons = [full_rank_curve(100, 8, 1.0, users * 0.05).epsilon(2.0) for users in (2, 5, 10, 50)]
    assert epsilons == sorted(epsilons, reverse=True)
    grown = [full_rank_curve(100, 8, clip, 0.5).epsilon(2.0) for clip in (0.5, 1.0, 2.0)]
    assert grown == sorted(grown)
    assert full_rank_curve(100, 8, 1.0, 0.02 * (1 + 1e-9)).epsilon(2.0) > 1e8
    bounds = [information_bound(users, 32, 7850) for users in (2, 3, 10, 1000, 10**6)]
    assert bounds == sorted(bounds, reverse=True) and bounds[-1] * 10**6 == pytest.approx(
        7850 * (1 / 32 + 0.5), rel=1e-5
    )


def test_batches_of_all_records() -> None:
    """Batches as large as the data are the data."""
    whole = replace(MNIST, batch=1200)
    assert round_guarantee(whole, 0.05, 1e-4, "sgd") == round_guarantee(whole, 0.05, 1e-4, "gd")
    some = [round_guarantee(replace(MNIST, batch=b), 0.05, 1e-4, "sgd").epsilon for b in (300, 600, 1199.99)]
    assert some[-1] == pytest.approx(round_guarantee(whole, 0.05, 1e-4, "gd").epsilon, rel=1e-4)


@given(st.floats(0, 200), st.floats(1e-6, 1))
def test_amplified(epsilon: float, rate: float) -> None:
    found = amplified(epsilon, rate)
    assert found <= epsilon * (1 + 1e-12) and found >= rate * epsilon * (1 - 1e-9)
    assert found == pytest.approx(math.log(1 + rate * (math.exp(epsilon) - 1)), rel=1e-6, abs=1e-12)


def test_conventions_agree() -> None:
    """Theorem 2 with ``Lambda = B N sigma^2`` is the row of isotropic noise: covariances there are divided by B."""
    curve = full_rank_curve(1200, 32, 10.0, 32 * 50 * 0.05)
    row_5 = round_curve(MNIST, 0.05, "gaussian")
    assert curve.epsilon(32) == pytest.approx(row_5.epsilon(32), rel=1e-12)
    repaired = full_rank_repaired(1200, 32, 10.0, 32 * 50 * 0.05)
    assert repaired.epsilon(32) == pytest.approx(
        round_curve(MNIST, 0.05, "gaussian", "repaired").epsilon(32), rel=1e-12
    )


def test_least_eigenvalues() -> None:
    gradients = normal(0, 3, 4, 9)
    dense = torch.linalg.eigvalsh(gradients @ gradients.mT)[:, 0]
    torch.testing.assert_close(least_eigenvalue(gradients), dense / 9)
    torch.testing.assert_close(least_eigenvalue(gradients, "as_printed"), dense)
    assert close(least_eigenvalue(gradients[..., :3]), 0, 0, 0)


class TestErrors:
    def test_settings(self) -> None:
        for users in (1, 0, -1):
            with pytest.raises(ConfigError, match=f"2 users at least, found users = {users}"):
                Aggregation(users, 10, 5, 1.0)
            with pytest.raises(ConfigError, match="2 users at least"):
                information_bound(users, 32, 100)
        for records, batch in ((0, 1), (10, 11), (10, 0), (10, math.nan)):
            with pytest.raises(ConfigError, match="a batch must lie in"):
                Aggregation(2, records, batch, 1.0)
        for clip in (0.0, math.inf, math.nan):
            with pytest.raises(ConfigError, match="the clipping norm must be positive"):
                Aggregation(2, 10, 5, clip)

    def test_noise(self) -> None:
        for variance in (0.0, -1.0, math.nan, math.inf):
            with pytest.raises(ConfigError, match="the variance of noise must be positive"):
                round_curve(MNIST, variance, "gd")
        limits: dict[Form, float] = {
            "corrected": 2, "as_printed": 1, "repaired": math.sqrt(2), "theorem_as_printed": 64
        }  # fmt: skip
        for form, limit in limits.items():
            least = limit * 100 / (50 * 32 * 1200)
            with pytest.raises(Infeasible):
                round_curve(MNIST, least * 0.999, "gaussian_filled", form)
            round_curve(MNIST, least * 1.001, "gaussian_filled", form)

    def test_orders(self) -> None:
        curve = round_curve(MNIST, 0.05, "gaussian_filled")
        for order in (1.0, 0.5, 480.0, math.inf, math.nan):
            with pytest.raises(ConfigError, match=r"Theorem 4 holds for orders alpha in \(1, 480\), found alpha"):
                curve.epsilon(order)

    def test_equal_gradients(self) -> None:
        equal = torch.ones(3, 2, 5, dtype=torch.float64)
        floor = float(least_eigenvalue(equal).sum())
        assert floor == pytest.approx(0, abs=1e-12)
        for bound in (full_rank_curve, full_rank_repaired):
            for found in (floor, 0.2, math.nan, math.inf):
                with pytest.raises(Infeasible, match=r"above C\^2 / D = 0\.2, found Lambda"):
                    bound(5, 1, 1.0, found)

    def test_names(self) -> None:
        with pytest.raises(ConfigError, match="gd has the forms as_printed, corrected, found repaired"):
            round_curve(MNIST, 1.0, "gd", "repaired")
        with pytest.raises(ConfigError, match="the mechanisms are"):
            forms("fed")  # type: ignore[arg-type]
        for epsilon, rate in ((-1.0, 0.5), (math.inf, 0.5), (1.0, 0.0), (1.0, 1.1)):
            with pytest.raises(ConfigError, match="rate"):
                amplified(epsilon, rate)
        for delta in (0.0, 1.0):
            with pytest.raises(ConfigError, match="delta must lie"):
                round_guarantee(MNIST, 1.0, delta, "sgd")
