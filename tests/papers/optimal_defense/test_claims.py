"""The paper's claims on tables that are made so that each verdict is known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import ArrayLike
from tests.papers.theorems import checks_of
from tests.report.synthetic import ROOT
from tests.report.tables import rows, table

from leakbench.papers.optimal_defense import PAPER
from leakbench.papers.optimal_defense.claims import _trailing_mean
from leakbench.planning.project import Project
from leakbench.report.claims import Claim, claims_of
from leakbench.report.findings import Finding

SEEDS, BATCHES = 12, 4
Tables = dict[str, pd.DataFrame]
CLAIMS = {entry.key: entry for entry in claims_of("optimal_defense")}

PRUNING = {"baseline": "gp", "optimal": "op", "sweep": "fraction", "points": [0.5, 0.7, 0.8, 0.9, 0.95]}
CIFAR_PRUNING = PRUNING | {"baseline": "gp-cifar", "optimal": "op-cifar"}
NOISE = {"baseline": "dpsgd", "optimal": "optimal", "sweep": "scale", "points": [1e-3, 0.05, 0.1, 0.2]}
CIFAR = {"baseline": "dpsgd-cifar", "optimal": "optimal-cifar", "sweep": "scale", "points": [1e-4, 1e-3, 0.01, 0.1]}
ROUNDING = {"baseline": "rounding", "optimal": "optimal-rounding", "sweep": "scale", "points": [0.01, 0.1, 1.0]}
EQUAL = {"baseline": "dpsgd-u2", "optimal": "optimal-u2", "sweep": "scale", "points": [1e-4, 1e-3, 1e-2]}


def noisy(points: ArrayLike, *, spread: float, units: int, sign: int) -> np.ndarray:
    """``[points, SEEDS, units]``: the points, exactly, on average over seeds and units, which differ by the spread.

    Opposite signs make differences between defenses vary too; later points vary more, and so does their growth.
    """
    seeds = np.linspace(-1, 1, SEEDS)[:, None]
    batches = np.linspace(-1, 1, units) if units > 1 else np.zeros(1)
    middle = np.asarray(points, dtype=float).reshape(-1, 1, 1)
    growth = np.linspace(1, 2, len(middle)).reshape(-1, 1, 1)
    return middle + sign * spread * growth * (seeds + batches)


SIGN = {"optimal": 1, "baseline": -1}
MSE, PSNR, IN_ORDER = "assigned_mse_input", "assigned_psnr", "mse_input"
REFERENCES = ("undefended", "cifar_references")


def references(guess: float, spread: float = 1e-3) -> Tables:
    """Three reference attackers, of whom the second errs least, by ``guess``."""
    guesses = zip(("mean_image", "grey", "noise"), (1.5 * guess, guess, 2 * guess), strict=True)
    parts = [
        rows("none", metric, noisy([error], spread=spread, units=BATCHES, sign=1), attack=attack)
        for attack, error in guesses
        for metric in (MSE, IN_ORDER)
    ]
    return {name: table(*parts) for name in REFERENCES}


def fill(
    pair: dict[str, Any], defense: str, metric: str, values: ArrayLike, spread: float = 1e-3, **options: Any
) -> pd.DataFrame:
    """A metric of a defense at the points of its grid."""
    units = 1 if metric == "final_loss" else BATCHES
    numbers = noisy(values, spread=spread, units=units, sign=SIGN[defense])
    return rows(pair[defense], metric, numbers, points=pair["points"], sweep=pair["sweep"], **options)


@dataclass(frozen=True)
class Trade:
    """Where the claim of a trade-off finds its errors and losses."""

    pair: dict[str, Any]
    errors: tuple[tuple[str, str], ...]
    losses: str

    def tables(
        self, shift: float, *, spread: float = 1e-3, void: bool = False, far: float = 0.0, guess: float = 99.0
    ) -> Tables:
        """The optimal defense's losses are lower by ``shift``; ``far`` moves its errors; ``guess`` is the blind one."""
        parts: dict[str, list[pd.DataFrame]] = {}
        points = np.linspace(0, 1, len(self.pair["points"]))
        for defense in ("baseline", "optimal"):
            ours = defense == "optimal"
            for experiment, attack in self.errors:
                errors = fill(self.pair, defense, MSE, 1 + points + far * ours, attack=attack, void=void)
                parts.setdefault(experiment, []).append(errors)
            losses = fill(self.pair, defense, "final_loss", 2 + points - shift * ours, spread)
            parts.setdefault(self.losses, []).append(losses)
        return {experiment: table(*frames) for experiment, frames in parts.items()} | references(guess)


