"""Table S5: what the paper's own sentences score, by another hand."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.papers.drawn import make

from leakbench.papers.cdpa.common import printed
from leakbench.papers.cdpa.text_printed import scores

PAPER = "cdpa"


def words(text: str) -> list[str]:
    """As ROUGE splits: letters and digits in lower case."""
    return "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()


def test_table_s5() -> None:
    table, sentences = make("tableS5", {}, paper=PAPER), printed("table06")
    assert list(table["attack"]) == [attack for attack in ("DLG", "TAG", "LAMP") for _ in range(4)]
    victim = words(sentences["sentence"][0])
    for row, text in zip(table.to_dict("records"), sentences["sentence"][1:], strict=True):
        found = words(text)
        shared = sum((Counter(found) & Counter(victim)).values())
        assert float(row["ROUGE-1, with special tokens"]) == pytest.approx(
            200 * shared / (len(found) + len(victim)), abs=0.006
        )
        assert float(row["floor"]) == pytest.approx(400 / (len(found) + len(victim)), abs=0.006)
        assert float(row["ROUGE-1, with special tokens"]) >= float(row["floor"])
    means = printed("table05").set_index(["attack", "defense"])["rouge1"]
    stated = [f"{means[row]:.2f}" for row in zip(table["attack"], table["defense"], strict=True)]
    assert table["Table V, ROUGE-1"].tolist() == stated
    same = table.set_index(["attack", "defense"])["same sentence as"]
    assert (
        same[("DLG", "DP")] == "GradDrop" and same[("DLG", "GradDrop")] == "DP" and set(same) == {"–", "GradDrop", "DP"}
    )


def test_scores_without_special_tokens() -> None:
    found = scores(printed("table06")).set_index(["attack", "defense"])
    assert found.loc[("LAMP", "CDPA"), "rouge1"] == 0  # [PAD] is none of its words
    assert found.loc[("LAMP", "GradDrop"), "rouge1"] == pytest.approx(200 * 8 / 18)
    assert found.loc[("LAMP", "GradDrop"), "rouge1_with_special"] == pytest.approx(200 * 10 / 22)
