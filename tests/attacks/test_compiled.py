"""Evaluations through torch.compile: one shape, equal results, and what the compiler refuses is done without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.attacks.test_engine import NEWTON, SIGNED, Clients, assert_same

from leakbench import lazy
from leakbench.attacks import engine
from leakbench.attacks.optimisers import Optimiser
from leakbench.jobs.runner import Placement

real_compile = torch.compile


@pytest.fixture(scope="module")
def clients() -> Clients:
    return Clients()


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    engine._compiled.cache_clear()
    monkeypatch.setattr(engine, "COMPILED", True)
    yield
    engine._compiled.cache_clear()


@pytest.mark.parametrize("optimiser", [SIGNED, NEWTON], ids=["adam", "lbfgs"])
def test_every_chunk_has_the_shape_that_was_compiled(
    clients: Clients, optimiser: Optimiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, compilations = [], 0

    def compile_(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        nonlocal compilations
        compilations += 1
        assert options == {"fullgraph": True, "dynamic": False, "mode": "default"}

        def run(points: torch.Tensor, data: Any) -> Any:
            sizes.append(len(points))
            return function(points, data)

        return run

    monkeypatch.setattr(lazy.torch, "compile", compile_)
    found = clients.match(optimiser=optimiser, chunk=3)
    assert set(sizes) == {3} and compilations == 1
    monkeypatch.setattr(engine, "COMPILED", False)
    assert_same(found, clients.match(optimiser=optimiser))


def test_what_cannot_be_compiled_is_done_without(
    clients: Clients, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(function: object, **options: Any) -> Callable[..., Any]:
        def run(*_: Any) -> Any:
            raise NotImplementedError("no such operator\nand a long story")

        return run

    monkeypatch.setattr(lazy.torch, "compile", refuse)
    found = clients.match()
    told = capsys.readouterr().err
    assert told.count("compiling failed, going on without: NotImplementedError: no such operator\n") == 1
    monkeypatch.setattr(engine, "COMPILED", False)
    assert_same(found, clients.match())


def test_out_of_memory_is_no_refusal(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def run(points: torch.Tensor, data: Any) -> Any:
            if len(points) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return function(points, data)

        return run

    monkeypatch.setattr(lazy.torch, "compile", scarce)
    found = clients.match()
    monkeypatch.setattr(engine, "COMPILED", False)
    assert_same(found, clients.match())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_both_derivatives_go_through_the_compiler(
    clients: Clients, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Traced and differentiated as one graph; only the code generator, which takes minutes, is left out."""

    def traced(function: Callable[..., Any], fullgraph: bool, dynamic: bool, mode: str) -> Any:
        return real_compile(function, backend="aot_eager", fullgraph=fullgraph, dynamic=dynamic)

    monkeypatch.setattr(lazy.torch, "compile", traced)
    found = clients.match()
    assert "compiling failed" not in capsys.readouterr().err
    monkeypatch.setattr(engine, "COMPILED", False)
    assert_same(found, clients.match())


def test_a_placement_switches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    Placement("cpu").resolve()
    assert not engine.COMPILED
    Placement("cpu", compile=True).resolve()
    assert engine.COMPILED