TRADES = {
    "E1": Trade(PRUNING, (("pruning", "ig"),), "pruning"),
    "E2": Trade(CIFAR_PRUNING, (("cifar_pruning", "ig-cifar"),), "cifar_pruning"),
    "E3": Trade(NOISE, (("noise", "ig"),), "noise"),
    "E4": Trade(CIFAR, (("cifar_noise", "ig-cifar"),), "cifar_noise"),
    "E15a": Trade(PRUNING, (("pruning", "ig"), ("adaptive", "ig-adaptive")), "pruning"),
    "E15b": Trade(
        CIFAR_PRUNING, (("cifar_pruning", "ig-cifar"), ("cifar_adaptive", "ig-cifar-adaptive")), "cifar_pruning"
    ),
    "E15c": Trade(NOISE, (("noise", "ig"), ("adaptive", "ig-adaptive")), "noise"),
    "E15d": Trade(CIFAR, (("cifar_noise", "ig-cifar"), ("cifar_adaptive", "ig-cifar-adaptive")), "cifar_noise"),
    "X4": Trade(EQUAL, (("equal_utility", "ig"),), "equal_utility"),
    "X5": Trade(EQUAL, (("equal_utility", "ig"), ("equal_utility", "ig-adaptive")), "equal_utility"),
    "X8": Trade(PRUNING, (("pruning", "ig"),), "sgd"),
    "X9": Trade(NOISE, (("noise", "ig"),), "sgd"),
    "X10": Trade(ROUNDING, (("rounding", "ig"),), "rounding"),
}


def judged(key: str, tables: Tables) -> Finding:
    return CLAIMS[key].judge(tables)


@pytest.mark.parametrize("key", TRADES)
@pytest.mark.parametrize(
    ("shift", "spread", "verdict"),
    [(0.3, 1e-3, "reproduced"), (-0.3, 1e-3, "contradicted"), (0.0, 0.3, "inconclusive")],
)
def test_trade_offs(key: str, shift: float, spread: float, verdict: str) -> None:
    finding = judged(key, TRADES[key].tables(shift, spread=spread))
    assert finding.verdict == verdict, finding
    assert finding.effect is not None and finding.low is not None and finding.high is not None
    assert finding.low <= finding.effect <= finding.high
    if spread < 0.01:
        assert finding.effect == pytest.approx(shift, abs=0.01)
    assert "12 seeds x 4 batches" in finding.note


@pytest.mark.parametrize("key", TRADES)
def test_trade_offs_that_say_nothing(key: str) -> None:
    void = judged(key, TRADES[key].tables(0.3, void=True))
    assert void.verdict == "inconclusive" and void.note.startswith("void: ig") and void.effect is not None
    apart = judged(key, TRADES[key].tables(0.3, far=5.0))
    assert apart.verdict == "inconclusive" and apart.effect is None
    assert apart.note.startswith("the two defenses reach no common errors")
    tables = TRADES[key].tables(0.3)
    lost = judged(key, {name: frame.assign(value=np.nan) for name, frame in tables.items()})
    assert lost.verdict == "not run" and "holds no number" in lost.note
    sweep = f"setting.{TRADES[key].pair['sweep']}"
    smallest = TRADES[key].pair["points"][0]
    swept = {name: frame[frame[sweep] == smallest] for name, frame in tables.items() if name not in REFERENCES}
    short = judged(key, tables | swept)
    assert short.verdict == "not run" and "needs two values" in short.note


