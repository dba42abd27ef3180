"""Rows of observations, knowledge and reconstructions: chosen, and put one after the other."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from leakbench.attacks.base import (
    KNOWN_OF_ROWS,
    SEEN_OF_ROWS,
    Knowledge,
    KnownInputs,
    Observations,
    OfRound,
    Reconstruction,
    Words,
)
from leakbench.attacks.inverter import Inverter, untrained
from leakbench.attacks.rows import joined, picked
from leakbench.defenses.base import NoDefense
from leakbench.defenses.clients import PublicMechanism
from leakbench.models.base import Network
from leakbench.randomness import Streams, generator

N, ROWS = 4, [2, 0]
STREAMS = Streams([("rows", row) for row in range(N)])


def drawn(name: str, *shape: int) -> torch.Tensor:
    return torch.randn(N, *shape, generator=generator("rows", name))


def seen(network: Network) -> Observations:
    d = network.dimension
    wide: dict[str, Any] = {name: drawn(name, d) for name in ("gradients", "coded", "weights", "step", "beyond")}
    return Observations(
        network,
        parameters=drawn("parameters", d),
        batch_shape=(1, 1, 8, 8),
        marked=wide["coded"] > 0,
        gain=drawn("gain", 1),
        repeats=drawn("repeats", 3, d),
        start=drawn("start", 1, 1, 8, 8),
        public=STREAMS,
        **wide,
    )


def known() -> Knowledge:
    copies = [PublicMechanism(NoDefense()) for _ in range(N)]
    return Knowledge(
        labels=torch.arange(N)[:, None],
        auxiliary_images=torch.zeros(7, 1, 8, 8),
        batch_statistics={"mean": drawn("mean", 5), "var": drawn("var", 5)},
        noise_variance=drawn("variance", 9),
        data_noise=list(drawn("noise", 64)),
        inputs=KnownInputs(drawn("where", 6) > 0, drawn("values", 6)),
        words=Words(torch.zeros(20, 3), torch.ones(20, dtype=torch.bool), torch.arange(N)[:, None, None]),
        mechanism=copies,
        inverter=[Inverter(torch.zeros(1, 9), torch.ones(1, 9), untrained(9, [64])) for _ in range(N)],
    )


def test_every_field_is_of_rows_or_of_all(tiny_network: Network) -> None:
    """A field that is added is to be named; each that is named here has rows."""
    of_all = {"network", "parameters", "batch_shape", "local", "later"}
    of_all |= {"send", "score", "code_noise", "carried", "users"}  # added by attacks
    assert {each.name for each in fields(Observations)} == {*SEEN_OF_ROWS, *of_all}
    public = {"pixel_range", "auxiliary_images", "auxiliary_labels", "auxiliary_sentences"}
    public |= {"prior", "words", "language_model", "of_later"}
    assert {each.name for each in fields(Knowledge)} == {*KNOWN_OF_ROWS, *public}
    assert not [name for name in SEEN_OF_ROWS if getattr(seen(tiny_network), name) is None]
    assert not [name for name in KNOWN_OF_ROWS if getattr(known(), name) is None]


def test_chosen_rows(tiny_network: Network) -> None:
    every, some = seen(tiny_network), seen(tiny_network).at(ROWS)
    for name in ("parameters", *SEEN_OF_ROWS):
        if name != "public":
            assert torch.equal(getattr(some, name), getattr(every, name)[ROWS]), name
    assert some.public is not None and some.public.keys == [("rows", 2), ("rows", 0)]
    some.check()
    shared = replace(every, parameters=tiny_network.parameters).at(ROWS)
    assert torch.equal(shared.parameters, tiny_network.parameters)

    twice = replace(every, later=(seen(tiny_network),)).at(ROWS)
    assert [torch.equal(later.gradients, every.gradients[ROWS]) for later in twice.later] == [True]

    all_of_it = known()
    part = all_of_it.at(ROWS)
    later = OfRound(all_of_it.noise_variance, None)
    (chosen,) = replace(all_of_it, of_later=(later,)).at(ROWS).of_later or ()
    assert chosen.noise_variance is not None and chosen.batch_statistics is None
    assert part.noise_variance is not None and torch.equal(chosen.noise_variance, part.noise_variance)
    for name in ("labels", "noise_variance"):
        assert torch.equal(getattr(part, name), getattr(all_of_it, name)[ROWS]), name
    assert part.batch_statistics is not None and all_of_it.batch_statistics is not None
    for name, values in part.batch_statistics.items():
        assert torch.equal(values, all_of_it.batch_statistics[name][ROWS])
    assert part.data_noise is not None and all_of_it.data_noise is not None
    assert [noise is all_of_it.data_noise[row] for noise, row in zip(part.data_noise, ROWS, strict=True)] == [True] * 2
    assert part.mechanism is not None and all_of_it.mechanism is not None
    assert len(part.mechanism) == 2
    assert part.inputs is not None and all_of_it.inputs is not None
    assert torch.equal(part.inputs.values, all_of_it.inputs.values[ROWS])
    assert part.words is not None and all_of_it.words is not None
    assert part.words.known.flatten().tolist() == ROWS and part.words.embeddings.shape == (20, 3)
    assert part.auxiliary_images is not None and len(part.auxiliary_images) == 7
    assert Knowledge().at(ROWS) == Knowledge()


def test_candidates_of_a_mechanism_keep_their_rows(tiny_network: Network) -> None:
    running: Any = lambda candidates: candidates.gradients[:, None]  # noqa: E731
    for name in ("send", "score"):
        with pytest.raises(ValueError, match="before an attack runs the mechanism"):
            replace(seen(tiny_network), **{name: running}).at(ROWS)


def test_joining_undoes_choosing() -> None:
    images, named = drawn("images", 1, 1, 2, 2), {"factor": drawn("factor")}
    found = Reconstruction(images, None, torch.full((N,), -1), chosen=named)
    parts = [found.at([2, 0]), found.at([3, 1])]
    again = Reconstruction(
        **{each.name: joined([getattr(part, each.name) for part in parts]) for each in fields(found)}
    )
    back = again.at(torch.tensor([2, 0, 3, 1]).argsort().tolist())
    assert torch.equal(back.images, images) and torch.equal(back.chosen["factor"], named["factor"])
    assert back.objective is None and back.labels is None
    assert joined([STREAMS.at([0]), STREAMS.at([1, 2])]).keys == STREAMS.keys[:3]
    assert joined([picked([1, 2, 3], [2]), [4]]) == [3, 4]
    kept = KnownInputs(*(joined(both) for both in zip(*[KnownInputs(images, images)] * 2, strict=True)))
    assert torch.equal(joined([KnownInputs(images, images)] * 2).values, kept.values)
