"""Cocktail Party: batches behind a fully connected first layer as signals to be unmixed (Kariyappa et al., ICML 2023).

Every row of the gradient of the layer's weights, ``G = D X`` with the images in the rows of ``X``, ``[B, F]``, mixes
the images of the batch, or of the users behind a sum. Whitened, ``V X``, the mixtures differ from the images by a
matrix ``U``, whose rows are searched for: signals that are far from normal (negentropy), unlike each other, and smooth
as images. All local steps mix the same images, so that their update is unmixed as one gradient is.

The authors' released code computes the negentropy and then sets its loss to zero, so that smoothness and difference
alone decide. It also stretches each signal to the range of pixels, and takes its sign from the truth; here scale and
sign follow from the gradient of the layer's biases, as in SPEAR.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from leakbench.attacks.analytic import INSTEAD, first_layer
from leakbench.attacks.base import ATTACKS, Attack, ClientSetup, Knowledge, Observations, Reconstruction
from leakbench.attacks.engine import Cost, TrialData, minimise
from leakbench.attacks.optimisers import Adam, Optimiser
from leakbench.attacks.regularisers import Scene, TotalVariation
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.models.base import LinearLayer, Network
from leakbench.randomness import Streams

NORMAL = 0.374567
"""``E log cosh v`` of a standard normal ``v``."""
RANK = 1e-9
"""Part of the largest singular value of the centred gradient below which a direction is rounding."""


@ATTACKS.register("cocktail_party", version=1)
class CocktailParty(Attack):
    """Images of a large batch, or of a sum of users, unmixed from the gradient of a fully connected first layer.

    Where the gradient mixes fewer images than there are, the client's images are zero and marked as diverged at 0.
    """

    form: Literal["corrected", "as_released"] = Field(
        "corrected", description="as_released: without the negentropy, whose loss the released code sets to zero"
    )
    negentropy: float = Field(1.0, ge=0, description="weight of the distance from normal signals")
    total_variation: float = Field(3.1, ge=0, description="weight of total variation, of signals with variance one")
    decorrelation: float = Field(0.1, ge=0, description="weight of the penalty on signals that are alike")
    temperature: float = Field(5.0, gt=0, description="how fast that grows with the cosine of their rows of U")
    optimiser: Optimiser = Field(Adam(rate=0.01, signed=False, decay="none"), description="how U moves")
    iterations: int = Field(3000, ge=1, description="evaluations of the objective's gradient")

    def varied(self, prior: float, rate: float) -> CocktailParty:
        return self.model_copy(
            update={"total_variation": prior * self.total_variation, "optimiser": self.optimiser.times(rate)}
        )

    def effort(self, samples: int) -> Effort:
        return Effort(1, 1).times(self.iterations)

    @property
    def repeats_steps(self) -> bool:
        return False

    def check_clients(self, clients: ClientSetup) -> None:
        self._layer(clients.network, clients.batch_shape)

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        """Unmix every client's images, in no particular order, and independently of ``streams``.

        Raises:
            Infeasible: a first layer that is not fully connected with a bias, or one that is narrower than the batch.
        """
        layer, biases = self._layer(observations.network, observations.batch_shape)
        batch = observations.batch_shape[0]
        mixtures, slopes, mixed = _prepared(observations, layer, biases)
        signals = whitened(mixtures, batch)
        flat = signals.flatten(1).to(observations.gradients)
        start = torch.eye(batch, device=flat.device, dtype=flat.dtype).flatten().expand(len(flat), -1).clone()

        def data(trials: torch.Tensor) -> TrialData:
            return {"target": flat[trials]}

        minimum = minimise(self.cost(observations.batch_shape), start, data, self.optimiser, self.iterations)
        unmixed = _rows(minimum.points.double(), batch) @ signals
        images = scaled(unmixed, mixtures, slopes)
        usable = mixed & (minimum.diverged_at < 0) & images.isfinite().all(dim=(1, 2))
        images = images.where(usable[:, None, None], 0.0).to(observations.gradients)
        marked = torch.where(usable | (minimum.diverged_at > 0), minimum.diverged_at, 0)
        return Reconstruction(images.view(-1, *observations.batch_shape), minimum.objective, marked)

    def _layer(self, network: Network, batch_shape: tuple[int, ...]) -> tuple[LinearLayer, slice]:
        """The first layer, and where its biases are."""
        layer, biases = first_layer(network, batch_shape, self.name)
        batch = batch_shape[0]
        if batch > min(layer.outputs, layer.inputs - 1):
            raise Infeasible(
                f"attack '{self.name}' unmixes at most as many images as the gradient's rank; a batch of {batch} needs "
                f"a first layer of at least {batch} units and {batch + 1} inputs, and this one has {layer.outputs} and "
                f"{layer.inputs}; {INSTEAD}"
            )
        if layer == network.head and batch == layer.outputs:
            raise Infeasible(
                f"attack '{self.name}' unmixes at most as many images as the gradient's rank; those of {batch} logits "
                f"add up to zero, so that they mix {batch - 1}; {INSTEAD}"
            )
        return layer, biases

    def cost(self, batch_shape: tuple[int, ...]) -> Cost:
        """The objective of one client's ``U``, ``[B B]``, for signals ``[B F]`` as :func:`whitened` returns them."""
        batch = batch_shape[0]
        smoothness = TotalVariation(weight=self.total_variation)
        scene = Scene(None, lambda _: {}, {})

        def cost(variables: torch.Tensor, data: TrialData) -> torch.Tensor:
            rows, whole = _rows(variables, batch), data["target"].unflatten(-1, (batch, -1))
            value = self.decorrelation * ((rows @ rows.mT).abs() * self.temperature).expm1().mean()
            signals = rows @ whole
            if self.form == "corrected":
                centred = signals - signals.mean(dim=-1, keepdim=True)
                # log cosh s, without overflow
                sizes = (torch.nn.functional.softplus(2 * centred) - centred - math.log(2)).mean(dim=-1)
                value = value - self.negentropy * (sizes - NORMAL).square().mean()
            if smoothness.weight:
                value = value + smoothness.weight * smoothness(signals.view(batch_shape), scene)
            return value

        return cost


