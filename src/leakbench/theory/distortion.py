"""Total variation between a client's upload before and after protection, as a function of the mechanism's parameter.

An upload has ``m`` coordinates. Under noise it is normal with coordinate variances ``sigma_i^2``, under the other
mechanisms uniform on a cube of half-width ``delta``. Where a law is a product, ``TV = 1 - ratio^m`` is computed as
``-expm1(m ln ratio)``, since ``ratio^m`` underflows, or rounds to 1, for real models.
Source: Zhang, Kang et al. (2023), section 6 and Appendices F to I; bounds for noise by Devroye, Mehrabian and
Reddad (2018). ``exact`` is the law of the mechanism itself, where the paper models it otherwise.
"""

from __future__ import annotations

import math

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.theory.arguments import positive
from leakbench.theory.leakage_surrogate import not_negative

NOISE_LOWER, NOISE_UPPER = 1 / 100, 3 / 2
"""Factors of ``min(1, sigma_eps^2 A)`` between which the total variation under noise lies."""

_ROUNDING = 1e-12
_ANGLE = math.pi / 8
_STEP = 0.08
_END = 45.0
_CHUNK = 2_000_000


def dimension(value: torch.Tensor | float, what: str = "the number of coordinates") -> torch.Tensor:
    """``m`` as a float64 tensor of its shape.

    Raises:
        ConfigError: some of it is below 1 or not finite.
    """
    size = torch.as_tensor(value, dtype=torch.float64)
    fits = (size >= 1) & size.isfinite()
    if not bool(fits.all()):
        raise ConfigError(f"{what} must be 1 at least, found {size[~fits].flatten()[0].item():g}")
    return size


def product_tv(log_ratio: torch.Tensor | float, size: torch.Tensor | float) -> torch.Tensor:
    """``1 - ratio^m``, ``[...]``, of the logarithm of a ratio in [0, 1].

    Raises:
        ConfigError: a ratio exceeds 1.
    """
    logs = torch.as_tensor(log_ratio, dtype=torch.float64)
    if not bool((logs <= _ROUNDING).all()):
        raise ConfigError(f"the protected upload must be the wider one, found a ratio of {float(logs.max().exp()):g}")
    return -(dimension(size) * logs.clamp(max=0)).expm1()


def noise_steepness(sigma: torch.Tensor) -> torch.Tensor:
    """``A = sqrt(sum_i sigma_i^-4)``, ``[..., m] -> [...]``; per unit of variance.

    The smallest ``sigma_i`` dominate it.

    Args:
        sigma: standard deviations of the coordinates.

    Raises:
        ConfigError: some of them are not positive.
    """
    inverse = positive(sigma, "the standard deviation of every coordinate").double().reciprocal()
    largest = inverse.amax(dim=-1, keepdim=True)
    return largest.squeeze(-1).square() * (inverse / largest).pow(4).sum(dim=-1).sqrt()


def noise_reach(variance: torch.Tensor | float, steepness: torch.Tensor | float) -> torch.Tensor:
    """``min(1, sigma_eps^2 A)``, ``[...]``: 1/100 and 3/2 of it are the bounds on the total variation.

    Args:
        variance: of the noise per coordinate.
        steepness: ``A``.

    Raises:
        ConfigError: the variance is negative or ``A`` not positive.
    """
    return (not_negative(variance, "the variance of noise") * positive(steepness, "A")).clamp(max=1)


def noise_tv_lower(variance: torch.Tensor | float, steepness: torch.Tensor | float) -> torch.Tensor:
    """``min(1, sigma_eps^2 A) / 100``, ``[...]``: the total variation of eqs. 9 and 10; see :func:`noise_reach`."""
    return NOISE_LOWER * noise_reach(variance, steepness)


def noise_tv_upper(variance: torch.Tensor | float, steepness: torch.Tensor | float) -> torch.Tensor:
    """``3/2 min(1, sigma_eps^2 A)``, ``[...]``, which may exceed 1; see :func:`noise_reach`."""
    return NOISE_UPPER * noise_reach(variance, steepness)


def equal_noise_tv(ratio: torch.Tensor | float, size: torch.Tensor | float) -> torch.Tensor:
    """Exact total variation under noise where all coordinates have one variance, ``[...]``.

    ``F(a (1 + s)) - F(a)`` with the distribution function of chi-square of ``m`` degrees and ``a = m ln(1 + s) / s``.

    Args:
        ratio: ``s = sigma_eps^2 / sigma^2``.
        size: ``m``.

    Raises:
        ConfigError: the ratio is negative or the dimension below 1.
    """
    from scipy.special import chdtr

    s, m = torch.broadcast_tensors(not_negative(ratio, "the ratio of variances"), dimension(size))
    place = m * torch.where(s > 0, s.log1p() / s, 1.0)
    variation = chdtr(m.numpy(), (place * (1 + s)).numpy()) - chdtr(m.numpy(), place.numpy())
    return torch.as_tensor(variation, dtype=torch.float64)


