"""The default run beside a busy process: its median rollout + update, quiet and with one core taken by a loop.

One run of `train.py`, whose steps are quiet and busy in turns of `--turn` steps; the loop is a session of its own, as
that of another terminal. The model is the run's own one, made if it is not there.
"""

import argparse
import subprocess
import sys
import tempfile
from statistics import median

from harness import doing

LOOP = [sys.executable, "-c", "while True: pass"]


class Neighbour:
    """A loop that begins and ends every few steps, and the seconds of the steps beside it and without it."""

    def __init__(self, turn: int, core: int | None) -> None:
        self.turn, self.command = turn, LOOP if core is None else ["taskset", "-c", str(core), *LOOP]
        self.process: subprocess.Popen | None = None
        self.steps = 0
        self.seconds: dict[bool, list[float]] = {False: [], True: []}

    def after_step(self, seconds: float) -> None:
        """Keep a step's seconds, but for the first of the run and those after a change; begin or end the loop."""
        if self.steps % self.turn:
            self.seconds[self.process is not None].append(seconds)
        self.steps += 1
        if self.steps % self.turn == 0:
            self.toggle()

    def toggle(self) -> None:
        """Begin the loop, or end it."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None
        else:
            self.process = subprocess.Popen(self.command, start_new_session=True)


def main() -> None:
    """Train, and print both medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--turn", type=int, default=6, help="steps from a change to the next")
    parser.add_argument("--core", type=int, help="the core of the loop; any if not given")
    options, flags = parser.parse_known_args()
    from minrl.__main__ import main
    from minrl.tracking.session import Session
    from minrl.tracking.timers import TIMERS

    neighbour, step = Neighbour(options.turn, options.core), Session.step

    def timed(logger: Session, *results: object) -> None:
        seconds = TIMERS._seconds["rollout"] + TIMERS._seconds["update"]
        step(logger, *results)
        neighbour.after_step(seconds)

    Session.step = timed
    with tempfile.TemporaryDirectory() as folder:
        doing("the default run, quiet and busy in turns")
        switches = ["--eval-every", "0", "--save-every", "0", "--no-eval-first", "--no-preflight", "--quiet"]
        try:
            main(["train", "--steps", str(options.steps), "--runs-dir", folder, *switches, *flags])
        finally:
            if neighbour.process:
                neighbour.toggle()
    quiet, busy = median(neighbour.seconds[False]), median(neighbour.seconds[True])
    print(f"median rollout + update: quiet {quiet:.2f} s, busy {busy:.2f} s, ratio {busy / quiet:.2f}")


if __name__ == "__main__":
    main()
