"""Soteria: prune features that reveal most of the image (Sun et al. 2021, "Provable Defense Against Privacy Leakage").

The mechanism changes one fully connected layer and nothing else, so an attacker who leaves this layer out sees an
undefended gradient (attack ``dropped_layers``; Balunovic et al. 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from leakbench.defenses.base import DEFENSES, PrivacyStatement, Schedule
from leakbench.defenses.densities import exact_variance, log_kernel
from leakbench.defenses.marginals import Marginals
from leakbench.defenses.pruning import Sparse
from leakbench.errors import ConfigError
from leakbench.federated.features import FeatureSensitivity
from leakbench.federated.message import Message, Received, SparseMessage, position_bits
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.randomness import Streams

RELEASED_SHIFT = 0.1
"""Constant that the released code adds to a feature before it divides by it."""


@DEFENSES.register("soteria", version=2)
class Soteria(Sparse):
    """Zero the columns of a fully connected layer's gradient that belong to the features of the lowest score.

    The score of feature ``i`` is ``||d r_i / dX|| / |r_i|``. Of a batch, ``X`` is the whole batch and ``r_i`` the
    vector of the feature's values in it, so both norms run over the images. A feature that is zero in all images is
    pruned last: its column is zero anyway.

    ``as_released`` is the reading of the code of Deng et al. (2024): ``sum_b | ||d r_bi / dX_b|| / (r_bi + 0.1) |``,
    and pruned is what lies strictly below the quantile ``fraction`` of the scores, linearly interpolated. That code
    computes the mask once, on the initial model, and always at the median, where the paper says 0.6; here it is
    computed at every step, which is the same for an attack on an untrained model.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    fraction: float = Field(ge=0, le=1, description="part of the features to prune; exactly floor(fraction * F)")
    layer: int = Field(-1, ge=-64, description="which fully connected layer, in the model's order; -1: the last")
    form: Literal["exact", "as_released"] = Field("exact", description="which score and threshold; see the class")

    def pruned_features(self, sensitivity: FeatureSensitivity) -> torch.Tensor:
        """The features to prune, boolean ``[n, F]``."""
        features, norms = sensitivity.features, sensitivity.norms
        if self.form == "as_released":
            scores = (norms / (features + RELEASED_SHIFT)).abs().sum(dim=1)
            return scores < scores.quantile(self.fraction, dim=1, keepdim=True)
        size = torch.linalg.vector_norm(features, dim=1)
        scores = torch.where(size > 0, torch.linalg.vector_norm(norms, dim=1) / size, torch.inf)
        order = scores.argsort(dim=1, stable=True)
        count = int(self.fraction * scores.shape[1])
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order[:, :count], True)

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        """The update without the pruned columns; their positions are a bitmap of features, or their indices.

        Raises:
            ConfigError: the model has no such layer, or it does not read one vector per image.
        """
        name = self._layer_of(steps.network)
        layer = steps.network.linear_layers[name]
        dropped = self.pruned_features(steps.feature_sensitivity(name))
        kept = torch.ones_like(steps.gradient, dtype=torch.bool)
        kept[:, layer.weight] = ~dropped.repeat(1, layer.outputs)
        most = int(dropped.sum(dim=1).max())
        return SparseMessage(steps.gradient, kept, positions=position_bits(most, layer.inputs))

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Sent coordinates are exact, and pruned columns say nothing, ``[n]``."""
        values, layer = received.values, self._weight(steps.network)

        def compute() -> torch.Tensor:
            known = torch.ones_like(values)
            known[:, layer] = (values[:, layer] != 0).to(values)
            return known / exact_variance(values)

        return log_kernel(values - steps.gradient, received.once((self, "precision"), compute))

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        """Everything but the layer: of several users' columns it is unknown whose were pruned."""
        compared = torch.ones_like(steps.gradient[:1], dtype=torch.bool)
        compared[:, self._weight(steps.network)] = False
        return Marginals(steps.gradient, compared=compared.expand_as(steps.gradient))

    def _weight(self, network: Network) -> slice:
        """The place of the layer's weights in a flat update."""
        return network.linear_layers[self._layer_of(network)].weight

    def _layer_of(self, network: Network) -> str:
        names = list(network.linear_layers)
        if not -len(names) <= self.layer < len(names):
            raise ConfigError(f"defense 'soteria': no fully connected layer {self.layer}; the model has {names}")
        return names[self.layer]

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("what is sent is exact, and what is not depends on the data")
