"""``lint/docstrings.py`` finds what is missing in a docstring, and nothing else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from lint.docstrings import Documented, faults

ROOT = Path(__file__).parents[2]


def found(source: str, name: str = "metrics/mine.py") -> list[str]:
    tree = ast.parse(dedent(source))
    return [f"{line}: {fault}" for line, fault in faults(tree, name, Documented([tree]))]


def function(signature: str, docstring: str, body: str = "pass") -> str:
    return f'def mine({signature}:\n    """{docstring}"""\n    {body}\n'


@pytest.mark.parametrize(
    ("signature", "docstring"),
    [
        ("x: torch.Tensor)", "It has a mean."),
        (") -> np.ndarray", "Of the numbers in [0, 1]."),
        ("x: Sequence[torch.Tensor])", "Several."),
        ("x: Mapping[str, torch.Tensor], y: torch.Tensor)", "By name."),
    ],
)
def test_arrays_without_a_shape(signature: str, docstring: str) -> None:
    assert found(function(signature, docstring)) == ["1: mine takes or returns arrays, and does not give their shapes"]


@pytest.mark.parametrize(
    ("signature", "docstring"),
    [
        ("x: torch.Tensor)", "Rows ``[n, d]``."),
        ("x: torch.Tensor)", "Values ``[..., D] -> [...]``."),
        ("x: torch.Tensor)", "A scalar."),
        (") -> torch.Tensor", "The same, elementwise."),
        ("state: dict[str, torch.Tensor])", "A module's parameters by name."),
        ("cost: Callable[[torch.Tensor], torch.Tensor])", "What is minimised."),
        ("n: int)", "A number."),
    ],
)
def test_shapes_that_are_given_or_do_not_exist(signature: str, docstring: str) -> None:
    assert found(function(signature, docstring)) == []


def test_fields_of_a_class() -> None:
    source = 'class Seen:\n    """{}"""\n    x: torch.Tensor\n'
    assert found(source.format("What is seen.")) == ["1: Seen holds arrays, and does not give their shapes"]
    assert found(source.format("What is seen, ``[n]``.")) == []
    assert found(source.format("What is seen.") + '    """``[n]``."""\n') == []


def test_errors_that_are_raised() -> None:
    raising = 'raise UnknownName("defense", "x", ())'
    said = "Of n.\n\n    Raises:\n        {}: there is none.\n    "
    assert found(function("n: int)", "Of n.", raising)) == ["1: mine raises UnknownName, and does not say when"]
    assert found(function("n: int)", said.format("RecordError"), raising)) != []
    assert found(function("n: int)", said.format("UnknownName"), raising)) == []
    assert found(function("n: int)", said.format("ConfigError"), raising)) == []  # which it is one of


def test_errors_in_branches_and_handlers() -> None:
    source = '''
        def mine(n: int) -> None:
            """Of n."""
            try:
                raise ValueError("is caught")
            except ValueError as error:
                if n:
                    raise
                else:
                    raise errors.RecordError("is not") from error
            assert_never(n)
            raise AssertionError("impossible")
    '''
    assert found(source) == ["2: mine raises RecordError, and does not say when"]


def test_methods_without_a_docstring() -> None:
    source = '''
        class Base:
            """A base."""

            def said(self) -> None:
                """Said."""

        class Middle(Base): ...

        class Mine(Middle):
            """Mine."""

            def said(self) -> None: ...

            def unsaid(self) -> None: ...

        class Layer(torch.nn.Module):
            """A layer, whose library says what forward is."""

            def forward(self) -> None: ...
    '''
    assert found(source) == ["15: Mine.unsaid has no docstring, nor does it override one that has"]
    said = "has no docstring, nor does it override one that has"
    assert found(source.replace("(torch.nn.Module)", "(BaseModel)")) == [*found(source), f"20: Layer.forward {said}"]


def test_sources() -> None:
    assert found('"""A formula."""', "theory/mine.py") == ["1: no docstring names a paper and its year"]
    assert found('"""A formula of Tan et al. (2024)."""', "theory/mine.py") == []
    assert found('"""A metric."""', "metrics/mine.py") == []
    assert found('"""What is asked."""', "theory/arguments.py") == []
    assert "remove it from OURS" in found('"""Of Tan et al. (2024)."""', "theory/arguments.py")[0]


def test_what_nobody_outside_sees() -> None:
    assert found("def _mine(x: torch.Tensor):\n    '''Mine.'''\n    raise ValueError") == []


def test_the_package() -> None:
    command = [sys.executable, "lint/docstrings.py"]
    environment = os.environ | {"PYTHONPATH": "src"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
