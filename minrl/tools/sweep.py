"""Train over a grid of settings, and report on all runs side by side.

The file is one of --config, in which lists are the values to try. All runs are checked before the first one starts. The
same command again leaves out what is complete and resumes what is not.
"""

import itertools
import json
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import Any

import yaml

from minrl.config import OptionsByTask, TrainerConfig
from minrl.dataflow import UserError, require
from minrl.report.page import write_report
from minrl.report.runs import REPORTS, read_run
from minrl.run.folder import RunFolder
from minrl.run.sizes import UNKNOWN, num_weights, with_sizes
from minrl.tasks import load_task
from minrl.utils.cli import Command, near, parse, read_config_file, to_dict
from minrl.utils.files import writing
from minrl.utils.processor import own_cores
from minrl.utils.settings import Count, Settings
from minrl.utils.signals import answered, die_with_parent, exit_status
from minrl.utils.task_names import task_key

TRAINER = (sys.executable, "-m", "minrl", "train")
Place = tuple[Sequence[int], str]
"""An equal share of the cores, and where there are GPUs one of them, as CUDA_VISIBLE_DEVICES names it."""
OWN = ("run_name", "resume", "preflight_only", "config")
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
    given: Mapping[str, Any]
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
    settings = {str(name).replace("-", "_"): value for name, value in content.items()}
    try:
        require(len(settings) == len(content), "a setting is given twice, with - and with _")
        for name in OWN:
            require(name not in settings, f"{name} is the sweep's own: leave it out")
        require(not isinstance(settings.get("runs_dir"), list), "runs_dir is of all runs: give one")
        lists = {name: value for name, value in settings.items() if isinstance(value, list)}
        require(bool(lists) and all(lists.values()), "no run: give lists of values, as in `seed: [0, 1, 2]`")
        names = sorted(lists, key=lambda name: name != "seed")  # the runs of a seed follow one another
        cells = [
            dict(zip(names, values, strict=True)) for values in itertools.product(*[lists[name] for name in names])
        ]
        # Of a path the last part is in a name, or all of it where two have the same last part.
        whole = {name for name, own in lists.items() if len({Path(str(one)).name for one in own}) < len(own)}
        planned = [_planned(sweep_name(path), {**settings, **own}, names, whole) for own in cells]
        for name, count in Counter(run.name for run in planned).items():
            require(count == 1, f"two runs would be {name}: list each value once")
        return planned
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def sweep_name(path: Path) -> str:
    """The name of a sweep, with which those of its runs begin."""
    return re.sub(r"[^\w.+-]+", "-", path.stem, flags=re.ASCII).strip("-.")


