"""Labels of batches, by a linear discriminant that is learned from messages about auxiliary images.

A message is, on average, the sum of what each class of its batch adds to it, and varies about that with the images, the
order of local steps and the defense's noise. All of it is learned: from batches of auxiliary images, at the attacked
model, sent through the mechanism where the attacker knows it. So pruned, clipped and one-bit messages tell their labels
nearly as well as exact ones, where rules for the last layer's bias (:mod:`~leakbench.attacks.labels`) are misled.
"""

from __future__ import annotations

from dataclasses import replace

from leakbench.attacks.auxiliary import messages_of
from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.rows import rows_of_each
from leakbench.errors import Infeasible
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams, generator

BATCHES = 600
"""Batches of auxiliary images to learn from."""
SHRINKAGE = 0.3
"""Part of the covariance that coordinates have of their own: there are fewer batches than coordinates."""
LEAST = 0.01
"""Least variance of a coordinate, as a part of the mean: some are zero in all batches, and one is not."""


def discriminated(observations: Observations, knowledge: Knowledge) -> torch.Tensor:
    """Labels of every client's images, int64 ``[n, B]``, ascending in each row: a message does not tell their order.

    Those whose expected message is most parallel to the message, in units of what messages vary by: how long a message
    is plays no part. Classes without auxiliary images are never named. A row that is not finite gets labels without
    meaning.

    Raises:
        Infeasible: clients have models of their own, or there are no auxiliary images.
    """
    observations.one_model("inferring labels by a discriminant")
    images, classes = knowledge.auxiliary_images, knowledge.auxiliary_labels
    if images is None or classes is None:
        raise Infeasible("labels by a discriminant are learned from auxiliary images, and none are granted")
    batch, outputs = observations.batch_shape[0], observations.network.head.outputs
    drawn = torch.randint(len(images), (BATCHES * batch,), generator=generator("batches of a discriminant"))
    drawn = drawn.to(classes.device)
    known = Knowledge(auxiliary_images=images[drawn], auxiliary_labels=classes[drawn], mechanism=knowledge.mechanism)
    counts = torch.nn.functional.one_hot(classes[drawn].view(BATCHES, batch), outputs).sum(dim=1)
    n = len(observations)
    labels = torch.empty(n, batch, dtype=torch.long, device=classes.device)
    for rows in rows_of_each([None] * n if knowledge.mechanism is None else knowledge.mechanism):
        products, gram = _learned(_messages(observations, known, rows[0]), counts)
        received = observations.gradients[rows].nan_to_num(0.0, 0.0, 0.0).double()
        labels[rows] = _most_parallel(received @ products.double().T, gram.double(), counts.sum(dim=0) > 0, batch)
    return labels


def _messages(observations: Observations, known: Knowledge, row: int) -> torch.Tensor:
    """Messages of the auxiliary batches instead of one observation, ``[BATCHES, d]``."""
    assert known.auxiliary_images is not None and known.auxiliary_labels is not None
    parameters, batch = observations.parameters, observations.batch_shape[0]
    if known.mechanism is None:
        images, labels = (
            part.unflatten(0, (BATCHES, batch)) for part in (known.auxiliary_images, known.auxiliary_labels)
        )
        streams = Streams([("discriminant", number) for number in range(BATCHES)])
        return ClientSteps(observations.network, parameters, images, labels, streams, observations.local).gradient
    victim = replace(observations, send=None, score=None, code_noise=None, later=()).at([row])
    known = replace(known, mechanism=[known.mechanism[row]])
    sent = victim.gradients.new_empty(BATCHES, victim.gradients.shape[1])
    for part, messages in messages_of(victim, known, Streams([("discriminant",)]), BATCHES):
        sent[part] = messages[:, 0]
    return sent


def _learned(messages: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Multipliers of messages for each class, ``[C, d]``, and inner products of classes, ``[C, C]``.

    Both are of the messages that the classes add on average, in the metric of the inverse covariance of what is left.

    Args:
        messages: ``[S, d]``.
        counts: of the labels in their batches, ``[S, C]``.
    """
    of_class = torch.linalg.pinv(counts.double()).to(messages) @ messages
    left = messages - counts.to(messages) @ of_class
    variance = left.square().mean(dim=0)
    apart = SHRINKAGE * variance.clamp(min=LEAST * float(variance.mean()) or 1.0)
    left *= ((1 - SHRINKAGE) / len(left)) ** 0.5
    # The inverse by Woodbury's identity: batches are fewer than coordinates.
    scaled = left / apart
    inner = (scaled @ left.T).double()
    inner.diagonal().add_(1)
    products = of_class / apart
    along = torch.cholesky_solve((products @ left.T).double().T, torch.linalg.cholesky(inner))
    products = products - along.T.to(messages) @ scaled
    return products, products @ of_class.T


def _most_parallel(inner: torch.Tensor, gram: torch.Tensor, allowed: torch.Tensor, batch: int) -> torch.Tensor:
    """The labels whose sum of classes has the largest cosine with a message, int64 ``[n, batch]``, ascending.

    Counts begin at those of least squares, and labels are exchanged one for one while that helps.

    Args:
        inner: products of messages with classes, ``[n, C]``.
        gram: of classes with each other, ``[C, C]``.
        allowed: classes to choose from, ``[C]``.
        batch: number of labels.
    """
    n, classes = inner.shape
    counts, rows = _rounded(inner @ torch.linalg.pinv(gram), allowed, batch), torch.arange(n, device=inner.device)
    one = torch.eye(classes, dtype=inner.dtype, device=inner.device)

    def cosine(some: torch.Tensor) -> torch.Tensor:
        """The cosines of counts ``[n, ..., C]``."""
        along = torch.einsum("n...c,nc->n...", some, inner)
        return along / ((some @ gram) * some).sum(dim=-1).clamp(min=torch.finfo(inner.dtype).tiny).sqrt()

    for _ in range(batch * classes):
        changed = counts[:, None, None] - one[:, None] + one  # [n, from, to, C]
        possible = (counts > 0)[:, :, None] & allowed
        values = cosine(changed).masked_fill(~possible, -torch.inf).flatten(1)
        gain, best = values.max(dim=1)
        now = cosine(counts)
        better = gain > now + 1e-9 * now.abs()
        if not bool(better.any()):
            break
        counts = torch.where(better[:, None], changed.flatten(1, 2)[rows, best], counts)
    ascending = torch.arange(classes, device=inner.device)
    return torch.stack([ascending.repeat_interleave(row.long()) for row in counts])


def _rounded(parts: torch.Tensor, allowed: torch.Tensor, batch: int) -> torch.Tensor:
    """Whole counts ``[n, C]`` that add up to ``batch``, near parts ``[n, C]`` of any sum, by largest remainders."""
    shares = parts.clamp(min=0).where(allowed, 0.0)
    total = shares.sum(dim=1, keepdim=True)
    shares = batch * torch.where(total > 0, shares / total, allowed / allowed.sum())
    counts = shares.floor()
    order = (shares - counts).where(allowed, -1.0).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    rest = batch - counts.sum(dim=1, keepdim=True)
    return counts + (order < rest)
