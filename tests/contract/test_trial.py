"""Trials of adaptive attackers: a declared one that sees less than who ignores the defense, and others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from leakbench.cli import main
from leakbench.contract.check import NotAsked
from leakbench.contract.trial import SEEDS, trial
from leakbench.defenses.base import DEFENSES

HEAD = '''"""A defense that hides nothing."""

from leakbench.defenses.base import DEFENSES, Defense


@DEFENSES.register("bare", version=1)
class Bare(Defense):
    """The gradient as it is."""

    adaptive = {adaptive}
'''
BLIND = "({'name': 'imputed', 'outliers': 'above', 'threshold': 1e-30},)"
"""An attacker who takes every coordinate for an outlier, and sets it to zero."""
HALF_BLIND = "({'name': 'imputed', 'outliers': 'above', 'threshold': 0.01},)"
"""The same of large ones alone."""

Answer = Callable[[str], dict[str, str]]

pytestmark = pytest.mark.usefixtures("clean_registries")


@pytest.fixture
def answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Answer:
    """The answer of the check about a defense that declares an attacker."""

    def of(adaptive: str) -> dict[str, str]:
        file = tmp_path / "bare.py"
        file.write_text(HEAD.replace("{adaptive}", adaptive))
        status = main(["check", str(file), "--json"])
        rows = json.loads(capsys.readouterr().out)
        assert status == int(any(row["verdict"] == "wrong" for row in rows))
        (row,) = (row for row in rows if row["check"] == "under-attacked")
        return dict(row)

    return of


def test_an_attacker_who_sees_less_is_reported_with_both_numbers(answer: Answer) -> None:
    row = answer(HALF_BLIND)
    assert row["verdict"] == "wrong"
    said = re.match(
        rf"in a trial on {SEEDS} models, the attacker it declares \(imputed\) reaches (\S+) dB, and one who ignores "
        r"the defense (\S+) dB \((\S+) dB more, 95 % interval (\S+) to (\S+)\)",
        row["message"],
    )
    assert said is not None
    adaptive, plain, more, low, high = map(float, said.groups())
    assert more == pytest.approx(plain - adaptive, abs=0.11) and 0 < low < more < high
    assert "docs/add-a-defense.md, step 4" in row["message"] and "log_likelihood" in row["message"]


def test_an_attacker_who_fails_everywhere(answer: Answer) -> None:
    row = answer(BLIND)
    assert row["verdict"] == "wrong" and "(imputed) diverges on every digit" in row["message"]


@pytest.mark.parametrize("adaptive", ["()", "({'name': 'robust', 'iterations': 150},)"])
def test_attackers_who_see_as_much(answer: Answer, adaptive: str) -> None:
    """The default, who simulates the defense, and one who looks for coordinates that stay far off."""
    assert answer(adaptive) == {"component": "bare", "check": "under-attacked", "verdict": "ok", "message": ""}


def test_the_plain_attack_finds_undefended_digits() -> None:
    """An adaptive one has something to lose; and no number differs in a second trial."""
    first, second = (trial(DEFENSES.get("none"), {}) for _ in range(2))
    assert first is not None and first.plain_quality > 30 and first == second


def test_a_reason_where_one_of_both_cannot_run() -> None:
    with pytest.raises(NotAsked, match=r"the adaptive attack cannot run here: .* runs the mechanism of one client"):
        trial(DEFENSES.get("masked_pair"), {"bound": 1.0})
