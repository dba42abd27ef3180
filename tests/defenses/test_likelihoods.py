"""Likelihoods that pointwise defenses state, against literal references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.fft import dct
from scipy.stats import norm
from scipy.stats import t as student

from leakbench.attacks.objectives import L2
from leakbench.defenses import densities
from leakbench.defenses.base import LEAST_SCALE, Defense, least_squares_scale
from leakbench.defenses.cafl import CAFL, LEAST_NOISE, two_point_variance
from leakbench.defenses.densities import (
    EXACT,
    FREEDOM,
    IMPROBABLE,
    LEAST,
    LEAST_ESTIMATED,
    clipped_normal,
    exact_variance,
    excess_variance,
    normal,
    uncertain_normal,
    widened,
)
from leakbench.defenses.dp_sgd import DPPSAC, DPSGD
from leakbench.defenses.laplace import Laplace
from leakbench.defenses.noise import ClippedNoise, GaussianNoise
from leakbench.defenses.optimal import OptimalClippedNoise, OptimalNoise, OptimalPruning, OptimalRounding
from leakbench.defenses.pruning import GradDrop, MagnitudePruning, RandomMask
from leakbench.defenses.quantised import QSGD, SCALE_WIDTH, SOFTNESS, SignSGD
from leakbench.federated.message import Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network
from leakbench.randomness import Streams

N = 3


class Steps(ClientSteps):
    """A step whose gradient is given, in double precision."""

    given: torch.Tensor

    @property
    def gradient(self) -> torch.Tensor:
        return self.given


def steps_of(network: Network, batch: int = 1, seed: int = 0) -> Steps:
    """Clients with images of their own, and the gradients of these."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(N, batch, 1, 8, 8, generator=draw)
    labels = torch.randint(10, (N, batch), generator=draw)
    steps = Steps(network, network.parameters, images, labels, Streams([("likelihood", row) for row in range(N)]))
    steps.given = ClientSteps.gradient.fget(steps).double()  # type: ignore[attr-defined]
    return steps


def sent(defense: Defense, steps: Steps) -> tuple[Message, Received]:
    message = defense.protect_update(steps, Streams([("noise", row) for row in range(N)]))
    return message, message.received


def at(steps: Steps, gradient: torch.Tensor) -> Steps:
    """The same steps at another gradient."""
    moved = Steps(steps.network, steps.parameters, steps.images, steps.labels, steps.streams)
    moved._sensitivities = steps._sensitivities
    moved.given = gradient
    return moved


def near(steps: Steps, part: float = 0.3) -> torch.Tensor:
    """Gradients beside the true ones."""
    draw = torch.Generator().manual_seed(7)
    size = part * steps.given.square().mean().sqrt()
    return steps.given + size * torch.randn(steps.given.shape, generator=draw, dtype=torch.float64)


def logarithms(deviation: Any, variance: Any) -> Any:
    """Normal densities of every row, but for ``2 pi``."""
    density = norm.logpdf(np.asarray(deviation), scale=np.sqrt(np.asarray(variance)))
    return torch.from_numpy((density + math.log(2 * math.pi) / 2).sum(axis=1))


