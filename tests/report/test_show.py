"""Pictures of records: the right reconstructions under the right victims, and mistakes explained."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from leakbench.data.text import pack
from leakbench.errors import ConfigError, LeakbenchError, RecordError, UnknownName
from leakbench.jobs.attack import VICTIM_METRICS
from leakbench.jobs.runner import overall_outcome
from leakbench.jobs.subjects import Images
from leakbench.metrics.text import TEXT_METRICS
from leakbench.randomness import generator
from leakbench.records import Cost, Outcome, Provenance, Record, Replicate, read_record, write_record, write_tensors
from leakbench.report import show as module
from leakbench.report.gallery import gallery
from leakbench.report.show import MOST, show

CLIENTS = 4
Sweep = Mapping[str, list[Any]]


def write(
    path: Path,
    *,
    defense: str = "none",
    attack: str = "ig",
    batch: int = 2,
    seeds: tuple[int, ...] = (0,),
    sweep: Sweep | None = None,
    protocol: Sweep | None = None,
    victims: str = "victims",
    lost: Mapping[str, Any] | None = None,
    tensors: bool = True,
) -> dict[str, torch.Tensor]:
    """An attack record of random images and numbers; ``lost``: the protocol setting whose model diverged before."""
    sweep, protocol = sweep or {}, protocol or {}
    settings = [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]
    found: dict[str, torch.Tensor] = {}
    replicates = []
    for values in itertools.product(*protocol.values()):
        outer = dict(zip(protocol, values, strict=True))
        for seed in seeds:
            if outer == lost:
                outcome = Outcome(status="diverged", reason="pretraining became non-finite")
                replicates += [
                    Replicate(seed=seed, setting=inner | outer, outcome=outcome, metrics={"psnr": None})
                    for inner in settings
                ]
                continue
            prefix = "".join(f"{key}={value}/" for key, value in outer.items()) + f"seed{seed}/"
            draw = generator(defense, attack, prefix)
            shape = (CLIENTS, batch, 1, 5, 5)
            found[f"{prefix}victims"] = torch.rand(shape, generator=generator(victims, seed))
            found[f"{prefix}reconstructions"] = torch.rand(len(settings), *shape, generator=draw)
            if batch > 1:
                found[f"{prefix}assignment"] = torch.rand(len(settings), CLIENTS, batch, generator=draw).argsort(dim=2)
            for inner in settings:
                numbers = {
                    name: (40 * torch.rand(CLIENTS * batch, generator=draw)).tolist()
                    for name in ("psnr", "assigned_psnr")
                }
                replicates.append(Replicate(seed=seed, setting=inner | outer, metrics=numbers))
    job: dict[str, Any] = {
        "experiment": "experiment",
        "seeds": list(seeds),
        "kind": {"name": "attack", **({"sweep": dict(protocol)} if protocol else {})},
        **{
            key: {"label": label}
            for key, label in {"dataset": "digits", "model": "tiny", "defense": defense, "attack": attack}.items()
        },
    }
    write_record(
        path,
        Record(
            schema="leakbench.record/1",
            job=job,
            metrics=Images.metrics | VICTIM_METRICS,
            replicates=replicates,
            outcome=overall_outcome(replicates),
            tensors=write_tensors(path.with_suffix(".safetensors"), found) if tensors else None,
            cost=Cost(wall_s=1, device_s=1, peak_memory_bytes=1),
            provenance=Provenance(
                started="", commit=None, dirty=None, versions={}, device="cpu", threads=1, slurm_job_id=None
            ),
        ),
    )
    return found


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the last picture was drawn from."""
    seen: dict[str, Any] = {}

    def spy(victims: torch.Tensor, images: dict[str, torch.Tensor], order_by: torch.Tensor, **rest: Any) -> Any:
        seen.update(rest, victims=victims, images=images, order_by=order_by)
        return gallery(victims, images, order_by, **rest)

    monkeypatch.setattr(module, "gallery", spy)
    return seen


def draw(root: Path, *paths: str, **options: Any) -> list[str]:
    return list(show(root, paths, **{"output": None, **options}))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("protocol", [{}, {"epoch": [0, 1], "batch_norm": ["eval", "train"]}], ids=["plain", "swept"])
