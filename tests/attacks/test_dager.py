"""Sentences from the span of what attention reads: exact where it has fewer dimensions than the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attacks.test_sentence_matching import SPECIAL, L, V, Victims, sentences

from leakbench.attacks.adaptive import Masked
from leakbench.attacks.base import ATTACKS, ClientSetup, Knowledge, Observations, Words
from leakbench.attacks.dager import Dager
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.models.base import Model, Network, build_network
from leakbench.models.bert import Bert, DistilBert, embed, word_embeddings
from leakbench.models.gpt2 import Gpt2
from leakbench.models.linear import Linear
from leakbench.models.lora import Lora
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
    with pytest.raises(Infeasible, match="no attention at the beginning of the model"):
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


def lengths(*words: int) -> torch.Tensor:
    """A client's sentences of so many words, ``[1, B, L]``; with each come two special tokens."""
    return sentences(list(words))[None]


@pytest.mark.parametrize(
    ("rank", "words", "moved"),
    [
        pytest.param(8, (5,), 0, id="a token fewer than the rank"),
        pytest.param(15, (4, 6), 0, id="a batch"),
        pytest.param(8, (5,), 0.1, id="trained"),
        pytest.param(4, (6,), 0.1, id="trained, as many tokens as both ranks"),
        pytest.param(8, (4, 5), 0.1, id="trained, a batch"),
    ],
)
def test_low_rank_adapters(rank: int, words: tuple[int, ...], moved: float) -> None:
    victims = Victims(lengths(*words), layers=3, lora=Lora(rank=rank), moved=moved)
    found = tokens(victims)
    assert sorted(map(tuple, found[0].tolist())) == sorted(map(tuple, victims.ids[0].tolist()))


@pytest.mark.parametrize(
    ("rank", "words", "moved", "reason"),
    [
        (7, 5, 0, "than the rank of low-rank adapters, as long as their B is zero; there are 7, and the rank is 7"),
        (3, 5, 0.1, "or no more than the 6 rows of its layers' A; there are 7, and the rank is 3"),
    ],
)
def test_more_tokens_than_adapters_tell(rank: int, words: int, moved: float, reason: str) -> None:
    victims = Victims(lengths(words), lora=Lora(rank=rank), moved=moved)
    with pytest.raises(Infeasible, match=reason):
        tokens(victims)


def test_adapters_of_few_dimensions_are_all_that_is_told() -> None:
    """With as many tokens as the rank every word is in the span, and nothing in the gradient tells them apart."""
    victims = Victims(lengths(5), lora=Lora(rank=7))
    network = victims.observations.network
    named = network.unflatten(victims.observations.gradients[0])
    values = [
        torch.linalg.svdvals(value.double())
        for name, value in named.items()
        if "layer.0." in name and name.endswith(".B.weight")
    ]
    assert len(values) == 2 and all(len(each) == 7 and each[-1] > 1e-5 * each[0] for each in values)


def test_it_needs_nothing() -> None:
    assert ATTACKS.get("dager") is Dager and Dager().needs == frozenset() and Dager().reconstructs == "sentences"


