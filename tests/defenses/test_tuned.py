"""Mechanisms that are tuned to a budget: the parameter, the mechanism that gets it, and what cannot be met."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from leakbench.data.embedded import Digits
from leakbench.defenses.base import NoDefense
from leakbench.defenses.fixed_point import MaskedPair
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.paillier import Paillier
from leakbench.defenses.pruning import RandomMask
from leakbench.defenses.tuned import Tuned, UploadConstants
from leakbench.errors import ConfigError, Infeasible
from leakbench.jobs.base import Job, Variant
from leakbench.jobs.train import TrainJob
from leakbench.models.linear import MLP
from leakbench.papers.tfl_meta.jobs.leakage import LeakageJob
from leakbench.randomness import Streams
from leakbench.theory.distortion import exact_sharing_tv, noise_steepness, noise_tv, noise_tv_lower, sharing_tv
from leakbench.theory.leakage_surrogate import amplification, leakage_metric

ALIKE = UploadConstants(0.6, math.log(401) / 2, torch.full((2, 100), 0.1), torch.full((2,), 0.5))
"""C2 = 200."""
APART = UploadConstants(0.6, math.log(401) / 2, torch.tensor([[0.1], [0.3]]).expand(2, 50), torch.tensor([0.2, 0.5]))


def made(mechanism: str, budget: float, constants: UploadConstants = ALIKE, **parameters: Any) -> Any:
    return Tuned(mechanism=mechanism, budget=budget, **parameters).made(constants)


def test_noise() -> None:
    tuning = made("randomization", 1.5)
    assert tuning.tau == pytest.approx(0.3 / 200)
    assert tuning.parameter == pytest.approx(100 * tuning.tau / float(noise_steepness(ALIKE.sigma[0].double())))
    assert tuning.defense == GaussianNoise(scale=math.sqrt(tuning.parameter))


@given(st.floats(0.8, 1.99), st.sampled_from([ALIKE, APART]))
def test_the_metric_is_the_budget(budget: float, constants: UploadConstants) -> None:
    """The mean over clients, also where they differ."""
    found = made("randomization", budget, constants)
    steepness = torch.stack([noise_steepness(row.double()) for row in constants.sigma])
    masks = made("secret_sharing", budget, constants)
    delta, size = constants.delta.double(), constants.sigma.shape[1]
    for variation in (noise_tv_lower(found.parameter, steepness), _shared(masks.parameter, delta, size)):
        metric = leakage_metric(0.6, float(amplification(constants.xi)), float(variation.mean()))
        assert float(metric) == pytest.approx(0.6 * budget, abs=1e-6)


def _shared(mask: float, delta: torch.Tensor, size: int) -> torch.Tensor:
    """A client whose range is wider than the mask is not protected."""
    return torch.stack([sharing_tv(mask, float(each), size) if each < mask else torch.zeros(()) for each in delta])


@pytest.mark.parametrize("constants", [ALIKE, APART])
def test_exact_noise_has_the_exact_total_variation(constants: UploadConstants) -> None:
    """The mean of all clients' own, also where they differ."""
    tuning = made("randomization", 1.5, constants, form="exact_mean")
    variation = torch.stack([noise_tv(tuning.parameter, row.double()) for row in constants.sigma])
    assert float(variation.mean()) == pytest.approx(tuning.tau, rel=2e-3)
    assert tuning.parameter < made("randomization", 1.5, constants).parameter


def test_exact_masks_have_the_exact_total_variation() -> None:
    tuning = made("secret_sharing", 1.5, APART, form="exact_mean")
    variation = [float(exact_sharing_tv(tuning.parameter, float(delta), 50)) for delta in APART.delta]
    assert sum(variation) / 2 == pytest.approx(tuning.tau, rel=1e-6) and min(variation) < tuning.tau < max(variation)


def test_exact_noise_has_room_where_the_bound_has_none() -> None:
    constants = replace(ALIKE, xi=1.0)
    with pytest.raises(Infeasible, match=r"is 0\.01 at most"):
        made("randomization", 1.5, constants)
    assert made("randomization", 1.5, constants, form="exact_mean").parameter > 0


def test_masks() -> None:
    corrected, printed, exact = (
        made("secret_sharing", 1.0, form=form) for form in ("corrected", "as_printed", "exact_mean")
    )
    tau = 0.6 / 200
    assert corrected.parameter == pytest.approx(0.5 * (1 - tau) ** -0.01)
    assert printed.parameter == pytest.approx(0.5 * tau**-0.01)
    assert exact.parameter == pytest.approx(2 * (1 - (1 - tau) ** 0.01))
    assert corrected.defense == MaskedPair(bound=corrected.parameter)


