"""Train over a grid of settings, and report on all runs side by side.

The file is one of --config, in which lists are the values to try. The settings of all runs are checked before the first
one starts. The same command again leaves out what is complete and resumes what is not.
"""

import itertools
import json
import os
import re
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import Any

import yaml

from minrl.config import OptionsByTask, TrainerConfig
from minrl.dataflow import UserError, require
from minrl.report.page import over_seeds, results, write_report
from minrl.report.runs import REPORTS, groups_of, read_run
from minrl.run.folder import RunFolder
from minrl.run.sizes import with_sizes
from minrl.utils.cli import Command, from_dict, near, read_config_file, to_dict
from minrl.utils.console import Table, print_tables
from minrl.utils.files import writing
from minrl.utils.processor import own_cores
from minrl.utils.settings import Count, Settings
from minrl.utils.signals import answered, die_with_parent, exit_status

TRAINER = (sys.executable, "-m", "minrl", "train")
Slot = tuple[Sequence[int], str]
"""An equal share of the cores, and where there are GPUs one of them, as CUDA_VISIBLE_DEVICES names it."""
SET_BY_SWEEP = ("run_name", "resume", "preflight_only", "config")
"""Settings that a sweep gives its runs, or that would keep them from running."""


@dataclass(init=False)
class SweepConfig(Settings):
    """Train over a grid of settings, and report on all runs. The file is as of --config, with a list of values for each
    setting that varies, such as `seed: [0, 1, 2]`.

    python -m minrl sweep docs/algorithms.yaml
    python -m minrl sweep docs/algorithms.yaml --at-once 2
    python -m minrl sweep docs/algorithms.yaml --dry-run
    """

    first = "file"

    file: str = ""
    """The file of the sweep. The flag itself may be left out in front."""
    at_once: Count = 1
    """Runs at the same time, each on a GPU of its own, or without GPUs on an equal share of the cores."""
    dry_run: bool = False
    """Show every run with its state and its settings, and train nothing."""


@dataclass(frozen=True)
class Planned:
    """A run of the sweep: what its --config file holds, and the settings that follow from it."""

    name: str
    in_file: Mapping[str, Any]
    settings: TrainerConfig
    options: OptionsByTask

    @property
    def folder(self) -> Path:
        """Where the run is, or will be."""
        return Path(self.settings.runs_dir) / self.name

    @property
    def state(self) -> str:
        """`complete`, `begun` or `new`. A run that ended with other settings has begun: train resumes it to another
        end, and refuses what cannot change.
        """
        run = RunFolder(self.folder)
        if not run.exists:
            return "new"
        given = to_dict(self.settings, self.options)
        free = ("resume", "runs_dir", "checkpoints_dir", "quiet")
        same = all(run.config.get(name, value) == value for name, value in given.items() if name not in free)
        return "complete" if same and run.summary else "begun"


def read_plan(path: Path) -> list[Planned]:
    """The runs of a file, seed by seed. Raises `UserError` in one line on what no run could be made of."""
    content = read_config_file(path)
    named = {str(name).replace("-", "_"): value for name, value in content.items()}
    settings = {TrainerConfig.aliases.get(name, name): value for name, value in named.items()}
    try:
        require(len(settings) == len(content), "a setting is given twice, under two names")
        for name in SET_BY_SWEEP:
            require(name not in settings, f"{name} is set by the sweep: leave it out")
        require(not isinstance(settings.get("runs_dir"), list), "runs_dir is of all runs: give one")
        lists = {name: value for name, value in settings.items() if isinstance(value, list)}
        require(bool(lists) and all(lists.values()), "no run: give lists of values, as in `seed: [0, 1, 2]`")
        names = sorted(lists, key=lambda name: name != "seed")  # the runs of a seed follow one another
        cells = [
            dict(zip(names, values, strict=True)) for values in itertools.product(*[lists[name] for name in names])
        ]
        planned = [_planned(sweep_name(path), {**settings, **own}, names) for own in cells]
        for name, count in Counter(run.name for run in planned).items():
            require(count == 1, f"two runs would be {name}: list each value once")
        return planned
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def sweep_name(path: Path) -> str:
    """The name of a sweep, with which those of its runs begin."""
    return re.sub(r"[^\w.+-]+", "-", path.stem, flags=re.ASCII).strip("-.")


def _planned(sweep: str, in_file: Mapping[str, Any], varied: Sequence[str]) -> Planned:
    """The run with these settings, named by those that vary: an edited grid makes new runs for what it adds."""
    config, options = from_dict(in_file, TrainerConfig)
    config = with_sizes(config)[0]
    values = to_dict(config, options)
    values |= {f"{task}.{name}": value for task, own in values.pop("tasks").items() for name, value in own.items()}
    parts = [part(name, in_file[name], values[name]) for name in varied if name != "seed"]
    name = "-".join([sweep, *parts, f"seed{config.seed}"])
    return Planned(name, in_file, config.with_settings(run_name=name), options)


