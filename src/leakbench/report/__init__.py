"""From records to what people read: tidy tables, statistics, verdicts, figures, tables, the HTML page.

An artifact is registered under the paper's number with a caption, and leaves the plotted numbers as CSV beside the
picture. One that shows pictures or coordinates asks for the tensors of its experiments' records too
(``record_tensors.py``). Compared defenses are drawn without being named in the figure (``compared.py``).

``leakbench draw --partial`` (``partial.py``) merges the records that exist in memory, by the same functions. Pictures,
tables and CSV say "k of n records", also when nothing is missing, since an unmarked artifact is the workflow's alone.

A claim is a pure function from tidy tables to an effect with an interval and a verdict. ``evidence.py`` turns the
numbers of a defense into an array over settings, seeds and attacked batches; ``statistics.py`` resamples seeds and
batches independently of each other, alike for both defenses of a comparison. The verdict is *inconclusive* if the
interval contains the threshold, or an attack behind the numbers missed its gate; else *reproduced* or *contradicted*.
A claim of several parts is reproduced if all are, and contradicted if one is. *Not run* says what is missing.
"""