def defended(gradients: torch.Tensor, defense: str, network: Network) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients after a defense, and the coordinates that show that it changed them."""
    draws = torch.Generator().manual_seed(0)
    if defense == "mask":
        lost = torch.rand(gradients.shape, generator=draws) < 0.4
        return gradients.masked_fill(lost, 0.0), lost
    if defense == "flips":
        flipped = torch.rand(gradients.shape, generator=draws) < 0.02
        return gradients + flipped * 10 * gradients.abs().max(), None
    protected = torch.tensor([name.startswith(("classifier.", "bert.pooler")) for name in network.names])
    where = protected.repeat_interleave(torch.tensor(network.sizes))
    return gradients.where(~where, torch.randn(gradients.shape, generator=draws)), None


@pytest.mark.parametrize(("defense", "plain"), [("mask", 0.8), ("flips", 0.5)])
def test_masks_and_flipped_bits_are_repaired(defense: str, plain: float) -> None:
    victims = Victims(sentences([5, 3, 6])[:, None])
    gradients, marked = defended(victims.observations.gradients, defense, victims.observations.network)
    seen = replace(victims.observations, gradients=gradients, marked=marked)
    assert right(Dager(), seen, victims) > 0.9
    assert right(Dager(repairs=False), seen, victims) <= plain


def test_noise_of_one_tensor_does_not_hide_the_others() -> None:
    """The noisy one of two equally long gradients would have the largest directions."""
    victims = Victims(sentences([5, 3, 6])[:, None])
    gradients = victims.observations.gradients.clone()
    network = victims.observations.network
    hidden = torch.tensor([name.endswith("query.weight") for name in network.names])
    where = hidden.repeat_interleave(torch.tensor(network.sizes))
    noise = torch.randn(gradients.shape, generator=torch.Generator().manual_seed(0))
    gradients += noise * torch.where(where, 1.0, 1e-6)
    assert right(Dager(), replace(victims.observations, gradients=gradients), victims) == 1


def test_defenses_of_the_last_layers_alone_fall() -> None:
    victims = Victims(sentences([5, 3, 6])[:, None])
    gradients, _ = defended(victims.observations.gradients, "last", victims.observations.network)
    assert not torch.equal(gradients, victims.observations.gradients)
    assert right(Dager(), replace(victims.observations, gradients=gradients), victims) == 1


def right(attack: Dager, seen: Observations, victims: Victims) -> float:
    found = attack.reconstruct(seen, victims.knowledge, victims.streams).tokens
    assert found is not None
    return float((found == victims.ids)[victims.words.known < 0].float().mean())


UNREAD = build_network(Linear(), (1, 2, 2), 2, seed=0)
"""The model says all that it asks."""


@pytest.mark.parametrize(
    ("model", "local", "samples", "reason"),
    [
        (Linear(), ONE_STEP, 1, "model 'linear' begins with none"),
        (Bert(width=32, heads=2), LocalTraining(steps=2), 1, "clients take several"),
        (Bert(width=32, heads=2, layers=1), ONE_STEP, 2, "a second layer, and there is one"),
        (Bert(width=32, heads=2), ONE_STEP, 30, "there are 32, and the width is 32"),
        (Bert(width=32, heads=2, lora=Lora(rank=3)), ONE_STEP, 1, "B is zero; there are 3, and the rank is 3"),
        (Gpt2(width=32, heads=2, lora=Lora(rank=4)), ONE_STEP, 2, "B is zero; there are 4, and the rank is 4"),
    ],
)
def test_what_the_plan_shows_is_refused_before_anything_is_computed(
    model: Model, local: LocalTraining, samples: int, reason: str
) -> None:
    for attack in (Dager(), Masked(attack=Dager())):
        with pytest.raises(Infeasible, match=reason):
            attack.check_clients(ClientSetup(model, UNREAD, local, (samples, 20)))


def test_clients_that_it_reads() -> None:
    Dager().check_clients(ClientSetup(Bert(width=32, heads=2), UNREAD, ONE_STEP, (4, 20)))
    Dager().check_clients(ClientSetup(Bert(width=32, heads=2, lora=Lora(rank=4)), UNREAD, ONE_STEP, (1, 20)))


def test_trained_adapters_are_read_up_to_the_rows_of_their_a() -> None:
    model = Bert(width=32, heads=2, lora=Lora(rank=3))
    Masked(attack=Dager()).check_clients(ClientSetup(model, UNREAD, ONE_STEP, (4, 20), trained=True))
    with pytest.raises(Infeasible, match="no more than the 6 rows of its layers' A; there are 7, and the rank is 3"):
        Masked(attack=Dager()).check_clients(ClientSetup(model, UNREAD, ONE_STEP, (5, 20), trained=True))
