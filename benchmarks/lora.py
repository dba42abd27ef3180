"""Tokens that come back from what travels of low-rank adapters, by rank and by the number of tokens of a sentence.

CoLA, staged with BERT's vocabulary; single sentences of exactly so many tokens, special ones included; a BERT of four
layers at initial weights, whose adapters are at their start, or trained by AdamW in steps of 32 sentences. Rank 0 is
the whole model. Lengths, places of special tokens and labels are known, as in the workflow. "Others" are tokens that
are not at a position and have, in the mean of all adapters, no more than 1e-3 of their length outside of the first
layer's spans there, per position, counted by a literal search.
"""

from __future__ import annotations

import torch

from benchmarks.measuring import options, prepared
from leakbench.attacks.base import ATTACKS, Attack, Knowledge, Observations
from leakbench.attacks.dager import Dager
from leakbench.data.base import DATASETS
from leakbench.data.text import TextDataset
from leakbench.errors import Infeasible
from leakbench.jobs.pretraining import Pretraining, pretrained
from leakbench.jobs.subjects import Sentences
from leakbench.jobs.victims import Victims
from leakbench.models.attention import attention_inputs, reading
from leakbench.models.base import Network, build_network
from leakbench.models.bert import Bert
from leakbench.models.lora import Lora
from leakbench.randomness import Streams

SHORT = {"scale": "embeddings", "optimiser": {"kind": "adam", "rate": 0.3, "signed": False, "decay": "cosine"}}
"""Searches in units of an untrained model's own embeddings."""


def attacks(iterations: int) -> dict[str, Attack]:
    """The attacks of the table."""
    searches = {name: ATTACKS.get(f"{name}_text") for name in ("tag", "dlg")}
    return {"dager": Dager()} | {
        name: attack.model_validate(SHORT | {"iterations": iterations}) for name, attack in searches.items()
    }


def clients(network: Network, subject: Sentences, ids: torch.Tensor, labels: torch.Tensor) -> Victims:
    """Clients with a sentence each, ``[n, L]``."""
    streams = Streams([("benchmark", "lora", row) for row in range(len(ids))])
    inputs = subject.inputs(network, network.parameters, ids[:, None])
    return Victims(network, network.parameters, ids[:, None], inputs, labels[:, None], streams)


def recovered(attack: Attack, victims: Victims, subject: Sentences) -> str:
    """The part of the tokens that an attack finds at their place; or that it cannot."""
    network, parameters = victims.network, victims.parameters
    gradients = torch.func.vmap(lambda x, y: network.gradient(parameters, x, y))(victims.inputs, victims.labels)
    seen = Observations(network, parameters, gradients, tuple(victims.inputs.shape[1:]))
    known = Knowledge(labels=victims.labels, **subject.knowledge(victims, (), 0))
    try:
        tokens = attack.reconstruct(seen, known, victims.streams).tokens
    except Infeasible:
        return "infeasible"
    assert tokens is not None
    free = ~torch.isin(victims.values, torch.tensor(subject.framing, device=tokens.device))
    return f"{float((tokens == victims.values)[free].float().mean()):.1%}"


def others(victims: Victims, vocabulary: int) -> str:
    """Tokens that no position holds and that are in the span there, per position."""
    network, parameters = victims.network, victims.parameters
    count, places = 0, 0
    for ids, inputs, labels in zip(victims.values[:, 0], victims.inputs, victims.labels, strict=True):
        named = network.unflatten(network.gradient(parameters, inputs, labels))
        spans = []
        for parts, through in reading(named, network.tensors(parameters))[0]:
            if through is not None and len(ids) < len(through):
                (gradient,) = parts.values()
                spans.append((through, torch.linalg.svd(gradient.double(), full_matrices=False).Vh[: len(ids)].float()))
        if not spans:
            return "-"
        away = torch.zeros(vocabulary, len(ids), device=ids.device)
        for tokens in torch.arange(vocabulary, device=ids.device).split(2048):
            read = attention_inputs(network, parameters).first(tokens, len(ids))
            for through, basis in spans:
                met = read @ through.T
                away[tokens] += (met - met @ basis.T @ basis).norm(dim=-1) / met.norm(dim=-1) / len(spans)
        away[ids, torch.arange(len(ids), device=ids.device)] = 1
        count, places = count + int((away <= 1e-3).sum()), places + len(ids)
    return f"{count / places:.2f}"


def main() -> None:
    """Measure all ranks and lengths, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--data", default="cola", help="name of a data set of sentences")
    parser.add_argument("--width", type=int, default=128, help="of the model")
    parser.add_argument("--ranks", type=int, nargs="+", default=[0, 2, 8, 16, 32, 64])
    parser.add_argument("--targets", nargs="+", default=["query", "value"], help="projections with an adapter")
    parser.add_argument("--tokens", type=int, nargs="+", default=[7, 12], help="of a sentence")
    parser.add_argument("--sentences", type=int, default=6, help="of each length")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 20], help="in which the adapters are trained")
    parser.add_argument("--iterations", type=int, default=200, help="of the searches")
    parser.add_argument("--attacks", nargs="+", choices=["dager", "tag", "dlg"], default=["dager", "tag", "dlg"])
    arguments = parser.parse_args()
    device = prepared(arguments.threads, arguments.device)
    data = DATASETS.get(arguments.data).model_validate({"tokens": max(arguments.tokens) + 1})
    assert isinstance(data, TextDataset)
    samples, width = data.load("test", range(data.length("test"))), arguments.width
    lengths = (samples.values != 0).sum(dim=1)
    listed = {name: attack for name, attack in attacks(arguments.iterations).items() if name in arguments.attacks}
    targets = " and ".join(arguments.targets)
    print(f"{arguments.device}, {arguments.threads} threads, {arguments.data}, width {width}, adapters of {targets}")
    print(f"| steps | rank | tokens | {' | '.join(listed)} | others |\n|{'---:|' * (4 + len(listed))}")
    for steps in arguments.steps:
        for rank in arguments.ranks:
            lora = Lora(rank=rank, alpha=rank, targets=tuple(arguments.targets)) if rank else None
            sizes = {"width": width, "layers": 4, "heads": width // 32, "intermediate": 2 * width}
            model = Bert.model_validate(sizes | {"initial_std": 0.55 / width**0.5, "lora": lora})
            subject, network = Sentences(data, model), build_network(model, data.shape, data.classes, 0, device)
            training = Pretraining(samples=32 * steps or None, batch_size=32, optimiser="adamw", rate=1e-3)
            network = pretrained(network, data, "benchmark", 0, int(steps > 0), training, device)
            for tokens in arguments.tokens:
                chosen = (lengths == tokens).nonzero().flatten()[: arguments.sentences]
                ids, labels = samples.values[chosen, :tokens].to(device), samples.labels[chosen].to(device)
                victims = clients(network, subject, ids, labels)
                parts = [recovered(attack, victims, subject) for attack in listed.values()]
                row = [str(steps), str(rank), str(tokens), *parts, others(victims, data.tokenizer.vocabulary_size)]
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
