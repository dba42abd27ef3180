"""Errors of Zhang et al. (2024), each shown by computing: what is printed fails, what is meant or corrected holds.

The names count the errors as the page of secagg_dp does, which says in words what is wrong.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.theory.vectors import close, normal, row

from leakbench.errors import ConfigError, Infeasible
from leakbench.papers.secagg_dp.theory.gaussian_divergence import renyi_divergence
from leakbench.theory.aggregate_dp import (
    Aggregation,
    full_rank_curve,
    information_bound,
    least_eigenvalue,
    round_curve,
    round_guarantee,
)
from leakbench.theory.noise_calibration import calibrated_variance, total_epsilon
from leakbench.theory.span import LEAVES, pooled, residual, span_residuals
from leakbench.theory.water_filling import block_covariance, filled

MNIST, VARIANCE, ORDER, DELTA = Aggregation(50, 1200, 32, 10.0), 0.05, 32.0, 1e-4
TOTAL, UNIT = 50 * 0.05, 10.0**2 / (32 * 1200)
"""N sigma^2 and C^2 / (B D)."""


def gaussian(gradients: torch.Tensor, batch: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of a user's update under Gaussian sampling."""
    return gradients.mean(dim=-1), gradients @ gradients.mT / (batch * gradients.shape[-1])


class TestI01LastRowOfTable1:
    SETTING, FLOOR, AT = Aggregation(50, 4, 1, 1.0), 0.1875, 37.125

    def test_i01_the_last_row_is_the_one_above(self) -> None:
        printed = [round_curve(MNIST, VARIANCE, name, "as_printed") for name in ("gaussian", "gaussian_filled")]
        assert printed[0].epsilon(ORDER) == printed[1].epsilon(ORDER) == pytest.approx(0.0029514275, rel=1e-8)
        theorem = round_curve(MNIST, VARIANCE, "gaussian_filled", "corrected").epsilon(ORDER)
        assert theorem == pytest.approx(0.0042089094, rel=1e-7)

    def test_i01_it_is_false(self) -> None:
        """A record turns by a right angle beside three equal ones: infinite, where the row says 52."""
        first = torch.tensor([[1 / 5**0.5, 0, 0, 0], [-2 / 5**0.5, 1, 1, 1]], dtype=torch.float64)
        second = torch.tensor([[2 / 5**0.5, 0, 0, 0], [1 / 5**0.5, 1, 1, 1]], dtype=torch.float64)
        rest = 49 * self.FLOOR * torch.eye(2, dtype=torch.float64)
        (mean, covariance), (other, changed) = (gaussian(gradients, 1) for gradients in (first, second))
        sums = mean, filled(covariance, self.FLOOR) + rest, other, filled(changed, self.FLOOR) + rest
        assert float(renyi_divergence(*sums, self.AT)) == math.inf
        printed = round_curve(self.SETTING, self.FLOOR, "gaussian_filled", "as_printed")
        assert printed.epsilon(self.AT) == pytest.approx(52.2404844, rel=1e-8)
        right = round_curve(self.SETTING, self.FLOOR, "gaussian_filled", "corrected")
        with pytest.raises(ConfigError, match="holds for orders alpha in"):
            right.epsilon(self.AT)
        assert float(renyi_divergence(*sums, 18.5)) < right.epsilon(18.5)


def test_i02_the_last_line_of_eq_43_lacks_b() -> None:
    """With 2 a C^2 / D in the denominator there is no bound at order 32, where eq. 35 has 0.0042."""
    numerator = 2 * ORDER * 10.0**2 / 1200**2 + 2 * ORDER * UNIT / (ORDER - 1)
    assert TOTAL - 2 * ORDER * 10.0**2 / 1200 < 0
    found = round_curve(MNIST, VARIANCE, "gaussian_filled", "corrected").epsilon(ORDER)
    assert numerator / (TOTAL - 2 * ORDER * UNIT) == pytest.approx(found, rel=1e-12)