def binned(sigma: torch.Tensor, width: float = 1e-3) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard deviations on a grid of logarithms, ``[m]``, and how many coordinates are nearest to each, ``[K, m]``.

    What :func:`noise_tv` takes of many clients at the cost of one: a deviation is moved by half the width at most.

    Args:
        sigma: of the clients' coordinates, ``[K, d]``.
        width: of the grid, a relative difference.

    Raises:
        ConfigError: a standard deviation is not positive.
    """
    places = (positive(sigma, "the standard deviation of every coordinate").double().log() / width).round()
    grid, inverse = places.unique(return_inverse=True)
    counts = torch.zeros(len(sigma), len(grid), dtype=torch.float64)
    return (grid * width).exp(), counts.scatter_add_(1, inverse, torch.ones_like(places))


def noise_tv(variance: torch.Tensor | float, sigma: torch.Tensor, counts: torch.Tensor | None = None) -> torch.Tensor:
    """Exact total variation under noise, ``[...]``, for any variances of the coordinates.

    With the log-likelihood ratio ``L`` of the two normal laws and ``psi(u) = E[exp((iu - 1/2) L)]``, which is a product
    over coordinates, ``TV = 1 - (1/2 pi) int psi(u) / (u^2 + 1/4) du`` (Lewis and Lipton's formula for options). The
    path is the hyperbola ``u = sinh(s + i pi/8) / 2``, on which the integrand is analytic and falls at least as
    ``e^-s``, so that the trapezoidal rule converges exponentially: the relative error is below 1e-9. A thousand
    coordinates take milliseconds, 20,000 half a second per variance.

    Args:
        variance: of the noise per coordinate, ``[...]``.
        sigma: standard deviations of the coordinates, ``[m]`` or ``[..., m]``; equal ones of ``[m]`` are computed once.
        counts: how many coordinates have each of them, ``[..., m]``; one by default.

    Raises:
        ConfigError: a standard deviation is not positive or a variance negative.
    """
    deviations = positive(sigma, "the standard deviation of every coordinate").double()
    if counts is None and deviations.ndim == 1:
        deviations, times = deviations.unique(return_counts=True)
        counts = times.double()
    elif counts is None:
        counts = torch.ones_like(deviations)
    noise = not_negative(variance, "the variance of noise")
    ratio = noise.unsqueeze(-1) / deviations.square()  # [..., m]
    gain, pull = ratio.log1p(), ratio / (1 + ratio)
    drift = (counts * gain).sum(dim=-1).unsqueeze(-1) / 2  # of L, [..., 1]

    places = torch.arange(0.0, _END, _STEP, dtype=torch.float64)
    weights = torch.full_like(places, _STEP)
    weights[0] /= 2
    points = torch.complex(places, torch.full_like(places, _ANGLE))
    exponents = 1j * points.sinh() / 2 - 0.5  # iu - 1/2
    factors = weights / points.cosh()
    batch = max(1, _CHUNK // ratio.numel())
    total = torch.zeros(drift.shape[:-1], dtype=torch.float64)
    for here, factor in zip(exponents.split(batch), factors.split(batch), strict=True):
        # ln(1 + pull e) of every coordinate and point, by its parts: complex log1p loses digits near zero
        real, imaginary = pull.unsqueeze(-1) * here.real, pull.unsqueeze(-1) * here.imag
        size = (2 * real + real.square() + imaginary.square()).log1p() / 2
        angle = torch.atan2(imaginary, 1 + real)
        parts = [(counts.unsqueeze(-2) @ part).squeeze(-2) for part in (size, angle)]
        lost = -torch.expm1(drift * here - torch.complex(*parts) / 2)  # 1 - psi
        total = total + (lost * factor).real.sum(dim=-1)
    return (2 / math.pi * total).clamp(0, 1)


def paillier_tv(
    log_modulus: torch.Tensor | float, delta: torch.Tensor | float, size: torch.Tensor | float
) -> torch.Tensor:
    """``1 - (2 delta / n^2)^m``, ``[...]``: plaintexts uniform on a cube, ciphertexts on ``[0, n^2 - 1]^m``.

    Args:
        log_modulus: ``ln n``, since moduli are integers that no float holds (``math.log`` takes them).
        delta: half-width of plaintexts.
        size: ``m``.

    Raises:
        ConfigError: ``delta`` is not positive, the dimension below 1, or ``n^2`` below ``2 delta``.
    """
    return product_tv(
        (2 * positive(delta, "delta")).log() - 2 * torch.as_tensor(log_modulus, dtype=torch.float64), size
    )


def sharing_tv(
    mask: torch.Tensor | float,
    delta: torch.Tensor | float,
    size: torch.Tensor | float,
    below: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """``1 - (2 delta / (b + r))^m``, ``[...]``: the paper's model, where a share is uniform on ``[a - b, a + r]^m``.

    Args:
        mask: ``r``.
        delta: half-width of unmasked values.
        size: ``m``.
        below: ``b``; by default ``r``.

    Raises:
        ConfigError: ``delta``, ``r`` or ``b`` is not positive, the dimension below 1, or ``b + r`` below ``2 delta``.
    """
    upper = positive(mask, "the bound of the mask")
    width = upper + (upper if below is None else positive(below, "the lower bound of the mask"))
    return product_tv((2 * positive(delta, "delta")).log() - width.log(), size)


def exact_sharing_tv(
    mask: torch.Tensor | float, delta: torch.Tensor | float, size: torch.Tensor | float
) -> torch.Tensor:
    """The same where a share really is a uniform value plus a uniform mask on ``[-r, r]^m``, ``[...]``.

    Its coordinates are trapezoidal, and keep a part ``1 - r / (4 delta)`` in the cube for ``r <= 2 delta``, and
    ``delta / r``, as in the model, for larger masks.

    Raises:
        ConfigError: ``delta`` or ``r`` is not positive, or the dimension below 1.
    """
    ratio = positive(mask, "the bound of the mask") / positive(delta, "delta")
    kept = torch.where(ratio <= 2, (-ratio.clamp(max=2) / 4).log1p(), -ratio.log())
    return product_tv(kept, size)


def compression_tv(
    kept: torch.Tensor | float, size: torch.Tensor | float, clients: torch.Tensor | float = 1
) -> torch.Tensor:
    """``1 - rho^m`` where coordinates are dropped (eq. 13), ``[...]``; exact for any cube without a coordinate at zero.

    For the mean of ``K`` clients with independent masks it is ``1 - rho^(K m)``, for cubes far from zero; the paper
    has the client's formula there, too (I.2).

    >>> round(float(compression_tv(kept=0.99, size=100)), 4)
    0.634

    Args:
        kept: ``rho``, in [0, 1].
        size: ``m``.
        clients: ``K`` of the mean, or 1 for an upload.

    Raises:
        ConfigError: ``rho`` is not in [0, 1], or another argument below 1.
    """
    return product_tv(_probability(kept).log(), dimension(size) * dimension(clients, "the number of clients"))


def rescaled_compression_tv(
    kept: torch.Tensor | float,
    delta: torch.Tensor | float,
    size: torch.Tensor | float,
    centre: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """The same where kept coordinates are divided by ``rho`` (eq. 85), exact, ``[...]``.

    A kept coordinate has density ``rho^2 / (2 delta)`` on ``[(a - delta) / rho, (a + delta) / rho]``; so it is
    ``1 - rho^(2 m)`` for ``a = 0``, and up to 1 far from zero. The paper has ``1 - rho^m`` for both.

    Args:
        kept: ``rho``, in (0, 1].
        delta: half-width.
        size: ``m``.
        centre: ``a``, of every coordinate.

    Raises:
        ConfigError: ``rho`` is not in (0, 1], ``delta`` is not positive, or the dimension below 1.
    """
    rho, half = positive(_probability(kept), "the probability to keep"), positive(delta, "delta")
    a = torch.as_tensor(centre, dtype=torch.float64)
    top = torch.minimum(a + half, (a + half) / rho)
    bottom = torch.maximum(a - half, (a - half) / rho)
    inside = (top - bottom).clamp(min=0) / (2 * half)
    return product_tv(2 * rho.log() + inside.log(), size)


def _probability(value: torch.Tensor | float) -> torch.Tensor:
    kept = torch.as_tensor(value, dtype=torch.float64)
    fits = (kept >= 0) & (kept <= 1)
    if not bool(fits.all()):
        raise ConfigError(
            f"the probability to keep a coordinate must lie in [0, 1], found {kept[~fits].flatten()[0].item():g}"
        )
    return kept
