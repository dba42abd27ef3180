"""The environments hold versions that ``pyproject.toml`` allows, with digests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
DIGEST = re.compile(r"--hash=sha256:([0-9a-f]{64})\b")


def pins(environment: str) -> list[tuple[Requirement, set[str]]]:
    """Every pin of an environment, with the digests of its files."""
    lines = (ROOT / "envs" / f"{environment}.txt").read_text().replace("\\\n", " ").splitlines()
    return [
        (Requirement(line.split(" --hash")[0]), set(DIGEST.findall(line))) for line in lines if not line.startswith("#")
    ]


def asked() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(each) for group in groups for each in group]


@pytest.mark.parametrize("environment", ["cpu", "cuda"])
def test_environments_hold_what_is_asked_for(environment: str) -> None:
    """A range that is changed in one place alone is not the one that gets installed."""
    versions: dict[str, list[str]] = {}
    for pin, digests in pins(environment):
        (specifier,) = pin.specifier
        assert specifier.operator == "==" and digests, pin
        versions.setdefault(canonicalize_name(pin.name), []).append(specifier.version)
    for each in asked():
        (version,) = versions[canonicalize_name(each.name)]
        assert each.specifier.contains(version), f"{each}: {version} is pinned; run `make pins`"


def test_both_environments_are_one_but_for_the_gpu() -> None:
    """Numbers of a machine without a GPU and of one with a GPU come from the same versions."""
    cpu, cuda = ({str(pin): digests for pin, digests in pins(name)} for name in ("cpu", "cuda"))
    builds = set(DIGEST.findall((ROOT / "envs" / "torch-cpu.txt").read_text()))
    assert len(builds) == 6 and cpu.pop("torch==2.13.0") == cuda.pop("torch==2.13.0") | builds
    gpu = {name: cuda.pop(name) for name in set(cuda) - set(cpu)}
    assert cpu == cuda
    assert gpu and all(re.match(r"nvidia-(cu|nc|nv)|cuda-|triton", name) for name in gpu)


def test_pins_hold_on_every_python_and_platform() -> None:
    """Without a marker for it, no Python that the project allows is left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = [each.rpartition(" ")[2] for each in project["classifiers"]]
    for each in asked():
        (pin,) = (pin for pin, _ in pins("cpu") if canonicalize_name(pin.name) == canonicalize_name(each.name))
        for python in supported:
            environment = {"python_version": python, "python_full_version": f"{python}.9"}
            assert pin.marker is None or pin.marker.evaluate(environment), pin
