"""Training jobs against one literal loop per run; divergence; what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError
from scipy.stats import beta

from leakbench.data.embedded import Digits
from leakbench.data.sentences import Sentences
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.channel import NaturalChannel
from leakbench.defenses.mixup import MixUp
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.optimal import OptimalClippedNoise, OptimalPruning
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.batches import ClientBatches
from leakbench.federated.message import DenseMessage, Message
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.train import TrainJob
from leakbench.jobs.victims import gather_victims
from leakbench.models.bert import Bert
from leakbench.models.convnets import ConvNet, SimpleConvNet
from leakbench.randomness import Streams, stream_seed
from leakbench.records import Replicate
from leakbench.theory.water_filling import batch_covariance

TrainJobs = Callable[..., Job]
CPU = torch.device("cpu")
CLIENTS, BATCH, EACH, STEPS = 2, 2, 4, 5


class PoisonAt(Defense):
    """One client of seed 1 sends something that is not a number, at one step."""

    name: ClassVar[str] = "poison_at"
    version: ClassVar[int] = 1
    step: int = 2

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        values = steps.gradient.clone()
        for row, key in enumerate(steps.streams.keys):
            if key[1:] == (1, "client", 0, "step", self.step):
                values[row, 3] = torch.nan
        return DenseMessage(values)


class Darken(Defense):
    """Clients train on black images."""

    name: ClassVar[str] = "darken"
    version: ClassVar[int] = 1

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full_like(images, -1.0), labels


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def curve(replicate: Replicate) -> list[float | None]:
    found = replicate.metrics["loss_curve"]
    assert isinstance(found, list)
    return found


def literal(
    seed: int,
    protect: Callable[[torch.Tensor, Streams], torch.Tensor],
    *,
    rate: float,
    optimiser: type[torch.optim.Optimizer],
    images: Callable[[torch.Tensor], torch.Tensor] = lambda images: images,
    noise: Callable[[torch.Tensor, Streams], torch.Tensor] | None = None,
    decays: bool = False,
    alpha: float | None = None,
    first: int = 1,
) -> tuple[list[float], float, float]:
    """Loss curve, final loss and accuracy of one run: one module, one client after the other."""
    digits = Digits(size=8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed("digits8", seed, "initialisation"))
        module = SimpleConvNet(width=4).build((1, 8, 8), 10)
    samples = digits.load("test", range(first, first + CLIENTS * EACH))
    inputs = digits.normalise(samples.values)
    noisy = inputs.clone()
    for client in range(CLIENTS if noise else 0):
        assert noise is not None
        own = slice(EACH * client, EACH * (client + 1))
        noisy[own] += noise(inputs[own], Streams([("digits8", seed, "client", client, "data")]))
    loss_of = torch.nn.CrossEntropyLoss()
    server = optimiser(module.parameters(), lr=rate)  # type: ignore[call-arg]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(server, T_max=STEPS) if decays else None
    losses = []
    for step in range(STEPS):
        epoch, batch = divmod(step, EACH // BATCH)
        server.zero_grad()
        total = 0.0
        for client in range(CLIENTS):
            key = ("digits8", seed, "client", client)
            order = Streams([(*key, "order", epoch)]).uniform(EACH)[0].argsort()
            rows = EACH * client + order[BATCH * batch : BATCH * (batch + 1)]
            read, labels = images(noisy[rows]), samples.labels[rows]
            loss = loss_of(module(read), labels)
            if alpha is not None:  # as the authors of mixup write it
                streams = Streams([(*key, "step", step, "defense")])
                weight = float(beta.ppf(float(streams.child("weight").uniform(1)), alpha, alpha))
                other = streams.child("order").uniform(BATCH)[0].argsort()
                output = module(weight * read + (1 - weight) * read[other])
                loss = weight * loss_of(output, labels) + (1 - weight) * loss_of(output, labels[other])
            total += float(loss.detach()) / CLIENTS
            gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
            sent = protect(gradient, Streams([(*key, "step", step, "defense")])) / CLIENTS
            for parameter, part in zip(
                module.parameters(), sent.split([p.numel() for p in module.parameters()]), strict=True
            ):
                part = part.view_as(parameter)
                parameter.grad = part if parameter.grad is None else parameter.grad + part
        server.step()
        if schedule is not None:
            schedule.step()
        losses.append(total)
    test = digits.load("test", range(100, 200))
    with torch.no_grad():
        final = float(loss_of(module(inputs), samples.labels))
        right = module(digits.normalise(test.values)).argmax(dim=1) == test.labels
    return losses, final, float(right.float().mean())


def send_all(gradient: torch.Tensor, streams: Streams) -> torch.Tensor:
    return gradient


def keep_half(gradient: torch.Tensor, streams: Streams) -> torch.Tensor:
    kept = gradient.abs().topk(len(gradient) - len(gradient) // 2).indices
    return torch.zeros_like(gradient).index_copy(0, kept, gradient[kept])


def add_noise(gradient: torch.Tensor, streams: Streams) -> torch.Tensor:
    return gradient + 0.05 * streams.normal(len(gradient))[0]


@pytest.mark.parametrize(
    ("optimiser", "theirs", "rate"), [("adam", torch.optim.Adam, 1e-2), ("sgd", torch.optim.SGD, 0.3)]
)
@pytest.mark.parametrize(
    ("defense", "parameters", "protect"),
    [
        (NoDefense, {}, send_all),
        (MagnitudePruning, {"fraction": 0.5}, keep_half),
        (GaussianNoise, {"scale": 0.05}, add_noise),
    ],
)
def test_equals_a_literal_loop(
    train_job: TrainJobs,
    optimiser: str,
    theirs: type[torch.optim.Optimizer],
    rate: float,
    defense: type[Defense],
    parameters: dict[str, Any],
    protect: Callable[[torch.Tensor, Streams], torch.Tensor],
) -> None:
    job = train_job(defense, parameters, seeds=(0, 1), rate=rate, optimiser=optimiser, evaluation=(100, 200))
    for replicate in run(job).replicates:
        losses, final, accuracy = literal(replicate.seed, protect, rate=rate, optimiser=theirs)
        assert curve(replicate) == pytest.approx(losses, abs=1e-4)
        assert replicate.metrics["final_loss"] == pytest.approx(final, abs=1e-4)
        assert replicate.metrics["accuracy"] == pytest.approx(accuracy, abs=0.011)  # one image may tip over
        assert replicate.outcome.status == "ok" and replicate.reasons == {}
    assert losses[0] != pytest.approx(final, abs=1e-2)


def test_the_learning_rate_decays_along_half_a_cosine(train_job: TrainJobs) -> None:
    (replicate,) = run(train_job(NoDefense, decay="cosine", evaluation=(100, 200))).replicates
    losses, final, _ = literal(0, send_all, rate=1e-2, optimiser=torch.optim.Adam, decays=True)
    assert curve(replicate) == pytest.approx(losses, abs=1e-4)
    assert replicate.metrics["final_loss"] == pytest.approx(final, abs=1e-4)


def test_seeds_may_train_on_images_of_their_own(train_job: TrainJobs) -> None:
    job = train_job(seeds=(0, 1), rate=1e-2, victims="distinct")
    for replicate in run(job).replicates:
        first = 1 + replicate.seed * CLIENTS * EACH
        losses, final, _ = literal(replicate.seed, send_all, rate=1e-2, optimiser=torch.optim.Adam, first=first)
        assert curve(replicate) == pytest.approx(losses, abs=1e-4)
        assert replicate.metrics["final_loss"] == pytest.approx(final, abs=1e-4)
    with pytest.raises(ValidationError, match="victims: of the train split each seed draws its own already"):
        TrainJob(clients=1, batch_size=2, images_per_client=4, steps=1, rate=0.1, split="train", victims="distinct")


def test_a_defense_may_change_the_data(train_job: TrainJobs) -> None:
    """Training sees the changed images; the final loss is that of the images that clients hold."""
    (replicate,) = run(train_job(Darken, evaluation=(100, 200))).replicates
    losses, final, _ = literal(0, send_all, rate=1e-2, optimiser=torch.optim.Adam, images=lambda x: 0 * x - 1)
    assert curve(replicate) == pytest.approx(losses, abs=1e-4)
    assert replicate.metrics["final_loss"] == pytest.approx(final, abs=1e-4)


def test_labels_may_become_probabilities(train_job: TrainJobs) -> None:
    findings = run(train_job(MixUp, sweep={"alpha": [0.4, 3.0]}, evaluation=(100, 200)))
    for replicate, alpha in zip(findings.replicates, (0.4, 3.0), strict=True):
        losses, final, _ = literal(0, send_all, rate=1e-2, optimiser=torch.optim.Adam, alpha=alpha)
        assert curve(replicate) == pytest.approx(losses, abs=1e-4)
        assert replicate.metrics["final_loss"] == pytest.approx(final, abs=1e-4)


def test_data_are_protected_once_before_training(train_job: TrainJobs) -> None:
    """Each client's noise comes from its own images, and is the same when an image returns; epochs are two steps."""

    def noise(images: torch.Tensor, streams: Streams) -> torch.Tensor:
        values = torch.linalg.eigvalsh(images.flatten(1).double().T.cov()).clamp(min=0)
        low, high = 1e-9, 1e9
        for _ in range(200):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if 0.5 * float((values / middle).log1p().sum()) > 2 else (low, middle)
        return streams.child("channel", 0).normal(256, 1, 8, 8)[0, :EACH] * float(low**0.5)

    plain, noisy = run(train_job(NaturalChannel, {}, {"kappa": [100, 2]}, seeds=(1,))).replicates
    losses, final, _ = literal(1, send_all, rate=1e-2, optimiser=torch.optim.Adam, noise=noise)
    assert curve(noisy) == pytest.approx(losses, abs=1e-4)
    assert noisy.metrics["final_loss"] == pytest.approx(final, abs=1e-4)  # on the clean images
    undefended, *_ = literal(1, send_all, rate=1e-2, optimiser=torch.optim.Adam)
    assert curve(plain) != pytest.approx(curve(noisy), abs=1e-3)
    assert curve(plain) == pytest.approx(undefended, abs=1e-2)


