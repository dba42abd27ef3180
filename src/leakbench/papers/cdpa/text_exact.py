"""Table S6: sentences from the span of what attention reads, which a defense of the last layer alone leaves open."""

from __future__ import annotations

from leakbench.lazy import pd
from leakbench.papers.cdpa.attacked import shown_defenses
from leakbench.papers.cdpa.common import table
from leakbench.papers.cdpa.tables_attacks import cell
from leakbench.papers.cdpa.text_attacked import ATTACKED, DEFENSES, EXACT, TAG
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.wording import INTERVALS, NONE

ATTACK = "dager"
LAST = "cdpa-text-last"
"""Label of CDPA that protects the last layer alone."""
NAMES = {**DEFENSES, LAST: "CDPA, last layer"}
TOKENS = "token_accuracy"


@table(
    "S6",
    title="DAGER against every defense of text",
    caption="The paper attacks text by searches alone. DAGER (Petrov et al. 2024) looks for tokens whose embedding "
    "lies in the span of what the first layer of attention reads; before that it completes what a message marks, and "
    "what stands out, as a matrix of low rank has it. 'Tokens': part of the tokens that are found at their place. "
    f"Beside it TAG on the same sentences. ROUGE in percent, without special tokens. {INTERVALS}",
    experiments=(reads(EXACT, defenses=NAMES, attacks=(ATTACK,)), reads(ATTACKED, defenses=DEFENSES, attacks=(TAG,))),
)
def table_s6(tables: Tables) -> pd.DataFrame:
    """A row per defense."""
    exact, searched = tables[EXACT], tables[ATTACKED]
    rows = [
        {
            "defense": name,
            "tokens": cell(exact, TOKENS, defense=label, attack=ATTACK),
            "R-1": cell(exact, "rouge1", defense=label, attack=ATTACK),
            "R-L": cell(exact, "rougeL", defense=label, attack=ATTACK),
            "R-1, TAG": cell(searched, "rouge1", defense=label, attack=TAG),
        }
        for label, name in shown_defenses(exact, NAMES).items()
    ]
    return pd.DataFrame(rows).fillna(NONE)
