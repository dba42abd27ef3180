"""One package per paper: its grid, page, kinds of job, formulas, figures, tables, claims and printed numbers.

The core imports none of them, and they do not import each other; :mod:`leakbench.paper_folders` finds them by name.
"""
