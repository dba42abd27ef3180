"""Words, flips and votes as a defense: what is sent of which layer, and what the server makes of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from leakbench.defenses.base import Schedule, least_squares_scale
from leakbench.defenses.cdpa import CDPA, WordMessage, protected_tensors
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.lattice import Lattice, dequantise, quantise
from leakbench.federated.lattice_likelihood import FINEST
from leakbench.federated.local import LocalTraining
from leakbench.federated.message import Received
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network
from leakbench.randomness import Streams

Fixed = Callable[[torch.Tensor, torch.Tensor], ClientSteps]
Make = Callable[[torch.Tensor], ClientSteps]


def streams(n: int) -> Streams:
    return Streams([("cdpa", index) for index in range(n)])


def updates(n: int, network: Network, scale: float = 0.05) -> torch.Tensor:
    return scale * torch.randn(n, network.dimension, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def steps_of(fixed_steps: Fixed, tiny_network: Network) -> Make:
    def make(gradient: torch.Tensor) -> ClientSteps:
        steps = fixed_steps(gradient, gradient)
        steps.network, steps.local = tiny_network, LocalTraining(steps=2, rate=0.05)
        return steps

    return make


def sent(defense: CDPA, steps: ClientSteps) -> WordMessage:
    message = defense.protect_update(steps, streams(len(steps.gradient)))
    assert isinstance(message, WordMessage)
    return message


class TestLayers:
    def test_by_name(self, tiny_network: Network) -> None:
        names = {
            layers: [
                name
                for name, chosen in zip(tiny_network.names, protected_tensors(tiny_network, layers), strict=True)
                if chosen
            ]
            for layers in ("last", "linear", "all")
        }
        assert names["all"] == tiny_network.names
        assert names["last"] == names["linear"][2:] == tiny_network.names[-2:]
        assert len(names["linear"]) == 4 and set(tiny_network.linear_layers) == {
            name.rpartition(".")[0] for name in names["linear"]
        }

    def test_a_model_without_any(self, fixed_steps: Fixed) -> None:
        network = Network(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten()))
        steps = fixed_steps(torch.zeros(1, 20), torch.zeros(1, 20))
        steps.network = network
        for layers in ("last", "linear"):
            with pytest.raises(ConfigError, match=rf"layers '{layers}'.*allowed: all"):
                CDPA(layers=layers).protect_update(steps, streams(1))
        assert CDPA(layers="all").protect_update(steps, streams(1)).view().shape == (1, 20)

    @pytest.mark.parametrize("layers", ["last", "linear", "all"])
    def test_the_others_are_quantised_and_averaged(self, steps_of: Make, tiny_network: Network, layers: str) -> None:
        gradient = updates(4, tiny_network)
        message = sent(CDPA(layers=layers, p=0.7), steps_of(gradient))
        protected = message.protected
        error = (message.view() - gradient).abs()
        assert (error[:, ~protected] < 1e-5).all()
        assert float(error[:, protected].max()) > 0.4
        count = int(protected.sum())
        kinds = protected_tensors(tiny_network, layers)  # type: ignore[arg-type]
        assert count == sum(size for size, chosen in zip(tiny_network.sizes, kinds, strict=True) if chosen)
        side = 96 * kinds.count(False)
        assert message.bits == 16 * 160 + side + (count < 160)  # 2^16 + 1 levels of lattice points
        mean = CDPA(layers=layers, p=0.7).aggregate(message, 4)
        torch.testing.assert_close(mean[:, ~protected], message.view()[:, ~protected].mean(dim=0)[None])


class TestWords:
    def test_what_is_written_is_what_the_quantiser_made(self, steps_of: Make, tiny_network: Network) -> None:
        gradient = updates(2, tiny_network)
        message = sent(CDPA(layers="all", p=1.0, bits=6), steps_of(gradient))
        own = streams(2).child("words")
        coarse = dequantise(quantise(gradient, tiny_network.sizes, Lattice(bits=6), "nearest", own), own)
        assert torch.equal(message.view(), (coarse * 1e4).round() / 1e4)
        assert float((message.view() - gradient).abs().max()) > 1e-3

    def test_delta(self, steps_of: Make, tiny_network: Network) -> None:
        """The change of the parameters is minus the rate times the gradient: flips are worth 1 / rate as much."""
        gradient = updates(6, tiny_network)
        for parameters, rate in (({}, 0.05), ({"rate": 0.5}, 0.5)):
            message = sent(CDPA(encodes="delta", p=0.7, **parameters), steps_of(gradient))
            words = message.form.decode(message.before)
            expected = -rate * gradient[:, message.protected]
            torch.testing.assert_close(words, expected, atol=6e-5, rtol=0)
            noise = (message.view() - gradient)[:, message.protected]
            flips = torch.tensor([0.0, 0.4096, 0.8192, 1.2288]) / rate
            assert ((noise.abs()[..., None] - flips).abs().min(dim=-1).values < 6e-5 / rate).all()
            plain = CDPA(encodes="delta", p=1.0, variant="corrected", **parameters)
            mean = plain.aggregate(sent(plain, steps_of(gradient)), 3)
            torch.testing.assert_close(mean, gradient.unflatten(0, (2, 3)).mean(dim=1), atol=6e-5 / rate, rtol=0)

    def test_large_values_saturate_or_wrap(self, steps_of: Make, tiny_network: Network) -> None:
        gradient = updates(2, tiny_network)
        gradient[0, -1], gradient[1, -2], gradient[1, -12] = 4.0, -4.0, 5.0
        saturating = sent(CDPA(layers="all", p=1.0), steps_of(gradient))
        assert saturating.saturated.sum(dim=1).tolist() == [1, 2]
        values = saturating.view()
        assert [float(values[0, -1]), float(values[1, -2]), float(values[1, -12])] == pytest.approx(
            [3.2767, -3.2767, 3.2767]
        )
        wrapping = sent(CDPA(layers="all", p=1.0, variant="as_released"), steps_of(gradient))
        assert wrapping.saturated.sum(dim=1).tolist() == [1, 2]
        values = wrapping.view()
        assert [float(values[0, -1]), float(values[1, -2]), float(values[1, -12])] == pytest.approx(
            [-0.7232, -0.7232, -1.7232], abs=5e-4
        )

    def test_a_row_does_not_depend_on_the_batch_it_is_in(self, steps_of: Make, tiny_network: Network) -> None:
        gradient = updates(3, tiny_network)
        together = sent(CDPA(p=0.7, bits=4), steps_of(gradient)).view()
        for index in range(3):
            own = Streams([("cdpa", index)])
            alone = CDPA(p=0.7, bits=4).protect_update(steps_of(gradient[index : index + 1]), own)
            assert torch.equal(alone.view()[0], together[index])


class TestServer:
    @pytest.mark.parametrize("variant", ["as_printed", "as_released", "corrected"])
    def test_without_flips_equal_clients_get_their_update(
        self, steps_of: Make, tiny_network: Network, variant: str
    ) -> None:
        gradient = updates(1, tiny_network).expand(6, -1).clone()
        defense = CDPA(variant=variant, p=1.0, layers="all")
        mean = defense.aggregate(sent(defense, steps_of(gradient)), 3)
        assert mean.shape == (2, 160)
        torch.testing.assert_close(mean, gradient[:2], atol=3e-4, rtol=0)

    @pytest.mark.parametrize(("threshold", "p", "expected"), [("printed", 0.8, 31909), ("majority", 0.8, 27813)])
    def test_the_threshold(
        self, steps_of: Make, tiny_network: Network, threshold: str, p: float, expected: int
    ) -> None:
        """Bit 3 set in eight of twenty words: enough for R p / 2 = 8, not for R / 2."""
        defense = CDPA(variant="as_printed", threshold=threshold, p=p, layers="all")
        message = sent(defense, steps_of(updates(20, tiny_network)))
        message.words[:8], message.words[8:] = 31909, 27813
        assert torch.equal(defense.aggregate(message, 20), torch.full((1, 160), expected / 1e4))

    def test_a_single_client_is_its_own_vote(self, steps_of: Make, tiny_network: Network) -> None:
        defense = CDPA(variant="as_printed", p=0.7)
        message = sent(defense, steps_of(updates(3, tiny_network)))
        torch.testing.assert_close(defense.aggregate(message, 1), message.view())

    def test_corrected_is_unbiased_and_the_vote_is_not(self, steps_of: Make, tiny_network: Network) -> None:
        clients = 800
        gradient = updates(1, tiny_network).expand(clients, -1) + updates(clients, tiny_network, 0.01)
        means = {}
        for variant in ("corrected", "as_printed"):
            defense = CDPA(variant=variant, p=0.9, layers="all")
            means[variant] = defense.aggregate(sent(defense, steps_of(gradient)), clients)[0]
        error = means["corrected"] - gradient.mean(dim=0)
        deviation = math.sqrt(0.9 * 0.1 * (0.8192**2 + 0.4096**2) / clients) / 0.8
        assert float(error.square().mean().sqrt()) == pytest.approx(deviation, rel=0.2)
        assert abs(float(error.mean())) < 4 * deviation / math.sqrt(160)
        assert float((means["as_printed"] - gradient.mean(dim=0)).abs().max()) > 0.005  # of values of one sign


class TestKnowledge:
    @pytest.mark.parametrize(
        ("encodes", "unit"), [({}, 1.0), ({"encodes": "delta", "rate": 0.1}, 10.0), ({"encodes": "delta"}, 20.0)]
    )
    def test_which_coordinates_are_words_and_in_what_unit(
        self, steps_of: Make, tiny_network: Network, encodes: dict[str, Any], unit: float
    ) -> None:
        """The rate of these clients is 0.05."""
        message = sent(CDPA(layers="linear", **encodes), steps_of(updates(2, tiny_network)))
        torch.testing.assert_close(message.coded, unit * message.protected.float().expand(2, -1))

    def test_marked_are_set_masked_bits(self, steps_of: Make, tiny_network: Network) -> None:
        gradient = updates(4, tiny_network)
        message = sent(CDPA(p=0.7, layers="linear"), steps_of(gradient))
        assert message.marked.dtype == torch.bool and message.marked.shape == gradient.shape
        assert torch.equal(message.marked, (message.view() - gradient).abs() > 0.3)
        assert not message.marked[:, ~message.protected].any()

    def test_law_of_many_clients(self, steps_of: Make, tiny_network: Network) -> None:
        gradient = updates(1, tiny_network).expand(400, -1)
        message = sent(CDPA(p=0.9, layers="linear"), steps_of(gradient))
        law = message.law
        assert law.variance is not None and law.passing.all() and not law.normal
        error = message.view() - law.mean
        noisy = law.variance[0] > 0
        assert not error[:, ~noisy].any()
        normalised = error[:, noisy] / law.variance[:, noisy].sqrt()
        for part in (message.protected[noisy], ~message.protected[noisy]):
            assert float(normalised[:, part].square().mean()) == pytest.approx(1, abs=0.1)
            assert float(normalised[:, part].mean()) == pytest.approx(0, abs=4 / math.sqrt(400 * int(part.sum())))
        variance = 0.9 * 0.1 * (0.8192**2 + 0.4096**2)
        torch.testing.assert_close(law.variance[:, message.protected].mean(), torch.tensor(variance))

    def test_the_statement_gives_both_epsilons_and_no_guarantee(self) -> None:
        statement = CDPA(p=0.98).privacy(Schedule(dimension=5130, rounds=95))
        assert statement.epsilon is None and statement.delta is None
        assert "3.892" in statement.basis and "3.79336e+06" in statement.basis and "infinite" in statement.basis
        assert "no bit is ever flipped" in CDPA(p=1.0).privacy(Schedule(10)).basis


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"p": 0.5}, "greater than 0.5"),
        ({"p": 1.1}, "less than or equal to 1"),
        ({"mask": (2, 16)}, "different bits of a word, 0 to 15"),
        ({"mask": (-1,)}, "0 to 15"),
        ({"mask": (2, 2)}, "different"),
        ({"mask": (9,), "width": 8}, "0 to 7"),
        ({"variant": "as_released", "width": 12}, "must be 16"),
        ({"rate": 0.1}, "encodes 'delta'"),
        ({"layers": "first"}, "'last', 'linear' or 'all'"),
    ],
)
def test_what_does_not_fit_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CDPA(**parameters)


class TestText:
    """The paper's settings of text: five decimals, bits 5 and 6, one of 1,000 flipped, all layers."""

    SETTINGS: ClassVar[dict[str, Any]] = {"layers": "all", "decimals": 5, "mask": (5, 6), "p": 0.999}

    def test_flips_of_small_values(self, fixed_steps: Fixed) -> None:
        """Weights of 0.01024 and 0.00512; the noise has a mean of 1.536e-5 and a deviation of 3.62e-4."""
        gradient = torch.full((2, 400_000), 0.002)
        gradient[1] *= -1
        steps = fixed_steps(gradient, gradient)
        steps.network = SimpleNamespace(names=["weight"], sizes=[400_000])  # type: ignore[assignment]
        message = sent(CDPA(**self.SETTINGS, bits=24), steps)
        noise = message.view() - message.form.decode(message.before)
        assert message.saturated.sum(dim=1).tolist() == [0, 0]
        assert noise[1].amax() == 0 and noise[0].amin() == 0  # away from zero, whatever the sign
        values = noise[0].mul(1e5).round().unique().tolist()
        assert values in ([0, 512, 1024], [0, 512, 1024, 1536])
        for row, sign in ((0, 1), (1, -1)):
            assert float(noise[row].mean()) == pytest.approx(sign * 1.536e-5, rel=0.15)
            assert float(noise[row].std()) == pytest.approx(3.62e-4, rel=0.1)
        law = message.law
        torch.testing.assert_close(law.mean[0], torch.full((400_000,), 0.002 + 1.536e-5), rtol=0, atol=1e-8)
        assert law.variance is not None
        assert float(law.variance[0, 0].sqrt()) == pytest.approx(3.62e-4, rel=1e-3)

    def test_what_a_word_holds(self, steps_of: Make, tiny_network: Network) -> None:
        gradient = updates(2, tiny_network)
        gradient[0, -1], gradient[1, -2] = 0.4, -3.0
        message = sent(CDPA(**{**self.SETTINGS, "p": 1.0}), steps_of(gradient))
        assert message.saturated.sum(dim=1).tolist() == [1, 1]
        values = message.view()
        assert float(values[0, -1]) == pytest.approx(0.32767) and float(values[1, -2]) == pytest.approx(-0.32767)
        assert message.bits == 16 * 160

    def test_tensors_of_zeros(self, steps_of: Make, tiny_network: Network) -> None:
        """Such as word embeddings, of which an attack through embedded words sees no gradient."""
        gradient = updates(2, tiny_network)
        first = tiny_network.sizes[0]
        gradient[:, :first] = 0
        message = sent(CDPA(**{**self.SETTINGS, "p": 1.0}), steps_of(gradient))
        assert bool(message.protected.all()) and not bool(message.view()[:, :first].any())
        flipped = sent(CDPA(**{**self.SETTINGS, "p": 0.6}), steps_of(gradient)).view()[:, :first]
        assert bool(flipped.any()) and bool((flipped >= 0).all())

    def test_as_the_public_code_reads_it(self, steps_of: Make, tiny_network: Network) -> None:
        """Ten times too large in the hands of an attacker; the server's vote is right. Large values saturate."""
        gradient = updates(3, tiny_network)
        gradient[0, -1] = 0.5
        honest, inflated = (
            sent(CDPA(**self.SETTINGS, variant=variant), steps_of(gradient))
            for variant in ("as_released", "as_released_text")
        )
        values = 10 * honest.view()
        values[0, -1] = 3.2767
        torch.testing.assert_close(inflated.view(), values)
        torch.testing.assert_close(inflated.law.mean[1:], 10 * honest.law.mean[1:])
        assert inflated.law.variance is not None and honest.law.variance is not None
        torch.testing.assert_close(inflated.law.variance, 100 * honest.law.variance)
        equal = updates(4, tiny_network)
        votes = [
            server.aggregate(sent(server, steps_of(equal)), 4)
            for server in (CDPA(**self.SETTINGS, variant=variant) for variant in ("as_released", "as_released_text"))
        ]
        assert torch.equal(*votes)
        with pytest.raises(ValidationError, match="must be 16 for variant 'as_released_text'"):
            CDPA(variant="as_released_text", width=12, mask=(2,))


