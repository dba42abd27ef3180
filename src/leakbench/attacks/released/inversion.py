"""Model inversion: the image that the model takes for a class most surely."""

from __future__ import annotations

from pydantic import Field

from leakbench.attacks.released.base import MODEL_INVERSIONS, Inversion, ModelInversion
from leakbench.effort import Effort
from leakbench.federated.gradients import MEMORY_BUDGET
from leakbench.lazy import torch
from leakbench.models.base import Statistics
from leakbench.models.trained import TrainedModels
from leakbench.numerics.adam import Adam
from leakbench.numerics.stateful import named, part_of
from leakbench.running.checkpoint import loop


@MODEL_INVERSIONS.register("mean_start", version=1)
class MeanStart(ModelInversion):
    """Minimises the cross-entropy of each class by Adam, from the mean auxiliary image (Tan et al. 2024).

    Without a prior on images and without a box, in evaluation mode.
    """

    rate: float = Field(1e-2, gt=0, description="learning rate of Adam")
    iterations: int = Field(600, ge=0, description="steps")

    def effort(self, classes: int) -> Effort:
        return Effort(classes, 1).times(1 + self.iterations)

    def invert(self, target: TrainedModels, auxiliary: torch.Tensor, labels: torch.Tensor) -> Inversion:
        network = target.network.in_mode("eval")
        start = auxiliary.mean(dim=0)
        images = start.expand(len(target), len(labels), *start.shape).clone()

        def losses(parameters: torch.Tensor, statistics: Statistics, images: torch.Tensor) -> torch.Tensor:
            logits = network.logits(parameters, images, statistics)
            return torch.nn.functional.cross_entropy(logits, labels, reduction="none")

        def total(parameters: torch.Tensor, statistics: Statistics, images: torch.Tensor) -> torch.Tensor:
            return losses(parameters, statistics, images).sum()  # images do not interact, so neither do its derivatives

        together = network.rows_within(MEMORY_BUDGET, images.shape[1:])
        slope = torch.func.vmap(torch.func.grad(total, argnums=2), chunk_size=together)
        adam = Adam(images)

        def state() -> dict[str, torch.Tensor]:
            return {"images": images, **named("adam", adam.state())}

        with torch.no_grad(), loop("inverting models", self.iterations) as steps:
            if steps.saved:
                images.copy_(steps.saved["images"])
                adam.restore(part_of(steps.saved, "adam"))
            for _ in steps.steps:
                images -= self.rate * adam.direction(slope(target.parameters, target.statistics, images))
                steps.tick(state)
            final = torch.func.vmap(losses, chunk_size=together)(target.parameters, target.statistics, images)
        return Inversion(images, final)
