"""Numbers change only when versions do.

A component's ``version`` is a part of every job that uses it: raising it is what makes old records run again. Each
component computes a few numbers here on a fixed small input, beside components that exist in this file alone, and they
are compared with ``fingerprints.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError

from leakbench.attacks.base import ATTACKS, Attack, Knowledge, KnownInputs, Observations, Reconstruction, Words
from leakbench.attacks.inverter import Inverter, untrained
from leakbench.attacks.language.model import CausalTransformer, LanguageModel
from leakbench.attacks.released.base import (
    MEMBERSHIP_ATTACKS,
    MODEL_INVERSIONS,
    Labelled,
    MembershipAttack,
    ModelInversion,
)
from leakbench.attacks.restoration.prior import Prior, Restoration
from leakbench.data.base import DATASETS, Dataset, ImageDataset, Samples, Split
from leakbench.data.staged import StagedDataset
from leakbench.data.text import TextDataset
from leakbench.defenses.base import DEFENSES, Defense, Round, Schedule
from leakbench.defenses.clients import PublicMechanism
from leakbench.defenses.laplace import Laplace
from leakbench.defenses.precode import Precode
from leakbench.defenses.tuned import Tuned, UploadConstants
from leakbench.federated.client_data import ClientData
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.federated.message import DenseMessage, EncryptedMessage, Message
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import JOB_KINDS, Job, JobKind, Variant
from leakbench.models.base import MODELS, Model, build_network
from leakbench.models.bert import Bert, TextModel, embed, word_embeddings
from leakbench.models.trained import TrainedModels
from leakbench.randomness import Streams, generator
from leakbench.registry import Component, Registry

FILE = Path(__file__).with_name("fingerprints.json")
UPDATE = "pytest -n0 tests/test_fingerprints.py --update-fingerprints"
Fingerprint = dict[str, Any]  # version and numbers
REGISTRIES: dict[str, Registry[Any]] = {
    "dataset": DATASETS,
    "model": MODELS,
    "defense": DEFENSES,
    "attack": ATTACKS,
    "membership": MEMBERSHIP_ATTACKS,
    "inversion": MODEL_INVERSIONS,
    "job": JOB_KINDS,
}
# A staged data set has no numbers of its own before it is staged.
COMPONENTS: dict[str, type[Component]] = {
    f"{kind}/{name}": registry.get(name)
    for kind, registry in REGISTRIES.items()
    for name in registry
    if registry.get(name).__module__.startswith("leakbench.") and not issubclass(registry.get(name), StagedDataset)
}

READINGS = [{"form": form} for form in ("corrected", "as_printed", "as_released")]
SIZES = [{"scale_mode": mode} for mode in ("rms", "fro", "u2")]
PRESETS = (
    *("dlg", "dlg_wolfe", "idlg", "dlg_cdpa", "tag", "rog"),
    *("ig_library", "ig_script", "ig_breaching", "ig_optimal_defense", "ig_channel", "ig_cdpa"),
)
PRESETS_OF_SENTENCES = ("dlg_text", "tag_text", "lamp_cos", "lamp_l1l2")
FEW_STEPS = {"name": "tag", "iterations": 4}
FEW_LEVELS = {"levels": 2, "evaluations": 2, "last": 2, "training": 3}
FEW_REORDERINGS = {
    "iterations": 4,
    "starts": 3,
    "permutations": 3,
    "reordering": {"candidates": 9, "every": 2, "burn_in": 0, "fluency": 0.2},
}
NETWORKS = {
    "factor": 2,
    "channels": [4, 8],
    "unfolding_channels": [4, 8],
    "iterations": 2,
    "blocks": 1,
    "hidden": 4,
}
TRANSFORMER = {"width": 8, "layers": 1, "heads": 2, "intermediate": 12, "vocabulary": 20, "positions": 6}
# What a component is tried with; one that is not named here is tried with its defaults. Numbers are to be the same on
# all processors: nothing may hang on the direction of a gradient that is zero but for rounding, as that of attention's
# keys or of biases before BatchNorm.
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "attack/adaptive": [{"attack": FEW_STEPS}],
    "attack/bottleneck": [{"attack": FEW_STEPS}],
    "attack/averaged": [{"attack": FEW_STEPS}, {"attack": FEW_STEPS, "statistic": "mean"}],
    "attack/cleared_bits": [{"attack": FEW_STEPS, "positions": [7, 8]}],
    "attack/dropped_layers": [{"attack": FEW_STEPS, "layers": ["3"]}],
    "attack/likelihood": [{"attack": FEW_STEPS}],
    "attack/simulated": [{"attack": FEW_STEPS, "draws": 2}],
    "attack/gradient_matching": [
        {
            "iterations": 4,
            "objective": {"kind": "cosine_per_tensor"},
            "optimiser": {"kind": "adam", "rate": 0.1, "decay": "cosine"},
            "regularisers": [
                {"kind": "total_variation", "form": form, "weight": 0.1} for form in ("isotropic", "squared")
            ],
            "restarts": 2,
            "labels": "distinct",
        },
        {
            "iterations": 6,
            "objective": {"kind": "l2"},
            "optimiser": {"kind": "lbfgs", "line_search": "strong_wolfe"},
            "regularisers": [{"kind": "pixel_box", "weight": 0.1}, {"kind": "batch_norm", "weight": 0.1}],
            "start": "uniform",
            "labels": "joint",
            "keep": "best",
        },
    ],
    "attack/imputed": [
        {"attack": FEW_STEPS, "outliers": "marked"},
        {"attack": FEW_STEPS, "outliers": "above", "threshold": 0.1, "value": "mean"},
        {"attack": FEW_STEPS, "layers": ["3"]},
    ],
    "attack/map": [{"iterations": 3}, {"iterations": 3, "denoising": FEW_LEVELS}],
    "attack/masked": [{"attack": FEW_STEPS}],
    "attack/one_image": [{"attack": FEW_STEPS}],
    "attack/post_processed": [{"attack": FEW_STEPS}],
    "attack/posterior_mean": [{"attack": FEW_STEPS}, {"attack": FEW_STEPS, "denoising": FEW_LEVELS}],
    "attack/unmixed": [{"attack": FEW_STEPS}],
    "attack/undone": [{"attack": FEW_STEPS, "draws": 2}],
    "attack/ridge_inversion": [{"images": 5, "draws": 2}],
    "attack/surrogate": [{"iterations": 4}],
    "attack/unordered": [{"iterations": 4, "labels": "known", "restarts": 2}],
    "attack/untrained_decoder": [{"iterations": 4}],
    "attack/cocktail_party": [{"iterations": 4}],
    "attack/cocktail_party_as_released": [{"iterations": 4}],
    "attack/robust": [{"attack": FEW_STEPS, "iterations": 3, "residual": 0.01}],
    "attack/sentence_matching": [
        {
            "objective": {"kind": "cosine_per_tensor", "floor": 1e-6},
            "regularisers": [{"kind": "embedding_norm", "weight": 0.1}],
            "optimiser": {"kind": "adam", "rate": 0.3, "decay": "cosine"},
            "iterations": 4,
            "scale": "embeddings",
        },
    ],
    "attack/tuned": [
        {
            "attack": {**FEW_STEPS, "regularisers": [{"kind": "total_variation", "weight": 0.1}]},
            "rates": [0.5, 2],
            "made_up": 2,
        },
    ],
    "attack/weighted": [{"attack": FEW_STEPS}],
    **{f"attack/{preset}": [{"iterations": 4}] for preset in PRESETS},
    **{f"attack/{preset}": [{"iterations": 4}] for preset in PRESETS_OF_SENTENCES[:2]},
    "attack/lamp_cos": [{**FEW_REORDERINGS, "objective": {"kind": "cosine_per_tensor", "floor": 1e-6}}],
    "attack/lamp_l1l2": [FEW_REORDERINGS],
    "dataset/digits": [{}, {"size": 16}],
    "dataset/photos": [{}, {"size": 16}],
    "dataset/sentences": [{}, {"tokens": 8, "vocabulary": {"kind": "words", "entries": 50}}],
    "defense/additive_sharing": [{"clients": 3}],
    "defense/ats": [{}, {"choice": "random"}],
    "defense/cafl": [
        {"epsilon": 2, "fraction": 0.5, **choice}
        for choice in (
            {"block": 64},
            {"block": 64, "sensing": "gaussian"},
            {"form": "as_printed"},
            {"form": "as_released", "round": 1},
        )
    ],
    "defense/cdpa": [
        {"p": 0.8, "variant": "corrected"},
        {"p": 0.8, "variant": "as_printed", "layers": "linear", "encodes": "delta", "rate": 0.1},
        {"p": 0.8, "variant": "as_released", "layers": "all", "threshold": "majority", "mask": (1, 3), "bits": 4},
        {"p": 0.8, "layers": "all", "decimals": 5, "mask": (5, 6), "variant": "as_released_text"},
    ],
    "defense/censor": [{"trials": 3, "rate": 0.1}, {"trials": 3, "form": "as_released"}],
    "defense/clipped_noise": [{"scale": 0.2, "clip": 0.02, **size} for size in SIZES],
    "defense/distributed_noise": [
        {"variance": 0.01, "clip": 0.1},
        {"variance": 0.01, "clip": 0.1, "users": 50, "records": 4, "batch": 2},
        {"variance": 0.01, "clip": 0.1, "users": 50, "records": 2},
    ],
    "defense/dp_psac": [{"multiplier": 0.5, "clip": 0.1}],
    "defense/dp_sgd": [{"multiplier": 0.5, "clip": 0.1}],
    "defense/eigen_compression": [{"direction": 2}],
    "defense/fixed_point": [{"clients": 3}, {"clients": 3, "fraction_bits": 12}],
    "defense/gaussian_noise": [{"scale": 0.2, **size} for size in SIZES],
    "defense/gaussian_sampling": [
        {"batch": 2, "clip": 0.1},
        {"batch": 1, "clip": 0.1, "variance": 0.01, "users": 50, "records": 2},
    ],
    "defense/ef_sign_sgd": [{}, {"scale": "tensor"}],
    "defense/grad_drop": [{"fraction": 0.6}, {"fraction": 0.6, "form": "as_released"}],
    "defense/grad_drop_residual": [{"fraction": 0.6}],
    "defense/laplace": [
        {"epsilon": 1},
        {"epsilon": 1, "bound": 0.1},
        {"epsilon": 1, "form": "as_released"},
        {"epsilon": 1, "form": "as_released_normaliser"},
    ],
    "defense/jopeq": [
        {"epsilon": 2, "sigma2": 1, "nu": 12, "bits": 4},
        {"epsilon": 4, "sigma2": 0.1, "nu": 3, "bits": 4, "clip": 0.1, "rounding": "babai"},
        {"epsilon": 4, "mechanism": "scalar", "bits": 4, "clip": 0.1},
        {"epsilon": 4, "sigma2": 0.2, "nu": 4, "bits": 4, "form": "as_released"},
    ],
    "defense/magnitude_pruning": [{"fraction": 0.7}],
    "defense/masked_pair": [{"bound": 0.5}],
    "defense/mixup": [{}, {"alpha": 0.2}],
    "defense/natural_channel": [{"kappa": 5}, {"kappa": 5, "noise": "fresh"}],
    "defense/optimal_clipped_noise": [{"scale": 0.2, "clip": 0.02, **choice} for choice in (*SIZES, *READINGS)],
    "defense/optimal_noise": [{"scale": 0.2, **choice} for choice in (*SIZES, *READINGS, {"probe_kind": "rademacher"})],
    "defense/optimal_pruning": [{"fraction": 0.7, **reading} for reading in READINGS],
    "defense/paillier": [
        {"clients": 3, "key_bits": 1024},
        {"clients": 3, "key_bits": 64, "toy": True, "fraction_bits": 16, "packed": False},
    ],
    "defense/parameter_channel": [{"kappa": 5}, {"kappa": 5, "signal": "mean"}],
    "defense/personalized_channel": [{"kappa": 5}, {"kappa": 5, "solution": "bound"}],
    "defense/power_sgd": [{"rank": 1}, {"rank": 3}],
    "defense/qsgd": [{"levels": 16}, {"levels": 16, "form": "as_released"}],
    "defense/random_mask": [{"probability": 0.2}, {"probability": 0.2, "rescale": True, "positions": "seed"}],
    "defense/sign_sgd": [{}, {"scale": "mean_abs"}],
    "defense/soteria": [{"fraction": 0.5}, {"fraction": 0.5, "form": "as_released", "layer": 0}],
    "defense/optimal_rounding": [{"scale": 0.1}],
    "defense/rounding": [{"scale": 0.1}],
    "defense/sdq": [{"bits": 4}, {"bits": 4, "rounding": "babai"}, {"bits": 3, "dimension": 1, "clip": 0.1}],
    "defense/water_filling": [
        {"batch": 2, "clip": 0.1, "variance": 1e-4},
        {"batch": 2, "clip": 0.1, "variance": 1e-4, "blocks": 3},
        {"batch": 2, "clip": 0.1, "variance": 1e-4, "blocks": 3, "form": "as_printed"},
        {"batch": 2, "clip": 0.1, "variance": 1e-3, "users": 50, "records": 2},
    ],
    "defense/white_channel": [{"kappa": 5}, {"kappa": 5, "rank": "as_printed"}],
    "defense/truncated_svd": [{"energy": 0.9}],
    "defense/tuned": [
        {"mechanism": "randomization", "budget": 1.6},
        {"mechanism": "randomization", "budget": 1.6, "form": "exact_mean"},
        {"mechanism": "compression", "budget": 0.5},
        *(
            {"mechanism": "secret_sharing", "budget": 0.5, "form": form}
            for form in ("corrected", "as_printed", "exact_mean")
        ),
        {"mechanism": "paillier", "budget": 0.5, "key_bits": 64},
        {"mechanism": "paillier", "budget": 2.0},
    ],
    "inversion/mean_start": [{"iterations": 4}],
    "job/attack": [
        {"clients": 2, "batch_size": 2, "auxiliary": 4},
        {"clients": 2, "batch_size": 2, "auxiliary": 4, "batch_norm": "train"},
        {"clients": 2, "batch_size": 4, "auxiliary": 4, "local": {"steps": 3, "rate": 0.5, "batch_size": 2}},
        {"clients": 2, "batch_size": 2, "auxiliary": 4, "epoch": 2, "pretraining": {"samples": 10, "batch_size": 4}},
    ],
    "job/calibrate": [{}, {"images": 20, "pictures": 2}],
    "job/federate": [
        {
            "clients": 2,
            "rounds": 2,
            "validation": 6,
            "test": (0, 10),
            "local": {"steps": 3, "batch_size": 4, "momentum": 0.5, "keep_momentum": True},
        },
        {"clients": 3, "rounds": 2, "validation": 6, "alpha": 0.5, "local": {"steps": 2, "batch_size": 4}},
    ],
    "job/fisher": [
        {"clients": 2, "batch_size": 2, "probes": 3},
        {"clients": 2, "batch_size": 2, "exact": True},
    ],
    "job/language_model": [
        {
            "held_out": 5,
            "steps": 3,
            "batch_size": 8,
            "transformer": {"layers": 1, "width": 8, "heads": 2, "vocabulary": 20, "positions": 6},
        },
    ],
    "job/membership": [
        {"users": (1, 3), "records": 3, "trials": 2, "auxiliary": 6, "candidates": 2},
        {
            **{"users": (2,), "records": 3, "trials": 2, "auxiliary": 6, "batch": 2, "pool": 10},
            **{"epoch": 2, "pretraining": {"samples": 8, "batch_size": 4}},
        },
    ],
    "job/prior": [
        {"images": 20, "held_out": 4, "steps": 3, "batch_size": 8, "networks": NETWORKS},
    ],
    "job/inverter": [
        {"auxiliary": 12, "held_out": 4, "epochs": 4, "widths": (6, 5), "batch_size": 3, "rate": 1e-2},
        {"auxiliary": 12, "held_out": 4, "epochs": 2, "widths": (6,), "rate": 1e-2, "fresh": False},
    ],
    "job/leakage": [
        {"clients": 2, "images_per_client": 8, "models": 2, "attempts": 3, "steps": 2, "rate": 0.1, "law_batches": 4}
        | {"thresholds": (5.0, 8.0), "smoothing": (0.5, 1.0), "training_batch": 4, "resamples": 20},
        {"clients": 3, "images_per_client": 5, "alpha": 0.5, "batch_size": 1, "models": 1, "attempts": 2, "steps": 0}
        | {"rate": 0.1, "law_batches": 3, "thresholds": (5.0,), "ssim_thresholds": (0.0,), "resamples": 20},
    ],
    "job/plotted_noise": [{"clients": 2, "batch_size": 2, "images_per_client": 4, "steps": 1, "rate": 0.1}],
    "job/overhead": [{"clients": 2, "batch_size": 2, "images_per_client": 4, "repetitions": 1}],
    "job/protection_cost": [
        {"clients": 2, "batch_size": 2, "key_bits": (1024,), "unpacked_values": 2, "repetitions": 1, "keep": (0.5,)},
    ],
    "job/release": [
        {
            "steps": 3,
            "batch_size": 8,
            "evaluation": (0, 20),
            "auxiliary": (20, 30),
            "membership": ["threshold", {"name": "lira", "shadows": 2}],
            "inversion": {"name": "mean_start", "iterations": 2},
        },
    ],
    "job/shadows": [
        {"images": 24, "evaluation": (0, 20), "auxiliary": (20, 30), "steps": 4, "batch_size": 8, "shadows": 3},
    ],
    "job/round_timing": [{"clients": 2, "images_per_client": 4, "batch_size": 2, "repetitions": 1}],
    "job/timing": [
        {"steps": 1, "warmup": 1, "repetitions": 1, "batch_size": 4},
        {"steps": 1, "warmup": 1, "repetitions": 1, "batch_size": 4, "channel": "white_channel"},
    ],
    "job/spectrum": [
        {"users": 3, "records": 6, "batch": 2, "rounds": (0, 2), "fresh": 5, "clip": 0.5},
        {
            **{"users": 2, "records": 6, "batch": 2, "rounds": (1,), "fresh": 5, "clip": 0.5, "measured": 2},
            **{"features": 2, "auxiliary": 8, "by_users": (1, 2), "variances": (0.01,), "epsilons": (4.0,)},
        },
    ],
    "job/train": [
        {"clients": 2, "batch_size": 2, "images_per_client": 4, "steps": 3, "rate": 0.1, "evaluation": (0, 20)},
        {"clients": 2, "batch_size": 4, "images_per_client": 4, "steps": 2, "rate": 0.5, "optimiser": "sgd"},
        {
            **{"clients": 3, "batch_size": 2, "images_per_client": 3, "steps": 3, "rate": 0.1},
            **{"sampling": "independent", "secure_aggregation": {"threshold": 2, "dropout": 0.1}},
        },
    ],
    "membership/four_branch": [{"epochs": 2, "batch_size": 4}],
    "membership/lira": [{"training": {"steps": 3, "batch_size": 2}, "shadows": 2}],
    "model/alexnet": [{"width": 2}],
    "model/bert": [TRANSFORMER, TRANSFORMER | {"initial_std": 0.2}],
    "model/bert_lora": [TRANSFORMER],
    "model/convnet": [{"width": 2}, {"width": 2, "activation": "relu"}],
    "model/distilbert": [TRANSFORMER, TRANSFORMER | {"initial_std": 0.2}],
    "model/gpt2_lora": [TRANSFORMER, TRANSFORMER | {"lora": {"rank": 2, "targets": ["key"]}}],
    "model/mlp": [{"width": 5}, {"width": 5, "activation": "sigmoid"}],
    "model/resnet10": [{"width": 8}],
    "model/resnet18_rog": [{"width": 2}],
    "model/simpleconvnet": [{"width": 3}],
    "model/vgg16": [{"width": 2}],
}
# Attacks on clients that hold one image; the others are tried on two.
SINGLE_IMAGE = {"attack/analytic", "attack/idlg", "attack/learned_inversion", "attack/ridge_inversion"}

# Attacks on clients that take several local steps; the others are tried on one.
OF_SEVERAL_STEPS = {"surrogate", "unordered"}
SEVERAL_STEPS = LocalTraining(steps=4, rate=0.1, batch_size=1)


class FixedData(ImageDataset):
    name: ClassVar[str] = "fixed"
    version: ClassVar[int] = 1
    channels = 1
    classes = 5
    mean = (0.4,)
    std = (0.25,)

    def length(self, split: Split) -> int:
        return 30

    def read(self, split: Split, rows: list[int]) -> Samples:
        images = torch.rand(30, *self.shape, generator=generator("fingerprint", split))
        return Samples(images[rows], torch.tensor(rows) * 3 % self.classes)


class FixedText(Dataset):
    name: ClassVar[str] = "fixed_text"
    version: ClassVar[int] = 1
    classes = 2
    unit = "sentences"

    @property
    def shape(self) -> tuple[int, ...]:
        return (6,)

    def length(self, split: Split) -> int:
        return 30

    def read(self, split: Split, rows: list[int]) -> Samples:
        ids = torch.randint(1, 20, (30, 6), generator=generator("fingerprint text", split))
        ids[::3, 4:] = 0  # padding
        return Samples(ids[rows], torch.tensor(rows) % 2)


class FixedModel(Model):
    name: ClassVar[str] = "fixed"
    version: ClassVar[int] = 1
    width: int = 6
    normalised: bool = False
    rectified: bool = False

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        pixels = shape[0] * shape[1] * shape[2]
        return torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(pixels, self.width),
            *([torch.nn.BatchNorm1d(self.width)] if self.normalised else []),
            torch.nn.ReLU() if self.rectified else torch.nn.Tanh(),
            torch.nn.Linear(self.width, classes),
        )


class FixedDefense(Defense):
    name: ClassVar[str] = "fixed"
    version: ClassVar[int] = 1
    acts_on = "data"  # for released models; the others see both
    scale: float

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return images + self.scale * streams.child("data").normal(*images.shape[1:]), labels

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return DenseMessage(steps.gradient + self.scale * streams.child("update").normal(steps.gradient.shape[1]))


class FixedNoise(Defense):
    name: ClassVar[str] = "fixed_noise"
    version: ClassVar[int] = 1
    scale: float

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return DenseMessage(steps.gradient + self.scale * streams.child("update").normal(steps.gradient.shape[1]))


class FixedAttack(Attack):
    name: ClassVar[str] = "fixed"
    version: ClassVar[int] = 1

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        n, (batch, *shape) = len(observations), observations.batch_shape
        size = observations.gradients.norm(dim=1)
        middle = knowledge.pixel_range if knowledge.auxiliary_images is None else knowledge.auxiliary_images
        assert middle is not None
        images = middle.mean(dim=0) + size.view(-1, 1, 1, 1, 1) * streams.normal(batch, *shape)
        return Reconstruction(images, size, torch.full((n,), -1))


def summary(tensor: torch.Tensor) -> list[float]:
    """Root mean square, and two projections that tell positions apart."""
    flat = tensor.flatten().double()
    chirp = torch.arange(len(flat), dtype=torch.float64).square()
    size = len(flat) ** 0.5
    return [float(flat.norm()) / size, *(float(flat @ (frequency * chirp).cos()) / size for frequency in (1, 2))]


def clients(batch: int = 2, model: FixedModel | None = None, local: LocalTraining = ONE_STEP) -> ClientSteps:
    data = FixedData(size=8)
    network = build_network(model or FixedModel(), data.shape, data.classes, seed=0)
    images, labels = (tensor.unflatten(0, (3, batch)) for tensor in data.load("test", range(3 * batch)))
    streams = Streams([("fingerprint", client) for client in range(3)])
    return ClientSteps(network, network.parameters, data.normalise(images), labels, streams, local)


def released() -> tuple[TrainedModels, list[Labelled]]:
    """Two models, and three sets of samples."""
    data = FixedData(size=8)
    network = build_network(FixedModel(), data.shape, data.classes, seed=0)
    parameters = network.parameters * torch.tensor([[1.0], [2.0]])
    samples = [data.load("test", range(start, start + 6)) for start in (0, 6, 12)]
    sets = [Labelled(data.normalise(images), labels) for images, labels in samples]
    return TrainedModels(network, parameters, {}, 0.5 * parameters), sets


def sentences() -> tuple[Observations, Knowledge]:
    """Two clients with one sentence each, the second one padded; an untrained language model."""
    network = build_network(Bert.model_validate(TRANSFORMER | {"initial_std": 0.2}), (6,), 2, seed=0)
    ids = torch.tensor([[[2, 7, 12, 19, 8, 3]], [[2, 5, 9, 3, 0, 0]]])
    inputs = embed(network, network.parameters, ids)
    labels = torch.tensor([[0], [1]])
    gradients = torch.func.vmap(lambda x, y: network.gradient(network.parameters, x, y))(inputs, labels)
    known = torch.where(ids < 4, ids, -1)
    where = torch.cat([(known >= 0)[..., None].expand_as(inputs[..., :-1]), torch.ones_like(known[..., None]) > 0], -1)
    words = Words(word_embeddings(network, network.parameters), torch.arange(20) >= 4, known)
    transformer = CausalTransformer(layers=1, width=8, heads=2, vocabulary=20, positions=6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LanguageModel(transformer, transformer.build().eval())
    auxiliary = torch.tensor([[2, 7, 7, 9, 3, 0], [2, 11, 7, 15, 9, 3], [2, 4, 3, 0, 0, 0]])
    knowledge = Knowledge(
        labels,
        auxiliary_sentences=auxiliary,
        inputs=KnownInputs(where, inputs),
        words=words,
        language_model=model,
    )
    return Observations(network, network.parameters, gradients, (1, 6, 9)), knowledge


def networks() -> Prior:
    """Untrained ones."""
    restoration = Restoration.model_validate(NETWORKS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = restoration.build((1, 8, 8), 5).state_dict()
    return Prior.of(restoration, state, (1, 8, 8), 5, torch.device("cpu"))


def inverter(dimension: int) -> Inverter:
    """An untrained one, for images of 8 x 8."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = untrained(dimension, [7, 64]).requires_grad_(False)
    return Inverter(torch.full((1, dimension), 0.01), torch.full((1, dimension), 30.0), layers)


