"""The results of the evaluations during a run are kept problem by problem, also where the run was killed."""

from pathlib import Path

import pandas
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


@pytest.mark.usefixtures("place")
def test_the_results_of_each_problem_are_what_the_curves_say_also_of_a_run_that_was_killed_beside_an_evaluation():
    assert trained("whole") == 0
    whole, run = written("runs/whole"), RunFolder(Path("runs/whole"))
    assert list(whole[0]) == whole[1] == [0, 1, 2, 3]
    with killed_at(session, "note_score", 3):  # after the evaluation of step 2 was written
        trained("killed")
    assert list(written("runs/killed")[0]) == [0, 1, 2]
    assert main(["train", "--resume", "killed"]) == 0
    assert written("runs/killed") == whole
    frame = pandas.read_json(run.evaluations[3], lines=True, dtype=False)
    for mode, tag in (("sampled", "pass@1"), ("greedy", "pass@1_greedy")):
        assert frame[frame["mode"] == mode].solved.mean() == run.metrics[-1][f"eval/sevens/{tag}"]
    assert frame.groupby("mode").example_id.nunique().to_dict() == {"greedy": 2, "sampled": 2}
