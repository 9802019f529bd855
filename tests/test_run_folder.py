"""A run owns its folders: nothing of any run is lost, whoever begins, goes on or is killed at the same time."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from minrl import train
from minrl.__main__ import main
from minrl.config import LoggingConfig, TrainerConfig
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import as_policy
from minrl.run.checkpoint import save_policy
from minrl.run.folder import OWNER
from minrl.run.run import open_run, owned
from minrl.tasks import TASK_DEFINITIONS, Task, TaskDefinition
from minrl.tasks.task import split
from minrl.tracking.writers import read_metrics
from minrl.types import Example, UserError
from minrl.utils.cli import parse, run_main
from minrl.utils.files import LOCK
from tests.conftest import CPU
from tests.disks import files_up_to
from tests.killing import killed_at, signalled_at
from tests.say_sevens import count_sevens

SIZES = "model-prompts_per_step=4-group_size=4-max_tokens=4-learning_rate=0.005-schedule=constant-warmup_steps=0"
NAME = f"sevens-grpo-{SIZES}-seed0"
FLAGS = """--task sevens --model-id model --prompts-per-step 4 --group-size 4 --max-tokens 4 --learning-rate 5e-3
    --warmup-steps 0 --schedule constant --steps 3 --save-every 1 --keep-checkpoints 0 --eval-every 0
    --eval-examples 2 --eval-samples 1 --rollouts-every 1 --threads 1 --device cpu --quiet --no-preflight"""
SMALL_BASE = "--base-steps 2 --base-hidden-size 32 --base-heads 2 --base-layers 1 --base-batch-size 4"
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """None."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory, processes, words):
    """The folder of a run of three steps that are all saved, and of the model that it begins with."""
    folder = tmp_path_factory.mktemp("finished")
    examples = [Example(f"numbers {n}", f"numbers {n}", {"number": n}) for n in range(16)]
    task = Task(split(examples, 0.5), count_sevens, cheap=True)
    tokenizer = word_tokenizer(words)
    save_policy(as_policy(small_qwen3(tokenizer, 64, 2, 2, 0), tokenizer, CPU, processes), folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASK_DEFINITIONS, "sevens", TaskDefinition(NoOptions, lambda options, path: task))
        with pytest.MonkeyPatch.context() as there:
            there.chdir(folder)
            assert main(["train", *FLAGS.split()]) == 0
        yield folder


@pytest.fixture
def place(finished, tmp_path, monkeypatch):
    """The working directory: a folder with the model."""
    shutil.copytree(finished / "model", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(finished, place):
    """The working directory: a folder with a finished run, as if it had been made here."""
    for name in ("runs", "checkpoints"):
        shutil.copytree(finished / name, place / name)
    for path in (*place.glob("runs/*/*.json"), *place.glob(f"checkpoints/*/{OWNER}")):
        path.write_text(path.read_text().replace(str(finished), str(place)))
    return place


def start(*more):
    return main(["train", *FLAGS.split(), *more])


def resume(name="latest", *more):
    return main(["train", "--resume", str(name), *more])


@pytest.fixture
def found(processes):
    """What --resume finds, without going on."""

    def find(name, *more):
        command = parse(TrainerConfig, ["--resume", str(name), *more])
        with owned(open_run(command.config, command.options, command.given), processes) as run:
            return run

    return find


def files_of(folder):
    """Every file in a folder, with its content, but for the locks."""
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file() and path.name != LOCK}


def steps_of(name=NAME):
    return [line["step"] for line in read_metrics(Path("runs") / name)]


def read(path):
    return json.loads(Path(path).read_text())


def weights_of(name=NAME):
    return read(Path("runs", name, "summary.json"))["weights_sha256"]


def names_in(folder):
    return sorted(path.name for path in Path(folder).glob("*"))  # none where the folder is not there either


# A name is claimed at once, and free where neither folder is there.


@pytest.mark.parametrize("emptied", [True, False])
def test_a_new_run_leaves_an_earlier_runs_checkpoints_of_the_same_name(run, emptied):
    before = files_of("checkpoints")
    if emptied:
        shutil.rmtree("runs")
    assert start("--steps", "1", "--runs-dir", "runs" if emptied else "elsewhere") == 0
    assert before.items() <= files_of("checkpoints").items()
    assert names_in("checkpoints") == [NAME, f"{NAME}-2"]
    assert names_in("runs" if emptied else "elsewhere") == [f"{NAME}-2"]


