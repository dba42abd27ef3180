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
from leakbench.attacks.plug_and_play import Denoising
from leakbench.effort import Effort
from leakbench.errors import ConfigError, Infeasible, UnknownName
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.randomness import Streams

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

    added: ClassVar[tuple[str, ...]] = ("prior", "iterations", "denoising")

    prior: float = Field(1.0, gt=0, description="factor of the weights of the regularisers of the attack inside")
    iterations: int | None = Field(None, ge=1, description="of the attack inside; its own by default")
    denoising: Denoising | None = Field(
        None, description="of the attack inside and of declared wrappers, where they can; their own by default"
    )

    @model_validator(mode="after")
    def _searches(self) -> Adaptive:
        if self.iterations is not None and "iterations" not in type(self.attack).model_fields:
            raise ValueError(f"'{self.attack.name}' has no iterations; leave them out")
        return self

    @property
    def _inside(self) -> Attack:
        changed: dict[str, Any] = {"iterations": self.iterations}
        if "denoising" in type(self.attack).model_fields:
            changed["denoising"] = self.denoising
        given = {name: value for name, value in changed.items() if value is not None}
        return self.attack.varied(self.prior, 1.0).model_copy(update=given)

    def effort(self, samples: int) -> Effort:
        return self._inside.effort(samples)

    def against(self, adaptive: Sequence[Mapping[str, Any]]) -> Attack:
        attack = self._inside.against(adaptive)
        for declared in adaptive or DEFAULT:
            given = dict(declared)
            wrapper = ATTACKS.get(str(given.pop("name", None)), "the defense's declaration 'adaptive'")
            if self.denoising is not None and "denoising" in wrapper.model_fields:
                given["denoising"] = self.denoising
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


def _noise_variance(knowledge: Knowledge) -> torch.Tensor:
    if knowledge.noise_variance is None or not bool(knowledge.noise_variance.any()):
        raise Infeasible("the defense adds no noise of a known variance")
    return knowledge.noise_variance