def test_rows_against_a_literal_reading(tmp_path: Path, drawn: dict[str, Any], batch: int, protocol: Sweep) -> None:
    path = tmp_path / "all.json"
    sweep: Sweep = {"scale": [0.1, 0.5], "form": ["a", "b"]}
    tensors = write(path, defense="dp", batch=batch, seeds=(3, 5), sweep=sweep, protocol=protocol)
    picks = {"settings": ["epoch=1", "batch_norm=train"]} if protocol else {}
    prefix = "epoch=1/batch_norm=train/seed5/" if protocol else "seed5/"
    assert draw(tmp_path, "all.json", seed=5, **picks) == [str(tmp_path / "all.png")]
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")

    after = ", epoch=1, batch_norm=train" if protocol else ""
    combinations = [(0.1, "a"), (0.1, "b"), (0.5, "a"), (0.5, "b")]
    labels = [f"dp · ig, scale={scale}, form={form}{after}" for scale, form in combinations]
    assert list(drawn["images"]) == list(drawn["decibels"]) == labels
    assert drawn["title"] == f"digits, tiny, seed 5; ranked by {labels[0]}"
    assert torch.equal(drawn["victims"], tensors[f"{prefix}victims"].flatten(0, 1))
    record = read_record(path)
    for place, (label, (scale, form)) in enumerate(zip(labels, combinations, strict=True)):
        images = drawn["images"][label]
        for client, image in itertools.product(range(CLIENTS), range(batch)):
            source = image if batch == 1 else int(tensors[f"{prefix}assignment"][place, client, image])
            expected = tensors[f"{prefix}reconstructions"][place, client, source]
            assert torch.equal(images[client * batch + image], expected)
        (replicate,) = [
            each
            for each in record.replicates
            if each.seed == 5
            and {"scale": scale, "form": form}.items() <= each.setting.items()
            and (not protocol or {"epoch": 1, "batch_norm": "train"}.items() <= each.setting.items())
        ]
        values = torch.tensor(replicate.metrics["psnr" if batch == 1 else "assigned_psnr"])
        assert torch.equal(drawn["decibels"][label], values)
        if place == 0:
            assert torch.equal(drawn["order_by"], values)


def test_several_records_are_rows_of_one_picture(tmp_path: Path, drawn: dict[str, Any]) -> None:
    write(tmp_path / "a" / "all.json")
    write(tmp_path / "b" / "all.json", attack="mean_image")
    write(tmp_path / "c" / "all.json", defense="gp", sweep={"fraction": [0.5, 0.9]})
    picture = tmp_path / "out" / "picture.svg"
    paths = ("a/all.json", "b/all.json", "c/all.json", "a/all.json")  # once more changes nothing
    assert draw(tmp_path, *paths, settings=["fraction=.90"], output=picture) == [str(picture)]
    assert list(drawn["images"]) == ["none · ig", "none · mean_image", "gp · ig, fraction=0.9"]
    assert "<svg" in picture.read_text() and not list(tmp_path.rglob("*.png"))


def test_of_many_settings_a_few_are_drawn(tmp_path: Path, drawn: dict[str, Any]) -> None:
    write(tmp_path / "all.json", sweep={"scale": list(range(11))})
    said, _ = draw(tmp_path, "all.json")
    assert said == f"all.json: {MOST} of 11 settings; --setting KEY=VALUE chooses others"
    assert list(drawn["images"]) == [f"none · ig, scale={scale}" for scale in (0, 2, 5, 8, 10)]


def test_a_model_that_diverged_leaves_the_other_rows(tmp_path: Path, drawn: dict[str, Any]) -> None:
    write(tmp_path / "all.json", sweep={"scale": [1, 2]}, protocol={"epoch": [0, 1]}, lost={"epoch": 1})
    draw(tmp_path, "all.json")
    assert list(drawn["images"]) == ["none · ig, scale=1, epoch=0", "none · ig, scale=2, epoch=0"]
    with pytest.raises(RecordError, match="holds no reconstructions of seed 0: pretraining became non-finite"):
        draw(tmp_path, "all.json", settings=["epoch=1"])


def test_numbers_that_are_missing_are_named(tmp_path: Path, drawn: dict[str, Any]) -> None:
    write(tmp_path / "all.json", batch=1)
    record = read_record(tmp_path / "all.json")
    values = record.replicates[0].metrics["psnr"]
    assert isinstance(values, list)
    values[2] = None
    write_record(tmp_path / "all.json", record)
    draw(tmp_path, "all.json")
    assert drawn["order_by"].isnan().tolist() == [False, False, True, False]
    figure = gallery(drawn["victims"], drawn["images"], drawn["order_by"], decibels=drawn["decibels"])
    below = [ax.get_xlabel() for ax in figure.axes]
    assert (
        below[2] == "no. 2" and below[5] == "diverged" and below[3].endswith(" dB")
    )  # 3 of 4 victims; it is the worst


