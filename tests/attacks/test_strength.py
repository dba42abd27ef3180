"""Attacks reach on undefended gradients what the literature reports; the cases are those of the benchmark."""

from __future__ import annotations

import statistics

import pytest
from benchmarks.attack_strength import CASES, Case, findings, per_victim, recovered

from leakbench.jobs.runner import Placement

VICTIMS = 6
"""Fewer than the benchmark's."""
ENOUGH = {"dlg_wolfe-lenet-digits": 200, "ig_script-lenet-photos": 500}
"""Iterations at which the bound is met with room; the benchmark's elsewhere."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_undefended_gradient_gives_its_image_away(case: Case) -> None:
    iterations = ENOUGH.get(case.name, case.parameters["iterations"])
    found = findings(case, case.attack, {**case.parameters, "iterations": iterations}, Placement("cpu"), VICTIMS)
    assert case.share or case.psnr
    assert recovered(found) > case.share or not case.share
    assert statistics.median(per_victim(found, "psnr")) > case.psnr
    blind = findings(case, "mean_image", {}, Placement("cpu"), VICTIMS)
    assert statistics.median(per_victim(found, "psnr")) > statistics.median(per_victim(blind, "psnr")) + 5
