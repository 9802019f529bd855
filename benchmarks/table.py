"""Every benchmark of the CPU, one after another, and one table of what they found.

    make bench                         all of them
    python benchmarks/table.py step update

A benchmark whose library is not installed, or cannot run on this machine, is named below the table.
"""

import argparse
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from harness import HEADER, RESULTS, Row

from minrl.engines.vllm import installed_build, refusal

BENCHMARKS = {
    "step": "trl",
    "update": "",
    "rollout": "vllm",
    "memory": "",
    "startup": "",
    "growth": "",
    "processes": "",
}
"""Each with the library that it needs beside MinRL's own."""


def runnable(name: str) -> bool:
    """Whether what the benchmark compares with is here, and for vLLM whether it can run on this CPU."""
    library = BENCHMARKS[name]
    if library == "vllm":
        return refusal("cpu", installed_build()) is None
    return not library or find_spec(library) is not None


def asked(arguments: list[str]) -> list[str]:
    """The benchmarks that a command line names: without a name all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="benchmark", help=f"{', '.join(BENCHMARKS)} (all of them)")
    names = parser.parse_args(arguments).names
    for name in names:
        # Not `choices`: Python 3.11 compares the default of `*` with them as one value.
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}: choose from {', '.join(BENCHMARKS)}")
    return names or list(BENCHMARKS)


def main() -> None:
    """Run what can be run; print the rows of all results of this call."""
    names = asked(sys.argv[1:])
    ready = [name for name in names if runnable(name)]
    failed = [
        name
        for name in ready
        if subprocess.run([sys.executable, str(Path(__file__).parent / f"{name}.py")], check=False).returncode
    ]
    print(f"\n{HEADER}")
    for name in (name for name in ready if name not in failed):
        for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
            print(Row(**row).line())
    left_out = [f"{name} (needs {BENCHMARKS[name]}, which cannot run here)" for name in names if name not in ready]
    for what in [*left_out, *(f"{name} (failed, see above)" for name in failed)]:
        print(f"left out: {what}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
