"""The record of an audit, its levels of leakage, and the comparison with the true images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from leakbench.auditing.attempts import Attempt
from leakbench.errors import ConfigError
from leakbench.lazy import np, torch
from leakbench.metrics.assignment import assign, reorder
from leakbench.metrics.image import psnr, ssim
from leakbench.user_code import in_one_line

EXACT, CLEAR, GUESS = 30.0, 20.0, 3.0
"""Decibels that the page's words stand for: recovered from ``EXACT`` on, recognisable from ``CLEAR`` on, a guess below
``GUESS`` over mid-grey. A convention of ours, which no viewers were asked about."""

Level = Literal["exact", "recognisable", "partial", "nothing", "unknown", "failed"]

_SSIM_SIDE = 6
"""Side of the smallest images that the 11x11 window of SSIM takes, mirrored at the borders."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Scores(_Model):
    """Reconstructions beside the true images, after assignment, one value per image."""

    psnr: list[float] = Field(description="dB, pixels in [0, 1]")
    ssim: list[float] | None = Field(description="null where images are too small for its window")

    @property
    def mean_psnr(self) -> float:
        """Mean over the batch, dB."""
        return sum(self.psnr) / len(self.psnr)


class Tried(_Model):
    """An attack on the captured update, or on it behind a defense."""

    name: str
    title: str
    knows: str = Field(description="beside the model and the update")
    attack: dict[str, Any] = Field(description="its name, version and parameters")
    starts: int
    labels: list[int] = Field(description="that it was given, inferred or found")
    objective: float | None = Field(description="its own, of the best start")
    unexplained: float | None = Field(
        description="1 - cosine of the captured update and that of the reconstruction, over that of mid-grey images"
    )
    agreement: float | None = Field(description="PSNR between the reconstructions of the two best starts, dB")
    scores: Scores | None = Field(description="null without true images")
    level: Level
    seconds: float
    reason: str = Field("", description="why there is no reconstruction")
    picture: str = Field("", description="file of the reconstructions, side by side")


class Behind(_Model):
    """A defense on the captured update, in one setting."""

    name: str
    attempts: list[Tried] = Field(description="every attack without knowledge of the defense, then with it")
    kept: float = Field(description="cosine of the message and the update")
    bits: float = Field(description="of the message, per coordinate; 32 without a defense")
    nearness: float | None = Field(
        description="PSNR of the best of these against the true images, or, without them, against what the attack "
        "reconstructs without a defense, dB"
    )


class AuditRecord(_Model):
    """All that an audit found."""

    schema_: Literal["leakbench.audit/1"] = Field("leakbench.audit/1", alias="schema")
    request: dict[str, Any]
    files: dict[str, str] = Field(description="SHA-256 of the files that were read, by their paths as given")
    parameters: int = Field(description="of the model")
    assumptions: list[str]
    blind: Scores | None = Field(description="of mid-grey images, which look at no update")
    inferred: list[list[int]] = Field(description="sets of labels that methods read off the update")
    inferred_right: float | None = Field(description="part of the labels in the best of these sets that is right")
    tried: list[Tried]
    not_tried: dict[str, str] = Field(description="attackers with the reason")
    behind: list[Behind]
    versions: dict[str, str]
    device: str

    @property
    def best(self) -> Tried | None:
        """The attack that shows most: by PSNR, without scores by what it leaves unexplained; None if all failed."""
        worked = [each for each in self.tried if each.level != "failed"]
        return max(worked, key=_strength, default=None)


def _strength(tried: Tried) -> tuple[float, float]:
    score = -math.inf if tried.scores is None else tried.scores.mean_psnr
    return score, -math.inf if tried.unexplained is None else -tried.unexplained


