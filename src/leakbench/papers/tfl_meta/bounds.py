"""Figure S5: leakage over total variation, by the paper's bounds, by proved ones, and as measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from leakbench.lazy import np, pd, torch
from leakbench.papers.tfl_meta import measured
from leakbench.papers.tfl_meta.common import figure
from leakbench.papers.tfl_meta.measured import (
    BUDGET,
    CONSTANTS,
    CORRECTED,
    ENCRYPTED,
    IN_USE,
    LEAKAGE,
    MASKED,
    MECHANISMS,
    PRINTED,
    READ,
    SHARES,
    SWEPT,
    TUNED,
    Swept,
    System,
    first_threshold,
    leaked,
    optima,
)
from leakbench.report.artifacts import Tables
from leakbench.report.gate_verdicts import VOID
from leakbench.report.plots import Drawing, values_of
from leakbench.report.style import MODEL_COLOURS, REFERENCE_COLOUR, colour, use_style
from leakbench.report.tidy import cells_of
from leakbench.theory.distortion import (
    compression_tv,
    exact_sharing_tv,
    noise_tv_lower,
    noise_tv_upper,
    product_tv,
    rescaled_compression_tv,
)
from leakbench.theory.leakage_surrogate import LARGEST_LEAKAGE, leakage_bounds, leakage_metric, printed_bound

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEPARATED = 0.99
"""Total variation from which on settings are in the right panel."""
PLACES = 400
NAMES = {
    "noise": "noise",
    "compression": "compression",
    "rescaled": "rescaled",
    "masks": "masks",
    SHARES: "shares",
    "encrypted": "Paillier",
}
"""Names in the right panel."""
MARKS = ("o", "s")
"""Marks of DLG, and of the attack on what is left."""
TUNED_MARK = "D"
ASIDE = {"noise": 0.85, "masks": 1.18}
"""Optima of one budget have one total variation; factors that let all be seen."""
LINES: dict[str, tuple[str, str, Any]] = {
    "metric": ("eq. 6: $2 C_1 - C_2$ TV", MODEL_COLOURS[0], "-"),
    "theorem": ("Theorem 4.1, eq. 3", MODEL_COLOURS[1], "-"),
    "upper": ("$C_1 + C_2$ TV, proved", "#333333", "-"),
    "lower": ("$C_1 - C_2$ TV, proved", "#333333", "--"),
}


@figure(
    "S5",
    title="Bounds and measured leakage over total variation",
    caption="Lines: the metric that the paper constrains (eq. 6), the bound of Theorem 4.1, and the two ends between "
    "which leakage provably lies, with C1 (dotted) and C2 as estimated without protection; leakage is at most sqrt(ln "
    "2), the upper edge of the white. Points: measured leakage (null prior, alpha = 0.001), intervals are 95 % "
    "t-intervals over seeds; of two seeds, their range. Circles: DLG on swept settings; squares: attackers who leave "
    "out what was dropped; diamonds: DLG at the optima of all budgets, by the corrected and the printed formulas. They "
    "stand at the total variation of the paper's formulas, with a bar to what else is known: of noise from the lower "
    "bound to the upper one, of masks from the paper's model to the law of a value plus a mask. Constants are of more "
    "attempts than points; at a budget of 2 C1, where nothing is protected, diamonds stand at the left edge. Right: "
    f"total variation above {SEPARATED:g}, where real settings are; shares and ciphertexts are at 1 but for rounding.",
    experiments=(CONSTANTS, READ[SWEPT], READ[MASKED], READ[TUNED], READ[ENCRYPTED]),
    leaves_out="the total variation that other mechanisms cause is not known",
)
def fig_s5(tables: Tables) -> Drawing:
    """Two panels per data set and model: total variation on a log axis, and close to one."""
    use_style()
    import matplotlib.pyplot as plt

    cells = cells_of(tables[SWEPT])
    drawn, grid = plt.subplots(
        len(cells),
        2,
        figsize=(9.6, 3.9 * len(cells) + 0.6),
        squeeze=False,
        sharey="row",
        width_ratios=(3, 1.6),
        layout="constrained",
    )
    numbers = []
    for (left, right), cell in zip(grid, cells, strict=True):
        here = measured.tables_of(tables, *cell)
        points = settings(here)
        system = measured.system(here[CONSTANTS])
        floor = _floor(points)
        _points(left, right, points, floor)
        curve = lines(system, floor)
        _lines(left, right, curve, system)
        left.set(xscale="log", xlim=(floor, 1), xlabel="total variation", ylabel="leakage (nats$^{1/2}$)")
        left.set_ylim(-0.05, max(2.1 * system.c1, 1.0))
        left.set_title(f"{cell[0]}, {cell[1]}: $C_1$ = {system.c1:.3g}, $C_2$ = {system.c2:.3g}", fontsize="medium")
        right.set_title(f"TV > {SEPARATED:g}", fontsize="medium")
        kinds = [points.assign(kind="measured"), curve.assign(kind="bound")]
        numbers += [each.assign(dataset=cell[0], model=cell[1]) for each in kinds]
    frame = pd.concat(numbers, ignore_index=True)
    frame["void"] = frame["void"].eq(True)  # NaN beside rows of no attack
    _legend(drawn, bool(frame["void"].any()))
    return Drawing(drawn, frame)


def lines(of: System, floor: float) -> pd.DataFrame:
    """Columns ``TV`` and those of :data:`LINES`."""
    variation = torch.logspace(math.log10(floor), 0, PLACES, dtype=torch.float64)
    lower, upper = leakage_bounds(of.c1, of.c2 * variation)
    columns = {
        "TV": variation,
        "metric": leakage_metric(of.c1, of.c2, variation),
        "theorem": printed_bound(of.c1, of.c2 * variation),
        "upper": upper,
        "lower": lower,
    }
    return pd.DataFrame({name: values.numpy() for name, values in columns.items()})


def settings(tables: Tables) -> pd.DataFrame:
    """Measured leakage of every setting: ``label``, ``attack``, ``form``, ``TV``, ``other TV``, ``mean``, ``void``, ...

    ``form`` is ``swept`` or that of an optimum.

    Args:
        tables: of one data set and model.
    """
    parts = []
    laws = laws_of(tables[SWEPT])
    for entry in MECHANISMS:
        for attack, rows in measured.strongest(tables, entry).items():
            points = leaked(rows, [entry.column])
            between = [_variations(entry, value, laws) for value in points[entry.column]]
            parts.append(_placed(points, entry.label, attack, "swept", between))
        tuned = tables[TUNED]
        places = optima(tuned, entry)
        rows = first_threshold(tuned[tuned["defense"].isin(entry.tuned)])
        for row in leaked(rows, ["defense", BUDGET]).to_dict("records") if len(rows) else []:
            form = entry.tuned[row["defense"]]
            at = places[(places["defense"] == row["defense"]) & (places["budget"] == row[BUDGET])]
            if form in (CORRECTED, PRINTED) and not math.isnan(row["mean"]):
                variation = _variations(entry, float(at["place"].mean()), laws) if len(at) else (0.0, 0.0)
                parts.append(_placed(pd.DataFrame([row]), entry.label, "DLG", form, [variation]))
    for experiment, label, name in ((SWEPT, SHARES, SHARES), (ENCRYPTED, IN_USE, "encrypted")):
        rows = first_threshold(tables[experiment])
        rows = rows[rows["defense"] == label]
        if len(rows):
            points = leaked(rows, ["defense"])
            parts.append(_placed(points, name, "DLG", "swept", [(1.0, 1.0)] * len(points)))
    return pd.concat(parts, ignore_index=True)


def _placed(
    points: pd.DataFrame, label: str, attack: str, form: str, between: list[tuple[float, float]]
) -> pd.DataFrame:
    shown = points[["mean", "low", "high", "seeds", "void"]]
    first, other = np.asarray(between, dtype=float).reshape(-1, 2).T
    places: dict[str, Any] = {"TV": first, "other TV": other}
    return shown.assign(label=label, attack=attack, form=form, metric=LEAKAGE, **places)


def laws_of(frame: pd.DataFrame) -> dict[str, torch.Tensor]:
    """``delta`` and ``steepness`` of all seeds and clients, and the ``dimension``."""
    frame = first_threshold(frame)
    frame = frame[frame["defense"] == frame["defense"].iloc[0]]
    names = ("delta", "steepness", "dimension")
    rows = frame.drop_duplicates(["seed", "metric", "index"])
    return {name: torch.tensor(values_of(rows, name)["value"].to_numpy(dtype=float)) for name in names}


def _variations(entry: Swept, parameter: float, laws: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Total variation at a value of the parameter, mean over clients and seeds: the paper's, and what else is known.

    Of encryption it is 1 but for rounding.
    """
    size, delta = laws["dimension"][0], laws["delta"]
    if entry.label == "noise":
        low = noise_tv_lower(parameter**2, laws["steepness"])
        high = noise_tv_upper(parameter**2, laws["steepness"]).clamp(max=1)
    elif entry.label == "compression":
        low = high = product_tv(math.log1p(-parameter), size)
    elif entry.label == "rescaled":
        low, high = compression_tv(1 - parameter, size), rescaled_compression_tv(1 - parameter, delta, size)
    elif entry.label == "masks":
        high = exact_sharing_tv(parameter, delta, size)
        # By the model a client whose values are wider than masks is not protected; narrower masks than all it has not.
        model = product_tv((delta.log() - math.log(parameter)).clamp(max=0), size)
        low = model if bool((delta < parameter).any()) else high
    else:
        low = high = torch.ones(1)
    return float(low.mean()), float(high.mean())


