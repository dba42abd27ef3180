"""Verdicts on claims, from comparisons of effects with thresholds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from leakbench.report.evidence import Evidence, NotRun
from leakbench.report.statistics import CONFIDENCE, Estimate

Verdict = Literal["reproduced", "contradicted", "inconclusive", "not run"]
MARKS: Mapping[str, str] = {"reproduced": "✔", "contradicted": "✘", "inconclusive": "?", "not run": "–"}
"""A sign per verdict, so that verdicts differ without colour."""


@dataclass(frozen=True)
class Finding:
    """A verdict, and the number behind it.

    >>> Finding("reproduced", effect=1.2, low=0.4, high=2.1, meaning="psnr of gp minus psnr of op (dB)").verdict
    'reproduced'

    Attributes:
        effect: of the sample, with ``low`` and ``high``, its 95 % interval; None where there is none.
        p: two-sided p-value of the verdict; None where no interval decides.
        meaning: what the effect is and its unit, in words.
        note: parts that fail, size of the sample, missing numbers.
    """

    verdict: Verdict
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    meaning: str = ""
    note: str = ""


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: an effect and its thresholds.

    Attributes:
        name: where it was made, such as ``fraction 0.8``; empty if the claim has one part.
        meaning: what the effect is and its unit, in words.
        at_least: lower threshold, in the effect's unit.
        at_most: upper threshold.
        note: further remarks.
    """

    name: str
    estimate: Estimate
    meaning: str
    at_least: float = -math.inf
    at_most: float = math.inf
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """Inconclusive if there is no interval, or it contains a threshold; else by the effect."""
        value, low, high = self.estimate.value, self.estimate.low, self.estimate.high
        if math.isnan(low) or any(low <= threshold <= high for threshold in (self.at_least, self.at_most)):
            return "inconclusive"
        return "reproduced" if self.at_least < value < self.at_most else "contradicted"

    @property
    def p(self) -> float:
        """P-value of the effect being at its nearer threshold; NaN without resamples."""
        thresholds = [each for each in (self.at_least, self.at_most) if math.isfinite(each)]
        return max((self.estimate.p_value(each) for each in thresholds), default=math.nan)

    @property
    def slack(self) -> float:
        """Distance to the nearer threshold in half-widths of the interval; negative on the wrong side."""
        value, half = self.estimate.value, (self.estimate.high - self.estimate.low) / 2
        distance = min(value - self.at_least, self.at_most - value)
        return distance / half if half > 0 else math.copysign(math.inf, distance)

    def summary(self) -> str:
        """The name, the estimate with its interval, and the note."""
        estimate = self.estimate
        interval = "no interval" if math.isnan(estimate.low) else f"{estimate.low:.3g} to {estimate.high:.3g}"
        value = "no number" if math.isnan(estimate.value) else f"{estimate.value:.3g} ({interval})"
        return f"{self.name or 'it'}: {value}" + (f", {self.note}" if self.note else "")


def decide(evidence: Evidence, parts: Sequence[Part], *, gated: bool = True) -> Finding:
    """The verdict on a claim of one or more parts.

    Reproduced if all parts are; contradicted if one is; else inconclusive. An attack that missed its gate makes every
    verdict inconclusive. The effect is that of the part that decides: of those with the claim's verdict, the one
    furthest on the wrong side of its threshold, or nearest to it, in widths of its interval.

    Args:
        evidence: source of the parts' numbers, with its void attacks.
        parts: of the claim, each with its estimate.
        gated: whether void attacks make the verdict inconclusive; False for claims on the strength of the attacks
            themselves, or on numbers that no attack changes.

    Raises:
        NotRun: there are no parts.

    >>> from leakbench.report.comparisons import certain
    >>> part = certain(12.0, "lenet5", "percent of coordinates sent", at_most=20.0)
    >>> finding = decide(Evidence({}), [part])
    >>> finding.verdict, finding.effect, finding.meaning
    ('reproduced', 12.0, 'percent of coordinates sent; lenet5')
    """
    if not parts:
        raise NotRun("the grid of this scale holds nothing that the claim speaks of")
    verdicts = [part.verdict for part in parts]
    verdict: Verdict = next((each for each in ("contradicted", "inconclusive") if each in verdicts), "reproduced")
    deciding = min((part for part in parts if part.verdict == verdict), key=_how_bad)
    notes = []
    if len(parts) > 1:
        for each in ("contradicted", "inconclusive"):
            failing = [part.summary() for part in parts if part.verdict == each]
            if failing:
                notes.append(f"{each} in {len(failing)} of {len(parts)} parts: {'; '.join(failing)}")
    elif parts[0].note:
        notes.append(parts[0].note)
    estimate = deciding.estimate
    meaning = deciding.meaning + (f"; {deciding.name}" if deciding.name else "")
    meaning += f" (the part that decides, of {len(parts)})" if len(parts) > 1 else ""
    void = bool(evidence.void and gated)
    return Finding(
        "inconclusive" if void else verdict,
        finite(estimate.value),
        finite(estimate.low),
        finite(estimate.high),
        None if void else finite(_p_value(parts, verdict)),
        meaning,
        ". ".join([*(evidence.void if gated else []), *notes, *evidence.notes()]),
    )


def _p_value(parts: Sequence[Part], verdict: Verdict) -> float:
    """P-value of the claim: the largest of all parts, which all have to hold; of failing parts the smallest, times all.

    NaN if a part that decides has none.
    """
    failing = verdict == "contradicted"
    values = [part.p for part in parts if not failing or part.verdict == verdict]
    if any(map(math.isnan, values)):
        return math.nan
    return min(1.0, len(parts) * min(values)) if failing else max(values)


def _how_bad(part: Part) -> float:
    return -math.inf if math.isnan(part.estimate.low) else part.slack


def finite(value: float) -> float | None:
    """The number, or None where it is infinite or NaN."""
    return value if math.isfinite(value) else None


def unsure(verdict: str, p_holm: float | None) -> bool:
    """Whether a verdict does not survive the correction for the number of a paper's claims."""
    return verdict in ("reproduced", "contradicted") and p_holm is not None and p_holm >= 1 - CONFIDENCE


def effect_text(effect: float | None, low: float | None, high: float | None) -> str:
    """An effect with its interval, as text."""
    if effect is None:
        return ""
    return f"{effect:.3g}" + ("" if low is None or high is None else f" [{low:.3g}, {high:.3g}]")