def true_images(folder: Path, shape: tuple[int, int, int], batch: int) -> torch.Tensor:
    """The images of a folder as pixels in [0, 1], ``[B, C, H, W]``, in the order of their names.

    Raises:
        ConfigError: there is no such folder, or not as many images as the batch has, or one that cannot be read or
            has another size.
    """
    from PIL import Image

    if not folder.is_dir():
        raise ConfigError(f"--truth: no folder {folder}")
    files = sorted(each for each in folder.iterdir() if each.suffix.lower() in {".png", ".jpg", ".jpeg", ".bmp"})
    if len(files) != batch:
        raise ConfigError(
            f"--truth: {len(files)} images (PNG, JPEG or BMP) in {folder}; --batch {batch} asks for as many"
        )
    channels, height, width = shape
    if channels not in (1, 3):
        raise ConfigError(f"--truth: images of {channels} channels are no pictures; leave it out")
    images = []
    for file in files:
        try:
            with Image.open(file) as picture:
                pixels = np.asarray(picture.convert("L" if channels == 1 else "RGB"), dtype=np.float32) / 255
        except Exception as error:  # of a damaged file also ValueError and SyntaxError
            raise ConfigError(
                f"--truth: {file} cannot be read as a picture: {in_one_line(error)}. Save it again, as PNG, JPEG or BMP"
            ) from None
        if pixels.shape[:2] != (height, width):
            raise ConfigError(f"{file}: {pixels.shape[0]}x{pixels.shape[1]} pixels; --shape asks for {height}x{width}")
        images.append(torch.from_numpy(pixels.reshape(height, width, channels)).permute(2, 0, 1))
    return torch.stack(images)


def scored(images: torch.Tensor | None, truth: torch.Tensor | None) -> Scores | None:
    """Scores of reconstructions against the true images, both pixels ``[B, C, H, W]``, after assignment."""
    return None if images is None or truth is None else scores_of(images, truth)


def scores_of(images: torch.Tensor, truth: torch.Tensor) -> Scores:
    """Scores of reconstructions against the true images, both pixels ``[B, C, H, W]``, after assignment."""
    ordered = in_order(images, truth)
    similar = ssim(ordered, truth).tolist() if min(truth.shape[-2:]) >= _SSIM_SIDE else None
    return Scores(psnr=psnr(ordered, truth).tolist(), ssim=similar)


def in_order(images: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Reconstructions ``[B, C, H, W]`` in the order of the true images that they are assigned to."""
    return reorder(images[None], assign(images[None], truth[None]))[0]


def level_of(scores: Scores | None, blind: Scores | None, failed: str) -> Level:
    """The degree of leakage, in one word; see :data:`EXACT`."""
    if failed:
        return "failed"
    if scores is None or blind is None:
        return "unknown"
    if scores.mean_psnr >= EXACT:
        return "exact"
    if scores.mean_psnr < blind.mean_psnr + GUESS:
        return "nothing"
    return "recognisable" if scores.mean_psnr >= CLEAR else "partial"


def tried_of(attempt: Attempt, truth: torch.Tensor | None, blind: Scores | None, picture: str = "") -> Tried:
    """The record of an attempt.

    Args:
        attempt: with its reconstruction.
        truth: the true images, ``[B, C, H, W]``.
        blind: scores of mid-grey images.
        picture: file of the reconstructions.
    """
    rung, scores = attempt.rung, scored(attempt.images, truth)
    return Tried(
        name=rung.name,
        title=rung.title,
        knows=rung.knows,
        attack={"name": rung.attack.name, "version": rung.attack.version, **rung.attack.parameters()},
        starts=rung.restarts,
        labels=list(attempt.labels),
        objective=_number(attempt.objective),
        unexplained=_number(attempt.unexplained),
        agreement=_number(attempt.agreement),
        scores=scores,
        level=level_of(scores, blind, attempt.failed),
        seconds=round(attempt.seconds, 2),
        reason=attempt.failed,
        picture=picture,
    )


def nearness(attempts: Sequence[Attempt], target: torch.Tensor | None) -> float | None:
    """Mean PSNR of the best of some attempts against images ``[B, C, H, W]``, after assignment, dB."""
    scores = [scored(each.images, target) for each in attempts]
    return max((each.mean_psnr for each in scores if each is not None), default=None)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
