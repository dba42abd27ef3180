"""Every check, and a component that it alone is there to find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leakbench.cli import main
from leakbench.contract.check import NotAsked

HEAD = '''"""A component that does not keep to the contract."""

from pydantic import Field

from leakbench.attacks.base import ATTACKS, Attack, Reconstruction
from leakbench.data.base import DATASETS, ImageDataset, Samples, side
from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement
from leakbench.effort import Effort
from leakbench.federated.message import CodedMessage, DenseMessage, Law
from leakbench.lazy import np, torch
from leakbench.models.base import MODELS, Model


@DEFENSES.register("broken", version={version})
class Broken(Defense):
    """Something wrong."""

'''

VERB = "    def protect_update(self, steps, streams):\n        "
STATE = (
    "    biased = 'of errors'\n"
    "    def initial_state(self, steps):\n        return {'error': torch.zeros_like(steps.gradient)}\n\n"
    "    def protect_round(self, steps, round):\n        error = round.state['error']\n        "
)
NORMAL = "streams.normal(steps.gradient.shape[1])"


def of_law(
    mean: str = "steps.gradient", passing: str = "", variance: str = "None", values: str = "steps.gradient"
) -> str:
    passing = passing or "torch.ones_like(steps.gradient, dtype=torch.bool)"
    return f"{VERB}return DenseMessage({values}, law=Law({mean}, {passing}, {variance}))\n"


# check -> the class's body, and a part of the sentence
DEFENSES = {
    "version": ("    pass\n", "write version=1"),
    "parameters described": ("    strength: float = Field(0.5, ge=0)\n", "nothing says what 'strength' is"),
    "parameters bounded": (
        "    strength: float = Field(0.5, description='of it')\n",
        "'strength' may be any number; say what is allowed: Field(ge=0)",
    ),
    "parameters fit": ("    words: dict = Field(description='of it')\n", "after the file: NAME=VALUE"),
    "acts_on": ("    acts_on = 'images'\n", "it is one of 'data', 'samples', 'updates'"),
    "data": (
        "    acts_on = 'data'\n    def protect_data(self, images, labels, streams):\n"
        "        return images[:, :2], labels[:, :2]\n",
        "protect_data turns images [4, 4, 1, 8, 8]",
    ),
    "message": (f"{VERB}return steps.gradient\n", "returns a Tensor; return a Message"),
    "shape": (f"{VERB}return DenseMessage(steps.gradient[:, 1:])\n", "[clients, parameters]: return as much"),
    "type": (f"{VERB}return DenseMessage(steps.gradient.double())\n", "gradients are torch.float32"),
    "device": (f"{VERB}return DenseMessage(steps.gradient.to('meta'))\n", "view() is on meta, gradients on cpu"),
    "finite": (f"{VERB}return DenseMessage(steps.gradient / 0)\n", "look for a division by zero"),
    "gradients unchanged": (f"{VERB}return DenseMessage(steps.gradient.mul_(1.0).add_(1.0))\n", "work on a copy"),
    "global randomness": (
        f"{VERB}return DenseMessage(steps.gradient + torch.randn(steps.gradient.shape))\n",
        "it draws from torch's global generator",
    ),
    "repeats": (
        "    calls: list = Field([], description='state')\n"
        f"{VERB}self.calls.append(1)\n        return DenseMessage(steps.gradient * len(self.calls))\n",
        "keep no state between calls",
    ),
    "noise": (of_law(variance="torch.ones_like(steps.gradient)"), "draw the noise from streams"),
    "batch mates": (f"{VERB}return DenseMessage(steps.gradient - steps.gradient.mean(0))\n", "compute row by row"),
    "state": (
        "    def initial_state(self, steps):\n        return {'error': torch.zeros(3)}\n",
        "its rows are the 4 clients",
    ),
    "state of a client": (
        f"{STATE}return DenseMessage(steps.gradient + error), {{'error': steps.gradient.mean(0).expand_as(error)}}\n",
        "compute the state row by row",
    ),
    "bits": (
        f"{VERB}return CodedMessage(steps.gradient, size=32 * steps.gradient.numel())\n",
        "say that of one client's message",
    ),
    "nothing else travels": (
        f"{VERB}message = DenseMessage(steps.gradient)\n"
        "        object.__setattr__(message, 'kept', steps.images)\n        return message\n",
        "the message holds the clients' images as 'kept'",
    ),
    "marked": (
        f"{VERB}return DenseMessage(steps.gradient, marked=steps.gradient > 0.1)\n".replace(
            "steps.gradient > 0.1", "steps.gradient"
        ),
        "it is boolean",
    ),
    "law": (of_law(mean="steps.gradient.mean(1)"), "law.mean is [4]"),
    "variance as stated": (
        of_law(variance="torch.full_like(steps.gradient, 0.5)", values=f"steps.gradient + {NORMAL}"),
        "times what law.variance says",
    ),
    "bias": (f"{VERB}return DenseMessage(steps.gradient / 2)\n", 'if that is meant, say so: biased = "why"'),
    "likelihood": (
        "    def log_likelihood(self, received, steps):\n"
        "        return (received.values - steps.gradient).square().sum(1)\n",
        "look at its sign",
    ),
    "likelihood as sent": (
        of_law(variance="torch.full_like(steps.gradient, 0.01)", values=f"steps.gradient + 0.1 * {NORMAL}")
        + "    def log_likelihood(self, received, steps):\n"
        "        return -(received.values - steps.gradient).square().sum(1) / (2 * 0.01**2)\n",
        "it is narrower than the noise",
    ),
    "aggregate": (
        "    def aggregate(self, message, clients):\n        return message.view().unflatten(0, (-1, 2)).sum(1)\n",
        "divide by their number",
    ),
    "privacy": (
        "    def privacy(self, schedule):\n        return PrivacyStatement(1.0, None, 'some')\n",
        "epsilon and delta belong together",
    ),
    "adaptive attacker": ("    adaptive = ({'name': 'masked'},)\n", "'masked' cannot face its messages"),
}


def checked(file: Path, text: str, capsys: pytest.CaptureFixture[str], *given: str) -> dict[str, str]:
    """What is wrong, by the name of the check."""
    file.write_text(text)
    status = main(["check", str(file), *given, "--json"])
    wrong = {row["check"]: row["message"] for row in json.loads(capsys.readouterr().out) if row["verdict"] == "wrong"}
    assert status == int(bool(wrong))
    return wrong


pytestmark = pytest.mark.usefixtures("clean_registries", "no_trial")


@pytest.fixture
def no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial of the adaptive attacker, which takes seconds and has tests of its own."""

    def not_asked(*_: object) -> None:
        raise NotAsked("it has tests of its own")

    monkeypatch.setattr("leakbench.contract.defenses.trial", not_asked)


