"""Robbing the Fed: a model that keeps every image of a batch apart from the others (Fowl et al., ICLR 2022).

The server sends a first layer whose units all measure the brightness of the image, ``h x``, and are active above
thresholds that cut the images of the world into bins of equal probability. Weights behind them are equal, so that an
image adds the same ``s (x, 1)`` to the gradient of weights and bias of every unit below its brightness: as a sequence
of units the gradient is constant but for a jump at every image. The ratio of the jump's parts is the image. That
survives sums over users, whose images are only more jumps.

Under a defense units between two jumps still agree in all but the defense's noise, which their mean averages out, and
their spread shows.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pydantic import Field, PrivateAttr

from leakbench.attacks.analytic import INSTEAD, first_layer, opening
from leakbench.attacks.base import ATTACKS, Attack, ClientSetup, Grant, Knowledge, Observations, Reconstruction
from leakbench.errors import Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.lazy import torch
from leakbench.models.base import LinearLayer, Network
from leakbench.models.imprint import MEASURE, imprinted
from leakbench.randomness import Streams

SHIFT = 0.1
"""Largest part of its brightness, above that of a black image, that an image gains in the added layer."""
FAR = 10.0
"""Standard deviations below the mean at which the lowest bin begins."""
ROUNDING = 1e-5
"""Part of the largest sum of gradients below which a jump is rounding."""
CLEAR = 2.0
"""Squared size of a jump over that of the noise, from which on it is an image."""
PLAUSIBLE = 10.0
"""Squared distance of an image from the mean image, over the variance of images, up to which it is one."""
LEAST = 0.01
"""Least variance of a pixel, over that of the mean pixel: auxiliary images are few."""


@ATTACKS.register("robbing_the_fed", version=1)
class RobbingTheFed(Attack):
    """Every image that is alone in its bin of brightness, exactly, from a model that the server has changed.

    Quantiles of brightness are those of auxiliary images where they are granted, and of a normal distribution where
    these are fewer than bins. The images in one bin come back as one mixture. What is not found is the mean auxiliary
    image, or zero.
    """

    form: Literal["module", "parameters"] = Field(
        "module",
        description="module: a layer in front of any model, which adds a number to every pixel; parameters: a fully "
        "connected first layer before ReLU, and equal columns in the fully connected layer that reads it",
    )
    bins: int = Field(128, ge=2, description="bins of the module; 'parameters' has one per unit of the first layer")
    amplification: float = Field(
        1.0,
        gt=0,
        description="factor of the weights behind the layer, and of the gradients that images leave in it; those in "
        "the layer shrink by as much, so that its output is the same",
    )
    mean: float = Field(
        0.0, ge=-10, le=10, description="mean brightness of images, in network inputs, without auxiliary ones"
    )
    spread: float = Field(0.4, gt=0, description="its standard deviation, likewise")
    _valid_pixels: bool = PrivateAttr(True)  # or else as read, for who takes the noise off

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"modified_model"})

    def auxiliary(self, granted: int) -> int:
        return granted  # a help, not a need

    def without_prior(self) -> RobbingTheFed:
        noisy = self.model_copy()
        noisy._valid_pixels = False
        return noisy

    def check_clients(self, clients: ClientSetup) -> None:
        self._check_images(clients.batch_shape)
        self._check_step(clients.local, clients.batch_shape[0])
        if self.form == "parameters":
            _first_layers(clients.network, clients.batch_shape, self.name)

    def prepare(self, network: Network, batch_shape: tuple[int, ...], knowledge: Knowledge) -> Network:
        """The model with thresholds in its first layer.

        Raises:
            Infeasible: inputs are no images; or form 'parameters', and the model does not begin with a fully connected
                layer with parameters of its own, ReLU and another fully connected layer.
        """
        self._check_images(batch_shape)
        module = copy.deepcopy(network.module)
        if self.form == "module":
            like, inputs = network.parameters, torch.Size(batch_shape[1:]).numel()
            thresholds = self._thresholds(knowledge, self.bins).to(like)
            answer = torch.full_like(thresholds, self.amplification)
            weights, biases = _measuring(thresholds, inputs, self.amplification)
            return network.holding(imprinted(module, weights, biases, answer))
        sent = network.holding(module)
        first, second = _first_layers(sent, batch_shape, self.name)
        thresholds = self._thresholds(knowledge, first.out_features).to(first.weight)
        weights, biases = _measuring(thresholds, first.in_features, self.amplification)
        first.load_state_dict({"weight": weights, "bias": biases})
        equal = (self.amplification * second.weight[:, :1]).expand_as(second.weight)
        second.load_state_dict(second.state_dict() | {"weight": equal})
        return sent

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        """Reconstruct the images in the order of their brightness, from dark to bright, independently of ``streams``.

        Raises:
            Infeasible: the model is not one that :meth:`prepare` made; several local steps.
        """
        batch, *shape = observations.batch_shape
        self._check_step(observations.local, batch)
        layer, bias = self._layer(observations)
        units = torch.cat([layer.weights(observations.gradients), observations.gradients[:, bias, None]], dim=2)
        seen = torch.ones_like(units, dtype=torch.bool)
        if observations.marked is not None:
            marks = observations.marked
            seen = ~torch.cat([layer.weights(marks), marks[:, bias, None]], dim=2)
        parameters = observations.one_model(self.name).double()
        bins = _Bins.of(layer.weights(parameters)[0], parameters[bias])
        prior = _Prior.of(knowledge, parameters, layer.inputs)
        images = torch.stack(
            [
                _images(Jumps.of(values, known, batch), bins, batch, prior)
                for values, known in zip(units.double(), seen, strict=True)
            ]
        )
        images = images.to(observations.gradients).view(-1, batch, *shape)
        if knowledge.pixel_range is not None and self._valid_pixels:
            images = images.clamp(*knowledge.pixel_range.to(images))
        return Reconstruction(images, None, torch.full((len(images),), -1, device=images.device))

    def _check_images(self, batch_shape: tuple[int, ...]) -> None:
        if len(batch_shape) != 4:
            raise Infeasible(f"attack '{self.name}' measures images, and inputs have shape {list(batch_shape[1:])}")

    def _check_step(self, local: LocalTraining, samples: int) -> None:
        if not local.is_gradient(samples):
            raise Infeasible(
                f"attack '{self.name}' reads the gradient of one step, and clients take several; {INSTEAD}"
            )

    def _thresholds(self, knowledge: Knowledge, bins: int) -> torch.Tensor:
        """Quantiles of brightness, float64 ``[bins]``, of which the first is below that of any image."""
        parts = torch.arange(1, bins, dtype=torch.float64) / bins
        mean, spread = torch.tensor(self.mean, dtype=torch.float64), self.spread
        known = knowledge.auxiliary_images
        if known is not None:
            brightness = known.double().flatten(1).mean(dim=1).cpu()
            mean, spread = brightness.mean(), float(brightness.std(correction=0))
        if known is not None and len(known) >= bins:
            quantiles = brightness.quantile(parts)
        else:
            quantiles = mean + spread * torch.special.ndtri(parts)
        return torch.cat([(mean - FAR * spread)[None], quantiles])

    def _layer(self, observations: Observations) -> tuple[LinearLayer, slice]:
        """The layer that measures, and the place of its biases.

        Raises:
            Infeasible: the model is not one that :meth:`prepare` made.
        """
        if self.form == "parameters":
            layer, bias = first_layer(observations.network, observations.batch_shape, self.name)
        else:
            measure = observations.network.linear_layers.get(MEASURE)
            if measure is None or measure.bias is None:
                raise Infeasible(f"attack '{self.name}' reads a layer of its own, and clients got a model without it")
            layer, bias = measure, measure.bias
        rows = layer.weights(observations.one_model(self.name))
        if bool((rows != rows[:1]).any()):
            raise Infeasible(f"attack '{self.name}' reads units that measure one number, and clients got other ones")
        return layer, bias


def _measuring(thresholds: torch.Tensor, inputs: int, amplification: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights ``[bins, inputs]`` and biases ``[bins]`` of units that are active above thresholds of brightness."""
    scale = SHIFT / (len(thresholds) * amplification)
    return thresholds.new_full((len(thresholds), inputs), scale / inputs), -scale * thresholds