@pytest.mark.parametrize(
    ("defense", "fixed", "name", "sweep"),
    [(OptimalPruning, {}, "fraction", [0.3, 0.9]), (OptimalClippedNoise, {"clip": 0.2}, "scale", [0.01, 0.1])],
)
def test_seeds_and_settings_alone_give_the_same(
    train_job: TrainJobs, defense: type[Defense], fixed: dict[str, Any], name: str, sweep: list[float]
) -> None:
    together = run(train_job(defense, fixed, {name: sweep}, seeds=(0, 1, 2))).replicates
    order = [({name: value}, seed) for value in sweep for seed in (0, 1, 2)]
    assert [(replicate.setting, replicate.seed) for replicate in together] == order
    assert len({tuple(curve(replicate)) for replicate in together}) == len(order)
    for index in (1, 5):
        setting, seed = order[index]
        (alone,) = run(train_job(defense, fixed | setting, seeds=(seed,))).replicates
        assert curve(alone) == pytest.approx(curve(together[index]), abs=1e-5)
        assert alone.metrics["final_loss"] == pytest.approx(together[index].metrics["final_loss"], abs=1e-5)
        assert alone.metrics["bits"] == together[index].metrics["bits"]


def test_two_runs_are_identical(train_job: TrainJobs) -> None:
    job = train_job(GaussianNoise, {"scale": 0.1}, seeds=(0, 1))
    assert run(job).replicates == run(job).replicates