@pytest.mark.parametrize("key", TRADES)
def test_beyond_the_best_guess_nothing_leaks(key: str) -> None:
    """The lowest loss counts among settings that err more than it; if all do, there is nothing to trade."""
    trade = TRADES[key]
    tables = trade.tables(0.3, guess=1.4)
    frame, most = tables[trade.losses], trade.pair["points"][-1]
    last = (frame["metric"] == "final_loss") & (frame[f"setting.{trade.pair['sweep']}"] == most)
    frame.loc[last & (frame["defense"] == trade.pair["optimal"]), "value"] += 50
    finding = judged(key, tables)
    assert finding.verdict == "reproduced" and finding.effect == pytest.approx(0.3, abs=0.01)
    nothing = judged(key, trade.tables(0.3, guess=0.9))
    assert nothing.verdict == "inconclusive" and nothing.effect is None
    assert nothing.note.startswith("the two defenses reach no common errors below the best guess")


@pytest.mark.parametrize("key", TRADES)
def test_without_reference_attackers_errors_are_not_capped(key: str) -> None:
    tables = TRADES[key].tables(0.3, guess=0.9)
    tables |= {name: tables[name].assign(attack="ig") for name in REFERENCES}
    finding = judged(key, tables)
    assert finding.verdict == "reproduced" and "no reference attacker was measured" in finding.note


def test_small_noise_alone_counts_for_e4() -> None:
    """Losses at scales above 1e-3 speak against it, and are not asked."""
    tables = TRADES["E4"].tables(0.3)
    frame = tables["cifar_noise"]
    large = (frame["metric"] == "final_loss") & (frame["setting.scale"] > 1e-3) & (frame["defense"] == "optimal-cifar")
    frame.loc[large, "value"] += 5
    assert judged("E4", tables).verdict == "reproduced"


ATTACKERS = {"plain": ["ig", "ig-cifar"], "adaptive": ["ig-adaptive", "ig-cifar-adaptive"]}


@pytest.mark.parametrize("key", ["E15a", "E15b", "E15c", "E15d", "X5"])
@pytest.mark.parametrize("attacker", ATTACKERS)
@pytest.mark.parametrize(("factor", "verdict"), [(0.8, "contradicted"), (1.5, "reproduced")])
def test_the_stronger_attacker_counts(key: str, attacker: str, factor: float, verdict: str) -> None:
    """One who errs less under the optimal defense turns the verdict, one who errs more does not."""
    trade = TRADES[key]
    tables = trade.tables(0.1)
    for frame in tables.values():
        his = frame["attack"].isin(ATTACKERS[attacker]) & (frame["metric"] == MSE)
        frame.loc[his & (frame["defense"] == trade.pair["optimal"]), "value"] *= factor
    assert judged(key, tables).verdict == verdict


def pruned(op: ArrayLike, gp: ArrayLike, psnr: float = 3.0, spread: float = 1e-3, **options: Any) -> Tables:
    """Errors of both ways to prune."""
    parts = [
        fill(PRUNING, label, MSE, values, spread, attack="ig", **options)
        for label, values in (("optimal", op), ("baseline", gp))
    ]
    parts += [
        fill(PRUNING, label, PSNR, np.full(5, 20.0 - gain), spread, attack="ig", **options)
        for label, gain in (("optimal", psnr), ("baseline", 0.0))
    ]
    return {"pruning": table(*parts)}


FLAT = np.ones(5)


@pytest.mark.parametrize(
    ("tables", "verdict", "note"),
    [
        (pruned(1.2 * FLAT, FLAT), "reproduced", "12 seeds"),
        (pruned([0.8, 1.2, 1.2, 1.2, 1.2], FLAT), "contradicted", "contradicted in 1 of 10 parts: MSE at 0.5: -0.2"),
        (pruned(1.2 * FLAT, FLAT, psnr=-1.0), "contradicted", "contradicted in 5 of 10 parts: PSNR at 0.5"),
        (
            pruned([1.2, 1.2, 1.2, 1.2, 1.0], FLAT, spread=0.02),
            "inconclusive",
            "inconclusive in 1 of 10 parts: MSE at 0.95",
        ),
        (pruned(1.2 * FLAT, FLAT, void=True), "inconclusive", "void: ig missed its gate"),
        (pruned(np.nan * FLAT, FLAT), "not run", "holds no number"),
    ],
)
def test_e5(tables: Tables, verdict: str, note: str) -> None:
    finding = judged("E5", tables)
    assert finding.verdict == verdict and note in finding.note


