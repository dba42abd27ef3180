"""Attack jobs on sentences: what attackers are told, what records hold, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.presets import IGOptimalDefense
from leakbench.attacks.reference import FrequentWords, Grey, RandomSentence
from leakbench.attacks.sentences import SentenceMatching
from leakbench.data.embedded import Digits
from leakbench.data.sentences import Sentences as SentenceData
from leakbench.data.text import unpack
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.channel import WhiteChannel
from leakbench.defenses.noise import GaussianNoise
from leakbench.errors import ConfigError
from leakbench.jobs.attack import VICTIM_METRICS, AttackJob
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.language_model import LanguageModelJob
from leakbench.jobs.pretraining import Pretraining, pretrained
from leakbench.metrics.text import TEXT_METRICS, rouge, without_special
from leakbench.models.base import build_network
from leakbench.models.bert import Bert, word_embeddings
from leakbench.randomness import Streams
from leakbench.records import Replicate

CPU = torch.device("cpu")
DATA = SentenceData()
TINY: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "intermediate": 16, "vocabulary": 400, "positions": 12}
MATCHING: dict[str, Any] = {
    "objective": {"kind": "l1_l2", "l1_weight": 0.01},
    "optimiser": {"kind": "adam", "rate": 0.05, "signed": False},
    "iterations": 8,
}
MakeJob = Callable[..., Job]


@pytest.fixture
def text_job() -> MakeJob:
    """``text_job(attack, defense, parameters, sweep, model=..., seeds=..., **protocol)``; three clients, a sentence."""

    def make(
        attack: Attack,
        defense: type[Defense] = NoDefense,
        parameters: dict[str, Any] | None = None,
        sweep: dict[str, list[Any]] | None = None,
        *,
        model: dict[str, Any] = TINY,
        seeds: tuple[int, ...] = (0,),
        **protocol: Any,
    ) -> Job:
        return Job(
            scale="test",
            paper="paper",
            experiment="experiment",
            dataset=Variant("sentences", SentenceData, {}, {}),
            model=Variant("bert", Bert, model, {}),
            defense=Variant("defense", defense, parameters or {}, sweep or {}),
            attack=Variant("attack", type(attack), dict(attack), {}),
            kind=AttackJob(**{"clients": 3, "batch_size": 1, "first_index": 0, "auxiliary": 50, **protocol}),
            part="all",
            seeds=seeds,
        )

    return make


class Spy(Attack):
    """Keeps what it is given, and believes in the most frequent words."""

    name: ClassVar[str] = "spy"
    version: ClassVar[int] = 1
    seen: ClassVar[list[tuple[Observations, Knowledge]]] = []

    @property
    def reconstructs(self) -> Any:
        return "sentences"

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        self.seen.append((observations, knowledge))
        return FrequentWords().reconstruct(observations, knowledge, streams)


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def reason(findings: Findings) -> str:
    replicate = findings.replicates[0]
    assert replicate.outcome.status == "infeasible"
    assert set(replicate.metrics.values()) == {None}
    return replicate.outcome.reason or ""


@pytest.fixture
def seen(text_job: MakeJob) -> tuple[Observations, Knowledge]:
    """What attackers are given of two settings, of batches of two sentences."""
    Spy.seen.clear()
    run(text_job(Spy(), GaussianNoise, {}, {"scale": [0.0, 0.1]}, batch_size=2))
    ((observations, knowledge),) = Spy.seen
    return observations, knowledge


def test_sentences_have_one_round(text_job: MakeJob) -> None:
    assert (
        reason(run(text_job(FrequentWords(), rounds=2)))
        == "2 rounds: sentences are embedded by the model, which is another one each time"
    )


def test_attackers_know_where_sentences_begin_and_end_and_nothing_else_of_them(
    seen: tuple[Observations, Knowledge],
) -> None:
    observations, knowledge = seen
    assert knowledge.words is not None and knowledge.inputs is not None
    ids = DATA.load("test", range(6)).values.view(3, 2, -1).repeat(2, 1, 1)
    tokenizer = DATA.tokenizer
    framing = (ids == tokenizer.pad) | (ids == tokenizer.cls) | (ids == tokenizer.sep)
    assert knowledge.words.known.equal(ids.where(framing, -1))
    where, values = knowledge.inputs
    assert where[..., -1].all() and where[..., :-1].equal(framing[..., None].expand(*ids.shape, 16))
    table = word_embeddings(observations.network, observations.parameters)
    assert knowledge.words.embeddings.equal(table)
    assert values[..., :-1].equal(table[ids].where(framing[..., None], 0.0)) and not values[~where].any()
    assert values[..., -1].equal((ids != 0).float())
    assert observations.batch_shape == (2, 12, 17)


def test_sentences_are_made_of_words(seen: tuple[Observations, Knowledge]) -> None:
    _, knowledge = seen
    tokenizer = DATA.tokenizer
    assert knowledge.words is not None and tokenizer.vocabulary_size < len(knowledge.words.allowed)
    forbidden = {tokenizer.pad, tokenizer.cls, tokenizer.sep, *range(tokenizer.vocabulary_size, 400)}
    assert set((~knowledge.words.allowed).nonzero().flatten().tolist()) == forbidden


def test_auxiliary_sentences_are_no_clients(seen: tuple[Observations, Knowledge]) -> None:
    _, knowledge = seen
    assert knowledge.auxiliary_sentences is not None and knowledge.auxiliary_images is None
    assert knowledge.auxiliary_sentences.equal(DATA.load("train", range(50)).values)


def test_observed_gradients_are_those_of_the_sentences(seen: tuple[Observations, Knowledge]) -> None:
    observations, _ = seen
    samples = DATA.load("test", range(2, 4))
    module = observations.network.trainable_module()
    torch.nn.functional.cross_entropy(module(samples.values), samples.labels).backward()
    for (name, parameter), part in zip(
        module.named_parameters(), observations.gradients[1].split(observations.network.sizes), strict=True
    ):
        assert parameter.grad is not None
        if name.endswith("word_embeddings.weight"):  # attacked gradients are taken by embedded sentences
            assert not part.any()
        else:
            torch.testing.assert_close(part, parameter.grad.flatten(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 2])
def test_metrics_are_those_of_the_sentences_that_are_kept(text_job: MakeJob, batch: int) -> None:
    job = text_job(SentenceMatching(**MATCHING), GaussianNoise, {}, {"scale": [0.0, 0.1]}, batch_size=batch)
    findings = run(job)
    assert job.metrics == TEXT_METRICS | VICTIM_METRICS
    victims = unpack(findings.tensors["seed0/victims"])
    samples = DATA.load("test", range(3 * batch))
    assert [each for client in victims for each in client] == [
        sentence.replace("[PAD]", "").rstrip() for sentence in DATA.tokenizer.decode(samples.values, special=True)
    ]
    for place, replicate in enumerate(findings.replicates):
        found = unpack(findings.tensors["seed0/reconstructions"][place])
        if batch > 1:
            orders = findings.tensors["seed0/assignment"][place].tolist()
            found = [[client[i] for i in order] for client, order in zip(found, orders, strict=True)]
        pairs = [pair for guessed, true in zip(found, victims, strict=True) for pair in zip(guessed, true, strict=True)]
        expected = rouge([without_special(guess) for guess, _ in pairs], [without_special(true) for _, true in pairs])
        assert replicate.metrics["rouge1"] == pytest.approx(expected["rouge1"].tolist())
        assert all(guess.startswith("[CLS]") and guess.endswith("[SEP]") for guess, _ in pairs)
        assert len(replicate.metrics["alignment"]) == 3  # type: ignore[arg-type]
    assert findings.replicates[0].metrics["distortion"] == [0.0] * 3


def test_two_runs_are_identical_and_a_seed_alone_gives_the_same(text_job: MakeJob) -> None:
    attack = SentenceMatching(**MATCHING, starts=3, reordering={"fluency": 0.0, "every": 2, "candidates": 4})
    both = run(text_job(attack, seeds=(0, 1)))
    alone = run(text_job(attack, seeds=(1,)))
    assert both.replicates[1] == alone.replicates[0]
    assert both.tensors["seed1/reconstructions"].equal(alone.tensors["seed1/reconstructions"])


class TestTrainedModels:
    def test_the_model_is_trained_before_it_is_attacked(self, text_job: MakeJob) -> None:
        Spy.seen.clear()
        training = {"optimiser": "adamw", "rate": 0.01, "samples": 200, "batch_size": 20}
        run(text_job(Spy(), epoch=2, pretraining=training))
        ((observations, knowledge),) = Spy.seen
        start = build_network(Bert(**TINY), (12,), 2, 0)
        trained = pretrained(start, DATA, "sentences", 0, 2, Pretraining(**training), CPU)
        assert trained.parameters.shape == observations.parameters.shape
        assert knowledge.words is not None
        assert knowledge.words.embeddings.equal(word_embeddings(observations.network, observations.parameters))

    def test_adamw_against_torch(self) -> None:
        start = build_network(Bert(**TINY), (12,), 2, 0)
        training = Pretraining(optimiser="adamw", rate=0.01, samples=30, batch_size=30)
        trained = pretrained(start, DATA, "label", 0, 1, training, CPU)
        module = start.trainable_module()
        optimiser = torch.optim.AdamW(module.parameters(), lr=0.01)
        samples = DATA.load("train", range(30))
        torch.nn.functional.cross_entropy(module(samples.values), samples.labels).backward()
        optimiser.step()
        expected = torch.cat([each.detach().flatten() for each in module.parameters()])
        torch.testing.assert_close(trained.parameters, expected, rtol=1e-3, atol=1e-4)


class TestLanguageModels:
    def fluent(self) -> SentenceMatching:
        return SentenceMatching(**MATCHING, reordering={"fluency": 1.0, "every": 2, "candidates": 4})

    def test_it_is_read_from_the_job_that_trained_it(self, text_job: MakeJob) -> None:
        transformer = {"layers": 1, "width": 8, "heads": 2, "vocabulary": 400, "positions": 12}
        kind = LanguageModelJob(sentences=40, held_out=10, transformer=transformer, steps=3)
        attacked = text_job(self.fluent(), language_model="language")
        trained = replace(attacked, kind=kind, attack=None)
        kept = run(trained).tensors
        assert attacked.kind.reads(self.fluent()) == {"language_model": "language_model"}
        assert attacked.kind.reads(SentenceMatching(**MATCHING)) == {}
        job = replace(attacked, uses={"language_model": trained}, kept={"language_model": kept})
        assert run(job).replicates[0].outcome.status == "ok"
        lost = replace(job, kept={"language_model": {}})
        assert "experiment 'language' have no weights: their training diverged" in reason(run(lost))

    def test_it_must_be_granted(self, text_job: MakeJob) -> None:
        assert reason(run(text_job(self.fluent()))) == "attack 'attack' needs language_model, which is not granted"
        with pytest.raises(ValueError, match="'language_model' is granted by the field language_model"):
            AttackJob(clients=1, batch_size=1, knowledge=("language_model",))


class TestWhatCannotBe:
    def test_images_of_sentences(self, text_job: MakeJob) -> None:
        said = "attack 'attack' reconstructs images; data set 'sentences' holds sentences"
        assert reason(run(text_job(IGOptimalDefense(iterations=1)))) == said
        assert reason(run(text_job(Grey()))) == said

    def test_sentences_of_images(self, text_job: MakeJob) -> None:
        job = replace(text_job(SentenceMatching(**MATCHING)), dataset=Variant("digits", Digits, {"size": 8}, {}))
        assert reason(run(job)) == "attack 'attack' reconstructs sentences; data set 'digits' holds images"

    def test_the_mean_of_sentences(self, text_job: MakeJob) -> None:
        assert "there is no mean of sentences" in reason(run(text_job(Spy(), target="batch_mean")))

    def test_a_defense_of_images(self, text_job: MakeJob) -> None:
        said = reason(run(text_job(Spy(), WhiteChannel, {"kappa": 100.0})))
        assert said == "'white_channel' acts on images, and the clients hold sentences"

    def test_a_tokenizer_that_does_not_fit_the_model(self, text_job: MakeJob) -> None:
        entries = DATA.tokenizer.vocabulary_size
        with pytest.raises(ConfigError, match=rf"has {entries} token ids.*100 word embeddings; set vocabulary to"):
            run(text_job(Spy(), model=TINY | {"vocabulary": 100}))

    def test_sentences_beyond_the_window(self, text_job: MakeJob) -> None:
        with pytest.raises(ConfigError, match="sentences of 12 tokens are longer than the model's window of 8"):
            run(text_job(Spy(), model=TINY | {"positions": 8}))


class TestReferences:
    def tokens(self, text_job: MakeJob, attack: Attack, **protocol: Any) -> tuple[torch.Tensor, Replicate]:
        """The tokens of three victims, without what frames them."""
        findings = run(text_job(attack, **protocol))
        (replicate,) = findings.replicates
        said = [sentence for client in unpack(findings.tensors["seed0/reconstructions"][0]) for sentence in client]
        return DATA.tokenizer.encode([without_special(sentence) for sentence in said]), replicate

    def test_frequent_words(self, text_job: MakeJob) -> None:
        found, _ = self.tokens(text_job, FrequentWords())
        victims, auxiliary = DATA.load("test", range(3)).values, DATA.load("train", range(50)).values
        counts = torch.bincount(auxiliary.flatten(), minlength=400)
        counts[[DATA.tokenizer.pad, DATA.tokenizer.cls, DATA.tokenizer.sep]] = -1
        for row, victim in zip(found, victims, strict=True):
            inside = int((victim != 0).sum()) - 2
            ranked = sorted(range(400), key=lambda token: (-int(counts[token]), token))[:inside]
            assert row[1 : 1 + inside].tolist() == ranked

    def test_random_sentences(self, text_job: MakeJob) -> None:
        found, _ = self.tokens(text_job, RandomSentence())
        victims, auxiliary = DATA.load("test", range(3)).values, DATA.load("train", range(50)).values
        others = [row[(row != 0)][1:-1].tolist() for row in auxiliary]
        drawn = []
        for row, victim in zip(found, victims, strict=True):
            inside = int((victim != 0).sum()) - 2
            said = row[1 : 1 + inside].tolist()
            matches = [i for i, words in enumerate(others) if (words * inside)[:inside] == said]
            assert matches
            drawn.append(matches[0])
        assert len(set(drawn)) > 1
