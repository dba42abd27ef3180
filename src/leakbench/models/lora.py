"""Low-rank adapters beside frozen layers: all that trains of a large model, and travels (Hu et al., ICLR 2022).

A layer that computes ``W x + b`` computes ``W x + b + (alpha / rank) B A x``. It begins as it was: ``A`` is random,
``B`` zero. With ``X`` its inputs as columns and ``G`` the loss's gradient by its output at each of them,

- ``dL/dB = (alpha / rank) G (A X)^T``: rows in the span of the inputs as ``A`` maps them, at most ``rank`` dimensions;
- ``dL/dA = (alpha / rank) B^T G X^T``: rows in the span of the inputs themselves, and zero as long as ``B`` is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator

from leakbench.lazy import torch

Target: TypeAlias = Literal["query", "key", "value"]


class Lora(BaseModel):
    """Adapters of a transformer's attention layers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rank: int = Field(8, ge=1, description="r, the rows of A and the columns of B")
    alpha: float = Field(8.0, gt=0, description="the adapters' outputs are multiplied by alpha / rank")
    targets: tuple[Target, ...] = Field(
        ("query", "value"), min_length=1, description="projections of every attention layer that have an adapter"
    )

    @field_validator("targets")
    @classmethod
    def _once(cls, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        if len(set(targets)) < len(targets):
            raise ValueError(f"each of query, key and value once; got {', '.join(targets)}")
        return targets


class Projection(NamedTuple):
    """The place where attention layers compute a projection.

    Attributes:
        layer: end of the layer's name.
        part: place of its numbers in the layer's output, in widths of the model.
    """

    layer: str
    part: int = 0


def adapt(
    module: torch.nn.Module, lora: Lora, projections: Mapping[str, Projection], width: int, head: tuple[str, ...]
) -> None:
    """Give a transformer adapters, and freeze everything else but its last layers; draws from the global generator.

    Names of parameters stay; those of adapters are ``<layer>.lora.<target>.A.weight`` and ``.B.weight``. As in the
    authors' code entries of A are uniform, up to ``1 / sqrt(width)``.

    Args:
        module: the transformer.
        lora: the adapters.
        projections: by target.
        width: numbers of a hidden state; projections are as wide.
        head: beginnings of the names of the last layers.
    """
    module.requires_grad_(False)
    starts: dict[str, int] = {target: projections[target].part * width for target in lora.targets}
    for name, layer in list(module.named_modules()):
        here = [target for target in lora.targets if name.endswith(projections[target].layer)]
        if here:
            layer.lora = torch.nn.ModuleDict({target: _adapter(width, lora.rank) for target in here})
            layer.register_forward_hook(partial(_beside, lora.alpha / lora.rank, starts))
    for name, parameter in module.named_parameters():
        if name.startswith(head):
            parameter.requires_grad_()


def _adapter(width: int, rank: int) -> torch.nn.ModuleDict:
    down, up = torch.nn.Linear(width, rank, bias=False), torch.nn.Linear(rank, width, bias=False)
    torch.nn.init.zeros_(up.weight)
    return torch.nn.ModuleDict({"A": down, "B": up})


def _beside(
    scale: float,
    starts: Mapping[str, int],
    layer: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    output: torch.Tensor,
) -> torch.Tensor:
    """The layer's output with those of its adapters, each in its place."""
    for target, adapter in layer.lora.items():  # type: ignore[operator, union-attr]
        change = scale * adapter["B"](adapter["A"](inputs[0]))
        behind = output.shape[-1] - starts[target] - change.shape[-1]
        output = output + torch.nn.functional.pad(change, (starts[target], behind))
    return output
