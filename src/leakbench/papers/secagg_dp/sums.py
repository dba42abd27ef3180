"""Figures 3 and S1: leakage of a sum of updates on average, and in the worst case."""

from __future__ import annotations

from leakbench.errors import Infeasible
from leakbench.lazy import pd, torch
from leakbench.papers.secagg_dp import PAPER
from leakbench.papers.secagg_dp.common import DELTA, MNIST, figure
from leakbench.randomness import Streams
from leakbench.report.artifacts import Tables
from leakbench.report.plots import Drawing
from leakbench.report.style import MODEL_COLOURS, panels, use_style
from leakbench.theory.aggregate_dp import full_rank_curve, information_bound

SIDE, QUIET = 16, 4
"""Updates are drawn as squares of this side, whose last rows are those in which three users are silent."""
BATCH = 32
DRAWS = 1000
PANELS = {
    "x1": "$|x_1|$",
    "x2": "$|x_2|$",
    "x3": "$|x_3|$",
    "others": "$|x_1 + x_2 + x_3|$",
    "x4": "$|x_4|$",
    "x4'": "$|x_4'|$",
    "sum": "$|x_1 + x_2 + x_3 + x_4|$",
    "sum'": "$|x_1 + x_2 + x_3 + x_4'|$",
}
REGIONS = {"last quarter": "last\nquarter", "the rest": "the rest"}


