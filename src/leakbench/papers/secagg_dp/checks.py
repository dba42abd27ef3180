"""The paper's theorems and formulas, checked by computing: see :mod:`leakbench.report.checks`.

A check of a wrong statement of the paper does not hold; the check whose key follows is of the correction. Bounds on
divergences are compared with the exact divergence of normal distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.papers.secagg_dp import PAPER
from leakbench.papers.secagg_dp.common import EPSILONS, MNIST
from leakbench.papers.secagg_dp.tables import traces
from leakbench.papers.secagg_dp.theory.gaussian_divergence import renyi_divergence
from leakbench.randomness import generator
from leakbench.report.checks import EXACT, STRICT, Checked, agreement, checked, float64, required, theorem_of
from leakbench.theory.aggregate_dp import (
    Aggregation,
    Form,
    SubspaceForm,
    full_rank_curve,
    information_bound,
    least_eigenvalue,
    round_curve,
    round_guarantee,
)
from leakbench.theory.renyi_curves import RenyiCurve
from leakbench.theory.span import LEAVES, leave_one_out, rank
from leakbench.theory.water_filling import BlockForm, added_trace, block_covariance, filled

theorem = partial(theorem_of, PAPER)

ROUNDING = 1e-7
"""Relative, of a divergence: an order close to a pole magnifies that of float64."""

TRIALS = 200
SCENES = ((2, 1, 3, 1), (3, 2, 8, 4), (4, 3, 12, 1), (2, 2, 30, 30))
"""N, K, D, B of random cases."""
PARTS = (0.001, 0.1, 0.5, 0.9, 0.99)
"""Places of an order between 1 and the last one for which a bound is proved."""


def _normal(name: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(PAPER, "theory", name), dtype=torch.float64)


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    scaled: torch.Tensor = vectors / vectors.norm(dim=-2, keepdim=True)
    return scaled


def _neighbours(name: str, users: int, size: int, records: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of norm 1 as columns, ``[TRIALS, N, K, D]``, and those with a record of the first user replaced.

    In half of the cases by its opposite, nearly.
    """
    drawn = _unit(_normal(f"{name}, gradients", TRIALS, users, size, records))
    new = _normal(f"{name}, replaced", TRIALS, size)
    new[::2] = 0.1 * new[::2] - drawn[::2, 0, :, 0]
    after = drawn.clone()
    after[:, 0, :, 0] = new / new.norm(dim=-1, keepdim=True)
    return drawn, after


