"""Errors of Deng et al. (2024), each shown by computing: what is printed fails, what is meant or corrected holds.

The names count the errors as the page of cdpa does, which says in words what is wrong.
"""

from __future__ import annotations

import math
from typing import ClassVar

import pandas as pd
import pytest
import torch
from tests.theory.vectors import close, normal, row

from leakbench.attacks.objectives import CosinePerTensor
from leakbench.defenses.base import Schedule
from leakbench.defenses.cdpa import CDPA
from leakbench.federated.fixed_point import FixedPoint, unbiased_mean, vote
from leakbench.jobs.costs import CARBON_INTENSITY, carbon_kg
from leakbench.metrics.image import psnr, ssim_global
from leakbench.metrics.text import ROUGES, rouge_floor
from leakbench.papers.cdpa.common import MASK_TEXT, printed
from leakbench.papers.cdpa.text_printed import scores
from leakbench.randomness import Streams
from leakbench.theory.bit_votes import (
    aggregation_error,
    composed_epsilon,
    convergence_bound,
    epsilon_per_bit,
    flip_moments,
    gradient_gap_bound,
    keep_for_epsilon,
    least_ones,
    recovery_error,
    smoothness,
    value_epsilon,
    vote_errors,
)

FORM, MASK, P = FixedPoint(), (2, 3), 0.98
RESNET18, LAST_LAYER, ROG_LAYER = 11_183_582, 5_130, 32_768_000
"""Numbers in the state of ResNet18, of its last layer, and of that of ROG's ResNet18."""


def streams(n: int, name: str = "errors") -> Streams:
    return Streams([(name, index) for index in range(n)])


def words_of(values: torch.Tensor) -> torch.Tensor:
    words, saturated = FORM.encode(values)
    assert not saturated.any()
    return words


def voted(*integers: int, keep: float = P) -> int:
    words = words_of(row(*integers).unsqueeze(-1) / FORM.scale)
    return int(FORM.integers(vote(words, least_ones(len(integers), keep))))


class TestI01EpsilonOfABit:
    def test_i01_the_stated_epsilons_are_of_one_bit(self) -> None:
        table = printed("table08")
        found = [round(epsilon_per_bit(keep), 2) for keep in table["p"]]
        assert found == [1.39, 2.2, 2.94, 3.89] and table["eps"].tolist() == [1.38, 2.2, 2.94, 3.89]

    def test_i01_masked_bits_add_up(self) -> None:
        assert composed_epsilon(P, 2) == pytest.approx(7.78364, rel=1e-6)
        assert composed_epsilon(P, 2, LAST_LAYER) == pytest.approx(39_930.08, rel=1e-7)
        assert composed_epsilon(P, 2, LAST_LAYER, 95) == pytest.approx(3_793_357.2, rel=1e-7)
        assert composed_epsilon(P, 2, ROG_LAYER) == pytest.approx(2.55e8, rel=2e-3)
        assert "3.79336e+06" in CDPA(p=P).privacy(Schedule(LAST_LAYER, rounds=95)).basis

    def test_i01_bits_in_clear_have_none(self) -> None:
        assert value_epsilon(P, 2) == math.inf
        values = row(0.0012, 0.0013).unsqueeze(-1).expand(-1, 2000)
        sent = FORM.flip(words_of(values), MASK, 0.6, streams(2)) & ~FORM.mask(MASK)
        assert (sent[0] != sent[1]).all()

    def test_i01_of_small_values_the_masked_bits_say_nothing(self) -> None:
        """All values below 0.4096, the weight of the smaller one, have zeros there."""
        values = torch.linspace(-0.4095, 0.4095, 9001, dtype=torch.float64)
        assert (words_of(values) & FORM.mask(MASK) == 0).all()
        assert words_of(row(0.4096)) & FORM.mask(MASK) != 0


