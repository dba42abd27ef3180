"""The plug-in of the benchmarks that measures tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUSY = """
import subprocess
import sys

SPIN = "import time\\nend = time.process_time() + 0.3\\nwhile time.process_time() < end: pass"


def test_alone():
    exec(SPIN)


def test_in_a_process_below():
    subprocess.run([sys.executable, "-c", SPIN], check=True)
"""


def test_processes_below_a_test_count(tmp_path: Path) -> None:
    (tmp_path / "test_busy.py").write_text(BUSY)
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.processor_time", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "--rootdir", tmp_path, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    taken = {name: float(seconds) for seconds, name in re.findall(r"^ +([0-9.]+) s +\S*?(\w+)$", done.stdout, re.M)}
    assert all(0.25 <= taken[name] < 5 for name in ("test_alone", "test_in_a_process_below")), done.stdout
