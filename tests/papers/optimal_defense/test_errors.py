"""Errors of Chen, Gürsoy and Lei (2024), each shown by computing: the printed form fails, the corrected one holds.

The numbers are those of the page of optimal_defense, which says in words what is wrong.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from tests.conftest import FixedSteps
from tests.theory.vectors import close, normal, row

from leakbench.data.covariance import moments_of
from leakbench.data.embedded import Digits, Photos
from leakbench.defenses.optimal import OptimalClippedNoise, OptimalNoise, OptimalPruning
from leakbench.federated.step import ClientSteps
from leakbench.jobs.victims import gather_victims
from leakbench.models.base import build_network
from leakbench.models.convnets import Activation, ConvNet, SimpleConvNet
from leakbench.papers.optimal_defense.theory.cramer_rao import BoundForm, error_bound, linear_gaussian_error
from leakbench.papers.optimal_defense.theory.noise_budget import (
    gain_over_isotropic,
    isotropic_variance,
    minimal_trace,
    optimal_clipped_variance,
    optimal_variance,
)
from leakbench.papers.optimal_defense.theory.probes import chebyshev_coverage, exact_coverage, relative_std
from leakbench.papers.optimal_defense.theory.pruning_budget import keep_probabilities
from leakbench.randomness import Streams
from leakbench.theory.fisher import gaussian_information, information_trace, least_error
from leakbench.theory.optimal_noise import ScaleMode, pruned, scale_variance, variance_ratio
from leakbench.theory.utility import u1, u2


@dataclass(frozen=True)
class Client:
    """A client of 16 digits and a small SimpleConvNet at initialisation.

    Attributes:
        steps: its computation.
        g: its gradient, float64 ``[d]``.
        a: sensitivities from 10 probes, as the paper's, ``[d]``.
        fresh: sensitivities from 100 other probes, ``[d]``.
    """

    steps: ClientSteps
    g: torch.Tensor
    a: torch.Tensor
    fresh: torch.Tensor


@pytest.fixture(scope="module")
def client() -> Client:
    data = Digits(size=16)
    samples = data.load("test", range(1, 17))
    network = build_network(SimpleConvNet(width=4), data.shape, data.classes, seed=0)
    images, labels = data.normalise(samples.values)[None], samples.labels[None]
    steps, other = (
        ClientSteps(network, network.parameters, images, labels, Streams([("errors", name)]))
        for name in ("probes", "other probes")
    )
    numbers = (steps.gradient, steps.sensitivity(10), other.sensitivity(100))
    return Client(steps, *(number[0].double() for number in numbers))


def linear_models(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients ``J x + c`` of 4 inputs, with 12 coordinates of unequal size: ``J``, ``a``, ``E g^2``, one ``g^2``."""
    jacobian = normal(0, count, 12, 4) * normal(1, count, 12, 1).exp()
    constant = normal(2, count, 12) * normal(3, count, 12).exp()
    a = jacobian.square().sum(dim=-1)
    sample = (jacobian @ normal(4, count, 4, 1)).squeeze(-1) + constant
    return jacobian, a, a + constant.square(), sample.square()


@pytest.mark.parametrize(
    ("information", "exact", "smallest", "largest"), [(0.0, 1.01, 2.0, 0.02), (1.0, 0.5099010, 1.0, 0.0198020)]
)
def test_i01_smallest_eigenvalue_is_no_bound(information: float, exact: float, smallest: float, largest: float) -> None:
    """A prior of variances 1 and 0.01, seen not at all, or through the identity with unit noise."""
    prior, trace = row(1, 100), torch.tensor(2 * information).double()
    jacobian = math.sqrt(information) * torch.eye(2).double()
    assert close(linear_gaussian_error(jacobian, row(1, 1), torch.diag(prior)), exact)
    assert close(error_bound(trace, prior, "smallest_eigenvalue"), smallest) and smallest > exact
    assert close(error_bound(trace, prior), largest) and largest <= exact
    assert largest < error_bound(trace, prior, "sharper") <= exact


