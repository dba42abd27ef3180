"""Reference attackers: what can be said without looking at the gradient, so that "no leakage" has a number."""

from __future__ import annotations

from typing import ClassVar, Literal

from leakbench.attacks.base import ATTACKS, Attack, Grant, Knowledge, Observations, Reconstruction
from leakbench.lazy import torch
from leakbench.randomness import Streams


class _Reference(Attack):
    observes: ClassVar[bool] = False

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        never = torch.full((len(observations),), -1, device=observations.gradients.device)
        return Reconstruction(self.guess(observations, knowledge, streams), None, never)

    def guess(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        """Images that do not depend on the gradients, ``[n, B, C, H, W]``."""
        raise NotImplementedError


@ATTACKS.register("mean_image", version=1)
class MeanImage(_Reference):
    """The mean of auxiliary images, for every image."""

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"auxiliary_images"})

    def guess(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        assert knowledge.auxiliary_images is not None
        return knowledge.auxiliary_images.mean(dim=0).expand(len(observations), *observations.batch_shape).clone()


@ATTACKS.register("class_mean", version=1)
class ClassMean(_Reference):
    """The mean of auxiliary images with the label of each image; of all of them, where none has it."""

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"auxiliary_images", "labels"})

    def guess(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        images, labels = knowledge.auxiliary_images, knowledge.auxiliary_labels
        assert images is not None and labels is not None and knowledge.labels is not None
        same = (knowledge.labels[..., None] == labels).to(images)  # [n, B, N]
        weights = torch.where(same.any(dim=-1, keepdim=True), same, 1.0)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return (weights @ images.flatten(1)).view(len(observations), *observations.batch_shape)


@ATTACKS.register("grey", version=1)
class Grey(_Reference):
    """Mid-grey, 0.5 in [0, 1], for every pixel. Normalisation is affine, so it is the mean of the pixels' bounds."""

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"pixel_range"})

    def guess(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        assert knowledge.pixel_range is not None
        return knowledge.pixel_range.mean(dim=0).expand(len(observations), *observations.batch_shape).clone()


@ATTACKS.register("noise", version=1)
class Noise(_Reference):
    """Standard normal inputs, clamped to valid pixels: where gradient matching starts."""

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"pixel_range"})

    def guess(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        assert knowledge.pixel_range is not None
        normal = streams.normal(*observations.batch_shape, device=observations.gradients.device)
        return normal.clamp(knowledge.pixel_range[0], knowledge.pixel_range[1])


class _ReferenceOnSentences(Attack):
    observes: ClassVar[bool] = False

    @property
    def reconstructs(self) -> Literal["images", "sentences"]:
        return "sentences"

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"auxiliary_sentences"})

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        assert knowledge.words is not None
        words = knowledge.words
        guessed = self.guess(knowledge, streams).where(words.known < 0, words.known)
        never = torch.full((len(observations),), -1, device=observations.gradients.device)
        return Reconstruction(words.embeddings[guessed], None, never, tokens=guessed)

    def guess(self, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        """Tokens that do not depend on the gradients, ``[n, B, L]``; those that are known do not count."""
        raise NotImplementedError


@ATTACKS.register("frequent_words", version=1)
class FrequentWords(_ReferenceOnSentences):
    """The most frequent tokens of auxiliary sentences, the first of them first, in every sentence."""

    def guess(self, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        assert knowledge.words is not None and knowledge.auxiliary_sentences is not None
        known, allowed = knowledge.words.known, knowledge.words.allowed
        counts = torch.bincount(knowledge.auxiliary_sentences.flatten(), minlength=len(allowed))
        ranked = counts.masked_fill(~allowed, -1).argsort(descending=True, stable=True)
        return ranked[(known < 0).cumsum(dim=-1).sub(1).clamp(min=0)]


@ATTACKS.register("random_sentence", version=1)
class RandomSentence(_ReferenceOnSentences):
    """An auxiliary sentence, drawn for each victim; cut where it is longer, and begun anew where it is shorter."""

    def guess(self, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        assert knowledge.words is not None and knowledge.auxiliary_sentences is not None
        known, allowed, sentences = knowledge.words.known, knowledge.words.allowed, knowledge.auxiliary_sentences
        sentences = sentences[allowed[sentences].any(dim=1)]
        draws = streams.uniform(known.shape[1], device=known.device)
        drawn = sentences[(draws * len(sentences)).long()]  # [n, B, L]
        inside = allowed[drawn]
        words = drawn.gather(-1, (~inside).long().argsort(dim=-1, stable=True))
        places = (known < 0).cumsum(dim=-1).sub(1).clamp(min=0)
        return words.gather(-1, places % inside.sum(dim=-1, keepdim=True))
