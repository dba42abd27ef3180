"""Figures 7 and 9, and the supplement S3: how much attacks recover under every defense."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from leakbench.lazy import pd
from leakbench.metrics.assignment import ASSIGNED
from leakbench.papers.cdpa.attacked import NAIVE, ROG, attacked_by_rog, distances, reference_rows, shown_defenses
from leakbench.papers.cdpa.common import figure
from leakbench.papers.cdpa.tables_attacks import ABOUT_CDPA, ADAPTIVE, BY_INFORMED, INFORMED, adaptive_rows
from leakbench.report.artifacts import Tables
from leakbench.report.gate_verdicts import VOID
from leakbench.report.labels import reads
from leakbench.report.plots import STATISTICS, Drawing, having, judged, named, values_of, whiskers
from leakbench.report.style import IMAGE_REFERENCES, REFERENCE_COLOUR, REFERENCES, colour, marker, panels
from leakbench.report.tidy import SETTING
from leakbench.report.under_attacked import COLUMN, marked, under_attacked
from leakbench.report.wording import INTERVALS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPSILON = SETTING + "epsilon"
SSIM = ASSIGNED + "ssim_global"
"""With one window for the whole image, as in the paper's code."""


@figure(
    7,
    title="How unlike the victims reconstructions are",
    caption="The paper's is a user study, 100 people who say how similar ROG's reconstructions are to the images; it "
    "cannot be run, and a distance stands for it: LPIPS (AlexNet) where its weights are staged, else 1 - SSIM. A dot "
    f"per image, a line at their median; defenses from the most to the least alike. {NAIVE} Grey: attackers that never "
    "see an update.",
    experiments=(attacked_by_rog(*IMAGE_REFERENCES),),
)
def fig07(tables: Tables) -> Drawing:
    """A row of dots per defense and reference attacker."""
    frame = tables["rog"]
    metric, rows = distances(frame)
    seen = rows[rows["attack"] == ROG]
    defended = {name: seen[seen["defense"] == label] for label, name in shown_defenses(frame).items()}
    unseen = {
        name: rows[(rows["mechanism"] == "none") & (rows["attack"] == label)]
        for label, name in reference_rows(rows).items()
    }
    ordered = sorted(defended.items(), key=lambda entry: entry[1]["value"].median())
    drawn, (ax,) = panels(1, width=6.2, height=1.0 + 0.28 * (len(defended) + len(unseen)))
    numbers = []
    shown = [(name, images) for name, images in [*ordered, *unseen.items()] if len(images)]
    for place, (name, images) in enumerate(shown):
        tint = colour(images["mechanism"].iloc[0]) if name in defended else REFERENCE_COLOUR
        void, values = bool(images["void"].any()), images["value"]
        ax.plot(
            values,
            [place] * len(values),
            linestyle="",
            marker="o",
            markersize=4,
            color=tint,
            markerfacecolor="none" if void else tint,
            alpha=0.7,
        )
        ax.plot([values.median()] * 2, [place - 0.35, place + 0.35], color=tint)
        flags = {"void": void, COLUMN: under_attacked(images)}
        numbers += [{"series": name, "metric": metric, "value": value, **flags} for value in values.tolist()]
    void = any(row["void"] for row in numbers)
    ax.set_yticks(range(len(shown)), [marked(name, images) for name, images in shown])
    ax.invert_yaxis()
    ax.set(xlabel=f"{metric}: farther right is less alike" + (f" ({VOID})" if void else ""))
    return Drawing(drawn, pd.DataFrame(numbers))


TRAINED = {
    "none": "none",
    "grad-drop": "grad-drop",
    "cafl-1": "cafl",
    "jopeq-2": "jopeq",
    "soteria": "soteria",
    "sign-sgd": "sign-sgd",
    "sdq": "sdq",
    "cdpa-rog": "cdpa",
}
"""Labels of attacked defenses -> those of the same mechanism in experiments of training."""
LAPLACE = "laplace-eps"
"""Label of Laplace noise over epsilon, under attack and in training."""
OTHERWISE = ("cafl-1", "jopeq-2", "cdpa-rog")
"""Attacked with other parameters than those that are trained with."""