class TestDensities:
    def test_normal(self) -> None:
        draw = torch.Generator().manual_seed(0)
        deviation = torch.randn(2, 5, generator=draw, dtype=torch.float64)
        variance = torch.rand(2, 1, generator=draw, dtype=torch.float64) + 0.1
        torch.testing.assert_close(normal(deviation, variance), logarithms(deviation, variance))

    def test_estimated_variances_are_students(self) -> None:
        """At the truth; further off, the candidate's own error adds to all of them."""
        draw = torch.Generator().manual_seed(0)
        variance = torch.rand(2, 4001, generator=draw, dtype=torch.float64) + 0.5
        deviation = 0.5 * variance.sqrt() * torch.randn(2, 4001, generator=draw, dtype=torch.float64)
        for factor in (1, 200):
            far = factor * deviation.numpy()
            error = np.maximum(0, np.mean(far**2 - variance.numpy(), axis=1, keepdims=True))
            assert bool(error.any()) == (factor > 1)
            density = student.logpdf(far, FREEDOM, scale=np.sqrt(variance.numpy() + error))
            expected = torch.from_numpy((density - student.logpdf(0.0, FREEDOM)).sum(axis=1))
            torch.testing.assert_close(
                uncertain_normal(torch.zeros_like(variance), torch.from_numpy(far), variance),
                expected,
                rtol=1e-3,
                atol=0,
            )

    def test_no_noise_has_the_width_of_a_part_of_what_was_sent(self) -> None:
        values = torch.tensor([[3.0, 0.0, -4.0], [0.0, 0.0, 0.0]])
        assert exact_variance(values)[0].item() == pytest.approx(EXACT**2 * 12.5)
        assert 0 < exact_variance(values)[1].item() < 1e-15
        noisy = torch.tensor([[0.0, 3.0, 3.0], [0.0, 0.0, 0.0]])
        wide = widened(noisy, Received(values))
        assert wide[0].tolist() == pytest.approx([LEAST * 2, 3, 3])
        assert wide[1].tolist() == pytest.approx([exact_variance(values)[1].item()] * 3)

    @given(st.floats(-4, 4), st.floats(-3, 3), st.floats(0.05, 0.5))
    def test_clipping_is_flat_where_it_is_probable(self, value: float, gradient: float, deviation: float) -> None:
        """Inside, the normal density; beyond the bound that of the bound, but where hardly anything is received."""
        one = torch.tensor([[1.0]], dtype=torch.float64)
        found = clipped_normal(value * one, gradient * one, 1.0, deviation**2 * one, deviation * one)
        bound = min(max(gradient, -1.0), 1.0)
        expected = -((value - bound) ** 2) / (2 * deviation**2) - math.log(deviation)
        inside = 1 - math.copysign(1, gradient) * value - IMPROBABLE * deviation
        if abs(gradient) > 1 and inside > 0:
            expected -= (abs(gradient) - 1) * inside / deviation**2
        assert float(found) == pytest.approx(expected, rel=1e-9, abs=1e-9)

    def test_a_search_finds_back_from_beyond_the_bound(self) -> None:
        one = torch.tensor([[1.0]])

        def fall(gradient: torch.Tensor) -> torch.Tensor:
            return clipped_normal(0.2 * one, gradient, 1.0, 0.01 * one, 0.1 * one).sum()

        assert torch.func.grad(fall)(3 * one) < 0 < torch.func.grad(fall)(-3 * one)


