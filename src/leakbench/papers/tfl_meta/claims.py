"""What the paper's theorems and formulas state, checked by computing."""

from __future__ import annotations

from functools import partial

from leakbench.papers.tfl_meta import PAPER
from leakbench.report.claims import claim
from leakbench.report.comparisons import theorem

stated = partial(claim, PAPER)

THEOREMS = {
    "T1": ("The root of the Jensen-Shannon divergence lies in [0, sqrt(ln 2)] and is a metric.", "section 4, eq. 2"),
    "T2": (
        "Leakage after protection differs from C1 by C2 TV at most.",
        "Lemmas E.2 and E.4; the upper side is the second step of Theorem E.5's proof",
    ),
    "T3a": ("Leakage is at most max(2 C1 - x, 3x - C1), with x = C2 TV.", "Theorem 4.1, eq. 3, as stated"),
    "T3b": ("Leakage is at most 2 C1 - x wherever x is C1 or less.", "Theorem 4.1, eq. 4, as stated"),
    "T4": ("Both hold where x is C1 / 2 or less, or C1 or more.", "Theorem 4.1; our correction"),
    "T5": ("2 C1 - C2 TV bounds leakage at every TV.", "eq. 6, as the paper uses it"),
    "T6": ("2 C1 is C2 / sqrt(2) at most, for constants of one attacker.", "ours; it decides where optima exist"),
    "T7": (
        "Along n, r, the variance of noise and 1 - rho the metric does not rise, and bounds of losses do not fall.",
        "Assumption 5.1",
    ),
    "T8": (
        "The corrected optimum has the metric epsilon, and one of less total variation violates the budget.",
        "Theorem 5.1; Table 1, our correction",
    ),
    "T9a": ("The printed n* of Paillier's scheme meets the budget.", "Theorem 6.2, Table 1, as stated"),
    "T9b": ("The printed r* of secret sharing meets the budget.", "Theorem 6.3, Table 1, as stated"),
    "T9c": (
        "Both have a total variation of 1 - tau where tau is required, so they meet it where tau is 1/2 or less.",
        "Table 1; ours",
    ),
    "T10": ("The optimum depends on neither weights nor C4 nor C5.", "Theorem 5.1 and its remark"),
    "T13a": (
        "Under Gaussian noise TV lies between 1/100 and 3/2 of min(1, sigma_eps^2 A).",
        "eq. 9, Appendix F",
    ),
    "T13b": ("It is 16 times the lower bound at least.", "eq. 9; ours"),
    "T17a": ("C1 of beliefs that are off by a relative error is off by eq. 20 at most.", "Theorem 7.1"),
    "T17b": (
        "Estimates of T attempts are within that bound with the probability that Lemma C.1 states.",
        "Lemma C.1, Theorem 7.1",
    ),
    "T18": ("The error of C1 falls as T^(-1/2), and its bound as T^(-1/4).", "section 7.4; ours"),
    "T19a": ("The estimates of Algorithm 2 sum to 1.", "Algorithm 2, as printed; eq. 44 needs it"),
    "T19b": ("They do with T attempts, where the printed loop has T + 1.", "Algorithm 2; our correction"),
    "T20": (
        "At equal TV the bounded objective of Paillier's scheme is at most compression's, and that at most noise's.",
        "Appendices F, G and I; the order is ours",
    ),
    "T21": ("The metric of Theorem 6.2, C2 [1 - (2 delta / n^2)^m], falls with n.", "Theorem 6.2, as stated"),
    "T22a": ("Under noise leakage is at most 3/2 C2 min(1, sigma_eps^2 A).", "Theorem 6.1, eq. 11, as stated"),
    "T22b": ("It is at most that and C1.", "Theorem 6.1; our correction"),
    "T23a": ("Where kept coordinates are divided by rho, TV is 1 - rho^m.", "Lemma I.1 with eq. 85, as stated"),
    "T23b": ("It is 1 - rho^(2m) around zero, and up to 1 elsewhere.", "eq. 85; our correction"),
    "T24a": ("The mean of K sparse uploads has the TV of one.", "Lemma I.2, as stated"),
    "T24b": ("Far from zero it is 1 - rho^(K m).", "Lemma I.2; our correction"),
    "T25a": ("Primes with gcd(pq, (p - q)(q - 1)) = 1 give a Paillier key.", "Appendix G, as stated"),
    "T25b": ("Primes with gcd(pq, (p - 1)(q - 1)) = 1 do.", "Appendix G; our correction"),
    "T26a": ("A share, a value plus a uniform mask, has TV 1 - (delta / r)^m.", "Appendix H, as stated"),
    "T26b": ("It has from r = 2 delta on; below TV is 1 - (1 - r / (4 delta))^m.", "Appendix H; our correction"),
    "T27": ("Eq. 38 holds for every candidate.", "proof of Theorem 7.1, as stated"),
    "T28": (
        "xi is that of the upload with the largest ratio of posterior to prior.",
        "eq. 17, which Assumption 7.1 is to give",
    ),
    "T29": ("K m log r bounds a cost from above at the optimum, so it is not negative.", "Lemma H.4, as stated"),
}
for _key, (_statement, _source) in THEOREMS.items():
    stated(_key, _statement, source=_source)(partial(theorem, f"{__package__}.theory_checks", _key))
