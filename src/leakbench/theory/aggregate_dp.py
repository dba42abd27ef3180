"""Differential privacy of a sum of clients' updates, from the other clients' randomness and from noise.

A server sees the sum over ``N`` clients of updates, each from ``D`` records with gradients clipped at ``C``; neighbours
differ in one record of one client, replaced. A client draws batches of ``B`` records (``sgd``), takes all records
(``gd``), or weights all of them with normal weights (``gaussian``, Assumption 2), so that its update has the covariance
``G G^T / (B D)``. It may add noise of variance ``sigma^2`` in every direction, or fill its covariance up to ``sigma^2``
(:mod:`leakbench.theory.water_filling`). Every bound is one of a round, as a :class:`RenyiCurve`.
Source: Zhang et al. (2024), Theorems 2 to 4, Table 1, eq. 9. Covariances of sampling are ``G G^T / D`` in Theorems 2
and 3 (eq. 16), and ``G G^T / (B D)`` wherever ``sigma^2`` occurs. The form ``repaired`` is not the paper's: it bounds
the change of a covariance in Frobenius norm, where the paper orders covariances that no order relates (eqs. 38 to 42).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from leakbench.errors import ConfigError, Infeasible
from leakbench.lazy import torch
from leakbench.theory.arguments import positive_number
from leakbench.theory.dp_capacity import Conversion
from leakbench.theory.renyi_curves import (
    Guarantee,
    RenyiCurve,
    in_unit_interval,
    linear_curve,
    pole_curve,
    repaired_curve,
)

Mechanism = Literal["sgd", "sgd_filled", "gd", "gd_filled", "gaussian", "gaussian_filled"]
"""Rows of Table 1, in its order: the sampling of an update, with isotropic or (``filled``) water-filling noise."""
Form = Literal["as_printed", "theorem_as_printed", "corrected", "repaired"]
"""The bound of a row.

- ``as_printed``: that of Table 1;
- ``corrected``: the same; but ``sgd`` with the batches' amplification of delta, and ``gaussian_filled``, whose row is
  false, by Theorem 4 with its full range of orders;
