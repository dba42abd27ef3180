"""Fine-tuning of transformers on sentences, against one literal loop with torch's own AdamW."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from leakbench.data.base import Samples, Split
from leakbench.data.sentences import Sentences as MadeSentences
from leakbench.data.text import TextDataset
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.cdpa import CDPA
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.pruning import GradDrop
from leakbench.errors import ConfigError
from leakbench.federated.gradients import BatchGradients
from leakbench.federated.training import Start, Training, TrainingSet, train_runs
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.federate import CORRELATIONS, FederateJob, _split
from leakbench.models.base import Model, build_network
from leakbench.models.bert import Bert, DistilBert, TextModel, transformers_library
from leakbench.models.convnets import SimpleConvNet
from leakbench.randomness import Streams, generator, stream_seed
from leakbench.records import Replicate

CPU = torch.device("cpu")
CLIENTS, ROUNDS, L, V = 4, 2, 6, 20
TINY = {"width": 8, "layers": 1, "heads": 2, "intermediate": 12, "vocabulary": V, "positions": 8}
LOCAL: dict[str, Any] = {"steps": 2, "batch_size": 4, "optimiser": "adamw", "rate": 0.02, "weight_decay": 0.1}
PROTOCOL: dict[str, Any] = {"clients": CLIENTS, "rounds": ROUNDS, "validation": 15, "local": LOCAL}


class Sentences(TextDataset):
    """Random words, padded with zeros; the label is whether the first is one of the upper half of the vocabulary."""

    name: ClassVar[str] = "random_sentences"
    version: ClassVar[int] = 1
    classes = 2
    tokens: int = L
    ids: int = V

    @property
    def tokenizer(self) -> Any:
        return SimpleNamespace(vocabulary_size=self.ids)

    def length(self, split: Split) -> int:
        return 55 if split == "train" else 40

    def read(self, split: Split, rows: list[int]) -> Samples:
        count, draw = self.length(split), generator("sentences", split)
        words = torch.randint(3, self.ids, (count, L), generator=draw)
        words[:, 0] = 1
        lengths = torch.randint(3, L + 1, (count, 1), generator=draw)
        places = torch.arange(L)
        words[places == lengths - 1] = 2
        words[places >= lengths] = 0
        return Samples(words[rows], (words[rows, 1] >= self.ids // 2).long())


def make(
    defense: type[Defense] = NoDefense,
    parameters: Mapping[str, Any] | None = None,
    *,
    model: type[Model] = Bert,
    dataset: Mapping[str, Any] | None = None,
    architecture: Mapping[str, Any] | None = None,
    seeds: tuple[int, ...] = (0,),
    **protocol: Any,
) -> Job:
    return Job(
        scale="test",
        paper="paper",
        experiment="experiment",
        dataset=Variant("sentences", Sentences, dataset or {}, {}),
        model=Variant("tiny", model, TINY if architecture is None else architecture, {}),
        defense=Variant("defense", defense, parameters or {}, {}),
        attack=None,
        kind=FederateJob(**{**PROTOCOL, **protocol}),
        part="all",
        seeds=seeds,
    )


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def matthews(labels: torch.Tensor, predicted: torch.Tensor) -> float:
    tp, tn, fp, fn = (
        int(((predicted == guess) & (labels == label)).sum()) for guess, label in ((1, 1), (0, 0), (1, 0), (0, 1))
    )
    root = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return (tp * tn - fp * fn) / root if root else 0.0


def literal(job: Job, seed: int) -> dict[str, list[float]]:
    """Curves of federated averaging: one module per client, and one client after the other."""
    kind, data = job.kind, Sentences()
    assert isinstance(kind, FederateJob)
    samples, test = (data.load(split, range(data.length(split))) for split in ("train", "test"))
    rows, held_out = _split(kind, "sentences", seed, samples.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed("sentences", seed, "initialisation"))
        server = job.model.single().build((L,), 2)
    found: dict[str, list[float]] = {"loss_curve": [], "mcc_curve": [], "validation_mcc_curve": []}
    for number in range(kind.rounds):
        clients, total = [], 0.0
        for client in range(kind.clients):
            module = copy.deepcopy(server).train()
            clients.append(module)
            optimiser = torch.optim.AdamW(module.parameters(), lr=kind.local.rate, weight_decay=kind.local.weight_decay)
            order = Streams([("sentences", seed, "client", client, "round", number, "order", 0)])
            shuffled = rows[client][order.uniform(rows.shape[1])[0].argsort()]
            for batch in shuffled.split(kind.local.batch_size)[: kind.local.steps]:
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(module(samples.values[batch]), samples.labels[batch])
                loss.backward()
                optimiser.step()
                total += float(loss.detach()) / kind.local.steps / kind.clients
        with torch.no_grad():
            for own, *theirs in zip(server.parameters(), *(module.parameters() for module in clients), strict=True):
                own.copy_(torch.stack(theirs).mean(dim=0))
            server.eval()
            for name, values, labels in (
                ("mcc_curve", test.values, test.labels),
                ("validation_mcc_curve", samples.values[held_out], samples.labels[held_out]),
            ):
                found[name].append(matthews(labels, server(values).argmax(dim=1)))
        found["loss_curve"].append(total)
    return found


def curve(replicate: Replicate, name: str) -> list[float]:
    values = replicate.metrics[name]
    assert isinstance(values, list)
    return [value for value in values if value is not None]


@pytest.mark.parametrize(("model", "lora"), [(Bert, None), (DistilBert, None), (Bert, {"rank": 3, "alpha": 6})])
def test_fine_tuning_equals_a_literal_loop(
    model: type[TextModel], lora: dict[str, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From weights that are larger than the library's, which tell sentences apart."""
    monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path))
    library = transformers_library()
    fields = {key: TINY[field] for field, key in model.keys.items() if field in TINY}
    config = getattr(library, model.library[0])(**fields, initializer_range=0.7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        getattr(library, model.library[1])(config).save_pretrained(tmp_path / "large")
    job = make(model=model, architecture={**TINY, "weights": "large", "lora": lora}, seeds=(0, 1))
    found = run(job)
    assert len(found.replicates) == 2
    for replicate in found.replicates:
        expected = literal(job, replicate.seed)
        assert replicate.outcome.status == "ok"
        assert any(value != 0 for value in expected["mcc_curve"])
        for name, values in expected.items():
            assert curve(replicate, name) == pytest.approx(values, rel=1e-3)
        best = int(float(replicate.metrics["best_round"]))  # type: ignore[arg-type]
        assert replicate.metrics["mcc"] == curve(replicate, "mcc_curve")[-1]
        assert replicate.metrics["mcc_at_best"] == curve(replicate, "mcc_curve")[best]
        network = build_network(job.model.single(), (L,), 2, seed=0)
        assert replicate.metrics["bits"] == 32 * network.dimension  # positions of tokens do not travel
        if lora:  # two adapters of one layer, and the last layer
            assert network.dimension == 2 * 2 * 3 * 8 + 2 * 9


def test_predictions_that_are_all_the_same_correlate_with_nothing() -> None:
    (replicate,) = run(make(rounds=1, local={**LOCAL, "rate": 1e-9})).replicates
    assert [replicate.metrics[name] for name in CORRELATIONS] == [[0.0], [0.0], 0.0, 0.0]


def test_evaluation_every_few_rounds() -> None:
    (replicate,) = run(make(rounds=3, evaluate_every=3)).replicates
    assert replicate.metrics["mcc_curve"] == [None, None, replicate.metrics["mcc"]]
    assert replicate.reasons["mcc_curve"] == "evaluated every 3 rounds"


@pytest.mark.parametrize(
    ("defense", "parameters", "bits"),
    [
        (CDPA, {"layers": "all", "decimals": 5, "mask": (5, 6), "p": 0.999, "encodes": "delta"}, 16),
        (GaussianNoise, {"scale": 0.005}, 32),
        (GradDrop, {"fraction": 0.2}, None),
    ],
)
def test_defenses_of_the_paper(defense: type[Defense], parameters: dict[str, Any], bits: int | None) -> None:
    plain, defended = (run(job).replicates for job in (make(), make(defense, parameters)))
    dimension = build_network(Bert(**TINY), (L,), 2, seed=0).dimension
    for one, other in zip(plain, defended, strict=True):
        assert other.outcome.status == "ok"
        losses, others = curve(one, "loss_curve"), curve(other, "loss_curve")
        assert others[0] == losses[0] and others[1:] != losses[1:]
        assert others == pytest.approx(losses, abs=0.3)  # it still learns
        if bits is not None:
            assert other.metrics["bits"] == pytest.approx(bits * dimension, rel=0.05)  # and scales of tensors


def test_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="a tokenizer that does not fit the model: it has 40 token ids"):
        run(make(dataset={"ids": 40}))
    with pytest.raises(ConfigError, match=r"'simpleconvnet' reads images .*shape \(6,\)"):
        run(make(model=SimpleConvNet, architecture={}))


