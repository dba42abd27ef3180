"""Table 1, and the supplements S1 to S5: readings of the formulas, Fisher information, released numbers, labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from leakbench.lazy import pd
from leakbench.metrics.assignment import ASSIGNED
from leakbench.papers.optimal_defense import PAPER
from leakbench.papers.optimal_defense.common import ATTACK, ATTACK_CIFAR, NOISE, PRUNING, table
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import series_of, values_of
from leakbench.report.reference import printed_numbers
from leakbench.report.statistics import over_seeds
from leakbench.report.tidy import SETTING, setting_columns
from leakbench.report.under_attacked import marked
from leakbench.report.wording import NONE, OF_SEEDS, setting_in_words

ATTACK_RELEASED, ATTACK_CIFAR_RELEASED = "ig-released", "ig-cifar-released"


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
    "none": "no defense",
    "gp-80": "gradient pruning 80 %",
    "op-80-readings": "optimal pruning 80 %",
    "op-80-probes": "optimal pruning 80 %",
    "dpsgd-1e-4u2": "clipped noise",
    "optimal-readings": "optimal clipped noise",
    "optimal-probes": "optimal clipped noise",
    "optimal-floors": "optimal noise, nothing clipped",
    "dpsgd-clips": "clipped noise 0.02",
    "optimal-clips": "optimal clipped noise 0.02",
    "dpsgd-modes": "clipped noise 0.1",
    "optimal-modes": "optimal clipped noise 0.1",
}
UNDER_ATTACK = {
    ASSIGNED + "mse_input": "MSE, images assigned",
    "mse_input": "MSE, in the attack's order",
    "final_loss": "loss after 5 steps (nats)",
}
OF_READINGS = UNDER_ATTACK | {
    "u1_kept": "U1 kept",
    "information_kept": "information that passes",
    "information": "information per input",
    "noise_rms": "RMS of the noise",
}
BLIND = "mean_image"
FEW = (
    f"Means with half of the 95 % interval over seeds ({OF_SEEDS}); void: the attack is too weak without a defense; "
    f"{NONE}: no finite number. The mean image needs no gradient: errors beyond its own leak nothing."
)


@table(
    "S1",
    title="Other readings of the formulas",
    caption="Other readings of the formulas under the paper's attack, beside the defaults (form corrected, per "
    "coordinate, 10 probes, clip 1, scale_mode rms): pruning at 80 %; noise at U2 = -1e-4, also with the lower floor "
    "of the released code where nothing is clipped; clips that the released code has on CIFAR-10, and the Frobenius "
    "norm as the noise scale, as the caption of Fig. 5 has it; ratios per tensor, fewer or more probes. The "
    f"information is infinite where coordinates travel without noise. {FEW}",
    experiments=(reads("readings", defenses=READINGS, attacks=(ATTACK, BLIND)),),
)
def table_s1(tables: Tables) -> pd.DataFrame:
    """Error, loss, utility, information and noise of every reading."""
    return _by_setting(
        _with_blind_row(tables["readings"]), WITH_BLIND | READINGS, "reading", OF_READINGS, _with_interval
    )


CIFAR_READINGS = {
    "none": "no defense",
    "gp-80": "gradient pruning 80 %",
    "op-80-forms": "optimal pruning 80 %",
    "optimal-floors-cifar": "optimal noise 0.001, nothing clipped",
    "dpsgd-clips-cifar": "clipped noise 0.001",
    "optimal-clips-cifar": "optimal clipped noise 0.001",
}
WITH_BLIND = {BLIND: "the mean image, no gradient"}


@table(
    "S4",
    title="The released network and settings on CIFAR-10",
    caption="The released network, whose activation is ReLU, beside the paper's LeakyReLU; BatchNorm with running "
    "statistics (eval) or with those of the client's batch (train), under attack and in the five steps; the released "
    "floor of the ratio, and clips of 0.5 (released under attack; at `full`) and 0.05 (in training) beside 1. With "
    f"ReLU, optimal pruning of 80 % sends zeros alone, and the attack on them has no finite error. {FEW}",
    experiments=(reads("cifar_readings", defenses=CIFAR_READINGS, attacks=(ATTACK_CIFAR, BLIND)),),
)
def table_s4(tables: Tables) -> pd.DataFrame:
    """Error and loss by network, mode of BatchNorm and reading."""
    frame = _with_blind_row(tables["cifar_readings"])
    parts = [
        _by_setting(rows, WITH_BLIND | CIFAR_READINGS, "setting", UNDER_ATTACK, _with_interval).assign(network=network)
        for network, rows in frame.groupby("model", sort=False)
    ]
    every = pd.concat(parts, ignore_index=True)
    return every[["network", *every.columns.drop("network")]]


LABELLED = {
    "none": "no defense",
    "gp-80": "gradient pruning 80 %",
    "op-80": "optimal pruning 80 %",
    "dpsgd-0.05": "clipped noise 0.05",
    "optimal-0.1": "optimal clipped noise 0.1",
}
ATTACKERS = {ATTACK: "given", "ig-inferred": "inferred", BLIND: "not needed: the mean image"}
OF_LABELS = {"label_accuracy": "labels that are right"} | {
    metric: words for metric, words in UNDER_ATTACK.items() if metric != "final_loss"
}


@table(
    "S5",
    title="Attackers who infer the labels",
    caption="The paper's attacker is given the true labels; here is one who counts them from the gradient of the last "
    f"layer's bias first. {FEW}",
    experiments=(reads("inferred_labels", defenses=LABELLED, attacks=ATTACKERS),),
)
def table_s5(tables: Tables) -> pd.DataFrame:
    """Labels and errors by defense and attacker."""
    frame = tables["inferred_labels"]
    rows = []
    for defense, name in series_of(frame, LABELLED).items():
        for attack, words in ATTACKERS.items():
            group = frame[(frame["defense"] == defense) & (frame["attack"] == attack)]
            if len(group):
                cells = {title: _with_interval(values_of(group, metric)) for metric, title in OF_LABELS.items()}
                rows.append({"defense": name, "labels": words, **cells})
    return pd.DataFrame(rows)


RELEASED = {
    "released_pruning": "MNIST, gradient pruning 80 %, 4 images of different classes from 3 on",
    "released_cifar": "CIFAR-10, optimal pruning 10 %, images 1 and 2",
    "released_noise": "MNIST, 16 images from",
    "released_training": "MNIST, optimal noise 1e-05, three epochs",
}
RELEASED_NOISE = {"dpsgd-released": "clipped noise", "optimal-released": "optimal clipped noise"}
RELEASED_METRICS = {
    "mse_input": "MSE",
    "psnr": "PSNR (dB)",
    "objective": "cost of the attack",
    "final_loss": "loss on the training images (nats)",
    "accuracy": "accuracy on the test images",
}
BATCH = 16


@table(
    "S3",
    title="What the released notebooks print",
    caption="The only numbers of the authors: outputs in their notebooks, of one run each, beside the means of ours "
    "with half of the 95 % interval, and the range over seeds. Ours have other initialisations and attack starts. "
    "Errors are in the attack's order, as printed, and after the images of a batch are assigned; a cost is 1 - cosine, "
    "of ours with 1e-6 of the total variation. The copy of CIFAR-10 that our runs read has other images at these "
    "places, so that only the size can be compared. The notebook trains on batches in order, ours are drawn anew each "
    "epoch; its test loss (0.1433) and training accuracy (0.9688) our records do not have. Four images of MNIST of "
    "different classes from 3 on are 3, 4, 5 and 7. Scales other than full and laptop run the same code on other "
    f"images, and say nothing of the printed numbers. {NONE}: not computed at this scale.",
    experiments=(
        reads("released_pruning", defenses="gp-80", attacks=ATTACK_RELEASED),
        reads("released_cifar", defenses="op-10-released", attacks=ATTACK_CIFAR_RELEASED),
        reads("released_noise", defenses=RELEASED_NOISE, attacks=ATTACK_RELEASED),
        reads("released_training", defenses="optimal-1e-5"),
    ),
    leaves_out="it repeats what the authors printed",
)
def table_s3(tables: Tables) -> pd.DataFrame:
    """A row per printed number."""
    rows = []
    for printed in printed_numbers(PAPER, "tableS3").to_dict("records"):
        frame = tables[printed["experiment"]]
        ours = frame[frame["defense"] == printed["defense"]]
        run = RELEASED[printed["experiment"]]
        if not math.isnan(printed["scale"]):
            ours = ours[(ours[SETTING + "scale"] - printed["scale"]).abs() <= 1e-9]
            first = 1 + BATCH * int(printed["batch"])
            run = f"{run} {first} on, {RELEASED_NOISE[printed['defense']]} {printed['scale']:g}"
            ours = ours[ours["index"] == printed["batch"]]
        raw, assigned = (values_of(ours, prefix + printed["metric"]) for prefix in ("", ASSIGNED))
        values = raw.groupby("seed")["value"].mean()
        rows.append(
            {"run": run, "number": RELEASED_METRICS[printed["metric"]], "printed": f"{printed['paper']:.4g}"}
            | {"ours": _with_interval(raw), "range": _range(values), "ours, images assigned": _with_interval(assigned)}
            | {"seeds": len(values)}
        )
    return pd.DataFrame(rows)


def _range(values: pd.Series) -> str:
    """The smallest and the largest number."""
    return NONE if values.isna().all() else f"{values.min():.3g} to {values.max():.3g}"


def _with_blind_row(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with the mean image as a defense of its own, so that its errors have a row."""
    blind = frame["attack"] == BLIND
    return frame.assign(defense=frame["defense"].mask(blind, BLIND))


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
    return marked(f"{mean:.3g} ± {half:.2g}", rows) + (" (void)" if rows["void"].any() else "")


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
