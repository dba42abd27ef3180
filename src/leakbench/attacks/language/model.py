"""Causal language models, which say how unlikely a sentence is: transformers as GPT-2 (Radford et al. 2019).

Token 0 is padding at the end of sentences. It is never predicted, and what comes before does not see it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from leakbench.attacks.parts import Part
from leakbench.errors import ConfigError, MissingData
from leakbench.lazy import torch
from leakbench.libraries.torchvision_compat import import_torchvision
from leakbench.staged.root import data_root

BUDGET = 256 * 2**20
"""Bytes of logits and of their logarithms that are held at a time. Only speed and memory depend on it."""

FILES = ("config.json", "model.safetensors")


class CausalTransformer(Part):
    """The architecture of a language model; by default that of Balunovic et al. (2022) as released.

    Its vocabulary is the attacked model's: sentences are scored as token ids.
    """

    layers: int = Field(24, ge=1, description="transformer layers")
    width: int = Field(1024, ge=1, description="numbers of a word embedding and of a hidden state")
    heads: int = Field(8, ge=1, description="attention heads; they divide the width")
    vocabulary: int = Field(30522, ge=2, description="token ids, V; 30522 as of BERT")
    positions: int = Field(1024, ge=2, description="tokens of the longest sentence")
    activation: Literal["relu", "gelu_new"] = Field("relu", description="of the hidden layers; GPT-2 has gelu_new")
    weights: str | None = Field(
        None,
        description="where trained weights lie under the data root: a folder with config.json and model.safetensors, "
        "laid out as on the Hub, of this architecture; at random by default",
    )

    @model_validator(mode="after")
    def _whole_heads(self) -> CausalTransformer:
        if self.width % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide the width ({self.width})")
        return self

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds of a forward pass of one token, without those of attention between tokens."""
        return 12.0 * self.layers * self.width**2 + self.width * self.vocabulary

    def build(self) -> torch.nn.Module:
        """A module from ids ``[n, L]`` to an output with ``logits [n, L, V]``, without dropout.

        Without weights it is initialised as the library does, from the global generator.

        Raises:
            MissingData: the weights are not staged, or cannot be read.
            ConfigError: they are of another architecture.
        """
        import_torchvision()
        from transformers import GPT2Config, GPT2LMHeadModel

        ours: dict[str, Any] = {
            "n_layer": self.layers,
            "n_embd": self.width,
            "n_head": self.heads,
            "vocab_size": self.vocabulary,
            "n_positions": self.positions,
            "activation_function": self.activation,
        }
        if self.weights is not None:
            self._check(ours)
        silent: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        module: torch.nn.Module = GPT2LMHeadModel(
            GPT2Config(**ours, **silent, use_cache=False, bos_token_id=None, eos_token_id=None)
        )
        if self.weights is not None:
            self._load(module)
        return module

    def _check(self, ours: Mapping[str, object]) -> None:
        from transformers import GPT2Config

        assert self.weights is not None
        folder = data_root() / self.weights
        absent = [file for file in FILES if not (folder / file).is_file()]
        if absent:
            raise MissingData(
                f"the language model '{self.weights}' is not staged: there is no {' and no '.join(absent)} in "
                f"{folder}; copy {' and '.join(FILES)} there, or set LEAKBENCH_DATA to the folder that holds "
                f"{self.weights}"
            )
        try:
            stated = json.loads((folder / FILES[0]).read_text())
        except (OSError, ValueError) as error:
            raise MissingData(f"the language model in {folder} cannot be read ({FILES[0]}: {error})") from error
        theirs = {key: stated.get(key, getattr(GPT2Config(), key)) for key in ours}
        wrong = [f"{key} {value}, not {ours[key]}" for key, value in theirs.items() if value != ours[key]]
        if stated.get("model_type") != "gpt2" or wrong:
            listed = ", ".join(wrong) or f"type {stated.get('model_type')}, not gpt2"
            raise ConfigError(f"the language model in {folder} has another architecture: {listed}")

    def _load(self, module: torch.nn.Module) -> None:
        """Fill in the staged weights, whose names may begin with ``transformer.``; the head shares the embeddings."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        assert self.weights is not None
        path = data_root() / self.weights / FILES[1]
        try:
            stored = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
            # Old files hold the mask of causality too.
            old = (".attn.bias", ".attn.masked_bias")
            state = {name: each for name, each in stored.items() if not name.endswith(old) and name != "lm_head.weight"}
            _body(module).load_state_dict(state)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise MissingData(f"the language model at {path} cannot be used ({error}); stage it again") from error


def _body(module: torch.nn.Module) -> torch.nn.Module:
    """Everything but the head, whose weights are the word embeddings."""
    body = module.transformer
    assert isinstance(body, torch.nn.Module)
    return body


def weights_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All weights of a module that :meth:`CausalTransformer.build` made, by name; shared ones are there once."""
    return dict(_body(module).state_dict())