class Darken(Defense):
    name: ClassVar[str] = "darken_sentences"
    version: ClassVar[int] = 1

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros_like(images), labels


def test_defenses_of_images_are_infeasible() -> None:
    for replicate in run(make(Darken)).replicates:
        assert replicate.outcome.status == "infeasible"
        assert replicate.outcome.reason == "'darken_sentences' acts on images, and the clients hold sentences"


@pytest.mark.parametrize("own", [False, True])
def test_runs_together_and_apart(own: bool) -> None:
    """On shared sentences, or on each run's own; vectorised or one by one."""
    network = build_network(Bert(**TINY), (L,), 2, seed=0)
    values, labels = Sentences().load("train", range(12))
    if own:
        values, labels = values.unflatten(0, (3, 4)), labels.unflatten(0, (3, 4))
    streams, training = Streams([("run", number) for number in range(3)]), Training(**{**LOCAL, "batch_size": 3})
    one, other = (
        train_runs(
            Start(network, network.parameters),
            TrainingSet(values, labels),
            streams,
            training,
            gradients=BatchGradients(together),
        )
        for together in (1, 3)
    )
    moved = one.models.parameters - network.parameters
    assert moved.abs().max() > 0.01 and (moved[0] != moved[1]).any()
    torch.testing.assert_close(other.models.parameters, one.models.parameters, rtol=1e-3, atol=1e-4)
    assert one.first_batch is not None and one.first_batch[0].shape == (3, 3, L)


