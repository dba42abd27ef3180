"""Release jobs against plain training and a literal DP-SGD; what attackers are given; outcomes that are no numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError

from leakbench.attacks.released.base import MEMBERSHIP_ATTACKS, Labelled, MembershipAttack
from leakbench.attacks.released.inversion import MeanStart
from leakbench.data.base import Dataset
from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.channel import EigenCompression, NaturalChannel, WhiteChannel
from leakbench.defenses.dp_sgd import DPPSAC, DPSGD
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.errors import ConfigError
from leakbench.federated.training import Start, Training, TrainingSet, train_runs
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.release import ReleaseJob
from leakbench.jobs.runner import compute
from leakbench.jobs.shadows import ShadowJob
from leakbench.models.base import Model, Network, build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.resnet import ResNet10
from leakbench.models.trained import TrainedModels
from leakbench.randomness import Streams, stream_seed
from leakbench.records import Replicate

CPU = torch.device("cpu")
IMAGES, STEPS, BATCH = 45, 7, 8
QUICK = {
    "images": IMAGES,
    "evaluation": (0, 40),
    "auxiliary": (40, 60),
    "steps": STEPS,
    "batch_size": BATCH,
    "rate": 0.1,
    "membership": ["threshold"],
    "inversion": {"name": "mean_start", "iterations": 2},
}


def release_job(
    defense: type[Defense] = NoDefense,
    parameters: Mapping[str, Any] | None = None,
    sweep: Mapping[str, list[Any]] | None = None,
    *,
    seeds: tuple[int, ...] = (0,),
    model: type[Model] = SimpleConvNet,
    **protocol: Any,
) -> Job:
    return Job(
        scale="test",
        paper="paper",
        experiment="experiment",
        dataset=Variant("digits8", Digits, {"size": 8}, {}),
        model=Variant("tiny", model, {"width": 4}, {}),
        defense=Variant("defense", defense, parameters or {}, sweep or {}),
        attack=None,
        kind=ReleaseJob(**{**QUICK, **protocol}),
        part="all",
        seeds=seeds,
    )


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def number(replicate: Replicate, name: str) -> float:
    value = replicate.metrics[name]
    assert isinstance(value, float), (name, replicate.reasons.get(name))
    return value


def digits(split: Any, start: int, stop: int) -> Labelled:
    dataset: Dataset = Digits(size=8)
    images, labels = dataset.load(split, range(start, stop))
    return Labelled(dataset.normalise(images), labels)


def network(seed: int) -> Network:
    return build_network(SimpleConvNet(width=4), (1, 8, 8), 10, stream_seed("digits8", seed, "initialisation"))


def streams(seed: int) -> Streams:
    return Streams([("digits8", seed, "client", 0)])


def test_undefended_is_plain_training() -> None:
    members, evaluation = digits("train", 0, IMAGES), digits("test", 0, 40)
    training = Training(steps=STEPS, batch_size=BATCH, rate=0.1)
    for replicate, seed in zip(run(release_job(seeds=(0, 3))).replicates, (0, 3), strict=True):
        start = network(seed)
        models = train_runs(Start(start, start.parameters), TrainingSet(*members), streams(seed), training).models
        logits = models.logits(members.images)[0]
        expected = {
            "accuracy": models.accuracy(*evaluation)[0],
            "train_accuracy": models.accuracy(*members)[0],
            "final_loss": torch.nn.functional.cross_entropy(logits, members.labels),
        }
        assert (replicate.seed, replicate.outcome.status, replicate.setting) == (seed, "ok", {})
        for name, value in expected.items():
            assert number(replicate, name) == pytest.approx(float(value), rel=1e-5)
        centres = torch.stack([members.images[members.labels == label].mean(dim=0) for label in range(10)])
        inverted = MeanStart(iterations=2).invert(models, digits("test", 40, 60).images, torch.arange(10)).images[0]
        errors = (inverted - centres).square().flatten(1).mean(dim=1)
        assert replicate.metrics["inversion_mse_per_class"] == pytest.approx(errors.tolist(), rel=1e-5)
        assert number(replicate, "inversion_mse") == pytest.approx(float(errors.quantile(0.5)), rel=1e-5)
        assert replicate.metrics["capacity"] is None and "no channel" in replicate.reasons["capacity"]
        assert replicate.metrics["epsilon"] is None and replicate.reasons["epsilon"]
        assert replicate.privacy is not None and replicate.privacy["epsilon"] is None


ATTACKS = [{"name": "threshold"}, {"name": "four_branch", "epochs": 1}, {"name": "lira", "shadows": 2}]


def test_settings_and_seeds_do_not_depend_on_each_other() -> None:
    forward = release_job(NaturalChannel, sweep={"kappa": [2.0, 20.0]}, seeds=(0, 1), membership=ATTACKS)
    backward = release_job(NaturalChannel, sweep={"kappa": [20.0, 2.0]}, seeds=(1, 0), membership=ATTACKS)
    found = {(each.seed, each.setting["kappa"]): each for each in run(forward).replicates}
    assert len(found) == 4
    for each in run(backward).replicates:
        other = found[each.seed, each.setting["kappa"]]
        assert each.reasons == other.reasons
        for name, value in each.metrics.items():
            assert other.metrics[name] == (None if value is None else pytest.approx(value, rel=1e-4)), name
    assert len({number(each, "final_loss") for each in found.values()}) == 4


def test_memory_decides_about_speed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    job = release_job(NaturalChannel, sweep={"kappa": [2.0, 20.0]}, seeds=(0, 1), pictures=True)
    at_once = run(job)
    monkeypatch.setattr("leakbench.jobs.release.DATA_BUDGET", 1)
    one_by_one = run(job)
    for alone, beside in zip(one_by_one.replicates, at_once.replicates, strict=True):
        assert (alone.seed, alone.setting, alone.reasons) == (beside.seed, beside.setting, beside.reasons)
        for name, value in beside.metrics.items():
            assert alone.metrics[name] == (None if value is None else pytest.approx(value, rel=1e-4)), name
    assert one_by_one.tensors.keys() == at_once.tensors.keys()
    for name, picture in at_once.tensors.items():
        torch.testing.assert_close(picture, one_by_one.tensors[name], rtol=0, atol=1e-4)


def test_a_wide_channel_is_no_defense() -> None:
    (undefended,) = run(release_job(membership=ATTACKS)).replicates
    (wide,) = run(release_job(NaturalChannel, {"kappa": 400.0}, membership=ATTACKS)).replicates
    for name in ("accuracy", "final_loss", "inversion_mse", "auc/threshold", "auc/lira"):
        assert number(wide, name) == pytest.approx(number(undefended, name), rel=1e-2)
    assert number(wide, "capacity") == pytest.approx(400)
    assert undefended.metrics["auc/threshold_noisy"] is None
    assert undefended.reasons["auc/threshold_noisy"] == "the defense leaves images as they are"
    assert number(wide, "auc/threshold_noisy") == pytest.approx(number(wide, "auc/threshold"), abs=0.02)
    assert number(wide, "auc_low/threshold") <= number(wide, "auc/threshold") <= number(wide, "auc_high/threshold")


def test_channels_protect_what_is_trained_on() -> None:
    """Noise that is drawn once is that of the mechanism; fresh noise is another draw at every step."""
    members = digits("train", 0, IMAGES)
    from leakbench.federated.client_data import ClientData

    once = WhiteChannel(kappa=3).calibrate(ClientData(members.images[None]))
    images, _ = once.protect_dataset(members.images[None], members.labels[None], streams(0).child("data"))
    start, training = network(0), Training(steps=STEPS, batch_size=BATCH, rate=0.1)
    models = train_runs(
        Start(start, start.parameters), TrainingSet(images[0], members.labels), streams(0), training
    ).models
    loss = torch.nn.functional.cross_entropy(models.logits(members.images)[0], members.labels)
    (replicate,) = run(release_job(WhiteChannel, {"kappa": 3.0})).replicates
    assert number(replicate, "final_loss") == pytest.approx(float(loss), rel=1e-4)
    assert number(replicate, "noise_variance") == pytest.approx(once.reports[0].mean_variance)  # type: ignore[attr-defined]
    assert replicate.privacy is not None and replicate.privacy["capacity"] == pytest.approx(3)

    drawn = {each.setting["noise"]: each for each in run(_both_modes()).replicates}
    assert number(drawn["once"], "final_loss") != number(drawn["fresh"], "final_loss")
    assert number(drawn["once"], "capacity") == number(drawn["fresh"], "capacity") == pytest.approx(3)
    assert drawn["fresh"].privacy is not None and drawn["fresh"].privacy["capacity"] > 3
    assert number(drawn["fresh"], "auc/threshold_noisy") > 0


def _both_modes() -> Job:
    return release_job(NaturalChannel, {"kappa": 3.0}, {"noise": ["once", "fresh"]})


@pytest.mark.parametrize("cls", [DPSGD, DPPSAC])
def test_dp_is_the_literal_loop(cls: type[DPSGD]) -> None:
    clip, multiplier, rate = 0.5, 0.6, 0.1
    members, start = digits("train", 0, IMAGES), network(0)
    parameters, velocity = start.parameters.clone(), torch.zeros(start.dimension)
    order = streams(0).child("order", 0).uniform(IMAGES)[0].argsort()
    rows = [order[first : first + BATCH] for first in range(0, IMAGES, BATCH)]
    rows += [streams(0).child("order", 1).uniform(IMAGES)[0].argsort()[:BATCH]]
    for step in range(STEPS):
        total = torch.zeros(start.dimension)
        for row in rows[step].tolist():
            gradient = start.gradient(parameters, members.images[row, None], members.labels[row, None])
            norm = float(gradient.norm())
            total += gradient * (min(1, clip / norm) if cls is DPSGD else clip / (norm + 0.1 / (norm + 0.1)))
        noise = streams(0).child("step", step).normal(start.dimension)[0]
        velocity = 0.9 * velocity + (total + multiplier * clip * noise) / len(rows[step])
        parameters = parameters - rate * velocity
    loss = start.loss(parameters, *members)
    job = release_job(cls, {"clip": clip}, {"multiplier": [9.0, multiplier]}, rate=rate, weight_decay=0)
    noisier, replicate = run(job).replicates
    assert number(replicate, "final_loss") == pytest.approx(float(loss), rel=1e-4)
    assert number(noisier, "epsilon") < number(replicate, "epsilon")
    assert replicate.metrics["noise_variance"] is None and replicate.metrics["auc/threshold_noisy"] is None


class OtherSamples(NoDefense):
    """Acts on the gradients of samples, and is no :class:`DPSGD`."""

    name: ClassVar[str] = "other_samples"
    acts_on = "samples"


@pytest.mark.parametrize(
    ("defense", "parameters", "model", "reason"),
    [
        (OtherSamples, {}, SimpleConvNet, "subclass of DPSGD"),
        (DPSGD, {"multiplier": 1.0}, ResNet10, "BatchNorm"),
        (MagnitudePruning, {"fraction": 0.5}, SimpleConvNet, "changes what a client sends"),
    ],
)
def test_what_cannot_run_is_infeasible(
    defense: type[Defense], parameters: Mapping[str, Any], model: type[Model], reason: str
) -> None:
    job = release_job(defense, parameters, model=model, seeds=(0, 1))
    findings = run(job)
    assert [each.outcome.status for each in findings.replicates] == ["infeasible"] * 2
    for each in findings.replicates:
        assert each.outcome.reason is not None and reason in each.outcome.reason
        assert set(each.metrics) == set(job.metrics) == set(each.reasons)
        assert set(each.metrics.values()) == {None}


class Poison(Defense):
    """The images of seed 1 hold values that are not numbers, from the first epoch on."""

    name: ClassVar[str] = "poison"
    version: ClassVar[int] = 1
    acts_on = "data"

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lost = [key[1] == 1 and key[4:] == ("step", 3, "defense") for key in streams.keys]
        return torch.where(torch.tensor(lost)[:, None, None, None, None], torch.nan, images), labels


def test_a_diverged_run_is_recorded_and_the_others_are_not_touched() -> None:
    sound, lost = run(release_job(Poison, seeds=(0, 1), membership=ATTACKS)).replicates
    (alone,) = run(release_job(membership=ATTACKS)).replicates
    assert sound.outcome.status == "ok" and number(sound, "auc/lira") == number(alone, "auc/lira")
    assert (lost.outcome.status, lost.outcome.step) == ("diverged", 3)
    assert set(lost.metrics.values()) == {None} and set(lost.reasons) == set(lost.metrics)
    assert "step 3" in lost.reasons["accuracy"] and "step" not in lost.reasons["epsilon"]


class Witness(MembershipAttack):
    """Keeps what it was given; scores by what nobody knows."""

    name: ClassVar[str] = "witness"
    version: ClassVar[int] = 7
    seen: ClassVar[list[Labelled]] = []

    def score(
        self,
        target: TrainedModels,
        members: Labelled,
        nonmembers: Labelled,
        candidates: Labelled,
        streams: Streams,
    ) -> torch.Tensor:
        type(self).seen[:] = [members, nonmembers, candidates]
        return streams.uniform(candidates.images.shape[-4])


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> type[Witness]:
    list(MEMBERSHIP_ATTACKS)  # loads them
    monkeypatch.setattr(MEMBERSHIP_ATTACKS, "_classes", dict(MEMBERSHIP_ATTACKS._classes))
    MEMBERSHIP_ATTACKS.register("witness", version=7)(Witness)
    return Witness


def test_attackers_are_given_what_they_may_know(witness: type[Witness]) -> None:
    run(release_job(NaturalChannel, {"kappa": 1.0}, membership=["witness"], protected_probes=[]))
    known, others, candidates = (samples.images.flatten(1) for samples in witness.seen)
    clean, test = (digits(*where).images.flatten(1) for where in (("train", 0, IMAGES), ("test", 0, 40)))

    def among(samples: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        return (samples[:, None] == pool[None]).all(dim=2).any(dim=1)

    assert len(known) == len(others) == 13 and len(candidates) == 26
    assert among(known, clean).all() and among(others, test).all()  # clean ones, though training saw noise
    assert not among(candidates, torch.cat([known, others])).any()
    assert among(candidates, clean)[:13].all() and among(candidates, test)[13:].all()


def test_versions_of_the_attacks_are_a_part_of_the_identity(witness: type[Witness]) -> None:
    job = release_job(membership=[{"name": "witness"}])
    protocol = job.resolved()["kind"]["protocol"]
    assert protocol["membership"] == [{"name": "witness", "version": 7}]
    assert protocol["inversion"] == {"name": "mean_start", "version": 1, "rate": 0.01, "iterations": 2}
    before = job.digest
    MEMBERSHIP_ATTACKS.register("witness", version=8)(Witness)
    assert release_job(membership=["witness"]).digest != before
    assert release_job(membership=["threshold"]).kind == ReleaseJob(**ReleaseJob(**QUICK).parameters())


def test_steps_may_be_swept() -> None:
    swept = release_job(NaturalChannel, {"kappa": 4.0})
    protocol = {key: value for key, value in QUICK.items() if key != "steps"}
    swept = replace(swept, kinds=Variant("release", ReleaseJob, protocol, {"steps": [2, STEPS]}))
    short, long = compute(swept, CPU).replicates
    assert short.setting == {"steps": 2} and long.setting == {"steps": STEPS}
    (alone,) = run(release_job(NaturalChannel, {"kappa": 4.0})).replicates
    assert long.metrics == alone.metrics != short.metrics


def test_eigen_compression_leaves_pictures() -> None:
    findings = run(release_job(EigenCompression, {}, {"direction": [0, 3]}, pictures=True))
    assert findings.tensors.keys() == {"seed0/inverted/0", "seed0/inverted/1", "seed0/centres"}
    assert findings.tensors["seed0/inverted/1"].shape == findings.tensors["seed0/centres"].shape == (10, 1, 8, 8)


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ({"evaluation": (0, 41)}, "share images"),
        ({"auxiliary": None}, "give both"),
        ({"evaluation": (5, 5)}, "first image"),
        ({"membership": ["threshold", "threshold"]}, "listed twice"),
    ],
)
def test_protocols_that_make_no_sense(protocol: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        release_job(**protocol)


def test_more_images_than_there_are() -> None:
    with pytest.raises(ConfigError, match="more than the train split"):
        run(release_job(images=5000))


def test_snapshots_are_trainings_of_their_own() -> None:
    """For models with running statistics, too; also where a run diverges after a snapshot."""
    for model in (SimpleConvNet, ResNet10):
        job = release_job(NaturalChannel, {"kappa": 4.0}, model=model, membership=ATTACKS)
        protocol = {key: value for key, value in QUICK.items() if key != "steps"} | {"membership": ATTACKS}
        swept = replace(job, kinds=Variant("release", ReleaseJob, protocol, {"steps": [4, STEPS, 2]}))
        found = {each.setting["steps"]: each for each in compute(swept, CPU).replicates}
        assert list(found) == [4, STEPS, 2]
        for steps, each in found.items():
            (alone,) = run(replace(job, kind=job.kind.model_copy(update={"steps": steps}))).replicates
            assert each.metrics == alone.metrics and each.privacy == alone.privacy
    lost = replace(
        release_job(Poison, seeds=(1,)), kinds=Variant("release", ReleaseJob, protocol, {"steps": [3, STEPS]})
    )
    before, after = compute(lost, CPU).replicates
    assert (before.outcome.status, after.outcome.status, after.outcome.step) == ("ok", "diverged", 3)


def shadow_job(steps: Any = STEPS, **protocol: Any) -> Job:
    fields = {key: value for key, value in QUICK.items() if key not in ("membership", "inversion", "steps")} | protocol
    job = release_job()
    sweep = {"steps": steps} if isinstance(steps, list) else {}
    kind = ShadowJob(**fields, steps=steps[0] if sweep else steps, shadows=2)
    kinds: Any = Variant("shadows", ShadowJob, {**fields, "shadows": 2}, sweep) if sweep else None
    return replace(job, kind=kind, kinds=kinds, experiment="shadows", seeds=(0, 1))


@pytest.mark.parametrize("steps", [STEPS, [2, STEPS]])
def test_shared_shadow_models_are_those_that_a_job_trains_itself(steps: Any) -> None:
    source = shadow_job(steps)
    made = compute(source, CPU)
    assert all(0 <= number(each, "shadow_accuracy") <= 1 for each in made.replicates)
    sweep = {"kappa": [2.0, 20.0]}
    reader = release_job(NaturalChannel, {}, sweep, seeds=(0, 1), shadows="shadows", membership=ATTACKS)
    reader = replace(reader, uses={"shadows": source}, kept={"shadows": made.tensors})
    trained = release_job(NaturalChannel, {}, sweep, seeds=(0, 1), membership=ATTACKS)
    assert [each.metrics for each in run(reader).replicates] == [each.metrics for each in run(trained).replicates]
    assert reader.effort.passes < trained.effort.passes


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"batch_size": 4}, "batch_size is 8, and 4"),
        ({"steps": 5}, "no shadow models for 7 steps"),
        ({"images": 44}, "images"),
    ],
)
def test_shadow_models_of_another_protocol(source: dict[str, Any], message: str) -> None:
    reader = release_job(shadows="shadows", membership=ATTACKS)
    reader = replace(reader, uses={"shadows": shadow_job(**source)}, kept={"shadows": {}})
    with pytest.raises(ConfigError, match=message):
        run(reader)


def test_learning_rates_are_chosen_on_auxiliary_images() -> None:
    rates = [0.001, 0.1, 1e8]
    chosen = run(release_job(seeds=(0, 1), rates=rates, steps=30)).replicates
    alone = {rate: run(release_job(seeds=(0, 1), rate=rate, steps=30)).replicates for rate in rates[:2]}
    auxiliary = digits("test", 40, 60)
    for seed, replicate in enumerate(chosen):
        scores = []
        for rate in rates[:2]:
            start = network(seed)
            training = Training(steps=30, batch_size=BATCH, rate=rate)
            set_of = TrainingSet(*digits("train", 0, IMAGES))
            models = train_runs(Start(start, start.parameters), set_of, streams(seed), training).models
            scores.append(float(models.accuracy(*auxiliary)[0]))
        best = rates[scores.index(max(scores))]
        assert replicate.metrics["rate"] == best
        assert {**replicate.metrics, "rate": 0} == {**alone[best][seed].metrics, "rate": 0}
    lost = run(release_job(rates=[1e20, 1e21], steps=5)).replicates[0]
    assert lost.outcome.status == "diverged" and lost.metrics["rate"] is None


def test_a_data_set_may_have_a_delta_of_its_own() -> None:
    usual, other = (
        run(release_job(DPSGD, {"multiplier": 1.0}, deltas=deltas)).replicates[0].metrics["epsilon"]
        for deltas in ({"celeba": 1e-9}, {"digits8": 1e-9})
    )
    assert isinstance(usual, float) and isinstance(other, float) and usual < other


def test_chance_is_the_most_frequent_class_of_the_training_images() -> None:
    (replicate,) = run(release_job()).replicates
    members, evaluation = digits("train", 0, IMAGES), digits("test", 0, 40)
    usual = max(range(10), key=lambda label: int((members.labels == label).sum()))
    assert number(replicate, "chance") == pytest.approx(float((evaluation.labels == usual).float().mean()))


def test_effort_counts_what_is_computed() -> None:
    """By hand; LiRA trains for as many epochs as the victim, on fewer images."""
    none: dict[str, Any] = {"membership": [], "protected_probes": [], "steps": 60, "images": 450, "batch_size": 10}
    plain = release_job(seeds=(0, 1), **none)
    judged = (450 + 40) / 3 + 10 * 3  # evaluation, and model inversion with a first look and two steps
    assert plain.effort.passes == pytest.approx(2 * (600 + judged))
    lira = release_job(seeds=(0, 1), **none | {"membership": [{"name": "lira", "shadows": 16}]})
    shadows = 16 * round(60 * 13 / 450) * 10 + 17 * 2 * 26 / 3
    assert lira.effort.passes - plain.effort.passes == pytest.approx(2 * shadows)
    fields = {key: value for key, value in (QUICK | none).items() if key != "steps"}
    swept = replace(plain, kinds=Variant("release", ReleaseJob, fields, {"steps": [10, 60, 30]}))
    assert swept.effort.passes == pytest.approx(2 * (600 + 3 * judged))
    tuned = release_job(seeds=(0, 1), **none | {"rates": [0.1, 0.2]})
    assert tuned.effort.passes == pytest.approx(2 * (1200 + judged))


def test_the_small_network_of_the_four_branches_counts_as_small() -> None:
    """Its multiply-adds against those that torch counts."""
    from torch.utils.flop_counter import FlopCounterMode

    from leakbench.attacks.released.four_branch import _module, _multiply_adds

    module, columns = _module()(10, 84), 3 * 10 + 1 + 84
    with FlopCounterMode(display=False) as counter, torch.enable_grad():
        rows = torch.randn(2, 1, 1, columns, requires_grad=True)
        torch.nn.functional.cross_entropy(module(rows), torch.tensor([0, 1])).backward()
    assert _multiply_adds(10, 84) == pytest.approx(counter.get_total_flops() / 4, rel=0.02)
