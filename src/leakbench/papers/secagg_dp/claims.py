"""What the paper's theorems and formulas state, checked by computing."""

from __future__ import annotations

from functools import partial

from leakbench.papers.secagg_dp import PAPER
from leakbench.report.claims import claim
from leakbench.report.comparisons import theorem

stated = partial(claim, PAPER)

THEOREMS = {
    "T1": (
        "Where a record's gradient leaves the span of all others, Gaussian sampling without noise has an infinite "
        "divergence.",
        "Theorem 1",
    ),
    "T2": (
        "Where K is the number of all users' records, or more, every gradient in general position leaves it.",
        "Theorem 1; the count is ours",
    ),
    "T3": (
        "The gradients of a linear softmax classifier have rank (classes - 1) (pixels that vary + 1) at most, so that "
        "Assumption 3 fails for any amount of data.",
        "section 4.3; the bound is ours",
    ),
    "T4": ("The divergence of Gaussian sampling without noise is at most eq. 19.", "Theorem 2"),
    "T5": (
        "Eq. 19 falls in N and in every smallest eigenvalue, grows in C, and without limit at its pole.",
        "Theorem 2, Remark 1",
    ),
    "T6": (
        "With water-filling noise the divergence is at most eq. 35, for orders below N sigma^2 B D / (2 C^2).",
        "Theorem 4; the range is our correction",
    ),
    "T7a": ("With water-filling noise it is at most the bound of the last row.", "Table 1, as stated"),
    "T7b": (
        "It is at most our bound by the Frobenius norm, which is below eq. 35.",
        "Table 1; our correction",
    ),
    "T8": (
        "At equal sigma^2 water-filling adds less noise than isotropic noise, in every direction at most as much.",
        "section 5.1, Fig. 4",
    ),
    "T9a": (
        "At equal proven epsilon water-filling adds less noise than isotropic noise, on the linear model at the "
        "setting of Fig. 5.",
        "section 5.1, as stated",
    ),
    "T9b": (
        "It saves C^2 / B of the trace at most, and its floor has to be higher, by more than that on the linear model.",
        "section 5.1; our correction",
    ),
    "T10": (
        "At one sigma^2 GD with isotropic noise has a smaller epsilon than water-filling, and no more noise.",
        "section 5.3, the order of noise behind Fig. 5",
    ),
    "T11": ("As B grows to D, row 1 falls to row 3.", "Table 1"),
    "T12": ("Water-filling on the gradient of all records gives no differential privacy.", "Table 1, row 4"),
    "T13": ("The bound on mutual information falls with N, as 1 / N.", "eq. 9"),
    "T14a": ("To fill blocks of coordinates by themselves keeps the floor.", "section 5.1, as stated"),
    "T14b": ("It does where each block has sampling weights of its own.", "section 5.1; our correction"),
    "T15a": (
        "In a subspace the divergence is at most eq. 31 with eigenvalues of G* G*^T, without 1 / D.",
        "Theorem 3 and Assumption 4, as stated",
    ),
    "T15b": ("It is with eigenvalues of G* G*^T / D.", "Theorem 3; our correction"),
    "T16a": (
        "Where a record is replaced, the noise added falls by no more than the new record's own covariance.",
        "eq. 38, as stated",
    ),
    "T16b": (
        "In Frobenius norm the filled covariance changes by no more than the covariance itself.",
        "eqs. 38 to 42; our correction",
    ),
}
for _key, (_statement, _source) in THEOREMS.items():
    stated(_key, _statement, source=_source)(partial(theorem, f"{__package__}.theory_checks", _key))
