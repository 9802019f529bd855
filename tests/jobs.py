"""Jobs for reward workers. A worker imports the module of its job: this one is quickly imported."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


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


def compute():
    while True:
        pass


def power_in_bounds(seconds):
    from minrl.tasks.grader import bounded

    with bounded(seconds):
        return 9**9**9


def prints():
    print("x" * 100_000)
    for number in range(2000):
        print("\t\x1b[31m" + "y" * 96, file=sys.stderr if number % 2 else sys.stdout)
    return "printed"


def after(seconds, value):
    time.sleep(seconds)
    return value


def path():
    return sys.path


def modules():
    return set(sys.modules)


class Unwilling:
    def __reduce__(self):
        raise ValueError("not this one")


def identity(value):
    return value


def start_a_child_and_hang(pid_file):
    child = subprocess.Popen(["sleep", "600"])
    Path(f"{pid_file}.tmp").write_text(str(child.pid))
    Path(f"{pid_file}.tmp").rename(pid_file)
    print("before the loop")
    time.sleep(600)


def sleeping(completion, example):
    time.sleep(3600)
