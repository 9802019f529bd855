"""Play the hostile completions of tests/hostile/cases.py for a time, at every level of the sandbox, by real workers.

    python benchmarks/hostile.py --seconds 600
    python benchmarks/hostile.py --seconds 600 --task code --seed 1

Each round is a random sample of the cases at a random level. It fails if one earns more or less than it may or cannot
be scored, or if something is left over.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter
from contextlib import closing

from harness import doing

from minrl.rewards.workers import Workers
from minrl.sandbox import calls
from tests.hostile.cases import CASES
from tests.hostile.census import left_over, slots_folder
from tests.hostile.playing import at_level, play, wrong

ROUND, DEADLINE_S = 40, 120.0
"""Cases of a round, seconds of a reward."""


def main() -> None:
    """Play rounds until the time is over, print a line for each break, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--task", choices=sorted({case.task for case in CASES}))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, ends = random.Random(options.seed), time.monotonic() + options.seconds
    cases = [case for case in CASES if options.task in (None, case.task)]
    levels = [level for level in calls.LEVELS if not calls._unavailable(level)]
    rust_levels = [level for level in levels if level != "limits" or os.geteuid()]  # root's cargo is read by root alone
    folder = slots_folder()
    before = set(left_over(folder))
    played: Counter[str] = Counter()
    breaks: list[str] = []
    with closing(Workers(0, DEADLINE_S)) as workers:
        while time.monotonic() < ends:
            level = rng.choice(levels)
            possible = [case for case in cases if case.task != "rust" or level in rust_levels]
            chosen = rng.sample(possible, min(ROUND, len(possible)))
            results = play(chosen, lambda jobs, level=level: workers.run([at_level(job, level) for job in jobs]))
            played[level] += len(chosen)
            found = [f"{level}: {', '.join(map(str, one))}"[:300] for one in wrong(chosen, results)]
            if left := set(left_over(folder)) - before:
                found.append(f"{level}: left over: {', '.join(sorted(left))}"[:300])
            breaks += found
            sys.stdout.writelines(f"{line}\n" for line in found)
            doing(f"{sum(played.values())} cases, {len(breaks)} breaks")
    print(f"{dict(played)} cases by level, {len(breaks)} breaks")
    sys.exit(bool(breaks))


if __name__ == "__main__":
    main()