def test_accuracy_is_null_without_evaluation_images(train_job: TrainJobs) -> None:
    (replicate,) = run(train_job()).replicates
    assert replicate.metrics["accuracy"] is None
    assert replicate.reasons == {"accuracy": "the protocol names no evaluation images"}
    assert replicate.metrics["bits"] == 32 * 518


@pytest.mark.parametrize("rate", [0.1, 1e30])
def test_a_record_may_do_without_the_curve(train_job: TrainJobs, rate: float) -> None:
    """All else is as with it, also where training diverges."""
    protocol = {"rate": rate, "steps": 3, "evaluation": (100, 200)}
    whole, without = (run(train_job(**protocol, curve=curve)).replicates[0] for curve in (True, False))
    losses = whole.metrics.pop("loss_curve")
    assert isinstance(losses, list) and len(losses) == 3
    whole.reasons.pop("loss_curve", None)
    assert without == whole and "loss_curve" not in train_job(**protocol, curve=False).metrics


def test_evaluation_images_that_do_not_exist_are_missed_before_training(
    train_job: TrainJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainJob, "_trained", lambda *_: pytest.fail("trained"))
    with pytest.raises(ConfigError, match="evaluation: it ends at 501, and the test split of 'digits8' has 500 images"):
        run(train_job(evaluation=(100, 501)))


