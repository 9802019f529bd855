"""Jobs for reward workers. A worker imports the module of its job: this one is quickly imported."""

import os
import signal
import subprocess
import sys
import threading
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


def compute_for(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def power_in_bounds(seconds):
    from minrl.tasks.grader import bounded

    with bounded(seconds):
        return 9**9**9


def prints(cheap):
    print("x" * 100_000)
    for number in range(2000):
        print("\t\x1b[31m" + "y" * 96, file=sys.stderr if number % 2 else sys.stdout)
    if not cheap:
        subprocess.run(["true"])  # a child has the worker's output, as the trainer has not
    return "printed"


def prints_and_hangs():
    print("before the loop")
    time.sleep(600)


def signalled(number):
    os.kill(os.getpid(), number)
    return "went on"


def after(seconds, value):
    time.sleep(seconds)
    return value


def close_the_pipe_and_end(status):
    os.close(int(sys.argv[1]))
    time.sleep(0.2)
    os._exit(status)


def path():
    return sys.path


def modules():
    return set(sys.modules)


def thread_name():
    time.sleep(0.01)
    return threading.current_thread().name


class Unwilling:
    def __reduce__(self):
        raise ValueError("not this one")


def identity(value):
    return value


def start_a_child_and_hang(pid_file):
    child = subprocess.Popen(["sleep", "600"])
    Path(f"{pid_file}.tmp").write_text(str(child.pid))
    Path(f"{pid_file}.tmp").rename(pid_file)
    time.sleep(600)


def sleeping(completion, example):
    time.sleep(3600)
