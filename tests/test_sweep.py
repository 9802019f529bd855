"""A sweep makes a run of each combination, resumes where it was stopped, and reports on all."""

import json
import os
import re
import signal
import sys
import textwrap
from pathlib import Path
from threading import Timer

import pytest
import yaml

from minrl.__main__ import main
from minrl.dataflow import UserError
from minrl.tools import sweep as program
from minrl.tools.sweep import read_plan
from minrl.utils.processor import own_cores
from tests.parsed import parsed
from tests.runs import until

TRAINER = """
    import json, os, signal, sys, time, yaml
    from pathlib import Path
    name, config = sys.argv[4], yaml.safe_load(open(sys.argv[2]))
    run, seed = Path("runs") / name, config["seed"]
    run.mkdir(parents=True, exist_ok=True)
    print(os.environ.get("CUDA_VISIBLE_DEVICES", ""), sorted(os.sched_getaffinity(0)))
    Path("words.json").write_text(json.dumps(sys.argv[1:]))
    with open("order", "a") as file:
        file.write(f"{name} {os.getpid()}\\n")
    config |= {"task": "countdown", "learning_rate": float(config["learning_rate"])}
    (run / "config.json").write_text(json.dumps({"minrl_run": name, "config": config}))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    if Path(f"wait-{seed}").exists():
        Path("waiting").touch()
        time.sleep(300)
    if Path(f"fail-{seed}").exists():
        sys.exit("error: this seed is a bad one")
    score = {f"eval/countdown/pass@1{end}": value for end, value in (("", 0.5), ("_low", 0.4), ("_high", 0.6))}
    (run / "metrics.jsonl").write_text(json.dumps({"step": 2, "reward/mean": 0.1, **score}) + "\\n")
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
    monkeypatch.setattr("minrl.report.page.svg", lambda *_: "")  # drawing takes most of the time
    monkeypatch.setattr(program, "TRAINER", (sys.executable, "trainer.py"))

    def run(*flags, content=RATES):
        Path("rates.yaml").write_text(yaml.safe_dump(content))
        return main(["sweep", "rates.yaml", *flags])

    return run


def order():
    return [line.split()[0] for line in Path("order").read_text().splitlines()]


def planned(tmp_path, content, name):
    (tmp_path / name).write_text(yaml.safe_dump(content))
    return read_plan(tmp_path / name)


def test_every_combination_is_a_run_named_by_what_varies(tmp_path):
    runs = planned(tmp_path, RATES, "rates.yaml")
    assert [run.name for run in runs] == NAMES and {run.state for run in runs} == {"new"}
    assert runs[1].in_file == {"steps": 2, "learning_rate": 0.001, "seed": 0}
    assert [run.settings.learning_rate for run in runs] == [1e-4, 1e-3] * 2
    runs = planned(tmp_path, {"task": "hanoi", "hanoi.max_disks": [3, 4]}, "my sweep.yaml")
    assert runs[0].name == "my-sweep-hanoi.max_disks=3-seed0" and runs[-1].options["hanoi"].max_disks == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"learning_rat": [1]}, "unknown setting 'learning_rat': did you mean learning_rate"),
        ({"seed": 0}, r"give lists of values, as in `seed: \[0, 1, 2\]`"),
        ({"learning_rate": ["1e-4", 0.0001]}, "two runs would be bad-learning_rate=0.0001-seed0"),
    ],
)
def test_what_no_sweep_can_be_made_of_is_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as refused:
        planned(tmp_path, content, "bad.yaml")
    assert str(refused.value).startswith(f"{tmp_path}/bad.yaml: ") and "\n" not in str(refused.value)


def test_the_same_command_leaves_out_what_is_complete_and_goes_on_where_the_end_changed(sweep, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert sweep() == 0 and order() == NAMES
    assert re.search(r"rate=0.0001, 2 seeds .*50.0%", capsys.readouterr().out)
    assert all(name in Path("runs/report/rates/report.md").read_text() for name in NAMES)
    last, _ = parsed(json.loads(Path("words.json").read_text()))  # what train.py is called with
    assert (last.run_name, last.resume, last.learning_rate) == (NAMES[-1], "auto", 1e-3)
    assert sweep() == 0 and order() == NAMES
    assert sweep(content={**RATES, "steps": 3}) == 0 and order()[4:] == NAMES


def test_runs_that_fail_are_named_at_the_end_and_the_others_are_made(sweep, capsys):
    Path("fail-0").touch()
    assert sweep() == 1 and order() == NAMES
    said = "failed with status 1: error: this seed is a bad one (log runs/report/rates/logs"
    assert capsys.readouterr().err.splitlines()[-3:-1] == [f"{name} {said}/{name}.txt)" for name in NAMES[:2]]
    Path("fail-0").unlink()
    assert sweep() == 0 and order()[4:] == NAMES[:2]


def test_a_signal_ends_the_runs_and_the_same_command_goes_on(sweep, capsys):
    """The stand-in ends at a SIGINT as train.py does."""
    Path("wait-1").touch()
    Timer(0.0, lambda: until(Path("waiting").exists) or os.kill(os.getpid(), signal.SIGINT)).start()
    assert sweep() == 128 + signal.SIGINT
    assert capsys.readouterr().err.endswith("stopped: the same command resumes\n")
    assert order() == NAMES[:3] and not Path("runs/report/rates/report.md").exists()
    for line in Path("order").read_text().splitlines():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[1]), 0)
    Path("wait-1").unlink()
    assert sweep() == 0 and order()[3:] == NAMES[2:]


def test_runs_at_once_have_cores_of_their_own(sweep, monkeypatch):
    slots = [([own_cores()[0]], "0"), ([own_cores()[-1]], "1")]
    monkeypatch.setattr(program, "slots_for", lambda count, on_cpu: slots)
    assert sweep("--at-once", "2") == 0
    logs = [Path(f"runs/report/rates/logs/{name}.txt").read_text().splitlines()[-1] for name in NAMES]
    assert {*logs} == {f"{gpu} {cores}" for cores, gpu in slots}
