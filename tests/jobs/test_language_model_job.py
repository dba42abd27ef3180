"""Language models of the attacker: better than frequencies, repeatable, and of no client's sentences."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file

from leakbench.attacks.language.model import CausalTransformer, LanguageModel, losses
from leakbench.data.base import Dataset, Samples, Split
from leakbench.data.embedded import Digits
from leakbench.defenses.base import NoDefense
from leakbench.errors import ConfigError, MissingData
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.language_model import LanguageModelJob, unigram_perplexity
from leakbench.jobs.runner import Placement, run_job
from leakbench.models.convnets import SimpleConvNet
from leakbench.randomness import generator
from leakbench.records import read_record, read_tensors

SMALL = CausalTransformer(layers=1, width=16, heads=2, vocabulary=14, positions=9)
CPU = torch.device("cpu")


def sentences(split: Split) -> torch.Tensor:
    """Tokens that go round: 3 to 12, each one more than the one before, or two with probability 0.2."""
    draw = generator("language", split)
    steps = 1 + (torch.rand(120, 8, generator=draw) < 0.2).long()
    ids = 3 + (torch.randint(0, 10, (120, 1), generator=draw) + steps.cumsum(dim=1)) % 10
    lengths = torch.randint(3, 9, (120, 1), generator=draw)
    place = torch.arange(8)
    ids = torch.where(place < lengths - 1, ids, torch.where(place == lengths - 1, 2, 0))
    return torch.cat([torch.ones(120, 1, dtype=torch.int64), ids], dim=1)


class Circles(Dataset):
    name: ClassVar[str] = "circles"
    version: ClassVar[int] = 1
    classes = 2
    unit = "sentences"
    asked: ClassVar[list[tuple[Split, int]]] = []

    @property
    def shape(self) -> tuple[int, ...]:
        return (9,)

    def length(self, split: Split) -> int:
        return 120

    def read(self, split: Split, rows: list[int]) -> Samples:
        self.asked.extend((split, row) for row in rows)
        return Samples(sentences(split)[rows], torch.zeros(len(rows), dtype=torch.int64))


def language_job(dataset: type[Dataset] = Circles, **protocol: Any) -> Job:
    given = {"held_out": 20, "steps": 150, "batch_size": 16, "rate": 1e-2, "transformer": SMALL}
    return Job(
        scale="test",
        paper="paper",
        experiment="language",
        dataset=Variant("circles", dataset, {}, {}),
        model=Variant("tiny", SimpleConvNet, {"width": 4}, {}),
        defense=Variant("none", NoDefense, {}, {}),
        attack=None,
        kind=LanguageModelJob.model_validate(given | protocol),
        part="all",
        seeds=(0,),
    )


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


class TestTraining:
    def test_learns_what_frequencies_do_not_know(self) -> None:
        """The next token is one of two, but for the end of the sentence; frequencies leave ten."""
        (replicate,) = run(language_job()).replicates
        curve, perplexity, unigram = (replicate.metrics[name] for name in ("loss", "perplexity", "unigram_perplexity"))
        assert isinstance(curve, list) and isinstance(perplexity, float) and isinstance(unigram, float)
        known = [value for value in curve if value is not None]
        assert len(known) == 100 and sum(known[-10:]) < 0.6 * sum(known[:10])
        assert 1 < perplexity < 4 and 8 < unigram < 13

    def test_is_repeatable_to_the_last_bit(self) -> None:
        one, two, longer = (run(language_job(steps=steps)) for steps in (4, 4, 5))
        assert one.replicates == two.replicates and one.tensors.keys() == two.tensors.keys()
        assert all(torch.equal(tensor, two.tensors[name]) for name, tensor in one.tensors.items())
        assert any(not torch.equal(tensor, longer.tensors[name]) for name, tensor in one.tensors.items())

    def test_sees_no_sentence_of_a_client(self) -> None:
        Circles.asked.clear()
        run(language_job(steps=1, sentences=50))
        assert sorted(set(Circles.asked)) == [("train", row) for row in range(70)]

    @pytest.mark.parametrize(
        ("protocol", "message"),
        [
            ({"sentences": 101}, r"121 are more than the train split of 'circles' has \(120\)"),
            ({"held_out": 120}, r"121 are more than the train split of 'circles' has \(120\)"),
            ({"transformer": SMALL.model_copy(update={"positions": 8})}, "9 tokens are longer .* 8 positions"),
            ({"transformer": SMALL.model_copy(update={"vocabulary": 12})}, "token id 12 is beyond"),
        ],
    )
    def test_what_does_not_fit(self, protocol: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            run(language_job(**protocol))

    def test_images(self) -> None:
        with pytest.raises(
            ConfigError, match="'digits' holds images, but jobs of kind 'language_model' need sentences"
        ):
            run(language_job(Digits))

    @pytest.mark.parametrize("steps", [1, 4])
    def test_divergence_is_an_outcome(self, steps: int) -> None:
        """Also that of the last step, which no loss shows."""
        found = run(language_job(rate=1e30, steps=steps))
        (replicate,) = found.replicates
        assert replicate.outcome.status == "diverged" and replicate.outcome.step is not None
        assert not found.tensors and replicate.metrics["perplexity"] is None
        values = replicate.metrics.items()
        missing = {name for name, value in values if None in (value if isinstance(value, list) else [value])}
        assert missing == set(replicate.reasons)


def test_the_record_holds_what_attacks_load(tmp_path: Path) -> None:
    job = language_job(steps=30)
    record = run_job(job, tmp_path, Placement("cpu"))
    assert record.tensors is not None
    state = read_tensors(tmp_path / job.path, read_record(tmp_path / job.path).tensors or record.tensors)
    model = LanguageModel.of(SMALL, state, CPU)
    nats, counts = model.totals(sentences("train")[100:])
    reported = record.replicates[0].metrics["perplexity"]
    assert math.exp(float(nats.sum() / counts.sum())) == pytest.approx(reported, rel=1e-5)
    assert not any(parameter.requires_grad for parameter in model.module.parameters())


def test_unigrams_by_counting() -> None:
    known, asked = sentences("train")[:40], sentences("train")[40:60]
    counts = Counter(token for row in known.tolist() for token in row[1:] if token)
    total = counts.total() + 13  # one more of each of fourteen ids but padding
    tokens = [token for row in asked.tolist() for token in row[1:] if token]
    nats = -sum(math.log((counts[token] + 1) / total) for token in tokens) / len(tokens)
    assert unigram_perplexity(known, asked, 14) == pytest.approx(math.exp(nats))


class TestModel:
    @pytest.fixture(scope="class")
    def model(self) -> LanguageModel:
        return LanguageModel.of(SMALL, run(language_job(steps=40)).tensors, CPU)

    def test_perplexity_token_by_token(self, model: LanguageModel) -> None:
        ids = sentences("test")[:6]
        found = model.perplexity(ids)
        assert found.shape == (6,)
        for row, each in zip(ids.tolist(), found, strict=True):
            tokens = [token for token in row if token]
            nats = 0.0
            for place in range(1, len(tokens)):
                with torch.no_grad():
                    logits = model.module(torch.tensor([tokens[:place]])).logits[0, -1]
                nats -= float(logits.log_softmax(dim=0)[tokens[place]])
            assert float(each) == pytest.approx(math.exp(nats / (len(tokens) - 1)), rel=1e-4)

    def test_padding_does_not_count(self, model: LanguageModel) -> None:
        short = torch.tensor([[1, 4, 5, 6, 2]])
        padded = torch.nn.functional.pad(short, (0, 4))
        torch.testing.assert_close(model.log_perplexity(padded), model.log_perplexity(short))
        assert model.log_perplexity(torch.tensor([[1, 0, 0], [0, 0, 0]])).tolist() == [0, 0]

    def test_in_parts(self, model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
        ids = sentences("test")
        whole = model.log_perplexity(ids)
        monkeypatch.setattr("leakbench.attacks.language.model.BUDGET", 7 * 2 * 4 * 9 * 14)
        torch.testing.assert_close(model.log_perplexity(ids), whole)

    def test_hands_on_no_derivative(self, model: LanguageModel) -> None:
        with torch.enable_grad():
            assert not model.perplexity(sentences("test")[:2]).requires_grad

    def test_likes_the_order_it_has_learnt(self, model: LanguageModel) -> None:
        right, wrong = torch.tensor([[1, 4, 5, 6, 7, 8, 2]]), torch.tensor([[1, 7, 4, 8, 5, 6, 2]])
        assert float(model.perplexity(right)) < float(model.perplexity(wrong))


def stage(folder: Path, transformer: CausalTransformer, prefix: str, **changed: Any) -> torch.nn.Module:
    """Weights as the Hub has them: with or without a prefix, the head left out or there, masks in old files."""
    torch.manual_seed(3)
    module = transformer.build()
    body = module.transformer
    assert isinstance(body, torch.nn.Module)
    folder.mkdir(parents=True)
    state = {prefix + name: tensor.clone() for name, tensor in body.state_dict().items()}
    if prefix:
        state["lm_head.weight"] = state[prefix + "wte.weight"].clone()
    else:
        state["h.0.attn.bias"] = torch.ones(1, 1, 9, 9)
    save_file(state, folder / "model.safetensors")
    config: Any = module.config
    (folder / "config.json").write_text(json.dumps(json.loads(config.to_json_string(use_diff=False)) | changed))
    return module


class TestStaged:
    @pytest.mark.parametrize("prefix", ["", "transformer."])
    def test_weights_are_used_as_they_are(self, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path))
        module = stage(tmp_path / "someone" / "small", SMALL, prefix)
        staged = SMALL.model_copy(update={"weights": "someone/small"})
        found = run(language_job(steps=0, transformer=staged))
        (replicate,) = found.replicates
        assert replicate.metrics["loss"] is None and "no training" in replicate.reasons["loss"]
        ids = sentences("train")[100:]
        nats, counts = losses(module.requires_grad_(False), ids)
        assert replicate.metrics["perplexity"] == pytest.approx(math.exp(float(nats.sum() / counts.sum())), rel=1e-5)
        model = LanguageModel.of(staged, found.tensors, CPU)  # needs the folder no more
        torch.testing.assert_close(model.totals(ids)[0], nats)

    def test_errors_say_what_to_do(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path))
        staged = SMALL.model_copy(update={"weights": "someone/small"})
        with pytest.raises(MissingData, match=r"not staged: there is no config.json and no model.safetensors"):
            staged.build()
        folder = tmp_path / "someone" / "small"
        stage(folder, SMALL, "")
        with pytest.raises(ConfigError, match="n_layer 1, not 2"):
            staged.model_copy(update={"layers": 2}).build()
        (folder / "model.safetensors").write_bytes(b"half")
        with pytest.raises(MissingData, match="cannot be used"):
            staged.build()
        (folder / "config.json").write_text("{")
        with pytest.raises(MissingData, match="cannot be read"):
            staged.build()


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match=r"heads \(3\) must divide the width \(16\)"):
        CausalTransformer(width=16, heads=3)
