"""Pareto fronts: settings of mechanisms that no other setting dominates in leakage, utility and cost.

All objectives are minimised. A point dominates another one if it is nowhere larger and somewhere smaller; the
hypervolume of points is the volume that they dominate within the box below a reference point.

Zhang, Kang et al. (2023) weigh the objectives and leave the front to future work; their remark on Theorem 5.1 names
NSGA. ``pymoo`` has the algorithms: NSGA-II of Deb et al. (2002) and the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leakbench.errors import ConfigError, Infeasible
from leakbench.lazy import np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Objectives = Callable[[NDArray[np.float64]], ArrayLike]
    """From values of a parameter, ``[n]``, to objectives ``[n, m]``; infeasible values are not finite."""


@dataclass(frozen=True)
class Mechanism:
    """One mechanism with one parameter.

    Attributes:
        name: for results.
        low: least value of the parameter.
        high: largest.
        objectives: at values of the parameter.
        logarithmic: whether the search takes equal ratios of the parameter for equal steps.

    Raises:
        ConfigError: no such range.
    """

    name: str
    low: float
    high: float
    objectives: Objectives
    logarithmic: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite([self.low, self.high]).all() and self.low <= self.high):
            raise ConfigError(f"'{self.name}' has its parameter between {self.low:g} and {self.high:g}; give low, high")
        if self.logarithmic and self.low <= 0:
            raise ConfigError(f"'{self.name}' on a logarithmic scale has a parameter above 0, found {self.low:g}")

    def parameter(self, place: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of the parameter, ``[n]``, at places in [0, 1] of its range."""
        if self.logarithmic:
            ratio: NDArray[np.float64] = self.low * (self.high / self.low) ** place
            return ratio
        return self.low + (self.high - self.low) * place


@dataclass(frozen=True, eq=False)
class Front:
    """Settings of which none dominates another, by ascending first objective.

    Attributes:
        names: of their mechanisms.
        parameters: ``[n]``.
        objectives: ``[n, m]``.
        hypervolume: of all, below the reference point.
    """

    names: tuple[str, ...]
    parameters: NDArray[np.float64]
    objectives: NDArray[np.float64]
    hypervolume: float


def nondominated(points: ArrayLike) -> NDArray[np.bool_]:
    """Mask of the points ``[n, m]`` that no other one dominates; equal points do not dominate each other.

    Raises:
        ConfigError: no such array, or values that are not finite.
    """
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    different, index = np.unique(_points(points), axis=0, return_inverse=True)
    _, rank = NonDominatedSorting().do(different, return_rank=True)
    best: NDArray[np.bool_] = (np.asarray(rank) == 0)[index.reshape(-1)]
    return best


def hypervolume(points: ArrayLike, reference: ArrayLike) -> float:
    """Volume that points ``[n, m]`` dominate below a reference point ``[m]``; points beyond it add nothing.

    Raises:
        ConfigError: as :func:`nondominated`, or another number of objectives in the reference.
    """
    from pymoo.indicators.hv import Hypervolume

    values, corner = _points(points), np.asarray(reference, dtype=np.float64)
    if corner.shape != values.shape[1:] or not np.isfinite(corner).all():
        raise ConfigError(f"a reference point of shape {corner.shape} for {values.shape[1]} objectives, all finite")
    inside = values[(values < corner).all(axis=1)]
    return float(Hypervolume(ref_point=corner, norm_ref_point=False)(inside)) if len(inside) else 0.0


def pareto_front(
    mechanisms: Sequence[Mechanism],
    reference: ArrayLike,
    *,
    population: int = 100,
    generations: int = 100,
    seed: int = 0,
) -> Front:
    """Search all mechanisms and their parameters for the settings that none dominates, by NSGA-II.

    The search is deterministic for a seed.

    Args:
        mechanisms: with different names, and the same objectives.
        reference: of the hypervolume, ``[m]``.
        population: settings in a generation.
        generations: of the search.
        seed: of the search.

    Raises:
        ConfigError: no mechanisms, two of one name, or other objectives than the reference point has.
        Infeasible: no setting was found whose objectives are finite.
    """
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem
    from pymoo.optimize import minimize

    names = [mechanism.name for mechanism in mechanisms]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"mechanisms {', '.join(names) or '(none)'}: at least one, each with a name of its own")
    corner = np.asarray(reference, dtype=np.float64)

    def choices(x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Indices of the mechanisms that places in [0, 1] denote."""
        return np.minimum((x[:, 0] * len(mechanisms)).astype(np.int64), len(mechanisms) - 1)

    class Settings(Problem):  # type: ignore[misc]
        """A place among mechanisms, and one in the range of the parameter; both in [0, 1]."""

        def _evaluate(self, x: NDArray[np.float64], out: dict[str, Any], *_: Any, **__: Any) -> None:
            values = np.empty((len(x), len(corner)))
            chosen = choices(x)
            for index, mechanism in enumerate(mechanisms):
                rows = chosen == index
                if rows.any():
                    values[rows] = _evaluated(mechanism, mechanism.parameter(x[rows, 1]), len(corner))
            known: NDArray[np.bool_] = np.asarray(np.isfinite(values).all(axis=1))
            out["F"] = np.where(known[:, None], values, 0.0)
            out["G"] = np.where(known, -1.0, 1.0)[:, None]  # above 0: infeasible

    result = minimize(
        Settings(n_var=2, n_obj=len(corner), n_ieq_constr=1, xl=0.0, xu=1.0),
        NSGA2(pop_size=population),
        ("n_gen", generations),
        seed=seed,
        verbose=False,
    )
    if result.F is None:
        raise Infeasible(f"no setting of {', '.join(names)} has finite objectives; see the ranges of their parameters")
    x, values = np.atleast_2d(result.X), np.atleast_2d(result.F)
    order = np.lexsort(values.T[::-1])
    x, values = x[order], values[order]
    chosen = choices(x)
    parameters = [float(mechanisms[index].parameter(place)) for index, place in zip(chosen, x[:, 1], strict=True)]
    named = tuple(names[index] for index in chosen)
    return Front(named, np.asarray(parameters), values, hypervolume(values, corner))


def _evaluated(mechanism: Mechanism, parameters: NDArray[np.float64], objectives: int) -> NDArray[np.float64]:
    values = np.asarray(mechanism.objectives(parameters), dtype=np.float64)
    if values.shape != (len(parameters), objectives):
        raise ConfigError(
            f"'{mechanism.name}' gives objectives of shape {values.shape} for {len(parameters)} values of its "
            f"parameter; the reference point has {objectives}"
        )
    return values


def _points(points: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(points, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ConfigError(f"points of shape {values.shape}; they are [n, m], and there is at least one")
    if not np.isfinite(values).all():
        raise ConfigError("points with objectives that are not finite have no rank")
    return values
