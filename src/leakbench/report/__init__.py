"""Tidy tables, statistics, verdicts, figures, tables and the HTML page, from records.

An artifact is registered under the paper's number with a caption, and leaves the plotted numbers as CSV beside the
picture. One that shows pictures or coordinates asks for the tensors of its experiments' records too
(``record_tensors.py``). Figures draw compared defenses without knowing them (``compared.py``).

``leakbench draw --partial`` (``partial.py``) merges the records that exist in memory, by the same functions. Pictures,
tables and CSV say "k of n records", even if nothing is missing: only the workflow makes unmarked artifacts.

A claim is a pure function from tidy tables to an effect with an interval and a verdict. ``evidence.py`` turns the
numbers of a defense into an array over settings, seeds and attacked batches; ``comparisons.py`` makes effects of them
(differences, ratios, levels, trends), which ``inference.py`` tests by leaving out seeds and batches in turn.
``findings.py`` decides: *reproduced* or *contradicted* where the test of each part allows it, else *inconclusive*, as
where an attack behind the numbers missed its gate; *not run* says what is missing. ``coverage.py`` says how much of the
paper's grid that rests on. The rule and its rates of false decisions: ``docs/verdicts.md``.
"""
