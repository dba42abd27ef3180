"""Figures 6, 8 and 12 to 17: what attacks make of images under every defense, in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from leakbench.lazy import pd, torch
from leakbench.papers.cdpa.attacked import (
    DEFENSES,
    DLG,
    IG,
    NAIVE,
    ROG,
    attacked_by_rog,
    distances,
    settings_in_words,
    shown_defenses,
)
from leakbench.papers.cdpa.common import figure
from leakbench.report.artifacts import Tables
from leakbench.report.gallery import gallery, selection
from leakbench.report.gate_verdicts import VOID
from leakbench.report.labels import reads
from leakbench.report.plots import STATISTICS, Drawing, judged
from leakbench.report.reconstructions import Row
from leakbench.report.record_tensors import RecordTensors

EACH = 2
CHOSEN = (
    "Images by the PSNR that the attack reaches without a defense: the best, the median and the worst ones. Below each "
    "its PSNR, of pixels in [0, 1]; a black or a grey image reaches some decibels too."
)


def _void(frame: pd.DataFrame, attack: str) -> str | None:
    """Title of a picture of an attack that missed its gate; None for others."""
    return VOID if frame.loc[frame["attack"] == attack, "void"].any() else None


def _drawing(rows: Mapping[str, Row], void: str | None) -> Drawing:
    """The chosen victims above a row per defense or setting; the first row, undefended, decides which are chosen."""
    first = next(iter(rows.values()))
    drawn = gallery(
        first.victims,
        {name: row.images for name, row in rows.items()},
        first.psnr,
        each=EACH,
        size=0.9,
        title=void,
        victims_label="truth",
        decibels={name: row.psnr for name, row in rows.items()},
    )
    chosen = [(group, image) for group, images in selection(first.psnr, EACH).items() for image in images]
    numbers = [
        {"series": name, "group": group, "image": image, "psnr": float(row.psnr[image]), "void": void is not None}
        for name, row in rows.items()
        for group, image in chosen
    ]
    return Drawing(drawn, pd.DataFrame(numbers))


@figure(
    6,
    title="Reconstructions by ROG",
    caption=f"What ROG makes of one seed's images under every defense, without the networks that refine its images. "
    f"{NAIVE} {CHOSEN}",
    experiments=(attacked_by_rog(),),
    tensors=("rog",),
)
def fig06(tables: Tables, stored: RecordTensors) -> Drawing:
    """Truth, no defense, the defenses."""
    frame = tables["rog"]
    rows = {
        name: row for label, name in shown_defenses(frame).items() for row in stored.reconstructions("rog", label, ROG)
    }
    return _drawing(rows, _void(frame, ROG))


IMAGES = 3


@figure(
    8,
    title="Reconstructions by DLG and Inverting Gradients",
    caption="The first images of the first seed, on the left as DLG, on the right as Inverting Gradients reconstructs "
    "them from the gradients of single images, with the true labels. Behind each defense's name the mean distance from "
    "the truth, over all images and seeds, of DLG and of Inverting Gradients: LPIPS (AlexNet) where its weights are "
    "staged, else 1 - SSIM. The paper's text has 0.79 and 0.71 of LPIPS for CDPA, 0.25 for SDQ and 0.13 for SignSGD "
    f"(both Inverting Gradients). {NAIVE} Below each image its PSNR.",
    experiments=(reads("inversion", defenses=DEFENSES, attacks=(DLG, IG)),),
    tensors=("inversion",),
)
def fig08(tables: Tables, stored: RecordTensors) -> Drawing:
    """A row per defense; the same images twice, one time per attack."""
    frame = tables["inversion"]
    metric, rows = distances(frame)
    means = {(row["defense"], row["attack"]): row for row in judged(rows, ["defense", "attack"]).to_dict("records")}
    reconstructions: dict[str, torch.Tensor] = {}
    decibels: dict[str, torch.Tensor] = {}
    victims: torch.Tensor | None = None
    numbers = []
    for label, name in shown_defenses(frame).items():
        both = [stored.reconstructions("inversion", label, attack)[0] for attack in (DLG, IG)]
        summaries = [means[(label, attack)] for attack in (DLG, IG)]
        title = name + " " + "|".join(f"{row['mean']:.2f}" for row in summaries)
        victims = torch.cat([row.victims[:IMAGES] for row in both])
        reconstructions[title] = torch.cat([row.images[:IMAGES] for row in both])
        decibels[title] = torch.cat([row.psnr[:IMAGES] for row in both])
        numbers += [
            {"series": name, "attack": attack, "metric": metric} | {key: row[key] for key in STATISTICS}
            for attack, row in zip((DLG, IG), summaries, strict=True)
        ]
    assert victims is not None
    words = [
        name + (f" ({VOID})" if frame.loc[frame["attack"] == attack, "void"].any() else "")
        for attack, name in ((DLG, "left: DLG"), (IG, "right: Inverting Gradients"))
    ]
    drawn = gallery(
        victims,
        reconstructions,
        None,
        title=", ".join(words),
        victims_label="truth",
        size=0.9,
        decibels=decibels,
        numbers=[*range(len(victims) // 2)] * 2,
    )
    return Drawing(drawn, pd.DataFrame(numbers))


class Grid(NamedTuple):
    """A figure of the attack under one family of defenses, over their parameters.

    Attributes:
        title: of the figure.
        words: the first sentence of the caption.
        series: defense label -> its name; a setting's follows.
        settings: swept parameter -> how a value of it is written.
    """

    title: str
    words: str
    series: Mapping[str, str]
    settings: Mapping[str, str]


GRIDS: Mapping[int, Grid] = {
    12: Grid(
        "Soteria",
        "Soteria, by the fraction of the features whose gradients are pruned.",
        {"soteria-grid": "Soteria"},
        {"fraction": "{value:.0%}"},
    ),
    13: Grid(
        "quantisers",
        "QSGD by its number of levels, SDQ by its bits, and SignSGD.",
        {"qsgd-grid": "QSGD", "sdq-grid": "SDQ", "sign-sgd": "SignSGD"},
        {"levels": "{value:g}-level", "bits": "{value:g}-bit"},
    ),
    14: Grid(
        "Laplace noise",
        "Local differential privacy with Laplace noise, by epsilon, which is that of one coordinate.",
        {"laplace-eps": "LDP"},
        {"epsilon": "$\\epsilon={value:g}$"},
    ),
    15: Grid(
        "GradDrop",
        "GradDrop, by the fraction of the coordinates that are dropped.",
        {"grad-drop-grid": "GradDrop"},
        {"fraction": "{value:.0%}"},
    ),
    16: Grid(
        "JoPEQ",
        "JoPEQ, by the epsilons for which the released code names its noise.",
        {
            "jopeq-1": "JoPEQ $\\epsilon=1$",
            "jopeq-2": "JoPEQ $\\epsilon=2$",
            "jopeq-3": "JoPEQ $\\epsilon=3$",
            "jopeq": "JoPEQ $\\epsilon=4$",
        },
        {},
    ),
    17: Grid(
        "CAFL",
        "CAFL, by the fraction of the coefficients that are sent, at epsilon 1.",
        {"cafl-grid": "CAFL"},
        {"fraction": "{value:.0%}"},
    ),
}


def grid(tables: Tables, stored: RecordTensors, *, shown: Grid) -> Drawing:
    """Truth, no defense, and the settings of the defenses that the experiment has."""
    frame = tables["rog_grids"]
    rows = {"no defense": stored.reconstructions("rog", "none", ROG)[0]}
    for label, name in shown.series.items():
        if label in set(frame["defense"]):
            swept = stored.reconstructions("rog_grids", label, ROG)
            words = settings_in_words(frame, label, shown.settings)
            rows |= {f"{name} {word}".strip(): row for word, row in zip(words, swept, strict=True)}
    return _drawing(rows, _void(frame, ROG))


for number, entry in GRIDS.items():
    figure(
        number,
        title=f"Reconstructions by ROG under {entry.title}",
        caption=f"{entry.words} {NAIVE} The settings are ours, the paper prints none. Whether training survives a "
        f"setting is not shown. {CHOSEN}",
        experiments=(attacked_by_rog(defenses=["none"]), reads("rog_grids", defenses=entry.series, attacks=ROG)),
        tensors=("rog", "rog_grids"),
        leaves_out="it is about the settings of one kind of defense; Figure 6 compares defenses",
    )(partial(grid, shown=entry))