class TestNormalNoise:
    def test_of_one_size_it_is_squared_distance(self, tiny_network: Network) -> None:
        """Up to a constant, and to the weight ``1 / (2 sigma^2)``."""
        defense, steps = GaussianNoise(scale=0.2), steps_of(tiny_network)
        _, received = sent(defense, steps)
        first, second = near(steps), near(steps, 1.0)
        fall = defense.log_likelihood(received, at(steps, first)) - defense.log_likelihood(received, at(steps, second))
        weights = torch.full_like(first[0], 1 / (2 * 0.2**2))
        for row in range(N):
            distance = [L2()(point[row], received.values[row], weights) for point in (first, second)]
            assert float(fall[row]) == pytest.approx(float(distance[1] - distance[0]), rel=1e-9)

    @pytest.mark.parametrize("mode", ["rms", "fro", "u2"])
    @pytest.mark.parametrize("clip", [None, 0.02])
    def test_variance_is_the_candidates_own(self, tiny_network: Network, mode: Any, clip: float | None) -> None:
        steps = steps_of(tiny_network)
        defense: Defense = GaussianNoise(scale=0.3, scale_mode=mode)
        if clip is not None:
            defense = ClippedNoise(scale=0.3, scale_mode=mode, clip=clip)
        _, received = sent(defense, steps)
        candidate = steps.given.sign() * near(steps, 0.1).abs()  # at the truth's side of the bounds
        message, _ = sent(defense, at(steps, candidate))
        assert message.law is not None and message.law.variance is not None
        found = defense.log_likelihood(received, at(steps, candidate))
        if clip is None:
            torch.testing.assert_close(found, logarithms(received.values - message.law.mean, message.law.variance))
        else:
            bounded = logarithms(received.values - message.law.mean, message.law.variance)
            assert bool((found <= bounded + 1e-9).all())
            torch.testing.assert_close(found, bounded, rtol=0.02, atol=0)  # few fall below three deviations

    @pytest.mark.parametrize("mode", ["rms", "fro", "u2"])
    @pytest.mark.parametrize("cls", [GaussianNoise, ClippedNoise])
    def test_a_search_goes_towards_the_message(self, tiny_network: Network, mode: Any, cls: Any) -> None:
        """However the noise depends on the candidate: a short gradient with much noise is no way out."""
        steps, defense = steps_of(tiny_network), cls(scale=1e-4, scale_mode=mode)
        _, received = sent(defense, steps)
        candidate = near(steps).requires_grad_()
        (slope,) = torch.autograd.grad(defense.log_likelihood(received, at(steps, candidate)).sum(), candidate)
        missing = received.values - candidate.detach()
        torch.testing.assert_close(torch.cosine_similarity(slope, missing), torch.ones(N, dtype=torch.float64))

    @pytest.mark.parametrize("form", ["corrected", "as_printed", "as_released"])
    @pytest.mark.parametrize("per", ["coordinate", "tensor"])
    def test_optimal_noise(self, tiny_network: Network, form: Any, per: Any) -> None:
        steps, defense = steps_of(tiny_network), OptimalNoise(scale=0.1, form=form, per=per)
        message, received = sent(defense, steps)
        assert message.law is not None and message.law.variance is not None
        variance = widened(message.law.variance, received)
        found = defense.log_likelihood(received, steps)
        torch.testing.assert_close(found, uncertain_normal(steps.given, received.values - steps.given, variance))

    def test_optimal_rounding(self, tiny_network: Network) -> None:
        """Student's t of every coordinate, with the one variance of all."""
        steps, defense = steps_of(tiny_network), OptimalRounding(scale=0.3)
        _, received = sent(defense, steps)
        candidate = near(steps)
        found = defense.log_likelihood(received, at(steps, candidate))
        deviation = received.values - candidate
        error = (deviation.square().mean(dim=1, keepdim=True) - 0.3**2 / 12).clamp(min=0)
        density = student.logpdf(deviation.numpy(), FREEDOM, scale=(0.3**2 / 12 + error).sqrt().numpy())
        expected = torch.from_numpy((density - student.logpdf(0.0, FREEDOM)).sum(axis=1))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)

    def test_clipped_coordinates_of_optimal_noise_are_one_sided(self, tiny_network: Network) -> None:
        steps = steps_of(tiny_network)
        clip = float(steps.given.abs().median())
        defense = OptimalClippedNoise(scale=0.01, clip=clip)
        _, received = sent(defense, steps)
        clipped = steps.given.abs() >= clip
        assert bool((received.values.abs() == clip).equal(clipped))
        value = defense.log_likelihood(received, steps)
        beyond = torch.where(clipped, 5 * steps.given, steps.given)  # nothing says how far beyond
        torch.testing.assert_close(defense.log_likelihood(received, at(steps, beyond)), value)
        short = torch.where(clipped, 0.5 * clip * steps.given.sign(), steps.given)
        assert bool((defense.log_likelihood(received, at(steps, short)) < value - 1).all())

    def test_an_oracle_is_not_asked(self, tiny_network: Network) -> None:
        """Variances come from the candidate's images: with others the likelihood is another one."""
        steps, defense = steps_of(tiny_network), OptimalNoise(scale=0.1)
        _, received = sent(defense, steps)
        other = steps_of(tiny_network, seed=1)
        other.given = steps.given
        assert not torch.allclose(
            defense.log_likelihood(received, other), defense.log_likelihood(received, steps), rtol=1e-3
        )


