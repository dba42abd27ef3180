"""Adapters against merged weights, what of a model trains and travels, and the spans that its gradients tell of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.attacks.test_sentence_matching import COSINE, SPECIAL, L, V, Victims, sentences

from leakbench.attacks.base import Knowledge, Observations, Words
from leakbench.attacks.dager import Dager
from leakbench.federated.message import DenseMessage
from leakbench.federated.step import ClientSteps
from leakbench.models.attention import attention_inputs
from leakbench.models.base import Network, build_network
from leakbench.models.bert import Bert, BertLora, DistilBert, TextModel, embed, word_embeddings
from leakbench.models.gpt2 import Gpt2, Gpt2Lora
from leakbench.models.lora import Lora
from leakbench.models.sizes import parameter_counts
from leakbench.randomness import Streams

TINY: dict[str, Any] = {"width": 8, "layers": 2, "heads": 2, "intermediate": 12, "vocabulary": V, "positions": L}
KINDS: dict[str, type[TextModel]] = {"bert": Bert, "distilbert": DistilBert, "gpt2": Gpt2}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
IDS = sentences([5, 3])
LABELS = torch.tensor([0, 1])
HEADS = ("classifier.", "pre_classifier.", "score.")


def built(kind: str, lora: Lora, seed: int = 0) -> Network:
    return build_network(KINDS[kind](**TINY, initial_std=0.2, lora=lora), (L,), 2, seed)


def moved(network: Network) -> torch.Tensor:
    """Parameters that training could have led to, float64 ``[d]``."""
    draws = torch.randn(network.dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return network.parameters + 0.3 * draws


def merged(kind: str, lora: Lora, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of the model without adapters that computes the same, by the names of its parameters."""
    whole = {name: tensor for name, tensor in tensors.items() if ".lora." not in name}
    for name in tensors:
        if not name.endswith(".A.weight"):
            continue
        layer, target = name.removesuffix(".A.weight").split(".lora.")
        change = lora.alpha / lora.rank * tensors[f"{layer}.lora.{target}.B.weight"] @ tensors[name]
        if kind == "gpt2":  # queries, keys and values side by side, transposed
            place = ("query", "key", "value").index(target)
            change = torch.nn.functional.pad(change.T, (8 * place, 8 * (2 - place)))
        whole[f"{layer}.weight"] = whole[f"{layer}.weight"] + change
    return whole


@EVERY_KIND
@settings(max_examples=5, deadline=None)
@given(
    rank=st.integers(1, 9),
    alpha=st.floats(0.1, 30),
    targets=st.sets(st.sampled_from(["query", "key", "value"]), min_size=1).map(lambda each: tuple(sorted(each))),
)
def test_adapters_are_changes_of_weights(kind: str, rank: int, alpha: float, targets: Any) -> None:
    """Logits and gradients are those of the model without adapters whose weights are ``W + (alpha / rank) B A``."""
    lora = Lora(rank=rank, alpha=alpha, targets=targets)
    network = built(kind, lora)
    network._module.double()
    network.frozen = {name: tensor.double() for name, tensor in network.frozen.items()}
    plain = KINDS[kind](**TINY).build((L,), 2).double().eval()
    parameters = moved(network).requires_grad_()
    whole = merged(kind, lora, network.tensors(parameters))
    assert whole.keys() == dict(plain.named_parameters()).keys()
    logits = torch.func.functional_call(plain, whole, (IDS,))
    torch.testing.assert_close(network.logits(parameters, IDS), logits, rtol=1e-10, atol=1e-12)
    (expected,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, LABELS), parameters)
    found = network.gradient(parameters.detach(), IDS, LABELS)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


@EVERY_KIND
def test_it_begins_as_the_model_without_adapters(kind: str) -> None:
    network = built(kind, Lora(rank=3))
    named = network.unflatten(network.parameters)
    assert all(
        bool(tensor.any()) == (not name.endswith(".B.weight")) for name, tensor in named.items() if "lora" in name
    )
    plain = KINDS[kind](**TINY).build((L,), 2).eval()
    plain.load_state_dict(
        {name: each for name, each in network.tensors(network.parameters).items() if "lora" not in name}
    )
    assert torch.equal(network.logits(network.parameters, IDS), plain(IDS))


@EVERY_KIND
def test_adapters_and_the_last_layers_alone_train_and_travel(kind: str) -> None:
    lora = Lora(rank=3, targets=("key", "value"))
    network = built(kind, lora)
    assert all(".lora." in name or name.startswith(HEADS) for name in network.names)
    assert not any(".lora." in name or name.startswith(HEADS) for name in network.frozen)
    adapters = [name for name in network.names if ".lora." in name]
    assert len(adapters) == 2 * 2 * 2 and not any(".query." in name.rpartition(".lora")[2] for name in adapters)
    sizes = dict(zip(network.names, network.sizes, strict=True))
    assert sum(sizes[name] for name in adapters) == 2 * 2 * 2 * 3 * 8
    assert parameter_counts(KINDS[kind](**TINY, lora=lora), (L,), 2) == sizes
    inputs = embed(network, network.parameters, IDS)
    steps = ClientSteps(network, network.parameters, inputs[None], LABELS[None], Streams([("a", 0)]))
    assert DenseMessage(steps.gradient).bits == 32 * sum(network.sizes)

    module = network.trainable_module()
    before = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):  # the second step changes A
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(IDS), LABELS).backward()
        optimiser.step()
    changed = {name for name, tensor in module.named_parameters() if not torch.equal(tensor, before[name])}
    assert changed == set(network.names)