@pytest.mark.parametrize(
    ("ours", "spread", "verdict"),
    [
        (1.05, 1e-3, "reproduced"),
        (1.3, 1e-3, "contradicted"),
        (0.7, 1e-3, "contradicted"),
        (1.15, 0.02, "inconclusive"),
    ],
)
def test_e6(ours: float, spread: float, verdict: str) -> None:
    """Of optimal pruning the third ratio counts, of gradient pruning the fourth."""
    finding = judged("E6", pruned([9, 9, ours, 9, 9], [9, 9, 9, 1, 9], spread=spread))
    assert finding.verdict == verdict
    assert finding.effect == pytest.approx(ours - 1, abs=0.05)


def without(tables: Tables, sweep: str, value: float) -> Tables:
    swept = f"setting.{sweep}"
    return {name: frame[frame[swept] != value] if swept in frame else frame for name, frame in tables.items()}


def test_a_grid_without_the_ratio() -> None:
    finding = judged("E6", without(pruned(FLAT, FLAT), "fraction", 0.8))
    assert finding.verdict == "not run" and "has no 0.8; it has 0.5, 0.7, 0.9, 0.95" in finding.note


CURVES = {"E7": ("pruning_training", "gp-90", "op-80"), "E8": ("noise_training", "dpsgd-0.1", "optimal-0.1")}


def curves(key: str, gap: ArrayLike, spread: float = 1e-3) -> Tables:
    """Training curves that differ by ``gap``, for 40 steps."""
    experiment, baseline, optimal = CURVES[key]
    falling = 3 / np.arange(1, 41)
    parts = [
        rows(label, "loss_curve", noisy(values, spread=spread, units=1, sign=sign))
        for label, values, sign in ((baseline, falling, -1), (optimal, falling - np.broadcast_to(gap, 40), 1))
    ]
    return {experiment: table(*parts)}


@pytest.mark.parametrize("key", CURVES)
@pytest.mark.parametrize(
    ("gap", "spread", "verdict"),
    [
        (0.2, 1e-3, "reproduced"),
        (-0.2, 1e-3, "contradicted"),
        ([-9.0] * 8 + [0.2] * 32, 1e-3, "reproduced"),  # the first 16 steps do not count; smoothing reaches back 8
        ([0.2] * 32 + [-0.9] * 8, 1e-3, "contradicted"),  # behind on a third of the last 24 steps
        (0.0, 0.3, "inconclusive"),
    ],
)
def test_training_curves(key: str, gap: ArrayLike, spread: float, verdict: str) -> None:
    finding = judged(key, curves(key, gap, spread))
    assert finding.verdict == verdict, finding


@pytest.mark.parametrize("key", CURVES)
def test_training_that_is_too_short(key: str) -> None:
    tables = {name: frame[frame["index"] < 16] for name, frame in curves(key, 0.2).items()}
    finding = judged(key, tables)
    assert finding.verdict == "not run" and "ends before step 17" in finding.note


def test_smoothing_is_that_of_the_figures() -> None:
    """A trailing mean over 8 steps, over fewer at first, which ends where a run diverges."""
    draw = np.random.default_rng(0).normal(size=(30, 2, 1))
    draw[20:, 1] = np.nan
    expected = pd.DataFrame(draw[..., 0]).rolling(8, min_periods=1).mean().where(~np.isnan(draw[..., 0]))
    np.testing.assert_allclose(_trailing_mean(draw)[..., 0], expected.to_numpy())
    np.testing.assert_allclose(_trailing_mean(draw[:3])[..., 0], expected.to_numpy()[:3])


def noise_errors(optimal: ArrayLike, spread: float = 1e-3, **options: Any) -> Tables:
    parts = [
        fill(NOISE, label, MSE, values, spread, attack="ig", **options)
        for label, values in (("optimal", optimal), ("baseline", np.ones(4)))
    ]
    return {"noise": table(*parts)}


