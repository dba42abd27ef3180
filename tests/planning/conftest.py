"""A configuration that a test may break."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.planning.checkout import Checkout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    return Checkout(tmp_path, monkeypatch)
