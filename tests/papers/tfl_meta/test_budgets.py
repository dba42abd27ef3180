"""Tables S4 and S5 of the paper ``tfl_meta`` and its claims on leakage and utility, on tables made for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.papers.drawn import make

from leakbench.errors import ConfigError
from leakbench.papers.tfl_meta.budgets import WAYS
from leakbench.papers.tfl_meta.constants import c2_of
from leakbench.report.claims import claims_of
from leakbench.report.findings import Finding

CLAIMS = {entry.key: entry for entry in claims_of("tfl_meta")}
PAPER = "tfl_meta"
SEEDS, CLIENTS = 12, 4
C1, XI, SIZE, STEEPNESS, DELTA = 0.6, 2.0, 1000.0, 1e6, 0.5
BUDGETS = (0.0, 0.5, 1.0, 1.95, 2.0)
PRIORS = ("null", "null_upper", "population", "uniform")
NONE_LEFT = 0.02
"""Leakage of an attack that recovers nothing."""
Frame = pd.DataFrame
Trained = dict[tuple[str, str | None, float], float]
Numbers = Mapping[str, float]


def rows(
    numbers: Numbers,
    defense: str = "none",
    attack: str | None = "dlg",
    *,
    spread: float = 0.002,
    status: str = "ok",
    seeds: int = SEEDS,
    **setting: Any,
) -> Frame:
    """Rows of one setting; numbers of clients differ a little, those of a whole job do not."""
    found: list[tuple[int, str, int, float, str | None]] = []
    for metric, value in numbers.items():
        whole = metric in ("dimension", "tau", "parameter", "bits", "trials", "accuracy", "final_loss")
        for seed in range(seeds):
            for client in range(1 if whole else CLIENTS):
                off = 0.0 if whole else spread * math.sin(seed + 3 * client)
                found.append((seed, metric, client, value + off, None if whole else "client"))
    frame = pd.DataFrame(found, columns=["seed", "metric", "index", "value", "axis"])
    one: dict[str, Any] = {"dataset": "digits8", "model": "lenet", "defense": defense, "attack": attack}
    one |= {"void": False, "distinct": False, "status": status, "unit": "", "setting.threshold": math.nan}
    return frame.assign(**one | {f"setting.{key}": number for key, number in setting.items()})


def at(frame: Frame, *place: str) -> Any:
    """The row of a mechanism and a budget."""
    return frame.loc[[place]].iloc[0]


def leaked(value: float, recovery: float) -> dict[str, float]:
    """Metrics of an attack: leakage by the null attack's prior, and by the uniform one, where the order is reversed."""
    found = {"recovery": recovery, "null_recovery": 0.0, "classes": value, "classes_sum": 1.2, "trials": 32.0}
    found |= {"failed/null": NONE_LEFT, "failed/null/0.001": NONE_LEFT}
    for end in ("", "_low", "_high"):
        found |= {f"leakage{end}/{prior}": value for prior in ("null", "null_upper", "population")}
        found |= {f"leakage{end}/uniform": 0.8 - value}
        found |= {f"xi{end}/{prior}": XI for prior in PRIORS}
    for alpha, xi in (("0.001", 4.0), ("1", 1.8)):
        found |= {f"leakage/{prior}/{alpha}": value for prior in ("null", "null_upper", "population")}
        found |= {f"leakage/uniform/{alpha}": 0.8 - value}
        found |= {f"xi/{prior}/{alpha}": xi for prior in PRIORS}
    return found


def fewer(metrics: Numbers, *counts: int) -> dict[str, float]:
    """The same constants from fewer attempts: the fewer, the smaller is xi."""
    names = ("recovery", "null_recovery", "leakage/", "xi/")
    every = [name for name in metrics if name.startswith(names) and name not in ("recovery_low", "recovery_high")]
    return {f"{name}/n{n}": metrics[name] * (n / 32 if "xi" in name else 1) for n in counts for name in every}


def constants(**changes: float) -> Frame:
    law = {"dimension": SIZE, "delta": DELTA, "steepness": STEEPNESS}
    metrics = leaked(C1, 0.9) | law | {"bits": 32 * SIZE} | changes
    metrics |= fewer(metrics, 8, 16, 32)
    found = [rows(metrics, threshold=limit) for limit in (25.0, 20.0, 30.0)]
    return pd.concat([*found, rows(metrics, threshold=0.6, similarity="ssim")], ignore_index=True)


def of_few(value: float, recovery: float, **setting: float) -> Frame:
    """An experiment of 16 attempts, where that of the constants has 32."""
    metrics = leaked(value, recovery) | {"trials": 16.0}
    return rows(metrics | fewer(metrics, 16), threshold=25.0, **dict[str, Any](setting))


