"""Rates from measured jobs, and intervals that hold what they say."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from leakbench.report.cost_model import ENOUGH, PRIOR, STEP, CostModel, Device, Forecast, Measured, Size, Speedup, added

SPEEDUP = Speedup(10, 1000)


def jobs(
    rate: float,
    *,
    count: int = 20,
    device: Device = "cpu",
    kind: str = "attack",
    component: str = "ig",
    noise: float = 0,
) -> Iterator[Measured]:
    """Jobs of several experiments whose seconds are in proportion to their size, without a start."""
    draws = random.Random(0)
    for number in range(count):
        size = Size(kind, component, 1e10 * 1.3**number, 10.0 * number)
        seconds = rate * size.on(100.0 if device == "gpu" else 1.0) * math.exp(draws.gauss(0, noise))
        yield Measured(size, f"experiment {number % 5}", device, seconds)


def estimated(model: CostModel, size: Size, device: Device = "cpu") -> Forecast:
    found = model.estimate(size, device)
    assert found is not None
    assert found.low <= found.seconds <= found.high
    return found


def test_jobs_in_proportion_are_foretold_exactly() -> None:
    found = estimated(CostModel(jobs(2e-10), SPEEDUP), Size("attack", "ig", 7e10, 100))
    assert found.seconds == pytest.approx(2e-10 * (7e10 + 100 * STEP))
    assert found.basis == "attack ig: 20 records of a CPU"


def test_nothing_is_made_up_for_a_kind_without_records() -> None:
    assert CostModel(jobs(1e-10), SPEEDUP).estimate(Size("train", "none", 1e9, 1), "cpu") is None
    assert CostModel([], SPEEDUP).estimate(Size("train", "none", 1e9, 1), "gpu") is None


def test_a_component_has_a_rate_of_its_own_once_it_has_enough_records() -> None:
    slow, few = list(jobs(9e-10, component="lamp", count=ENOUGH)), list(jobs(9e-10, component="rog", count=ENOUGH - 1))
    model = CostModel([*jobs(1e-10), *slow, *few], SPEEDUP)
    assert estimated(model, Size("attack", "lamp", 1e11, 0)).seconds == pytest.approx(90)
    for component in ("rog", "never seen"):
        found = estimated(model, Size("attack", component, 1e11, 0))
        assert found.seconds == pytest.approx(10)
        assert found.basis == "attack: 25 records of a CPU"


@pytest.mark.parametrize("beyond", [1e-6, 1e4])
def test_intervals_widen_beyond_what_was_measured(beyond: float) -> None:
    model = CostModel(jobs(1e-10), SPEEDUP)

    def factor(operations: float) -> float:
        found = estimated(model, Size("attack", "ig", operations, 10))
        return found.high / found.seconds

    widths = [factor(5e10 * beyond**part) for part in (0, 0.5, 1)]
    if beyond < 1:  # down to the steps
        assert widths[0] < widths[1]
    else:
        assert all(before < after for before, after in pairwise(widths))
    assert factor(2e10) == pytest.approx(factor(8e11))  # both inside
    assert factor(1e20) == pytest.approx(factor(1e30))  # a processor has its bounds


def test_few_records_say_little() -> None:
    factors = []
    for count in (1, 5, 20):
        found = estimated(CostModel(jobs(1e-10, count=count), SPEEDUP), Size("attack", "ig", 1e10, 0))
        factors.append(found.high / found.seconds)
    assert factors[0] == pytest.approx(math.exp(1.2816 * PRIOR), rel=1e-3)
    assert factors[0] > factors[1] >= factors[2] > 1.5  # one and the same experiments: five in both


def test_intervals_hold_four_out_of_five() -> None:
    """Of experiments whose rates differ, and jobs that differ within them."""
    draws, inside, total = random.Random(1), 0, 0
    for _ in range(300):
        measured = []
        for experiment in range(9):
            shift = draws.gauss(0, 1.0)
            for _ in range(4):
                size = Size("train", "none", 10 ** draws.uniform(9, 12), 5)
                seconds = 1e-10 * size.on() * math.exp(shift + draws.gauss(0, 0.2))
                measured.append(Measured(size, str(experiment), "cpu", seconds))
        asked, known = measured[:4], measured[4:]
        model = CostModel(known, SPEEDUP)
        for each in asked:
            found = estimated(model, each.size)
            inside += found.low <= each.seconds <= found.high
            total += 1
    assert 0.72 < inside / total < 0.9


def test_a_gpu_without_records_is_assumed_to_be_so_much_faster_in_what_is_done_side_by_side() -> None:
    model = CostModel(jobs(1e-10), SPEEDUP)
    wide, deep = Size("attack", "ig", 1e12, 0), Size("attack", "ig", 0, 1e12 / STEP)
    cpu, gpu = estimated(model, wide), estimated(model, wide, "gpu")
    assert gpu.assumed and gpu.basis.endswith("assumed speed-up") and not cpu.assumed
    assert gpu.seconds == pytest.approx(cpu.seconds / 100)
    assert gpu.low == pytest.approx(cpu.low / 1000) and gpu.high == pytest.approx(cpu.high / 10)
    assert estimated(model, deep, "gpu").seconds == pytest.approx(estimated(model, deep).seconds)


def test_records_of_a_gpu_replace_the_assumption() -> None:
    model = CostModel([*jobs(1e-10), *jobs(5e-11, device="gpu")], SPEEDUP)
    size = Size("attack", "ig", 1e13, 10)
    found = estimated(model, size, "gpu")
    assert not found.assumed and found.basis == "attack ig: 20 records of a GPU"
    assert found.seconds == pytest.approx(5e-11 * size.on(100))


def test_errors_add_up_within_a_kind_and_not_between_kinds() -> None:
    one = Forecast(10, 5, 20, "")
    assert added([("train", one), ("train", one)]) == (20, 10, 40)
    total, low, high = added([("train", one), ("attack", one)])
    assert [total, low, high] == pytest.approx([20, 20 - 5 * 2**0.5, 20 + 10 * 2**0.5])
    assumed = one._replace(assumed=True)
    assert added([("train", assumed), ("attack", assumed)]) == (20, 10, 40)
    assert added([]) == (0, 0, 0)
