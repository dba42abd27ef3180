"""``python -m leakbench``: how Snakemake starts jobs. The installed command ``leakbench`` never asks a warm process."""

import sys

from leakbench.workflow.caller import delegate

status = delegate(sys.argv[1:])
if status is None:
    from leakbench.cli import main

    status = main()
sys.exit(status)
