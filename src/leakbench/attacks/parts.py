"""Parts of gradient matching.

A part is a small frozen set of parameters that the configuration selects by its ``kind``.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Base of objectives, regularisers and optimisers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
