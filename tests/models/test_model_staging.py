"""Fetching weights; here a folder stands in for the Hub."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch
import transformers

from leakbench.errors import MissingData
from leakbench.models.base import build_network
from leakbench.models.bert import DistilBert, transformers_library
from leakbench.models.staging import stage_model
from leakbench.staged.manifest import read_manifest
from leakbench.staged.pins import pin

TINY = {"width": 8, "layers": 1, "heads": 2, "intermediate": 12, "vocabulary": 20, "positions": 10}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the library takes for the Hub; the data root does not exist yet."""
    library = transformers_library()
    import_module("transformers.modeling_utils")  # takes the function that is replaced below
    monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path / "data"))
    folder = tmp_path / "hub"

    def fetch(hub_id: str, file: str, *, revision: str | None) -> str:
        assert revision == pin(hub_id).revision
        if not (folder / hub_id / file).is_file():
            raise OSError(f"{hub_id} does not appear to have a file named {file}")
        return str(folder / hub_id / file)

    monkeypatch.setattr(library.utils, "cached_file", fetch)
    return folder


def test_staged_weights_are_what_the_model_reads(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = transformers.DistilBertConfig(
        dim=8, n_layers=1, n_heads=2, hidden_dim=12, vocab_size=20, max_position_embeddings=10
    )
    original = transformers.DistilBertForSequenceClassification(config)
    original.save_pretrained(hub / "lab" / "tiny")
    folder = stage_model("lab/tiny")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "manifest.json", "model.safetensors"]
    assert sorted(read_manifest(folder).files) == ["config.json", "model.safetensors"]
    assert f"wrote model.safetensors to {folder}" in capsys.readouterr().out
    network = build_network(DistilBert(**TINY, weights="lab/tiny"), (6,), 2, seed=0)
    assert torch.equal(network.parameters, torch.nn.utils.parameters_to_vector(original.parameters()))
    shutil.rmtree(hub)  # what is there is not fetched again
    assert stage_model("lab/tiny") == folder
    assert "model.safetensors is there" in capsys.readouterr().out


def test_a_hub_that_refuses(hub: Path) -> None:
    with pytest.raises(MissingData) as caught:
        stage_model("lab/none")
    for words in ("cannot fetch config.json", "does not appear to have", "leakbench stage lab/none", "data/lab/none"):
        assert words in str(caught.value)
    assert not (hub.parent / "data").exists()


def test_other_weights_than_were_published_are_not_staged(hub: Path) -> None:
    name = "distilbert/distilbert-base-uncased"
    (hub / name).mkdir(parents=True)
    (hub / name / "config.json").write_text("{}")
    with pytest.raises(
        MissingData, match=rf"config.json of {name}, fetched to .* is not the file of revision 12040acc"
    ):
        stage_model(name)
    assert not (hub.parent / "data").exists()


def test_a_copy_that_fails_leaves_nothing(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hub / "lab" / "tiny").mkdir(parents=True)
    (hub / "lab" / "tiny" / "config.json").write_text("{}")

    def full(source: str, target: Path) -> None:
        Path(target).write_text("{")
        raise OSError("no space left")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="no space"):
        stage_model("lab/tiny")
    assert list((hub.parent / "data" / "lab" / "tiny").iterdir()) == []