class TestPerSample:
    @pytest.mark.parametrize("defense", [DPSGD(multiplier=0.1, clip=0.5), DPPSAC(multiplier=0.1, clip=0.5)], ids=repr)
    @pytest.mark.parametrize("batch", [1, 3])
    def test_the_mean_is_that_of_bounded_gradients(self, tiny_network: Network, defense: DPSGD, batch: int) -> None:
        steps = steps_of(tiny_network, batch)
        message, received = sent(defense, steps)
        assert message.law is not None and message.law.variance is not None
        expected = logarithms(received.values - message.law.mean, message.law.variance.double())
        found = defense.log_likelihood(received, steps)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)

    def test_of_one_image_the_size_beyond_the_bound_plays_no_part(self, tiny_network: Network) -> None:
        steps, defense = steps_of(tiny_network), DPSGD(multiplier=0.1, clip=0.01)
        _, received = sent(defense, steps)
        assert bool((steps.given.norm(dim=1) > 0.01).all())
        doubled = defense.log_likelihood(received, at(steps, 2 * steps.given))
        torch.testing.assert_close(doubled, defense.log_likelihood(received, steps))


class TestSparse:
    def test_pruned_ones_are_at_most_the_smallest_kept(self, tiny_network: Network) -> None:
        steps, defense = steps_of(tiny_network), MagnitudePruning(fraction=0.6)
        _, received = sent(defense, steps)
        assert defense.log_likelihood(received, steps).tolist() == [0.0] * N
        kept = received.values != 0
        threshold = steps.given.abs().where(kept, torch.inf).amin(dim=1)
        below, above = steps.given.clone(), steps.given.clone()
        below[:, :] = torch.where(kept, steps.given, -steps.given)
        assert defense.log_likelihood(received, at(steps, below)).tolist() == [0.0] * N
        for row in range(N):
            pruned = int((~kept[row]).nonzero()[0])
            above[row, pruned] = -1.5 * threshold[row]
        expected = -((0.5 * threshold) ** 2) / (2 * exact_variance(received.values)[:, 0])
        torch.testing.assert_close(defense.log_likelihood(received, at(steps, above)), expected)

    @pytest.mark.parametrize("form", ["exact", "as_released"])
    def test_every_tensor_has_a_threshold_of_its_own(self, tiny_network: Network, form: Any) -> None:
        steps, defense = steps_of(tiny_network), GradDrop(fraction=0.6, form=form)
        _, received = sent(defense, steps)
        assert defense.log_likelihood(received, steps).tolist() == [0.0] * N
        candidate = near(steps, 1.0)
        expected = torch.zeros(N, dtype=torch.float64)
        for row in range(N):
            start = 0
            for size in tiny_network.sizes:
                values, guess = (part[row, start : start + size].tolist() for part in (received.values, candidate))
                smallest = min((abs(value) for value in values if value), default=math.inf)
                for value, one in zip(values, guess, strict=True):
                    expected[row] -= (value - one) ** 2 if value else max(0.0, abs(one) - smallest) ** 2
                start += size
        expected /= 2 * exact_variance(received.values)[:, 0]
        torch.testing.assert_close(defense.log_likelihood(received, at(steps, candidate)), expected)

    @pytest.mark.parametrize(
        "defense",
        [
            RandomMask(probability=0.6),
            RandomMask(probability=0.6, rescale=True),
            OptimalPruning(fraction=0.6, form="as_printed"),
        ],
        ids=repr,
    )
    def test_of_others_nothing_is_known(self, tiny_network: Network, defense: Defense) -> None:
        steps = steps_of(tiny_network)
        _, received = sent(defense, steps)
        other = torch.where(received.values != 0, steps.given, 7.0)
        value = defense.log_likelihood(received, at(steps, other))
        torch.testing.assert_close(value, torch.zeros_like(value))
        assert bool((defense.log_likelihood(received, at(steps, near(steps))) < -1).all())

    @pytest.mark.parametrize("per", ["coordinate", "tensor"])
    def test_optimal_pruning_literally(self, tiny_network: Network, per: Any) -> None:
        """A pruned coordinate, or tensor, has a larger ratio of sensitivity to magnitude than all that are kept."""
        steps = steps_of(tiny_network)
        defense = OptimalPruning(fraction=0.6, per=per)
        _, received = sent(defense, steps)
        candidate = near(steps, 1.0)
        found = defense.log_likelihood(received, at(steps, candidate))
        exact = exact_variance(received.values)[:, 0].tolist()
        sensitivity = steps.sensitivity(defense.probes, defense.probe_kind)
        parts = [1] * tiny_network.dimension if per == "coordinate" else tiny_network.sizes
        for row in range(N):
            sent_parts, guessed, sensitive = (
                [part.tolist() for part in each[row].split(parts)] for each in (received.values, candidate, sensitivity)
            )
            squares = [sum(value**2 for value in values) for values in sent_parts]
            sums = [sum(each) for each in sensitive]
            largest = max(one / square for one, square in zip(sums, squares, strict=True) if square)
            total = 0.0
            for one, values, guesses in zip(sums, sent_parts, guessed, strict=True):
                bound = one / len(values) / largest
                for value, guess in zip(values, guesses, strict=True):
                    total -= (value - guess) ** 2 / 2 / (exact[row] + (0 if value else bound))
            assert float(found[row]) == pytest.approx(total, rel=1e-6)


