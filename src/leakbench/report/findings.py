"""Verdicts on claims, from comparisons of effects with thresholds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from leakbench.report.evidence import Evidence, NotRun
from leakbench.report.inference import LEVEL, MOST_SEEDS, Estimate

Verdict = Literal["reproduced", "contradicted", "inconclusive", "not run"]
MARKS: Mapping[str, str] = {"reproduced": "✔", "contradicted": "✘", "inconclusive": "?", "not run": "–"}
"""A sign per verdict, so that verdicts differ without colour."""
MOST_LISTED = 12
"""Parts that the note lists with their numbers; more are counted."""
SURVIVES = "★"
"""Beside verdicts that outlive Holm's correction for the number of the paper's claims that were tested."""


@dataclass(frozen=True)
class Finding:
    """A verdict, and the number behind it.

    >>> Finding("reproduced", effect=1.2, low=0.4, high=2.1, meaning="psnr of gp minus psnr of op (dB)").verdict
    'reproduced'

    Attributes:
        effect: of the sample, with ``low`` and ``high``, its 95 % interval; None where there is none.
        p: two-sided p-value of the verdict, or of the one that it leans to; None where nothing is tested.
        lean: the verdict that an inconclusive claim leans to; empty where it leans to none.
        seeds_needed: seeds, each with victims of its own, that would decide an effect of this size; 1,001 for more
            than a thousand; None where it is decided, or their number is not known.
        seeds: of which the effect is computed; None for a number that no seed changes.
        at_least: lower threshold of the effect, and ``at_most`` the upper one; None where there is none.
        coverage: how much of the paper's grid was computed, in words.
        meaning: what the effect is and its unit, in words.
        note: parts that fail, size of the sample, missing numbers.
    """

    verdict: Verdict
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    lean: Literal["reproduced", "contradicted", ""] = ""
    seeds_needed: int | None = None
    seeds: int | None = None
    at_least: float | None = None
    at_most: float | None = None
    coverage: str = ""
    meaning: str = ""
    note: str = ""


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: an effect and its thresholds.

    Attributes:
        name: where it was made, such as ``fraction 0.8``; empty if the claim has one part.
        meaning: what the effect is and its unit, in words.
        at_least: lower threshold, in the effect's unit.
        at_most: upper threshold; with both the part is a test of equivalence.
        note: further remarks.
        tested: one-sided p-values of its holding and of its failing, where not the estimate's own are meant.
        needed: seeds that decide it at a one-sided level, where not the estimate's own test does.
    """

    name: str
    estimate: Estimate
    meaning: str
    at_least: float = -math.inf
    at_most: float = math.inf
    note: str = ""
    tested: tuple[float, float] | None = None
    needed: Callable[[float], int | None] | None = None

    @property
    def inside(self) -> bool:
        """Whether the sample's effect lies where it has to, thresholds included; False for NaN."""
        return self.at_least <= self.estimate.value <= self.at_most

    @property
    def room(self) -> float:
        """Distance of the sample's effect from the nearer threshold, in its unit; negative beyond it."""
        return min(self.estimate.value - self.at_least, self.at_most - self.estimate.value)

    @property
    def p_holds(self) -> float:
        """One-sided p-value of the effect lying between the thresholds: two one-sided tests where there are both."""
        if self.tested:
            return self.tested[0]
        if self.estimate.is_certain:
            return float(not self.inside)
        lower = self.estimate.p_above(self.at_least) if math.isfinite(self.at_least) else 0.0
        upper = self.estimate.p_below(self.at_most) if math.isfinite(self.at_most) else 0.0
        return max(lower, upper) if not math.isnan(lower + upper) else math.nan

    @property
    def p_fails(self) -> float:
        """One-sided p-value of the effect lying beyond a threshold."""
        if self.tested:
            return self.tested[1]
        if self.estimate.is_certain:
            return float(self.inside)
        lower = self.estimate.p_below(self.at_least) if math.isfinite(self.at_least) else 1.0
        upper = self.estimate.p_above(self.at_most) if math.isfinite(self.at_most) else 1.0
        return min(lower, upper) if not math.isnan(lower + upper) else math.nan

    @property
    def verdict(self) -> Verdict:
        """The verdict of this part alone."""
        return verdict_of(self.p_holds, self.p_fails)

    def seeds_needed(self, level: float) -> int | None:
        """Seeds that tell the effect from its thresholds at a one-sided level; None where that is not known."""
        if self.needed:
            return self.needed(level)
        thresholds = [each for each in (self.at_least, self.at_most) if math.isfinite(each)]
        if not self.inside:  # beyond one threshold alone
            thresholds = sorted(thresholds, key=lambda each: abs(each - self.estimate.value))[:1]
        return most([self.estimate.seeds_needed(each, level) for each in thresholds])

    def summary(self) -> str:
        """The name, the estimate with its interval, and the note."""
        estimate = self.estimate
        interval = "no interval" if math.isnan(estimate.low) else f"{estimate.low:.3g} to {estimate.high:.3g}"
        value = "no number" if math.isnan(estimate.value) else f"{estimate.value:.3g} ({interval})"
        return f"{self.name or 'it'}: {value}" + (f", {self.note}" if self.note else "")


