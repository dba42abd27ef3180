"""Compressed differentially private aggregation (CDPA), Deng et al. (2024).

A client quantises its update, writes the layers that it protects as binary words of a few decimals, and flips two of
the high bits of each with a small probability. The server sets each bit by a vote. All else is quantised and averaged.

The guarantee is of one flipped bit. All other bits travel in clear, the sign among them, and for values below the
weight of the masked bits (0.4096 with the paper's) the masked bits are zeros that carry nothing. A vote of bits is
neither a mean nor a median: 127, 127, 128 and 128 become 255.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule, least_squares_scale
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.fixed_point import FixedPoint, Negatives, unbiased_mean, vote
from leakbench.federated.fixed_point_likelihood import Origins, WordDensity, before_flips
from leakbench.federated.lattice import Lattice, PointRounding, Quantised, dequantise, lattice_law, quantise
from leakbench.federated.lattice_likelihood import FINEST, Cells
from leakbench.federated.message import Law, Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.numerics.slopes import with_slope
from leakbench.randomness import Streams
from leakbench.theory.bit_votes import VoteRule, composed_epsilon, epsilon_per_bit, least_ones

Layers = Literal["last", "linear", "all"]

MOST_MASKED = 8
"""Masked bits up to which a likelihood adds up all that may have been flipped."""

MISREAD = 10.0
"""The public code's module for text writes 5 decimals and reads 4."""


