"""Synthetic tidy tables, and figures that are closed after each test."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest
from tests.papers.drawn import smoke_tables

from leakbench.report.artifacts import Tables


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture
def tables() -> Tables:
    """Tables of the smoke scale: three seeds, four settings."""
    return smoke_tables()
