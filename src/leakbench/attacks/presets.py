"""Attacks of the literature, with every number written out and its source.

"Geiping's settings" names at least three sets of numbers, and papers that quote them rarely say which. Each circulating
set is a preset of its own; docs/attacks.md compares them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from leakbench.attacks.base import ATTACKS
from leakbench.attacks.gradient_matching import GradientMatching, LabelHandling
from leakbench.attacks.objectives import L1L2, L2, Cosine, CosinePerTensor, Objective
from leakbench.attacks.optimisers import LBFGS, Adam, Optimiser, StaircaseAdam
from leakbench.attacks.regularisers import EmbeddingNorm, Regulariser, TotalVariation
from leakbench.attacks.sentences import Reordering, SentenceMatching
from leakbench.attacks.unknowns import Decoder, Unknown, Upsampled

_TORCH_LBFGS = LBFGS(rate=1.0, history=100, line_search="none", tolerance_gradient=1e-7, tolerance_change=0.0)
"""``torch.optim.LBFGS(lr=1)``, called over and over: its stop by change ends a call, not the search."""


@ATTACKS.register("dlg", version=1)
class DLG(GradientMatching):
    """Deep Leakage from Gradients (Zhu et al. 2019): L2, L-BFGS, labels optimised with the images.

    As the authors' code: 300 calls of ``torch.optim.LBFGS(lr=1)`` with its 20 iterations each, standard normal starts
    of images and label scores, no projection.
    """

    objective: Objective = L2()
    optimiser: Optimiser = _TORCH_LBFGS
    iterations: int = Field(6000, ge=1, description="evaluations of the objective's gradient per restart")
    labels: LabelHandling = "joint"


@ATTACKS.register("dlg_wolfe", version=1)
class DLGWolfe(GradientMatching):
    """DLG with a strong-Wolfe line search: the strong form of DLG, and the one to judge defenses with.

    From the same starts, the fixed steps of the authors' form end far from the image much more often.
    """

    objective: Objective = L2()
    optimiser: Optimiser = LBFGS(
        rate=1.0, history=100, line_search="strong_wolfe", tolerance_gradient=1e-7, tolerance_change=0.0
    )
    iterations: int = Field(6000, ge=1, description="evaluations of the objective's gradient per restart")
    labels: LabelHandling = "joint"


@ATTACKS.register("idlg", version=1)
class IDLG(GradientMatching):
    """Improved DLG (Zhao et al. 2020): DLG with the label read off the gradient; single images.

    As the authors' code: 300 calls of ``torch.optim.LBFGS(lr=1)``, stopped where the objective falls below 1e-6.
    """

    objective: Objective = L2()
    optimiser: Optimiser = _TORCH_LBFGS
    iterations: int = Field(6000, ge=1, description="evaluations of the objective's gradient per restart")
    labels: LabelHandling = "idlg"
    stop_below: float | None = Field(1e-6, ge=0, description="a trial with a smaller objective stops")


@ATTACKS.register("ig_library", version=1)
class IGLibrary(GradientMatching):
    """Inverting Gradients (Geiping et al. 2020), the defaults of its library: unsigned, 4,800 iterations, TV 0.1."""

    objective: Objective = Cosine()
    regularisers: tuple[Regulariser, ...] = (TotalVariation(weight=0.1),)
    optimiser: Optimiser = Adam(rate=0.1, signed=False, decay="steps")
    iterations: int = Field(4800, ge=1, description="evaluations of the objective's gradient per restart")
    box: bool = True


@ATTACKS.register("ig_script", version=1)
class IGScript(GradientMatching):
    """Inverting Gradients (Geiping et al. 2020), the defaults of its script: signed, 24,000 iterations, TV 1e-4."""

    objective: Objective = Cosine()
    regularisers: tuple[Regulariser, ...] = (TotalVariation(weight=1e-4),)
    optimiser: Optimiser = Adam(rate=0.1, signed=True, decay="steps")
    iterations: int = Field(24_000, ge=1, description="evaluations of the objective's gradient per restart")
    box: bool = True


@ATTACKS.register("ig_breaching", version=1)
class IGBreaching(GradientMatching):
    """Inverting Gradients as the framework *breaching* runs it: 24,000 iterations, TV 0.2, the best iterate kept."""

    objective: Objective = Cosine()
    regularisers: tuple[Regulariser, ...] = (TotalVariation(weight=0.2),)
    optimiser: Optimiser = Adam(rate=0.1, signed=True, decay="steps")
    iterations: int = Field(24_000, ge=1, description="evaluations of the objective's gradient per restart")
    box: bool = True
    keep: Literal["last", "best"] = "best"


@ATTACKS.register("ig_optimal_defense", version=1)
class IGOptimalDefense(GradientMatching):
    """Inverting Gradients as the code of Chen et al. (2024) runs it on MNIST: step 0.2, TV 1e-6, 2,000 iterations.

    On CIFAR-10 it takes 1,000 iterations.
    """

    objective: Objective = Cosine()
    regularisers: tuple[Regulariser, ...] = (TotalVariation(weight=1e-6),)
    optimiser: Optimiser = Adam(rate=0.2, signed=True, decay="steps")
    iterations: int = Field(2000, ge=1, description="evaluations of the objective's gradient per restart")
    box: bool = True


@ATTACKS.register("ig_channel", version=1)
class IGChannel(GradientMatching):
    """Inverting Gradients for Tan et al. (2024), who name its paper and no numbers: 4,000 iterations, TV 1e-4."""

    objective: Objective = Cosine()
    regularisers: tuple[Regulariser, ...] = (TotalVariation(weight=1e-4),)
    optimiser: Optimiser = Adam(rate=0.1, signed=True, decay="steps")
    iterations: int = Field(4000, ge=1, description="evaluations of the objective's gradient per restart")
    box: bool = True


@ATTACKS.register("dlg_cdpa", version=1)
class DLGCDPA(GradientMatching):
    """DLG as Deng et al. (2024) describe it: L2, labels known, 300 iterations, read as calls of DLG's L-BFGS."""

    objective: Objective = L2()
    optimiser: Optimiser = _TORCH_LBFGS
    iterations: int = Field(6000, ge=1, description="evaluations of the objective's gradient per restart")