def test_compression_drops_less_than_a_coordinate() -> None:
    tuning = made("compression", 1.0)
    assert isinstance(tuning.defense, RandomMask)
    assert tuning.defense.probability == pytest.approx(1 - (1 - 0.003) ** 0.01, rel=1e-9)


def test_the_modulus_is_the_security_floor() -> None:
    tuning = made("paillier", 1.0, key_bits=1024, clients=3)
    assert tuning.parameter < 2
    assert tuning.defense == Paillier(key_bits=1024, clients=3)
    assert made("paillier", 1.0, key_bits=60).defense == Paillier(key_bits=64, toy=True, clients=4)


@pytest.mark.parametrize("mechanism", ["randomization", "compression", "secret_sharing", "paillier"])
def test_no_protection_needed(mechanism: str) -> None:
    tuning = made(mechanism, 2.0)
    assert tuning.defense == NoDefense() and tuning.parameter is None and tuning.tau == 0


def test_the_printed_formula_has_no_value_there() -> None:
    with pytest.raises(Infeasible, match="the printed formula has the root of"):
        made("secret_sharing", 2.0, form="as_printed")


def test_dead_coordinates_count_as_hardly_alive() -> None:
    dead = replace(ALIKE, sigma=torch.zeros(2, 100))
    few, many = (made("randomization", 1.0, dead, smallest_spread=spread).parameter for spread in (1e-4, 1e-3))
    assert many == pytest.approx(100 * few)


def test_constants_may_be_of_fewer_attempts() -> None:
    """As many as ``estimated`` says, of all seeds; the spread of uploads is the same."""
    kept = {f"seed{seed}/{name}": value for seed in (0, 1) for name, value in _of_uploads(seed).items()}
    all_of_them, few = (
        Tuned(mechanism="compression", budget=1.0, estimated=n).tuning({"leakage": kept}) for n in (None, 8)
    )
    assert all_of_them.tau == pytest.approx(0.6 / float(amplification(2.5)))
    assert few.tau == pytest.approx(0.5 / float(amplification(1.5)))
    with pytest.raises(ConfigError, match="has none from 9 attempts; add models and attempts whose product"):
        Tuned(mechanism="compression", budget=1.0, estimated=9).tuning({"leakage": kept})


def _of_uploads(seed: int) -> dict[str, torch.Tensor]:
    known = {"sigma": torch.full((2, 10), 0.1), "delta": torch.full((2,), 0.5)}
    known |= {"c1": torch.tensor([0.5, 0.7]), "xi": torch.tensor([2.0, 2.0 + seed / 2])}
    return known | {"c1/n8": torch.tensor([0.4, 0.6]), "xi/n8": torch.tensor([1.0, 1.0 + seed / 2])}


def test_untuned_it_protects_nothing() -> None:
    with pytest.raises(Infeasible, match="field constants"):
        Tuned(mechanism="compression", budget=1.0).protect_update(None, Streams([]))  # type: ignore[arg-type]


def test_bad_parameters() -> None:
    with pytest.raises(ValidationError, match="exact_mean is of randomization and secret_sharing"):
        Tuned(mechanism="compression", budget=1.0, form="exact_mean")
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        Tuned(mechanism="compression", budget=-1.0)


def test_training_is_tuned_too() -> None:
    """Settings that cannot be met are infeasible, and the others the same as without them."""
    constants = LeakageJob(images_per_client=4, models=1, attempts=1, steps=0, rate=0.1)
    kept = {"seed0/c1": torch.tensor([0.6]), "seed0/xi": torch.tensor([1.0]), "seed0/sigma": torch.full((1, 310), 0.1)}
    kept["seed0/delta"] = torch.tensor([0.5])

    def job(*budgets: float) -> Job:
        plain = Job(
            scale="test",
            paper="test",
            experiment="test",
            dataset=Variant("digits", Digits, {"size": 8}, {}),
            model=Variant("mlp", MLP, {"width": 4}, {}),
            defense=Variant("tuned", Tuned, {"mechanism": "randomization"}, {"budget": list(budgets)}),
            attack=None,
            kind=TrainJob(clients=2, batch_size=2, images_per_client=4, steps=3, rate=0.1, constants="constants"),
            part="all",
            seeds=(0,),
        )
        return replace(plain, uses={"leakage": replace(plain, kind=constants)}, kept={"leakage": kept})

    cpu = torch.device("cpu")
    found = {float(each.setting["budget"]): each for each in job(0.1, 1.99).kind.run(job(0.1, 1.99), cpu).replicates}
    assert found[0.1].outcome.status == "infeasible" and found[0.1].metrics["loss_curve"] is None
    assert found[1.99] == job(1.99).kind.run(job(1.99), cpu).replicates[0]
    assert found[1.99].outcome.status == "ok"
