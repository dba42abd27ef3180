"""Learned inversion: a map from messages back to images, learned from clients that the attacker makes up.

Wu, Chen, Guo and Weinberger (UAI 2023), *Learning To Invert: Simple Adaptive Attacks for Gradient Inversion in
Federated Learning*. It works against any mechanism that the attacker can run, since it asks for no derivative of it.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from leakbench.attacks.auxiliary import is_random, messages_of
from leakbench.attacks.base import ATTACKS, Attack, Grant, Knowledge, Mechanism, Observations, Reconstruction
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.numerics.ridge import Predicted, ridge
from leakbench.randomness import Streams

STRENGTHS = tuple(10.0 ** (half / 2) for half in range(-12, 7))
"""Strengths of the penalty to choose from, in mean eigenvalues of the Gram matrix."""


@ATTACKS.register("ridge_inversion", version=2)
class RidgeInversion(Attack):
    """Ridge regression of images on messages, with one regression per victim.

    The attacker sends auxiliary images through its copy of the mechanism, all with the label of the victim, whatever
    they show: what a message says of its image depends on the label, and so every image is an example. Images that are
    of the victim's class in truth weigh as much as all others together. Of every message each tensor is centred and
    scaled to unit mean square. The strength of the penalty is the one with the smallest leave-one-out error on images
    of the victim's class, which is the objective, too.

    Where the mechanism is random, what is learned from are means of several draws: their noise would act as a penalty
    of its own, far above the best one where a message has more coordinates than there are images. Errors are those of
    single draws, as the victim's message is one. Of several messages of a client it reads the first.
    """

    images: int = Field(1500, ge=2, description="most auxiliary images to learn from, a made-up client of each")
    draws: int = Field(4, ge=1, description="messages of each made-up client, where they are random")

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"labels", "pixel_range", "auxiliary_images", "mechanism"})

    def effort(self, samples: int) -> Effort:
        return Effort(self.images * samples, 1)

    def auxiliary(self, granted: int) -> int:
        return min(self.images, granted)

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        labels, bounds = knowledge.labels, knowledge.pixel_range
        auxiliary, mechanisms = knowledge.auxiliary_images, knowledge.mechanism
        assert labels is not None and bounds is not None and auxiliary is not None and mechanisms is not None
        observations.one_model(f"attack '{self.name}'")
        single_images(observations, self.name)
        if len(auxiliary) < 2:
            raise Infeasible(f"attack '{self.name}' learns from auxiliary images, and {len(auxiliary)} is too few")
        predictions = [
            self._predict(observations, knowledge, mechanism, row, Streams([key]))
            for row, (mechanism, key) in enumerate(zip(mechanisms, streams.keys, strict=True))
        ]
        images = torch.cat([one.values for one in predictions]).to(auxiliary).view(-1, *observations.batch_shape)
        return Reconstruction(
            images.clamp(*bounds),
            torch.tensor([one.error for one in predictions], device=images.device),
            torch.full((len(observations),), -1, device=images.device),
            labels,
        )

    def _predict(
        self, observations: Observations, knowledge: Knowledge, mechanism: Mechanism, row: int, streams: Streams
    ) -> Predicted:
        """The image of one victim, ``[1, pixels]``."""
        assert knowledge.labels is not None
        assert knowledge.auxiliary_images is not None and knowledge.auxiliary_labels is not None
        images, label = knowledge.auxiliary_images[: self.images], knowledge.labels[row : row + 1]
        same = knowledge.auxiliary_labels[: self.images] == label[0]
        judged = same if bool(same.any()) else torch.ones_like(same)
        received = observations.gradients[row : row + 1]
        seen = replace(observations, gradients=received)
        known = Knowledge(auxiliary_images=images, auxiliary_labels=knowledge.auxiliary_labels, mechanism=[mechanism])
        draws = self.draws if is_random(seen, known, streams) else 1
        messages = received.new_empty(len(images), received.shape[1])
        single = []
        for part, sent in messages_of(seen, known, streams, len(images), draws=draws, labels=label):
            messages[part] = sent.mean(dim=1)
            single.append(sent[judged[part], 0])
        weights = torch.where(same, (~same).sum() / same.sum().clamp(min=1), 1.0).clamp(min=1)
        centre = (weights / weights.sum()) @ messages
        messages -= centre
        scale = per_tensor(messages, Tensors(observations.network.sizes))
        return ridge(
            messages.mul_(scale),
            images.flatten(1),
            (received - centre) * scale,
            weights,
            judged,
            STRENGTHS,
            (torch.cat(single) - centre) * scale if draws > 1 else None,
        )


@ATTACKS.register("learned_inversion", version=1)
class LearnedInversion(Attack):
    """The image that a network makes of a message: the attack as published, behind any mechanism of one client.

    A job of kind ``inverter`` trains the network on auxiliary images, under the attacked model and the attacked setting
    of the mechanism. Labels play no part.
    """

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"inverter", "pixel_range", "mechanism"})

    @property
    def several_models(self) -> bool:
        return True

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        assert knowledge.inverter is not None and knowledge.pixel_range is not None
        single_images(observations, self.name)
        low, high = knowledge.pixel_range
        # Row by row: rounding in the product of several rows depends on how many there are.
        pixels = torch.cat([
            inverter.pixels(message[None])
            for inverter, message in zip(knowledge.inverter, observations.gradients, strict=True)
        ])  # fmt: skip
        images = low + (high - low) * pixels.view(-1, *observations.batch_shape)
        return Reconstruction(images, None, torch.full((len(observations),), -1, device=images.device))


def single_images(observations: Observations, name: str) -> None:
    """Reject clients with several images, whose order no message tells.

    Raises:
        Infeasible: a client holds more than one image.
    """
    if observations.batch_shape[0] > 1:
        raise Infeasible(
            f"attack '{name}' learns the map to one image; these clients hold {observations.batch_shape[0]} each"
        )


def per_tensor(messages: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """Factors that give every tensor unit mean square over all messages, ``[1, d]``; 0 for tensors that are zero."""
    power = tensors.mean(messages.square().mean(dim=0, keepdim=True))
    return tensors.spread(torch.where(power > 0, power.rsqrt(), 0.0))
