"""What a step costs under a defense: bits by hand, time that is known to be spent, and steps that cannot be taken."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from statistics import median
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError
from tests.test_fingerprints import PARAMETERS

from leakbench.data.base import Dataset
from leakbench.data.embedded import Digits
from leakbench.data.sentences import Sentences
from leakbench.defenses.base import DEFENSES, Defense, NoDefense
from leakbench.defenses.cdpa import CDPA
from leakbench.defenses.channel import NaturalChannel
from leakbench.defenses.dp_sgd import DPSGD
from leakbench.defenses.fixed_point import AdditiveSharing, MaskedPair
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.pruning import MagnitudePruning, RandomMask
from leakbench.defenses.quantised import SignSGD
from leakbench.effort import Effort
from leakbench.federated.client_data import ClientData
from leakbench.federated.message import DenseMessage, Message
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import Job, Variant
from leakbench.jobs.overhead import OVERHEAD_METRICS, OverheadJob
from leakbench.models.base import Model
from leakbench.models.bert import Bert
from leakbench.models.linear import MLP
from leakbench.randomness import Streams
from leakbench.records import Replicate

D = 64 * 4 + 4 + 4 * 10 + 10
REPEATED = [name for name, info in OVERHEAD_METRICS.items() if info.axis == "repetition"]


def overhead_job(
    defense: type[Defense],
    parameters: Mapping[str, Any] | None = None,
    sweep: Mapping[str, list[Any]] | None = None,
    *,
    seeds: tuple[int, ...] = (0,),
    dataset: Variant[Dataset] | None = None,
    model: Variant[Model] | None = None,
    **protocol: Any,
) -> Job:
    """Two clients of four digits of 8 x 8; a perceptron of D parameters."""
    given = {"clients": 2, "batch_size": 2, "images_per_client": 4, "repetitions": 2}
    return Job(
        scale="none",
        paper="none",
        experiment="overhead",
        dataset=dataset or Variant("digits8", Digits, {"size": 8}, {}),
        model=model or Variant("mlp", MLP, {"width": 4, "activation": "sigmoid"}, {}),
        defense=Variant("defense", defense, parameters or {}, sweep or {}),
        attack=None,
        kind=OverheadJob.model_validate(given | protocol),
        part="all",
        seeds=seeds,
    )


def replicates(job: Job) -> list[Replicate]:
    """What a job finds, after looking whether every metric is there, positive where it is a time, or has a reason."""
    findings = job.kind.run(job, torch.device("cpu"))
    assert job.metrics == OVERHEAD_METRICS and not findings.tensors
    for replicate in findings.replicates:
        assert set(replicate.metrics) == set(OVERHEAD_METRICS)
        assert set(replicate.reasons) == {name for name, value in replicate.metrics.items() if value is None}
        for name in OVERHEAD_METRICS:
            if replicate.outcome.status == "ok" and name.endswith("_s"):
                assert min(values_of(replicate, name)) > 0
    return findings.replicates


def values_of(replicate: Replicate, name: str) -> list[float]:
    """Of a metric, one per repetition if it has that axis."""
    value = replicate.metrics[name]
    values = value if isinstance(value, list) else [value]
    assert len(values) == (2 if name in REPEATED else 1)
    found = [float(number) for number in values if number is not None]
    assert len(found) == len(values)
    return found


def bits_of(replicate: Replicate) -> tuple[Any, Any]:
    return replicate.metrics["bits"], replicate.metrics["bits_ratio"]


class TestBits:
    def test_undefended(self) -> None:
        for replicate in replicates(overhead_job(NoDefense, seeds=(0, 1))):
            assert bits_of(replicate) == (32 * D, 1.0)

    def test_signs(self) -> None:
        (replicate,) = replicates(overhead_job(SignSGD))
        assert bits_of(replicate) == (D, 1 / 32)

    def test_pruning_sends_values_and_their_places(self) -> None:
        """A bitmap, or indices of nine bits."""
        found = replicates(overhead_job(MagnitudePruning, sweep={"fraction": [0.0, 0.5, 0.99, 1.0]}))
        for replicate, kept in zip(found, [D, D // 2, math.ceil(0.01 * D), 0], strict=True):
            bits = 32 * kept + min(D, 9 * kept)
            assert bits_of(replicate) == (bits, bits / (32 * D))

    def test_the_largest_of_all_steps_counts(self) -> None:
        """A random mask keeps another number of coordinates in every step, the one that sets up among them."""
        (replicate,) = replicates(overhead_job(RandomMask, {"probability": 0.5}))
        draws = [
            Streams([("digits8", 0, "client", client, "step", step, "defense") for client in range(2)]).uniform(D)
            for step in range(3)
        ]
        kept = torch.stack(draws).ge(0.5).sum(dim=2)
        assert len(kept.unique()) > 1
        bits = 32 * int(kept.max()) + D
        assert bits_of(replicate) == (bits, bits / (32 * D))


def burn(seconds: float) -> None:
    """Keep the processor busy for so long."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