def numbers_of(component: Component) -> list[float]:
    numbers: list[float] = []
    if isinstance(component, ImageDataset):
        for split in ("train", "test"):
            samples = component.load(split, [0, 5, 111])
            numbers += [*summary(samples.values), *samples.labels.tolist()]
        numbers += summary(component.normalise(samples.values))
    elif isinstance(component, TextDataset):
        both: tuple[Split, Split] = ("train", "test")
        for part in both:
            lines = component.load(part, range(component.length(part)))
            numbers += [*summary(lines.values), *summary(lines.labels)]
    elif isinstance(component, Model):
        if isinstance(component, TextModel):
            shape: tuple[int, ...] = (6,)
            images = torch.tensor([[1, 7, 2, 0, 0, 0], [1, 5, 9, 19, 3, 2]])
        else:
            shape = (3, 16, 16)
            images = torch.randn(2, 3, 16, 16, generator=generator("fingerprint"))
        network = build_network(component, shape, 5, seed=0)
        numbers += summary(network.logits(network.parameters, images))
        numbers += summary(network.gradient(network.parameters, images, torch.tensor([1, 3])))
    elif isinstance(component, Defense):
        if isinstance(component, Tuned):
            sigma = torch.rand(4, 100, generator=generator("fingerprint spread"))
            tuning = component.made(UploadConstants(0.6, 2.0, sigma, torch.tensor([0.5, 0.6, 0.7, 0.8])))
            numbers += [tuning.tau, tuning.parameter or 0.0]
            component = tuning.defense
        number = 2 if component.name == "masked_pair" else 3
        steps, streams = clients().rows(0, number), Streams([("defense", client) for client in range(number)])
        data = FixedData(size=8)
        component = component.calibrate(ClientData(data.load("train", range(30)).values[None], data.classes))
        images, labels = component.protect_dataset(steps.images, steps.labels, streams)
        images, labels = component.protect_data(images, labels, streams)
        if component.overrides("extend"):
            network = component.extend(steps.network, data.shape, seed=1)
            steps = ClientSteps(network, network.parameters, images, labels, streams)
        state = component.initial_state(steps)
        for past in range(3 if state else 1):  # the state of clients shows in later rounds
            message, state = component.protect_round(steps, Round(streams, state, past))
        epsilon = component.privacy(Schedule(dimension=100, rounds=2)).epsilon
        numbers += [*summary(images), *summary(labels), message.bits]
        if not isinstance(message, EncryptedMessage):  # a ciphertext is another one for another last digit
            numbers += summary(message.view())
        numbers += summary(component.aggregate(message, number)) + ([] if epsilon is None else [epsilon])
    elif isinstance(component, Attack) and component.reconstructs == "sentences":
        found = component.reconstruct(*sentences(), Streams([("sentences", client) for client in range(2)]))
        assert found.tokens is not None
        numbers += [*summary(found.images), *([] if found.objective is None else found.objective.tolist())]
        numbers += summary(found.tokens)
    elif isinstance(component, Attack):
        batch = 1 if f"attack/{component.name}" in SINGLE_IMAGE else 2
        # SPEAR reads the zeros that ReLU leaves in enough neurons.
        model = FixedModel(width=60, rectified=True) if component.name == "spear" else None
        steps = clients(batch, model, SEVERAL_STEPS if component.name in OF_SEVERAL_STEPS else ONE_STEP)
        held = steps.rows(0, 1) if batch > 1 else clients()
        if component.name == "bottleneck":
            longer = Precode(width=4).extend(steps.network, (1, 8, 8), seed=1)
            steps = ClientSteps(longer, longer.parameters, steps.images, steps.labels, steps.streams)
        if component.changes_model:
            known = Knowledge(auxiliary_images=held.images.flatten(0, 1))
            sent = component.prepare(steps.network, (batch, 1, 8, 8), known)
            steps = ClientSteps(sent, sent.parameters, steps.images, steps.labels, steps.streams)
        bounds = torch.tensor([-1.0, 1.5]).view(2, 1, 1, 1)
        marked = steps.gradient.abs() < 1e-3
        found = component.against(({"name": "masked"},)).reconstruct(
            Observations(
                steps.network,
                steps.parameters,
                steps.gradient,
                (batch, 1, 8, 8),
                steps.local,
                marked=marked,
                coded=torch.ones_like(steps.gradient),
                repeats=steps.gradient[:, None] * torch.tensor([1.0, 1.0, 2.0])[:, None],
            ),
            Knowledge(
                steps.labels,
                bounds,
                held.images.flatten(0, 1),
                held.labels.flatten(),
                noise_variance=steps.gradient.square(),
                data_noise=[torch.full((64,), 0.5)] * 3,
                prior=networks(),
                mechanism=[PublicMechanism(Laplace(epsilon=4, form="as_released"))] * 3,
                inverter=[inverter(steps.network.dimension)] * 3,
            ),
            steps.streams.child("attack"),
        )
        numbers += summary(found.images) + ([] if found.objective is None else found.objective.tolist())
    elif isinstance(component, MembershipAttack):
        target, (members, nonmembers, candidates) = released()
        streams = Streams([("membership", run) for run in range(2)])
        numbers += component.score(target, members, nonmembers, candidates, streams).flatten().tolist()
    elif isinstance(component, ModelInversion):
        target, (auxiliary, *_) = released()
        inverted = component.invert(target, auxiliary.images, torch.tensor([3, 1]))
        numbers += [*summary(inverted.images), *inverted.loss.flatten().tolist()]
    elif isinstance(component, JobKind):
        pictures: Variant[Dataset] = Variant("fixed", FixedData, {"size": 8}, {})
        texts: Variant[Dataset] = Variant("fixed_text", FixedText, {}, {})
        job = Job(
            scale="none",
            paper="none",
            experiment="none",
            dataset=texts if component.name == "language_model" else pictures,
            model=Variant("fixed", FixedModel, {"normalised": getattr(component, "batch_norm", "eval") == "train"}, {}),
            # Membership in a sum is asked of updates.
            defense=Variant(
                "fixed", FixedNoise if component.name == "membership" else FixedDefense, {}, {"scale": [0.0, 0.1]}
            ),
            attack=Variant("fixed", FixedAttack, {}, {}) if component.uses_attacks else None,
            kind=component,
            part="all",
            seeds=(0,) if component.name in ("calibrate", "inventory", "prior", "language_model") else (0, 1),
        )
        findings = component.run(job, torch.device("cpu"))
        for replicate in findings.replicates:
            for name, value in replicate.metrics.items():
                if "not reproducible" in job.metrics[name].unit:
                    continue  # seconds
                present = [number for number in (value if isinstance(value, list) else [value]) if number is not None]
                numbers += summary(torch.tensor(present)) if len(present) > 3 else present
    return [float(f"{number:.6g}") for number in numbers]


