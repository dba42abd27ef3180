"""BatchNorm as an attacker runs it: with statistics that it knows or estimates."""

from __future__ import annotations

from functools import partial
from typing import Any

from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.models.base import Network, Statistics


class Anchored(Network):
    """A network in mode ``train`` that normalises with given statistics and differentiates through those of the batch.

    The clients' gradients flow through the statistics of their batches. So they are not the gradients at constant
    statistics, not even at the right ones; they are what this network gives for the right ones and the true images.

    Raises:
        Infeasible: the network's loss is not the cross-entropy alone.
    """

    def __init__(self, network: Network) -> None:
        if not network.plain_loss:
            raise Infeasible("batch_norm 'known', 'estimated': the model's loss has a term beside the cross-entropy")
        vars(self).update(vars(network))

    def gradient(
        self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, statistics: Statistics | None = None
    ) -> torch.Tensor:
        if not statistics:
            return super().gradient(parameters, images, labels)
        _, still = self._run(parameters, images, statistics)

        def loss(moving: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self._run(moving, images, statistics, still)[0], labels)

        result: torch.Tensor = torch.func.grad(loss)(parameters)
        return result

    def _run(
        self, parameters: torch.Tensor, images: torch.Tensor, given: Statistics, still: Statistics | None = None
    ) -> tuple[torch.Tensor, Statistics]:
        """Logits, and the statistics of every BatchNorm layer's inputs.

        Layers normalise with the given statistics plus the difference of the batch's from ``still``, which is zero but
        has derivatives with respect to the parameters.
        """
        measured: Statistics = {}

        def normalise(name: str, layer: Any, inputs: tuple[torch.Tensor, ...], _: torch.Tensor) -> torch.Tensor:
            features = inputs[0]
            axes = [axis for axis in range(features.dim()) if axis != 1]
            shape = [-1 if axis == 1 else 1 for axis in range(features.dim())]
            for key, tensor in zip(
                ("running_var", "running_mean"), torch.var_mean(features, axes, correction=0), strict=True
            ):
                measured[f"{name}.{key}"] = tensor
            mean, variance = (
                (given[key] if still is None else given[key] + (measured[key] - still[key])).view(shape)
                for key in (f"{name}.running_mean", f"{name}.running_var")
            )
            normal: torch.Tensor = (features - mean) * (variance + layer.eps).rsqrt()
            return normal * layer.weight.view(shape) + layer.bias.view(shape) if layer.affine else normal

        layers = [(name, self._unbuffered.get_submodule(name)) for name in self._normalising]
        hooks = [layer.register_forward_hook(partial(normalise, name)) for name, layer in layers]
        try:
            return self.logits(parameters, images), measured
        finally:
            for hook in hooks:
                hook.remove()


def estimated_statistics(
    network: Network, parameters: torch.Tensor, auxiliary: torch.Tensor, batch_size: int
) -> Statistics:
    """BatchNorm statistics of batches of ``batch_size`` auxiliary images ``[m, C, H, W]``, averaged over batches.

    Raises:
        Infeasible: there are fewer auxiliary images than one batch takes.
    """
    whole = len(auxiliary) // batch_size * batch_size
    if not whole:
        raise Infeasible(f"batch_norm 'estimated': {len(auxiliary)} auxiliary images make no batch of {batch_size}")
    batches = auxiliary[:whole].unflatten(0, (-1, batch_size))
    of_batches = torch.func.vmap(network.batch_statistics, in_dims=(None, 0), chunk_size=8)(parameters, batches)
    return {name: tensor.mean(dim=0) for name, tensor in of_batches.items()}