def _first_layers(
    network: Network, batch_shape: tuple[int, ...], attack: str
) -> tuple[torch.nn.Linear, torch.nn.Linear]:
    """The first two layers of a fully connected model with ReLU between them.

    Raises:
        Infeasible: it begins otherwise, or other layers hold the first one's parameters too.
    """
    nn, modules = torch.nn, opening(network)
    kinds = [type(each) for each in modules[:3]]
    if kinds != [nn.Linear, nn.ReLU, nn.Linear]:
        raise Infeasible(
            f"attack '{attack}' with form: parameters needs a model that begins with a fully connected layer, ReLU and "
            "another fully connected layer ('mlp'); form: module suits any"
        )
    first, _, second = modules[:3]
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    if "bias" not in first.state_dict():
        raise Infeasible(
            f"attack '{attack}' puts thresholds into biases, and the first layer has none; form: module suits any model"
        )
    first_layer(network, batch_shape, attack)  # raises
    return first, second


def expected_alone(bins: int, images: int) -> float:
    """Expected part of the images that are alone in their bin, where bins are equally probable.

    >>> expected_alone(bins=2, images=2)
    0.5
    """
    return float((1 - 1 / bins) ** (images - 1))


@dataclass(frozen=True)
class Jumps:
    """Places at which a sequence of units ``0 ... K`` jumps, where unit K is zero, and its means between them.

    Attributes:
        places: the first unit behind each jump, from 1 to K, ``[J]``.
        sizes: mean before less mean behind, ``[J, F + 1]``.
        variances: of these, infinite where no unit is known, ``[J, F + 1]``.
    """

    places: torch.Tensor
    sizes: torch.Tensor
    variances: torch.Tensor

    @classmethod
    def of(cls, units: torch.Tensor, known: torch.Tensor, most: int) -> Jumps:
        """The jumps that explain the units best by least squares, without those that noise explains.

        Args:
            units: their gradients, float64 ``[K, F + 1]``.
            known: which of these the message shows, boolean; others play no part.
            most: number of jumps.
        """
        most = min(most, len(units))
        sums, missing = _Sums.of(units, known), _variance_of_missing(units, known)
        first = cls._at(_best_places(sums, most), sums, missing)
        size, noise = first.sizes.square(), first.variances
        size, noise = (torch.where(noise.isfinite(), part, 0.0).sum(dim=1) for part in (size, noise))
        largest = torch.where(known, units, 0.0).square().sum(dim=1).max()
        clear = (size > CLEAR * noise) & (size > ROUNDING**2 * largest)
        return cls._at(first.places[clear], sums, missing)

    @classmethod
    def _at(cls, places: torch.Tensor, sums: _Sums, missing: float) -> Jumps:
        """The jumps at these places, where a mean of nothing is zero with the variance ``missing``."""
        ends = torch.cat([places, places.new_tensor([len(sums.counts) - 1])])
        starts = torch.cat([places.new_zeros(1), places])
        counts, totals, squares = (part[ends] - part[starts] for part in sums)
        means = totals / counts.clamp(min=1)
        means[-1] = 0.0  # no image is above
        spread = (squares - counts * means.square()).clamp(min=0).sum()
        freedom = (counts.sum() - (counts[:-1] > 0).sum()).clamp(min=1)
        variances = torch.where(counts > 0, spread / freedom / counts, missing)
        variances[-1] = 0.0
        return cls(places, means[:-1] - means[1:], variances[:-1] + variances[1:])


