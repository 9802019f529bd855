"""Runs of train.py in several processes, of which some are killed: forks of one process that has imported everything.

python tests/killed_trainers.py FOLDER FLAG...        prints what each run ended with, as JSON
"""

import json
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

from minrl.__main__ import main as program
from minrl.run.folder import RunFolder
from minrl.utils.cli import run_main

COUNT = 3
KILLS = 2
LONGEST_S = 180.0


class Started:
    """Processes of one run, by rank, and what they say."""

    def __init__(self, folder, name, port, arguments):
        self.outputs = [folder / f"{name}-{rank}.txt" for rank in range(COUNT)]
        self.pids = [self._fork(rank, port, arguments) for rank in range(COUNT)]
        self.statuses = {}

    def _fork(self, rank, port, arguments):
        pid = os.fork()
        if pid:
            return pid
        numbers = {"RANK": rank, "WORLD_SIZE": COUNT, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": COUNT}
        numbers["MASTER_PORT"] = port
        os.environ.update({name: str(value) for name, value in numbers.items()}, MASTER_ADDR="127.0.0.1")
        output = os.open(self.outputs[rank], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.argv = ["train.py", *arguments]
        status = 70
        try:
            run_main(program, ["train", *arguments])
        except SystemExit as ended:
            status = ended.code or 0
        finally:
            sys.stderr.flush()
            os._exit(status)

    def wait(self, ranks):
        """Wait for the end of these ranks."""
        deadline = time.monotonic() + LONGEST_S
        while not self.statuses.keys() >= set(ranks):
            for rank in set(ranks) - self.statuses.keys():
                pid, status = os.waitpid(self.pids[rank], os.WNOHANG)
                if pid:
                    self.statuses[rank] = os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                for rank in set(ranks) - self.statuses.keys():
                    os.kill(self.pids[rank], signal.SIGKILL)
                deadline += 10
            time.sleep(0.01)

    def said(self, rank):
        return self.outputs[rank].read_text()


def alive(pid):
    """Whether a process runs, and is no zombie."""
    try:
        return not re.search(r"^State:\s+Z", Path(f"/proc/{pid}/status").read_text(), re.M)
    except FileNotFoundError:
        return False


def wait_for(happened):
    """Until it has happened, or for too long."""
    deadline = time.monotonic() + LONGEST_S
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)


def workers_left(places):
    """The reward workers that still run, after the time that ending takes them."""
    deadline = time.monotonic() + 10
    while True:
        left = [path.name for path in places.iterdir() if alive(int(path.name))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def main(folder, *flags):
    """A run that nothing stops, and one that is killed again and again."""
    folder, chance, ends = Path(folder), random.Random(), []
    whole = Started(folder, "whole", 21001, [*flags, "--run-name", "whole", "--resume", "auto"])
    whole.wait(range(COUNT))
    arguments = [*flags, "--run-name", "killed", "--resume", "auto"]
    endless, met = folder / "endless", folder / "met"  # a reward without end; a worker computes it

    def steps():
        return len(RunFolder(folder / "runs" / "killed").metrics)

    for kill in range(KILLS):
        before, hangs = steps(), kill == 1  # in a step that must not end
        if hangs:
            endless.touch()
        started, victim = Started(folder, f"killed{kill}", 21002 + kill, arguments), chance.randrange(COUNT)
        wait_for(lambda hangs=hangs, before=before: met.exists() if hangs else steps() > before)
        time.sleep(chance.uniform(0.0, 1.0))
        os.kill(started.pids[victim], signal.SIGKILL)
        started.wait(set(range(COUNT)) - {victim})
        started.wait([victim])
        others = [rank for rank in range(COUNT) if rank != victim]
        end = {"victim": victim, "pid": started.pids[victim], "workers left": workers_left(folder / "workers")}
        end["statuses"] = [started.statuses[rank] for rank in range(COUNT)]
        ends.append({**end, "said": [started.said(rank) for rank in others]})
        endless.unlink(missing_ok=True)
    last = Started(folder, "last", 21010, arguments)
    last.wait(range(COUNT))
    print(json.dumps({"whole": whole.statuses, "kills": ends, "last": last.statuses}))


if __name__ == "__main__":
    main(*sys.argv[1:])
