"""Tests that share fixtures run in one process of pytest-xdist, and slow ones where there is room."""

from __future__ import annotations

import pytest


def in_group(request: pytest.FixtureRequest) -> str:
    """The group by which pytest-xdist keeps a test and others together."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("not in a process of pytest-xdist")
    if not request.config.option.loadgroup:
        pytest.skip("needs --dist loadgroup")
    _, _, group = str(request.node.nodeid).partition("@")
    return group


@pytest.mark.xdist_group("together")
def test_groups_are_kept_together(request: pytest.FixtureRequest) -> None:
    """Where pytest and pytest-xdist do not fit each other, groups are scattered without a word."""
    assert in_group(request) == "together"


def test_a_file_is_a_group(request: pytest.FixtureRequest) -> None:
    assert in_group(request) == "test_groups.py"


@pytest.mark.slow
def test_a_slow_test_is_in_none(request: pytest.FixtureRequest) -> None:
    assert in_group(request) == ""
