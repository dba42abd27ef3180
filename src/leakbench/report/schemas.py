"""JSON Schemas of the configuration and of records, generated from the classes that validate them."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from leakbench.planning.schemas import PaperSpec, ScaleSpec, Settings
from leakbench.records import Record, atomic_write

SCHEMAS: dict[str, type[BaseModel]] = {"config": Settings, "paper": PaperSpec, "scale": ScaleSpec, "record": Record}


def schema_texts() -> dict[str, str]:
    """Content of every schema file, by file name."""
    return {
        f"{name}.schema.json": json.dumps(model.model_json_schema(), indent=2) + "\n" for name, model in SCHEMAS.items()
    }


def write_schemas(root: Path) -> list[Path]:
    """Write all schemas to ``workflow/schemas``; returns their paths."""
    paths = []
    for name, text in schema_texts().items():
        path = root / "workflow" / "schemas" / name
        atomic_write(path, text.encode())
        paths.append(path)
    return paths