def test_i03_the_range_of_orders_lacks_b() -> None:
    printed, right = (
        round_curve(MNIST, VARIANCE, "gaussian_filled", form) for form in ("theorem_as_printed", "corrected")
    )
    assert close(printed.limit, 15) and close(right.limit, 480)
    assert printed.epsilon(10.0) == right.epsilon(10.0)
    best = right.guarantee(DELTA)
    assert best.epsilon == pytest.approx(0.0684622, rel=1e-5) and best.order == pytest.approx(216.4, rel=1e-3)
    assert printed.guarantee(DELTA).epsilon > 9 * best.epsilon


def test_i04_two_conventions_of_the_covariance() -> None:
    """With Sigma = G G^T / D (eq. 16) the floor is B times as large, and eq. 35 has another form."""
    floor = 32 * VARIANCE
    numerator = 2 * ORDER * 32 * 100 / 1200**2 + 2 * ORDER * 100 / ((ORDER - 1) * 1200)
    other = numerator / (50 * floor - 2 * ORDER * 100 / 1200)
    assert other == pytest.approx(round_curve(MNIST, VARIANCE, "gaussian_filled").epsilon(ORDER), rel=1e-12)
    assert other != pytest.approx(round_curve(MNIST, floor, "gaussian_filled").epsilon(ORDER), rel=0.5)


def test_i05_the_divergence_has_no_b() -> None:
    """Eq. 40 divides the order by B; eq. 22, whose first term it is, does not."""
    mean, other, same = row(0.0, 0.0), row(1.0, 2.0), torch.eye(2, dtype=torch.float64)
    assert float(renyi_divergence(mean, same, other, same, 3.0)) == pytest.approx(3 / 2 * 5, rel=1e-12)


def test_i06_assumption_4_lacks_a_division_by_d() -> None:
    """Records 1, 1 become 0, 1: literally taken, eq. 31 is 1.9 where the divergence is 5.7."""
    first, second = row(1, 1).view(1, 2), row(0, 1).view(1, 2)
    found = float(renyi_divergence(*gaussian(first, 1), *gaussian(second, 1), 1.9))
    assert found == pytest.approx(5.68264035, rel=1e-8)
    literal, right = (float(least_eigenvalue(first, form)) for form in ("as_printed", "corrected"))
    assert literal == pytest.approx(2) and right == pytest.approx(1)
    assert full_rank_curve(2, 1, 1.0, literal).epsilon(1.9) == pytest.approx(1.91005291, rel=1e-8)
    assert full_rank_curve(2, 1, 1.0, right).epsilon(1.9) == pytest.approx(40.1111111, rel=1e-8)


def test_i07_the_condition_of_theorem_3_is_of_the_whole_space() -> None:
    """There the smallest eigenvalue is zero, for which the theorem is meant; in the subspace it is not."""
    inside = normal(0, 2, 20)
    basis = torch.linalg.qr(normal(1, 5, 2)).Q
    assert float(least_eigenvalue(basis @ inside)) < 1e-12
    assert float(least_eigenvalue(inside)) > 0.1


class TestI08OrderOfCovariances:
    BASE = torch.diag(torch.tensor([0.0, 3.0], dtype=torch.float64))
    OLD, NEW = (torch.tensor(vector, dtype=torch.float64) / 5**0.5 for vector in ((1, -2), (2, 1)))

    def test_i08_eq_38_is_false(self) -> None:
        before, after = (self.BASE + torch.outer(vector, vector) for vector in (self.OLD, self.NEW))
        change = (filled(after, 1.0) - after) - (filled(before, 1.0) - before)
        least = torch.linalg.eigvalsh(change + torch.outer(self.NEW, self.NEW))[0]
        assert float(least) == pytest.approx(-0.05643195, rel=1e-5)

    def test_i08_the_frobenius_norm_holds(self) -> None:
        before, after = (self.BASE + torch.outer(vector, vector) for vector in (self.OLD, self.NEW))
        change = torch.linalg.matrix_norm(filled(after, 1.0) - filled(before, 1.0))
        assert change <= torch.linalg.matrix_norm(after - before) <= math.sqrt(2) + 1e-12


