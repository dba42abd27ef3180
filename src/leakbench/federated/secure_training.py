"""Secure aggregation in training: its parameters, the dropouts of a round, and the mean of the other clients."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.ring import Ring
from leakbench.federated.secure_aggregation import check_threshold, majority, secure_sum
from leakbench.lazy import torch
from leakbench.randomness import Streams


class SecureUpdates(NamedTuple):
    """A round of several servers.

    Attributes:
        values: mean of the clients that stayed, ``[servers, d]``; NaN where a message is not finite, zero where the
            protocol failed.
        bits: sent by the client that sends most.
        failed: servers for which the protocol failed, with the reason.
    """

    values: torch.Tensor
    bits: int
    failed: dict[int, str]


class SecureAggregation(BaseModel):
    """The server decodes the sum of the clients' messages, by pairwise masks, and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    threshold: int | None = Field(
        None,
        ge=2,
        description="clients who have to stay in a round, t: more than half of them; None: the least majority",
    )
    width: Literal[32, 64] = Field(32, description="bits of a coordinate on the wire")
    fraction_bits: int = Field(16, ge=0, description="fractional bits that are kept of a coordinate")
    clip: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="bound on the absolute value of a coordinate; none by default"
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="probability that a client drops out of a round before it has sent its message"
    )
    early: float = Field(
        0.0, ge=0, lt=1, description="probability that a client drops out of a round before it has shared its keys"
    )
    colluders: int = Field(
        0, ge=0, description="clients who may collude with the server, whose noise it knows; fewer than the threshold"
    )

    @model_validator(mode="after")
    def _fits(self) -> SecureAggregation:
        if self.fraction_bits > self.width - 2:
            raise ValueError(f"fraction_bits ({self.fraction_bits}) must be at most width - 2 ({self.width - 2})")
        if self.threshold is not None and self.colluders >= self.threshold:
            raise ValueError(f"colluders ({self.colluders}) must be fewer than threshold ({self.threshold})")
        return self

    def threshold_of(self, clients: int) -> int:
        """t of a round with so many clients.

        Raises:
            ConfigError: it is not more than half of them, and at most all; it does not exceed the colluders.
        """
        threshold = majority(clients) if self.threshold is None else self.threshold
        check_threshold(clients, threshold)
        if self.colluders >= threshold:
            raise ConfigError(
                f"colluders ({self.colluders}) must be fewer than the threshold, {threshold} of {clients} clients"
            )
        return threshold

    def honest(self, clients: int) -> int:
        """Least number of clients in a decoded sum who do not collude with the server.

        >>> SecureAggregation(threshold=6, dropout=0.1, colluders=2).honest(10)
        4

        Raises:
            ConfigError: as :meth:`threshold_of`.
        """
        threshold = self.threshold_of(clients)
        return (threshold if self.dropout or self.early else clients) - self.colluders

    def dropped(self, streams: Streams) -> torch.Tensor:
        """Mask of the clients that drop out of the round of these streams before they send, boolean ``[n]``."""
        return streams.child("dropout").uniform(1)[:, 0] < self.dropout

    def gone(self, streams: Streams) -> torch.Tensor:
        """Mask of the clients that drop out of that round before they share their keys, boolean ``[n]``."""
        return streams.child("early").uniform(1)[:, 0] < self.early

    def mean(
        self, values: torch.Tensor, dropped: Collection[int] = (), early: Collection[int] = ()
    ) -> tuple[torch.Tensor, int]:
        """The mean over the clients that did not drop out, from the decoded sum, and the bits that a client sends.

        Args:
            values: one row per client, ``[N, d]``.
            dropped: rows of clients who drop out before they have sent theirs.
            early: rows of clients who drop out before they have shared their keys.

        Returns:
            ``[d]``, of the type of ``values``, and the bits of the client who sends most.

        Raises:
            ConfigError: as :meth:`threshold_of`.
            Infeasible: fewer clients stay than the threshold; a value is not finite, or may overflow the ring.
        """
        ring = Ring(self.width, self.fraction_bits, self.clip)
        threshold = self.threshold_of(len(values))
        result = secure_sum(list(values.cpu().numpy()), threshold, dropped, early=early, ring=ring)
        mean = torch.from_numpy(result.total / len(result.survivors))
        return mean.to(values), result.bits

    def updates(self, sent: torch.Tensor, streams: Streams, alive: torch.Tensor) -> SecureUpdates:
        """The updates of several servers, each from the sum that it decodes in a round.

        Args:
            sent: messages of the clients in the clear, ``[servers * clients, d]``.
            streams: of the round, one per row; they determine the dropouts.
            alive: servers whose training continues, boolean ``[servers]``; for others nothing is computed.
        """
        values = sent.unflatten(0, (len(alive), -1))
        dropped, early = (mask.unflatten(0, (len(alive), -1)) for mask in (self.dropped(streams), self.gone(streams)))
        update, bits, failed = torch.zeros_like(values[:, 0]), 0, dict[int, str]()
        for server in alive.nonzero()[:, 0].tolist():
            if not bool(values[server].isfinite().all()):  # has no fixed-point encoding
                update[server] = torch.nan
                continue
            try:
                leaving = (mask[server].nonzero()[:, 0].tolist() for mask in (dropped, early))
                update[server], size = self.mean(values[server], *leaving)
                bits = max(bits, size)
            except Infeasible as error:
                failed[server] = str(error)
        return SecureUpdates(update, bits, failed)
