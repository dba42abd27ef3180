"""An audit of captured updates: what it finds, what it refuses, and what its page says."""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.auditing.audit import strip
from leakbench.auditing.findings import AuditRecord, Scores, level_of
from leakbench.cli import main
from leakbench.data.embedded import Digits

MODELS = """
from torch import full, inf, nn

def smooth():
    return nn.Sequential(nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(96, 10))

def masked():
    module = smooth()
    module.register_buffer("mask", full((2,), -inf))
    return module

def tuned():
    module = smooth()
    module[0].requires_grad_(False)
    return module

def normalised():
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    return nn.Sequential(*layers)

def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, 10))

def convolutional():
    return nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())

class Branching(nn.Sequential):
    def forward(self, images):
        return super().forward(images if images.sum() < 1e9 else images / 2)

def branching():
    return Branching(nn.Flatten(), nn.Linear(64, 10))

def raises():
    raise ValueError("no checkpoint")

def nothing():
    return 3
"""
SEARCH = ("--iterations", "100", "--restarts", "2")


@dataclass
class Client:
    """A client in plain torch, and the files of what it sent."""

    folder: Path
    model: str
    batch: int

    def captured(self, steps: int = 0, rate: float = 0.05) -> list[str]:
        """Compute and save; returns the arguments of the command. Of no steps: the gradient."""
        namespace: dict[str, Any] = {}
        exec(MODELS, namespace)
        torch.manual_seed(0)
        module: nn.Module = namespace[self.model]()
        samples = Digits(size=8).load("test", range(self.batch))
        (self.folder / "truth").mkdir(parents=True)
        for number, image in enumerate(samples.values):
            Image.fromarray((image[0] * 255).round().byte().numpy()).save(self.folder / "truth" / f"{number}.png")
        (self.folder / "models.py").write_text(MODELS)
        save_file(module.state_dict(), self.folder / "before.safetensors")
        optimiser = torch.optim.SGD(module.parameters(), lr=rate)
        for _ in range(max(steps, 1)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(samples.values), samples.labels).backward()
            if steps:
                optimiser.step()
        gradient = {name: each.grad for name, each in module.named_parameters() if each.grad is not None}
        save_file(module.state_dict() if steps else gradient, self.folder / "update.safetensors")
        return self.arguments(*(("--kind", "weights", "--steps", str(steps), "--rate", str(rate)) if steps else ()))

    def arguments(self, *further: str) -> list[str]:
        files = [str(self.folder / "update.safetensors"), "--before", str(self.folder / "before.safetensors")]
        model = ["--model", f"{self.folder}/models.py:{self.model}", "--shape", "1,8,8", "--classes", "10"]
        return ["audit", *files, *model, "--batch", str(self.batch), "--out", str(self.folder / "out"), *further]

    @property
    def record(self) -> AuditRecord:
        return AuditRecord.model_validate_json((self.folder / "out" / "record.json").read_bytes())

    @property
    def page(self) -> str:
        return (self.folder / "out" / "audit.html").read_text()


def of(record: AuditRecord, name: str) -> Any:
    (tried,) = [each for each in record.tried if each.name == name]
    return tried


def test_a_gradient_of_two_images_gives_them_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = Client(tmp_path, "smooth", batch=2)
    assert main([*client.captured(), *SEARCH, "--truth", str(tmp_path / "truth"), "--labels", "1,0"]) == 0
    assert "gives its 2 images away to an attacker who knows the model and the update alone" in capsys.readouterr().out
    record = client.record
    assert record.inferred[0] == [0, 1] and record.inferred_right == 1
    dlg = of(record, "dlg")
    assert dlg.level == "exact" and min(dlg.scores.psnr) > 30 and dlg.agreement > 30 and dlg.unexplained < 1e-3
    assert of(record, "spear").reason.startswith("attack 'spear' needs a model whose first layer is fully connected")
    assert of(record, "ig-labels").labels == [1, 0]
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"truth.png", "dlg.png", "ig.png"}
    assert "attackers who know the labels" not in record.not_tried


def test_a_dense_first_layer_gives_its_image_away_without_a_search(tmp_path: Path) -> None:
    client = Client(tmp_path, "dense", batch=1)
    assert main([*client.captured(), "--iterations", "5", "--truth", str(tmp_path / "truth")]) == 0
    analytic = of(client.record, "analytic")
    assert analytic.level == "exact" and analytic.knows == "" and analytic.starts == 1
    assert "Dropout was off" in client.page


