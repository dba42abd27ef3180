"""Figure S10: constants of leakage, what a budget asks for, and what is leaked there, over the number of attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from leakbench.lazy import np, pd
from leakbench.papers.tfl_meta import measured
from leakbench.papers.tfl_meta.common import THRESHOLD, UNPROTECTED, figure
from leakbench.papers.tfl_meta.constants import LIMIT, PRIORS, c2_of, trials
from leakbench.papers.tfl_meta.jobs.leakage import Prior, leakage_metric_name
from leakbench.papers.tfl_meta.measured import BUDGET, LEAKAGE, TUNED, leaked
from leakbench.papers.tfl_meta.theory.leakage_estimation import certain_constants
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, judged, named, values_of
from leakbench.report.record_tensors import RecordTensors
from leakbench.report.style import MODEL_COLOURS, REFERENCE_COLOUR, colour, marker, plain_ticks, use_style
from leakbench.report.tidy import SETTING, cells_of
from leakbench.theory.leakage_surrogate import LARGEST_LEAKAGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWER, ATTACK = "tuned_fewer", "dlg"
ESTIMATED = SETTING + "estimated"
MOST = 6
"""Decades of attempts that the line of certain recovery is drawn to."""
AT = 1.0
"""The budget over C1."""
ASIDE = 1.15
"""Factor between mechanisms at one number of attempts, which leak alike."""


class Way(NamedTuple):
    """A mechanism that is tuned by constants from fewer attempts.

    Attributes:
        whole: label of the defense that is tuned by all attempts.
        mechanism: whose colour it has.
        words: its name.
    """

    whole: str
    mechanism: str
    words: str


WAYS = {
    "tuned-fewer-noise": Way("tuned-noise-exact", "gaussian_noise", "Gaussian noise, exact TV"),
    "tuned-fewer-compression": Way("tuned-compression", "random_mask", "compression"),
    "tuned-fewer-masks": Way("tuned-masks-exact", "masked_pair", "shared masks, exact TV"),
}
"""By the label of the defense."""
NULLS: tuple[Prior, ...] = ("null", "null_upper")
CONSTANTS = {"C1": r"$C_1$ (nats$^{1/2}$)", "C2": "$C_2$", "tau": r"total variation asked for, $\tau = C_1 / C_2$"}
"""Quantities of the first panels, and their axes."""


@figure(
    "S10",
    title="Constants, and leakage at the optimum, over the number of attempts",
    caption="What C1 and C2 (alpha = 0.5, null attack's prior), and so the total variation that a budget of epsilon = "
    "C1 asks for, are if they are estimated from the first attempts alone. Circles: by the null attack's estimated "
    "rate; bars are 95 % t-intervals over seeds; of two seeds, their range; C2 has the largest xi of all. Squares: by "
    "the upper end of the null rate's one-sided 95 % interval (Clopper and Pearson), so the least C2 that the attempts "
    "allow; its lower end is zero where the null attack never succeeds, so that there is no largest one. Lines: all "
    "data recovered in every attempt at one model, and never elsewhere, where C2 grows as the square of the attempts "
    "(T30). Right: measured leakage (null prior of all attempts, alpha = 0.001, as at the grey line, without "
    "protection) of mechanisms that are tuned by these constants; the last points have all attempts. Points of one "
    "number stand beside each other. The attack there has as many attempts as at any other optimum.",
    experiments=(
        reads(UNPROTECTED, defenses="none", attacks=ATTACK),
        reads(FEWER, defenses=WAYS, attacks=ATTACK),
        reads(TUNED, defenses=[way.whole for way in WAYS.values()], attacks=ATTACK),
    ),
    tensors=(UNPROTECTED,),
)
def fig_s10(tables: Tables, stored: RecordTensors) -> Drawing:
    """Four panels per data set and model."""
    use_style()
    import matplotlib.pyplot as plt

    cells = cells_of(tables[FEWER])
    size = int(stored.tensors(UNPROTECTED, "none", ATTACK)["seed0/victims"].shape[1])
    drawn, grid = plt.subplots(
        len(cells), 4, figsize=(13.2, 3.3 * len(cells) + 0.4), squeeze=False, layout="constrained"
    )
    numbers = []
    for axes, cell in zip(grid, cells, strict=True):
        here = measured.tables_of(tables, *cell)
        parts = [estimated(here[UNPROTECTED]), certain(size), at_optima(here)]
        for ax, (quantity, label) in zip(axes, CONSTANTS.items(), strict=False):
            _constants(ax, parts[0], parts[1], quantity)
            ax.set(ylabel=label, title=f"{cell[0]}, {cell[1]}")
        _leakage(axes[3], parts[2], measured.undefended(here[UNPROTECTED], here[FEWER]))
        axes[3].set(ylabel="leakage at the optimum (nats$^{1/2}$)", title=rf"{cell[0]}, {cell[1]}: $\epsilon = C_1$")
        numbers.append(pd.concat(parts, ignore_index=True).assign(dataset=cell[0], model=cell[1]))
    grid[0, 0].legend(fontsize="small")
    grid[0, 3].legend(fontsize="small", loc="lower left")
    for ax in grid.flat:
        ax.set(xscale="log", xlabel="attempts, $M T$")
    for ax in grid[:, 3]:
        plain_ticks(ax.xaxis)
    frame = pd.concat(numbers, ignore_index=True)
    return Drawing(drawn, frame.assign(void=frame["void"].eq(True)))  # NaN beside rows of no attack


def estimated(frame: pd.DataFrame) -> pd.DataFrame:
    """Constants from fewer attempts: ``quantity``, ``series``, ``attempts``, ``mean``, ``low``, ``high``, ``void``.

    ``C2`` is of the largest ``xi``, and ``tau`` of it and the mean ``C1``, so that neither has an interval.

    Args:
        frame: of the experiment without protection, of one data set and model.
    """
    frame = frame[frame[LIMIT] == THRESHOLD]
    rows: list[dict[str, Any]] = []
    for prior in NULLS:
        for attempts in trials(frame):
            c1_rows, xi_rows = (
                values_of(frame, leakage_metric_name(name, prior, None, attempts)) for name in ("leakage", "xi")
            )
            c1 = judged(c1_rows, ["metric"]).iloc[0]
            c2 = c2_of(xi_rows["value"].max())
            shared = {"series": PRIORS[prior], "attempts": attempts, "seeds": c1["seeds"], "void": c1["void"]}
            rows.append({"quantity": "C1", **shared, "mean": c1["mean"], "low": c1["low"], "high": c1["high"]})
            rows.append({"quantity": "C2", **shared, "mean": c2})
            rows.append({"quantity": "tau", **shared, "mean": AT * c1["mean"] / c2})
    return pd.DataFrame(rows)


def certain(size: int) -> pd.DataFrame:
    """The same where all ``size`` data of a batch are recovered in every attempt at one model, and never elsewhere."""
    rows = []
    for attempts in np.unique(np.geomspace(1, 10**MOST, 4 * MOST + 1).round().astype(int)).tolist():
        ideal = certain_constants(1, attempts, size)
        values = {"C1": float(ideal.c1), "C2": float(ideal.c2), "tau": AT * float(ideal.c1 / ideal.c2)}
        rows += [{"quantity": name, "series": "certain", "attempts": attempts, "mean": v} for name, v in values.items()]
    return pd.DataFrame(rows)


def at_optima(tables: Tables) -> pd.DataFrame:
    """Leakage of tuned mechanisms, with the columns of :func:`estimated`.

    Args:
        tables: of one data set and model.
    """
    whole = float(values_of(tables[UNPROTECTED], "trials")["value"].mean())
    parts = []
    for label, way in WAYS.items():
        fewer, tuned = tables[FEWER], tables[TUNED]
        few = leaked(fewer[(fewer["defense"] == label) & (fewer[LIMIT] == THRESHOLD)], [ESTIMATED])
        tuned = tuned[(tuned["defense"] == way.whole) & (tuned[LIMIT] == THRESHOLD) & (tuned[BUDGET] == AT)]
        points = [few.rename(columns={ESTIMATED: "attempts"})]
        if len(tuned):
            points.append(leaked(tuned, ["defense"]).assign(attempts=whole))
        parts.append(pd.concat(points).assign(quantity=LEAKAGE, series=way.words))
    columns = ["quantity", "series", "attempts", "mean", "low", "high", "seeds", "void"]
    return pd.concat(parts, ignore_index=True)[columns].sort_values(["series", "attempts"])


def _constants(ax: Axes, numbers: pd.DataFrame, certain: pd.DataFrame, quantity: str) -> None:
    line = certain[certain["quantity"] == quantity]
    ax.plot(line["attempts"], line["mean"], color=REFERENCE_COLOUR, linewidth=1, label="certain recovery, never else")
    rows = numbers[numbers["quantity"] == quantity]
    for (series, points), tint, mark in zip(rows.groupby("series", sort=False), MODEL_COLOURS, "os", strict=False):
        void = bool(points["void"].any())
        face = "none" if void else tint
        ax.plot(
            points["attempts"],
            points["mean"],
            color=tint,
            linestyle="none",
            marker=mark,
            markerfacecolor=face,
            label=named(str(series), void),
        )
        if quantity == "C1":
            ax.vlines(points["attempts"], points["low"], points["high"], color=tint, linewidth=0.8, alpha=0.6)
    if quantity == "C1":
        ax.axhline(LARGEST_LEAKAGE, color=REFERENCE_COLOUR, linestyle=":", linewidth=1)
        ax.set_ylim(0, 0.9)
    else:
        ax.set_yscale("log")


def _leakage(ax: Axes, numbers: pd.DataFrame, bare: pd.DataFrame) -> None:
    for place, way in enumerate(WAYS.values()):
        points = numbers[numbers["series"] == way.words]
        tint, void = colour(way.mechanism), bool(points["void"].any())
        x = points["attempts"] * ASIDE ** (place - 1)
        ax.plot(
            x,
            points["mean"],
            color=tint,
            linestyle="none",
            marker=marker(way.mechanism),
            markersize=5,
            markerfacecolor="none" if void else tint,
            label=named(way.words, void),
        )
        ax.vlines(x, points["low"], points["high"], color=tint, linewidth=0.8, alpha=0.6)
    plain = float(values_of(bare, LEAKAGE)["value"].mean())
    ax.axhline(plain, color=REFERENCE_COLOUR, linewidth=2, alpha=0.5, zorder=0, label="without protection")
    ax.set_ylim(0, 0.9)
