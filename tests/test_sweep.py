"""A sweep makes a run of each combination, resumes where it was stopped, and reports on all."""

import json
import os
import shutil
import signal
import sys
import textwrap
import time
from pathlib import Path
from threading import Event, Timer

import pytest
import yaml

from minrl.__main__ import main
from minrl.tools import sweep as program
from minrl.tools.sweep import places_for, read_plan, sweep_name
from minrl.types import UserError
from minrl.utils.processor import own_cores
from tests.forked import Forked
from tests.say_sevens import SAY_SEVENS

ROOT = Path(__file__).parent.parent

TRAINER = """
    import json, os, signal, sys, time, yaml
    from pathlib import Path
    given = yaml.safe_load(open(sys.argv[2])) | {"name": sys.argv[4]}
    run = Path("runs") / given["name"]
    run.mkdir(parents=True, exist_ok=True)
    print(f"seed {given['seed']}", os.environ.get("CUDA_VISIBLE_DEVICES", ""), sorted(os.sched_getaffinity(0)))
    with open("order", "a") as file:
        file.write(f"{given['name']} {os.getpid()}\\n")
    config = {"steps": int(given["steps"]), "stop_at": 0.0, "patience": 0, "run_name": run.name}
    config |= {"eval_every": int(given.get("eval_every", 25))}
    config |= {"seed": int(given["seed"]), "task": "countdown", "learning_rate": float(given["learning_rate"])}
    (run / "config.json").write_text(json.dumps({"minrl_run": run.name, "config": config}))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    if Path(f"wait-{given['seed']}").exists():
        Path("waiting").touch()
        time.sleep(300)
    if Path(f"fail-{given['seed']}").exists():
        print("error: this seed is a bad one", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL) if Path("kill").exists() else sys.exit(2)
    score = {"eval/countdown/pass@1": 0.5, "eval/countdown/pass@1_low": 0.4, "eval/countdown/pass@1_high": 0.6}
    lines = [json.dumps({"step": step, "reward/mean": 0.1 * step, **score}) + "\\n" for step in range(3)]
    (run / "metrics.jsonl").write_text("".join(lines))
    (run / "summary.json").write_text(json.dumps({"task": "countdown", "steps": config["steps"]}))
"""
"""Stands for train.py where only the sweep is tested: writes a run's files, and waits or fails for marked seeds."""

