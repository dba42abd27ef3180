"""Text: which sentences, which tokens, and what is said when something is missing or does not fit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from leakbench.data.base import DATASETS, Split
from leakbench.data.sentences import Sentences
from leakbench.data.text import (
    BERT,
    BERT_FILE,
    BertVocabulary,
    Cola,
    RottenTomatoes,
    StagedText,
    TextDataset,
    Words,
    pack,
    unpack,
    words,
)
from leakbench.errors import ConfigError, MissingData

REAL_ROOT = os.environ.get("LEAKBENCH_DATA")

Make = Callable[..., StagedText]
Stage = Callable[..., Make]
Pieces = Callable[..., list[str]]
WRITTEN = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
ROWS = [("The dog sleeps.", 1), ("Dogs sleep the.", 0), ("A Café", 1), ("the dog's cat", 0), ("a dog a dog a dog", 1)]


@pytest.fixture
def cola(fake_text: Stage, pieces: Pieces) -> Make:
    pieces()
    return fake_text("cola", ROWS)


class TestTokens:
    """``pieces``: 0 [PAD], 2 [UNK], 3 [CLS], 4 [SEP], 6 the, 7 dog, 8 ##s, 9 sleep, 10 cafe, 11 ., 12 ', 13 a."""

    def test_by_hand(self, cola: Make) -> None:
        values, labels = cola(tokens=8).load("train", range(4))
        assert values.tolist() == [
            [3, 6, 7, 9, 8, 11, 4, 0],
            [3, 7, 8, 9, 6, 11, 4, 0],
            [3, 13, 10, 4, 0, 0, 0, 0],
            [3, 6, 7, 12, 2, 2, 4, 0],  # [PAD] last; "s" alone is no piece, nor is "cat"
        ]
        assert values.dtype == labels.dtype == torch.int64 and labels.tolist() == [1, 0, 1, 0]
        assert cola(tokens=8).shape == (8,) and cola(tokens=8).classes == 2

    def test_what_is_too_long_is_cut(self, cola: Make) -> None:
        assert cola(tokens=5).load("train", [0, 2]).values.tolist() == [[3, 6, 7, 9, 4], [3, 13, 10, 4, 0]]

    def test_or_left_out(self, cola: Make) -> None:
        dataset = cola(tokens=7, too_long="left_out")
        assert dataset.length("train") == 4 and dataset.length("test") == 1
        assert dataset.sentences("train", [3, 0]) == ["the dog's cat", "The dog sleeps."]
        assert cola(tokens=6, too_long="left_out").sentences("train", [0]) == ["A Café"]

    def test_numbers_of_words(self, cola: Make) -> None:
        assert [words(sentence) for sentence, _ in ROWS] == [3, 3, 2, 3, 6]
        assert words(" it 's -- 2 o'clock , ") == 4
        three = cola(shortest=3, longest=3)
        assert three.length("train") == 3 and three.load("train", [2]).labels.tolist() == [0]
        assert three.sentences("train", [2]) == ["the dog's cat"]
        assert cola(shortest=4).sentences("train", [0]) == ["a dog a dog a dog"]
        assert cola(longest=2).length("train") == 1

    def test_the_tokenizer(self, cola: Make) -> None:
        tokenizer = cola(tokens=8).tokenizer
        assert (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep) == (0, 2, 3, 4)
        assert tokenizer.vocabulary_size == 14 and tokenizer is cola(tokens=8).tokenizer
        assert tokenizer.lengths(["the dogs", "a a a a a a a a a"]) == [5, 11]
        assert tokenizer.encode([]).shape == (0, 8)

    def test_decoding(self, cola: Make) -> None:
        dataset = cola(tokens=9)
        tokenizer = dataset.tokenizer
        ids = dataset.load("train", [1, 3]).values
        assert tokenizer.decode(ids) == ["dogs sleep the.", "the dog ' [UNK] [UNK]"]
        assert tokenizer.decode(ids, special=True)[0] == "[CLS] dogs sleep the. [SEP] [PAD] [PAD]"
        inside = torch.tensor([[7, 0, 3, 8, 4, 9]])  # as an attack may find them
        assert tokenizer.decode(inside) == ["dogs sleep"]

    def test_special_tokens_in_a_sentence_are_words(self, cola: Make) -> None:
        assert cola(tokens=9).tokenizer.encode(["dog [SEP] [PAD]"]).tolist() == [[3, 7, 2, 2, 2, 2, 2, 2, 4]]

    @pytest.mark.parametrize("sentence", ["", " \n"])
    def test_an_empty_sentence(self, cola: Make, sentence: str) -> None:
        with pytest.raises(ValueError, match="sentence 1 is empty"):
            cola(tokens=9).tokenizer.encode(["dog", sentence])