def few_estimates(kept: float = 1.0) -> Frame:
    """Attacks at optima that are of constants from fewer attempts."""
    return pd.concat(
        [
            rows(leaked(C1 * kept, 0.9 * kept), label, threshold=25.0, estimated=float(n))
            for label in ("tuned-fewer-noise", "tuned-fewer-compression", "tuned-fewer-masks")
            for n in (1, 8)
        ],
        ignore_index=True,
    )


def second(rate: float = 0.0) -> Frame:
    """The second attacker: what it recovers where DLG recovers nothing."""
    frame = swept(tail=rate)
    return frame[frame["defense"] != "masks"].assign(attack="ig")


def tau(budget: float) -> float:
    return (2 - budget) * C1 / c2_of(XI)


def tuned(stopped: tuple[str, ...] = ("tuned-masks", "tuned-masks-printed"), kept: float = 1.0) -> Frame:
    """Attacks at the optima: some are stopped, the others leave a part of leakage and recovery."""
    found = []
    for defense in WAYS:
        if defense == "tuned-encrypted":
            continue
        for budget in BUDGETS:
            free = budget >= 2
            value, recovery = (NONE_LEFT, 0.0) if defense in stopped and not free else (C1 * kept, 0.9 * kept)
            own = {"tau": max(tau(budget), 0.0), "parameter": math.nan if free else 0.5, "bits": 32 * SIZE}
            if "noise" in defense and not free:
                own["parameter"] = (5 if "exact" in defense else 100) * tau(budget) / STEEPNESS
            found.append(rows(leaked(value, recovery) | own, defense, threshold=25.0, budget=budget))
    return pd.concat(found, ignore_index=True)


def swept(tail: float = 0.0) -> Frame:
    """Recovery over the strength, which ends at ``tail``."""
    found = []
    for defense, sweep, grid in (
        ("noise", "scale", (1e-4, 1e-2, 1.0)),
        ("compression", "probability", (0.01, 0.5, 0.9)),
        ("masks", "bound", (1e-3, 0.1, 1.0)),
    ):
        for point, recovery in zip(grid, (0.9, 0.5, tail), strict=True):
            value = 0.02 if recovery == 0 else C1 * recovery
            found.append(rows(leaked(value, recovery), defense, threshold=25.0, **dict[str, Any]({sweep: point})))
    return pd.concat(found, ignore_index=True)


def trained(accuracy: Mapping[tuple[str, str | None, float], float], seeds: int = SEEDS) -> Frame:
    """Trainings: defense, swept parameter and its value, to accuracy."""
    found = []
    for (defense, sweep, point), value in accuracy.items():
        setting: dict[str, Any] = {sweep: point} if sweep else {}
        for seed in range(seeds):
            numbers = {"accuracy": value + 0.001 * seed, "final_loss": 1 - value}
            one = rows(numbers, defense, None, seeds=1, **setting)
            found.append(one.assign(seed=seed))
    return pd.concat(found, ignore_index=True)


def utility(small: float = 0.9, shares: float = 0.9) -> Frame:
    of: Trained = {
        ("none", None, 0.0): 0.9,
        ("fixed-point", None, 0.0): 0.9,
        ("shares", None, 0.0): shares,
    }
    of |= {("noise", "scale", 1e-4): small, ("noise", "scale", 1.0): 0.1}  # bounds of 0.015, and of 1.5
    of |= {("compression", "probability", 1e-5): small, ("compression", "probability", 0.9): 0.1}
    return trained(of)


def utility_tuned() -> Frame:
    return trained({(defense, "budget", b): 0.9 for defense in WAYS if "masks" not in defense for b in BUDGETS})


def utility_pairs(masked: float = 0.9) -> Frame:
    of: Trained = {
        ("none", None, 0.0): 0.9,
        ("fixed-point", None, 0.0): 0.9,
        ("masks", "bound", 1.0): masked,
    }
    # Without protection a training is not in fixed point.
    return trained(of | {("tuned-masks", "budget", b): 0.9 if b < 2 else 0.91 for b in BUDGETS})


def utility_encrypted() -> Frame:
    of: Trained = {
        ("none", None, 0.0): 0.9,
        ("fixed-point", None, 0.0): 0.9,
        ("tuned-encrypted", "budget", 1.0): 0.9,
    }
    return trained(of)


def encrypted(value: float = 0.02) -> Frame:
    own = leaked(value, 0.0) | {"tau": tau(1.0), "parameter": 1.001, "bits": 86 * SIZE}
    return rows(own, "tuned-encrypted", threshold=25.0, budget=1.0)


