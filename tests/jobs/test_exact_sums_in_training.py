"""Training under encryption, shares and masks: the same run, to the last bit, as in fixed point without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from leakbench.defenses.base import Defense
from leakbench.defenses.fixed_point import AdditiveSharing, FixedPointUpdate, MaskedPair
from leakbench.defenses.paillier import Paillier
from leakbench.jobs.base import Findings, Job

TrainJobs = Callable[..., Job]
PROTOCOL: Mapping[str, Any] = {"steps": 3, "seeds": (0, 1), "optimiser": "sgd", "rate": 0.5}
TOY = {"key_bits": 128, "toy": True, "clients": 2}


def run(job: Job) -> Findings:
    return job.kind.run(job, torch.device("cpu"))


@pytest.mark.parametrize(
    ("defense", "parameters", "fraction_bits"),
    [(Paillier, TOY, 32), (MaskedPair, {"bound": 2.0}, 32), (AdditiveSharing, {"clients": 2}, 20)],
)
def test_no_utility_is_lost(
    train_job: TrainJobs, defense: type[Defense], parameters: Mapping[str, Any], fraction_bits: int
) -> None:
    baseline = {"clients": 2, "fraction_bits": fraction_bits}
    exact, found = (run(train_job(*each, **PROTOCOL)) for each in ((FixedPointUpdate, baseline), (defense, parameters)))
    for theirs, ours in zip(exact.replicates, found.replicates, strict=True):
        assert ours.outcome.status == "ok"
        for metric in ("loss_curve", "final_loss", "accuracy"):
            assert ours.metrics[metric] == theirs.metrics[metric]
        assert float(ours.metrics["bits"] or 0) > float(theirs.metrics["bits"] or 0)  # type: ignore[arg-type]


def test_a_modulus_without_room_is_infeasible(train_job: TrainJobs) -> None:
    from leakbench.errors import Infeasible

    with pytest.raises(Infeasible, match="a modulus of 32 bits"):
        run(train_job(Paillier, TOY | {"key_bits": 32}, **PROTOCOL))
