"""Words, flips and votes of a whole round: packed in tensors, against strings of digits as the public code has them.

A round is ``--clients`` updates of ``--values`` values, all of which become words. Clients are encoded one after the
other, so that only their words are held at once, two bytes each. (a) goes through values and digits in Python, on a
slice, and is scaled up; the two have to find the same vote. Processor seconds of all threads (and wall-clock), the
smallest of ``--turns``.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from leakbench.federated.fixed_point import FixedPoint, unbiased_mean, vote
from leakbench.federated.lattice import Lattice, PointRounding, dequantise, quantise
from leakbench.libraries.memory import keep_freed_memory
from leakbench.randomness import Streams
from leakbench.theory.bit_votes import least_ones

FORM, MASK, KEEP = FixedPoint(), (2, 3), 0.98


def update(client: int, values: int) -> torch.Tensor:
    """``[1, values]``."""
    return 0.02 * torch.randn(1, values, generator=torch.Generator().manual_seed(client))


class Cost(NamedTuple):
    """Seconds of one piece of work."""

    processor: float
    wall: float

    def __str__(self) -> str:
        return f"{self.processor:,.2f} ({self.wall:,.2f})"


def cost(work: Callable[[], object], turns: int, times: float = 1.0) -> Cost:
    """The least of several turns, ``times`` over."""
    processor, wall = [], []
    for _ in range(turns):
        started = time.process_time(), time.perf_counter()
        work()
        processor.append(time.process_time() - started[0])
        wall.append(time.perf_counter() - started[1])
    return Cost(times * min(processor), times * min(wall))


def digits_of(values: list[float], keep: float, flips: list[float]) -> list[str]:
    """One client's words as strings, one value and one digit after the other."""
    words, draw = [], iter(flips)
    for value in values:
        integer = max(-FORM.limit, min(FORM.limit, round(value * FORM.scale)))
        digits = list(("1" if integer < 0 else "0") + bin(abs(integer))[2:].zfill(15))
        for position in range(len(digits)):
            if position in MASK and next(draw) > keep:
                digits[position] = str(1 - int(digits[position]))
        words.append("".join(digits))
    return words


def vote_on_digits(clients: list[list[str]], keep: float) -> list[float]:
    """The vote on strings, one value, position and client after the other."""
    values = []
    for words in zip(*clients, strict=True):
        voted = ""
        for position in range(16):
            ones = 0
            for word in words:
                if word[position] == "1":
                    ones += 1
            voted += "0" if ones / (keep * len(words)) < 0.5 else "1"
        magnitude = int("0" + voted[1:], 2) / FORM.scale
        values.append(-magnitude if voted[0] == "1" else magnitude)
    return values


def check(clients: int) -> None:
    """Both ways agree without flips, where they draw nothing.

    Raises:
        AssertionError: they do not.
    """
    updates = torch.cat([update(client, 2000) for client in range(clients)]).double()
    words = FORM.encode(updates)[0]
    voted = FORM.decode(vote(words, least_ones(clients, KEEP)))
    strings = [digits_of(row, 1.0, [0.0] * 4000) for row in updates.tolist()]
    torch.testing.assert_close(voted, torch.tensor(vote_on_digits(strings, KEEP)))


def main() -> None:
    """Measure a round and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=11_173_962)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--slice", type=int, default=4_000, help="values on which (a) is measured")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    values, clients, turns = arguments.values, arguments.clients, arguments.turns
    check(clients)

    updates = [update(client, arguments.slice) for client in range(clients)]
    flips = torch.rand(clients, 2 * arguments.slice).tolist()
    strings: list[list[str]] = []

    def encode_digits() -> None:
        strings[:] = [digits_of(row[0].tolist(), KEEP, draws) for row, draws in zip(updates, flips, strict=True)]

    scale = values / arguments.slice
    loops = [cost(encode_digits, 1, scale), cost(lambda: vote_on_digits(strings, KEEP), 1, scale)]

    words = torch.empty(clients, values, dtype=torch.int16)
    one = update(0, values)
    streams = [Streams([("benchmark", client)]) for client in range(clients)]

    def encode() -> None:
        for client in range(clients):
            words[client] = FORM.flip(FORM.encode(one)[0], MASK, KEEP, streams[client])[0]

    packed = [cost(encode, turns), cost(lambda: FORM.decode(vote(words, least_ones(clients, KEEP))), turns)]
    print(f"{clients} clients, {values:,} values each, {arguments.threads} threads; processor seconds (wall)")
    print("| work | (a) strings | (b) packed | (a) / (b) |")
    print("|---|---|---|---|")
    for name, loop, ours in zip(("encode and flip", "vote"), loops, packed, strict=True):
        print(f"| {name} | {loop} | {ours} | {loop.processor / ours.processor:,.0f}x |")
    ratio = sum(loop.processor for loop in loops) / sum(ours.processor for ours in packed)
    print(f"| all of it |  |  | {ratio:,.0f}x |")
    print(
        f"| unbiased mean, in place of the vote |  | {cost(lambda: unbiased_mean(words, FORM, MASK, KEEP), turns)} |  |"
    )

    stream = Streams([("benchmark", "dither")])
    roundings: tuple[PointRounding, ...] = ("nearest", "babai")
    for rounding in roundings:
        points = quantise(one, [values], Lattice(), rounding, stream)
        there = cost(partial(quantise, one, [values], Lattice(), rounding, stream), turns)
        print(f"| one update to lattice points, {rounding} |  | {there} |  |")
    print(f"| and back |  | {cost(partial(dequantise, points, stream), turns)} |  |")
    print(f"peak of memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


if __name__ == "__main__":
    main()
