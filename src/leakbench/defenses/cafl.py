"""CAFL: compressive sensing and a two-point perturbation, as Deng et al. (2024) compare with it.

Source: Miao et al. 2022, "Compressed Federated Learning Based on Adaptive Local Differential Privacy". A client sends
few linear measurements of every tensor, each of them perturbed. The server decodes by looking for the update whose
cosine transform is sparse and that has these measurements. An attacker who is the server decodes likewise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from leakbench.defenses.base import (
    DEFENSES,
    ClientState,
    Defense,
    PrivacyStatement,
    Round,
    Schedule,
    least_squares_scale,
)
from leakbench.defenses.marginals import Marginals
from leakbench.errors import Infeasible
from leakbench.federated.message import FLOAT_BITS, CodedMessage, Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.theory.sparse_recovery import dct, fista, idct

LEAST_WEIGHT = 1e-3
"""Weight of sparsity where the perturbation is small, as a part of the one that makes everything zero."""
LEAST_SENT = 1e-4
"""From where up a coefficient counts as sent, as a part of the root mean square: transforming back leaves no zeros."""
LEAST_NOISE = 3e-2
"""Least standard deviation of a sent coefficient, as a part of the root mean square: those at the centre are exact."""


def two_point(epsilon: float) -> tuple[float, float]:
    """The factor ``k`` on a deviation ``mu`` from the centre, and its probability; else the factor is ``1 / k``.

    ``k = (e^epsilon + 1) / (e^epsilon - 1)`` with probability ``(e^epsilon - 1) / (2 e^epsilon)``: the mean is ``mu``.
    """
    return 1 / math.tanh(epsilon / 2), -math.expm1(-epsilon) / 2


def two_point_variance(epsilon: float) -> float:
    """Variance of the factor on ``mu``: ``4 / (e^(2 epsilon) - 1)``."""
    return 4 * math.exp(-2 * epsilon) / -math.expm1(-2 * epsilon)


def perturb(values: torch.Tensor, epsilon: float, draws: torch.Tensor) -> torch.Tensor:
    """The perturbation of one tensor's values around the middle of their range, ``[n, m]``; unbiased.

    Args:
        values: ``[n, m]``.
        epsilon: positive.
        draws: uniform on [0, 1), ``[n, m]``.
    """
    factor, probability = two_point(epsilon)
    centre = _centre(values)
    up, down = (values.new_tensor(each) for each in (factor, 1 / factor))
    return centre + (values - centre) * torch.where(draws < probability, up, down)


def _centre(values: torch.Tensor) -> torch.Tensor:
    """The middle of the range of a tensor's values ``[n, m]``, ``[n, 1]``."""
    return (values.amax(dim=1, keepdim=True) + values.amin(dim=1, keepdim=True)) / 2


class _Sent(NamedTuple):
    """The coefficients of a tensor as received.

    Attributes:
        values: ``[n, N]``.
        places: those that were sent, boolean ``[n, N]``.
        number: of them, ``[n, 1]``.
        square: their mean square, ``[n, 1]``.
    """

    values: torch.Tensor
    places: torch.Tensor
    number: torch.Tensor
    square: torch.Tensor

    @classmethod
    def of(cls, part: torch.Tensor) -> _Sent:
        """Read the coefficients of a tensor that the server transformed back, ``[n, N]``."""
        values = dct(part)
        least = LEAST_SENT * values.square().mean(dim=1, keepdim=True).sqrt()
        places = values.abs() > least
        number = places.sum(dim=1, keepdim=True).clamp(min=1)
        return cls(values, places, number, (values.square() * places).sum(dim=1, keepdim=True) / number)

    def log_likelihood(self, part: torch.Tensor, variance: float) -> torch.Tensor:
        """Log-likelihood ``[n]`` of a candidate's tensor ``[n, N]``; ``variance``: of the factor on deviations."""
        means = dct(part)
        highest = means.where(self.places, -torch.inf).amax(dim=1, keepdim=True)
        lowest = means.where(self.places, torch.inf).amin(dim=1, keepdim=True)
        centre = ((highest + lowest) / 2).nan_to_num()  # where nothing was sent
        noise = variance * (means - centre).square() + LEAST_NOISE**2 * self.square
        misfit = (self.values - means).square()
        # A search that is far off sees all coefficients alike, and not those near the centre alone.
        excess = ((misfit - noise) * self.places).sum(dim=1, keepdim=True) / self.number
        noise = noise + excess.clamp(min=0) + torch.finfo(part.dtype).tiny
        return -0.5 * ((misfit / noise + noise.log()) * self.places).sum(dim=1)