@dataclass(frozen=True)
class WordMessage(Message):
    """Words of some coordinates, lattice points of the others.

    Attributes:
        words: the clients' words of the protected coordinates, after flips, int16 ``[n, k]``.
        form: format of the words.
        protected: mask of the protected coordinates, boolean ``[d]``.
        unit: value in the update of one unit of a word.
        masked: positions of the bits that may be flipped, from the left.
        keep: p.
        rest: the other coordinates.
        streams: randomness that clients and server share, for the dither of ``rest``.
        saturated: protected values too large for a word, boolean ``[n, k]``. Does not travel.
        before: the words before flips. Does not travel.
        update: the clients' updates before protection, ``[n, d]``. Does not travel.
        rounding: of ``rest``.
        misread: the factor by which attackers take the values of words too large. The server's vote does not.
    """

    words: torch.Tensor
    form: FixedPoint
    protected: torch.Tensor
    unit: float
    masked: tuple[int, ...]
    keep: float
    rest: Quantised
    streams: Streams
    saturated: torch.Tensor
    before: torch.Tensor
    update: torch.Tensor
    rounding: PointRounding
    misread: float = 1.0

    @property
    def bits(self) -> int:
        return self.form.width * self.words.shape[1] + self.rest.bits

    @cached_property
    def others(self) -> torch.Tensor:
        """Decoded coordinates that are not protected, ``[n, d - k]``."""
        return dequantise(self.rest, self.streams)

    def assemble(self, protected: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """``[..., d]`` from the protected coordinates ``[..., k]`` and the others."""
        whole = others.new_empty(*others.shape[:-1], len(self.protected))
        whole[..., self.protected] = protected.to(whole)
        whole[..., ~self.protected] = others
        return whole

    def view(self) -> torch.Tensor:
        """The decoded words of each client: the vote of a single client changes nothing."""
        return self.assemble(self.misread * self.unit * self.form.decode(self.words), self.others)

    @cached_property
    def marked(self) -> torch.Tensor:
        """Words with a masked bit of the magnitude set: it was flipped, or the value is as large as a flip.

        The second does not happen while updates are small, and never to a coordinate that is not protected.
        """
        shown = self.form.shown(self.words, self.masked)
        return self.assemble(shown, torch.zeros_like(self.others, dtype=torch.bool))

    @property
    def step(self) -> torch.Tensor:
        one = self.others.new_full(self.words.shape, abs(self.misread * self.unit) / self.form.scale)
        return self.assemble(one, self.rest.step)

    @property
    def beyond(self) -> torch.Tensor:
        return self.assemble(self.others.new_zeros(self.words.shape), self.rest.beyond)

    @property
    def coded(self) -> torch.Tensor:
        unit = self.others.new_full((), abs(self.misread * self.unit))
        return (self.protected * unit).expand(len(self.words), -1)

    @cached_property
    def law(self) -> Law:
        """Over flips, and over the dither of what is not protected; words before flips are taken as given."""
        others = lattice_law(self.update[:, ~self.protected], self.rest, self.rounding)
        assert others.variance is not None
        mean, variance = self.form.flip_law(self.before, self.masked, self.keep)
        unit = self.misread * self.unit
        return Law(
            self.assemble(unit * mean, others.mean),
            self.assemble(~self.saturated, others.passing),
            self.assemble(unit**2 * variance, others.variance),
            normal=False,
        )


@DEFENSES.register("cdpa", version=1)
class CDPA(Defense):
    """Words with randomly flipped high bits, which the server votes on bit by bit (Deng et al. 2024)."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)
    biased: ClassVar[str] = "bits are flipped, and the server takes their vote; only the variant 'corrected' undoes it"
    added: ClassVar[tuple[str, ...]] = ("negatives",)

    variant: Literal["as_printed", "as_released", "as_released_text", "corrected"] = Field(
        "as_printed",
        description="as_printed: vote of bits (eq. 2); as_released: also truncates words, which overflow, and rounds "
        "lattice points coordinatewise (Babai); as_released_text: the same, but words saturate, and attackers read one "
        "client's words ten times too large; corrected: the unbiased mean of the words, no vote",
    )
    p: float = Field(0.98, gt=0.5, le=1, description="probability of keeping a masked bit")
    decimals: int = Field(4, ge=0, le=9, description="of a word, z")
    width: int = Field(16, ge=2, le=16, description="bits of a word, the sign among them, b")
    mask: tuple[int, ...] = Field(
        (2, 3), description="positions of the bits that may be flipped, from the left; 0 is the sign"
    )
    layers: Layers = Field(
        "last", description="what becomes words: the last fully connected layer, all such layers, or everything"
    )
    negatives: Negatives = Field(
        "sign_magnitude", description="how words hold negative values: as released, or as_printed alone twos_complement"
    )
    encodes: Literal["gradient", "delta"] = Field(
        "gradient", description="delta: minus the rate times the gradient, the change of the parameters"
    )
    rate: float | None = Field(None, gt=0, description="of the delta; that of the local training by default")
    threshold: VoteRule = Field(
        "printed",
        description="ones, of R clients, that set a bit: R p / 2 (printed, eq. 2), R / 2 (majority), or more",
    )
    bits: int = Field(16, ge=1, le=24, description="of the lattice, per coordinate")

    @model_validator(mode="after")
    def _fitting_words(self) -> CDPA:
        if any(not 0 <= position < self.width for position in self.mask) or len(set(self.mask)) < len(self.mask):
            raise ValueError(f"mask {list(self.mask)} must name different bits of a word, 0 to {self.width - 1}")
        if self._as_released and self.width != 16:
            raise ValueError(f"width ({self.width}) must be 16 for variant '{self.variant}'")
        if self.negatives != "sign_magnitude" and self.variant != "as_printed":
            raise ValueError(f"negatives '{self.negatives}' is of variant 'as_printed', not of '{self.variant}'")
        if self.rate is not None and self.encodes == "gradient":
            raise ValueError("rate is of encodes 'delta'; leave it out for 'gradient'")
        return self

    @property
    def form(self) -> FixedPoint:
        """Format of the words."""
        return FixedPoint(self.decimals, self.width, self.negatives)

    @property
    def rounding(self) -> PointRounding:
        """Rounding to lattice points: see :meth:`leakbench.federated.lattice.Lattice.round`."""
        return "babai" if self._as_released else "nearest"

    @property
    def _as_released(self) -> bool:
        return self.variant in ("as_released", "as_released_text")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        """The clients' words and lattice points.

        Raises:
            ConfigError: the model has no layer to protect.
        """
        update, lattice = steps.gradient, Lattice(bits=self.bits)
        chosen, others = self._sizes(steps.network)
        protected = self._protected(steps.network).to(update.device)
        # Words encode the quantised update, dither subtracted (Algorithm 1).
        dither, factor = streams.child("words"), self._factor(steps)
        coarse = dequantise(quantise(update[:, protected] * factor, chosen, lattice, self.rounding, dither), dither)
        form = self.form
        before, saturated = (form.encode_released if self._as_released else form.encode)(coarse)
        if self.variant == "as_released_text":
            # Its words are longer, with the masked bits at the same weights: no value overflows.
            before = torch.where(saturated, form.encode(coarse)[0], before)
        words = form.flip(before, self.mask, self.p, streams.child("flips"))
        rest = quantise(update[:, ~protected], others, lattice, self.rounding, streams)
        return WordMessage(
            words,
            form,
            protected,
            1 / factor,
            self.mask,
            self.p,
            rest,
            streams,
            saturated,
            before,
            update,
            self.rounding,
            self._misread,
        )

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Log-likelihood of words over the flips of masked bits, and of the others' lattice points, ``[n]``.

        A received word comes from one of ``2^k`` words before the ``k`` masked bits were flipped, ``f`` of them with
        the probability ``p^(k - f) (1 - p)^f``. The likelihood is their mixture. Rounding to a word, and to the lattice
        before it, is taken as normal noise, no narrower than a search finds
        (:data:`~leakbench.federated.lattice_likelihood.FINEST`). A negative zero is received as zero, so that of a
        zero magnitudes alone are compared. What a saturated word stands for has no end; where words overflow as
        released, they are compared after it, and derivatives go straight through.

        Raises:
            Infeasible: more than 8 bits are masked.
        """
        factor, (_, others) = self._factor(steps), self._sizes(steps.network)
        density, rest = received.once((self, "seen"), partial(self._seen, received, steps.network, factor))
        values, of_rest = self._divided(steps.gradient, steps.network)
        of_words = self._of_words(density, values, factor)
        if not others:
            return of_words
        cells = Cells.of(of_rest, rest, others, Lattice(bits=self.bits), self.rounding)
        return of_words + cells.uniform()

    def fitted_scale(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """By least squares over what shows no masked bit, ``[n, 1]``: a few flips outweigh a gradient."""

        def compared() -> tuple[torch.Tensor, torch.Tensor]:
            protected = self._protected(steps.network).to(received.values.device)
            values = torch.where(protected, received.values / self._misread, received.values)
            words, _ = self.form.encode(values * self._factor(steps))
            return values, (~(protected & self.form.shown(words, self.mask))).to(values.dtype)

        values, weights = received.once((self, "compared"), compared)
        return least_squares_scale(values, steps.gradient, weights)

    def _divided(self, values: torch.Tensor, network: Network) -> tuple[torch.Tensor, torch.Tensor]:
        """The protected coordinates of ``[n, d]`` and the others, faster than by masks."""
        tensors = zip(protected_tensors(network, self.layers), network.sizes, strict=True)
        runs = [(as_words, sum(size for _, size in run)) for as_words, run in itertools.groupby(tensors, itemgetter(0))]
        parts = list(zip(values.split([size for _, size in runs], dim=1), runs, strict=True))
        protected, others = ([part for part, (as_words, _) in parts if as_words is which] for which in (True, False))
        return _joined(protected, values), _joined(others, values)

    def _seen(self, received: Received, network: Network, factor: float) -> tuple[WordDensity, Received]:
        """The density of values before they became words, and the lattice points of the others."""
        assert received.step is not None
        assert received.beyond is not None
        values, rest = self._divided(received.values, network)
        code = (self._divided(each, network)[1] for each in (received.step, received.beyond))
        return self._density(values * (factor / self._misread), self._sizes(network)[0]), Received(rest, *code)

    def _density(self, received: torch.Tensor, sizes: Sequence[int]) -> WordDensity:
        """The density of values before they became the decoded words ``[n, k]``, of tensors of some sizes."""
        form, masked = self.form, self.mask if self.p < 1 else ()
        if len(masked) > MOST_MASKED:
            raise Infeasible(
                f"mask names {len(masked)} bits, and the likelihood adds up 2^{len(masked)} words per coordinate; "
                f"it takes {MOST_MASKED} at most, and the attack 'simulated' any number"
            )
        words = form.encode(received)[0]
        origins, weights = (each.to(received.dtype) for each in before_flips(form, words, masked, self.p))
        magnitudes, order = origins.abs().sort(dim=-1, stable=True)
        tensors = Tensors(sizes)
        size = tensors.spread(tensors.mean(magnitudes[..., 0].square()).sqrt())
        # Two rows of a tensor add up in the scale of the lattice, 3 sigma.
        lattice = 18 * float(Lattice(bits=self.bits).error_covariance(self.rounding).diagonal().mean())
        variance = torch.maximum(1 / 12 + lattice * size.square(), (FINEST * size).square() / 2)
        largest = float(received.abs().amax()) * form.scale + form.mask(masked)
        may_saturate = self.variant != "as_released" and (largest >= form.limit or 0 in masked)
        saturated = magnitudes == form.limit if may_saturate else None
        of_words = Origins(origins.gather(-1, order), weights[order], saturated, 0.5 / variance, received == 0)
        return WordDensity(of_words)

    def _of_words(self, density: WordDensity, values: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        """Log-likelihood ``[n]`` of words that were received, for values ``[n, k]`` that times the factor are encoded.

        Derivatives go straight through the overflows of the variant.
        """
        unit, fixed = factor * self.form.scale, values.detach()
        scaled = fixed * unit
        if self.variant == "as_released":
            words, beyond = self.form.encode_released(fixed * factor)
            scaled = torch.where(beyond, self.form.integers(words).to(scaled), scaled)
        logarithm, slope = density(scaled)
        return with_slope(values, logarithm, slope.mul_(unit))

    @property
    def _misread(self) -> float:
        return MISREAD if self.variant == "as_released_text" else 1.0

    def _sizes(self, network: Network) -> tuple[list[int], list[int]]:
        """Sizes of the tensors that become words, and those of the others."""
        tensors = list(zip(network.sizes, protected_tensors(network, self.layers), strict=True))
        return [size for size, as_words in tensors if as_words], [size for size, as_words in tensors if not as_words]

    def _protected(self, network: Network) -> torch.Tensor:
        """The mask of protected coordinates, boolean ``[d]``."""
        return torch.tensor(protected_tensors(network, self.layers)).repeat_interleave(torch.tensor(network.sizes))

    def _factor(self, steps: ClientSteps) -> float:
        if self.encodes == "gradient":
            return 1.0
        return -(self.rate or steps.local.rate)

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        """The vote, or under ``corrected`` the unbiased mean, of protected coordinates; the mean of the others.

        As ``[n / clients, d]``. A single client's vote is its words; the vote of two is the union of their ones.
        """
        assert isinstance(message, WordMessage)
        words = message.words.unflatten(0, (-1, clients))
        if self.variant == "corrected":
            values = unbiased_mean(words, message.form, self.mask, self.p)
        else:
            values = message.form.decode(vote(words, least_ones(clients, self.p, self.threshold)))
        others = message.others.unflatten(0, (-1, clients)).mean(dim=1)
        return message.assemble(message.unit * values, others)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        """None: what the paper states is the epsilon of a single masked bit."""
        masked, values, rounds = len(self.mask), schedule.dimension, schedule.rounds
        if self.p == 1 or not self.mask:
            return PrivacyStatement.none("no bit is ever flipped")
        composed = composed_epsilon(self.p, masked, values, rounds)
        return PrivacyStatement(
            None,
            None,
            f"no guarantee for any value: {self.width - masked} of the {self.width} bits of a word travel in clear, so "
            f"epsilon is infinite. What the paper prints, {epsilon_per_bit(self.p):.4g}, is of one masked bit; over "
            f"{masked} bit(s) of at most {values} value(s) in {rounds} round(s) that adds up to {composed:.6g}",
        )


def _joined(parts: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Columns side by side; one part alone is not copied, and none has the rows of ``like``."""
    return parts[0] if len(parts) == 1 else torch.cat([like[:, :0], *parts], dim=1)


def protected_tensors(network: Network, layers: Layers) -> list[bool]:
    """Mask of the parameter tensors that become words.

    Raises:
        ConfigError: there are none.
    """
    if layers == "all":
        return [True] * len(network.names)
    layers_of_model = network.linear_layers
    if not layers_of_model:
        raise ConfigError(
            f"defense 'cdpa': layers '{layers}' protects fully connected layers, and the model has none; allowed: all"
        )
    if layers == "last":
        owner = network.names[-1].rpartition(".")[0]
        _ = network.head  # raises, and says what the model ends with
        chosen = {owner}
    else:
        chosen = set(layers_of_model)
    return [name.rpartition(".")[0] in chosen for name in network.names]