def _floor(points: pd.DataFrame) -> float:
    """Lower end of the axis of total variation: half a decade below the least one."""
    least = points.loc[points["TV"] > 0, "TV"].min()
    return float(10 ** (math.floor(2 * math.log10(min(least, 1e-2))) / 2 - 0.5))


def _points(left: Axes, right: Axes, points: pd.DataFrame, floor: float) -> None:
    apart = [label for label in NAMES if (points.loc[points["TV"] > SEPARATED, "label"] == label).any()]
    places = {label: place for place, label in enumerate(apart)}
    mechanism = {entry.label: entry.mechanism for entry in MECHANISMS} | {SHARES: "additive_sharing"}
    for row in points.to_dict("records"):
        tint = colour(mechanism[row["label"]])
        swept = row["form"] == "swept"
        mark = MARKS[row["attack"] != "DLG"] if swept else TUNED_MARK
        style: dict[str, Any] = {"color": tint, "marker": mark, "markersize": 4.5, "linestyle": "none", "zorder": 3}
        style["markerfacecolor"] = "none" if row["void"] else tint
        far = row["TV"] > SEPARATED
        shift = (0.0 if row["attack"] == "DLG" else 0.2) - (0.0 if swept else 0.2)
        ax, x = (right, places[row["label"]] + shift) if far else (left, max(row["TV"], floor * 1.25))
        if not far and not swept:
            x *= ASIDE.get(row["label"], 1.0)
        ax.plot([x], [row["mean"]], **style)
        ax.plot([x, x], [row["low"], row["high"]], color=tint, linewidth=0.8, alpha=0.6)
        if not far and row["other TV"] > row["TV"] * (1 + 1e-9):
            ax.plot([x, row["other TV"]], [row["mean"]] * 2, color=tint, linewidth=0.8, alpha=0.35)
    right.set_xticks(range(len(apart)), [NAMES[label] for label in apart], rotation=40, ha="right")
    right.set_xlim(-0.5, len(apart) - 0.5)