def test_i09_blocks_that_share_their_weights_break_the_floor() -> None:
    """Two coordinates that are equal: each has variance 1 by itself, and their difference has none."""
    gradients = torch.ones(2, 1, dtype=torch.float64)
    assert close(torch.linalg.eigvalsh(block_covariance(gradients, 1, 1.0, 2, "as_printed")), 0, 2)
    assert close(torch.linalg.eigvalsh(block_covariance(gradients, 1, 1.0, 2, "corrected")), 1, 1)
    other = gaussian(torch.zeros(2, 1, dtype=torch.float64), 1)[0]
    shared = block_covariance(gradients, 1, 1.0, 2, "as_printed")
    shift = other + row(0.5, -0.5)
    assert float(renyi_divergence(other, shared, shift, shared, 2.0)) == math.inf


class TestI10ThreeSpans:
    def test_i10_they_are_not_equivalent(self) -> None:
        """User 1 has e1 twice and e3; user 2 has e1 and e2: who counts as the others decides."""
        first = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 0, 1]], dtype=torch.float64)
        second = torch.tensor([[1, 0, 0], [0, 1, 1], [0, 0, 0]], dtype=torch.float64)
        both = torch.stack([first, second])
        leaves = {name: span_residuals(both, name) > LEAVES for name in ("pooled", "per_user", "other_users")}
        assert leaves["pooled"].tolist() == [[False, False, True], [False, False, False]]
        assert leaves["per_user"].tolist() == [[False, False, True], [True, False, False]]
        assert leaves["other_users"].tolist() == [[False, False, True], [False, True, True]]

    def test_i10_with_the_record_itself_nothing_leaves(self) -> None:
        """In Theorem 1's words the span has the record's own gradient; one that replaces it may leave that."""
        gradients = normal(2, 2, 7, 2)
        assert (residual(pooled(gradients), pooled(gradients)) < LEAVES).all()
        assert (span_residuals(gradients) > LEAVES).all()
        assert (residual(pooled(gradients), normal(3, 7, 5)) > LEAVES).all()


def test_i11_weights_of_a_sum_add_up_to_n() -> None:
    """Section 4.3 asks that they add up to 1: of users whose gradients are all 1 the sum of updates is N."""
    users, records, batch = 3, 8, 4
    weights = torch.zeros(users, records, dtype=torch.float64)
    weights[:, :batch] = 1 / batch
    assert float((weights * torch.ones(users, records)).sum()) == users
    assert int((weights != 0).sum()) == users * batch


class TestI12EigenvaluesOfTheData:
    def test_i12_equal_records_have_none(self) -> None:
        gradients = row(1, 2).unsqueeze(-1).expand(2, 5)
        assert float(least_eigenvalue(gradients)) < 1e-12
        with pytest.raises(Infeasible, match="found Lambda = 0"):
            full_rank_curve(5, 1, 3.0, 0.0)

    def test_i12_a_record_can_end_the_guarantee(self) -> None:
        """Two records on two axes have epsilon by their own eigenvalue; with one replaced there is none."""
        before, after = torch.eye(2, dtype=torch.float64), row(1, 1, 0, 0).view(2, 2)
        assert float(least_eigenvalue(before)) == pytest.approx(0.5) and float(least_eigenvalue(after)) == 0
        assert float(renyi_divergence(*gaussian(before, 1), *gaussian(after, 1), 1.5)) == math.inf


class TestI13NothingForLargeModels:
    def test_i13_fewer_records_than_coordinates(self) -> None:
        assert float(least_eigenvalue(normal(4, 7, 6))) == 0

    def test_i13_clipping_bounds_the_eigenvalue(self) -> None:
        """By C^2 / K: of the linear model on all of MNIST orders are below 7.6, at best."""
        gradients = normal(5, 100, 4, 9)
        gradients /= gradients.norm(dim=1, keepdim=True)
        assert (least_eigenvalue(gradients) <= 1 / 4 + 1e-12).all()
        curve = full_rank_curve(1200, 32, 10.0, 50 * 10.0**2 / 7850)
        assert curve.limit == pytest.approx(7.643, abs=1e-3)


