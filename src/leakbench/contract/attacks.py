"""Checks of attacks: one reconstruction from gradients of a few clients.

Iterations are cut short: the contract is about the form of reconstructions, not about their quality.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, get_args

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import Attack, Grant, Knowledge, Observations, Reconstruction
from leakbench.contract.check import Case, Checks, NotAsked
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.models.base import Network, build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.randomness import Streams, generator, seeded

CLIENTS, SIDE, CLASSES, ITERATIONS = 3, 8, 10, 2
ROUNDING = 1e-3
"""Tolerance per pixel, for the order of additions in a few steps of a search."""


class AttackCase(Case[Attack]):
    """An attack on the undefended gradients of three clients with an image of 8 x 8 each.

    Args:
        component: the class.
        given: parameters; required ones that are missing get a plain value, a wrapper goes around ``dlg``.
    """

    def __init__(self, component: type[Attack], given: Mapping[str, Any]) -> None:
        short = {"iterations": ITERATIONS} if "iterations" in component.model_fields else {}
        inside = {"attack": {"name": "dlg", "iterations": ITERATIONS}} if issubclass(component, Wrapper) else {}
        super().__init__(component, {**short, **inside, **given})

    @cached_property
    def attack(self) -> Attack:
        """The attack against an undefended message."""
        return self.made.against(())

    @cached_property
    def _of_clients(self) -> tuple[Observations, Knowledge]:
        network = self.sent
        images = torch.rand(CLIENTS, 1, 1, SIDE, SIDE, generator=generator("contract", "images"))
        labels = torch.randint(CLASSES, (CLIENTS, 1), generator=generator("contract", "labels"))
        streams = Streams([("contract", "client", row) for row in range(CLIENTS)])
        gradients = ClientSteps(network, network.parameters, images, labels, streams).gradient
        seen = Observations(network, network.parameters, gradients, tuple(images.shape[1:]))
        return seen, replace(self._beforehand, labels=labels)

    @cached_property
    def honest(self) -> Network:
        """The model that clients agreed to train."""
        return build_network(SimpleConvNet(width=2), (1, SIDE, SIDE), CLASSES, seed=3)

    @cached_property
    def _beforehand(self) -> Knowledge:
        """The knowledge before any message."""
        return Knowledge(
            pixel_range=torch.stack([torch.zeros(1, 1, 1), torch.ones(1, 1, 1)]),
            auxiliary_images=torch.rand(8, 1, SIDE, SIDE, generator=generator("contract", "auxiliary")),
            auxiliary_labels=torch.arange(8) % CLASSES,
        )

    def prepare(self) -> Network:
        """The model that the server sends to the clients."""
        if self.attack.reconstructs != "images":
            raise NotAsked("it reconstructs sentences; the check has images")
        with torch.no_grad():
            return self.attack.prepare(self.honest, self.shape[1:], self._beforehand)

    @cached_property
    def sent(self) -> Network:
        """The model that the server sends, once it is known to be one."""
        if not self.attack.changes_model:
            return self.honest
        try:
            returned: Any = self.prepare()
        except (Infeasible, NotAsked):
            raise
        except Exception:
            returned = None
        if not isinstance(returned, Network):
            raise NotAsked("prepare returns no Network; mend that first")
        return returned

    def run(self, rows: slice = slice(None)) -> Reconstruction:
        """Reconstruct the clients in ``rows``."""
        attack = self.attack
        if attack.reconstructs != "images":
            raise NotAsked("it reconstructs sentences; the check has images")
        seen, known = self._of_clients
        if missing := sorted(attack.needs - known.granted() - {"modified_model"}):
            raise NotAsked(f"it needs {', '.join(missing)}, which the check has not")
        observations = Observations(seen.network, seen.parameters, seen.gradients[rows].clone(), seen.batch_shape)
        assert known.labels is not None
        knowledge = replace(known, labels=known.labels[rows])
        streams = Streams([("contract", "attack", row) for row in range(CLIENTS)[rows]])
        return attack.reconstruct(observations, knowledge, streams)

    @cached_property
    def reconstruction(self) -> Reconstruction:
        """The reconstruction of all clients, once it is known to be one."""
        try:
            returned: Any = self.run()
        except (Infeasible, NotAsked):
            raise
        except Exception:
            returned = None
        if not isinstance(returned, Reconstruction):
            raise NotAsked("it returns no Reconstruction; mend that first")
        return returned

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all clients' images, ``(clients, B, C, H, W)``."""
        return CLIENTS, 1, 1, SIDE, SIDE


