"""Transformers against plain calls of the library in float64: both entries, first and second derivatives; weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch.func import grad, vmap

from leakbench.errors import ConfigError, MissingData
from leakbench.libraries.torchvision_compat import import_torchvision
from leakbench.models.base import Network, build_network
from leakbench.models.bert import Bert, DistilBert, TextModel, embed, table_of, word_embeddings
from leakbench.models.convnets import ConvNet

TINY: dict[str, Any] = {"width": 8, "layers": 2, "heads": 2, "intermediate": 12, "vocabulary": 20, "positions": 10}
MODELS = pytest.mark.parametrize("model", [Bert(**TINY), DistilBert(**TINY)], ids=["bert", "distilbert"])
L, H, V = 7, 8, 20
N, B = 3, 2
IDS = torch.tensor(
    [
        [[1, 5, 9, 4, 2, 0, 0], [1, 3, 2, 0, 0, 0, 0]],
        [[1, 19, 8, 8, 7, 6, 2], [1, 7, 3, 12, 11, 2, 0]],
        [[1, 2, 0, 0, 0, 0, 0], [1, 5, 6, 7, 8, 9, 2]],
    ]
)
LABELS = torch.tensor([[0, 1], [1, 1], [0, 0]])


@pytest.fixture(scope="module", autouse=True)
def importable() -> None:
    """``transformers``, which imports torchvision when a model is asked for."""
    import_torchvision()


def network_of(model: TextModel, seed: int = 0) -> Network:
    """In float64."""
    network = build_network(model, (L,), 2, seed)
    network._module.double()
    return network


def parameters_of(network: Network, count: int = N) -> torch.Tensor:
    """Different ones for every row, ``[count, d]``, and larger than the library's, so that attention attends."""
    noise = torch.randn(count, network.dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return network.parameters + 0.3 * noise


def reference_of(
    model: TextModel, network: Network, parameters: torch.Tensor, attention: str = "sdpa"
) -> transformers.PreTrainedModel:
    """The library's own module with these parameters, and by default with another implementation of attention."""
    fields: dict[str, Any] = {key: TINY[field] for field, key in model.keys.items() if field in TINY}
    config = getattr(transformers, model.library[0])(**fields, attn_implementation=attention)
    kind = getattr(transformers, model.library[1])
    found: transformers.PreTrainedModel = kind(config).double().eval()
    found.load_state_dict(network.unflatten(parameters))  # the names are the same
    return found


def reference_gradient(
    module: transformers.PreTrainedModel, embedded: torch.Tensor, labels: torch.Tensor, graph: bool
) -> torch.Tensor:
    """By all parameters, as one vector; zeros where nothing depends on them."""
    own = list(module.parameters())
    logits = module(inputs_embeds=embedded[..., :-1], attention_mask=embedded[..., -1].long()).logits
    loss = torch.nn.functional.cross_entropy(logits, labels)
    found = torch.autograd.grad(loss, own, create_graph=graph, allow_unused=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(own, found, strict=True)])


@pytest.mark.parametrize(
    ("model", "count"), [(Bert(), 109_483_778), (DistilBert(), 66_955_010)], ids=["bert", "distilbert"]
)
def test_parameter_counts(model: TextModel, count: int) -> None:
    with torch.device("meta"):
        module = model.build((512,), 2)
    assert sum(parameter.numel() for parameter in module.parameters()) == count
    assert module.config._attn_implementation == "eager"  # type: ignore[union-attr]


@MODELS
def test_logits_are_the_librarys(model: TextModel) -> None:
    network = network_of(model)
    (parameters,) = parameters_of(network, 1)
    expected = reference_of(model, network, parameters)(input_ids=IDS[0], attention_mask=(IDS[0] != 0).long()).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(network.logits(parameters, IDS[0]), expected, rtol=1e-12, atol=1e-12)


