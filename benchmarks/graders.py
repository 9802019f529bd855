"""Which rewrites of reference answers `--task math` takes for the same, kind by kind.

    python benchmarks/graders.py
    python benchmarks/graders.py --data-path math500.json --show 5 --kinds "a slash" "one more"

The kinds and the references are those of tests/answer_equal.py, answer_unequal.py and answer_golds.py; `--data-path`
takes the references of a file (a JSON list or JSONL with `answer`) instead. Each rewrite is an answer that the reward
pays or not, with each prompt. At least 98.5 % of the equal ones are to be paid, and at most 0.5 % of the unequal ones.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from answer_equal import EQUAL
from answer_golds import GOLDS
from answer_kinds import pairs
from answer_unequal import UNEQUAL
from harness import doing
from rewrites import FORMS, paid


def main() -> None:
    """Print a table, a line for each kind, and the pairs with the other verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-path", type=Path, help="references from a file instead of the committed ones")
    parser.add_argument("--kinds", nargs="+", help="only these")
    parser.add_argument("--problem", default="", help="what every problem says")
    parser.add_argument("--show", type=int, default=3, help="pairs with the other verdict to show for a kind")
    options = parser.parse_args()
    golds = references(options.data_path) if options.data_path else GOLDS
    print(f"{len(golds)} references, {len(EQUAL)} kinds equal, {len(UNEQUAL)} kinds unequal")
    for verdict, kinds in ((True, EQUAL), (False, UNEQUAL)):
        doing(f"paying for what is {'equal' if verdict else 'unequal'} to references")
        chosen = {name: kind for name, kind in kinds.items() if name in (options.kinds or kinds)}
        made, counts, other = Counter(), Counter(), {}
        for name, gold, answer in pairs(chosen, golds):
            made[name] += 1
            for prompt in FORMS:
                is_paid = paid(answer, gold, options.problem, prompt)
                counts[name, prompt] += is_paid
                if is_paid != verdict:
                    other.setdefault(name, []).append(f"{prompt}: {gold} <- {answer}")
        print(
            f"\n| {'equal' if verdict else 'unequal'} | pairs | {' | '.join(FORMS)} |\n|---|---|{'---|' * len(FORMS)}"
        )
        for name in chosen:
            print("|", name, "|", made[name], "|", *(f"{counts[name, prompt]} |" for prompt in FORMS))
            for line in other.get(name, [])[: options.show]:
                print(f"    {line}")
        total = max(made.total(), 1)
        for prompt in FORMS:
            share = sum(counts[name, prompt] for name in chosen) / total
            print(f"{prompt}: {share * total:.0f} of {total} paid, {share:.4%}")


def references(path: Path) -> list[str]:
    """The answers of a file's rows."""
    text = path.read_text()
    rows = (
        json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.split("\n") if line]
    )
    return [str(row["answer"]) for row in rows]


if __name__ == "__main__":
    main()
