"""Language-model jobs: the language model of attackers on text, trained on auxiliary sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from leakbench.attacks.language.model import CausalTransformer, LanguageModel, check_fit, losses, weights_of
from leakbench.effort import FORWARD, Effort, Unit
from leakbench.errors import ConfigError
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.modules import SPANS, train
from leakbench.lazy import torch
from leakbench.randomness import generator, seeded, stream_seed
from leakbench.records import MetricInfo, Outcome, Replicate, Value

if TYPE_CHECKING:
    from leakbench.attacks.base import Grant
    from leakbench.data.base import Dataset

CLIP = 1.0
"""The largest norm of a step's gradient."""

LANGUAGE_MODEL_METRICS = {
    "loss": MetricInfo(unit=f"nats per token, one mean per 1/{SPANS} of training", direction="lower", axis="step"),
    "perplexity": MetricInfo(unit="exp(nats per token), held-out sentences", direction="lower"),
    "unigram_perplexity": MetricInfo(
        unit="the same, of a model that only knows how often each token occurs", direction="lower"
    ),
}


@JOB_KINDS.register("language_model", version=1)
class LanguageModelJob(JobKind):
    """Train a causal language model on auxiliary sentences, and keep its weights for attacks.

    The sentences are of the train split, from which no attacked client draws. The language model of Balunovic et al.
    (2022) was trained on Wikipedia; this one on the victims' domain. Staged weights may be given instead, with no
    steps. Model and defense play no part.
    """

    minutes: ClassVar[int] = 120
    unit: ClassVar[Unit] = "multiply-adds"
    metrics: ClassVar[Mapping[str, MetricInfo]] = LANGUAGE_MODEL_METRICS
    grants: ClassVar[Grant | None] = "language_model"

    seeds: int = Field(1, ge=1, le=1, description="one: attackers train once")
    sentences: int | None = Field(
        None, ge=1, description="sentences to train on: the first of the train split; null: all but the held-out ones"
    )
    held_out: int = Field(256, ge=1, description="sentences after those, on which the model is tried")
    transformer: CausalTransformer = Field(CausalTransformer(), description="its architecture, or staged weights")
    steps: int = Field(10_000, ge=0, description="steps of AdamW")
    batch_size: int = Field(32, ge=1, description="sentences per step, drawn anew in every epoch")
    rate: float = Field(1e-3, gt=0, description="step size of AdamW, which falls to a tenth along a cosine")

    def granted(
        self, kept: Mapping[str, torch.Tensor], dataset: Dataset, rows: Sequence[tuple[int, int]], device: torch.device
    ) -> LanguageModel:
        return LanguageModel.of(self.transformer, kept, device)

    def settings_of(self, job: Job) -> Iterator[Setting]:
        yield {}

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"step": min(SPANS, self.steps)}

    def effort(self, job: Job) -> Effort:
        (tokens,) = job.dataset.single().shape
        trained = Effort(self.batch_size, 1).times(self.steps).plus(Effort(FORWARD * self.held_out, 1))
        return Effort(3 * tokens * trained.passes * self.transformer.multiply_adds, trained.steps)

    def run(self, job: Job, device: torch.device) -> Findings:
        dataset = job.dataset.single()
        (seed,) = job.seeds
        sentences, held_out = self._sentences(dataset)
        for ids in (sentences, held_out):
            check_fit(self.transformer, ids)
        with seeded(stream_seed(job.dataset.label, seed, "language model", "initialisation")):
            module = self.transformer.build().to(device)
        draws = generator(job.dataset.label, seed, "language model", "training")
        losses, diverged = self._train(module, sentences.to(device), draws)
        metrics: dict[str, Value] = {
            "loss": losses or None,
            "perplexity": None,
            "unigram_perplexity": unigram_perplexity(sentences, held_out, self.transformer.vocabulary),
        }
        reasons = {} if losses else {"loss": "there was no training"}
        model = LanguageModel(self.transformer, module.requires_grad_(False).eval())
        nats, counts = model.totals(held_out.to(device))
        perplexity = float((nats.double().sum() / counts.sum()).exp())
        if diverged is None and not math.isfinite(perplexity):
            diverged = self.steps  # by its last step
        if diverged is not None:
            reason = "training became non-finite"
            reasons["perplexity"] = reason
            if None in losses:
                reasons["loss"] = reason
            outcome = Outcome(status="diverged", reason=reason, step=diverged)
            replicate = Replicate(seed=seed, outcome=outcome, metrics=metrics, reasons=reasons)
            return Findings([replicate])
        metrics["perplexity"] = perplexity
        replicate = Replicate(seed=seed, metrics=metrics, reasons=reasons)
        return Findings([replicate], weights_of(module))

    def _sentences(self, dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids to train on and held-out ones, ``[n, L]`` each.

        Raises:
            ConfigError: the data set holds no sentences, or too few.
        """
        if len(dataset.shape) != 1:
            raise ConfigError(
                f"data set '{dataset.name}' holds {dataset.unit}, but jobs of kind 'language_model' need sentences"
            )
        available = dataset.length("train")
        count = available - self.held_out if self.sentences is None else self.sentences
        asked = max(count, 1) + self.held_out
        if asked > available:
            raise ConfigError(
                f"sentences and held_out: {asked} are more than the train split of '{dataset.name}' has ({available})"
            )
        return dataset.load("train", range(count)).values, dataset.load("train", range(count, asked)).values

    def _train(
        self, module: torch.nn.Module, ids: torch.Tensor, draws: torch.Generator
    ) -> tuple[list[float | None], int | None]:
        """Mean losses per span, and the step at which a loss became non-finite; the module is trained in place."""
        if not self.steps:
            return [], None

        def loss(rows: torch.Tensor) -> torch.Tensor:
            nats, counts = losses(module, ids[rows])
            return (nats.sum() / counts.sum())[None]

        (curve,), diverged = train(
            "training a language model",
            module.train(),
            torch.optim.AdamW(module.parameters(), lr=self.rate),
            loss,
            samples=len(ids),
            batch_size=self.batch_size,
            steps=self.steps,
            draws=draws,
            device=ids.device,
            clip=CLIP,
        )
        return curve, diverged


def unigram_perplexity(sentences: torch.Tensor, held_out: torch.Tensor, vocabulary: int) -> float:
    """Perplexity on held-out sentences of the frequencies of tokens in others, one added to each count.

    As for language models, padding and the first token of a sentence do not count.

    Args:
        sentences: token ids, ``[n, L]``.
        held_out: token ids, ``[m, L]``.
        vocabulary: number of token ids.
    """
    known, asked = (ids[:, 1:][ids[:, 1:] != 0] for ids in (sentences, held_out))
    counts = torch.bincount(known, minlength=vocabulary).double() + 1
    counts[0] = 0
    return math.exp(-float((counts / counts.sum()).log()[asked].mean()))
