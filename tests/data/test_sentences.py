"""The sentences of the grammar: a parser that knows nothing of how they were made judges them."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache

import pytest
import torch

from leakbench.data.base import Split
from leakbench.data.sentences import (
    CORRUPTIONS,
    LEXICON,
    PAIRS,
    RULES,
    Draws,
    Sentences,
    Token,
    case,
    determiner,
    form,
    missing,
    order,
    sentence,
    verb_last,
    written,
)
from leakbench.data.sentences import agreement as disagreement

SPLITS: tuple[Split, ...] = ("train", "test")
ALL = [line for split in SPLITS for line in Sentences.texts(split).sentences]


@cache
def language(symbol: str) -> str:
    """A regular expression of all that a symbol can become; the grammar is not recursive."""
    if symbol in LEXICON:
        return "(?:" + "|".join(map(str.lower, LEXICON[symbol])) + ")"
    if symbol not in RULES:
        return re.escape(symbol)
    rules = [rule.replace("#", number) for rule in RULES[symbol] for number in ("sg", "pl")]
    return "(?:" + "|".join(" ".join(map(language, rule.split())) for rule in rules) + ")"


def parses(line: str) -> bool:
    plain = re.sub(r"\ban\b", "a", f"{line[:-1]} {line[-1]}".lower())
    return re.fullmatch(language("SENTENCE"), plain) is not None


def tagged(*words: str) -> list[Token]:
    """Tokens from ``word`` or ``word/SYMBOL``."""
    return [Token(*word.split("/")) for word in words]


def test_the_first_sentence_of_a_pair_parses_and_the_second_does_not() -> None:
    assert [parses(line) for line in ALL] == [True, False] * (len(ALL) // 2)


@pytest.mark.parametrize("split", SPLITS)
def test_labels_and_lengths(split: Split) -> None:
    dataset = Sentences()
    samples = dataset.load(split, range(dataset.length(split)))
    assert dataset.length(split) == 2 * PAIRS[split]
    assert samples.labels.tolist() == [1, 0] * PAIRS[split]
    assert all(5 <= len(line.split()) <= 9 for line in dataset.sentences(split, range(dataset.length(split))))
    assert (samples.values == dataset.tokenizer.unk).sum() == 0
    lengths = (samples.values != 0).sum(dim=1)
    assert lengths.max() == dataset.tokens and lengths.min() == 5 + 3


def test_no_sentence_twice() -> None:
    assert len(set(ALL)) == len(ALL)


def test_it_is_english_to_look_at() -> None:
    assert ALL[:2] == [
        "Will the kind sailors sing outside the forest?",
        "Will the kind sailors sings outside the forest?",
    ]
    assert all(re.fullmatch(r"[A-Z][a-z]*( [A-Za-z]+)*[.?]", line) for line in ALL)
    assert not [line for line in ALL if re.search(r"\ba [aeiou]|\ban [^aeiou]", line.lower())]


def test_a_few_hundred_words() -> None:
    assert 300 <= Sentences().tokenizer.vocabulary_size <= 400
    assert len({word.lower() for words in LEXICON.values() for word in words}) >= 350


def test_every_symbol_of_a_rule_is_known() -> None:
    used = {
        symbol.replace("#", number)
        for rules in RULES.values()
        for rule in rules
        for symbol in rule.split()
        for number in ("sg", "pl")
        if symbol.lower() != symbol
    }
    assert used <= {*RULES, *LEXICON} and set(RULES) - used == {"SENTENCE"}


def test_forms_of_a_word_differ() -> None:
    for symbol, words in LEXICON.items():
        assert len(set(words)) == len(words), symbol
        other = symbol.replace(".sg", ".pl")
        if other != symbol:
            assert not set(words) & set(LEXICON[other]), symbol


def test_twins_differ_in_one_mistake_of_every_kind() -> None:
    draws, found = Draws(1), set()
    for _ in range(200):
        tokens = sentence(draws)
        for corrupt in CORRUPTIONS:
            for place in range(len(tokens)):
                twin = corrupt(tokens, place)
                if twin not in (None, tokens):
                    assert not parses(written(twin or [])), (corrupt.__name__, written(tokens))
                    found.add(corrupt)
    assert found == set(CORRUPTIONS)


DOGS = tagged("the", "girls/PERSON.pl", "sell/SELL.pl", "this/DETERMINER.sg", "egg/THING.sg", ".")


@pytest.mark.parametrize(
    ("corrupt", "tokens", "place", "expected"),
    [
        (disagreement, DOGS, 2, "The girls sells this egg."),
        (disagreement, DOGS, 1, None),
        (disagreement, tagged("was/BE.sg", "he/PRONOUN.sg", "?"), 0, "Were he?"),
        (disagreement, tagged("she/PRONOUN.sg", "sold/SELL.past", "."), 1, None),
        (determiner, DOGS, 3, "The girls sell these egg."),
        (determiner, DOGS, 0, None),
        (determiner, tagged("two/DETERMINER.pl", "owls/ANIMAL.pl", "."), 0, "An owls."),
        (case, tagged("she/PRONOUN.sg", "sees/SEE.sg", "him/OBJECT.sg", "."), 0, "Her sees him."),
        (case, tagged("she/PRONOUN.sg", "sees/SEE.sg", "him/OBJECT.sg", "."), 2, "She sees he."),
        (form, tagged("he/PRONOUN.sg", "must/MUST", "sing/SLEEP.bare", "."), 2, "He must sings."),
        (form, DOGS, 2, None),
        (order, DOGS, 0, "Girls the sell this egg."),
        (order, DOGS, 3, "The girls sell egg this."),
        (verb_last, DOGS, 2, "The girls this egg sell."),
        (verb_last, tagged("owls/ANIMAL.pl", "sing/SLEEP.pl", "."), 1, None),
        (missing, DOGS, 2, "The girls this egg."),
        (missing, DOGS, 4, None),
    ],
)
def test_mistakes_by_hand(corrupt: object, tokens: list[Token], place: int, expected: str | None) -> None:
    assert callable(corrupt)
    twin = corrupt(tokens, place)
    assert (None if twin is None else written(twin)) == expected


def test_another_process_makes_the_same() -> None:
    code = "from leakbench.data.sentences import Sentences; print(*Sentences.texts('test').sentences, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(Sentences.texts("test").sentences)


def test_words_tell_something_of_the_label() -> None:
    """Naive Bayes on pairs of neighbouring words beats chance on sentences that it has not seen."""
    dataset = Sentences()
    train, test = (dataset.load(split, range(dataset.length(split))) for split in SPLITS)
    size = dataset.tokenizer.vocabulary_size
    pairs = [samples.values[:, :-1] * size + samples.values[:, 1:] for samples in (train, test)]
    counts = torch.ones(2, size * size)
    counts.view(-1).index_add_(0, (train.labels[:, None] * size**2 + pairs[0]).flatten(), torch.ones(pairs[0].numel()))
    score = (counts[1] / counts[0]).log()[pairs[1]].sum(dim=1)
    assert ((score > 0) == test.labels.bool()).float().mean() > 0.65