class TestI02VoteIsNoMean:
    @pytest.mark.parametrize(
        ("integers", "found"),
        [
            ((127, 127, 128, 128), 255),
            ((1, 2, 4), 0),
            ((3, 5, 6), 7),
            ((100, 200, 300, 400), 492),
            ((-5, 5, 5, -5), -5),
        ],
    )
    def test_i02_by_hand(self, integers: tuple[int, ...], found: int) -> None:
        """Neither the mean nor the median, and not always between the smallest and the largest."""
        assert voted(*integers) == found
        assert found != sum(integers) / len(integers) and found != row(*integers).quantile(0.5)

    @pytest.mark.parametrize(("spread", "error"), [(0.1, 0.136), (0.3, 0.266), (1.0, 0.543), (3.0, 1.038)])
    def test_i02_the_more_clients_differ_the_worse(self, spread: float, error: float) -> None:
        """Twenty clients, no flips; updates around a normal mean of 0.02, apart by ``spread`` times as much."""
        mean = 0.02 * normal(0, 1, 20_000)
        values = mean + spread * 0.02 * normal(1, 20, 20_000)
        found = FORM.decode(vote(words_of(values), least_ones(20, 1.0))).double()
        average = values.mean(dim=0)
        relative = float((found - average).norm() / average.norm())
        assert relative == pytest.approx(error, abs=0.03)
        corrected = unbiased_mean(words_of(values), FORM, MASK, 1.0).double()
        assert (corrected - average).norm() / average.norm() < 2e-3

    def test_i02_ties_count_as_ones(self) -> None:
        """So where clients differ by much, magnitudes come out too large, and signs that are split negative."""
        values = 0.02 * (normal(2, 1, 20_000) + 3 * normal(3, 20, 20_000))
        found = FORM.decode(vote(words_of(values), least_ones(20, 1.0))).double()
        mean = values.mean(dim=0)
        assert (found - mean).mean() < -0.1 * mean.abs().mean() and found.abs().mean() > 1.2 * mean.abs().mean()
        assert voted(*[-1000] * 8, *[1000] * 12, keep=0.8) == -1000
        assert voted(*[-1000] * 8, *[1000] * 12, keep=0.98) == 1000


@pytest.mark.parametrize(
    ("clients", "keep", "stated", "of_zeros"),
    [(20, 0.8, 5.634e-4, 3.2143e-2), (4, 0.98, 3.152e-5, 2.3365e-3), (20, 0.9, 7.089e-7, 5.986e-5)],
)
def test_i03_the_printed_rule_has_another_error(clients: int, keep: float, stated: float, of_zeros: float) -> None:
    """Eq. 2 divides by p; of honest zeros, which masked bits are, it loses up to 84 times as many as eq. 3 says."""
    assert recovery_error(clients, keep) == pytest.approx(stated, rel=2e-4)
    assert vote_errors(clients, keep)[1] == pytest.approx(of_zeros, rel=2e-4)
    drawn = FORM.flip(torch.zeros(clients, 100_000, dtype=torch.int16), (2,), keep, streams(clients))
    lost = float((vote(drawn, least_ones(clients, keep)) != 0).double().mean())
    assert lost == pytest.approx(of_zeros, abs=5 * math.sqrt(of_zeros / 100_000))


def test_i03_and_so_has_the_value() -> None:
    assert aggregation_error(20, 0.8, 2, 4) == pytest.approx(4.6155e-4, rel=1e-4)
    assert aggregation_error(20, 0.8, 2, 4, true_bit=0) == pytest.approx(2.6331e-2, rel=1e-4)


def test_i04_more_clients_can_err_more() -> None:
    """Ties count as success, and even numbers alone have them; below p = 2/3 four clients err more than two, even."""
    assert recovery_error(2, 0.8) == pytest.approx(0.04) and recovery_error(3, 0.8) == pytest.approx(0.104)
    assert recovery_error(10, 0.8) < recovery_error(11, 0.8)
    assert recovery_error(2, 0.6) == pytest.approx(0.16) and recovery_error(4, 0.6) == pytest.approx(0.1792)


class TestI05ProtectionIsRemovable:
    def test_i05_cleared_bits_give_the_honest_value_back(self) -> None:
        values = (0.05 * normal(4, 2, 20_000)).clamp(-0.4, 0.4)
        honest = words_of(values)
        sent = FORM.flip(honest, MASK, 0.8, streams(2))
        assert (sent != honest).double().mean() > 0.3
        assert torch.equal(sent & ~FORM.mask(MASK), honest)

    def test_i05_imputing_touches_little(self) -> None:
        """Four percent of a layer at p = 0.98 are outliers, and no honest value is one."""
        honest = words_of((0.01 * normal(5, 1, 200_000)).clamp(-0.4, 0.4))
        sent = FORM.decode(FORM.flip(honest, MASK, P, streams(1)))
        outliers = sent.abs() > 0.4
        assert float(outliers.double().mean()) == pytest.approx(1 - P**2, abs=2e-3)
        assert torch.equal(outliers, sent != FORM.decode(honest))