@pytest.mark.parametrize(
    ("tables", "verdict", "note"),
    [
        (noise_errors([1.05, 0.95, 1.0, 1.1]), "reproduced", "12 seeds"),
        (noise_errors([1.05, 0.95, 1.5, 1.1]), "contradicted", "contradicted in 1 of 4 parts: scale 0.1: 0.5"),
        (noise_errors([1.0, 1.0, 1.0, 1.15], 0.02), "inconclusive", "inconclusive in 1 of 4 parts: scale 0.2"),
        (noise_errors(np.ones(4), void=True), "inconclusive", "void"),
        (noise_errors(np.full(4, np.nan)), "not run", "holds no number"),
    ],
)
def test_e9(tables: Tables, verdict: str, note: str) -> None:
    finding = judged("E9", tables)
    assert finding.verdict == verdict and note in finding.note


def with_losses(
    tables: Tables, pair: dict[str, Any], optimal: ArrayLike, baseline: ArrayLike, spread: float = 1e-3
) -> Tables:
    ((name, frame),) = ((name, frame) for name, frame in tables.items() if name not in REFERENCES)
    losses = [
        fill(pair, label, "final_loss", values, spread)
        for label, values in (("optimal", optimal), ("baseline", baseline))
    ]
    return tables | {name: table(frame, *losses)}


def pictured(loss: float, error: float, spread: float = 1e-3, guess: float = 99.0) -> Tables:
    """Optimal noise at 0.1 against clipped noise at 0.05, where both numbers are 1."""
    tables = noise_errors([9, 9, error, 9]) | references(guess)
    return with_losses(tables, NOISE, [9, 9, loss, 9], [9, 1, 9, 9], spread)


@pytest.mark.parametrize(
    ("tables", "verdict", "note"),
    [
        (pictured(1.02, 1.3), "reproduced", "12 seeds"),
        (pictured(1.02, 0.7), "contradicted", "contradicted in 1 of 2 parts: MSE"),
        (pictured(1.2, 1.3), "contradicted", "contradicted in 1 of 2 parts: loss"),
        (pictured(1.05, 1.3, 0.05), "inconclusive", "inconclusive in 1 of 2 parts: loss"),
        (pictured(1.02, 1.3, guess=0.5), "inconclusive", "inconclusive in 1 of 2 parts: MSE: 0 "),
        (without(pictured(1.02, 1.3), "scale", 0.05), "not run", "has no 0.05"),
    ],
)
def test_e10(tables: Tables, verdict: str, note: str) -> None:
    finding = judged("E10", tables)
    assert finding.verdict == verdict and note in finding.note


def cifar_pruned(ours: tuple[float, float], spread: float = 1e-3, guess: float = 99.0) -> Tables:
    """MSE and loss of optimal pruning at 70 % and 80 %; those of gradient pruning at 90 % are 1.

    Undefended updates lower the loss from 2 to 0, so that a twentieth of their gain is 0.1.
    """
    error, loss = ours
    errors = [
        fill(CIFAR_PRUNING, label, MSE, values, spread, attack="ig-cifar")
        for label, values in (("optimal", [9, error, error, 9, 9]), ("baseline", [9, 9, 9, 1, 9]))
    ]
    undefended = [
        rows("none", metric, noisy([value], spread=1e-3, units=1, sign=1))
        for metric, value in (("loss_curve", 2.0), ("final_loss", 0.0))
    ]
    tables = {"cifar_pruning": table(*errors, *undefended)} | references(guess)
    return with_losses(tables, CIFAR_PRUNING, [9, loss, loss, 9, 9], [9, 9, 9, 1, 9], spread)