def test_clients_hold_whole_batches() -> None:
    with pytest.raises(ValidationError, match=r"images_per_client \(5\) must be a multiple of batch_size \(2\)"):
        TrainJob(clients=1, batch_size=2, images_per_client=5, steps=1, rate=0.1)


class TestDiverged:
    def test_a_poisoned_run_ends_there_and_the_others_go_on(self, train_job: TrainJobs) -> None:
        protocol = {"seeds": (0, 1, 2), "evaluation": (100, 200)}
        healthy = run(train_job(**protocol)).replicates
        poisoned = run(train_job(PoisonAt, {}, {"step": [2, 99]}, **protocol)).replicates
        broken = poisoned[1]
        assert broken.outcome.status == "diverged" and broken.outcome.step == 2
        assert broken.outcome.reason == "training became non-finite at step 2"
        assert curve(broken)[:2] == pytest.approx(curve(healthy[1])[:2], abs=1e-6)
        assert curve(broken)[2:] == [None] * 3
        assert broken.metrics["final_loss"] is None and broken.metrics["accuracy"] is None
        assert set(broken.reasons) == {"loss_curve", "final_loss", "accuracy"}
        assert Replicate.model_validate(broken.model_dump()) == broken  # no NaN anywhere
        for index in (0, 2, 3, 4, 5):
            assert poisoned[index].outcome.status == "ok"
            assert curve(poisoned[index]) == pytest.approx(curve(healthy[index % 3]), abs=1e-6)

    @pytest.mark.parametrize("optimiser", ["adam", "sgd"])
    def test_a_huge_learning_rate(self, train_job: TrainJobs, optimiser: str) -> None:
        (replicate,) = run(train_job(rate=1e30, optimiser=optimiser)).replicates
        assert replicate.outcome.status == "diverged" and replicate.outcome.step == 1
        assert curve(replicate)[0] is not None and curve(replicate)[1:] == [None] * 4

    def test_the_last_step_may_be_the_one_too_many(self, train_job: TrainJobs) -> None:
        (replicate,) = run(train_job(rate=1e30, steps=1, evaluation=(100, 200))).replicates
        assert replicate.outcome.status == "diverged" and replicate.outcome.step == 1
        assert None not in curve(replicate)
        assert replicate.metrics["final_loss"] is None and replicate.metrics["accuracy"] is None
        assert set(replicate.reasons) == {"final_loss", "accuracy"}


class TestNoisePerTensor:
    def test_isotropic_noise_is_the_same_everywhere(self, train_job: TrainJobs) -> None:
        job = train_job(GaussianNoise, {}, {"scale": [0.1, 0.3]}, seeds=(0, 1), noise_per_tensor=True)
        found, names = run(job), [name for name in job.metrics if name.startswith("noise_std/")]
        assert len(names) == 8 and "noise_std/conv_layers.0.weight" in names
        for replicate in found.replicates:
            for name in names:
                assert replicate.metrics[name] == pytest.approx([replicate.setting["scale"]] * STEPS)

    def test_optimal_noise_by_hand(self, train_job: TrainJobs) -> None:
        """At the first step, all clients hold the initial model."""
        found = run(train_job(OptimalClippedNoise, {"scale": 0.1}, noise_per_tensor=True))
        victims = gather_victims(
            Digits(size=8), "digits8", SimpleConvNet(width=4), 0, clients=2, batch_size=4, first_index=1, device=CPU
        )
        keys = [("digits8", 0, "client", client) for client in range(CLIENTS)]
        order = Streams(keys).child("order", 0).uniform(EACH).argsort(dim=1)[:, :BATCH]
        row = torch.arange(CLIENTS)[:, None]
        streams = Streams(keys).child("step", 0)
        steps = ClientSteps(
            victims.network, victims.parameters, victims.inputs[row, order], victims.labels[row, order], streams
        )
        variance = OptimalClippedNoise(scale=0.1).protect_update(steps, streams.child("defense")).noise_variance
        assert variance is not None
        parts = variance.sqrt().split(victims.network.sizes, dim=1)
        for name, part in zip(victims.network.names, parts, strict=True):
            noise = found.replicates[0].metrics[f"noise_std/{name}"]
            assert isinstance(noise, list) and noise[0] == pytest.approx(float(part.mean()), rel=1e-4)

    def test_null_without_noise(self, train_job: TrainJobs) -> None:
        (replicate,) = run(train_job(MagnitudePruning, {"fraction": 0.5}, noise_per_tensor=True)).replicates
        assert replicate.metrics["noise_std/conv_layers.0.bias"] is None
        assert replicate.reasons["noise_std/conv_layers.0.bias"] == "the defense states no noise"

    def test_ends_where_a_run_diverged(self, train_job: TrainJobs) -> None:
        job = train_job(GaussianNoise, {"scale": 1e30}, rate=1e30, noise_per_tensor=True)
        (replicate,) = run(job).replicates
        step = replicate.outcome.step
        assert replicate.outcome.status == "diverged" and step is not None and step < STEPS
        noise = replicate.metrics["noise_std/conv_layers.0.bias"]
        assert isinstance(noise, list) and noise[step:] == [None] * (STEPS - step) and None not in noise[:step]