class TestI06LossOfThePlainAttacker:
    def test_i06_flips_outweigh_every_gradient(self) -> None:
        mean, variance = flip_moments(P, 4, MASK)
        assert mean == pytest.approx(0.024576) and math.sqrt(variance) == pytest.approx(0.128225, rel=1e-5)
        assert pytest.approx(1_310_720) == ROG_LAYER * 2 * (1 - P)
        assert ROG_LAYER * (variance + mean**2) == pytest.approx(558_552, rel=1e-5)

    def test_i06_below_grey_nothing_is_ranked(self) -> None:
        """Of a black and white image, images without content have what Table III calls the best defense, or less."""
        truth = (normal(6, 4, 3, 32, 32) > 0).float()
        grey, other = torch.full_like(truth, 0.5), (normal(7, 4, 3, 32, 32) > 0).float()
        assert close(psnr(grey, truth).double(), *[6.0206] * 4, rel=1e-4)
        assert (psnr(other, truth) < psnr(grey, truth) - 2.5).all()
        table = printed("table03").set_index("defense")["psnr"]
        assert table["CDPA"] < 6.03 and table["CAFL"] < 11.3  # grey on photographs has 11.3 dB


def of_sentence(attack: str, defense: str) -> dict[str, float]:
    """What one sentence of Table VI scores."""
    found = scores(printed("table06")).query("attack == @attack and defense == @defense")
    assert len(found) == 1
    return {name: float(found[name].item()) for name in found.columns.drop(["attack", "defense", "sentence"])}


class TestI07NoiseOnText:
    BASE: ClassVar[int] = 109_483_778

    def test_i07_flips_are_less_than_the_noise_that_they_outdo(self) -> None:
        """Norms over BERT-base: 3.8 of flips at p = 0.999, 52 of Gaussian noise of 0.005."""
        mean, variance = flip_moments(0.999, 5, MASK_TEXT)
        assert mean == pytest.approx(1.536e-5) and math.sqrt(variance) == pytest.approx(3.62e-4, rel=1e-3)
        flips, noise = math.sqrt(self.BASE * (mean**2 + variance)), 0.005 * math.sqrt(self.BASE)
        assert flips == pytest.approx(3.8, abs=0.05) and noise == pytest.approx(52.3, abs=0.05)
        table = printed("table05").set_index(["attack", "defense"])["rouge1"]
        assert all(table[attack, "CDPA"] < table[attack, "DP"] for attack in ("DLG", "TAG", "LAMP"))

    def test_i07_a_tensor_of_zeros_breaks_the_released_cosine(self) -> None:
        """A bias of 768 zeros stays so with 0.215, one of twelve with 0.945; LAMP's loss divides by its norm."""
        one = 0.999 ** (2 * 768)
        assert one == pytest.approx(0.215, abs=5e-4) and 1 - (1 - one) ** 12 == pytest.approx(0.945, abs=5e-4)
        seen, candidate = [row(1.0, 2.0), row(0.0, 0.0)], [row(2.0, 1.0), row(1e-9, 0.0)]
        cosines = [(a * b).sum() / a.norm() / b.norm() for a, b in zip(seen, candidate, strict=True)]
        assert torch.stack(cosines).mean().isnan()
        ours = CosinePerTensor()(torch.cat(candidate), torch.cat(seen), None, [2, 2])
        assert float(ours) == pytest.approx((1 - 0.8 + 1) / 2)
        assert int((row(0.3, 0.1) * math.nan).argmax()) == 0  # the nearest word to NaN is [PAD], as in Table VI

    def test_i07_table_5_sits_on_the_floor(self) -> None:
        """LAMP on CDPA: as many as [CLS] and [SEP] alone make of sentences of 10.11 words."""
        cell = printed("table05").query("attack == 'LAMP' and defense == 'CDPA'").iloc[0]
        assert cell["rouge1"] == cell["rougeL"] == round(rouge_floor(10.11, 10.11), 2) and cell["rouge2"] == 0
        own = of_sentence("LAMP", "CDPA")
        assert printed("table06")["sentence"].str.count(r"\[PAD\]").tolist() == [0] * 12 + [10]
        assert [own[name] for name in ROUGES] == [0, 0, 0]
        assert own["rouge1_with_special"] == own["floor"] == pytest.approx(17.391, abs=1e-3)


