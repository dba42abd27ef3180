"""Capture what a Flower client sends, by a mod of its ClientApp, for `leakbench audit`. Needs `pip install flwr`.

Add the mod to your own app, `ClientApp(mods=[Capture("captured")])`, and run it as ever: of every training message it
keeps the parameters that came and those that went. Here one message is sent by hand, without a server:

$ python examples/audit_flower.py captured
$ leakbench audit captured/update.safetensors --model examples/audit_plain_torch.py:Net \
    --before captured/before.safetensors --shape 1,16,16 --classes 10 --kind weights --steps 2 --rate 0.1
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import save_file
from torch import nn

from audit_plain_torch import Net, digits


class Capture:
    """A Flower mod that writes the first arrays of a training message before and after the client.

    Args:
        folder: of the two files; later messages replace them.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __call__(self, message: Message, context: Context, handle: Callable[[Message, Context], Message]) -> Message:
        """Pass the message on to the client, and return its reply as it is."""
        before = self._state(message)
        reply = handle(message, context)
        self.folder.mkdir(parents=True, exist_ok=True)
        save_file(before, self.folder / "before.safetensors")
        save_file(self._state(reply), self.folder / "update.safetensors")
        return reply

    @staticmethod
    def _state(message: Message) -> dict[str, torch.Tensor]:
        arrays = next(iter(message.content.array_records.values()))
        return {name: tensor.contiguous().clone() for name, tensor in arrays.to_torch_state_dict().items()}


def client_app(folder: str | Path) -> ClientApp:
    """A client that takes two steps of SGD on one image, with the mod."""
    app = ClientApp()

    @app.train(mods=[Capture(folder)])  # type: ignore[untyped-decorator]  # without Flower its types are unknown
    def train(message: Message, _: Context) -> Message:
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        images, labels = digits(first=100, count=1)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimiser.step()
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)

    return app


def main(folder: str) -> None:
    """Send one training message to the client."""
    torch.manual_seed(0)
    content = RecordDict({"arrays": ArrayRecord(Net().state_dict())})
    metadata = Metadata(1, "1", 0, 1, "", "", time.time(), 60.0, "train")  # as Flower's server would fill it in
    message = Message(content=content, metadata=metadata)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    client_app(folder)(message, context)


if __name__ == "__main__":
    main(sys.argv[1])