def most(needed: Sequence[int | None]) -> int | None:
    """The largest of some numbers of seeds; None where one of them is not known, or there is none."""
    known = [each for each in needed if each is not None]
    return max(known) if known and len(known) == len(needed) else None


def verdict_of(p_holds: float, p_fails: float) -> Verdict:
    """Decide by two one-sided p-values, each at half of the level; NaN decides nothing."""
    if p_fails <= LEVEL / 2:
        return "contradicted"
    return "reproduced" if p_holds <= LEVEL / 2 else "inconclusive"


def decide(evidence: Evidence, parts: Sequence[Part], *, gated: bool = True) -> Finding:
    """The verdict on a claim of one or more parts.

    Reproduced if all parts are, each at the full level, since all have to hold; contradicted if one is, at Bonferroni's
    level; else inconclusive. So a claim at its threshold is decided in 5 % of the cases or fewer. An attack that missed
    its gate makes every verdict inconclusive. The effect is that of the part that decides: the one with the smallest
    p-value of failing if the claim is contradicted, else the one with the largest p-value of holding; of several the
    one that is nearest to its threshold.

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
    holds = _worst([part.p_holds for part in parts])
    fails = len(parts) * min((part.p_fails for part in parts if part.p_fails >= 0), default=math.nan)
    verdict = verdict_of(holds, fails)
    void = bool(evidence.void and gated)
    deciding = _deciding(parts, verdict)
    lean, needed = ("", None) if void or verdict != "inconclusive" else _lean(parts)
    unknown = [] if void or verdict != "inconclusive" else _unknown(parts)
    estimate = deciding.estimate
    computed = all(part.estimate.is_certain for part in parts)
    meaning = deciding.meaning + (f"; {deciding.name}" if deciding.name else "")
    meaning += f" (the part that decides, of {len(parts)})" if len(parts) > 1 else ""
    return Finding(
        "inconclusive" if void else verdict,
        finite(estimate.value),
        finite(estimate.low),
        finite(estimate.high),
        None if void or computed else finite(_two_sided(holds, fails)),
        lean,
        needed,
        estimate.seeds or None,
        finite(deciding.at_least),
        finite(deciding.at_most),
        meaning=meaning,
        note=". ".join(
            [*(evidence.void if gated else []), *_notes(parts), *unknown, *evidence.notes(tested=not computed)]
        ),
    )


def _worst(p_values: Sequence[float]) -> float:
    """The largest; NaN if one is."""
    return math.nan if any(map(math.isnan, p_values)) else max(p_values)


def _two_sided(holds: float, fails: float) -> float:
    """Twice the smaller one-sided p-value; NaN where neither is known."""
    known = [each for each in (holds, fails) if not math.isnan(each)]
    return min(1.0, 2 * min(known)) if known else math.nan


def _deciding(parts: Sequence[Part], verdict: Verdict) -> Part:
    """The part whose effect is shown; of several that are equally sure the one with the least room."""
    if verdict == "contradicted":
        return min((part for part in parts if part.p_fails >= 0), key=lambda part: (part.p_fails, part.room))
    unknown = [part for part in parts if math.isnan(part.p_holds)]
    return unknown[0] if unknown else max(parts, key=lambda part: (part.p_holds, -part.room))


def _lean(parts: Sequence[Part]) -> tuple[Literal["reproduced", "contradicted", ""], int | None]:
    """The verdict that the sample's effects would give, and how many seeds would decide it."""
    if any(math.isnan(part.estimate.value) for part in parts):
        return "", None
    outside = [part for part in parts if not part.inside]
    if outside:
        needed = [part.seeds_needed(LEVEL / 2 / len(parts)) for part in outside]
        return "contradicted", min((each for each in needed if each is not None), default=None)
    return "reproduced", most([part.seeds_needed(LEVEL / 2) for part in parts if not part.estimate.is_certain])


