"""Savings by packing: many values in a ciphertext against one, in bits and in processor time.

Both forms hold values in fixed point with 32 binary places, for sums of ``--clients`` vectors, and both encrypt with
the private key, as clients do. One value per ciphertext is measured on ``--single`` values, packed ones on
``--values``. Processor milliseconds per 1,000 values; the smallest of ``--turns``, which alternate. The script stops
where a decrypted sum is not that of the rounded values.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from leakbench.federated.paillier import Packing, add, decrypt, encrypt, generate_keys

PARTS = ("encrypt, public key", "encrypt, private key", "add", "decrypt")


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and its processor seconds."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def measure(key: Any, packing: Packing, length: int) -> dict[str, float]:
    """Milliseconds per 1,000 values of one client; ``add`` is of all clients' vectors.

    Raises:
        AssertionError: the sum is not exact.
    """
    vectors = np.random.default_rng(0).normal(size=(packing.clients, length))
    _, public = timed(lambda: encrypt(vectors[0], key.public_key, packing))
    sent, private = timed(lambda: [encrypt(vector, key, packing) for vector in vectors])
    total, adding = timed(lambda: add(sent))
    decrypted, decrypting = timed(lambda: decrypt(total, key))
    rounded = np.rint(np.ldexp(vectors, packing.fraction_bits)).sum(axis=0)
    assert np.array_equal(decrypted, np.ldexp(rounded, -packing.fraction_bits))
    seconds = (public, private / packing.clients, adding, decrypting)
    return {part: 1e6 * each / length for part, each in zip(PARTS, seconds, strict=True)}


def main() -> None:
    """Measure both forms at every size of the modulus, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--key-bits", type=int, nargs="+", default=[1024, 2048, 3072])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--values", type=int, default=2410)
    parser.add_argument("--single", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{arguments.clients} clients; bits per value, and processor milliseconds per 1,000 values")
    print("| key, bits | values per ciphertext | bits | " + " | ".join(PARTS) + " |")
    print("|---" * (3 + len(PARTS)) + "|")
    for bits in arguments.key_bits:
        key = generate_keys(bits)
        forms = {False: arguments.single, True: arguments.values}
        packings = {packed: Packing(bits, arguments.clients, packed=packed) for packed in forms}
        turns: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for _ in range(arguments.turns):
            for packed, length in forms.items():
                turns[packed].append(measure(key, packings[packed], length))
        best = {packed: {part: min(turn[part] for turn in each) for part in PARTS} for packed, each in turns.items()}
        size = {packed: packings[packed].bits(length) / length for packed, length in forms.items()}
        for packed, packing in packings.items():
            cells = " | ".join(f"{best[packed][part]:.3g}" for part in PARTS)
            print(f"| {bits} | {packing.slots} | {size[packed]:.1f} | {cells} |")
        ratios = " | ".join(f"{best[False][part] / best[True][part]:.1f}x" for part in PARTS)
        print(f"| | one over packed | {size[False] / size[True]:.1f}x | {ratios} |")


if __name__ == "__main__":
    main()
