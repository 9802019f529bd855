"""The benchmarks of the CPU, one after another, and one table of what they found.

    make bench                                  all of them
    python benchmarks/table.py step update

A benchmark whose library is not installed, or cannot run on this machine, is named below the table.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from harness import HEADER, RESULTS, Row

from minrl.engines.vllm import installed_build, refusal

BENCHMARKS = {
    "step": "trl", "update": "", "rollout": "vllm", "memory": "", "startup": "", "growth": "", "overlap": "",
    "processes": "",
}  # fmt: skip
"""Each with the library that it needs beside MinRL's own."""


def runnable(name: str) -> bool:
    """Whether what the benchmark compares with is installed, and vLLM can run on this CPU."""
    library = BENCHMARKS[name]
    if library == "vllm":
        return refusal("cpu", installed_build()) is None
    return not library or find_spec(library) is not None


def main() -> None:
    """Run what can run; print the rows of all results of this call."""
    names = sys.argv[1:] or list(BENCHMARKS)
    if unknown := set(names) - BENCHMARKS.keys():
        sys.exit(f"there is no benchmark {', '.join(unknown)}: choose from {', '.join(BENCHMARKS)}")
    ready, failed = [name for name in names if runnable(name)], []
    for name in ready:
        if subprocess.run([sys.executable, str(Path(__file__).parent / f"{name}.py")], check=False).returncode:
            failed.append(name)
    print(f"\n{HEADER}")
    for name in (name for name in ready if name not in failed):
        for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
            print(Row(**row).line())
    for name in names:
        if name not in ready:
            print(f"left out: {name} (needs {BENCHMARKS[name]}, which cannot run here)")
        elif name in failed:
            print(f"left out: {name} (failed, see above)")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
