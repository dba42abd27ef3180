"""Sentences from the span of what attention reads: exact where it has fewer dimensions than the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attacks.test_sentence_matching import SPECIAL, L, V, Victims, sentences

from leakbench.attacks.base import ATTACKS, Knowledge, Observations, Words
from leakbench.attacks.dager import Dager
from leakbench.errors import Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.models.base import build_network
from leakbench.models.bert import Bert, DistilBert, embed, word_embeddings
from leakbench.models.linear import Linear
from leakbench.randomness import Streams


def tokens(victims: Victims) -> torch.Tensor:
    found = Dager().reconstruct(victims.observations, victims.knowledge, victims.streams)
    assert found.tokens is not None and found.diverged_at.eq(-1).all()
    network = victims.observations.network
    torch.testing.assert_close(found.images, embed(network, network.parameters, found.tokens))
    return found.tokens


def test_single_sentences_are_exact() -> None:
    victims = Victims(sentences([5, 3, 1, 6])[:, None])
    assert torch.equal(tokens(victims), victims.ids)


@pytest.mark.parametrize("batch", [2, 3])
def test_batches_are_exact(batch: int) -> None:
    victims = Victims(sentences([5, 3, 4, 6, 6, 2])[: 6 // batch * batch].view(-1, batch, L), layers=3)
    found = tokens(victims)
    for mine, truth in zip(found, victims.ids, strict=True):
        assert sorted(map(tuple, mine.tolist())) == sorted(map(tuple, truth.tolist()))


def test_equal_sentences_and_shared_words() -> None:
    ids = sentences([5, 5])
    ids[1] = ids[0]
    other = ids.clone()
    other[1, 2] = SPECIAL if ids[0, 2] != SPECIAL else SPECIAL + 1
    for batch in (ids, other):
        victims = Victims(batch[None], layers=3)
        assert sorted(map(tuple, tokens(victims)[0].tolist())) == sorted(map(tuple, batch.tolist()))


def test_against_the_span_by_words() -> None:
    """Every token at every position, against a least-squares solution of the first layer's queries alone."""
    victims = Victims(sentences([4])[:, None])
    network = victims.observations.network
    named = network.unflatten(victims.observations.gradients[0])
    (rows,) = [value for name, value in named.items() if "layer.0" in name and name.endswith("query.weight")]
    module = network.module
    found = victims.words.known[0, 0].clone()
    for place in (found < 0).nonzero().flatten().tolist():
        residuals = []
        for token in range(SPECIAL, V):
            sentence = torch.full((1, L), token)
            with torch.no_grad():
                vector = module.base_model.embeddings(input_ids=sentence)[0, place]  # type: ignore[union-attr, operator]
            solved = torch.linalg.lstsq(rows.double().T, vector.double()[:, None], driver="gelsd", rcond=1e-5).solution
            residuals.append(float((rows.double().T @ solved - vector.double()[:, None]).norm()))
        found[place] = SPECIAL + min(range(V - SPECIAL), key=residuals.__getitem__)
    assert torch.equal(found, victims.ids[0, 0]) and torch.equal(tokens(victims)[0, 0], found)


def test_a_client_alone_gives_the_same() -> None:
    victims = Victims(sentences([5, 3, 6])[:, None])
    assert torch.equal(tokens(victims.only(1))[0], tokens(victims)[1])


def test_noise_leaves_an_answer() -> None:
    victims = Victims(sentences([5, 3, 6])[:, None])
    gradients = victims.observations.gradients
    noise = torch.randn(gradients.shape, generator=torch.Generator().manual_seed(0))
    faint = replace(victims.observations, gradients=gradients + 1e-6 * noise)
    strong = replace(victims.observations, gradients=gradients + 10 * noise)
    right = []
    for seen in (faint, strong):
        found = Dager().reconstruct(seen, victims.knowledge, victims.streams).tokens
        assert found is not None and (found[victims.words.known >= 0] == victims.ids[victims.words.known >= 0]).all()
        free = victims.words.known < 0
        right.append(float((found == victims.ids)[free].float().mean()))
    assert right[0] == 1 and right[1] < 0.5


def test_infeasible() -> None:
    victims = Victims(sentences([5])[:, None])
    seen, known, streams = victims.observations, victims.knowledge, victims.streams
    with pytest.raises(Infeasible, match="clients take several"):
        Dager().reconstruct(replace(seen, local=LocalTraining(steps=2, rate=0.1)), known, streams)
    many = Victims(sentences([6] * 5)[None])
    with pytest.raises(Infeasible, match="fewer tokens than the model is wide; there are 32, and the width is 32"):
        Dager().reconstruct(many.observations, many.knowledge, many.streams)
    network = build_network(Linear(), (1, 8, 8), 10, 0)
    images = Observations(network, network.parameters, torch.ones(1, network.dimension), (1, 1, 8, 8))
    with pytest.raises(Infeasible, match="finds tokens of sentences"):
        Dager().reconstruct(images, Knowledge(), Streams([("a", 0)]))


def test_another_model_of_sentences_is_refused() -> None:
    """A model that holds words, and no attention layer that the attack knows."""
    victims = Victims(sentences([5])[:, None])
    network = build_network(Linear(), (1, 8, 8), 10, 0)
    seen = Observations(network, network.parameters, torch.ones(1, network.dimension), (1, L, 33))
    with pytest.raises(Infeasible, match="needs a model that begins with attention"):
        Dager().reconstruct(seen, victims.knowledge, victims.streams)


def test_one_layer_does_not_tell_sentences_apart() -> None:
    victims = Victims(sentences([5, 3])[None])
    model = Bert(width=32, layers=1, heads=2, intermediate=64, vocabulary=V, positions=L)
    network = build_network(model, (L,), 2, 0)
    inputs = embed(network, network.parameters, victims.ids[0])
    gradient = network.gradient(network.parameters, inputs, torch.tensor([0, 1]))
    seen = Observations(network, network.parameters, gradient[None], (2, L, 33))
    words = victims.words._replace(embeddings=word_embeddings(network, network.parameters))
    with pytest.raises(Infeasible, match="by a second layer, and there is one"):
        Dager().reconstruct(seen, replace(victims.knowledge, words=words), victims.streams)


def test_distilbert() -> None:
    ids = sentences([5])
    model = DistilBert(
        width=32, layers=3, heads=2, intermediate=64, vocabulary=V, positions=L, initial_std=0.55 / 32**0.5
    )
    network = build_network(model, (L,), 2, 0)
    gradient = network.gradient(network.parameters, embed(network, network.parameters, ids), torch.tensor([1]))
    seen = Observations(network, network.parameters, gradient[None], (1, L, 33))
    known = torch.where(ids < SPECIAL, ids, -1)[None]
    words = Words(word_embeddings(network, network.parameters), torch.arange(V) >= SPECIAL, known)
    found = Dager().reconstruct(seen, Knowledge(words=words), Streams([("a", 0)])).tokens
    assert found is not None and torch.equal(found[0], ids)


def test_it_needs_nothing() -> None:
    assert ATTACKS.get("dager") is Dager and Dager().needs == frozenset() and Dager().reconstructs == "sentences"
