"""Sentences of a small grammar, and their corrupted twins: text that needs no download, labelled as CoLA's is.

The grammar is data: ``RULES`` rewrites symbols, ``LEXICON`` holds the words. A symbol ends in its number or form
(``NOUN.sg``, ``SELL.past``); ``#`` in a rule stands for one number, the same wherever it occurs there. Nothing is
recursive.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice, pairwise
from typing import NamedTuple, TypeVar

from leakbench.data.base import DATASETS, Split
from leakbench.data.text import AnyVocabulary, TextDataset, Texts, Words, sentence_length, words

PAIRS: dict[Split, int] = {"train": 1000, "test": 200}
"""Grammatical sentences of each split; each has one twin."""
SHORTEST, LONGEST = 5, 9
"""Words of a sentence."""

RULES = {
    "SENTENCE": (
        "WHO.# SELL.# WHAT WHERE .",
        "WHO.# SELL.past WHAT WHERE .",
        "WHO.# OFTEN SELL.# WHAT .",
        "WHO.# DO.# not SELL.bare WHAT .",
        "WHO.# MUST SELL.bare WHAT WHERE .",
        "WHO.# GIVE.# WHOM WHAT .",
        "WHO.# GIVE.past WHOM WHAT .",
        "WHO.# THINK.# that CLAUSE .",
        "PERSONS.# that SELL.# WHAT BE.# MOOD .",
        "BEING.# SEE.# WHOM WHERE .",
        "BEING.# SEE.past WHOM QUIETLY .",
        "BEING.# DO.# not SEE.bare WHOM .",
        "BEING.# MUST not SEE.bare WHOM .",
        "BEING.# SLEEP.# QUIETLY WHERE .",
        "BEING.# OFTEN SLEEP.# WHERE .",
        "BEING.# SLEEP.past WHERE .",
        "BEING.# BE.# VERY MOOD .",
        "THINGS.# WHERE BE.# COLOUR .",
        "DO.# WHO.# SELL.bare WHAT WHERE ?",
        "DO.# BEING.# SEE.bare WHOM ?",
        "MUST BEING.# SLEEP.bare WHERE ?",
        "BE.# PERSONS.# WHERE VERY MOOD ?",
        "who SELL.sg WHAT WHERE ?",
        "who SEE.past WHOM WHERE ?",
    ),
    "CLAUSE": ("BEING.# SLEEP.#", "BEING.# BE.# MOOD", "BEING.# MUST SLEEP.bare", "WHO.# SELL.# WHAT"),
    "WHO.sg": ("HER-NAME", "HIS-NAME", "PRONOUN.sg", "PERSONS.sg", "PERSONS.sg"),
    "WHO.pl": ("HER-NAME and HIS-NAME", "PRONOUN.pl", "PERSONS.pl", "PERSONS.pl"),
    "BEING.sg": ("WHO.sg", "ANIMALS.sg"),
    "BEING.pl": ("WHO.pl", "ANIMALS.pl"),
    "PERSONS.sg": ("the PERSON.sg", "the MOOD PERSON.sg", "DETERMINER.sg PERSON.sg"),
    "PERSONS.pl": ("the PERSON.pl", "the MOOD PERSON.pl", "DETERMINER.pl PERSON.pl"),
    "ANIMALS.sg": ("the ANIMAL.sg", "DETERMINER.sg MOOD ANIMAL.sg", "DETERMINER.sg ANIMAL.sg"),
    "ANIMALS.pl": ("the ANIMAL.pl", "DETERMINER.pl MOOD ANIMAL.pl", "DETERMINER.pl ANIMAL.pl"),
    "THINGS.sg": ("the THING.sg", "the COLOUR THING.sg", "DETERMINER.sg THING.sg"),
    "THINGS.pl": ("the THING.pl", "the COLOUR THING.pl", "DETERMINER.pl THING.pl"),
    "WHOM": ("HER-NAME", "HIS-NAME", "OBJECT.sg", "OBJECT.pl", "PERSONS.#", "ANIMALS.#"),
    "WHAT": ("THINGS.#",),
    "WHERE": ("NEAR the PLACE",),
}


def _words(line: str) -> tuple[str, ...]:
    return tuple(line.split())


def _paradigms(name: str, forms: str, lines: str) -> dict[str, tuple[str, ...]]:
    """Word classes ``{name}.{form}`` from lines of comma-separated words, one word for each of the forms."""
    rows = [entry.split() for entry in lines.replace("\n", " ").split(",")]
    return dict(zip((f"{name}.{form}" for form in forms.split()), zip(*rows, strict=True), strict=True))


def _verbs(name: str, lines: str) -> dict[str, tuple[str, ...]]:
    """Verbs by their plural, singular and past; the bare form is the plural's."""
    forms = _paradigms(name, "pl sg past", lines)
    return forms | {f"{name}.bare": forms[f"{name}.pl"]}


