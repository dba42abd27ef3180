"""DAGER's tokens and sentences that come back, by the size of the batch, and the seconds.

CoLA, staged with BERT's vocabulary; a BERT, or a GPT-2, of four layers at initial weights. Lengths and the places of
special tokens are known, as in the workflow. Sentences of a batch are assigned to the true ones by the tokens that they
share.
"""

from __future__ import annotations

import argparse
import time
from itertools import permutations

import torch

from benchmarks.measuring import options, prepared
from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.dager import Dager
from leakbench.data.base import DATASETS
from leakbench.data.text import TextDataset
from leakbench.jobs.subjects import Sentences
from leakbench.jobs.victims import Victims
from leakbench.models.base import build_network
from leakbench.models.bert import Bert
from leakbench.models.gpt2 import Gpt2
from leakbench.randomness import Streams

MODELS = {"bert": Bert, "gpt2": Gpt2}


def measured(arguments: argparse.Namespace, batch: int) -> tuple[float, int, float]:
    """The part of the tokens and the number of sentences that came back, and the seconds of a batch."""
    device = prepared(arguments.threads, arguments.device)
    data = DATASETS.get(arguments.data)()
    assert isinstance(data, TextDataset)
    width, (length,) = arguments.width, data.shape
    model = MODELS[arguments.model](
        width=width, layers=4, heads=width // 32, intermediate=2 * width, initial_std=0.55 / width**0.5
    )
    subject, network = Sentences(data, model), build_network(model, (length,), data.classes, 0, device)
    samples = data.load("test", range(batch * arguments.batches))
    right = tokens = whole = 0
    seconds = 0.0
    for row in range(arguments.batches):
        part = slice(row * batch, (row + 1) * batch)
        truth, labels = samples.values[part].to(device), samples.labels[part].to(device)
        inputs = subject.inputs(network, network.parameters, truth)
        gradient = network.gradient(network.parameters, inputs, labels)
        streams = Streams([("benchmark", "dager", row)])
        victims = Victims(network, network.parameters, truth[None], inputs[None], labels[None], streams)
        seen = Observations(network, network.parameters, gradient[None], tuple(inputs.shape))
        started = time.perf_counter()
        result = Dager().reconstruct(seen, Knowledge(**subject.knowledge(victims, (), 0)), streams).tokens
        seconds += time.perf_counter() - started
        assert result is not None
        free = ~torch.isin(truth, torch.tensor(subject.framing, device=device))
        equal = max(
            (result[0][list(order)] == truth for order in permutations(range(batch))),
            key=lambda each: int(each[free].sum()),
        )
        right, tokens = right + int(equal[free].sum()), tokens + int(free.sum())
        whole += int(equal.all(dim=1).sum())
    return right / tokens, whole, seconds / arguments.batches


def main() -> None:
    """Measure all sizes, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--data", default="cola", help="name of a data set of sentences")
    parser.add_argument("--model", choices=MODELS, default="bert")
    parser.add_argument("--width", type=int, default=128, help="of the model")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    print(
        f"{arguments.device}, {arguments.threads} threads, {arguments.data}, {arguments.model}, width {arguments.width}"
    )
    print("| batch | tokens | whole sentences | seconds a batch |\n|---:|---:|---:|---:|")
    for size in arguments.sizes:
        tokens, whole, seconds = measured(arguments, size)
        print(f"| {size} | {tokens:.1%} | {whole} of {size * arguments.batches} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
