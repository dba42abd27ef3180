"""torchvision beside a CPU build of torch.

torchvision's Linux wheel is built for CUDA; beside a CPU build of torch its compiled operators do not load and its
import stops at ``operator torchvision::nms does not exist``. Declaring the schemas of the two operators that the import
looks up lets everything but those operators work. Where the wheel loads, nothing is declared: a second declaration
would crash.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType

from leakbench.lazy import torch

_SYMPTOM = "operator torchvision::nms does not exist"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[torch.library.Library] = []  # a declaration lives as long as its library object


@cache
def import_torchvision() -> ModuleType:
    """torchvision, beside any build of torch. Call this before importing libraries that need torchvision."""
    try:
        import torchvision
    except RuntimeError as error:
        if _SYMPTOM not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            library.define(schema)
        _libraries.append(library)
        import torchvision
    module: ModuleType = torchvision
    return module
