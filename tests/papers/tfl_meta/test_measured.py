"""Figures S4 to S9 and Table S6 of the paper ``tfl_meta``, on tables made for them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.papers.drawn import draw, make, series

from leakbench.papers.tfl_meta import PAPER, fronts, measured, recovered_images
from leakbench.papers.tfl_meta.theory.leakage_estimation import certain_constants

SEEDS, CLIENTS, M, DELTA, A = 2, 2, 1000, 0.5, 1e10
C1, XI, TAU = 0.6, 3.0, 1e-3
BUDGETS = (0.0, 1.0, 2.0)


def table(cells: list[tuple[str, str, str | None, dict[str, float], dict[str, Any]]]) -> pd.DataFrame:
    """Rows of defenses in settings: metrics are numbers, or a list over clients."""
    rows = []
    for (defense, mechanism, attack, setting, metrics), seed in itertools.product(cells, range(SEEDS)):
        shared = {"dataset": "digits8", "model": "lenet", "defense": defense, "mechanism": mechanism, "attack": attack}
        shared |= {"void": False, "distinct": False, "seed": seed, "status": "ok"} | {
            f"setting.{key}": each for key, each in setting.items()
        }
        for metric, value in metrics.items():
            for index, number in enumerate(value if isinstance(value, list) else [value]):
                rows.append(shared | {"metric": metric, "index": index, "value": number})
    return pd.DataFrame(rows)


def attacked(recovery: float, bits: float = 32.0 * M, **more: Any) -> dict[str, Any]:
    each = {"recovery": recovery, "recovery_low": max(recovery - 0.1, 0), "recovery_high": min(recovery + 0.1, 1)}
    each |= {"leakage/null": C1, "leakage/null/0.001": 0.05 + 0.7 * recovery, "xi/null": XI}
    each |= {"delta": DELTA, "steepness": A}
    return {key: [value] * CLIENTS for key, value in each.items()} | {"bits": bits, "dimension": float(M)} | more


T25 = {"threshold": 25.0}
TUNED = {
    "tuned-noise": 100 * TAU / A,
    "tuned-noise-exact": TAU / A,
    "tuned-noise-alive": 1e-7,
    "tuned-compression": 1 - TAU / M,
    "tuned-masks": 0.5000005,
    "tuned-masks-printed": 0.503,
    "tuned-masks-exact": 2e-6,
}


def tuned(label: str, parameter: float) -> list[tuple[str, str, str, dict[str, float], dict[str, Any]]]:
    hidden = label in ("tuned-masks", "tuned-masks-printed")
    found = []
    for budget in BUDGETS:
        none = budget == 2
        chosen = {"parameter": math.nan if none else parameter, "tau": 0.0 if none else TAU}
        bits = 96.0 * M if "masks" in label and not none else 32.0 * M
        recovery = 0.0 if hidden and not none else 0.9
        found.append((label, "tuned", "dlg", {"budget": budget, **T25}, attacked(recovery, bits, **chosen)))
    return found


def trained(defense: str, accuracy: float, **setting: float) -> tuple[str, str, None, dict[str, float], dict[str, Any]]:
    return defense, defense, None, setting, {"accuracy": accuracy}


@pytest.fixture
def tables() -> dict[str, pd.DataFrame]:
    found: dict[str, list[Any]] = {
        "constants": [
            ("none", "none", "dlg", {"threshold": threshold}, attacked(rate))
            for threshold, rate in ((25, 0.9), (20, 1.0))
        ],
        "swept": [
            *(
                ("noise", "gaussian_noise", "dlg", {"scale": scale, **T25}, attacked(rate))
                for scale, rate in ((1e-3, 0.9), (0.1, 0.0))
            ),
            *(
                (label, "random_mask", "dlg", {"probability": p, **T25}, attacked(rate, 32 * M * (1.03 - p)))
                for label in ("compression", "rescaled")
                for p, rate in ((1e-3, 0.9), (0.5, 0.0))
            ),
            *(
                ("masks", "masked_pair", "dlg", {"bound": r, **T25}, attacked(rate, 96 * M))
                for r, rate in ((1e-3, 0.9), (1.0, 0.0))
            ),
            ("shares", "additive_sharing", "dlg", T25, attacked(0.0, 256 * M)),
            *(("encrypted", "paillier", "dlg", {"key_bits": b, **T25}, attacked(0.0, 2 * b * M)) for b in (16, 64)),
        ],
        "swept_masked": [
            (label, "random_mask", "masked-dlg", {"probability": p, **T25}, attacked(rate))
            for label, rate in (("compression", 0.8), ("rescaled", 0.7))
            for p in (1e-3, 0.5)
        ],
        "tuned": [cell for label, parameter in TUNED.items() for cell in tuned(label, parameter)],
        "tuned_encrypted": [
            ("tuned-encrypted", "tuned", "dlg", {"budget": 1.0, **T25}, attacked(0.0, 85 * M, parameter=1.0, tau=TAU))
        ],
        "utility": [
            trained("none", 0.9),
            trained("fixed-point", 0.9),
            trained("shares", 0.9),
            *(trained("noise", 0.9 - loss, scale=s) for s, loss in ((1e-3, 0.0), (0.1, 0.3))),
            *(trained("compression", 0.9 - p, probability=p) for p in (1e-3, 0.5)),
            *(trained("rescaled", 0.9 - p / 10, probability=p) for p in (1e-3, 0.5)),
        ],
        "utility_tuned": [trained(label, 0.9, budget=b) for label in TUNED if "masks" not in label for b in BUDGETS],
        "utility_pairs": [
            trained("none", 0.9),
            *(trained("masks", 0.9, bound=r) for r in (1e-3, 1.0)),
            *(trained("tuned-masks", 0.9, budget=b) for b in BUDGETS),
        ],
    }
    return {name: table(cells) for name, cells in found.items()}


def test_curves(tables: dict[str, pd.DataFrame]) -> None:
    drawing = draw("figS4", tables, paper=PAPER)
    numbers = drawing.numbers
    assert len(drawing.figure.axes) == 15
    compression = numbers[(numbers["mechanism"] == "compression") & (numbers["quantity"] == "recovery")]
    assert dict(compression[compression["series"] == "swept"].groupby("attack")["mean"].min()) == {
        "DLG": 0.0,
        "DLG on what is left": pytest.approx(0.8),
    }
    lost = series(numbers, "swept", quantity="loss", mechanism="noise").set_index("parameter")["mean"]
    assert lost[0.1] == pytest.approx(30) and lost[1e-3] == pytest.approx(0)
    bits = series(numbers, "swept", quantity="bits", mechanism="masks")["mean"]
    assert bits.tolist() == pytest.approx([3, 3])
    optima = numbers[(numbers["quantity"] == "optimum") & (numbers["budget"] == 1)]
    places = optima.set_index(["mechanism", "series"])["parameter"]
    assert places["noise", "corrected"] == pytest.approx(math.sqrt(100 * TAU / A))
    assert places["compression", "corrected"] == pytest.approx(-math.log1p(-TAU) / M, rel=1e-5)
    assert places["rescaled", "corrected"] == pytest.approx(places["compression", "corrected"] / 2, rel=1e-5)
    assert places["masks", "as printed"] == pytest.approx(0.503)
    assert optima["budget"].max() < 2  # no protection has no parameter


def test_bounds(tables: dict[str, pd.DataFrame]) -> None:
    numbers = draw("figS5", tables, paper=PAPER).numbers
    curve = numbers[numbers["kind"] == "bound"]
    c2 = math.expm1(2 * XI) / 2
    assert np.allclose(curve["metric"], 2 * C1 - c2 * curve["TV"])
    assert np.allclose(curve["upper"] - curve["lower"], 2 * c2 * curve["TV"])
    points = numbers[numbers["kind"] == "measured"]
    noise = points[(points["label"] == "noise") & (points["form"] == "swept")]
    assert noise["TV"].tolist() == [0.01, 0.01] and noise["other TV"].tolist() == [1, 1]
    at = points[points["form"] == "corrected"].groupby("label")["TV"].max()
    assert at["compression"] == at["noise"] == pytest.approx(TAU)
    assert at["masks"] == pytest.approx(-math.expm1(-M * math.log(0.5000005 / DELTA)))
    wide = points[(points["label"] == "masks") & (points["form"] == "corrected")]
    assert wide["other TV"].max() == pytest.approx(1)  # a quarter of every coordinate leaves the cube
    assert (points[points["label"].isin(["shares", "encrypted"])]["TV"] == 1).all()


def test_budgets(tables: dict[str, pd.DataFrame]) -> None:
    frame = tables["tuned"]
    lost = (frame["defense"] == "tuned-noise") & (frame["setting.budget"] == 0)
    frame.loc[lost, "value"] = math.nan
    drawing = draw("figS6", tables, paper=PAPER)
    numbers = drawing.numbers
    assert len(numbers[numbers["metric"] == "recovery"]["series"].unique()) == len(TUNED) + 2
    noise = series(numbers, "Gaussian noise, corrected", metric="recovery").set_index("budget")["mean"]
    assert math.isnan(noise[0.0]) and noise[1.0] == pytest.approx(0.9)
    (left, _) = drawing.figure.axes
    crosses = [line for line in left.get_lines() if line.get_marker() == "x" and len(np.asarray(line.get_xdata()))]
    assert len(crosses) == 1


def test_the_strongest_attacker_counts(tables: dict[str, pd.DataFrame]) -> None:
    frame = fronts.points(tables).set_index(["name", "setting"])
    half = frame.loc[[("compression", "probability 0.5")]].iloc[0]
    assert half["recovered"] == pytest.approx(0.8) and half["attack"] == "DLG on what is left"
    assert half["loss"] == pytest.approx(50) and half["bits"] == pytest.approx(0.53)
    assert frame.loc[("Gaussian noise", "scale 0.1"), "loss"] == pytest.approx(30)
    assert frame.loc[("no protection", ""), "recovered"] == pytest.approx(0.9)
    assert not any("toy" in name for name, _ in frame.index)


def test_fronts(tables: dict[str, pd.DataFrame]) -> None:
    frame, volume = fronts.judged_points(tables)
    assert 0 < volume < 1 and frame.loc[~frame["best"], "share"].eq(0).all()
    best = set(zip(frame["name"][frame["best"]], frame["setting"][frame["best"]], strict=True))
    assert {("Gaussian noise", "scale 0.1"), ("compression, rescaled", "probability 0.5")} <= best
    assert ("shares in a ring", "") not in best  # keys need fewer bits
    assert ("compression", "probability 0.5") not in best  # scaled up it costs less, and hides more
    listed = make("tableS6", tables, paper=PAPER)
    assert set(listed["mechanism"]) <= {name for name, _ in best}
    assert len(listed) + listed["equal ones"].astype(int).sum() == frame["best"].sum()
    numbers = draw("figS9", tables, paper=PAPER).numbers
    found = numbers[numbers["kind"] == "front"]
    assert set(found["name"]) == {"secret_sharing"}  # masks below one have less than no bits
    assert (found["bits"] < 0).all()


class Reference:
    """What a record of many attempts keeps."""

    def __init__(self, rate: float, attempts: int = 400) -> None:
        hits = torch.rand(2, attempts, generator=torch.Generator().manual_seed(0)) < rate
        both = torch.stack([torch.ones_like(hits), hits]).byte().view(2, 2, 1, attempts, 1)
        self.kept = {"seed0/recovered": both, "seed0/null_recovered": torch.zeros_like(both)}

    def tensors(self, *_: object) -> dict[str, torch.Tensor]:
        return self.kept


def test_errors_of_few_attempts() -> None:
    cells: list[Any] = [("none", "none", "dlg", {"threshold": limit}, attacked(0.7)) for limit in (25.0, 65.0)]
    frame = table(cells)
    drawing = draw("figS7", {"reference": frame}, Reference(0.7), paper=PAPER)
    labels = [str(text.get_text()) for text in drawing.figure.axes[0].get_legend().get_texts()]  # type: ignore[union-attr]
    assert "client 0 (25 dB, 100 %): no error" in labels
    every = drawing.numbers
    assert every[every["threshold"] == 25]["error"].fillna(0).eq(0).all()
    numbers = every[every["threshold"] == 65]
    known = numbers.dropna(subset="error")
    assert known["T"].max() == 100 and set(known["client"]) == {0, 1}
    for _, rows in known.groupby("client"):
        assert rows["error"].iloc[-1] < rows["error"].iloc[0]
        assert (rows["error"] < rows["bound"].fillna(math.inf)).all() and (rows["covered"] == 1).all()
    assert numbers["bound"].notna().any()
    always = draw("figS7", {"reference": frame}, Reference(1.1), paper=PAPER).numbers
    assert (always["error"].dropna() == 0).all()


class Images:
    """What records keep of three settings."""

    def __init__(self) -> None:
        self.victims = torch.rand(2, 2, 1, 4, 4, generator=torch.Generator().manual_seed(1))

    def tensors(self, experiment: str, *_: object) -> dict[str, torch.Tensor]:
        shown = torch.stack([self.victims * (1 - place / 10) for place in range(3)])
        return {"seed0/victims": self.victims, "seed0/reconstructions": shown}


def test_images(tables: dict[str, pd.DataFrame]) -> None:
    drawing = draw("figS8", tables, Images(), paper=PAPER)
    numbers = drawing.numbers
    names = list(dict.fromkeys(numbers["series"]))
    assert len(names) == len(recovered_images.ROWS) and names[0] == "no protection" and "noise, 0.1" in names
    assert "50% dropped, attack on the rest" in names
    assert numbers.groupby("series")["psnr"].mean()["noise, optimum"] < 100  # the second setting, not the first


def test_the_nearest_setting_is_shown(tables: dict[str, pd.DataFrame]) -> None:
    frame = tables["swept"]
    shown = recovered_images.Shown("noise", "swept", "noise", parameter="scale", value=0.05)
    assert recovered_images.setting(frame[frame["defense"] == "noise"], shown) == (1, 0.1)


def test_constants_are_those_of_budgets(tables: dict[str, pd.DataFrame]) -> None:
    found = measured.system(tables["constants"])
    assert found.c1 == pytest.approx(C1) and found.c2 == pytest.approx(math.expm1(2 * XI) / 2)


class Victims:
    """Batches of two images."""

    def tensors(self, *_: object) -> dict[str, torch.Tensor]:
        return {"seed0/victims": torch.zeros(2, 2, 1, 4, 4)}


def test_growth(tables: dict[str, pd.DataFrame]) -> None:
    """Constants of every number of attempts, the line of certain recovery, and leakage of what they tune."""
    more: dict[str, Any] = {
        f"leakage/{prior}/n{n}": [0.2 + n / 100] * CLIENTS for prior in ("null", "null_upper") for n in (1, 8)
    }
    more |= {f"xi/null/n{n}": [math.log(n), math.log(2 * n)] for n in (1, 8)}
    more |= {f"xi/null_upper/n{n}": [math.log(1.1 * n)] * CLIENTS for n in (1, 8)}
    more |= {f"recovery/n{n}": [0.9] * CLIENTS for n in (1, 8)}
    tables["constants"] = table([("none", "none", "dlg", T25, attacked(0.9, trials=32.0, **more))])
    cells: list[Any] = [
        (label, "tuned", "dlg", {"estimated": n, **T25}, attacked(0.9))
        for label in ("tuned-fewer-noise", "tuned-fewer-compression", "tuned-fewer-masks")
        for n in (1, 8)
    ]
    tables["tuned_fewer"] = table(cells)
    drawing = draw("figS10", tables, Victims(), paper=PAPER)
    assert len(drawing.figure.axes) == 4
    places = drawing.numbers.set_index(["quantity", "series", "attempts"])["mean"]
    assert places["C1", "null attack", 8] == pytest.approx(0.28)
    assert places["C2", "null attack", 8] == pytest.approx((16**2 - 1) / 2)
    assert places["tau", "null attack", 8] == pytest.approx(0.28 / ((16**2 - 1) / 2))
    assert places["C2", "null attack, upper end", 8] == pytest.approx((8.8**2 - 1) / 2)
    certain = certain_constants(1, 1000, 2)
    assert places["C2", "certain", 1000] == pytest.approx(float(certain.c2))
    assert places["tau", "certain", 1000] == pytest.approx(float(certain.c1 / certain.c2))
    leaked = drawing.numbers[drawing.numbers["quantity"] == measured.LEAKAGE]
    assert set(leaked["attempts"]) == {1, 8, 32} and leaked["mean"].tolist() == pytest.approx([0.68] * 9)


def test_a_second_attacker(tables: dict[str, pd.DataFrame]) -> None:
    for name in ("constants", "swept"):
        frame = tables[name]
        similar = frame[frame["metric"] == "recovery"].assign(metric="ssim", value=lambda rows: rows["value"] / 2)
        tables[name] = pd.concat([frame, similar], ignore_index=True)
    grid: list[Any] = [("none", "none", {}, 1.0)]
    grid += [("noise", "gaussian_noise", {"scale": s}, 0.5) for s in (1e-3, 0.1)]
    grid += [("compression", "random_mask", {"probability": p}, 0.7) for p in (1e-3, 0.5)]
    cells: list[Any] = [
        (label, name, "ig", {**setting, **T25}, attacked(rate, ssim=[rate] * CLIENTS))
        for label, name, setting, rate in grid
    ]
    tables["second_attacker"] = table(cells)
    drawing = draw("figS11", tables, paper=PAPER)
    assert len(drawing.figure.axes) == 4
    numbers = drawing.numbers[drawing.numbers["metric"] == "recovery"]
    ours = series(numbers, "inverting gradients", mechanism="compression").set_index("parameter")["mean"]
    assert ours[0.5] == pytest.approx(0.7) and series(numbers, "DLG", mechanism="compression")["mean"].min() == 0
    plain = numbers[numbers["parameter"].isna()].groupby("series")["mean"].first()
    assert plain["DLG"] == pytest.approx(0.9) and plain["inverting gradients"] == pytest.approx(1.0)
