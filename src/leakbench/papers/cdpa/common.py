"""Names and settings that the paper's artifacts share."""

from __future__ import annotations

from functools import partial

from leakbench.lazy import pd
from leakbench.papers.cdpa import PAPER
from leakbench.report.artifacts import artifact
from leakbench.report.reference import printed_numbers

figure = partial(artifact, PAPER, "figure")
table = partial(artifact, PAPER, "table")
printed = partial(printed_numbers, PAPER)


MASK = (2, 3)
"""Positions of the bits that the paper flips on images, from the left; 0 is the sign."""
MASK_TEXT = (5, 6)
"""Positions of the bits that it flips on text."""

DEFENSES = {
    "none": "none",
    "cafl": "CAFL",
    "sign_sgd": "SignSGD",
    "jopeq": "JoPEQ",
    "grad_drop": "GradDrop",
    "soteria": "Soteria",
    "sdq": "SDQ",
    "laplace": "LDP",
    "cdpa": "CDPA",
}
"""Mechanism -> the paper's name of it, in the order of Table IV. A mechanism has one label in ``utility`` and others in
the experiments of attacks, whose settings differ."""

TRAINED = tuple(mechanism.replace("_", "-") for mechanism in DEFENSES)
"""Labels of the defenses in ``utility``."""

MODELS = ("SimpleCNN", "ConvNet", "ResNet18")
"""The models of Table IV, in its order."""
MODEL_LABELS = tuple(f"{name.lower()}*" for name in MODELS)
"""Patterns of their labels, such as ``convnet8``."""


def defense_name(label: str, mechanism: str) -> str:
    """The paper's name of a defense, and the label where it has none or where a user added another setting of it."""
    name = DEFENSES.get(mechanism)
    return name if name is not None and label.replace("-", "_") == mechanism else label


def model_name(label: str) -> str | None:
    """The paper's name of a model, from a label such as ``convnet8``; None if it is none of the paper's."""
    return next((name for name in MODELS if label.startswith(name.lower())), None)


def defenses_of(frame: pd.DataFrame) -> dict[str, str]:
    """Label -> mechanism of a table's defenses: in the paper's order, those that it does not have last."""
    mechanisms = dict(zip(frame["defense"], frame["mechanism"], strict=True))
    order = {name: place for place, name in enumerate(DEFENSES)}
    return dict(sorted(mechanisms.items(), key=lambda item: order.get(item[1], len(order))))