class TestLikelihood:
    """Checks the law of words against a literal sum over flips, and that of whole messages."""

    CASES: ClassVar[list[dict[str, Any]]] = [
        {},
        {"p": 0.7, "mask": (1, 2, 5)},
        {"p": 0.8, "mask": (0, 2)},
        {"negatives": "twos_complement", "mask": (0, 3)},
        {"variant": "as_released"},
        {"variant": "as_released_text"},
        {"variant": "corrected", "layers": "linear"},
        {"layers": "all", "encodes": "delta", "rate": 0.5},
        {"encodes": "delta", "decimals": 3},
        {"p": 1},
        {"bits": 3},
    ]

    @staticmethod
    def received(defense: CDPA, steps: ClientSteps) -> Received:
        message = sent(defense, steps)
        return message.received

    @pytest.mark.parametrize("parameters", CASES, ids=repr)
    def test_is_best_at_the_truth_and_its_derivative_is_right(
        self, steps_of: Make, tiny_network: Network, parameters: dict[str, Any]
    ) -> None:
        defense, gradient = CDPA(**parameters), updates(1, tiny_network).double()
        seen = self.received(defense, steps_of(gradient))

        def value(values: torch.Tensor) -> torch.Tensor:
            return defense.log_likelihood(seen, steps_of(values)).sum()

        draw = torch.Generator().manual_seed(1)
        noise = torch.randn(gradient.shape, generator=draw, dtype=torch.float64)
        at_truth, near = float(value(gradient)), float(value(gradient + 0.02 * noise))
        assert math.isfinite(near) and at_truth > near
        point = gradient + 0.02 * noise
        derivative = torch.func.grad(value)(point)
        for coordinate in range(0, tiny_network.dimension, 3):
            moved = torch.zeros_like(point)
            moved[0, coordinate] = 1e-8
            slope = (float(value(point + moved)) - float(value(point - moved))) / 2e-8
            room = 1e-9 * abs(near) / 1e-8  # of the sum's last digits
            assert float(derivative[0, coordinate]) == pytest.approx(slope, rel=1e-3, abs=max(1e-2, room))

    @pytest.mark.parametrize("parameters", CASES[:4], ids=repr)
    def test_is_a_mixture_over_flips(self, parameters: dict[str, Any]) -> None:
        """Literally: every set of flipped bits, its probability, and a normal density around its word."""
        defense = CDPA(**parameters)
        form, masked, p = defense.form, defense.mask, defense.p
        draw = torch.Generator().manual_seed(2)
        values = 0.3 * torch.randn(1, 6, generator=draw, dtype=torch.float64)
        words = form.flip(form.encode(values)[0], masked, p, streams(1))
        seen = form.decode(words).double()
        shifted = values + 0.01 * torch.randn(1, 6, generator=draw, dtype=torch.float64)
        found = float(defense._of_words(defense._density(seen, [6]), shifted)[0])
        flips = [
            [bit for bit, chosen in zip(masked, which, strict=True) if chosen]
            for which in itertools.product((0, 1), repeat=len(masked))
        ]
        origins = {
            (column, tuple(some)): int(form.integers(words[0, column] ^ torch.tensor(form.mask(some)).to(torch.int16)))
            for column in range(6)
            for some in flips
        }
        least = [min(abs(origins[column, tuple(some)]) for some in flips) for column in range(6)]
        size = math.sqrt(sum(each**2 for each in least) / 6)
        lattice = Lattice(bits=16)
        variance = max(1 / 12 + 18 * size**2 * 5 / 54 * lattice.step**2, (FINEST * size) ** 2 / 2)
        total = 0.0
        for column in range(6):
            terms = [
                p ** (len(masked) - len(some))
                * (1 - p) ** len(some)
                * math.exp(
                    -((float(shifted[0, column]) * form.scale - origins[column, tuple(some)]) ** 2) / 2 / variance
                )
                for some in flips
            ]
            total += math.log(max(sum(terms), 1e-300))
        assert found == pytest.approx(total, rel=1e-6)

    @given(st.floats(-0.4, 0.4), st.sampled_from([0.6, 0.9, 0.99]), st.sampled_from([(2,), (2, 3), (1, 2, 4)]))
    def test_a_flip_costs_its_odds(self, value: float, p: float, mask: tuple[int, ...]) -> None:
        """Words that a flip apart are as likely as the flip, where words are far from each other."""
        defense = CDPA(p=p, mask=mask)
        values = torch.tensor([[value]], dtype=torch.float64)
        word, _ = defense.form.encode(values)
        exact = defense.form.decode(word).double()
        if abs(float(exact)) < 1e-3:
            return
        flipped = defense.form.decode(word ^ defense.form.mask(mask[:1])).double()
        at, off = (float(defense._of_words(defense._density(seen, [1]), exact)[0]) for seen in (exact, flipped))
        assert at - off == pytest.approx(math.log(p / (1 - p)), abs=1e-6)

    def test_flips_do_not_matter_to_the_derivative(self, steps_of: Make, tiny_network: Network) -> None:
        """A word's origin is the nearest of those that are possible: flips pull at nothing."""
        gradient, defense = updates(1, tiny_network).double(), CDPA(p=0.6)
        seen = self.received(defense, steps_of(gradient))
        assert float((seen.values - gradient).abs().max()) > 0.4
        point = gradient + 1e-3
        derivative = torch.func.grad(lambda g: defense.log_likelihood(seen, steps_of(g)).sum())(point)
        assert bool((derivative[:, -90:] <= 0).all())

    def test_saturated_words_have_no_end(self) -> None:
        for variant in ("as_printed", "as_released_text"):
            defense = CDPA(variant=variant, p=0.999, mask=(2,))
            words = torch.tensor([[3.2767]], dtype=torch.float64)
            density = defense._density(words, [1])
            at = [float(defense._of_words(density, torch.tensor([[each]]).double())) for each in (3.2767, 4, 9, 2)]
            assert at[:3] == pytest.approx([math.log(0.999)] * 3, abs=1e-3) and at[3] < -5

    def test_overflown_words_are_compared_as_such(self) -> None:
        defense = CDPA(variant="as_released", p=0.999, mask=(2,))
        values = torch.tensor([[4.0, -5.0, 7.1]], dtype=torch.float64)
        words, beyond = defense.form.encode_released(values)
        assert bool(beyond.all())
        seen = defense.form.decode(words).double()
        density = defense._density(seen, [3])
        assert float(defense._of_words(density, values)[0]) == pytest.approx(3 * math.log(0.999), abs=1e-2)
        assert float(defense._of_words(density, seen)[0]) == pytest.approx(3 * math.log(0.999), abs=1e-2)

    @pytest.mark.parametrize(
        "parameters", [{}, {"encodes": "delta"}, {"layers": "linear"}, {"negatives": "twos_complement"}]
    )
    def test_flips_do_not_stretch_a_candidate(
        self, steps_of: Make, tiny_network: Network, parameters: dict[str, Any]
    ) -> None:
        """Least squares over all coordinates stretches half of the true gradient to more than the whole."""
        defense, gradient = CDPA(**{"p": 0.9, "layers": "all", **parameters}), updates(4, tiny_network).double()
        seen, half = self.received(defense, steps_of(gradient)), steps_of(gradient / 2)
        twice = torch.full((4, 1), 2.0, dtype=torch.float64)
        torch.testing.assert_close(defense.fitted_scale(seen, half), twice, rtol=0.02, atol=0)
        assert float((least_squares_scale(seen.values, half.gradient) - twice).abs().min()) > 0.5

    def test_a_misread_gradient_is_as_long_as_it_was(self, steps_of: Make, tiny_network: Network) -> None:
        defense, gradient = CDPA(variant="as_released_text"), updates(2, tiny_network).double()
        steps = steps_of(gradient)
        scale = defense.fitted_scale(self.received(defense, steps), steps)
        torch.testing.assert_close(scale, torch.ones_like(scale), rtol=0.02, atol=0)

    def test_many_masked_bits_are_refused(self, steps_of: Make, tiny_network: Network) -> None:
        defense, steps = CDPA(mask=tuple(range(1, 10))), steps_of(updates(1, tiny_network))
        with pytest.raises(Infeasible, match="mask names 9 bits"):
            defense.log_likelihood(self.received(defense, steps), steps)