def _sums(gradients: torch.Tensor, batch: float, floor: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of a sum under Gaussian sampling, each user's covariance filled up to a floor."""
    covariance = gradients @ gradients.mT / (batch * gradients.shape[-1])
    if floor:
        covariance = filled(covariance, floor)
    return gradients.mean(dim=-1).sum(dim=1), covariance.sum(dim=1)


def _excess(bound: torch.Tensor | float, divergence: torch.Tensor) -> torch.Tensor:
    """Excess of a bound over a divergence, in parts of it; -1 where that is infinite."""
    return torch.where(divergence.isinf(), -1.0, bound / divergence - 1 + ROUNDING)


def _orders(curve: RenyiCurve) -> list[float]:
    """Orders at :data:`PARTS` of the range of a curve."""
    return [1 + (curve.limit - 1) * part for part in PARTS]


@theorem(
    "T1",
    "Where a record's gradient leaves the span of all others, Gaussian sampling without noise has an infinite "
    "divergence.",
    source="Theorem 1",
)
def leaving_the_span_is_infinite() -> Checked:
    """A gradient outside of the span of all others has a neighbour at infinite divergence.

    Gaussian weights, no noise; the neighbour has a record without gradient. In half of the cases the record's gradient
    is a sum of two others, and the divergence at orders near 1 is finite.
    """
    columns = _normal("span", TRIALS, 9, 6)
    columns[::2, :, 0] = columns[::2, :, 1] + columns[::2, :, 2]
    removed = columns.clone()
    removed[:, :, 0] = 0
    left = leave_one_out(columns)[:, 0]
    leaves = left > LEAVES
    pair = [(m.sum(dim=-1) / 6, m @ m.mT / 6) for m in (removed, columns)]
    slacks = [required(torch.where(leaves[1::2], 1.0, -1.0)), required(torch.where(leaves[::2], -1.0, 1.0))]
    for order in (1.0001, 2.0, 50.0):
        infinite = renyi_divergence(*pair[0], *pair[1], order).isinf()
        slacks.append(torch.where(leaves, torch.where(infinite, left, -1.0), torch.inf))
        if order < 2:
            slacks.append(required(torch.where(infinite & ~leaves, -1.0, 1.0)))
    return checked(slacks, TRIALS, "least part of a gradient outside of the span, of those at infinite divergence")


@theorem(
    "T2",
    "Where K is the number of all users' records, or more, every gradient in general position leaves it.",
    source="Theorem 1; the count is ours",
)
def many_coordinates_leave_all_out() -> Checked:
    """Every gradient leaves the others' span where coordinates are as many as all users' records, or more."""
    records = 12
    slacks = [leave_one_out(_normal(f"many {size}", TRIALS, size, records)) / LEAVES - 1 for size in (12, 13, 40)]
    slacks.append(required(LEAVES - leave_one_out(_normal("few", TRIALS, records - 1, records))))
    what = "least part of a gradient outside of the span of the others, over what counts as none, minus 1"
    return checked(slacks, 4 * TRIALS, what)


@theorem(
    "T3",
    "The gradients of a linear softmax classifier have rank (classes - 1) (pixels that vary + 1) at most, so that "
    "Assumption 3 fails for any amount of data.",
    source="section 4.3; the bound is ours",
)
def linear_classifiers_are_singular() -> Checked:
    """The gradients of a linear softmax classifier have rank (classes - 1) (pixels that vary + 1) at most.

    That is below K, whatever the number of records: residuals sum to zero over classes, and constant zeros stay zeros.
    """
    records, slacks = 400, []
    for classes, pixels, silent in ((4, 20, 6), (3, 9, 2), (10, 12, 0), (5, 10, 9)):
        inputs = _normal(f"pixels {classes}", records, pixels + 1).sigmoid()
        inputs[:, :silent], inputs[:, -1] = 0, 1
        weights = _normal(f"weights {classes}", pixels + 1, classes)
        errors = (inputs @ weights).softmax(dim=1)
        errors[torch.arange(records), torch.arange(records) % classes] -= 1
        gradients = (errors.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1).mT
        size, most = rank(gradients).double(), (classes - 1) * (pixels - silent + 1)
        slacks += [most - size, required(gradients.shape[0] - 1 - size)]
        slacks.append(required(1e-12 - least_eigenvalue(gradients)))
    return checked(slacks, 4 * records, "bound of the rank minus the rank")


def _under_theorem_2(name: str, form: SubspaceForm = "corrected", inside: int = 0) -> Checked:
    """Exact divergences against eq. 19, or in a random subspace of a space of ``inside`` dimensions against eq. 31."""
    slacks, count = [], 0
    for users, size, records, batch in SCENES:
        first, second = _neighbours(f"{name} {users} {size}", users, size, records)
        floors = least_eigenvalue(first, form).sum(dim=1)
        enough = floors > 1.01 / records
        if not bool(enough.any()):
            continue
        curves = [full_rank_curve(records, batch, 1.0, floor) for floor in floors[enough].tolist()]
        first, second = first[enough], second[enough]
        if inside:
            basis = torch.linalg.qr(_normal(f"{name}, basis {size}", len(first), 1, inside, size)).Q
            first, second = basis @ first, basis @ second
        for part in PARTS:
            orders = [1 + (curve.limit - 1) * part for curve in curves]
            bounds = float64([curve.epsilon(order) for curve, order in zip(curves, orders, strict=True)])
            divergence = renyi_divergence(*_sums(first, batch), *_sums(second, batch), float64(orders))
            slacks.append(_excess(bounds, divergence))
        count += len(curves) * len(PARTS)
    return checked(slacks, count, "excess of the bound over the exact divergence, in parts of it")


@theorem("T4", "The divergence of Gaussian sampling without noise is at most eq. 19.", source="Theorem 2")
def theorem_2_bounds_the_divergence() -> Checked:
    """The divergence of neighbours is at most the bound, at every order of its range."""
    return _under_theorem_2("theorem 2")


@theorem(
    "T5",
    "Eq. 19 falls in N and in every smallest eigenvalue, grows in C, and without limit at its pole.",
    source="Theorem 2, Remark 1",
)
def theorem_2_depends_as_it_should() -> Checked:
    """Eq. 19 falls in N and in every smallest eigenvalue, grows in C, and without limit towards its pole."""
    trials = 100
    draws = torch.rand(3, trials, generator=generator(PAPER, "theory", "directions"), dtype=torch.float64)
    slacks, poles = [], []
    for place, clip, least in draws.T.tolist():
        users, records, norm = 3 + round(20 * place), 100, 0.5 + clip
        eigenvalue = norm**2 / records * (1.1 + 3 * least)  # of one user; two of them are enough for order 2

        def bound(users: float, eigenvalue: float, norm: float, records: int = records) -> float:
            return full_rank_curve(records, 8, norm, users * eigenvalue).epsilon(2.0)

        here = bound(users, eigenvalue, norm)
        slacks += [
            1 - bound(users + 1, eigenvalue, norm) / here,
            1 - bound(users, 1.05 * eigenvalue, norm) / here,
            bound(users, eigenvalue, 1.05 * norm) / here - 1,
        ]
        poles.append(bound(1, 2 * norm**2 / records * (1 + 1e-9), norm) - 1e6)
    what = "least relative change of the bound in the stated direction"
    return checked([float64(slacks) - STRICT, required(float64(poles))], trials, what)


TURNING, TURNING_FLOOR = Aggregation(50, 4, 1, 1.0), 0.1875


def _turned(order: float) -> torch.Tensor:
    """Divergences, ``[TRIALS]``, of the setting :data:`TURNING`, filled up to :data:`TURNING_FLOOR`.

    One user's records are three equal ones and one at a given angle to them, which turns by a right angle; the others'
    gradients are zero.
    """
    angles = torch.linspace(-math.pi, math.pi, TRIALS, dtype=torch.float64)

    def summed(angle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turned = torch.stack([angle.cos(), angle.sin()], dim=-1).unsqueeze(-1)  # [TRIALS, K, 1]
        same = float64([0.0, 1.0]).view(1, 2, 1).expand(TRIALS, 2, 3)
        mean, covariance = _sums(torch.cat([turned, same], dim=-1).unsqueeze(1), TURNING.batch, TURNING_FLOOR)
        return mean, covariance + (TURNING.users - 1) * TURNING_FLOOR * torch.eye(2, dtype=torch.float64)

    return renyi_divergence(*summed(angles), *summed(angles + math.pi / 2), order)


def _divergence(sums: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], order: float) -> torch.Tensor:
    return renyi_divergence(*sums, order)


def _under_water_filling() -> Iterator[tuple[Aggregation, float, Callable[[float], torch.Tensor]]]:
    """A setting, a floor, and the exact divergences of its random cases at an order, ``[TRIALS]``."""
    yield TURNING, TURNING_FLOOR, _turned
    for users, size, records, batch in SCENES:
        first, second = _neighbours(f"filled {users} {size}", users, size, records)
        for exponent in (-0.5, 0.5, 2.0, 4.0):
            floor = math.exp(exponent) / (batch * records)
            sums = *_sums(first, batch, floor), *_sums(second, batch, floor)
            yield Aggregation(users, records, batch, 1.0), floor, partial(_divergence, sums)


def _filled_curves(form: Form) -> Iterator[tuple[RenyiCurve, Aggregation, float, Callable[[float], torch.Tensor]]]:
    for setting, floor, divergence in _under_water_filling():
        try:
            yield round_curve(setting, floor, "gaussian_filled", form), setting, floor, divergence
        except Infeasible:  # no order is left
            continue


@theorem(
    "T6",
    "With water-filling noise the divergence is at most eq. 35, for orders below N sigma^2 B D / (2 C^2).",
    source="Theorem 4; the range is our correction",
)
def theorem_4_bounds_the_divergence() -> Checked:
    """The divergence with water-filling noise is at most eq. 35, at every order below ``N sigma^2 B D / (2 C^2)``."""
    slacks = []
    for curve, _, _, divergence in _filled_curves("corrected"):
        slacks += [_excess(curve.epsilon(order), divergence(order)) for order in _orders(curve)]
    return checked(slacks, len(slacks) * TRIALS, "excess of the bound over the exact divergence, in parts of it")


@theorem("T7a", "With water-filling noise it is at most the bound of the last row.", source="Table 1, as stated")
def last_row_bounds_the_divergence() -> Checked:
    """The divergence is at most isotropic noise's bound, at every order of that."""
    curve = round_curve(TURNING, TURNING_FLOOR, "gaussian_filled", "as_printed")
    slacks = []
    for part in (0.5, 0.9, 0.99):
        order = part * curve.limit
        slacks.append(_excess(curve.epsilon(order), _turned(order)))
    what = "excess of the bound over the exact divergence, in parts of it; -1: that is infinite"
    return checked(slacks, 3 * TRIALS, what)


@theorem(
    "T7b", "It is at most our bound by the Frobenius norm, which is below eq. 35.", source="Table 1; our correction"
)
def repaired_bound_holds() -> Checked:
    """The bound by the Frobenius norm holds at every order of its range, and is below that of Theorem 4."""
    slacks, below = [], []
    for curve, setting, floor, divergence in _filled_curves("repaired"):
        slacks += [_excess(curve.epsilon(order), divergence(order)) for order in _orders(curve)]
        try:
            other = round_curve(setting, floor, "gaussian_filled", "corrected")
        except Infeasible:
            continue
        below += [other.epsilon(order) / curve.epsilon(order) - 1 for order in _orders(other)]
    count = len(slacks) * TRIALS
    slacks.append(required(float64(below)))
    return checked(slacks, count, "excess of the bound over the exact divergence, in parts of it")


@theorem(
    "T8",
    "At equal sigma^2 water-filling adds less noise than isotropic noise, in every direction at most as much.",
    source="section 5.1, Fig. 4",
)
def water_filling_adds_less_at_equal_variance() -> Checked:
    """Water-filling adds ``sum (sigma^2 - lambda)_+ < K sigma^2``, and at most ``sigma^2`` in any direction."""
    slacks = []
    for size, records in ((3, 8), (12, 5)):
        gradients = _normal(f"trace {size}", TRIALS, size, records)
        covariance = gradients @ gradients.mT / records
        spectrum = torch.linalg.eigvalsh(covariance)
        for floor in (0.01, 0.5, 3.0):
            added = filled(covariance, floor) - covariance
            trace = added.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
            of_gram = spectrum[:, -min(size, records) :]
            slacks.append(1 - trace / (size * floor) - STRICT)
            slacks.append(required(EXACT - (added_trace(of_gram, floor, size) - trace).abs()))
            slacks.append(required(EXACT - ((floor - spectrum).clamp(min=0).sum(dim=-1) - trace).abs()))
            values = torch.linalg.eigvalsh(added)
            slacks.append(required(torch.minimum(values + EXACT, floor - values + EXACT)))
    return checked(slacks, 6 * TRIALS, "least part of isotropic noise that water-filling saves")


BOUNDS: tuple[tuple[Form, Form], ...] = (("as_printed", "corrected"), ("repaired", "repaired"))
"""Bounds of isotropic noise and of water-filling, in pairs to be compared."""


def _traces() -> torch.Tensor:
    """Trace of isotropic noise and the least of water-filling at equal total epsilon, ``[epsilons * bounds, 2]``."""
    return float64([traces(epsilon, *forms) for epsilon in EPSILONS for forms in BOUNDS])


@theorem(
    "T9a",
    "At equal proven epsilon water-filling adds less noise than isotropic noise, on the linear model at the "
    "setting of Fig. 5.",
    source="section 5.1, as stated",
)
def water_filling_adds_less_at_equal_epsilon() -> Checked:
    """Water-filling adds less for one total epsilon, on the linear model at the paper's setting."""
    even, least = _traces().unbind(dim=1)
    return checked([even / least - 1], len(even), "excess of isotropic noise's trace over water-filling's, relative")


@theorem(
    "T9b",
    "It saves C^2 / B of the trace at most, and its floor has to be higher, by more than that on the linear model.",
    source="section 5.1; our correction",
)
def it_saves_at_most_the_update() -> Checked:
    """Water-filling saves ``C^2 / B`` of the trace at most, and needs a higher floor, by more on the linear model."""
    even, least = _traces().unbind(dim=1)
    most = MNIST.clip**2 / MNIST.batch
    slacks = [((least + most) / even - 1), required((least - even) / most)]
    for scale in (0.1, 1.0, 100.0):
        gradients = MNIST.clip * _unit(_normal("saved", TRIALS, 6, 9))
        covariance = gradients @ gradients.mT / (MNIST.batch * 9)
        added = added_trace(torch.linalg.eigvalsh(covariance), scale, 6)
        slacks.append(required(most * (1 + EXACT) - (6 * scale - added)))
    return checked(slacks, len(even) + 3 * TRIALS, "excess of water-filling's floor over isotropic noise's, relative")


@theorem(
    "T10",
    "At one sigma^2 GD with isotropic noise has a smaller epsilon than water-filling, and no more noise.",
    source="section 5.3, the order of noise behind Fig. 5",
)
def all_records_take_less_noise() -> Checked:
    """GD with isotropic noise has a smaller epsilon than water-filling of one variance, which has no less noise.

    Both take all D gradients. Every order's bound (eq. 35 and the repaired one) is larger, and no direction has less
    noise than ``sigma^2``.
    """
    slacks = []
    for variance in (0.005, 0.05, 0.5, 5.0):
        plain = round_curve(MNIST, variance, "gd")
        for form in ("corrected", "repaired"):
            curve = round_curve(MNIST, variance, "gaussian_filled", form)
            slacks += [curve.epsilon(order) / plain.epsilon(order) - 1 for order in _orders(curve)]
    gradients = _normal("no less", TRIALS, 6, 9)
    least = torch.linalg.eigvalsh(filled(gradients @ gradients.mT / 9, 0.7))[:, 0]
    whole = [float64(slacks), required(least - 0.7 + EXACT)]
    return checked(whole, len(slacks) + TRIALS, "excess of water-filling's bound over GD's, relative")


@theorem("T11", "As B grows to D, row 1 falls to row 3.", source="Table 1")
def large_batches_become_all_records() -> Checked:
    """Row 1 falls to row 3 as B grows to D, and is equal there."""
    rates = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
    slacks = []
    for variance in (0.005, 0.05, 0.5):
        for delta in (1e-6, 1e-4):
            whole = round_guarantee(MNIST, variance, delta, "gd").epsilon
            batches = [replace(MNIST, batch=rate * MNIST.records) for rate in (*rates, 1.0)]
            epsilons = float64(
                [round_guarantee(setting, variance, delta, "sgd", "as_printed").epsilon for setting in batches]
            )
            slacks.append((epsilons[:-1] - epsilons[1:]) / epsilons[1:] - STRICT)
            slacks.append(required(agreement(epsilons[-1], float64(whole))))
    return checked(slacks, 6 * len(rates), "least relative step down of epsilon to the next batch size")


@theorem("T12", "Water-filling on the gradient of all records gives no differential privacy.", source="Table 1, row 4")
def filling_alone_hides_nothing() -> Checked:
    """Noise that fills, with all records, leaves directions without any.

    Four users with the same records, whose sum has no noise in a direction; one record of one of them is replaced.
    """
    records, users, floor = 6, 4, 0.4
    first, second = (gradients[:, 0] for gradients in _neighbours("filling alone", 1, 3, records))
    spectrum = torch.linalg.eigvalsh(first @ first.mT / records)
    one = (spectrum[:, -1] > 1.05 * floor) & (spectrum[:, -2] < 0.95 * floor)
    first, second = first[one], second[one]
    before, after = (filled(m @ m.mT / records, floor) - m @ m.mT / records for m in (first, second))
    old = users * first.mean(dim=-1), users * before
    new = (users - 1) * first.mean(dim=-1) + second.mean(dim=-1), (users - 1) * before + after
    slacks = [torch.where(renyi_divergence(*new, *old, order).isinf(), 1.0, -1.0) for order in (1.0001, 2.0, 50.0)]
    return checked(slacks, 3 * int(one.sum()), "1: every divergence is infinite")


@theorem("T13", "The bound on mutual information falls with N, as 1 / N.", source="eq. 9")
def information_falls_with_users() -> Checked:
    """The bound falls with every further user, as 1 / N."""
    slacks = []
    for batch, size in ((1, 11), (32, 11), (32, 7850), (256, 26010)):
        bounds = float64([information_bound(users, batch, size) for users in range(2, 400)])
        scaled = bounds * torch.arange(1, 399, dtype=torch.float64)  # N - 1
        most = size / batch + size / 2
        slacks += [1 - bounds[1:] / bounds[:-1] - STRICT, required(most - scaled), required(scaled - 0.5 * most)]
    return checked(slacks, 4 * 398, "least relative step down of the bound from one number of users to the next")


def _floor_of_blocks(form: BlockForm) -> Checked:
    slacks = []
    for blocks in (2, 3, 6):
        gradients = _normal(f"blocks {blocks}", TRIALS, 6, 4)
        least = torch.linalg.eigvalsh(block_covariance(gradients, 2, 0.4, blocks, form))[:, 0]
        slacks.append(least / 0.4 - 1 + EXACT)
    return checked(slacks, 3 * TRIALS, "excess of the smallest eigenvalue over the floor, relative")


@theorem("T14a", "To fill blocks of coordinates by themselves keeps the floor.", source="section 5.1, as stated")
def blocks_keep_the_floor() -> Checked:
    """Filling blocks of coordinates by themselves keeps the floor."""
    return _floor_of_blocks("as_printed")


@theorem("T14b", "It does where each block has sampling weights of its own.", source="section 5.1; our correction")
def separately_sampled_blocks_keep_the_floor() -> Checked:
    """Filling blocks keeps the floor where each has its own sampling weights."""
    return _floor_of_blocks("corrected")


@theorem(
    "T15a",
    "In a subspace the divergence is at most eq. 31 with eigenvalues of G* G*^T, without 1 / D.",
    source="Theorem 3 and Assumption 4, as stated",
)
def theorem_3_as_printed() -> Checked:
    """The divergence is at most eq. 31 with the smallest eigenvalue of ``G* G*^T``, without 1 / D."""
    return _under_theorem_2("theorem 3", "as_printed", inside=5)


@theorem("T15b", "It is with eigenvalues of G* G*^T / D.", source="Theorem 3; our correction")
def theorem_3_bounds_the_divergence() -> Checked:
    """The divergence is at most eq. 31 with the smallest eigenvalue of ``G* G*^T / D``."""
    return _under_theorem_2("theorem 3", "corrected", inside=5)


def _change() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Covariances of one user's gradients before and after a replacement, and the gradients replaced and new."""
    first, second = _neighbours("order", 1, 2, 4)
    base = torch.diag(float64([0.0, 3.0])).expand(TRIALS, 2, 2)
    vectors = torch.stack([first[:, 0, :, 0], second[:, 0, :, 0]])
    before, after = (base + vector.unsqueeze(-1) @ vector.unsqueeze(-2) for vector in vectors)
    return before, after, vectors


@theorem(
    "T16a",
    "Where a record is replaced, the noise added falls by no more than the new record's own covariance.",
    source="eq. 38, as stated",
)
def added_noise_falls_by_the_record_at_most() -> Checked:
    """The added noise falls by no more than the new record's own covariance, in every direction."""
    before, after, vectors = _change()
    change = (filled(after, 1.0) - after) - (filled(before, 1.0) - before)
    new = vectors[1].unsqueeze(-1) @ vectors[1].unsqueeze(-2)
    return checked([torch.linalg.eigvalsh(change + new)[:, 0] + EXACT], TRIALS, "smallest eigenvalue of the rest")


@theorem(
    "T16b",
    "In Frobenius norm the filled covariance changes by no more than the covariance itself.",
    source="eqs. 38 to 42; our correction",
)
def filled_covariance_changes_by_the_record_at_most() -> Checked:
    """A filled covariance changes in Frobenius norm by no more than the covariance, at most sqrt(2) C^2."""
    before, after, _ = _change()
    change = torch.linalg.matrix_norm(filled(after, 1.0) - filled(before, 1.0))
    plain = torch.linalg.matrix_norm(after - before)
    slacks = [1 - change / plain + EXACT, required(math.sqrt(2) * (1 + EXACT) - plain)]
    return checked(slacks, TRIALS, "change of the covariance minus that of the filled one, relative")
