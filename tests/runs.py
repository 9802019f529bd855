"""Runs of the programs by their command lines, in this process or in one of their own, and how two of them compare."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minrl.__main__ import main
from minrl.run.folder import RunFolder
from minrl.utils.files import read_packed
from tests.forked import Forked

MEASURED = ("time/", "speed/", "memory/", "system/", "overlap/")
"""Curves that differ from run to run."""

WAIT_S = 300.0


@dataclass(frozen=True)
class Run:
    """The run of a program with these flags in the folders `runs` and `checkpoints` of a place."""

    place: Path
    flags: Sequence[str] = ()
    program: str = "train"
    name: str = "run"

    @property
    def folder(self) -> Path:
        return self.place / "runs" / self.name

    @property
    def checkpoints(self) -> Path:
        return self.place / "checkpoints" / self.name

    def words(self, *more: object) -> list[str]:
        """The command line that begins the run, or resumes one."""
        own = () if "--resume" in more else (*self.flags, "--run-name", self.name)
        places = "--runs-dir", self.place / "runs", "--checkpoints-dir", self.place / "checkpoints"
        return [self.program, *own, *map(str, [*places, *more])]

    def here(self, *more: object) -> int:
        """Run it in this process; the exit status."""
        return main(self.words(*more))

    def resume(self, *more: object) -> int:
        """Resume the latest run of the place in this process; the exit status."""
        return self.here("--resume", "latest", *more)

    def start(self, *more: object) -> Forked:
        """Run it in a process of its own, which writes to `stderr.txt` of the place."""
        self.place.mkdir(exist_ok=True)
        command, errors = [sys.executable, "-m", "minrl", *self.words(*more)], self.place / "stderr.txt"
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        return Forked(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors.open("a"))

    def steps(self) -> list[int]:
        """The steps of the whole lines in metrics.jsonl."""
        path = self.folder / "metrics.jsonl"
        return [json.loads(line)["step"] for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The line of each step."""
        return RunFolder(self.folder).metrics

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def rollouts(self) -> dict[str, list[dict[str, Any]]]:
        """The lines of each file of rollouts."""
        return {path.name: list(read_packed(path)) for path in sorted(self.folder.glob("rollouts/*"))}

    def end(self) -> dict[str, Any]:
        """What the run ended with, but for what is measured: its figures, curves, rollouts, the rows that it sampled,
        hashes of weights and moments, and what TensorBoard shows.
        """
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        shown = EventAccumulator(str(self.folder), size_guidance={"scalars": 0}).Reload()
        measured = ("seconds", "tokens_per_s", "final_checkpoint")
        return {
            "summary": {name: value for name, value in self.summary.items() if name not in measured},
            "metrics": [
                {tag: value for tag, value in line.items() if not tag.startswith(MEASURED)} for line in self.metrics
            ],
            "rollouts": self.rollouts,
            "samples": {path.name: path.read_text() for path in sorted(self.folder.glob("samples/*"))},
            "hashes": RunFolder(self.folder).fingerprints,
            "shown": {
                tag: [event.step for event in shown.Scalars(tag)]
                for tag in shown.Tags()["scalars"]
                if not tag.startswith(MEASURED) or tag == "time/step_s"
            },
        }

    def given_base_of(self, other: "Run") -> "Run":
        """This run, with the base model of another one, which takes seconds to make."""
        for base in other.place.glob("checkpoints/base-*"):
            shutil.copytree(base, self.place / "checkpoints" / base.name)
        return self


def same_end(run: Run, whole: Run) -> None:
    """Both ended alike, in all that is not measured."""
    found, expected = run.end(), whole.end()
    for name, value in expected.items():
        assert found[name] == value, name


def until(happened: Callable[[], object], process: subprocess.Popen | None = None, seconds: float = WAIT_S) -> None:
    """Wait until it has happened, or the process has ended."""
    deadline = time.monotonic() + seconds
    while not happened() and (process is None or process.poll() is None):
        assert time.monotonic() < deadline, f"nothing happened in {seconds:g} s"
        time.sleep(0.002)


def signal_when(process: subprocess.Popen, happened: Callable[[], object], number: int = signal.SIGKILL) -> int:
    """Send the signal as soon as it has happened; the exit status."""
    until(happened, process)
    process.send_signal(number)
    return process.wait(timeout=WAIT_S)


def write_rows(path: Path, *rows: object) -> Path:
    """A file with the rows as lines of JSON."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
