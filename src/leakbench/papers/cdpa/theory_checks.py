"""What holds of the paper's formulas by computing: see :mod:`leakbench.report.checks`.

Where a check is of what the paper states and that is wrong, it does not hold; the check whose key follows is of what
is true in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from leakbench.federated.fixed_point import FixedPoint, vote
from leakbench.federated.lattice import Lattice, Rounding, dequantise, quantise
from leakbench.lazy import torch
from leakbench.metrics.text import rouge, rouge_floor
from leakbench.papers.cdpa import PAPER
from leakbench.papers.cdpa.common import MASK, MASK_TEXT, printed
from leakbench.randomness import Streams, generator
from leakbench.report.checks import EXACT, Checked, agreement, checked, required
from leakbench.theory.bit_votes import (
    bit_weight,
    composed_epsilon,
    convergence_bound,
    epsilon_per_bit,
    flip_moments,
    gradient_gap_bound,
    least_ones,
    likelihood_ratio,
    loss_gap_bound,
    recovery_error,
    value_epsilon,
    vote_errors,
)

STRICT = 1e-12
"""Relative difference that a strict inequality between float64 numbers has to show."""

CLIENTS = (*range(2, 13), 19, 20, 21, 50, 51, 100, 101)
KEEP = (0.8, 0.9, 0.95, 0.98)
"""The paper's p."""

BITS = (2, 4, 8, 16)
ROUNDINGS: tuple[Rounding, ...] = ("nearest", "babai")


def _numbers(values: object) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def _keeps(name: str, count: int) -> torch.Tensor:
    """Probabilities of keeping a bit, ascending, above 1/2."""
    drawn = torch.rand(count, generator=generator(PAPER, "theory", name), dtype=torch.float64)
    return drawn.mul(0.49).add(0.505).sort().values


def _falls(values: torch.Tensor) -> torch.Tensor:
    """Least relative step down of numbers that should fall along the last dimension."""
    return (values[..., :-1] - values[..., 1:]) / values[..., :-1] - STRICT


def error_falls_in_p() -> Checked:
    """T1, eq. 3: the recovery error falls in p, for every number of clients."""
    keeps = _keeps("keep", 30)
    errors = _numbers([[recovery_error(clients, float(keep)) for keep in keeps] for clients in CLIENTS])
    return checked([_falls(errors)], errors.numel(), "least relative step down of the recovery error")


def _of_clients(keeps: torch.Tensor, clients: range) -> torch.Tensor:
    return _numbers([[recovery_error(number, keep) for number in clients] for keep in keeps.tolist()])


def error_falls_in_clients() -> Checked:
    """T2a, Fig. 4 as stated: the recovery error falls with every further client; p from 0.8 on, as the figure's."""
    errors = _of_clients(_keeps("clients", 10).clamp(min=0.8), range(2, 60))
    what = "least relative step down of the recovery error, from one number of clients to the next"
    return checked([_falls(errors)], errors.numel(), what)


def error_falls_in_clients_of_one_parity() -> Checked:
    """T2b: it does among odd numbers, and among even ones where p > 2/3.

    From 2m to 2m + 2 clients it falls where ``p > (m + 1) / (2 m + 1)``: half of the clients are too few for a tie that
    counts as success. So below 2/3 four clients err more than two.
    """
    keeps = _keeps("clients of one parity", 10)
    odd, even = _of_clients(keeps, range(1, 60, 2)), _of_clients(keeps / 3 + 2 / 3, range(2, 60, 2))
    below = _of_clients(keeps.clamp(max=0.66), range(2, 5, 2))
    slacks = [_falls(odd), _falls(even), required(-_falls(below))]
    what = "least relative step down of the recovery error, from one number of clients to the next of its parity"
    return checked(slacks, odd.numel() + even.numel(), what)


def ratio_of_masked_bits() -> Checked:
    """T3, eqs. 5 to 7: enumerated, the largest likelihood ratio of k masked bits is ``(p / (1 - p))^k``."""
    keeps = _keeps("ratio", 20)
    slacks = []
    for masked in range(1, 5):
        found = _numbers([likelihood_ratio(float(keep), masked) for keep in keeps])
        stated = _numbers([composed_epsilon(float(keep), masked) for keep in keeps])
        slacks += [agreement(found, (keeps / (1 - keeps)) ** masked), agreement(found, stated.exp())]
    return checked(slacks, 4 * len(keeps), f"what the largest relative deviation leaves of {EXACT:g}")


