"""Attack jobs: which attacks may face which clients and defenses, and how their work is shared among seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import Any, ClassVar

from pydantic import model_validator

from leakbench.attacks.base import Attack, ClientSetup, Grant
from leakbench.data.base import Dataset
from leakbench.defenses.base import ActsOn, Defense
from leakbench.defenses.clients import PublicMechanism
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.jobs.base import EVERYTHING, JOB_KINDS, Findings, Job, Setting
from leakbench.jobs.calibration import CalibrationImages
from leakbench.jobs.pretraining import Diverged
from leakbench.jobs.scene import AttackProtocol, Scene
from leakbench.jobs.stacked import joint_knowledge, side_by_side, worthwhile
from leakbench.jobs.strengths import AT_MOST, LOST, worth_attacking
from leakbench.jobs.subjects import SUBJECTS, Subject, check_defense, subject_of
from leakbench.jobs.sums import match_users, only_sums
from leakbench.jobs.victims import model_under
from leakbench.lazy import torch
from leakbench.metrics.assignment import ASSIGNED_METRICS
from leakbench.metrics.image import IDENTIFIED, IMAGE_METRICS
from leakbench.metrics.text import TEXT_METRICS
from leakbench.metrics.visibility import VISIBILITY
from leakbench.models.base import Network, build_network
from leakbench.randomness import Streams
from leakbench.records import MetricInfo, Outcome, Replicate

VICTIM_METRICS = {
    "objective": MetricInfo(unit="the attack's own objective", direction="lower", axis="victim"),
    "alignment": MetricInfo(unit="<g, y> / <g, g>, gradient g, decoded message y", direction="higher", axis="victim"),
    "distortion": MetricInfo(unit="root mean square of y - g", direction="lower", axis="victim"),
    "label_accuracy": MetricInfo(unit="part of the labels that are right", direction="higher", axis="victim"),
    "bits": MetricInfo(unit="bits on the wire per client and step", direction="lower"),
}
"""Metrics of attack jobs beside those of reconstructed images or sentences."""

BUDGET = {
    "evaluations": MetricInfo(unit="passes of the client's computation per victim, choices included", direction="none"),
    "auxiliary": MetricInfo(
        unit="samples that the attacker may read, those behind granted networks aside", direction="none"
    ),
}
"""Metrics of an attack's budget; its seconds are the record's."""

UTILITY = "train"
"""Kind of job that measures what a defense costs."""

TRAINED: dict[str, Grant] = {"prior": "prior", "language_model": "language_model", "inverter": "inverter"}
"""Kinds of job that train side knowledge: the grant, which is also the field that names their experiment."""


@JOB_KINDS.register("attack", version=7)
class AttackJob(AttackProtocol):
    """Reconstruct the samples of clients, images or sentences, from the defended update that each sends.

    By default that is one gradient. The model that they attack is untrained, or was trained without a defense on
    samples of no client. Where secure aggregation sums several users, a client stands for all of them: the server sees
    the mean of their updates, each defended by its user, and reconstructs the samples of all.
    """

    minutes: ClassVar[int] = 120
    uses_attacks: ClassVar[bool] = True
    faces: ClassVar[frozenset[ActsOn]] = EVERYTHING
    gated_metrics: ClassVar[Mapping[str, MetricInfo]] = IMAGE_METRICS | ASSIGNED_METRICS | TEXT_METRICS | VICTIM_METRICS

    @model_validator(mode="after")
    def _what_is_trained_has_a_source(self) -> AttackJob:
        for name in TRAINED.values():
            if name in self.knowledge:
                raise ValueError(f"knowledge: '{name}' is granted by the field {name}, which names where it is trained")
        return self

    @classmethod
    def folder(cls, attack: str) -> str:
        return attack

    def reads(self, attack: Attack | None) -> Mapping[str, str]:
        if attack is None:
            return {}
        trained = {kind: name for kind, name in TRAINED.items() if getattr(self, name) and name in attack.needs}
        return trained | ({UTILITY: "utility"} if self.utility else {})

    @property
    def distinct_victims(self) -> bool:
        return self.victims == "distinct"

    def metrics_of(self, job: Job) -> Mapping[str, MetricInfo]:
        chosen = {} if job.attack is None else job.attack.component.chooses
        picked = (IDENTIFIED if self.line_up else {}) | (BUDGET if self.budget else {})
        picked |= VISIBILITY if self.malicious_server else {}
        return {**SUBJECTS[job.dataset.component.unit].metrics, **VICTIM_METRICS, **picked, **chosen}

    @property
    def counts_seconds(self) -> bool:
        return self.budget

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        samples = self.clients * (self.batch_size * self.users if self.target == "images" else 1)
        return {"victim": self.clients, "image": samples, "sentence": samples}

    def effort(self, job: Job) -> Effort:
        seen = self.local.samples(self.batch_size * self.users)
        updates = Effort(seen, self.local.steps).times(self.messages * self.rounds)
        repeated = job.attack is None or job.attack.single().repeats_steps
        attacked = job.attack_effort(seen if repeated else self.batch_size * self.users)
        if job.attack is not None and job.attack.single().several_rounds:
            attacked = attacked.times(self.rounds)
        one = updates.plus(Effort(attacked.passes, attacked.steps * (self.local.steps if repeated else 1)))
        settings = min(job.defense.count, AT_MOST) if self.utility else job.defense.count
        attacks = one.beside(settings * self.clients).times(len(job.seeds))
        return reduce(Effort.plus, self.shared_effort(job).values(), attacks)

    def shared_effort(self, job: Job) -> dict[str, Effort]:
        return self.pretraining.shared_effort(job, self.epoch, (self.rounds - 1) * self.rounds_apart)

    def volume(self, job: Job) -> float:
        samples = self.clients * self.users * self.batch_size
        return len(job.seeds) * job.defense.count * float(samples * math.prod(job.dataset.single().shape))

    def run(self, job: Job, device: torch.device) -> Findings:
        assert job.attack is not None
        dataset, model = job.dataset.single(), job.model.single()
        subject = subject_of(dataset, model)
        attacked = self._attacked(job)
        replicates: list[Replicate] = []
        kept: dict[int, list[tuple[int, Mapping[str, torch.Tensor]]]] = {seed: [] for seed in job.seeds}
        try:
            faced = list(job.faced({place: defense for place, (_, defense) in attacked.items()}))
            for attack, _ in faced:
                self._check_samples(job.attack.label, attack, dataset)
            initial = build_network(model, dataset.shape, dataset.classes, 0, device)
            faced = [(attack, alike) for attack, places in faced for alike in job.of_one_model(places)]
            untrained = []
            for attack, places in faced:
                defended = [attacked[place][1] for place in places]
                untrained.append(self._untrained(job, initial, defended[0]))
                self._check(job, attack, untrained[-1], defended)
            images = CalibrationImages(dataset, device, self.calibration, self.auxiliary)
            defenses = dict(zip(attacked, images.calibrated(attacked.values()), strict=True))
            for (attack, places), network in zip(faced, untrained, strict=True):
                stacked = self._is_stacked(attack, network, device)
                settings = {place: defenses[place] for place in places}
                for seeds in [job.seeds] if stacked else [[seed] for seed in job.seeds]:
                    measured, shown = self._attack(job, subject, attack, settings, seeds, stacked, device)
                    replicates += measured
                    for seed in seeds:
                        kept[seed].append((len(settings), shown.get(seed, {})))
        except Infeasible as error:
            outcome = Outcome(status="infeasible", reason=str(error))
            return Findings(job.without_numbers(outcome, settings=[setting for setting, _ in attacked.values()]))
        tensors = {seed: _of_all_settings(groups) for seed, groups in kept.items()}
        return Findings(
            replicates, {f"seed{seed}/{name}": each for seed in tensors for name, each in tensors[seed].items()}
        )

    @staticmethod
    def _untrained(job: Job, initial: Network, defense: Defense) -> Network:
        """The model that clients train under a defense.

        Raises:
            Infeasible: they hold sentences, and the defense makes models of images.
        """
        if not defense.overrides("extend"):
            return initial
        dataset = job.dataset.single()
        check_defense(dataset, defense)
        return model_under(defense, initial, dataset.shape, job.dataset.label, 0)

    def _attacked(self, job: Job) -> dict[int, tuple[Setting, Defense]]:
        """The settings of the defense that are attacked, by their places among all."""
        settings = dict(enumerate(job.defense.settings()))
        if self.utility is None or self.allowed is None:
            return settings
        return {place: settings[place] for place in worth_attacking(job, job.records[UTILITY], LOST, self.allowed)}

    def _check_samples(self, label: str, attack: Attack, dataset: Dataset) -> None:
        """Reject an attack, or a protocol, that is not for these samples.

        Raises:
            Infeasible: it is for others.
        """
        if attack.reconstructs != dataset.unit:
            raise Infeasible(
                f"attack '{label}' reconstructs {attack.reconstructs}; data set '{dataset.name}' holds {dataset.unit}"
            )
        if self.target != "images" and dataset.unit != "images":
            raise Infeasible(f"target '{self.target}': there is no mean of {dataset.unit}")
        if self.rounds > 1 and dataset.unit != "images":
            reason = f"{dataset.unit} are embedded by the model, which is another one each time"
            raise Infeasible(f"{self.rounds} rounds: {reason}")

    def _check(self, job: Job, attack: Attack, untrained: Network, defenses: list[Defense]) -> None:
        """Reject an attack that cannot run on these clients or defenses, or needs what is not granted.

        Args:
            job: whose data set, model and attack's label these are.
            attack: as it faces the defenses.
            untrained: the job's model.
            defenses: that it faces.

        Raises:
            Infeasible: it cannot run.
        """
        assert job.attack is not None
        label, dataset = job.attack.label, job.dataset.single()
        granted = {*self.knowledge, *(name for name in TRAINED.values() if getattr(self, name))}
        needed = attack.needs | ({"modified_model"} if attack.changes_model else set())
        missing = sorted(needed - granted)
        if missing:
            raise Infeasible(f"attack '{label}' needs {', '.join(missing)}, which is not granted")
        batch_shape = (self.batch_size * self.users, *dataset.shape)
        attack.check_clients(ClientSetup(job.model.single(), untrained, self.local, batch_shape, self.epoch > 0))
        for defense in defenses:
            check_defense(dataset, defense)
            if "mechanism" in attack.needs and defense.together > 1:
                raise Infeasible(
                    f"attack '{label}' runs the mechanism of one client; that of '{defense.name}' works "
                    f"with {defense.together} together"
                )
        if self.users > 1:
            self._check_sum(label, attack, defenses)

    def _check_sum(self, label: str, attack: Attack, defenses: list[Defense]) -> None:
        """Reject sums of several users' updates that are not the update of one batch, or that no server can get.

        Raises:
            Infeasible: there is no such sum.
        """
        only_sums(defenses)
        match_users(defenses, self.users)
        if not self.local.is_gradient(self.batch_size):
            raise Infeasible("a mean of several users' local training is the update of no single batch")
        if self.batch_norm == "train":
            raise Infeasible("users' BatchNorm layers normalise with a batch each, and their mean has several")
        if "batch_statistics" in attack.needs:
            raise Infeasible(f"attack '{label}' knows the statistics of one batch; a mean has a batch of every user")

    def _is_stacked(self, attack: Attack, untrained: Network, device: torch.device) -> bool:
        """Whether one search attacks the models of all seeds, a model per row: where that is possible and faster."""
        # Trained models differ in the statistics of BatchNorm, too.
        alike = not (untrained.running_statistics and (self.epoch or self.rounds > 1))
        return attack.several_models and alike and worthwhile(self.clients, untrained.dimension, device)

    def _attack(
        self,
        job: Job,
        subject: Subject,
        attack: Attack,
        defenses: Mapping[int, tuple[Setting, Defense]],
        seeds: Sequence[int],
        stacked: bool,
        device: torch.device,
    ) -> tuple[list[Replicate], dict[int, dict[str, torch.Tensor]]]:
        """All seeds and settings of the defense, by their places, at once: they are only more observations."""
        scenes: dict[int, Scene] = {}
        replicates: list[Replicate] = []
        tensors: dict[int, dict[str, torch.Tensor]] = {}
        for seed in seeds:
            try:
                # Settings that are attacked together have one model.
                defense = next(iter(defenses.values()))[1]
                scenes[seed] = Scene.of(self, job, subject, attack, defense, seed, device)
            except Diverged as error:
                outcome = Outcome(status="diverged", reason=str(error))
                settings = [setting for setting, _ in defenses.values()]
                replicates += job.without_numbers(outcome, seeds=[seed], settings=settings)
        if not scenes:
            return replicates, tensors
        # One for all seeds: attackers run equal ones together.
        copies = [PublicMechanism(defense, self.users) for _, defense in defenses.values()]
        sent = {
            seed: [scene.sent(setting, copy) for (setting, _), copy in zip(defenses.values(), copies, strict=True)]
            for seed, scene in scenes.items()
        }
        seen = [scene.observations(sent[seed]) for seed, scene in scenes.items()]
        known = [scene.knowledge(sent[seed]) for seed, scene in scenes.items()]
        observations, knowledge = (side_by_side(seen), joint_knowledge(known)) if stacked else (seen[0], known[0])
        streams = [scene.victims.streams.child("attack").repeat(len(defenses)).keys for scene in scenes.values()]
        places = [(seed, place) for seed in scenes for place in defenses for _ in range(self.clients)]
        trained = self._trained(job, places, device)
        reconstruction = attack.reconstruct(
            observations, replace(knowledge, **trained), Streams(list(chain.from_iterable(streams)))
        )
        rows = len(defenses) * self.clients
        budget = self._spent(job, attack) if self.budget else {}
        for place, (seed, scene) in enumerate(scenes.items()):
            of_seed = reconstruction.rows(place * rows, (place + 1) * rows)
            measured, tensors[seed] = scene.judged(seed, sent[seed], of_seed)
            for replicate in measured:
                replicate.metrics |= budget
            replicates += measured
        return sorted(replicates, key=lambda replicate: replicate.seed), tensors

    def _spent(self, job: Job, attack: Attack) -> dict[str, float]:
        """Its metrics of :data:`BUDGET`."""
        granted = self.auxiliary if {"auxiliary_images", "auxiliary_sentences"} & set(self.knowledge) else 0
        rounds = self.rounds if attack.several_rounds else 1
        evaluations = job.attack_effort(1).times(rounds).passes
        return {"evaluations": float(evaluations), "auxiliary": float(attack.auxiliary(granted))}

    def _trained(self, job: Job, rows: Sequence[tuple[int, int]], device: torch.device) -> dict[str, Any]:
        """Side knowledge trained by other jobs, by name.

        Args:
            job: the attack.
            rows: of every observation the seed and the place of its setting.
            device: of the attack.

        Raises:
            Infeasible: the training diverged.
        """
        granted: dict[str, Any] = {}
        for kind, name in TRAINED.items():
            if kind not in job.uses:
                continue
            source, weights = job.uses[kind], job.kept[kind]
            if not weights:
                where = getattr(self, name)
                raise Infeasible(f"the networks of experiment '{where}' have no weights: their training diverged")
            granted[name] = source.kind.granted(weights, job.dataset.single(), rows, device)
        return granted


def _of_all_settings(groups: Sequence[tuple[int, Mapping[str, torch.Tensor]]]) -> dict[str, torch.Tensor]:
    """The tensors of a seed from those of groups of its settings: of all but the victims, one group after the other.

    A group whose model diverged has none. Beside others it has NaN, or empty sentences.
    """
    tensors: dict[str, torch.Tensor] = {}
    for shown in (shown for _, shown in groups if shown):
        for name, part in shown.items():
            if name == "victims":
                tensors[name] = part
                continue
            lost = torch.nan if part.is_floating_point() else 0
            parts = [each.get(name, part.new_full((size, *part.shape[1:]), lost)) for size, each in groups]
            widest = max(each.shape[-1] for each in parts)
            tensors[name] = torch.cat([torch.nn.functional.pad(each, (0, widest - each.shape[-1])) for each in parts])
    return tensors