@ATTACKS.register("cocktail_party_as_released", version=1)
class CocktailPartyAsReleased(CocktailParty):
    """Cocktail Party as the authors' code runs it on Tiny-ImageNet, where the negentropy has no effect.

    25,000 steps of Adam from 0.001; TV 3.1, decorrelation 1.47 at a temperature of 12.4.
    """

    form: Literal["corrected", "as_released"] = "as_released"
    decorrelation: float = Field(1.47, ge=0, description="weight of the penalty on signals that are alike")
    temperature: float = Field(12.4, gt=0, description="how fast that grows with the cosine of their rows of U")
    optimiser: Optimiser = Field(Adam(rate=0.001, signed=False, decay="none"), description="how U moves")
    iterations: int = Field(25_000, ge=1, description="evaluations of the objective's gradient")


def _prepared(
    observations: Observations, layer: LinearLayer, biases: slice
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of the layer's weights ``[n, m, F]`` and biases ``[n, m]``, and whether they mix B images, ``[n]``."""
    gradients = observations.gradients.double()
    finite = gradients.isfinite().all(dim=1)
    weight, slopes = layer.weights(gradients), gradients[:, biases]
    values = torch.linalg.svdvals((weight - weight.mean(dim=2, keepdim=True)).where(finite[:, None, None], 0.0))
    batch = observations.batch_shape[0]
    mixed = finite & (values[:, batch - 1] > RANK * values[:, 0])
    # Anything of full rank in place of what cannot be unmixed: no row disturbs the others.
    noise = torch.eye(weight.shape[1], weight.shape[2], dtype=weight.dtype, device=weight.device)
    return weight.where(mixed[:, None, None], noise), slopes.where(mixed[:, None], 1.0), mixed


def whitened(mixtures: torch.Tensor, batch: int) -> torch.Tensor:
    """The B strongest uncorrelated signals, with variance one and each with its own mean, ``[n, B, F]``.

    Args:
        mixtures: ``[n, m, F]``.
        batch: B.
    """
    centred = mixtures - mixtures.mean(dim=2, keepdim=True)
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    spread = values[:, :batch] / math.sqrt(mixtures.shape[2] - 1)
    signals: torch.Tensor = left[..., :batch].mT @ mixtures / spread[..., None]
    return signals


def scaled(signals: torch.Tensor, mixtures: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """The images behind unmixed signals, ``[n, B, F]``: with ``G = A S`` and ``db = A s``, image i is ``S_i / s_i``.

    Args:
        signals: ``S``, the images up to a factor each, ``[n, B, F]``.
        mixtures: ``G``, gradients of the weights, ``[n, m, F]``.
        slopes: ``db``, gradients of the biases, ``[n, m]``.
    """
    mixing = mixtures @ torch.linalg.pinv(signals)
    factors = torch.linalg.pinv(mixing) @ slopes[..., None]
    images: torch.Tensor = signals / factors
    return images


def _rows(variables: torch.Tensor, batch: int) -> torch.Tensor:
    """The rows of ``U``, of length one, ``[..., B, B]``."""
    matrix = variables.unflatten(-1, (batch, batch))
    rows: torch.Tensor = matrix / torch.linalg.vector_norm(matrix, dim=-1, keepdim=True)
    return rows
