"""Tables II, IV and VIII, and the supplements S2 and S3: accuracy, cost and leakage, the paper's beside ours."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from leakbench.lazy import np, pd
from leakbench.metrics.assignment import ASSIGNED
from leakbench.papers.cdpa.attacked import ROG
from leakbench.papers.cdpa.common import MODEL_LABELS, TRAINED, defense_name, defenses_of, model_name, printed, table
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import having, series_of
from leakbench.report.statistics import over_seeds
from leakbench.report.tidy import SETTING, cells_of, of_cell
from leakbench.report.under_attacked import marked
from leakbench.report.wording import NONE
from leakbench.theory.bit_votes import epsilon_per_bit

if TYPE_CHECKING:
    Comparison = Callable[[pd.Series, pd.Series], pd.Series]
    """From values and their references to their difference."""

KEEP = SETTING + "p"
MEANS = "Ours: mean over seeds ± half of the 95 % t-interval; of two seeds, of their range."


def interval(values: pd.DataFrame, form: str = ".1f") -> str:
    """``81.2 ± 0.3`` from tidy rows of one quantity; without the half-width where seeds agree, and – for none.

    Seeds that were lost (diverged, infeasible) are counted behind it.
    """
    if values.empty:
        return NONE
    row = over_seeds(values.assign(group=0), ["group"]).iloc[0]
    lost = values.loc[values["value"].isna(), "seed"].nunique()
    if row["seeds"] == 0:
        return NONE if values["status"].isin(["ok"]).all() else f"{NONE} ({values['status'].iloc[0]})"
    half = row["high"] - row["mean"]
    spread = f" ± {half:{form.replace('3g', '2g')}}" if half > 0 else ""
    return f"{row['mean']:{form}}{spread}" + (f" ({lost} lost)" if lost else "")


def of_metric(frame: pd.DataFrame, metric: str, factor: float = 1.0) -> pd.DataFrame:
    """Rows of one metric, times a factor."""
    rows = frame[frame["metric"] == metric]
    return rows.assign(value=rows["value"] * factor)


def compared(frame: pd.DataFrame, reference: pd.DataFrame, how: Comparison) -> pd.DataFrame:
    """Compare the values of two frames of one row per seed, seed by seed."""
    other = frame["seed"].map(reference.drop_duplicates("seed").set_index("seed")["value"])
    return frame.assign(value=how(frame["value"], other))


def percentage(values: pd.Series, reference: pd.Series) -> pd.Series:
    """Relative difference in percent; NaN where the reference is zero."""
    return 100 * (values / reference.where(reference != 0) - 1)


@table(
    2,
    title="Generalisation",
    caption="Accuracy in percent and generalisation error, |train loss - test loss| in nats, of the model of the best "
    "round, without a defense and with CDPA over p. Printed (one run of ResNet18, as its accuracies say; "
    "accuracy on the validation images) beside ours: on the test images, with the weights of the round that "
    f"validates best, and after the last round. {MEANS}",
    experiments=("utility", "utility_p"),
    leaves_out="its rows are CDPA over p; Table 4 compares defenses",
)
def table02(tables: Tables) -> pd.DataFrame:
    """A row per model and setting."""
    sweep = having(tables["utility_p"], "p")
    undefended = tables["utility"][tables["utility"]["mechanism"] == "none"]
    rows = []
    for model in sweep["model"].drop_duplicates():
        for theirs in printed("table02").to_dict("records"):
            name = str(theirs["setting"])
            source = undefended if name == "vanilla" else sweep[np.isclose(sweep[KEEP], _keep(name))]
            ours = source[source["model"] == model]
            rows.append(
                {
                    "model": model,
                    "setting": "no defense" if name == "vanilla" else f"CDPA, p = {_keep(name):g}",
                    "accuracy, paper (%)": f"{theirs['accuracy']:.1f}",
                    "best round, ours (%)": interval(of_metric(ours, "accuracy_at_best", 100)),
                    "last round, ours (%)": interval(of_metric(ours, "accuracy", 100)),
                    "gap, paper": f"{theirs['generalization_error']:.2f}",
                    "gap, ours": interval(of_metric(ours, "generalisation_gap"), ".3f"),
                }
            )
    return pd.DataFrame(rows)


def _keep(setting: str) -> float:
    """The p of ``p=0.90``; NaN of others."""
    return float(setting.removeprefix("p=")) if setting.startswith("p=") else math.nan


SENT = {"CAFL": 0.5, "SignSGD": 1 / 32, "JoPEQ": 0.5, "GradDrop": 0.4, "SDQ": 0.5, "LDP": 1.0, "CDPA": 0.5}
"""Part of the elements that a defense sends by its own parameters (16 of 32 bits, one bit, theta). Soteria's depends on
the model."""
KG_PER_MINUTE = 1 / 3
"""Ratio of CO2 to time in nearly all rows of Table IV."""


def contradictions(reference: pd.DataFrame) -> set[tuple[str, str, str]]:
    """Model, method and column of the printed numbers of Table IV that others of it contradict, beyond rounding.

    A difference of accuracies must be that of the accuracies, a percentage that of its column, kg of CO2 a third of the
    minutes to 5 %, and elements the part of the undefended ones that the method's parameters say, to 0.5 %.
    """
    contradicted: set[tuple[str, str, str]] = set()
    for model, rows in reference.groupby("model", sort=False):
        none = rows[rows["method"] == "none"].iloc[0]
        for row in rows.to_dict("records"):
            wrong = {"kgco2": _off_the_clock(row["minutes"], row["kgco2"])}
            if row["method"] != "none":
                delta = float(row["acc"]) - float(none["acc"])
                wrong["delta_acc"] = abs(delta - float(row["delta_acc"])) > 0.15 + 1e-9  # three roundings of 0.05
                wrong["pct_kg"] = not _is_percentage(row["pct_kg"], row["kgco2"], none["kgco2"], 0.05)
                wrong["pct_mb"] = not _is_percentage(row["pct_mb"], row["mb"], none["mb"], 0.5e-4)
                if row["method"] in SENT:
                    expected, rounding = SENT[row["method"]] * none["mb"], 0.5e-4 * (1 + SENT[row["method"]])
                    wrong["mb"] = abs(row["mb"] - expected) > rounding + 0.005 * expected
            contradicted |= {(str(model), row["method"], column) for column, is_wrong in wrong.items() if is_wrong}
    return contradicted


def _off_the_clock(minutes: str, kg: float) -> bool:
    return abs(kg / (KG_PER_MINUTE * float(str(minutes).lstrip(">"))) - 1) > 0.05


def _is_percentage(text: str, value: float, reference: float, rounding: float) -> bool:
    """Whether numbers that round to these differ by a percentage that rounds to ``text`` or is cut off there.

    Bounds (<, >) pass.
    """
    if any(sign in text for sign in "<>"):
        return True
    ends = [100 * ((value + side * rounding) / (reference - side * rounding) - 1) for side in (-1, 1)]
    inwards, outwards = 0.1 + 1e-9, 0.05 + 1e-9  # cutting off makes numbers smaller
    below, above = (outwards, inwards) if ends[0] < 0 else (inwards, outwards)
    return ends[0] - below <= float(text) <= ends[1] + above


@table(
    4,
    title="Accuracy, time, carbon and communication",
    caption="Accuracy in percent and in points from no defense, minutes, kg of CO2, and what a client sends per round "
    "in mebi-elements (2^20 numbers of 32 bits, which the paper calls Mb), each beside its change by the defense in "
    "percent. Ours: accuracy on the test images after the last round; minutes of all rounds (local training, defense, "
    "aggregation) of one run, its share of what runs side by side, on our machine: processor time on a CPU, wall time "
    "on a GPU; CO2 measured by codecarbon, which counts memory for as long as a run takes, so that a busy "
    "machine shows, and by the paper's formula, power x these minutes x intensity. "
    f"{MEANS} Changes are seed by seed. *: a printed number that others of the table contradict beyond rounding: its "
    "change is not that of its column, its CO2 is off the third of a kg per minute of all other rows by more than 5 %, "
    f"or its elements are not the part that the method's own parameters send. {NONE}: not printed, or not known.",
    experiments=(reads("utility", defenses=TRAINED, models=MODEL_LABELS),),
)
def table04(tables: Tables) -> pd.DataFrame:
    """A row per model and method."""
    frame, reference = tables["utility"], printed("table04")
    wrong = contradictions(reference)
    rows = []
    for dataset, model in cells_of(frame):
        cell = of_cell(frame, dataset, model)
        quantities = _quantities(cell)
        for label, mechanism in defenses_of(cell).items():
            method = defense_name(label, mechanism)
            of_paper = reference[(reference["model"] == model_name(model)) & (reference["method"] == method)]
            theirs = partial(_theirs, of_paper, wrong)
            ours = partial(_ours, quantities, label)
            rows.append(
                {
                    "model": model,
                    "method": method,
                    "accuracy, paper": theirs("acc"),
                    "accuracy, ours": ours("accuracy"),
                    "change, paper": theirs("delta_acc"),
                    "change, ours": ours("accuracy", how=operator.sub),
                    "minutes, paper": theirs("minutes"),
                    "minutes, ours": ours("minutes", ".3g"),
                    "minutes, change (%)": ours("minutes", how=percentage),
                    "kg CO2, paper": theirs("kgco2"),
                    "kg CO2, measured": ours("carbon_kg", ".3g"),
                    "kg CO2, formula": ours("carbon_formula_kg", ".3g"),
                    "CO2 change, paper (%)": theirs("pct_kg"),
                    "CO2 change, measured (%)": ours("carbon_kg", how=percentage),
                    "mebi-elements, paper": theirs("mb"),
                    "mebi-elements, ours": ours("mebi_elements", ".4f"),
                    "their change, paper (%)": theirs("pct_mb"),
                    "their change, ours (%)": ours("mebi_elements", how=percentage),
                }
            )
    return pd.DataFrame(rows)


def _theirs(row: pd.DataFrame, wrong: Collection[tuple[str, str, str]], column: str) -> str:
    """A printed number as it is printed, marked where others of the table contradict it."""
    if row.empty or row[column].iloc[0] == "-":
        return NONE
    marked = (row["model"].iloc[0], row["method"].iloc[0], column) in wrong
    return f"{row[column].iloc[0]}{'*' if marked else ''}"


def _ours(
    quantities: Mapping[str, pd.DataFrame], label: str, name: str, form: str = ".1f", how: Comparison | None = None
) -> str:
    """A defense's quantity, or how it compares with that of no defense."""
    whole = quantities[name]
    rows = whole[whole["defense"] == label]
    if how is None:
        return interval(rows, form)
    bare = whole[whole["mechanism"] == "none"]
    return NONE if label in set(bare["defense"]) else interval(compared(rows, bare, how), form)