def masked(half: float = 0.9) -> Frame:
    grid = ((0.01, 0.9), (0.5, half), (0.9, 0.0))
    return pd.concat(
        [rows(leaked(C1, rate), "compression", "masked-dlg", threshold=25.0, probability=part) for part, rate in grid],
        ignore_index=True,
    )


@cache
def unchanged() -> dict[str, Frame]:
    return {
        "constants": constants(),
        "batch_sizes": pd.concat([of_few(C1, 0.9, batch_size=size) for size in (1.0, 4.0)], ignore_index=True),
        "skewed": of_few(0.3, 0.5),
        "tuned_fewer": few_estimates(),
        "second_attacker": second(),
        "tuned": tuned(),
        "tuned_encrypted": encrypted(),
        "swept": swept(),
        "swept_masked": masked(),
        "utility": utility(),
        "utility_tuned": utility_tuned(),
        "utility_pairs": utility_pairs(),
        "utility_encrypted": utility_encrypted(),
    }


def every(**changed: Frame) -> dict[str, Frame]:
    return unchanged() | changed


def judge(key: str, **changed: Frame) -> Finding:
    return CLAIMS[key].judge(every(**changed))


class TestConstants:
    def test_a_row_per_setting_and_prior(self) -> None:
        found = make("tableS4", every(), paper=PAPER)
        settings = ["first, all attempts", "first", "alpha = 0.001", "alpha = 1", "recovered above SSIM 0.6"]
        settings += ["recovered above 20 dB", "recovered above 30 dB", "S = 1", "S = 4", "skewed labels"]
        assert list(dict.fromkeys(found["setting"])) == settings
        assert len(found) == 10 * 4
        first = found[found["setting"] == "first, all attempts"].set_index("prior")
        assert first.loc["null attack"]["C1"].startswith("0.600 [")
        assert first.loc["same for all"]["C1"].startswith("0.200 [")
        assert first.loc["null attack"]["printed sum"].startswith("1.200")
        assert first.loc["same for all"]["printed sum"] == "–"

    def test_c2_is_of_the_largest_xi(self) -> None:
        found = make("tableS4", every(), paper=PAPER).set_index(["setting", "prior"])
        own = constants()
        largest = own[(own["metric"] == "xi/null/0.001/n16")]["value"].max()
        assert at(found, "alpha = 0.001", "null attack")["C2"] == f"{math.expm1(2 * largest) / 2:.3g}"
        assert at(found, "alpha = 0.001", "null attack")["C1, attempts"] == "–"

    def test_all_settings_have_as_many_attempts(self) -> None:
        """Those that all experiments have, though the first has more."""
        found = make("tableS4", every(), paper=PAPER).set_index(["setting", "prior"])
        counts = found["M T"].groupby(level="setting").agg(set)
        assert counts.pop("first, all attempts") == {"32"} and all(each == {"16"} for each in counts)
        own = constants()
        for setting, name in (("first, all attempts", "xi/null"), ("first", "xi/null/n16")):
            assert at(found, setting, "null attack")["xi"] == f"{own[own['metric'] == name]['value'].max():.3f}"

    def test_experiments_without_a_number_in_common(self) -> None:
        apart = every(skewed=rows(leaked(0.3, 0.5), threshold=25.0))
        with pytest.raises(ConfigError, match="one pair of models and attempts in common in their field fewer"):
            make("tableS4", apart, paper=PAPER)

    def test_what_is_lost(self) -> None:
        frame = every()
        frame["skewed"] = frame["skewed"].assign(value=np.nan)
        found = make("tableS4", frame, paper=PAPER)
        assert set(found[found["setting"] == "skewed labels"]["C2"]) == {"–"}


