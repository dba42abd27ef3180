"""Whether the C library takes the settings; what they are worth is measured in benchmarks."""

from __future__ import annotations

import platform
import subprocess
import sys


def test_glibc_takes_the_settings() -> None:
    code = "from leakbench.libraries.memory import keep_freed_memory; print(keep_freed_memory())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(platform.libc_ver()[0] == "glibc")