@figure(
    9,
    title="Accuracy and similarity",
    caption="Accuracy of federated averaging against the SSIM of what ROG reconstructs, with one window for the whole "
    "image, as in the paper's code; up and to the left is better. The two may be of different data sets and models, as "
    "they are in the paper. LDP at every epsilon, with the same noise on both axes. Names with a star: training and "
    "attack have other parameters (CAFL epsilon 2 and 1, JoPEQ epsilon 4 and 2, as the paper's captions have it; CDPA "
    "encodes the model's change in training, and under attack the update in units of the gradient). Grey lines: SSIM "
    f"of attackers that never see an update. {INTERVALS}",
    experiments=(
        attacked_by_rog(*IMAGE_REFERENCES),
        reads("rog_grids", defenses=LAPLACE, attacks=ROG),
        reads("utility", defenses=TRAINED.values()),
        reads("utility_epsilon", defenses=LAPLACE),
    ),
)
def fig09(tables: Tables) -> Drawing:
    """A point per defense."""
    frame = tables["rog"]
    drawn, (ax,) = panels(1, width=6.2, height=3.6)
    numbers: list[dict[str, object]] = []
    listed: set[str] = set()
    for name, seen, trained in _pairs(tables):
        similarity, accuracy = (judged(rows, ["mechanism"]).iloc[0] for rows in (seen, trained))
        void, entry = bool(similarity["void"]), name.split(" $")[0]  # the legend has LDP once
        tint = colour(similarity["mechanism"])
        ax.errorbar(
            similarity["mean"],
            accuracy["mean"],
            xerr=[[similarity["mean"] - similarity["low"]], [similarity["high"] - similarity["mean"]]],
            yerr=[[accuracy["mean"] - accuracy["low"]], [accuracy["high"] - accuracy["mean"]]],
            color=tint,
            marker=marker(similarity["mechanism"]),
            markerfacecolor="none" if void else tint,
            linestyle="",
            linewidth=1,
            label=None if entry in listed else named(entry, void, weak=under_attacked(seen)),
        )
        listed.add(entry)
        if name.startswith("LDP"):
            place = (similarity["mean"], accuracy["mean"])
            ax.annotate(name.removeprefix("LDP "), place, (4, 4), textcoords="offset points", fontsize="x-small")
        row = {"series": name, "ssim": similarity["mean"], "accuracy": accuracy["mean"], "void": void}
        row[COLUMN] = under_attacked(seen)
        for axis, summary in (("ssim", similarity), ("accuracy", accuracy)):
            row |= {f"{axis}_low": summary["low"], f"{axis}_high": summary["high"]}
        numbers.append(row)
    for label, name in reference_rows(frame).items():
        line = judged(values_of(frame, SSIM, mechanism="none", attack=label), ["mechanism"]).iloc[0]
        ax.axvline(line["mean"], color=REFERENCE_COLOUR, linestyle=REFERENCES[label][1], linewidth=1, label=name)
        numbers.append({"series": name, "ssim": line["mean"], "void": bool(line["void"])})
    ax.set(xlabel="SSIM under ROG", ylabel="test accuracy")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return Drawing(drawn, pd.DataFrame(numbers))


