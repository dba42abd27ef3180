"""What a timing job finds: every method in every repetition, overheads by their definition, exact counts."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from leakbench.data.embedded import Digits
from leakbench.defenses.base import NoDefense
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.costs import Times
from leakbench.jobs.runner import overall_outcome
from leakbench.models.base import Model
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.sizes import multiply_adds
from leakbench.papers.channel.jobs import timing
from leakbench.papers.channel.jobs.timing import (
    COUNTS,
    METHODS,
    OVERHEADS,
    TIMES,
    TIMING_METRICS,
    TimingJob,
    channel_extra,
    dp_sgd_extra,
    parameter_channel_extra,
    without_batch_norm,
)
from leakbench.records import Replicate

CPU = torch.device("cpu")
SMALL = {"steps": 2, "warmup": 1, "repetitions": 2, "batch_size": 8, "images": 40, "training_images": 400, "epochs": 3}


class Normalised(Model):
    """A convolution, BatchNorm and a linear layer."""

    name = "normalised"
    version = 1
    width: int = 4

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Conv2d(shape[0], self.width, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(self.width),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(self.width * shape[1] * shape[2], classes),
        )


class OneLinear(Model):
    """A single fully connected layer."""

    name = "one_linear"
    version = 1
    width: int = 1

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0] * shape[1] * shape[2], classes))


def job_of(model: type[Model] = SimpleConvNet, seeds: tuple[int, ...] = (0,), **protocol: Any) -> Job:
    return Job(
        scale="test",
        paper="paper",
        experiment="experiment",
        dataset=Variant("digits8", Digits, {"size": 8}, {}),
        model=Variant("tiny", model, {"width": 4}, {}),
        defense=Variant("none", NoDefense, {}, {}),
        attack=None,
        kind=TimingJob(**{**SMALL, **protocol}),
        part="all",
        seeds=seeds,
    )


def numbers(replicate: Replicate, metric: str) -> list[float]:
    """A metric as a list; none of its values is missing."""
    value = replicate.metrics[metric]
    found = [number for number in (value if isinstance(value, list) else [value]) if number is not None]
    assert len(found) == (len(value) if isinstance(value, list) else 1)
    return found


def bench(job: Job, seed: int = 0) -> timing._Bench:
    assert isinstance(job.kind, TimingJob)
    return timing._Bench(job.kind, job, seed, CPU)


@pytest.fixture(scope="module")
def found() -> Findings:
    job = job_of(seeds=(0, 1))
    return job.kind.run(job, CPU)


def test_every_method_is_timed_in_every_repetition(found: Findings) -> None:
    assert [(each.seed, each.setting) for each in found.replicates] == [
        (seed, {"method": method}) for seed in (0, 1) for method in METHODS
    ]
    assert found.tensors == {}
    for replicate in found.replicates:
        assert replicate.metrics.keys() == TIMING_METRICS.keys() and replicate.outcome.status == "ok"
        for name in (*TIMES, *OVERHEADS):
            assert isinstance(replicate.metrics[name], list) and len(numbers(replicate, name)) == 2
        assert min(numbers(replicate, "step_wall_s") + numbers(replicate, "step_cpu_s")) > 0


def test_only_the_channel_does_something_once(found: Findings) -> None:
    for replicate in found.replicates:
        once = [numbers(replicate, f"{part}_wall_s") for part in ("covariance", "solve", "noise")]
        if replicate.setting["method"] == "channel":
            assert all(value > 0 for values in once for value in values)
        else:
            assert once == [[0.0, 0.0]] * 3 and replicate.metrics["overhead_once"] == [0.0, 0.0]


def test_training_is_extrapolated_and_overheads_are_those_of_the_same_repetition(found: Findings) -> None:
    """400 images in batches of 8 are 50 steps an epoch, and ten times the 40 images that were measured."""
    metrics: dict[Any, dict[str, Any]] = {
        each.setting["method"]: each.metrics for each in found.replicates if each.seed == 1
    }
    for clock, overhead in (("wall", "overhead"), ("cpu", "overhead_cpu")):
        plain = metrics["sgd"][f"training_{clock}_s"]
        assert metrics["sgd"][overhead] == [0, 0]
        assert plain == pytest.approx([3 * 50 * step for step in metrics["sgd"][f"step_{clock}_s"]])
        for method in METHODS:
            times = {name: metrics[method][f"{name}_{clock}_s"] for name in ("step", "covariance", "solve", "noise")}
            for k in range(2):
                once = 10 * (times["covariance"][k] + times["noise"][k]) + times["solve"][k]
                whole = metrics[method][f"training_{clock}_s"][k]
                assert whole == pytest.approx(150 * times["step"][k] + once)
                assert metrics[method][overhead][k] == pytest.approx((whole - plain[k]) / plain[k])
                of_once = {"wall": "overhead_once", "cpu": "overhead_once_cpu"}[clock]
                assert metrics[method][of_once][k] == pytest.approx(once / plain[k])
                assert metrics[method][f"once_{clock}_s"][k] == pytest.approx(once)


def test_dp_sgd_takes_longer_than_sgd(found: Findings) -> None:
    steps = {
        method: statistics.median(
            value
            for each in found.replicates
            if each.setting["method"] == method
            for value in numbers(each, "step_cpu_s")
        )
        for method in ("sgd", "opacus", "dp_sgd", "parameter_channel")
    }
    assert steps["sgd"] < min(steps["opacus"], steps["dp_sgd"], steps["parameter_channel"])


def test_the_time_of_a_processor_says_nothing_of_a_gpu(found: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = timing._Bench(job_of().kind, job_of(), 0, CPU)  # type: ignore[arg-type]
    monkeypatch.setattr(bench, "device", torch.device("cuda"))
    times = Times({"step": 1.0}, {"step": 1.0})
    replicate = bench._replicate("sgd", [times], [times], None)
    lost = {name for name, value in replicate.metrics.items() if value is None}
    assert lost == set(replicate.reasons) == {name for name in (TIMES | OVERHEADS) if "_cpu" in name}
    assert replicate.metrics["overhead"] == [0.0]


def test_counts_do_not_depend_on_the_seed(found: Findings) -> None:
    for method in METHODS:
        one, other = (
            {name: numbers(each, name)[0] for name in COUNTS}
            for each in found.replicates
            if each.setting["method"] == method
        )
        assert one == other
        assert one["parameters"] == 36 + 4 + 288 + 8 + 128 + 4 + 40 + 10
        assert one["training_flops"] == 2 * one["multiply_adds"] * 3 * 400


class TestMultiplyAdds:
    def test_of_a_linear_layer(self) -> None:
        """Forward, and the gradient of the weights; the gradient of the image is not computed."""
        assert multiply_adds(OneLinear(), (3, 4, 4), 10) == 2 * 48 * 10

    def test_of_a_convolution(self) -> None:
        """3x3 kernels at 64 places with padding; then a linear layer, whose inputs have a gradient too."""
        assert multiply_adds(Normalised(), (2, 8, 8), 5) == 2 * (64 * 4 * 2 * 9) + 3 * (256 * 5)

    def test_without_memory_for_the_model(self) -> None:
        """10^13 parameters."""
        assert multiply_adds(OneLinear(), (3, 10**6, 10**6), 10) == 2 * 3e12 * 10


class TestExtra:
    def test_of_dp_sgd(self) -> None:
        """Two steps, three images, five parameters: squares, sums, factors, sums; then noise on the sum."""
        extra = dp_sgd_extra(2, 3, 5)
        assert (extra.flops, extra.draws, extra.bytes) == (2 * (3 * 5 * 4 + 2 * 5), 10, 60)

    def test_of_a_channel(self) -> None:
        extra, coloured = channel_extra(7, 6), channel_extra(7, 6, coloured=True)
        assert extra.flops == 7 * 36 + 14 * 72 + 2 * 42 and coloured.flops == 7 * 36 + 14 * 72 + 2 * 7 * 36 + 42
        assert extra.draws == coloured.draws == 42 and extra.bytes == 4 * 42 + 2 * 8 * 36

    def test_of_a_channel_does_not_depend_on_the_model(self, found: Findings) -> None:
        (channel,) = (each for each in found.replicates if each.setting["method"] == "channel" and each.seed == 0)
        assert channel.metrics["normal_draws"] == 400 * 64
        assert channel.metrics["extra_flops"] == channel_extra(400, 64).flops

    def test_of_a_parameter_channel(self) -> None:
        """Two steps of three images and five parameters: 15 to centre, 45 for products, 15 to sum, 10 for noise."""
        extra = parameter_channel_extra(2, 3, 5)
        assert (extra.flops, extra.draws, extra.bytes) == (2 * 85, 2 * 5, 3 * 4 * 15)

    def test_of_dp_sgd_grows_with_the_model(self, found: Findings) -> None:
        for each in found.replicates:
            if each.setting["method"] in ("opacus", "dp_sgd"):
                assert each.metrics["normal_draws"] == 150 * 518 and each.metrics["extra_bytes"] == 4 * 8 * 518


class TestBatchNorm:
    def test_makes_way_for_group_norm(self) -> None:
        module = Normalised().build((1, 8, 8), 10)
        other = without_batch_norm(module)
        assert isinstance(module, torch.nn.Sequential) and isinstance(other, torch.nn.Sequential)
        assert [type(layer).__name__ for layer in other] == ["Conv2d", "GroupNorm", "ReLU", "Flatten", "Linear"]
        assert isinstance(module[1], torch.nn.BatchNorm2d)
        assert torch.equal(next(other.parameters()), next(module.parameters()))
        assert sum(p.numel() for p in other.parameters()) == sum(p.numel() for p in module.parameters())

    def test_runs_under_every_method(self) -> None:
        job = job_of(Normalised, steps=1, repetitions=1, poisson=False, channel="white_channel")
        found = job.kind.run(job, CPU)
        assert overall_outcome(found.replicates).status == "ok"
        channel = next(each for each in found.replicates if each.setting["method"] == "channel")
        assert channel.metrics["extra_flops"] == channel_extra(400, 64, coloured=True).flops


def test_batches_follow_from_seed_and_repetition() -> None:
    """The same for every method; others in another repetition, and none that is incomplete."""
    one_of, again, other = (bench(job_of(images=20), seed) for seed in (0, 0, 1))

    def first(of: timing._Bench, repetition: int, images: torch.Tensor) -> list[torch.Tensor]:
        batches = of._batches(of._loader(images, repetition))
        return [next(batches)[0] for _ in range(5)]

    ours = first(one_of, 0, one_of.images)
    assert {len(batch) for batch in ours} == {8}
    for one, same in zip(ours, first(again, 0, 2 * one_of.images), strict=True):
        assert torch.equal(2 * one, same)
    assert not torch.equal(ours[0], first(one_of, 1, one_of.images)[0])
    assert not torch.equal(ours[0], first(other, 0, one_of.images)[0])


def test_the_channel_trains_on_noisy_images() -> None:
    ours = bench(job_of(kappa=5))
    noisy = ours._protected(Times(), 0)
    assert noisy.shape == ours.images.shape and float((noisy - ours.images).std()) > 0.5
    assert torch.equal(noisy, ours._protected(Times(), 0))
    assert not torch.equal(noisy, ours._protected(Times(), 1))


def test_what_does_not_fit_in_memory_is_infeasible_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 images' gradients of 518 parameters are 16,576 bytes, on a machine of two pages."""
    pages = {"SC_PHYS_PAGES": 2, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    job = job_of(repetitions=1, steps=1)
    found = job.kind.run(job, CPU)
    status = {each.setting["method"]: each.outcome.status for each in found.replicates}
    assert status == {"sgd": "ok", "opacus": "infeasible", "channel": "ok"} | dict.fromkeys(
        ("dp_sgd", "parameter_channel"), "infeasible"
    )
    for each in found.replicates:
        if each.outcome.status == "infeasible":
            missing = {name for name, value in each.metrics.items() if value is None}
            assert missing == set(TIMES | OVERHEADS) == set(each.reasons)
            assert each.outcome.reason and "GiB" in each.outcome.reason


def test_out_of_memory_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def __init__(self, *_: Any) -> None: ...

        def __next__(self) -> None:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(timing._Bench, "_opacus", Fails)
    job = job_of(repetitions=2, steps=1)
    status = {each.setting["method"]: each.outcome.status for each in job.kind.run(job, CPU).replicates}
    assert status == {"sgd": "ok", "opacus": "infeasible", "channel": "ok", "dp_sgd": "ok", "parameter_channel": "ok"}
    monkeypatch.setattr(timing._Bench, "_plain", Fails)
    with pytest.raises(torch.OutOfMemoryError):
        job.kind.run(job, CPU)


@pytest.mark.parametrize(
    ("protocol", "word"),
    [
        ({"steps": 0}, "steps"),
        ({"warmup": 0}, "warmup"),
        ({"repetitions": 0}, "repetitions"),
        ({"images": 1}, "images"),
        ({"channel": "dp_sgd"}, "channel"),
        ({"kappa": 0}, "kappa"),
        ({"multiplier": 0}, "multiplier"),
    ],
)
def test_bad_input(protocol: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        job_of(**protocol)


def test_more_images_than_there_are_means_all() -> None:
    ours = bench(job_of(images=10**6, training_images=None))
    assert len(ours.images) == ours.training_images == 1297
