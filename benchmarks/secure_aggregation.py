"""Cost of secure aggregation: one round by its parts, per user and at the server.

All users share keys, a part of them drops out before sending, the others reveal shares, and the server unmasks.
Processor seconds; the smallest of ``--turns``. The script stops where the sum is not exact.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from leakbench.federated.ring import Ring
from leakbench.federated.secure_aggregation import Server, User, secure_sum


def measure(users: int, length: int, threshold: int, dropped: int, ring: Ring) -> dict[str, float]:
    """Milliseconds of one round: of one user, except for ``unmask``.

    Raises:
        AssertionError: the sum is not exact.
    """
    vectors = np.random.default_rng(0).normal(size=(users, length))
    words = ring.encode(vectors, users)
    stamps = [time.process_time()]

    def lap() -> None:
        stamps.append(time.process_time())

    everyone = [User(index, row, ring, threshold) for index, row in enumerate(words)]
    server = Server(ring, threshold)
    directory = server.collect({user.index: user.advertise() for user in everyone})
    lap()
    letters = server.route({user.index: user.share(directory) for user in everyone})
    lap()
    staying = everyone[dropped:]
    survivors = server.receive({user.index: user.masked(letters[user.index]) for user in staying})
    lap()
    revealed = {user.index: user.reveal(survivors) for user in staying}
    lap()
    total = server.unmask(revealed)
    lap()
    assert np.array_equal(total, words[dropped:].sum(axis=0, dtype=ring.dtype))
    counts = (users, users, len(staying), len(staying), 1)
    names = ("keys", "shares", "masks", "reveal", "unmask")
    seconds = zip(stamps, stamps[1:], counts, strict=False)
    return dict(zip(names, (1e3 * (end - start) / count for start, end, count in seconds), strict=True))


def main() -> None:
    """Measure rounds without and with users who drop out, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--values", type=int, default=26_010)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    users, length = arguments.users, arguments.values
    threshold = 2 * users // 3 + 1
    print(f"{users} users, {length:,} values each, threshold {threshold}; processor milliseconds")
    print(
        "| ring | dropped | user: keys | shares | masks | reveal | in all | server: unmask | sent, KiB | plain, KiB |"
    )
    print("|---" * 10 + "|")
    for ring in (Ring(width=32), Ring(width=64, fraction_bits=32)):
        for dropped in (0, users - threshold):
            turns = [measure(users, length, threshold, dropped, ring) for _ in range(arguments.turns)]
            best = {name: min(turn[name] for turn in turns) for name in turns[0]}
            sent = secure_sum([np.zeros(length)] * users, threshold, ring=ring).bits / 8 / 1024
            user = [best[name] for name in ("keys", "shares", "masks", "reveal")]
            cells = " | ".join(f"{value:.2f}" for value in (*user, sum(user), best["unmask"]))
            print(f"| 2^{ring.width} | {dropped} | {cells} | {sent:.0f} | {4 * length / 1024:.0f} |")


if __name__ == "__main__":
    main()
