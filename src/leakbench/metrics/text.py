"""Text metrics, one value per sentence: words in common (ROUGE), tokens in common, and which sentence is which.

ROUGE comes twice. Deng et al. (2024) score as Balunovic et al. (2022) released it: the sentences still hold the
strings ``[CLS]`` and ``[SEP]``, of which ROUGE makes the words "cls" and "sep". Those two always match, so that a
reconstruction that shares no word with its victim scores :func:`rouge_floor` and not zero. ROUGE of the sentences
without them is what the attacker found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from leakbench.lazy import np, torch
from leakbench.records import MetricInfo

ROUGES = ("rouge1", "rouge2", "rougeL")
WITH_SPECIAL = "_with_special"
"""Suffix of the metrics of sentences that hold their special tokens."""

_NAMES = {"rouge1": "words", "rouge2": "pairs of words", "rougeL": "words of the longest common subsequence"}

TEXT_METRICS = (
    {
        name: MetricInfo(
            unit=f"F-measure of {words}, percent, without special tokens", direction="higher", axis="sentence"
        )
        for name, words in _NAMES.items()
    }
    | {
        name + WITH_SPECIAL: MetricInfo(
            unit=f"F-measure of {words}, percent, '[CLS]' and '[SEP]' among the words",
            direction="higher",
            axis="sentence",
        )
        for name, words in _NAMES.items()
    }
    | {
        "token_recovery": MetricInfo(
            unit="part of the victim's tokens that are found, at any place", direction="higher", axis="sentence"
        ),
        "token_accuracy": MetricInfo(
            unit="part of the victim's tokens that are found at their place", direction="higher", axis="sentence"
        ),
    }
)

_SPECIAL = re.compile(r"\[(?:PAD|UNK|CLS|SEP|MASK)\]")


def without_special(sentence: str) -> str:
    """A decoded sentence without the strings of BERT's special tokens."""
    return " ".join(_SPECIAL.sub(" ", sentence).split())


def rouge(predicted: Sequence[str], victims: Sequence[str]) -> dict[str, torch.Tensor]:
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004) in percent, by name, each float64 ``[n]``.

    Of words in lower case; what is neither letter nor digit separates them. Words are not stemmed. A sentence without
    words scores 0.

    Args:
        predicted: ``n`` reconstructions.
        victims: ``n`` sentences, in the same order.

    Raises:
        ValueError: their numbers differ.
    """
    from rouge_score.rouge_scorer import RougeScorer

    if len(predicted) != len(victims):
        raise ValueError(f"{len(predicted)} reconstructions and {len(victims)} victims")
    scorer = RougeScorer(list(ROUGES), use_stemmer=False)
    scores = [scorer.score(*pair) for pair in zip(victims, predicted, strict=True)]
    return {
        name: torch.tensor([100.0 * score[name].fmeasure for score in scores], dtype=torch.float64) for name in ROUGES
    }


def rouge_floor(predicted: int | float, victim: int | float) -> float:
    """ROUGE-1 in percent of sentences with ``[CLS]`` and ``[SEP]`` that have no other word in common.

    Args:
        predicted: number of words of the reconstruction, both special ones included.
        victim: number of words of the victim, likewise.
    """
    return 100.0 * 2 * 2 / (predicted + victim)


def token_recovery(predicted: torch.Tensor, victims: torch.Tensor, special: Sequence[int]) -> torch.Tensor:
    """Part of a victim's tokens that its reconstruction holds at any place, each as often as both have it.

    Args:
        predicted: token ids, ``[n, L]``.
        victims: token ids, ``[n, M]``.
        special: ids that do not count: padding, and what stands in every sentence.

    Returns:
        float64 ``[n]`` in [0, 1]; NaN for a victim without tokens that count.
    """
    counts = _counts(victims, special)
    earlier = torch.ones(victims.shape[1], victims.shape[1], dtype=torch.bool, device=victims.device).tril()
    nth = ((victims[:, :, None] == victims[:, None, :]) & earlier).sum(dim=2)  # its first occurrence, its second, ...
    held = (victims[:, :, None] == predicted[:, None, :]).sum(dim=2)
    return ((nth <= held) & counts).sum(dim=1).double() / counts.sum(dim=1)


def token_accuracy(predicted: torch.Tensor, victims: torch.Tensor, special: Sequence[int]) -> torch.Tensor:
    """Part of a victim's tokens that its reconstruction holds at their own place; both ``[n, L]``.

    Otherwise as :func:`token_recovery`.
    """
    counts = _counts(victims, special)
    return ((predicted == victims) & counts).sum(dim=1).double() / counts.sum(dim=1)


def _counts(ids: torch.Tensor, special: Sequence[int]) -> torch.Tensor:
    return ~torch.isin(ids, torch.tensor(list(special), dtype=ids.dtype, device=ids.device))


def assign_sentences(predicted: Sequence[Sequence[str]], victims: Sequence[Sequence[str]]) -> torch.Tensor:
    """The one-to-one assignment of reconstructions to the victims of a batch with the largest sum of ROUGE-1.

    As Balunovic et al. (2022) match sentences.

    Args:
        predicted: ``n`` batches of ``B`` reconstructions.
        victims: ``n`` batches of ``B`` sentences.

    Returns:
        For each victim the index of its reconstruction in its batch, int64 ``[n, B]``.

    Raises:
        ValueError: numbers differ.
    """
    from rouge_score.rouge_scorer import RougeScorer
    from scipy.optimize import linear_sum_assignment

    if [len(batch) for batch in predicted] != [len(batch) for batch in victims]:
        raise ValueError("reconstructions and victims differ in number")
    scorer = RougeScorer(["rouge1"], use_stemmer=False)
    orders = []
    for ours, theirs in zip(predicted, victims, strict=True):
        score = [[scorer.score(victim, guess)["rouge1"].fmeasure for guess in ours] for victim in theirs]
        orders.append(linear_sum_assignment(score, maximize=True)[1])
    return torch.from_numpy(np.stack(orders).astype(np.int64))


def text_metrics(
    predicted: Sequence[str],
    victims: Sequence[str],
    predicted_ids: torch.Tensor,
    victim_ids: torch.Tensor,
    special: Sequence[int],
) -> dict[str, torch.Tensor]:
    """Every metric of ``TEXT_METRICS``: one value per sentence, float64 ``[n]``.

    Args:
        predicted: reconstructions as decoded, with their special tokens and without padding.
        victims: sentences as decoded, likewise.
        predicted_ids: token ids of the reconstructions, ``[n, L]``.
        victim_ids: token ids of the victims, ``[n, L]``.
        special: ids that no token metric counts.
    """
    plain = rouge([without_special(sentence) for sentence in predicted], [without_special(each) for each in victims])
    released = {name + WITH_SPECIAL: value for name, value in rouge(predicted, victims).items()}
    return {
        **plain,
        **released,
        "token_recovery": token_recovery(predicted_ids, victim_ids, special).cpu(),
        "token_accuracy": token_accuracy(predicted_ids, victim_ids, special).cpu(),
    }