def _quantities(cell: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Quantities by name, each a row per defense and seed, in the units of the table."""
    measured = {name: of_metric(cell, name) for name in ("carbon_kg", "carbon_formula_kg", "mebi_elements")}
    return measured | {"accuracy": of_metric(cell, "accuracy", 100), "minutes": of_metric(cell, "seconds", 1 / 60)}


@table(
    "S2",
    title="Sizes of the models",
    caption="Parameters of the models of Table IV, counted, in numbers and in mebi-elements (2^20 numbers, the paper's "
    "Mb), beside what the paper says a client sends undefended. A client also sends the running statistics of "
    "BatchNorm, which are no parameters: SimpleCNN has none.",
    experiments=(reads("architectures", models=MODEL_LABELS),),
)
def table_s2(tables: Tables) -> pd.DataFrame:
    """A row per model."""
    sent = printed("table04").query("method == 'none'").set_index("model")["mb"].to_dict()
    counts = tables["architectures"].groupby("model", sort=False)["value"].agg(["count", "sum"])
    return pd.DataFrame(
        {
            "model": counts.index,
            "tensors": counts["count"].tolist(),
            "parameters": [f"{count:,.0f}" for count in counts["sum"]],
            "mebi-elements": [f"{count / 2**20:.4f}" for count in counts["sum"]],
            "sent, paper": [f"{sent[name]:.4f}" if (name := model_name(label)) else NONE for label in counts.index],
        }
    )


TRAINING = {"utility": "paper's", "utility_released": "released code's, with momentum"}
"""Experiment -> whose local training it has."""


@table(
    "S3",
    title="The paper's training and the released code's",
    caption="Test accuracy in percent after the last round, and the generalisation error of the best round, |train "
    "loss - test loss| in nats, without a defense and with one (CDPA: p = 0.98). The paper names a step of 0.1; its "
    "public code has one of 0.01 and momentum of 0.5, kept between rounds. Changes are seed by seed; only models that "
    f"were trained both ways. {MEANS}",
    experiments=[reads(experiment, defenses=("none", "cdpa")) for experiment in TRAINING],
)
def table_s3(tables: Tables) -> pd.DataFrame:
    """A row per model, training and defense that was trained with in both ways."""
    both = set(tables["utility"]["model"]) & set(tables["utility_released"]["model"])
    rows = []
    for model in (name for name in tables["utility"]["model"].drop_duplicates() if name in both):
        for experiment, words in TRAINING.items():
            frame = tables[experiment][tables[experiment]["model"] == model]
            bare = frame[frame["defense"] == "none"]
            for label, name in series_of(tables["utility_released"], {"cdpa": "CDPA"}).items():
                defended = frame[frame["defense"] == label]
                accuracies = [of_metric(part, "accuracy", 100) for part in (bare, defended)]
                rows.append(
                    {
                        "model": model,
                        "training": words,
                        "defense": name,
                        "no defense (%)": interval(accuracies[0]),
                        "defended (%)": interval(accuracies[1]),
                        "change (points)": interval(compared(accuracies[1], accuracies[0], operator.sub)),
                        "gap, no defense": interval(of_metric(bare, "generalisation_gap"), ".3f"),
                        "gap, defended": interval(of_metric(defended, "generalisation_gap"), ".3f"),
                    }
                )
    return pd.DataFrame(rows)


IMAGES = {
    "psnr": ("PSNR (dB)", ASSIGNED + "psnr", ".2f"),
    "ssim": ("SSIM", ASSIGNED + "ssim_global", ".3f"),
    "lpips": ("LPIPS", ASSIGNED + "lpips", ".3f"),
}
"""Printed metric -> its column, ours, and its format. The paper's code has one window for the whole image."""


@table(
    8,
    title="CDPA over the probability of keeping a bit",
    caption="Accuracy in percent (test images, last round) of federated training with CDPA, and what ROG makes of its "
    "messages; epsilon is ln(p / (1 - p)), that of one bit. Printed beside ours: accuracy of the model named, ROG on "
    "its own data and network, ours after assignment within a batch. SSIM has one window for the whole image, as in "
    "the paper's code. The paper's images of CDPA, at 5 dB, are further from the truth than a constant grey (11 dB on "
    f"its data). void: ROG is too weak without a defense, so that its number says nothing; {NONE}: not known "
    f"(missing.csv of the experiment says why). {MEANS}",
    experiments=("utility_p", reads("rog_p", attacks=ROG)),
    leaves_out="its rows are CDPA over p, beside no defense",
)
def table08(tables: Tables) -> pd.DataFrame:
    """A row per model and p."""
    utility, rog = having(tables["utility_p"], "p"), having(tables["rog_p"], "p")
    rog = rog[rog["attack"] == ROG]
    reference = printed("table08")
    rows = []
    for model in utility["model"].drop_duplicates():
        trained = utility[utility["model"] == model]
        for keep in _ascending(trained[KEEP], rog[KEEP], reference["p"]):
            theirs = reference[np.isclose(reference["p"], keep)]
            attacked = rog[np.isclose(rog[KEEP], keep)]
            row = {
                "model": model,
                "p": f"{keep:g}",
                "epsilon per bit": f"{epsilon_per_bit(keep):.3f}",
                "accuracy, paper (%)": NONE if theirs.empty else f"{theirs['accuracy'].iloc[0]:.1f}",
                "accuracy, ours (%)": interval(of_metric(trained[np.isclose(trained[KEEP], keep)], "accuracy", 100)),
            }
            for name, (title, metric, form) in IMAGES.items():
                row[f"{title}, paper"] = NONE if theirs.empty else f"{theirs[name].iloc[0]:.3f}"
                row[f"{title}, ours"] = _judged(of_metric(attacked, metric), form)
            rows.append(row)
    return pd.DataFrame(rows)


def _ascending(*columns: Iterable[float]) -> list[float]:
    """The distinct values of some columns, to six decimals."""
    return sorted({round(float(value), 6) for column in columns for value in column if not math.isnan(value)})


def _judged(values: pd.DataFrame, form: str) -> str:
    text = interval(values, form)
    if text == NONE:
        return text
    return marked(text, values) + (" (void)" if values["void"].any() else "")