class Busy(Defense):
    """Does nothing, in so many seconds: one time each for its verbs."""

    name: ClassVar[str] = "busy"
    version: ClassVar[int] = 1
    before: float = 0.0
    client: float = 0.0
    server: float = 0.0

    def calibrate(self, data: ClientData) -> Defense:
        burn(self.before)
        return self

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        burn(self.client / 2)
        return images, labels

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        burn(self.client / 2)
        return DenseMessage(steps.gradient)

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        burn(self.server)
        return super().aggregate(message, clients)


LONG = 0.4
"""Seconds that are many times what a step of these clients takes."""


class TestTime:
    @pytest.mark.parametrize("verb", ["client", "server", "before"])
    def test_is_seen_where_it_is_spent(self, verb: str) -> None:
        idle, busy = replicates(overhead_job(Busy, sweep={verb: [0.0, LONG]}))
        shares = {"client": "client", "server": "server", "before": "once"}
        spent = {"client": LONG / 2, "server": LONG, "before": LONG / 2}  # of one client, and of the server
        for part in shares.values():
            for clock in ("cpu", "wall"):
                seconds = values_of(busy, f"{part}_{clock}_s")
                assert (min(seconds) >= spent[verb] * 0.999) == (part == shares[verb])
        if verb != "before":
            assert median(values_of(busy, "overhead")) > max(1, 3 * median(values_of(idle, "overhead")))

    def test_overhead_is_what_the_seconds_of_a_round_say(self) -> None:
        """Of a round of two clients: the undefended round follows from it, and is the same for every setting."""
        first, second = replicates(overhead_job(Busy, sweep={"client": [0.05, 0.1]}))
        plain = []
        for replicate in (first, second):
            parts = (values_of(replicate, name) for name in ("client_cpu_s", "server_cpu_s", "overhead"))
            plain.append([(2 * client + server) / (1 + more) for client, server, more in zip(*parts, strict=True)])
        assert plain[0] == pytest.approx(plain[1])

    def test_steps_share_nothing(self) -> None:
        """Each has its own computation, of which nothing is done when the defense gets it."""
        Watching.seen = []
        replicates(overhead_job(Watching, sweep={"number": [0, 1, 2]}))
        assert len(Watching.seen) == 3 * (1 + 2) == len({id(steps) for steps in Watching.seen})


class Watching(Defense):
    """Remembers the computations that it was given."""

    name: ClassVar[str] = "watching"
    version: ClassVar[int] = 1
    seen: ClassVar[list[ClientSteps]] = []
    number: int = 0

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        assert "_gradient_and_loss" not in vars(steps)
        self.seen.append(steps)
        return DenseMessage(steps.gradient)