@pytest.mark.slow
def test_fine_tuning_learns_which_sentences_are_grammatical() -> None:
    """Four clients, AdamW, from random weights: nothing at first, then Matthews correlations clearly above zero.

    Of 400 sentences those of a coin have a standard deviation of 0.05.
    """
    local = {"steps": 14, "batch_size": 32, "optimiser": "adamw", "rate": 1e-3, "weight_decay": 0.01}
    job = Job(
        scale="test",
        paper="paper",
        experiment="experiment",
        dataset=Variant("sentences", MadeSentences, {}, {}),
        model=Variant(
            "tiny",
            Bert,
            {"width": 32, "layers": 2, "heads": 2, "intermediate": 128, "vocabulary": 400, "positions": 12},
            {},
        ),
        defense=Variant("none", NoDefense, {}, {}),
        attack=None,
        kind=FederateJob(clients=4, rounds=20, validation=200, evaluate_every=4, local=local),
        part="all",
        seeds=(0,),
    )
    (replicate,) = run(job).replicates
    mccs, losses = curve(replicate, "mcc_curve"), curve(replicate, "loss_curve")
    assert replicate.outcome.status == "ok" and len(mccs) == 5
    assert abs(mccs[0]) < 0.15 and float(replicate.metrics["mcc"]) > 0.15  # type: ignore[arg-type]
    assert losses[0] > 0.68 and losses[-1] < 0.65
