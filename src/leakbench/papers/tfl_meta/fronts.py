"""Figure S9 and Table S6: Pareto fronts of the mechanisms' settings, by measurement and by the paper's bounds.

The paper weighs leakage, utility and efficiency, and leaves their front to future work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leakbench.lazy import np, pd
from leakbench.papers.tfl_meta import measured
from leakbench.papers.tfl_meta.bounds import laws_of
from leakbench.papers.tfl_meta.common import figure, table
from leakbench.papers.tfl_meta.measured import (
    BUDGET,
    CONSTANTS,
    CORRECTED,
    ENCRYPTED,
    EXPERIMENTS,
    FIXED_POINT,
    IN_USE,
    MASKED,
    MASKED_DLG,
    MECHANISMS,
    SHARES,
    SWEPT,
    TUNED,
    UTILITY,
    Swept,
    bits_over_plain,
    first_threshold,
    leaked,
    loss_of,
    rates,
    tuned_runs,
)
from leakbench.report.artifacts import Tables
from leakbench.report.gate_verdicts import VOID
from leakbench.report.pareto import Front, Mechanism, hypervolume, nondominated, pareto_front
from leakbench.report.plots import Drawing, having, values_of
from leakbench.report.style import REFERENCE_COLOUR, colour, marker, plain_ticks, use_style
from leakbench.report.tidy import cells_of
from leakbench.report.wording import NONE
from leakbench.theory.protection_parameters import UploadLaw, bounds_at_optimum

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from leakbench.report.statistics import Array

OBJECTIVES = ["recovered", "loss", "bits"]
DIGITS = {"recovered": 2, "loss": 1, "bits": 2}
"""Decimal places that count: settings that measurement cannot tell apart do not beat each other."""
PLAIN_BITS = 32
"""Bits of a coordinate without protection."""
STRONGEST = (
    "The part that is recovered is that by the strongest attacker of each setting, DLG or the attack on what is left. "
    "Accuracy is lost against undefended training of the same seeds, in percentage points; encryption loses what its "
    "fixed point loses. Toy keys are left out, since anyone can factor them. What is equal to the last digit shown "
    "does not beat each other; a gain of accuracy counts as no loss"
)


def points(tables: Tables) -> pd.DataFrame:
    """Every setting of one data set and model: :data:`OBJECTIVES` and what it is.

    Further columns are ``name``, ``setting``, ``mechanism``, ``attack``, ``leakage`` and ``void``.
    """
    constants, swept = tables[CONSTANTS], tables[SWEPT]
    parts = [_setting(_bare(tables), "no protection", "", "none").assign(loss=0.0, bits=1.0)]
    for entry in MECHANISMS:
        if entry.utility:
            parts += [_swept(tables, entry), _tuned(tables, entry)]
    shares = first_threshold(swept[swept["defense"] == SHARES])
    used = first_threshold(tables[ENCRYPTED])
    used = used[(used["defense"] == IN_USE) & (used[BUDGET] == used[BUDGET].max())]
    for name, rows, trained, mechanism in (
        ("shares in a ring", shares, SHARES, "additive_sharing"),
        ("Paillier, a key in use", used, FIXED_POINT, "paillier"),
    ):
        lost = loss_of(tables[UTILITY], trained)
        if len(rows) and len(lost):
            bits = bits_over_plain(rows, constants, ["defense"])["mean"].iloc[0]
            parts.append(_setting(rows, name, "", mechanism).assign(loss=lost["mean"].iloc[0], bits=bits))
    parts += [_added(tables, label) for label in added(swept)]
    frame = pd.concat(parts, ignore_index=True).dropna(subset=OBJECTIVES)
    frame["loss"] = frame["loss"].clip(lower=0)
    return frame.round(DIGITS).reset_index(drop=True)


def _bare(tables: Tables) -> pd.DataFrame:
    """The undefended upload, with as many attempts as others where a budget asks for no protection."""
    tuned = first_threshold(tables[TUNED])
    tuned = tuned[tuned["defense"] == tuned["defense"].iloc[0]]
    unneeded = values_of(tuned, "parameter").groupby(BUDGET)["value"].count() == 0
    rows = tuned[(tuned["status"] == "ok") & tuned[BUDGET].isin(unneeded.index[unneeded])]
    rows = rows[rows[BUDGET] == rows[BUDGET].max()]
    return rows if len(rows) else measured.undefended(tables[CONSTANTS], tables[SWEPT])


def _setting(rows: pd.DataFrame, name: str, setting: str, mechanism: str, attack: str = "DLG") -> pd.DataFrame:
    """Recovery and leakage of one setting by one attacker."""
    rate = rates(rows, ["dataset"])
    row = {"name": name, "setting": setting, "mechanism": mechanism, "attack": attack}
    row |= {"recovered": rate["mean"].iloc[0], "leakage": leaked(rows, ["dataset"])["mean"].iloc[0]}
    return pd.DataFrame([row | {"void": bool(rate["void"].any())}])


def _swept(tables: Tables, entry: Swept) -> pd.DataFrame:
    """The settings of a mechanism, attacked by the attacker that recovers most."""
    losses = loss_of(tables[entry.utility], entry.label, [entry.column]).set_index(entry.column)["mean"]
    swept = tables[SWEPT][tables[SWEPT]["defense"] == entry.label]
    bits = bits_over_plain(swept, tables[CONSTANTS], [entry.column]).set_index(entry.column)["mean"]
    parts = []
    for value in losses.index.intersection(bits.index):
        attacked = [
            _setting(
                rows[rows[entry.column] == value], entry.name, f"{entry.parameter} {value:g}", entry.mechanism, attack
            )
            for attack, rows in measured.strongest(tables, entry).items()
            if (rows[entry.column] == value).any()
        ]
        best = max(attacked, key=lambda each: float(each["recovered"].iloc[0]))
        parts.append(best.assign(loss=losses[value], bits=bits[value]))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def added(swept: pd.DataFrame) -> list[str]:
    """Defenses that are none of the paper's."""
    known = {SHARES, *(entry.label for entry in MECHANISMS)}
    return [label for label in swept["defense"].unique() if label not in known]