checks: Checks[AttackCase] = Checks()


@checks("needs")
def needs(case: AttackCase) -> str | None:
    """Knowledge that threat models can grant."""
    if unknown := sorted(case.attack.needs - set(get_args(Grant))):
        return f"needs names {', '.join(unknown)}; a threat model grants {', '.join(get_args(Grant))}"
    return None


@checks("model sent")
def model_sent(case: AttackCase) -> str | None:
    """A malicious server's model: granted, with logits of all classes, and the same again."""
    if case.attack.changes_model != ("modified_model" in case.attack.needs):
        return "prepare changes the model, and needs names 'modified_model': have both, or neither"
    if not case.attack.changes_model:
        raise NotAsked("it leaves the model as it is")
    before, honest = case.honest.parameters.clone(), case.honest
    sent: Any = case.prepare()
    if not isinstance(sent, Network):
        return f"prepare returns a {type(sent).__name__}; return leakbench.models.base.Network(module, network.device)"
    if not torch.equal(before, honest.parameters):
        return "prepare changes the model that it is given; change a copy: copy.deepcopy(network.module)"
    logits = sent.logits(sent.parameters, torch.rand(2, 1, SIDE, SIDE, generator=generator("contract", "sent")))
    if tuple(logits.shape) != (2, CLASSES) or not bool(logits.isfinite().all()):
        return f"logits of the model sent are {list(logits.shape)}; clients need {[2, CLASSES]} that are finite"
    with seeded(1):
        again = case.prepare()
    if not torch.equal(again.parameters, sent.parameters):
        return "prepare sends another model each time; draw from leakbench.randomness.generator(...) if it must draw"
    return None


@checks("shape")
def shape(case: AttackCase) -> str | None:
    """Images as large as the clients'."""
    returned: Any = case.run()
    if not isinstance(returned, Reconstruction):
        return f"reconstruct returns a {type(returned).__name__}; return Reconstruction(images, objective, diverged_at)"
    images = tuple(case.reconstruction.images.shape)
    if images != case.shape:
        return f"images are {list(images)}; the clients' are {list(case.shape)}: return as much"
    return None


@checks("beside the images")
def beside(case: AttackCase) -> str | None:
    """Objective and divergence: one number per client."""
    for name in ("objective", "diverged_at"):
        part = getattr(case.reconstruction, name)
        if part is not None and tuple(part.shape) != (CLIENTS,):
            return f"{name} is {list(part.shape)}; it is [{CLIENTS}], one number per client"
    if case.reconstruction.diverged_at.dtype != torch.int64:
        return f"diverged_at is {case.reconstruction.diverged_at.dtype}; it is int64, -1 where nothing diverged"
    return None


@checks("finite")
def finite(case: AttackCase) -> str | None:
    """Images that metrics can read, unless it says that it diverged."""
    whole = case.reconstruction.images.flatten(1).isfinite().all(dim=1)
    if bool((~whole & (case.reconstruction.diverged_at < 0)).any()):
        return (
            "an image holds values that are not finite, and diverged_at says that nothing diverged; say at which step"
        )
    return None


@checks("repeats")
def repeats(case: AttackCase) -> str | None:
    """The same streams make the same images, whatever torch's global generator holds."""
    with seeded(1):
        again = case.run().images
    if not torch.equal(again, case.reconstruction.images):
        return "the same streams made other images; draw from streams alone, never from torch's global generator"
    return None


@checks("batch mates")
def batch_mates(case: AttackCase) -> str | None:
    """A client alone is attacked as beside others."""
    for row in range(CLIENTS):
        alone = case.run(slice(row, row + 1)).images
        if float((alone - case.reconstruction.images[row : row + 1]).abs().max()) > ROUNDING:
            return f"client {row} alone is reconstructed otherwise than beside others; compute and draw row by row"
    return None


@checks("effort")
def effort(case: AttackCase) -> str | None:
    """`leakbench cost` reckons with it."""
    returned: Any = case.attack.effort(1)
    if not isinstance(returned, Effort):
        return f"effort returns a {type(returned).__name__}; return Effort(samples, steps)"
    return None
