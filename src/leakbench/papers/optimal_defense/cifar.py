"""Figures 9, 11, 12 and 13: CIFAR-10, pruning and noise."""

from __future__ import annotations

from leakbench.lazy import pd
from leakbench.papers.optimal_defense.common import (
    ATTACK_CIFAR,
    CIFAR_REFERENCES,
    ERRORS,
    INTERVALS,
    LOSS,
    NOISE_CIFAR,
    PRUNING_CIFAR,
    REFERENCES,
    SCALE,
    TRADED,
    error_against_loss,
    figure,
    noise,
    pruning,
    together,
)
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, against_parameter, having
from leakbench.report.tidy import SETTING

ON_NOISE = (CIFAR_REFERENCES, reads("cifar_noise", defenses=("none", *NOISE_CIFAR), attacks=ATTACK_CIFAR))
SMALL = 1e-3
"""The largest scale of Figure 11: above it, the paper says, its attack fails."""


def _small_scales(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows without a noise scale, and those up to :data:`SMALL`."""
    frame = having(frame, "scale")
    return frame[~(frame[SETTING + "scale"] > SMALL * (1 + 1e-9))]


@figure(
    9,
    title="Pruning on CIFAR-10: reconstruction error against training loss",
    caption=f"{TRADED.format(optimiser='Adam')} {INTERVALS} {REFERENCES}",
    experiments=(CIFAR_REFERENCES, reads("cifar_pruning", defenses=("none", *PRUNING_CIFAR), attacks=ATTACK_CIFAR)),
    any_sweep=True,
)
def fig09(tables: Tables) -> Drawing:
    """Trade-off of gradient pruning and optimal pruning."""
    return error_against_loss(pruning(together(tables), PRUNING_CIFAR, {ATTACK_CIFAR: ""}))


@figure(
    11,
    title="Noise on CIFAR-10: reconstruction error against training loss",
    caption=f"{TRADED.format(optimiser='Adam')} Noise scales up to {SMALL:g}; the larger ones are in Figures 12 "
    f"and 13. {INTERVALS} {REFERENCES}",
    experiments=ON_NOISE,
    any_sweep=True,
)
def fig11(tables: Tables) -> Drawing:
    """Trade-off of clipped noise and optimal noise at small scales."""
    return error_against_loss(noise(_small_scales(together(tables)), NOISE_CIFAR, {ATTACK_CIFAR: ""}))


@figure(
    12,
    title="Noise on CIFAR-10: training loss against the noise scale",
    caption="Loss on the training images after five Adam steps, against the noise scale (root mean square of the "
    f"standard deviations), gradients clipped elementwise at 1. {INTERVALS}",
    experiments=(reads("cifar_noise", defenses=("none", *NOISE_CIFAR)),),
)
def fig12(tables: Tables) -> Drawing:
    """Training loss against the noise scale."""
    metrics = {"final_loss": LOSS}
    return against_parameter(tables["cifar_noise"], "scale", metrics, NOISE_CIFAR, attack=None, xlabel=SCALE, log=True)


@figure(
    13,
    title="Noise on CIFAR-10: reconstruction error against the noise scale",
    caption="Error of the reconstruction against the noise scale (root mean square of the standard deviations), at "
    f"initialisation, gradients clipped elementwise at 1. {INTERVALS} {REFERENCES}",
    experiments=ON_NOISE,
)
def fig13(tables: Tables) -> Drawing:
    """MSE and PSNR against the noise scale."""
    return against_parameter(
        together(tables), "scale", ERRORS, NOISE_CIFAR, attack=ATTACK_CIFAR, xlabel=SCALE, log=True
    )