@pytest.mark.parametrize(("key", "fraction"), [("E11", 0.7), ("E12", 0.8)])
@pytest.mark.parametrize(
    ("tables", "verdict"),
    [
        (cifar_pruned((1.2, 0.9)), "reproduced"),
        (cifar_pruned((1.0, 1.0)), "reproduced"),  # as good, within the margins
        (cifar_pruned((0.9, 1.08)), "reproduced"),
        (cifar_pruned((0.8, 0.9)), "contradicted"),
        (cifar_pruned((0.8, 0.9), guess=0.7), "reproduced"),  # neither leaks
        (cifar_pruned((1.2, 1.12)), "contradicted"),
        (cifar_pruned((1.2, 1.1), 0.1), "inconclusive"),
    ],
)
def test_e11_and_e12(key: str, fraction: float, tables: Tables, verdict: str) -> None:
    assert judged(key, tables).verdict == verdict
    assert judged(key, without(tables, "fraction", fraction)).verdict == "not run"


def large_noise(losses: ArrayLike, optimal: ArrayLike, spread: float = 1e-3, guess: float = 99.0) -> Tables:
    """Losses of optimal noise and errors of both; those of clipped noise are 1, 1.5, 2, 3 and 1."""
    errors = [
        fill(CIFAR, label, MSE, values, spread, attack="ig-cifar")
        for label, values in (("optimal", optimal), ("baseline", np.ones(4)))
    ]
    tables = {"cifar_noise": table(*errors)} | references(guess)
    return with_losses(tables, CIFAR, losses, [1, 1.5, 2, 3], spread)


LARGE = [1, 1.2, 1.4, 1.6]


@pytest.mark.parametrize(
    ("key", "tables", "verdict", "note"),
    [
        ("E13a", large_noise(LARGE, np.ones(4)), "reproduced", "12 seeds"),
        ("E13a", large_noise([9, 1.2, 1.4, 1.6], np.ones(4)), "reproduced", "12 seeds"),  # a small scale
        ("E13a", large_noise([1, 1.6, 1.4, 1.6], np.ones(4)), "contradicted", "1 of 3 parts: scale 0.001"),
        ("E13b", large_noise(LARGE, np.ones(4)), "reproduced", "12 seeds"),
        ("E13b", large_noise([1, 1.2, 1.4, 2.8], np.ones(4)), "contradicted", "falls between 0.01 and 0.1"),
        ("E13b", large_noise([1, 1.2, 1.7, 2.7], np.ones(4), 0.3), "inconclusive", "12 seeds"),
        ("E13c", large_noise(LARGE, 1.05 * np.ones(4)), "reproduced", "12 seeds"),
        ("E13c", large_noise(LARGE, 0.9 * np.ones(4)), "reproduced", "12 seeds"),
        ("E13c", large_noise(LARGE, [1, 1, 0.8, 1]), "contradicted", "1 of 3 parts: scale 0.01"),
        (
            "E13c",
            large_noise(LARGE, [1, 1, 0.8, 1], guess=0.7),
            "inconclusive",
            "neither noise leaks",
        ),
        ("E13c", large_noise(LARGE, [1, 1, 0.8, 1], guess=0.9), "reproduced", "12 seeds"),
        ("E13d", large_noise(LARGE, [0, 0, 2, 2], guess=1.1), "reproduced", "12 seeds"),
        ("E13d", large_noise(LARGE, [0, 0, 2, 2], guess=1.3), "contradicted", "2 of 4 parts: dpsgd-cifar at 0.01"),
        ("E13d", large_noise(LARGE, [0, 0, 0.8, 2], guess=1.1), "contradicted", "1 of 4 parts: optimal-cifar at 0.01"),
    ],
)
def test_e13(key: str, tables: Tables, verdict: str, note: str) -> None:
    """Three of the four scales are large, and reconstruction fails at two."""
    finding = judged(key, tables)
    assert finding.verdict == verdict, finding
    assert note in finding.note
    noise = tables["cifar_noise"]
    few = tables | {"cifar_noise": noise[noise["setting.scale"] < 5e-4]}
    assert judged(key, few).verdict == "not run"


def test_a_failing_attack_needs_reference_attackers() -> None:
    tables = large_noise(LARGE, np.ones(4))
    tables["cifar_references"] = tables["cifar_references"].assign(attack="ig-cifar")
    finding = judged("E13d", tables)
    assert finding.verdict == "not run" and finding.note.startswith("no reference attacker was measured")