def part(name: str, written: Any, value: Any) -> str:  # noqa: ANN401 - a setting
    """A setting in a name: its value, of a text as it is written."""
    text = f"{value:g}" if isinstance(value, float) else str(written if isinstance(value, str) else value)
    text = re.sub(r"[^\w.+-]+", "-", text, flags=re.ASCII).strip("-.")
    return text if name == "model_id" else f"{name}={text}"


def main(command: Command[SweepConfig]) -> int:
    """Train what is missing, write the report, show its results, name what failed."""
    config, path = command.config, Path(command.config.file)
    require(bool(config.file), "name the file of the sweep first: minrl sweep FILE.yaml")
    planned = read_plan(path)
    if config.dry_run:
        sys.stdout.writelines(f"{run.state}: {run.name} {json.dumps(run.in_file)}\n" for run in planned)
        return 0
    slots = slots_for(config.at_once, on_cpu=all(run.settings.device == "cpu" for run in planned))
    folder = planned[0].folder.parent / REPORTS / sweep_name(path)
    with writing(folder):
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    todo = [run for run in planned if run.state != "complete"]
    _say(f"{len(planned)} runs of {path}: {len(planned) - len(todo)} complete; {len(slots)} at once")
    failed, stopped_by = train_all(todo, slots, folder / "logs")
    if stopped_by:
        _say("stopped: the same command resumes")
        return exit_status(stopped_by)
    runs = [read_run(run.folder) for run in planned if run.state != "new" and RunFolder(run.folder).metrics]
    if runs:
        write_report(runs, folder, f"python -m minrl sweep {shlex.quote(str(path))}")
        tables = {"Held-out pass@1": results(runs), "Means over seeds": over_seeds(groups_of(runs))}
        print_tables(Table(title, *table) for title, table in tables.items() if table[1])
    if failed:
        why = "\n".join(failed)
        _say(
            f"{why}\n{len(failed)} of {len(planned)} runs failed: fix the cause, and the same command tries them again"
        )
    return int(bool(failed))


def slots_for(count: int, on_cpu: bool) -> list[Slot]:
    """Slots for so many runs at once."""
    cores, gpus = own_cores(), visible_gpus() if count > 1 and not on_cpu else []
    what, each = "GPU" if gpus else "core", max(1, len(cores) // count)
    require(count <= len(gpus or cores), f"--at-once {count}: there are {len(gpus or cores)} {what}s, one for each run")
    shares = [cores[slot * each : (slot + 1) * each] or cores for slot in range(count)]
    return list(zip(shares, gpus or [""] * count, strict=False))


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    return (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))).split(",")[:count]


def train_all(runs: Sequence[Planned], slots: Sequence[Slot], logs: Path) -> tuple[list[str], int]:
    """Train the runs, as many at once as there are slots. Returns a line on each that failed, and the signal that
    stopped the sweep (0: none). The first signal lets every run end its step and save it, a second one stops them at
    once. No run outlives the sweep, however that ends.
    """
    waiting, free, going = list(runs), list(slots), dict[Popen[bytes], tuple[str, Slot]]()
    failed, signals, stopped_by = list[str](), list[int](), 0
    with answered(lambda number, _: signals.append(number)):
        try:
            while going or (waiting and not stopped_by):
                while waiting and free and not stopped_by:
                    run, slot = waiting.pop(0), free.pop(0)
                    going[_start(run, slot, logs)] = run.name, slot
                    _say(f"{run.name} (log {near(logs / run.name)}.txt)")
                while signals:
                    stopped_by = signals.pop(0)
                    for process in going:
                        process.send_signal(stopped_by)
                time.sleep(0.1)
                for process in [one for one in going if one.poll() is not None]:
                    name, slot = going.pop(process)
                    free.append(slot)
                    _say(f"{name} has ended with status {process.returncode}")
                    if process.returncode and not stopped_by:
                        failed.append(_failure(name, process.returncode, logs / f"{name}.txt"))
        finally:
            for process in going:
                process.kill()
                process.wait()
    return failed, stopped_by


def _failure(name: str, status: int, log: Path) -> str:
    how = f"failed with status {status}" if status > 0 else f"was killed by {signal.Signals(-status).name}"
    last = (log.read_text(errors="replace").strip() or "no output").splitlines()[-1]
    return f"{name} {how}: {last} (log {near(log)})"


def _start(run: Planned, slot: Slot, logs: Path) -> Popen[bytes]:
    """Start train with the run's settings in a file beside its log."""
    cores, gpu = slot

    def enter() -> None:
        die_with_parent()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)

    config = logs / f"{run.name}.yaml"
    config.write_text(yaml.safe_dump(dict(run.in_file)))
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
    with (logs / f"{run.name}.txt").open("ab") as log:  # after what earlier sweeps wrote
        return Popen(
            [*TRAINER, "--config", str(config), "--run-name", run.name, "--resume", "auto"],
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,  # in order, with PYTHONUNBUFFERED: the log ends with the error
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C reaches it once, by this process
            preexec_fn=enter,
        )


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
