"""Table S1, and the models behind it: random attackers of a few beliefs, whose leakage is exact."""

from __future__ import annotations

from dataclasses import dataclass

from leakbench.lazy import pd, torch
from leakbench.papers.tfl_meta import PAPER
from leakbench.papers.tfl_meta.common import table
from leakbench.randomness import generator
from leakbench.report.artifacts import Tables
from leakbench.report.wording import NONE
from leakbench.theory.leakage_surrogate import (
    amplification,
    largest_log_ratio,
    leakage,
    leakage_bounds,
    printed_bound,
    total_variation,
)

STATES = range(2, 6)
"""Numbers of uploads, and of candidates."""
EACH = 6500
"""Models of every pair of those."""
BINARY = 50_000
"""Models of two uploads and two candidates beside, the same but for the order: worst cases are of that kind."""
ROUNDING = 1e-12
LEAST = 1e-5
"""C1 of a model that counts; roots of less are of rounding."""


@dataclass(frozen=True)
class Toys:
    """Exact quantities of each model, float64 ``[N]``.

    Attributes:
        c1: leakage of the unprotected upload.
        c2: factor of total variation.
        variation: total variation between uploads before and after.
        leaked: leakage of the protected upload.
    """

    c1: torch.Tensor
    c2: torch.Tensor
    variation: torch.Tensor
    leaked: torch.Tensor

    @property
    def x(self) -> torch.Tensor:
        """``C2 TV``."""
        return self.c2 * self.variation


def toys() -> Toys:
    """Every model: beliefs given an upload, laws of uploads before and after, a prior that is their mean."""
    drawn = generator(PAPER, "toy")
    groups = [_mixed(uploads, candidates, drawn) for uploads in STATES for candidates in STATES]
    groups.append(_symmetric(drawn))
    parts = []
    for posterior, prior, before, after in groups:
        beliefs = [(law.unsqueeze(-2) @ posterior).squeeze(-2) for law in (before, after)]
        c1, leaked = (leakage(belief, prior) for belief in beliefs)
        c2 = amplification(largest_log_ratio(posterior, prior))
        parts.append(torch.stack([c1, c2, total_variation(before, after), leaked]))
    whole = torch.cat(parts, dim=1)
    return Toys(*whole[:, whole[0] > LEAST])


Group = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor"]


def _spread(low: float, high: float, drawn: torch.Generator, *shape: int) -> torch.Tensor:
    """Numbers whose decimal logarithm is uniform."""
    return 10 ** (low + (high - low) * torch.rand(shape, generator=drawn, dtype=torch.float64))


def _mixed(uploads: int, candidates: int, drawn: torch.Generator) -> Group:
    """Beliefs from nearly alike to nearly certain, laws from nearly the same to unrelated."""

    def law(scale: torch.Tensor, *shape: int) -> torch.Tensor:
        logits: torch.Tensor = scale * torch.randn(shape, generator=drawn, dtype=torch.float64)
        return logits.softmax(dim=-1)

    posterior = law(_spread(-2, 0.6, drawn, EACH, 1, 1), EACH, uploads, candidates)
    before, other, mean = (law(_spread(-1, 0.6, drawn, EACH, 1), EACH, uploads) for _ in range(3))
    part = _spread(-2, 0, drawn, EACH, 1)
    prior = (mean.unsqueeze(-2) @ posterior).squeeze(-2)
    return posterior, prior, before, (1 - part) * before + part * other


def _symmetric(drawn: torch.Generator) -> Group:
    """Two uploads that speak for one candidate each, equally well."""
    lean = _spread(-2, -0.31, drawn, BINARY)
    posterior = torch.stack([0.5 - lean, 0.5 + lean, 0.5 + lean, 0.5 - lean], dim=-1).view(BINARY, 2, 2)
    first = torch.rand(BINARY, generator=drawn, dtype=torch.float64)
    step = (2 * torch.rand(BINARY, generator=drawn, dtype=torch.float64) - 1) * _spread(-2, 0, drawn, BINARY)
    second = (first + step).clamp(0, 1)
    laws = [torch.stack([1 - part, part], dim=-1) for part in (first, second)]
    return posterior, torch.full((BINARY, 2), 0.5, dtype=torch.float64), laws[0], laws[1]


REGIONS = {
    "up to 1/2": (0.0, 0.5),
    "1/2 to 3/4": (0.5, 0.75),
    "3/4 to 1": (0.75, 1.0),
    "1 or more": (1.0, float("inf")),
}
"""Ranges of x / C1."""


@table(
    "S1",
    title="Bounds on leakage in random models",
    caption="Random discrete attackers: 2 to 5 uploads, 2 to 5 candidates, beliefs and laws from nearly alike to "
    f"nearly certain, and {BINARY:,} symmetric models of two and two; those with C1 above {LEAST:g} count. Leakage "
    "after protection is computed exactly. Of each bound: how many models violate it, and by which factor at most. x = "
    "C2 TV. Eqs. 3 and 4 are Theorem 4.1 as printed, eq. 6 the metric that the paper constrains, C1 + x and C1 - x "
    "what is proved.",
    experiments=(),
)
def table_s1(_: Tables) -> pd.DataFrame:
    """A row per region of x / C1, and one for all."""
    models = toys()
    ratio = models.x / models.c1
    rows = []
    for name, (low, high) in {**REGIONS, "any": (0.0, float("inf"))}.items():
        inside = (ratio >= low) & (ratio < high)
        here = Toys(*(each[inside] for each in (models.c1, models.c2, models.variation, models.leaked)))
        lower, upper = leakage_bounds(here.c1, here.x)
        bounds = {
            "eq. 3": printed_bound(here.c1, here.x),
            "eq. 4": printed_bound(here.c1, here.x, "eq4"),
            "eq. 6": 2 * here.c1 - here.x,
            "C1 + x": upper,
        }
        row = {"x / C1": name, "models": f"{len(here.c1):,}"}
        for bound, values in bounds.items():
            violated = here.leaked > values + ROUNDING
            row[bound] = f"{int(violated.sum()):,}"
            if bound in ("eq. 3", "eq. 4"):
                worst = (here.leaked / values)[violated]
                row[f"{bound}, worst"] = f"{float(worst.max()):.3f}" if len(worst) else NONE
        row["C1 - x"] = f"{int((here.leaked < lower - ROUNDING).sum()):,}"
        rows.append(row)
    return pd.DataFrame(rows)
