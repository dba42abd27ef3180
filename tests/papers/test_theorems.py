"""Checks of theorems are registered, compute nothing before they are asked, and return what they are named for."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest
from tests.papers.theorems import checks_of

from leakbench.report.checks import Checked

PAPERS = ("cdpa", "channel", "optimal_defense", "secagg_dp", "tfl_meta")


@pytest.mark.parametrize("paper", PAPERS)
def test_every_check_is_a_claim(paper: str) -> None:
    """No function that computes an outcome lacks the decorator with its statement."""
    module = import_module(f"leakbench.papers.{paper}.checks")
    public = [
        function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and function.__module__ == module.__name__
    ]
    computing = [function for function in public if inspect.signature(function).return_annotation == Checked.__name__]
    assert computing and set(computing) <= set(checks_of(paper).values())


def test_listing_claims_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from leakbench.report.claims import claims_of\n"
        "assert claims_of('cdpa')\n"
        "heavy = {'torch', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