def losses(module: torch.nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropies of sentences: sums over tokens in nats ``[n]``, and numbers of these tokens ``[n]``.

    The first token of a sentence is given, and padding does not count.

    Args:
        module: of :meth:`CausalTransformer.build`.
        ids: ``[n, L]``.
    """
    logits = module(ids[:, :-1]).logits
    following = ids[:, 1:]
    nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), following, reduction="none")
    counts = following != 0
    return (nats * counts).sum(dim=1), counts.sum(dim=1)


@dataclass(frozen=True)
class LanguageModel:
    """A trained language model that scores sentences; nothing is differentiated through it.

    Attributes:
        transformer: its architecture.
        module: the trained network.
    """

    transformer: CausalTransformer
    module: torch.nn.Module

    @classmethod
    def of(
        cls, transformer: CausalTransformer, state: Mapping[str, torch.Tensor], device: torch.device
    ) -> LanguageModel:
        """The model with these weights (of :func:`weights_of`), in evaluation."""
        with torch.random.fork_rng(devices=[]):
            module = transformer.model_copy(update={"weights": None}).build()
        _body(module).load_state_dict(dict(state))
        return cls(transformer, module.requires_grad_(False).to(device).eval())

    def totals(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Nats ``[n]`` and tokens ``[n]`` of sentences ``[n, L]``; see :func:`losses`.

        Raises:
            ConfigError: a token id, or a sentence's length, is beyond the model.
        """
        check_fit(self.transformer, ids)
        rows = max(1, BUDGET // (2 * 4 * ids.shape[1] * self.transformer.vocabulary))
        with torch.no_grad():
            parts = [losses(self.module, part) for part in ids.split(rows)]
        nats, counts = zip(*parts, strict=True)
        return torch.cat(nats), torch.cat(counts)

    def log_perplexity(self, ids: torch.Tensor) -> torch.Tensor:
        """Mean nats per token of sentences ``[n, L]``, ``[n]``: what Balunovic et al. (2022), as released, weigh.

        Zero for a sentence of fewer than two tokens.
        """
        nats, counts = self.totals(ids)
        return nats / counts.clamp(min=1)

    def perplexity(self, ids: torch.Tensor) -> torch.Tensor:
        """``exp`` of :meth:`log_perplexity`, ``[n]``."""
        return self.log_perplexity(ids).exp()


def check_fit(transformer: CausalTransformer, ids: torch.Tensor) -> None:
    """Whether a model of this architecture can read these sentences, ``[n, L]``.

    Raises:
        ConfigError: a token id, or a sentence's length, is beyond the model.
    """
    if ids.shape[1] > transformer.positions:
        raise ConfigError(
            f"sentences of {ids.shape[1]} tokens are longer than the language model's {transformer.positions} positions"
        )
    largest = int(ids.max()) if ids.numel() else 0
    if largest >= transformer.vocabulary:
        raise ConfigError(f"token id {largest} is beyond the language model's vocabulary of {transformer.vocabulary}")
