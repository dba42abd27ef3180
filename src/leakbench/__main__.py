"""``python -m leakbench``."""

import sys

from leakbench.cli import main

sys.exit(main())
