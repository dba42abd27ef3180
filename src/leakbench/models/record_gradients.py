"""Gradients of single records as factors and sums, mostly without forming them.

By the weights of a linear layer the gradient of a record's loss is the outer product of the error at its output and of
its inputs. Norms, weighted sums, products with vectors and the Gram matrix follow from these factors alone (Goodfellow
2015, "Efficient Per-Example Gradient Computations"). The gradients by convolutions, which have few weights, are formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from leakbench.lazy import torch


class Part(Protocol):
    """Gradients of ``k`` clients' ``B`` records by the parameters of one layer, ``p`` of them."""

    def squares(self) -> torch.Tensor:
        """Squared norms, ``[k, B]``."""
        ...

    def scaled(self, factors: torch.Tensor) -> Part:
        """Times factors, ``[k, B]``."""
        ...

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """``[k, m, B] -> [k, m, p]``."""
        ...

    def along(self, vectors: torch.Tensor) -> torch.Tensor:
        """``[k, m, p] -> [k, m, B]``."""
        ...

    def gram(self) -> torch.Tensor:
        """Float64 ``[k, B, B]``."""
        ...

    @property
    def size(self) -> int:
        """Number of parameters, p."""
        ...


GRAM_BUDGET = 3 * 2**30
"""Most bytes of Gram matrices of inputs that are kept."""


class Products:
    """Gram matrices of inputs that come back in every round, as a client's data do; each is computed once.

    Inputs are known again by their place in memory, which nothing else takes as long as they are kept.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}
        self._bytes = 0

    def of(self, inputs: torch.Tensor) -> torch.Tensor:
        """``X X^T``, float64 ``[k, B, F] -> [k, B, B]``."""
        place = inputs.data_ptr()
        if place in self._kept:
            same, version, products = self._kept[place]
            if same.shape == inputs.shape and same.stride() == inputs.stride() and version == inputs._version:
                return products
        products = _products(inputs)
        if place not in self._kept and self._bytes + products.nbytes <= GRAM_BUDGET:
            self._kept[place] = inputs, inputs._version, products
            self._bytes += products.nbytes
        return products


def _products(inputs: torch.Tensor) -> torch.Tensor:
    exact = inputs.double()
    products: torch.Tensor = exact @ exact.mT
    return products


@dataclass(frozen=True)
class Outer(Part):
    """Gradients of a linear layer: errors ``[k, B, O]`` and inputs ``[k, B, F]``; weights, then biases, if any.

    ``kept`` holds Gram matrices of inputs that are the data.
    """

    errors: torch.Tensor
    inputs: torch.Tensor
    bias: bool
    kept: Products | None = None

    @property
    def size(self) -> int:
        return self.errors.shape[2] * (self.inputs.shape[2] + self.bias)

    def squares(self) -> torch.Tensor:
        read = self.inputs.square().sum(dim=2) + float(self.bias)
        squares: torch.Tensor = self.errors.square().sum(dim=2) * read
        return squares

    def scaled(self, factors: torch.Tensor) -> Outer:
        return Outer(self.errors * factors.unsqueeze(2), self.inputs, self.bias, self.kept)

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        errors = weights.unsqueeze(3) * self.errors.unsqueeze(1)  # [k, m, B, O]
        products = (errors.mT.flatten(1, 2) @ self.inputs).unflatten(1, errors.mT.shape[1:3]).flatten(2)
        return torch.cat([products, errors.sum(dim=2)], dim=2) if self.bias else products

    def along(self, vectors: torch.Tensor) -> torch.Tensor:
        outputs, inputs = self.errors.shape[2], self.inputs.shape[2]
        weights = vectors[..., : outputs * inputs].unflatten(2, (outputs, inputs))
        read = self.inputs.unsqueeze(1) @ weights.mT  # [k, m, B, O]
        if self.bias:
            read = read + vectors[..., None, -outputs:]
        products: torch.Tensor = (read * self.errors.unsqueeze(1)).sum(dim=3)
        return products

    def gram(self) -> torch.Tensor:
        inputs = _products(self.inputs) if self.kept is None else self.kept.of(self.inputs)
        gram: torch.Tensor = _products(self.errors) * (inputs + float(self.bias))
        return gram


@dataclass(frozen=True)
class Formed(Part):
    """The gradients themselves, ``[k, B, p]``."""

    gradients: torch.Tensor

    @property
    def size(self) -> int:
        return self.gradients.shape[2]

    def squares(self) -> torch.Tensor:
        squares: torch.Tensor = self.gradients.square().sum(dim=2)
        return squares

    def scaled(self, factors: torch.Tensor) -> Formed:
        return Formed(self.gradients * factors.unsqueeze(2))

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        return weights @ self.gradients

    def along(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors @ self.gradients.mT

    def gram(self) -> torch.Tensor:
        gradients = self.gradients.double()
        return gradients @ gradients.mT


@dataclass(frozen=True)
class RecordGradients:
    """The gradients ``g_j`` of ``k`` clients' ``B`` records each, of ``d`` coordinates.

    Attributes:
        parts: by layers, in the order of the flat parameter vector.
        losses: of the records, ``[k, B]``.
    """

    parts: Sequence[Part]
    losses: torch.Tensor

    def norms(self) -> torch.Tensor:
        """``|g_j|``, ``[k, B]``."""
        return sum((part.squares() for part in self.parts[1:]), start=self.parts[0].squares()).sqrt()

    def scaled(self, factors: torch.Tensor) -> RecordGradients:
        """``f_j g_j`` for factors ``[k, B]``."""
        return RecordGradients([part.scaled(factors) for part in self.parts], self.losses)

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """``sum_j w_j g_j``, ``[k, m, d]``, for weights ``[k, m, B]``."""
        return torch.cat([part.weighted(weights) for part in self.parts], dim=2)

    def mean(self) -> torch.Tensor:
        """Mean over a client's records, ``[k, d]``."""
        k, records = self.losses.shape
        return self.weighted(self.losses.new_full((k, 1, records), 1 / records))[:, 0]

    def along(self, vectors: torch.Tensor) -> torch.Tensor:
        """``<g_j, v>``, ``[k, m, B]``, for vectors ``[k, m, d]``."""
        slices = vectors.split([part.size for part in self.parts], dim=2)
        products = [part.along(vectors) for part, vectors in zip(self.parts, slices, strict=True)]
        return sum(products[1:], start=products[0])

    def gram(self) -> torch.Tensor:
        """``<g_j, g_l>``, float64 ``[k, B, B]``."""
        return sum((part.gram() for part in self.parts[1:]), start=self.parts[0].gram())