def compute(key: str) -> list[float]:
    try:
        components = [COMPONENTS[key](**parameters) for parameters in PARAMETERS.get(key, [{}])]
    except ValidationError as error:
        pytest.fail(
            f"{key} needs parameters to be tried with; add them to PARAMETERS in {Path(__file__).name}: {error}"
        )
    return [number for component in components for number in numbers_of(component)]


def complaint(key: str, known: Fingerprint | None, numbers: list[float]) -> str | None:
    """What is wrong with a component's fingerprint, and what to do about it."""
    version = COMPONENTS[key].version
    if known is None:
        return f"{key} has no fingerprint; make one: {UPDATE}"
    if known["version"] != version:
        return f"{key} has a new version and an old fingerprint; renew it: {UPDATE}"
    if known["numbers"] != pytest.approx(numbers, rel=1e-3, abs=1e-6):
        return (
            f"{key} computes other numbers than its version {version} did. If that is meant, raise `version` where "
            f"{COMPONENTS[key].__name__} is registered, so that its jobs run again, then: {UPDATE}. (If only what this "
            f"test feeds it changed, delete its line in {FILE.name} instead.) Was {known['numbers']}, is {numbers}"
        )
    return None


@pytest.fixture(scope="session")
def committed() -> dict[str, Fingerprint]:
    found: dict[str, Fingerprint] = json.loads(FILE.read_text()) if FILE.is_file() else {}
    return found