class TestI08TheoremOne:
    def test_i08_the_bound_grows_with_the_rounds(self) -> None:
        rounds = torch.logspace(1, 6, 6, dtype=torch.float64)
        bounds = convergence_bound(1.0, rounds, 0.1, 0.1, 0.5, 1.0, 1.0)
        assert bounds[-1] > 1e4 * bounds.min() and bounds.diff()[1:].gt(0).all()

    def test_i08_a_constant_radius_leaves_a_floor(self) -> None:
        """Were the second term free of T: with a step that vanishes it stays at ``4 sigma^2 beta^2 gamma^2``."""
        per_round = [float(convergence_bound(0.0, 1.0, rate, 0.1, 0.5, 1.0, 1.0)) for rate in (0.1, 1e-3, 1e-9)]
        assert per_round[-1] == pytest.approx(4 * 0.5 * 0.01, rel=1e-6) and per_round[0] > per_round[-1]


class TestI09TheoremTwo:
    def test_i09_statement_and_proof_have_other_constants(self) -> None:
        arguments = (20, 0.8, 0.8192, 0.5, 2.0, 3.0, 0.7)
        statement, proof = (gradient_gap_bound(*arguments, place) for place in ("statement", "proof"))
        assert statement / proof == pytest.approx((0.5 * 0.7 + 3.0) / smoothness(0.5, 2.0, 3.0, 0.7))
        assert statement / proof == pytest.approx(3.35 / 6.175)

    def test_i09_the_error_is_of_a_vector(self) -> None:
        """Its norm is that of one bit times the root of the number of bits, 101 for the last layer of ResNet18."""
        keep, clients = 0.8, 20
        lost = torch.rand(2 * LAST_LAYER, generator=torch.Generator().manual_seed(8)) < recovery_error(clients, keep)
        of_bit = aggregation_error(clients, keep, 2, 4)
        weights = torch.tensor([0.8192, 0.4096]).repeat(LAST_LAYER)
        assert (weights * lost).norm() > 1000 * of_bit
        assert math.sqrt(2 * LAST_LAYER) == pytest.approx(101.3, abs=0.05)


class TestI10Misprints:
    def test_i10_the_shown_float_has_an_exponent_bias(self) -> None:
        """2.781314 in half precision: without the bias of 15 the printed bits would stand for 2^16 times 1.39."""
        bits = int(torch.tensor(2.781314).half().view(torch.int16)) & 0xFFFF
        assert format(bits, "016b") == "0100000110010000"
        exponent, fraction = bits >> 10, 1 + (bits & 1023) / 1024
        assert 2.0 ** (exponent - 15) * fraction == pytest.approx(2.781314, abs=1e-3) and exponent == 16


class TestI12OtherEpsilons:
    def test_i12_nominal_epsilons_are_of_other_noise(self) -> None:
        """Table IV trains under Laplace noise of epsilon 4, Table III attacks at 1: four times the noise."""
        assert [round(keep_for_epsilon(epsilon), 6) for epsilon in (1, 2, 4)] == [0.731059, 0.880797, 0.982014]
        assert (2 / 1) / (2 / 4) == 4

    def test_i12_training_and_attack_flip_in_other_units(self) -> None:
        """The noise is 0.128 of any unit: beside a delta at rate 0.003 it is 333 times that beside a gradient."""
        sent = [
            FORM.decode(FORM.flip(words_of(torch.full((1, 50_000), value)), MASK, P, streams(1)))
            for value in (0.3, 0.003 * 0.3)
        ]
        gradient, delta = (float(one.std()) for one in sent)
        assert gradient == pytest.approx(0.128225, rel=0.03) and delta == pytest.approx(gradient, rel=0.03)
        assert (delta / (0.003 * 0.3)) / (gradient / 0.3) == pytest.approx(333, rel=0.03)


def of(table: pd.DataFrame, model: str, method: str, column: str) -> float:
    rows = table[(table["model"] == model) & (table["method"] == method)]
    return float(str(rows[column].item()).lstrip(">"))


