"""Capture the gradient of one training step in plain torch, and the true images, for `leakbench audit`.

$ python examples/audit_plain_torch.py captured
$ leakbench audit captured/update.safetensors --model examples/audit_plain_torch.py:Net \
    --before captured/before.safetensors --shape 1,16,16 --classes 10 --batch 2 --truth captured/images --defenses
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Sequential):
    """A small convolutional network on images of 16x16 pixels."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, stride=1, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(12 * 8 * 8, 10),
        )


def digits(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scans of digits, pixels in [0, 1] ``[count, 1, 16, 16]``, and their labels."""
    data = load_digits()
    small = torch.tensor(data.images[first : first + count], dtype=torch.float32)[:, None] / 16
    images = nn.functional.interpolate(small, size=(16, 16), mode="bilinear", align_corners=False)
    return images, torch.tensor(data.target[first : first + count])


def main(folder: Path) -> None:
    """Take a step on two images, and write what the server gets, what it had, and the truth."""
    torch.manual_seed(0)
    model = Net()
    images, labels = digits(first=100, count=2)
    (folder / "images").mkdir(parents=True, exist_ok=True)

    save_file(model.state_dict(), folder / "before.safetensors")
    nn.functional.cross_entropy(model(images), labels).backward()
    gradient = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    save_file(gradient, folder / "update.safetensors")

    for number, image in enumerate(images):
        Image.fromarray((image[0] * 255).round().byte().numpy()).save(folder / "images" / f"{number}.png")
    print(f"labels: {labels.tolist()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