class TestWords:
    """Vocabularies made from the train split."""

    def test_most_frequent_first(self, fake_text: Stage) -> None:
        dataset = fake_text("cola", ROWS, [("A dog sits.", 0)])(tokens=7, vocabulary=Words())
        # a dog (5, 5 times), the (3), . (2), then once each, in alphabetical order: ' cafe cat dogs s sleep sleeps
        assert dataset.tokenizer.vocabulary_size == 4 + 11
        assert dataset.load("train", [4, 0]).values.tolist() == [[2, 5, 4, 5, 4, 5, 3], [2, 6, 4, 14, 7, 3, 0]]
        assert dataset.load("test", [0]).values.tolist() == [[2, 5, 4, 1, 7, 3, 0]]
        tokenizer = dataset.tokenizer
        assert (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep) == (0, 1, 2, 3)

    def test_at_most_so_many(self, fake_text: Stage) -> None:
        dataset = fake_text("rotten_tomatoes", ROWS)(tokens=7, vocabulary=Words(entries=6))
        assert dataset.tokenizer.vocabulary_size == 6
        assert dataset.tokenizer.encode(["the dog a"]).tolist() == [[2, 1, 4, 5, 3, 0, 0]]

    def test_bounds_do_not_change_it(self, fake_text: Stage) -> None:
        fake_text("cola", ROWS)
        small, whole = Cola(longest=2, vocabulary=Words()), Cola(vocabulary=Words())
        assert torch.equal(small.load("train", [0]).values, whole.load("train", [2]).values)

    def test_configured_by_kind(self) -> None:
        made = Cola.model_validate({"vocabulary": {"kind": "words", "entries": 9}})
        assert made.vocabulary == Words(entries=9) and Cola().vocabulary == BertVocabulary()
        assert made.parameters()["vocabulary"] == {"kind": "words", "entries": 9}
        with pytest.raises(ValidationError):
            Cola.model_validate({"vocabulary": {"kind": "words", "entries": 4}})
        with pytest.raises(ValidationError):
            Cola.model_validate({"vocabulary": {"kind": "bert", "entries": 9}})


PLAIN = sorted(set(" ".join(Sentences.texts("train").sentences).lower().replace(".", "").replace("?", "").split()))


