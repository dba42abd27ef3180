"""Shadow jobs: models without a defense, by which LiRA judges every released model of a seed, model and data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from leakbench.attacks.released.base import Labelled, joined
from leakbench.attacks.released.lira import LiRA, train_shadows
from leakbench.attacks.released.outputs import ModelOutputs
from leakbench.effort import FORWARD, Effort
from leakbench.errors import ConfigError
from leakbench.federated.training import Start
from leakbench.jobs.base import JOB_KINDS, Findings, Job, Setting
from leakbench.jobs.client_training import ClientTraining
from leakbench.lazy import torch
from leakbench.records import MetricInfo, Replicate

CONFIDENCE = "confidence"
"""The tensor of a seed: logit-scaled confidences ``[shadows, n]`` of the candidates of membership inference."""
SAME = ("images", "evaluation", "batch_size", "optimiser", "momentum")
"""Fields of the protocol that released models and their shadow models share."""


@JOB_KINDS.register("shadows", version=1)
class ShadowJob(ClientTraining):
    """Train LiRA's shadow models on what membership attackers know, and keep what they say of the candidates.

    They start and train like the undefended victim, so they serve all defenses; the defense plays no part.
    """

    minutes: ClassVar[int] = 120
    memory_mb: ClassVar[int] = 16000
    metrics: ClassVar[Mapping[str, MetricInfo]] = {
        "shadow_accuracy": MetricInfo(unit="part of the candidates, mean over shadow models", direction="higher")
    }

    shadows: int = Field(16, ge=2, description="shadow models per seed")

    def settings_of(self, job: Job) -> Iterator[Setting]:
        yield {}

    def training_effort(self, job: Job) -> Effort:
        training = self.shadow_training(*self.sizes(job))
        return Effort(training.batch_size, 1).times(training.steps).beside(self.shadows).times(len(job.seeds))

    def attack_effort(self, job: Job) -> Effort:
        known = 2 * (min(self.sizes(job)) // 3)
        return Effort(FORWARD * known, 1).beside(self.shadows).times(len(job.seeds))

    def results(self, job: Job, device: torch.device, kinds: Sequence[ClientTraining]) -> list[Findings]:
        data, made = self.load(job, device), [Findings([]) for _ in kinds]
        sizes = len(data.members.labels), len(data.evaluation.labels)
        steps = [kind.shadow_training(*sizes).steps for kind in kinds]
        for seed in job.seeds:
            network = self.network(job, seed, device)
            members, others, *asked = data.parts(seed)
            known, candidates = _one_run(members, others), _one_run(*asked)
            with torch.no_grad():
                runs = train_shadows(
                    Start(network, network.parameters),
                    known,
                    (*data.key(seed), "membership", LiRA.name),
                    self.shadow_training(*sizes),
                    self.shadows,
                    sorted(set(steps)),
                )
                for findings, number in zip(made, steps, strict=True):
                    outputs = ModelOutputs.of(runs.snapshots[number], candidates)
                    right = (outputs.logits.argmax(dim=-1) == outputs.labels).float().mean()
                    findings.replicates.append(Replicate(seed=seed, metrics={"shadow_accuracy": float(right)}))
                    findings.tensors[f"seed{seed}/{CONFIDENCE}"] = outputs.scaled_confidence.cpu()
        return made


def _one_run(first: Labelled, second: Labelled) -> Labelled:
    """The samples of both, without an axis of runs."""
    images, labels = joined(first, second, 1)
    return Labelled(images, labels[0])


def shadow_confidences(job: Job, kind: ClientTraining, seed: int) -> torch.Tensor:
    """Confidences ``[shadows, n]`` of the shadow models that a job reads.

    Args:
        job: that reads them.
        kind: its protocol, with the steps of the models that are judged.
        seed: of these models.

    Raises:
        ConfigError: they were trained under another protocol, or for other numbers of steps.
    """
    source = job.uses[ShadowJob.name]
    assert isinstance(source.kind, ShadowJob)
    for name in SAME:
        ours, theirs = getattr(kind, name), getattr(source.kind, name)
        if ours != theirs:
            raise ConfigError(
                f"experiment '{job.experiment}': {name} is {ours}, and {theirs} for the shadow models of experiment "
                f"'{source.experiment}'; make them equal, or leave out 'shadows'"
            )
    swept = source.kinds is not None and "steps" in source.kinds.sweep
    steps = source.kinds.sweep["steps"] if source.kinds and swept else [source.kind.steps]
    if kind.steps not in steps or seed not in source.seeds:
        raise ConfigError(
            f"experiment '{job.experiment}': there are no shadow models for {kind.steps} steps of seed {seed}; "
            f"experiment '{source.experiment}' has steps {', '.join(map(str, steps))} and {len(source.seeds)} seeds"
        )
    prefix = f"steps={kind.steps}/" if swept else ""
    return job.kept[ShadowJob.name][f"{prefix}seed{seed}/{CONFIDENCE}"]
