"""Supplement S5: scores of the paper's reconstructions of its one sentence, and the floor of these scores."""

from __future__ import annotations

from leakbench.lazy import pd
from leakbench.metrics.text import ROUGES, WITH_SPECIAL, rouge, rouge_floor, without_special
from leakbench.papers.cdpa.common import printed, table
from leakbench.report.artifacts import Tables
from leakbench.report.wording import NONE

_TITLES = dict(zip(ROUGES, ("ROUGE-1", "ROUGE-2", "ROUGE-L"), strict=True))


def scores(sentences: pd.DataFrame) -> pd.DataFrame:
    """ROUGE in percent of every reconstruction of Table VI, as printed (``_with_special``) and without special tokens.

    Args:
        sentences: the columns ``attack``, ``defense`` and ``sentence``; of the attack ``truth`` the victim.
    """
    (victim,) = sentences.loc[sentences["attack"] == "truth", "sentence"]
    recovered = sentences[sentences["attack"] != "truth"]
    texts = recovered["sentence"].tolist()
    plain = rouge([without_special(text) for text in texts], [without_special(victim)] * len(texts))
    released = rouge(texts, [victim] * len(texts))
    numbers = {name + WITH_SPECIAL: values.tolist() for name, values in released.items()}
    numbers |= {name: values.tolist() for name, values in plain.items()}
    floors = [rouge_floor(_words(text), _words(victim)) for text in texts]
    return recovered.assign(**numbers, floor=floors).reset_index(drop=True)


def _words(text: str) -> int:
    """Words as ROUGE counts them."""
    from rouge_score.tokenize import tokenize

    return len(tokenize(text, None))


def _same_as(frame: pd.DataFrame) -> list[str]:
    """For every sentence the other defenses under which the same attack has it, letter by letter."""
    names = []
    for row in frame.to_dict("records"):
        same = frame[(frame["sentence"] == row["sentence"]) & (frame["attack"] == row["attack"])]
        names.append(", ".join(other for other in same["defense"] if other != row["defense"]) or NONE)
    return names


@table(
    "S5",
    title="ROUGE of the paper's own sentences",
    caption="What the reconstructions of Table VI score against its victim, computed from their letters. With special "
    "tokens, as the paper scores: [CLS] and [SEP] are two words that every reconstruction has, and [PAD] is one, too. "
    "Floor: ROUGE-1 of two such sentences of these lengths that have no other word in common. Without them: what the "
    "attacker found. Table V has the means of the paper's 100 sentences.",
    experiments=(),
)
def table_s5(_: Tables) -> pd.DataFrame:
    """A row per attack and defense."""
    scored = scores(printed("table06"))
    means = printed("table05").set_index(["attack", "defense"])
    pairs = list(zip(scored["attack"], scored["defense"], strict=True))
    columns: dict[str, list[str]] = {"attack": scored["attack"].tolist(), "defense": scored["defense"].tolist()}
    columns["Table V, ROUGE-1"] = [f"{means.loc[pair, 'rouge1']:.2f}" for pair in pairs]
    columns["floor"] = [f"{value:.2f}" for value in scored["floor"]]
    for suffix, words in ((WITH_SPECIAL, "with special tokens"), ("", "without")):
        for name, title in _TITLES.items():
            columns[f"{title}, {words}"] = [f"{value:.2f}" for value in scored[name + suffix]]
    return pd.DataFrame({**columns, "same sentence as": _same_as(scored)})
