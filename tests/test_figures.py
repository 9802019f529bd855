"""pass@k over examples and differences by hand; what a report says where scores are missing."""

import pytest

from minrl.dataflow import Example, Reward
from minrl.evaluate.config import EvaluateConfig
from minrl.evaluate.generate import GREEDY, SAMPLED, EvaluatedTask, EvaluationPlan, key_of
from minrl.evaluate.models import NamedModel
from minrl.evaluate.report import Score, in_roles, paired_difference, pass_figure, report
from minrl.tasks import Dataset, Task


def score(index, solved, role="policy"):
    reward = None if solved is None else Reward(float(solved))
    return Score(index, f"e{index}", role, reward, 3.0, False)


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


UNEQUAL = [score(i, i >= 50) for i in range(100) for _ in range(4 if i < 50 else 8)]
"""50 examples with four samples that fail, and 50 with eight that solve."""


def test_pass_at_1_and_its_interval_are_of_the_same_share_where_examples_have_unequal_samples():
    value, (low, high), examples = pass_figure(UNEQUAL, 1)
    assert (value, examples) == (8 / 12, 100)
    # With s of 100 resampled examples solved, the share is 8 s / (4 (100 - s) + 8 s) = 2 s / (100 + s), and s has a
    # standard deviation of 5: its middle 95 % are about 40 and 60.
    assert low == pytest.approx(2 * 40 / 140, abs=0.012) and high == pytest.approx(2 * 60 / 160, abs=0.012)


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


def reported(folder, rows):
    """The report on two models, and what summary.md shows of each."""
    examples = [Example(f"e{index}", "p", {}, {"c": "d"}) for index in range(4)]
    task = Task(Dataset([], examples), lambda said, example: Reward(0.0))
    planned = EvaluatedTask("t", task, examples, {SAMPLED: 4, GREEDY: 1})
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


def test_an_evaluation_whose_judge_did_not_answer_is_not_complete(tmp_path):
    rows = [*rows_of("A"), *rows_of("B")]
    assert reported(tmp_path, rows)[0]["complete"]
    rows[0] = row("A", 0, 0, 0, unscorable="minrl.rewards.chat_client.ChatError: down")
    assert not reported(tmp_path, rows)[0]["complete"]
