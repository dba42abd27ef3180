"""Every preset's numbers, from its source, and how a configuration changes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from leakbench.attacks.base import ATTACKS, Attack
from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.attacks.sentences import SentenceMatching

TORCH_LBFGS = {
    "kind": "lbfgs",
    "rate": 1.0,
    "history": 100,
    "line_search": "none",
    "tolerance_gradient": 1e-7,
    "tolerance_change": 0.0,
}
"""``torch.optim.LBFGS(lr=1)``; the end of its calls by change does not end the search."""

DEFAULTS = {
    "regularisers": [],
    "restarts": 1,
    "unknown": {"kind": "pixels"},
    "start": "normal",
    "box": False,
    "labels": "known",
    "batch_norm": "as_client",
    "stop_below": None,
    "keep": "last",
}


def inverting(rate: float, signed: bool, iterations: int, weight: float, **more: Any) -> dict[str, Any]:
    """Geiping et al. 2020: cosine, total variation, Adam with steps at 3/8, 5/8 and 7/8, valid pixels."""
    return {
        "objective": {"kind": "cosine"},
        "regularisers": [{"kind": "total_variation", "weight": weight, "form": "anisotropic"}],
        "optimiser": {"kind": "adam", "rate": rate, "signed": signed, "decay": "steps"},
        "iterations": iterations,
        "box": True,
    } | more


PRESETS: dict[str, dict[str, Any]] = {
    # 300 calls of torch's L-BFGS with 20 iterations each
    "dlg": {"objective": {"kind": "l2"}, "optimiser": TORCH_LBFGS, "iterations": 300 * 20, "labels": "joint"},
    "dlg_wolfe": {
        "objective": {"kind": "l2"},
        "optimiser": TORCH_LBFGS | {"line_search": "strong_wolfe"},
        "iterations": 300 * 20,
        "labels": "joint",
    },
    "idlg": {
        "objective": {"kind": "l2"},
        "optimiser": TORCH_LBFGS,
        "iterations": 300 * 20,
        "labels": "idlg",
        "stop_below": 1e-6,
    },
    "ig_library": inverting(0.1, False, 4800, 0.1),
    "ig_script": inverting(0.1, True, 24_000, 1e-4),
    "ig_breaching": inverting(0.1, True, 24_000, 0.2, keep="best"),
    "ig_optimal_defense": inverting(0.2, True, 2000, 1e-6),
    "ig_channel": inverting(0.1, True, 4000, 1e-4),
    "dlg_cdpa": {"objective": {"kind": "l2"}, "optimiser": TORCH_LBFGS, "iterations": 6000},
    "ig_cdpa": inverting(0.1, True, 300, 1e-3),
    "rog": {
        "objective": {"kind": "l2"},
        "optimiser": {"kind": "adam", "rate": 0.05, "signed": False, "decay": "cosine"},
        "iterations": 100,
        "unknown": {"kind": "upsampled", "factor": 4, "interpolation": "bicubic"},
        "start": "uniform",
    },
    "tag": {
        "objective": {"kind": "l1_l2", "l1_weight": 0.01},
        "optimiser": {"kind": "adam", "rate": 0.1, "signed": False, "decay": "none"},
        "iterations": 2500,
    },
}


NARROWER: dict[str, dict[str, Any]] = {
    # "lamb", "eta" and "beta" of the authors' configuration for CIFAR-100
    "surrogate": inverting(1.0, False, 1000, 0.01, between=0.5, between_rate=0.001),
    "unordered": inverting(0.1, True, 1000, 0.01)
    | {"labels": "interpolated", "same_images": {"weight": 0.1, "over": "max", "filters": 96}},
    "untrained_decoder": {
        "objective": {"kind": "cosine"},
        "optimiser": {"kind": "adam", "rate": 0.01, "signed": False, "decay": "cosine"},
        "iterations": 1000,
        "unknown": {"kind": "decoder", "channels": 32, "levels": 2},
        "keep": "best",
    },
    "map": {
        "objective": {"kind": "profile"},
        "optimiser": {
            **{"kind": "lbfgs", "rate": 1.0, "history": 50, "line_search": "strong_wolfe"},
            **{"tolerance_gradient": 1e-9, "tolerance_change": 0.0},
        },
        "iterations": 150,
        "unknown": {"kind": "normal", "images": 512, "floor": 0.02, "weight": 1.0},
    },
}
"""Presets that do not go with every part."""


OF_SENTENCES = {"starts": 1, "permutations": 0, "scale": "inputs", "start_norm": None, "reordering": None}
ADAM = {"kind": "adam", "rate": 0.1, "signed": False, "decay": "none"}


def lamp(objective: dict[str, Any], weight: float, fluency: float) -> dict[str, Any]:
    """Balunovic et al. 2022: the scripts of their code, and its defaults."""
    return {
        "objective": objective,
        "regularisers": [{"kind": "embedding_norm", "weight": weight, "norm": 1.4}],
        "optimiser": {"kind": "staircase_adam", "rate": 0.01, "signed": False, "factor": 0.89, "every": 50},
        "iterations": 2000,
        "starts": 500,
        "permutations": 500,
        "start_norm": 1.4,
        "reordering": {"candidates": 200, "every": 75, "burn_in": 0.1, "fluency": fluency},
        "keep": "best",
    }


SENTENCES: dict[str, dict[str, Any]] = {
    "dlg_text": {"objective": {"kind": "l2"}, "optimiser": ADAM, "iterations": 2500, "keep": "best"},
    "tag_text": {
        "objective": {"kind": "l1_l2", "l1_weight": 0.01},
        "optimiser": ADAM,
        "iterations": 2500,
        "keep": "best",
    },
    "lamp_cos": lamp({"kind": "cosine_per_tensor", "floor": 0.0}, 1.0, 0.2),
    "lamp_l1l2": lamp({"kind": "l1_l2", "l1_weight": 0.01}, 25.0, 60.0),
}


def preset(name: str) -> type[Attack]:
    return ATTACKS.get(name)


def test_the_table_is_complete() -> None:
    found = {name for name in ATTACKS if ATTACKS.get(name).__mro__[1] is GradientMatching}
    assert found == set(PRESETS) | set(NARROWER) | {"sentence_matching"}
    of_sentences = {name for name in ATTACKS if issubclass(ATTACKS.get(name), SentenceMatching)}
    assert of_sentences == set(SENTENCES) | {"sentence_matching"}


@pytest.mark.parametrize("name", NARROWER)
def test_numbers_of_narrower_presets(name: str) -> None:
    attack = preset(name)()
    assert attack.parameters() == DEFAULTS | NARROWER[name]
    assert preset(name)(**json.loads(json.dumps(attack.parameters()))) == attack


@pytest.mark.parametrize("name", PRESETS)
class TestPreset:
    def test_numbers(self, name: str) -> None:
        assert preset(name)().parameters() == DEFAULTS | PRESETS[name]

    def test_survives_json_and_yaml(self, name: str) -> None:
        attack = preset(name)()
        assert preset(name)(**json.loads(json.dumps(attack.parameters()))) == attack
        assert preset(name)(**yaml.safe_load(yaml.safe_dump(attack.parameters()))) == attack

    @pytest.mark.parametrize(
        "changed",
        [
            {"iterations": 10, "optimiser": {"kind": "adam", "rate": 0.3}},
            {"objective": {"kind": "cosine_per_tensor", "floor": 1e-6}, "regularisers": [], "restarts": 4},
            {"regularisers": [{"kind": "total_variation", "weight": 0.5}, {"kind": "batch_norm", "weight": 1e-3}]},
            {"labels": "repeated", "batch_norm": "known", "keep": "best", "start": "grey", "stop_below": 0.5},
            {"optimiser": {"kind": "lbfgs", "line_search": "strong_wolfe"}, "box": False},
            {"unknown": {"kind": "upsampled", "factor": 2, "interpolation": "nearest"}, "box": False},
        ],
    )
    def test_everything_can_be_overridden(self, name: str, changed: dict[str, Any]) -> None:
        """A part is replaced whole: what it does not say has the part's own default."""
        found = preset(name)(**yaml.safe_load(yaml.safe_dump(changed))).parameters()
        assert {key: found[key] for key in found if key not in changed} == {
            key: value for key, value in (DEFAULTS | PRESETS[name]).items() if key not in changed
        }
        for key, value in changed.items():
            if isinstance(value, dict):
                assert value.items() <= found[key].items()
            elif isinstance(value, list):
                assert all(one.items() <= other.items() for one, other in zip(value, found[key], strict=True))
            else:
                assert found[key] == value
        if "iterations" in changed:
            assert found["optimiser"] == {"kind": "adam", "rate": 0.3, "signed": False, "decay": "none"}

    @pytest.mark.parametrize(
        "wrong",
        [
            {"iteration": 10},
            {"iterations": 0},
            {"optimiser": {"kind": "sgd", "rate": 1}},
            {"optimiser": {"rate": 1}},
            {"objective": "cosine"},
            {"labels": "guessed"},
            {"box": True, "optimiser": {"kind": "lbfgs"}},
            {"box": True, "unknown": {"kind": "upsampled"}},
        ],
    )
    def test_what_does_not_exist_is_refused(self, name: str, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            preset(name)(**wrong)


@pytest.mark.parametrize("name", SENTENCES)
class TestPresetOfSentences:
    def test_numbers(self, name: str) -> None:
        attack = preset(name)()
        assert attack.parameters() == DEFAULTS | OF_SENTENCES | SENTENCES[name]
        assert attack.needs == {"labels"} | ({"language_model"} if name.startswith("lamp") else set())

    def test_survives_json_and_yaml(self, name: str) -> None:
        attack = preset(name)()
        assert preset(name)(**json.loads(json.dumps(attack.parameters()))) == attack
        assert preset(name)(**yaml.safe_load(yaml.safe_dump(attack.parameters()))) == attack

    def test_settings_for_other_models(self, name: str) -> None:
        """In units of the model's own embeddings, and without a language model."""
        changed: dict[str, Any] = {
            "iterations": 100,
            "scale": "embeddings",
            "start_norm": None,
            "optimiser": {"kind": "adam", "rate": 0.5, "decay": "cosine"},
            "regularisers": [{"kind": "embedding_norm", "weight": 25.0}],
            "reordering": {"candidates": 40, "every": 20, "fluency": 0.0},
        }
        attack = preset(name)(**changed)
        found = attack.parameters()
        assert found["regularisers"] == [{"kind": "embedding_norm", "weight": 25.0, "norm": None}]
        assert found["reordering"] == {"candidates": 40, "every": 20, "burn_in": 0.1, "fluency": 0.0}
        assert found["optimiser"] == ADAM | {"rate": 0.5, "decay": "cosine"}
        kept = DEFAULTS | OF_SENTENCES | SENTENCES[name]
        assert {key: found[key] for key in kept if key not in changed} == {
            key: value for key, value in kept.items() if key not in changed
        }
        assert attack.needs == {"labels"}

    @pytest.mark.parametrize("wrong", [{"box": True}, {"restarts": 2}, {"starts": 0}, {"reordering": {"every": 0}}])
    def test_what_does_not_exist_is_refused(self, name: str, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            preset(name)(**wrong)


def test_gradient_matching_has_no_numbers_of_its_own() -> None:
    with pytest.raises(ValidationError) as caught:
        GradientMatching()  # type: ignore[call-arg]
    assert {error["loc"] for error in caught.value.errors()} == {("objective",), ("optimiser",), ("iterations",)}
