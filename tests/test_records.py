from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from leakbench.errors import RecordError, WriteError
from leakbench.lazy import torch
from leakbench.records import (
    Cost,
    MetricInfo,
    Outcome,
    Provenance,
    Record,
    Replicate,
    Tensors,
    atomic_write,
    canonical,
    digest,
    quarantine,
    read_record,
    read_tensors,
    write_record,
    write_tensors,
)


def a_record(value: float | None = 0.5, **changes: Any) -> Record:
    replicate = Replicate(
        seed=0,
        setting={"fraction": 0.5, "mode": "rms", "on": True, "bits": 4},
        metrics={"mse": [value, None], "bits": 32.0},
        reasons={"mse": "one of two trials became non-finite"},
        privacy={"epsilon": None, "note": "no guarantee"},
    )
    content: dict[str, Any] = {
        "schema": "leakbench.record/1",
        "job": {"seeds": [0], "defense": {"name": "none"}},
        "metrics": {"mse": MetricInfo(unit="1", direction="lower", axis="image")},
        "replicates": [replicate],
        "outcome": Outcome(status="diverged", reason="non-finite", step=3),
        "cost": Cost(wall_s=1.5, device_s=1.25, peak_memory_bytes=2**31),
        "provenance": Provenance(
            started="2024-01-01T00:00:00+00:00",
            commit=None,
            dirty=None,
            versions={"python": "3.11"},
            device="cpu",
            threads=1,
            slurm_job_id=None,
        ),
    }
    return Record(**(content | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "all.json"


def test_round_trip(path: Path) -> None:
    record = a_record(tensors=Tensors(file="all.safetensors", sha256="0", keys=["seed0/victims"]))
    write_record(path, record)
    assert read_record(path) == record
    assert json.loads(path.read_text())["schema"] == "leakbench.record/1"
    assert path.read_text().endswith("}\n")


@given(value=st.none() | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive_exactly(tmp_path_factory: pytest.TempPathFactory, value: float | None) -> None:
    path = tmp_path_factory.getbasetemp() / "exact.json"
    write_record(path, a_record(value))
    found = read_record(path).replicates[0].metrics["mse"]
    assert isinstance(found, list)
    assert found[0] is value is None or repr(found[0]) == repr(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_not_a_number_is_refused(path: Path, number: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        a_record(number)
    record = a_record()
    record.replicates[0].metrics["mse"] = number  # after it was validated
    with pytest.raises(ValidationError, match="finite"):
        write_record(path, record)
    assert not path.exists()


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_not_a_number_in_a_file_is_refused(path: Path, word: str) -> None:
    write_record(path, a_record())
    path.write_text(path.read_text().replace("0.5", word))
    with pytest.raises(RecordError, match=re.escape(str(path))):
        read_record(path)


def truncated(text: str) -> str:
    return text[: len(text) // 2]


def of_another_schema(text: str) -> str:
    return text.replace("leakbench.record/1", "leakbench.record/2")


def without_outcome(text: str) -> str:
    content = json.loads(text)
    del content["outcome"]
    return json.dumps(content)


def with_unknown_key(text: str) -> str:
    return json.dumps(json.loads(text) | {"note": "by hand"})


def with_word_for_number(text: str) -> str:
    return text.replace("32.0", '"many"')


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda _: "", "the file: Invalid JSON: EOF"),
        (truncated, "the file: Invalid JSON: EOF"),
        (lambda _: "\0" * 100, "the file: Invalid JSON"),
        (lambda _: "[]", "the file: "),
        (of_another_schema, "schema: Input should be 'leakbench.record/1'"),
        (without_outcome, "outcome: Field required"),
        (with_unknown_key, "note: Extra inputs"),
        (with_word_for_number, r"replicates.0.metrics.bits.*: Input should be a valid"),
    ],
)
def test_a_broken_record_is_named_with_its_fault(path: Path, change: Any, fault: str) -> None:
    write_record(path, a_record())
    path.write_text(change(path.read_text()))
    with pytest.raises(RecordError, match=f"^{re.escape(str(path))}: not a valid record: {fault}") as caught:
        read_record(path)
    assert "\n" not in str(caught.value)


def test_quarantine_keeps_the_content(path: Path) -> None:
    path.write_text("half")
    aside = quarantine(path)
    assert not path.exists()
    assert aside.parent == path.parent and aside.name.startswith("all.json.corrupt-")
    assert aside.read_text() == "half"


def test_folders_are_made(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a" / "b" / "file", b"content")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"content"


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write_record(path, a_record())
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(step, fail)
    with pytest.raises(WriteError, match=r"all\.json: no space left on device; make room and run it again"):
        write_record(path, a_record(0.75))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


WRITER = """
import sys
from pathlib import Path
from leakbench.records import Record, read_record, write_record

path = Path(sys.argv[1])
record = read_record(path)
for index in range(10**6):
    record.job["index"] = index
    write_record(path, record)
"""


def test_sigkill_in_the_middle_of_writes_leaves_a_whole_record(path: Path) -> None:
    many = a_record(job={"index": -1, "filling": ["x" * 100] * 1000})
    write_record(path, many)
    for delay in (0.0, 0.011, 0.023, 0.037):
        started = path.stat().st_mtime_ns
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
        try:
            end = time.monotonic() + 60
            while path.stat().st_mtime_ns == started and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(delay)
        finally:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
        found = read_record(path)
        assert found.job["filling"] == many.job["filling"]


def test_canonical_json_is_one_line_and_sorted() -> None:
    assert canonical({"b": [1, 2.0, None], "a": {"d": True, "c": "é"}}) == (
        '{"a":{"c":"\\u00e9","d":true},"b":[1,2.0,null]}'
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(math.nan)


def test_digest_is_stable() -> None:
    """Fixed for ever: digests decide what runs again."""
    assert digest({"name": "none", "parameters": {}, "version": 1}) == "3c901fdbcbd8ef0e"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(content=st.dictionaries(st.text(), JSON, max_size=5))
def test_digest_ignores_the_order_of_keys_and_survives_json(content: dict[str, Any]) -> None:
    backwards = dict(reversed(content.items()))
    assert digest(content) == digest(backwards) == digest(json.loads(json.dumps(content)))


def test_digest_tells_values_apart() -> None:
    values = [{}, [], "", None, 0, False, {"a": 1}, {"a": "1"}, {"a": [1]}, {"b": 1}, [1, 2], [2, 1], [12]]
    assert len({digest(value) for value in values}) == len(values)


def test_tensors_round_trip(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(6.0).view(2, 3).T, "a": torch.ones(2, dtype=torch.int64)}
    described = write_tensors(tmp_path / "all.safetensors", tensors)
    assert described.keys == ["a", "b"] and described.file == "all.safetensors"
    found = read_tensors(tmp_path / "all.json", described)
    assert found.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert torch.equal(found[key], tensor) and found[key].dtype == tensor.dtype


def test_equal_tensors_make_equal_files(tmp_path: Path) -> None:
    first = write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(3), "y": torch.zeros(2)})
    second = write_tensors(tmp_path / "b.safetensors", {"y": torch.zeros(2), "x": torch.ones(3)})
    assert first.sha256 == second.sha256


def test_missing_and_altered_tensors(tmp_path: Path) -> None:
    record, file = tmp_path / "all.json", tmp_path / "all.safetensors"
    described = write_tensors(file, {"x": torch.ones(3)})
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(RecordError, match=f"^{re.escape(str(file))}: altered since {re.escape(str(record))}"):
        read_tensors(record, described)
    file.unlink()
    with pytest.raises(
        RecordError,
        match=f"^{re.escape(str(file))}: missing; make it again with `leakbench run {re.escape(str(record))}`$",
    ):
        read_tensors(record, described)