@pytest.mark.parametrize(
    ("paths", "options", "kind", "fault"),
    [
        (["a.json"], {"seed": 2}, ConfigError, "a.json: no seed 2. Allowed: 0, 1."),
        (["a.json", "one.json"], {"seed": 1}, ConfigError, "one.json: no seed 1. Allowed: 0."),
        (["a.json"], {"settings": ["scale"]}, ConfigError, "--setting scale: expected KEY=VALUE"),
        (["a.json"], {"settings": ["scal=1"]}, UnknownName, "unknown swept parameter 'scal'; did you mean 'scale'?"),
        (["a.json"], {"settings": ["scale=3"]}, ConfigError, "no setting has scale=3. Allowed: scale=1; scale=2."),
        (["a.json"], {"settings": ["scale=x"]}, ConfigError, "a.json: no setting has scale=x."),
        (["a.json", "other.json"], {}, ConfigError, "'none · mean_image' attacks other images than 'none · ig, sc"),
        (["one.json", "batch.json"], {}, ConfigError, "'none · grey' attacks other images than 'none · noise'"),
        (["one.json", "twin.json"], {}, ConfigError, "several records have the defense, attack and setting"),
        (["missing.json"], {}, RecordError, "missing.json: missing; make it with `leakbench run missing.json`"),
        (["bare.json"], {}, RecordError, "bare.json: holds no reconstructions: a job of kind 'attack'"),
        (["broken.json"], {}, RecordError, "broken.json: not a valid record"),
        (["altered.json"], {}, RecordError, "altered.safetensors: altered since"),
        (["a.json"], {"output": Path("x.gif")}, UnknownName, "x.gif: unknown format 'gif'. Allowed: pdf, png, svg."),
    ],
)  # fmt: skip
def test_mistakes(
    tmp_path: Path, paths: list[str], options: dict[str, Any], kind: type[LeakbenchError], fault: str
) -> None:
    write(tmp_path / "a.json", seeds=(0, 1), sweep={"scale": [1, 2]})
    write(tmp_path / "one.json", attack="noise")
    write(tmp_path / "twin.json", attack="noise")
    write(tmp_path / "batch.json", attack="grey", batch=3)
    write(tmp_path / "other.json", attack="mean_image", victims="others")
    write(tmp_path / "bare.json", tensors=False)
    write(tmp_path / "altered.json")
    (tmp_path / "altered.safetensors").write_bytes(b"else")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(kind) as caught:
        draw(tmp_path, *paths, **options)
    assert fault in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.png"))


class TestSentences:
    """Records of sentences are told, not drawn."""

    def record(self, path: Path, found: list[list[str]], rouge1: list[float], **other: Any) -> None:
        write(path, batch=2, **other)
        record = read_record(path)
        record.metrics, record.replicates[0].metrics = TEXT_METRICS, {"rouge1": [*rouge1]}
        tensors = {
            "seed0/victims": pack([["a cat.", "two dogs."], ["the end.", "no word."]]),
            "seed0/reconstructions": pack(found)[None],
            "seed0/assignment": torch.tensor([[[1, 0], [0, 1]]]),
        }
        record.tensors = write_tensors(path.with_suffix(".safetensors"), tensors)
        write_record(path, record)

    def test_best_median_and_worst(self, tmp_path: Path) -> None:
        self.record(tmp_path / "a.json", [["two cats.", "a cat."], ["end.", "word."]], [100.0, 50.0, 20.0, 10.0])
        self.record(tmp_path / "b.json", [["dogs.", "cats."], ["x.", "y."]], [0.0] * 4, attack="dlg")
        assert draw(tmp_path, "a.json", "b.json") == [
            "best victim         a cat.",
            " none · ig  100.0  a cat.",
            "none · dlg    0.0  cats.",
            "median victim         two dogs.",
            " none · ig   50.0  two cats.",
            "none · dlg    0.0  dogs.",
            "worst victim         no word.",
            " none · ig   10.0  word.",
            "none · dlg    0.0  y.",
        ]

    def test_images_stand_apart(self, tmp_path: Path) -> None:
        self.record(tmp_path / "a.json", [["x", "y"], ["z", "w"]], [0.0] * 4)
        write(tmp_path / "b.json")
        with pytest.raises(ConfigError, match="some of these records attack images, and some sentences"):
            draw(tmp_path, "a.json", "b.json")
