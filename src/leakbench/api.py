"""Python interface: components by name, a client's message, one attack on it, and records as a table.

Everything here is also an attribute of the package, imported at the first use:

>>> import leakbench
>>> leakbench.attack("ig_library", iterations=100).iterations
100
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from leakbench.attacks.base import ATTACKS, Attack, Observations, observed
from leakbench.auditing.attempts import attempt
from leakbench.auditing.captured import Captured, flattened, per_channel
from leakbench.auditing.findings import Scores, scores_of
from leakbench.auditing.ladder import Rung
from leakbench.comparing import component_named
from leakbench.defenses.base import DEFENSES, Defense, NoDefense
from leakbench.defenses.clients import PublicMechanism, calibrated
from leakbench.errors import ConfigError, Infeasible, RecordError
from leakbench.federated.client_data import ClientData
from leakbench.federated.local import ONE_STEP
from leakbench.federated.step import ClientSteps
from leakbench.lazy import pd, torch
from leakbench.models.base import BatchNorm, Network
from leakbench.planning.mistakes import check_known, explain, place
from leakbench.planning.project import Project
from leakbench.randomness import Streams
from leakbench.records import RESULTS
from leakbench.registry import Component, Registry
from leakbench.report.partial import Share
from leakbench.report.tidy import merged, needed, table_path

__all__ = ["attack", "defense", "observe", "read_records", "reconstruct", "score", "send"]

C = TypeVar("C", bound=Component)


def attack(name: str, **parameters: Any) -> Attack:
    """An attack by its registered name, or as ``file.py:Class``, with parameters.

    >>> attack("masked", attack=attack("ig_library")).attack.name
    'ig_library'

    Raises:
        ConfigError: no such attack, or a parameter that it does not have or take.
    """
    return _built(ATTACKS, Attack, name, parameters)


def defense(name: str, **parameters: Any) -> Defense:
    """A defense by its registered name, or as ``file.py:Class``, with parameters.

    >>> defense("magnitude_pruning", fraction=0.9).parameters()
    {'fraction': 0.9}

    Raises:
        ConfigError: no such defense, or a parameter that it does not have or take.
    """
    return _built(DEFENSES, Defense, name, parameters)


def _built(registry: Registry[C], base: type[C], name: str, parameters: Mapping[str, Any]) -> C:
    component = component_named(registry, base, name, Path.cwd(), registry.kind)
    try:
        return component(**parameters)
    except ValidationError as error:
        raise explain(error, component, lambda *keys: place(f"{registry.kind} '{name}'", *keys)) from None


def send(
    model: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    defense: Defense | None = None,
    *,
    batch_norm: BatchNorm = "train",
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    seed: int = 0,
) -> Captured:
    """Compute a client's gradient of the mean cross-entropy on a batch, and what the server sees of it.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    >>> seen = send(model, torch.rand(1, 1, 8, 8), torch.tensor([3]), defense("magnitude_pruning", fraction=0.9))
    >>> seen.observations.gradients.count_nonzero().item()
    65

    Args:
        model: a classifier; it stays as it is.
        images: network inputs, ``[B, C, H, W]``. They are all that the client holds.
        labels: int64 ``[B]``.
        defense: of the client; None sends the gradient itself. One that changes the model is asked for its own first.
        batch_norm: statistics that BatchNorm layers normalise with: the batch's, or the running ones (``eval``).
        mean: per channel, or one for all: network inputs are ``(pixels - mean) / std``.
        std: likewise.
        seed: of the defense's randomness.

    Raises:
        ConfigError: the labels or the defense's parameters do not fit the images, or the seed is negative.
        Infeasible: the defense needs more than one client.
    """
    _check_seed(seed)
    chosen = NoDefense() if defense is None else defense
    if chosen.together > 1:
        raise Infeasible(f"{chosen.name} needs {chosen.together} clients together, and this is one")
    network, streams = Network(copy.deepcopy(model), images.device, batch_norm), Streams([("api", seed)])
    network = chosen.extend(network, tuple(images.shape[1:]), seed)
    classes = network.logits(network.parameters, images).shape[1]
    _given(labels, len(images), classes)
    mechanism = PublicMechanism(calibrated(chosen, ClientData(images[None], classes)))
    _, message, public = mechanism.defend(
        images[None],
        labels[None],
        lambda inputs, targets: ClientSteps(network, network.parameters, inputs, targets, streams),
        streams.child("defense"),
    )
    seen = observed(network, network.parameters, [message], tuple(images.shape), ONE_STEP, public=public)
    return _seen(seen, mean, std)


def observe(
    model: torch.nn.Module,
    gradient: Mapping[str, torch.Tensor] | Sequence[torch.Tensor],
    shape: tuple[int, int, int],
    batch: int = 1,
    *,
    batch_norm: BatchNorm = "train",
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
) -> Captured:
    """Describe a gradient of your own as what the server sees.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    >>> loss = torch.nn.functional.cross_entropy(model(torch.rand(1, 1, 8, 8)), torch.tensor([3]))
    >>> gradient = torch.autograd.grad(loss, list(model.parameters()))
    >>> len(observe(model, gradient, shape=(1, 8, 8)).observations)
    1

    Args:
        model: with the parameters at which the gradient was computed; it stays as it is.
        gradient: of the mean loss: tensors by the names of ``named_parameters()``, or in the order of ``parameters()``;
            of those that require one.
        shape: ``(C, H, W)`` of one network input.
        batch: number of images behind it, B.
        batch_norm: statistics that BatchNorm layers normalised with.
        mean: per channel, or one for all: network inputs are ``(pixels - mean) / std``.
        std: likewise.

    Raises:
        ConfigError: tensors are missing, surplus, of another shape or not finite.
    """
    device = next(model.parameters()).device
    network = Network(copy.deepcopy(model), device, batch_norm)
    if not isinstance(gradient, Mapping):
        if len(gradient) != len(network.names):
            raise ConfigError(f"gradient: {len(gradient)} tensors; the model has {len(network.names)} parameters")
        gradient = dict(zip(network.names, gradient, strict=True))
    flat = flattened(network, gradient, "gradient", type(model).__name__)
    seen = Observations(network, network.parameters, flat[None].detach(), (batch, *shape))
    seen.check()
    return _seen(seen, mean, std)


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise ConfigError(f"seed: {seed} is negative; give 0 or more")


def _given(labels: Sequence[int] | torch.Tensor, count: int, classes: int) -> tuple[int, ...]:
    """Labels as whole numbers.

    Args:
        labels: as given.
        count: of the images.
        classes: of the model.

    Raises:
        ConfigError: they are not one class per image.
    """
    given = torch.as_tensor(labels)
    if given.shape != (count,) or given.is_floating_point():
        kind = str(given.dtype).removeprefix("torch.")
        raise ConfigError(f"labels: {kind} of shape {list(given.shape)}; give whole numbers, one per image: [{count}]")
    values = tuple(map(int, given.tolist()))
    if wrong := [value for value in values if not 0 <= value < classes]:
        raise ConfigError(f"labels: {wrong[0]} is no class; the model allows 0 to {classes - 1}")
    return values


def _seen(observations: Observations, mean: Sequence[float], std: Sequence[float]) -> Captured:
    channels, device = observations.batch_shape[1], observations.gradients.device
    return Captured(
        observations,
        per_channel(mean, channels, "mean").to(device),
        per_channel(std, channels, "std").to(device),
    )


class Reconstructed(NamedTuple):
    """An attacker's estimate of one client's batch.

    Attributes:
        images: pixels in [0, 1], ``[B, C, H, W]``.
        labels: that the attack was given, inferred or found; empty where it needs none.
        objective: the attack's own, of the best start; NaN where it has none.
        unexplained: one minus the cosine between the gradient and that of the reconstruction, over what mid-grey
            images leave; NaN where there are no labels.
    """

    images: torch.Tensor
    labels: tuple[int, ...]
    objective: float
    unexplained: float


GRANTED = frozenset({"labels", "pixel_range"})
"""Knowledge that :func:`reconstruct` can grant without a defense."""


def reconstruct(
    attack: Attack,
    seen: Captured,
    labels: Sequence[int] | torch.Tensor | None = None,
    *,
    defense: Defense | None = None,
    restarts: int = 1,
    seed: int = 0,
) -> Reconstructed:
    """Attack what the server sees of one client.

    The first layer of this model gives a single image away:

    >>> images = torch.rand(1, 1, 8, 8)
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    >>> seen = send(model, images, torch.tensor([3]))
    >>> score(reconstruct(attack("analytic"), seen).images, images).mean_psnr > 100
    True

    An attacker who knows the defense:

    >>> noise = defense("gaussian_noise", scale=0.01)
    >>> seen = send(model, images, torch.tensor([3]), noise)
    >>> inside = attack("ig_library", iterations=20)
    >>> result = reconstruct(attack("adaptive", attack=inside), seen, labels=[3], defense=noise)
    >>> result.images.shape
    torch.Size([1, 1, 8, 8])

    Args:
        attack: of images; see :func:`attack`.
        seen: from :func:`send` or :func:`observe`.
        labels: one per image, where the attacker knows them; else they are inferred from the gradient.
        defense: where the attacker knows it; an attack ``adaptive`` becomes what the defense declares.
        restarts: starts, at least one, of which the one with the smallest objective counts.
        seed: of the starts.

    Raises:
        ConfigError: the labels do not fit the images, there is no start, or the seed is negative.
        Infeasible: the attack needs other knowledge, or cannot run on this model, batch or message.
    """
    _check_seed(seed)
    if restarts < 1:
        raise ConfigError(f"restarts: {restarts} starts; give 1 or more")
    known = None if labels is None else _given(labels, seen.observations.batch_shape[0], _classes(seen))
    attack = attack if defense is None else attack.against(defense.adaptive)
    if lacking := attack.needs - GRANTED - ({"mechanism"} if defense else set()):
        hint = "; give the defense" if lacking == {"mechanism"} else ", which jobs of the workflow can grant"
        raise Infeasible(f"attack '{attack.name}' needs {', '.join(sorted(lacking))}{hint}")
    rung = Rung(attack.name, attack.name, "", attack, known is not None, restarts)
    done = attempt(seen, rung, known or (), seed, defense)
    if done.images is None:
        raise Infeasible(f"attack '{attack.name}': {done.failed}")
    return Reconstructed(done.images, done.labels, done.objective, done.unexplained)


def _classes(seen: Captured) -> int:
    images = seen.observations.gradients.new_zeros(seen.observations.batch_shape)
    return seen.network.logits(seen.observations.network.parameters, images).shape[1]


def score(images: torch.Tensor, truth: torch.Tensor) -> Scores:
    """Compare reconstructions with the true images, after assigning one to the other.

    >>> truth = torch.rand(2, 1, 8, 8)
    >>> score(truth.flip(0), truth).mean_psnr
    140.0

    Args:
        images: pixels in [0, 1], ``[B, C, H, W]``.
        truth: likewise.

    Raises:
        ConfigError: they are not equally many and of one size, or hold values that are not finite.
    """
    if images.shape != truth.shape or images.dim() != 4:
        raise ConfigError(f"images of shapes {list(images.shape)} and {list(truth.shape)}; both are [B, C, H, W]")
    if not bool(images.isfinite().all() and truth.isfinite().all()):
        raise ConfigError("images: they hold values that are not finite; pixels are in [0, 1]")
    return scores_of(images, truth)


def read_records(folder: str | Path, paper: str | None = None, experiment: str | None = None) -> pd.DataFrame:
    """The records below ``results/<scale>`` as one tidy table: a row per number, with the marks of gates.

    >>> numbers = read_records("results/smoke", paper="optimal_defense")
    >>> numbers.query("attack == 'grey' and metric == 'psnr'")["value"].mean().round(1)
    np.float64(8.6)

    Only records that exist and fit the configuration are read; a warning counts the others.

    Args:
        folder: ``results/<scale>`` of a checkout.
        paper: that alone.
        experiment: of these papers, that alone.

    Raises:
        ConfigError: the folder is none of a checkout's scales, or nothing there has this name.
        RecordError: there are no records.
    """
    place_of = Path(folder).absolute()
    root, scale = place_of.parent.parent, place_of.name
    if place_of.parent.name != RESULTS or not (root / "config" / "config.yaml").is_file():
        raise ConfigError(f"{folder}: expected {RESULTS}/<scale> in a checkout of the project")
    project = Project(root)
    plan = project.plan(scale, where=str(folder))
    if paper is not None:
        check_known("paper", paper, list(plan.papers), "paper")
    chosen = [
        (name, each)
        for name, content in plan.papers.items()
        for each in content.experiments
        if paper in (None, name) and experiment in (None, each)
    ]
    if not chosen:
        every = {each for name, content in plan.papers.items() if paper in (None, name) for each in content.experiments}
        check_known("experiment", str(experiment), every, "experiment")
    tables = [table_path(scale, name, each) for name, each in chosen]
    share = Share.of(project, {job.path: job for table in tables for job in needed(project, table)}.values())
    frames = [merged(project, table, share.records).numbers for table in tables]
    frames = [frame for frame in frames if len(frame)]
    if share.faults:
        first, reason = next(iter(share.faults.items()))
        warnings.warn(f"{len(share.faults)} records are left out, such as {first}: {reason}", stacklevel=2)
    if not frames:
        raise RecordError(f"{folder}: no records; make them with `snakemake --cores all --config scale={scale}`")
    return pd.concat(frames, ignore_index=True)
