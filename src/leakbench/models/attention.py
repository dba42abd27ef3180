"""Inputs of the first two attention layers of a model of sentences, and the weights that read them.

BERT normalises what it embeds, and its queries, keys and values read that; GPT-2 normalises in front of each layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.models.base import Network

READING = ("query.weight", "key.weight", "value.weight", "q_lin.weight", "k_lin.weight", "v_lin.weight")
"""Ends of the names of weights that read a layer's inputs, in BERT and in DistilBERT."""
LAYERS = 2
"""Attention layers that are looked at."""

Reading = dict[str, torch.Tensor]
"""Matrices ``[m, H]``, whose rows meet the inputs of a layer, by name."""


class AttentionInputs:
    """The first two attention layers of a model with given parameters.

    Raises:
        Infeasible: the model does not begin with attention.
    """

    def __init__(self, network: Network, parameters: torch.Tensor) -> None:
        module = network.trainable_module().eval()
        module.load_state_dict(network.unflatten(parameters), strict=False)
        base: Any = getattr(module, "base_model", None)
        layers = getattr(base, "encoder", None) or getattr(base, "transformer", None)
        if layers is None or not any(name.endswith(READING) for name in network.names):
            raise Infeasible("there is no attention at the beginning of the model ('bert' and 'distilbert' have it)")
        layers.layer = layers.layer[:1]
        self._base = base

    def first(self, tokens: torch.Tensor, length: int) -> torch.Tensor:
        """Inputs of the first layer where tokens ``[k]`` are at each position, ``[k, L, H]``."""
        with torch.no_grad():
            read: torch.Tensor = self._base.embeddings(input_ids=tokens[:, None].expand(-1, length))
        return read

    def second(self, sentences: torch.Tensor) -> torch.Tensor:
        """Inputs of the second layer for sentences ``[k, L]``, padded by 0, ``[k, L, H]``."""
        with torch.no_grad():
            out = self._base(sentences, attention_mask=sentences != 0, output_hidden_states=True)
        read: torch.Tensor = out.hidden_states[1]
        return read


def reading(named: Mapping[str, torch.Tensor]) -> list[Reading]:
    """The tensors of weights that read the inputs of the first and of the second layer, as far as there are any.

    Args:
        named: the parameters' tensors, or those of a gradient of them.
    """
    layers = [
        {name: value for name, value in named.items() if f"layer.{layer}.attention" in name and name.endswith(READING)}
        for layer in range(LAYERS)
    ]
    return [layer for layer in layers if layer]
