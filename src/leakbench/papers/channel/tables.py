"""Tables 1 and 2, and the supplements S1 and S2: the paper's privacy budgets and totals, computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from leakbench.lazy import pd
from leakbench.papers.channel.common import ARCHITECTURES, printed, table
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.statistics import over_seeds
from leakbench.report.wording import NONE
from leakbench.theory.dp_capacity import (
    capacity_multiplier,
    composed_epsilon,
    epsilon_capacity,
    finite_step_capacity,
    multiplier_capacity,
    release_epsilon,
)
from leakbench.theory.reconstruction_bound import information_at, information_factor


@table(
    1,
    title="Notation",
    caption="Symbols, what they stand for, and where they are found in leakbench. Logarithms are natural. "
    "The paper calls sigma a variance and, in Appendix D, a noise multiplier; here it is a variance everywhere.",
    experiments=(),
)
def table01(_: Tables) -> pd.DataFrame:
    """A row per symbol."""
    return printed("table01")


METHODS = {
    "sgd": "SGD",
    "opacus": "DP-SGD (Opacus)",
    "channel": "data-space channel",
    "dp_sgd": "DP-SGD (ours)",
    "parameter_channel": "parameter-space channel",
}


@table(
    2,
    title="Training time",
    caption="Seconds of wall time for 25 epochs, extrapolated from fewer steps, and what every defense adds to plain "
    "SGD: the paper's (mean and standard deviation, on its machine) and ours (mean with 95 % t-interval over "
    "repetitions; an overhead compares with SGD in the same repetition). 'once' is what the channel does before "
    "training: covariance, solving, drawing the noise; its training is that of SGD. Of steps that are timed so "
    "shortly, the channel's own overhead is within the noise, and 'once' is the better number; where others use the "
    "machine, processor time is. Beside them counts of "
    "no machine: floating-point operations added to those of training, normal random numbers drawn, bytes of the "
    "largest arrays added. Parameters: printed, of our model of that name, and of the model that was timed.",
    experiments=(
        reads("cost", models=tuple(f"*{name}*" for name in ARCHITECTURES)),
        reads("architectures", models=ARCHITECTURES),
    ),
)
def table02(tables: Tables) -> pd.DataFrame:
    """A row per model and method."""
    cost, reference = tables["cost"], printed("table02")
    sizes = tables["architectures"].groupby("model")["value"].sum()
    rows = []
    for model in cost["model"].drop_duplicates():
        architecture = architecture_of(model, reference["architecture"].drop_duplicates())
        timed, of_paper = cost[cost["model"] == model], reference[reference["architecture"] == architecture]
        for method in timed["setting.method"].drop_duplicates():
            ours, theirs = timed[timed["setting.method"] == method], of_paper[of_paper["method"] == method]
            rows.append(
                {
                    "model": model,
                    "parameters, paper": _scientific(of_paper["parameters"]),
                    "parameters, ours": _whole(sizes[[name for name in sizes.index if name == architecture]]),
                    "parameters, timed": _whole(_values(ours, "parameters")),
                    "method": METHODS.get(method, method),
                    "paper (s)": NONE if theirs.empty else f"{theirs['seconds'].iloc[0]} ± {theirs['std'].iloc[0]}",
                    "paper, overhead": _percent(theirs["overhead"]),
                    "ours (s)": _interval(ours, "training_wall_s"),
                    "ours, overhead": _interval(ours, "overhead", percent=True),
                    "overhead, processor time": _interval(ours, "overhead_cpu", percent=True),
                    "overhead of 'once'": _interval(ours, "overhead_once", percent=True),
                    "the same, processor time": _interval(ours, "overhead_once_cpu", percent=True),
                    "operations added": _percent(
                        _values(ours, "extra_flops").head(1) / _values(ours, "training_flops").iloc[0]
                    ),
                    "normal draws": _scientific(_values(ours, "normal_draws")),
                    "bytes added": _scientific(_values(ours, "extra_bytes")),
                }
            )
    return pd.DataFrame(rows)


def architecture_of(label: str, known: Iterable[str]) -> str | None:
    """The architecture that a model's label names: ``vgg16`` of ``vgg16``, ``vgg16-8`` and ``small_vgg16``."""
    return next((name for name in known if name in label), None)


def _values(frame: pd.DataFrame, metric: str) -> pd.Series:
    return frame.loc[frame["metric"] == metric, "value"].reset_index(drop=True)


def _whole(values: pd.Series) -> str:
    return NONE if values.empty else f"{values.iloc[0]:,.0f}"


def _scientific(values: pd.Series) -> str:
    return NONE if values.empty else f"{values.iloc[0]:.3g}" if values.iloc[0] < 1000 else f"{values.iloc[0]:.2e}"


def _percent(values: pd.Series) -> str:
    return NONE if values.empty or math.isnan(values.iloc[0]) else f"{100 * values.iloc[0]:+.3g} %"


def _interval(frame: pd.DataFrame, metric: str, *, percent: bool = False) -> str:
    """Mean and half of the 95 % t-interval over repetitions, which are independent of each other as seeds are."""
    chosen = frame[frame["metric"] == metric]
    repetitions = chosen.assign(seed=chosen["seed"].astype(str) + "/" + chosen["index"].astype(str))
    summary = over_seeds(repetitions, ["metric"])
    if summary.empty or math.isnan(summary["mean"].iloc[0]):
        return NONE
    mean, half = summary["mean"].iloc[0], summary["high"].iloc[0] - summary["mean"].iloc[0]
    if percent:
        return f"{100 * mean:+.3g} ± {100 * half:.2g} %"
    return f"{mean:.4g} ± {half:.2g}"


