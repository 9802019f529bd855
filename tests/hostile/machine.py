"""The attacks on the machine, as calls of the sandbox. It imports little: another user's interpreter imports it too."""

from pathlib import Path

from minrl.sandbox import calls, seccomp
from minrl.sandbox.calls import Call, Limits
from minrl.sandbox.walls import landlock_version
from tests.hostile.cases import ATTACKS, CALLS, MACHINE, Case


def attack(level: str, source: str, folder: str | Path, limits: Limits) -> calls.Outcome:
    """The outcome of a program that attacks the machine. `folder` is one that everybody may write to."""
    numbers = {name: seccomp.number_of(name) for name in CALLS}
    given = f"OPEN, NUMBERS = {str(folder)!r}, {numbers!r}\n"
    files = {"main.py": MACHINE + given + source + "\nprint('held', flush=True)\n"}
    return calls.start(Call([*calls.python(level), "main.py"], files, limits), level).result()


def machine_cases(level: str) -> list[Case]:
    """The attacks that this level is to hold on this machine."""
    names = {"files without content"} if level == "limits" else set()  # files lie on the disk
    unruled = level == "limits" and not landlock_version()
    known = ATTACKS if seccomp.exists() else []
    return [one for one in known if one.name not in names and not (unruled and one.family == "files")]


def problem_of(case: Case, outcome: calls.Outcome) -> str:
    """Why an attack on the machine was not held; empty if it was."""
    refused = outcome.status == "ok" and outcome.text.endswith("held\n")
    held = "GOT" not in outcome.text and (refused or outcome.status == case.row["status"] != "ok")
    return "" if held else f"{case.name}: {outcome.status} {outcome.text[-500:]!r} {outcome.stderr[-500:]!r}"
