"""Figures 2 to 7: MNIST, pruning and noise."""

from __future__ import annotations

from leakbench.papers.optimal_defense.common import (
    ATTACK,
    ERRORS,
    INTERVALS,
    NOISE,
    PRUNED,
    PRUNING,
    REFERENCES,
    SCALE,
    TRADED,
    UNCAPPED,
    UNDEFENDED,
    error_against_loss,
    figure,
    noise,
    pruning,
    together,
)
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, against_parameter, training_curves

TRAINED_PRUNING = {
    "none": "no defense",
    "gp-80": "gradient pruning 80 %",
    "gp-90": "gradient pruning 90 %",
    "op-80": "optimal pruning 80 %",
}
TRAINED_NOISE = {
    "none": "no defense",
    "dpsgd-0.1": "clipped noise (the paper's DP-SGD) 0.1",
    "optimal-0.1": "optimal noise 0.1",
}
ON_PRUNING = (UNDEFENDED, reads("pruning", defenses=PRUNING, attacks=ATTACK))
ON_NOISE = (UNDEFENDED, reads("noise", defenses=NOISE, attacks=ATTACK))


@figure(
    2,
    title="Reconstruction error against the pruning ratio",
    caption="Error of the reconstruction against the part of the gradient that is pruned, at initialisation. "
    f"{INTERVALS} {UNCAPPED}",
    experiments=ON_PRUNING,
)
def fig02(tables: Tables) -> Drawing:
    """MSE and PSNR against the pruning ratio."""
    return against_parameter(together(tables), "fraction", ERRORS, PRUNING, attack=ATTACK, xlabel=PRUNED)


@figure(
    3,
    title="Training under pruning",
    caption=f"Training loss of federated training with pruned gradients. {INTERVALS}",
    experiments=(reads("pruning_training", defenses=TRAINED_PRUNING),),
)
def fig03(tables: Tables) -> Drawing:
    """Training loss for gradient pruning at 80 % and 90 % and optimal pruning at 80 %."""
    return training_curves(tables["pruning_training"], TRAINED_PRUNING, window=8, styles={"gp-90": "--"})


@figure(
    4,
    title="Pruning: reconstruction error against training loss",
    caption=f"{TRADED.format(optimiser='Adam')} {INTERVALS} {REFERENCES}",
    experiments=ON_PRUNING,
    any_sweep=True,
)
def fig04(tables: Tables) -> Drawing:
    """Trade-off of gradient pruning and optimal pruning."""
    return error_against_loss(pruning(together(tables), PRUNING, {ATTACK: ""}))


@figure(
    5,
    title="Reconstruction error against the noise scale",
    caption="Error of the reconstruction against the noise scale (root mean square of the standard deviations), at "
    f"initialisation, gradients clipped elementwise at 1. {INTERVALS} {UNCAPPED}",
    experiments=ON_NOISE,
)
def fig05(tables: Tables) -> Drawing:
    """MSE and PSNR against the noise scale."""
    return against_parameter(together(tables), "scale", ERRORS, NOISE, attack=ATTACK, xlabel=SCALE, log=True)


@figure(
    6,
    title="Training under noise",
    caption="Training loss of federated training with noisy gradients, noise scale 0.1 (root mean square of the "
    f"standard deviations). {INTERVALS}",
    experiments=(reads("noise_training", defenses=TRAINED_NOISE),),
)
def fig06(tables: Tables) -> Drawing:
    """Training loss for clipped noise and optimal noise at the same scale."""
    return training_curves(tables["noise_training"], TRAINED_NOISE, window=8)


@figure(
    7,
    title="Noise: reconstruction error against training loss",
    caption=f"{TRADED.format(optimiser='Adam')} {INTERVALS} {REFERENCES}",
    experiments=ON_NOISE,
    any_sweep=True,
)
def fig07(tables: Tables) -> Drawing:
    """Trade-off of clipped noise and optimal noise."""
    return error_against_loss(noise(together(tables), NOISE, {ATTACK: ""}))
