"""Staged files: where they lie and what they hold.

A data set, vocabulary or file of weights states its terms, its size and its files (``manifest.py``), so ``leakbench
stage --all`` lists what the jobs of a plan read without knowing any of them. What comes from the Hub is pinned to a
revision, with the SHA-256 digests that were published (``pins.toml``); those of what is there are noted in ``<data
root>/<hub id>/manifest.json``. What a job read is no part of its identity, but its record notes a fingerprint of the
files (``provenance.data``). A job that ends with other files than it began with fails and writes nothing, and
``merge`` refuses to mix records of one experiment whose fingerprints differ.
"""
