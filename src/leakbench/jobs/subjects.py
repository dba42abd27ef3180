"""Images and sentences as victims: the parts of an attack job that differ between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from leakbench.attacks.base import KnownInputs, Reconstruction, Words
from leakbench.data.base import Dataset, ImageDataset, Samples, image_dataset
from leakbench.data.text import TextDataset, pack
from leakbench.defenses.base import DATA_VERBS, Defense
from leakbench.errors import ConfigError, Infeasible
from leakbench.lazy import torch
from leakbench.metrics.assignment import ASSIGNED, ASSIGNED_METRICS, assign, reorder
from leakbench.metrics.image import IMAGE_METRICS, image_metrics
from leakbench.metrics.text import TEXT_METRICS, assign_sentences, text_metrics
from leakbench.models.base import Model, Network
from leakbench.models.bert import TextModel, embed, word_embeddings
from leakbench.records import MetricInfo

if TYPE_CHECKING:
    from leakbench.jobs.victims import Victims


class Compared(NamedTuple):
    """Reconstructions beside their victims.

    Attributes:
        values: metrics by name, one value per sample ``[n * B]``, or the reason why there is none.
        shown: the reconstructions for the record, ``[n, B, ...]``, in the attack's order.
        order: for each victim the index of its reconstruction in its client's batch, ``[n, B]``.
    """

    values: dict[str, torch.Tensor | str]
    shown: torch.Tensor
    order: torch.Tensor


class Subject(ABC):
    """The samples of a data set, as victims."""

    unit: ClassVar[str]
    """Name of such samples in data sets."""
    metrics: ClassVar[dict[str, MetricInfo]]
    """Metrics of reconstructed samples."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    @abstractmethod
    def inputs(self, network: Network, parameters: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Network inputs of samples ``[n, B, ...]``, which attackers search for."""

    @abstractmethod
    def beforehand(self, granted: Collection[str], auxiliary: int, device: torch.device) -> dict[str, Any]:
        """Fields of :class:`Knowledge` that concern samples and are known before any message.

        Args:
            granted: names of side knowledge.
            auxiliary: most samples of the train split that the attacker holds.
            device: of the tensors.
        """

    @abstractmethod
    def knowledge(self, victims: Victims, granted: Collection[str], auxiliary: int) -> dict[str, Any]:
        """Fields of :class:`Knowledge` that concern samples; those per observation are of ``n`` victims.

        Args:
            victims: the clients.
            granted: names of side knowledge.
            auxiliary: most samples of the train split that the attacker holds.
        """

    @abstractmethod
    def compare(self, victims: Victims, reconstruction: Reconstruction) -> Compared:
        """Compare each victim with its reconstruction."""

    @abstractmethod
    def shown(self, victims: Victims) -> torch.Tensor:
        """The victims for the record, ``[n, B, ...]``."""

    def _auxiliary(self, count: int) -> Samples:
        return self.dataset.load("train", range(min(count, self.dataset.length("train"))))


class Images(Subject):
    """Images, with metrics in the attack's order and after assignment within a client's batch."""

    unit = ImageDataset.unit
    metrics = IMAGE_METRICS | ASSIGNED_METRICS

    def __init__(self, dataset: ImageDataset) -> None:
        super().__init__(dataset)
        self.channels = dataset.channels

    def inputs(self, network: Network, parameters: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return self.dataset.normalise(values)

    def knowledge(self, victims: Victims, granted: Collection[str], auxiliary: int) -> dict[str, Any]:
        return self.beforehand(granted, auxiliary, victims.inputs.device)

    def beforehand(self, granted: Collection[str], auxiliary: int, device: torch.device) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if "pixel_range" in granted:
            fields["pixel_range"] = image_dataset(self.dataset, "pixels").pixel_range(device)
        if "auxiliary_images" in granted:
            samples = self._auxiliary(auxiliary)
            fields["auxiliary_images"] = self.dataset.normalise(samples.values.to(device))
            fields["auxiliary_labels"] = samples.labels.to(device)
        return fields

    def compare(self, victims: Victims, reconstruction: Reconstruction) -> Compared:
        images, batch = reconstruction.images, victims.values.shape[1]
        pixels = self.dataset.denormalise(images)
        order = assign(pixels, victims.values)

        def metrics(images: torch.Tensor) -> dict[str, torch.Tensor | str]:
            inputs = images.flatten(0, 1)
            return image_metrics(
                self.dataset.denormalise(inputs), victims.values.flatten(0, 1), inputs, victims.inputs.flatten(0, 1)
            )

        values = metrics(images)
        moved = not torch.equal(order, torch.arange(batch, device=order.device).expand_as(order))
        assigned = metrics(reorder(images, order)) if moved else values
        values |= {ASSIGNED + name: value for name, value in assigned.items()}
        return Compared(values, pixels.clamp(0, 1), order)

    def shown(self, victims: Victims) -> torch.Tensor:
        return victims.values


class Sentences(Subject):
    """Sentences, searched for as word embeddings.

    Their lengths and the places of special tokens are public, as in Balunovic et al. (2022). Metrics are those after
    assignment within a client's batch.

    Raises:
        ConfigError: the model has fewer word embeddings than the data set's tokenizer has entries.
    """

    unit = TextDataset.unit
    metrics = TEXT_METRICS

    def __init__(self, dataset: TextDataset, model: Model) -> None:
        super().__init__(dataset)
        check_vocabulary(dataset, model)
        self.tokenizer = dataset.tokenizer

    def inputs(self, network: Network, parameters: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return embed(network, parameters, values)

    def knowledge(self, victims: Victims, granted: Collection[str], auxiliary: int) -> dict[str, Any]:
        ids, inputs = victims.values, victims.inputs
        embeddings = word_embeddings(victims.network, victims.parameters)
        entries = torch.arange(len(embeddings), device=ids.device)
        framing = torch.tensor(self.framing, device=ids.device)
        given = torch.isin(ids, framing)
        where = given[..., None].expand(inputs.shape).clone()
        where[..., -1] = True  # the mask of padding
        fields: dict[str, Any] = {
            "words": Words(
                embeddings,
                (entries < self.tokenizer.vocabulary_size) & ~torch.isin(entries, framing),
                ids.where(given, -1),
            ),
            # Unknown entries are zero: the truth is not in here.
            "inputs": KnownInputs(where, inputs.where(where, 0.0)),
        }
        return fields | self.beforehand(granted, auxiliary, ids.device)

    def beforehand(self, granted: Collection[str], auxiliary: int, device: torch.device) -> dict[str, Any]:
        if "auxiliary_sentences" not in granted:
            return {}
        return {"auxiliary_sentences": self._auxiliary(auxiliary).values.to(device)}

    @property
    def framing(self) -> list[int]:
        """The ids that mark where a sentence begins and ends."""
        return [self.tokenizer.pad, self.tokenizer.cls, self.tokenizer.sep]

    def compare(self, victims: Victims, reconstruction: Reconstruction) -> Compared:
        tokens = reconstruction.tokens
        assert tokens is not None
        guesses, true = self._decoded(tokens), self._decoded(victims.values)
        order = assign_sentences(guesses, true)
        values = text_metrics(
            [batch[index] for batch, indices in zip(guesses, order.tolist(), strict=True) for index in indices],
            [sentence for batch in true for sentence in batch],
            reorder(tokens.cpu(), order).flatten(0, 1),
            victims.values.cpu().flatten(0, 1),
            [*self.framing, self.tokenizer.unk],
        )
        return Compared(dict(values), pack(guesses), order)

    def shown(self, victims: Victims) -> torch.Tensor:
        return pack(self._decoded(victims.values))

    def _decoded(self, ids: torch.Tensor) -> list[list[str]]:
        """Sentences from ``[n, B, L]``, with their special tokens but without padding."""
        flat = self.tokenizer.decode(ids.flatten(0, 1).cpu(), special=True)
        sentences = [sentence.replace("[PAD]", "").rstrip() for sentence in flat]
        return [sentences[first : first + ids.shape[1]] for first in range(0, len(sentences), ids.shape[1])]


SUBJECTS: Mapping[str, type[Subject]] = {subject.unit: subject for subject in (Images, Sentences)}
"""Subjects by the unit of data sets."""


def subject_of(dataset: Dataset, model: Model) -> Subject:
    """The samples of a data set, as victims of an attack on a model.

    Raises:
        ConfigError: neither images nor sentences; or the tokenizer does not fit the model.
    """
    if isinstance(dataset, ImageDataset):
        return Images(dataset)
    if isinstance(dataset, TextDataset):
        return Sentences(dataset, model)
    raise ConfigError(f"data set '{dataset.name}' holds {dataset.unit}; attacks are on images and on sentences")


def check_vocabulary(dataset: Dataset, model: Model) -> None:
    """Reject a model of sentences with fewer word embeddings than a data set's tokenizer has entries.

    Raises:
        ConfigError: it has too few.
    """
    if isinstance(dataset, TextDataset) and isinstance(model, TextModel):
        model.check_vocabulary(dataset.tokenizer.vocabulary_size)


def check_defense(dataset: Dataset, defense: Defense) -> None:
    """Reject defenses of images where clients hold sentences: no defense changes token ids.

    Raises:
        Infeasible: the defense acts on samples, and these are sentences.
    """
    if isinstance(dataset, TextDataset) and defense.overrides(*DATA_VERBS):
        raise Infeasible(f"'{defense.name}' acts on images, and the clients hold sentences")
