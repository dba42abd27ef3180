"""Verdicts of two runs side by side: ``python -m benchmarks.same_verdicts OTHER [--project .] [--scale smoke]``.

Prints the claims whose verdicts differ, and how many do, so that runs on two kinds of processor, or of two versions,
can be compared. OTHER is the root of another checkout with a complete run, such as one made with
``ATEN_CPU_CAPABILITY=default make replicate``, which leaves out the vector instructions of this processor.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

SHOWN = ["verdict", "effect", "low", "high", "p"]


def verdicts(root: Path, scale: str) -> pd.DataFrame:
    """The verdicts of a run by paper and claim.

    Raises:
        SystemExit: the folder has none.
    """
    files = sorted((root / "figures" / scale).glob("*/claims.csv"))
    if not files:
        raise SystemExit(f"{root}/figures/{scale} holds no claims.csv; complete a run there first")
    parts = [pd.read_csv(file, dtype={"claim": str}).assign(paper=file.parent.name) for file in files]
    return pd.concat(parts).set_index(["paper", "claim"])[SHOWN]


def differences(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Claims of both runs that have another verdict in each, with the numbers behind them."""
    both = one.add_suffix(" here").join(other.add_suffix(" there"), how="inner")
    return both[both["verdict here"] != both["verdict there"]]


def main() -> None:
    """Print the claims whose verdicts differ."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("other", type=Path, help="root of the other checkout")
    parser.add_argument("--project", type=Path, default=Path(), help="root of this one")
    parser.add_argument("--scale", default="smoke")
    arguments = parser.parse_args()
    here, there = verdicts(arguments.project, arguments.scale), verdicts(arguments.other, arguments.scale)
    changed = differences(here, there)
    print(f"{len(changed)} of {len(here.index.intersection(there.index))} verdicts differ")
    if not changed.empty:
        print(changed.reset_index().to_markdown(index=False, floatfmt=".3g"))


if __name__ == "__main__":
    main()