def _unknown(parts: Sequence[Part]) -> list[str]:
    """Why an undecided claim leans to neither side, if it does not."""
    missing = [part.name or "it" for part in parts if math.isnan(part.estimate.value)]
    return [f"leans to neither side, since {' and '.join(missing)} has no number"] if missing else []


def _notes(parts: Sequence[Part]) -> list[str]:
    """The parts that fail or stay open, of several; what there is to say of those that hold, too."""
    if len(parts) == 1:
        return [parts[0].note] if parts[0].note else []
    notes = []
    for verdict in ("contradicted", "inconclusive"):
        failing = [part.summary() for part in parts if part.verdict == verdict]
        if failing:
            more = [f"{len(failing) - MOST_LISTED} more"] if len(failing) > MOST_LISTED else []
            listed = "; ".join(failing[:MOST_LISTED] + more)
            notes.append(f"{verdict} in {len(failing)} of {len(parts)} parts: {listed}")
    notes += [f"{part.name}: {part.note}" for part in parts if part.verdict == "reproduced" and part.note]
    return notes


def finite(value: float) -> float | None:
    """The number, or None where it is infinite or NaN."""
    return value if math.isfinite(value) else None


def survives(verdict: str, p_holm: float) -> bool:
    """Whether a verdict on an empirical claim outlives the correction for the number of its paper's claims."""
    return verdict in ("reproduced", "contradicted") and p_holm <= LEVEL  # NaN does not


def marked(row: Mapping[str, Any]) -> str:
    """A verdict with its sign, and the star of those that outlive Holm's correction."""
    star = f" {SURVIVES}" if row["survives"] else ""
    return f"{MARKS[row['verdict']]} {row['verdict']}{star}"


def lean_text(lean: str, seeds_needed: int | None) -> str:
    """Lean of an undecided claim, and what would decide it; empty where it leans to neither side.

    >>> lean_text("reproduced", 12)
    'leans to reproduced; 12 seeds would decide an effect of this size'
    """
    if not lean:
        return ""
    if not seeds_needed:
        return f"leans to {lean}"
    seeds = f"more than {MOST_SEEDS:,}" if seeds_needed > MOST_SEEDS else f"{seeds_needed:,}"
    return f"leans to {lean}; {seeds} seeds would decide an effect of this size"


def tally(verdicts: Sequence[str], survive: Sequence[bool], verdict: str) -> str:
    """Number of claims with a verdict, and of those among them that outlive Holm's correction.

    >>> tally(["reproduced", "reproduced", "not run"], [True, False, False], "reproduced")
    '2 (1 ★)'
    """
    surviving = [bool(star) for each, star in zip(verdicts, survive, strict=True) if each == verdict]
    return f"{len(surviving)} ({sum(surviving)} {SURVIVES})" if any(surviving) else str(len(surviving))


def effect_text(effect: float | None, low: float | None, high: float | None) -> str:
    """An effect with its interval, as text."""
    if effect is None:
        return ""
    return f"{effect:.3g}" + ("" if low is None or high is None else f" [{low:.3g}, {high:.3g}]")


def threshold_text(at_least: float | None, at_most: float | None) -> str:
    """The threshold of an effect, or both, as text; empty where it has none.

    >>> threshold_text(0.5, None), threshold_text(-0.1, 0.1), threshold_text(0.0, 0.0)
    ('has to be at least 0.5', 'has to be -0.1 to 0.1', 'has to be 0')
    """
    if at_least is None and at_most is None:
        return ""
    if at_least is None or at_most is None:
        return "has to be " + (f"at least {at_least:.3g}" if at_most is None else f"at most {at_most:.3g}")
    return f"has to be {at_least:.3g}" + (f" to {at_most:.3g}" if at_least < at_most else "")
