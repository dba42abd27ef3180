"""Figures S3 and S4 and Table S6: attacks on the sum of N users' updates, over N and by mechanism."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from leakbench.lazy import pd
from leakbench.papers.secagg_dp.common import figure, table
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, having, judged, named, values_of
from leakbench.report.statistics import over_seeds
from leakbench.report.style import IMAGE_REFERENCES, REFERENCE_COLOUR, colour, legend_below, marker, panels, use_style
from leakbench.report.tidy import SETTING, cells_of, of_cell
from leakbench.report.wording import NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INVERSION, MEMBERSHIP, BATCHES = "inversion", "membership", "membership_batches"
ATTACK, PSNR = "dlg", "assigned_psnr"
INVERTED = reads(INVERSION, attacks=(ATTACK, *IMAGE_REFERENCES))
SCORE = "likelihood"
"""The strongest of the scores."""
AUC, DRAWN, TPR = f"auc/{SCORE}", f"auc_drawn/{SCORE}", f"tpr/{SCORE}"
USERS, VARIANCE = SETTING + "users", SETTING + "variance"
MECHANISMS = {
    "none": "no defense",
    "gaussian_sampling": "Gaussian weights",
    "distributed_noise": "isotropic noise",
    "water_filling": "water-filling",
}
"""By the name of the mechanism, in the order of tables."""
STYLES = ("-", "--", ":")
"""Line styles of the variances of a mechanism, rising."""


class Line(NamedTuple):
    """One defense in one setting: its name in words, mechanism, line style and rows."""

    name: str
    mechanism: str
    style: str
    rows: pd.DataFrame


def lines_of(frame: pd.DataFrame) -> list[Line]:
    """The settings of all defenses, users aside, in the order of :data:`MECHANISMS`, then by variance."""
    frame = having(frame, "variance")
    lines = []
    for mechanism in dict.fromkeys([*MECHANISMS, *frame["mechanism"]]):
        labels = list(dict.fromkeys(frame["defense"][frame["mechanism"] == mechanism]))
        for label in labels:
            rows = frame[(frame["mechanism"] == mechanism) & (frame["defense"] == label)]
            variances = sorted(rows[VARIANCE].dropna().unique())
            name = MECHANISMS.get(mechanism, label) if len(labels) == 1 else label
            if not variances:
                lines.append(Line(name, mechanism, "-", rows))
            for place, variance in enumerate(variances):
                words, style = rf"{name}, $\sigma^2$ = {variance:g}", STYLES[place % len(STYLES)]
                lines.append(Line(words, mechanism, style, rows[rows[VARIANCE] == variance]))
    return lines


def _users_axis(ax: Axes, users: list[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(users, [f"{each:g}" for each in users])
    ax.minorticks_off()
    ax.set_xlabel("users in the sum, N")


def _plot(ax: Axes, points: pd.DataFrame, line: Line, void: bool = False) -> None:
    """A line over users with a band."""
    tint = colour(line.mechanism)
    ax.plot(
        points[USERS],
        points["mean"],
        color=tint,
        linestyle=line.style,
        marker=marker(line.mechanism),
        markerfacecolor="none" if void else tint,
        label=named(line.name, void),
    )
    ax.fill_between(points[USERS], points["low"], points["high"], color=tint, alpha=0.15, linewidth=0)


@figure(
    "S3",
    title="Gradient inversion of the sum over users",
    caption="DLG (L2, L-BFGS with a line search, labels known) on the mean of N users' updates, from each of which it "
    "reconstructs two images: mean PSNR after assignment among the images of all users. Sums of two or more go through "
    "secure aggregation. Bands: 95 % t-intervals over seeds; of two seeds, their range. The attacker matches the mean "
    "gradient and does not search for the weights of Gaussian sampling. Grey: attackers that never see a gradient; "
    "assignment among more images flatters them, as it does the attack. sigma^2 is one user's, on gradients clipped to "
    "10.",
    experiments=(INVERTED,),
)
def fig_s3(tables: Tables) -> Drawing:
    """A panel per data set and model, a line per mechanism and variance."""
    frame = tables[INVERSION]
    frame = frame[frame["metric"] == PSNR]
    cells = cells_of(frame)
    drawn, axes = panels(len(cells), width=6.6 if len(cells) == 1 else 4.6, height=3.6)
    numbers = []
    for ax, (dataset, model) in zip(axes, cells, strict=True):
        here = values_of(frame, PSNR, dataset=dataset, model=model)
        users = sorted(here[USERS].unique())
        for line in lines_of(here[here["attack"] == ATTACK]):
            points = judged(line.rows, [USERS])
            _plot(ax, points, line, void=bool(points["void"].any()))
            numbers.append(points.assign(dataset=dataset, model=model, series=line.name))
        for attack, (words, style) in IMAGE_REFERENCES.items():
            rows = here[here["attack"] == attack]
            if len(rows):
                points = over_seeds(rows, [USERS])
                ax.plot(points[USERS], points["mean"], color=REFERENCE_COLOUR, linestyle=style, label=words)
                numbers.append(points.assign(dataset=dataset, model=model, series=words, void=False))
        _users_axis(ax, users)
        ax.set(title=f"{dataset}, {model}", ylabel="PSNR (dB)")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", handlelength=3)
    return Drawing(drawn, pd.concat(numbers).rename(columns={USERS: "users"}))


def with_intervals(rows: pd.DataFrame, kind: str = "auc", score: str = SCORE) -> pd.DataFrame:
    """Areas under the curve over users: ``mean`` over seeds, ``low`` and ``high`` the means of DeLong's ends.

    Args:
        rows: of one defense in one setting.
        kind: ``auc`` or ``auc_drawn``.
        score: one of a record's.
    """
    ends = {"mean": kind, "low": f"{kind}_low", "high": f"{kind}_high"}
    columns = {
        end: rows[rows["metric"] == f"{metric}/{score}"].groupby(USERS)["value"].mean() for end, metric in ends.items()
    }
    return pd.DataFrame(columns).reset_index()


@figure(
    "S4",
    title="Membership of a record in the sum over users",
    caption="Area under the ROC curve of the likelihood ratio between sums with and without a record, by moments from "
    "auxiliary records: records of the first user against fresh ones, all trials of a seed together, mean over seeds. "
    "Bands: DeLong's 95 % interval of one seed, mean over seeds. Without a defense users send the mean over all "
    "of their records (black), or over a random batch, where membership of the batch is easier to see than that "
    "of the data set. Dotted at 0.5: chance. Thin lines without markers: what (epsilon, delta) of the mechanism leaves "
    "to any attacker, where it is below 1. sigma^2 is one user's, on gradients clipped to 10.",
    experiments=(MEMBERSHIP, BATCHES),
)
def fig_s4(tables: Tables) -> Drawing:
    """A row of panels per data set and model: sampling alone, isotropic noise, water-filling, other defenses."""
    frame, batches = tables[MEMBERSHIP], tables[BATCHES]
    cells = cells_of(frame)
    families = {"sampling alone": ["gaussian_sampling"], "isotropic noise": ["distributed_noise"]}
    families["water-filling"] = ["water_filling"]
    if others := [mechanism for mechanism in frame["mechanism"].unique() if mechanism not in MECHANISMS]:
        families["other defenses"] = others
    use_style()
    import matplotlib.pyplot as plt

    size = (10.0 / 3 * len(families), 2.8 * len(cells) + 0.9)
    drawn, grid = plt.subplots(
        len(cells), len(families), figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    numbers = []
    for place, (axes, (dataset, model)) in enumerate(zip(grid, cells, strict=True)):
        here = of_cell(frame, dataset, model)
        users = sorted(here[USERS].unique())
        lines = lines_of(here)
        numbers += [_areas(line, dataset, model) for line in lines]
        beside = of_cell(batches, dataset, model)
        for ax, (title, family) in zip(axes, families.items(), strict=True):
            for line in lines:
                if line.mechanism in ("none", *family):
                    _plot(ax, with_intervals(line.rows), line)
                    bound = _bound(line.rows)
                    ax.plot(
                        bound[USERS], bound["mean"], color=colour(line.mechanism), linewidth=0.8, linestyle=line.style
                    )
            if ax is axes[0]:
                for kind, label in (("auc_drawn", "batches: in the batch"), ("auc", "batches: in the data set")):
                    points = with_intervals(beside, kind)
                    shown = Line(label, "none", ":" if kind == "auc" else "--", beside)
                    _plot(ax, points, shown)
                    numbers.append(points.assign(dataset=dataset, model=model, series=label, score=SCORE))
            ax.axhline(0.5, color=REFERENCE_COLOUR, linestyle=":", linewidth=1)
            _users_axis(ax, users)
            ax.set(title=f"{title} ({dataset}, {model})", ylim=(0.4, 1.02))
            if place == len(cells) - 1:
                with plt.rc_context({"legend.handlelength": 3.5}):  # of dashes
                    legend_below(ax, columns=1)
        axes[0].set_ylabel("membership AUC")
    return Drawing(drawn, pd.concat(numbers).rename(columns={USERS: "users"}))


def _areas(line: Line, dataset: str, model: str) -> pd.DataFrame:
    """All scores of a setting."""
    scores = [name.partition("/")[2] for name in line.rows["metric"].unique() if name.startswith("auc/")]
    return pd.concat(
        with_intervals(line.rows, "auc", score).assign(dataset=dataset, model=model, series=line.name, score=score)
        for score in scores
    )


def _bound(rows: pd.DataFrame) -> pd.DataFrame:
    """The AUC that the mechanism's guarantee leaves, over users, where it is below 1."""
    bounds = rows[rows["metric"] == "auc_bound"].groupby(USERS)["value"].mean().reset_index(name="mean")
    return bounds[bounds["mean"] < 0.995]


