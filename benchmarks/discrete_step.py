"""LAMP's discrete step: all orders of all sentences side by side against one order at a time, in one run.

(a) goes through sentences and candidates one after the other: the gradient by ``torch.autograd.grad``, its cosine to
the observed one tensor by tensor, and the language model, as public implementations do. (b) is
``leakbench.attacks.discrete.discrete_step``. Both try the same orders and must choose the same ones. (c) is (b) with
every order that was drawn scored, equal ones again. A small BERT, batches of one sentence. Times are of the process on
a CPU, wall-clock on a GPU: the smallest of some turns.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch

from benchmarks.measuring import fastest, options
from leakbench.attacks.discrete import Reordered, candidates_at_once, discrete_step, propose
from leakbench.attacks.language.model import CausalTransformer, LanguageModel, weights_of
from leakbench.attacks.objectives import CosinePerTensor
from leakbench.jobs.runner import Placement
from leakbench.models.base import Network, build_network
from leakbench.models.bert import Bert, embed
from leakbench.randomness import Streams, generator

VOCABULARY = 2000
WEIGHT = 0.2


def counts(name: str) -> bool:
    """Whether a tensor's cosine is more than rounding.

    Attention does not see the biases of keys, whose gradients are zero but for it; nor have word embeddings any here.
    """
    return "word_embeddings" not in name and not name.endswith("key.bias")


class Scene:
    """Sentences in a wrong order, the gradients of the right ones, and two small transformers without training."""

    def __init__(self, sentences: int, tokens: int, candidates: int, device: torch.device) -> None:
        self.candidates, self.device, length = candidates, device, tokens + 2
        model = Bert(width=64, layers=2, heads=2, intermediate=256, vocabulary=VOCABULARY, positions=length)
        self.network: Network = build_network(model, (length,), 2, 0, device)
        self.parameters = self.network.parameters
        draw = generator("benchmark", "discrete step")
        ids = torch.randint(1000, VOCABULARY, (sentences, 1, length), generator=draw)
        ids[..., 0], ids[..., -1] = 101, 102
        self.labels = torch.randint(0, 2, (sentences, 1), generator=draw).to(device)
        self.free = torch.ones(sentences, 1, length, dtype=torch.bool, device=device)
        self.free[..., 0] = self.free[..., -1] = False
        right = embed(self.network, self.parameters, ids.to(device))
        self.targets = torch.stack(
            [
                self.network.gradient(self.parameters, inputs, labels)
                for inputs, labels in zip(right, self.labels, strict=True)
            ]
        ).detach()
        order = torch.cat([torch.tensor([0]), 1 + torch.randperm(tokens, generator=draw), torch.tensor([length - 1])])
        self.inputs, self.tokens = right[:, :, order.to(device)].detach(), ids[:, :, order].to(device)
        transformer = CausalTransformer(layers=2, width=64, heads=2, vocabulary=VOCABULARY, positions=length)
        torch.manual_seed(0)
        self.language = LanguageModel.of(transformer, weights_of(transformer.build()), device)
        weights = {
            name: torch.full_like(tensor, float(counts(name)))
            for name, tensor in self.network.unflatten(self.parameters).items()
        }
        self.weights = torch.cat([weight.flatten() for weight in weights.values()])
        self.sizes = [tensor.numel() for tensor in self.network.unflatten(self.parameters).values()]
        self.chunk = candidates_at_once(self.matching, self.inputs)

    def streams(self) -> Streams:
        return Streams([("benchmark", row) for row in range(len(self.inputs))])

    def matching(self, inputs: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
        """The distance of gradients, of many at once."""

        def one(inputs: torch.Tensor, labels: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            gradient = self.network.gradient(self.parameters, inputs, labels)
            return CosinePerTensor()(gradient, target, self.weights, self.sizes)

        with torch.no_grad():
            many: torch.Tensor = torch.func.vmap(one)(inputs, self.labels[trials], self.targets[trials])
            return many

    def batched(self) -> Reordered:
        return discrete_step(
            self.inputs,
            self.tokens,
            self.free,
            self.matching,
            self.language.log_perplexity,
            WEIGHT,
            self.candidates,
            self.streams(),
            self.chunk,
        )

    def all_scored(self) -> Reordered:
        """The same, and equal orders again."""

        def unique(rows: torch.Tensor, **_: object) -> tuple[torch.Tensor, torch.Tensor]:
            return rows, torch.arange(len(rows), device=rows.device)

        with mock.patch("torch.unique", unique):
            return self.batched()

    def loop(self) -> torch.Tensor:
        """The chosen tokens, one sentence and one candidate after the other."""
        module = self.network.trainable_module()
        parameters = [parameter for name, parameter in module.named_parameters() if counts(name)]
        targets = [
            [part for name, part in self.network.unflatten(target).items() if counts(name)] for target in self.targets
        ]
        orders = propose(self.streams().uniform(self.candidates, 3, device=self.device), self.free[:, 0])
        chosen = self.tokens[:, 0].clone()
        for row, target in enumerate(targets):
            least = None
            for order in orders[row]:
                inputs, ids = self.inputs[row][:, order], self.tokens[row][:, order]
                loss = torch.nn.functional.cross_entropy(module(inputs), self.labels[row])
                gradients = torch.autograd.grad(loss, parameters)
                distance = torch.zeros((), device=self.device)
                for ours, theirs in zip(gradients, target, strict=True):
                    lengths = (ours.norm() * theirs.norm()).clamp(min=torch.finfo(ours.dtype).tiny)
                    distance += 1 - (ours * theirs).sum() / lengths
                distance = (distance + len(self.sizes) - len(target)) / len(self.sizes)  # the others have cosine 0
                with torch.no_grad():
                    score = float(distance) + WEIGHT * float(self.language.log_perplexity(ids))
                if least is None or score < least - 1e-6:  # equal orders may differ in their last digits
                    least, chosen[row] = score, ids[0]
        return chosen


def measure(scene: Scene, repeats: int) -> tuple[dict[str, float], float]:
    """Seconds of (a), (b) and (c), and how many orders of a sentence differ, in the mean."""
    chosen: dict[str, torch.Tensor] = {}

    def loop() -> None:
        chosen["loop"] = scene.loop()

    def batched() -> None:
        chosen["batched"] = scene.batched().tokens[:, 0]

    works: dict[str, Callable[[], object]] = {"loop": loop, "batched": batched, "all": scene.all_scored}
    seconds = fastest(works, scene.device, repeats)
    differing = int((chosen["loop"] != chosen["batched"]).any(dim=1).sum())
    if differing:
        raise SystemExit(f"{differing} of {len(scene.inputs)} sentences differ")
    orders = propose(scene.streams().uniform(scene.candidates, 3, device=scene.device), scene.free[:, 0])
    return seconds, sum(len(row.unique(dim=0)) for row in orders) / len(orders)


def main() -> None:
    """Measure, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[6, 8, 16], help="of a sentence, special ones not counted"
    )
    arguments = parser.parse_args()
    device = Placement(arguments.device, arguments.threads).resolve()
    print(f"{arguments.device}, {arguments.threads} threads, {arguments.sentences} sentences")
    print("| tokens | distinct of the candidates | at once | (a) loop, ms | (b) batched, ms | (a) / (b) | (a) / (c) |")
    print("|---" * 7 + "|")
    for tokens in arguments.tokens:
        scene = Scene(arguments.sentences, tokens, arguments.candidates, device)
        seconds, distinct = measure(scene, arguments.repeats)
        print(
            f"| {tokens} | {distinct:.0f} of {arguments.candidates} | {scene.chunk} | {1e3 * seconds['loop']:,.0f} "
            f"| {1e3 * seconds['batched']:,.0f} | {seconds['loop'] / seconds['batched']:.1f} "
            f"| {seconds['loop'] / seconds['all']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
