"""leakbench: replication of data reconstruction attacks and defenses in federated learning.

The Python interface, :mod:`leakbench.api`, is imported when one of its names is first used.
"""

TYPE_CHECKING = False  # mypy takes it for typing's, which takes a while to import
if TYPE_CHECKING:
    from leakbench.api import attack, defense, observe, read_records, reconstruct, score, send

__version__ = "0.1.0"
__all__ = ["attack", "defense", "observe", "read_records", "reconstruct", "score", "send"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from leakbench import api

    return getattr(api, name)
