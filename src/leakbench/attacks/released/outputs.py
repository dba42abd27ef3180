"""Outputs of the models at hand, as a white-box attacker computes them."""

from __future__ import annotations

from dataclasses import dataclass

from leakbench.attacks.released.base import Labelled
from leakbench.lazy import torch
from leakbench.models.trained import TrainedModels


@dataclass(frozen=True)
class ModelOutputs:
    """Outputs of each model for ``n`` samples.

    Attributes:
        logits: ``[runs, n, classes]``.
        features: the last layer's inputs, ``[runs, n, F]``.
        labels: ``[runs, n]``.
    """

    logits: torch.Tensor
    features: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def of(cls, target: TrainedModels, samples: Labelled) -> ModelOutputs:
        """One forward pass of every model."""
        logits, features = target.logits_and_features(samples.images)
        return cls(logits, features, samples.labels_of(len(target)).to(logits.device))

    @property
    def one_hot(self) -> torch.Tensor:
        """Labels as ``[runs, n, classes]``."""
        return torch.nn.functional.one_hot(self.labels, self.logits.shape[-1]).to(self.logits.dtype)

    @property
    def posteriors(self) -> torch.Tensor:
        """Probabilities ``[runs, n, classes]``."""
        return self.logits.softmax(dim=-1)

    @property
    def loss(self) -> torch.Tensor:
        """Cross-entropy of each sample, ``[runs, n]``."""
        return -self.logits.log_softmax(dim=-1).gather(-1, self.labels[..., None])[..., 0]

    @property
    def residual(self) -> torch.Tensor:
        """Gradient of a sample's loss by its logits, ``[runs, n, classes]``.

        Its outer product with ``features`` is the gradient by the last layer's weights, ``[classes, F]``.
        """
        return self.posteriors - self.one_hot

    @property
    def scaled_confidence(self) -> torch.Tensor:
        """``log(p / (1 - p))`` of the label's probability p, ``[runs, n]`` (Carlini et al. 2022)."""
        label = self.logits.gather(-1, self.labels[..., None])[..., 0]
        others = self.logits.masked_fill(self.one_hot.bool(), -torch.inf).logsumexp(dim=-1)
        return label - others
