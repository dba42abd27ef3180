"""A running job: its work folder, its checkpoints, its progress.

The work folder ``work/<scale>/.../<part>/`` mirrors the record's path and is of no interest to Snakemake, which
deletes the outputs of failed jobs. It holds the job's state (``work.state_of``: running, failed and why, stopped), its
checkpoints (``checkpoint.py``), and with ``leakbench run --keep`` a copy of the finished record. It goes when the
record is in place.
"""