MODELS = ("SimpleCNN", "ConvNet", "ResNet18")


class TestI13Carbon:
    def test_i13_carbon_is_minutes_over_three(self) -> None:
        table = printed("table04")
        minutes = table["minutes"].astype(str).str.lstrip(">").astype(float)
        rates = (table["kgco2"] / minutes).where(~((table["model"] == "SimpleCNN") & (table["method"] == "JoPEQ")))
        assert rates.min() > 0.32 and rates.max() < 0.352 and rates.quantile(0.9) < 0.337
        assert pytest.approx(42.1, abs=0.01) == 60 / 3 / CARBON_INTENSITY  # kW
        assert carbon_kg(0.3, 23 / 60) == pytest.approx(0.054625)  # where Table IV has 7.7

    def test_i13_the_factors_of_the_abstract_do_not_follow(self) -> None:
        """ "2.6 to more than 100 times": below one for three methods on every model, 38 at most."""
        table = printed("table04")
        for method in ("GradDrop", "SDQ", "LDP"):
            assert all(of(table, m, method, "kgco2") < of(table, m, "CDPA", "kgco2") for m in MODELS)
        ratios = [
            kg / of(table, model, "CDPA", "kgco2")
            for model, method, kg in zip(table["model"], table["method"], table["kgco2"], strict=True)
            if method not in ("none", "CDPA")
        ]
        assert max(ratios) == pytest.approx(38.4) and not any(2.2 < ratio < 3 for ratio in ratios)

    def test_i13_the_overhead_does_not_shrink(self) -> None:
        table = printed("table04")
        found = [of(table, m, "CDPA", "kgco2") / of(table, m, "none", "kgco2") - 1 for m in MODELS]
        assert found == pytest.approx([0.688, 0.286, 0.534], abs=1e-3)
        assert found[1] < found[2]

    def test_i13_flips_cost_minutes(self) -> None:
        table = printed("table04")
        found = [of(table, m, "CDPA", "minutes") / of(table, m, "SDQ", "minutes") for m in MODELS]
        assert found == pytest.approx([1.5, 54 / 52, 75 / 70])


class TestI14Tables:
    def test_i14_differences_of_accuracies(self) -> None:
        table = printed("table04")
        own = table["model"].map(table[table["method"] == "none"].set_index("model")["acc"])
        stated = pd.to_numeric(table["delta_acc"], errors="coerce")
        wrong = table[(stated - (table["acc"] - own)).abs() > 0.05]
        assert [*zip(wrong["model"], wrong["method"], strict=True)] == [
            ("SimpleCNN", "CAFL"),
            ("SimpleCNN", "GradDrop"),
            ("ConvNet", "CAFL"),
            ("ResNet18", "SignSGD"),
        ]

    def test_i14_overheads_of_two_kinds(self) -> None:
        """JoPEQ on SimpleCNN: 17.4 kg are +126 %, the printed 26 % are those of the minutes."""
        table = printed("table04")
        more = of(table, "SimpleCNN", "JoPEQ", "kgco2") / of(table, "SimpleCNN", "none", "kgco2") - 1
        assert more == pytest.approx(1.26, abs=0.005) and of(table, "SimpleCNN", "JoPEQ", "pct_kg") == 26.0

    def test_i14_megabits_are_mebi_elements(self) -> None:
        table = printed("table04")
        assert of(table, "ResNet18", "none", "mb") == pytest.approx(RESNET18 / 2**20, abs=5e-5)
        assert of(table, "ResNet18", "CDPA", "mb") == pytest.approx(RESNET18 / 2**21, abs=5e-5)
        assert pytest.approx(357.874624) == RESNET18 * 32 / 1e6  # megabits
        digits = of(table, "ResNet18", "GradDrop", "mb"), round(0.4 * RESNET18 / 2**20, 4)
        assert digits == (4.2262, 4.2662)

    def test_i14_a_third_is_not(self) -> None:
        table = printed("table04")
        assert of(table, "ResNet18", "CAFL", "acc") / of(table, "ResNet18", "CDPA", "acc") == pytest.approx(
            0.445, abs=1e-3
        )

    def test_i14_imputation_helps_and_turns_the_sign(self) -> None:
        """Tables VIII and VII: at p = 0.98 PSNR rises from 5.1 to 9.4 while SSIM goes from 0.19 below zero."""
        plain = printed("table08").set_index("p").loc[P]
        imputed = printed("table07").query("p == @P").set_index("metric")["impute_0"]
        assert imputed["psnr"] - plain["psnr"] > 4 and plain["ssim"] > 0 > imputed["ssim"]

    def test_i14_their_ssim_can_be_negative(self) -> None:
        """One window over the whole image: of its negative the luminance has -0.996; two grey chromas add 0.1 each."""
        truth = torch.zeros(1, 3, 2, 2)
        truth[..., 1, :] = 1
        assert float(ssim_global(1 - truth, truth)) == pytest.approx(-0.8 * 0.99641 + 0.2, abs=1e-4)
        assert float(ssim_global(truth, truth)) == pytest.approx(1)