def tensor_noise(ratios: ArrayLike, spread: float = 1e-4) -> Tables:
    """Noise of three tensors over six steps: 0.1, the double, and ``ratios`` times as much; added, and plotted."""
    parts = []
    for name, factor, sign in (("bias", 1.0, -1), ("middle", 2.0, 1), ("weight", ratios, 1)):
        numbers = noisy(np.broadcast_to(factor, 6) / 10, spread=spread, units=1, sign=sign)
        parts.append(rows("optimal-0.1", f"noise_std/{name}", numbers))
    return {"noise_training": table(*parts), "plotted_noise": table(*parts)}


@pytest.mark.parametrize(
    ("tables", "verdict"),
    [
        (tensor_noise(8), "reproduced"),
        (tensor_noise([8, 8, 8, 2, 8, 8]), "contradicted"),  # one step is enough
        (tensor_noise([8, 3.1, 8, 8, 8, 8], 5e-3), "inconclusive"),
    ],
)
def test_e14(tables: Tables, verdict: str) -> None:
    unmeasured = rows("optimal-0.1", "loss_curve", np.ones((6, SEEDS, 1)))
    for key, experiment in {"E14": "noise_training", "E14b": "plotted_noise"}.items():
        assert judged(key, {experiment: tables[experiment]}).verdict == verdict
        assert judged(key, {experiment: unmeasured}).verdict == "not run"


def kept(utility: float, information: float, spread: float) -> dict[str, Tables]:
    """What optimal pruning keeps, beside 0.7 and 0.3 of gradient pruning, for the claims of MNIST and CIFAR-10."""
    mnist, cifar = [], []
    for metric, ours, theirs in (("u1_kept", utility, 0.7), ("information_kept", information, 0.3)):
        mnist += [
            fill(PRUNING, label, metric, values, spread)
            for label, values in (("optimal", [9, 9, ours, 9, 9]), ("baseline", [9, 9, 9, theirs, 9]))
        ]
        for mode, (label, value, sign) in itertools.product(
            ("eval", "train"), (("op-70", ours, 1), ("gp-90", theirs, -1))
        ):
            numbers = noisy([value], spread=spread, units=BATCHES, sign=sign)
            cifar.append(rows(label, metric, numbers, where={"batch_norm": mode}))
    return {"X1": {"information": table(*mnist)}} | {key: {"cifar_predictors": table(*cifar)} for key in ("X2", "X3")}


@pytest.mark.parametrize("key", ["X1", "X2", "X3"])
@pytest.mark.parametrize(
    ("found", "spread", "verdict"),
    [
        ((0.8, 0.2), 1e-3, "reproduced"),
        ((0.695, 0.305), 1e-3, "reproduced"),  # as much, within the margin
        ((0.8, 0.4), 1e-3, "contradicted"),
        ((0.6, 0.2), 1e-3, "contradicted"),
        ((0.7, 0.2), 0.05, "inconclusive"),
    ],
)
def test_predictors(key: str, found: tuple[float, float], spread: float, verdict: str) -> None:
    assert judged(key, kept(*found, spread)[key]).verdict == verdict


def test_modes_of_batch_norm_are_kept_apart() -> None:
    frame = kept(0.8, 0.2, 1e-3)["X2"]["cifar_predictors"]
    train = (frame["setting.batch_norm"] == "train") & (frame["metric"] == "information_kept")
    frame.loc[train & (frame["defense"] == "op-70"), "value"] += 1
    assert [judged(key, {"cifar_predictors": frame}).verdict for key in ("X2", "X3")] == ["reproduced", "contradicted"]


