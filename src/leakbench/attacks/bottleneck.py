"""Attack a model with a variational bottleneck, whose noise is known or searched for (PRECODE: Scheliga et al. 2022).

Encoder and decoder are fully connected layers with biases. So the gradient of a single image shows what either reads:
the features ``f`` and the code ``z``, whose noise is ``(z - mean(f)) / deviation(f)``. Of several images it shows sums;
their noise is one more unknown, as Scheliga et al. (2023) search for the masks of dropout.

The gradients of the bottleneck and of what comes behind it are most of the update and follow the noise most, so that
the authors themselves leave them out (arXiv 2208.04767), as Balunovic et al. (2022) do with Soteria's layer. The
others still follow the noise, through the errors that come back: to leave layers out is not enough.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from leakbench.attacks.adaptive import Wrapper, weighted
from leakbench.attacks.base import ATTACKS, ClientSetup, CodeNoise, Knowledge, Observations
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.models.base import LinearLayer, Network
from leakbench.models.bottleneck import ExtendedNetwork, deviation
from leakbench.randomness import Streams


@ATTACKS.register("bottleneck", version=1)
class Bottleneck(Wrapper):
    """Match the gradients in front of a variational bottleneck, with the noise that the clients drew in it.

    In one step on one image the noise is read off the gradient. Else gradient matching varies it with the images, from
    zeros on; another attack inside takes it for zero. Of a model that begins with the bottleneck all is matched.
    """

    noise: Literal["read", "search"] = Field(
        "read", description="read: off the gradient of a single image, and searched for else; search: always"
    )

    def check_clients(self, clients: ClientSetup) -> None:
        self._extended(clients.network)
        super().check_clients(clients)

    def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
        network, batch = self._extended(observations.network), observations.batch_shape[0]
        if self.noise == "read" and batch == 1 and observations.local.is_gradient(batch):
            noise = CodeNoise(noise_read(network, observations), known=True)
        else:
            zeros = observations.gradients.new_zeros(len(observations), batch, network.bottleneck.width)
            noise = CodeNoise(zeros, known=False)
        behind = torch.zeros_like(observations.gradients)
        for layer in (*network.coders, network.head):
            for part in (layer.weight, layer.bias):
                if part is not None:
                    behind[:, part] = 1
        seen = observations if bool(behind.all()) else weighted(observations, 1 - behind)
        return replace(seen, code_noise=noise)

    def _extended(self, network: Network) -> ExtendedNetwork:
        """The network, if it has a bottleneck.

        Raises:
            Infeasible: it has none.
        """
        if not isinstance(network, ExtendedNetwork):
            raise Infeasible(
                f"attack '{self.name}' looks for the noise of a bottleneck, and the clients' model has none; it is for "
                "the defense 'precode'"
            )
        return network


def noise_read(network: ExtendedNetwork, observations: Observations) -> torch.Tensor:
    """The noise in each gradient of one image, ``[n, 1, K]``; zero where the gradient shows none."""
    encoder, decoder = network.coders
    gradients = observations.gradients.double()
    parameters = observations.parameters.double().expand_as(gradients)
    features, code = (_read(layer, gradients) for layer in (encoder, decoder))
    assert encoder.bias is not None
    encoded = torch.einsum("nok,nk->no", encoder.weights(parameters), features) + parameters[:, encoder.bias]
    mean, raw = encoded.chunk(2, dim=1)
    noise = (code - mean) / deviation(raw)
    return torch.where(noise.isfinite(), noise, 0.0).to(observations.gradients)[:, None]


def _read(layer: LinearLayer, gradients: torch.Tensor) -> torch.Tensor:
    """The inputs of a layer from gradients of one image, ``[n, inputs]``: those of weights over those of biases."""
    assert layer.bias is not None
    slopes = gradients[:, layer.bias]
    parts = slopes / slopes.abs().amax(dim=1, keepdim=True)  # whose squares do not vanish
    return torch.einsum("no,noi->ni", parts, layer.weights(gradients)) / (parts * slopes).sum(dim=1, keepdim=True)