def errors_of_eq_3_are_those_of_eq_2() -> Checked:
    """T4a, as stated: eq. 3 is the probability that the rule of eq. 2 recovers a bit, be it one or zero."""
    cases = [(clients, keep) for clients in CLIENTS for keep in KEEP]
    stated = _numbers([recovery_error(*case) for case in cases])
    found = _numbers([vote_errors(*case) for case in cases])
    slack = stated.unsqueeze(-1) / found - 1 + EXACT
    return checked([slack], len(cases), "excess of eq. 3's error over that of eq. 2, relative")


def a_majority_has_the_errors_of_eq_3() -> Checked:
    """T4b: under a majority it is that of ones, that of zeros where R is odd, and less than that of zeros elsewhere."""
    keeps = _keeps("majority", 10)
    slacks = []
    for clients in CLIENTS:
        stated = _numbers([recovery_error(clients, float(keep)) for keep in keeps])
        ones, zeros = _numbers([vote_errors(clients, float(keep), "majority") for keep in keeps]).unbind(dim=-1)
        of_zeros = agreement(zeros, stated) if clients % 2 else required(zeros / stated - 1 - STRICT)
        slacks += [agreement(ones, stated), of_zeros]
    return checked(slacks, len(CLIENTS) * len(keeps), f"what the largest relative deviation leaves of {EXACT:g}")


def _votes(integers: torch.Tensor) -> torch.Tensor:
    """What the rule of eq. 2 makes of the integers ``[..., R, d]`` of clients who flip nothing."""
    form, clients = FixedPoint(), integers.shape[-2]
    words, _ = form.encode(integers / form.scale)
    return form.integers(vote(words, least_ones(clients, 1.0))).double()


def vote_is_the_mean() -> Checked:
    """T5a, as stated ("consistent with FedAvg"): without flips a vote is the mean, within the range of the values."""
    trials, clients = 2000, 20
    draw = generator(PAPER, "theory", "vote")
    values = torch.randn(clients, trials, generator=draw, dtype=torch.float64).mul(200).round()
    apart = (_votes(values) - values.mean(dim=0)).abs()
    slack = 0.5 - apart / values.std(dim=0)
    return checked([slack], trials, "half a standard deviation of the clients' values, less vote minus mean, in those")


def vote_of_equals_is_theirs() -> Checked:
    """T5b: of clients who send the same word the vote is that word."""
    trials, clients = 2000, 20
    draw = generator(PAPER, "theory", "equal vote")
    values = torch.randint(-32767, 32768, (1, trials), generator=draw).double()
    apart = (_votes(values.expand(clients, -1)) - values).abs()
    return checked([EXACT - apart], trials, f"what the largest difference leaves of {EXACT:g} units")


def error_of_sdq_is_uniform() -> Checked:
    """T6, Appendix B: the quantisation error is uniform on a cell of the lattice, whatever the value.

    Every client sends one point again and again. Errors in lattice coordinates, modulo one, are counted in 8 x 8 cells;
    chi squared is compared with its mean plus six standard deviations. What lies beyond a cell is looked for, too.
    """
    points, count, cells = 16, 2**13, 8
    draw = generator(PAPER, "theory", "sdq")
    places = torch.rand(points, 2, 1, generator=draw, dtype=torch.float64).mul(1.8).sub(0.9)
    values = places.expand(-1, -1, count).reshape(points, -1)
    lattice = Lattice(bits=4)
    radius = {"nearest": 2 / 3, "babai": 1.0}  # of the hexagon, and of the parallelogram, in steps
    freedom, slacks = cells**2 - 1, []
    basis = lattice.place(torch.eye(2, dtype=torch.float64))
    for rounding in ROUNDINGS:
        streams = Streams([(PAPER, "theory", rounding, point) for point in range(points)])
        sent = quantise(values, [values.shape[1]], lattice, rounding, streams, bound=1.0)
        error = (dequantise(sent, streams) - values).view(points, 2, count)
        within = (torch.linalg.solve(basis, error) % 1.0).mul(cells).floor().clamp(max=cells - 1).long()
        counted = torch.nn.functional.one_hot(within[:, 0] * cells + within[:, 1], cells**2).sum(dim=1)
        expected = count / cells**2
        chi = (counted - expected).square().sum(dim=1) / expected
        slacks.append(1 - chi / (freedom + 6 * math.sqrt(2 * freedom)))
        length = torch.linalg.vector_norm(error, dim=1) / lattice.step
        slacks.append(required(radius[rounding] * (1 + EXACT) - length))
        slacks.append(required(-sent.overloads.double()))
    return checked(slacks, 2 * points * count, "what the largest chi squared leaves of its limit, relative")


