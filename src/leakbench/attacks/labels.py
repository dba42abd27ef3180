"""Labels from the gradient of the last fully connected layer, for every observation at once.

With cross-entropy, the gradient of the last layer's bias is ``mean_i (p_i - y_i)`` over a batch of images ``i`` with
softmax outputs ``p_i`` and one-hot labels ``y_i``, and the gradient of its weights is ``mean_i (p_i - y_i) f_i^T`` for
features ``f_i``. Only labels of the batch make an entry of the former negative; of the latter too, where features are
not negative, as after a ReLU.

The update of several local steps, over the learning rate, is a sum of such gradients at models that drift away from
the one that the attacker knows, so there every method here is an approximation.
"""

from __future__ import annotations

from typing import Literal

from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.discriminant import discriminated
from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.randomness import generator

Method = Literal["idlg", "distinct", "repeated", "counts", "interpolated", "discriminant"]
"""Methods of label inference:

- ``idlg``: of one image; exact if the last layer has a bias, or if the features sum to more than zero
  (Zhao, Mopuri and Bilen 2020).
- ``distinct``: of images of different classes: the classes whose smallest weight gradient is smallest
  (Yin et al. 2021, eq. 6).
- ``repeated``: of any images, from row sums of the weight gradient (LLG of Wainakh et al. 2022, Algorithm 1 without
  the offset, which needs auxiliary data). Made for batches with a few frequent labels: with evenly spread labels and
  ``B > C``, many labels leave no negative sum, and it is hardly better than guessing evenly.
- ``counts``: of any images, from the bias gradient and the mean softmax output of standard normal inputs. Counts the
  labels as ``B (p - g)``, which is exact if ``p`` is the batch's own mean softmax output: so it is on untrained models
  for most batches, and it falls to ``repeated`` or below once a model answers noise otherwise than images.
- ``interpolated``: of several local steps, as ``counts``, with the mean of ``p`` over the models on the line from the
  one before local training to the one after (after Dimitrov et al. 2022, who average both ends).
- ``discriminant``: of any images and any mechanism, from the whole message, as batches of auxiliary images teach
  (:mod:`leakbench.attacks.discriminant`).
"""

NOTHING = Knowledge()
_DUMMIES = 64  # standard normal inputs behind the mean softmax output
_BETWEEN = 8  # most models on the line between both ends of local training


def infer_labels(observations: Observations, method: Method, knowledge: Knowledge = NOTHING) -> torch.Tensor:
    """Labels of every client's images, int64 ``[n, B]``, ascending in each row: a gradient does not tell their order.

    A row that is not finite, or zero, gets labels without meaning and leaves the other rows alone.

    Args:
        observations: of all clients.
        method: one of :data:`Method`.
        knowledge: of the attacker, of which ``discriminant`` takes auxiliary images, and the mechanism if it is there.

    Raises:
        ConfigError: the method does not fit the batch size or the model; the message names one that does.
    """
    if method == "discriminant":
        return discriminated(observations, knowledge)
    head, batch = observations.network.head, observations.batch_shape[0]
    weight = head.weights(observations.gradients)
    bias = None if head.bias is None else observations.gradients[:, head.bias]
    if method == "idlg":
        if batch != 1:
            raise ConfigError(
                f"label inference 'idlg' reads the label of one image, and there are {batch}; choose 'repeated', or "
                "'distinct' if no two images share a class"
            )
        labels = (weight.sum(dim=2) if bias is None else bias).argmin(dim=1, keepdim=True)
    elif method == "distinct":
        if batch > head.outputs:
            raise ConfigError(
                f"label inference 'distinct': {batch} images cannot have different labels out of {head.outputs}; "
                "choose 'repeated'"
            )
        labels = weight.amin(dim=2).argsort(dim=1, stable=True)[:, :batch]
    elif method == "repeated":
        sums = weight.sum(dim=2)
        impact = sums.clamp(max=0).sum(dim=1, keepdim=True) * (1 + 1 / head.outputs) / batch
        labels = _draw(sums, sums < 0, impact, batch)
    else:
        if bias is None:
            raise ConfigError(
                f"label inference '{method}' reads the last layer's bias, and it has none; choose 'repeated'"
            )
        mean_gradient = bias / observations.local.steps
        softmax = _mean_softmax(observations) if method == "counts" else _interpolated_softmax(observations)
        counts = batch * (softmax - mean_gradient)
        labels = _draw(-counts, bias < 0, -torch.ones_like(counts[:, :1]), batch)
    return labels.sort(dim=1).values


def _draw(scores: torch.Tensor, present: torch.Tensor, impact: torch.Tensor, size: int) -> torch.Tensor:
    """``size`` times the class of the smallest score, after those that are present for sure, int64 ``[n, size]``.

    Args:
        scores: ``[n, C]``; smaller where more labels are left.
        present: ``[n, C]``, classes that have a label; if there are more than ``size``, the smallest scores go first.
        impact: what one label adds to its score, ``[n, 1]``, not positive.
        size: labels to draw.
    """
    drawn = []
    for _ in range(size):
        allowed = present | ~present.any(dim=1, keepdim=True)
        choice = scores.where(allowed, torch.inf).argmin(dim=1, keepdim=True)
        scores = scores.scatter_add(1, choice, -impact)
        present = present.scatter(1, choice, False)
        drawn.append(choice)
    return torch.cat(drawn, dim=1)


def _mean_softmax(observations: Observations) -> torch.Tensor:
    """Mean softmax output of the model on standard normal inputs, ``[C]``; always the same inputs."""
    parameters = observations.one_model("inferring labels from counts")
    return observations.network.logits(parameters, _dummies(observations)).softmax(dim=1).mean(dim=0)


def _dummies(observations: Observations) -> torch.Tensor:
    inputs = torch.randn(_DUMMIES, *observations.batch_shape[1:], generator=generator("label inference"))
    return inputs.to(observations.parameters)


def _interpolated_softmax(observations: Observations) -> torch.Tensor:
    """Mean softmax output ``[n, C]`` on the same inputs, of models as far on the way as local steps begin."""
    steps, inputs = observations.local.steps, _dummies(observations)
    before = observations.parameters.expand(len(observations), -1)
    total = before.new_zeros(len(observations), observations.network.head.outputs)
    points = min(steps, _BETWEEN)
    for part in torch.linspace(0, 1 - 1 / steps, points).tolist():
        models = before - part * observations.local.rate * observations.gradients
        for row, model in enumerate(models):
            total[row] += observations.network.logits(model, inputs).softmax(dim=1).mean(dim=0) / points
    return total
