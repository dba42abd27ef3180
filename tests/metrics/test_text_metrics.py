"""Scores of text: the paper's sentences, by hand, and against literal references."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.metrics.text import (
    ROUGES,
    TEXT_METRICS,
    WITH_SPECIAL,
    assign_sentences,
    rouge,
    rouge_floor,
    text_metrics,
    token_accuracy,
    token_recovery,
    without_special,
)

VICTIM = "who do you think that will question seamus first?"
DLG = "out who will question seamusythe center? you rather"
LAMP = "seamus would who seamus which will what you question?"
LAMP_PRUNED = "do you think who will ? seamus first question seamus"
LAMP_CDPA = " ".join(["[PAD]"] * 10)
WORDS = st.lists(st.sampled_from(["ant", "bee", "cat", "dog", "eel"]), min_size=1, max_size=7)
SPECIAL = (0, 101, 102)


def framed(sentence: str) -> str:
    return f"[CLS] {sentence} [SEP]"


class TestRouge:
    @pytest.mark.parametrize(
        ("predicted", "scores"),
        [
            (DLG, (57.143, 10.526, 47.619)),
            (LAMP, (63.636, 0.0, 45.455)),
            (LAMP_PRUNED, (90.909, 40.0, 72.727)),
            (LAMP_CDPA, (17.391, 0.0, 17.391)),
        ],
    )
    def test_sentences_of_table_6_as_released(self, predicted: str, scores: tuple[float, ...]) -> None:
        found = rouge([framed(predicted)], [framed(VICTIM)])
        assert [float(found[name]) for name in ROUGES] == pytest.approx(scores, abs=5e-4)

    @pytest.mark.parametrize(("predicted", "scores"), [(DLG, (47.059, 13.333, 35.294)), (LAMP_CDPA, (0.0, 0.0, 0.0))])
    def test_sentences_of_table_6_without_special_tokens(self, predicted: str, scores: tuple[float, ...]) -> None:
        found = rouge([without_special(framed(predicted))], [without_special(framed(VICTIM))])
        assert [float(found[name]) for name in ROUGES] == pytest.approx(scores, abs=5e-4)

    def test_the_floor_that_special_tokens_make(self) -> None:
        """LAMP's 19.78 against CDPA in Table V, with ROUGE-2 of zero, is that of sentences of 10.11 words."""
        assert rouge_floor(10.11, 10.11) == pytest.approx(19.78, abs=0.005)
        found = rouge([framed("one two three")], [framed("four five six seven eight")])
        assert float(found["rouge1"]) == pytest.approx(rouge_floor(5, 7)) == pytest.approx(100 / 3)
        assert float(found["rougeL"]) == pytest.approx(100 / 3) and float(found["rouge2"]) == 0

    def test_words_are_not_stemmed(self) -> None:
        assert float(rouge(["questions"], ["question"])["rouge1"]) == 0

    @settings(max_examples=50)
    @given(WORDS, WORDS)
    def test_against_definitions(self, ours: list[str], theirs: list[str]) -> None:
        def measure(common: int, predicted: int, victim: int) -> float:
            return 100 * 2 * common / (predicted + victim) if common else 0.0

        def pairs(words: list[str]) -> Counter[tuple[str, str]]:
            return Counter(itertools.pairwise(words))

        def subsequence(a: list[str], b: list[str]) -> int:
            if not a or not b:
                return 0
            if a[0] == b[0]:
                return 1 + subsequence(a[1:], b[1:])
            return max(subsequence(a[1:], b), subsequence(a, b[1:]))

        found = {name: float(value) for name, value in rouge([" ".join(ours)], [" ".join(theirs)]).items()}
        words, couples = (Counter(ours) & Counter(theirs)).total(), (pairs(ours) & pairs(theirs)).total()
        assert found["rouge1"] == pytest.approx(measure(words, len(ours), len(theirs)))
        assert found["rouge2"] == pytest.approx(measure(couples, len(ours) - 1, len(theirs) - 1))
        assert found["rougeL"] == pytest.approx(measure(subsequence(ours, theirs), len(ours), len(theirs)))

    @settings(max_examples=50)
    @given(WORDS, WORDS)
    def test_special_tokens_only_add(self, ours: list[str], theirs: list[str]) -> None:
        plain = rouge([" ".join(ours)], [" ".join(theirs)])
        with_them = rouge([framed(" ".join(ours))], [framed(" ".join(theirs))])
        floor = rouge_floor(len(ours) + 2, len(theirs) + 2)
        for name in ("rouge1", "rougeL"):
            assert float(with_them[name]) >= max(float(plain[name]), floor) - 1e-9

    def test_numbers_must_agree(self) -> None:
        with pytest.raises(ValueError, match="1 reconstructions and 2 victims"):
            rouge(["a"], ["a", "b"])


