"""Table 1."""

from __future__ import annotations

from importlib.resources import files

from leakbench.lazy import pd
from leakbench.papers.optimal_defense import PAPER
from leakbench.report.artifacts import Tables, artifact


@artifact(
    PAPER,
    "table",
    1,
    title="Parameters of the MNIST model",
    caption="Number of parameters of every tensor of SimpleConvNet: printed in the paper, and of our model.",
    experiments=("architecture",),
)
def table01(tables: Tables) -> pd.DataFrame:
    """Parameters per tensor, the paper's beside ours, with the total."""
    ours = tables["architecture"][["metric", "value"]].rename(columns={"metric": "tensor", "value": "ours"})
    ours["ours"] = ours["ours"].astype(int)
    reference = files("leakbench.papers.optimal_defense") / "reference" / "table01.csv"
    with reference.open() as file:
        printed = pd.read_csv(file)
    both = printed.merge(ours, on="tensor", how="outer", sort=False)
    extra = ours["tensor"][~ours["tensor"].isin(printed["tensor"])]
    both = both.set_index("tensor").loc[[*printed["tensor"], *extra]].reset_index()
    total = pd.DataFrame([{"tensor": "total", "paper": both["paper"].sum(), "ours": both["ours"].sum()}])
    return pd.concat([both, total], ignore_index=True).astype({"paper": "Int64", "ours": "Int64"})
