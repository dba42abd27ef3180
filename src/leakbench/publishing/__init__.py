"""Published results: records that travel in the repository, are adopted as if computed here, and are checked.

:mod:`~leakbench.publishing.archives` writes and reads them, :mod:`~leakbench.publishing.adoption` puts them into
``results/``, :mod:`~leakbench.publishing.recomputation` computes a part of them again,
:mod:`~leakbench.publishing.exhibits` shows what is drawn from them on pages, and
:mod:`~leakbench.publishing.explanation` goes from a number in a figure back to the records behind it.
"""