def test_mode_of_batch_norm(train_job: TrainJobs) -> None:
    """With batches of two, what a batch normalises with changes the losses; the model has to have such layers."""
    jobs = [train_job(batch_norm=mode) for mode in ("eval", "train")]
    plain = [curve(run(job).replicates[0]) for job in jobs]
    assert plain[0] == plain[1]
    model: Variant[Any] = Variant("convnet", ConvNet, {"width": 2}, {})
    digits: Variant[Any] = Variant("digits8", Digits, {"size": 16}, {})
    modes = [curve(run(replace(job, model=model, dataset=digits)).replicates[0]) for job in jobs]
    assert abs(modes[0][0] - modes[1][0]) > 1e-3  # type: ignore[operator]


class TestIndependentBatches:
    def test_are_drawn_without_replacement_and_uniformly(self) -> None:
        """Of records 1, 2, 6 the batches of 2 have means 1.5, 3.5, 4: of variance 7 / 6, equally often."""
        streams = Streams([("digits8", seed, "client", client) for seed in (0, 1) for client in (0, 1)])
        batches = ClientBatches(streams, 3, 2, "independent", CPU)
        chosen = torch.stack([torch.as_tensor(batches.at(step)[1]) for step in range(600)])
        assert chosen.shape == (600, 4, 2) and bool((chosen[..., 0] != chosen[..., 1]).all())
        means = torch.tensor([1.0, 2.0, 6.0])[chosen].mean(dim=2)
        assert float(means.var()) == pytest.approx(7 / 6, rel=0.05)
        assert float(batch_covariance(torch.tensor([[1.0, 2.0, 6.0]]), 2)) == pytest.approx(7 / 6)
        for value in (1.5, 3.5, 4.0):
            assert float((means == value).float().mean()) == pytest.approx(1 / 3, abs=4 * (2 / 9 / 2400) ** 0.5)
        same_step = (means[:, 0] == means[:, 1]).float().mean()
        assert float(same_step) == pytest.approx(1 / 3, abs=4 * (2 / 9 / 600) ** 0.5)

    def test_all_of_the_data_is_the_whole_gradient(self, train_job: TrainJobs) -> None:
        """However the batch is drawn, it is all of the data."""
        curves = [
            curve(run(train_job(sampling=sampling, batch_size=4)).replicates[0])
            for sampling in ("shuffled", "independent")
        ]
        assert curves[0] == pytest.approx(curves[1], abs=1e-5)
        drawn = curve(run(train_job(sampling="independent")).replicates[0])
        assert drawn != pytest.approx(curve(run(train_job()).replicates[0]), abs=1e-4)

    def test_batches_need_not_divide_the_data(self, train_job: TrainJobs) -> None:
        assert None not in curve(run(train_job(sampling="independent", batch_size=3)).replicates[0])
        with pytest.raises(ValidationError, match=r"batch_size \(5\) must be at most images_per_client \(4\)"):
            TrainJob(clients=1, batch_size=5, images_per_client=4, steps=1, rate=0.1, sampling="independent")


class Vote(Defense):
    """A server that has to see every message."""

    name: ClassVar[str] = "vote"
    version: ClassVar[int] = 1

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        sums: torch.Tensor = message.view().unflatten(0, (-1, clients)).sign().sum(dim=1)
        return sums