class TestI14TextTables:
    def test_i14_pruning_helps_the_attacker(self) -> None:
        """Of Table V: ROUGE-1 under GradDrop is above that without a defense, in TAG and LAMP."""
        table = printed("table05").set_index(["attack", "defense"])["rouge1"]
        more = {attack: table[attack, "GradDrop"] - table[attack, "none"] for attack in ("DLG", "TAG", "LAMP")}
        assert more == pytest.approx({"DLG": -21.57, "TAG": 5.051, "LAMP": 7.71})

    def test_i14_two_defenses_have_one_sentence(self) -> None:
        table = printed("table06")
        twice = table[table.duplicated("sentence", keep=False)]
        assert list(zip(twice["attack"], twice["defense"], strict=True)) == [("DLG", "GradDrop"), ("DLG", "DP")]

    @pytest.mark.parametrize(
        ("attack", "defense", "with_special", "without"),
        [
            ("DLG", "none", (57.143, 10.526, 47.619), (47.059, 13.333, 35.294)),
            ("LAMP", "none", (63.636, 0.0, 45.455), None),
            ("LAMP", "GradDrop", (90.909, 40.0, 72.727), None),
            ("LAMP", "CDPA", (17.391, 0.0, 17.391), (0.0, 0.0, 0.0)),
        ],
    )
    def test_i14_scores_of_the_printed_sentences(
        self,
        attack: str,
        defense: str,
        with_special: tuple[float, float, float],
        without: tuple[float, float, float] | None,
    ) -> None:
        found = of_sentence(attack, defense)
        assert [found[f"{name}_with_special"] for name in ROUGES] == pytest.approx(list(with_special), abs=1e-3)
        assert without is None or [found[name] for name in ROUGES] == pytest.approx(list(without), abs=1e-3)

    def test_i14_none_of_the_words_are_two(self) -> None:
        """CDPA's three sentences have no word of the victim, as the text says, and score 17 or more all the same."""
        found = scores(printed("table06")).query("defense == 'CDPA'")
        assert len(found) == 3 and (found["rouge1"] == 0).all() and (found["rouge1_with_special"] > 17).all()


class TestI16ReleasedCode:
    def test_i16_truncation_loses_a_unit(self) -> None:
        integers = torch.arange(1, 32768)
        for decimals, count in ((4, 2289), (5, 2680)):
            form = FixedPoint(decimals)
            released, nearest = (
                encode(integers.double() / form.scale)[0] for encode in (form.encode_released, form.encode)
            )
            assert int((form.integers(released) != integers).sum()) == count
            assert torch.equal(form.integers(nearest).long(), integers)

    def test_i16_large_values_change_their_sign(self) -> None:
        values = row(4.0, 3.2768)
        released, nearest = (
            FORM.integers(encode(values)[0]).tolist() for encode in (FORM.encode_released, FORM.encode)
        )
        assert released == [-7232, 0] and nearest == [32767, 32767]

    def test_i16_words_of_text_are_read_ten_times_too_large(self) -> None:
        """Written with 5 decimals, read with 4."""
        words, _ = FixedPoint(5).encode(row(0.0123, -0.3))
        assert close(FixedPoint(4).decode(words), 0.123, -3.0)

    def test_i16_the_cosine_transform_of_a_column_is_a_factor(self) -> None:
        """CAFL transforms a column along its last axis, of length one."""
        from scipy.fft import dct

        values = normal(9, 50, 1).numpy()
        assert dct(values) == pytest.approx(2 * values)
