"""Table 1: the paper's printed parameter counts beside those of our model."""

from __future__ import annotations

import pandas as pd
import pytest
from tests.report.synthetic import ROOT, record_of

from leakbench.planning.project import Project
from leakbench.report.artifacts import _table_formats, artifact_of
from leakbench.report.tidy import tidy_rows

PRINTED = {
    "conv_layers.0.weight": 288,
    "conv_layers.0.bias": 32,
    "conv_layers.3.weight": 18432,
    "conv_layers.3.bias": 64,
    "fc_layers.1.weight": 100352,
    "fc_layers.1.bias": 32,
    "fc_layers.3.weight": 320,
    "fc_layers.3.bias": 10,
}


def architecture(scale: str) -> pd.DataFrame:
    """The tidy table of the architecture, from counting the real model."""
    (job,) = Project(ROOT).plan(scale).experiment_jobs("optimal_defense", "architecture")
    return pd.DataFrame(tidy_rows(job, record_of(job)))


def make(frame: pd.DataFrame) -> pd.DataFrame:
    table = artifact_of("figures/full/optimal_defense/table01.csv").make({"architecture": frame})
    assert isinstance(table, pd.DataFrame)
    return table


@pytest.mark.parametrize("scale", ["smoke", "full"])
def test_our_model_is_the_papers(scale: str) -> None:
    """Both data sets have images of 28x28; counting reads none of them."""
    table = make(architecture(scale))
    assert list(table.columns) == ["tensor", "paper", "ours"]
    assert table["tensor"].tolist() == [*PRINTED, "total"]
    assert table["paper"].tolist() == table["ours"].tolist() == [*PRINTED.values(), 119_530]


def test_tensors_of_one_side_only_are_shown_as_such() -> None:
    frame = architecture("smoke")
    frame.loc[frame["metric"] == "fc_layers.3.bias", "metric"] = "fc_layers.3.offset"
    frame = pd.concat([frame, frame.tail(1).assign(metric="an.extra", value=5)])
    rows = {tensor: counts for tensor, *counts in make(frame).itertuples(index=False)}
    assert list(rows) == [*PRINTED, "fc_layers.3.offset", "an.extra", "total"]  # in our order
    assert rows["fc_layers.3.bias"] == [10, pd.NA] and rows["fc_layers.3.offset"] == [pd.NA, 10]
    assert rows["total"] == [119_530, 119_535]


def test_formats() -> None:
    caption = "Table 1. 100 % of a_b {1} ~ ^ \\ & $ #."
    formats = _table_formats(make(architecture("full")), caption)
    texts = {extension: content.decode() for extension, content in formats.items()}
    assert texts["csv"].splitlines()[0] == "tensor,paper,ours"
    assert texts["csv"].splitlines()[5] == "fc_layers.1.weight,100352,100352"
    assert texts["csv"].splitlines()[-1] == "total,119530,119530"
    assert "| fc_layers.1.weight   |  100352 | 100352 |" in texts["md"]
    assert texts["md"].endswith(f"\n\n{caption}\n")
    assert r"fc\_layers.1.weight & 100352 & 100352 \\" in texts["tex"]
    escaped = r"Table 1. 100 \% of a\_b \{1\} \textasciitilde{} \textasciicircum{} \textbackslash{} \& \$ \#."
    assert rf"\caption{{{escaped}}}" in texts["tex"]