def _variance_of_missing(units: torch.Tensor, known: torch.Tensor) -> float:
    """Variance of gradients that the message lacks: infinite, unless their size decides that.

    Then equal units lack the same ones, which are smaller than the smallest that is there.
    """
    alike = (known[1:] == known[:-1]).all(dim=1).double().mean()
    if alike < 0.5 or not bool(known.any()):
        return torch.inf
    return float(units[known].abs().min()) ** 2 / 3


class _Sums(NamedTuple):
    """Numbers, sums and sums of squares of what is known of the units before each, float64 ``[K + 1, F + 1]``."""

    counts: torch.Tensor
    totals: torch.Tensor
    squares: torch.Tensor

    @classmethod
    def of(cls, units: torch.Tensor, known: torch.Tensor) -> _Sums:
        weights, values = known.to(units), torch.where(known, units, 0.0)
        parts = (part.cumsum(dim=0) for part in (weights, values, values.square()))
        return cls(*(torch.cat([torch.zeros_like(part[:1]), part]) for part in parts))


def _best_places(sums: _Sums, most: int) -> torch.Tensor:
    """Places of ``most`` jumps with the least squared errors, by dynamic programming."""
    last = len(sums.counts) - 1
    errors = sums.counts.new_full((last + 1, last + 1), torch.inf)  # of the units from one to another
    for start in range(last):
        counts, totals, squares = (part[start + 1 :] - part[start] for part in sums)
        errors[start, start + 1 :] = (squares - totals.square() / counts.clamp(min=1)).sum(dim=1)
    best, before = errors[0], []
    for _ in range(1, most):
        best, chosen = (best[:, None] + errors).min(dim=0)
        before.append(chosen)
    places = [int((best + (sums.squares[-1:] - sums.squares).sum(dim=1)).argmin())]
    for chosen in reversed(before):
        places.insert(0, int(chosen[places[0]]))
    return torch.tensor(places, device=errors.device)