class TestBudgets:
    def table(self, **changed: Frame) -> Frame:
        found: Frame = make("tableS5", every(**changed), paper=PAPER)
        return found

    def test_a_row_per_budget_and_one_without_protection(self) -> None:
        found = self.table()
        assert len(found) == 1 + 7 * len(BUDGETS) + 1
        assert found["mechanism"].iloc[0] == "no protection" and found["status"].iloc[0] == "–"
        assert found["leakage"].iloc[0].startswith("0.600")

    def test_bounds_beside_what_is_measured(self) -> None:
        found = self.table().set_index(["mechanism", "epsilon / C1"])
        # Of the mean C1 and the largest xi, as the mechanisms are tuned.
        own = constants()
        c1, xi = (own[own["metric"] == name]["value"] for name in ("leakage/null", "xi/null"))
        asked = (2 - 0.5) * c1.mean() / c2_of(xi.max())
        noisy, dropped = at(found, "Gaussian noise", "0.5"), at(found, "compression", "0.5")
        assert noisy["status"] == "ok" and noisy["tau"] == f"{asked:.3g}"
        assert dropped["bound on it"] == f"{asked:.3g}" and dropped["accuracy loss"].startswith("0.000")
        assert dropped["certified"] == "by neither" and dropped["epsilon"] == f"{c1.mean() / 2:.3f}"
        assert float(dropped["metric"]) == pytest.approx(c1.mean() / 2, rel=1e-2)
        assert at(found, "compression", "1")["certified"] == "by the paper alone"
        assert at(found, "compression", "1.95")["certified"] == "by both"
        free = at(found, "compression", "2")
        assert free["status"] == "no protection needed" and free["parameter"] == "–" and free["bound on it"] == "0"
        shared = at(found, "Paillier", "1")
        assert shared["bits over plain, minus 1"] == f"{86 / 32 - 1:.3g}" and shared["bound on it"] == "0"

    def test_the_bound_of_masks_is_at_the_mask_that_clients_share(self) -> None:
        found = self.table().set_index(["mechanism", "epsilon / C1"])
        own = tuned()
        shared = own[
            (own["defense"] == "tuned-masks") & (own["setting.budget"] == 0.5) & (own["metric"] == "parameter")
        ]
        expected = 2 * math.log2(shared["value"].mean()) / 32
        assert float(at(found, "secret sharing", "0.5")["bound on that"]) == pytest.approx(expected, rel=1e-2)

    def test_the_printed_mask_and_what_has_no_training(self) -> None:
        found = self.table().set_index(["mechanism", "epsilon / C1"])
        printed = at(found, "secret sharing, as printed", "0.5")
        own = constants()
        c1, xi = (own[own["metric"] == name]["value"] for name in ("leakage/null", "xi/null"))
        c2 = c2_of(xi.max())
        expected = 2 * c1.mean() - c2 * (1 - 1.5 * c1.mean() / c2)
        assert float(printed["metric"]) == pytest.approx(expected, rel=1e-2)
        assert printed["accuracy loss"] == printed["bound on it"] == "–"

    def test_what_was_infeasible(self) -> None:
        frame = tuned()
        lost = (frame["defense"] == "tuned-masks-printed") & (frame["setting.budget"] == 2)
        frame.loc[lost, "status"], frame.loc[lost, "value"] = "infeasible", np.nan
        found = self.table(tuned=frame).set_index(["mechanism", "epsilon / C1"])
        row = at(found, "secret sharing, as printed", "2")
        assert row["status"] == "undefined" and row["leakage"] == "–" == row["bits over plain, minus 1"]


