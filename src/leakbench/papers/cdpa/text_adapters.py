"""Table S7: sentences from low-rank adapters, where less of a model travels."""

from __future__ import annotations

from leakbench.lazy import pd
from leakbench.papers.cdpa.common import table
from leakbench.papers.cdpa.tables_attacks import cell
from leakbench.papers.cdpa.text_attacked import ADAPTERS, ATTACKED, DLG, EXACT, LAMPS, TAG, TRAINED_ADAPTERS
from leakbench.papers.cdpa.text_exact import ATTACK as DAGER
from leakbench.papers.cdpa.text_exact import TOKENS
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.wording import INTERVALS, NONE

RANKS = {f"bert-lora-{rank}": str(rank) for rank in (8, 16, 32)}
"""Labels of models -> the rank of their adapters."""
WORDS = "frequent_words"
LAMP = "lamp-cos"
SHOWN = {DAGER: "DAGER", LAMP: LAMPS[LAMP], TAG: "TAG", DLG: "DLG", WORDS: "frequent words"}
"""Labels of attacks -> names of columns."""
STATES = {ADAPTERS: "adapters at their start", TRAINED_ADAPTERS: "adapters after an epoch"}
"""Experiments -> what travels in them."""


@table(
    "S7",
    title="Sentences from low-rank adapters",
    caption="The paper fine-tunes whole models. Here queries and values have adapters of a low rank (Hu et al. 2022); "
    "they and the last layer alone train and travel, undefended. Part of the tokens that are found at their place. "
    "DAGER tells tokens of adapters at their start where there are fewer than the rank, later where there are no more "
    f"than the ranks of both together; where a sentence has more, it is infeasible: '{NONE}'. Searches have less to "
    f"match, the lower the rank. 'Frequent words' sees no update. {INTERVALS}",
    experiments=(
        *(reads(experiment, defenses="none", models=RANKS, attacks=SHOWN) for experiment in STATES),
        reads(ATTACKED, defenses="none", attacks=(LAMP, TAG, DLG, WORDS)),
        reads(EXACT, defenses="none", attacks=DAGER),
    ),
    leaves_out="its updates are undefended",
)
def table_s7(tables: Tables) -> pd.DataFrame:
    """A row for the whole model, and one per state and rank."""
    whole = {attack: EXACT if attack == DAGER else ATTACKED for attack in SHOWN}
    rows = [
        {"travels": "all parameters", "rank": NONE}
        | {name: cell(tables[whole[attack]], TOKENS, defense="none", attack=attack) for attack, name in SHOWN.items()}
    ]
    rows += [
        {"travels": state, "rank": rank}
        | {name: cell(tables[experiment], TOKENS, model=model, attack=attack) for attack, name in SHOWN.items()}
        for experiment, state in STATES.items()
        for model, rank in RANKS.items()
    ]
    return pd.DataFrame(rows)
