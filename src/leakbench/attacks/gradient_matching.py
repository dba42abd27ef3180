"""Gradient matching: search for inputs whose gradient is the observed one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.attacks import engine
from leakbench.attacks.base import (
    ATTACKS,
    Attack,
    Grant,
    Knowledge,
    KnownInputs,
    Observations,
    Reconstruction,
    each_round,
)
from leakbench.attacks.batch_norm import Anchored, estimated_statistics
from leakbench.attacks.discriminant import BATCHES
from leakbench.attacks.engine import Cost, Interlude, Minimum, TrialData, minimise
from leakbench.attacks.image_law import ImageLaw
from leakbench.attacks.labels import infer_labels
from leakbench.attacks.objectives import NATS, Cosine, Objective
from leakbench.attacks.optimisers import Bounds, Optimiser
from leakbench.attacks.regularisers import Regulariser, Scene
from leakbench.attacks.straight_through import Candidates, scored, straight_through
from leakbench.attacks.unknowns import Pixels, Unknown
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.models.base import Network, Statistics
from leakbench.models.bottleneck import with_rows
from leakbench.models.second_order import SecondOrder
from leakbench.randomness import Streams

MEMORY_BUDGET = 512 * 2**20
"""Working memory of one vectorised call outside of the search, in bytes. Only speed depends on it."""

LabelHandling = Literal["known", "joint", "idlg", "distinct", "repeated", "counts", "interpolated", "discriminant"]
BatchNormKnowledge = Literal["as_client", "known", "estimated", "running"]


@ATTACKS.register("gradient_matching", version=1)
class GradientMatching(Attack):
    """Minimise the distance of gradients over candidate inputs, from interchangeable parts.

    Each observation keeps its restart with the lowest objective. The attacker repeats the client's local training step
    by step, in the client's BatchNorm mode. Of several rounds the distances are averaged, each at its round's model;
    where they are weighed against a law of images they are added up, as log-likelihoods of independent messages.
    """

    objective: Objective = Field(description="distance between the candidate's gradient and the observed one")
    regularisers: tuple[Regulariser, ...] = Field((), description="penalties on candidates")
    optimiser: Optimiser = Field(description="how candidates move")
    iterations: int = Field(ge=1, description="evaluations of the objective's gradient per restart")
    restarts: int = Field(1, ge=1, description="starting points per observation")
    unknown: Unknown = Field(Pixels(), description="what the search varies: images, or latents that become images")
    start: Literal["normal", "uniform", "grey"] = Field(
        "normal", description="first candidate: standard normal inputs, uniform over valid pixels, or mid-grey"
    )
    box: bool = Field(False, description="project every step onto valid pixels")
    labels: LabelHandling = Field(
        "known",
        description="known: granted; joint: soft labels, optimised with the images; or how to infer them beforehand",
    )
    batch_norm: BatchNormKnowledge = Field(
        "as_client",
        description="what BatchNorm normalises candidates with: as the clients' mode says, the known statistics of the "
        "client's batch, statistics estimated on auxiliary images, or the model's running statistics",
    )
    stop_below: float | None = Field(None, ge=0, description="a trial with a smaller objective stops")
    keep: Literal["last", "best"] = Field("last", description="which iterate to return; best is by the objective")

    @model_validator(mode="after")
    def _projection_needs_adam(self) -> GradientMatching:
        if self.box and self.optimiser.kind == "lbfgs":
            raise ValueError("box: quasi-Newton steps cannot be projected; add the regulariser pixel_box instead")
        if self.box and self.unknown.kind != "pixels":
            raise ValueError("box: valid latents are not valid images; add the regulariser pixel_box instead")
        if self.unknown.kind == "decoder" and self.start != "normal":
            raise ValueError("start: the weights of an untrained decoder start from normal draws alone")
        if self.unknown.kind == "normal" and self.restarts > 1:
            raise ValueError("restarts: with unknown: normal every search starts at the mean")
        return self

    @property
    def needs(self) -> frozenset[Grant]:
        needed: set[Grant] = set().union(*(part.needs for part in (self.unknown, *self.regularisers)))
        if self.labels == "known":
            needed.add("labels")
        if self.box or self.start != "normal":
            needed.add("pixel_range")
        if self.batch_norm == "known":
            needed.add("batch_statistics")
        if self.batch_norm == "estimated" or self.labels == "discriminant":
            needed.add("auxiliary_images")
        return frozenset(needed)

    @property
    def several_models(self) -> bool:
        return self.labels not in ("counts", "discriminant") and self.batch_norm != "estimated"

    def varied(self, prior: float, rate: float) -> GradientMatching:
        weighted = tuple(part.model_copy(update={"weight": prior * part.weight}) for part in self.regularisers)
        optimiser, unknown = self.optimiser.times(rate), self.unknown.times(prior)
        return self.model_copy(update={"regularisers": weighted, "optimiser": optimiser, "unknown": unknown})

    def image_law(self, observations: Observations, knowledge: Knowledge) -> ImageLaw | None:
        return self.unknown.law(knowledge, observations.network.head.outputs)

    def auxiliary(self, granted: int) -> int:
        every = self.batch_norm == "estimated" or self.labels == "discriminant"
        return granted if every else self.unknown.auxiliary(granted)

    @property
    def several_rounds(self) -> bool:
        return True

    def effort(self, samples: int) -> Effort:
        search = Effort(samples, 1).times(self.iterations).beside(self.restarts)
        return search.plus(Effort(BATCHES * samples, 1)) if self.labels == "discriminant" else search

    def without_prior(self) -> GradientMatching:
        kept = tuple(part for part in self.regularisers if not part.of_clean_images)
        unknown = Pixels() if self.unknown.expects else self.unknown
        return self.model_copy(update={"box": False, "regularisers": kept, "unknown": unknown})

    def settled(self, observations: Observations, knowledge: Knowledge) -> tuple[Attack, Knowledge]:
        if self.labels == "known" or self.labels == "joint":
            return self, knowledge
        labels = infer_labels(observations, self.labels, knowledge)
        return self.model_copy(update={"labels": "known"}), replace(knowledge, labels=labels)

    @property
    def of_noisy_images(self) -> Attack | None:
        noisy = self.unknown.noisy
        return None if noisy is None else self.model_copy(update={"unknown": noisy})

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        search = self._search(observations, knowledge)
        minimum = minimise(
            search.cost(),
            search.starts(streams),
            search.trial_data,
            self.optimiser,
            self.iterations,
            bounds=search.bounds(),
            stop_below=self.stop_below,
            keep=self.keep,
            interlude=search.interlude(streams),
        )
        n, device = len(observations), observations.gradients.device
        objective = minimum.objective.view(n, self.restarts)
        survived = minimum.diverged_at.view(n, self.restarts) < 0
        best = torch.where(survived, objective, torch.inf).argmin(dim=1)
        rows = best + self.restarts * torch.arange(n, device=device)
        return search.result(Minimum(*(tensor[rows] for tensor in minimum)), rows)

    def _search(self, observations: Observations, knowledge: Knowledge) -> Search:
        return Search(self, observations, knowledge)


class Search:
    """One attack's variables and objective.

    A trial's variables are its images (or the latents that become images) and, where labels are optimised too, their
    scores before the softmax; last the noise of a bottleneck, where the model has one whose noise is searched for.

    Attributes:
        later: the searches of the later rounds, of which the distances count.
        number: of the round, from 0 on.
        nats: that count as one.
        draws: whether the noise of a bottleneck is among its variables, where it is searched for; else it is zero.
    """

    draws: ClassVar[bool] = True

    def __init__(
        self,
        attack: GradientMatching,
        observations: Observations,
        knowledge: Knowledge,
        number: int = 0,
        rounds: int | None = None,
    ) -> None:
        self.attack, self.observations, self.knowledge, self.number = attack, observations, knowledge, number
        rounds = 1 + len(observations.later) if rounds is None else rounds
        later = each_round(observations, knowledge)[1:]
        self.later = [Search(attack, *each, at, rounds) for at, each in enumerate(later, 1)]
        self.shape = observations.batch_shape
        self.nats = NATS * math.prod(self.shape)
        self.labels = self._labels()
        classes = observations.network.head.outputs
        self.unknown = attack.unknown.informed(self.shape, knowledge, self.labels, classes, rounds)
        self.noise = self.unknown.noise(number)
        self.varied = self.unknown.shape(self.shape)
        self.variables = math.prod(self.varied)
        self.decode = self.unknown.decoder(self.shape, knowledge.pixel_range, observations.gradients)
        noise = observations.code_noise
        self.drawn = 0 if noise is None or noise.known or not self.draws else noise.values[0].numel()
        if self.drawn and self.later:
            raise Infeasible("the noise of a bottleneck is searched for in one round, and there are several")
        self.network, self.statistics = self._batch_norm()
        plain = not self.statistics and observations.local.is_gradient(self.shape[0]) and not engine.COMPILED
        self.second_order = SecondOrder.of(self.network) if plain else None

    def _labels(self) -> torch.Tensor | None:
        if self.attack.labels == "known":
            return self.knowledge.labels
        if self.attack.labels == "joint":
            return None
        return infer_labels(self.observations, self.attack.labels, replace(self.knowledge, mechanism=None))

    def _batch_norm(self) -> tuple[Network, Statistics | None]:
        """The network that candidates run through, and the statistics that replace its own, each ``[n, channels]``."""
        network, n = self.observations.network, len(self.observations)
        if self.attack.batch_norm == "as_client":
            return network, None
        if self.attack.batch_norm == "running":
            return network.in_mode("eval"), None
        if network.batch_norm == "train":
            network = Anchored(network)
        if self.attack.batch_norm == "known":
            return network, self.knowledge.batch_statistics
        assert self.knowledge.auxiliary_images is not None
        parameters = self.observations.one_model("batch_norm: estimated")
        mean = estimated_statistics(network, parameters, self.knowledge.auxiliary_images, self.shape[0])
        return network, {name: tensor.expand(n, -1) for name, tensor in mean.items()}

    def starts(self, streams: Streams) -> torch.Tensor:
        """Starting points, ``[n * restarts, D]``, in the precision of the gradients."""
        attack, gradients = self.attack, self.observations.gradients
        device = gradients.device
        if attack.start == "grey":
            low, high = self._pixel_range()
            images = ((low + high) / 2).expand(len(self.observations), attack.restarts, *self.varied)
        elif attack.start == "uniform":
            low, high = self._pixel_range()
            draws = streams.child("start").uniform(attack.restarts, *self.varied, device=device)
            images = low + (high - low) * draws
        else:
            images = streams.child("start").normal(attack.restarts, *self.varied, device=device)
        latents = self.unknown.encode(images, self.knowledge.pixel_range)
        if self.observations.start is not None:
            first = self.unknown.fit(self.observations.start, self.knowledge.pixel_range)
            latents = torch.cat([first[:, None].to(latents), latents[:, 1:]], dim=1)
        variables = latents.flatten(2)
        if attack.labels == "joint":
            scores = streams.child("labels").normal(
                attack.restarts, self.shape[0] * self.network.head.outputs, device=device
            )
            variables = torch.cat([variables, scores], dim=2)
        if self.drawn:
            assert self.observations.code_noise is not None
            noise = self.observations.code_noise.values.flatten(1)[:, None]
            variables = torch.cat([variables, noise.expand(-1, attack.restarts, -1).to(variables)], dim=2)
        points: torch.Tensor = variables.flatten(0, 1).to(gradients.dtype)
        return points

    def interlude(self, streams: Streams) -> Interlude | None:
        """Moves between steps by other means than derivatives; none by default."""
        return None

    def _pixel_range(self) -> torch.Tensor:
        assert self.knowledge.pixel_range is not None
        return self.knowledge.pixel_range

    def bounds(self) -> Bounds | None:
        """Smallest and largest value of every variable; scores and noise are free. None where all are."""
        if not self.attack.box:
            return None
        low, high = (bound.expand(self.shape).flatten() for bound in self._pixel_range())
        scores = self.shape[0] * self.network.head.outputs if self.attack.labels == "joint" else 0
        if not scores + self.drawn:
            return low, high
        free = low.new_full((scores + self.drawn,), torch.inf)
        return torch.cat([low, -free]), torch.cat([high, free])

    def candidates(self, variables: torch.Tensor, given: TrialData) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Variables ``[..., D]`` as images ``[..., B, C, H, W]`` and scores ``[..., B, classes]``, if there are any.

        Known inputs, which :meth:`given` holds, replace those of the variables.
        """
        latents = variables[..., : self.variables].unflatten(-1, self.varied)
        images = self.decode(latents, *given.get("expected", ()))
        if "inputs" in given:
            images = torch.where(given["inputs"].where, given["inputs"].values, images)
        if self.attack.labels != "joint":
            return images, None
        scores = variables[..., self.variables : variables.shape[-1] - self.drawn]
        return images, scores.unflatten(-1, (self.shape[0], -1))

    def inputs(self, images: torch.Tensor, variables: torch.Tensor, given: TrialData) -> torch.Tensor:
        """A candidate's images ``[B, C, H, W]`` as the round's model takes them.

        With the noise that the defense added, and with rows of a bottleneck's noise, if any.
        """
        if self.noise is not None:
            latents = variables[: self.variables].unflatten(0, self.varied)
            images = images + self.noise(latents, *given["expected"]).view_as(images)
        if "code_noise" in given:
            return with_rows(images, given["code_noise"])
        if self.drawn:
            return with_rows(images, variables[-self.drawn :].unflatten(0, (self.shape[0], -1)))
        return images

    def result(self, minimum: Minimum, trials: torch.Tensor) -> Reconstruction:
        """The reconstruction from the minimum of one trial of each observation, trials ``[n]``."""
        images, scores = self.candidates(minimum.points, self.given(trials))
        labels = self.labels if scores is None else scores.argmax(dim=-1)
        probabilities = None if scores is None else scores.softmax(dim=-1)
        return Reconstruction(
            images,
            minimum.objective,
            minimum.diverged_at,
            labels,
            probabilities=probabilities,
            noisy=self._noisy(images, minimum.points, trials),
        )

    def _noisy(self, images: torch.Tensor, variables: torch.Tensor, trials: torch.Tensor) -> torch.Tensor | None:
        """Images ``[n, B, C, H, W]`` with the noise of the variables, in the mean of all rounds."""
        every = [each.noise for each in (self, *self.later) if each.noise is not None]
        if not every:
            return None
        latents = variables[:, : self.variables].unflatten(1, self.varied)
        noises = [torch.func.vmap(noise)(latents, *self.given(trials)["expected"]) for noise in every]
        return images + torch.stack(noises).mean(dim=0).view_as(images)

    def given(self, trials: torch.Tensor) -> TrialData:
        """Data that variables of the trials ``[m]`` become candidates with."""
        known, rows = self.knowledge.inputs, trials // self.attack.restarts
        data: TrialData = {} if known is None else {"inputs": KnownInputs(*(part[rows] for part in known))}
        if self.unknown.of_rows:
            like = self.observations.gradients
            data["expected"] = tuple(
                part.expand(len(like), *part.shape[1:])[rows].to(like) for part in self.unknown.of_rows
            )
        return data

    def trial_data(self, trials: torch.Tensor) -> TrialData:
        """Data on the trials ``[m]``: gradients to match, ``[m, d]``, and the knowledge granted beside them."""
        seen = self.observations
        rows = trials // self.attack.restarts
        data: TrialData = {"target": seen.gradients[rows], **self.given(trials)}
        if seen.parameters.dim() > 1:
            data["parameters"] = seen.parameters[rows]
        if self.labels is not None:
            data["labels"] = self.labels[rows]
        if seen.weights is not None:
            data["weights"] = seen.weights[rows]
        if seen.send is not None or seen.score is not None:
            data["row"] = rows
        if seen.code_noise is not None and seen.code_noise.known:
            data["code_noise"] = seen.code_noise.values[rows]
        if self.statistics is not None:
            data["statistics"] = {name: tensor[rows] for name, tensor in self.statistics.items()}
        if self.later:
            data["later"] = [each.trial_data(trials) for each in self.later]
        return data

    def residuals(self, reconstruction: Reconstruction) -> torch.Tensor:
        """Differences of the reconstructions' gradients from the observed ones, ``[n, d]``."""
        seen, network = self.observations, self.network

        def residual(
            parameters: torch.Tensor,
            images: torch.Tensor,
            labels: torch.Tensor,
            target: torch.Tensor,
            statistics: Statistics | None,
        ) -> torch.Tensor:
            return seen.local.update(network, parameters, images, labels, statistics) - target

        chunk = network.rows_within(MEMORY_BUDGET // seen.local.steps, self.shape)
        images, labels = reconstruction.images, reconstruction.labels
        assert labels is not None
        dims = (None if seen.parameters.dim() == 1 else 0, 0, 0, 0, None if self.statistics is None else 0)
        batched = torch.func.vmap(residual, in_dims=dims, chunk_size=chunk)
        result: torch.Tensor = batched(seen.parameters, images, labels, seen.gradients, self.statistics)
        return result

    def update(
        self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, statistics: Statistics | None
    ) -> torch.Tensor:
        """The update that a client with these images would send, ``[d]``."""
        return self.observations.local.update(self.network, parameters, images, labels, statistics)

    def distance(self, images: torch.Tensor, labels: torch.Tensor, data: TrialData) -> torch.Tensor:
        """The distance of the candidate's gradient from that of this search's round, a scalar."""
        seen = self.observations
        replaced = seen.score is not None or seen.send is not None or "weights" in data
        if self.second_order is not None and isinstance(self.attack.objective, Cosine) and not replaced:
            parameters, target = data.get("parameters", seen.parameters), data["target"]
            inner, square = self.second_order.products(parameters, images, labels, target)
            return self.attack.objective.of_products(inner, square, target)
        return self.misfit(self.gradient(images, labels, data), images, labels, data)

    def gradient(self, images: torch.Tensor, labels: torch.Tensor, data: TrialData) -> torch.Tensor:
        """The candidate's gradient in this search's round, ``[d]``; where users' are apart, ``[users, d]``."""
        users = self.observations.users
        if users > 1:
            parts = zip(images.chunk(users), labels.chunk(users), strict=True)  # under vmap over candidates already
            return torch.stack([self._gradient(*part, data) for part in parts])
        return self._gradient(images, labels, data)

    def _gradient(self, images: torch.Tensor, labels: torch.Tensor, data: TrialData) -> torch.Tensor:
        parameters = data.get("parameters", self.observations.parameters)
        if self.second_order is not None:
            return self.second_order.gradient(parameters, images, labels)
        return self.update(parameters, images, labels, data.get("statistics"))

    def misfit(
        self, gradient: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, data: TrialData
    ) -> torch.Tensor:
        """The distance of the candidate's :meth:`gradient` from the message of this search's round, a scalar."""
        seen, network = self.observations, self.network
        if seen.score is not None:
            return scored(Candidates(gradient, images, labels, data["row"]), seen.score)
        if seen.send is not None:
            gradient = straight_through(Candidates(gradient, images, labels, data["row"]), seen.send)
        value = self.attack.objective(gradient, data["target"], data.get("weights"), network.sizes).mean()
        return value / self.nats if self.attack.objective.in_nats else value

    def of_rounds(
        self, images: torch.Tensor, labels: torch.Tensor, variables: torch.Tensor, data: TrialData
    ) -> torch.Tensor:
        """The sum of the distances of images ``[B, C, H, W]`` in all rounds, against a law of images; else the mean."""
        distances, carried = [], torch.zeros_like(data["target"])
        for each, of in ((self, data), *zip(self.later, data["later"], strict=True)):
            inputs = each.inputs(images, variables, of)
            if not self.observations.carried:
                distances.append(each.distance(inputs, labels, of))
                continue
            gradient = each.gradient(inputs, labels, of) + carried
            distances.append(each.misfit(gradient, inputs, labels, of))
            carried = gradient - of["target"]
        every = torch.stack(distances)
        return every.sum() if self.attack.unknown.expects else every.mean()

    def cost(self) -> Cost:
        """The objective of one trial."""
        attack, network, shared = self.attack, self.network, self.observations.parameters
        running = network.running_statistics

        def cost(variables: torch.Tensor, data: TrialData) -> torch.Tensor:
            images, scores = self.candidates(variables, data)
            labels = data["labels"] if scores is None else scores.softmax(dim=-1)
            statistics, parameters = data.get("statistics"), data.get("parameters", shared)
            if self.later:
                value = self.of_rounds(images, labels, variables, data)
            else:
                value = self.distance(self.inputs(images, variables, data), labels, data)
            if attack.unknown.expects:
                value = value + attack.unknown.surprise(variables[: self.variables]) / self.nats
            scene = Scene(
                pixel_range=self.knowledge.pixel_range,
                statistics_of=lambda candidate: network.batch_statistics(parameters, candidate),
                statistics=statistics or running,
                word_length=data.get("word_length"),
            )
            for regulariser in attack.regularisers:
                if regulariser.weight:
                    value = value + regulariser.weight * regulariser(images, scene)
            return value

        return cost