def test_the_same_audit_twice_finds_the_same(tmp_path: Path) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    arguments = [*client.captured(), "--iterations", "30"]
    records = []
    for _ in range(2):
        assert main(arguments) == 0
        records.append(re.sub(r'"seconds": [0-9.]+', "", (tmp_path / "out" / "record.json").read_text()))
    assert records[0] == records[1]


def test_records_do_not_depend_on_the_order_of_hashes(tmp_path: Path) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    arguments = [*client.captured(), "--iterations", "2", "--restarts", "1"]
    keys = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-m", "leakbench", *arguments], check=True, env=environment)
        keys.append(list(client.record.request))
    assert keys[0] == keys[1]


def test_local_training_is_repeated(tmp_path: Path) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    assert main([*client.captured(steps=3), *SEARCH, "--truth", str(tmp_path / "truth")]) == 0
    assert of(client.record, "dlg").level == "exact"
    assert any(sentence.startswith("Local training was plain SGD: 3 steps") for sentence in client.record.assumptions)


def test_an_update_is_the_difference_of_weights(tmp_path: Path) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    client.captured(steps=1, rate=0.5)
    after, before = (load_file(tmp_path / f"{name}.safetensors") for name in ("update", "before"))
    save_file({name: after[name] - before[name] for name in after}, tmp_path / "update.safetensors")
    assert main(client.arguments("--kind", "update", "--rate", "0.5", *SEARCH, "--truth", str(tmp_path / "truth"))) == 0
    assert of(client.record, "dlg").level == "exact"


@pytest.mark.parametrize("steps", [0, 1])
def test_what_is_frozen_is_no_part_of_an_update(tmp_path: Path, steps: int) -> None:
    client = Client(tmp_path, "tuned", batch=1)
    assert main([*client.captured(steps), "--iterations", "30", "--restarts", "1"]) == 0
    assert client.record.parameters == 96 * 10 + 10
    assert of(client.record, "dlg").unexplained < 0.5


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_batch_norm_is_repeated_as_the_client_had_it(tmp_path: Path, mode: str) -> None:
    client = Client(tmp_path, "normalised", batch=2)
    assert main([*client.captured(), *SEARCH, "--batch-norm", mode]) == 0
    record = client.record
    assert any("BatchNorm layers normalised with" in sentence for sentence in record.assumptions)
    reached = of(record, "dlg").unexplained
    assert reached < 0.05 if mode == "train" else reached > 0.05  # the client was in training mode
    assert record.blind is None and of(record, "dlg").level == "unknown"


def test_defenses_that_help_are_named(tmp_path: Path) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    short = ("--iterations", "20", "--restarts", "1")
    assert main([*client.captured(), *short, "--defenses", "--truth", str(tmp_path / "truth")]) == 0
    rows = {row.name: row for row in client.record.behind}
    weak, strong = (rows[f"Gaussian noise, {part:g} of the update's RMS"] for part in (0.01, 1))
    assert weak.nearness is not None and strong.nearness is not None and weak.nearness > strong.nearness
    assert weak.kept > 0.99 > strong.kept and weak.bits == 32
    assert rows["signSGD, with each tensor's mean magnitude"].bits < 2
    assert strong.name in html.unescape(client.page).split("these leave little:")[1].split("</p>")[0]
    assert all("knowing the defense" in row.attempts[1].title for row in rows.values())


def test_without_true_images_nothing_is_scored(tmp_path: Path) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    assert main([*client.captured(), *SEARCH]) == 0
    assert "different starts end in the same picture" in client.page
    assert client.record.not_tried["comparison with the true images"] == "none were given (--truth)"


def test_a_model_whose_labels_cannot_be_read_says_so(tmp_path: Path) -> None:
    client = Client(tmp_path, "convolutional", batch=1)
    assert main([*client.captured(), "--iterations", "20"]) == 0
    record = client.record
    assert record.inferred == [] and record.best is None
    for name in ("dlg", "ig"):
        assert "needs a model that ends with a torch.nn.Linear" in of(record, name).reason
    assert "that is no evidence that it leaks nothing" in client.page


def test_a_model_that_branches_on_values_is_refused_before_any_attack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(Client(tmp_path, "branching", batch=1).captured()) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert re.search(
        r"--model .*branching: .* raises RuntimeError: vmap: .*models.py, line \d+\)\. Give a forward", said
    )


