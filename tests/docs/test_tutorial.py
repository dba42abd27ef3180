"""The code of docs/index.md and README: a defense as in the guide, and attacks that come out as the page says."""

from __future__ import annotations

import re

import pytest
from tests.docs.test_documented_commands import ROOT, blocks

import leakbench
from leakbench.api import Reconstructed
from leakbench.lazy import torch

PAGE = ROOT / "docs" / "index.md"


def test_its_defense_is_the_one_of_the_guide() -> None:
    assert blocks(PAGE, "python")[0] == blocks(ROOT / "docs" / "add-a-defense.md", "python")[0]


def test_its_code_comes_first() -> None:
    assert len(PAGE.read_text().partition("```python")[0].splitlines()) < 6


def test_its_attack(capsys: pytest.CaptureFixture[str]) -> None:
    there: dict[str, object] = {}
    exec(blocks(PAGE, "python")[1], there)
    plain, noisy = (float(each) for each in re.findall(r"PSNR: (\d+) dB", capsys.readouterr().out))
    image, result = there["image"], there["result"]
    assert isinstance(image, torch.Tensor) and isinstance(result, Reconstructed)
    grey = leakbench.score(torch.full_like(image, 0.5), image).mean_psnr
    assert plain > 50 and noisy < grey < 12


def test_the_attack_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    exec(code, {"model": model, "images": torch.rand(2, 1, 8, 8), "labels": torch.tensor([3, 5])})
    assert re.match(r"psnr=\[\d+\.\d+, \d+\.\d+\] ssim=", capsys.readouterr().out)
