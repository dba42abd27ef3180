"""Claims on efficiency, in bits: which mechanisms cost some, and which save some.

Efficiency reduction is the bits that a client sends in a round, minus those of the plain update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from leakbench.lazy import np
from leakbench.papers.tfl_meta import PAPER
from leakbench.papers.tfl_meta.costs import COSTS, NAMES
from leakbench.report.claims import claim, each_cell
from leakbench.report.comparisons import certain, level
from leakbench.report.evidence import Evidence, Series, same_seeds
from leakbench.report.findings import Part
from leakbench.report.labels import reads

stated = partial(claim, PAPER)

PLAIN = reads(COSTS, defenses="none")
UNIT = "bits per coordinate"
SOME = 1e-6
"""Bits per coordinate that count as none."""


def reduction(evidence: Evidence, where: Mapping[str, str | float]) -> Series:
    """Bits per coordinate beyond those of the plain update, of one method."""
    read = partial(evidence.series, COSTS, defense="none")
    plain, sent, size = (
        read(metric, where=of)
        for metric, of in (("bits", {"method": "none"}), ("bits", where), ("parameters", {"method": "none"}))
    )
    plain, sent, size = same_seeds(plain, sent, size)
    name = f"bits of {method_in_words(where)} minus plain"
    return replace(sent, name=name, values=(sent.values - plain.values) / size.values)


def method_in_words(where: Mapping[str, str | float]) -> str:
    """A method with its parameters."""
    parameters = "".join(f", {key} {float(value):g}" for key, value in where.items() if key != "method")
    return NAMES[str(where["method"])] + parameters


def settings(evidence: Evidence, method: str, parameter: str | None) -> list[Mapping[str, str | float]]:
    """The method at every value of its parameter."""
    if parameter is None:
        return [{"method": method}]
    return [{"method": method, parameter: value} for value in evidence.swept(COSTS, parameter)]


@stated(
    "E14",
    "Per client and round noise costs no bits, random masks save some, and encryption and secret sharing cost some.",
    source="appendices F to I; our measurement",
    experiments=(PLAIN,),
)
@each_cell(COSTS)
def e14(cell: str, one: Evidence) -> Iterator[Part]:
    """Bits per coordinate beyond plain, at every key size and keep probability, per model.

    Only a random mask's are random; those of the others are counts that no seed changes.
    """
    for method, parameter, low, high in (
        ("gaussian_noise", None, -SOME, SOME),
        ("random_mask", "keep", -32.0 - SOME, 0.0),
        ("masked_pair", None, 0.0, math.inf),
        ("additive_sharing", None, 0.0, math.inf),
        ("paillier", "key_bits", 0.0, math.inf),
        ("paillier_unpacked", "key_bits", 0.0, math.inf),
    ):
        for where in settings(one, method, parameter):
            series, name = reduction(one, where), f"{method_in_words(where)}, {cell}"
            if method == "random_mask":
                yield level(series, name, UNIT, low, high)
            else:
                for number in np.unique(series.values[np.isfinite(series.values)]):
                    yield certain(float(number), name, f"{series.name} ({UNIT})", low, high)


@stated(
    "E14a",
    "Dropping coordinates costs efficiency, and the more the more are dropped.",
    source="Lemma I.3, Assumption 5.1",
    experiments=(PLAIN,),
)
@each_cell(COSTS)
def e14a(cell: str, one: Evidence) -> Iterator[Part]:
    """Bits per coordinate beyond plain, which the bound ``C5 (1 - rho^m)`` would let rise; per model."""
    for where in settings(one, "random_mask", "keep"):
        yield level(reduction(one, where), f"{method_in_words(where)}, {cell}", UNIT, at_least=0.0)


@stated("E14b", "The bits of what is sent are those of the formulas.", source="our formulas", experiments=(PLAIN,))
@each_cell(COSTS)
def e14b(cell: str, one: Evidence) -> Iterator[Part]:
    """Largest difference of sent and expected bits over the expected ones; random masks are random, to 5 %."""
    read = partial(one.series, COSTS, defense="none")
    for method, parameter, most in (
        ("none", None, SOME),
        ("gaussian_noise", None, SOME),
        ("random_mask", "keep", 0.05),
        ("fixed_point", None, SOME),
        ("masked_pair", None, SOME),
        ("additive_sharing", None, SOME),
        ("paillier", "key_bits", SOME),
        ("paillier_unpacked", "key_bits", SOME),
    ):
        for where in settings(one, method, parameter):
            sent, expected = same_seeds(read("bits", where=where), read("formula_bits", where=where))
            worst = float(abs(sent.values / expected.values - 1).max())
            yield certain(worst, f"{method_in_words(where)}, {cell}", "relative difference", at_most=most)