def test_i02_the_dimension_is_that_of_the_input() -> None:
    """Three copies of four inputs: the number of coordinates, 12, in the place of 4 gives more than the error."""
    jacobian, variance = torch.eye(4).double().repeat(3, 1), torch.full((12,), 12 / 4588).double()
    trace, prior = information_trace(torch.ones(12).double(), variance), torch.ones(4).double()
    exact = linear_gaussian_error(jacobian, variance, torch.eye(4).double())
    assert close(trace, 4588) and close(exact, 4 / 1148)
    forms: tuple[BoundForm, ...] = ("parameter_count", "as_printed")
    for form in forms:
        printed = error_bound(trace, prior, form, parameters=12)
        assert close(printed, 0.0313043, rel=1e-5) and printed > 8 * exact
    assert error_bound(trace, prior) <= exact * (1 + 1e-12)


def test_i03_the_largest_ratios_are_to_be_pruned() -> None:
    a, b = row(4, 1, 9, 2, 0.5), row(1, 4, 0.25, 2, 0.01)
    sets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=5)), dtype=torch.float64)
    best = (sets @ a)[sets @ b >= 6].min()
    assert close(best, 3) and close((keep_probabilities(a, b, 6.0) * a).sum(), 3)
    assert close((keep_probabilities(a, b, 6.0, "as_printed") * a).sum(), 16.185)


def test_i03_the_ratio_needs_the_absolute_value() -> None:
    """Eq. 17 divides by the signed entry: a tiny negative one looks best to keep."""
    norm, g = row(1, 1), row(-0.1, 2)
    signed = norm / g
    assert int(signed.argmax()) == 1  # would prune the entry with 400 times the utility
    assert pruned(variance_ratio(norm.square(), g), 0.5).tolist() == [True, False]


@pytest.mark.parametrize(
    ("reading", "trace"),
    [("sqrt(a/b)", 3.025), ("a/sqrt(b), eq. 19", 3.675), ("a/b", 7.35), ("(a/b)^(1/4)", 3.8436533)],
)
def test_i04_the_norm_is_not_squared(reading: str, trace: float) -> None:
    """All at the same utility."""
    a, g = row(4, 1, 9), row(1, 2, 0.5)
    b = g.square()
    ratio = {
        "sqrt(a/b)": (a / b).sqrt(),
        "a/sqrt(b), eq. 19": variance_ratio(a, g, "as_printed"),
        "a/b": a / b,
        "(a/b)^(1/4)": (a / b).pow(0.25),
    }[reading]
    assert close(information_trace(a, scale_variance(ratio, g, 10, "u2")), trace)
    assert trace >= float(minimal_trace(a, b, 10)) - 1e-12


class TestI05LemmaOne:
    def test_i05_the_bound_is_right_and_says_nothing_at_ten_probes_below_0_447(self) -> None:
        edge = relative_std(10)
        assert close(edge, 0.447, rel=1e-3)
        assert chebyshev_coverage(10, edge) == pytest.approx(0, abs=1e-12) and chebyshev_coverage(10, 0.9 * edge) == 0
        for tolerance in (0.1, edge, 0.5, 1.0, 2.0):
            assert chebyshev_coverage(10, tolerance) < exact_coverage(10, tolerance)

    def test_i05_the_product_is_the_inner_one_and_squared(self) -> None:
        """The elementwise product of the proof has the right mean, but not the lemma's spread; without squares, 0."""
        gradient, probes = row(3, 2, 1), normal(0, 100_000, 10, 3)
        inner = (probes @ gradient).square().mean(dim=1) / 14
        elementwise = (probes * gradient).square().sum(dim=2).mean(dim=1) / 14
        assert close(inner.mean(), 1, rel=0.01) and close(inner.std(), relative_std(10), rel=0.01)
        assert close(elementwise.mean(), 1, rel=0.01)
        assert close(elementwise.std(), relative_std(10) * math.sqrt(98) / 14, rel=0.01)  # sum of 4th powers is 98
        assert abs(float((probes @ gradient).mean())) < 0.02

    def test_i05_it_is_about_one_coordinate(self) -> None:
        """Coordinates share probes: parallel sensitivities err together, orthogonal ones independently."""
        probes, alone = normal(0, 100_000, 10, 3), exact_coverage(10, 0.5)

        def both(first: torch.Tensor, second: torch.Tensor) -> float:
            s = ((probes @ one).square().mean(dim=1) / one.square().sum() for one in (first, second))
            inside = [(ratio - 1).abs() <= 0.5 for ratio in s]
            return float((inside[0] & inside[1]).double().mean())

        assert both(row(1, 0, 0), row(2, 0, 0)) == pytest.approx(alone, abs=0.006)
        assert both(row(1, 0, 0), row(0, 1, 0)) == pytest.approx(alone**2, abs=0.006)
        assert exact_coverage(10, 1.0) ** 1000 < 1e-12  # all of 1000 orthogonal ones, even at tolerance 1


