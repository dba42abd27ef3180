"""PRECODE: a model with a variational bottleneck, whose noise goes into the gradient (Scheliga et al., WACV 2022).

Nothing of a message is changed: clients train another model, and their gradients are exact. In the gradient of single
images the noise is no secret (attack ``bottleneck``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from leakbench.defenses.base import DEFENSES, ActsOn, Defense, PrivacyStatement, Schedule
from leakbench.errors import Infeasible
from leakbench.federated.message import Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.models.bottleneck import ExtendedNetwork, extended, with_rows
from leakbench.randomness import Streams


@DEFENSES.register("precode", version=1)
class Precode(Defense):
    """Train the model with a variational bottleneck in front of its last layer, with fresh noise in each step.

    Features become a mean and a deviation of each component of a code, of which a draw is decoded into features; the
    loss gains ``beta`` times the divergence of the code's law from the standard normal one. Models are evaluated at the
    mean of the code; the authors' code draws there, too. It also counts the divergence in bits: its ``beta`` is ours
    times ln 2. An image that a client uses several times in a round of local training keeps its noise.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "bottleneck"},)
    acts_on: ClassVar[ActsOn] = "model"

    width: int = Field(256, ge=1, description="components of the code, K")
    beta: float = Field(1e-3, ge=0, description="weight of the divergence in the loss")

    def extend(self, network: Network, shape: tuple[int, ...], seed: int) -> Network:
        return extended(network, shape, self.width, self.beta, seed)

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images ``[n, B, C, H, W]`` with the noise of their codes in rows below, as the extended model takes them."""
        noise = streams.child("code").normal(images.shape[1], self.width, device=images.device)
        return with_rows(images, noise.to(images)), labels

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        if not isinstance(steps.network, ExtendedNetwork):
            raise Infeasible(f"'{self.name}' changes the model that clients train, and these train one without it")
        return super().protect_update(steps, streams)

    @property
    def not_simulated(self) -> str:
        return f"{type(self).__name__} draws noise in the model; the attack 'bottleneck' reads it or searches for it"

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("the gradient is exact, and shows the noise of single images")