@given(st.lists(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=9).map(" ".join), min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_round_trip(sentences: list[str]) -> None:
    tokenizer = Sentences().tokenizer
    ids = tokenizer.encode(sentences)
    assert tokenizer.decode(ids) == sentences
    assert torch.equal(tokenizer.encode(tokenizer.decode(ids)), ids)
    lengths = (ids != 0).sum(dim=1)
    assert lengths.tolist() == tokenizer.lengths(sentences) == [len(line.split()) + 2 for line in sentences]
    assert (ids[:, 0] == tokenizer.cls).all() and (ids.gather(1, lengths[:, None] - 1) == tokenizer.sep).all()
    assert ids.min() >= 0 and ids.max() < tokenizer.vocabulary_size


class TestPromises:
    """What every data set promises, of text."""

    @pytest.fixture(params=["cola", "rotten_tomatoes", "sentences"])
    def dataset(self, request: pytest.FixtureRequest, fake_text: Stage, pieces: Pieces) -> TextDataset:
        pieces()
        cls = DATASETS.get(request.param)
        if issubclass(cls, StagedText):
            fake_text(request.param, ROWS, ROWS[:2])
        dataset = cls.model_validate({})
        assert isinstance(dataset, TextDataset)
        return dataset

    @pytest.mark.parametrize("split", ["train", "test"])
    def test_order_and_repeats(self, dataset: TextDataset, split: Split) -> None:
        values, labels = dataset.load(split, [1, 0, 1])
        again = dataset.load(split, [0, 1])
        assert torch.equal(values, again.values[[1, 0, 1]]) and torch.equal(labels, again.labels[[1, 0, 1]])
        assert values.shape == (3, *dataset.shape) and values.dtype == torch.int64
        assert torch.equal(values, dataset.tokenizer.encode(dataset.sentences(split, [1, 0, 1])))

    def test_no_indices(self, dataset: TextDataset) -> None:
        values, labels = dataset.load("train", [])
        assert values.shape == (0, *dataset.shape) and labels.shape == (0,) and dataset.sentences("train", []) == []

    def test_outside(self, dataset: TextDataset) -> None:
        for ask in (dataset.load, dataset.sentences):
            with pytest.raises(IndexError, match=f"'{dataset.name}' has no index -1 in split 'test' of .* sentences"):
                ask("test", [0, -1])

    def test_parameters(self, dataset: TextDataset) -> None:
        for wrong in ({"tokens": 2}, {"shortest": 0}, {"shortest": 5, "longest": 4}, {"size": 8}):
            with pytest.raises(ValidationError):
                type(dataset).model_validate(wrong)


class TestErrors:
    """What is missing, broken or does not fit."""

    def test_not_staged(self, root: Path) -> None:
        with pytest.raises(MissingData, match=r"'rotten_tomatoes' .*leakbench stage rotten_tomatoes") as caught:
            RottenTomatoes().length("train")
        assert f"{root}/cornell-movie-review-data/rotten_tomatoes/train-*-of-*.parquet" in str(caught.value)

    def test_no_vocabulary(self, fake_text: Stage, root: Path) -> None:
        dataset = fake_text("cola", ROWS)()
        assert dataset.length("train") == 5  # needs none
        with pytest.raises(MissingData, match="leakbench stage bert_vocabulary") as caught:
            dataset.load("train", [0])
        assert str(root / BERT / BERT_FILE) in str(caught.value)

    @pytest.mark.parametrize(
        ("entries", "reason"),
        [
            (["[CLS]", "[PAD]", "[UNK]", "[SEP]"], r"\[PAD\] has id 1, not 0"),
            (["[PAD]", "[UNK]", "[CLS]", "a"], r"\[SEP\] is not an entry"),
            (["[PAD]", "[CLS]", "[SEP]", "a"], r"\[UNK\] is not an entry"),
            (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "a"], "names an entry twice"),
            ([], r"\[PAD\] is not an entry"),
        ],
    )
    def test_a_vocabulary_that_does_not_fit(
        self, fake_text: Stage, pieces: Pieces, entries: list[str], reason: str
    ) -> None:
        pieces(entries)
        with pytest.raises(ConfigError, match=f"{BERT_FILE} is of a tokenizer that does not fit: .*{reason}"):
            _ = fake_text("cola", ROWS)().tokenizer

    def test_a_vocabulary_that_is_no_text(self, fake_text: Stage, pieces: Pieces, root: Path) -> None:
        pieces()
        (root / BERT / BERT_FILE).write_bytes(b"\xff\xfe\x00")
        with pytest.raises(MissingData, match=r"vocab.txt cannot be read .* Delete it, then .* bert_vocabulary"):
            _ = fake_text("cola", ROWS)().tokenizer

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            (("A dog", 2), "label 2 is not one of 2 classes"),
            (("A dog", -1), "label -1 is not one of 2 classes"),
            (("A dog", None), "int.*None"),
            ((" ", 1), "an empty sentence"),
            ((None, 1), "an empty sentence"),
        ],
    )
    def test_rows_that_cannot_be_used(self, fake_text: Stage, root: Path, row: tuple[Any, Any], reason: str) -> None:
        dataset = fake_text("cola", [ROWS[0], ROWS[1], ROWS[2], row])()
        path = re.escape(str(root / "nyu-mll/glue/cola/train-00001-of-00002.parquet"))
        with pytest.raises(MissingData, match=f"row 1 of {path} cannot be used.*{reason}.*leakbench stage cola"):
            dataset.length("train")

    def test_no_sentence_is_left(self, fake_text: Stage) -> None:
        with pytest.raises(ConfigError, match="'cola': no sentence of split 'test' is as short and long as asked"):
            fake_text("cola", ROWS)(shortest=5).length("test")


