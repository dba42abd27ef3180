"""Jobs on updates under encryption, shares and masks: training is that in fixed point, and attacks see no gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from leakbench.attacks.adaptive import Masked
from leakbench.attacks.presets import TAG
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.fixed_point import AdditiveSharing, FixedPointUpdate, MaskedPair
from leakbench.defenses.paillier import Paillier
from leakbench.defenses.pruning import RandomMask
from leakbench.errors import Infeasible
from leakbench.jobs.base import Findings, Job

Jobs = Callable[..., Job]
PROTOCOL: Mapping[str, Any] = {"steps": 3, "seeds": (0, 1), "optimiser": "sgd", "rate": 0.5}
TOY = {"key_bits": 128, "toy": True, "clients": 2}


def run(job: Job) -> Findings:
    return job.kind.run(job, torch.device("cpu"))


@pytest.mark.parametrize(
    ("defense", "parameters", "fraction_bits"),
    [(Paillier, TOY, 32), (MaskedPair, {"bound": 2.0}, 32), (AdditiveSharing, {"clients": 2}, 20)],
)
def test_no_utility_is_lost(
    train_job: Jobs, defense: type[Defense], parameters: Mapping[str, Any], fraction_bits: int
) -> None:
    baseline = {"clients": 2, "fraction_bits": fraction_bits}
    exact, found = (run(train_job(*each, **PROTOCOL)) for each in ((FixedPointUpdate, baseline), (defense, parameters)))
    for theirs, ours in zip(exact.replicates, found.replicates, strict=True):
        assert ours.outcome.status == "ok"
        for metric in ("loss_curve", "final_loss", "accuracy"):
            assert ours.metrics[metric] == theirs.metrics[metric]
        assert float(ours.metrics["bits"] or 0) > float(theirs.metrics["bits"] or 0)  # type: ignore[arg-type]


def test_a_modulus_without_room_is_infeasible(train_job: Jobs) -> None:
    with pytest.raises(Infeasible, match="a modulus of 32 bits"):
        run(train_job(Paillier, TOY | {"key_bits": 32}, **PROTOCOL))


@pytest.mark.parametrize(
    ("defense", "parameters", "sees_gradient"),
    [
        (FixedPointUpdate, {}, True),
        (MaskedPair, {"bound": 1e-6}, True),
        (MaskedPair, {"bound": 1e3}, False),
        (AdditiveSharing, {"clients": 3}, False),
        (Paillier, TOY, False),
        (Paillier, TOY | {"packed": False}, False),
    ],
)
def test_what_an_attack_is_given(
    attack_job: Jobs, defense: type[Defense], parameters: Mapping[str, Any], sees_gradient: bool
) -> None:
    """A wide mask, a share and a ciphertext are finite, and are not the gradient."""
    plain, found = (run(attack_job(*each)) for each in ((NoDefense,), (defense, parameters)))
    for theirs, ours in zip(plain.replicates, found.replicates, strict=True):
        assert ours.outcome.status == "ok"
        alignment, reference = ours.metrics["alignment"], theirs.metrics["alignment"]
        assert (alignment == pytest.approx(reference, abs=1e-3)) == sees_gradient
        assert float(ours.metrics["bits"] or 0) > float(theirs.metrics["bits"] or 0)  # type: ignore[arg-type]


def test_a_masked_attack_knows_the_factor_of_a_random_mask(attack_job: Jobs) -> None:
    """Whether what is left is divided by rho makes no difference to one who takes it back, but for rounding."""
    attack = Masked(attack=TAG(iterations=8))
    plain, scaled, naive = (
        run(attack_job(RandomMask, {"probability": 0.2, "rescale": rescale}, attack=each)).replicates[0].metrics
        for rescale, each in ((False, attack), (True, attack), (True, TAG(iterations=8)))
    )
    assert scaled["objective"] == pytest.approx(plain["objective"], rel=1e-3)
    assert naive["objective"] != pytest.approx(plain["objective"], rel=1e-3)


def test_sums_of_ciphertexts_are_no_means_of_views(attack_job: Jobs) -> None:
    (replicate,) = run(attack_job(Paillier, TOY, users=2)).replicates
    assert replicate.outcome.status == "infeasible"
    assert "'paillier' aggregates messages in a way of its own" in str(replicate.outcome.reason)
