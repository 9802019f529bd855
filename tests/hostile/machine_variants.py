"""Variants of the programs that attack the machine: the same attack in other clothes, under other limits."""

import random
from pathlib import Path

from minrl.rewards.workers import Failure
from minrl.sandbox import calls, seccomp
from minrl.sandbox.calls import Call, Limits, SandboxError
from minrl.sandbox.walls import SYSTEM, landlock_version
from minrl.types import Reward
from tests.hostile.cases import Case
from tests.hostile.machine import ATTACKS, PROGRAM
from tests.hostile.variants import CLOTHES, padded

TASK = "machine"
ALL_AT_ONCE = (
    "exec",
    "base64",
    "zlib",
    "hex",
    "compile",
    "if",
    "for",
    "while",
    "try",
    "function",
    "generator",
    "class",
)
"""Clothes in which a program runs to its end before what follows."""


def attack(level: str, source: str, folder: str | Path, limits: Limits) -> calls.Outcome:
    """The outcome of an attack's program."""
    # What the interpreter's own folders show: the parents of its prefix and nothing beside it.
    allowed = {name for path in map(Path, calls.INTERPRETER) for name in path.parts}
    allowed |= {name for path in SYSTEM for name in path.split("/")}
    given = f"ALLOWED, OPEN, WALLED = {allowed!r}, {str(folder)!r}, {level != 'limits'}\n"
    files = {"main.py": PROGRAM + given + source + "\nprint('held', flush=True)\n"}
    return calls.start(Call([*calls.python(level), "main.py"], files, limits), level).result()


def machine_case(level: str, rng: random.Random) -> Case:
    """A variant of an attack that the level is to hold."""
    unruled, unfiltered = level == "limits" and not landlock_version(), not seccomp.exists()
    known = [
        one
        for one in ATTACKS
        if not (one.needs_filter and unfiltered)
        and not (one.family == "files" and unruled)
        and not (one.name == "files without content" and level == "limits")
    ]
    chosen, names = rng.choice(known), list[str]()
    source = chosen.source
    for _ in range(rng.randint(0, 2)):
        names.append(rng.choice(ALL_AT_ONCE))
        source = CLOTHES[names[-1]](source)
    if rng.random() < 0.3:
        source, names = padded(source, rng), [*names, "padded"]
    limits = {"memory_mib": rng.choice((128, 192, 256)), "processes": rng.choice((20, 24, 40))}
    row = {"status": chosen.status, "level": level}
    return Case(chosen.family, " + ".join([chosen.name, *names]), TASK, row, source, most=0.0, options=limits)


def play_machine(case: Case, folder: Path) -> Reward | Failure:
    """Nothing for an attack; a failure for one that got something, or that did not end as it should."""
    limits = Limits(wall_s=120.0, cpu_s=20.0, file_mib=16, **case.options)
    try:
        outcome = attack(case.row["level"], case.completion, folder, limits)
    except SandboxError as error:
        return Failure(str(error))
    refused = outcome.status == "ok" and outcome.text.endswith("held\n")
    held = "GOT" not in outcome.text and (refused or outcome.status == case.row["status"] != "ok")
    said = "" if held else f"{outcome.status} {outcome.text[-200:]!r} {outcome.stderr[-200:]!r}"
    return Reward(0.0, {"measured_seconds": outcome.seconds}) if held else Failure(f"not held: {said}")