def _pairs(tables: Tables) -> Iterator[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Name, values of SSIM and of accuracy, of every defense that was attacked and trained with."""
    utility = values_of(tables["utility"], "accuracy")
    models = list(dict.fromkeys(utility["model"]))
    utility = utility[utility["model"] == models[-1]]  # the paper's: ResNet-18, the last of the three
    attacked = tables["rog"]
    for label, name in shown_defenses(attacked).items():
        seen = values_of(attacked, SSIM, defense=label, attack=ROG)
        trained = utility[utility["defense"] == TRAINED.get(label, label)]
        if len(seen) and len(trained):
            yield name + (" *" if label in OTHERWISE else ""), seen, trained
    grids, over = (having(tables[name], "epsilon") for name in ("rog_grids", "utility_epsilon"))
    seen = values_of(grids, SSIM, defense=LAPLACE, attack=ROG)
    trained = values_of(over, "accuracy", defense=LAPLACE)
    for epsilon in sorted(set(seen[EPSILON]) & set(trained[EPSILON])):
        name = f"LDP $\\epsilon$ = {epsilon:g}"
        yield name, seen[seen[EPSILON] == epsilon], trained[trained[EPSILON] == epsilon]


@figure(
    "S3",
    title="Attackers who know CDPA",
    caption=f"{INFORMED} Mean PSNR of reconstructions under CDPA at p = 0.98; black: the undefended update; grey "
    f"lines: attackers that never see an update. {INTERVALS}",
    experiments=BY_INFORMED,
    leaves_out=ABOUT_CDPA,
)
def fig_s3(tables: Tables) -> Drawing:
    """One panel per attack: a row per attacker."""
    drawn, axes = panels(len(ADAPTIVE), width=4.4, height=3.0)
    numbers: list[dict[str, object]] = []
    looks = {"no defense": ("none", 0.0, True), "CDPA, linear layers": ("cdpa", -0.12, True)}
    looks |= {"CDPA, all layers": ("cdpa", 0.12, False), "CDPA, change of the parameters": ("jopeq", 0.24, False)}
    for ax, (attack, attackers) in zip(axes, ADAPTIVE.items(), strict=True):
        rows = adaptive_rows(tables, attack, ASSIGNED + "psnr")
        numbers += draw_attackers(ax, rows, attack, attackers.values(), looks)
        ax.set(xlabel="PSNR (dB, pixels in [0, 1])")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return Drawing(drawn, pd.DataFrame(numbers))


def draw_attackers(
    ax: Axes, rows: pd.DataFrame, attack: str, attackers: Iterable[str], looks: Mapping[str, tuple[str, float, bool]]
) -> list[dict[str, object]]:
    """Draw means of one attack, a row per attacker, and lines of those that never see an update; return the numbers.

    Args:
        ax: where to draw.
        rows: of :func:`~leakbench.papers.cdpa.tables_attacks.informed_rows`.
        attack: the title.
        attackers: their names, from above.
        looks: defense -> the mechanism whose colour it has, its shift downwards, whether it is drawn boldly.
    """
    places = {words: place for place, words in enumerate(attackers)}
    for defense, (mechanism, shift, bold) in looks.items():
        shown, tint = rows[rows["defense"] == defense], colour(mechanism)
        label: str | None = named(defense, bool(shown["void"].all()), weak=under_attacked(shown))
        for void, points in shown.groupby("void"):
            ax.errorbar(
                points["mean"],
                [places[words] + shift for words in points["attacker"]],
                xerr=whiskers(points),
                color=tint,
                marker="o" if bold else "s",
                markerfacecolor="none" if void else tint,
                linestyle="",
                alpha=1.0 if bold else 0.55,
                label=label,
            )
            label = None
    for row in rows[rows["defense"] == "none seen"].to_dict("records"):
        style = next(line for name, line in REFERENCES.values() if name == row["attacker"])
        ax.axvline(row["mean"], color=REFERENCE_COLOUR, linestyle=style, linewidth=1, label=row["attacker"])
    void_of = rows.groupby("attacker")["void"].any()
    ticks = [f"{words} (void)" if void_of.get(words, False) else words for words in places]
    ax.set_yticks(range(len(places)), ticks)
    ax.set_ylim(len(places) - 0.5, -0.5)
    ax.set_title(attack, fontsize="medium")
    columns = ("defense", "attacker", *STATISTICS, COLUMN)
    return [{"attack": attack, **{key: row[key] for key in columns}} for row in rows.to_dict("records")]
