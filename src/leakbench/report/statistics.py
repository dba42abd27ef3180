"""Means with intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence

from leakbench.lazy import np, pd

CONFIDENCE = 0.95


def over_seeds(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Mean of ``value`` with a 95 % t-interval over seeds, for every group of the columns ``by``.

    The images or victims of one seed share a model, so they are averaged first and the seeds are the replicates.
    NaN values (diverged trials) are left out of a seed's mean and counted.

    Returns:
        The columns ``by`` and ``mean``, ``low``, ``high`` (equal to the mean when there is one seed), ``seeds`` and
        ``lost`` (the number of values that were NaN).
    """
    from scipy.special import stdtrit  # Student's quantile; importing scipy.stats takes a second

    keys = list(by)
    per_seed = frame.groupby([*keys, "seed"], dropna=False)["value"].agg(
        mean="mean", lost=lambda values: values.isna().sum()
    )
    groups = per_seed.reset_index().groupby(keys, dropna=False)
    result = groups.agg(mean=("mean", "mean"), std=("mean", "std"), seeds=("mean", "count"), lost=("lost", "sum"))
    quantile = stdtrit(np.maximum(result["seeds"] - 1, 1), 0.5 + CONFIDENCE / 2)
    half = (quantile * result["std"] / np.sqrt(result["seeds"])).fillna(0.0)
    result["low"], result["high"] = result["mean"] - half, result["mean"] + half
    return result.drop(columns="std").reset_index()
