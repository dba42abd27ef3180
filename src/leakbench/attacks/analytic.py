"""The image as a ratio of two gradients of a fully connected first layer: the ceiling of what a gradient leaks."""

from __future__ import annotations

from leakbench.attacks.base import ATTACKS, Attack, ClientSetup, Knowledge, Observations, Reconstruction
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.models.base import LinearLayer, Network
from leakbench.models.stacked import flat_modules
from leakbench.randomness import Streams

INSTEAD = "list gradient matching ('ig_library', ...) instead"
"""The advice where a first layer cannot be read."""


@ATTACKS.register("analytic", version=1)
class Analytic(Attack):
    """The exact image of a client that holds one, from the first layer, if that is fully connected and has a bias.

    The gradient of neuron ``k``'s weights is that of its bias, ``b_k``, times the image: ``G_k = b_k x`` (Phong et al.
    2018, section III; Geiping et al. 2020, proposition 3.1). All neurons together give ``x`` by least squares,
    ``sum_k b_k G_k / sum_k b_k^2``. The image is the same in every local step, so updates of several steps leak it as
    exactly. Where no neuron is active, or the gradient is not finite, the image is zero and marked as diverged at 0.

    >>> from leakbench.models.base import Network
    >>> network = Network(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)))
    >>> image, label = torch.tensor([[[[0.1, 0.2], [0.3, 0.4]]]]), torch.tensor([1])
    >>> gradient = network.gradient(network.parameters, image, label)
    >>> seen = Observations(network, network.parameters, gradient[None], (1, 1, 2, 2))
    >>> found = Analytic().reconstruct(seen, Knowledge(), Streams([("client", 0)])).images
    >>> torch.allclose(found, image[None])
    True
    """

    def check_clients(self, clients: ClientSetup) -> None:
        self._layer(clients.network, clients.batch_shape)

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        """Reconstruct undefended gradients exactly, and independently of ``streams``.

        Raises:
            Infeasible: several images per client, or a first layer that is not fully connected with a bias.
        """
        layer, place = self._layer(observations.network, observations.batch_shape)
        slopes = observations.gradients[:, place]
        # Relative to the largest slope: the squares of small ones would vanish in float32.
        parts = slopes / slopes.abs().amax(dim=1, keepdim=True)
        images = torch.einsum("nk,nkp->np", parts, layer.weights(observations.gradients))
        images = images / (parts * slopes).sum(dim=1, keepdim=True)
        finite = images.isfinite().all(dim=1)
        images = images.where(finite[:, None], 0.0).view(len(observations), *observations.batch_shape)
        return Reconstruction(images, None, torch.where(finite, -1, 0))

    def _layer(self, network: Network, batch_shape: tuple[int, ...]) -> tuple[LinearLayer, slice]:
        """The first layer, and where its biases are."""
        if (batch := batch_shape[0]) != 1:
            raise Infeasible(
                f"attack 'analytic' finds the image of a client that holds one; these hold {batch}; list 'spear' or "
                "'cocktail_party'"
            )
        return first_layer(network, batch_shape, self.name)


def first_layer(network: Network, batch_shape: tuple[int, ...], attack: str) -> tuple[LinearLayer, slice]:
    """The fully connected layer that reads the image, and where its biases are.

    Args:
        network: the model.
        batch_shape: ``(B, C, H, W)`` of each client's inputs.
        attack: name of the attack, for the message.

    Raises:
        Infeasible: the model begins otherwise, the layer has no bias, or other layers hold its parameters too.
    """
    layer = network.first_linear
    if layer is None or layer.inputs != torch.Size(batch_shape[1:]).numel():
        raise Infeasible(
            f"attack '{attack}' needs a model whose first layer is fully connected on the flattened image "
            f"('linear', 'mlp'), and this one begins otherwise; {INSTEAD}"
        )
    if layer.bias is None:
        raise Infeasible(
            f"attack '{attack}' reads the gradient of the first layer's bias, and that layer has none; {INSTEAD}"
        )
    if others := _tied(network):
        raise Infeasible(
            f"attack '{attack}' reads the gradient of the first layer alone, and '{others[0]}' is the same tensor as "
            f"one of its parameters, whose gradients add up; {INSTEAD}"
        )
    return layer, layer.bias


def opening(network: Network) -> list[torch.nn.Module]:
    """The modules in the order in which they run, as far as that is known, without what only reshapes."""
    shapes = torch.nn.Flatten | torch.nn.Identity
    return [each for each in flat_modules(network.module) if not isinstance(each, shapes)]


def _tied(network: Network) -> list[str]:
    """Further names, beyond their first ones, under which the model holds the first layer's parameters."""
    first = {id(each) for each in opening(network)[0].parameters()}
    names = [name for name, each in network.module.named_parameters(remove_duplicate=False) if id(each) in first]
    return names[len(first) :]