class TestSecureAggregation:
    CLIENTS: ClassVar[dict[str, int]] = {"clients": 4, "batch_size": 2, "images_per_client": 2}

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("cryptography")

    @pytest.mark.parametrize(
        ("secure", "tolerance"),
        [({"threshold": 3}, 1e-4), ({"threshold": 4, "width": 64, "fraction_bits": 40}, 1e-5)],
    )
    def test_trains_as_in_the_clear(
        self, train_job: TrainJobs, secure: dict[str, int], tolerance: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Up to the rounding to fixed point, parameters are the same after training."""
        found = []
        kept = TrainJob._train

        def keep(self: TrainJob, *arguments: Any) -> Any:
            found.append(kept(self, *arguments))
            return found[-1]

        monkeypatch.setattr(TrainJob, "_train", keep)
        protocol = {**self.CLIENTS, "seeds": (0, 1), "optimiser": "sgd", "rate": 0.3, "evaluation": (100, 200)}
        sweep = {"scale": [0.01, 0.1]}
        plain = run(train_job(GaussianNoise, {}, sweep, **protocol)).replicates
        summed = run(train_job(GaussianNoise, {}, sweep, **protocol, secure_aggregation=secure)).replicates
        assert [replicate.setting for replicate in summed] == [replicate.setting for replicate in plain]
        torch.testing.assert_close(found[1].runs.parameters, found[0].runs.parameters, atol=tolerance, rtol=0)
        assert not torch.equal(found[1].runs.parameters, found[0].runs.parameters)
        for ours, theirs in zip(summed, plain, strict=True):
            assert curve(ours) == pytest.approx(curve(theirs), abs=10 * tolerance)
            assert ours.outcome.status == "ok" and ours.reasons == {}
        width = secure.get("width", 32)
        sent = width * 518 + 8 * (2 * 32 + 3 * (2 * 33 + 16) + 4 * 33)
        assert {replicate.metrics["bits"] for replicate in summed} == {sent}
        assert run(train_job(**protocol, secure_aggregation=secure)).replicates == (
            run(train_job(**protocol, secure_aggregation=secure)).replicates
        )  # whatever the keys

    def test_the_server_gets_the_sum_of_those_who_stay(self, train_job: TrainJobs) -> None:
        """By hand: one step of plain SGD, and the loss after it."""
        secure = {"threshold": 3, "dropout": 0.3}
        job = train_job(**self.CLIENTS, seeds=(3,), optimiser="sgd", rate=0.3, steps=1, secure_aggregation=secure)
        keys = [("digits8", 3, "client", client) for client in range(4)]
        dropped = Streams(keys).child("step", 0, "dropout").uniform(1)[:, 0] < 0.3
        assert int(dropped.sum()) == 1
        victims = gather_victims(
            Digits(size=8), "digits8", SimpleConvNet(width=4), 3, clients=4, batch_size=2, first_index=1, device=CPU
        )
        steps = ClientSteps(victims.network, victims.parameters, victims.inputs, victims.labels, Streams(keys))
        after = victims.parameters - 0.3 * steps.gradient[~dropped].mean(dim=0)
        (replicate,) = run(job).replicates
        assert curve(replicate) == pytest.approx([float(steps.loss.mean())], abs=1e-5)
        expected = ClientSteps(victims.network, after, victims.inputs, victims.labels, Streams(keys)).loss.mean()
        assert replicate.metrics["final_loss"] == pytest.approx(float(expected), abs=1e-4)
        everyone = victims.parameters - 0.3 * steps.gradient.mean(dim=0)
        other = ClientSteps(victims.network, everyone, victims.inputs, victims.labels, Streams(keys)).loss.mean()
        assert float(expected) != pytest.approx(float(other), abs=1e-3)

    def test_too_many_drop_out(self, train_job: TrainJobs) -> None:
        """The run ends where it happens; others go on."""
        job = train_job(
            GaussianNoise,
            {},
            {"scale": [0.0, 0.1]},
            **self.CLIENTS,
            seeds=tuple(range(6)),
            secure_aggregation={"threshold": 3, "dropout": 0.2},
            evaluation=(100, 120),
            noise_per_tensor=True,
        )
        replicates = run(job).replicates
        expected = {}
        for seed in range(6):
            keys = [("digits8", seed, "client", client) for client in range(4)]
            staying = [
                int((Streams(keys).child("step", step, "dropout").uniform(1) >= 0.2).sum()) for step in range(STEPS)
            ]
            expected[seed] = next((step for step, count in enumerate(staying) if count < 3), None), staying
        assert {step is None for step, _ in expected.values()} == {True, False}
        for replicate in replicates:
            step, staying = expected[replicate.seed]
            if step is None:
                assert replicate.outcome.status == "ok" and None not in curve(replicate)
                continue
            assert replicate.outcome.status == "infeasible" and replicate.outcome.step == step
            reason = f"step {step}: {staying[step]} of 4 users sent a vector; the threshold is 3"
            assert replicate.outcome.reason == reason
            assert None not in curve(replicate)[:step] and curve(replicate)[step:] == [None] * (STEPS - step)
            assert replicate.metrics["final_loss"] is None and replicate.metrics["accuracy"] is None
            for name in (name for name in replicate.metrics if name.startswith("noise_std/")):
                noise = replicate.metrics[name]
                assert isinstance(noise, list) and [value is None for value in noise] == [False] * step + [True] * (
                    STEPS - step
                )
            assert set(replicate.reasons.values()) == {reason}
            assert Replicate.model_validate(replicate.model_dump()) == replicate

    def test_an_overflow_names_the_limit(self, train_job: TrainJobs) -> None:
        secure = {"fraction_bits": 30}
        noise = (GaussianNoise, {"scale": 1.0})
        (replicate,) = run(train_job(*noise, **self.CLIENTS, secure_aggregation=secure)).replicates
        assert replicate.outcome.status == "infeasible" and replicate.outcome.reason is not None
        assert replicate.outcome.reason.startswith("step 0: a value of ")
        assert "holds values up to 0.5" in replicate.outcome.reason
        clipped = secure | {"clip": 0.25}
        (replicate,) = run(train_job(*noise, **self.CLIENTS, secure_aggregation=clipped)).replicates
        assert replicate.outcome.status == "ok"

    def test_a_run_that_diverged_is_told_as_such(self, train_job: TrainJobs) -> None:
        job = train_job(PoisonAt, {}, seeds=(0, 1, 2), **self.CLIENTS, secure_aggregation={})
        outcomes = [replicate.outcome for replicate in run(job).replicates]
        assert [outcome.status for outcome in outcomes] == ["ok", "diverged", "ok"] and outcomes[1].step == 2

    def test_a_server_of_another_kind_is_refused(self, train_job: TrainJobs) -> None:
        with pytest.raises(Infeasible, match="'vote' aggregates messages in a way of its own"):
            run(train_job(Vote, **self.CLIENTS, secure_aggregation={}))

    def test_the_threshold_fits_the_clients(self) -> None:
        with pytest.raises(ValidationError, match="secure_aggregation: threshold 3 of 2 users"):
            TrainJob.model_validate(
                {
                    **{"clients": 2, "batch_size": 2, "images_per_client": 2, "steps": 1, "rate": 0.1},
                    "secure_aggregation": {"threshold": 3},
                }
            )


def test_sentences_train(train_job: TrainJobs) -> None:
    """A linear step of SGD on token ids, against a literal loop; a defense of images says that it is one."""
    model = Bert(width=8, layers=1, heads=2, intermediate=8, vocabulary=400, positions=12)
    job = replace(
        train_job(steps=1, optimiser="sgd", rate=0.5, evaluation=(0, 20)),
        dataset=Variant("sentences", Sentences, {}, {}),
        model=Variant("bert", Bert, model.parameters(), {}),
    )
    (found,) = run(job).replicates
    sentences = Sentences()
    victims = gather_victims(
        sentences, "sentences", model, 0, clients=CLIENTS, batch_size=EACH, first_index=1, device=CPU
    )
    network = victims.network
    streams = victims.streams
    _, chosen = ClientBatches(streams, EACH, BATCH, "shuffled", CPU).at(0)
    assert isinstance(chosen, torch.Tensor)
    gradients = [
        network.gradient(network.parameters, victims.values[row, chosen[row]], victims.labels[row, chosen[row]])
        for row in range(CLIENTS)
    ]
    moved = network.parameters - 0.5 * torch.stack(gradients).mean(dim=0)
    loss = network.loss(moved, victims.values.flatten(0, 1), victims.labels.flatten(0, 1))
    assert found.metrics["final_loss"] == pytest.approx(float(loss), rel=1e-5)
    test = sentences.load("test", range(20))
    right = network.logits(moved, test.values).argmax(dim=1) == test.labels
    assert found.metrics["accuracy"] == pytest.approx(float(right.float().mean()))
    noisy = replace(job, defense=Variant("channel", NaturalChannel, {"kappa": 10.0}, {}))
    assert all("acts on images" in (each.outcome.reason or "") for each in run(noisy).replicates)