LEXICON: dict[str, tuple[str, ...]] = {
    "HER-NAME": ("Mary", "Anna", "Lucy", "Sarah", "Emma", "Alice", "Julia", "Rose"),
    "HIS-NAME": ("John", "Peter", "Tom", "David", "Paul", "Simon", "Henry", "Jack"),
    "OFTEN": ("often", "always", "never", "sometimes", "rarely", "seldom"),
    "QUIETLY": ("quietly", "slowly", "quickly", "gladly", "carefully", "suddenly"),
    "VERY": ("very", "quite", "rather", "still", "too", "so"),
    "MUST": ("must", "can", "will", "should", "may", "could"),
    "NEAR": ("near", "behind", "in", "at", "beside", "outside"),
    "MOOD": _words("old young tall small happy sad clever tired hungry brave quiet angry kind lazy polite proud"),
    "COLOUR": _words("red green blue heavy new long strange cheap big dark wooden broken clean round black"),
    "PLACE": _words("garden house river school market kitchen forest bridge village station church lake tower"),
    **_paradigms("PRONOUN", "sg pl", "he they, she we"),
    **_paradigms("OBJECT", "sg pl", "him them, her us"),
    **_paradigms("DETERMINER", "sg pl", "a two, this these, that those, every many"),
    **_paradigms(
        "PERSON",
        "sg pl",
        """girl girls, boy boys, teacher teachers, farmer farmers, doctor doctors, sailor sailors, painter painters,
        nurse nurses, student students, king kings, singer singers, driver drivers, baker bakers, child children,
        woman women, man men, artist artists, soldier soldiers""",
    ),
    **_paradigms(
        "ANIMAL",
        "sg pl",
        """dog dogs, cat cats, horse horses, cow cows, bird birds, fox foxes, mouse mice, rabbit rabbits, bear bears,
        goat goats, frog frogs, owl owls, elephant elephants""",
    ),
    **_paradigms(
        "THING",
        "sg pl",
        """book books, letter letters, ball balls, picture pictures, apple apples, box boxes, coat coats, chair chairs,
        cup cups, key keys, bag bags, knife knives, table tables, clock clocks, basket baskets, umbrella umbrellas,
        hat hats, lamp lamps, ring rings, egg eggs""",
    ),
    **_paradigms("BE", "sg pl", "is are, was were"),
    **_paradigms("DO", "sg pl", "does do"),
    **_verbs(
        "SELL",
        """sell sells sold, paint paints painted, carry carries carried, find finds found, want wants wanted,
        hold holds held, lose loses lost, buy buys bought, hide hides hid, break breaks broke, need needs needed,
        like likes liked, remember remembers remembered, describe describes described, steal steals stole,
        bring brings brought, drop drops dropped, make makes made""",
    ),
    **_verbs(
        "SEE",
        """see sees saw, follow follows followed, help helps helped, watch watches watched, hear hears heard,
        love loves loved, trust trusts trusted, fear fears feared, miss misses missed, wake wakes woke,
        chase chases chased, meet meets met""",
    ),
    **_verbs(
        "SLEEP",
        """sleep sleeps slept, laugh laughs laughed, run runs ran, wait waits waited, dance dances danced,
        sing sings sang, swim swims swam, rest rests rested, play plays played, stand stands stood, fall falls fell,
        work works worked""",
    ),
    **_verbs("GIVE", "give gives gave, send sends sent, show shows showed, offer offers offered, lend lends lent"),
    **_verbs("THINK", "think thinks thought, know knows knew, say says said, believe believes believed"),
}
VERBS = ("BE", "SELL", "SEE", "SLEEP", "GIVE", "THINK")
"""Word classes of a sentence's main verbs."""

C = TypeVar("C")


class Token(NamedTuple):
    """A word, and the class of the lexicon that it is from; empty where a rule names the word itself."""

    word: str
    symbol: str = ""

    @property
    def kind(self) -> str:
        """The class without number or form."""
        return self.symbol.partition(".")[0]

    @property
    def form(self) -> str:
        """The number or form."""
        return self.symbol.partition(".")[2]

    def inflected(self, symbol: str) -> Token:
        """The same word in another form, such as ``SELL.sg``."""
        return Token(LEXICON[symbol][LEXICON[self.symbol].index(self.word)], symbol)


Tokens = list[Token]