class _Bins(NamedTuple):
    """The bins of the measured number.

    Attributes:
        measure: weights of the units, ``[F]``.
        centres: the middles of the bins, ``[K]``.
        widths: their widths, ``[K]``.
    """

    measure: torch.Tensor
    centres: torch.Tensor
    widths: torch.Tensor

    @classmethod
    def of(cls, measure: torch.Tensor, biases: torch.Tensor) -> _Bins:
        """The bins of units with these biases; the highest is as wide as the lowest."""
        edges = torch.cat([-biases, (biases[0] - biases[1] - biases[-1])[None]])
        return cls(measure, (edges[1:] + edges[:-1]) / 2, edges[1:] - edges[:-1])


class _Prior(NamedTuple):
    """Mean and variance of each pixel, ``[F]``."""

    mean: torch.Tensor
    variance: torch.Tensor

    @classmethod
    def of(cls, knowledge: Knowledge, like: torch.Tensor, pixels: int) -> _Prior:
        """Moments of auxiliary images, or of normalised inputs, with the type and device of ``like``."""
        if knowledge.auxiliary_images is None:
            return cls(like.new_zeros(pixels), like.new_ones(pixels))
        images = knowledge.auxiliary_images.flatten(1).to(like)
        variance = images.var(dim=0, correction=0)
        return cls(images.mean(dim=0), variance.clamp(min=LEAST * float(variance.mean())))


def _images(jumps: Jumps, bins: _Bins, batch: int, prior: _Prior) -> torch.Tensor:
    """The images of jumps, ``[B, F]``: ``s (x, 1)`` with noise, where x is in the jump's bin.

    The scale ``s`` is what the jump of the bias and the brightness of the jump of the weights say together; pixels that
    noise hides are near the mean image's.
    """
    tiny = torch.finfo(jumps.sizes.dtype).tiny
    sizes, variances = jumps.sizes[:, :-1], jumps.variances[:, :-1]
    scale, trust = jumps.sizes[:, -1], 1 / (jumps.variances[:, -1] + tiny)
    centre, width = bins.centres[jumps.places - 1], bins.widths[jumps.places - 1]
    spread = variances @ bins.measure.square() + scale.square() * width.square() / 12
    bright = torch.where(spread.isfinite(), 1 / (spread + tiny), 0.0)
    scale = (trust * scale + bright * centre * (sizes @ bins.measure)) / (trust + bright * centre.square())
    scale = scale[:, None]
    power = scale.square() * prior.variance
    images = prior.mean + power / (power + variances) * (sizes / scale - prior.mean)
    distance = (images - prior.mean).square().mean(dim=1, keepdim=True) / prior.variance.mean()
    images = torch.where(distance <= PLAUSIBLE, images, prior.mean)
    return torch.cat([images, prior.mean.expand(batch - len(images), -1)])