RATES = {"steps": 2, "learning_rate": ["1e-4", 0.001], "seed": [0, 1]}
NAMES = [f"rates-learning_rate={rate}-seed{seed}" for seed in (0, 1) for rate in ("0.0001", "0.001")]


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs a sweep of `rates.yaml` with the stand-in for train.py; the exit status."""
    monkeypatch.chdir(tmp_path)
    Path("trainer.py").write_text(textwrap.dedent(TRAINER))
    monkeypatch.setattr(program, "TRAINER", (sys.executable, "trainer.py"))

    def run(*flags, content=RATES):
        Path("rates.yaml").write_text(yaml.safe_dump(content))
        return main(["sweep", "rates.yaml", *flags])

    return run


def order():
    return [line.split()[0] for line in Path("order").read_text().splitlines()]


def planned(tmp_path, content, name="rates.yaml"):
    path = tmp_path / name
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return read_plan(path)


def test_every_combination_is_a_run_named_by_what_varies(tmp_path):
    runs = planned(tmp_path, RATES)
    assert [run.name for run in runs] == NAMES and {run.state for run in runs} == {"new"}
    assert runs[1].given == {"steps": 2, "learning_rate": 0.001, "seed": 0}
    assert [run.settings.optimizer.learning_rate for run in runs] == [1e-4, 1e-3] * 2
    assert runs[0].settings.steps == 2 and runs[0].settings.logging.run_name == NAMES[0]
    grid = {"eval-temperature": [1.0, 0.5], "hanoi.max_disks": [3, 4], "curriculum": [True, False]}
    runs = planned(tmp_path, {"task": "hanoi", "stop_strings": [["a", "b"]], **grid}, "my sweep.yaml")
    assert len({run.name for run in runs}) == len(runs) == 8
    assert runs[0].name == "my-sweep-stop_strings=a-b-eval_temperature=1-hanoi.max_disks=3-curriculum=True-seed0"
    assert (runs[-1].options["hanoi"].max_disks, runs[-1].settings.sampling.curriculum) == (4, False)
    assert sweep_name(Path("a/my sweep.yaml")) == "my-sweep"


REFUSED = [
    ({"learning_rat": [1]}, "unknown setting 'learning_rat': did you mean learning_rate"),
    ({"steps": [0]}, "steps must be at least 1, got 0"),
    ({"seed": [0], "steps": []}, r"give lists of values, as in `seed: \[0, 1, 2\]`"),
    ({"steps": 1}, r"give lists of values, as in `seed: \[0, 1, 2\]`"),
    ({"seed": [0], "stop_strings": ["END"]}, "stop_strings must be a list, each text, got 'END'"),
    ({"learning_rate": ["1e-4", 0.0001]}, "two runs would be bad-learning_rate=0.0001-seed0"),
    ({"group-size": [8], "group_size": [16]}, "a setting is given twice"),
    ({"seed": [0], "run-name": "a"}, "run_name is the sweep's own"),
    ({"runs_dir": ["a", "b"]}, "runs_dir is of all runs: give one"),
    ({"seed": [0], "task": "nothing"}, "nothing"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_what_no_sweep_can_be_made_of_is_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as refused:
        planned(tmp_path, content, "bad.yaml")
    assert str(refused.value).startswith(f"{tmp_path}/bad.yaml: ") and "\n" not in str(refused.value)


def test_the_file_comes_first_and_a_dry_run_makes_nothing(sweep, tmp_path, capsys):
    with pytest.raises(UserError, match=r"name the file of the sweep first"):
        main(["sweep", "--at-once", "2"])
    assert sweep("--dry-run") == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["new:", name] for name in NAMES]
    assert not (tmp_path / "runs").exists()


def test_the_same_command_leaves_out_what_is_complete_and_goes_on_where_the_end_changed(sweep, capsys):
    assert sweep() == 0 and order() == NAMES
    report = Path("runs/report/rates/report.md").read_text()
    assert all(name in report for name in NAMES) and "2 seeds" in report
    assert "Made by `python -m minrl sweep rates.yaml`" in report
    assert sweep() == 0 and order() == NAMES
    assert "4 runs of rates.yaml: 4 complete; 1 at once" in capsys.readouterr().err
    assert sweep(content={**RATES, "seed": [0, 1, 2]}) == 0 and len(order()) == 6
    assert sweep(content={**RATES, "steps": 3}) == 0 and order()[6:] == NAMES
    # What train.py would refuse to change it is asked to, so that nothing passes for what it is not.
    assert sweep(content={**RATES, "steps": 3, "eval_every": 9}) == 0 and order()[10:] == NAMES


@pytest.mark.parametrize("killed", [False, True])
def test_runs_that_fail_are_named_at_the_end_and_the_others_are_made(sweep, capsys, killed):
    Path("fail-0").touch()
    if killed:
        Path("kill").touch()
    assert sweep() == 1 and order() == NAMES
    how = "was killed by SIGKILL" if killed else "failed with status 2"
    told = [
        f"{name} {how}: error: this seed is a bad one (log runs/report/rates/logs/{name}.txt)" for name in NAMES[:2]
    ]
    assert capsys.readouterr().err.splitlines()[-3:-1] == told
    assert NAMES[2] in Path("runs/report/rates/report.md").read_text()
    Path("fail-0").unlink()
    assert sweep() == 0 and order()[4:] == NAMES[:2]
    assert "this seed is a bad one" in Path(f"runs/report/rates/logs/{NAMES[0]}.txt").read_text()  # still


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_runs_and_the_same_command_goes_on(sweep, capsys, number):
    """The stand-in ends at a SIGINT as train.py does, and at a SIGTERM as any process does."""
    Path("wait-1").touch()
    timer = Timer(0.0, lambda: _when(Path("waiting").exists) or os.kill(os.getpid(), number))
    timer.start()
    assert sweep() == 128 + number
    timer.join()
    assert capsys.readouterr().err.endswith("stopped: the same command resumes\n")
    assert order() == NAMES[:3] and not Path("runs/report/rates/report.md").exists()
    _require_none_left()
    Path("wait-1").unlink()
    assert sweep() == 0 and order()[3:] == NAMES[2:]


def test_runs_at_once_have_cores_of_their_own_and_end_with_the_sweep(sweep, monkeypatch):
    shares = [[own_cores()[0]], [own_cores()[-1]]]
    places = [(share, str(number)) for number, share in enumerate(shares)]
    monkeypatch.setattr(program, "places_for", lambda count, on_cpu: places)
    assert sweep("--at-once", "2") == 0
    logs = [Path(f"runs/report/rates/logs/{name}.txt").read_text().splitlines()[-1] for name in NAMES]
    assert {log.split(" ", 2)[2] for log in logs} == {f"{number} {share}" for number, share in enumerate(shares)}

    def fail(seconds):
        _when(Path("waiting").exists)
        raise OSError("the sweep itself fails")

    Path("wait-2").touch()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="the sweep itself fails"):
        patch.setattr(program.time, "sleep", fail)
        sweep("--at-once", "2", content={**RATES, "seed": [2]})
    _require_none_left()


def test_cores_are_divided_and_no_run_shares_one(monkeypatch):
    monkeypatch.setattr(program, "own_cores", lambda: [0, 1, 2, 4, 6])
    assert places_for(2, on_cpu=True) == [([0, 1], ""), ([2, 4, 6], "")]
    assert places_for(1, on_cpu=False) == [([0, 1, 2, 4, 6], "")]
    with pytest.raises(UserError, match="--at-once 6: there are 5 cores"):
        places_for(6, on_cpu=True)
    monkeypatch.setattr(program, "visible_gpus", lambda: ["3", "GPU-a"])
    assert places_for(2, on_cpu=False) == [([0, 1], "3"), ([2, 4, 6], "GPU-a")]
    with pytest.raises(UserError, match="--at-once 3: there are 2 GPUs"):
        places_for(3, on_cpu=False)


SIZES = """--prompts-per-step 2 --group-size 2 --eval-every 1 --eval-examples 4 --eval-samples 1 --rollouts-every 0
    --no-preflight --threads 1 --device cpu"""


@pytest.mark.slow
def test_a_sweep_trains_its_runs_and_reports_on_all(tmp_path, monkeypatch):
    """With train.py itself: a run that was killed is resumed, to the weights of one that never was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "Popen", Forked)
    words = [*SAY_SEVENS, *SIZES.split()]
    flags = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            value = words[place + 1] if place + 1 < len(words) and not words[place + 1].startswith("--") else None
            flags[word[2:].removeprefix("no-")] = False if value is None else yaml.safe_load(value)
    content = {**flags, "steps": 2, "algorithm": ["grpo", "rloo"], "seed": [0, 1]}
    Path("tiny.yaml").write_text(yaml.safe_dump(content))
    assert main(["sweep", "tiny.yaml"]) == 0
    runs = sorted(Path("runs").glob("tiny-*"))
    digests = {run.name: json.loads((run / "summary.json").read_text())["weights_sha256"] for run in runs}
    assert len(set(digests.values())) == 4
    assert Path("runs/report/tiny/report.md").read_text().count(", 2 seeds |") == 2  # the mean of each algorithm
    resumed = runs[0]  # as if it had been killed in its last step
    (resumed / "summary.json").unlink()
    shutil.rmtree(Path("checkpoints") / resumed.name / "step_000002")
    assert main(["sweep", "tiny.yaml"]) == 0
    assert json.loads((resumed / "summary.json").read_text())["weights_sha256"] == digests[resumed.name]


def test_every_algorithm_is_in_the_sweep_of_the_page():
    from minrl.advantages import no_reward
    from minrl.algorithms import ALGORITHMS

    paid = [name for name, row in ALGORITHMS.items() if row.advantage is not no_reward]
    assert yaml.safe_load((ROOT / "docs/algorithms.yaml").read_text())["algorithm"] == paid


def _when(ready):
    deadline = time.monotonic() + 60
    while not ready() and time.monotonic() < deadline:
        Event().wait(0.02)


def _require_none_left():
    """No process that the stand-in noted is there any more."""
    for line in Path("order").read_text().splitlines():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[1]), 0)