IDS = st.lists(st.integers(5, 9), min_size=6, max_size=6)


class TestTokens:
    def test_by_hand(self) -> None:
        victims = torch.tensor([[101, 7, 8, 7, 102, 0], [101, 5, 6, 102, 0, 0], [101, 102, 0, 0, 0, 0]])
        predicted = torch.tensor([[101, 7, 9, 8, 102, 0], [101, 6, 6, 102, 0, 0], [101, 102, 0, 0, 0, 0]])
        recovery, accuracy = (each(predicted, victims, SPECIAL) for each in (token_recovery, token_accuracy))
        assert recovery[:2].tolist() == pytest.approx([2 / 3, 1 / 2])  # one of two sevens; the six, once
        assert accuracy[:2].tolist() == pytest.approx([1 / 3, 1 / 2])
        assert recovery.dtype == torch.float64 and recovery[2].isnan() and accuracy[2].isnan()

    @given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=4))
    def test_against_multisets(self, pairs: list[tuple[list[int], list[int]]]) -> None:
        special = (9,)
        predicted, victims = (torch.tensor([pair[side] for pair in pairs]) for side in (0, 1))
        found = token_recovery(predicted, victims, special)
        placed = token_accuracy(predicted, victims, special)
        for row, (ours, theirs) in enumerate(pairs):
            kept = [token for token in theirs if token not in special]
            if kept:
                assert float(found[row]) == pytest.approx((Counter(ours) & Counter(kept)).total() / len(kept))
                assert float(placed[row]) <= float(found[row])
            else:
                assert found[row].isnan()

    @given(IDS, st.permutations(range(6)))
    def test_order_moves_accuracy_alone(self, ids: list[int], order: list[int]) -> None:
        victim = torch.tensor([ids])
        shuffled = victim[:, order]
        assert float(token_recovery(shuffled, victim, ())) == 1
        assert float(token_accuracy(shuffled, victim, ())) == float((shuffled == victim).double().mean())


class TestAssignment:
    @settings(max_examples=50)
    @given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
    def test_no_permutation_is_better(self, pairs: list[tuple[list[str], list[str]]]) -> None:
        predicted, victims = ([" ".join(pair[side]) for pair in pairs] for side in (0, 1))
        (order,) = assign_sentences([predicted], [victims]).tolist()
        assert sorted(order) == list(range(len(pairs)))

        def total(permutation: list[int]) -> float:
            return float(rouge([predicted[index] for index in permutation], victims)["rouge1"].sum())

        best = max(total(list(permutation)) for permutation in itertools.permutations(range(len(pairs))))
        assert total(order) == pytest.approx(best)

    def test_a_permutation_is_undone_in_every_batch(self) -> None:
        victims = [["a b c", "d e f", "g h i"], ["j k", "l m", "n o"]]
        predicted = [[victims[0][2], victims[0][0], victims[0][1]], victims[1]]
        order = assign_sentences(predicted, victims)
        assert order.dtype == torch.int64 and order.tolist() == [[1, 2, 0], [0, 1, 2]]

    def test_sizes_must_agree(self) -> None:
        with pytest.raises(ValueError, match="differ in number"):
            assign_sentences([["a"]], [["a", "b"]])


def test_all_metrics() -> None:
    ids = torch.tensor([[101, 7, 8, 102], [101, 7, 8, 102]])
    other = torch.tensor([[101, 8, 7, 102], [101, 9, 5, 102]])
    sentences = [framed("seven eight")] * 2
    found = text_metrics([framed("eight seven"), framed("nine five")], sentences, other, ids, SPECIAL)
    assert list(found) == list(TEXT_METRICS)
    rows = {name: value.tolist() for name, value in found.items()}
    assert rows["rouge1"] == pytest.approx([100, 0]) and rows["rougeL"] == pytest.approx([50, 0])
    assert rows["rouge1" + WITH_SPECIAL] == pytest.approx([100, 50])
    assert rows["token_recovery"] == [1, 0] and rows["token_accuracy"] == [0, 0]
    assert all(info.axis == "sentence" and info.direction == "higher" for info in TEXT_METRICS.values())
