"""The channel paper's schematics and figures of gradient inversion: the numbers that they show."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.papers.drawn import Tables, draw, per_seed, smoke_tables
from tests.report.synthetic import ROOT

from leakbench.jobs.base import Job
from leakbench.papers.channel.jobs.calibrate import DIRECTIONS, VISITS
from leakbench.planning.project import Project
from leakbench.records import Replicate
from leakbench.report.artifacts import artifact_of

PAPER = "channel"
NOTHING: Tables = {}


def known(_: Job, replicate: Replicate) -> None:
    """Eigenvalues by a power law; a channel has the capacity that is asked for."""
    eigenvalues: list[float | None] = [100.0 * (1 + k) ** -1.3 for k in range(DIRECTIONS)]
    replicate.metrics |= {"eigenvalues": eigenvalues, "trace": 256.0}
    if "kappa" in replicate.setting:
        kappa = float(replicate.setting["kappa"])
        replicate.metrics |= {"kappa": kappa, "capacity": kappa, "mmse": 1 / kappa}
        replicate.metrics["fresh_capacity"] = [kappa * visits**0.5 for visits in VISITS]
    elif "direction" in replicate.setting:
        replicate.metrics["mmse"] = 0.4 / (1 + float(replicate.setting["direction"]))
    capacity: Any = replicate.metrics["capacity"]
    replicate.metrics["log_factor"] = -2 * capacity / 256


@pytest.fixture
def tables() -> Tables:
    return smoke_tables(PAPER, calibrate=known)


@pytest.mark.parametrize(
    ("name", "metric"), [("fig14", "mse_input"), ("fig30", "mse_input"), ("fig31", "psnr"), ("fig33", "cosine")]
)
def test_heatmaps(tables: Tables, name: str, metric: str) -> None:
    numbers = draw(name, tables, paper=PAPER).numbers
    frame = tables["inversion"]
    datasets = list(dict.fromkeys(frame["dataset"]))
    shown = {"fig14": datasets[:1], "fig30": datasets[1:]}.get(name, datasets)
    assert list(dict.fromkeys(numbers["dataset"])) == shown
    for row in numbers.to_dict("records"):
        equal = {"metric": metric, "dataset": row["dataset"]}
        if math.isnan(row["kappa"]):
            attack = {"no defense": "ig", "mean image": "mean_image", "constant grey": "grey", "random noise": "noise"}
            equal |= {"mechanism": "none", "attack": attack[row["series"]]}
        else:
            equal |= {"defense": row["series"], "attack": "ig", "setting.kappa": row["kappa"]}
        values = per_seed(frame, **equal)
        assert row["mean"] == pytest.approx(sum(values) / len(values))
    assert len(numbers) == len(shown) * (3 * 3 + 4)


def test_the_floor_stands_below_the_error(tables: Tables) -> None:
    drawing = draw("figS1", tables, paper=PAPER)
    numbers = drawing.numbers[drawing.numbers["kappa"].notna()]
    assert numbers["least"].tolist() == pytest.approx((1 / numbers["kappa"]).tolist()) and len(numbers) == 9
    words = [text.get_text() for text in drawing.figure.axes[0].texts]
    assert sum(word.endswith("\n(0.1)") for word in words) == 3


def test_a_void_cell_says_so(tables: Tables) -> None:
    frame = tables["inversion"]
    first = frame["dataset"].iloc[0]
    frame.loc[frame["dataset"] == first, "void"] = True
    drawing = draw("fig31", tables, paper=PAPER)
    assert drawing.shows_void
    titles = [ax.get_title() for ax in drawing.figure.axes]
    assert ["void" in title for title in titles] == [title.startswith(first) for title in titles]


def test_batch_sizes(tables: Tables) -> None:
    numbers = draw("fig06", tables, paper=PAPER).numbers
    assert set(numbers["series"]) == {"no defense", "DP-SGD", "constant noise", "mean image", "constant grey"}
    values = per_seed(
        tables["batch_size"],
        **{"metric": "mse_input", "defense": "dp-sgd-1.3", "attack": "ig-one", "setting.batch_size": 16},
    )
    row = numbers[(numbers["series"] == "DP-SGD") & (numbers["batch_size"] == 16)].iloc[0]
    assert row["mean"] == pytest.approx(sum(values) / len(values))


def test_compression(tables: Tables) -> None:
    numbers = draw("fig08", tables, paper=PAPER).numbers
    removed = numbers[numbers["direction"].notna()]
    assert removed["direction"].unique().tolist() == [0, 1, 10]
    assert removed["least"].tolist() == pytest.approx([0.4, 0.2, 0.4 / 11] * removed["dataset"].nunique())


def test_pictures(tables: Tables) -> None:
    clean = torch.full((2, 3, 16, 16), 0.5)
    noisy = clean + torch.tensor([0.3, 0.2, 0.1])[:, None, None, None, None]
    kept = SimpleNamespace(tensors=lambda *_: {"seed0/clean": clean, "seed0/protected": noisy})
    numbers = draw("fig05", tables, kept, paper=PAPER).numbers
    assert len(numbers) == 3 * 3 * 2
    assert numbers["mse_pixels"].tolist()[:6] == pytest.approx([0.09, 0.04, 0.01, 0.09, 0.04, 0.01])


def test_signal_noise_and_accumulation(tables: Tables) -> None:
    numbers = draw("fig01", tables, paper=PAPER).numbers
    images = numbers[numbers["series"] == "images"].set_index("direction")["variance"]
    for row in numbers[numbers["series"] != "images"].to_dict("records"):
        assert row["nats"] == pytest.approx(math.log1p(images[row["direction"]] / row["variance"]) / 2)
    added = draw("fig02", tables, paper=PAPER).numbers
    assert added["factor"].to_numpy() == pytest.approx((-2 * added["nats"] / 256).map(math.exp).to_numpy())
    once = added[added["series"] == "noise drawn once"]
    assert once["nats"].unique().tolist() == [50]


def formula(name: str) -> Any:
    return draw(name, NOTHING, paper=PAPER).numbers


def test_formulas_need_no_experiment() -> None:
    capacity = formula("fig03")
    for row in capacity.sample(20, random_state=0).to_dict("records"):
        assert row["nats_per_dimension"] == pytest.approx(math.log1p(row["lambda"] / row["sigma"]) / 2)
    toy = formula("fig04")
    rounds = toy[(toy["kind"] == "round") & (toy["series"] == "noise on the parameter")]
    assert rounds["weight"].tolist() == [2, 6, 18]
    assert rounds["capacity"].tolist()[:2] == pytest.approx([1, 2.03452623926])
    assert rounds["variance_for_1_nat"].tolist()[:2] == pytest.approx([2.50428228399, 22.53854055596])
    removal = formula("fig07")
    assert removal.groupby("series")["capacity"].first().tolist() == pytest.approx([300, 300])
    for _, rows in removal.groupby("series"):
        assert rows["capacity"].is_monotonic_decreasing and rows["noise_ratio"].is_monotonic_increasing
    beta = formula("fig17")
    assert beta["beta"].value_counts().to_dict() == {1.0: 896, 50.0: 128}
    assert beta[beta["beta"] == 50][["row", "column"]].agg(["min", "max"]).values.tolist() == [[12, 8], [19, 23]]


def test_captions_without_experiments() -> None:
    project = Project(ROOT, {"papers": [PAPER]})
    caption = artifact_of("figures/smoke/channel/fig17.csv").full_caption(project, "smoke")
    assert caption.startswith("Figure 17. Beta") and caption.endswith("the same at every scale.")
    assert artifact_of("figures/smoke/channel/fig17.csv").inputs("smoke") == []


@pytest.mark.parametrize("name", ["figS1", "figS2", "figS3"])
def test_supplements_are_drawn(tables: Tables, name: str) -> None:
    numbers = draw(name, tables, paper=PAPER).numbers
    assert numbers["mean"].notna().all() and len(numbers) > 3


def test_relative_least_error(tables: Tables) -> None:
    numbers = draw("figS2", tables, paper=PAPER).numbers
    errors = numbers[(numbers["panel"] == "error") & (numbers["series"].str.startswith("white"))]
    frame = tables["calibration"]
    frame = frame[(frame["metric"] == "mmse") & (frame["defense"] == "white-all")]
    assert sorted(errors["mean"]) == pytest.approx(sorted(frame["value"] / (256 / 256)))