@DEFENSES.register("cafl", version=1)
class CAFL(Defense):
    """Send few perturbed measurements of every tensor; the server looks for an update that is sparse under the DCT.

    ``compressive_sensing``: a tensor is cut into blocks, the last one shorter. Of a block of ``N`` values,
    ``ceil(fraction * N)`` measurements are sent. ``sensing`` chooses them: values of the DCT at random places after
    random signs (without them the measurements would be coefficients of the very basis in which the update is sparse,
    and those not sent could not be recovered), or products with independent normal vectors. Both are drawn from
    the client's stream, travel as a seed, and serve all blocks of a size; an attacker who simulates the defense draws
    matrices of its own, and so knows less than the server. The server solves a LASSO, whose weight is the universal
    threshold ``sigma sqrt(2 ln N)`` of the perturbation's noise.

    ``as_printed``: the DCT of the whole tensor; one of its contiguous blocks of ``ceil(fraction * N)`` coefficients is
    sent, another one for every tensor and, if it is ``moving``, round; the server transforms back, the rest being zero.
    A ``moving`` block is drawn from public randomness: a fixed one never trains the coefficients outside it.

    ``as_released``: as in the code of Deng et al. (2024), where the transform is along an axis of length one, and so a
    multiplication by 2; the perturbation covers the zeros as well, so everything travels; nothing is transformed back.
    """

    biased: ClassVar[str] = "the server looks for the update that is sparsest, and shrinks it"
    added: ClassVar[tuple[str, ...]] = ("moving",)

    epsilon: float = Field(gt=0, description="of the two-point perturbation; see privacy() for what it is worth")
    fraction: float = Field(gt=0, le=1, description="part of the measurements that are sent; ceil(fraction * N)")
    form: Literal["compressive_sensing", "as_printed", "as_released"] = Field(
        "compressive_sensing", description="which reading; see the class"
    )
    sensing: Literal["dct_rows", "gaussian"] = Field("dct_rows", description="measurements of compressive_sensing")
    block: int = Field(256, ge=2, description="values that compressive_sensing measures together")
    iterations: int = Field(100, ge=1, description="steps of the server's solver, FISTA")
    round: int = Field(0, ge=0, description="moves the contiguous block of the two other forms; of the first round")
    moving: bool = Field(
        False,
        description="every round draws that block anew for every tensor, from public randomness; else all rounds send "
        "the same block",
    )

    @property
    def adaptive(self) -> tuple[Mapping[str, Any], ...]:  # type: ignore[override]
        """`likelihood` of the form `as_printed`, else `simulated`."""
        return ({"name": "likelihood"},) if self.form == "as_printed" else ()

    def protect_round(self, steps: ClientSteps, round: Round) -> tuple[Message, ClientState]:
        return self._protected(steps, round), round.state

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """The coefficients that were sent as normal ones, of the mean and variance of the perturbation, ``[n]``.

        Their places show in the message. The variance follows the candidate, also in the derivative: a line search
        needs both to agree.

        Raises:
            Infeasible: the form is not ``as_printed``.
        """
        if self.form != "as_printed":
            raise Infeasible(f"the form '{self.form}' states no likelihood; the attack 'simulated' needs none")
        parts = zip(self._sent(received, steps), steps.gradient.split(steps.network.sizes, dim=1), strict=True)
        variance = two_point_variance(self.epsilon)
        return torch.stack([sent.log_likelihood(part, variance) for sent, part in parts]).sum(dim=0)

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        """The two values of every coefficient that is sent, of the form `as_printed`."""
        if self.form != "as_printed":
            return super().marginals(steps, streams, public)
        sizes, parts = steps.network.sizes, steps.gradient.split(steps.network.sizes, dim=1)
        chosen = self._blocks_sent(sizes, Round(streams, published=public), steps.gradient.device)
        factor, probability = two_point(self.epsilon)
        more, less, compared = [], [], []
        for part, places in zip(parts, chosen, strict=True):
            coefficients = dct(part)
            centre = _centre(coefficients.gather(1, places))
            more.append(centre + factor * (coefficients - centre))
            less.append(centre + (coefficients - centre) / factor)
            compared.append(torch.zeros_like(part, dtype=torch.bool).scatter_(1, places, True))

        def transformed(messages: torch.Tensor) -> torch.Tensor:
            return torch.cat([dct(part) for part in messages.split(sizes, dim=1)], dim=1)

        chance = torch.full_like(steps.gradient, probability)
        return Marginals(
            torch.cat(more, dim=1), None, chance, torch.cat(less, dim=1), torch.cat(compared, dim=1), transformed
        )

    def fitted_scale(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """The factor that fits the coefficients that were sent, ``[n, 1]``."""
        sent = self._sent(received, steps)
        parts = zip(sent, steps.gradient.split(steps.network.sizes, dim=1), strict=True)
        means = torch.cat([each.places * dct(part) for each, part in parts], dim=1)
        return least_squares_scale(torch.cat([each.places * each.values for each in sent], dim=1), means)

    def _sent(self, received: Received, steps: ClientSteps) -> list[_Sent]:
        sizes = steps.network.sizes
        return received.once((self, "sent"), lambda: [_Sent.of(part) for part in received.values.split(sizes, dim=1)])

    def _protected(self, steps: ClientSteps, round: Round) -> Message:
        streams, sizes, device = round.streams, steps.network.sizes, steps.gradient.device
        parts = steps.gradient.split(sizes, dim=1)
        if self.form == "compressive_sensing":
            return self._sense(parts, streams)
        chosen = self._blocks_sent(sizes, round, device)
        counts = [self._count(size) for size in sizes]
        if self.form == "as_printed":
            draws = streams.uniform(sum(counts), device=device).split(counts, dim=1)
            decoded = [self._as_printed(*each) for each in zip(parts, chosen, draws, strict=True)]
            return CodedMessage(torch.cat(decoded, dim=1), size=FLOAT_BITS * sum(counts))
        draws = streams.uniform(steps.gradient.shape[1], device=device).split(sizes, dim=1)
        decoded = [self._as_released(*each) for each in zip(parts, chosen, draws, strict=True)]
        return CodedMessage(torch.cat(decoded, dim=1), size=FLOAT_BITS * steps.gradient.shape[1])

    def _count(self, size: int) -> int:
        """Number of values sent of ``size``."""
        return math.ceil(self.fraction * size)

    def _blocks_sent(self, sizes: Sequence[int], round: Round, device: torch.device) -> list[torch.Tensor]:
        """Indices of the contiguous coefficients that each tensor sends, ``[n, count]``; public, drawn if moving."""
        blocks = torch.tensor([math.ceil(size / self._count(size)) for size in sizes], device=device)
        turn = (torch.arange(len(sizes), device=device) + self.round).expand(len(round.streams), -1)
        if self.moving:
            turn = (round.public.uniform(len(sizes), device=device) * blocks).long()
        chosen = []
        for size, place in zip(sizes, (turn % blocks).unbind(dim=1), strict=True):
            count = self._count(size)
            first = (place * count).clamp(max=size - count)
            chosen.append(first[:, None] + torch.arange(count, device=device))
        return chosen

    def _as_printed(self, part: torch.Tensor, chosen: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        coefficients = dct(part)
        sent = perturb(coefficients.gather(1, chosen), self.epsilon, draws)
        return idct(torch.zeros_like(coefficients).scatter_(1, chosen, sent))

    def _as_released(self, part: torch.Tensor, chosen: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        masked = torch.zeros_like(part).scatter_(1, chosen, 2 * part.gather(1, chosen))
        return perturb(masked, self.epsilon, draws)

    def _sense(self, parts: tuple[torch.Tensor, ...], streams: Streams) -> Message:
        matrices: dict[int, torch.Tensor] = {}
        measured = []
        for part in parts:
            blocks = list(self._blocks(part))
            for each in blocks:
                if each.shape[2] not in matrices:
                    matrices[each.shape[2]] = self._matrix(each.shape[2], streams, part)
            measured.append([each @ matrices[each.shape[2]].mT for each in blocks])
        counts = [sum(each.shape[1] * each.shape[2] for each in group) for group in measured]
        draws = streams.child("perturbation").uniform(sum(counts), device=parts[0].device).split(counts, dim=1)
        decoded = []
        for part, group, draw in zip(parts, measured, draws, strict=True):
            received = perturb(torch.cat([each.flatten(1) for each in group], dim=1), self.epsilon, draw)
            pieces = received.split([each.shape[1] * each.shape[2] for each in group], dim=1)
            level = received.square().mean(dim=1)  # of the tensor, not of its blocks
            for block, values, each in zip(self._blocks(part), pieces, group, strict=True):
                matrix = matrices[block.shape[2]]
                decoded.append(self._decode(matrix, values.view_as(each), level).flatten(1))
        return CodedMessage(torch.cat(decoded, dim=1), size=FLOAT_BITS * sum(counts))

    def _blocks(self, part: torch.Tensor) -> Iterator[torch.Tensor]:
        """A tensor ``[n, N]`` as whole blocks ``[n, k, block]``, and the remainder ``[n, 1, N mod block]``."""
        whole = part.shape[1] // self.block * self.block
        if whole:
            yield part[:, :whole].unflatten(1, (-1, self.block))
        if whole < part.shape[1]:
            yield part[:, None, whole:]

    def _matrix(self, size: int, streams: Streams, like: torch.Tensor) -> torch.Tensor:
        """The sensing matrix of blocks of one size, ``[n, ceil(fraction * size), size]``."""
        count, streams = self._count(size), streams.child("sensing", size)
        if self.sensing == "gaussian":
            return streams.normal(count, size, device=like.device) / math.sqrt(count)
        signs = torch.where(streams.uniform(size, device=like.device) < 0.5, -1.0, 1.0)
        rows = streams.uniform(size, device=like.device).argsort(dim=1)[:, :count]
        return _dct_matrix(size, like)[rows] * signs[:, None]

    def _decode(self, matrix: torch.Tensor, received: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        """Blocks from perturbed measurements, ``[n, k, m] -> [n, k, size]``.

        Args:
            matrix: their sensing matrix, ``[n, m, size]``.
            received: the measurements.
            level: mean square of all measurements of the tensor, ``[n]``.
        """
        size = matrix.shape[2]
        basis = _dct_matrix(size, matrix)  # an update is a sparse combination of its rows
        sparse = matrix @ basis.T
        variance = two_point_variance(self.epsilon)
        noise = (level * variance / (1 + variance)).sqrt()
        column = torch.linalg.matrix_norm(sparse) / math.sqrt(size)
        universal = (noise * column * math.sqrt(2 * math.log(size)))[:, None]
        correlation = (received @ sparse).abs().amax(dim=2)
        weight = torch.maximum(universal, LEAST_WEIGHT * correlation)
        return fista(sparse, received, weight, self.iterations) @ basis

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none(
            "a sent value deviates from the centre by mu k or mu / k, so that mu is one of two numbers; "
            "another mu has another support, and the likelihood ratio is infinite",
        )


def _dct_matrix(size: int, like: torch.Tensor) -> torch.Tensor:
    """The DCT's matrix, ``[size, size]``: ``dct(x) = C x``."""
    return dct(torch.eye(size, device=like.device, dtype=like.dtype)).T
