"""Compressed updates with error feedback: a client adds the compression error of a round to its next update.

In round ``t`` a client with the gradient ``g_t`` and the residual ``e_t`` (zero at first) compresses their sum::

    p_t = g_t + e_t,    sent: C(p_t),    e_{t+1} = p_t - C(p_t)

so its messages and its residual add up to the sum of its gradients. Sources: Aji and Heafield 2017, "Sparse
Communication for Distributed Gradient Descent", for dropped gradients; Karimireddy et al. 2019, "Error Feedback Fixes
SignSGD and other Gradient Compression Schemes", Algorithm 1, for signs. There ``p_t`` holds the gradient times the step
size; here the server multiplies by it, which is the same where it is constant, as both compressions are homogeneous.

No attacker sees residuals. Likelihoods are those of ``p_t``: in the first round the gradient; later an attacker who
saw all messages adds the residual that a candidate would have had.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from leakbench.defenses.base import DEFENSES, ClientState, Defense, PrivacyStatement, Round, Schedule
from leakbench.defenses.densities import kept_or_below
from leakbench.defenses.marginals import Marginals
from leakbench.defenses.pruning import Sparse, marginals_of_largest
from leakbench.defenses.quantised import likelihood_of_signs, marginals_of_signs
from leakbench.federated.message import FLOAT_BITS, CodedMessage, Message, Received, SparseMessage
from leakbench.federated.step import ClientSteps
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.randomness import Streams


class ErrorFeedback(Defense):
    """Compression whose clients keep the residual. Override :meth:`compress`."""

    keeps_residual: ClassVar[bool] = True

    def compress(self, update: torch.Tensor, tensors: Tensors) -> Message:
        """The compressed message of updates ``[n, d]``, which consist of ``tensors``."""
        raise NotImplementedError

    def initial_state(self, steps: ClientSteps) -> ClientState:
        return {"residual": torch.zeros_like(steps.gradient)}

    def protect_round(self, steps: ClientSteps, round: Round) -> tuple[Message, ClientState]:
        update = steps.gradient + round.state["residual"]
        message = self.compress(update, Tensors(steps.network.sizes))
        return message, {"residual": update - message.view()}


@DEFENSES.register("grad_drop_residual", version=1)
class GradDropWithResidual(ErrorFeedback, Sparse):
    """Send the largest coordinates of every tensor, and add the others to the next step's (Aji and Heafield 2017).

    In the first round the same as ``grad_drop``, which forgets what it drops. Of equal magnitudes those that come first
    are dropped.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    fraction: float = Field(
        ge=0, le=1, description="part of every tensor's coordinates to drop; exactly floor(fraction * size)"
    )

    def compress(self, update: torch.Tensor, tensors: Tensors) -> Message:
        return SparseMessage(update, ~tensors.smallest(update.abs(), self.fraction))

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """The log-likelihood of ``grad_drop``, ``[n]``."""
        return kept_or_below(received, steps.gradient, Tensors(steps.network.sizes))

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        return marginals_of_largest(steps.gradient, Tensors(steps.network.sizes), self.fraction)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("what is sent is exact, and what is dropped is sent later")


@DEFENSES.register("ef_sign_sgd", version=1)
class EFSignSGD(ErrorFeedback):
    """Send signs times the mean magnitude, and add the error to the next step's update (Karimireddy et al. 2019).

    ``C(p) = mean|p| sign(p)``, where zero counts as positive: one bit per coordinate, and a float for each mean. The
    server averages what clients send.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)
    scale_free: ClassVar[bool] = True
    biased: ClassVar[str] = "signs are sent, and the error of a round is made up for in later ones"

    scale: Literal["update", "tensor"] = Field(
        "update", description="what a mean magnitude is of: the whole update, as in Algorithm 1, or each of its tensors"
    )

    def compress(self, update: torch.Tensor, tensors: Tensors) -> Message:
        parts = self._scaled(tensors)
        magnitude = parts.spread(parts.mean(update.abs()))
        return CodedMessage(
            torch.where(update >= 0, magnitude, -magnitude), size=update.shape[1] + FLOAT_BITS * len(parts)
        )

    def _scaled(self, tensors: Tensors) -> Tensors:
        """The parts of an update that have a mean magnitude each."""
        return tensors if self.scale == "tensor" else Tensors([sum(tensors.sizes)])

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """The log-likelihood of ``sign_sgd``, ``[n]``."""
        parts = self._scaled(Tensors(steps.network.sizes))
        return likelihood_of_signs(received, steps.gradient, parts, magnitudes=True)

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        return marginals_of_signs(steps.gradient, self._scaled(Tensors(steps.network.sizes)))

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("signs are exact")