def real(dataset: TextDataset) -> TextDataset:
    """A data set whose files are really there, or a reason to skip."""
    if not REAL_ROOT:
        pytest.skip("LEAKBENCH_DATA is not set")
    try:
        _ = dataset.length("train"), dataset.tokenizer
    except MissingData as error:
        pytest.skip(str(error))
    return dataset


def test_real_cola() -> None:
    cola = real(Cola())
    assert (cola.length("train"), cola.length("test")) == (8_551, 1_043)
    assert cola.sentences("test", [0]) == ["The sailors rode the breeze clear of the rocks."]
    assert cola.tokenizer.vocabulary_size == 30_522
    tokenizer = cola.tokenizer
    assert (tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep) == (0, 100, 101, 102)
    labels = cola.load("train", range(cola.length("train"))).labels
    assert labels.bincount().tolist() == [2_528, 6_023]
    assert max(tokenizer.lengths(cola.sentences("train", range(8_551)))) <= cola.tokens  # nothing is cut


def test_real_sentences_of_5_to_9_words() -> None:
    short = real(Cola(shortest=5, longest=9, tokens=20))
    sentences = short.sentences("test", range(short.length("test")))
    assert all(5 <= words(sentence) <= 9 for sentence in sentences) and len(sentences) == 618
    place = sentences.index("The weights made the rope stretch over the pulley.")
    values = short.load("test", [place]).values[0]
    assert values[:2].tolist() == [101, 1996] and values[(values != 0).sum() - 1] == 102
    assert short.tokenizer.decode(values[None]) == ["the weights made the rope stretch over the pulley."]


def test_real_rotten_tomatoes() -> None:
    reviews = real(RottenTomatoes())
    assert (reviews.length("train"), reviews.length("test")) == (8_530, 1_066)
    labels = reviews.load("test", range(1_066)).labels
    assert labels.bincount().tolist() == [533, 533]
    assert max(reviews.tokenizer.lengths(reviews.sentences("train", range(8_530)))) <= reviews.tokens


def test_real_pieces_are_those_of_transformers() -> None:
    cola = real(Cola())
    from leakbench.libraries.torchvision_compat import import_torchvision

    import_torchvision()
    from transformers import BertTokenizer

    sentences = [*cola.sentences("test", range(0, 1_043, 7)), "Café naïve 北京, don't: 1,000-fold unkempt!"]
    vocab = Path(REAL_ROOT or "") / BERT / BERT_FILE
    theirs = BertTokenizer(vocab=str(vocab), do_lower_case=True)(
        sentences, padding="max_length", truncation=True, max_length=cola.tokens
    )["input_ids"]
    assert cola.tokenizer.encode(sentences).tolist() == theirs


def test_i15_sentences_are_not_as_long_as_stated() -> None:
    """Deng et al. (2024), Appendix L: CoLA is of 5 to 9 words, Rotten Tomatoes of 14 to 27."""
    parts = {
        name: (real(whole).length("train"), real(short).length("train"))
        for name, whole, short in (
            ("cola", Cola(), Cola(shortest=5, longest=9)),
            ("rotten_tomatoes", RottenTomatoes(), RottenTomatoes(shortest=14, longest=27)),
        )
    }
    assert parts == {"cola": (8_551, 5_316), "rotten_tomatoes": (8_530, 4_648)}


class TestPacking:
    @given(
        st.integers(0, 3).flatmap(
            lambda columns: st.lists(st.lists(WRITTEN, min_size=columns, max_size=columns), min_size=1, max_size=4)
        )
    )
    def test_there_and_back(self, sentences: list[list[str]]) -> None:
        packed = pack(sentences)
        assert packed.dtype == torch.uint8
        assert packed.shape[:2] == (len(sentences), len(sentences[0]))
        assert unpack(packed) == sentences

    def test_by_hand(self) -> None:
        assert pack(["a", "é b"]).tolist() == [[97, 0, 0, 0], [195, 169, 32, 98]]
        assert unpack(torch.tensor([[[[104, 105, 0]], [[0, 0, 0]]]], dtype=torch.uint8)) == [[["hi"], [""]]]

    @pytest.mark.parametrize("sentences", [[["a"], ["b", "c"]], ["a\0b"]])
    def test_what_cannot_be_packed(self, sentences: list[Any]) -> None:
        with pytest.raises(ValueError, match=r"make no tensor|code zero"):
            pack(sentences)
