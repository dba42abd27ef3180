"""The pins of what is staged from the Hub."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leakbench.data.base import DATASETS
from leakbench.data.staged import StagedDataset
from leakbench.data.text import BERT
from leakbench.errors import MissingData
from leakbench.models.staging import KNOWN
from leakbench.staged import pins
from leakbench.staged.manifest import sha256
from leakbench.staged.pins import Pin, check_fetched, pin


def test_everything_that_the_suite_stages_from_the_hub_has_a_revision() -> None:
    datasets = [DATASETS.get(name) for name in DATASETS]
    wanted = {dataset.hub_id: dataset for dataset in datasets if issubclass(dataset, StagedDataset)}
    assert set(pins._pins()) == {*wanted, *KNOWN, BERT}
    assert all(pin(hub_id).revision for hub_id in pins._pins())


def test_published_digests_are_of_files_that_are_read() -> None:
    for name in DATASETS:
        dataset = DATASETS.get(name)
        if issubclass(dataset, StagedDataset):
            patterns = [dataset.pattern(split).replace("*", r"\d{5}") for split in dataset.splits]
            for file in pin(dataset.hub_id).sha256:
                assert any(re.fullmatch(each, file) for each in patterns), file
            assert set(pin(dataset.hub_id).idx) in (set(), {*dataset.splits})
    digests = [digest for each in pins._pins().values() for digest in each.sha256.values()]
    assert len(digests) >= 10 and all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    md5 = [digest for each in pins._pins().values() for split in each.idx.values() for digest in split]
    assert len(md5) == 8 and all(re.fullmatch("[0-9a-f]{32}", digest) for digest in md5)
    assert len({*digests, *md5}) == len(digests) + len(md5)


def test_a_repository_that_nobody_pinned() -> None:
    assert pin("lab/its-own") == Pin(revision=None, sha256={})


def test_fetched_files_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "fetched"
    file.write_bytes(b"weights")
    known = {"lab/pinned": Pin(revision="a" * 40, sha256={"right": sha256(file), "wrong": "b" * 64})}
    monkeypatch.setattr(pins, "_pins", lambda: known)
    check_fetched("lab/pinned", "right", file)
    check_fetched("lab/pinned", "without a digest", file)
    check_fetched("lab/other", "wrong", file)
    with pytest.raises(
        MissingData, match=rf"wrong of lab/pinned, fetched to .*: its SHA-256 is {sha256(file)}, not bbb"
    ):
        check_fetched("lab/pinned", "wrong", file)
