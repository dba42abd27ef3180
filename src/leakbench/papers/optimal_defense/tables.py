"""Table 1, and the supplements S1 and S2: readings of the formulas, and everything that Fisher jobs measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leakbench.lazy import pd
from leakbench.papers.optimal_defense import PAPER
from leakbench.papers.optimal_defense.common import NOISE, PRUNING, table
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import series_of, values_of
from leakbench.report.reference import printed_numbers
from leakbench.report.statistics import over_seeds
from leakbench.report.tidy import SETTING, setting_columns
from leakbench.report.wording import NONE, setting_in_words


@table(
    1,
    title="Parameters of the MNIST model",
    caption="Number of parameters of every tensor of SimpleConvNet: printed in the paper, and of our model.",
    experiments=("architecture",),
)
def table01(tables: Tables) -> pd.DataFrame:
    """Parameters per tensor, the paper's beside ours, with the total."""
    ours = tables["architecture"][["metric", "value"]].rename(columns={"metric": "tensor", "value": "ours"})
    ours["ours"] = ours["ours"].astype(int)
    printed = printed_numbers(PAPER, "table01")
    both = printed.merge(ours, on="tensor", how="outer", sort=False)
    extra = ours["tensor"][~ours["tensor"].isin(printed["tensor"])]
    both = both.set_index("tensor").loc[[*printed["tensor"], *extra]].reset_index()
    total = pd.DataFrame([{"tensor": "total", "paper": both["paper"].sum(), "ours": both["ours"].sum()}])
    return pd.concat([both, total], ignore_index=True).astype({"paper": "Int64", "ours": "Int64"})


READINGS = {
    "gp-80": "gradient pruning 80 %",
    "op-80-readings": "optimal pruning 80 %",
    "op-80-probes": "optimal pruning 80 %",
    "dpsgd-1e-4u2": "clipped noise",
    "optimal-readings": "optimal noise",
    "optimal-probes": "optimal noise",
}
OF_READINGS = {
    "u1_kept": "U1 kept",
    "information_kept": "information that passes",
    "information": "information per input",
    "noise_rms": "RMS of the noise",
    "final_loss": "loss after 5 steps (nats)",
}


@table(
    "S1",
    title="Other readings of the formulas",
    caption="Pruning at 80 % and noise at U2 = -1e-4 under other readings of the formulas, with ratios per tensor "
    "instead of per coordinate, and with fewer or more probes of the sensitivities. Means with 95 % t-intervals "
    "over seeds of the initialisation. The information is infinite where coordinates travel without noise; all of "
    "it passes where none is pruned.",
    experiments=(reads("readings", defenses=READINGS),),
)
def table_s1(tables: Tables) -> pd.DataFrame:
    """Utility, information, noise and loss of every reading."""
    return _by_setting(tables["readings"], READINGS, "reading", OF_READINGS, _with_interval)


def _by_setting(
    frame: pd.DataFrame,
    names: Mapping[str, str],
    settings: str,
    metrics: Mapping[str, str],
    cell: Callable[[pd.DataFrame], str],
) -> pd.DataFrame:
    """A row per defense and setting of its swept parameters, a column per metric.

    Args:
        frame: tidy table of an experiment.
        names: defense label -> name.
        settings: the name of the column with the setting in words.
        metrics: metric -> name of its column.
        cell: from the metric's rows to the content of its cell.
    """
    swept, rows = setting_columns(frame), []
    for defense, name in series_of(frame, names).items():
        of_defense = frame[frame["defense"] == defense]
        for _, group in of_defense.groupby(swept, dropna=False, sort=False) if swept else [((), of_defense)]:
            setting = {column.removeprefix(SETTING): group[column].iloc[0] for column in swept}
            cells = {words: cell(values_of(group, metric)) for metric, words in metrics.items()}
            rows.append({"defense": name, settings: setting_in_words(setting) or NONE, **cells})
    return pd.DataFrame(rows)


def _with_interval(rows: pd.DataFrame) -> str:
    """The mean and half of the interval, ``0.781 ± 0.012``; a dash where there is no number."""
    summary = over_seeds(rows, ["metric"])
    if summary.empty or summary["mean"].isna().all():
        return NONE
    mean, half = summary["mean"].iloc[0], summary["high"].iloc[0] - summary["mean"].iloc[0]
    return f"{mean:.3g} ± {half:.2g}"


MEASURED = {
    "u1_kept": "U1 kept",
    "u2": "U2",
    "information": "information per input",
    "information_kept": "information that passes",
    "noise_rms": "RMS of the noise",
    "noise_frobenius": "Frobenius norm of the covariance",
    "floored": "part floored",
    "capped": "part capped",
    "passing": "part passing",
}


@table(
    "S2",
    title="Utility, information and noise of every setting",
    caption="What the law of a defended gradient says before anything is attacked or trained, in every setting of "
    "Figures 2, 4, 5 and 7: the utilities U1 (part kept) and U2, the trace of the Fisher information per input, "
    "the part of it that passes under equal noise, the size of the noise in two senses, and the parts of the "
    "coordinates whose ratio was floored or capped, and that follow the gradient at all. Means over clients and "
    "seeds; a dash where there is no finite number.",
    experiments=(reads("information", defenses=(*PRUNING, *NOISE)),),
)
def table_s2(tables: Tables) -> pd.DataFrame:
    """A row per defense and setting, a column per metric."""
    return _by_setting(tables["information"], PRUNING | NOISE, "setting", MEASURED, _mean)


def _mean(rows: pd.DataFrame) -> str:
    """The mean over clients and seeds, ``0.781``; a dash where there is no number."""
    means = over_seeds(rows, ["metric"])["mean"]
    return NONE if means.isna().all() else f"{means.iloc[0]:.3g}"
