"""Synthetic tidy tables."""

from __future__ import annotations

import pytest
from tests.papers.drawn import smoke_tables

from leakbench.report.artifacts import Tables


@pytest.fixture
def tables() -> Tables:
    """Tables of the smoke scale: three seeds, four settings."""
    return smoke_tables()
