"""What a scale needs staged: what that is, whether it is there and whole, and what to do where it is not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leakbench import staging
from leakbench.cli import main
from leakbench.data.staged import StagedImages
from leakbench.errors import MissingData
from leakbench.metrics.image import PERCEPTUAL
from leakbench.planning.project import Project
from leakbench.staged import pins
from leakbench.staged.manifest import MANIFEST, sha256
from leakbench.staged.pins import Pin
from leakbench.staging import Need, look, needs, to_do

ROOT = Path(__file__).resolve().parents[2]

Fake = Callable[..., StagedImages]


@pytest.fixture
def torch_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of torch's, where AlexNet's weights would lie."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path / "torch"


def need(name: str, scale: str = "full", papers: tuple[str, ...] = ("channel",)) -> Need:
    wanted = {each.name: each for each in needs(Project(ROOT, {"papers": list(papers)}).plan(scale))}
    return wanted[name]


@pytest.mark.usefixtures("root", "torch_home")
def test_what_the_full_scale_needs() -> None:
    found = {each.name: each for each in needs(Project(ROOT).plan("full"))}
    weights = {"bert_vocabulary", "google-bert/bert-base-uncased", "distilbert/distilbert-base-uncased", *PERCEPTUAL}
    assert set(found) >= {"mnist", "fashion_mnist", "cifar10", "svhn", "celeba", "imagenet", "cola", *weights}
    assert found["imagenet"].papers == ("cdpa",) and "optimal_defense" in found["mnist"].papers
    for each in found.values():  # the table leaves no gaps
        assert each.staged is not None and each.staged.terms, each.name
        assert look(each, check=True).state == "missing"
    assert to_do(look(found["mnist"], check=False)) == "`leakbench stage mnist`"
    assert to_do(look(found["imagenet"], check=False)) == (
        "accept the terms at https://huggingface.co/datasets/ILSVRC/imagenet-1k, then `hf auth login` and `leakbench "
        "stage imagenet`"
    )


@pytest.mark.usefixtures("root", "torch_home")
def test_embedded_sets_are_there() -> None:
    found = [look(each, check=True) for each in needs(Project(ROOT, {"papers": ["secagg_dp"]}).plan("smoke"))]
    assert [(each.need.name, each.state, each.ready) for each in found] == [
        ("digits", "ships with the installation", True)
    ]
    assert to_do(found[0]) == ""


@pytest.mark.usefixtures("torch_home")
def test_staged_broken_and_missing(root: Path, fake: Fake) -> None:
    svhn = need("svhn")
    assert look(svhn, check=True).state == "missing"
    assert look(svhn, check=True).size == 183_000_000
    fake("svhn")
    found = look(svhn, check=True)  # put there by hand
    assert found.state == "staged" and found.size == sum(path.stat().st_size for path in root.rglob("*.parquet"))
    assert "no digest was noted of train-00000-of-00001.parquet, test-00000-of-00001.parquet" in found.faults[0]
    staging.fetch("svhn")
    assert (root / "ufldl-stanford/svhn" / MANIFEST).is_file()
    (remark,) = look(svhn, check=True).faults
    assert "no digest was published of train-00000-of-00001.parquet, test-00000-of-00001.parquet" in remark

    (file,) = root.rglob("train-*.parquet")
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    assert look(svhn, check=False).state == "staged"  # reads no file
    found = look(svhn, check=True)
    assert found.state == "broken" and not found.ready and str(file) in found.faults[0]
    assert to_do(found) == "delete the files named below, then `leakbench stage svhn`"

    file.unlink()
    found = look(svhn, check=True)
    assert found.state == "missing" and "is not staged: no file matches" in found.faults[0]


@pytest.mark.usefixtures("torch_home")
def test_files_that_are_not_the_published_ones_are_named(
    root: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether somebody put them there or an older version staged them: before anything is read, once they are noted."""
    fake("svhn")
    (train,), (test,) = root.rglob("train-*.parquet"), root.rglob("test-*.parquet")
    published = {"cropped_digits/train-00000-of-00001.parquet": "a" * 64, f"cropped_digits/{test.name}": sha256(test)}
    monkeypatch.setattr(pins, "_pins", lambda: {"ufldl-stanford/svhn": Pin(sha256=published)})
    svhn = need("svhn")
    assert look(svhn, check=False).state == "staged"  # nothing is noted, and no file is read
    found = look(svhn, check=True)
    assert found.state == "broken"
    assert [fault.partition(":")[0] for fault in found.faults] == [f"{train} is not what was published"]

    staging.fetch("svhn")
    assert f"{train} is not what was published: its SHA-256 begins with " in capsys.readouterr().out
    assert look(svhn, check=False).state == "broken"
    published["cropped_digits/train-00000-of-00001.parquet"] = sha256(train)
    monkeypatch.setattr(pins, "_pins", lambda: {"ufldl-stanford/svhn": Pin(sha256=published)})
    assert look(need("svhn"), check=True).faults == ()