def test_a_folder_that_cannot_be_written_is_refused_before_any_attack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([*Client(tmp_path, "smooth", batch=1).captured(), "--out", str(tmp_path / "file" / "out")]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert re.search("--out .*file/out: nothing can be written there .*not a directory.*; name another folder", said)


def test_an_attack_that_breaks_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("no kernel\nmore")

    monkeypatch.setattr(GradientMatching, "reconstruct", breaks)
    client = Client(tmp_path, "dense", batch=1)
    assert main([*client.captured(), "--defenses"]) == 0
    assert of(client.record, "dlg").reason.startswith("RuntimeError: no kernel")
    assert of(client.record, "analytic").picture == "analytic.png"


def test_pictures_of_finished_attacks_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(GradientMatching, "reconstruct", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(Client(tmp_path, "dense", batch=1).captured())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["analytic.png"]


@pytest.mark.parametrize(
    ("option", "fault"),
    [
        ("--seed=-1", "argument --seed: -1: expected a whole number, 0 or more"),
        ("--seed=x", "argument --seed: x: expected a whole number, 0 or more"),
        ("--classes=ab", "argument --classes: ab: expected a whole number, 1 or more"),
        ("--classes=0", "argument --classes: 0: expected a whole number, 1 or more"),
    ],
)
def test_numbers_of_the_wrong_kind_are_named(capsys: pytest.CaptureFixture[str], option: str, fault: str) -> None:
    with pytest.raises(SystemExit):
        main(["audit", "update", option])
    assert fault in capsys.readouterr().err


def damaged(
    folder: Path,
    name: str = "0.weight",
    *,
    file: str = "update",
    drop: bool = False,
    shape: Sequence[int] = (),
    value: float = 0.0,
) -> None:
    tensors = load_file(folder / f"{file}.safetensors")
    if drop:
        del tensors[name]
    elif shape:
        tensors[name] = torch.zeros(*shape)
    else:
        tensors[name] = torch.full_like(tensors[name], value)
    save_file(tensors, folder / f"{file}.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--shape": "1,8"}, "--shape 1,8: expected channels, height and width, such as 3,32,32"),
        ({"--shape": "1,x,8"}, "--shape 1,x,8: expected numbers with commas between them"),
        ({"--shape": "3,8,8"}, "--shape 3,8,8: .*smooth does not take such images: RuntimeError"),
        ({"--classes": "11"}, r"--classes 11: .*returns \[2, 10\] for 2 images, not \[2, 11\]"),
        ({"--labels": "1,2"}, "--labels: 2 labels for --batch 1; give one per image"),
        ({"--labels": "10"}, "--labels: 10 is no class; --classes 10 allows 0 to 9"),
        ({"--steps": "2"}, "--steps, --rate and --local-batch describe local training, .* say --kind update"),
        ({"--kind": "update"}, "--kind update: give the client's learning rate as --rate"),
        ({"--mean": "0,0"}, "--mean: 2 numbers for images of 1 channels; give one, or 1"),
        ({"--std": "0"}, "--std: 0.0 is not above zero"),
        ({"--std": "1e-60"}, "--std: 1e-60 is not above zero"),
        ({"--std": "nan"}, "--std: nan is not a finite number"),
        ({"--std": "inf"}, "--std: inf is not a finite number"),
        ({"--mean": "nan"}, "--mean: nan is not a finite number"),
        ({"--kind": "update", "--rate": "inf"}, "--rate inf: expected a finite number above zero"),
        ({"--kind": "update", "--rate": "nan"}, "--rate nan: expected a finite number above zero"),
        ({"--kind": "update", "--rate": "0"}, "--rate 0.0: expected a finite number above zero"),
        (
            {"--kind": "update", "--rate": "1e-45"},
            r"update.safetensors: not finite .* the update over --rate \(1e-45\)",
        ),
        ({"--model": "models"}, "--model models: expected FILE.py:NAME"),
        ({"--model": "{folder}/models.py:smoth"}, "defines no 'smoth'. It defines: .*smooth"),
        ({"--model": "{folder}/models.py:raises"}, r"raises\(\) raises ValueError: no checkpoint"),
        ({"--model": "{folder}/models.py:nothing"}, r"nothing\(\) returns a int, and no torch.nn.Module"),
        ({"--model": "{folder}/models.py:dense"}, r"before.safetensors: not the state of .*dense: .*Missing key"),
        ({"--before": "{folder}/none.safetensors"}, "--before: no file .*none.safetensors; write it with"),
        ({"--before": "{folder}/models.py"}, "models.py: no file of safetensors"),
        ({"--truth": "{folder}/none"}, "--truth: no folder"),
        ({"--truth": "{folder}"}, r"--truth: 0 images .* --batch 1 asks for as many"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], message: str
) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    arguments = client.captured()
    for key, value in changes.items():
        arguments += [key, value.format(folder=tmp_path)]
    assert main(arguments) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"drop": True}, "missing 0.weight; unknown none. Names are those of model.named_parameters"),
        ({"shape": (6, 1, 3, 2)}, r"'0.weight' has the shape \[6, 1, 3, 2\]; the model's has \[6, 1, 3, 3\]"),
        ({"value": float("nan")}, "'0.weight' holds values that are not finite"),
        ({"name": "other", "shape": (1,)}, "missing none; unknown other"),
        ({"file": "before", "value": float("nan")}, "before.safetensors: '0.weight' holds values that are not finite"),
        ({"file": "before", "value": float("inf")}, "before.safetensors: '0.weight' holds values that are not finite"),
    ],
)
def test_damaged_updates_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: dict[str, Any], message: str
) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    arguments = client.captured()
    damaged(tmp_path, **damage)
    assert main(arguments) == 1
    assert re.search(message, capsys.readouterr().err)


