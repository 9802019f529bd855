"""What a summary says where some of its completions, or some of its verdicts, are not there."""

import numpy as np
import pytest

from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.figures import results
from minrl.evaluate.models import NamedModel
from minrl.evaluate.pictures import _over_steps
from minrl.evaluate.plan import GREEDY, SAMPLED, EvaluationPlan, Mode, PlannedTask
from minrl.evaluate.report import report
from minrl.evaluate.rows import Key
from minrl.evaluate.settings import _references_digest
from minrl.tasks import Dataset, Task
from minrl.types import Example, Reward

SAMPLES = 4
TASK = Task(Dataset([], [Example("e", "p", {})]), lambda said, example: Reward(0.0))


@pytest.fixture
def plan():
    """Two models, four samples of each of four examples, and a greedy completion beside them."""
    examples = [Example(f"e{index}", "p", {}) for index in range(4)]
    modes = [Mode(SAMPLED, SAMPLES, 1.0), Mode(GREEDY, 1, 0.0)]
    task = PlannedTask("t", Task(Dataset([], examples), lambda said, example: Reward(0.0)), examples, modes, SAMPLES)
    config = EvaluateConfig(models=("A", "B"), tasks=("t",), charts=False)
    return EvaluationPlan(config, [NamedModel(name, name) for name in ("A", "B")], [task])


def scored(model, index, sample, solved, mode=SAMPLED, unscorable=None):
    """A line of the table of scores."""
    reward = None if unscorable else float(solved)
    return {
        **{"model": model, "task": "t", "mode": mode, "index": index, "example": f"e{index}", "sample": sample},
        **{"role": "policy", "reward": reward, "maximum": 1.0, "solved": bool(solved), "unscorable": unscorable},
        **{"tokens": 5, "finish_reason": "stop", "refused": None, "of": "x", "parts": {}, "category": {}},
    }


def of_all(model, **changes):
    """Every line of a model, the examples solved by turns."""
    sampled = [scored(model, i, s, i % 2, **changes) for i in range(4) for s in range(SAMPLES)]
    return [*sampled, *(scored(model, i, 0, i % 2, mode=GREEDY, **changes) for i in range(4))]


def rows_of(lines):
    return {Key(*(line[name] for name in ("model", "task", "mode", "index", "sample"))): {} for line in lines}


def reported(plan, folder, lines):
    return report(plan, folder, {}, lines, rows_of(lines))


def test_a_model_that_lacks_samples_keeps_no_summary_from_the_others(plan, tmp_path):
    # B has three samples of one example: enough for pass@2, too few for pass@4.
    lines = [*of_all("A"), *(scored("B", 0, sample, 1) for sample in range(3))]
    summary = reported(plan, tmp_path, lines)
    assert [list(result["pass@k"]) for result in summary["results"]] == [["1", "2", "4"], ["1", "2"]]
    of_a, of_b = (tmp_path / "summary.md").read_text().splitlines()[6:8]
    cells = [cell.strip() for cell in of_b.split("|")]
    assert cells[1] == "B" and cells[2].startswith("100.0%") and cells[4] == "-"
    assert of_a.split("|")[4].strip().startswith("50.0%")


def test_greedy_completions_are_not_the_sampled_ones(plan, tmp_path):
    lines = [line for line in of_all("A") if line["mode"] == GREEDY]
    (found, _) = results(plan, lines, rows_of(lines))
    assert "pass@1" not in found and (found["n"], found["missing"]) == (0, 4 * SAMPLES)
    reported(plan, tmp_path, lines)
    assert "| A | - | " in (tmp_path / "summary.md").read_text()
    # At temperature 0 they are what is asked for.
    alone = EvaluationPlan(
        plan.config, plan.models, [PlannedTask(**{**vars(plan.tasks[0]), "modes": [Mode(GREEDY, 1, 0.0)]})]
    )
    (found, _) = results(alone, lines, rows_of(lines))
    assert (found["pass@1"], found["pass@1_greedy"], found["missing"]) == (0.5, 0.5, 0)


@pytest.mark.parametrize(
    ("reason", "complete"),
    [("minrl.rewards.chat_client.ChatError: down", False), ("ValueError: no answer", True)],
)
def test_an_evaluation_whose_judge_did_not_answer_is_not_complete(plan, tmp_path, reason, complete):
    lines = [*of_all("A"), *of_all("B")]
    assert reported(plan, tmp_path, lines)["complete"]
    lines[0] = scored("A", 0, 0, 0, unscorable=reason)
    assert reported(plan, tmp_path, lines)["complete"] == complete
    assert ("Not complete" in (tmp_path / "summary.md").read_text()) == (not complete)


def test_references_that_differ_have_digests_that_differ():
    class Board:
        def __init__(self, size):
            self.size = size

    def digest(**fields):
        return _references_digest(PlannedTask("t", TASK, [Example("e", "p", fields)], []))

    grid, other = np.zeros((40, 40)), np.zeros((40, 40))
    other[20, 20] = 9
    assert digest(grid=grid) == digest(grid=grid.copy()) != digest(grid=other)
    assert digest(grid=grid) != digest(grid=grid.reshape(20, 80))
    assert digest(board=Board(1)) == digest(board=Board(1)) != digest(board=Board(2))
    assert digest(board={(0, 0): "x"}) != digest(board={(0, 1): "x"})


def test_a_run_that_has_no_score_on_one_task_has_no_curve_there(tmp_path):
    of_all = {"ci95": [0.1, 0.3], "pass@1": 0.2}
    found = [{**of_all, "task": "a", "label": f"r/{step}", "run": "r", "step": step} for step in (1, 2)]
    found.append({**of_all, "task": "b", "label": "other"})
    _over_steps(tmp_path / "steps.png", {"runs": ["r"], "measured": found})
    assert (tmp_path / "steps.png").stat().st_size
