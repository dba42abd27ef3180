"""Tests that share a fixture of minutes run in one process of pytest-xdist."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("together")
def test_groups_are_kept_together(request: pytest.FixtureRequest) -> None:
    """Where pytest and pytest-xdist do not fit each other, groups are scattered without a word."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("not in a process of pytest-xdist")
    if not request.config.option.loadgroup:
        pytest.skip("needs --dist loadgroup")
    assert request.node.nodeid.endswith("@together")
