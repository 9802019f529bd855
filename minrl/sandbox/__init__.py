"""Untrusted programs behind walls: of files, processes, network, memory and time.

>>> from minrl.sandbox import Limits, python, run
"""

TYPE_CHECKING = False  # as `typing` has it, whose import each call would pay for
if TYPE_CHECKING:
    from typing import Any

FACE = ("Call", "Limits", "Outcome", "SandboxError", "describe", "python", "run")


def __getattr__(name: str) -> "Any":  # noqa: ANN401 - what the module has
    """What a task uses, imported when it is used: the process inside the walls has none of the packages."""
    if name not in FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from minrl.sandbox import calls

    return getattr(calls, name)