def _added(tables: Tables, label: str) -> pd.DataFrame:
    """One of :func:`added`, attacked by the attacker that recovers most."""
    attacked = []
    for experiment, attack in {SWEPT: "DLG", MASKED: MASKED_DLG}.items():
        rows = first_threshold(tables[experiment][tables[experiment]["defense"] == label])
        if len(rows):
            bits = bits_over_plain(rows, tables[CONSTANTS], ["defense"])["mean"].iloc[0]
            attacked.append(_setting(rows, label, "", str(rows["mechanism"].iloc[0]), attack).assign(bits=bits))
    best = max(attacked, key=lambda each: float(each["recovered"].iloc[0]))
    return best.assign(loss=loss_of(tables[UTILITY], label)["mean"].max())


def _tuned(tables: Tables, entry: Swept) -> pd.DataFrame:
    """The mechanism at its optima by the corrected formulas, where it was trained, too."""
    runs = tuned_runs(tables, entry)
    parts = []
    for label in (label for label, form in entry.tuned.items() if form == CORRECTED):
        losses = loss_of(having(runs, "budget"), label, [BUDGET]).set_index(BUDGET)["mean"]
        for budget, rows in first_threshold(tables[TUNED][tables[TUNED]["defense"] == label]).groupby(BUDGET):
            bits = bits_over_plain(rows, tables[CONSTANTS], ["defense"])["mean"].iloc[0]
            words = f"optimum, epsilon = {budget:g} C1"
            if budget in losses.index and values_of(rows, "parameter")["value"].notna().any():
                row = _setting(rows, entry.name, words, entry.mechanism)
                parts.append(row.assign(loss=losses[budget], bits=bits))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def judged_points(tables: Tables) -> tuple[pd.DataFrame, float]:
    """:func:`points` with ``best``, whether no other one beats it, and ``share`` of the hypervolume; and that.

    The hypervolume is a part of the box below a reference: everything recovered, no accuracy left, a tenth more bits
    than the most.
    """
    frame = points(tables)
    trained = tables[UTILITY]
    accuracy = 100 * float(values_of(trained[trained["defense"] == "none"], "accuracy")["value"].mean())
    reference = np.array([1.0, accuracy, 1.1 * float(frame["bits"].max())])
    scaled = frame[OBJECTIVES].to_numpy(dtype=float) / reference
    corner = np.ones(len(reference))
    best = nondominated(scaled)
    every = hypervolume(scaled, corner)
    different = frame[OBJECTIVES].apply(tuple, axis=1)
    shares = []
    for place, objectives in enumerate(different):
        others = scaled[(different != objectives).to_numpy()]
        without = hypervolume(others, corner) if len(others) else 0.0
        shares.append((every - without) / every if best[place] and every else 0.0)
    return frame.assign(best=best, share=shares), every


