"""Quality of membership scores: area under the ROC curve, and true positive rate."""

from __future__ import annotations

from typing import NamedTuple

from leakbench.lazy import np, torch


class AUC(NamedTuple):
    """Area under the ROC curve and its confidence interval, float64 ``[...]``: one per row of scores."""

    value: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def auc(scores: torch.Tensor, member: torch.Tensor, confidence: float = 0.95) -> AUC:
    """Probability that a member scores above a non-member, ties counting half, with DeLong's interval.

    The normal interval of DeLong et al. 1988, cut at 0 and 1; it has no width where all members score above all others.
    A row with NaN has none of the three.

    >>> auc(torch.tensor([0.9, 0.4, 0.6, 0.1]), torch.tensor([True, True, False, False])).value
    tensor(0.7500, dtype=torch.float64)

    Args:
        scores: ``[..., n]``; higher means member.
        member: which of the n are members, boolean ``[n]``.
        confidence: of the interval.

    Returns:
        Three tensors ``[...]``.

    Raises:
        ValueError: fewer than two members or two non-members.
    """
    from scipy.stats import norm, rankdata

    values, inside = scores.detach().cpu().double().numpy(), member.cpu().numpy()
    m, n = int(inside.sum()), int((~inside).sum())
    if min(m, n) < 2:
        raise ValueError(f"the area under the curve of {m} members and {n} non-members has no interval")

    def ranks(part: np.ndarray) -> np.ndarray:
        ranked: np.ndarray = rankdata(part, axis=-1, nan_policy="propagate")
        return ranked

    everyone = ranks(values)
    # The part of the others that each sample scores above, or below (Sun and Xu 2014).
    above = (everyone[..., inside] - ranks(values[..., inside])) / n
    below = 1 - (everyone[..., ~inside] - ranks(values[..., ~inside])) / m
    value = above.mean(axis=-1)
    variance = above.var(axis=-1, ddof=1) / m + below.var(axis=-1, ddof=1) / n
    half = norm.ppf((1 + confidence) / 2) * np.sqrt(variance)
    low, high = np.clip(value - half, 0, 1), np.clip(value + half, 0, 1)
    return AUC(*(torch.from_numpy(np.asarray(each)) for each in (value, low, high)))


def true_positive_rate(scores: torch.Tensor, member: torch.Tensor, false_positives: float) -> torch.Tensor:
    """Part of the members above the lowest threshold that at most the part ``false_positives`` of the others exceeds.

    Scores equal to the threshold count as non-members. A row with NaN has no rate.

    >>> scores, member = torch.tensor([0.9, 0.4, 0.6, 0.1]), torch.tensor([True, True, False, False])
    >>> true_positive_rate(scores, member, false_positives=0.01)
    tensor(0.5000, dtype=torch.float64)

    Args:
        scores: ``[..., n]``; higher means member.
        member: which of the n are members, boolean ``[n]``.
        false_positives: in [0, 1).

    Returns:
        Float64 ``[...]``.

    Raises:
        ValueError: there is no member or no other; the rate is out of its range.
    """
    inside = member.cpu()
    if not 0 <= false_positives < 1 or not bool(inside.any()) or bool(inside.all()):
        raise ValueError("a rate of true positives takes members, others and a rate of false positives in [0, 1)")
    values = scores.detach().cpu().double()
    others = values[..., ~inside].sort(dim=-1, descending=True).values
    threshold = others[..., int(false_positives * others.shape[-1]), None]
    rate = (values[..., inside] > threshold).double().mean(dim=-1)
    return torch.where(values.isnan().any(dim=-1), torch.nan, rate)
