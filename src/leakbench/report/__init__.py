"""Tidy tables, statistics, verdicts, figures, tables and the HTML page, from records.

An artifact is registered under the paper's number with a caption, and leaves the plotted numbers as CSV beside the
picture. One that shows pictures or coordinates asks for the tensors of its experiments' records too
(``record_tensors.py``). Figures draw compared defenses without knowing them (``compared.py``).

``leakbench draw --partial`` (``partial.py``) merges the records that exist in memory, by the same functions. Pictures,
tables and CSV say "k of n records", even if nothing is missing: only the workflow makes unmarked artifacts.

A claim is a pure function from tidy tables to an effect with an interval and a verdict. ``evidence.py`` turns the
numbers of a defense into an array over settings, seeds and attacked batches; ``statistics.py`` resamples seeds and
batches independently of each other, alike for both defenses of a comparison. The verdict is *inconclusive* if the
interval contains the threshold, or an attack behind the numbers missed its gate; else *reproduced* or *contradicted*.
A claim of several parts is reproduced if all are, and contradicted if one is. *Not run* says what is missing.
"""
