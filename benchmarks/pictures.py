"""Processor time of a figure's files: saved per format with a tight box, and by ``leakbench.report.style.pictures``.

    python -m benchmarks.pictures

A row of panels with curves, a legend and a caption; both ways in turn, each in a fork of a process
that has imported what the warm one imports.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING

from leakbench.report.style import add_caption, panels, pictures
from leakbench.workflow.warm import LIBRARIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTION = "A metric against a parameter of the defense, with 95 % intervals over seeds. " * 5


def drawn(count: int) -> Figure:
    """A figure with so many panels."""
    figure, axes = panels(count)
    for ax in axes:
        for line in range(4):
            ax.plot([1, 10, 100, 1000], [line + 1, line + 2, line + 4, line + 3], "o-", label=f"defense {line}")
        ax.set(xscale="log", yscale="log", xlabel="noise $\\sigma$", ylabel="mean squared error", title="digits16")
    axes[-1].legend()
    add_caption(figure, CAPTION)
    return figure


def per_format(figure: Figure) -> None:
    """Save as matplotlib does with a tight box: each format lays the figure out, measures it and draws it."""
    for extension in ("pdf", "png"):
        figure.savefig(io.BytesIO(), format=extension, bbox_inches="tight")


def seconds(save: Callable[[Figure], object], count: int) -> float:
    """Processor time of saving in a fork, which has the fonts of this process and nothing that it parsed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = os.fork()
    if child == 0:
        save(drawn(count))
        os._exit(0)
    os.waitpid(child, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the least time of both ways, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    for library in LIBRARIES["draw"]:
        importlib.import_module(library)
    gc.freeze()
    print("| panels | per format, ms | together, ms | ratio |\n|---:|---:|---:|---:|")
    for count in (1, 2, 4):
        times = [(seconds(per_format, count), seconds(pictures, count)) for _ in range(rounds)]
        apart, together = (1e3 * min(column) for column in zip(*times, strict=True))
        print(f"| {count} | {apart:.0f} | {together:.0f} | {apart / together:.1f}x |")


if __name__ == "__main__":
    main()