@MODELS
def test_both_entries_agree_exactly(model: TextModel) -> None:
    network = network_of(model)
    for parameters in (network.parameters, parameters_of(network)[0]):
        inputs = embed(network, parameters, IDS)
        table = word_embeddings(network, parameters)
        assert inputs.shape == (N, B, L, H + 1) and table.shape == (V, H)
        assert torch.equal(inputs[..., :-1], table[IDS]) and torch.equal(inputs[..., -1], (IDS != 0).double())
        for ids, embedded in zip(IDS, inputs, strict=True):
            assert torch.equal(network.logits(parameters, ids), network.logits(parameters, embedded))


@MODELS
def test_padding_changes_nothing(model: TextModel) -> None:
    network = network_of(model)
    (parameters,) = parameters_of(network, 1)
    ids, labels = IDS[2, :1], LABELS[2, :1]  # two tokens
    alone = network.gradient(parameters, ids[:, :2], labels)
    torch.testing.assert_close(network.gradient(parameters, ids, labels), alone, rtol=1e-10, atol=1e-12)
    embedded = embed(network, parameters, ids)
    filled = embedded.clone()
    filled[:, 2:, :-1] = 1e3  # whatever stands under padding
    assert torch.equal(network.logits(parameters, filled), network.logits(parameters, embedded))
    more = embedded.clone()
    more[:, 2, -1] = 1
    assert not torch.allclose(network.logits(parameters, more), network.logits(parameters, embedded))


@MODELS
def test_gradients_of_different_models_side_by_side(model: TextModel) -> None:
    network = network_of(model)
    parameters = parameters_of(network)
    inputs = torch.stack([embed(network, own, ids) for own, ids in zip(parameters, IDS, strict=True)])
    table = slice(0, V * H)  # the word embeddings come first
    by_inputs = vmap(network.gradient)(parameters, inputs, LABELS)
    by_ids = vmap(network.gradient)(parameters, IDS, LABELS)
    for row in range(N):
        module = reference_of(model, network, parameters[row])
        expected = reference_gradient(module, inputs[row], LABELS[row], graph=False)
        torch.testing.assert_close(by_inputs[row], expected, rtol=1e-9, atol=1e-12)
        logits = module(input_ids=IDS[row], attention_mask=(IDS[row] != 0).long()).logits
        torch.nn.functional.cross_entropy(logits, LABELS[row]).backward()
        expected = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
        torch.testing.assert_close(by_ids[row], expected, rtol=1e-9, atol=1e-12)
    assert (by_inputs[:, table] == 0).all()
    read = by_ids[:, table].unflatten(1, (V, H)).abs().sum(dim=2) > 0
    for row in range(N):
        assert set(read[row].nonzero().flatten().tolist()) == set(IDS[row].flatten().tolist()) - {0}


@MODELS
def test_second_derivatives_by_the_inputs(model: TextModel) -> None:
    """Of gradient matching, for different models, inputs and targets at once."""
    network = network_of(model)
    parameters = parameters_of(network)
    inputs = torch.stack([embed(network, own, ids) for own, ids in zip(parameters, IDS, strict=True)])
    targets = vmap(network.gradient)(parameters, inputs.flip(0), LABELS)
    inputs[..., :-1] += 0.1

    def mismatch(own: torch.Tensor, parameters: torch.Tensor, labels: torch.Tensor, target: torch.Tensor) -> Any:
        return (network.gradient(parameters, own, labels) - target).square().sum()

    found = vmap(grad(mismatch))(inputs, parameters, LABELS, targets)
    assert (found[..., -1] == 0).all()  # the mask is known
    assert (found[..., :-1].abs().sum(dim=-1) > 0).equal(inputs[..., -1] > 0)  # padding has no influence
    for row in range(N):
        module = reference_of(model, network, parameters[row], attention="eager")  # the other is differentiable once
        own = inputs[row].clone().requires_grad_()
        gradient = reference_gradient(module, own, LABELS[row], graph=True)
        (expected,) = torch.autograd.grad((gradient - targets[row]).square().sum(), own)
        torch.testing.assert_close(found[row], expected, rtol=1e-8, atol=1e-10)


@MODELS
def test_no_dropout_even_in_training(model: TextModel) -> None:
    network = network_of(model)
    module = network.trainable_module()
    assert module.training
    assert torch.equal(module(IDS[0]), module(IDS[0]))
    assert all(layer.p == 0 for layer in module.modules() if isinstance(layer, torch.nn.Dropout))


