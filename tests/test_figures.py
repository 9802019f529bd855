"""pass@k over examples and differences by hand; what a report says where scores are missing."""

import pytest

from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.generate import GREEDY, SAMPLED, EvaluatedTask, EvaluationPlan, key_of
from minrl.evaluate.models import NamedModel
from minrl.evaluate.report import Score, draw, frame_of, in_roles, paired_difference, pass_figure, report
from minrl.tasks import Dataset, Task
from minrl.types import Example, Reward
from minrl.utils.statistics import wilson


def score(index, solved, role="policy"):
    reward = None if solved is None else Reward(float(solved))
    return Score(index, f"e{index}", role, reward, 3.0, False)


def test_a_value_for_each_example_is_the_mean_of_its_roles():
    scores = [score(0, 1, "x"), score(0, 0, "x"), score(0, 0, "o"), score(0, 0, "o"), score(1, 1, "x")]
    value, _, examples = pass_figure(scores, 2)
    assert (value, examples) == (0.5, 1)  # x solves and o does not; only the first has two samples


def test_a_lost_episode_is_a_sample_of_each_role_of_its_example():
    # Example 0 lost one of two episodes of x and o, example 1 all of its two.
    scores = in_roles([score(0, 1, "x"), score(0, 1, "o"), score(0, None, ""), score(1, None, ""), score(1, None, "")])
    assert pass_figure(scores, 2)[0] == (1 + 0) / 2
    assert pass_figure(scores, 1)[0] == 2 / 8  # two roles of four episodes
    # Where each example has a role of its own, a lost one is of nobody in particular.
    assert pass_figure(in_roles([score(0, 1, "x"), score(1, 1, "o"), score(2, None, "")]), 1)[0] == 2 / 3


def test_the_paired_interval_is_narrower_than_the_two_apart():
    # 100 examples of very different difficulty; the second model solves 10 more of them and loses none.
    before = [[True]] * 45 + [[False]] * 55
    after = [[True]] * 55 + [[False]] * 45
    found = paired_difference(before, after)
    assert found["difference"] == pytest.approx(0.1)
    assert (found["better"], found["worse"], found["same"]) == (10, 0, 90)
    # The standard error is sqrt(0.1 * 0.9 / 100) = 0.03; apart it would be sqrt(2 * 0.25 / 100) = 0.07.
    low, high = found["ci95"]
    assert low == pytest.approx(0.1 - 1.96 * 0.03, abs=0.012) and high == pytest.approx(0.1 + 1.96 * 0.03, abs=0.012)


def test_models_that_agree_on_every_example_are_no_certainty():
    zeros = [[False]] * 40
    found = paired_difference(zeros, zeros)
    # Both are 0 of 40, whose Wilson interval ends at 0.0876: so far may each be above the other.
    assert found["difference"] == 0.0
    assert found["ci95"] == pytest.approx([-wilson(0.0, 40)[1], wilson(0.0, 40)[1]])


UNEQUAL = [score(i, i >= 50) for i in range(100) for _ in range(4 if i < 50 else 8)]
"""50 examples with four samples that fail, and 50 with eight that solve."""


def test_pass_at_1_and_its_interval_are_of_the_same_share_where_examples_have_unequal_samples():
    value, (low, high), examples = pass_figure(UNEQUAL, 1)
    assert (value, examples) == (8 / 12, 100)
    # With s of 100 resampled examples solved, the share is 8 s / (4 (100 - s) + 8 s) = 2 s / (100 + s), and s has a
    # standard deviation of 5: its middle 95 % are about 40 and 60.
    assert low == pytest.approx(2 * 40 / 140, abs=0.012) and high == pytest.approx(2 * 60 / 160, abs=0.012)


def test_the_difference_is_that_of_the_two_figures_where_examples_have_unequal_samples():
    # One model solves the examples that have more samples; the other has as many of each, and solves every half.
    before = [[True] * 8 if index >= 50 else [False] * 4 for index in range(100)]
    after = [[True, False]] * 100
    found = paired_difference(before, after)
    assert found["difference"] == pytest.approx(0.5 - pass_figure(UNEQUAL, 1)[0])
    # The second share is 0.5 in each resample, the first as above.
    low, high = pass_figure(UNEQUAL, 1)[1]
    assert found["ci95"] == pytest.approx([0.5 - high, 0.5 - low])
    # Against itself every resample differs by nothing, which is no certainty.
    low, high = paired_difference(before, before)["ci95"]
    assert low < -0.05 and high > 0.05


def row(model, index, sample, solved, mode=SAMPLED, unscorable=None):
    """A scored row of completions.jsonl."""
    key = {"model": model, "task": "t", "mode": mode, "index": index, "sample": sample}
    verdict = {"role": "policy", "reward": None if unscorable else float(solved), "maximum": 1.0, "parts": {"p": 0.5}}
    verdict |= {"solved": bool(solved), "unscorable": unscorable}
    about = {"example": f"e{index}", "category": {"c": "d"}, "tokens": 5, "finish_reason": "stop"}
    return {**key, **about, "scores": [verdict]}


