"""Figures 4 and S2, Tables S4 and S5: the paper's conditions and its noise on real per-record gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from leakbench.lazy import np, pd
from leakbench.papers.secagg_dp.common import figure, table
from leakbench.papers.secagg_dp.tables import VARIANCE
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, values_of
from leakbench.report.style import MODEL_COLOURS, panels, plain_ticks, use_style
from leakbench.report.tidy import SETTING, cells_of, of_cell
from leakbench.report.wording import NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUND, CLIP = SETTING + "round", SETTING + "clip"
CELL = ["dataset", "model", ROUND]
MEASURED = ("spectra", "spectra_cnn")

INHERENT, WATER, EVEN = "#8899AA", MODEL_COLOURS[0], MODEL_COLOURS[1]

LINEAR_MODEL = "linear"


@figure(
    4,
    title="Noise that lifts a real spectrum",
    caption="Eigenvalues of the covariance G G^T / (B D) of one user's update under Gaussian sampling (grey; linear "
    "model, first data set and seed), and what is added to each: left by water-filling, which lifts them to sigma^2 = "
    f"{VARIANCE:g} (dotted), right by isotropic noise of that variance, on top of them. A row per round of training "
    "without noise. Both axes are logarithmic: the area is not the trace, which each panel states. Beyond the first D "
    "eigenvalues all are zero, and both kinds of noise are the same. The paper's figure is a sketch.",
    experiments=(reads("spectra", models=LINEAR_MODEL),),
)
def fig04(tables: Tables) -> Drawing:
    """Two panels per measured round."""
    use_style()
    import matplotlib.pyplot as plt

    frame = tables["spectra"]
    frame = frame[(frame["model"] == LINEAR_MODEL) & (frame["seed"] == frame["seed"].min())]
    frame = frame[frame["dataset"] == frame["dataset"].iloc[0]]
    rounds = sorted(frame[ROUND].unique())
    drawn, grid = plt.subplots(
        len(rounds),
        2,
        figsize=(8.6, 2.6 * len(rounds) + 0.3),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    numbers: list[dict[str, float]] = []
    highest = VARIANCE
    for row, number in zip(grid, rounds, strict=True):
        here = frame[frame[ROUND] == number]
        dimension = int(values_of(here, "dimension")["value"].iloc[0])
        eigenvalues = values_of(here, "eigenvalues").sort_values("index")["value"].to_numpy(dtype=float)
        everything = np.concatenate([eigenvalues, np.zeros(dimension - len(eigenvalues))])
        filled, isotropic = np.maximum(everything, VARIANCE), everything + VARIANCE
        for ax, top, tint, name in (
            (row[0], filled, WATER, "water-filling"),
            (row[1], isotropic, EVEN, "isotropic noise"),
        ):
            highest = max(highest, float(np.max(top)))
            _spectrum(ax, everything, top, tint, name)
            ax.set_title(f"{name}, round {number:g}: adds {np.sum(top - everything):.1f}", fontsize="medium")
        row[0].set_ylabel("eigenvalue")
        numbers += [
            {"round": number, "index": index + 1, "eigenvalue": value, "filled": full, "isotropic": even}
            for index, (value, full, even) in enumerate(zip(everything, filled, isotropic, strict=True))
            if index <= len(eigenvalues)
        ]
    grid[0, 0].set_ylim(FLOOR, 20 * highest)
    for ax in grid[-1]:
        ax.set_xlabel("index of the eigenvalue")
    for ax in grid[0]:
        ax.legend(fontsize="small", loc="upper right")
    return Drawing(drawn, pd.DataFrame(numbers))


FLOOR = 1e-7
"""Lower end of the axis of eigenvalues."""


def _spectrum(ax: Axes, inherent: Any, top: Any, tint: str, name: str) -> None:
    """Steps from the floor of the axis to the eigenvalues, and from there to those with noise."""
    index = np.arange(1, len(inherent) + 1)
    shown = np.maximum(inherent, FLOOR)
    ax.fill_between(index, FLOOR, shown, color=INHERENT, linewidth=0, label="of sampling")
    ax.fill_between(index, shown, top, color=tint, alpha=0.55, linewidth=0, label=f"added by {name}")
    ax.axhline(VARIANCE, color="#333333", linewidth=0.9, linestyle=":")
    ax.set(xscale="log", yscale="log", xlim=(1, len(inherent)))


def _all(tables: Tables) -> pd.DataFrame:
    return pd.concat([tables[name] for name in MEASURED])


def _means(frame: pd.DataFrame, metrics: list[str]) -> pd.DataFrame:
    """Means over users and seeds, a row per data set, model and round in their order, a column per metric."""
    chosen = frame[frame["metric"].isin(metrics)]
    means: pd.DataFrame = chosen.groupby([*CELL, "metric"], sort=False)["value"].mean().unstack("metric")
    return means.reindex(columns=metrics).reset_index()


def _cell(row: pd.Series) -> dict[str, str]:
    return {"data set": row["dataset"], "model": row["model"], "round": f"{row[ROUND]:g}"}


@table(
    "S4",
    title="Ranks of real gradients, and who leaves the span",
    caption="Means over seeds, of training without noise. N D is the number of measured gradients, of so many users as "
    "the configuration measures. The bound on the rank is (classes - 1) (varying pixels + 1). A gradient leaves a span "
    "if its distance exceeds 1e-6 of its norm, singular values below 1e-10 of the largest count as zero; gradients are "
    "clipped, in float64. Spans: of the same user's other records, of all other measured records (what Theorem 1 asks "
    "for), of the other measured users' records. Fresh: records of no user, against all measured ones.",
    experiments=MEASURED,
)
def table_s4(tables: Tables) -> pd.DataFrame:
    """A row per data set, model and round."""
    leaving = {
        "leaving_per_user": "own user",
        "leaving_pooled": "all others",
        "leaving_other_users": "other users",
        "leaving_fresh": "fresh",
    }
    counts = {"dimension": "K", "pooled": "N D", "rank_bound": "bound", "pooled_rank": "rank", "rank": "rank of a user"}
    shares = {"clipped": "clipped (%)", "accuracy": "accuracy (%)"}
    means = _means(_all(tables), [*counts, *leaving, *shares])
    return pd.DataFrame(
        _cell(row)
        | {
            name: NONE if np.isnan(row[metric]) else f"{row[metric]:,.4g}".replace(",", "")
            for metric, name in counts.items()
        }
        | {f"leaves: {name} (%)": f"{100 * row[metric]:.3g}" for metric, name in leaving.items()}
        | {name: f"{100 * row[metric]:.3g}" for metric, name in shares.items()}
        for _, row in means.iterrows()
    )


def _by_index(frame: pd.DataFrame, metric: str) -> dict[int, float]:
    """Means over seeds of a list."""
    means = values_of(frame, metric).groupby("index")["value"].mean()
    return dict(zip(means.index.tolist(), means.tolist(), strict=True))


@table(
    "S5",
    title="Noise that water-filling saves on real spectra",
    caption="Means over users and seeds. At equal sigma^2: the part of isotropic noise's trace, K sigma^2, that "
    "water-filling does not add. At equal proven epsilon of all rounds: what water-filling adds more than isotropic "
    "noise on the same updates, relative; by the paper's bounds (Table 1, row 5, and eq. 35), and by the repaired "
    "ones. N, D, B and C are those of the configuration, delta and rounds those of Table S1.",
    experiments=MEASURED,
)
def table_s5(tables: Tables) -> pd.DataFrame:
    """A row per data set, model and round."""
    columns = {
        ("saved", "variance"): "saved (%), sigma^2 = {:g}",
        ("excess_at_epsilon", "epsilon"): "excess (%), epsilon = {:g}",
        ("excess_at_epsilon_repaired", "epsilon"): "excess (%), repaired, epsilon = {:g}",
    }
    rows = []
    for _, here in _all(tables).groupby(CELL, sort=False):
        row = _cell(here.iloc[0])
        for (metric, grid), name in columns.items():
            levels, means = _by_index(here, grid), _by_index(here, metric)
            row |= {name.format(levels[index]): f"{100 * value:+.3g}" for index, value in means.items()}
        rows.append(row)
    return pd.DataFrame(rows)


@figure(
    "S2",
    title="Theorem 2 where records outnumber coordinates",
    caption="Two classes, and scores on principal components that were fitted to images of no user (each of variance "
    "one there), read by a softmax classifier. Its gradients lie in a subspace that no data determine, since they sum "
    "to zero over the classes; Theorem 3 is evaluated there (K* coordinates). Epsilon of one round at delta of the "
    "configuration over the number of users, for the smallest eigenvalue of the sum of their covariances (solid), and "
    "for the sum of their smallest ones (dashed, the paper's); means over the seeds in which the theorem says "
    "anything, marked hollow where it does not in some. A line begins where it says something. Since eigenvalues are "
    "those of the data at hand, epsilon is a diagnosis and no guarantee. Last panel: the bound on the mutual "
    "information of a round (eq. 9, c = 1).",
    experiments=("toy",),
)
def fig_s2(tables: Tables) -> Drawing:
    """A panel per clipping norm, a line per round; and the bound on information."""
    numbers = by_users(tables["toy"])
    clips, rounds = sorted(numbers["clip"].unique()), sorted(numbers["round"].unique())
    drawn, axes = panels(len(clips) + 1, width=3.2, height=3.0)
    for ax, clip in zip(axes, clips, strict=False):
        for number, tint in zip(rounds, MODEL_COLOURS, strict=False):
            here = numbers[(numbers["clip"] == clip) & (numbers["round"] == number)].sort_values("N")
            ax.plot(here["N"], here["epsilon_pooled"], color=tint, label=f"round {number:g}")
            ax.plot(here["N"], here["epsilon_of_users"], color=tint, linestyle="--", linewidth=1)
            for some, face in ((here["lost"] == 0, tint), (here["lost"] > 0, "white")):
                ax.plot(
                    here["N"][some], here["epsilon_pooled"][some], "o", color=tint, markerfacecolor=face, markersize=4
                )
        if numbers["epsilon_pooled"][numbers["clip"] == clip].isna().all():
            ax.text(0.5, 0.5, "the theorem\nsays nothing", ha="center", transform=ax.transAxes)
        ax.set(xlabel="users N", title=f"C = {clip:g}", xscale="log", yscale="log")
    finite = numbers["epsilon_pooled"].dropna()
    for ax in axes[:-1]:
        ax.set_xlim(0.9, 1.1 * numbers["N"].max())
        if len(finite):
            ax.set_ylim(0.7 * finite.min(), 1.4 * finite.max())
    axes[0].set_ylabel(r"$\epsilon$ of a round, Theorem 3")
    axes[0].legend(fontsize="small")
    line = numbers[(numbers["clip"] == clips[0]) & (numbers["round"] == rounds[0])].sort_values("N")
    axes[-1].plot(line["N"], line["information"], "o-", color="#333333", markersize=4)
    axes[-1].set(xlabel="users N", ylabel="nats", title="mutual information, bound", xscale="log", yscale="log")
    axes[-1].set(xlim=axes[0].get_xlim())
    plain_ticks(axes[-1].yaxis)
    for ax in axes:
        plain_ticks(ax.xaxis)
    return Drawing(drawn, numbers)


def by_users(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns ``clip``, ``round``, ``N``, means over seeds of metrics by users, and ``lost``: seeds without epsilon."""
    return pd.DataFrame(_by_users(of_cell(frame, *cells_of(frame)[0])))


def _by_users(frame: pd.DataFrame) -> Iterator[dict[str, float]]:
    metrics = ("rho", "floor", "pooled_floor", "epsilon_of_users", "epsilon_pooled", "information")
    settings = frame[[CLIP, ROUND]].drop_duplicates().sort_values([CLIP, ROUND])
    for clip, number in settings.itertuples(index=False, name=None):
        here = frame[(frame[CLIP] == clip) & (frame[ROUND] == number)]
        means = {name: _by_index(here, name) for name in metrics}
        lost = values_of(here, "epsilon_pooled").groupby("index")["value"].apply(lambda values: values.isna().sum())
        for index, count in _by_index(here, "users").items():
            metrics_here = {name: values[index] for name, values in means.items()}
            yield {"clip": clip, "round": number, "N": count, **metrics_here, "lost": float(lost[index])}