@MODELS
def test_the_head_is_linear(model: TextModel) -> None:
    network = network_of(model)
    assert (network.head.outputs, network.head.inputs) == (2, H)
    assert network.head.bias == slice(network.dimension - 2, network.dimension)
    logits, features = network.logits_and_features(network.parameters, IDS[0])
    weights = network.head.weights(network.parameters)
    torch.testing.assert_close(logits, features @ weights.T + network.parameters[-2:])
    assert network.first_linear is None  # none reads the sentence itself
    assert network.state_size == network.dimension  # positions of tokens do not travel


@MODELS
def test_initialisation_is_the_librarys_and_depends_on_the_seed_alone(model: TextModel) -> None:
    one, same, other = (build_network(model, (L,), 2, seed).parameters for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    table = one[: V * H].view(V, H)
    assert (table[0] == 0).all()  # that of padding
    assert 0.015 < table[1:].std() < 0.025


@MODELS
def test_wider_initialisation(model: TextModel) -> None:
    """The same draws, larger; what does not start at random stays."""
    usual, wide = (build_network(one, (L,), 2, 0) for one in (model, model.model_copy(update={"initial_std": 0.1})))
    before, after = usual.unflatten(usual.parameters), wide.unflatten(wide.parameters)
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], 5 * tensor if tensor.dim() == 2 else tensor)


@MODELS
def test_without_the_table_of_words(model: TextModel) -> None:
    """Shorter vectors; the same logits and gradients of embedded inputs."""
    network = network_of(model)
    (parameters,) = parameters_of(network, 1)
    inputs = embed(network, parameters, IDS[0])
    head, rest = network.head, slice(V * H, None)  # the table comes first
    shorter = network.without(table_of(network))
    assert shorter.dimension == network.dimension - V * H == sum(shorter.sizes) == len(shorter.parameters)
    assert torch.equal(shorter.parameters, network.parameters[rest])
    assert torch.equal(shorter.logits(parameters[rest], inputs), network.logits(parameters, inputs))
    expected = network.gradient(parameters, inputs, LABELS[0])[rest]
    assert torch.equal(shorter.gradient(parameters[rest], inputs, LABELS[0]), expected)
    assert shorter.head.weight.stop == head.weight.stop - V * H
    assert torch.equal(shorter.head.weights(parameters[rest]), head.weights(parameters))
    assert network.head == head and network.names[1:] == shorter.names
    with pytest.raises(ConfigError, match="no table of word embeddings"):
        table_of(shorter)
    with pytest.raises(KeyError):
        shorter.without(network.names[0])


def test_what_does_not_fit() -> None:
    model = Bert(**TINY)
    with pytest.raises(ConfigError, match="sentences of 11 tokens are longer than the model's window of 10"):
        model.build((11,), 2)
    assert model.build((10,), 2) is not None
    with pytest.raises(ConfigError, match=r"'distilbert' reads sentences .*shape \(3, 8, 8\)"):
        DistilBert(**TINY).build((3, 8, 8), 2)
    with pytest.raises(ValidationError, match=r"heads \(3\) must divide the width \(8\)"):
        Bert(**{**TINY, "heads": 3})
    model.check_vocabulary(20)
    with pytest.raises(ConfigError, match="a tokenizer that does not fit the model: it has 21 token ids"):
        model.check_vocabulary(21)
    images = build_network(ConvNet(width=2), (3, 9, 9), 2, seed=0)
    with pytest.raises(ConfigError, match="no table of word embeddings"):
        embed(images, images.parameters, IDS[0])


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root that holds ``lab/tiny``: a BERT that classifies nothing, as one that was trained to fill gaps."""
    monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path))
    folder = tmp_path / "lab" / "tiny"
    config = transformers.BertConfig(
        hidden_size=H,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        vocab_size=V,
        max_position_embeddings=10,
        layer_norm_eps=1e-3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        transformers.BertForPreTraining(config).save_pretrained(folder)
    return folder


def test_trained_weights(staged: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All but the last layer, which the seed decides; and the trained model's small print."""
    model = Bert(**TINY, weights="lab/tiny")
    capfd.readouterr()
    first, same, second = (build_network(model, (L,), 3, seed) for seed in (0, 0, 1))
    assert "".join(capfd.readouterr()) == ""
    trained = load_file(staged / "model.safetensors")
    one, other = (network.unflatten(network.parameters) for network in (first, second))
    assert torch.equal(first.parameters, same.parameters)
    for name, tensor in one.items():
        if name.startswith("classifier"):
            assert name.endswith("bias") or not torch.equal(tensor, other[name])
        else:
            assert torch.equal(tensor, trained[name]) and torch.equal(tensor, other[name])
    assert first._module.config.layer_norm_eps == 1e-3  # type: ignore[union-attr]
    assert first._module.config._attn_implementation == "eager"  # type: ignore[union-attr]
    module = first.trainable_module()
    assert torch.equal(module(IDS[0]), module(IDS[0]))  # no dropout
    with torch.device("meta"):
        assert next(model.build((L,), 2).parameters()).is_meta


