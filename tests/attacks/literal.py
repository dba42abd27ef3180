"""Gradient matching as one would write it by hand, one trial at a time: eager double backward and ``torch.optim``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from leakbench.attacks.base import Knowledge, Observations, Reconstruction
from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.models.base import BatchNorm, Model, Network
from leakbench.randomness import Streams, generator

F = torch.nn.functional
Tensors = list[torch.Tensor]


class Problem:
    """Some clients of one small model, in float64, where the order of a sum does not decide the sign of a pixel."""

    def __init__(
        self,
        model: Model,
        shape: tuple[int, int, int],
        *,
        batch: int = 2,
        trials: int = 3,
        batch_norm: BatchNorm = "eval",
        local: LocalTraining = ONE_STEP,
    ) -> None:
        draw = generator("engine", model.name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = model.build(shape, 10).double()
            for layer in module.modules():  # running statistics that say something
                if isinstance(layer, torch.nn.BatchNorm2d):
                    assert layer.running_mean is not None and layer.running_var is not None
                    layer.running_mean.uniform_(-0.5, 0.5)
                    layer.running_var.uniform_(0.5, 2)
        self.module = copy.deepcopy(module)
        self.network = Network(module, batch_norm=batch_norm)
        self.images = torch.randn(trials, batch, *shape, generator=draw).double()
        labels = torch.randint(0, 10, (trials, batch), generator=draw)
        parameters = self.network.parameters
        gradients = torch.stack(
            [local.update(self.network, parameters, *row) for row in zip(self.images, labels, strict=True)]
        )
        statistics = [self.network.batch_statistics(parameters, images) for images in self.images]
        self.observations = Observations(self.network, parameters, gradients, (batch, *shape), local)
        low = torch.linspace(-0.9, -0.7, shape[0]).double()
        self.knowledge = Knowledge(
            labels=labels,
            pixel_range=torch.stack([low, low + 2])[:, :, None, None],
            auxiliary_images=torch.randn(7, *shape, generator=draw).double(),
            batch_statistics={name: torch.stack([each[name] for each in statistics]) for name in statistics[0]} or None,
        )
        self.streams = Streams([("engine", trial) for trial in range(trials)])
        self.weights = torch.rand(gradients.shape, generator=draw).double()
        self.weights[:, ::7] = 0

    def attack(self, attack: GradientMatching, **seen: Any) -> Reconstruction:
        """The attack on all clients; ``seen`` replaces fields of the observations."""
        return attack.reconstruct(replace(self.observations, **seen), self.knowledge, self.streams)


def objective(kind: str, gradient: Tensors, target: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """The distance, where weights scale squared differences; the L1 part of ``l1_l2`` counts a hundredth."""
    root = torch.ones_like(target) if weights is None else weights.sqrt()
    ours, theirs = torch.cat([part.flatten() for part in gradient]) * root, target * root
    if kind == "l2":
        return (ours - theirs).pow(2).sum()
    if kind == "l1_l2":
        return (ours - theirs).pow(2).sum() + 0.01 * (ours - theirs).abs().sum()
    if kind == "cosine":
        return 1 - F.cosine_similarity(ours, theirs, dim=0)
    sizes = [part.numel() for part in gradient]
    pairs = zip(ours.split(sizes), theirs.split(sizes), strict=True)
    return torch.stack([1 - F.cosine_similarity(*pair, dim=0) for pair in pairs]).mean()


def penalty(regulariser: Any, images: torch.Tensor, module: torch.nn.Module, box: torch.Tensor) -> torch.Tensor:
    """A regulariser's penalty without its weight; the statistics to match are the module's running ones."""
    if regulariser.kind == "pixel_box":
        return (F.relu(images - box[1]) + F.relu(box[0] - images)).pow(2).mean()
    if regulariser.kind == "batch_norm":
        distances: Tensors = []

        def look(layer: Any, inputs: tuple[torch.Tensor], _: torch.Tensor) -> None:
            spread, mean = torch.var_mean(inputs[0], (0, 2, 3), correction=0)
            distances.append((mean - layer.running_mean).norm() + (spread - layer.running_var).norm())

        layers = [layer for layer in module.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
        hooks = [layer.register_forward_hook(look) for layer in layers]
        module(images)
        for hook in hooks:
            hook.remove()
        return torch.stack(distances).sum()
    across, down = images.diff(dim=-1), images.diff(dim=-2)
    if regulariser.form == "anisotropic":
        return across.abs().mean() + down.abs().mean()
    if regulariser.form == "squared":
        return across.pow(2).mean() + down.pow(2).mean()
    return torch.hypot(across[:, :, :-1], down[..., :-1]).mean()


def attack_trial(
    attack: GradientMatching, problem: Problem, trial: int, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images ``[B, C, H, W]``, labels ``[B]`` and objective that one trial ends with."""
    seen, known, stream = problem.observations, problem.knowledge, Streams(problem.streams.keys[trial : trial + 1])
    assert known.labels is not None and known.pixel_range is not None
    batch, box = seen.batch_shape[0], known.pixel_range
    module = copy.deepcopy(problem.module)
    module.train(seen.network.batch_norm == "train" and attack.batch_norm == "as_client")
    names = [name for name, _ in module.named_parameters()]
    images = stream.child("start").normal(1, *seen.batch_shape)[0, 0].double().requires_grad_()
    variables = [images]
    if attack.labels == "joint":
        variables.append(stream.child("labels").normal(1, batch * 10)[0].double().view(batch, 10).requires_grad_())

    def update() -> Tensors:
        """What a client with these images sends: its steps of SGD, one after the other."""
        labels = variables[1].softmax(1) if attack.labels == "joint" else known.labels[trial]  # type: ignore[index]
        size = seen.local.batch_size or batch
        first = now = [parameter.requires_grad_() for parameter in module.parameters()]
        for step in range(seen.local.steps):
            part = [(step * size + index) % batch for index in range(size)]
            logits = torch.func.functional_call(module, dict(zip(names, now, strict=True)), (images[part],))
            gradient = torch.autograd.grad(F.cross_entropy(logits, labels[part]), now, create_graph=True)
            now = [tensor - seen.local.rate * slope for tensor, slope in zip(now, gradient, strict=True)]
        return [(a - b) / seen.local.rate for a, b in zip(first, now, strict=True)]

    def cost() -> torch.Tensor:
        value = objective(attack.objective.kind, update(), seen.gradients[trial], weights)
        for regulariser in attack.regularisers:
            value = value + regulariser.weight * penalty(regulariser, images, module, box)
        return value

    minimise = _adam if attack.optimiser.kind == "adam" else _lbfgs
    minimise(attack, variables, cost, box)
    labels = variables[1].argmax(1) if attack.labels == "joint" else known.labels[trial]
    return images.detach(), labels.detach(), cost().detach()


