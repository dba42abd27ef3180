"""The Python interface: its examples, what it refuses, and that the package stays quick to import."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.docs.test_documented_commands import blocks
from torch import nn

import leakbench
from leakbench import api
from leakbench.defenses.base import Defense
from leakbench.errors import ConfigError, Infeasible, LeakbenchError, RecordError
from leakbench.jobs.runner import Placement, run_job
from leakbench.planning.project import Project

ROOT = Path(__file__).parents[1]
RECORD = "results/smoke/optimal_defense/undefended/digits16/small/none/grey/all.json"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration beside the record of a reference attacker."""
    folder = tmp_path_factory.mktemp("api")
    shutil.copytree(ROOT / "config", folder / "config")
    run_job(Project(folder).job(RECORD), folder, Placement(device="cpu"))
    return folder


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(96, 10))


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_examples(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    results = doctest.testmod(api)
    assert results.attempted > 15 and not results.failed


def test_the_example_of_the_guide(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(checkout)
    (code,) = blocks(ROOT / "docs" / "running.md", "python")
    exec(code, {})
    assert re.search(r"undefended +none +grey +\d", capsys.readouterr().out)


def test_every_name_has_an_example() -> None:
    assert leakbench.__all__ == api.__all__
    for name in api.__all__:
        assert ">>> " in str(getattr(leakbench, name).__doc__)


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import leakbench; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["leakbench"]
    with pytest.raises(AttributeError, match="no attribute 'atack'"):
        getattr(leakbench, "atack")  # noqa: B009


def test_a_gradient_of_ones_own_is_what_send_computes(model: nn.Module, images: torch.Tensor) -> None:
    labels = torch.tensor([3, 5])
    loss = nn.functional.cross_entropy(model(images), labels)
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    seen = leakbench.observe(model, gradient, (1, 8, 8), batch=2)
    named = dict(zip([name for name, _ in model.named_parameters()], gradient, strict=True))
    assert torch.equal(
        leakbench.observe(model, named, (1, 8, 8), batch=2).observations.gradients, seen.observations.gradients
    )
    sent = leakbench.send(model, images, labels)
    torch.testing.assert_close(sent.observations.gradients, seen.observations.gradients)
    assert all(parameter.requires_grad for parameter in model.parameters()), "the model is the caller's"


def test_an_attack_comes_near_and_noise_keeps_it_away(model: nn.Module, images: torch.Tensor) -> None:
    images, labels = images[:1], torch.tensor([3])
    search = leakbench.attack("dlg_wolfe", iterations=300)

    def quality(defense: Defense | None) -> float:
        seen = leakbench.send(model, images, labels, defense)
        return leakbench.score(leakbench.reconstruct(search, seen, restarts=2).images, images).mean_psnr

    assert quality(None) > 30
    assert quality(leakbench.defense("gaussian_noise", scale=1.0)) < 20


def test_defenses_of_images_calibrate_on_the_batch(model: nn.Module, images: torch.Tensor) -> None:
    plain = leakbench.send(model, images, torch.tensor([3, 5])).observations.gradients
    channel = leakbench.defense("white_channel", kappa=1.0)
    noisy = leakbench.send(model, images, torch.tensor([3, 5]), channel).observations.gradients
    assert not torch.allclose(plain, noisy)


@pytest.mark.usefixtures("clean_registries")
def test_a_defense_of_ones_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sign_noise.py").write_text(blocks(ROOT / "docs" / "index.md", "python")[0])
    monkeypatch.chdir(tmp_path)
    assert leakbench.defense("sign_noise.py:SignNoise", probability=0.2).parameters() == {"probability": 0.2}


def test_pixels_are_the_inputs_before_normalisation(model: nn.Module, images: torch.Tensor) -> None:
    seen = leakbench.send(model, (images - 0.5) / 0.25, torch.tensor([3, 5]), mean=[0.5], std=[0.25])
    result = leakbench.reconstruct(leakbench.attack("grey"), seen)
    assert torch.equal(result.images, torch.full_like(images, 0.5)) and result.labels == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda _: leakbench.attack("ig_libary"), "unknown attack 'ig_libary'; did you mean 'ig_library'?"),
        (lambda _: leakbench.attack("ig_library", iteration=1), "attack 'ig_library': iteration: unknown key"),
        (lambda _: leakbench.defense("gaussian_noise", scale=-1), "defense 'gaussian_noise': scale: "),
        (lambda model: leakbench.observe(model, [torch.zeros(1)], (1, 8, 8)), "gradient: 1 tensors; the model has 4"),
        (lambda _: leakbench.score(torch.zeros(1, 1, 8, 8), torch.zeros(2, 1, 8, 8)), "both are [B, C, H, W]"),
        (lambda _: leakbench.score(torch.full((1, 1, 8, 8), torch.nan), torch.zeros(1, 1, 8, 8)), "are not finite"),
        (lambda _: leakbench.read_records("/"), "expected results/<scale> in a checkout"),
        (lambda _: leakbench.read_records("figures/smoke"), "expected results/<scale> in a checkout"),
    ],
)
def test_what_is_refused(wrong: Callable[[nn.Module], object], message: str, model: nn.Module) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        wrong(model)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": [3]}, "labels: int64 of shape [1]; give whole numbers, one per image: [2]"),
        ({"labels": [0.5, 1.0]}, "labels: float32 of shape [2]; give whole numbers"),
        ({"labels": torch.tensor([3, 10])}, "labels: 10 is no class; the model allows 0 to 9"),
        ({"restarts": 0}, "restarts: 0 starts; give 1 or more"),
        ({"seed": -1}, "seed: -1 is negative; give 0 or more"),
    ],
)
def test_what_reconstructing_refuses(
    given: dict[str, Any], message: str, model: nn.Module, images: torch.Tensor
) -> None:
    seen = leakbench.send(model, images, torch.tensor([3, 5]))
    with pytest.raises(ConfigError, match=re.escape(message)):
        leakbench.reconstruct(leakbench.attack("grey"), seen, **given)
    if "restarts" not in given:
        with pytest.raises(ConfigError, match=re.escape(message)):
            leakbench.send(model, images, **{"labels": torch.tensor([3, 5]), **given})


