"""A decoder that classifies sentences by their last token: GPT-2 (Radford et al. 2019).

Its entries are those of BERT (:mod:`leakbench.models.bert`). Attention looks back alone, positions are learned, and
what each layer reads is normalised in front of it. There is no dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

from pydantic import Field

from leakbench.lazy import torch
from leakbench.models.base import MODELS
from leakbench.models.bert import TextModel, embedded, transformers_library
from leakbench.models.lora import Lora, Projection


@MODELS.register("gpt2", version=1)
class Gpt2(TextModel):
    """GPT-2 at random weights; by default of the size of the smallest published one, on the tokens of BERT."""

    library = ("GPT2Config", "GPT2ForSequenceClassification")
    keys: ClassVar[dict[str, str]] = {
        "width": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "intermediate": "n_inner",
        "vocabulary": "vocab_size",
        "positions": "n_positions",
        "activation": "activation_function",
    }
    undropped = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout")
    projections: ClassVar[dict[str, Projection]] = {
        target: Projection(".attn.c_attn", part) for part, target in enumerate(("query", "key", "value"))
    }

    width: int = Field(768, ge=1, description="numbers of a word embedding and of a hidden state, H")
    layers: int = Field(12, ge=1, description="transformer layers")
    weights: None = Field(
        None, description="always null: trained weights are of GPT-2's own tokens, and sentences are of BERT's here"
    )

    def _options(self, classes: int) -> dict[str, Any]:
        # Tokens that begin and end texts in its own vocabulary.
        return {**super()._options(classes), "bos_token_id": None, "eos_token_id": None}

    @property
    def _classifier(self) -> Any:
        return _classifier()


@MODELS.register("gpt2_lora", version=1)
class Gpt2Lora(Gpt2):
    """GPT-2 with low-rank adapters of rank 4 (Hu et al. 2022), which alone train and travel, with the last layer.

    Everything else is frozen, and the same in all repetitions. Rank and alpha are those of the paper's GPT-2.
    """

    added = ()

    lora: Lora = Field(Lora(rank=4, alpha=32), description="the adapters, and what they adapt")


@cache
def _classifier() -> Callable[..., torch.nn.Module]:
    """The library's classifier with our two entries; its parameters keep their names."""
    base: Any = transformers_library().GPT2ForSequenceClassification

    class Classifier(base):  # type: ignore[misc]
        """Logits ``[B, classes]`` of token ids ``[B, L]`` or embedded inputs ``[B, L, H + 1]``."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            inputs = embedded(self.get_input_embeddings().weight, inputs)
            tokens = inputs[..., -1]
            states = self.transformer(
                inputs_embeds=inputs[..., :-1], attention_mask=looking_back(tokens), use_cache=False
            ).last_hidden_state
            following = torch.cat([tokens[:, 1:], torch.zeros_like(tokens[:, :1])], dim=1)
            last = tokens * (1 - following)
            logits: torch.Tensor = self.score((last[..., None] * states).sum(dim=1))
            return logits

    Classifier.__name__ = Classifier.__qualname__ = base.__name__
    return Classifier


def looking_back(tokens: torch.Tensor) -> torch.Tensor:
    """The mask ``[B, 1, L, L]`` of attention to earlier tokens, where ``tokens`` ``[B, L]`` is 1 and not 0."""
    length = tokens.shape[1]
    earlier = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
    seen = earlier & (tokens > 0.5)[:, None, None, :]
    return torch.zeros(seen.shape, dtype=tokens.dtype, device=tokens.device).masked_fill(
        ~seen, torch.finfo(tokens.dtype).min
    )
