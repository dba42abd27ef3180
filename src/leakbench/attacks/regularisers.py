"""Priors on inputs, as penalties on a candidate batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from leakbench.attacks.base import Grant
from leakbench.attacks.parts import Part
from leakbench.lazy import torch
from leakbench.models.base import Statistics
from leakbench.numerics.slopes import with_slope


@dataclass(frozen=True)
class Scene:
    """Data for penalties besides the candidate.

    Attributes:
        pixel_range: smallest and largest valid input, ``[2, C, 1, 1]``.
        statistics_of: BatchNorm statistics of a candidate batch.
        statistics: those that the client's batch has, or is believed to have.
        word_length: mean length of the model's word embeddings, ``[]``; None of models of images.
    """

    pixel_range: torch.Tensor | None
    statistics_of: Callable[[torch.Tensor], Statistics]
    statistics: Statistics
    word_length: torch.Tensor | None = None


class _Regulariser(Part):
    needs: ClassVar[frozenset[Grant]] = frozenset()
    of_clean_images: ClassVar[bool] = False
    """Whether images that a defense made noisy are unlike what it asks for."""

    weight: float = Field(ge=0, description="factor of the penalty")

    def __call__(self, images: torch.Tensor, scene: Scene) -> torch.Tensor:
        """The penalty without its weight: images ``[B, C, H, W]`` to a scalar."""
        raise NotImplementedError


class EmbeddingNorm(_Regulariser):
    """``(mean |x_l| - norm)^2`` over the word embeddings ``x_l`` of all tokens (Balunovic et al. 2022).

    Of embedded sentences ``[B, L, H + 1]``, whose last column says where tokens are.
    """

    kind: Literal["embedding_norm"] = "embedding_norm"
    norm: float | None = Field(
        None, gt=0, description="length of a usual word embedding; the mean over the model's words by default"
    )

    def __call__(self, images: torch.Tensor, scene: Scene) -> torch.Tensor:
        words, tokens = images[..., :-1], images[..., -1]
        mean = (torch.linalg.vector_norm(words, dim=-1) * tokens).sum() / tokens.sum()
        norm = self.norm if self.norm is not None else scene.word_length
        assert norm is not None, "attacks on sentences alone have this penalty"
        penalty: torch.Tensor = (mean - norm).square()
        return penalty


class TotalVariation(_Regulariser):
    """Differences of neighbouring inputs, horizontal ``u`` and vertical ``v``, averaged over all of them.

    ``anisotropic``: ``mean |u| + mean |v|`` (Geiping et al. 2020, the released code); ``isotropic``: ``mean sqrt(u^2 +
    v^2)`` where both exist (Rudin et al. 1992, which that paper cites); ``squared``: ``mean u^2 + mean v^2``.
    """

    kind: Literal["total_variation"] = "total_variation"
    of_clean_images: ClassVar[bool] = True
    form: Literal["anisotropic", "isotropic", "squared"] = Field("anisotropic", description="how differences combine")

    def __call__(self, images: torch.Tensor, scene: Scene) -> torch.Tensor:
        if self.form == "anisotropic":
            return _anisotropic(images)
        horizontal = images[..., :, 1:] - images[..., :, :-1]
        vertical = images[..., 1:, :] - images[..., :-1, :]
        if self.form == "squared":
            return horizontal.square().mean() + vertical.square().mean()
        squares = horizontal[..., :-1, :].square() + vertical[..., :, :-1].square()
        return (squares + 1e-12).sqrt().mean()  # the root has no derivative at zero


def _anisotropic(images: torch.Tensor) -> torch.Tensor:
    """``mean |u| + mean |v|`` with its derivative written out, which most searches take at every step."""
    fixed = images.detach()
    slope, value = torch.zeros_like(fixed), fixed.new_zeros(())
    for dim in (-1, -2):
        count = fixed.shape[dim] - 1
        difference = fixed.narrow(dim, 1, count) - fixed.narrow(dim, 0, count)
        value = value + difference.abs().mean()
        signs = difference.sign_().div_(difference.numel())
        slope.narrow(dim, 1, count).add_(signs)
        slope.narrow(dim, 0, count).sub_(signs)
    return with_slope(images, value, slope)


class PixelBox(_Regulariser):
    """Mean squared distance of inputs from the valid range: a soft form of projecting onto it."""

    kind: Literal["pixel_box"] = "pixel_box"
    needs: ClassVar[frozenset[Grant]] = frozenset({"pixel_range"})
    of_clean_images: ClassVar[bool] = True

    def __call__(self, images: torch.Tensor, scene: Scene) -> torch.Tensor:
        assert scene.pixel_range is not None
        low, high = scene.pixel_range
        return (images - images.clamp(low, high)).square().mean()


class BatchNormStatistics(_Regulariser):
    """``sum_l ||mean_l(x) - mean_l|| + ||var_l(x) - var_l||`` over BatchNorm layers (Yin et al. 2021, eq. 9).

    The attack's ``batch_norm`` says where the statistics come from. Zero for networks without such layers.
    """

    kind: Literal["batch_norm"] = "batch_norm"

    def __call__(self, images: torch.Tensor, scene: Scene) -> torch.Tensor:
        candidate = scene.statistics_of(images)
        distances = [torch.linalg.vector_norm(candidate[name] - scene.statistics[name]) for name in candidate]
        return torch.stack(distances).sum() if distances else images.new_zeros(())


Regulariser = Annotated[TotalVariation | PixelBox | BatchNormStatistics | EmbeddingNorm, Field(discriminator="kind")]