@ATTACKS.register("ig_cdpa", version=1)
class IGCDPA(GradientMatching):
    """Inverting Gradients as Deng et al. (2024) describe it: 300 iterations; the weight of TV, not given, is 1e-3."""

    objective: Objective = Cosine()
    regularisers: tuple[Regulariser, ...] = (TotalVariation(weight=1e-3),)
    optimiser: Optimiser = Adam(rate=0.1, signed=True, decay="steps")
    iterations: int = Field(300, ge=1, description="evaluations of the objective's gradient per restart")
    box: bool = True


@ATTACKS.register("tag", version=1)
class TAG(GradientMatching):
    """TAG's objective (Deng et al. 2021) on images, with the numbers that LAMP's authors run it with."""

    objective: Objective = L1L2(l1_weight=0.01)
    optimiser: Optimiser = Adam(rate=0.1, signed=False, decay="none")
    iterations: int = Field(2500, ge=1, description="evaluations of the objective's gradient per restart")


@ATTACKS.register("rog", version=1)
class ROG(GradientMatching):
    """ROG (Yue et al. 2023): a search for an image of a quarter of the side, bicubically upsampled.

    As the authors' code: sums of squares over all tensors, Adam from 0.05 down to 0.005 along a cosine, 100
    iterations, latents that start uniform in [0, 1] and are not projected. (There the cosine starts one iteration
    late.) Local steps are repeated as the protocol's ``local`` says. The networks that refine its images are the
    wrapper ``post_processed``.
    """

    objective: Objective = L2()
    optimiser: Optimiser = Adam(rate=0.05, signed=False, decay="cosine")
    iterations: int = Field(100, ge=1, description="evaluations of the objective's gradient per restart")
    unknown: Unknown = Upsampled(factor=4, interpolation="bicubic")
    start: Literal["normal", "uniform", "grey"] = Field("uniform", description="first candidate: uniform latents")


@ATTACKS.register("untrained_decoder", version=1)
class UntrainedDecoder(GradientMatching):
    """Inverting Gradients over the weights of an untrained decoder, after CI-Net (Zhang et al. 2023) and GI-NAS.

    The architecture and all numbers are ours. No pixel is a variable, no network was trained, and smoothness has no
    weight that has to be chosen.
    """

    objective: Objective = Cosine()
    optimiser: Optimiser = Adam(rate=0.01, signed=False, decay="cosine")
    iterations: int = Field(1000, ge=1, description="evaluations of the objective's gradient per restart")
    unknown: Unknown = Decoder(channels=32, levels=2)
    keep: Literal["last", "best"] = "best"


@ATTACKS.register("dlg_text", version=2)
class DLGText(SentenceMatching):
    """DLG (Zhu et al. 2019) on sentences, with the numbers that LAMP's authors run it with."""

    objective: Objective = L2()
    optimiser: Optimiser = Adam(rate=0.1, signed=False, decay="none")
    iterations: int = Field(2500, ge=1, description="evaluations of the objective's gradient per restart")
    keep: Literal["last", "best"] = "best"


@ATTACKS.register("tag_text", version=2)
class TAGText(DLGText):
    """TAG (Deng et al. 2021) on sentences, with the numbers that LAMP's authors run it with."""

    objective: Objective = L1L2(l1_weight=0.01)


class LAMP(SentenceMatching):
    """Settings of both LAMPs (Balunovic et al. 2022), as their authors run them on BERT-base.

    1.4 is the length of that model's word embeddings.
    """

    optimiser: Optimiser = StaircaseAdam(rate=0.01, signed=False, factor=0.89, every=50)
    iterations: int = Field(2000, ge=1, description="evaluations of the objective's gradient per restart")
    starts: int = Field(500, ge=1, description="standard normal draws, of which the search begins at the best")
    permutations: int = Field(500, ge=0, description="random orders of that draw, of which it begins at the best")
    start_norm: float | None = Field(1.4, gt=0, description="length to which the embeddings of the start are brought")
    keep: Literal["last", "best"] = "best"


@ATTACKS.register("lamp_cos", version=2)
class LAMPCosine(LAMP):
    """LAMP (Balunovic et al. 2022) with the cosine distance of every tensor."""

    objective: Objective = CosinePerTensor(floor=0.0)
    regularisers: tuple[Regulariser, ...] = (EmbeddingNorm(weight=1.0, norm=1.4),)
    reordering: Reordering | None = Reordering(candidates=200, every=75, burn_in=0.1, fluency=0.2)


@ATTACKS.register("lamp_l1l2", version=2)
class LAMPL1L2(LAMP):
    """LAMP (Balunovic et al. 2022) with TAG's distance."""

    objective: Objective = L1L2(l1_weight=0.01)
    regularisers: tuple[Regulariser, ...] = (EmbeddingNorm(weight=25.0, norm=1.4),)
    reordering: Reordering | None = Reordering(candidates=200, every=75, burn_in=0.1, fluency=60.0)