def bound_objectives(tables: Tables, largest: float) -> list[Mechanism]:
    """The paper's bounds of every mechanism, over the total variation that its parameter reaches.

    Objectives are the metric of eq. 6, the bound on loss of accuracy (percentage points), and that on loss of
    efficiency, in bits over those of a plain upload.

    Args:
        tables: of one data set and model.
        largest: ``C5``, in bits over plain.
    """
    system = measured.system(tables[CONSTANTS])
    laws = laws_of(tables[SWEPT])
    most = 2 * system.c1 / system.c2  # where the metric is zero
    size = float(laws["dimension"][0])
    setting = UploadLaw(size, float(laws["delta"].mean()), float(laws["steepness"].mean()))

    def objectives(key: Any) -> Callable[[Array], Array]:
        def of(variation: Array) -> Array:
            rows = []
            for tau in variation:
                utility, cost = bounds_at_optimum(key, float(tau), setting, 100.0, largest)
                cost = cost / (PLAIN_BITS * size) if key == "secret_sharing" else cost
                rows.append([2 * system.c1 - system.c2 * tau, utility, cost])
            return np.asarray(rows)

        return of

    return [
        Mechanism(key, most * 1e-3, most * (1 - 1e-9) if top is None else min(most, top), objectives(key))
        for key, top in (("randomization", 0.01), ("compression", None), ("secret_sharing", None), ("paillier", None))
    ]


TINTS = {
    "randomization": "gaussian_noise",
    "compression": "random_mask",
    "secret_sharing": "masked_pair",
    "paillier": "paillier",
}
POPULATION, GENERATIONS = 40, 30


@figure(
    "S9",
    title="Pareto fronts of recovery, accuracy and bits",
    caption=f"Left pair: every measured setting. Framed: none other is at least as good in all three. {STRONGEST}. The "
    "hypervolume is a part of the box below everything recovered, no accuracy left and a tenth more bits than the "
    "most. Right pair: the same by the paper's bounds, over all parameters (lines): the metric of eq. 6, C4 TV and C5 "
    "TV, for noise 150 times as much, for sharing K m log2 r* bits, with C4 = 100 percentage points and C5 the most "
    "bits that were measured; framed: the front that NSGA-II finds. Of added bits compression has the line of "
    "Paillier; sharing has less than none where r* < 1. The bounds know of no attacker and no training.",
    experiments=EXPERIMENTS,
)
def fig_s9(tables: Tables) -> Drawing:
    """Four panels per data set and model."""
    use_style()
    import matplotlib.pyplot as plt

    cells = cells_of(tables[SWEPT])
    size = (13.2, 3.3 * len(cells) + 0.7)
    drawn, grid = plt.subplots(len(cells), 4, figsize=size, squeeze=False, layout="constrained")
    numbers = []
    for axes, cell in zip(grid, cells, strict=True):
        here = measured.tables_of(tables, *cell)
        frame, volume = judged_points(here)
        _measured(axes[0], frame, "loss")
        _measured(axes[1], frame, "bits")
        axes[0].set(xlabel="recovered", ylabel="loss of accuracy (points)")
        axes[1].set(xlabel="recovered", ylabel="bits over plain", yscale="log")
        axes[0].set_yscale("symlog", linthresh=1.0)
        axes[0].set_ylim(bottom=-0.2)
        plain_ticks(axes[1].yaxis)
        axes[0].set_title(f"measured: {cell[0]}, {cell[1]}", fontsize="medium")
        axes[1].set_title(f"hypervolume {volume:.3f}", fontsize="medium")
        curves, front = _bounds(here, float(frame["bits"].max()))
        _bound_panels(axes[2:], curves, front)
        numbers += [
            each.assign(dataset=cell[0], model=cell[1], kind=kind)
            for each, kind in (
                (frame.assign(hypervolume=volume), "measured"),
                (curves, "bound"),
                (_front_points(front), "front"),
            )
        ]
    shown = pd.concat(numbers, ignore_index=True)
    shown["void"] = shown["void"].eq(True)  # NaN beside rows of no attack
    others = shown[shown["name"].isin(added(tables[SWEPT]))]
    _legend(drawn, dict(zip(others["mechanism"], others["name"], strict=True)), bool(shown["void"].any()))
    return Drawing(drawn, shown)


def _measured(ax: Axes, frame: pd.DataFrame, objective: str) -> None:
    for row in frame.sort_values("best").to_dict("records"):
        tint = colour(row["mechanism"])
        style: dict[str, Any] = {"markersize": 7, "markeredgecolor": "black", "markeredgewidth": 1.0, "zorder": 3}
        if not row["best"]:
            style = {"markersize": 4, "markeredgewidth": 0.5, "alpha": 0.55}
        face = "none" if row["void"] else tint
        mark = marker(row["mechanism"])
        ax.plot([row["recovered"]], [row[objective]], mark, color=tint, markerfacecolor=face, **style)
    ax.set_xlim(-0.05, 1.05)