@pytest.fixture(scope="session")
def renewed(request: pytest.FixtureRequest, committed: dict[str, Fingerprint]) -> Iterator[dict[str, Fingerprint]]:
    """With ``--update-fingerprints``: what is new or has a new version, to be written at the end."""
    found: dict[str, Fingerprint] = {}
    yield found
    if request.config.getoption("--update-fingerprints"):
        assert not hasattr(request.config, "workerinput"), f"one process must write them: {UPDATE}"
        entries = committed | found
        lines = [f"{json.dumps(key)}: {json.dumps(entries[key])}" for key in sorted(entries) if key in COMPONENTS]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.mark.parametrize("key", COMPONENTS)
def test_numbers_change_with_versions_alone(
    key: str,
    committed: dict[str, Fingerprint],
    renewed: dict[str, Fingerprint],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))  # no weights for LPIPS
    # With a handful of images the strengths are as good as each other, and rounding, by processor, would choose.
    monkeypatch.setattr("leakbench.attacks.learned.STRENGTHS", (0.1,))
    numbers, known = compute(key), committed.get(key)
    assert numbers
    if request.config.getoption("--update-fingerprints") and (known or {}).get("version") != COMPONENTS[key].version:
        renewed[key] = known = {"version": COMPONENTS[key].version, "numbers": numbers}
    wrong = complaint(key, known, numbers)
    assert wrong is None, wrong


def test_no_fingerprint_is_stale(committed: dict[str, Fingerprint], request: pytest.FixtureRequest) -> None:
    stale = sorted(set(committed) - set(COMPONENTS))
    assert not stale or request.config.getoption("--update-fingerprints"), f"no such components: {stale}; {UPDATE}"


def test_every_parameter_set_is_used() -> None:
    assert set(PARAMETERS) | SINGLE_IMAGE <= set(COMPONENTS)


def test_the_comparison_notices() -> None:
    numbers = compute("defense/magnitude_pruning")
    version = COMPONENTS["defense/magnitude_pruning"].version
    other = [*numbers[:-1], numbers[-1] * 1.01]
    for known, message in (
        ({"version": version, "numbers": numbers}, None),
        ({"version": version, "numbers": other}, "raise `version` where MagnitudePruning is registered"),
        ({"version": version, "numbers": numbers[:-1]}, "raise `version`"),
        ({"version": version - 1, "numbers": numbers}, "an old fingerprint"),
        (None, "has no fingerprint"),
    ):
        wrong = complaint("defense/magnitude_pruning", known, numbers)
        assert wrong is None if message is None else wrong is not None and message in wrong