class TestLeakageClaims:
    @pytest.mark.parametrize(
        ("key", "defense"),
        [
            ("E15a", "tuned-noise-alive"),
            ("E15b", "tuned-compression"),
            ("E15c", "tuned-masks"),
            ("E15d", "tuned-masks-printed"),
            ("E15e", "tuned-masks-exact"),
        ],
    )
    def test_budgets(self, key: str, defense: str) -> None:
        assert judge(key, tuned=tuned(stopped=tuple(WAYS))).verdict == "reproduced"
        open_ = tuned(stopped=tuple(name for name in WAYS if name != defense))
        found = judge(key, tuned=open_)
        # At epsilon = 0 and C1 / 2 all of C1 is too much; at C1 it is just what is allowed.
        assert found.verdict == "contradicted" and f"{defense}, epsilon 0.5 C1" in found.note
        above = open_[open_["setting.budget"] >= 1]
        assert judge(key, tuned=above).verdict == "inconclusive"
        assert judge(key, tuned=above.assign(void=True)).verdict == "inconclusive"

    def test_the_budget_of_encryption(self) -> None:
        assert judge("E15f").verdict == "reproduced"
        assert judge("E15f", tuned_encrypted=encrypted(C1 * 1.1)).verdict == "contradicted"
        assert judge("E15f", tuned_encrypted=encrypted().assign(value=np.nan)).verdict == "not run"

    def test_nothing_changes(self) -> None:
        assert judge("E15x").verdict == "reproduced"
        assert judge("E15x", tuned=tuned(kept=0.5)).verdict == "contradicted"
        assert judge("E15x", tuned=tuned().assign(void=True)).verdict == "inconclusive"

    def test_near_c1(self) -> None:
        assert judge("E2").verdict == "reproduced"
        assert judge("E2", tuned=tuned(kept=0.5)).verdict == "contradicted"  # x is 0.05 C1 at most
        assert judge("E2", tuned=tuned().assign(void=True)).verdict == "inconclusive"

    @pytest.mark.parametrize("key", ["E16a", "E16b", "E16c"])
    def test_trends(self, key: str) -> None:
        assert judge(key).verdict == "reproduced"
        turned = swept()
        rates = turned["metric"] == "recovery"
        turned.loc[rates, "value"] = 1 - turned.loc[rates, "value"]
        assert judge(key, swept=turned).verdict == "contradicted"
        assert judge(key, swept=swept().assign(void=True)).verdict == "inconclusive"

    def test_known_masks(self) -> None:
        assert judge("E16d").verdict == "reproduced"
        assert judge("E16d", swept_masked=masked(half=0.5)).verdict == "contradicted"
        assert judge("E16d", swept_masked=masked().assign(void=True)).verdict == "inconclusive"

    def test_priors(self) -> None:
        assert judge("L1a").verdict == "contradicted"
        assert judge("L1b").verdict == "reproduced"
        assert judge("L1b", swept=swept().assign(void=True)).verdict == "inconclusive"
        assert judge("L1b", swept=swept(tail=0.5)).verdict == "not run"
        # A prior under which failure leaks less, in place of the uniform one.
        frames = {"constants": constants(), "swept": swept()}
        for name, frame in frames.items():
            own = frame["metric"] == "leakage/uniform/0.001"
            frame.loc[own, "value"] = 0.8 - frame.loc[own, "value"]
            frames[name] = frame
        assert judge("L1a", **frames).verdict == "reproduced"

    @pytest.mark.parametrize(("above", "verdict"), [(0.0, "reproduced"), (0.03, "reproduced"), (0.1, "contradicted")])
    def test_failure_is_no_leakage(self, above: float, verdict: str) -> None:
        """A budget of nothing is met up to 0.05 C1 above an attack that recovers nothing, and not beyond."""
        frame = tuned()
        leak = (frame["metric"] == "leakage/null/0.001") & (frame["defense"] == "tuned-masks")
        frame.loc[leak & (frame["setting.budget"] == 0), "value"] += above * C1
        assert judge("E15c", tuned=frame).verdict == verdict

    def test_fewer_attempts(self) -> None:
        assert judge("E15y").verdict == "reproduced"
        found = judge("E15y", tuned_fewer=few_estimates(kept=0.5))
        assert found.verdict == "contradicted" and "tuned-fewer-noise, 1 attempts" in found.note
        assert judge("E15y", tuned_fewer=few_estimates().assign(void=True)).verdict == "inconclusive"

    def test_the_second_attacker(self) -> None:
        assert judge("E16e").verdict == "reproduced"
        found = judge("E16e", second_attacker=second(0.3))
        assert found.verdict == "contradicted" and "noise, scale 1" in found.note
        assert judge("E16e", second_attacker=second().assign(void=True)).verdict == "inconclusive"
        assert judge("E16e", swept=swept(tail=0.5)).verdict == "not run"


class TestUtilityClaims:
    def test_exact_sums(self) -> None:
        assert judge("E11").verdict == "reproduced"
        found = judge("E11", utility=utility(shares=0.89))
        assert found.verdict == "contradicted" and "accuracy, shares" in found.note
        assert judge("E11", utility_pairs=utility_pairs(masked=0.88)).verdict == "contradicted"
        assert judge("E11", utility=utility().query("defense != 'shares'")).verdict == "not run"

    def test_fixed_point(self) -> None:
        assert judge("E11a").verdict == "reproduced"
        worse = utility()
        worse.loc[worse["defense"] == "fixed-point", "value"] -= 0.05
        assert judge("E11a", utility=worse).verdict == "contradicted"
        unsure = utility()
        own = (unsure["defense"] == "fixed-point") & (unsure["metric"] == "accuracy")
        unsure.loc[own, "value"] -= 0.05 * (unsure.loc[own, "seed"] % 3 - 1)
        assert judge("E11a", utility=unsure).verdict == "inconclusive"

    def test_bounds(self) -> None:
        found = judge("E12")
        assert found.verdict == "reproduced" and "8 more bounds are 1 or more" in found.note
        found = judge("E12", utility=utility(small=0.8))
        assert found.verdict == "contradicted" and "noise, scale 0.0001" in found.note
        unsure = utility()
        own = (unsure["setting.scale"] == 1e-4) & (unsure["metric"] == "accuracy")
        unsure.loc[own, "value"] -= 0.05 * (unsure.loc[own, "seed"] % 3 - 1)
        assert judge("E12", utility=unsure).verdict == "inconclusive"
