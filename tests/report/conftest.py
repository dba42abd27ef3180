from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.report.synthetic import new_project

from leakbench.experiments import Project
from leakbench.report.artifacts import artifacts
from leakbench.report.page import write_page
from leakbench.report.tidy import merge, table_path


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with every table, figure and the page of its scale, from synthetic records. Change nothing in it."""
    project = new_project(tmp_path_factory.mktemp("rendered"))
    for paper, spec in project.plan("smoke").papers.items():
        for experiment in spec.experiments:
            merge(project, table_path("smoke", paper, experiment))
    for entry in artifacts():
        entry.render(project, entry.paths("smoke")[0])
    write_page(project, "figures/smoke/report.html")
    return project