class Draws:
    """Choices of a fixed seed.

    ``random()`` alone is promised to draw the same in every version of Python.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def one_of(self, options: Sequence[C]) -> C:
        """One of the options, uniformly."""
        return options[int(self._random.random() * len(options))]


def sentence(draws: Draws, symbol: str = "SENTENCE") -> Tokens:
    """A random sentence of the grammar, or what a symbol of it becomes."""
    if symbol in LEXICON:
        return [Token(draws.one_of(LEXICON[symbol]), symbol)]
    if symbol not in RULES:
        return [Token(symbol)]
    rule = draws.one_of(RULES[symbol])
    if "#" in rule:
        rule = rule.replace("#", draws.one_of(("sg", "pl")))
    return [token for part in rule.split() for token in sentence(draws, part)]


def agreement(tokens: Tokens, place: int) -> Tokens | None:
    """The finite verb in the other number: *the girls sells*."""
    token = tokens[place]
    if token.kind not in (*VERBS, "DO") or token.form not in ("sg", "pl"):
        return None
    return _changed(tokens, place, token.inflected(f"{token.kind}.{_other(token)}"))


def determiner(tokens: Tokens, place: int) -> Tokens | None:
    """A determiner in the other number: *these girl*."""
    token = tokens[place]
    if token.kind != "DETERMINER":
        return None
    return _changed(tokens, place, token.inflected(f"DETERMINER.{_other(token)}"))


def case(tokens: Tokens, place: int) -> Tokens | None:
    """A subject in the form of an object, or the reverse: *him sells*."""
    token = tokens[place]
    swapped = {"PRONOUN": "OBJECT", "OBJECT": "PRONOUN"}.get(token.kind)
    return _changed(tokens, place, token.inflected(f"{swapped}.{token.form}")) if swapped else None


def form(tokens: Tokens, place: int) -> Tokens | None:
    """A finite verb where the bare one belongs: *must sells*."""
    token = tokens[place]
    return _changed(tokens, place, token.inflected(f"{token.kind}.sg")) if token.form == "bare" else None


def order(tokens: Tokens, place: int) -> Tokens | None:
    """A determiner behind the word that follows it: *girl the*."""
    if tokens[place].word != "the" and tokens[place].kind != "DETERMINER":
        return None
    return [*tokens[:place], tokens[place + 1], tokens[place], *tokens[place + 2 :]]


def verb_last(tokens: Tokens, place: int) -> Tokens | None:
    """A verb behind its object: *the girl a book sells*."""
    if tokens[place].kind not in ("BE", "SELL", "SEE", "GIVE") or tokens[place].form == "bare":
        return None
    return [*tokens[:place], *tokens[place + 1 : -1], tokens[place], tokens[-1]]


def missing(tokens: Tokens, place: int) -> Tokens | None:
    """No verb: *the girl a book*."""
    return [*tokens[:place], *tokens[place + 1 :]] if tokens[place].kind in VERBS else None


CORRUPTIONS: tuple[Callable[[Tokens, int], Tokens | None], ...] = (
    agreement,
    determiner,
    case,
    form,
    order,
    verb_last,
    missing,
)
"""Each makes one mistake at a place, or returns None where it cannot."""


def _other(token: Token) -> str:
    return {"sg": "pl", "pl": "sg"}[token.form]


def _changed(tokens: Tokens, place: int, token: Token) -> Tokens:
    return [*tokens[:place], token, *tokens[place + 1 :]]


def corrupted(tokens: Tokens, draws: Draws) -> Tokens:
    """The sentence with one mistake: first a kind of mistake is drawn, then its place."""
    kinds = [
        twins
        for corrupt in CORRUPTIONS
        if (twins := [twin for place in range(len(tokens)) if (twin := corrupt(tokens, place)) not in (None, tokens)])
    ]
    twin = draws.one_of(draws.one_of(kinds))
    assert twin is not None
    return twin


def written(tokens: Tokens) -> str:
    """The sentence as it is written: a capital letter, *an* before vowels, the last mark next to the last word."""
    spelled = [token.word for token in tokens]
    for place, (word, following) in enumerate(pairwise(spelled)):
        if word == "a" and following[0] in "aeiou":
            spelled[place] = "an"
    line = " ".join(spelled[:-1]) + spelled[-1]
    return line[0].upper() + line[1:]


def _pairs(draws: Draws) -> Iterator[tuple[str, str]]:
    """Grammatical sentences of the wanted lengths with their twins; no sentence twice."""
    seen: set[str] = set()
    while True:
        tokens = sentence(draws)
        pair = written(tokens), written(corrupted(tokens, draws))
        if all(SHORTEST <= words(line) <= LONGEST for line in pair) and seen.isdisjoint(pair):
            seen.update(pair)
            yield pair


def _bare(pair: tuple[str, str]) -> list[str]:
    """The words of a pair, in lower case, without marks."""
    return [word.strip(".?") for word in " ".join(pair).lower().split()]


@cache
def _splits() -> dict[Split, Texts]:
    """Both splits; the words of the test split are in the train split."""
    pairs = _pairs(Draws(0))
    train = list(islice(pairs, PAIRS["train"]))
    known = {word for pair in train for word in _bare(pair)}
    test = list(islice((pair for pair in pairs if known.issuperset(_bare(pair))), PAIRS["test"]))
    return {"train": _labelled(train), "test": _labelled(test)}


def _labelled(pairs: list[tuple[str, str]]) -> Texts:
    return Texts(tuple(line for pair in pairs for line in pair), (1, 0) * len(pairs))


@DATASETS.register("sentences", version=1)
class Sentences(TextDataset):
    """Made sentences of 5 to 9 words, grammatical (1) or with one mistake (0): 2,000 to train on, 400 to test.

    Rows ``2 k`` and ``2 k + 1`` are a grammatical sentence and its corrupted twin. No sentence is there twice, and
    the test split has no word that the train split has not.
    """

    classes = 2
    tokens: int = sentence_length(LONGEST + 3)  # [CLS], the full stop and [SEP]
    vocabulary: AnyVocabulary = Words()

    @classmethod
    def texts(cls, split: Split) -> Texts:
        return _splits()[split]
