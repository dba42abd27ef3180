"""Mixed images with mixed labels: mixup (Zhang et al., ICLR 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from leakbench.defenses.base import DEFENSES, ActsOn, Defense, PrivacyStatement, Schedule
from leakbench.errors import Infeasible
from leakbench.federated.client_data import ClientData
from leakbench.federated.message import Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams


@DEFENSES.register("mixup", version=1)
class MixUp(Defense):
    """Train on mixtures of the images of a batch, and of their labels as probabilities.

    As in the authors' code every step draws one weight for the batch, from Beta(alpha, alpha), and one order, in which
    each image meets another one of the batch, or itself. A batch of one image stays as it is.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "unmixed"},)
    acts_on: ClassVar[ActsOn] = "data"

    alpha: float = Field(
        1.0, gt=0, description="of the weight's distribution: small leaves images nearly alone, large halves them"
    )

    _classes: int | None = PrivateAttr(None)

    def calibrate(self, data: ClientData) -> Defense:
        ready = self.model_copy()
        ready._classes = data.classes
        return ready

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        soft = torch.nn.functional.one_hot(labels, self._number_of_classes()).to(images)
        order = streams.child("order").uniform(images.shape[1], device=images.device).argsort(dim=1)
        weight = self._weight(streams, images)
        rows = torch.arange(len(images), device=images.device)[:, None]
        mixed, labelled = (
            weight.view(-1, *[1] * (part.dim() - 1)) * part
            + (1 - weight).view(-1, *[1] * (part.dim() - 1)) * part[rows, order]
            for part in (images, soft)
        )
        return mixed, labelled

    def _weight(self, streams: Streams, like: torch.Tensor) -> torch.Tensor:
        """Draws from Beta(alpha, alpha), one per client, ``[n]``: the quantiles of uniform draws."""
        from scipy.special import betaincinv

        draws = streams.child("weight").uniform(1)[:, 0].double()
        return torch.as_tensor(betaincinv(self.alpha, self.alpha, draws.numpy())).to(like)

    def _number_of_classes(self) -> int:
        """The number of classes.

        Raises:
            Infeasible: not calibrated.
        """
        if self._classes is None:
            raise Infeasible(f"'{self.name}' knows no classes: calibrate it with the clients' data and classes first")
        return self._classes

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        self._number_of_classes()  # else images that were never mixed would look as if they had been
        return super().protect_update(steps, streams)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("the gradient of mixed images is exact")