def _adam(attack: GradientMatching, variables: Tensors, cost: Callable[[], torch.Tensor], box: torch.Tensor) -> None:
    settings: Any = attack.optimiser
    optimiser = torch.optim.Adam(variables, lr=settings.rate)
    n = attack.iterations
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    if settings.decay == "steps":
        assert n % 8 == 0
        milestones = [3 * n // 8, 5 * n // 8, 7 * n // 8]
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.1)
    elif settings.decay == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=n, eta_min=settings.rate / 10)
    for _ in range(n):
        for variable, gradient in zip(variables, torch.autograd.grad(cost(), variables), strict=True):
            variable.grad = gradient.sign() if settings.signed else gradient
        optimiser.step()
        if scheduler is not None:
            scheduler.step()
        if attack.box:
            with torch.no_grad():
                variables[0].copy_(torch.maximum(torch.minimum(variables[0], box[1]), box[0]))


def _lbfgs(attack: GradientMatching, variables: Tensors, cost: Callable[[], torch.Tensor], box: torch.Tensor) -> None:
    """All evaluations in one call; it evaluates the start too, so that one move less is done than evaluations."""
    settings: Any = attack.optimiser
    optimiser = torch.optim.LBFGS(
        variables,
        lr=settings.rate,
        max_iter=attack.iterations - 1,
        max_eval=10**6,
        history_size=settings.history,
        tolerance_grad=settings.tolerance_gradient,
        tolerance_change=settings.tolerance_change,
        line_search_fn=None if settings.line_search == "none" else settings.line_search,
    )

    def closure() -> float:
        value = cost()
        for variable, gradient in zip(variables, torch.autograd.grad(value, variables), strict=True):
            variable.grad = gradient
        return float(value.detach())

    optimiser.step(closure)


class Half:
    """A denoiser that halves images, whatever the noise."""

    span = 1.0

    def __call__(self, noisy: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
        assert deviation.shape == noisy.shape[:1]
        return noisy / 2