def _planned(sweep: str, given: Mapping[str, Any], varied: Sequence[str], whole: Collection[str]) -> Planned:
    """The run with these settings, named by those that vary: an edited grid makes new runs for what it adds."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump(dict(given)))
        file.flush()
        command = parse(TrainerConfig, ["--config", file.name])
        command = replace(command, config=with_sizes(command.config)[0])
    values = to_dict(command.config, command.options)
    values |= {f"{task}.{name}": value for task, own in values.pop("tasks").items() for name, value in own.items()}
    shown = {name: str(values[name]).replace("/", "-") if name in whole else values[name] for name in varied}
    parts = [part(name, value) for name, value in shown.items() if name != "seed"]
    name = "-".join([sweep, *parts, f"seed{command.config.seed}"])
    return Planned(name, given, command.config.with_settings(run_name=name), command.options)


def part(name: str, value: Any) -> str:  # noqa: ANN401 - a setting
    """A setting in a name; of a path the last part."""
    if isinstance(value, float):
        value = f"{value:g}"
    elif isinstance(value, str) and "/" in value:
        value = Path(value).name
    text = re.sub(r"[^\w.+-]+", "-", str(value), flags=re.ASCII).strip("-")
    return text if name == "model_id" else f"{name}={text}"


def main(command: Command[SweepConfig]) -> int:
    """Train what is missing, write the report, name what failed."""
    config, path = command.config, Path(command.config.file)
    require(bool(config.file), "name the file of the sweep first: minrl sweep FILE.yaml")
    planned = read_plan(path)
    if config.dry_run:
        sys.stdout.writelines(f"{run.state}: {run.name} {json.dumps(run.given)}\n" for run in planned)
        return 0
    places = places_for(config.at_once, on_cpu=all(run.settings.device == "cpu" for run in planned))
    folder = planned[0].folder.parent / REPORTS / sweep_name(path)
    with writing(folder):
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    todo = [run for run in planned if run.state != "complete"]
    require_sources(todo)
    _say(f"{len(planned)} runs of {path}: {len(planned) - len(todo)} complete; {len(places)} at once")
    failed, stopped_by = train_all(todo, places, folder / "logs")
    if stopped_by:
        _say("stopped: the same command resumes")
        return exit_status(stopped_by)
    measured = [run.folder for run in planned if run.state != "new" and RunFolder(run.folder).metrics]
    if measured:
        write_report([read_run(one) for one in measured], folder, f"python -m minrl sweep {shlex.quote(str(path))}")
    if failed:
        why = "\n".join(failed)
        _say(
            f"{why}\n{len(failed)} of {len(planned)} runs failed: fix the cause, and the same command tries them again"
        )
    return int(bool(failed))


def require_sources(runs: Sequence[Planned]) -> None:
    """Refuse a run whose model cannot be read, or a task of which has no rows. What several runs share is read once."""
    read: set[tuple[str, str, str]] = set()
    for run in runs:
        config = run.settings
        model, runs_dir = config.model_id, config.runs_dir
        require(not model or num_weights(model, runs_dir) != UNKNOWN, f"{run.name}: the model {model} cannot be read")
        for name in config.task_names:
            source = name, config.data_of(task_key(name)), repr(run.options)
            try:
                if source not in read:
                    load_task(name, run.options, source[1]).dataset.sizes()
            except UserError as error:
                raise UserError(f"{run.name}: {error}") from error
            read.add(source)


def places_for(count: int, on_cpu: bool) -> list[Place]:
    """Places for so many runs at once."""
    cores, gpus = own_cores(), visible_gpus() if count > 1 and not on_cpu else []
    what = "GPU" if gpus else "core"
    require(count <= len(gpus or cores), f"--at-once {count}: there are {len(gpus or cores)} {what}s, one for each run")
    shares = [cores[place * len(cores) // count : (place + 1) * len(cores) // count] or cores for place in range(count)]
    return list(zip(shares, gpus or [""] * count, strict=False))


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    return (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))).split(",")[:count]


def train_all(runs: Sequence[Planned], places: Sequence[Place], logs: Path) -> tuple[list[str], int]:
    """Train the runs, as many at once as there are places. Returns a line on each that failed, and the signal that
    stopped the sweep (0: none). The first signal lets every run end its step and save it, a second one stops them at
    once. No run outlives the sweep, however that ends.
    """
    waiting, free, going = list(runs), list(places), dict[Popen[bytes], tuple[str, Place]]()
    failed, signals, passed_on = list[str](), list[int](), 0
    with answered(lambda number, _: signals.append(number)):
        try:
            while going or (waiting and not signals):
                while waiting and free and not signals:
                    run, place = waiting.pop(0), free.pop(0)
                    going[_start(run, place, logs)] = run.name, place
                    _say(f"{run.name} (log {near(logs / run.name)}.txt)")
                for number in signals[passed_on:]:
                    passed_on += 1
                    for process in going:
                        process.send_signal(number)
                time.sleep(0.1)
                for process in [one for one in going if one.poll() is not None]:
                    name, place = going.pop(process)
                    free.append(place)
                    _say(f"{name} has ended with status {process.returncode}")
                    if process.returncode and not signals:
                        failed.append(_failure(name, process.returncode, logs / f"{name}.txt"))
        finally:
            for process in going:
                process.kill()
                process.wait()
    return failed, signals[0] if signals else 0


def _failure(name: str, status: int, log: Path) -> str:
    how = f"failed with status {status}" if status > 0 else f"was killed by {signal.Signals(-status).name}"
    last = (log.read_text(errors="replace").strip() or "no output").splitlines()[-1]
    return f"{name} {how}: {last} (log {near(log)})"


def _start(run: Planned, place: Place, logs: Path) -> Popen[bytes]:
    """Start train with the run's settings in a file beside its log."""
    cores, gpu = place

    def enter() -> None:
        die_with_parent()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)

    config = logs / f"{run.name}.yaml"
    config.write_text(yaml.safe_dump(dict(run.given)))
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