- ``theorem_as_printed``: Theorem 4 with the printed range, ``B`` times too short (``gaussian_filled`` alone);
- ``repaired``: ours (``gaussian``, ``gaussian_filled``).
"""
SubspaceForm = Literal["corrected", "as_printed"]
"""``Sigma*`` of Assumption 4. ``corrected``: with ``1 / D``, as eq. 16; ``as_printed``: without, ``D`` times that."""


@dataclass(frozen=True)
class Aggregation:
    """The sum of a round.

    Attributes:
        users: ``N``, at least 2, without those that collude with the server.
        records: ``D``, of each.
        batch: ``B``, at most ``D``.
        clip: ``C``.

    Raises:
        ConfigError: one of them is out of its range.
    """

    users: int
    records: int
    batch: float
    clip: float

    def __post_init__(self) -> None:
        if self.users < 2:
            raise ConfigError(f"secure aggregation needs 2 users at least, found users = {self.users}")
        if self.records < 1 or not 0 < self.batch <= self.records:
            raise ConfigError(
                f"a batch must lie in (0, records] and records be 1 at least, found {self.batch:g} of {self.records}"
            )
        positive_number(self.clip, "the clipping norm")

    @property
    def rate(self) -> float:
        """``q = B / D``."""
        return self.batch / self.records


def least_eigenvalue(gradients: torch.Tensor, form: SubspaceForm = "corrected") -> torch.Tensor:
    """The smallest eigenvalue of ``Sigma = G G^T / D``, float64, ``[..., K, D] -> [...]``; 0 where ``K > D``.

    Theorem 2 takes the sum of those of its users. The smallest eigenvalue of the sum of their covariances, which is
    that of all their gradients side by side times ``N``, may take its place, and is not smaller.

    Args:
        gradients: as columns; coordinates of a common subspace, for Theorem 3.
        form: see :data:`SubspaceForm`.
    """
    *clients, dimension, records = gradients.shape
    if dimension > records:
        return gradients.new_zeros(clients, dtype=torch.float64)
    least: torch.Tensor = torch.linalg.svdvals(gradients.double())[..., -1].square()
    return least / records if form == "corrected" else least


def full_rank_curve(records: int, batch: float, clip: float, floor: float) -> RenyiCurve:
    """Theorem 2, eq. 19: no noise is added. And Theorem 3, eq. 31, with eigenvalues in the subspace.

    ``(2 a B C^2 / D^2 + a C^2 / ((a - 1) D)) / (Lambda - a C^2 / D)`` for ``1 < a < D Lambda / C^2``. ``Lambda``
    depends on the data: this is differential privacy only where something enforces it for all data.

    Args:
        records: ``D``.
        batch: ``B``.
        clip: ``C``.
        floor: ``Lambda``, of :func:`least_eigenvalue`, summed over users.

    Raises:
        ConfigError: an argument is not positive.
        Infeasible: ``Lambda`` is ``C^2 / D`` or less, as it is where gradients are equal or fewer than coordinates.
    """
    pole = _relative_floor(records, clip, floor)
    return pole_curve("Theorem 2", pole, 2 * positive_number(batch, "the batch size") / records, 1.0)


def full_rank_repaired(records: int, batch: float, clip: float, floor: float) -> RenyiCurve:
    """Theorem 2 by the Frobenius norm, without its pole at order 1; ``Lambda`` must hold for both neighbours.

    Raises:
        ConfigError, Infeasible: as :func:`full_rank_curve`.
    """
    change = 1 / _relative_floor(records, clip, floor)
    slope = 2 * positive_number(batch, "the batch size") / records * change
    return repaired_curve("Theorem 2, repaired", slope, change, 0.5)


def _relative_floor(records: int, clip: float, floor: float) -> float:
    """``rho = D Lambda / C^2``."""
    limit = positive_number(clip, "the clipping norm") ** 2 / positive_number(records, "the number of records")
    if not limit < floor < math.inf:
        raise Infeasible(
            f"Theorem 2 needs Lambda, the sum of the users' smallest eigenvalues, above C^2 / D = {limit:g}, found "
            f"Lambda = {floor:g}; it is 0 where gradients are equal, or fewer than coordinates"
        )
    return floor / limit


def round_curve(setting: Aggregation, variance: float, mechanism: Mechanism, form: Form = "corrected") -> RenyiCurve:
    """The bound on the Rényi divergence of a round.

    Of ``sgd`` it is that without amplification by sampling: to batches of the same records. With ``S = N sigma^2``:

    - ``gd``: ``2 a C^2 / (D^2 S)``; ``sgd``: with ``B`` for ``D``;
    - ``gaussian``: ``(2 a C^2 / D^2 + a C^2 / ((a - 1) B D)) / (S - a C^2 / (B D))``;
    - ``gaussian_filled``: Table 1 has the same, and is false; Theorem 4 (eq. 35) has ``2 C^2 / (B D)`` for
      ``C^2 / (B D)`` in both places;
    - ``repaired``: :class:`RepairedCurve` with ``c = 2 C^2 / (D^2 S)``, and ``r = C^2 / (B D S)`` and weight 1/2
      (``gaussian``) or ``sqrt(2)`` times that and 1/4 (``gaussian_filled``).

    Args:
        setting: ``N``, ``D``, ``B`` and ``C``.
        variance: ``sigma^2``, of one client.
        mechanism: see :data:`Mechanism`.
        form: see :data:`Form`.

    Raises:
        ConfigError: the variance is not positive; the mechanism has no such form.
        Infeasible: the variance is too small for any order; water-filling alone, which gives no guarantee.
    """
    if form not in forms(mechanism):
        raise ConfigError(f"{mechanism} has the forms {', '.join(forms(mechanism))}, found {form}")
    total = setting.users * positive_number(variance, "the variance of noise")
    if mechanism in ("sgd_filled", "gd_filled"):
        raise Infeasible(
            f"{mechanism}: noise that fills a covariance gives no differential privacy without Gaussian sampling, "
            "since directions above the floor get none (Table 1)"
        )
    square = setting.clip**2
    if mechanism in ("sgd", "gd"):
        size = setting.batch if mechanism == "sgd" else setting.records
        return linear_curve(f"Table 1, {mechanism}", 2 * square / (size**2 * total))
    unit = square / (setting.batch * setting.records)
    full = mechanism == "gaussian_filled"
    if form == "repaired":
        change = (math.sqrt(2) if full else 1) * unit / total
        slope = 2 * square / (setting.records**2 * total)
        return repaired_curve(f"the repaired bound of {mechanism}", slope, change, 0.25 if full else 0.5)
    lead = 2 if full and form != "as_printed" else 1
    pole = total / (lead * unit)
    mean = 2 * setting.rate / lead
    source = f"Table 1, {mechanism}" if lead == 1 else "Theorem 4"
    return pole_curve(source, pole, mean, 1.0, pole / setting.batch if form == "theorem_as_printed" else None)


def forms(mechanism: Mechanism) -> tuple[Form, ...]:
    """The forms of a mechanism that :func:`round_curve` knows.

    Raises:
        ConfigError: there is no such mechanism.
    """
    if mechanism not in get_args(Mechanism):
        raise ConfigError(f"the mechanisms are {', '.join(get_args(Mechanism))}, found {mechanism}")
    if mechanism == "gaussian_filled":
        return ("as_printed", "theorem_as_printed", "corrected", "repaired")
    return ("as_printed", "corrected", "repaired") if mechanism == "gaussian" else ("as_printed", "corrected")


def amplified(epsilon: float, rate: float) -> float:
    """``ln(1 + q (e^epsilon - 1))``: epsilon of a mechanism on a random batch; its delta becomes ``q delta``.

    Args:
        epsilon: not negative.
        rate: ``q``, in (0, 1].

    Raises:
        ConfigError: an argument is out of its range.
    """
    if not (0 <= epsilon < math.inf and 0 < rate <= 1):
        raise ConfigError(
            f"epsilon must be finite and not negative and the rate lie in (0, 1], found {epsilon:g} and {rate:g}"
        )
    if epsilon < 1:
        return math.log1p(rate * math.expm1(epsilon))
    return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))


def round_guarantee(
    setting: Aggregation,
    variance: float,
    delta: float,
    mechanism: Mechanism,
    form: Form = "corrected",
    conversion: Conversion = "classical",
) -> Guarantee:
    """The (epsilon, delta)-DP of a round, minimised over orders: a row of Table 1.

    ``sgd`` is amplified: ``as_printed`` keeps delta, which is valid and loose; ``corrected`` spends ``delta / q``
    inside.

    >>> setting = Aggregation(users=100, records=500, batch=50, clip=1.0)
    >>> round(round_guarantee(setting, variance=1e-5, delta=1e-5, mechanism="sgd").epsilon, 4)
    3.9439

    Args:
        setting: ``N``, ``D``, ``B`` and ``C``.
        variance: ``sigma^2``, of one client.
        delta: of the round, in (0, 1); where ``delta / q`` is 1 or more, that of ``as_printed`` is used inside.
        mechanism: see :data:`Mechanism`.
        form: see :data:`Form`.
        conversion: from Rényi divergence; the paper's is ``classical``.

    Raises:
        ConfigError, Infeasible: as :func:`round_curve`; delta is out of its range.
    """
    in_unit_interval(delta, "delta")
    curve = round_curve(setting, variance, mechanism, form)
    if mechanism != "sgd":
        return curve.guarantee(delta, conversion=conversion)
    inside = delta / setting.rate if form == "corrected" and delta < setting.rate else delta
    full = curve.guarantee(inside, conversion=conversion)
    return Guarantee(amplified(full.epsilon, setting.rate), delta, full.order)


def information_bound(users: int, batch: float, size: float, constant: float = 1.0) -> float:
    """Bound on the mean information of a round's sum about one user's data, nats (eq. 9, of Elkordy et al. 2022).

    ``c K / ((N - 1) B) + K/2 ln(N / (N - 1))``, for users of one distribution whose updates have independent components
    once whitened.

    Args:
        users: ``N``, at least 2.
        batch: ``B``.
        size: ``K``, of the model.
        constant: ``c``, of the distribution, which the paper does not give.

    Raises:
        ConfigError: an argument is out of its range.
    """
    if users < 2:
        raise ConfigError(f"the bound on information needs 2 users at least, found users = {users}")
    rest = users - 1
    mean = positive_number(constant, "the constant") * positive_number(size, "the model's size") / rest
    return mean / positive_number(batch, "the batch size") + size / 2 * math.log1p(1 / rest)