class TestSigns:
    @pytest.mark.parametrize("scale", ["none", "mean_abs"])
    def test_literally(self, tiny_network: Network, scale: Any) -> None:
        steps, defense = steps_of(tiny_network), SignSGD(scale=scale, factor=3.0)
        _, received = sent(defense, steps)
        candidate = near(steps, 1.0)
        found = defense.log_likelihood(received, at(steps, candidate))
        for row in range(N):
            total, start, ratios = 0.0, 0, []
            for size in tiny_network.sizes:
                values, guess = (part[row, start : start + size].tolist() for part in (received.values, candidate))
                own = sum(map(abs, guess)) / size
                ratios.append((own / (sum(map(abs, values)) / size), size))
                for value, one in zip(values, guess, strict=True):
                    total -= math.log1p(math.exp(-math.copysign(one, one * value) / (SOFTNESS * own)))
                start += size
            mean = sum(ratio * size for ratio, size in ratios) / start
            if scale == "mean_abs":
                total -= sum((ratio / mean - 1) ** 2 / 2 / SCALE_WIDTH**2 for ratio, _ in ratios)
            assert float(found[row]) == pytest.approx(total, rel=1e-6)

    @given(st.floats(1e-3, 1e3), st.sampled_from(["none", "mean_abs"]))
    def test_the_size_of_the_gradient_plays_no_part(self, factor: float, scale: Any) -> None:
        steps, defense = _SIGNED, SignSGD(scale=scale)
        _, received = sent(defense, steps)
        first = defense.log_likelihood(received, at(steps, near(steps)))
        torch.testing.assert_close(defense.log_likelihood(received, at(steps, factor * near(steps))), first)

    @given(st.integers(0, 159))
    def test_both_signs_of_a_coordinate_add_up(self, coordinate: int) -> None:
        steps, defense = _SIGNED, SignSGD()
        _, received = sent(defense, steps)
        turned = received.values.clone()
        turned[:, coordinate] *= -1
        both = [defense.log_likelihood(Received(values), steps) for values in (received.values, turned)]
        alone = steps.given[:, coordinate].abs()
        start = 0
        for size in steps.network.sizes:
            if coordinate < start + size:
                break
            start += size
        width = SOFTNESS * steps.given[:, start : start + size].abs().mean(dim=1)
        torch.testing.assert_close(torch.stack(both).logsumexp(dim=0) - both[0], (-alone / width).exp().log1p())


def _signed() -> Steps:
    from leakbench.models.base import build_network
    from leakbench.models.convnets import SimpleConvNet

    return steps_of(build_network(SimpleConvNet(width=2), (1, 8, 8), 10, seed=0))


_SIGNED = _signed()


