"""Table S3 of the paper ``tfl_meta`` and its claims on bits, on tables made for them."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from tests.papers.drawn import make

from leakbench.papers.tfl_meta.costs import NAMES, costs
from leakbench.report.claims import claims_of
from leakbench.report.findings import Finding

CLAIMS = {entry.key: entry for entry in claims_of("tfl_meta")}
D, SEEDS, REPETITIONS = 1000, 12, 2
METHODS: list[tuple[str, dict[str, float], float, float, int]] = [
    ("none", {}, 32, 32, D),
    ("gaussian_noise", {}, 32, 32, D),
    ("random_mask", {"keep": 0.5}, 16.1, 16.1, D),
    ("random_mask", {"keep": 0.9}, 28.9, 28.9, D),
    ("fixed_point", {}, 64, 64, D),
    ("masked_pair", {}, 97, 64, D),
    ("additive_sharing", {}, 256, 64, D),
    ("paillier", {"key_bits": 1024}, 85.8, 85.8, D),
    ("paillier", {"key_bits": 2048}, 86.1, 86.1, D),
    ("paillier_unpacked", {"key_bits": 1024}, 2048, 2048, 10),
    ("paillier_unpacked", {"key_bits": 2048}, 4096, 4096, 10),
]
"""Method, parameters, bits per coordinate, those to the server, values measured."""


def tidy(methods: list[tuple[str, dict[str, float], float, float, int]] = METHODS) -> pd.DataFrame:
    rows = []
    for method, parameters, bits, to_server, values in methods:
        metrics: dict[str, list[float]] = {
            "bits": [bits * D],
            "server_bits": [to_server * D],
            "formula_bits": [bits * D * (1.01 if method == "random_mask" else 1)],
            "parameters": [D],
            "values": [values],
            "protect_cpu_s": [values * 2e-3, values * 4e-3],
            "step_cpu_s": [0.5, 0.5],
        }
        if method.startswith("paillier"):
            metrics |= {"slots": [24.0 if method == "paillier" else 1.0], "keygen_cpu_s": [1.0, 3.0]}
            metrics |= {"add_cpu_s": [values * 1e-3] * 2, "recover_cpu_s": [values * 1e-3] * 2}
        for seed in range(SEEDS):
            for metric, numbers in metrics.items():
                for index, value in enumerate(numbers):
                    row: dict[str, Any] = {"dataset": "digits8", "model": "mlp", "defense": "none", "attack": None}
                    row |= {
                        "void": False,
                        "distinct": False,
                        "seed": seed,
                        "status": "ok",
                        "metric": metric,
                        "index": index,
                        "value": value,
                    }
                    row |= {"axis": "repetition" if len(numbers) > 1 else None, "setting.method": method}
                    rows.append(row | {f"setting.{key}": number for key, number in parameters.items()})
    return pd.DataFrame(rows)


def judge(key: str, frame: pd.DataFrame) -> Finding:
    return CLAIMS[key].judge({"costs": frame})


class TestTable:
    def test_a_row_per_method(self) -> None:
        found = make("tableS3", {"costs": tidy()}, paper="tfl_meta")
        assert len(found) == len(METHODS)
        assert found["mechanism"].tolist()[:3] == ["plain", "Gaussian noise", "random mask, rho = 0.5"]
        by_name = found.drop_duplicates("mechanism").set_index("mechanism")
        packed, single = by_name.loc["Paillier, packed"], by_name.loc["Paillier, one value per ciphertext"]
        assert packed["bits per coordinate"] == "85.8" and packed["values per ciphertext"] == "24"
        assert packed["protect, us per value"] == "3e+03" and packed["whole update, s"] == "5"
        assert single["values measured"] == "10" and single["whole update, s"] == "5"  # in proportion
        assert packed["key pair, s"] == "2" and by_name.loc["plain"]["key pair, s"] == "–"
        assert by_name.loc["additive shares"]["to clients"] == "192"
        assert by_name.loc["plain"]["values per ciphertext"] == "–" == by_name.loc["plain"]["recover, us per value"]

    def test_without_parameters(self) -> None:
        few = [method for method in METHODS if not method[1]]
        assert costs(tidy(few))["setting.method"].tolist() == [name for name, *_ in few]
        assert {name for name, *_ in METHODS} == set(NAMES)


class TestClaims:
    def test_signs(self) -> None:
        found = judge("E14", tidy())
        assert found.verdict == "reproduced"
        noisy = tidy([*METHODS[:1], ("gaussian_noise", {}, 33, 33, D), *METHODS[2:]])
        assert judge("E14", noisy).verdict == "contradicted"
        longer = tidy([*METHODS[:2], ("random_mask", {"keep": 0.5}, 40, 40, D), *METHODS[4:]])
        assert judge("E14", longer).verdict == "contradicted"
        assert "random mask, keep 0.5" in judge("E14", longer).note

    def test_the_lemma_on_compression(self) -> None:
        found = judge("E14a", tidy())
        assert found.verdict == "contradicted" and found.effect == pytest.approx(16.1 - 32)

    def test_formulas(self) -> None:
        assert judge("E14b", tidy()).verdict == "reproduced"
        frame = tidy()
        frame.loc[(frame["setting.method"] == "paillier") & (frame["metric"] == "bits"), "value"] *= 1.01
        assert judge("E14b", frame).verdict == "contradicted"

    def test_what_is_missing(self) -> None:
        assert judge("E14", tidy(METHODS[:1])).verdict == "not run"