def _error_of_sdq(values: torch.Tensor, bits: int, rounding: Rounding) -> torch.Tensor:
    """Mean squared error of every tensor ``[n, d]``, over one dither."""
    streams = Streams([(PAPER, "theory", "errors", number) for number in range(len(values))])
    sent = quantise(values, [values.shape[1]], Lattice(bits=bits), rounding, streams)
    return (dequantise(sent, streams) - values).square().mean(dim=1)


def _error_of_qsgd(values: torch.Tensor, bits: int, order: float) -> torch.Tensor:
    """Expected squared error of QSGD with a sign and ``bits - 1`` bits of level, as :class:`QSGD` rounds, ``[n]``."""
    unit = torch.linalg.vector_norm(values, ord=order, dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    above = (values.abs() / unit).frac()
    error: torch.Tensor = (unit.square() * above * (1 - above)).mean(dim=1)
    return error


def _sdq_against_qsgd(order: float) -> Checked:
    trials, size = 32, 4096
    draw = generator(PAPER, "theory", "normal tensors")
    values = torch.randn(trials, size, generator=draw, dtype=torch.float64)
    values *= torch.randn(trials, 1, generator=draw, dtype=torch.float64).exp()
    ratios = [
        _error_of_qsgd(values, bits, order) / _error_of_sdq(values, bits, rounding)
        for bits in BITS
        for rounding in ROUNDINGS
    ]
    slack = torch.stack(ratios) - 1
    return checked([slack], trials, "excess of QSGD's mean squared error over that of SDQ, relative")


def sdq_is_finer_than_qsgd() -> Checked:
    """T7a, Appendix B: at equal bits SDQ errs less than QSGD, whose unit is the norm; normal tensors."""
    return _sdq_against_qsgd(2)


def sdq_is_finer_than_qsgd_as_released() -> Checked:
    """T7b: so it does where QSGD's unit is the largest magnitude, as in the public code."""
    return _sdq_against_qsgd(math.inf)


def theorem_1_shows_convergence() -> Checked:
    """T8, Theorem 1 as printed: the bound on the mean excess risk falls with the number of rounds."""
    trials = 500
    draw = generator(PAPER, "theory", "theorem 1")
    gaps, variances, rates, radii = torch.rand(4, trials, generator=draw, dtype=torch.float64).add(0.01).unbind()
    rounds = torch.logspace(0, 5, 26, dtype=torch.float64)
    bounds = torch.stack(
        [
            convergence_bound(gap, rounds, 0.5 * rate, 0.5 * radius, variance, 0.9, 1.0)
            for gap, rate, radius, variance in zip(
                gaps.tolist(), rates.tolist(), radii.tolist(), variances.tolist(), strict=True
            )
        ]
    )
    return checked(
        [_falls(bounds)], trials, "least relative step down of the bound, from some rounds to 1.6 times more"
    )


def theorem_2_tightens_in_p() -> Checked:
    """T9, Theorem 2: both bounds fall in p, with either constant."""
    keeps = _keeps("theorem 2", 30)
    weight, constants, slacks = bit_weight(2, 4), {"beta": 0.5, "beta1": 2.0, "beta2": 0.3}, []
    for clients in (4, 20):
        bounds = [
            partial(loss_gap_bound, clients, weight=weight, rho=0.7, beta1=1.0),
            *(
                partial(gradient_gap_bound, clients, weight=weight, rho=0.7, **constants, place=place)
                for place in ("statement", "proof")
            ),
        ]
        slacks += [_falls(_numbers([bound(keep=keep) for keep in keeps.tolist()])) for bound in bounds]
    return checked(slacks, 2 * len(keeps), "least relative step down of a bound")


def epsilon_of_a_bit_is_not_that_of_a_message() -> Checked:
    """X5: masked bits add up, and the others tell values apart with certainty.

    Of ``k`` masked bits in each of ``n`` values the enumerated ratio is ``e^(k n epsilon)``; of words that differ in a
    bit in clear no output is possible from both.
    """
    keeps = _keeps("composition", 10)
    slacks = []
    for masked, values in ((1, 2), (2, 1), (2, 2), (2, 3)):
        found = _numbers([likelihood_ratio(float(keep), masked * values) for keep in keeps])
        composed = _numbers([composed_epsilon(float(keep), masked, values) for keep in keeps])
        of_bit = _numbers([epsilon_per_bit(float(keep)) for keep in keeps])
        slacks += [found.log() / of_bit - 1, required(agreement(found, composed.exp()))]
    form, trials = FixedPoint(), 2000
    draw = generator(PAPER, "theory", "words in clear")
    first, second = torch.randint(-4095, 4096, (2, 1, trials), generator=draw).double()
    sent = [
        form.flip(form.encode(values / form.scale)[0], MASK, 0.6, Streams([(PAPER, "theory", "flips", number)]))
        for number, values in enumerate((first, second))
    ]
    clear = [words & ~form.mask(MASK) for words in sent]
    apart = (clear[0] != clear[1]) == (first != second)
    slacks.append(required(apart.double() - 0.5))
    slacks.append(required(_numbers([value_epsilon(keep, len(MASK)) for keep in KEEP]) - 1e300))
    return checked(slacks, len(keeps) * 4 + trials, "excess of a message's epsilon over that of a bit, relative")


BERT_BASE = 109_483_778
"""Parameters of BERT-base with two classes."""
TEXT_KEEP, TEXT_DECIMALS, TEXT_SIGMA = 0.999, 5, 0.005
"""The paper's p and z on text, and the standard deviation of the noise beside them (Table V)."""
BIAS, LAYERS = 768, 12
"""Entries of a bias of keys, and how many there are."""


def _noise_on_text(count: int) -> float:
    """Norm of what flips add to so many values whose masked bits are zeros, as its mean square says."""
    mean, variance = flip_moments(TEXT_KEEP, TEXT_DECIMALS, MASK_TEXT)
    return math.sqrt(count * (mean**2 + variance))


def flips_add_less_than_the_noise() -> Checked:
    """T10, Table V: over BERT-base's parameters CDPA adds a thirteenth of the Gaussian noise that it outdoes.

    Noise that words really get is measured on two million values and compared with the formula.
    """
    count, form = 2_000_000, FixedPoint(TEXT_DECIMALS)
    words = torch.zeros(1, count, dtype=torch.int16)
    sent = form.flip(words, MASK_TEXT, TEXT_KEEP, Streams([(PAPER, "theory", "noise on text")]))
    measured = float(form.decode(sent).double().norm())
    right = 0.03 - abs(measured / _noise_on_text(count) - 1)  # a flip in 1,000: 4,000 of them
    ratio = TEXT_SIGMA * math.sqrt(BERT_BASE) / _noise_on_text(BERT_BASE)
    slacks = [_numbers([ratio / 13 - 1]), required(_numbers([right]))]
    return checked(slacks, count, "excess over 13 of the norm of Gaussian noise over that of flips, relative")


def _sentences(words: torch.Tensor, prefix: str) -> list[str]:
    """Sentences of numbered words; -1 is no word."""
    return ["[CLS] " + " ".join(f"{prefix}{word}" for word in row if word >= 0) + " [SEP]" for row in words.tolist()]


def _strangers() -> tuple[list[str], list[str], torch.Tensor]:
    """Pairs of sentences without a common word, and numbers of words with both special ones, ``[2, n]``."""
    trials, longest = 200, 12
    draw = generator(PAPER, "theory", "strangers")
    counts = torch.randint(1, longest + 1, (2, trials), generator=draw)
    drawn = torch.randint(0, 30, (2, trials, longest), generator=draw)
    drawn = torch.where(torch.arange(longest) < counts[..., None], drawn, -1)
    return _sentences(drawn[0], "a"), _sentences(drawn[1], "b"), counts + 2


def nothing_in_common_scores_nothing() -> Checked:
    """T11a, Tables V and VI as read ("reconstructed word count 0"): without a common word ROUGE-1 is zero."""
    found, victims, counts = _strangers()
    return checked([EXACT - rouge(found, victims)["rouge1"]], counts.shape[1], "minus ROUGE-1 in percent")


def nothing_in_common_scores_the_floor() -> Checked:
    """T11b: it is ``400 / (words of both)``, since [CLS] and [SEP] are words; LAMP's cell is that of 10.11 words.

    In Table V CDPA's cell of LAMP has ROUGE-1 and ROUGE-L of 19.78 and ROUGE-2 of 0: as a sentence of the same length
    of which nothing was found, if sentences have 10.11 words on average, these two among them.
    """
    found, victims, counts = _strangers()
    scored = rouge(found, victims)
    floors = _numbers([rouge_floor(*pair) for pair in counts.T.tolist()])
    slacks = [agreement(scored["rouge1"], floors), agreement(scored["rougeL"], floors)]
    cell = printed("table05").query("attack == 'LAMP' and defense == 'CDPA'").iloc[0]
    slacks.append(required(_numbers([0.005 - abs(cell["rouge1"] - rouge_floor(10.11, 10.11))])))
    slacks.append(required(_numbers([-abs(cell["rouge1"] - cell["rougeL"]), -abs(cell["rouge2"])])))
    return checked(slacks, counts.shape[1], f"what the largest relative deviation leaves of {EXACT:g}")


def zeros_mostly_stay_zeros() -> Checked:
    """T12: of twelve biases that round to zeros one or more stays so with probability 0.945, and its cosine is 0/0.

    Simulated: flips leave a bias of 768 zeros as it is with probability ``p^1536 = 0.215``.
    """
    models, form = 400, FixedPoint(TEXT_DECIMALS)
    streams = Streams([(PAPER, "theory", "biases", number) for number in range(models)])
    sent = form.flip(torch.zeros(models, LAYERS * BIAS, dtype=torch.int16), MASK_TEXT, TEXT_KEEP, streams)
    silent = (sent.view(models, LAYERS, BIAS) == 0).all(dim=2).double()
    one = TEXT_KEEP ** (len(MASK_TEXT) * BIAS)
    some = 1 - (1 - one) ** LAYERS
    slacks = [required(_numbers([0.0005 - abs(one - 0.215), 0.0005 - abs(some - 0.945)]))]
    for measured, stated in ((silent, one), (silent.amax(dim=1), some)):
        allowed = 5 * math.sqrt(stated * (1 - stated) / measured.numel())
        slacks.append(_numbers([1 - abs(float(measured.mean()) - stated) / allowed]))
    return checked(slacks, models, "what the largest deviation leaves of five standard deviations, relative")


def keys_need_no_bias() -> Checked:
    """T13: the bias of keys adds the same to all scores of a query, which softmax ignores: its gradient is zero.

    A layer of attention and a random loss; the gradient of the keys' bias over that of the values'.
    """
    trials, tokens, width = 20, 7, 16
    draw = generator(PAPER, "theory", "attention")
    inputs, loss = torch.randn(2, trials, tokens, width, generator=draw, dtype=torch.float64).unbind()
    maps = torch.randn(3, trials, width, width, generator=draw, dtype=torch.float64) / math.sqrt(width)
    biases = torch.randn(3, trials, 1, width, generator=draw, dtype=torch.float64)

    def attended(biases: torch.Tensor) -> torch.Tensor:
        queries, keys, values = inputs @ maps + biases
        weights = (queries @ keys.transpose(-1, -2) / math.sqrt(width)).softmax(dim=-1)
        total: torch.Tensor = (weights @ values * loss).sum()
        return total

    norms = torch.func.grad(attended)(biases).norm(dim=(2, 3))
    slacks = [EXACT - norms[1] / norms[2], required(norms[0] / norms[2] - 1e-3)]
    return checked(slacks, trials, f"what the largest ratio leaves of {EXACT:g}")


CHECKS: Mapping[str, Callable[[], Checked]] = {
    "T1": error_falls_in_p,
    "T2a": error_falls_in_clients,
    "T2b": error_falls_in_clients_of_one_parity,
    "T3": ratio_of_masked_bits,
    "T4a": errors_of_eq_3_are_those_of_eq_2,
    "T4b": a_majority_has_the_errors_of_eq_3,
    "T5a": vote_is_the_mean,
    "T5b": vote_of_equals_is_theirs,
    "T6": error_of_sdq_is_uniform,
    "T7a": sdq_is_finer_than_qsgd,
    "T7b": sdq_is_finer_than_qsgd_as_released,
    "T8": theorem_1_shows_convergence,
    "T9": theorem_2_tightens_in_p,
    "T10": flips_add_less_than_the_noise,
    "T11a": nothing_in_common_scores_nothing,
    "T11b": nothing_in_common_scores_the_floor,
    "T12": zeros_mostly_stay_zeros,
    "T13": keys_need_no_bias,
    "X5": epsilon_of_a_bit_is_not_that_of_a_message,
}
"""Every check, under the name that the claims use."""
