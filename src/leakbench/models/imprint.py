"""A layer in front of a network that sorts images by one number: what a malicious server adds to a model."""

from __future__ import annotations

from functools import cache

from leakbench.lazy import torch

MEASURE = "0.measure"
"""Name of the layer that measures, in a network with an imprint in front."""


@cache
def _imprint() -> type[torch.nn.Module]:
    """The class is made on first use, since its base is torch's."""
    nn = torch.nn

    class Imprint(nn.Module):
        """Measure the flattened image in a few units, and add their weighted sum to each of its pixels."""

        def __init__(self, inputs: int, units: int) -> None:
            super().__init__()
            self.measure = nn.Linear(inputs, units)
            self.answer = nn.Linear(units, 1)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            active = torch.relu(self.measure(images.flatten(1)))
            output: torch.Tensor = images + self.answer(active).view(-1, *(1,) * (images.dim() - 1))
            return output

    return Imprint


def imprinted(
    module: torch.nn.Module, weights: torch.Tensor, biases: torch.Tensor, answer: torch.Tensor
) -> torch.nn.Module:
    """A module behind an imprint: ``images + relu(images @ weights.T + biases) @ answer``.

    >>> module = imprinted(torch.nn.Flatten(), torch.ones(2, 4), torch.tensor([0.0, -3.0]), torch.ones(2))
    >>> module(torch.ones(1, 1, 2, 2)).detach()
    tensor([[6., 6., 6., 6.]])

    Args:
        module: what comes behind; it becomes a part of the new one.
        weights: ``[units, inputs]``.
        biases: ``[units]``.
        answer: ``[units]``.
    """
    with torch.random.fork_rng(devices=[]):  # the random initialisation is replaced
        front = _imprint()(weights.shape[1], len(weights)).to(weights)
    state = {"measure.weight": weights, "measure.bias": biases, "answer.weight": answer[None]}
    front.load_state_dict(state | {"answer.bias": answer.new_zeros(1)})
    return torch.nn.Sequential(front, module)
