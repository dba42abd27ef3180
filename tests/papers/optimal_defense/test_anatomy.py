"""Figures 1, 8, 10 and 14: coordinates, pictures and parameter tensors as the records hold them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from tests.papers.drawn import Tables, draw, interval, series

from leakbench.randomness import generator
from leakbench.report.reconstructions import Row
from leakbench.report.style import COLOURS

PICTURES = {
    "fig08": (
        "pictures",
        {"none": "no defense", "dpsgd-0.05": "clipped noise 0.05", "optimal-0.1": "optimal noise 0.1"},
    ),
    "fig10": (
        "cifar_pictures",
        {"none": "no defense", "gp-90": "gradient pruning 90 %", "op-80": "optimal pruning 80 %"},
    ),
}


class Coordinates:
    """Stands for what the record of the coordinates keeps: 400 weights and 20 biases, two of which are zero."""

    def __init__(self) -> None:
        draw = generator("coordinates")
        self.found: dict[str, torch.Tensor] = {}
        for name, shape in {"last.bias": (20,), "first.weight": (20, 20)}.items():
            gradient = torch.randn(shape, generator=draw) * 0.01
            sensitivity = torch.rand(shape, generator=draw) * 0.1
            self.found[f"seed0/gradient/{name}"] = gradient
            self.found[f"seed0/sensitivity/{name}"] = sensitivity
            self.found[f"seed0/variance0/{name}"] = 0.003 * sensitivity.sqrt() / gradient.abs().clamp(min=1e-6)
        self.found["seed0/gradient/last.bias"][:2] = 0.0

    def tensors(self, *job: str) -> dict[str, torch.Tensor]:
        assert job == ("coordinates", "optimal-0.1", "fisher")
        return self.found

    def all(self, kind: str) -> np.ndarray:
        return np.concatenate(
            [self.found[f"seed0/{kind}/{name}"].double().flatten().numpy() for name in ("first.weight", "last.bias")]
        )


def test_noise_of_coordinates(tables: Tables) -> None:
    kept = Coordinates()
    drawing = draw("fig01", tables, kept)
    left, right = drawing.figure.axes[:2]
    numbers, variance = drawing.numbers, kept.all("variance0")
    isotropic = math.sqrt(variance.mean())

    cells = numbers[numbers["panel"] == "coordinates"]
    assert cells["count"].sum() == 418 and (cells[["magnitude", "sensitivity"]] > 0).all(axis=None)
    seen = np.abs(kept.all("gradient"))
    assert cells["magnitude"].between(seen[seen > 0].min() / 2, seen.max() * 2).all()
    (part,) = numbers.loc[numbers["panel"] == "more noise than isotropic", "part"]
    assert part == (variance > variance.mean()).mean()
    assert any(f"{part:.0%} of the coordinates" in text.get_text() for text in left.texts)
    (line,) = left.lines  # where the variance that the ratio asks for is the isotropic one
    x, y = (np.asarray(data, dtype=float) for data in line.get_data())
    assert 0.003 * y / x == pytest.approx([isotropic**2] * 2, rel=1e-3)

    rows = numbers[numbers["panel"] == "tensors"].set_index("tensor")
    assert rows.index.tolist() == ["first.weight", "last.bias", "isotropic"]  # in the order of the layers
    for name in rows.index[:2]:
        deviations = np.sqrt(kept.found[f"seed0/variance0/{name}"].double().numpy())
        levels = np.quantile(deviations, [0.05, 0.25, 0.5, 0.75, 0.95])
        found = rows.loc[name, ["5 %", "25 %", "median", "75 %", "95 %"]].to_numpy(dtype=float)
        assert found == pytest.approx(levels)
        assert rows.loc[name, "largest"] == pytest.approx(deviations.max())
    assert rows.loc["isotropic", "median"] == pytest.approx(isotropic)
    (level,) = [line for line in right.lines if str(line.get_label()).startswith("isotropic")]
    assert set(np.asarray(level.get_xdata(), dtype=float)) == {rows.loc["isotropic", "median"]}


class Pictures:
    """Stands for the records of pictures: every defense made something else of the same four images."""

    def __init__(self, channels: int) -> None:
        self.victims = torch.rand(4, channels, 5, 5, generator=generator("victims"))

    def reconstructions(self, experiment: str, defense: str, attack: str) -> list[Row]:
        draw = generator(experiment, defense, attack)
        images = torch.rand(self.victims.shape, generator=draw)
        return [Row("as in show", self.victims, images, 30 * torch.rand(4, generator=draw))]


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(tables: Tables, name: str) -> None:
    experiment, names = PICTURES[name]
    kept: Any = Pictures(1 if name == "fig08" else 3)
    drawing = draw(name, tables, kept)
    axes = drawing.figure.axes
    assert [axes[4 * row].get_ylabel().replace("\n", " ") for row in range(4)] == ["truth", *names.values()]
    attack = "ig" if name == "fig08" else "ig-cifar"
    rows = [(kept.victims, None)] + [
        (row.images, row.psnr) for defense in names for row in kept.reconstructions(experiment, defense, attack)
    ]
    for place, ax in enumerate(axes):
        images, decibels = rows[place // 4]
        pixels = np.asarray(ax.images[0].get_array())
        assert np.array_equal(pixels, images[place % 4].permute(1, 2, 0).squeeze(2).numpy())
        assert ax.get_xlabel() == (f"no. {place}" if decibels is None else f"{decibels[place % 4]:.1f} dB")
    for defense, label in names.items():
        (row,) = kept.reconstructions(experiment, defense, attack)
        assert series(drawing.numbers, label)["psnr"].tolist() == row.psnr.tolist()


def test_pictures_of_defenses_that_a_user_adds_or_removes(tables: Tables) -> None:
    frame = tables["pictures"]
    frame.loc[frame["defense"] == "dpsgd-0.05", "defense"] = "mine"
    numbers = draw("fig08", tables, Pictures(1)).numbers
    assert numbers["series"].unique().tolist() == ["no defense", "optimal noise 0.1", "mine"]


def test_noise_per_tensor(tables: Tables) -> None:
    drawing, frame = draw("fig14", tables), tables["noise_training"]
    weights, biases = drawing.figure.axes
    assert (weights.get_title(), biases.get_title()) == ("weights", "biases")
    assert weights.get_ylim() == biases.get_ylim()
    layers = ["conv_layers.0", "conv_layers.3", "fc_layers.1", "fc_layers.3"]
    looks = []
    for ax, kind in ((weights, "weight"), (biases, "bias")):
        lines = {str(line.get_label()): line for line in ax.lines}
        assert list(lines) == [*(f"optimal noise, {layer}" for layer in layers), "isotropic noise"]
        for layer in layers:
            line, rows = lines[f"optimal noise, {layer}"], series(drawing.numbers, f"{layer}.{kind}")
            assert np.asarray(line.get_ydata()).tolist() == rows["mean"].tolist()
            assert rows["step"].tolist() == [*range(1, 21)]
            metric = frame[(frame["metric"] == f"noise_std/{layer}.{kind}") & (frame["defense"] == "optimal-0.1")]
            levels = metric.pivot_table(index="index", columns="seed", values="value").to_numpy()
            for step in (0, 4, 9, 10, 19):  # trailing means over ten steps
                expected = interval(levels[max(0, step - 9) : step + 1].mean(axis=0).tolist())
                assert tuple(rows.iloc[step][["mean", "low", "high"]]) == pytest.approx(expected)
        looks.append([(line.get_color(), line.get_linestyle()) for line in lines.values()])
        level = lines["isotropic noise"]
        isotropic = frame[(frame["defense"] == "dpsgd-0.1") & frame["metric"].str.startswith("noise_std/")]
        assert np.asarray(level.get_ydata(), dtype=float) == pytest.approx([isotropic["value"].mean()] * 2)
        assert to_hex(level.get_color()) == COLOURS["clipped_noise"].lower()
    assert looks[0] == looks[1] and len(set(looks[0])) == 5
    assert to_hex(looks[0][0][0]) == COLOURS["optimal_clipped_noise"].lower()


def test_noise_per_tensor_without_isotropic_noise(tables: Tables) -> None:
    frame = tables["noise_training"]
    drawing = draw("fig14", tables | {"noise_training": frame[frame["defense"] != "dpsgd-0.1"]})
    assert "isotropic noise" not in {line.get_label() for ax in drawing.figure.axes for line in ax.lines}
