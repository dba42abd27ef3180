"""Costs of protecting an update: every method is run, and its message has the bits of its formula."""

from __future__ import annotations

import pytest
import torch

from leakbench.data.embedded import Digits
from leakbench.defenses.base import NoDefense
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.models.linear import MLP
from leakbench.papers.tfl_meta.jobs.protection_cost import COST_METRICS, ProtectionCostJob
from leakbench.randomness import Streams

KIND = ProtectionCostJob(clients=3, batch_size=2, key_bits=(1024,), unpacked_values=3, keep=(0.5, 1.0), repetitions=2)
D = 64 * 4 + 4 + 4 * 10 + 10


@pytest.fixture(scope="module")
def job() -> Job:
    return Job(
        scale="none",
        paper="none",
        experiment="costs",
        dataset=Variant("digits8", Digits, {"size": 8}, {}),
        model=Variant("mlp", MLP, {"width": 4, "activation": "sigmoid"}, {}),
        defense=Variant("none", NoDefense, {}, {}),
        attack=None,
        kind=KIND,
        part="all",
        seeds=(0,),
    )


@pytest.fixture(scope="module")
def findings(job: Job) -> Findings:
    return job.kind.run(job, torch.device("cpu"))


def test_every_method_is_measured(job: Job, findings: Findings) -> None:
    assert job.metrics == COST_METRICS
    settings = [replicate.setting for replicate in findings.replicates]
    assert settings == [
        {"method": "none"},
        {"method": "gaussian_noise"},
        {"method": "random_mask", "keep": 0.5},
        {"method": "random_mask", "keep": 1.0},
        {"method": "fixed_point"},
        {"method": "masked_pair"},
        {"method": "additive_sharing"},
        {"method": "paillier", "key_bits": 1024},
        {"method": "paillier_unpacked", "key_bits": 1024},
    ]
    for replicate in findings.replicates:
        assert set(replicate.metrics) == set(COST_METRICS)
        for name, value in replicate.metrics.items():
            assert (value is None) == (name in replicate.reasons)
            if isinstance(value, list):
                assert len(value) == KIND.repetitions and min(float(each or 0) for each in value) > 0
    shown = {
        str(one.setting["method"]): {
            part for part in ("keygen", "protect", "add", "recover", "step") if one.metrics[f"{part}_cpu_s"]
        }
        for one in findings.replicates
    }
    assert shown["none"] == shown["random_mask"] == {"protect", "add", "step"}
    assert shown["additive_sharing"] == shown["masked_pair"] == {"protect", "recover", "step"}
    assert shown["paillier"] == shown["paillier_unpacked"] == {"keygen", "protect", "add", "recover", "step"}


def test_bits_are_those_of_the_formulas(findings: Findings) -> None:
    found = {
        (one.setting["method"], one.setting.get("keep", one.setting.get("key_bits"))): one.metrics
        for one in findings.replicates
    }
    for (method, parameter), metrics in found.items():
        tolerance = 0.2 if (method, parameter) == ("random_mask", 0.5) else 1e-9
        assert metrics["bits"] == pytest.approx(metrics["formula_bits"], rel=tolerance)
        assert metrics["parameters"] == D
    assert found["none", None]["bits"] == 32 * D == found["gaussian_noise", None]["bits"]
    assert found["random_mask", 1.0]["bits"] == 32 * D + 64
    assert found["masked_pair", None]["bits"] == (64 + 33) * D and found["masked_pair", None]["server_bits"] == 64 * D
    shares = found["additive_sharing", None]
    assert (shares["bits"], shares["server_bits"]) == (3 * 64 * D, 64 * D)
    slots = 1023 // (32 + 8 + 2)
    assert found["paillier", 1024]["bits"] == 2048 * -(-D // slots) and found["paillier", 1024]["slots"] == slots
    one_by_one = found["paillier_unpacked", 1024]
    assert (one_by_one["bits"], one_by_one["values"], one_by_one["slots"]) == (2048 * D, 3, 1)


class Loud(ClientSteps):
    """Updates whose values exceed the eight integer bits."""

    def __init__(self) -> None:
        pass

    @property
    def gradient(self) -> torch.Tensor:
        return torch.full((3, 5), 200.0)


def test_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="a modulus of 512 bits"):
        KIND.model_copy(update={"key_bits": (512,)}).methods(D)
    with pytest.raises(ConfigError, match="at most 64"):
        KIND.model_copy(update={"fraction_bits": 60}).methods(D)
    packed = next(method for method in KIND.methods(5) if method.setting["method"] == "paillier")
    with pytest.raises(Infeasible, match="a value of 200 overflows: 8 integer bits"):
        packed.run(Loud(), Streams([("loud", client) for client in range(3)]), torch.device("cpu"))