def _lines(left: Axes, right: Axes, curve: pd.DataFrame, of: System) -> None:
    for name, (label, tint, style) in LINES.items():
        left.plot(curve["TV"], curve[name], color=tint, linestyle=style, linewidth=1.2, label=label)
    for ax in (left, right):
        ax.axhline(of.c1, color=REFERENCE_COLOUR, linestyle=":", linewidth=1.2)
        ax.axhspan(LARGEST_LEAKAGE, 3, color=REFERENCE_COLOUR, alpha=0.12, linewidth=0)
        ax.axhspan(-1, 0, color=REFERENCE_COLOUR, alpha=0.12, linewidth=0)


def _legend(drawn: Figure, void: bool) -> None:
    from matplotlib.lines import Line2D

    blank = Line2D([], [], linestyle="none", label=" ")
    handles: list[Any] = [
        Line2D([], [], color=tint, linestyle=style, label=label) for label, tint, style in LINES.values()
    ]
    handles += [Line2D([], [], color=REFERENCE_COLOUR, linestyle=":", label="$C_1$"), blank]
    words = {"o": "measured, DLG", "s": "measured, attack on what is left", TUNED_MARK: "measured, optima"}
    handles += [
        Line2D([], [], color=REFERENCE_COLOUR, linestyle="none", marker=mark, label=label)
        for mark, label in words.items()
    ]
    named = {entry.mechanism: NAMES[entry.label] for entry in MECHANISMS if entry.label != "rescaled"}
    named |= {"additive_sharing": NAMES[SHARES]}
    handles += [
        Line2D([], [], color=colour(mechanism), linestyle="none", marker="o", label=name)
        for mechanism, name in named.items()
    ]
    hollow = Line2D([], [], color=REFERENCE_COLOUR, linestyle="none", marker="o", mfc="none", label=VOID)
    handles.append(hollow if void else blank)
    drawn.legend(handles=handles, loc="outside upper center", ncols=5, fontsize="small", handlelength=2.5)