def informed(optimal: ArrayLike, spread: float = 1e-3, error: float = 0.6) -> Tables:
    """Information of both noises, 1 for the isotropic one; bounds of half of it; errors of all attacks."""
    tables: dict[str, pd.DataFrame] = {}
    for name, pair, attacks in (("noise", NOISE, ["ig"]), ("equal_utility", EQUAL, ["ig", "ig-adaptive"])):
        size = len(pair["points"])
        information = [
            fill(pair, label, metric, np.broadcast_to(factor * np.asarray(values), size), factor * spread)
            for label, values in (("optimal", optimal), ("baseline", 1.0))
            for metric, factor in (("information", 1.0), ("bound", 0.5))
        ]
        errors = [
            fill(pair, label, IN_ORDER, np.full(size, error), spread, attack=attack)
            for attack in attacks
            for label in ("optimal", "baseline")
        ]
        if name == "noise":
            tables |= {"noise": table(*errors), "information": table(*information)}
        else:
            tables[name] = table(*information, *errors)
    return tables


@pytest.mark.parametrize(
    ("tables", "verdict"),
    [
        (informed(0.5), "reproduced"),
        (informed(2.0), "contradicted"),
        (informed(1.0, 0.05), "inconclusive"),
        (informed(np.nan), "not run"),
    ],
)
def test_x6(tables: Tables, verdict: str) -> None:
    assert judged("X6", {"equal_utility": tables["equal_utility"]}).verdict == verdict


@pytest.mark.parametrize(
    ("key", "tables", "verdict"),
    [
        ("X7a", informed(1.0), "reproduced"),
        ("X7a", informed(1.0, error=0.4), "contradicted"),
        ("X7a", informed(1.0, 0.05, error=0.5), "inconclusive"),
        ("X7a", informed(np.nan), "not run"),
        ("X7b", informed(1.0) | references(0.6), "reproduced"),
        ("X7b", informed(1.0) | references(0.4), "contradicted"),  # a blind guess undercuts what was called a bound
        ("X7b", informed(1.0, 0.05) | references(0.5, 0.05), "inconclusive"),
        ("X7b", informed(1.0) | references(np.nan), "not run"),
    ],
)
def test_x7(key: str, tables: Tables, verdict: str) -> None:
    finding = judged(key, tables)
    assert finding.verdict == verdict
    if verdict == "reproduced":
        assert finding.effect == pytest.approx(0.2, abs=0.02)  # 0.6 over 1/2


@pytest.mark.parametrize("key", ["X7a", "X7b"])
def test_where_the_information_is_infinite_there_is_no_bound(key: str) -> None:
    """Infinite information leaves a bound of 0 in the record."""
    tables = informed(1.0, error=0.4) | references(0.6)
    for name in ("noise", "information", "equal_utility"):
        frame = tables[name]
        frame.loc[(frame["metric"] == "bound") & (frame["setting.scale"] > 1e-3), "value"] = 0.0
        low = (frame["metric"] == IN_ORDER) & (frame["setting.scale"] <= 1e-3)
        frame.loc[low, "value"] = 0.9
    assert judged(key, tables).verdict == "reproduced"


def test_a_theorem_is_really_checked() -> None:
    finding = judged("T3", {})
    assert finding.verdict == "reproduced" and finding.effect is not None and finding.effect > 0


def test_theorems_are_checked_by_computing() -> None:
    assert {key for key in CLAIMS if key.startswith("T")} == set(checks_of(PAPER))


@pytest.mark.parametrize("entry", CLAIMS.values(), ids=CLAIMS)
def test_claims_say_what_and_where(entry: Claim) -> None:
    assert entry.statement.endswith(".") and entry.source
    configured = Project(ROOT).plan("full").papers["optimal_defense"].experiments
    assert set(entry.experiments) <= set(configured)


def test_claims_that_no_test_names() -> None:
    tested = {*TRADES, *CURVES, *checks_of(PAPER), "E5", "E6", "E9", "E10", "E11", "E12", "E14"}
    tested |= {f"E13{part}" for part in "abcd"}
    assert {key for key in CLAIMS if key not in tested} == {"E14b", "X1", "X2", "X3", "X6", "X7a", "X7b"}


def test_verdicts_do_not_depend_on_the_order_of_rows() -> None:
    tables = TRADES["E1"].tables(0.3)
    shuffled = {name: frame.sample(frac=1, random_state=0) for name, frame in tables.items()}
    assert judged("E1", shuffled) == judged("E1", tables)
