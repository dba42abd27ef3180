"""The paper's printed numbers in the places of records: Tables II to VIII, and the numbers in the text of Fig. 8.

Table VII prints no row for p = 0.8, Fig. 8 only four numbers, and Fig. 5, 9, 11 and 14 none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from leakbench.lazy import pd
from leakbench.metrics.text import ROUGES
from leakbench.papers.cdpa import attacked, text_attacked
from leakbench.papers.cdpa.claims import ACCURACY, CARBON, GAP, IMPUTED, LPIPS, PSNR, SENT, SIZE, SSIM
from leakbench.papers.cdpa.common import DEFENSES, printed
from leakbench.papers.cdpa.text_attacked import as_printed
from leakbench.papers.cdpa.text_printed import scores
from leakbench.report.artifacts import Tables
from leakbench.report.reference import Printed, tidy_table

RESNET, INVERTED = ("cifar10", "resnet18"), ("cifar10", "convnet")
RECONSTRUCTED, SENTENCES = ("imagenet128", "rog-resnet18"), ("cola-short", "bert")
"""Data set and model of Tables II and VIII, of Fig. 8, of ROG, and of the attacks on text."""

LIKENESS = {"psnr": PSNR, "ssim": SSIM, "lpips": LPIPS}
"""Columns of Tables III, VII and VIII -> metrics. The paper says nothing of the order of ROG's images: its numbers
stand for those after assignment, of which claims speak."""

TRAINED = {name: mechanism.replace("_", "-") for mechanism, name in DEFENSES.items()}
ATTACKED = {name: label for label, name in attacked.DEFENSES.items()} | {"none": "none"}
ON_TEXT = {name: label for label, name in text_attacked.DEFENSES.items()}
"""The paper's names of defenses -> labels in training, under attack, and under attack on text."""
ATTACKS = {"DLG": text_attacked.DLG, "TAG": text_attacked.TAG, "LAMP": "lamp-cos"}
"""Attacks of Table V -> labels. The paper does not say which LAMP it ran; claims take the only one that is there."""


def tables() -> Tables:
    """Tidy tables by experiment, of what the paper prints."""
    return {
        "utility": tidy_table(chain(_table_iv(), _trained_without_flips())),
        "utility_p": tidy_table(_over_p()),
        "inversion": tidy_table(_fig_8()),
        "rog": tidy_table(_table_iii()),
        "rog_p": tidy_table(chain(_reconstructed_over_p(), _table_vii())),
        text_attacked.ATTACKED: tidy_table(chain(_table_v(), _words_of_table_vi())),
    }


def _table_iv() -> Iterator[Printed]:
    """Accuracy in parts, size and carbon. The latter is a third of the minutes but for two rows (I13)."""
    for row in printed("table04").to_dict("records"):
        cell, label = ("cifar10", row["model"].lower()), TRAINED[row["method"]]
        for metric, value in ((ACCURACY, row["acc"] / 100), (SIZE, row["mb"]), (CARBON, row["kgco2"])):
            yield Printed(cell, label, metric, value)


def _trained_without_flips() -> Iterator[Printed]:
    """The row of Table II that is of no CDPA; its accuracy is that of Table IV."""
    gaps = printed("table02").set_index("setting")["generalization_error"]
    yield Printed(RESNET, "none", GAP, gaps["vanilla"])


def _over_p() -> Iterator[Printed]:
    """Generalisation errors of Table II, whose p is in the name of the row, and accuracies of Table VIII."""
    for row in printed("table02").to_dict("records"):
        if row["setting"].startswith("p="):
            p = float(row["setting"].removeprefix("p="))
            yield Printed(RESNET, "cdpa-p", GAP, row["generalization_error"], setting={"p": p})
    for row in printed("table08").to_dict("records"):
        yield Printed(RESNET, "cdpa-p", ACCURACY, row["accuracy"] / 100, setting={"p": row["p"]})


def _fig_8() -> Iterator[Printed]:
    """LPIPS from the text of Fig. 8, which names no attack for SDQ: its number, beside signSGD's, is read as IG's."""
    for row in printed("fig08").to_dict("records"):
        yield Printed(INVERTED, ATTACKED[row["method"]], "lpips", row["lpips"], row["attack"].lower())


def _table_iii() -> Iterator[Printed]:
    """ROG, as one attack: the paper has no numbers without the networks behind it."""
    for row in printed("table03").to_dict("records"):
        for column, metric in LIKENESS.items():
            yield Printed(RECONSTRUCTED, ATTACKED[row["defense"]], metric, row[column], "rog")


def _reconstructed_over_p() -> Iterator[Printed]:
    """ROG on CDPA of Table VIII."""
    for row in printed("table08").to_dict("records"):
        for column, metric in LIKENESS.items():
            yield Printed(RECONSTRUCTED, f"{SENT}-p", metric, row[column], "rog", {"p": row["p"]})


def _table_vii() -> Iterator[Printed]:
    """ROG after outliers were replaced."""
    for row in printed("table07").to_dict("records"):
        for attack, column in zip(IMPUTED, ("impute_mean", "impute_0"), strict=True):
            yield Printed(RECONSTRUCTED, f"{SENT}-p", LIKENESS[row["metric"]], row[column], attack, {"p": row["p"]})


def _table_v() -> Iterator[Printed]:
    """ROUGE, of sentences with their special tokens."""
    for row in printed("table05").to_dict("records"):
        for rouge in ROUGES:
            yield Printed(SENTENCES, ON_TEXT[row["defense"]], as_printed(rouge), row[rouge], ATTACKS[row["attack"]])


def _words_of_table_vi() -> Iterator[Printed]:
    """ROUGE-1 of the words that LAMP finds from CDPA, computed from the printed sentence.

    It is one sentence of the hundred whose mean claims speak of. Under LAMP it is nothing but padding, and the mean of
    Table V, 19.8, is about what special tokens alone score. Under DLG and TAG it is 4 points or so above that, so that
    one sentence without a word of the victim says nothing of the others.
    """
    scored: pd.DataFrame = scores(printed("table06"))
    for row in scored[(scored["defense"] == "CDPA") & (scored["attack"] == "LAMP")].to_dict("records"):
        yield Printed(SENTENCES, ON_TEXT["CDPA"], "rouge1", row["rouge1"], ATTACKS["LAMP"])
