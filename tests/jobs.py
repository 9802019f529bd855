"""Jobs and rewards for reward workers, and workers without processes. A worker imports the module of its job: this one
is quickly imported.
"""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import NamedTemporaryFile

from minrl.dataflow import Example, Job, Reward
from minrl.rewards.worker import call


class Here:
    """Workers without processes: each job has its own copy of what it gets, as in a worker."""

    def __init__(self, *_):
        self.calls = []

    def run(self, jobs):
        self.calls += jobs
        return [call(Job(job.function, pickle.loads(pickle.dumps(job.arguments)))) for job in jobs]

    def close(self):
        pass


def add(x: int, y: int = 0) -> int:
    """The sum of two numbers.

    Args:
        x: a number
        y: another number
    """
    return x + y


def echo(text: str) -> str:
    """The text again, with a token that ends a turn.

    Args:
        text: any text
    """
    return f"{text}<|im_end|>"


def loss(reason):
    return f"lost: {reason}"


def raises(error):
    raise error


def runs(file, function, *arguments):
    with open(file, "a") as runs:
        runs.write("x")
    return function(*arguments)


def dies_the_first_time(file):
    if not file.exists():
        file.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "graded"


def power_in_bounds(seconds):
    from minrl.tasks.grader import bounded

    with bounded(seconds):
        return 9**9**9


def after(seconds, value):
    time.sleep(seconds)
    return value


def path():
    return sys.path


def modules():
    return set(sys.modules)


def start_a_child_and_hang(pid_file):
    child = subprocess.Popen(["sleep", "600"])
    Path(f"{pid_file}.tmp").write_text(str(child.pid))
    Path(f"{pid_file}.tmp").rename(pid_file)
    time.sleep(600)


def sleeping(completion, example):
    time.sleep(3600)


def unfinished(completion: str, example: Example) -> Reward:
    raise NotImplementedError


def noted(completion: str, example: Example) -> float:
    """Leaves a file for each completion that it has seen."""
    with NamedTemporaryFile(dir=example["folder"], prefix="seen", delete=False):
        return float(completion.count("7"))


def raises_at_odd_lengths(completion: str, example: Example) -> float:
    words = len(completion.split())
    if words % 2:
        raise RuntimeError(f"cannot judge {words} words")
    return 1.0 / (1 + words)