BATCH, STEPS, IMAGES, DELTA = 64, 10_000, 50_000, 1e-5
"""The setting of the paper's DP-SGD, Figures 15 and 16: B, n, images of CIFAR-10, delta."""
OTHER_IMAGES, OTHER_EPOCHS = 60_000, 25
"""The nearest common setting to the epsilons that the paper prints: 25 epochs of a data set of 60,000."""
LENET = 62_006
CAPACITIES = (50, 100, 200, 300, 500, 800, 1000, 1500)
"""Capacities of the channels: the grid of the Natural Channel and that of the two others."""


@table(
    "S1",
    title="Capacity and epsilon of DP-SGD",
    caption="The paper compares DP-SGD with channels of the same capacity. Capacities (nats per step) by Theorem 4: as "
    "printed, with the factor 1/2 that its proof loses, and for the 62,006 parameters of LeNet. Four of the channels' "
    "capacities have no DP-SGD beside them; the multipliers that would give them stand in the last columns. The "
    "printed epsilon is not that of 10,000 steps with batches of 64 of 50,000 images at delta = 1e-5 under either "
    "conversion of Renyi accounting; 25 epochs of 60,000 images come near. Theorem 4 (2) holds for the epsilon of "
    "a single release, and at the printed one, which is that of a whole run, it gives no such capacity.",
    experiments=(),
)
def table_s1(_: Tables) -> pd.DataFrame:
    """A row per capacity of the channels."""
    columns = (printed("dp_grid")[name] for name in ("capacity", "multiplier", "epsilon"))
    grid = {capacity: setting for capacity, *setting in zip(*columns, strict=True)}
    rows = []
    for kappa in CAPACITIES:
        row = {"channel's capacity": f"{kappa}"}
        row |= dict(_of_multiplier(*grid[kappa]) if kappa in grid else ())
        row["multiplier for it, as printed"] = f"{float(capacity_multiplier(BATCH, kappa, 'as_printed')):.4g}"
        row["multiplier for it, corrected"] = f"{float(capacity_multiplier(BATCH, kappa)):.4g}"
        rows.append(row)
    return pd.DataFrame(rows, columns=[*max(rows, key=len)]).fillna(NONE)


def _of_multiplier(z: float, epsilon: float) -> Iterator[tuple[str, str]]:
    other = (z, BATCH / OTHER_IMAGES, math.ceil(OTHER_EPOCHS * OTHER_IMAGES / BATCH), DELTA)
    run = (z, BATCH / IMAGES, STEPS, DELTA)
    yield "multiplier", f"{z:g}"
    yield "capacity, as printed", f"{float(multiplier_capacity(BATCH, z, 'as_printed')):.2f}"
    yield "corrected", f"{float(multiplier_capacity(BATCH, z)):.2f}"
    yield "for LeNet", f"{float(finite_step_capacity(BATCH, z**2, LENET)):.2f}"
    yield "epsilon, printed", f"{epsilon:.3f}"
    yield "of the stated run", f"{composed_epsilon(*run):.3f}"
    yield "classical conversion", f"{composed_epsilon(*run, 'classical'):.3f}"
    yield "25 epochs of 60,000", f"{composed_epsilon(*other):.3f}"
    yield "of one release", f"{float(release_epsilon(z, DELTA)):.3f}"
    yield "Theorem 4 (2) at the printed epsilon", f"{float(epsilon_capacity(BATCH, epsilon, DELTA, 'as_printed')):.4g}"


ROUNDS = (1, 1666, 3333, 6666, 10_000)
KAPPAS = (50, 100, 200, 300)
SIZES = {"d = 3072": 3072, "d = 1024": 1024}


@table(
    "S2",
    title="What is left of Theorem 1 after a whole run",
    caption="The factor e^(-2I/d) by which I nats lower the bound on the error of an attacker: for one draw of the "
    "noise (n = 1, or noise drawn once, however many steps follow), and for the totals n kappa of the paper's "
    "experiments (noise drawn afresh at each of n steps, all counted in full). d = 3072 for images in colour, 1024 "
    "for those of Fashion-MNIST. After the steps in the last columns 1 % of the bound is left.",
    experiments=(),
)
def table_s2(_: Tables) -> pd.DataFrame:
    """A row per capacity and number of steps."""
    rows = []
    for kappa in KAPPAS:
        for n in ROUNDS:
            factors = {f"factor, {words}": _factor(n * kappa, d) for words, d in SIZES.items()}
            left = {f"steps to 1 %, {words}": f"{information_at(0.01, d) / kappa:.1f}" for words, d in SIZES.items()}
            rows.append({"kappa (nats)": kappa, "n": n, "n kappa (nats)": n * kappa, **factors, **left})
    return pd.DataFrame(rows)


def _factor(nats: float, dimension: int) -> str:
    """``0.968``, or ``10^-141`` where there are no digits to speak of."""
    factor = information_factor(nats, dimension)
    tens = float(factor.log) / math.log(10)
    return f"{float(factor.value):.3f}" if tens > -3 else f"10^{tens:.0f}"
