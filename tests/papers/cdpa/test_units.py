"""Units of communication: the numbers of Table IV of Deng et al. (2024)."""

from __future__ import annotations

import pytest

from leakbench.federated.message import mebi_elements
from leakbench.models.base import build_network
from leakbench.models.resnet import ResNet18

STATE, PARAMETERS = 11_183_582, 11_173_962
"""Of ResNet18: with and without BatchNorm's statistics."""


def test_resnet18_has_as_many_numbers() -> None:
    network = build_network(ResNet18(), (3, 32, 32), 10, 0)
    assert (network.state_size, network.dimension) == (STATE, PARAMETERS)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (32 * STATE, 10.665495),
        (16 * STATE, 5.332747),
        (PARAMETERS, 0.333010),  # signs, of parameters alone
        (32 * (STATE - 0.6 * 5120), 10.662565),  # Soteria
        (32 * 0.4 * STATE, 4.266198),  # GradDrop
        (32 * 9_422, 0.008986),
        (32 * 735_250, 0.701189),
        (32 * 733_642, 0.699656),
    ],
)
def test_the_papers_unit(bits: float, expected: float) -> None:
    assert mebi_elements(bits) == pytest.approx(expected, abs=5.1e-7)
