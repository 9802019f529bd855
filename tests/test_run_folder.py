"""A run owns its folders: nothing of any run is lost, whoever begins, resumes or is killed at the same time."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from minrl import train
from minrl.__main__ import main
from minrl.config import LoggingConfig, TrainerConfig
from minrl.run.checkpoint import save_policy
from minrl.run.folder import OWNER, RunFolder
from minrl.run.run import open_run, owned
from minrl.types import UserError
from minrl.utils.cli import parse, run_main
from minrl.utils.files import LOCK
from tests.conftest import SMALL_RUN
from tests.disks import files_up_to
from tests.killing import killed_at, signalled_at
from tests.say_sevens import SIZES

FORK = multiprocessing.get_context("fork")
NAME = "run"
RUN, KEPT = Path("runs", NAME), Path("checkpoints", NAME)


def start(*more):
    return main(["train", *SMALL_RUN, *more])


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
    return [line["step"] for line in RunFolder(Path("runs") / name).metrics]


def read(path):
    return json.loads(Path(path).read_text())


def weights_of(name=NAME):
    return read(Path("runs", name, "summary.json"))["weights_sha256"]


def names_in(folder):
    return sorted(path.name for path in Path(folder).glob("*"))  # none where the folder is not there either


# A name is claimed at once, and free where neither folder is there.


def new_run(folder, **more):
    places = LoggingConfig(runs_dir=str(folder / "runs"), checkpoints_dir=str(folder / "checkpoints"), **more)
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
    run = new_run(tmp_path / "my runs", run_name="mine")
    refused = r"a run mine is there already, .*--run-name, .*--resume '.*my runs/runs/mine'$"  # a near path is relative
    with owned(run, processes) as mine:
        assert (mine.name, run.folder) == ("mine", tmp_path / "my runs/runs/mine")
        with pytest.raises(UserError, match=refused), owned(run, processes):
            pass
    with owned(run, processes):  # nothing was written
        run.checkpoints.joinpath("notes.txt").write_text("mine")
    with pytest.raises(UserError, match=refused), owned(run, processes):
        pass


def test_folders_that_cannot_be_made_or_locked_are_refused_and_none_is_left(tmp_path, processes):
    with files_up_to(0), pytest.raises(UserError, match="cannot lock"), owned(new_run(tmp_path), processes):
        pass
    assert names_in(tmp_path / "runs") == []
    (tmp_path / "file").touch()
    expected = "--runs-dir and --checkpoints-dir"
    with pytest.raises(UserError, match=expected), owned(new_run(tmp_path / "file"), processes):
        pass


def test_a_run_that_ends_before_its_first_step_leaves_nothing(place):
    with pytest.raises(UserError, match="nobody to play"):
        start("--opponent", "model")
    assert start("--preflight-only", "--preflight") == 0
    assert names_in("runs") == names_in("checkpoints") == []


def test_a_run_that_is_stopped_in_its_preflight_leaves_what_was_there(place, capsys, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # put back when the test is over

    def stopped(run, *flags):
        with signalled_at(train, "preflight", 1, signal.SIGINT), pytest.raises(SystemExit) as ended:
            run_main(lambda arguments: run(*flags))
        assert ended.value.code == 130

    stopped(start, "--preflight")
    assert names_in("runs") == names_in("checkpoints") == []
    with killed_at(train, "update_policy", 1):
        start("--preflight")
    before = files_of(".")
    stopped(resume)  # before its first checkpoint a run is looked at again
    assert files_of(".") == before


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


# Where a resume is refused, nothing is discarded.


def elsewhere(**owner):
    shutil.move("checkpoints", "others")
    if owner:
        path = Path("others", NAME, OWNER)
        path.write_text(json.dumps(read(path) | owner))


def none_whole():
    shutil.rmtree(KEPT / "step_000001")
    (KEPT / "step_000002/trainer.json").unlink()
    (KEPT / "step_000003/model.safetensors").write_bytes(b"")


FOREIGN = {"id": "another", "folder": "/far/away"}
REFUSED = {
    "an earlier checkpoint": (lambda: None, f"{KEPT}/step_000001", f"is not the last .* step_000003: .* {RUN}@1"),
    "fewer steps than it has": (lambda: None, "latest --steps 2", "--steps is 2, and .*step_000003: raise it"),
    "a copy without its checkpoints": (
        lambda: shutil.copytree("runs", "copy/runs"),
        "latest --runs-dir copy/runs",
        f"copy.* has no checkpoints of its own in .*, which are those of .*{RUN}:",
    ),
    "moved checkpoints": (elsewhere, "latest", f"are not in .*{KEPT}: .*--checkpoints-dir"),
    "no checkpoints any more": (
        lambda: [shutil.rmtree(path) for path in KEPT.glob("step_*")],
        "latest",
        f"has saved checkpoints, and .*{KEPT} has none: .* --checkpoints-dir",
    ),
    "another run's checkpoints": (
        lambda: elsewhere(**FOREIGN),
        "latest --checkpoints-dir others",
        f"has no checkpoints of its own in .*others/{NAME}: ",
    ),
    "checkpoints without their run": (
        lambda: elsewhere(**FOREIGN),
        f"others/{NAME}/step_000003",
        "belong to a run that is not there: .* --model-id .*_000003$",
    ),
    "no whole checkpoint": (
        none_whole,
        "latest",
        "step_000002: no readable trainer.json; step_000003: model.safetensors is not what was written",
    ),
    "an unset variable": (lambda: None, " ", "--resume is empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_resume_that_is_refused_leaves_everything_as_it_is(run, found, case):
    prepare, flags, message = REFUSED[case]
    prepare()
    before = files_of(".")
    with pytest.raises(UserError, match=message):
        found(*(flags.split() or [flags]))
    assert files_of(".") == before


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(place, finished):
    with killed_at(train, "update_policy", 2):
        start("--save-every", "0")
    assert steps_of() == [0, 1]
    assert resume() == 0
    assert steps_of() == [0, 1, 2, 3] and weights_of() == weights_of(finished / "runs" / NAME)


def test_the_newest_whole_checkpoint_may_be_named(run):
    expected = weights_of()
    Path(f"checkpoints/{NAME}/step_000003/trainer.json").unlink()
    assert resume(f"checkpoints/{NAME}/step_000002") == 0
    assert names_in("runs") == [NAME] and steps_of() == [0, 1, 2, 3] and weights_of() == expected


def test_the_summary_of_an_earlier_end_goes_when_the_run_resumes_also_among_damaged_lines(run):
    with Path(f"runs/{NAME}/metrics.jsonl").open("ab") as file:  # as a power failure leaves them
        file.write(bytes(5) + b"\n\xff\n")
    Path("runs/old").mkdir()
    Path("runs/old/config.json").write_text('{\n "minrl_run": "old",\n')
    Path(f"checkpoints/{NAME}/{OWNER}").write_text('{"a": 1}')
    with killed_at(train, "update_policy", 1):
        resume("latest", "--steps", "4")
    assert not Path(f"runs/{NAME}/summary.json").exists()
    shutil.rmtree("model")  # which is not needed any more
    assert resume() == 0 and read(f"runs/{NAME}/summary.json")["steps"] == 4
    assert steps_of() == [0, 1, 2, 3, 4]


# It is found from anywhere.


def test_a_run_is_found_from_another_folder_and_where_it_was_moved_with_its_checkpoints(run, found, monkeypatch):
    (run / "place").mkdir()
    monkeypatch.chdir(run / "place")
    for base in (run, run / "place"):
        kept = base / "checkpoints" / NAME
        for name in (base / "runs" / NAME, kept, kept / "step_000003"):
            assert found(name).checkpoint == kept / "step_000003" and found(name).folder == base / "runs" / NAME
        for name in ("runs", "checkpoints") if base == run else ():
            shutil.move(run / name, run / "place")
    assert found("latest").checkpoint == found(NAME).checkpoint == kept / "step_000003"


def test_where_checkpoints_were_moved_to_is_known_from_the_next_resume_on(run, found, monkeypatch):
    shutil.move("checkpoints", "moved")
    (run / "other").mkdir()
    monkeypatch.chdir(run / "other")
    assert resume(run / "runs" / NAME, "--steps", "4", "--checkpoints-dir", "../moved") == 0
    monkeypatch.chdir(run)
    assert names_in("other") == [] and steps_of() == [0, 1, 2, 3, 4]
    assert found("latest").checkpoint == run / "moved" / NAME / "step_000004"


def test_a_copy_of_a_run_resumes_in_its_own_checkpoints(run):
    before = files_of(".")
    for name in ("runs", "checkpoints"):
        shutil.copytree(name, f"copy/{name}")
    flags = ("--runs-dir", "copy/runs", "--checkpoints-dir", "copy/checkpoints")
    assert resume("latest", "--steps", "4", *flags) == 0
    found = files_of(".")
    assert all(found[path] == content for path, content in before.items())


def test_the_latest_run_is_the_one_that_wrote_last_not_the_one_that_was_read_last(run, found):
    shutil.copytree(f"runs/{NAME}", "runs/older")
    for path in Path("runs/older").iterdir():
        os.utime(path, (0, 0))
    Path("runs/older/rollouts.html").write_text("a page made now")
    assert found("latest").folder == run / "runs" / NAME


# What is stored holds, and what has changed is reported.


def test_paths_are_stored_for_any_working_directory(run):
    config = read(f"runs/{NAME}/config.json")["config"]
    expected = {"runs_dir": "runs", "checkpoints_dir": "checkpoints", "model_id": "model"}
    expected["judge_cache"] = "checkpoints/judge_cache.sqlite"
    assert {name: config[name] for name in expected} == {name: str(run / path) for name, path in expected.items()}
    assert config["opponent"] == config["data_path"] == ""


def test_stored_flags_hold_when_a_run_resumes(place, monkeypatch):
    with killed_at(train, "update_policy", 1):
        start("--steps", "1", "--no-eval-first")
    monkeypatch.setattr(train, "preflight", None)  # --no-preflight is among the flags of `start`
    assert resume() == 0
    assert steps_of() == [1]


def test_code_and_packages_that_changed_are_reported_at_every_resume(run, capfd):
    assert resume() == 0
    assert "changed since" not in capfd.readouterr().err
    path = Path(f"runs/{NAME}/config.json")
    record = read(path)
    record |= {"sources": "0" * 64, "commit": "a" * 40, "packages": record["packages"] | {"torch": "1.0"}}
    path.write_text(json.dumps(record, indent=1))
    for _ in range(2):  # the start is what is compared with
        assert resume() == 0
        said = " ".join(capfd.readouterr().err.split())
        assert "MinRL's code (commit aaaaaaaaaaaa); torch 1.0 (now " in said
    record = read(path)
    assert record["commit"] == "a" * 40 and len(record["resumed"]) == 3


def test_the_reference_is_the_model_that_the_run_began_with(place, make_policy):
    assert start("--steps", "1", "--kl-coef", "0.01") == 0
    save_policy(make_policy(1), place / "model")
    before = files_of("runs")
    with pytest.raises(UserError, match=r"the start model of run .* in .*model has other weights"):
        resume("latest", "--steps", "2")
    shutil.rmtree("model")
    with pytest.raises(UserError, match=rf"the start model of run .*, {place}/model, is not there: put it back"):
        resume("latest", "--steps", "2")
    assert files_of("runs") == before
    save_policy(make_policy(0), place / "model")
    assert resume("latest", "--steps", "2") == 0


def test_a_task_file_that_changed_is_reported_and_makes_no_other_reference(place, monkeypatch, capfd):
    path = place / "said.py"
    path.write_text(Path(__file__).with_name("say_sevens.py").read_text().replace("\nsevens =", "\nown ="))
    monkeypatch.setattr(sys, "path", list(sys.path))
    flags = ["--task", f"{path}:own", "--model-id", "", "--kl-coef", "0.01", *SIZES]
    assert start(*flags, "--steps", "1") == 0
    path.write_text(path.read_text() + "# edited\n")
    assert resume("latest", "--steps", "2") == 0
    assert f"the file {path}" in capfd.readouterr().err
    (made,) = Path("checkpoints").glob("base-*")
    (run,) = Path("runs").iterdir()
    assert read(run / "config.json")["models"]["start model"]["path"] == str(made.resolve())
    del sys.modules["said"]
