"""Keeps tables that no PDF reads out of the fonts in PDFs.

Of every font, Matplotlib embeds the glyphs that a figure shows and the rules by which text is composed of glyphs. These
are parsed and written anew per figure: two thirds of what embedding takes. A PDF names glyphs, which are composed.
"""

from __future__ import annotations

COMPOSING = ("GDEF", "GPOS", "GSUB", "kern")
"""Tables of OpenType fonts on composing text."""


def embed_glyphs_alone() -> None:
    """Embed fonts in PDFs without rules for composing text. Changes no picture."""
    from fontTools.subset import Options

    dropped = Options._drop_tables_default
    Options._drop_tables_default = [*dropped, *(table for table in COMPOSING if table not in dropped)]
