"""The results of the evaluations during a run are kept problem by problem, also where the run was killed."""

from pathlib import Path

import pytest

from minrl.__main__ import main
from minrl.run.folder import RunFolder
from minrl.tracking import session
from tests.conftest import SMALL_RUN
from tests.killing import killed_at


def trained(name):
    return main(["train", *SMALL_RUN[:-1], name, "--eval-every", "1"])


def written(name):
    """The content of each file of evaluations, and the steps that have a line."""
    run = RunFolder(Path(name))
    return {step: path.read_bytes() for step, path in run.evaluations.items()}, [line["step"] for line in run.metrics]


@pytest.fixture
def whole(place):
    assert trained("whole") == 0
    return written("runs/whole")


def test_a_run_that_was_killed_between_an_evaluation_and_its_line_has_the_same_files(whole):
    assert list(whole[0]) == whole[1] == [0, 1, 2, 3]
    with killed_at(session, "note_score", 3):  # after the evaluation of step 2 was written
        trained("killed")
    assert list(written("runs/killed")[0]) == [0, 1, 2]
    with killed_at(session, "save_checkpoint", 1):  # of step 2, which is written and cut away again
        main(["train", "--resume", "killed"])
    assert main(["train", "--resume", "killed"]) == 0
    assert written("runs/killed") == whole


def test_pandas_reads_what_the_curves_say(whole):
    import pandas

    frame = pandas.read_json(RunFolder(Path("runs/whole")).evaluations[3], lines=True, dtype=False)
    line = RunFolder(Path("runs/whole")).metrics[-1]
    for mode, tag in (("sampled", "pass@1"), ("greedy", "pass@1_greedy")):
        assert frame[frame["mode"] == mode].solved.mean() == line[f"eval/sevens/{tag}"]
    assert frame.reward.mean() >= frame.solved.mean() and set(frame.task) == {"sevens"} and set(frame.step) == {3}
    assert frame.groupby("mode").example_id.nunique().to_dict() == {"greedy": 2, "sampled": 2}