def test_a_mask_may_be_infinite(tmp_path: Path) -> None:
    assert main([*Client(tmp_path, "masked", batch=1).captured(), "--iterations", "2", "--restarts", "1"]) == 0


def test_a_gradient_of_zeros_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    arguments = client.captured()
    for name in load_file(tmp_path / "update.safetensors"):
        damaged(tmp_path, name)
    assert main(arguments) == 1
    assert "nothing but zeros; was it saved before backward()" in capsys.readouterr().err


def test_true_images_of_another_size_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    arguments = client.captured()
    Image.new("L", (9, 8)).save(tmp_path / "truth" / "0.png")
    assert main([*arguments, "--truth", str(tmp_path / "truth")]) == 1
    assert "0.png: 8x9 pixels; --shape asks for 8x8" in capsys.readouterr().err


@pytest.mark.parametrize("part", [0, 0.5])  # no picture, and half of one
def test_true_images_that_cannot_be_read_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: float
) -> None:
    arguments, file = Client(tmp_path, "smooth", batch=1).captured(), tmp_path / "truth" / "0.png"
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    assert main([*arguments, "--truth", str(tmp_path / "truth")]) == 1
    assert re.search("--truth: .*0.png cannot be read as a picture: .* Save it again", capsys.readouterr().err)


@given(st.lists(st.floats(0, 140), min_size=1, max_size=4), st.floats(0, 20))
def test_levels_follow_the_score(values: list[float], blind: float) -> None:
    scores, guess = Scores(psnr=values, ssim=None), Scores(psnr=[blind], ssim=None)
    order = ["nothing", "partial", "recognisable", "exact"]
    better = Scores(psnr=[value + 1 for value in values], ssim=None)
    assert order.index(level_of(scores, guess, "")) <= order.index(level_of(better, guess, ""))
    assert level_of(scores, guess, "why") == "failed" and level_of(None, guess, "") == "unknown"


def test_pictures_are_enlarged_by_a_whole_factor() -> None:
    images = torch.rand(2, 3, 40, 8)
    picture = strip(images)
    assert picture.size == (3 * 17, 3 * 40)
    expected = tuple((images[1, :, 39, 7] * 255).round().byte().tolist())
    assert picture.getpixel((picture.width - 1, picture.height - 1)) == expected


def test_files_of_the_same_name_keep_their_digests(tmp_path: Path) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    arguments, files = client.captured(), [tmp_path / "update.safetensors", tmp_path / "old" / "update.safetensors"]
    files[1].parent.mkdir()
    (tmp_path / "before.safetensors").rename(files[1])
    assert main([*arguments, "--before", str(files[1]), "--iterations", "2", "--restarts", "1"]) == 0
    assert client.record.files == {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_records_are_json(tmp_path: Path) -> None:
    client = Client(tmp_path, "smooth", batch=1)
    assert main([*client.captured(), "--iterations", "5"]) == 0
    assert json.loads((tmp_path / "out" / "record.json").read_text())["schema"] == "leakbench.audit/1"
