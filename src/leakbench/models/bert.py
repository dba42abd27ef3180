"""Transformers that classify sentences: BERT (Devlin et al. 2019) and DistilBERT (Sanh et al. 2019).

They have two entries, told apart by the type of their inputs. Token ids ``[B, L]`` are what training reads; 0 is
padding. Embedded inputs ``[B, L, H + 1]`` hold the word embedding of each token and, in the last column, 1 for a token
and 0 for padding: the variables of a search for a sentence. The gradient of the second by the word embeddings is zero,
as in the released code of LAMP (Balunovic et al. 2022). There is no dropout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.errors import ConfigError, MissingData
from leakbench.lazy import torch
from leakbench.libraries.torchvision_compat import import_torchvision
from leakbench.models.base import MODELS, Model, Network
from leakbench.models.lora import Lora, Projection, adapt
from leakbench.staged.root import data_root

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

WEIGHT_FILES = ("config.json", "model.safetensors")
"""Files of a folder of weights, as on the Hugging Face Hub."""

_WORD_EMBEDDINGS = ("word_embeddings.weight", "wte.weight")
_HEAD = ("pre_classifier.", "classifier.", "score.")  # missing in weights that were trained for no task


class TextModel(Model):
    """A transformer of the library ``transformers`` that classifies sentences of token ids.

    Subclasses give the fields their defaults, name the library's classes, and translate the fields.
    """

    library: ClassVar[tuple[str, str]]
    """The names of the configuration and of the model."""
    keys: ClassVar[dict[str, str]]
    """The library's names of the fields of the architecture."""
    undropped: ClassVar[tuple[str, ...]]
    """The library's names of all probabilities of dropout."""
    projections: ClassVar[dict[str, Projection]]
    """The layers that compute queries, keys and values."""
    added: ClassVar[tuple[str, ...]] = ("lora",)

    width: int = Field(ge=1, description="numbers of a word embedding and of a hidden state, H")
    layers: int = Field(ge=1, description="transformer layers")
    heads: int = Field(12, ge=1, description="attention heads; they divide the width")
    intermediate: int = Field(3072, ge=1, description="units of the hidden layer behind each attention")
    vocabulary: int = Field(30522, ge=1, description="word embeddings, V")
    positions: int = Field(512, ge=1, description="tokens of the longest sentence, special ones included")
    activation: Literal["gelu", "relu"] = Field("gelu", description="of the hidden layers")
    initial_std: float = Field(
        0.02,
        gt=0,
        description="standard deviation of random weights. 0.02 suits BERT-base; other widths have signals as strong "
        "with 0.55 / sqrt(width)",
    )
    weights: str | None = Field(
        None,
        description="where trained weights lie under the data root, such as google-bert/bert-base-uncased: a folder "
        "with config.json and model.safetensors; the last layers start at random if they are not among them. "
        "Everything starts at random by default",
    )
    lora: Lora | None = Field(
        None,
        description="adapters of the targets among an attention layer's query, key and value, of a low rank, which add "
        "their outputs times alpha / rank; they and the last layers alone train and travel, without them everything",
    )

    @model_validator(mode="after")
    def _whole_heads(self) -> TextModel:
        if self.width % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide the width ({self.width})")
        return self

    def build(self, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        """A module for sentences ``(L,)`` with the two entries that this module describes.

        Without weights it is initialised as the library does, from the global generator.

        Raises:
            ConfigError: these are no sentences, or too long ones; or the weights are of another architecture.
            MissingData: the weights are not staged, or cannot be read.
        """
        self._check_sentences(shape)
        # On the device meta there is nothing to read.
        if self.weights is None or torch.get_default_device().type == "meta":
            module: torch.nn.Module = self._classifier(self._config(classes))
        else:
            module = self._trained(data_root() / self.weights, classes)
        if self.lora is not None:
            adapt(module, self.lora, self.projections, self.width, _HEAD)
        return module

    def check_vocabulary(self, size: int) -> None:
        """Whether there is a word embedding for each of a tokenizer's ``size`` ids.

        Raises:
            ConfigError: there are too few.
        """
        if size > self.vocabulary:
            raise ConfigError(
                f"model '{self.name}': a tokenizer that does not fit the model: it has {size} token ids, the model "
                f"{self.vocabulary} word embeddings; set vocabulary to {size} or more"
            )

    @property
    def _classifier(self) -> Any:
        return _classifier(self.library[1])

    def _configuration(self) -> Any:
        return getattr(transformers_library(), self.library[0])

    def _check_sentences(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 1:
            raise ConfigError(f"model '{self.name}' reads sentences (L,); the data set has samples of shape {shape}")
        if shape[0] > self.positions:
            raise ConfigError(
                f"model '{self.name}': sentences of {shape[0]} tokens are longer than the model's window of "
                f"{self.positions}; raise positions, or take shorter sentences"
            )

    def _options(self, classes: int) -> dict[str, Any]:
        """Options for all weights: attention that can be differentiated twice, and no dropout."""
        return {"num_labels": classes, "attn_implementation": "eager", **dict.fromkeys(self.undropped, 0.0)}

    def _config(self, classes: int) -> PreTrainedConfig:
        fields = {key: getattr(self, field) for field, key in self.keys.items()}
        fields["initializer_range"] = self.initial_std
        config: PreTrainedConfig = self._configuration()(**fields, **self._options(classes))
        return config

    def _trained(self, folder: Path, classes: int) -> torch.nn.Module:
        """The module with weights from a folder; last layers that they lack are drawn from the global generator."""
        from safetensors import SafetensorError

        self._check_folder(folder)
        try:
            config = self._configuration().from_pretrained(folder, **self._options(classes))
            with _quiet():
                module, report = self._classifier.from_pretrained(
                    folder,
                    config=config,
                    dtype=torch.float32,
                    local_files_only=True,
                    use_safetensors=True,
                    output_loading_info=True,
                )
        except (OSError, RuntimeError, ValueError, SafetensorError) as error:
            raise self._broken(folder, f"{type(error).__name__}: {error}") from error
        missing = sorted(name for name in report["missing_keys"] if not name.startswith(_HEAD))
        if missing:
            raise self._broken(folder, f"{len(missing)} tensors are missing, such as {missing[0]}")
        result: torch.nn.Module = module
        return result

    def _check_folder(self, folder: Path) -> None:
        """Check that the files are there, and of this architecture."""
        absent = [file for file in WEIGHT_FILES if not (folder / file).is_file()]
        if absent:
            assert self.weights is not None
            stage = f"run `leakbench stage {self.weights}` where the Hub can be reached, or " * ("/" in self.weights)
            raise MissingData(
                f"model '{self.name}': the weights '{self.weights}' are not staged: there is no "
                f"{' and no '.join(absent)} in {folder}; {stage}copy {' and '.join(WEIGHT_FILES)} there, or set "
                f"LEAKBENCH_DATA to the folder that holds {self.weights}"
            )
        try:
            stated = json.loads((folder / WEIGHT_FILES[0]).read_text())
        except (OSError, ValueError) as error:
            raise self._broken(folder, f"{WEIGHT_FILES[0]}: {error}") from error
        defaults = self._configuration()
        if stated.get("model_type") != defaults.model_type:
            raise ConfigError(f"model '{self.name}': the weights in {folder} are of a {stated.get('model_type')}")
        theirs = defaults.from_pretrained(folder)
        wrong = {
            field: (getattr(theirs, key), getattr(self, field))
            for field, key in self.keys.items()
            if getattr(theirs, key) != getattr(self, field)
        }
        if wrong:
            listed = "; ".join(f"{field} {stored} and not {ours}" for field, (stored, ours) in wrong.items())
            raise ConfigError(f"model '{self.name}': the weights in {folder} have {listed}")

    def _broken(self, folder: Path, what: str) -> MissingData:
        return MissingData(
            f"model '{self.name}': the weights in {folder} cannot be used ({what}); remove them and stage them again"
        )


@MODELS.register("bert", version=1)
class Bert(TextModel):
    """BERT; by default BERT-base, 109,483,778 parameters with 2 classes (Devlin et al. 2019)."""

    library = ("BertConfig", "BertForSequenceClassification")
    keys: ClassVar[dict[str, str]] = {
        "width": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "intermediate": "intermediate_size",
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
        "activation": "hidden_act",
    }
    undropped = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
    projections: ClassVar[dict[str, Projection]] = {
        target: Projection(f".attention.self.{target}") for target in ("query", "key", "value")
    }

    width: int = Field(768, ge=1, description="numbers of a word embedding and of a hidden state, H")
    layers: int = Field(12, ge=1, description="transformer layers")


@MODELS.register("bert_lora", version=1)
class BertLora(Bert):
    """BERT with low-rank adapters of rank 8 (Hu et al. 2022), which alone train and travel, with the last layer.

    Everything else is frozen, and the same in all repetitions. Rank and alpha are those of the paper's base models.
    """

    added = ()

    lora: Lora = Field(Lora(), description="the adapters, and what they adapt")


@MODELS.register("distilbert", version=1)
class DistilBert(TextModel):
    """DistilBERT: half of BERT's layers; 66,955,010 parameters with 2 classes (Sanh et al. 2019)."""

    library = ("DistilBertConfig", "DistilBertForSequenceClassification")
    keys: ClassVar[dict[str, str]] = {
        "width": "dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "intermediate": "hidden_dim",
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
        "activation": "activation",
    }
    undropped = ("dropout", "attention_dropout", "seq_classif_dropout", "qa_dropout")
    projections: ClassVar[dict[str, Projection]] = {
        target: Projection(f".attention.{target[0]}_lin") for target in ("query", "key", "value")
    }

    width: int = Field(768, ge=1, description="numbers of a word embedding and of a hidden state, H")
    layers: int = Field(6, ge=1, description="transformer layers")


def word_embeddings(network: Network, parameters: torch.Tensor) -> torch.Tensor:
    """The table of word embeddings, ``[V, H]``, out of a flat vector ``[d]``.

    Raises:
        ConfigError: the model has none.
    """
    return network.tensors(parameters)[table_of(network)]


def embedding_width(network: Network) -> int:
    """The numbers of a word embedding, H.

    Raises:
        ConfigError: the model has no word embeddings.
    """
    table = table_of(network)
    trained = dict(zip(network.names, network.shapes, strict=True))
    return trained[table][1] if table in trained else network.frozen[table].shape[1]


def table_of(network: Network) -> str:
    """The name of the table of word embeddings.

    Raises:
        ConfigError: the model has none.
    """
    tables = [name for name in (*network.names, *network.frozen) if name.endswith(_WORD_EMBEDDINGS)]
    if len(tables) != 1:
        raise ConfigError("the model has no table of word embeddings; models of sentences have one")
    return tables[0]


def embed(network: Network, parameters: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Token ids ``[..., L]`` as embedded inputs ``[..., L, H + 1]``, for which the logits are the same.

    Raises:
        ConfigError: the model has no word embeddings.
    """
    return _with_mask(word_embeddings(network, parameters), ids)


def embedded(table: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Either entry as embedded inputs ``[..., L, H + 1]``."""
    return inputs if inputs.is_floating_point() else _with_mask(table, inputs)


def _with_mask(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.cat([table[ids], (ids != 0).to(table.dtype)[..., None]], dim=-1)


def transformers_library() -> ModuleType:
    """``transformers``, which takes seconds to import, and stumbles over torchvision beside a CPU build of torch."""
    import_torchvision()
    import transformers

    return transformers


@cache
def _classifier(name: str) -> Callable[..., torch.nn.Module]:
    """The library's classifier with our two entries; its parameters keep their names."""
    base: Any = getattr(transformers_library(), name)

    class Classifier(base):  # type: ignore[misc]
        """Logits ``[B, classes]`` of token ids ``[B, L]`` or embedded inputs ``[B, L, H + 1]``."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            inputs = embedded(self.get_input_embeddings().weight, inputs)
            # The library's own mask of padding, which makes its attention an exact zero; nothing to differentiate.
            tokens = inputs[..., -1]
            mask = torch.zeros_like(tokens).masked_fill(tokens < 0.5, torch.finfo(tokens.dtype).min)[:, None, None, :]
            logits: torch.Tensor = super().forward(inputs_embeds=inputs[..., :-1], attention_mask=mask).logits
            return logits

    Classifier.__name__ = Classifier.__qualname__ = base.__name__
    return Classifier


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's reports and progress bars, which a log has no use for."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