@pytest.mark.usefixtures("torch_home")
@pytest.mark.parametrize("published", [{}, {"fashion_mnist/train-00000-of-00001.parquet": "a" * 64}])
def test_what_was_encoded_anew_is_compared_by_what_it_holds(
    root: Path, fake: Fake, noise: Any, published: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not digests of the files were published, too."""
    fake("fashion_mnist", train=6, test=2)
    images, labels = noise(6, "fashion_mnist"), bytes([0, 1, 0, 1, 0, 1])
    sizes = (6).to_bytes(4) + (28).to_bytes(4) * 2
    idx = (
        md5(b"\0\0\x08\x03" + sizes + b"".join(each.tobytes() for each in images)),
        md5(b"\0\0\x08\x01" + (6).to_bytes(4) + labels),
    )
    known = {"zalando-datasets/fashion_mnist": Pin(sha256=published, idx={"train": idx})}
    monkeypatch.setattr(pins, "_pins", lambda: known)
    staging.fetch("fashion_mnist")
    for check in (False, True):
        found = look(need("fashion_mnist"), check=check)
        assert found.state == "staged" and "train-" not in "".join(found.faults)

    fake("fashion_mnist", train=6, test=2, form="JPEG")
    (train,) = root.rglob("train-*.parquet")
    found = look(need("fashion_mnist"), check=True)
    assert found.state == "broken" and f"{train} holds other values than were published" in found.faults


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.mark.usefixtures("root")
def test_weights_are_known_by_their_digest(torch_home: Path) -> None:
    lpips = need("lpips")
    assert look(lpips, check=True).state == "missing" and look(lpips, check=True).faults == ()
    file = torch_home / "hub/checkpoints/alexnet-owt-7be5be79.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"half of it")
    assert look(lpips, check=False).state == "staged"
    assert look(lpips, check=True).state == "broken"


@pytest.mark.usefixtures("torch_home")
def test_one_failure_keeps_nothing_else_from_being_staged(
    root: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def fetch(name: str) -> None:
        asked.append(name)
        if name == "celeba":
            raise MissingData("data set 'celeba': cannot fetch it")
        if name == "cifar10":
            raise OSError("No space left on device")
        if name not in PERCEPTUAL:
            fake(name)

    monkeypatch.setattr(staging, "fetch", fetch)
    monkeypatch.chdir(ROOT)
    assert main(["--set", "papers=[channel]", "stage", "--all", "--scale", "full"]) == 1
    assert asked == ["celeba", "cifar10", "fashion_mnist", "svhn", "lpips", "lpips_vgg"]
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "celeba: data set 'celeba': cannot fetch it",
        "cifar10: No space left on device",
    ]
    assert "missing: celeba, cifar10, lpips, lpips_vgg; to fetch: about 11.5 GB" in " ".join(printed.out.split())
    assert "staged:" in printed.out


@pytest.mark.usefixtures("root", "torch_home")
def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["--set", "papers=[secagg_dp]", "stage", "--all"]) == 0
    assert "ships with the" in capsys.readouterr().out
    monkeypatch.setattr(staging, "fetch", None)  # looking fetches nothing
    assert main(["--set", "papers=[secagg_dp]", "stage", "--all", "--scale", "laptop", "--check"]) == 1
    assert "missing: mnist; to fetch: about 18.2 MB" in capsys.readouterr().out
    for wrong in (["stage"], ["stage", "mnist", "--all"], ["stage", "mnist", "--check"]):
        assert main(wrong) == 1
        assert capsys.readouterr().err.startswith("leakbench: leakbench stage: ")
    assert main(["stage", "--all", "--scale", "typo"]) == 1
    assert "--scale: unknown scale 'typo'" in capsys.readouterr().err