def test_weights_that_know_the_task(staged: Path) -> None:
    trained = build_network(DistilBert(**TINY), (L,), 2, seed=3)
    trained._module.save_pretrained(staged)  # type: ignore[operator]
    model = DistilBert(**TINY, weights="lab/tiny")
    assert torch.equal(build_network(model, (L,), 2, seed=4).parameters, trained.parameters)
    with pytest.raises(MissingData, match="cannot be used"):
        model.build((L,), 3)  # of other classes


def test_weights_that_are_not_there(staged: Path) -> None:
    with pytest.raises(MissingData) as caught:
        Bert(**TINY, weights="google-bert/bert-base-uncased").build((L,), 2)
    for words in (
        "no config.json and no model.safetensors",
        str(staged.parents[1] / "google-bert" / "bert-base-uncased"),
        "leakbench stage google-bert/bert-base-uncased",
        "LEAKBENCH_DATA",
    ):
        assert words in str(caught.value)
    (staged / "model.safetensors").unlink()
    with pytest.raises(MissingData, match=r"there is no model\.safetensors in .*; copy") as caught:
        (staged.rename(staged.parents[1] / "flat"), Bert(**TINY, weights="flat").build((L,), 2))
    assert "leakbench stage" not in str(caught.value)  # which asks the Hub for owner/name


@pytest.mark.parametrize("damage", ["cut", "emptied", "config"])
def test_weights_that_cannot_be_read(staged: Path, damage: str) -> None:
    file = staged / "model.safetensors"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "emptied":
        tensors = {name: tensor for name, tensor in load_file(file).items() if "layer.1.output" not in name}
        save_file(tensors, file, metadata={"format": "pt"})
    else:
        (staged / "config.json").write_text("{")
    with pytest.raises(MissingData, match=r"'bert': the weights in .*lab/tiny cannot be used \("):
        Bert(**TINY, weights="lab/tiny").build((L,), 2)


def test_weights_of_another_architecture(staged: Path) -> None:
    with pytest.raises(ConfigError, match="have layers 2 and not 3; positions 10 and not 12"):
        Bert(**{**TINY, "layers": 3, "positions": 12}, weights="lab/tiny").build((L,), 2)
    with pytest.raises(ConfigError, match="are of a bert"):
        DistilBert(**TINY, weights="lab/tiny").build((L,), 2)
    config = json.loads((staged / "config.json").read_text())
    (staged / "config.json").write_text(json.dumps({**config, "type_vocab_size": 3}))
    with pytest.raises(MissingData, match="cannot be used"):
        Bert(**TINY, weights="lab/tiny").build((L,), 2)


def test_who_reads_no_text_does_not_wait_for_transformers() -> None:
    code = (
        "import sys; from leakbench.models.base import MODELS; from leakbench.jobs.base import JOB_KINDS;"
        "[MODELS.get(name) for name in MODELS]; [JOB_KINDS.get(name) for name in JOB_KINDS];"
        "assert not {'transformers', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
