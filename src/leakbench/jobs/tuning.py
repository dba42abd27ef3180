"""Defenses that are tuned to a budget of leakage, in jobs that read its constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from leakbench.errors import ConfigError
from leakbench.lazy import torch

if TYPE_CHECKING:
    from leakbench.defenses.base import Defense
    from leakbench.defenses.tuned import Tuning, UploadConstants


def upload_constants(kept: Mapping[str, torch.Tensor]) -> UploadConstants:
    """Of a system, from what a job of kind ``leakage`` kept of all its seeds.

    Raises:
        ConfigError: it kept no constants, since it has several settings of a defense.
    """
    from leakbench.defenses.tuned import UploadConstants

    def every(name: str) -> torch.Tensor:
        found = [kept[key] for key in sorted(kept) if key.endswith(f"/{name}")]
        if not found:
            raise ConfigError("constants: the experiment's job sweeps its defense; constants are of one, 'none'")
        return torch.cat(found)

    return UploadConstants(
        c1=float(every("c1").mean()), xi=float(every("xi").max()), sigma=every("sigma"), delta=every("delta")
    )


def tuned(defense: Defense, kept: Mapping[str, torch.Tensor] | None) -> Tuning | None:
    """A defense tuned to its budget; None if it has none.

    Args:
        defense: any; only those that have a budget are tuned.
        kept: of the job that estimated the constants; None if the protocol names none.

    Raises:
        Infeasible: no parameter meets the budget.
        ConfigError: the protocol names no constants, or there are none.
    """
    from leakbench.defenses.tuned import Tuned

    if not isinstance(defense, Tuned):
        return None
    if kept is None:
        raise ConfigError(
            f"'{defense.name}' is tuned by the constants of leakage; name the experiment that has them: constants"
        )
    return defense.made(upload_constants(kept))
