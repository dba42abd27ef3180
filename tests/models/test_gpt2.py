"""GPT-2: both entries agree, later tokens and padding change nothing, and its gradients give sentences away."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from tests.attacks.test_sentence_matching import SPECIAL, L, V, sentences

from leakbench.attacks.base import Knowledge, Observations, Words
from leakbench.attacks.dager import Dager
from leakbench.models.attention import attention_inputs
from leakbench.models.base import Network, build_network
from leakbench.models.bert import embed, word_embeddings
from leakbench.models.gpt2 import Gpt2
from leakbench.randomness import Streams

WIDTH = 32


def built(layers: int = 3) -> Network:
    model = Gpt2(
        width=WIDTH, layers=layers, heads=2, intermediate=64, vocabulary=V, positions=L, initial_std=0.55 / WIDTH**0.5
    )
    return build_network(model, (L,), 2, 0)


def test_both_entries_agree_and_padding_does_not_matter() -> None:
    network, ids = built(), sentences([5, 2])
    logits = network.logits(network.parameters, ids)
    torch.testing.assert_close(network.logits(network.parameters, embed(network, network.parameters, ids)), logits)
    inputs = embed(network, network.parameters, ids)
    inputs[..., :-1] += 3.0 * (ids == 0)[..., None]
    torch.testing.assert_close(network.logits(network.parameters, inputs), logits)


def test_tokens_look_back_alone() -> None:
    """What the second layer reads up to a place, by the library's own mask; nothing of it changes behind that place."""
    network, ids = built(), sentences([6])
    inputs = attention_inputs(network, network.parameters)
    read = inputs.second(ids)
    changed = ids.clone()
    changed[0, 4] = SPECIAL if ids[0, 4] != SPECIAL else SPECIAL + 1
    torch.testing.assert_close(inputs.second(changed)[:, :4], read[:, :4])
    assert not torch.allclose(inputs.second(changed)[:, 4], read[:, 4])
    module = network.trainable_module().eval()
    module.load_state_dict(network.unflatten(network.parameters), strict=False)
    with torch.no_grad():
        states = module.transformer(ids, use_cache=False, output_hidden_states=True).hidden_states[1]  # type: ignore[operator]
        torch.testing.assert_close(read, module.transformer.h[1].ln_1(states))  # type: ignore[union-attr, index]


@pytest.mark.parametrize("counts", [[5], [5, 3], [4, 6, 2]])
def test_its_gradient_gives_sentences_away(counts: list[int]) -> None:
    network, ids = built(), sentences(counts)
    labels = torch.arange(len(ids)) % 2
    gradient = network.gradient(network.parameters, embed(network, network.parameters, ids), labels)
    seen = Observations(network, network.parameters, gradient[None], (len(ids), L, WIDTH + 1))
    known = torch.where(ids < SPECIAL, ids, -1)[None]
    words = Words(word_embeddings(network, network.parameters), torch.arange(V) >= SPECIAL, known)
    found = Dager().reconstruct(seen, Knowledge(words=words), Streams([("a", 0)])).tokens
    assert found is not None
    assert sorted(map(tuple, found[0].tolist())) == sorted(map(tuple, ids.tolist()))


def test_trained_weights_are_refused() -> None:
    with pytest.raises(ValidationError, match="weights"):
        Gpt2(weights="openai-community/gpt2")
