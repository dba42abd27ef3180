"""Attackers that know the defense: wrappers, which change what any other attack sees.

A wrapper turns observations into better observations (weights, repaired gradients, a mechanism to run) and hands them
on, so wrappers stack. A defense may declare the stack that suits it, its natural adaptive attacker; the attack
``adaptive`` asks for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from leakbench.attacks.base import (
    ATTACKS,
    Attack,
    ClientSetup,
    Grant,
    Knowledge,
    Observations,
    Reconstruction,
    each_round,
)
from leakbench.attacks.image_law import ImageLaw
from leakbench.data.covariance import moments_of
from leakbench.effort import Effort
from leakbench.errors import ConfigError, Infeasible, UnknownName
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.randomness import Streams
from leakbench.theory.denoising import posterior_mean

DEFAULT: tuple[Mapping[str, Any], ...] = ({"name": "simulated"},)
"""The adaptive attacker of a defense that declares none."""


class Wrapper(Attack):
    """An attack around another one. ``attack`` is the label of a variant, or a name with parameters."""

    adds: ClassVar[frozenset[Grant]] = frozenset()
    """Side knowledge that the wrapper needs beside that of the attack inside."""
    adapts: ClassVar[bool] = True
    """Whether it is meant to do better than the attack inside on the same target because of a defense: if it does
    worse, the defense is under-attacked."""

    attack: SerializeAsAny[Attack] = Field(description="the attack inside: label of a variant, or name and parameters")

    @field_validator("attack", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            given = dict(value)
            given.pop("version", None)
            return ATTACKS.get(str(given.pop("name", None)), "attack")(**given)
        return value

    @field_validator("attack", mode="after")
    @classmethod
    def _sees_observations(cls, attack: Attack) -> Attack:
        if not attack.observes:
            raise ValueError(f"'{attack.name}' is a reference attacker: it ignores what a wrapper would change")
        if attack.outermost:
            raise ValueError(f"'{attack.name}' goes around other wrappers, not into them: put it outside")
        return attack

    def parameters(self) -> dict[str, Any]:
        inside = {"name": self.attack.name, "version": self.attack.version, **self.attack.parameters()}
        return super().parameters() | {"attack": inside}

    @property
    def needs(self) -> frozenset[Grant]:
        return self.attack.needs | self.adds

    @property
    def changes_model(self) -> bool:
        return self.attack.changes_model

    def prepare(self, network: Network, batch_shape: tuple[int, ...], knowledge: Knowledge) -> Network:
        return self.attack.prepare(network, batch_shape, knowledge)

    @property
    def several_models(self) -> bool:
        return self.attack.several_models

    @property
    def several_rounds(self) -> bool:
        return self.attack.several_rounds

    @property
    def reconstructs(self) -> Literal["images", "sentences"]:
        return self.attack.reconstructs

    def against(self, adaptive: Sequence[Mapping[str, Any]]) -> Attack:
        return self.model_copy(update={"attack": self.attack.against(adaptive)})

    @property
    def repeats_steps(self) -> bool:
        return self.attack.repeats_steps

    def check_clients(self, clients: ClientSetup) -> None:
        self.attack.check_clients(clients)

    def varied(self, prior: float, rate: float) -> Attack:
        return self.model_copy(update={"attack": self.attack.varied(prior, rate)})

    @property
    def ignorant(self) -> Attack:
        inside = self.attack.ignorant
        return inside if self.adapts else self.model_copy(update={"attack": inside})

    def without_prior(self) -> Attack:
        return self.model_copy(update={"attack": self.attack.without_prior()})

    @property
    def of_noisy_images(self) -> Attack | None:
        inside = self.attack.of_noisy_images
        return None if inside is None else self.model_copy(update={"attack": inside})

    def settled(self, observations: Observations, knowledge: Knowledge) -> tuple[Attack, Knowledge]:
        attack, knowledge = self.attack.settled(observations, knowledge)
        return (self, knowledge) if attack is self.attack else (self.model_copy(update={"attack": attack}), knowledge)

    def image_law(self, observations: Observations, knowledge: Knowledge) -> ImageLaw | None:
        return self.attack.image_law(observations, knowledge)

    def effort(self, samples: int) -> Effort:
        return self.attack.effort(samples)

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        wrapper = self
        if "mechanism" in self.adds:  # with which labels are inferred better
            attack, knowledge = self.attack.settled(observations, knowledge)
            wrapper = self if attack is self.attack else self.model_copy(update={"attack": attack})
        return wrapper.around(observations, knowledge, streams)

    def around(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        """Reconstruct from every round improved, by the attack inside."""
        first = self.improve(observations, knowledge, streams)
        later = tuple(
            self.improve(seen, known, streams.child("round", number))
            for number, (seen, known) in enumerate(each_round(observations, knowledge)[1:], 1)
        )
        return self.attack.reconstruct(replace(first, later=later) if later else first, knowledge, streams)

    def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
        """The observations of a round that the attack inside sees instead.

        Raises:
            Infeasible: the message does not show what the wrapper works with.
        """
        raise NotImplementedError


@ATTACKS.register("adaptive", version=1)
class Adaptive(Wrapper):
    """The attack inside, in the wrappers that the defense at hand declares; by default it is simulated.

    Wrappers may change what is minimised, and so what a prior's weight means: a log-likelihood is held against 0.01 of
    total variation, where the cosine distance of a published attack may do without any.
    """

    added: ClassVar[tuple[str, ...]] = ("prior", "iterations", "training")

    prior: float = Field(1.0, gt=0, description="factor of the weights of the regularisers of the attack inside")
    iterations: int | None = Field(None, ge=1, description="of the attack inside; its own by default")
    training: int | None = Field(
        None, ge=1, description="steps in which a wrapper trains a network, if it does; its own by default"
    )

    @model_validator(mode="after")
    def _searches(self) -> Adaptive:
        if self.iterations is not None and "iterations" not in type(self.attack).model_fields:
            raise ValueError(f"'{self.attack.name}' has no iterations; leave them out")
        return self

    @property
    def _inside(self) -> Attack:
        longer = {} if self.iterations is None else {"iterations": self.iterations}
        return self.attack.varied(self.prior, 1.0).model_copy(update=longer)

    def effort(self, samples: int) -> Effort:
        return self._inside.effort(samples)

    def against(self, adaptive: Sequence[Mapping[str, Any]]) -> Attack:
        attack = self._inside.against(adaptive)
        for declared in adaptive or DEFAULT:
            given = dict(declared)
            wrapper = ATTACKS.get(str(given.pop("name", None)), "the defense's declaration 'adaptive'")
            if self.training is not None and "iterations" in wrapper.model_fields:
                given["iterations"] = self.training
            attack = wrapper(**given, **{"attack": attack})
        return attack


def weighted(observations: Observations, weights: torch.Tensor) -> Observations:
    """Observations whose weights are multiplied by ``weights``, ``[n, d]``."""
    known = observations.weights
    return replace(observations, weights=weights if known is None else known * weights)


def _without_gain(observations: Observations) -> Observations:
    """Observations with the public gain divided out."""
    gain, repeats = observations.gain, observations.repeats
    if gain is None:
        return observations
    repeats = None if repeats is None else repeats / gain[:, :, None]
    return replace(observations, gradients=observations.gradients / gain, repeats=repeats, gain=None)


def _known_marks(marked: torch.Tensor | None) -> torch.Tensor:
    if marked is None:
        raise Infeasible("the defense marks no coordinates: its message shows none that it pruned or clipped")
    return marked


@ATTACKS.register("masked", version=1)
class Masked(Wrapper):
    """Ignore the coordinates that the message shows to be pruned, clipped or out of range.

    The public gain of the others is divided out.
    """

    def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
        unmarked = (~_known_marks(observations.marked)).to(observations.gradients)
        return weighted(_without_gain(observations), unmarked)


@ATTACKS.register("dropped_layers", version=1)
class DroppedLayers(Wrapper):
    """Ignore whole layers, for defenses that protect some alone (Balunovic et al. 2022, against Soteria)."""

    layers: tuple[str, ...] = Field(
        min_length=1, description="names of parameters, or how they begin: 'fc_layers.1' stands for weight and bias"
    )

    def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
        matched = ~coordinates_of(observations, self.layers, self.name)
        if not bool(matched.any()):
            raise ConfigError("attack 'dropped_layers': no layer is left to match; name fewer")
        return weighted(observations, matched.float().expand_as(observations.gradients))


def coordinates_of(observations: Observations, layers: Sequence[str], attack: str) -> torch.Tensor:
    """The coordinates of layers, boolean ``[d]``; all where none is named.

    Raises:
        UnknownName: the model has no such layer.
    """
    network, device = observations.network, observations.gradients.device
    for layer in layers:
        if not any(_below(name, layer) for name in network.names):
            raise UnknownName("layer", layer, network.names, f"attack '{attack}'")
    named = [not layers or any(_below(name, layer) for layer in layers) for name in network.names]
    return torch.tensor(named, device=device).repeat_interleave(torch.tensor(network.sizes, device=device))


def _below(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


@ATTACKS.register("imputed", version=1)
class Imputed(Wrapper):
    """Replace outliers of the gradient before matching it (Deng et al. 2024, Appendix G)."""

    added: ClassVar[tuple[str, ...]] = ("mean_of",)

    outliers: Literal["marked", "above", "mad"] = Field(
        "mad",
        description="marked: what the message shows to be changed; above: |g| > threshold; "
        "mad: |g - median| > threshold median absolute deviations, if most coordinates are not equal",
    )
    threshold: float = Field(
        6.0, gt=0, description="of 'above', in the unit in which the coordinate was sent, and of 'mad'"
    )
    value: Literal["zero", "mean"] = Field("zero", description="what replaces them; mean: of the other coordinates")
    mean_of: Literal["update", "tensor"] = Field(
        "update", description="the coordinates whose mean that is: all that are looked at, or those of the same tensor"
    )
    layers: tuple[str, ...] = Field(
        (), description="layers to look at alone, named as for dropped_layers; all of them together by default"
    )

    def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
        here = torch.ones_like(observations.gradients[0], dtype=torch.bool)
        if self.layers:
            here = coordinates_of(observations, self.layers, self.name)
        seen = observations.gradients[:, here]
        marked = None if observations.marked is None else observations.marked[:, here]
        outlying = self.find(seen / observations.unit.expand_as(observations.gradients)[:, here], marked)
        imputed = torch.where(outlying, 0.0, seen)
        if self.value == "mean":
            tensors = Tensors([seen.shape[1]])
            if self.mean_of == "tensor":
                tensors = Tensors([int(part.sum()) for part in here.split(list(observations.network.sizes))])
            kept = tensors.reduce(~outlying, lambda part: part.sum(dim=1)).clamp(min=1)
            mean = tensors.reduce(imputed, lambda part: part.sum(dim=1)) / kept
            imputed = torch.where(outlying, tensors.spread(mean), imputed)
        gradients = observations.gradients.clone()
        gradients[:, here] = imputed
        return replace(observations, gradients=gradients)

    def find(self, gradients: torch.Tensor, marked: torch.Tensor | None) -> torch.Tensor:
        """The outliers among coordinates ``[n, k]``, in the units in which they were sent; boolean."""
        if self.outliers == "marked":
            return _known_marks(marked)
        if self.outliers == "above":
            return gradients.abs() > self.threshold
        deviation = (gradients - gradients.median(dim=1, keepdim=True).values).abs()
        typical = deviation.median(dim=1, keepdim=True).values
        # The typical deviation of a sparse gradient is zero, and all its nonzero values would be outliers.
        return (deviation > self.threshold * typical) & (typical > 0)


@ATTACKS.register("weighted", version=1)
class Weighted(Wrapper):
    """Weight squared differences by the inverse of the known noise variance: with ``l2``, maximum likelihood."""

    adds: ClassVar[frozenset[Grant]] = frozenset({"noise_variance"})

    floor: float = Field(
        1e-3, gt=0, description="least variance, as a part of the mean: coordinates without noise are not everything"
    )

    def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
        variance = _noise_variance(knowledge)
        mean = variance.mean(dim=1, keepdim=True)
        weights = mean / variance.clamp(min=self.floor * mean)
        return weighted(observations, weights.where(mean > 0, 1.0))  # a setting may be free of noise


@ATTACKS.register("posterior_mean", version=3)
class PosteriorMean(Wrapper):
    """Denoise the reconstruction: noise was on the images, so a perfect reconstruction is noisy.

    The attack inside searches for the noisy images, so without a box of valid pixels and without penalties that clean
    images alone keep small. The linear estimate is the one of least mean squared error, which no other beats on normal
    images: what it errs by given the exact noisy images is
    :func:`leakbench.theory.reconstruction_bound.gaussian_error`. A network may do better on others. Mean and
    covariance come from auxiliary images, and the network learns from them.

    Noise is drawn anew in every round, so that single images are reconstructed from each, and their mean is denoised.
    An attack inside that has a law of images searches for images and noise at once, under the law of both, with noise
    of its own in every round (``joint``); a network denoises their sum.
    """

    adds: ClassVar[frozenset[Grant]] = frozenset({"auxiliary_images", "data_noise"})
    added: ClassVar[tuple[str, ...]] = ("estimate", "iterations")

    error: float = Field(
        0.1,
        ge=0,
        description="variance of what the attack inside errs by, as a part of the images' mean variance per pixel; "
        "with none, directions in which images hardly differ would be taken at their word",
    )
    joint: bool = Field(
        True,
        description="of an attack with a law of images: search for images and noise at once, whose sum a network "
        "denoises",
    )
    estimate: Literal["linear", "network"] = Field(
        "linear",
        description="linear: from mean and covariance; network: by a small network, trained on auxiliary images with "
        "noise on them",
    )
    iterations: int = Field(1000, ge=1, description="steps in which the network is trained")

    def parameters(self) -> dict[str, Any]:
        parameters = super().parameters()
        if self.attack.of_noisy_images is None:
            parameters.pop("joint")  # which then says nothing
        if self.estimate == "linear":
            parameters.pop("iterations", None)  # likewise
        return parameters

    @property
    def _searched(self) -> Attack | None:
        """The attack inside that searches for the noise, too; None where it leaves noise on its images."""
        return self.attack.of_noisy_images if self.joint else None

    def varied(self, prior: float, rate: float) -> Attack:
        # The more the reconstruction is believed to err, the more the images' distribution counts.
        return self.model_copy(update={"attack": self.attack.varied(prior, rate), "error": prior * self.error})

    @property
    def needs(self) -> frozenset[Grant]:
        learned: frozenset[Grant] = frozenset({"pixel_range"} if self.estimate == "network" else ())
        return (self._searched or self.attack.without_prior()).needs | self.adds | learned

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        if knowledge.data_noise is None:
            raise Infeasible("the defense adds no noise of a known covariance to the images")
        if (attack := self._searched) is not None:
            reconstruction = attack.reconstruct(observations, knowledge, streams)
            if self.estimate == "linear":
                return reconstruction
            assert reconstruction.noisy is not None
            return self._denoised(reconstruction, reconstruction.noisy, 1 + len(observations.later), knowledge)
        attack = self.attack.without_prior()
        if not observations.later or observations.batch_shape[0] > 1:  # each round orders a batch anew
            reconstruction = attack.reconstruct(observations, knowledge, streams)
            return self._denoised(reconstruction, reconstruction.images, 1, knowledge)
        rounds = [
            attack.reconstruct(*each, streams.child("round", number) if number else streams)
            for number, each in enumerate(each_round(observations, knowledge))
        ]
        noisy = torch.stack([each.images for each in rounds]).mean(dim=0)
        return self._denoised(rounds[0], noisy, len(rounds), knowledge)

    def _denoised(
        self, reconstruction: Reconstruction, noisy: torch.Tensor, rounds: int, knowledge: Knowledge
    ) -> Reconstruction:
        """The reconstruction with images ``noisy [n, B, C, H, W]``, means of so many rounds, without their noise."""
        assert knowledge.data_noise is not None
        images = noisy.clone()
        shared: dict[int, list[int]] = {}  # settings and clients share covariances, whose estimates are costly
        for row, covariance in enumerate(knowledge.data_noise):
            shared.setdefault(id(covariance), []).append(row)
        for alike in shared.values():
            images[alike] = self._estimated(noisy[alike], knowledge.data_noise[alike[0]] / rounds, knowledge)
        return replace(reconstruction, images=images)

    def _estimated(self, noisy: torch.Tensor, noise: torch.Tensor, knowledge: Knowledge) -> torch.Tensor:
        """Images ``[n, B, C, H, W]`` without the noise of this covariance."""
        known, bounds = knowledge.auxiliary_images, knowledge.pixel_range
        assert known is not None
        moments = moments_of(known)
        noise, error = noise.to(moments.covariance), self.error * moments.covariance.diagonal().mean()
        if self.estimate == "network":
            from leakbench.attacks.restoration.denoiser import trained_denoiser

            assert bounds is not None
            denoised = trained_denoiser(known, noise, float(error.sqrt()), bounds, self.iterations)
            return denoised(noisy.flatten(0, 1)).view_as(noisy)
        white = error.expand(len(moments.mean))
        total = noise + (white if noise.dim() == 1 else white.diag())
        return posterior_mean(noisy.flatten(-3), moments.mean, moments.covariance, total).view_as(noisy)


def _noise_variance(knowledge: Knowledge) -> torch.Tensor:
    if knowledge.noise_variance is None or not bool(knowledge.noise_variance.any()):
        raise Infeasible("the defense adds no noise of a known variance")
    return knowledge.noise_variance
