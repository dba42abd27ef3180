"""An iteration of a search for sentences: victims side by side against one after the other, in one run.

(a) is a loop as peers write it: for each victim the gradient by ``torch.autograd.grad`` through the module itself, the
distance to the observed one, its derivative by the embedded sentence, and a step of ``torch.optim.Adam``. (b) is
``SentenceSearch`` as jobs run it, for some numbers of victims. (c) is (b) with the table of word embeddings, whose
gradient is zero, among the coordinates. Times are of the process on one thread: the smallest of some turns, per victim.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.measuring import fastest
from leakbench.attacks.base import Knowledge, KnownInputs, Observations, Words
from leakbench.attacks.engine import evaluation
from leakbench.attacks.gradient_matching import Search
from leakbench.attacks.objectives import L2
from leakbench.attacks.optimisers import Adam
from leakbench.attacks.sentences import SentenceMatching, SentenceSearch
from leakbench.models.base import build_network
from leakbench.models.bert import Bert, embed, word_embeddings
from leakbench.randomness import generator

LENGTH = 12


class Scene:
    """Victims with a sentence each, of a BERT of two layers."""

    def __init__(self, width: int, vocabulary: int, victims: int, seed: int = 0) -> None:
        model = Bert(
            width=width,
            layers=2,
            heads=width // 32,
            intermediate=2 * width,
            vocabulary=vocabulary,
            positions=LENGTH,
            initial_std=0.55 / width**0.5,
        )
        self.network = network = build_network(model, (LENGTH,), 2, seed)
        self.module = network.trainable_module()
        ids = torch.randint(4, vocabulary, (victims, 1, LENGTH), generator=generator("benchmark", "sentences"))
        ids[..., 0], ids[..., -1] = 2, 3
        self.labels = torch.zeros(victims, 1, dtype=torch.int64)
        self.inputs = embed(network, network.parameters, ids)
        gradients = torch.stack(
            [network.gradient(network.parameters, x, y) for x, y in zip(self.inputs, self.labels, strict=True)]
        )
        known = torch.where(ids < 4, ids, -1)
        where = torch.cat(
            [(known >= 0)[..., None].expand_as(self.inputs[..., :-1]), torch.ones_like(known[..., None]) > 0], dim=-1
        )
        words = Words(word_embeddings(network, network.parameters), torch.arange(vocabulary) >= 4, known)
        self.knowledge = Knowledge(self.labels, inputs=KnownInputs(where, self.inputs), words=words)
        self.observations = Observations(network, network.parameters, gradients, tuple(self.inputs.shape[1:]))
        self.attack = SentenceMatching(objective=L2(), optimiser=Adam(rate=0.3), iterations=1, scale="embeddings")

        self.points = self.inputs + 0.1
        self.weights = [(name, p) for name, p in self.module.named_parameters() if "word_embeddings" not in name]
        self.variables = [point.clone().requires_grad_() for point in self.points]
        self.optimisers = [torch.optim.Adam([x], lr=1e-6) for x in self.variables]
        self.with_table = Search(self.attack, self.observations, self.knowledge)
        self.search = SentenceSearch(self.attack, self.observations, self.knowledge)

    def loop(self) -> torch.Tensor:
        """One iteration of every victim, one after the other; their distances."""
        parameters = [parameter for _, parameter in self.weights]
        sizes = [parameter.numel() for parameter in parameters]
        assert self.knowledge.inputs is not None
        distances = []
        for row, x in enumerate(self.variables):
            observed = self.observations.gradients[row, -sum(sizes) :].split(sizes)  # the table comes first
            candidate = torch.where(self.knowledge.inputs.where[row], self.inputs[row], x)
            loss = torch.nn.functional.cross_entropy(self.module(candidate), self.labels[row])
            gradients = torch.autograd.grad(loss, parameters, create_graph=True)
            parts = [(a.flatten() - b).square().sum() for a, b in zip(gradients, observed, strict=True)]
            distance = torch.stack(parts).sum()
            (x.grad,) = torch.autograd.grad(distance, [x])
            self.optimisers[row].step()
            distances.append(distance.detach())
        return torch.stack(distances)

    def batched(self, search: Search, unit: torch.Tensor) -> torch.Tensor:
        """One iteration of every victim, side by side, but for the step; their distances."""
        points = self.points.flatten(1) / unit[:, None]
        data = search.trial_data(torch.arange(len(points)))
        _, value = evaluation(search.cost(), vectorised=len(points) > 1)(points, data)
        return value


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--victims", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--models", type=int, nargs="+", default=[64, 370, 128, 30522], help="width and words of each")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| width | words | victims | (a) loop, ms | (b) batched, ms | (a) / (b) | (c) with the table, ms |")
    print("|---|---|---|---|---|---|---|")
    for width, vocabulary in zip(arguments.models[::2], arguments.models[1::2], strict=True):
        for victims in arguments.victims:
            scene = Scene(width, vocabulary, victims)
            works: dict[str, Callable[[], object]] = {
                "loop": scene.loop,
                "ours": partial(scene.batched, scene.search, scene.search.unit),
                "table": partial(scene.batched, scene.with_table, torch.ones(victims)),
            }
            torch.testing.assert_close(
                scene.batched(scene.search, scene.search.unit), scene.loop(), rtol=1e-3, atol=1e-6
            )
            seconds = fastest(works, torch.device("cpu"), arguments.repeats)
            a, b, c = (1000 / victims * seconds[name] for name in works)
            print(f"| {width} | {vocabulary} | {victims} | {a:.1f} | {b:.1f} | {a / b:.1f} | {c:.1f} |", flush=True)


if __name__ == "__main__":
    main()