def rows_of(model):
    """Every row of a model that solves the second and the fourth example."""
    sampled = [row(model, i, s, i % 2) for i in range(4) for s in range(4)]
    return [*sampled, *(row(model, i, 0, i % 2, mode=GREEDY) for i in range(4))]


def reported(folder, rows, modes=None):
    """The report on two models, and what summary.md shows of each."""
    examples = [Example(f"e{index}", "p", {}, {"c": "d"}) for index in range(4)]
    task = Task(Dataset([], examples), lambda said, example: Reward(0.0))
    planned = EvaluatedTask("t", task, examples, modes or {SAMPLED: 4, GREEDY: 1})
    config = EvaluateConfig(models=("A", "B"), tasks=("t",), charts=False)
    plan = EvaluationPlan(config, [NamedModel(name, name) for name in ("A", "B")], [planned])
    summary = report(plan, folder, {}, {key_of(one): one for one in rows})
    shown = [line.split(" | ") for line in (folder / "summary.md").read_text().splitlines()]
    return summary, {name: next(line for line in shown if line[0] == f"| {name}") for name in ("A", "B")}


def test_a_model_that_lacks_samples_is_reported_beside_the_others(tmp_path):
    # B has three samples of one example: enough for pass@2, too few for pass@4.
    summary, shown = reported(tmp_path, [*rows_of("A"), *(row("B", 0, sample, 1) for sample in range(3))])
    assert [list(result["pass@k"]) for result in summary["results"]] == [["1", "2", "4"], ["1", "2"]]
    assert shown["B"][1].startswith("100.0%") and shown["B"][3] == "-" and shown["A"][3].startswith("50.0%")
    assert not summary["complete"] and summary["results"][1]["missing"] == 17


def test_greedy_completions_are_not_the_sampled_ones(tmp_path):
    rows = [one for one in rows_of("A") if one["mode"] == GREEDY]
    summary, shown = reported(tmp_path, rows)
    found = summary["results"][0]
    assert "pass@1" not in found and (found["n"], found["missing"]) == (0, 16) and shown["A"][1] == "-"
    found = reported(tmp_path, rows, {GREEDY: 1})[0]["results"][0]  # at temperature 0 they are what is asked
    assert (found["pass@1"], found["pass@1_greedy"], found["missing"]) == (0.5, 0.5, 0)


@pytest.mark.parametrize(
    ("reason", "complete"),
    [("minrl.rewards.chat_client.ChatError: down", False), ("ValueError: no answer", True)],
)
def test_an_evaluation_whose_judge_did_not_answer_is_not_complete(tmp_path, reason, complete):
    rows = [*rows_of("A"), *rows_of("B")]
    assert reported(tmp_path, rows)[0]["complete"]
    assert "Not complete" not in (tmp_path / "summary.md").read_text()
    rows[0] = row("A", 0, 0, 0, unscorable=reason)
    assert reported(tmp_path, rows)[0]["complete"] == complete
    assert ("Not complete" in (tmp_path / "summary.md").read_text()) == (not complete)


def test_charts_of_runs_over_their_steps(tmp_path):
    # On task b the run has no score.
    value = {"value": 0.2, "ci95": [0.1, 0.3], "examples": 4}
    about = {"ci95": [0.1, 0.3], "pass@1": 0.2, "pass@k": {"1": value, "16": value, "18": value}}
    about |= {"parts": {}, "by_category": {}, "pass@1_greedy_ci95": None, "reward": 0.2, "truncated_frac": 0.0, "n": 4}
    about |= {"completion_tokens_mean": None, "examples": 4, "missing": 0}
    results = [{**about, "task": "a", "model": f"r{n}", "label": f"r{n}", "run": "r", "step": n} for n in (1, 2)]
    results.append({**about, "task": "b", "model": "other", "label": "other"})
    change = {"task": "a", "model": "r2", "label": "r2", "baseline": "r1", "baseline_label": "r1", "difference": 0.1}
    frame = frame_of({"results": results, "differences": [{**change, "ci95": [0.0, 0.2], "examples": 4}]})
    names = ["pass_at_1.png", "pass_at_k.png", "steps.png", "differences.png"]
    assert [path.name for path in draw(frame, tmp_path)] == names
    frame = frame_of({"results": results[-1:], "differences": []})
    frame = frame[~frame.figure.isin(["pass@16", "pass@18"])]
    assert [path.name for path in draw(frame, tmp_path)] == names[:1]  # of one k, no steps and no second model
    assert all(path.stat().st_size for path in tmp_path.iterdir())