def test_i14_batches_amplify_delta_too() -> None:
    """The row keeps delta, which is safe: with q delta outside, epsilon is smaller."""
    printed, right = (round_guarantee(MNIST, VARIANCE, DELTA, "sgd", form) for form in ("as_printed", "corrected"))
    assert printed.epsilon == pytest.approx(0.1227668, rel=1e-6)
    assert printed.delta == right.delta == DELTA and right.epsilon < 0.7 * printed.epsilon
    inside = round_guarantee(MNIST, VARIANCE, DELTA * 1200 / 32, "sgd", "as_printed")
    assert inside.epsilon == pytest.approx(right.epsilon, rel=1e-12)


def test_i15_less_noise_at_equal_variance_is_more_at_equal_epsilon() -> None:
    """Linear model, epsilon 2 in all: 907 of isotropic noise, and 1,152 or more of water-filling; it saves 3.1."""
    even = 7850 * calibrated_variance(MNIST, 2.0, 100, DELTA, "gaussian", "as_printed")
    least = 7850 * calibrated_variance(MNIST, 2.0, 100, DELTA, "gaussian_filled") - 10.0**2 / 32
    assert even == pytest.approx(907, abs=1) and least == pytest.approx(1152, abs=1)


def test_i16_the_bound_has_a_pole_that_the_divergence_has_not() -> None:
    curves = {form: round_curve(MNIST, VARIANCE, "gaussian_filled", form) for form in ("corrected", "repaired")}
    assert curves["corrected"].epsilon(1 + 1e-7) > 1e4
    assert curves["repaired"].epsilon(1 + 1e-7) < 1e-4
    mean, covariance = row(0.0), row(1.0).view(1, 1)
    near = [float(renyi_divergence(mean, covariance, mean, 0.9 * covariance, 1 + gap)) for gap in (1e-2, 1e-6)]
    assert near[1] == pytest.approx((1 / 0.9 - 1 + math.log(0.9)) / 2, rel=1e-4) and near[1] < near[0]


def test_i17_information_falls_as_one_over_n() -> None:
    """Not linearly: each doubling of users halves it, nearly."""
    found = [information_bound(users, 32, 7850) for users in (50, 100, 200, 400)]
    assert found[0] == pytest.approx(84.3020038, rel=1e-8)
    for fewer, more in itertools.pairwise(found):
        assert fewer / more == pytest.approx(2, rel=0.02)
    steps = [fewer - more for fewer, more in itertools.pairwise(found)]
    assert steps[0] > 1.9 * steps[1] > 3.6 * steps[2] / 2


def test_i20_noise_of_colluding_users_does_not_count() -> None:
    """With half of the users on the server's side as much noise has a larger epsilon: twice the noise mends it."""
    variance = calibrated_variance(MNIST, 2.0, 100, DELTA, "gd")
    honest = Aggregation(25, 1200, 32, 10.0)
    assert total_epsilon(honest, variance, 100, DELTA, "gd") > 1.3 * 2.0
    assert total_epsilon(honest, 2 * variance, 100, DELTA, "gd") == pytest.approx(2.0, rel=1e-8)


def test_i21_noise_of_users_who_drop_out_is_missing() -> None:
    variance = calibrated_variance(MNIST, 2.0, 100, DELTA, "gaussian_filled")
    survivors = [
        total_epsilon(Aggregation(users, 1200, 32, 10.0), variance, 100, DELTA, "gaussian_filled")
        for users in (50, 45, 40)
    ]
    assert survivors[0] == pytest.approx(2.0, rel=1e-8) and survivors == sorted(survivors)
    assert survivors[2] > 1.1 * survivors[0]
