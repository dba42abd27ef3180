"""Audit of a captured gradient or update of one's own training: what the attacks of the suite make of it.

``captured.py`` reads and checks what a server would hold, ``ladder.py`` orders the attacks from weak to strong
knowledge, ``attempts.py`` runs them, ``protection.py`` tries defenses on the captured update, ``findings.py`` is the
record, ``page.py`` says in plain words what leaked.
"""