class TestI06ClippedEnergy:
    """Two equiprobable samples, clipped at 1."""

    @staticmethod
    def traces(g: torch.Tensor, squared_norms: torch.Tensor) -> tuple[float, float, float]:
        """Corrected, printed and isotropic, all at utility -1."""
        a = torch.where(g.abs() < 1, squared_norms, 0.0).mean(dim=0)
        b, clipped = g.square().mean(dim=0), g.clamp(-1, 1).square().mean(dim=0)
        forms = [
            optimal_clipped_variance(a, b, clipped, 1.0),
            optimal_clipped_variance(a, b, clipped, 1.0, "as_printed"),
        ]
        assert all(close(-u2(b.sqrt(), variance), 1) for variance in forms)
        corrected, printed, isotropic = (information_trace(a, v) for v in (*forms, isotropic_variance(b, 1.0)))
        return float(corrected), float(printed), float(isotropic)

    def test_i06_the_printed_optimum_of_theorem_3_is_not_optimal(self) -> None:
        g = torch.tensor([[0.5, 3], [-0.5, 0.2]], dtype=torch.float64)
        assert self.traces(g, row(1, 4)) == pytest.approx((12.2966593, 14.2321266, 14.31), rel=1e-6)

    def test_i06_the_printed_optimum_can_be_worse_than_isotropic_noise(self) -> None:
        """Sensitivities in proportion to the unclipped energies make isotropic noise the optimum."""
        g = torch.tensor([[0.9, 2], [-0.9, 0.2]], dtype=torch.float64)
        corrected, printed, isotropic = self.traces(g, row(0.81, 4.04))
        assert corrected == pytest.approx(isotropic) and printed > 1.05 * isotropic


def test_i07_beyond_the_clip_is_clipped_too() -> None:
    """Eq. 13 switches noise off at ``|g| = P`` only. Beyond it the message does not depend on the input either."""
    g, a = row(0.3, -2, 1), row(0.36, 25, 0.49)

    def slope(value: float) -> float:
        return float(torch.func.grad(lambda v: v.clamp(-1, 1))(torch.tensor(float(value))))

    assert [slope(0.3), slope(-2)] == [1, 0]
    a_clipped = torch.where(g.abs() < 1, a, 0.0)
    ratio = variance_ratio(a, g)
    at_least, printed = (
        scale_variance(torch.where(silent, 0.0, ratio), g, 1.0, "u2") for silent in (g.abs() >= 1, g.abs() == 1)
    )
    assert close(u2(g, at_least), -1) and close(u2(g, printed), -1)
    assert information_trace(a_clipped, printed) > 10 * information_trace(a_clipped, at_least)
    defense, steps = OptimalClippedNoise(scale=1.0, scale_mode="u2"), FixedSteps(g[None], a[None])
    sent = defense.protect_update(steps, Streams([("noise",)]))
    assert sent.noise_variance is not None
    torch.testing.assert_close(sent.noise_variance[0], at_least)


