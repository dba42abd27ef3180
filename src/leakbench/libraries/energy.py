"""codecarbon, which counts a process's energy, with the processor's model looked up.

codecarbon waits for more than a second to look it up. A warm process that imports this module spares its jobs that.
"""

import contextlib

from codecarbon import OfflineEmissionsTracker
from codecarbon.core.util import detect_cpu_model
from codecarbon.external.logger import set_logger_level

with contextlib.suppress(Exception):  # codecarbon goes on without a model, too
    detect_cpu_model()  # cached


def tracker() -> OfflineEmissionsTracker:
    """A tracker of this process that writes nothing."""
    set_logger_level("critical")  # it logs before it reads the argument log_level
    # The country sets the carbon intensity of codecarbon's kilograms, which are not used.
    return OfflineEmissionsTracker(
        country_iso_code="USA",
        tracking_mode="process",
        output_methods=[],
        allow_multiple_runs=True,
        log_level="critical",
    )
