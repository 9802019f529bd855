"""Untrusted programs behind walls: of files, processes, network, memory and time.

>>> from minrl.sandbox import Limits, python, run
"""

FACE = ("Call", "Limits", "Outcome", "SandboxError", "describe", "python", "run")


def __getattr__(name: str):  # noqa: ANN202 - what the module has; each call would pay for importing typing
    """What a task uses, imported when it is used: the process inside the walls has none of the packages."""
    if name not in FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from minrl.sandbox import calls

    return getattr(calls, name)
