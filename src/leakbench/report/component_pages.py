"""Reference pages of the documentation, written from the registered components and the metrics of records.

A page has a table of its components, and for each its parameters with allowed values, default and meaning. Components
of plug-ins and of other distributions are left out, so that the pages do not depend on what is installed.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import yaml

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.analytic import Analytic
from leakbench.attacks.base import ATTACKS, Attack
from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.attacks.objectives import L1L2
from leakbench.attacks.optimisers import Adam, StaircaseAdam
from leakbench.attacks.regularisers import EmbeddingNorm, TotalVariation
from leakbench.attacks.released.base import MEMBERSHIP_ATTACKS, MODEL_INVERSIONS
from leakbench.attacks.sentences import SentenceMatching
from leakbench.data.base import DATASETS
from leakbench.defenses.base import DEFENSES, Defense
from leakbench.jobs.base import JOB_KINDS, JobKind
from leakbench.models.base import MODELS
from leakbench.paper_folders import paper_rooms
from leakbench.records import MetricInfo
from leakbench.registry import Component, Registry

FOLDER = "docs/reference"
NOTE = "<!-- Written by `leakbench pages`; change the docstrings and fields of the classes instead. -->"
PARTS = ("objective", "regularisers", "optimiser", "unknown")
"""Parameters of gradient matching that are parts with a ``kind``."""

Rows = Sequence[Sequence[str]]


def component_pages() -> dict[str, str]:
    """Every page by its path, relative to the project's root."""
    pages = {
        "attacks": _attacks(),
        "defenses": _page("Defenses", DEFENSES),
        "models": _page("Models", MODELS),
        "datasets": _page("Data sets", DATASETS),
        "jobs": _page("Kinds of job", JOB_KINDS),
        "metrics": _metrics(),
    }
    return {f"{FOLDER}/{name}.md": text for name, text in pages.items()}


def _page(title: str, *registries: Registry[Any], more: str = "") -> str:
    components = [each for registry in registries for each in shipped(registry)]
    rows = [[f"[`{each.name}`](#{each.name})", _inline(each.summary())] for each in components]
    sections = [_section(each) for each in components]
    return "\n\n".join([f"# {title}", NOTE, table(["name", "summary"], rows), *filter(None, [more]), *sections]) + "\n"


def shipped(registry: Registry[Any]) -> list[type[Any]]:
    """Components of this distribution, by name."""
    return [each for each in map(registry.get, registry) if each.__module__.startswith("leakbench.")]


