"""Words that the paper's figures share, and how they read its tables."""

from __future__ import annotations

from functools import partial

from leakbench.lazy import pd
from leakbench.papers.optimal_defense import PAPER
from leakbench.report.artifacts import Tables, artifact
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing
from leakbench.report.style import IMAGE_REFERENCES
from leakbench.report.trade_offs import TradeOff, trade_off

figure = partial(artifact, PAPER, "figure")
table = partial(artifact, PAPER, "table")

PRUNING = {"gp": "gradient pruning", "op": "optimal pruning"}
PRUNING_CIFAR = {"gp-cifar": PRUNING["gp"], "op-cifar": PRUNING["op"]}
NOISE = {"dpsgd": "clipped noise (the paper's DP-SGD)", "optimal": "optimal noise"}
NOISE_CIFAR = {"dpsgd-cifar": NOISE["dpsgd"], "optimal-cifar": NOISE["optimal"]}
NOISE_IN_SHORT = {"dpsgd": "clipped noise", "optimal": "optimal noise"}
NOISE_AT_U2 = {"dpsgd-u2": "clipped noise", "optimal-u2": "optimal noise"}
ATTACK, ATTACK_CIFAR, ADAPTIVE = "ig", "ig-cifar", "ig-adaptive"
ATTACKERS = {ATTACK: "", ADAPTIVE: ", adaptive attack"}
ERRORS = {"mse_input": "MSE (normalised inputs)", "psnr": "PSNR (dB, pixels in [0, 1])"}
LOSS = "training loss after 5 steps (nats)"
PRUNED, SCALE = "pruned part of the gradient", "noise scale (RMS std)"

UNDEFENDED = reads("undefended", defenses="none", attacks=(ATTACK, *IMAGE_REFERENCES))
CIFAR_REFERENCES = reads("cifar_references", defenses="none", attacks=IMAGE_REFERENCES)

INTERVALS = "Intervals: 95 % t-intervals over seeds of the initialisation; of two seeds, their range."
_GUESSES = (
    "Reference attackers that never see the gradient: the mean of auxiliary images, constant grey, and random noise; "
    "an error above the best of theirs means no leakage"
)
_ORDER = "Images are in the order that the attack leaves, as released; the claims assign them first."
_ATTACKED = "Attack: Inverting Gradients with the true labels, not adapted to the defense."
BLIND = f"{_GUESSES}; claims cap errors there. {_ORDER}"
REFERENCES = f"{BLIND} {_ATTACKED}"
UNCAPPED = f"{_GUESSES}; the claims of this figure do not cap errors. {_ORDER} {_ATTACKED}"
TRADED = (
    "Reconstruction error at initialisation against the loss on the attacked images after five {optimiser} steps; "
    "a better defense lies lower and further right."
)
MSE_AGAINST_LOSS = {"privacy": "mse_input", "utility": "final_loss", "xlabel": ERRORS["mse_input"], "ylabel": LOSS}


def together(tables: Tables, *experiments: str) -> pd.DataFrame:
    """The tidy tables of several experiments as one; by default of all."""
    return pd.concat([tables[name] for name in experiments or tables], ignore_index=True)


def pruning(frame: pd.DataFrame, names: dict[str, str], attacks: dict[str, str]) -> TradeOff:
    """Gradient pruning and optimal pruning over the pruned part."""
    return TradeOff(frame, "fraction", names, "pruned part", attacks)


def noise(frame: pd.DataFrame, names: dict[str, str], attacks: dict[str, str]) -> TradeOff:
    """Clipped noise and optimal noise over the noise scale."""
    return TradeOff(frame, "scale", names, "noise scale", attacks)


def error_against_loss(shown: TradeOff) -> Drawing:
    """MSE against the training loss after five steps."""
    return trade_off(shown, **MSE_AGAINST_LOSS)
