"""Sentences from gradients: a small BERT gives them away; what is known stays; victims do not mix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from leakbench.attacks.adaptive import Adaptive, Masked
from leakbench.attacks.base import Knowledge, KnownInputs, Observations, Reconstruction, Words, observed
from leakbench.attacks.language.model import CausalTransformer, LanguageModel
from leakbench.attacks.objectives import CosinePerTensor
from leakbench.attacks.sentences import Reordering, SentenceMatching
from leakbench.defenses.clients import DefendedClients, Examples, PublicMechanism
from leakbench.defenses.pruning import RandomMask
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP
from leakbench.federated.step import ClientSteps
from leakbench.jobs.stacked import joint_knowledge, side_by_side
from leakbench.models.base import build_network
from leakbench.models.bert import Bert, embed, table_of, word_embeddings
from leakbench.models.lora import Lora
from leakbench.randomness import Streams, generator

V, L, SPECIAL = 40, 8, 4
ADAM = {"kind": "adam", "rate": 0.3, "decay": "cosine"}
TAG: dict[str, Any] = {
    "objective": {"kind": "l1_l2"},
    "regularisers": [{"kind": "embedding_norm", "weight": 25.0}],
    "optimiser": ADAM,
    "scale": "embeddings",
}
COSINE: dict[str, Any] = {
    "objective": {"kind": "cosine_per_tensor", "floor": 1e-6},
    "regularisers": [{"kind": "embedding_norm", "weight": 0.1}],
    "optimiser": ADAM,
    "scale": "embeddings",
}
REORDERING = {"candidates": 12, "every": 3, "fluency": 0.0}


def sentences(words: list[int]) -> torch.Tensor:
    """Ids ``[len(words), L]``: [CLS], so many drawn words, [SEP] and padding."""
    draws = torch.randint(SPECIAL, V, (len(words), L), generator=generator("sentences"))
    for row, count in enumerate(words):
        draws[row, 0], draws[row, count + 1], draws[row, count + 2 :] = 2, 3, 0
    return draws


class Victims:
    """Gradients of a small network on batches of sentences ``[n, B, L]``, and what an attacker knows of them.

    Its parameters are as they are initialised, or moved from there by normal draws.
    """

    def __init__(
        self, ids: torch.Tensor, seed: int = 0, layers: int = 2, lora: Lora | None = None, moved: float = 0.0
    ) -> None:
        small: dict[str, Any] = {"width": 32, "heads": 2, "intermediate": 64, "vocabulary": V, "positions": L}
        network = build_network(Bert(**small, layers=layers, initial_std=0.55 / 32**0.5, lora=lora), (L,), 2, seed)
        self.ids, (n, batch) = ids, ids.shape[:2]
        parameters = network.parameters
        if moved:
            parameters = parameters + moved * torch.randn(len(parameters), generator=generator("moved"))
        inputs = embed(network, parameters, ids)
        labels = (torch.arange(n * batch) % 2).view(n, batch)
        gradients = torch.func.vmap(lambda x, y: network.gradient(parameters, x, y))(inputs, labels)
        known = torch.where(ids < SPECIAL, ids, -1)
        where = torch.cat(
            [(known >= 0)[..., None].expand(n, batch, L, 32), torch.ones(n, batch, L, 1, dtype=torch.bool)], dim=3
        )
        # What is not known must not be looked at.
        self.inputs = KnownInputs(where, inputs.masked_fill(~where, torch.nan))
        words = Words(word_embeddings(network, parameters), torch.arange(V) >= SPECIAL, known)
        self.observations = Observations(network, parameters, gradients, (batch, L, 33))
        self.knowledge = Knowledge(labels=labels, inputs=self.inputs, words=words)
        self.streams = Streams([("victim", n * seed + row) for row in range(n)])

    def only(self, row: int) -> Victims:
        one = object.__new__(Victims)
        rows = slice(row, row + 1)
        words = self.words
        one.ids = self.ids[rows]
        one.inputs = KnownInputs(*(part[rows] for part in self.inputs))
        one.observations = replace(self.observations, gradients=self.observations.gradients[rows])
        assert self.knowledge.labels is not None
        one.knowledge = replace(
            self.knowledge,
            labels=self.knowledge.labels[rows],
            inputs=one.inputs,
            words=words._replace(known=words.known[rows]),
        )
        one.streams = Streams(self.streams.keys[rows])
        return one

    @property
    def words(self) -> Words:
        assert self.knowledge.words is not None
        return self.knowledge.words

    def attack(self, iterations: int = 3, *, seen: dict[str, Any] | None = None, **settings: Any) -> Reconstruction:
        attack = SentenceMatching(iterations=iterations, **settings)
        return attack.reconstruct(replace(self.observations, **(seen or {})), self.knowledge, self.streams)

    def recovered(self, found: Reconstruction) -> float:
        """The part of the words that are found, each in its place."""
        assert found.tokens is not None
        free = self.words.known < 0
        return float((found.tokens == self.ids)[free].double().mean())


@pytest.fixture(scope="module")
def victims() -> Victims:
    return Victims(sentences([5, 6, 4])[:, None])


@pytest.mark.parametrize(
    ("settings", "iterations", "least"),
    [
        pytest.param(TAG, 50, 0.7, id="tag"),
        pytest.param(TAG, 150, 0.95, id="tag, longer", marks=pytest.mark.slow),
        pytest.param(COSINE, 150, 0.6, id="cosine", marks=pytest.mark.slow),
    ],
)
def test_recovers_sentences(victims: Victims, settings: dict[str, Any], iterations: int, least: float) -> None:
    found = victims.attack(iterations, **settings)
    assert victims.recovered(found) >= least
    assert (found.diverged_at == -1).all()
    assert victims.recovered(victims.attack(1, **settings)) < 0.2  # where the search begins


@pytest.mark.slow
def test_recovers_batches() -> None:
    """Of two sentences, which are told apart by their labels."""
    pairs = Victims(sentences([3, 4, 4, 2]).view(2, 2, L))
    assert pairs.recovered(pairs.attack(150, **TAG)) >= 0.6
    found = pairs.attack(9, starts=4, permutations=4, reordering=REORDERING, **TAG)
    assert found.tokens is not None and found.tokens.shape == (2, 2, L)


@pytest.mark.parametrize("scale", ["inputs", "embeddings"])
def test_what_is_known_stays(victims: Victims, scale: str) -> None:
    settings = TAG | {"scale": scale, "starts": 3, "permutations": 3, "reordering": REORDERING}
    found = victims.attack(6, **settings)
    where, values = victims.inputs
    assert torch.equal(found.images[where], values[where])
    assert found.tokens is not None and found.tokens.dtype == torch.int64
    known = victims.words.known
    assert torch.equal(found.tokens[known >= 0], known[known >= 0])
    assert (found.tokens[known < 0] >= SPECIAL).all()
    assert found.images.isfinite().all()


def test_words_alone_are_found(victims: Victims) -> None:
    """Although special tokens may be nearer, as at the start; or all but one be forbidden."""
    words = victims.words
    begun = victims.attack(1, **(TAG | {"optimiser": {"kind": "adam", "rate": 1e-9}}))
    free = words.known < 0
    nearest = (
        torch.nn.functional.normalize(begun.images[..., :-1][free], dim=1)
        @ torch.nn.functional.normalize(words.embeddings, dim=1).T
    )
    assert begun.tokens is not None and (nearest.argmax(dim=1) < SPECIAL).any()
    assert torch.equal(begun.tokens[free], nearest[:, SPECIAL:].argmax(dim=1) + SPECIAL)
    attack = SentenceMatching(iterations=1, **TAG)
    knowledge = replace(victims.knowledge, words=words._replace(allowed=torch.arange(V) == 17))
    found = attack.reconstruct(victims.observations, knowledge, victims.streams)
    assert found.tokens is not None and (found.tokens[free] == 17).all()


LAMP = {"starts": 3, "permutations": 3, "reordering": REORDERING}


@pytest.mark.parametrize("settings", [TAG, COSINE | LAMP], ids=["tag", "lamp"])
def test_victims_do_not_mix(victims: Victims, settings: dict[str, Any]) -> None:
    together, again = (victims.attack(3, **settings) for _ in range(2))
    assert together.tokens is not None and again.tokens is not None
    assert torch.equal(together.images, again.images) and torch.equal(together.tokens, again.tokens)
    alone = victims.only(1).attack(3, **settings)
    assert alone.tokens is not None and torch.equal(alone.tokens[0], together.tokens[1])
    torch.testing.assert_close(alone.images[0], together.images[1], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("settings", [TAG, COSINE | LAMP], ids=["tag", "lamp"])
def test_several_models_are_attacked_as_each_alone(settings: dict[str, Any]) -> None:
    """Their words differ, and so do the units in which the variables are."""
    models = [Victims(sentences([5, 6])[:, None], seed) for seed in range(2)]
    models[1].knowledge = replace(
        models[1].knowledge, words=models[1].words._replace(embeddings=2 * models[1].words.embeddings)
    )
    attack = SentenceMatching(iterations=3, **settings)
    assert attack.several_models
    joint = attack.reconstruct(
        side_by_side([each.observations for each in models]),
        joint_knowledge([each.knowledge for each in models]),
        Streams([key for each in models for key in each.streams.keys]),
    )
    for place, each in enumerate(models):
        alone, rows = each.attack(3, **settings), joint.rows(2 * place, 2 * place + 2)
        assert alone.tokens is not None and rows.tokens is not None and torch.equal(alone.tokens, rows.tokens)
        torch.testing.assert_close(alone.images, rows.images, rtol=1e-2, atol=1e-3)


def test_reordering_puts_words_in_order(victims: Victims) -> None:
    """A search that begins at the right words in another order, and hardly moves by itself."""
    network, ids = victims.observations.network, victims.ids.clone()
    ids[:, :, [1, 3]] = ids[:, :, [3, 1]]
    inputs = embed(network, network.parameters, ids)
    settings = TAG | {"objective": {"kind": "l2"}, "optimiser": {"kind": "adam", "rate": 1e-6}}
    trial = {"candidates": 100, "every": 2, "burn_in": 0.0, "fluency": 0.0}
    found = victims.attack(4, seen={"start": inputs}, reordering=trial, **settings)
    assert victims.recovered(found) == 1
    without = victims.attack(4, seen={"start": inputs}, **settings)
    assert without.tokens is not None and torch.equal(without.tokens, ids)


def test_the_fluency_of_a_language_model_counts(victims: Victims) -> None:
    """With all of the weight, the most fluent of the tried orders wins."""
    transformer = CausalTransformer(layers=1, width=8, heads=2, vocabulary=V, positions=L)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LanguageModel(transformer, transformer.build().eval())
    attack = SentenceMatching(
        iterations=2, reordering=Reordering(candidates=60, every=2, burn_in=0, fluency=1e6), **TAG
    )
    assert "language_model" in attack.needs
    with pytest.raises(Infeasible, match="asks a language model how fluent sentences are, and has none"):
        attack.reconstruct(victims.observations, victims.knowledge, victims.streams)
    knowledge = replace(victims.knowledge, language_model=model)
    plain = victims.attack(2, **TAG)
    fluent = attack.reconstruct(victims.observations, knowledge, victims.streams)
    assert plain.tokens is not None and fluent.tokens is not None
    before, after = (model.log_perplexity(tokens[:, 0]) for tokens in (plain.tokens, fluent.tokens))
    assert (after <= before).all() and (after < before).any()
    assert torch.equal(plain.tokens.sort(dim=2).values, fluent.tokens.sort(dim=2).values)


def test_unit_of_the_search(victims: Victims) -> None:
    """Starts are drawn, and steps are taken, in network inputs or in the size of embeddings' numbers."""
    words, (where, _) = victims.words, victims.inputs
    rms = float(words.embeddings[words.allowed].square().mean().sqrt())
    drawn = {}
    for scale in ("inputs", "embeddings"):
        begun, moved = (
            victims.attack(1, **(TAG | {"scale": scale, "optimiser": {"kind": "adam", "rate": rate}})).images[~where]
            for rate in (1e-12, 0.25)
        )
        drawn[scale] = begun
        unit = rms if scale == "embeddings" else 1
        torch.testing.assert_close((moved - begun).abs(), torch.full_like(moved, 0.25 * unit), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(drawn["embeddings"], rms * drawn["inputs"], rtol=1e-5, atol=1e-7)
    assert drawn["inputs"].std() == pytest.approx(1, abs=0.1)
    for scale in ("inputs", "embeddings"):
        changed = {"scale": scale, "start_norm": 0.7, "optimiser": {"kind": "adam", "rate": 1e-12}}
        lengths = victims.attack(1, **(TAG | changed)).images[..., :-1].norm(dim=3)[victims.words.known < 0]
        torch.testing.assert_close(lengths, torch.full_like(lengths, 0.7))


def test_the_table_of_words_has_no_say(victims: Victims) -> None:
    """Its gradient is zero whatever the sentence is: what a defense makes of it is nothing to match."""
    network, gradients = victims.observations.network, victims.observations.gradients
    place = network.names.index(table_of(network))
    begin = sum(network.sizes[:place])
    table = slice(begin, begin + V * 32)
    assert (gradients[:, table] == 0).all()
    noisy = gradients.clone()
    noisy[:, table] += 1
    for settings in (TAG, COSINE):
        plain, other = (victims.attack(2, seen={"gradients": seen}, **settings) for seen in (gradients, noisy))
        assert torch.equal(plain.images, other.images) and str(plain.objective) == str(other.objective)
    # At the true sentences only the biases of two layers' keys are left, whose gradients are zero but for rounding.
    still = COSINE | {"regularisers": [], "optimiser": {"kind": "adam", "rate": 1e-12}}
    found = victims.attack(1, seen={"start": embed(network, network.parameters, victims.ids)}, **still)
    assert found.objective is not None
    torch.testing.assert_close(found.objective, torch.full((3,), 2 / (len(network.names) - 1)), rtol=0, atol=1e-3)


def test_weights_of_wrappers(victims: Victims) -> None:
    """They are of all coordinates."""
    gradients = victims.observations.gradients
    plain = victims.attack(2, **TAG)
    ones = victims.attack(2, seen={"weights": torch.ones_like(gradients)}, **TAG)
    torch.testing.assert_close(ones.images, plain.images, rtol=1e-3, atol=1e-4)
    blind = victims.attack(2, seen={"weights": torch.zeros_like(gradients)}, **(TAG | {"regularisers": []}))
    assert blind.objective is not None and (blind.objective == 0).all()
    # ``masked`` gives weights, and hides coordinates of the message.
    marked = torch.zeros_like(gradients, dtype=torch.bool)
    masked = Masked.model_validate({"attack": {"name": "sentence_matching", "iterations": 2, **TAG}})
    found = masked.reconstruct(replace(victims.observations, marked=marked), victims.knowledge, victims.streams)
    torch.testing.assert_close(found.images, plain.images, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"unknown": {"kind": "upsampled"}}, "sentences have starts and permutations"),
        ({"start": "uniform"}, "sentences have starts and permutations"),
        ({"box": True}, "sentences have starts and permutations"),
        ({"restarts": 2}, "sentences have starts and permutations"),
        ({"labels": "joint"}, "known, or inferred beforehand"),
        ({"reordering": REORDERING, "optimiser": {"kind": "lbfgs"}}, "cannot be interrupted"),
        ({"starts": 0}, "greater than or equal to 1"),
        ({"start_norm": 0}, "greater than 0"),
        ({"scale": "pixels"}, "'inputs' or 'embeddings'"),
        ({"reordering": {"candidates": 20}}, "fluency"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SentenceMatching(iterations=1, **(TAG | wrong))


def test_what_is_no_sentence_is_refused(victims: Victims) -> None:
    for part in ("words", "inputs"):
        with pytest.raises(Infeasible, match="'sentence_matching' searches for sentences"):
            SentenceMatching(iterations=1, **TAG).reconstruct(
                victims.observations, replace(victims.knowledge, **{part: None}), victims.streams
            )


def test_several_rounds_are_refused(victims: Victims) -> None:
    seen = replace(victims.observations, later=(victims.observations,))
    with pytest.raises(Infeasible, match="word embeddings are other ones in every round's model"):
        SentenceMatching(iterations=1, **TAG).reconstruct(seen, victims.knowledge, victims.streams)


def test_labels_may_be_inferred(victims: Victims) -> None:
    knowledge = replace(victims.knowledge, labels=None)
    attack = SentenceMatching(iterations=2, labels="idlg", **TAG)
    assert attack.needs == frozenset()
    found = attack.reconstruct(victims.observations, knowledge, victims.streams)
    assert found.labels is not None and victims.knowledge.labels is not None
    assert torch.equal(found.labels, victims.knowledge.labels)


def test_tries_are_due() -> None:
    """After a tenth of the iterations, every 75 (Balunovic et al. 2022, as released)."""
    tries = Reordering(fluency=1)
    assert [iteration for iteration in range(2000) if tries.is_due(iteration, 2000)] == list(range(226, 2000, 75))
    assert Reordering(fluency=1, every=1, burn_in=0).is_due(0, 10)


def test_a_tensor_of_zeros_breaks_nothing(victims: Victims) -> None:
    """As rounding leaves of biases, whose cosine has no value."""
    gradients = victims.observations.gradients.clone()
    network = victims.observations.network
    ends = torch.tensor(network.sizes).cumsum(0).tolist()
    for name, end, size in zip(network.names, ends, network.sizes, strict=True):
        if name.endswith("bias"):
            gradients[:, end - size : end] = 0
    for floor in (0.0, 1e-6):
        settings = COSINE | {"objective": CosinePerTensor(floor=floor)}
        found = victims.attack(3, seen={"gradients": gradients}, **settings)
        assert found.images.isfinite().all() and (found.diverged_at == -1).all()
        assert found.objective is not None and found.objective.isfinite().all()


def test_an_attacker_who_runs_the_mechanism_reads_what_a_mask_leaves() -> None:
    """Four fifths of the coordinates are missing: the plain search matches zeros, the likelihood what is there."""
    victims = Victims(sentences([4, 3])[:, None])
    defense = RandomMask(probability=0.8)
    samples = Examples(embedded(victims), torch.tensor([[0], [1]]))
    network = victims.observations.network
    clients = DefendedClients(defense, victims.streams, samples)
    sent = clients.step(
        lambda batch: ClientSteps(network, network.parameters, *batch, victims.streams),
        victims.streams.child("defense"),
    )
    seen = observed(network, network.parameters, [sent.message], victims.observations.batch_shape, ONE_STEP)
    knowledge = replace(victims.knowledge, labels=samples.labels, mechanism=[PublicMechanism(defense)] * 2)
    plain = SentenceMatching(iterations=80, **TAG)
    informed = Adaptive(attack=plain).against(defense.adaptive)
    right = []
    for attack in (plain, informed):
        tokens = attack.reconstruct(seen, knowledge, victims.streams).tokens
        assert tokens is not None
        right.append(float((tokens == victims.ids)[victims.words.known < 0].float().mean()))
    assert right[0] < 0.5 < right[1]


def embedded(victims: Victims) -> torch.Tensor:
    network = victims.observations.network
    return embed(network, network.parameters, victims.ids)
