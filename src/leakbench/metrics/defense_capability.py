"""A defense's effect on membership inference and on reconstruction, as one number.

The paper's subscript 0, here ``undefended``, is the same attack on the same model without a defense. Larger is better
for the defender; 0 is no defense. Source: Tan et al. (2024), the metrics of Figs. 15 and 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakbench.errors import ConfigError
from leakbench.lazy import np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def _within(values: ArrayLike, what: str, low: float, high: float) -> NDArray[np.float64]:
    """The values in float64.

    Raises:
        ConfigError: some are not in ``(low, high]``, or no numbers.
    """
    array = np.asarray(values, dtype=np.float64)
    outside = ~((array > low) & (array <= high))
    if outside.any():
        raise ConfigError(f"{what} must lie in ({low:g}, {high:g}], found {array[outside].flat[0]:g}")
    return array


def mia_improvement(auc: ArrayLike, undefended: ArrayLike) -> NDArray[np.float64]:
    """``IMP_MIA = (AUC_0 - AUC) / AUC_0``, ``[...]``; a blind attack gives ``1 - 0.5 / AUC_0``, so at most 0.5.

    Args:
        auc: area under the ROC curve of membership inference against the defense, in (0, 1], ``[...]``.
        undefended: the same without it.

    Raises:
        ConfigError: an area is outside (0, 1] or no number.
    """
    without = _within(undefended, "the AUC without a defense", 0, 1)
    return 1 - _within(auc, "the AUC", 0, 1) / without


def dra_improvement(mse: ArrayLike, undefended: ArrayLike) -> NDArray[np.float64]:
    """``IMP_DRA = (1/MSE_0 - 1/MSE) / (1/MSE_0) = 1 - MSE_0 / MSE``, ``[...]``; below 1, and without a lower limit.

    Args:
        mse: of the reconstruction against the defense, positive, ``[...]``; infinity counts as 1.
        undefended: the same without it, positive and finite.

    Raises:
        ConfigError: an error is not positive or no number.
    """
    without = _within(undefended, "the MSE without a defense", 0, float(np.finfo(np.float64).max))
    return 1 - without / _within(mse, "the MSE", 0, np.inf)


def defense_capability(
    auc: ArrayLike, mse: ArrayLike, undefended_auc: ArrayLike, undefended_mse: ArrayLike
) -> NDArray[np.float64]:
    """``GDC``: the mean of :func:`mia_improvement` and :func:`dra_improvement`, ``[...]``.

    Raises:
        ConfigError: as these.
    """
    return (mia_improvement(auc, undefended_auc) + dra_improvement(mse, undefended_mse)) / 2