def table(header: Sequence[str], rows: Rows) -> str:
    """A Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    text = ["| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in line) + " |" for line in lines]
    return "\n".join([text[0], text[1].replace(" ", ""), *text[2:]])


def _section(component: type[Component]) -> str:
    parent = _parent(component)
    schema = component.model_json_schema()
    definitions = schema.get("$defs", {})
    fields = {name: field for name, field in schema.get("properties", {}).items() if _differs(name, component, parent)}
    rows = [
        [f"`{name}`", values(field, definitions), _default(name, component), _meaning(name, component)]
        for name, field in fields.items()
    ]
    blocks = [f"## `{component.name}`", description(component), " ".join(_facts(component, parent))]
    if rows:
        blocks.append(table(["parameter", "values", "default", "meaning"], rows))
    return "\n\n".join(blocks)


def description(component: type[Component]) -> str:
    """The docstring as Markdown, up to its first example or section."""
    text = inspect.cleandoc(component.__doc__ or "")
    return _inline(re.split(r"^(?:>>> |[A-Z]\w+:$)", text, maxsplit=1, flags=re.MULTILINE)[0].strip())


def _parent(component: type[Component]) -> type[Component] | None:
    """The registered class that a component is a preset or a variety of."""
    above = (each for each in component.__mro__[1:] if issubclass(each, Component) and "name" in vars(each))
    return next(above, None)


def _differs(name: str, component: type[Component], parent: type[Component] | None) -> bool:
    if parent is None or name not in parent.model_fields:
        return True
    return bool(component.model_fields[name].default != parent.model_fields[name].default)


def _facts(component: type[Component], parent: type[Component] | None) -> Iterator[str]:
    """Sentences on a component beside its summary."""
    module = component.__module__.replace(".", "/")
    yield f"Version {component.version}, in `src/{module}.py`."
    if parent is not None:
        yield f"Other parameters are those of [`{parent.name}`](#{parent.name})."
    if issubclass(component, Attack):
        needs = sorted(_needs(component))
        if issubclass(component, Wrapper):
            yield f"Wrapper: needs {_listed(needs) or 'nothing'} beside what the attack inside needs."
        else:
            yield f"Needs {_listed(needs) or 'nothing'}."
    if issubclass(component, Defense):
        yield f"Changes {'the model' if component.acts_on == 'model' else component.acts_on}."
        yield f"Adaptive attacker: {_attackers(component)}."
        if component.biased:
            yield f"Biased: {component.biased}."
    if issubclass(component, JobKind):
        yield f"Asks for {component.memory_mb:,} MB, {component.minutes} minutes{' and a GPU' * component.on_gpu}."


def _attackers(defense: type[Defense]) -> str:
    declared = inspect.getattr_static(defense, "adaptive")
    if isinstance(declared, property):  # which depends on parameters, and says how
        return str(inspect.getdoc(declared)).removesuffix(".")
    return _listed([str(each["name"]) for each in declared]) or "`simulated`, by default"


def _needs(attack: type[Attack]) -> frozenset[str]:
    inside: dict[str, Any] = {"attack": Analytic()} if issubclass(attack, Wrapper) else {}  # which needs nothing
    return frozenset(attack.model_construct(**inside).needs)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _default(name: str, component: type[Component]) -> str:
    field = component.model_fields[name]
    if field.is_required():
        return "required"
    value = component.model_construct().model_dump(mode="json", include={name}, warnings=False)[name]
    return f"`{_flow(value)}`"


def _flow(value: Any) -> str:
    """A value as YAML on one line."""
    return str(yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)).split("\n...")[0].strip()


def _meaning(name: str, component: type[Component]) -> str:
    above = (each for each in component.__mro__ if issubclass(each, Component))
    described = (each.model_fields[name].description for each in above if name in each.model_fields)
    return _inline(next(filter(None, described), ""))


def values(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """The values that a JSON Schema allows, in words.

    >>> values({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, {}), values({"enum": ["a", "b"]}, {})
    ('number, >= 0, < 1', '`a`, `b`')
    """
    if "enum" in schema:
        return _listed([_flow(each) for each in schema["enum"]])
    if "const" in schema:
        return f"`{_flow(schema['const'])}`"
    if "discriminator" in schema:
        return f"kind: {_listed(sorted(schema['discriminator']['mapping']))}"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(values(each, definitions) for each in schema["anyOf"]))
    if "$ref" in schema:
        definition = definitions[schema["$ref"].rpartition("/")[2]]
        keys = [key for key in definition.get("properties", {}) if key != "kind"]
        return f"mapping of {_listed(keys)}" if keys else definition.get("title", "value").lower()
    kind = {"null": "`null`", "array": "list", "object": "mapping", "boolean": "`true`, `false`"}.get(
        schema.get("type", ""), schema.get("type", "any")
    )
    if schema.get("items"):
        return f"list of {values(schema['items'], definitions)}"
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return ", ".join([kind, *(f"{sign} {schema[key]:g}" for key, sign in bounds.items() if key in schema)])


def _inline(text: str) -> str:
    """Text of a docstring as Markdown: roles become code."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def _attacks() -> str:
    searches = (each for each in shipped(ATTACKS) if issubclass(each, GradientMatching))
    presets = [each.model_validate({}) for each in searches if each not in (GradientMatching, SentenceMatching)]
    of_sentences = [each for each in presets if isinstance(each, SentenceMatching)]
    of_images = [each for each in presets if each not in of_sentences]
    more = [
        "## Presets side by side",
        "Presets of [`gradient_matching`](#gradient_matching); TV is the weight of total variation.",
        _table_of([_preset(each) for each in of_images]),
        "Presets of [`sentence_matching`](#sentence_matching):",
        _table_of([_preset(each) | _preset_of_sentences(each) for each in of_sentences]),
        "## Parts of gradient matching",
        table(["parameter", "kind", "what it is", "fields"], list(_parts())),
    ]
    return _page("Attacks", ATTACKS, MEMBERSHIP_ATTACKS, MODEL_INVERSIONS, more="\n\n".join(more))


def _table_of(rows: Sequence[Mapping[str, str]]) -> str:
    """A table of rows by column, without the columns in which all say "–"."""
    columns = [name for name in rows[0] if any(row[name] != "–" for row in rows)]
    return table(columns, [[row[name] for name in columns] for row in rows])


def _preset(preset: GradientMatching) -> dict[str, str]:
    objective, optimiser = preset.objective, preset.optimiser
    variation = [part for part in preset.regularisers if isinstance(part, TotalVariation)]
    weight = f" ({objective.l1_weight:g})" if isinstance(objective, L1L2) else ""
    signed = isinstance(optimiser, Adam) and optimiser.signed
    schedule: str = optimiser.decay if isinstance(optimiser, Adam) else "none"
    if isinstance(optimiser, StaircaseAdam):
        schedule = f"{optimiser.factor:g} every {optimiser.every}"
    return {
        "preset": f"`{preset.name}`",
        "objective": objective.kind + weight,
        "TV": ", ".join(f"{part.weight:g}" for part in variation) or "–",
        "optimiser": "signed " * signed + optimiser.kind,
        "step": f"{optimiser.rate:g}",
        "schedule": schedule,
        "line search": getattr(optimiser, "line_search", "–"),
        "iterations": f"{preset.iterations:,}",
        "unknown": preset.unknown.kind,
        "box": "yes" if preset.box else "–",
        "labels": preset.labels,
        "keep": preset.keep,
        "stop below": "–" if preset.stop_below is None else f"{preset.stop_below:g}",
    }


def _preset_of_sentences(preset: SentenceMatching) -> dict[str, str]:
    tries = preset.reordering
    penalty = [part for part in preset.regularisers if isinstance(part, EmbeddingNorm)]
    return {
        "embedding norm": ", ".join(f"{part.weight:g} ({part.norm:g})" for part in penalty) or "–",
        "starts": str(preset.starts),
        "permutations": str(preset.permutations),
        "start norm": "–" if preset.start_norm is None else f"{preset.start_norm:g}",
        "reordering": f"{tries.candidates} every {tries.every}" if tries else "–",
        "fluency": f"{tries.fluency:g}" if tries else "–",
    }


def _parts() -> Iterator[list[str]]:
    schema = GradientMatching.model_json_schema()
    for name in PARTS:
        field = schema["properties"][name]
        mapping = (field.get("items") or field)["discriminator"]["mapping"]
        for kind, reference in mapping.items():
            part = schema["$defs"][reference.rpartition("/")[2]]
            keys = [key for key in part["properties"] if key != "kind"]
            yield [f"`{name}`", f"`{kind}`", _inline(part.get("description", "").split("\n")[0]), _listed(keys)]


def _metrics() -> str:
    blocks = [
        "# Metrics",
        NOTE,
        "Numbers in records. *Better*: values that mean more leakage or better utility. *Per*: what a list runs over.",
    ]
    for module in _modules_with_metrics():
        groups = (getattr(module, name) for name in _assigned(module))
        infos = {
            name: info
            for group in groups
            if isinstance(group, dict)
            for name, info in group.items()
            if isinstance(info, MetricInfo)
        }
        if infos:
            title = _inline(re.split(r"[,:.]", module.__doc__ or "")[0])
            rows = [
                [f"`{name}`", _inline(info.unit), info.direction.replace("none", "–"), info.axis or "–"]
                for name, info in infos.items()
            ]
            blocks += [f"## {title}", f"`{module.__name__}`", table(["metric", "unit", "better", "per"], rows)]
    return "\n\n".join(blocks) + "\n"


def _assigned(module: ModuleType) -> list[str]:
    """Names that a module gives a value itself, in its order; imported ones are another module's."""
    names = []
    for node in ast.parse(inspect.getsource(module)).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                names.append(name)
    return names


def _modules_with_metrics() -> Iterator[ModuleType]:
    papers = sorted(each for each in paper_rooms("jobs") if each.startswith("leakbench."))
    for package in map(importlib.import_module, ("leakbench.metrics", "leakbench.jobs", *papers)):
        for name in sorted(each.name for each in pkgutil.iter_modules(package.__path__)):
            yield importlib.import_module(f"{package.__name__}.{name}")
