"""Torch's compiler stays out of processes that do not compile, and is whole where it is used."""

from __future__ import annotations

import subprocess
import sys

DERIVATIVES = """
import sys, torch
from leakbench.libraries.compiler import defer_compiler
defer_compiler()
x = torch.tensor([1.0, 2.0, 3.0])
cube = lambda v: (v * v * v).sum()
assert torch.equal(torch.func.vmap(torch.func.grad(lambda v: v * v * v))(x), 3 * x * x)
assert torch.equal(torch.func.grad(lambda v: (torch.func.grad(cube)(v) * v).sum())(x), 9 * x * x)
assert "torch._dynamo" not in sys.modules
"""

REAL = """
deferred = torch._dynamo
assert deferred.config is sys.modules["torch._dynamo"].config
assert torch._dynamo is sys.modules["torch._dynamo"]
defer_compiler()
assert torch._dynamo is sys.modules["torch._dynamo"]
assert torch.equal(torch.func.grad(cube)(x), 3 * x * x)
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_derivatives_do_not_import_it() -> None:
    run(DERIVATIVES)


def test_it_is_there_when_asked_for() -> None:
    run(DERIVATIVES + REAL)
