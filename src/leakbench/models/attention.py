"""Inputs of the first two attention layers of a model of sentences, and the weights that read them.

BERT normalises what it embeds, and its queries, keys and values read that; GPT-2 normalises in front of each layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.models.gpt2 import looking_back

READING = ("query.weight", "key.weight", "value.weight", "q_lin.weight", "k_lin.weight", "v_lin.weight")
"""Ends of the names of weights that read a layer's inputs, in BERT and in DistilBERT."""
JOINT = "attn.c_attn.weight"
"""End of the name of the weights of all three in GPT-2, side by side and transposed."""
DOWN, UP = ".A.weight", ".B.weight"
"""Ends of the names of both matrices of a low-rank adapter (:mod:`leakbench.models.lora`)."""
LAYERS = 2
"""Attention layers that are looked at."""

Reading: TypeAlias = "dict[str, torch.Tensor]"
"""Matrices ``[m, w]``, whose rows meet the inputs of a layer, by name."""


class Rows(NamedTuple):
    """Gradients whose rows lie in the span of a layer's inputs.

    Attributes:
        parts: the gradients.
        through: what maps the inputs beforehand, ``[w, H]``; None where nothing does.
    """

    parts: Reading
    through: torch.Tensor | None = None


class AttentionInputs(ABC):
    """The first two attention layers of a model with given parameters.

    Attributes:
        causal: whether tokens are read from earlier ones alone.
    """

    causal: ClassVar[bool]

    def __init__(self, base: Any) -> None:
        self._base = base

    @abstractmethod
    def first(self, tokens: torch.Tensor, length: int) -> torch.Tensor:
        """Inputs of the first layer where tokens ``[k]`` are at each position, ``[k, L, H]``."""

    @abstractmethod
    def second(self, sentences: torch.Tensor) -> torch.Tensor:
        """Inputs of the second layer for sentences ``[k, L]``, padded by 0, ``[k, L, H]``."""


class _Bert(AttentionInputs):
    causal = False

    def __init__(self, base: Any) -> None:
        super().__init__(base)
        layers = getattr(base, "encoder", None) or base.transformer
        layers.layer = layers.layer[:1]

    def first(self, tokens: torch.Tensor, length: int) -> torch.Tensor:
        with torch.no_grad():
            read: torch.Tensor = self._base.embeddings(input_ids=tokens[:, None].expand(-1, length))
        return read

    def second(self, sentences: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            out = self._base(sentences, attention_mask=sentences != 0, output_hidden_states=True)
        read: torch.Tensor = out.hidden_states[1]
        return read


class _Gpt2(AttentionInputs):
    causal = True

    def __init__(self, base: Any) -> None:
        super().__init__(base)
        self._norms = [block.ln_1 for block in base.h[:LAYERS]]
        base.h, base.ln_f = base.h[:1], torch.nn.Identity()

    def first(self, tokens: torch.Tensor, length: int) -> torch.Tensor:
        with torch.no_grad():
            read: torch.Tensor = self._norms[0](self._base.wte(tokens)[:, None] + self._base.wpe.weight[:length])
        return read

    def second(self, sentences: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            inputs, mask = self._base.wte(sentences), looking_back((sentences != 0).to(self._base.wte.weight))
            states = self._base(inputs_embeds=inputs, attention_mask=mask, use_cache=False).last_hidden_state
            read: torch.Tensor = self._norms[1](states)
        return read


def attention_inputs(network: Network, parameters: torch.Tensor) -> AttentionInputs:
    """The first two attention layers of a model with these parameters, ``[d]``.

    Raises:
        Infeasible: the model does not begin with attention.
    """
    module = network.trainable_module().eval()
    module.load_state_dict(network.unflatten(parameters), strict=False)
    base: Any = getattr(module, "base_model", None)
    names = [*network.names, *network.frozen]
    if any(name.endswith(JOINT) for name in names):
        return _Gpt2(base)
    if any(name.endswith(READING) for name in names):
        return _Bert(base)
    raise Infeasible("there is no attention at the beginning of the model ('bert', 'distilbert' and 'gpt2' have it)")


def reading(named: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> list[list[Rows]]:
    """The gradients that tell of the inputs of the first and of the second layer, as far as there are any.

    Of low-rank adapters these are those of ``B``, whose rows are in the span of the inputs as ``A`` maps them; and
    those of ``A``, whose rows are in the span of the inputs themselves, but for adapters whose ``B`` is zero.

    Args:
        named: gradients of the parameters that train; or other tensors of their shapes, such as masks.
        parameters: the parameters, by name.
    """
    layers: list[list[Rows]] = []
    for layer in range(LAYERS):
        direct: Reading = {}
        mapped: list[Rows] = []
        for name, value in named.items():
            if f"layer.{layer}.attention." not in name and f"h.{layer}.attn." not in name:
                continue
            if name.endswith(READING):
                direct[name] = value
            elif name.endswith(JOINT):
                direct |= {f"{name}.{number}": part for number, part in enumerate(value.T.chunk(3))}
            elif name.endswith(UP):
                down = name.removesuffix(UP) + DOWN
                mapped.append(Rows({name: value}, parameters[down]))
                direct |= {down: named[down]} if bool(parameters[name].any()) else {}
        rows = [Rows(direct)] * bool(direct) + mapped
        layers += [rows] if rows else []
    return layers