class TestVerbs:
    """Defenses that act at another place than on a dense update."""

    @pytest.mark.parametrize(
        ("defense", "parameters", "sweep", "bits"),
        [
            (NaturalChannel, {}, {"kappa": [5.0, 50.0]}, 32 * D),
            (DPSGD, {"clip": 1.0}, {"multiplier": [0.5, 2.0]}, 32 * D),
            (AdditiveSharing, {}, {"clients": [2]}, 2 * 64 * D),
            (MaskedPair, {}, {"bound": [1.0]}, 64 * D + 33 * D),
        ],
        ids=lambda value: getattr(value, "name", None),
    )
    def test_runs(self, defense: type[Defense], parameters: dict[str, Any], sweep: dict[str, Any], bits: int) -> None:
        job = overhead_job(defense, parameters, sweep, seeds=(0, 1), split="train", batch_norm="train")
        found = replicates(job)
        assert [(each.seed, each.setting) for each in found] == [
            (seed, dict(setting)) for seed in job.seeds for setting, _ in job.defense.settings()
        ]
        for replicate in found:
            assert replicate.outcome.status == "ok" and bits_of(replicate) == (bits, bits / (32 * D))

    def test_the_server_votes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told, vote = list[int](), CDPA.aggregate

        def heard(defense: CDPA, message: Message, clients: int) -> torch.Tensor:
            told.append(clients)
            return vote(defense, message, clients)

        monkeypatch.setattr(CDPA, "aggregate", heard)
        (replicate,) = replicates(overhead_job(CDPA, {"variant": "as_printed"}, clients=3))
        assert told == [3] * 3 and replicate.outcome.status == "ok"
        assert 0 < float(str(replicate.metrics["bits_ratio"])) < 1

    @pytest.mark.parametrize("name", DEFENSES)
    def test_of_all_shipped(self, name: str) -> None:
        parameters = PARAMETERS.get(f"defense/{name}", [{}])[0]
        (replicate,) = replicates(
            overhead_job(DEFENSES.get(name), parameters, clients=2 if name == "masked_pair" else 3)
        )
        assert replicate.outcome.status == ("infeasible" if name == "tuned" else "ok"), replicate.outcome

    def test_of_sentences(self) -> None:
        texts: Variant[Dataset] = Variant("sentences", Sentences, {}, {})
        small = {"width": 8, "layers": 1, "heads": 2, "intermediate": 12, "vocabulary": 400, "positions": 20}
        text: Variant[Model] = Variant("bert", Bert, small, {})
        for defense, parameters, status in (
            (GaussianNoise, {"scale": 0.1}, "ok"),
            (NaturalChannel, {"kappa": 5}, "infeasible"),
        ):
            (replicate,) = replicates(overhead_job(defense, parameters, dataset=texts, model=text))
            assert replicate.outcome.status == status


class Strange(Defense):
    """Sends numbers that are not finite, from the step of its stream on."""

    name: ClassVar[str] = "strange"
    version: ClassVar[int] = 1
    value: float = 0.0
    since: int = 0

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        late = int(streams.keys[0][-2]) >= self.since
        return DenseMessage(steps.gradient / self.value if late and self.value == 0 else steps.gradient)


class TestWhatCannotBe:
    def test_one_setting_alone_is_infeasible(self) -> None:
        """Shares are for as many clients as there are."""
        two, three = replicates(overhead_job(AdditiveSharing, sweep={"clients": [2, 3]}))
        assert two.outcome.status == "ok" and bits_of(two) == (128 * D, 4.0)
        assert three.outcome.status == "infeasible"
        assert three.outcome.reason == "'additive_sharing' is for 3 clients, and there are 2"
        assert set(three.metrics.values()) == {None} and set(three.reasons.values()) == {three.outcome.reason}

    @pytest.mark.parametrize("since", [0, 2])
    def test_an_update_that_is_not_finite(self, since: int) -> None:
        finite, other = replicates(overhead_job(Strange, {"since": since}, {"value": [1.0, 0.0]}))
        assert finite.outcome.status == "ok"
        assert (other.outcome.status, other.outcome.step) == ("diverged", since)
        assert other.outcome.reason == f"the server's update became non-finite at step {since}"
        assert set(other.metrics.values()) == {None}

    def test_an_undefended_update_that_is_not_finite(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Signs are finite, but there is nothing to compare them with."""
        nowhere = property(lambda steps: (torch.full((len(steps), D), torch.nan), torch.zeros(len(steps))))
        monkeypatch.setattr(ClientSteps, "_gradient_and_loss", nowhere)
        (replicate,) = replicates(overhead_job(SignSGD))
        assert replicate.outcome.status == "diverged"
        assert replicate.outcome.reason == "undefended, the server's update became non-finite at step 0"

    def test_batches_of_more_than_there_is(self) -> None:
        with pytest.raises(ValidationError, match=r"batch_size \(5\) must be at most images_per_client \(4\)"):
            overhead_job(NoDefense, batch_size=5)


def test_what_there_is_to_compute() -> None:
    """Two seeds, three settings and the undefended step, five repetitions and one that sets up."""
    job = overhead_job(GaussianNoise, sweep={"scale": [0.0, 0.1, 0.2]}, seeds=(0, 1), clients=3, repetitions=5)
    assert job.effort == Effort(2 * 4 * 6 * 3 * 2, 2 * 4 * 6)
    assert job.volume == 2 * 3 * 5


def test_units_say_what_is_never_the_same_twice() -> None:
    reproducible = {name for name, info in OVERHEAD_METRICS.items() if "not reproducible" not in info.unit}
    assert reproducible == {"bits", "bits_ratio"}