def _bounds(tables: Tables, largest: float) -> tuple[pd.DataFrame, Front]:
    """Bounds over the total variation, and the front."""
    mechanisms = bound_objectives(tables, largest)
    parts = []
    for entry in mechanisms:
        variation = np.linspace(entry.low, entry.high, 41)
        values = np.asarray(entry.objectives(variation), dtype=float)
        columns = {"TV": variation, "metric": values[:, 0], "loss": values[:, 1], "bits": values[:, 2]}
        parts.append(pd.DataFrame(columns).assign(name=entry.name))
    curves = pd.concat(parts, ignore_index=True)
    reference = 1.1 * curves[["metric", "loss", "bits"]].abs().max().to_numpy()
    return curves, pareto_front(mechanisms, reference, population=POPULATION, generations=GENERATIONS)


def _front_points(front: Front) -> pd.DataFrame:
    columns = dict(zip(("metric", "loss", "bits"), front.objectives.T, strict=True))
    return pd.DataFrame({"name": front.names, "TV": front.parameters, **columns})


def _bound_panels(axes: Any, curves: pd.DataFrame, front: Front) -> None:
    points_on_front = _front_points(front)
    for ax, objective in zip(axes, ("loss", "bits"), strict=True):
        for name, rows in curves.groupby("name", sort=False):
            ax.plot(rows["metric"], rows[objective], color=colour(TINTS[str(name)]), linewidth=1.3)
        for name, rows in points_on_front.groupby("name", sort=False):
            style = {"markeredgecolor": "black", "markersize": 4.5, "markeredgewidth": 0.7}
            ax.plot(rows["metric"], rows[objective], "o", color=colour(TINTS[str(name)]), **style)
    axes[0].set(xlabel="eq. 6 (nats$^{1/2}$)", ylabel="bound on loss of accuracy (points)")
    axes[1].set(xlabel="eq. 6 (nats$^{1/2}$)", ylabel="bound on added bits over plain")
    axes[0].set_yscale("symlog", linthresh=0.01)
    axes[0].set_ylim(bottom=-0.002)
    axes[1].set_yscale("symlog", linthresh=0.001)
    axes[0].set_title("the paper's bounds", fontsize="medium")


def _legend(drawn: Figure, others: dict[str, str], void: bool) -> None:
    """Mechanisms by their colours, the ``others`` too, under their names."""
    from matplotlib.lines import Line2D

    names = {
        "none": "no protection",
        "gaussian_noise": "Gaussian noise",
        "random_mask": "compression",
        "masked_pair": "shared masks",
        "additive_sharing": "shares in a ring",
        "paillier": "Paillier",
    }
    handles: list[Any] = [
        Line2D([], [], color=colour(key), linestyle="none", marker=marker(key), label=name)
        for key, name in (names | others).items()
    ]
    frame: dict[str, Any] = {"markeredgecolor": "black", "markersize": 7, "label": "not beaten"}
    handles.append(Line2D([], [], color=REFERENCE_COLOUR, linestyle="none", marker="o", **frame))
    if void:
        handles.append(Line2D([], [], color=REFERENCE_COLOUR, linestyle="none", marker="o", mfc="none", label=VOID))
    columns = len(handles) - len(others)
    drawn.legend(handles=handles, loc="outside upper center", ncols=columns, fontsize="small")


@table(
    "S6",
    title="Settings that none other beats",
    caption=f"The front of Fig. S9. {STRONGEST}. Settings with the same numbers are listed once, with how many more "
    "there are. Share: the part of the hypervolume that no other setting adds. Leakage in nats^(1/2), null prior, "
    "alpha = 0.001. Void: the attack is too weak without protection. Defenses that are not the paper's are listed also "
    "where they are beaten.",
    experiments=EXPERIMENTS,
)
def table_s6(tables: Tables) -> pd.DataFrame:
    """A row per setting on the front, by what is recovered; and per setting of other defenses than the paper's."""
    rows = []
    for cell in cells_of(tables[SWEPT]):
        here = measured.tables_of(tables, *cell)
        frame, _ = judged_points(here)
        other = frame["name"].where(frame["name"].isin(added(here[SWEPT])), "")
        shown = frame.assign(other=other)[frame["best"] | (other != "")]
        for _, same in shown.groupby([*OBJECTIVES, "other"]):
            row = same.iloc[0]
            cells = {"data set": cell[0], "model": cell[1], "mechanism": row["name"]}
            cells |= {"setting": row["setting"] or NONE, "attack": row["attack"] + (" (void)" if row["void"] else "")}
            cells |= {"recovered": f"{row['recovered']:.2f}", "leakage": f"{row['leakage']:.3f}"}
            cells |= {"loss of accuracy": f"{row['loss']:.1f}", "bits over plain": f"{row['bits']:.2f}"}
            share = f"{100 * row['share']:.1f}" if row["best"] else "beaten"
            rows.append(cells | {"share (%)": share, "equal ones": str(len(same) - 1)})
    return pd.DataFrame(rows)