def test_labels_may_be_a_tensor(model: nn.Module, images: torch.Tensor) -> None:
    search = leakbench.attack("ig_library", iterations=1)
    for labels in (torch.tensor([0, 5]), [0, 5]):
        seen = leakbench.send(model, images, torch.tensor([0, 5]))
        assert leakbench.reconstruct(search, seen, labels).labels == (0, 5)
    alone = leakbench.send(model, images[:1], torch.tensor([0]))
    assert leakbench.reconstruct(search, alone, torch.tensor([0])).labels == (0,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mean_image", "needs auxiliary_images, which jobs of the workflow can grant"),
        ("likelihood", "needs mechanism; give the defense"),
    ],
)
def test_knowledge_that_is_not_granted(name: str, message: str, model: nn.Module, images: torch.Tensor) -> None:
    inside = {"attack": leakbench.attack("ig_library", iterations=1)} if name == "likelihood" else {}
    with pytest.raises(Infeasible, match=re.escape(message)):
        leakbench.reconstruct(leakbench.attack(name, **inside), leakbench.send(model, images, torch.tensor([3, 5])))


def test_an_attack_that_cannot_run_says_why(model: nn.Module, images: torch.Tensor) -> None:
    with pytest.raises(Infeasible, match="attack 'analytic': "):
        leakbench.reconstruct(leakbench.attack("analytic"), leakbench.send(model, images, torch.tensor([3, 5])))
    masked = leakbench.defense("masked_pair", bound=1.0)
    with pytest.raises(Infeasible, match="clients together"):
        leakbench.send(model, images, torch.tensor([3, 5]), masked)


def test_records_of_one_experiment(checkout: Path) -> None:
    numbers = leakbench.read_records(checkout / "results" / "smoke", "optimal_defense", "undefended")
    assert set(numbers["attack"]) == {"grey"} and len(numbers) == len(
        leakbench.read_records(checkout / "results" / "smoke")
    )
    for given, error, message in (
        (("results/smoke", "cdpa"), RecordError, "no records; make them with"),
        (("results/smok",), LeakbenchError, "did you mean 'smoke'?"),
        (("results/smoke", "optimal"), ConfigError, "unknown paper 'optimal'"),
        (("results/smoke", "optimal_defense", "undefend"), ConfigError, "did you mean 'undefended'?"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            leakbench.read_records(checkout / given[0], *given[1:])


def test_stale_records_are_left_out_and_counted(checkout: Path, tmp_path: Path) -> None:
    shutil.copytree(checkout, tmp_path / "copy")
    record = tmp_path / "copy" / RECORD
    record.write_text(record.read_text()[:-10])
    with pytest.warns(UserWarning, match="1 records are left out, such as results/smoke"), pytest.raises(RecordError):
        leakbench.read_records(tmp_path / "copy" / "results" / "smoke", "optimal_defense")


def test_a_defense_may_change_the_model() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.Sigmoid(), torch.nn.Flatten(), torch.nn.Linear(72, 10)
    )
    images, labels = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([3])
    seen = leakbench.send(model, images, labels, precode := leakbench.defense("precode", width=4))
    assert len(seen.observations.network.names) == 8 and len(list(model.parameters())) == 4
    search = leakbench.attack("adaptive", attack=leakbench.attack("dlg_wolfe", iterations=5))
    found = leakbench.reconstruct(search, seen, labels=[3], defense=precode)
    assert found.images.shape == images.shape
