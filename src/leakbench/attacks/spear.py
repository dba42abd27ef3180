"""SPEAR: exact batches behind a fully connected first layer with ReLU (Dimitrov et al., NeurIPS 2024).

The gradient of the layer's weights is ``D X``, with the images in the rows of ``X``, ``[B, F]``, and in ``D``, ``[m,
B]``, the derivative by the layer's output of each neuron and image. It has rank B, so its singular value decomposition
``L R`` shows the images up to an invertible matrix: ``D = L Q`` and ``X = Q^-1 R``. ReLU makes half of ``D`` zero,
which gives ``Q`` away column by column: the null vector of B - 1 rows of ``L`` that are zero in one column of ``D`` is
this column of ``Q``. Rows are drawn until B independent columns with many zeros are there; one draw succeeds with a
probability of about ``B / 2^(B - 1)``. The bias's gradient gives the scale of each column.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from leakbench.attacks.analytic import INSTEAD, first_layer, opening
from leakbench.attacks.base import ATTACKS, Attack, ClientSetup, Knowledge, Observations, Reconstruction
from leakbench.errors import Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.lazy import torch
from leakbench.models.base import LinearLayer, Network
from leakbench.randomness import Streams

ROUND = 1024
"""Draws of rows in one round."""
TOGETHER = 16
"""Clients that are searched side by side."""
NEARLY_ZERO = (1e-4, 1e-5, 1e-5)
"""Parts of a row of ``L``, along a unit vector, that count as zero: at first, and as a column is refined."""
DEAD = 1e-6
"""Part of the largest row of ``L`` below which a row is of a neuron that no image activates."""
CANDIDATES = 16
"""Candidates for columns that are kept, in multiples of the batch."""
APART = 1e-2
"""Part of a unit vector, across the columns that are there, from which on it is another one."""


@ATTACKS.register("spear", version=1)
class Spear(Attack):
    """The exact images of a client's batch, from a fully connected first layer with a bias and ReLU.

    Where the draws end before the images are there, or the images do not activate the neurons that the gradient says,
    the client's images are zero and marked as diverged at 0.
    """

    draws: int = Field(1_000_000, ge=1, description="most draws of rows per client")
    excess: float = Field(
        0.1, gt=0, lt=1, description="zeros that a column has more than were drawn, in parts of the active neurons"
    )
    agreement: float = Field(
        0.998, gt=0, le=1, description="least part of neurons and images whose activation is as the gradient says"
    )

    def check_clients(self, clients: ClientSetup) -> None:
        self._layer(clients.network, clients.local, clients.batch_shape)

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        """Reconstruct the batches of undefended gradients exactly, in no particular order.

        Raises:
            Infeasible: a first layer that is not fully connected with a bias, narrower than the batch, or not followed
                by ReLU; several local steps.
        """
        layer, biases = self._layer(observations.network, observations.local, observations.batch_shape)
        batch = observations.batch_shape[0]
        gradients = observations.gradients.double()
        gradients = gradients.where(gradients.isfinite().all(dim=1, keepdim=True), 0.0)  # nothing to factor
        weight, slopes = layer.weights(gradients), gradients[:, biases]
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        # Not the other way round: a weak direction would look like zeros in all of ``L``.
        left, right = left[..., :batch], values[:, :batch, None] * right[:, :batch]
        parameters = observations.parameters.double().expand(len(observations), -1)
        rows = [
            _Client(each, right[row], slopes[row], layer.weights(parameters[row]), parameters[row, biases])
            for row, each in enumerate(left)
        ]
        for start in range(0, len(rows), TOGETHER):
            self._search(rows[start : start + TOGETHER], streams.at(range(start, min(start + TOGETHER, len(rows)))))
        done = torch.tensor([row.images is not None for row in rows], device=weight.device)
        images = torch.stack([row.images if row.images is not None else row.none for row in rows])
        images = images.to(observations.gradients).view(-1, *observations.batch_shape)
        return Reconstruction(images, None, torch.where(done, -1, 0))

    def _layer(self, network: Network, local: LocalTraining, batch_shape: tuple[int, ...]) -> tuple[LinearLayer, slice]:
        """The first layer, and where its biases are."""
        layer, biases = first_layer(network, batch_shape, self.name)
        batch = batch_shape[0]
        if not local.is_gradient(batch):
            raise Infeasible(
                "attack 'spear' factors the gradient of one step, and clients take several; list 'cocktail_party'"
            )
        if batch > min(layer.outputs, layer.inputs):
            raise Infeasible(
                f"attack 'spear' needs a first layer of at least {batch} units and inputs for a batch of {batch}; this "
                f"one has {layer.outputs} and {layer.inputs}; {INSTEAD}"
            )
        behind = opening(network)[1:2]
        if not (behind and isinstance(behind[0], torch.nn.ReLU)):
            follows = type(behind[0]).__name__ if behind else "nothing"
            raise Infeasible(
                f"attack 'spear' looks for the zeros that ReLU leaves, and behind the first layer comes {follows}; "
                "list 'cocktail_party'"
            )
        return layer, biases

    def _search(self, clients: Sequence[_Client], streams: Streams) -> None:
        """Draw rows of a few clients until their images are there."""
        first = clients[0].left
        neurons, batch = first.shape
        for start in range(0, self.draws, ROUND):
            open_ = [row for row, client in enumerate(clients) if client.searched]
            if not open_:
                break
            rows, alive = (torch.stack([getattr(clients[row], name) for row in open_]) for name in ("rows", "alive"))
            keys = streams.at(open_).child("draw", start).uniform(ROUND, neurons, device=first.device)
            drawn = keys.masked_fill(~alive[:, None], 2.0).topk(batch - 1, largest=False).indices[..., None]
            picked = rows[:, None].expand(-1, ROUND, -1, -1).gather(2, drawn.expand(-1, -1, -1, batch))
            directions = torch.linalg.qr(picked.mT, mode="complete").Q[..., -1]
            along = torch.einsum("nmb,nsb->nsm", rows, directions).abs()
            zeros = (along < NEARLY_ZERO[0]) & alive[:, None]
            least = batch - 1 + (self.excess * alive.sum(dim=1)).clamp(min=2)
            for place, row in enumerate(open_):
                clients[row].extend(zeros[place], float(least[place]))
                clients[row].solve(self.agreement)


class _Client:
    """The search for one client's images.

    Args:
        left: ``L``, ``[m, B]``.
        right: ``R``, ``[B, F]``.
        slopes: gradient of the biases, ``[m]``.
        weights: of the layer, ``[m, F]``.
        biases: of the layer, ``[m]``.
    """

    def __init__(
        self,
        left: torch.Tensor,
        right: torch.Tensor,
        slopes: torch.Tensor,
        weights: torch.Tensor,
        biases: torch.Tensor,
    ) -> None:
        self.left, self._right, self._slopes, self._weights, self._biases = left, right, slopes, weights, biases
        size = left.norm(dim=1)
        self.alive = size > DEAD * size.max()
        self.rows = left / size.clamp(min=torch.finfo(left.dtype).tiny)[:, None]
        self._columns = left.new_ones(1, 1) if left.shape[1] == 1 else left.new_zeros(0, left.shape[1])
        self._counts = left.new_zeros(len(self._columns))
        self.images: torch.Tensor | None = None
        """``[B, F]``, once they are there."""

    @property
    def searched(self) -> bool:
        """Whether its images are still looked for: fewer active neurons than images do not show them."""
        return self.images is None and int(self.alive.sum()) >= self.left.shape[1]

    @property
    def none(self) -> torch.Tensor:
        """Images of a client whose images are not there."""
        return torch.zeros_like(self._right)

    def extend(self, zeros: torch.Tensor, least: float) -> None:
        """Add candidates for columns of ``Q`` by the rows that are zero in them, boolean ``[s, m]``; keep the best.

        A column is refined as what is least along all these rows.
        """
        patterns = zeros[zeros.sum(dim=1) >= least].unique(dim=0)
        best = patterns.sum(dim=1).argsort(descending=True, stable=True)[: CANDIDATES * self.left.shape[1]]
        for pattern in patterns[best]:
            for near in NEARLY_ZERO[1:]:
                column = torch.linalg.svd(self.rows[pattern])[2][-1]
                pattern = ((self.rows @ column).abs() < near) & self.alive
            count = pattern.sum()
            same = (self._columns @ column).abs() > 1 - NEARLY_ZERO[0] ** 2
            if count >= least and not same.any():
                self._columns = torch.cat([self._columns, column[None]])
                self._counts = torch.cat([self._counts, count[None].to(self._counts)])
        order = self._counts.argsort(descending=True, stable=True)[: CANDIDATES * self.left.shape[1]]
        self._columns, self._counts = self._columns[order], self._counts[order]

    def solve(self, agreement: float) -> None:
        """Take the images of B candidates, if they activate the neurons whose derivatives by these are not zero.

        First the independent candidates with the most zeros; then, while that explains more activations, one of them
        is exchanged for another candidate.
        """
        batch = self.left.shape[1]
        chosen: list[int] = []
        for place, column in enumerate(self._columns):
            basis = self._columns[chosen]
            if (column - basis.T @ torch.linalg.pinv(basis.T) @ column).norm() > APART:
                chosen.append(place)
        if len(chosen) < batch:
            return
        best, explained = torch.tensor(chosen), 0.0
        swaps = torch.cartesian_prod(torch.arange(batch), torch.arange(len(self._columns)))
        sets = best[None]
        while True:
            each = self._explained(sets)
            if float(each.max()) <= explained:
                return
            best, explained = sets[each.argmax()], float(each.max())
            if explained >= agreement:
                self.images = _images(self.left, self._right, self._columns[best], self._slopes)
                return
            sets = best.repeat(len(swaps), 1)
            sets[torch.arange(len(swaps)), swaps[:, 0]] = swaps[:, 1]

    def _explained(self, sets: torch.Tensor) -> torch.Tensor:
        """Part of the neurons and images whose activation follows from sets ``[k, B]`` of candidates, ``[k]``."""
        active = (self._columns @ self.left.T).abs() > NEARLY_ZERO[-1] * self.left.norm(dim=1)
        columns = self._columns[sets]
        along = columns @ self.left.T
        scale, _ = torch.linalg.solve_ex(along @ along.mT, along @ self._slopes[:, None])
        outputs, _ = torch.linalg.solve_ex(columns.mT * scale.mT, self._right @ self._weights.T)
        agrees = ((outputs + self._biases) > 0) == active[sets]
        explained: torch.Tensor = agrees[..., self.alive].double().mean(dim=(1, 2))
        return explained


def _images(left: torch.Tensor, right: torch.Tensor, columns: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """The images ``[B, F]``: ``X = (Q diag a)^-1 R`` with ``L Q a`` the gradient of the biases."""
    scale = torch.linalg.lstsq(left @ columns.T, slopes[:, None]).solution[:, 0]
    images: torch.Tensor = torch.linalg.lstsq(columns.T * scale, right).solution
    return images