def new_run(folder):
    places = LoggingConfig(runs_dir=str(folder / "runs"), checkpoints_dir=str(folder / "checkpoints"))
    return open_run(TrainerConfig(logging=places), {}, [])


def hold(run, processes, begin, names, end):
    """Own the run's folders until the end, or until this process is killed."""
    begin.wait()
    with owned(run, processes) as mine:
        names.put(mine.name)
        end.wait()


@pytest.fixture
def in_processes(processes):
    """Processes that each own a run, at the same time: they, the names they got, and the event that ends them."""
    started = []

    def run(runs):
        begin, names, end = FORK.Barrier(len(runs)), FORK.Queue(), FORK.Event()
        ours = [FORK.Process(target=hold, args=(one, processes, begin, names, end)) for one in runs]
        started.extend(ours)
        for process in ours:
            process.start()
        return ours, [names.get(timeout=60) for _ in runs], end

    yield run
    for process in started:
        process.kill()
        process.join()


def test_runs_that_begin_at_the_same_moment_get_a_name_each_and_give_back_what_they_did_not_use(tmp_path, in_processes):
    ours, names, end = in_processes([new_run(tmp_path)] * 6)
    name = new_run(tmp_path).name
    assert sorted(names) == sorted([name, *(f"{name}-{number}" for number in range(2, 7))])
    assert names_in(tmp_path / "runs") == names_in(tmp_path / "checkpoints") == sorted(names)
    end.set()
    for process in ours:
        process.join(timeout=60)
    assert names_in(tmp_path / "runs") == names_in(tmp_path / "checkpoints") == []


def test_a_name_whose_run_was_killed_before_it_wrote_anything_is_free_again(tmp_path, in_processes, processes):
    run = new_run(tmp_path)
    (first,), _, _ = in_processes([run])
    with owned(run, processes) as second:
        assert second.name == f"{run.name}-2"
    first.kill()
    first.join()
    with owned(run, processes) as third:
        assert third.name == run.name


def test_what_a_run_did_not_write_is_not_taken_and_not_removed(tmp_path, processes):
    run = new_run(tmp_path)
    run.folder.mkdir(parents=True)
    (run.folder / "notes.txt").write_text("mine")
    run.checkpoints.parent.mkdir()
    run.checkpoints.with_name(f"{run.name}-2").write_text("a file")
    with owned(run, processes) as mine:
        assert mine.name == f"{run.name}-3"
        (mine.folder / "notes.txt").write_text("also mine")
    assert names_in(tmp_path / "runs") == [run.name, mine.name]
    assert names_in(tmp_path / "checkpoints") == [f"{run.name}-2"]


def test_a_name_that_the_user_gave_is_that_of_one_run(tmp_path, processes):
    folder = tmp_path / "my runs" / "mine"
    places = {"runs_dir": str(folder.parent), "checkpoints_dir": str(tmp_path / "kept")}
    run = open_run(TrainerConfig(logging=LoggingConfig(run_name="mine", **places)), {}, [])
    assert run.folder == folder
    refused = rf"^a run mine is there already, in {folder} or .*: choose another --run-name, or go on with "
    refused += rf"python -m minrl train --resume '{folder}'$"
    with owned(run, processes) as mine:
        assert mine.name == "mine"
        with pytest.raises(UserError, match=refused), owned(run, processes):
            pass
    with owned(run, processes):  # nothing was written
        run.checkpoints.joinpath("notes.txt").write_text("mine")
    with pytest.raises(UserError, match=refused), owned(run, processes):
        pass


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path, processes):
    (tmp_path / "runs").write_text("a file")
    expected = r"cannot make .*: .*; choose others with --runs-dir and --checkpoints-dir"
    with pytest.raises(UserError, match=expected), owned(new_run(tmp_path), processes):
        pass


def test_a_run_that_has_no_room_for_its_lock_leaves_no_folder(tmp_path, processes):
    expected = rf"^cannot lock {tmp_path}/runs/.*: File too large; it must be on a disk that can be written$"
    with files_up_to(0), pytest.raises(UserError, match=expected), owned(new_run(tmp_path), processes):
        pass
    assert names_in(tmp_path / "runs") == []


@pytest.mark.parametrize("flags", [["--preflight-only", "--preflight"], ["--opponent", "model"]])
def test_a_run_that_ends_before_its_first_step_leaves_nothing(place, flags):
    if "--opponent" in flags:
        with pytest.raises(UserError, match="nobody to play"):
            start(*flags)
    else:
        assert start(*flags) == 0
    assert names_in("runs") == names_in("checkpoints") == []