@figure(
    3,
    title="A sum that tells two data sets apart",
    caption=f"The paper's counterexample: updates of {SIDE} x {SIDE} coordinates, absolute values. Users 1 to 3 have "
    "standard normal updates whose last quarter (bottom rows) is zero; that of user 4 is dense: the sum of a batch of "
    f"{BATCH} standard normal gradients over the root of {BATCH}; in x4' one record is replaced. Right: how often the "
    f"server tells from the sum which of the two it contains, over {DRAWS:,} draws: by the last quarter alone, where "
    "the sum is user 4's update, and by the other coordinates, where it has to choose the nearer one.",
    experiments=(),
)
def fig03(_: Tables) -> Drawing:
    """Eight heat maps, and the accuracy of the server."""
    use_style()
    import matplotlib.pyplot as plt

    maps = {name: values[0].abs().view(SIDE, SIDE) for name, values in updates(1).items()}
    accuracies = distinguished(DRAWS)
    drawn = plt.figure(figsize=(9.6, 4.4), layout="constrained")
    grid = drawn.add_gridspec(2, 5, width_ratios=[1, 1, 1, 1, 0.9])
    top = max(float(values.max()) for values in maps.values())
    axes = [drawn.add_subplot(grid[place // 4, place % 4]) for place in range(len(PANELS))]
    for ax, (name, title) in zip(axes, PANELS.items(), strict=True):
        shown = ax.imshow(maps[name].numpy(), cmap="Blues", vmin=0, vmax=top, interpolation="nearest")
        ax.set(title=title, xticks=[], yticks=[])
        ax.grid(visible=False)
        ax.axhline(SIDE - QUIET - 0.5, color="#333333", linewidth=0.8, linestyle=":")
    drawn.colorbar(shown, ax=axes, pad=0.02, label="absolute value")
    bars = drawn.add_subplot(grid[:, 4])
    parts = bars.bar(list(REGIONS.values()), [accuracies[name] for name in REGIONS], color=MODEL_COLOURS[0], width=0.6)
    bars.bar_label(parts, fmt="%.3g")
    bars.axhline(0.5, color="#333333", linewidth=0.8, linestyle=":")
    bars.set(ylim=(0, 1.08), ylabel="right answers of the server (part)", title="$x_4$ or $x_4'$?")
    numbers = [
        {"series": name, "row": row, "column": column, "value": value}
        for name, values in maps.items()
        for row, line in enumerate(values.tolist())
        for column, value in enumerate(line)
    ]
    numbers += [{"series": f"accuracy, {name}", "value": value} for name, value in accuracies.items()]
    return Drawing(drawn, pd.DataFrame(numbers))


def updates(draws: int) -> dict[str, torch.Tensor]:
    """Updates and sums named by :data:`PANELS`, float64 ``[draws, SIDE^2]``."""
    size, quiet = SIDE * SIDE, SIDE * QUIET
    streams = Streams([(PAPER, "counterexample", draw) for draw in range(draws)])
    one, two, three = streams.child("others").normal(3, size).double().unbind(dim=1)
    for update in (one, two, three):
        update[:, -quiet:] = 0
    gradients = streams.child("gradients").normal(BATCH + 1, size).double()
    dense = gradients[:, :-1].sum(dim=1) / BATCH**0.5
    replaced = gradients[:, 1:].sum(dim=1) / BATCH**0.5
    others = one + two + three
    return {
        "x1": one,
        "x2": two,
        "x3": three,
        "others": others,
        "x4": dense,
        "x4'": replaced,
        "sum": others + dense,
        "sum'": others + replaced,
    }


def distinguished(draws: int) -> dict[str, float]:
    """Part of the sums, half of them with each update, in which a server that knows both finds the right one.

    It takes the one that is nearer to the sum, which is the likelier one, in a region of the coordinates.
    """
    drawn, quiet = updates(draws), SIDE * QUIET
    regions = {"last quarter": slice(-quiet, None), "the rest": slice(None, -quiet)}
    rates = {}
    for name, part in regions.items():
        right = []
        for total, inside, other in (("sum", "x4", "x4'"), ("sum'", "x4'", "x4")):
            near, far = ((drawn[total] - drawn[update])[:, part].norm(dim=1) for update in (inside, other))
            right.append((near < far).double())
        rates[name] = float(torch.cat(right).mean())
    return rates


USERS = tuple(sorted({2, *(round(10 ** (place / 10)) for place in range(4, 31))}))
SIZES = (11, 100, 7850)
"""K: two classes on ten features, ten classes on nine, the linear model on MNIST."""


@figure(
    "S1",
    title="Leakage on average, and in the worst case, over users",
    caption="Left: the bound on the mutual information of a round (eq. 9, c = 1, which the paper does not give, B = "
    f"{MNIST.batch:g}); it falls as 1 / N (dotted). Right: epsilon of a round by Theorem 2 at delta = {DELTA:g} (D = "
    f"{MNIST.records}, C = {MNIST.clip:g}), in the best case that clipping allows: every eigenvalue of each user's G "
    "G^T / D is C^2 / K. Where a line does not begin on the left, the theorem says nothing for fewer users: D N / K "
    f"must exceed 1. With K = {SIZES[-1]} a single user's matrix is singular, and the best case is of all users' "
    "records together.",
    experiments=(),
)
def fig_s1(_: Tables) -> Drawing:
    """Two panels, a line per size of the model."""
    frame = by_users()
    drawn, (left, right) = panels(2, width=4.3, height=3.2)
    for size, tint in zip(SIZES, MODEL_COLOURS, strict=False):
        rows = frame[frame["K"] == size]
        left.plot(rows["N"], rows["information"], color=tint, label=f"K = {size}")
        right.plot(rows["N"], rows["epsilon"], color=tint, label=f"K = {size}")
        left.plot(rows["N"], rows["information"].iloc[-1] * USERS[-1] / rows["N"], color=tint, linestyle=":")
    left.set(xlabel="users N", ylabel="mutual information, bound (nats)", xscale="log", yscale="log")
    right.set(xlabel="users N", ylabel=r"$\epsilon$ of a round, bound", xscale="log", yscale="log")
    left.legend(fontsize="small")
    return Drawing(drawn, frame)


def by_users() -> pd.DataFrame:
    """Columns ``K``, ``N``, ``information``, ``epsilon``; no epsilon where Theorem 2 does not apply."""
    return pd.DataFrame(
        {
            "K": size,
            "N": users,
            "information": information_bound(users, MNIST.batch, size),
            "epsilon": _best_epsilon(users, size),
        }
        for size in SIZES
        for users in USERS
    )


def _best_epsilon(users: int, size: int) -> float:
    floor = users * MNIST.clip**2 / size
    try:
        return full_rank_curve(MNIST.records, MNIST.batch, MNIST.clip, floor).guarantee(DELTA).epsilon
    except Infeasible:
        return float("nan")