class TestI08Gradients:
    x, theta = row(3, -1), row(1, 2)

    @staticmethod
    def loss(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (theta @ x - 0.5).square() / 2

    def test_i08_utility_is_about_the_gradient_by_the_parameters(self) -> None:
        by_theta, by_x = torch.func.grad(self.loss, argnums=(0, 1))(self.theta, self.x)
        rate = 1e-6
        decrease = float(self.loss(self.theta, self.x) - self.loss(self.theta - rate * by_theta, self.x)) / rate
        assert close(u1(by_theta, by_theta), 2.5) and decrease == pytest.approx(2.5, rel=1e-4)
        assert close(u1(by_x, by_x), 1.25)  # what the definitions say, taken literally

    def test_i08_the_information_is_a_matrix_and_the_sum_its_trace(self) -> None:
        jacobian = torch.func.jacfwd(torch.func.grad(self.loss), argnums=1)(self.theta, self.x)
        information = gaussian_information(jacobian, row(1, 1))
        assert information.shape == (2, 2)
        assert close(information.trace(), float(information_trace(row(48.25, 3.25), row(1, 1))))


def test_i09_utility_does_not_describe_a_step_of_adam() -> None:
    """One large entry has five times the ``U1`` of twenty small ones; Adam gets twice as much out of the small ones."""
    g = torch.cat([row(1), torch.full((20,), 0.1).double()])
    large = torch.arange(21) == 0

    def decrease(kept: torch.Tensor, optimiser: type[torch.optim.Optimizer]) -> float:
        """Of the loss ``<g, theta>``, after one step along what is kept, per unit of the rate."""
        theta = torch.zeros(21, dtype=torch.float64, requires_grad=True)
        theta.grad = g * kept
        optimiser([theta], lr=1e-3).step()  # type: ignore[call-arg]
        return float(-(g @ theta.detach()) / 1e-3)

    for kept, utility in ((large, 1.0), (~large, 0.2)):
        assert close(u1(g, g * kept), utility)
        assert decrease(kept, torch.optim.SGD) == pytest.approx(utility)
    assert decrease(large, torch.optim.Adam) == pytest.approx(1.0, rel=1e-4)
    assert decrease(~large, torch.optim.Adam) == pytest.approx(2.0, rel=1e-4)


def test_i10_equal_noise_scale_is_not_equal_noise(client: Client) -> None:
    """At equal scale, optimal noise spends far less utility and hides less; only equal utility compares alike."""
    g, optimal, same = client.g, variance_ratio(client.fresh, client.g), torch.ones_like(client.g)

    def over_isotropic(mode: ScaleMode) -> tuple[float, float, float]:
        """Noise power, utility spent and information revealed."""
        first, second = (scale_variance(ratio, g, 0.1, mode) for ratio in (optimal, same))
        revealed = information_trace(client.fresh, first) / information_trace(client.fresh, second)
        return float(first.sum() / second.sum()), float(u2(g, first) / u2(g, second)), float(revealed)

    power, spent, revealed = over_isotropic("fro")
    assert power < 0.5 and spent < 0.05 and revealed > 10
    power, spent, revealed = over_isotropic("rms")
    assert power == pytest.approx(1) and spent < 0.15 and revealed > 3
    _, spent, revealed = over_isotropic("u2")
    assert spent == pytest.approx(1) and revealed < 0.6


def test_i11_the_bound_ignores_what_the_covariance_tells() -> None:
    """``x ~ N(0.7, 0.1^2)`` seen through 500 copies of ``(x^2 + 1, sin x + 2)`` under huge local optimal noise."""
    copies, scale, trials = 500, 1e6, 400

    def mean_and_variance(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, slope = torch.stack([x.square() + 1, x.sin() + 2]), torch.stack([2 * x, x.cos()])
        return mean, scale * slope.abs() / mean.abs()

    x = 0.7 + 0.1 * normal(0, trials)
    mean, variance = mean_and_variance(x)
    y = mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * normal(1, 2, trials, copies)
    grid = torch.linspace(0.2, 1.2, 1001, dtype=torch.float64)
    means, variances = mean_and_variance(grid)
    sums, squares = y.sum(dim=-1).unsqueeze(-1), y.square().sum(dim=-1).unsqueeze(-1)
    means, variances = means.unsqueeze(1), variances.unsqueeze(1)
    distance = squares - 2 * means * sums + copies * means.square()
    log_likelihood = -(distance / variances + copies * variances.log()).sum(dim=0) / 2
    posterior = torch.softmax(log_likelihood - (grid - 0.7).square() / 0.02, dim=-1)
    error = float((posterior @ grid - x).square().mean())

    mean_term, covariance_term = copies * 4.1084092 / scale, copies * 0.7597383  # at 0.7, from test_fisher.py
    ignoring, full = (
        float(error_bound(torch.tensor(trace).double(), row(100))) for trace in (mean_term, mean_term + covariance_term)
    )
    assert ignoring == pytest.approx(0.01, rel=1e-3) and error < 0.3 * ignoring
    assert error == pytest.approx(full, rel=0.25)


@pytest.mark.parametrize("seed", [0, 1])
def test_i11_on_a_real_gradient_the_covariance_leaves_no_bound(seed: int) -> None:
    """One digit, exact sensitivities, the prior of Fig. S1: with the covariance's term the bound is below 0.2 %."""
    digits = Digits(size=8)
    prior = moments_of(digits.normalise(digits.load("train", range(600)).values)).eigenvalues
    model, device = SimpleConvNet(width=4), torch.device("cpu")
    victims = gather_victims(
        digits, "digits8", model, seed, clients=1, batch_size=1, first_index=1 + seed, device=device
    )
    network, parameters, labels = victims.network, victims.parameters.double(), victims.labels[0]
    inputs, pixels = victims.inputs[0].double(), victims.inputs[0].numel()

    def gradient(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = network.gradient(parameters, x, labels)
        return found

    def sensitivity(x: torch.Tensor) -> torch.Tensor:
        jacobian: torch.Tensor = torch.func.jacfwd(gradient)(x)
        return jacobian.flatten(1).square().sum(dim=1)

    def variance(x: torch.Tensor, budget: float) -> torch.Tensor:
        found = gradient(x)
        return scale_variance(variance_ratio(sensitivity(x), found), found, budget, "u2")

    def log_variance(x: torch.Tensor) -> torch.Tensor:
        return variance(x, 1.0).clamp(min=torch.finfo(torch.float64).tiny).log()

    covariance_term = torch.func.jacfwd(log_variance)(inputs).square().sum() / 2
    blind = float(prior.sum()) / pixels
    for budget in (1e-4, 1e-3, 1e-2):
        mean_term = information_trace(sensitivity(inputs), variance(inputs, budget))
        ignoring, full = (float(least_error(t, prior)) / pixels for t in (mean_term, mean_term + covariance_term))
        assert full < 0.002 * blind and ignoring > 10 * full
    assert ignoring > 0.25 * blind  # at the last budget


class TestI12BoundAndError:
    def test_i12_the_bound_is_loose(self) -> None:
        """Least squares with two inputs under the optimal noise at budget 2."""
        jacobian, a, b = torch.tensor([[3.5, 6], [-1, -1.5]]).double(), row(48.25, 3.25), row(2.25, 0.25)
        variance = optimal_variance(a, b, 2.0)
        best = torch.linalg.inv(gaussian_information(jacobian, variance)).trace()
        assert close(best, 59.4, rel=2e-3)
        assert close(error_bound(information_trace(a, variance), row(0, 0)), 0.0624222, rel=1e-5)

    def test_i12_what_is_optimal_for_the_bound_is_not_for_the_error(self) -> None:
        """At equal utility and with a normal prior, the exact error is often *smaller* under the optimal noise."""
        jacobian, a, global_b, local_b = linear_models(2000)
        prior = torch.eye(4).double().expand(2000, 4, 4)
        better = {}
        for form, b in (("global", global_b), ("local", local_b)):
            assert (gain_over_isotropic(a, b) >= 1).all()
            optimal, isotropic = (
                linear_gaussian_error(jacobian, variance, prior)
                for variance in (optimal_variance(a, b, 10.0), isotropic_variance(b, 10.0))
            )
            better[form] = float((optimal > isotropic).double().mean())
        assert better["global"] < 0.45 < 0.7 < better["local"] < 0.95


def test_i13_an_attacker_who_ignores_the_covariance_flatters_unequal_noise() -> None:
    """Least squares with equal weights against weights by the noise, at equal utility."""
    jacobian, a, _, b = linear_models(2000)
    inverse = torch.linalg.pinv(jacobian)

    def unweighted(variance: torch.Tensor) -> torch.Tensor:
        error: torch.Tensor = (inverse.square() * variance.unsqueeze(-2)).sum(dim=(-2, -1))
        return error

    def weighted(variance: torch.Tensor) -> torch.Tensor:
        return linear_gaussian_error(jacobian, variance, torch.zeros(4, 4).double())  # without a prior

    optimal, isotropic = optimal_variance(a, b, 1.0), isotropic_variance(b, 1.0)
    torch.testing.assert_close(weighted(isotropic), unweighted(isotropic))
    apparent, true = (attack(optimal) / attack(isotropic) for attack in (unweighted, weighted))
    assert (apparent >= true * (1 - 1e-9)).all()
    assert apparent.median() > 1.7 * true.median() and apparent.mean() > 5 * true.mean()


def test_i14_a_clip_of_1_touches_nothing(client: Client) -> None:
    assert client.g.abs().max() < 0.15
    streams = Streams([("noise",)])
    clipped = OptimalClippedNoise(scale=0.1).protect_update(client.steps, streams.repeat(1)).view()
    plain = OptimalNoise(scale=0.1).protect_update(client.steps, streams.repeat(1)).view()
    assert torch.equal(clipped, plain)


def test_i16_without_the_diagonal_restriction_noise_is_free() -> None:
    """Noise orthogonal to the gradient costs nothing: any amount of it, at the same utility."""
    g, a = row(1.5, -0.5), row(48.25, 3.25)
    jacobian = torch.tensor([[3.5, 6], [-1, -1.5]]).double()
    along = g / g.norm()
    across = torch.stack([-along[1], along[0]])

    def trace(amount: float) -> float:
        covariance = 2 / g.square().sum() * torch.outer(along, along) + amount * torch.outer(across, across)
        assert close(g @ covariance @ g, 2)
        return float((jacobian.mT @ torch.linalg.inv(covariance) @ jacobian).trace())

    limit = float((along @ jacobian).square().sum() * g.square().sum() / 2)
    traces = [trace(10.0**power) for power in range(6)]
    assert traces == sorted(traces, reverse=True) and traces[-1] == pytest.approx(limit, rel=1e-4)
    assert limit < float(minimal_trace(a, g.square(), 2.0))


def test_i17_equal_fractions_are_not_equal_utilities(client: Client) -> None:
    """At equal fractions optimal pruning keeps less ``U1``; at equal ``U1`` it reveals less, by little."""
    b, ratio, magnitude = client.g.square(), variance_ratio(client.fresh, client.g), client.g.abs()
    for fraction in (0.5, 0.8, 0.9, 0.95):
        optimal, largest = ~pruned(ratio, fraction), ~pruned(-magnitude, fraction)
        assert b[optimal].sum() < b[largest].sum()
        assert client.fresh[optimal].sum() < client.fresh[largest].sum()
    goal = 0.9 * b.sum()
    optimal_share = keep_probabilities(client.fresh, b, goal)
    by_magnitude = keep_probabilities(torch.ones_like(b), b, goal)  # all reveal the same: the largest are kept
    assert close((by_magnitude * b).sum(), float(goal)) and close((optimal_share * b).sum(), float(goal), rel=1e-5)
    revealed = ((optimal_share * client.fresh).sum() / (by_magnitude * client.fresh).sum()).item()
    assert 0.75 < revealed < 1


def test_i18_choosing_and_judging_by_the_same_probes_flatters(client: Client) -> None:
    kept = ~pruned(variance_ratio(client.a, client.g), 0.8)
    apparent, true = (float(a[kept].sum() / a.sum()) for a in (client.a, client.fresh))
    assert apparent < 0.9 * true


def test_i20_entries_that_tell_nothing_are_never_pruned() -> None:
    """The proof of Theorem 4 needs ``a_i > 0`` and does not say so."""
    a, b = row(4, 0, 9, 0, 0), row(1, 4, 0.25, 0.01, 0)
    for budget in (0.0, 1.0, 4.5, 5.26):
        keep = keep_probabilities(a, b, budget)
        assert keep[[1, 3, 4]].eq(1).all()
        assert (keep * b).sum() >= budget
    assert close(keep_probabilities(a, b, 4.5), 0.49, 1, 0, 1, 1)  # 4.01 are there for free


def test_i20_with_relu_pruning_a_fraction_leaves_what_tells_nothing() -> None:
    """More than half of a small network's gradient is zero whatever the images: all of the 20 % that are kept."""
    sent = {}
    activations: tuple[Activation, ...] = ("relu", "leaky_relu")
    for activation in activations:
        victims = gather_victims(
            Photos(size=16),
            "photos16",
            ConvNet(width=8, activation=activation),
            0,
            clients=1,
            batch_size=2,
            first_index=1,
            device=torch.device("cpu"),
        ).in_mode("eval")
        steps = ClientSteps(victims.network, victims.parameters, victims.inputs, victims.labels, victims.streams)
        message = OptimalPruning(fraction=0.8).protect_update(steps, victims.streams).view()
        silent = (steps.gradient == 0) & (steps.sensitivity() == 0)
        sent[activation] = [float(message.square().sum() / steps.gradient.square().sum()), float(silent.float().mean())]
    assert sent["relu"] == pytest.approx([0.0, 0.55], abs=0.01)
    assert sent["leaky_relu"] == pytest.approx([0.99, 0.05], abs=0.01)
