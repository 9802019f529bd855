"""Which rewrites of reference answers `--task math` takes for the same, kind by kind.

    python benchmarks/graders.py
    python benchmarks/graders.py --data-path math500.json --show 5 --kinds "a slash" "one more"

The kinds and the references are those of tests/answer_equal.py, answer_unequal.py and answer_golds.py; `--data-path`
takes the references of a file (a JSON list or JSONL with `answer`) instead. Each pair is compared as the reward does,
without a problem's text. At least 99.9 % of the equal ones are to be paid, and at most 0.05 % of the unequal ones.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from answer_equal import EQUAL
from answer_golds import GOLDS
from answer_kinds import pairs
from answer_unequal import UNEQUAL
from harness import doing
from rewrites import agree


def main() -> None:
    """Print a table, a line for each kind, and the pairs with the other verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-path", type=Path, help="references from a file instead of the committed ones")
    parser.add_argument("--kinds", nargs="+", help="only these")
    parser.add_argument("--show", type=int, default=3, help="pairs with the other verdict to show for a kind")
    options = parser.parse_args()
    golds = references(options.data_path) if options.data_path else GOLDS
    print(f"{len(golds)} references, {len(EQUAL)} kinds equal, {len(UNEQUAL)} kinds unequal")
    for verdict, kinds in ((True, EQUAL), (False, UNEQUAL)):
        doing(f"comparing references with what is {'equal' if verdict else 'unequal'} to them")
        started = time.perf_counter()
        chosen = {name: kind for name, kind in kinds.items() if not options.kinds or name in options.kinds}
        made, paid, other = Counter(), Counter(), {}
        for name, gold, answer in pairs(chosen, golds):
            agrees = agree(gold, answer)
            made[name] += 1
            paid[name] += agrees
            if agrees != verdict:
                other.setdefault(name, []).append(f"{gold} <- {answer}")
        print(f"\n| {'equal' if verdict else 'unequal'} | pairs | paid |\n|---|---|---|")
        for name in chosen:
            print(f"| {name} | {made[name]} | {paid[name]} |")
            for line in other.get(name, [])[: options.show]:
                print(f"    {line}")
        total = max(made.total(), 1)
        print(f"\n{paid.total()} of {total} paid, {paid.total() / total:.4%}, {time.perf_counter() - started:.0f} s")


def references(path: Path) -> list[str]:
    """The answers of a file's rows."""
    text = path.read_text()
    rows = (
        json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.split("\n") if line]
    )
    return [str(row["answer"]) for row in rows]


if __name__ == "__main__":
    main()