EVERY: list[Defense] = [
    GaussianNoise(scale=0.1),
    GaussianNoise(scale=0.0),
    ClippedNoise(scale=0.1, clip=0.05),
    OptimalNoise(scale=0.1),
    OptimalClippedNoise(scale=0.1, clip=0.05),
    OptimalPruning(fraction=0.5),
    MagnitudePruning(fraction=0.5),
    GradDrop(fraction=0.5),
    RandomMask(probability=0.5, rescale=True),
    SignSGD(),
    SignSGD(scale="mean_abs"),
    QSGD(levels=3),
    Laplace(epsilon=4),
    DPSGD(multiplier=0.1, clip=0.5),
    DPPSAC(multiplier=0.1, clip=0.5),
    CAFL(epsilon=3, fraction=0.7, form="as_printed"),
]


def test_cafl_by_the_moments_of_its_coefficients(tiny_network: Network) -> None:
    """Normal coefficients with the two-point law's mean and variance, tensor by tensor with scipy's DCT."""
    defense, steps = CAFL(epsilon=2, fraction=0.7, form="as_printed"), steps_of(tiny_network)
    _, received = sent(defense, steps)
    candidate = near(steps)
    expected = np.zeros(N)
    sizes = tiny_network.sizes
    for number, (seen, tried) in enumerate(
        zip(received.values.split(sizes, 1), candidate.split(sizes, 1), strict=True)
    ):
        count = math.ceil(0.7 * sizes[number])
        first = min(number % math.ceil(sizes[number] / count) * count, sizes[number] - count)
        for row in range(N):
            got, means = (dct(part[row].numpy(), norm="ortho")[first : first + count] for part in (seen, tried))
            centre = (means.max() + means.min()) / 2
            noise = two_point_variance(2) * (means - centre) ** 2 + LEAST_NOISE**2 * (got**2).mean()
            noise += max(0, ((got - means) ** 2 - noise).mean())
            expected[row] += (norm.logpdf(got, means, np.sqrt(noise)) + math.log(2 * math.pi) / 2).sum()
    found = defense.log_likelihood(received, at(steps, candidate))
    torch.testing.assert_close(found, torch.from_numpy(expected).to(found), rtol=1e-4, atol=1e-3)


class Estimated(Steps):
    """A step beside an attacker's estimate, whose gradient is this."""

    guess: torch.Tensor

    @property
    def estimate(self) -> torch.Tensor:
        return self.guess