@pytest.mark.parametrize("check", DEFENSES)
def test_a_broken_defense(check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body, sentence = DEFENSES[check]
    text = HEAD.replace("{version}", "0" if check == "version" else "1") + body
    assert sentence in checked(tmp_path / "broken.py", text, capsys)[check]


LABELS = {
    "too few": ("labels[..., None].float()", "torch.float32; return int64"),
    "whole numbers": ("torch.nn.functional.one_hot(labels, 10)", "[4, 4, 10] torch.int64; return int64"),
    "no probabilities": ("2 * torch.nn.functional.one_hot(labels, 10).float()", "numbers that are no probabilities"),
    "probabilities": ("torch.nn.functional.one_hot(labels, 10).float()", ""),
}


@pytest.mark.parametrize("fault", LABELS)
def test_labels_that_are_neither_classes_nor_probabilities(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, sentence = LABELS[fault]
    body = (
        f"    acts_on = 'data'\n    def protect_data(self, images, labels, streams):\n        return images, {made}\n"
    )
    wrong = checked(tmp_path / "broken.py", HEAD.replace("{version}", "1") + body, capsys)
    assert sentence in wrong.get("data", "") and (bool(sentence) or "data" not in wrong)


LIKELIHOOD = "    def log_likelihood(self, received, steps):\n        "
LIKELIHOODS = {
    "one number": (
        f"{LIKELIHOOD}return -(received.values - steps.gradient).abs()\n",
        "sum over coordinates, dim=1: [4]",
    ),
    "infinite": (f"{LIKELIHOOD}return (received.values != steps.gradient).sum(1) / 0.0\n", "is not finite"),
    "constant": (f"{LIKELIHOOD}return -received.values.abs().sum(1)\n", "does not change with steps.gradient"),
    "through numpy": (
        f"{LIKELIHOOD}return -torch.from_numpy(np.square((received.values - steps.gradient).numpy())).sum(1)\n",
        "has no derivative by steps.gradient",
    ),
    "root of zero": (
        f"{LIKELIHOOD}return -(received.values - steps.gradient).abs().sum(1) - (0 * steps.gradient).sqrt().sum(1)\n",
        "look for the root or norm of zero",
    ),
}


@pytest.mark.parametrize("fault", LIKELIHOODS)
def test_a_broken_likelihood(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body, sentence = LIKELIHOODS[fault]
    assert sentence in checked(tmp_path / "broken.py", HEAD.replace("{version}", "1") + body, capsys)["likelihood"]


LAWS = {
    "right": ("-(received.values - steps.gradient).square().sum(1) / (2 * 0.1**2)", ""),
    "narrower": ("-(received.values - steps.gradient).square().sum(1) / (2 * 0.06**2)", "narrower than the noise"),
    "broader": ("-(received.values - steps.gradient).square().sum(1) / (2 * 0.2**2)", "broader than the noise"),
    "half the mean": ("-(received.values - steps.gradient / 2).square().sum(1) / (2 * 0.1**2)", "or around another"),
}


@pytest.mark.parametrize("fault", LAWS)
def test_a_likelihood_of_something_else(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated, sentence = LAWS[fault]
    law = of_law(variance="torch.full_like(steps.gradient, 0.01)", values=f"steps.gradient + 0.1 * {NORMAL}")
    wrong = checked(
        tmp_path / "broken.py", HEAD.replace("{version}", "1") + f"{law}{LIKELIHOOD}return {stated}\n", capsys
    )
    assert sentence in wrong.get("likelihood as sent", "") and (bool(sentence) or "likelihood as sent" not in wrong)


ATTACKERS = {
    "raises inside": (
        f"{VERB}if 'simulation' in str(streams.keys):\n            raise KeyError('table')\n"
        "        return DenseMessage(steps.gradient)\n",
        "Broken cannot be run on candidates: KeyError: 'table'",
    ),
    "states no likelihood": ("    adaptive = ({'name': 'likelihood'},)\n", "Broken states no likelihood"),
}


@pytest.mark.parametrize("fault", ATTACKERS)
def test_an_attacker_that_cannot_run_it(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body, sentence = ATTACKERS[fault]
    wrong = checked(tmp_path / "broken.py", HEAD.replace("{version}", "1") + body, capsys)
    assert sentence in wrong["adaptive attacker"]


STATES = {
    "written": (f"{STATE}return DenseMessage(steps.gradient), {{'error': error.add_(1)}}\n", "return a new tensor"),
    "forgotten": (f"{STATE}return DenseMessage(steps.gradient), {{}}\n", "returns no state 'error'"),
    "another": (
        f"{STATE}return DenseMessage(steps.gradient), {{**round.state, 'b': error}}\n",
        "has none of this name",
    ),
    "infinite": (f"{STATE}return DenseMessage(steps.gradient), {{'error': error / 0}}\n", "not finite after a round"),
}


@pytest.mark.parametrize("fault", STATES)
def test_a_broken_state(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body, sentence = STATES[fault]
    assert sentence in checked(tmp_path / "broken.py", HEAD.replace("{version}", "1") + body, capsys)["state"]


def test_a_message_without_its_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = HEAD.replace("{version}", "1") + f"{STATE}return DenseMessage(steps.gradient + error)\n"
    assert "return the message and the state" in checked(tmp_path / "broken.py", text, capsys)["message"]


def test_a_good_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = f"{STATE}return DenseMessage(steps.gradient + error), {{'error': error + steps.gradient}}\n"
    assert checked(tmp_path / "good.py", HEAD.replace("{version}", "1") + body, capsys) == {}


WRAPPER = '''
from leakbench.attacks.adaptive import Wrapper


@ATTACKS.register("around", version=1)
class Around(Wrapper):
    """Of the defense's own file."""

'''
WRAPPERS = {
    "nothing": ("    pass\n", "'around' does nothing: give it improve"),
    "not implemented": (
        "    def improve(self, observations, knowledge, streams):\n        raise NotImplementedError('later')\n",
        "'around' raises NotImplementedError: later",
    ),
    "another one inside": (
        "    def reconstruct(self, observations, knowledge, streams):\n        return None\n",
        "'masked' cannot face its messages",
    ),
}


@pytest.mark.parametrize("fault", WRAPPERS)
def test_a_broken_attacker_of_a_stack(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a wrapper lacks is said, and one that changes the reconstruction alone hides none inside it."""
    body, sentence = WRAPPERS[fault]
    text = HEAD.replace("{version}", "1") + "    adaptive = ({'name': 'masked'}, {'name': 'around'})\n" + WRAPPER + body
    assert sentence in checked(tmp_path / "broken.py", text, capsys)["adaptive attacker"]


def test_an_import_of_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import torch\n" + HEAD.replace("{version}", "1") + "    pass\n"
    assert not checked(tmp_path / "broken.py", text.replace("import np, torch", "import np"), capsys)


def test_one_error_is_said_once_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = HEAD.replace("{version}", "1") + f"{VERB}return 1 / 0\n"
    (wrong,) = checked(tmp_path / "broken.py", text, capsys).items()
    line = text.count("\n")
    assert wrong[0] == "message" and wrong[1].endswith(f"broken.py, line {line})") and "ZeroDivisionError" in wrong[1]


CODED = {
    "floats for signs": ("DenseMessage(steps.gradient.sign())", "CodedMessage(values, size=...)"),
    "fewer bits than signs": ("CodedMessage(steps.gradient.sign(), size=32)", "count what travels"),
    "signs": ("CodedMessage(steps.gradient.sign(), size=steps.gradient.shape[1])", None),
    "sparse signs": ("SparseMessage(steps.gradient.sign(), steps.gradient.abs() > 0.01, value_bits=1)", None),
}


@pytest.mark.parametrize("case", CODED)
def test_bits_of_coded_values(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message, sentence = CODED[case]
    text = HEAD.replace("{version}", "1").replace("import CodedMessage", "import CodedMessage, SparseMessage")
    wrong = checked(tmp_path / "broken.py", f"{text}    biased = 'signs'\n{VERB}return {message}\n", capsys)
    assert wrong.keys() <= {"bits"} and (sentence is None) == (not wrong)
    assert sentence is None or sentence in wrong["bits"]


def test_a_sparse_message_with_noise_states_its_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The law that a sparse message has by itself says that the values it keeps have no noise."""
    sent = "SparseMessage(steps.gradient + noise, kept{})"
    law = "stated=Law(kept * steps.gradient, kept, 0.01 * kept)"
    text = HEAD.replace("{version}", "1").replace("import CodedMessage", "import CodedMessage, SparseMessage") + VERB
    text += f"noise, kept = 0.1 * {NORMAL}, steps.gradient.abs() > 0.01\n        return "
    wrong = checked(tmp_path / "silent.py", text + sent.format("") + "\n", capsys)
    assert "stated=" in wrong["law of the gradient"]
    assert not checked(tmp_path / "stating.py", text.replace("broken", "b2") + sent.format(f", {law}") + "\n", capsys)


def test_an_attacker_that_depends_on_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = HEAD.replace("{version}", "1") + (
        "    pruned: bool = Field(False, description='of it')\n\n"
        "    @property\n    def adaptive(self):\n"
        "        return ({'name': 'masked'},) if self.pruned else ()\n\n"
        f"{VERB}if not self.pruned:\n            return DenseMessage(steps.gradient)\n"
        "        kept = steps.gradient.abs() > 0.01\n"
        "        return DenseMessage(kept * steps.gradient, ~kept, Law(kept * steps.gradient, kept))\n"
    )
    for parameters in ((), ("pruned=true",)):
        assert not checked(tmp_path / "broken.py", text, capsys, *parameters)


def test_no_docstring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = HEAD.replace("{version}", "1").replace('    """Something wrong."""\n', "    pass\n")
    assert "begin it with a docstring" in checked(tmp_path / "broken.py", text, capsys)["summary"]


def test_a_file_that_registers_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert main(["check", str(tmp_path / "empty.py")]) == 1
    assert "it registers nothing; put @DEFENSES.register" in capsys.readouterr().err


def test_a_file_that_cannot_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "halt.py").write_text("1 / 0\n")
    assert main(["check", str(tmp_path / "halt.py")]) == 1
    assert "halt.py, line 1: it cannot be imported: ZeroDivisionError" in capsys.readouterr().err


def test_a_good_one_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.py").write_text(HEAD.replace("{version}", "1") + "    pass\n")
    assert main(["check", str(tmp_path / "good.py")]) == 0
    assert "Nothing is wrong." in capsys.readouterr().out


ATTACK = '''

@ATTACKS.register("broken_attack", version=1)
class BrokenAttack(Attack):
    """Something wrong."""

    @property
    def needs(self):
        return frozenset({needs})

    def effort(self, samples):
        return {effort}

    {prepare}

    def reconstruct(self, observations, knowledge, streams):
        images = streams.normal(*observations.batch_shape)
        diverged = torch.full((len(images),), -1)
        return Reconstruction({images}, None, {diverged})
'''
FINE = {"needs": "()", "effort": "Effort(1, 1)", "images": "images", "diverged": "diverged", "prepare": "pass"}
SENDING = {"needs": "('modified_model',)"}
PREPARE = "def prepare(self, network, batch_shape, knowledge):\n        "
OTHER = (
    "import copy\n        from leakbench.models.base import Network\n"
    "        module = copy.deepcopy(network.module)\n        "
)
MODELS_SENT = [
    ({"prepare": f"{PREPARE}return network"}, "have both, or neither"),
    (SENDING, "have both, or neither"),
    ({**SENDING, "prepare": f"{PREPARE}return network.module"}, "prepare returns a Sequential; return"),
    (
        {**SENDING, "prepare": f"{PREPARE}network.module[0][0].weight.data.zero_()\n        return network"},
        "change a copy",
    ),
    (
        {**SENDING, "prepare": f"{PREPARE}{OTHER}return Network(module[0])"},
        "logits of the model sent are [2, 4, 2, 2]; clients need [2, 10]",
    ),
    (
        {
            **SENDING,
            "prepare": f"{PREPARE}{OTHER}torch.nn.init.normal_(module[0][0].weight)\n        return Network(module)",
        },
        "sends another model each time",
    ),
]
ATTACKS = {
    "needs": ({"needs": "('truth',)"}, "needs names truth"),
    "shape": ({"images": "images[:, 0]"}, "the clients' are [3, 1, 1, 8, 8]"),
    "beside the images": ({"diverged": "diverged[:1]"}, "one number per client"),
    "finite": ({"images": "images / 0"}, "say at which step"),
    "repeats": ({"images": "torch.randn(images.shape)"}, "never from torch's global generator"),
    "batch mates": ({"images": "images - images.mean(0)"}, "compute and draw row by row"),
    "effort": ({"effort": "7"}, "return Effort(samples, steps)"),
}


@pytest.mark.parametrize("check", ATTACKS)
def test_a_broken_attack(check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, sentence = ATTACKS[check]
    text = HEAD[: HEAD.index("@DEFENSES")] + ATTACK.format(**{**FINE, **change})
    assert sentence in checked(tmp_path / "broken.py", text, capsys)[check]


@pytest.mark.parametrize(("change", "sentence"), MODELS_SENT)
def test_a_broken_model_sent(
    change: dict[str, str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = HEAD[: HEAD.index("@DEFENSES")] + ATTACK.format(**{**FINE, **change})
    assert sentence in checked(tmp_path / "broken.py", text, capsys)["model sent"]


DATA = '''

@DATASETS.register("broken_data", version=1)
class BrokenData(ImageDataset):
    """Something wrong."""

    channels, classes, mean, std = 1, 2, {mean}, (0.5,)
    size: int = side(8)

    def length(self, split):
        return {length}

    def read(self, split, rows):
        which = torch.tensor({rows})
        images = (which / 10).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
        return Samples({images}, which % 2)
'''
FINE_DATA = {"mean": "(0.5,)", "length": "4", "rows": "rows", "images": "images"}
DATASETS = {
    "splits": ({"length": "4 if split == 'train' else 0"}, "at least one sample"),
    "samples": ({"images": "images[:, 0]"}, "they are [3, 1, 8, 8]"),
    "range": ({"images": "images * 255"}, "divide by 255?"),
    "order": ({"rows": "sorted(rows)"}, "in the order of the rows asked for"),
}


@pytest.mark.parametrize("check", DATASETS)
def test_a_broken_data_set(check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, sentence = DATASETS[check]
    text = HEAD[: HEAD.index("@DEFENSES")] + DATA.format(**{**FINE_DATA, **change})
    assert sentence in checked(tmp_path / "broken.py", text, capsys)[check]


def test_a_normalisation_that_is_not_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = HEAD[: HEAD.index("@DEFENSES")] + DATA.format(**FINE_DATA)
    text += "\n    def denormalise(self, values):\n        return values\n"
    assert "is not values" in checked(tmp_path / "broken.py", text, capsys)["normalisation"]


MODEL = '''

@MODELS.register("broken_model", version=1)
class BrokenModel(Model):
    """Something wrong."""

    width: int = Field(2, ge=1, description="of it")

    def build(self, shape, classes):
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.last = torch.nn.Linear(3 * 32 * 32, {classes})
                {start}

            def forward(self, images):
                return self.last({inputs})

        return Net()
'''
FINE_MODEL = {"classes": "classes", "start": "pass", "inputs": "images.flatten(1).sin()"}
MODELS = {
    "logits": ({"classes": "classes + 1"}, "give [4, 8]"),
    "initialisation": (
        {"start": "self.last.weight.data += torch.from_numpy(np.random.default_rng().normal(size=1)).float()"},
        "initialises another model",
    ),
    "differentiable": ({"inputs": "images.flatten(1).detach()"}, "leave detach() and no_grad() out"),
    "samples apart": ({"inputs": "(images - images.mean(0)).flatten(1)"}, "depend on the rest of its batch"),
}


@pytest.mark.parametrize("check", MODELS)
def test_a_broken_model(check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, sentence = MODELS[check]
    text = HEAD[: HEAD.index("@DEFENSES")] + MODEL.format(**{**FINE_MODEL, **change})
    assert sentence in checked(tmp_path / "broken.py", text, capsys)[check]
