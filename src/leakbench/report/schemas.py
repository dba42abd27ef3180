"""JSON Schemas of the configuration and of records, generated from the classes that validate them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from leakbench.planning.schemas import PaperSpec, ScaleSpec, Settings
from leakbench.records import ArchivedRecord, Record, atomic_write

MODELS: dict[str, type[BaseModel]] = {
    "config": Settings,
    "paper": PaperSpec,
    "scale": ScaleSpec,
    "record": Record,
    "archived": ArchivedRecord,
}


def schemas() -> dict[str, dict[str, Any]]:
    """Every schema by name: those of :data:`MODELS`, and ``overlay``, for changes of a paper's grid."""
    files = {name: model.model_json_schema() for name, model in MODELS.items()}
    overlay = _without_required(PaperSpec.model_json_schema())
    overlay |= {"title": "PaperOverlay", "description": "Changes of a paper's grid: any part of it, each key optional."}
    definitions = overlay.pop("$defs")
    jobs = definitions["ExperimentSpec"]["properties"]["jobs"]
    jobs["additionalProperties"] = {"anyOf": [jobs["additionalProperties"], {"type": "null"}]}
    jobs["description"] += "; null leaves a kind out"
    files["scale"]["$defs"] = files["scale"].get("$defs", {}) | definitions | {"PaperOverlay": overlay}
    files["scale"]["properties"]["papers"]["additionalProperties"] = {"$ref": "#/$defs/PaperOverlay"}
    return files | {"overlay": {"$defs": definitions, **overlay}}


def _without_required(schema: Any) -> Any:
    """A schema in which every key is optional."""
    if isinstance(schema, list):
        return [_without_required(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # A property may be named like the keyword, which is a list.
    rest = {key: value for key, value in schema.items() if key != "required" or not isinstance(value, list)}
    return {key: _without_required(value) for key, value in rest.items()}


def schema_texts() -> dict[str, str]:
    """Content of every schema file, by file name."""
    return {f"{name}.schema.json": json.dumps(schema, indent=2) + "\n" for name, schema in schemas().items()}


def write_schemas(root: Path) -> list[Path]:
    """Write all schemas to ``workflow/schemas``; returns their paths."""
    paths = []
    for name, text in schema_texts().items():
        path = root / "workflow" / "schemas" / name
        atomic_write(path, text.encode())
        paths.append(path)
    return paths
