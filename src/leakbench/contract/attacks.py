"""What an attack is asked: one reconstruction from gradients of a few clients.

Iterations are cut short: the contract is about what comes back, and not about how good it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, get_args

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import Attack, Grant, Knowledge, Observations, Reconstruction
from leakbench.contract.check import Case, Checks, NotAsked
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.models.base import build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.randomness import Streams, generator

CLIENTS, SIDE, CLASSES, ITERATIONS = 3, 8, 10, 2
ROUNDING = 1e-3
"""Of a pixel: what the order of additions may change in a few steps of a search."""


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
        """Against an undefended message."""
        return self.made.against(())

    @cached_property
    def _of_clients(self) -> tuple[Observations, Knowledge]:
        network = build_network(SimpleConvNet(width=2), (1, SIDE, SIDE), CLASSES, seed=3)
        images = torch.rand(CLIENTS, 1, 1, SIDE, SIDE, generator=generator("contract", "images"))
        labels = torch.randint(CLASSES, (CLIENTS, 1), generator=generator("contract", "labels"))
        streams = Streams([("contract", "client", row) for row in range(CLIENTS)])
        gradients = ClientSteps(network, network.parameters, images, labels, streams).gradient
        seen = Observations(network, network.parameters, gradients, tuple(images.shape[1:]))
        known = Knowledge(
            labels=labels,
            pixel_range=torch.stack([torch.zeros(1, 1, 1), torch.ones(1, 1, 1)]),
            auxiliary_images=torch.rand(8, 1, SIDE, SIDE, generator=generator("contract", "auxiliary")),
        )
        return seen, known

    def run(self, rows: slice = slice(None)) -> Reconstruction:
        """What the attack makes of the clients in ``rows``."""
        attack = self.attack
        if attack.reconstructs != "images":
            raise NotAsked("it reconstructs sentences; the check has images")
        seen, known = self._of_clients
        if missing := sorted(attack.needs - known.granted()):
            raise NotAsked(f"it needs {', '.join(missing)}, which the check has not")
        part = Observations(seen.network, seen.parameters, seen.gradients[rows].clone(), seen.batch_shape)
        assert known.labels is not None
        mine = Knowledge(known.labels[rows], known.pixel_range, known.auxiliary_images)
        streams = Streams([("contract", "attack", row) for row in range(CLIENTS)[rows]])
        return attack.reconstruct(part, mine, streams)

    @cached_property
    def found(self) -> Reconstruction:
        """What it makes of all clients, once that is known to be well formed."""
        try:
            found: Any = self.run()
        except (Infeasible, NotAsked):
            raise
        except Exception:
            found = None
        if not isinstance(found, Reconstruction):
            raise NotAsked("it returns no Reconstruction; mend that first")
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all clients' images, ``(clients, B, C, H, W)``."""
        return CLIENTS, 1, 1, SIDE, SIDE


checks: Checks[AttackCase] = Checks()


@checks("needs")
def needs(case: AttackCase) -> str | None:
    """Knowledge that threat models can grant."""
    if unknown := sorted(case.attack.needs - set(get_args(Grant))):
        return f"needs names {', '.join(unknown)}; a threat model grants {', '.join(get_args(Grant))}"
    return None


@checks("shape")
def shape(case: AttackCase) -> str | None:
    """Images as large as the clients'."""
    found: Any = case.run()
    if not isinstance(found, Reconstruction):
        return f"reconstruct returns a {type(found).__name__}; return Reconstruction(images, objective, diverged_at)"
    if tuple(case.found.images.shape) != case.shape:
        return f"images are {list(case.found.images.shape)}; the clients' are {list(case.shape)}: return as much"
    return None


@checks("beside the images")
def beside(case: AttackCase) -> str | None:
    """Objective and divergence: one number per client."""
    for name in ("objective", "diverged_at"):
        part = getattr(case.found, name)
        if part is not None and tuple(part.shape) != (CLIENTS,):
            return f"{name} is {list(part.shape)}; it is [{CLIENTS}], one number per client"
    if case.found.diverged_at.dtype != torch.int64:
        return f"diverged_at is {case.found.diverged_at.dtype}; it is int64, -1 where nothing diverged"
    return None


@checks("finite")
def finite(case: AttackCase) -> str | None:
    """Images that metrics can read, unless it says that it diverged."""
    whole = case.found.images.flatten(1).isfinite().all(dim=1)
    if bool((~whole & (case.found.diverged_at < 0)).any()):
        return (
            "an image holds values that are not finite, and diverged_at says that nothing diverged; say at which step"
        )
    return None


@checks("repeats")
def repeats(case: AttackCase) -> str | None:
    """The same streams make the same images, whatever torch's global generator holds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        again = case.run().images
    if not torch.equal(again, case.found.images):
        return "the same streams made other images; draw from streams alone, never from torch's global generator"
    return None


@checks("batch mates")
def batch_mates(case: AttackCase) -> str | None:
    """A client alone is attacked as beside others."""
    for row in range(CLIENTS):
        alone = case.run(slice(row, row + 1)).images
        if float((alone - case.found.images[row : row + 1]).abs().max()) > ROUNDING:
            return f"client {row} alone is reconstructed otherwise than beside others; compute and draw row by row"
    return None


@checks("effort")
def effort(case: AttackCase) -> str | None:
    """`leakbench cost` reckons with it."""
    found: Any = case.attack.effort(1)
    if not isinstance(found, Effort):
        return f"effort returns a {type(found).__name__}; return Effort(samples, steps)"
    return None
