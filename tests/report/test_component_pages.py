"""The reference pages of the documentation, which tests/report/test_published.py holds to the classes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.report.test_published import project

from leakbench.attacks.base import ATTACKS, Attack
from leakbench.defenses.base import DEFENSES
from leakbench.models.base import MODELS
from leakbench.planning.project import Project
from leakbench.report.catalogue import COMPONENTS
from leakbench.report.component_pages import FOLDER, component_pages, description, shipped, values
from leakbench.report.published import write_pages

__all__ = ["project"]  # a fixture


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {Path(path).stem: text for path, text in component_pages().items()}


def sections(page: str) -> dict[str, str]:
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0].strip("`"): part for part in parts}


@pytest.mark.parametrize("kind", COMPONENTS)
def test_every_component_has_its_parameters(pages: dict[str, str], kind: str) -> None:
    there = sections(pages[kind if kind in pages else "attacks"])
    for component in shipped(COMPONENTS[kind]):
        section = there[component.name]
        assert component.summary().replace("``", "`").split(":")[0] in section and description(component) in section
        varieties = "Other parameters are those of" in section
        for name, field in component.model_fields.items():
            row = re.search(rf"^\| `{name}` \|.*\|$", section, re.MULTILINE)
            assert row or varieties
            if row and field.is_required():
                assert "| required |" in row[0]


def test_descriptions_end_before_examples_and_sections() -> None:
    for component in (DEFENSES.get("none"), MODELS.get("lenet"), ATTACKS.get("simulated")):
        assert ">>>" not in description(component) and "Args:" not in description(component)
    assert "(`~" not in description(ATTACKS.get("simulated")) and "(`leakbench." in description(
        ATTACKS.get("simulated")
    )


def test_numbers_needs_and_declarations(pages: dict[str, str]) -> None:
    attacks, defenses = sections(pages["attacks"]), sections(pages["defenses"])
    assert "rate: 0.2, signed: true" in attacks["ig_optimal_defense"]
    assert re.search(r"\| `ig_script` \| cosine \| 0.0001 \| signed adam \| 0.1 \| steps \|.*24,000", pages["attacks"])
    assert re.search(r"\| `lamp_l1l2` \|.*\| 25 \(1.4\) \|.*200 every 75 \| 60 \|", pages["attacks"])
    assert "Needs `labels`, `pixel_range`." in attacks["ig_library"]
    assert "needs `mechanism` beside what the attack inside needs" in attacks["simulated"]
    assert "Adaptive attacker: `likelihood`." in defenses["soteria"]
    assert "Changes data." in defenses["natural_channel"]
    assert set(DEFENSES) >= defenses.keys()


def test_metrics_are_listed_where_they_are_defined(pages: dict[str, str]) -> None:
    there = sections(pages["metrics"])
    assert "| `psnr` | dB, pixels in [0, 1] | higher | image |" in there["Image metrics"]
    assert "`psnr`" not in there["Assignment of reconstructions to the images of a batch"]
    assert "| `u2` |" in there["Fisher jobs"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, "integer, >= 1 or `null`"),
        ({"type": "array", "items": {"type": "string"}}, "list of string"),
        ({"$ref": "#/$defs/Local"}, "mapping of `steps`"),
        ({"const": 1}, "`1`"),
        ({}, "any"),
    ],
)
def test_values(schema: dict[str, object], words: str) -> None:
    assert values(schema, {"Local": {"properties": {"steps": {}, "kind": {}}}}) == words


@pytest.mark.usefixtures("clean_registries")
def test_plug_ins_are_left_out() -> None:
    @ATTACKS.register("mine", version=1)
    class Mine(Attack):
        """Registered by a plug-in."""

    assert "mine" in ATTACKS and Mine not in shipped(ATTACKS)


def test_only_a_checkout_with_documentation_gets_the_pages(project: Project) -> None:
    write_pages(project)
    assert not (project.root / "docs").exists()
    (project.root / FOLDER).mkdir(parents=True)
    written = {path.name for path in write_pages(project)}
    assert {"attacks.md", "defenses.md", "metrics.md"} <= written
    assert write_pages(project) == []
