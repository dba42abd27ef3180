"""Schemas of the configuration's YAML files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from leakbench.comparing import ComparedSpec
from leakbench.gates import GateSpec
from leakbench.registry import LABEL


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _named(given: Any) -> Any:
    """A component that is given by its name alone, as a mapping, so that faults of a mapping are told as such."""
    if not isinstance(given, str | Mapping | ComparedSpec):
        raise ValueError("expected a name, or a mapping with the key 'name'")
    return {"name": given} if isinstance(given, str) else given


Compared = Annotated[ComparedSpec, BeforeValidator(_named, json_schema_input_type=str | ComparedSpec)]
"""A component of yours, by its name or with a label and parameters."""


class Settings(_Strict):
    """config/config.yaml."""

    scale: str = Field("smoke", description="which file of config/scales to use")
    papers: list[str] = Field(
        description="which papers to replicate: folders of leakbench.papers, entry points, leaderboard"
    )
    data_root: str | None = Field(None, description="folder of staged data sets; the variable LEAKBENCH_DATA wins")
    plugins: list[str] = Field(
        [], description="modules (package.module) or files (path/to/file.py) of your own components"
    )
    compare: list[Compared] = Field(
        [], description="defenses (module:Class, path/to/file.py:Class, a name) to put into every applicable experiment"
    )
    ensemble: list[Compared] = Field(
        [], description="attacks (as in compare) to add to the ensemble of every track of the leaderboard"
    )
    warm: bool = Field(True, description="fork jobs from a process that has imported the libraries already")

    @field_validator("compare", "ensemble", mode="before")
    @classmethod
    def _one_is_a_list(cls, given: Any) -> Any:
        """Take one name, as in ``--config compare=my_defense.py:MyDefense``."""
        return [given] if isinstance(given, str | Mapping) else given


class VariantSpec(BaseModel):
    """A component with parameters. Any parameter may be ``{sweep: [values]}``."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="registered name of the component; the other keys are its parameters")


Label = Annotated[str, Field(pattern=LABEL)]
"""A part of a path."""


class Variants(_Strict):
    """Labels that experiments, paths and figures use."""

    datasets: dict[Label, VariantSpec] = {}
    models: dict[Label, VariantSpec] = {}
    defenses: dict[Label, VariantSpec] = {}
    attacks: dict[Label, VariantSpec] = {}


class KindSpec(BaseModel):
    """One kind of job of an experiment: the attacks it runs, if it runs any, and its protocol.

    Any field of the protocol may be ``{sweep: [values]}``, but for those that say which seeds there are.
    """

    model_config = ConfigDict(extra="allow")

    attacks: list[str] = Field([], description="attack variants; for the kinds 'attack' and 'leakage'")


class ExperimentSpec(_Strict):
    """A grid: datasets x models x defenses, for every kind of job."""

    title: str
    datasets: list[str]
    models: list[str]
    defenses: list[str]
    jobs: dict[str, KindSpec] = Field(description="kinds of job (attack, train, fisher, ...) with their protocols")
    ensemble: bool = Field(False, description="whether attacks of the configuration's key 'ensemble' join its own")
    gates: dict[str, GateSpec] = Field({}, description="per attack, what it must reach on the undefended gradient")

    @field_validator("jobs", mode="before")
    @classmethod
    def _left_out(cls, given: Any) -> Any:
        """Leave out the kinds of job that a scale's layer has as null."""
        return {kind: spec for kind, spec in given.items() if spec is not None} if isinstance(given, Mapping) else given


class PaperSpec(_Strict):
    """grid.yaml of a paper, with everything that lies over it."""

    title: str
    citation: str
    variants: Variants = Variants()
    experiments: dict[Label, ExperimentSpec]


Device = Literal["cpu", "gpu"]


class ScaleSpec(_Strict):
    """config/scales/<scale>.yaml."""

    description: str
    extends: str | None = Field(None, description="another scale, over whose changes of papers this one's lie")
    device: Device = Field("cpu", description="what `leakbench cost` reckons with by default")
    papers: dict[str, dict[str, Any]] = Field({}, description="per paper, what to lay over everything else")