def test_repetitions_share_what_is_frozen() -> None:
    first, same, other = (built("bert", Lora(rank=3), seed) for seed in (1, 1, 2))
    assert torch.equal(first.parameters, same.parameters) and not torch.equal(first.parameters, other.parameters)
    assert all(torch.equal(tensor, other.frozen[name]) for name, tensor in first.frozen.items())
    table = word_embeddings(first, first.parameters)
    assert table.shape == (V, 8) and torch.equal(table, word_embeddings(other, moved(other)))


def spans(network: Network, parameters: torch.Tensor, ids: torch.Tensor) -> dict[str, float]:
    """Largest part of the first layer's inputs that is outside of the rows of each gradient of its adapters."""
    gradients = network.unflatten(network.gradient(parameters, embed(network, parameters, ids), LABELS[:1]))
    read = attention_inputs(network, parameters).first(ids[0], L)[torch.arange(L), torch.arange(L)][ids[0] > 0]
    outside: dict[str, float] = {}
    for name, gradient in gradients.items():
        if ".0." not in name or ".lora." not in name:
            continue
        target, matrix = name.split(".")[-3:-1]
        down = network.unflatten(parameters)[name.replace(f".{matrix}.", ".A.")]
        inputs = (read if matrix == "A" else read @ down.T).double()
        _, values, rows = torch.linalg.svd(gradient.double(), full_matrices=False)
        basis = rows[values > 1e-6 * gradient.norm()]
        outside[f"{matrix} of {target}"] = float((inputs - inputs @ basis.T @ basis).norm() / inputs.norm())
    return outside


def test_spans() -> None:
    """Gradients of B span what A makes of the inputs, from the start; those of A the inputs, once B is not zero."""
    model = Bert(**{**TINY, "width": 32}, initial_std=0.55 / 32**0.5, lora=Lora(rank=9))
    network, ids = build_network(model, (L,), 2, 0), sentences([5])
    at_start = spans(network, network.parameters, ids)
    assert at_start["B of query"] < 1e-4 and at_start["B of value"] < 1e-4
    assert at_start["A of query"] == at_start["A of value"] == 1
    later = spans(network, network.parameters + 0.1 * moved(network).float(), ids)
    assert max(later.values()) < 1e-2


@pytest.mark.parametrize("rank", [8, 16])
def test_a_search_finds_words(rank: int) -> None:
    victims = Victims(sentences([5, 6, 4])[:, None], lora=Lora(rank=rank))
    assert victims.recovered(victims.attack(50, **COSINE)) > 0.4
    assert victims.recovered(victims.attack(1, **COSINE)) < 0.2


@pytest.mark.parametrize("counts", [[5], [4, 3]])
def test_dager_reads_a_decoders_adapters(counts: list[int]) -> None:
    model = Gpt2Lora(**{**TINY, "width": 32, "layers": 3}, initial_std=0.55 / 32**0.5, lora=Lora(rank=14))
    network, ids = build_network(model, (L,), 2, 0), sentences(counts)
    gradient = network.gradient(network.parameters, embed(network, network.parameters, ids), LABELS[: len(ids)])
    seen = Observations(network, network.parameters, gradient[None], (len(ids), L, 33))
    known = torch.where(ids < SPECIAL, ids, -1)[None]
    words = Words(word_embeddings(network, network.parameters), torch.arange(V) >= SPECIAL, known)
    found = Dager().reconstruct(seen, Knowledge(words=words), Streams([("a", 0)])).tokens
    assert found is not None
    assert sorted(map(tuple, found[0].tolist())) == sorted(map(tuple, ids.tolist()))


def test_presets_are_those_of_the_paper() -> None:
    """Hu et al. (2022): queries and values; rank and alpha 8 of base models, 4 and 32 of GPT-2."""
    assert BertLora().lora == Lora(rank=8, alpha=8, targets=("query", "value"))
    assert Gpt2Lora().lora == Lora(rank=4, alpha=32, targets=("query", "value"))
    assert BertLora().parameters()["lora"]["rank"] == 8 and "lora" not in Bert().parameters()
    assert sum(parameter_counts(BertLora(), (12,), 2).values()) == 12 * 2 * 2 * 8 * 768 + 2 * 769


def test_what_does_not_fit() -> None:
    with pytest.raises(ValidationError, match="each of query, key and value once"):
        Lora(targets=("key", "key"))
