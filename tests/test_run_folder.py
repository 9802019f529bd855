"""A run owns its folders: nothing of any run is lost, whoever begins, resumes or is killed at the same time."""

import os
import shutil
from pathlib import Path

import pytest

from minrl import trainer
from minrl.__main__ import main
from minrl.config import TrainerConfig
from minrl.dataflow import UserError
from minrl.run.checkpoint import save_policy, thin_out
from minrl.run.folder import RunFolder, resolve_model
from minrl.run.run import open_run, owned
from minrl.utils.cli import parse
from minrl.utils.files import LOCK, read_json, write_json
from tests.conftest import SMALL_RUN
from tests.crew import crew
from tests.killing import killed_at
from tests.parsed import sized
from tests.runs import until

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


def new_run(folder, **more):
    places = {"runs_dir": str(folder / "runs"), "checkpoints_dir": str(folder / "checkpoints")}
    return open_run(sized(**places, **more), {}, set())


def claim(run, processes, seen):
    """The name under which this process owns the run, while the others own theirs."""
    with owned(run, processes) as mine:
        (seen / mine.name).touch()
        until(lambda: len(list(seen.iterdir())) == 4)
        return mine.name


def test_runs_that_begin_at_the_same_moment_get_a_name_each_and_give_back_what_they_did_not_use(tmp_path, processes):
    seen, run = tmp_path / "seen", new_run(tmp_path)
    seen.mkdir()
    names = crew(4, claim, run, processes, seen)
    assert sorted(names) == sorted([run.name, *(f"{run.name}-{number}" for number in range(2, 5))])
    assert not [*tmp_path.glob("runs/*"), *tmp_path.glob("checkpoints/*")]


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


def test_a_run_that_is_going_on_is_not_resumed(run, processes, found):
    before = files_of(".")
    with owned(open_run(sized(resume="latest"), {}, {"resume"}), processes):
        with pytest.raises(UserError, match=rf"run .*{NAME} is running \(process {os.getpid()} on .*\): wait for its"):
            resume("latest", "--steps", "4")
        assert files_of(".") == before
    assert found("latest").checkpoint == run / "checkpoints" / NAME / "step_000003"


def without_moments():
    thin_out(KEPT, sized(keep_checkpoints=0, save_moments="last"))
    for number in (2, 3):
        shutil.rmtree(KEPT / f"step_{number:06d}")


REFUSED = {
    "an earlier checkpoint": (list, f"{KEPT}/step_000001", "is not the last .* step_000003: .* --model-id .*001"),
    "moved checkpoints": (lambda: shutil.move("checkpoints", "others"), NAME, f"are not in .*{KEPT}: .*--checkpoints"),
    "the best": (list, f"{NAME}@best", f"from its last .* --resume {NAME}; .* --model-id {NAME}@best$"),
    "a copy of a run without its checkpoints": (
        lambda: shutil.copytree(f"runs/{NAME}", "runs/copy"),
        "copy",
        f"runs/copy is a copy of runs/{NAME}, .* to OTHER/copy, and give --checkpoints-dir OTHER$",
    ),
    "no moments": (without_moments, "latest", "step_000001 has no optimizer state .* --model-id .*step_000001$"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_resume_that_is_refused_leaves_everything_as_it_is(run, found, case):
    prepare, name, message = REFUSED[case]
    prepare()
    before = files_of(".")
    with pytest.raises(UserError, match=message):
        found(name)
    assert files_of(".") == before


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(place, finished):
    with killed_at(trainer, "update_policy", 2):
        start("--save-every", "0")
    assert [line["step"] for line in RunFolder(RUN).metrics] == [0, 1]
    assert resume() == 0
    assert [line["step"] for line in RunFolder(RUN).metrics] == [0, 1, 2, 3]
    assert read_json(RUN / "summary.json")["weights_sha256"] == RunFolder(finished / RUN).summary["weights_sha256"]


def test_a_run_is_found_by_its_name_folders_and_checkpoints_in_a_project_that_was_moved(run, found, monkeypatch):
    shutil.rmtree(KEPT / "step_000001")
    there = run / "moved and renamed"
    there.mkdir()
    for folder in ("runs", "checkpoints"):
        shutil.move(folder, there)
    monkeypatch.chdir(there)
    names = [NAME, RUN, f"{NAME}@best", KEPT, KEPT / "step_000002", there / KEPT / "step_000001"]  # one was removed
    assert {RunFolder.find(str(name)).path.resolve() for name in names} == {there / RUN}
    assert found("latest").checkpoint == there / KEPT / "step_000003" == Path(resolve_model(NAME))
    shutil.move("checkpoints", "others")
    assert found(NAME, "--checkpoints-dir", "others").checkpoint == there / "others" / NAME / "step_000003"
    shutil.rmtree("runs")
    assert resolve_model(f"others/{NAME}") == f"others/{NAME}/step_000003"  # weights are taken without their run
    write_json(RUN / "config.json", {})
    for name, message in (("rum", "no run rum: .*; did you mean run"), (NAME, "config.json is damaged or not a run's")):
        with pytest.raises(UserError, match=message):
            RunFolder.open(name)


def test_the_reference_is_the_model_that_the_run_began_with(place, finished, make_policy, monkeypatch):
    assert start("--steps", "1", "--kl-coef", "0.01") == 0
    save_policy(make_policy(1), place / "model")
    with pytest.raises(UserError, match=r"the start model of run .* in .*model has other weights"):
        resume("latest", "--steps", "2")
    shutil.rmtree("model")
    with pytest.raises(UserError, match=rf"the start model of run .*, {place}/model, is not there: put it back"):
        resume("latest", "--steps", "2")
    shutil.copytree(finished / "model", place / "moved/model")
    for name in ("runs", "checkpoints"):  # the whole project
        shutil.move(name, place / "moved")
    monkeypatch.chdir(place / "moved")
    assert resume("latest", "--steps", "2") == 0