def test_a_run_that_is_stopped_in_its_preflight_leaves_what_was_there(place, capsys, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # put back when the test is over

    def stopped(run, *flags):
        capsys.readouterr()
        with signalled_at(train, "preflight", 1, signal.SIGINT), pytest.raises(SystemExit) as ended:
            run_main(lambda arguments: run(*flags))
        assert ended.value.code == 130
        # Nothing was begun, so there is nothing to go on with but the same command.
        assert capsys.readouterr().err.endswith("interrupted\n")

    stopped(start, "--preflight")
    assert names_in("runs") == names_in("checkpoints") == []
    with killed_at(train, "update_policy", 1):
        start("--preflight")
    before = files_of(".")
    stopped(resume)  # before its first checkpoint a run is looked at again
    assert files_of(".") == before


@pytest.mark.parametrize("given", [["--resume", ""], ["--resume="], ["--resume", " "]])
def test_an_empty_name_to_resume_is_not_a_new_run(given):
    settings = TrainerConfig(resume=given[-1].removeprefix("--resume="))
    with pytest.raises(UserError, match="--resume is empty, as an unset variable is: name `latest`"):
        open_run(settings, {}, given)


# A run that is going on is not resumed.


def test_a_run_that_is_going_on_is_not_resumed_until_its_process_ends(run, in_processes, found):
    before = files_of(".")
    (process,), _, _ = in_processes([open_run(TrainerConfig(resume="latest"), {}, ["--resume", "latest"])])
    for name in ("latest", NAME, f"checkpoints/{NAME}/step_000001"):
        with pytest.raises(UserError, match=rf"run .*{NAME} is going on \(process {process.pid} on .*\): wait for its"):
            resume(name, "--steps", "4")
    assert files_of(".") == before
    process.kill()
    process.join()
    assert found("latest").checkpoint == run / "checkpoints" / NAME / "step_000003"


# Only a resume discards, and only what lies beyond the checkpoint that it found.


def test_an_earlier_checkpoint_is_not_gone_on_from_and_nothing_is_discarded(run):
    before = files_of(".")
    with pytest.raises(UserError, match=rf"is not the last checkpoint of run .* step_000003: .* --fork runs/{NAME}@1"):
        resume(f"checkpoints/{NAME}/step_000001", "--steps", "3")
    assert files_of(".") == before


def test_the_summary_of_an_earlier_end_goes_when_the_run_goes_on(run):
    assert resume() == 0  # nothing is left to do: the summary is its own
    assert read(f"runs/{NAME}/summary.json")["steps"] == 3
    with killed_at(train, "update_policy", 1):
        resume("latest", "--steps", "4")
    assert not Path(f"runs/{NAME}/summary.json").exists()
    assert resume() == 0 and read(f"runs/{NAME}/summary.json")["steps"] == 4


def test_a_copy_of_a_run_does_not_go_on_in_the_originals_checkpoints(run, monkeypatch):
    shutil.copytree("runs", "copy/runs")
    before = files_of(".")
    with pytest.raises(
        UserError, match=rf"run {run}/copy.* has no checkpoints of its own in .*, which are those of {run}/runs/{NAME}:"
    ):
        resume("latest", "--runs-dir", "copy/runs", "--steps", "4")
    assert files_of(".") == before
    shutil.copytree("checkpoints", "copy/checkpoints")
    flags = ("--runs-dir", "copy/runs", "--checkpoints-dir", "copy/checkpoints")
    assert resume("latest", "--steps", "4", *flags) == 0
    found = files_of(".")
    assert all(found[path] == content for path, content in before.items() if not str(path).startswith("copy"))


def test_a_run_does_not_end_before_the_step_that_it_has_reached(run):
    before = files_of(".")
    with pytest.raises(UserError, match=r"--steps is 2, and run .* has gone on to .*step_000003: raise it"):
        resume("latest", "--steps", "2")
    assert files_of(".") == before


def test_lines_and_configs_that_a_power_failure_left_stop_nobody(run):
    with Path(f"runs/{NAME}/metrics.jsonl").open("ab") as file:
        file.write(bytes(5) + b"\n\xff\n")
    Path("runs/old").mkdir()
    Path("runs/old/config.json").write_text('{\n "minrl_run": "old",\n')
    Path(f"checkpoints/{NAME}/{OWNER}").write_text('{"a": 1}')
    assert resume("latest", "--steps", "4") == 0
    assert steps_of() == [0, 1, 2, 3, 4]


def test_the_newest_whole_checkpoint_may_be_named(run):
    expected = weights_of()
    Path(f"checkpoints/{NAME}/step_000003/trainer.json").unlink()
    assert resume(f"checkpoints/{NAME}/step_000002") == 0
    assert names_in("runs") == [NAME] and steps_of() == [0, 1, 2, 3] and weights_of() == expected


# It is found from anywhere, and where it is not, nothing is cut.


def test_a_run_goes_on_from_another_working_directory(run, found, monkeypatch):
    (run / "other").mkdir()
    monkeypatch.chdir(run / "other")
    newest = run / "checkpoints" / NAME / "step_000003"
    for name in (run / "runs" / NAME, newest, newest.parent):
        assert found(name).checkpoint == newest and found(name).folder == run / "runs" / NAME
    assert resume(run / "runs" / NAME, "--steps", "4") == 0
    monkeypatch.chdir(run)
    assert names_in("other") == [] and steps_of() == [0, 1, 2, 3, 4]


def test_checkpoints_are_found_where_they_were_moved_to_and_those_of_another_run_are_not_taken(run, found):
    shutil.move("checkpoints", "moved")
    before = files_of(".")
    with pytest.raises(UserError, match=rf"are not in {run}/checkpoints/{NAME}: .*--checkpoints-dir"):
        resume("latest", "--steps", "4")
    Path("checkpoints", NAME).mkdir(parents=True)
    with pytest.raises(
        UserError, match=rf"has saved checkpoints, and {run}/checkpoints/{NAME} has none: .*--checkpoint"
    ):
        resume("latest", "--steps", "4")
    assert files_of(".") == before
    assert resume("latest", "--steps", "4", "--checkpoints-dir", "moved") == 0
    assert steps_of() == [0, 1, 2, 3, 4]
    assert found("latest").checkpoint == run / "moved" / NAME / "step_000004"  # known from now on
    shutil.copytree("moved", "others")
    owner = read(f"others/{NAME}/{OWNER}")
    Path(f"others/{NAME}/{OWNER}").write_text(json.dumps(owner | {"id": "another", "folder": "/far/away"}))
    with pytest.raises(UserError, match=rf"has no checkpoints of its own in .*others/{NAME}: name the folder"):
        resume("latest", "--steps", "5", "--checkpoints-dir", "others")
    with pytest.raises(
        UserError, match=r"the checkpoints in .* belong to a run that is not there: .* --model-id .*_000004$"
    ):
        resume(f"others/{NAME}/step_000004")


def test_a_run_and_its_checkpoints_that_were_moved_together_go_on_where_they_are(run, found, monkeypatch):
    (run / "place").mkdir()
    for name in ("runs", "checkpoints"):
        shutil.move(name, "place")
    monkeypatch.chdir(run / "place")
    newest = run / "place" / "checkpoints" / NAME / "step_000003"
    for name in ("latest", NAME, newest):
        assert found(name).checkpoint == newest and found(name).folder == run / "place/runs" / NAME


def test_a_run_whose_checkpoints_were_removed_is_not_begun_again(run):
    for path in Path(f"checkpoints/{NAME}").glob("step_*"):
        shutil.rmtree(path)
    before = files_of(".")
    with pytest.raises(UserError, match=rf"run .*{NAME} has saved checkpoints, and .* has none: .* --checkpoints-dir"):
        resume("latest", "--steps", "4")
    assert files_of(".") == before


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(place, finished):
    with killed_at(train, "update_policy", 2):
        start("--save-every", "0")
    assert steps_of() == [0, 1]
    assert resume() == 0
    assert steps_of() == [0, 1, 2, 3] and weights_of() == weights_of(finished / "runs" / NAME)


def test_a_run_without_a_whole_checkpoint_is_refused_and_told_what_is_wrong_with_each(run):
    shutil.rmtree(f"checkpoints/{NAME}/step_000001")
    Path(f"checkpoints/{NAME}/step_000002/trainer.json").unlink()
    Path(f"checkpoints/{NAME}/step_000003/model.safetensors").write_bytes(b"")
    before = files_of(".")
    expected = r"\(step_000002: no readable trainer.json; step_000003: model.safetensors is not what was written\): put"
    with pytest.raises(UserError, match=expected):
        resume("latest", "--steps", "4")
    assert files_of(".") == before


def test_the_latest_run_is_the_one_that_wrote_last_not_the_one_that_was_read_last(run, found):
    shutil.copytree(f"runs/{NAME}", "runs/older")
    for path in Path("runs/older").iterdir():
        os.utime(path, (0, 0))
    Path("runs/older/rollouts.html").write_text("a page made now")
    assert found("latest").folder == run / "runs" / NAME


# What is stored holds, and what has changed is said.


def test_paths_are_stored_for_any_working_directory(run):
    config = read(f"runs/{NAME}/config.json")["config"]
    expected = {"runs_dir": "runs", "checkpoints_dir": "checkpoints", "model_id": "model"}
    expected["judge_cache"] = "checkpoints/judge_cache.jsonl"
    assert {name: config[name] for name in expected} == {name: str(run / path) for name, path in expected.items()}
    assert config["opponent"] == config["data_path"] == ""


def test_stored_flags_hold_when_a_run_goes_on(place, monkeypatch):
    with killed_at(train, "update_policy", 1):
        start("--steps", "1", "--no-eval-first")
    monkeypatch.setattr(train, "preflight", None)  # --no-preflight is among the flags of `start`
    assert resume() == 0
    assert steps_of() == [1]


def test_code_and_packages_that_changed_are_said(run, capfd):
    assert resume() == 0
    assert "changed since" not in capfd.readouterr().err
    path = Path(f"runs/{NAME}/config.json")
    record = read(path)
    packages = record["packages"] | {"torch": "1.0"}
    record |= {"sources": "0" * 64, "commit": "a" * 40, "packages": packages}
    path.write_text(json.dumps(record, indent=1))
    for _ in range(2):  # said each time: the start is what is compared with
        assert resume() == 0
        said = " ".join(capfd.readouterr().err.split())
        assert "changed since the run began" in said
        assert "MinRL's code (commit aaaaaaaaaaaa); torch 1.0 (now " in said
    record = read(path)
    assert record["commit"] == "a" * 40 and len(record["resumed"]) == 3


def test_the_reference_is_the_model_that_the_run_began_with(place, make_policy):
    assert start("--steps", "1", "--kl-coef", "0.01") == 0
    save_policy(make_policy(1), place / "model")
    before = files_of("runs")
    with pytest.raises(UserError, match=r"the start model of run .* in .*model has other weights than when the run be"):
        resume("latest", "--steps", "2")
    shutil.rmtree("model")
    with pytest.raises(UserError, match=rf"the start model of run .*, {place}/model, is not there: put it back"):
        resume("latest", "--steps", "2")
    assert files_of("runs") == before
    save_policy(make_policy(0), place / "model")
    assert resume("latest", "--steps", "2") == 0


def test_a_start_model_that_is_not_needed_any_more_need_not_be_there(run):
    shutil.rmtree("model")
    assert resume("latest", "--steps", "4") == 0


TASK_FILE = '''
from dataclasses import dataclass
from minrl.tasks.task import Task, TaskDefinition, split
from minrl.types import Example, Reward

@dataclass(frozen=True, kw_only=True)
class Options:
    """None."""

def make(options, data_path):
    examples = [Example(str(n), f"say {n} :", {"n": str(n)}) for n in range(8)]
    reward = lambda text, example: Reward(float(example["n"] in text.split()))
    words = ("say", ":", *map(str, range(8)))
    shown = lambda example, rng: rng.choice(words[2:])
    return Task(split(examples, 0.5), reward, demonstrations=shown, vocabulary=words, cheap=True)

TASK = TaskDefinition(Options, make)
'''


def test_a_task_file_that_changed_is_said_and_makes_no_other_reference(place, monkeypatch, capfd):
    path = place / "said.py"
    path.write_text(TASK_FILE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    flags = ["--task", f"{path}:TASK", "--model-id", "", "--kl-coef", "0.01", *SMALL_BASE.split()]
    assert start(*flags, "--steps", "1") == 0
    path.write_text(TASK_FILE + "# edited\n")
    assert resume("latest", "--steps", "2") == 0
    assert f"changed since the run began, so its numbers may be others: the file {path}" in capfd.readouterr().err
    (made,) = Path("checkpoints").glob("base-*")
    (run,) = Path("runs").iterdir()
    assert read(run / "config.json")["models"]["start model"]["path"] == str(made.resolve())
    del sys.modules["said"]