@pytest.mark.parametrize("defense", [OptimalNoise(scale=0.1), OptimalClippedNoise(scale=0.1, clip=0.05)], ids=repr)
def test_noise_has_the_sizes_that_it_has_at_an_estimate(defense: OptimalNoise, tiny_network: Network) -> None:
    """Student's t about the candidate, of the variances at the estimate, whatever the candidate is; by scipy."""
    truth = steps_of(tiny_network)
    _, received = sent(defense, truth)
    steps = Estimated(tiny_network, truth.parameters, truth.images, truth.labels, truth.streams)
    steps.guess = truth.given + 0.01 * torch.randn(truth.given.shape, generator=torch.Generator().manual_seed(3))
    values = received.values.numpy()
    clipped = abs(values) == defense.clip if isinstance(defense, OptimalClippedNoise) else values != values
    ratio = np.where(clipped, 0, defense.ratio_at(steps.guess, steps).numpy())
    variance = defense.scale**2 * ratio / ratio.mean(axis=1, keepdims=True)
    variance = variance.clip(min=LEAST_ESTIMATED * variance.mean(axis=1, keepdims=True))
    found = []
    for candidate in (truth.given, near(truth)):
        steps.given = candidate
        deviation = values - candidate.numpy()
        if isinstance(defense, OptimalClippedNoise):
            beyond = np.sign(values) * candidate.numpy() >= defense.clip
            deviation = np.where(clipped & beyond, 0, deviation)
        logarithm = student.logpdf(deviation, FREEDOM, scale=np.sqrt(variance)) - student.logpdf(
            0, FREEDOM, scale=np.sqrt(variance)
        )
        torch.testing.assert_close(
            defense.log_likelihood(received, steps), torch.from_numpy(logarithm.sum(axis=1)).to(candidate)
        )
        found.append(received)
    point = steps.given.clone().requires_grad_()
    steps.given = point
    (slope,) = torch.autograd.grad(defense.log_likelihood(received, steps).sum(), point)
    for coordinate in range(0, tiny_network.dimension, 17):
        shift = torch.zeros_like(point)
        shift[:, coordinate] = 1e-6
        both = []
        for sign in (1, -1):
            steps.given = point.detach() + sign * shift
            both.append(float(defense.log_likelihood(received, steps).sum()))
        assert float(slope[:, coordinate].sum()) == pytest.approx((both[0] - both[1]) / 2e-6, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("defense", EVERY, ids=repr)
def test_derivatives(defense: Defense, tiny_network: Network) -> None:
    """Against finite differences, where variances that candidates have, and their own errors, count as constants."""
    steps = steps_of(tiny_network)
    _, received = sent(defense, steps)
    point = near(steps)

    def total(gradient: torch.Tensor) -> torch.Tensor:
        return defense.log_likelihood(received, at(steps, gradient)).sum()

    derivative = torch.func.grad(total)(point)
    assert bool(derivative.isfinite().all()) and bool(derivative.any())
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(defense, OptimalNoise):
            ratio = defense.ratio(at(steps, point))
            patch.setattr(type(defense), "ratio_at", lambda *_, **__: ratio)
        errors: list[torch.Tensor] = []

        def held(*given: torch.Tensor) -> torch.Tensor:
            errors.append(errors[0] if errors else excess_variance(*given))
            return errors[-1]

        patch.setattr(densities, "excess_variance", held)
        total(point)
        for coordinate in range(0, tiny_network.dimension, 13):
            shift = torch.zeros_like(point)
            shift[:, coordinate] = 1e-6 * point[:, coordinate].abs().max()
            slope = float(total(point + shift) - total(point - shift)) / float(2 * shift.max())
            assert float(derivative[:, coordinate].sum()) == pytest.approx(slope, rel=1e-3, abs=1e-3)


class TestFittedScale:
    def test_is_least_squares(self) -> None:
        draw = np.random.default_rng(0)
        gradient, values = draw.normal(size=(2, 6)), draw.normal(size=(2, 6))
        values += 2 * gradient
        where = np.array([[True] * 6, [True, False] * 3])
        found = least_squares_scale(*map(torch.from_numpy, (values, gradient, where)))
        for row in range(2):
            chosen = where[row]
            expected, *_ = np.linalg.lstsq(gradient[row, chosen, None], values[row, chosen], rcond=None)
            assert float(found[row, 0]) == pytest.approx(expected[0])
        weights = draw.uniform(size=(2, 6))
        root = np.sqrt(weights)
        found = least_squares_scale(*map(torch.from_numpy, (values, gradient, weights)))
        for row in range(2):
            expected, *_ = np.linalg.lstsq((root * gradient)[row, :, None], (root * values)[row], rcond=None)
            assert float(found[row, 0]) == pytest.approx(expected[0])

    def test_does_not_turn_a_candidate_round(self) -> None:
        gradient = torch.ones(1, 3)
        assert least_squares_scale(-gradient, gradient).item() == pytest.approx(LEAST_SCALE)
        assert least_squares_scale(gradient, torch.zeros(1, 3)).item() == 1

    @pytest.mark.parametrize(
        "defense",
        [
            MagnitudePruning(fraction=0.9),
            GradDrop(fraction=0.9),
            RandomMask(probability=0.9, rescale=True),
            OptimalPruning(fraction=0.9),
            OptimalClippedNoise(scale=1e-5, clip=0.05),
            ClippedNoise(scale=1e-5, clip=0.05),
            SignSGD(),
            CAFL(epsilon=40, fraction=0.7, form="as_printed"),
        ],
        ids=repr,
    )
    def test_is_one_at_the_truth(self, defense: Defense, tiny_network: Network) -> None:
        steps = steps_of(tiny_network)
        _, received = sent(defense, steps)
        scale = defense.fitted_scale(received, steps)
        torch.testing.assert_close(scale, torch.ones_like(scale), rtol=1e-3, atol=0)