@table(
    "S6",
    title="What attackers make of the sum over users",
    caption="The numbers of Fig. S3 and S4. Inversion: mean PSNR (dB) after assignment. Membership: AUC of the "
    "likelihood ratio and DeLong's 95 % interval, as in Fig. S4. Of the largest N: true positives at 5 % false "
    "positives, epsilon of the round, and the AUC that (epsilon, delta) leaves to any attacker, 1 - (1 - delta)^2 / (1 "
    "+ e^epsilon). Without noise there is no guarantee. sigma^2 is one user's, on gradients clipped to 10.",
    experiments=(INVERTED, MEMBERSHIP, BATCHES),
)
def table_s6(tables: Tables) -> pd.DataFrame:
    """A row per attack, data set, model and setting; a column per number of users."""
    every = sorted({int(users) for frame in tables.values() for users in frame[USERS].unique()})
    rows = []

    def add(attack: str, cell: tuple[str, str], name: str, values: dict[int, str], last: dict[str, str]) -> None:
        row = {"attack": attack, "data": cell[0], "model": cell[1], "mechanism": name.replace(r"$\sigma^2$", "sigma^2")}
        row |= {f"N = {users}": values.get(users, NONE) for users in every}
        rows.append(row | {column: last.get(column, NONE) for column in ("TPR", "epsilon", "AUC at most")})

    inverted = tables[INVERSION]
    for cell in cells_of(inverted):
        here = values_of(inverted, PSNR, dataset=cell[0], model=cell[1])
        shown = [(line.name, line.rows) for line in lines_of(here[here["attack"] == ATTACK])]
        shown += [(words, here[here["attack"] == attack]) for attack, (words, _) in IMAGE_REFERENCES.items()]
        for name, attacked in shown:
            if len(attacked):
                points = over_seeds(attacked, [USERS])
                means = zip(points[USERS], points["mean"], strict=True)
                add("inversion", cell, name, {int(users): f"{mean:.1f}" for users, mean in means}, {})
    for experiment, kind, prefix in (
        (MEMBERSHIP, "auc", ""),
        (BATCHES, "auc", "batches, in the data set: "),
        (BATCHES, "auc_drawn", "batches, in the batch: "),
    ):
        for cell in cells_of(tables[experiment]):
            for line in lines_of(of_cell(tables[experiment], *cell)):
                points = with_intervals(line.rows, kind)
                values = {int(p[USERS]): _area(p) for p in points.to_dict("records")}
                last = _last(line.rows) if kind == "auc" else {}
                add("membership", cell, prefix + line.name, values, last)
    return pd.DataFrame(rows)


def _area(point: Mapping[Any, Any]) -> str:
    return f"{point['mean']:.3f} ({point['low']:.3f}, {point['high']:.3f})"


def _last(rows: pd.DataFrame) -> dict[str, str]:
    """Cells of the columns that are of the largest number of users."""
    rows = rows[rows[USERS] == rows[USERS].max()]
    columns = {"TPR": (TPR, ".3f"), "epsilon": ("epsilon", ".3g"), "AUC at most": ("auc_bound", ".3f")}
    values = {column: float(rows[rows["metric"] == metric]["value"].mean()) for column, (metric, _) in columns.items()}
    return {column: f"{value:{columns[column][1]}}" for column, value in values.items() if not math.isnan(value)}
