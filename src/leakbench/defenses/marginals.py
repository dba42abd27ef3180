"""Marginal laws of a message's coordinates, and the likelihood of a mean of several users' messages.

Under secure aggregation (Bonawitz et al. 2017) no coordinate shows whether it was pruned, or which sign it had: every
user's may be one of two values. The likelihood of the mean, for the attack of Balunovic et al. (2022), is that of a
mixture over all their combinations, coordinate by coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from leakbench.defenses.densities import widened
from leakbench.federated.message import Received
from leakbench.lazy import torch

MOST_USERS = 6
"""Most users whose combinations are told apart; the mean of more is nearly normal."""
STEPS = 12
"""Fixed-point steps towards the variance that explains a candidate's misfit."""
STRIDE = 8
"""Distance between the coordinates that take part in these steps."""
LEAST_CHANCE = 1e-6
"""Least probability of either value, so that no combination is impossible."""


class Marginals(NamedTuple):
    """The laws of coordinates ``[n, d]``: one of two values, and independent noise, taken to be normal.

    Attributes:
        values: the first values, differentiable in the gradient.
        variance: of the noise; None without noise.
        chance: probability of the first values; may be differentiable. None where it is one.
        others: the other values; zero where None.
        compared: the coordinates that say something of the images, boolean; all where None.
        basis: orthonormal change of coordinates of messages ``[n, d]``, in which they are as above; none where None.
    """

    values: torch.Tensor
    variance: torch.Tensor | None = None
    chance: torch.Tensor | None = None
    others: torch.Tensor | None = None
    compared: torch.Tensor | None = None
    basis: Callable[[torch.Tensor], torch.Tensor] | None = None

    def of_users(self, users: int) -> Marginals:
        """The same of consecutive ``users`` messages together, ``[n / users, users, d]``."""
        parts = (self.variance, self.chance, self.others, self.compared)
        split = (None if part is None else part.unflatten(0, (-1, users)) for part in parts)
        return Marginals(self.values.unflatten(0, (-1, users)), *split)._replace(basis=self.basis)

    def in_basis(self, messages: torch.Tensor) -> torch.Tensor:
        """Messages ``[n, d]`` in the coordinates of the laws."""
        return messages if self.basis is None else self.basis(messages)

    def expected(self) -> torch.Tensor:
        """The mean of coordinates, of the shape of :attr:`values`."""
        if self.chance is None:
            return self.values
        expected = self.chance * self.values
        return expected if self.others is None else expected + (1 - self.chance) * self.others


def likelihood_of_mean(received: Received, users: Marginals) -> torch.Tensor:
    """Log-likelihood of means of users' messages, ``[n]``, up to a constant of each row.

    To the variance of the noise is added what a candidate's misfit asks for, so that a search that is far off finds its
    way: a narrow mixture has a maximum near every value.

    Args:
        received: the means.
        users: their marginals, ``[n, users, d]`` each.
    """
    values, count = users.in_basis(received.values), users.values.shape[1]
    noise = values.new_zeros(len(values), 1)
    if users.variance is not None:
        noise = users.variance.detach().sum(dim=1) / count**2
    if users.chance is None or count > MOST_USERS:
        mean = users.expected().mean(dim=1)
        variance = widened(noise + _of_choice(users), received)
        kernel = -0.5 * (values - mean).square() / variance
    else:
        prior, means = _combinations(users)
        squares = (values[:, None] - means).square()
        variance = widened(noise, received)
        variance = variance + _misfit(squares.detach(), prior.detach(), variance)
        kernel = torch.logsumexp(prior - 0.5 * squares / variance[:, None], dim=1)
    each = kernel - 0.5 * variance.log()
    return (each if users.compared is None else each * users.compared[:, 0]).sum(dim=1)


def _of_choice(users: Marginals) -> torch.Tensor | float:
    """Variance of the mean that comes from which values are sent, ``[n, d]``; a constant in derivatives."""
    if users.chance is None:
        return 0.0
    apart = users.values if users.others is None else users.values - users.others
    spread = (users.chance * (1 - users.chance) * apart.square()).detach()
    return spread.sum(dim=1) / apart.shape[1] ** 2


def _combinations(users: Marginals) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and means of all combinations of users' values, ``[n, 2^users, d]`` each."""
    assert users.chance is not None
    values, count = users.values, users.values.shape[1]
    first = torch.cartesian_prod(*[torch.arange(2, device=values.device)] * count).view(-1, count).to(values)
    chance = users.chance.clamp(LEAST_CHANCE, 1 - LEAST_CHANCE)
    no = (1 - chance).log()
    prior = torch.einsum("mu,nud->nmd", first, chance.log() - no) + no.sum(dim=1, keepdim=True)
    apart = values if users.others is None else values - users.others
    means = torch.einsum("mu,nud->nmd", first / count, apart)
    return prior, means if users.others is None else means + users.others.mean(dim=1, keepdim=True)


def _misfit(squares: torch.Tensor, prior: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Mean squared deviation from the combinations that are likely where noise is as large, ``[n, 1]``.

    Args:
        squares: of deviations from each combination, ``[n, m, d]``.
        prior: their log-probabilities, ``[n, m, d]``.
        variance: of noise, ``[n, d]`` or ``[n, 1]``.
    """
    squares, prior = squares[..., ::STRIDE], prior[..., ::STRIDE]
    variance = variance if variance.shape[1] == 1 else variance[:, ::STRIDE]
    likely = prior.exp()
    misfit = (likely * squares).sum(dim=1).mean(dim=1, keepdim=True)
    for _ in range(STEPS - 1):
        likely = (prior - 0.5 * squares / (variance + misfit)[:, None]).softmax(dim=1)
        misfit = (likely * squares).sum(dim=1).mean(dim=1, keepdim=True)
    return misfit
