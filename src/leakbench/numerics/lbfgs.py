"""L-BFGS on a stack of independent problems, each with a line search and a history of its own.

Ask and tell: the caller evaluates all problems ("trials") at ``points`` in one call and tells the values; every trial
then moves on by one evaluation, wherever it is in its line search. So no trial waits for another one's search. Rows
never mix, and nothing waits for the device. On one trial it is ``torch.optim.LBFGS``, without its limits of iterations
and evaluations.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from leakbench.lazy import torch
from leakbench.numerics.stateful import Stateful

DECREASE = 1e-4  # c1: sufficient decrease (Armijo)
CURVATURE = 0.9  # c2: strong Wolfe
MAX_SEARCH = 25  # evaluations of one line search after its first
LEAST_BRACKET = 1e-9  # a bracket shorter than this, in the entry that moves most, ends the search
LEAST_CURVATURE = 1e-10  # a pair with y.s up to here is not kept


class LBFGS(Stateful):
    """Limited-memory BFGS (Liu and Nocedal 1989), with the stopping rules of ``torch.optim.LBFGS``.

    A trial is finished when its largest absolute gradient is at most ``tolerance_gradient``, when the largest absolute
    entry of its step is at most ``tolerance_change``, when its value changed by less than that, or when the slope along
    its direction is above ``-tolerance_change``. With zero tolerances it is only where no iteration can lead away: a
    gradient or a step of zeros, or a direction that ascends. A finished trial stays where it is and ignores further
    values. A trial whose objective is NaN is never finished.

    Attributes:
        points: where to evaluate next, ``[n, D]``; a finished trial's is where it stays.
        accepted: the last iterate of each trial, ``[n, D]``; during a line search, where it began.
        accepted_value: the objective there, ``[n]``; NaN before the first ``tell``.
        finished: ``[n]``, bool.
        iterations: iterations done, ``[n]``; one that only found that its direction does not descend counts.

    Args:
        points: the starts, ``[n, D]``, float32 or float64; all else takes their type and device.
        rate: the step along the quasi-Newton direction, or the first that the line search tries. The very first step
            is shortened by min(1, 1 / |gradient|_1).
        history: the number of curvature pairs kept; two tensors ``[n, history, D]``.
        line_search: ``"none"`` takes every step as it is; ``"strong_wolfe"`` brackets and zooms (Nocedal and Wright
            2006, algorithms 3.5 and 3.6) with cubic interpolation.
        tolerance_gradient: see above.
        tolerance_change: see above.

    Raises:
        ValueError: ``points`` is not a floating-point matrix, ``history`` is below 1, or ``line_search`` is unknown.
    """

    def __init__(
        self,
        points: torch.Tensor,
        *,
        rate: float = 1.0,
        history: int = 100,
        line_search: Literal["none", "strong_wolfe"] = "none",
        tolerance_gradient: float = 1e-7,
        tolerance_change: float = 1e-9,
    ) -> None:
        if points.dim() != 2 or not points.is_floating_point():
            raise ValueError(f"points: a floating-point tensor [n, D], not {points.dtype} {list(points.shape)}")
        if history < 1:
            raise ValueError(f"history: at least 1, not {history}")
        if line_search not in ("none", "strong_wolfe"):
            raise ValueError(f"line_search: 'none' or 'strong_wolfe', not {line_search!r}")
        self.points = points.detach().clone()
        self.accepted = self.points
        self.accepted_value = points.new_full((len(points),), torch.nan)
        self.finished = torch.zeros(len(points), dtype=torch.bool, device=points.device)
        self.iterations = torch.zeros(len(points), dtype=torch.long, device=points.device)
        self._rate = rate
        self._tolerance_gradient = tolerance_gradient
        self._tolerance_change = tolerance_change
        self._history = _History(self.points, history)
        self._search = _StrongWolfe(self.points) if line_search == "strong_wolfe" else None
        self._step, self._gradient, self._direction = self.accepted_value, self.points, self.points
        self._begun = False

    def tell(self, value: torch.Tensor, gradient: torch.Tensor) -> None:
        """Move every trial on by one evaluation: the objective ``[n]`` and its gradient ``[n, D]`` at ``points``."""
        value, gradient = value.detach().to(self.points), gradient.detach().to(self.points)
        if not self._begun:
            self._begin(value, gradient)
            return
        if self._search is None:
            ended, step = ~self.finished, self._step
        else:
            ended, step, value, gradient = self._search.tell(value, gradient)
            ended = ended & ~self.finished
        moved = step[:, None] * self._direction
        stop = self._is_flat(gradient)
        stop |= moved.abs().amax(1) <= self._tolerance_change
        stop |= (value - self.accepted_value).abs() < self._tolerance_change
        self.iterations = self.iterations + ended
        self.finished = self.finished | (ended & stop)
        turn = ended & ~stop

        change = gradient - self._gradient
        self.accepted = torch.where(ended[:, None], self.accepted + moved, self.accepted)
        self.accepted_value = torch.where(ended, value, self.accepted_value)
        self._gradient = torch.where(ended[:, None], gradient, self._gradient)
        direction = self._history.push(turn, moved, change, self._gradient)
        self._direction = torch.where(turn[:, None], direction, self._direction)
        self._set_out(turn, torch.full_like(step, self._rate))

    def _begin(self, value: torch.Tensor, gradient: torch.Tensor) -> None:
        self._begun = True
        self.accepted_value, self._gradient, self._direction = value.clone(), gradient.clone(), -gradient
        self.finished = self.finished | self._is_flat(gradient)
        self._step = self._rate * (1 / gradient.abs().sum(1)).clamp(max=1)
        self._set_out(~self.finished, self._step)

    def _is_flat(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.abs().amax(1) <= self._tolerance_gradient

    def _set_out(self, turn: torch.Tensor, step: torch.Tensor) -> None:
        """The trials ``turn`` have a new direction, which they try first with ``step``."""
        slope = _dot(self._gradient, self._direction)
        ascends = turn & (slope > -self._tolerance_change)
        self.iterations = self.iterations + ascends
        self.finished = self.finished | ascends
        if self._search is None:
            self._step = step
        else:
            origin = _Probe(torch.zeros_like(step), self.accepted_value, slope)
            self._step = self._search.begin(turn, step, origin, self._gradient, self._direction)
        ahead = self.accepted + self._step[:, None] * self._direction  # as ``tell`` adds it: the same bits
        self.points = torch.where(self.finished[:, None], self.accepted, ahead)


class _History(Stateful):
    """The newest curvature pairs of each trial, and the inverse Hessian that they make.

    With the pairs as the columns of S and Y in the order of time, R the upper triangle of S'Y, D its diagonal and c the
    scale of the first guess, the inverse Hessian is (Byrd, Nocedal and Schnabel 1994, theorem 2.2)

        H g = c g + S R^-T ((D + c Y'Y) R^-1 S'g - c Y'g) - c Y R^-1 S'g.

    Four products read the pairs; the rest is m x m, in float64. It equals the two-loop recursion, and its rounding
    errors in float32, without 2 m steps one after the other. Pairs lie in rings ``[n, m, D]``, since trials keep
    different pairs; a slot not yet used holds zeros and so adds nothing.
    """

    def __init__(self, like: torch.Tensor, size: int) -> None:
        n, dimension = like.shape
        self._size = size
        self._pushes = 0  # no trial has kept more pairs than this
        self._kept = torch.zeros(n, dtype=torch.long, device=like.device)  # pairs ever kept
        self._scale = like.new_ones(n, 1)  # c
        self._s, self._y = like.new_zeros(n, size, dimension), like.new_zeros(n, size, dimension)
        # In the order of time: R', and the lower triangle of Y'Y.
        self._lower = torch.eye(size, dtype=torch.float64, device=like.device).repeat(n, 1, 1)
        self._yy = torch.zeros_like(self._lower)

    def push(self, turn: torch.Tensor, s: torch.Tensor, y: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Keep the pairs of the trials ``turn`` whose curvature is positive; -H g for all, ``[n, D]``."""
        self._pushes += 1
        used = min(self._pushes, self._size)
        rows, places = torch.arange(len(s), device=s.device), torch.arange(used, device=s.device)
        curvature = _dot(y, s)
        keep = turn & (curvature > LEAST_CURVATURE)
        if self._pushes > self._size:  # the oldest pair of a full ring goes
            drop = (keep & (self._kept >= self._size))[:, None, None]
            self._lower, self._yy = (
                torch.where(drop, torch.nn.functional.pad(table[:, 1:, 1:], (0, 1, 0, 1)), table)
                for table in (self._lower, self._yy)
            )
        slot, last = self._kept % self._size, self._kept.clamp(max=self._size - 1)
        self._kept = self._kept + keep
        self._scale = torch.where(keep, curvature / _dot(y, y), self._scale[:, 0])[:, None]
        for ring, row in ((self._s, s), (self._y, y)):
            ring[rows, slot] = torch.where(keep[:, None], row, ring[rows, slot])
        all_s, all_y = self._s[:, :used], self._y[:, :used]

        order = (torch.where(self._kept > self._size, self._kept, 0)[:, None] + places) % self._size  # slots by age
        by_age = order[:, :, None].expand(-1, -1, 2)
        both = torch.stack([gradient, y], 1).mT
        s_g, s_y = (all_s @ both).gather(1, by_age).double().split(1, 2)
        y_g, y_y = (all_y @ both).gather(1, by_age).double().split(1, 2)
        for table, column in ((self._lower, s_y), (self._yy, y_y)):
            table[rows, last, :used] = torch.where(keep[:, None], column[:, :, 0], table[rows, last, :used])

        lower, yy, c = self._lower[:, :used, :used], self._yy[:, :used, :used], self._scale.double()[:, :, None]
        u = torch.linalg.solve_triangular(lower.mT, s_g, upper=True)
        du, yy_u = _diagonal(lower) * u, yy @ u + yy.mT @ u - _diagonal(yy) * u
        of_s = torch.linalg.solve_triangular(lower, du + c * (yy_u - y_g), upper=False)
        weights = torch.cat([-of_s, c * u], 2).to(s.dtype)
        of_s, of_y = torch.empty_like(weights).scatter_(1, by_age, weights).mT[:, :, None].unbind(1)
        direction = torch.baddbmm((-self._scale * gradient)[:, None], of_s, all_s)
        return direction.baddbmm_(of_y, all_y)[:, 0]


class _Probe(NamedTuple):
    """A step along the direction, with the objective and its slope there; each ``[n]``."""

    step: torch.Tensor
    value: torch.Tensor
    slope: torch.Tensor

    def where(self, mask: torch.Tensor, other: _Probe) -> _Probe:
        return _Probe(*(torch.where(mask, mine, theirs) for mine, theirs in zip(self, other, strict=True)))


class _StrongWolfe(Stateful):
    """Line searches side by side, each in its own phase.

    A trial first steps outwards until it brackets a step with the strong Wolfe conditions, and then zooms in. ``_low``
    and ``_high`` are the ends of the bracket, ``_low`` the better one; before there is a bracket, ``_low`` is the
    previous step. Only the gradient at ``_low`` can still be asked for.
    """

    def __init__(self, like: torch.Tensor) -> None:
        nothing = torch.zeros_like(like[:, 0])
        self._origin = self._low = self._high = _Probe(nothing, nothing, nothing)
        self._step = self._width = self._count = nothing  # _count: evaluations before the one to be told
        self._zooming = self._stalled = self._swapped = torch.zeros_like(nothing, dtype=torch.bool)
        self._low_gradient = self._direction = like

    def begin(
        self, turn: torch.Tensor, step: torch.Tensor, origin: _Probe, gradient: torch.Tensor, direction: torch.Tensor
    ) -> torch.Tensor:
        """Start a new search in the trials ``turn``, and give the step that every trial tries next."""
        self._origin = origin.where(turn, self._origin)
        self._low = origin.where(turn, self._low)
        self._low_gradient = torch.where(turn[:, None], gradient, self._low_gradient)
        self._direction = direction  # that of the other trials is as it was
        self._width = direction.abs().amax(1)
        self._count = torch.where(turn, 0, self._count)
        self._zooming, self._stalled, self._swapped = (
            flag & ~turn for flag in (self._zooming, self._stalled, self._swapped)
        )
        self._step = torch.where(turn, step, self._step)
        return self._step

    def tell(
        self, value: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The searches that end, boolean, and the step, value and gradient that each then accepts."""
        new, low, high = _Probe(self._step, value, _dot(gradient, self._direction)), self._low, self._high
        out = self._count >= MAX_SEARCH
        too_high = value > self._origin.value + DECREASE * new.step * self._origin.slope
        too_high |= (value >= low.value) & (self._zooming | (self._count > 1))
        level = new.slope.abs() <= -CURVATURE * self._origin.slope
        begin_zoom = ~self._zooming & (out | too_high | (~level & (new.slope >= 0)))
        wider = self._wider(low, new)

        # Out of evaluations without a bracket: choose between the origin and the last step. Nobody asks for the
        # gradient at the origin, since a step of zero ends the trial.
        low = self._origin.where(begin_zoom & out, low)
        # `new` becomes an end. Of two equal ends the first is the low one; `_swapped` says that low is the second.
        end = torch.where(self._zooming, too_high, begin_zoom)
        swap = end & torch.where(self._swapped, value <= low.value, ~(low.value <= value))
        become_low = swap | ~end
        low_to_high = swap | (self._zooming & ~end & (new.slope * (high.step - low.step) >= 0))
        self._high = new.where(end & ~swap, low.where(low_to_high, high))
        self._low = new.where(become_low, low)
        self._low_gradient = torch.where(become_low[:, None], gradient, self._low_gradient)
        self._swapped = self._swapped ^ swap
        self._zooming = self._zooming | begin_zoom

        small = (self._high.step - self._low.step).abs() * self._width < LEAST_BRACKET
        ended = out | (level & ~too_high) | (self._zooming & small)
        self._step = torch.where(self._zooming, self._between(), wider)
        self._count = self._count + 1
        return ended, self._low.step, self._low.value, self._low_gradient

    @staticmethod
    def _wider(previous: _Probe, last: _Probe) -> torch.Tensor:
        """The next step outwards: between 1 % of the last interval and ten times the last step further."""
        return _cubic_minimum(previous, last, last.step + 0.01 * (last.step - previous.step), 10 * last.step)

    def _between(self) -> torch.Tensor:
        """The next step inside the bracket, a tenth away from an end that two steps in a row came close to."""
        lower = torch.minimum(self._low.step, self._high.step)
        upper = torch.maximum(self._low.step, self._high.step)
        step = _cubic_minimum(self._low, self._high, lower, upper)
        margin = 0.1 * (upper - lower)
        near = torch.minimum(upper - step, step - lower) < margin
        away = near & (self._stalled | (step >= upper) | (step <= lower))
        self._stalled = torch.where(self._zooming, near & ~away, self._stalled)
        inwards = torch.where((step - upper).abs() < (step - lower).abs(), upper - margin, lower + margin)
        return torch.where(away, inwards, step)


def _cubic_minimum(one: _Probe, other: _Probe, least: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """Minimiser of the cubic through two values and slopes (Nocedal and Wright 2006, eq. 3.59), within the bounds.

    The middle of the bounds where the cubic has no minimum.
    """
    ordered = one.step <= other.step
    left, right = one.where(ordered, other), other.where(ordered, one)
    d1 = left.slope + right.slope - 3 * (left.value - right.value) / (left.step - right.step)
    square = d1.square() - left.slope * right.slope
    d2 = square.sqrt()
    ratio = (right.slope + d2 - d1) / (right.slope - left.slope + 2 * d2)
    step = right.step - (right.step - left.step) * ratio
    step = torch.minimum(torch.maximum(step, least), most)
    return torch.where(square >= 0, step, (least + most) / 2)


def _dot(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one * other).sum(1)


def _diagonal(matrices: torch.Tensor) -> torch.Tensor:
    return matrices.diagonal(dim1=1, dim2=2)[:, :, None]
