"""Keeps tables that no PDF reads out of the fonts in PDFs.

Matplotlib embeds the glyphs that a figure shows, and the font's rules for composing text. Parsing and writing these is
most of what embedding takes, and a PDF, whose text is composed already, needs none of them.
"""

from __future__ import annotations

COMPOSING = ("GDEF", "GPOS", "GSUB", "kern")
"""Tables of OpenType fonts on composing text."""


def embed_glyphs_alone() -> None:
    """Embed fonts in PDFs without rules for composing text. Changes no picture."""
    from fontTools.subset import Options

    dropped = Options._drop_tables_default
    Options._drop_tables_default = [*dropped, *(table for table in COMPOSING if table not in dropped)]
