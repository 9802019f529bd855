"""pass@k over examples and differences by hand; what the tables say where scores are missing."""

import pytest

from minrl.dataflow import Example, Reward
from minrl.evaluate.figures import Scored, paired_difference, pass_figure, write_summary
from minrl.evaluate.models import NamedModel
from minrl.evaluate.play import GREEDY, SAMPLED, Cell, row_of
from minrl.tasks import Dataset, Task


def test_the_paired_interval_is_narrower_than_the_two_apart():
    # 100 examples of very different difficulty; the second model solves 10 more of them and loses none.
    found = paired_difference([[True]] * 45 + [[False]] * 55, [[True]] * 55 + [[False]] * 45)
    assert found["difference"] == pytest.approx(0.1)
    assert (found["better"], found["worse"], found["same"]) == (10, 0, 90)
    # The standard error is sqrt(0.1 * 0.9 / 100) = 0.03; apart it would be sqrt(2 * 0.25 / 100) = 0.07.
    low, high = found["ci95"]
    assert low == pytest.approx(0.1 - 1.96 * 0.03, abs=0.012) and high == pytest.approx(0.1 + 1.96 * 0.03, abs=0.012)


def test_pass_at_1_and_its_interval_are_of_the_same_share_where_examples_have_unequal_samples():
    # 50 examples with four samples that fail, and 50 with eight that solve.
    samples = [(n, 0.0) for n in range(50)] * 4 + [(n, 1.0) for n in range(50, 100)] * 8
    found = pass_figure([Scored(str(n), "policy", Reward(solved), 3.0, False) for n, solved in samples], 1)
    low, high = found["ci95"]
    assert (found["value"], found["examples"]) == (8 / 12, 100)
    # With s of 100 resampled examples solved, the share is 8 s / (4 (100 - s) + 8 s) = 2 s / (100 + s), and s has a
    # standard deviation of 5: its middle 95 % are about 40 and 60.
    assert low == pytest.approx(2 * 40 / 140, abs=0.012) and high == pytest.approx(2 * 60 / 160, abs=0.012)


def test_a_model_that_lacks_samples_is_reported_beside_the_others(tmp_path):
    # A solves the second and the fourth of four examples. B has three samples of one example, which it solves: enough
    # for pass@2, too few for pass@4.
    examples = [Example(f"e{number}", "p", {}, {"c": str(number // 2)}) for number in range(4)]
    task = Task(Dataset([], examples), lambda said, example: Reward(0.0))
    a, b = (Cell(NamedModel(name, name), "t", task, examples, {SAMPLED: 4, GREEDY: 1}, {}, {}) for name in ("A", "B"))

    def row(cell, key, solved):
        said = {"policy": {"prompt": "p", "completion": "c", "tokens": 5, "finish_reason": "stop"}}
        return {key: row_of(cell, key, said, {"policy": Reward(float(solved), {"p": 0.5})}, None)}

    rows = {key: one for own in a.keys for key, one in row(a, own, own.number % 2).items()}
    rows |= {key: one for sample in range(3) for key, one in row(b, b.key(SAMPLED, 0, sample), True).items()}
    summary = write_summary([a, b], rows, tmp_path, {}, charts=False)
    lines = [line.split(" | ") for line in (tmp_path / "summary.md").read_text().splitlines()]
    assert [list(result["pass@k"]) for result in summary["results"]] == [["1", "2", "4"], ["1", "2"]]
    # By category: of A's examples 0 and 1, one is solved by all of its samples.
    first, _ = summary["results"][0]["by_category"].values()
    assert (first["pass@1"], first["pass@k"]["4"]["value"], first["examples"]) == (0.5, 0.5, 2)
    assert ["| c=0", "2", "50.0% (0.0% to 100.0%)", "- |"] in lines  # pass@4, which B has too few samples for
    of_a, of_b = (next(line for line in lines if line[0] == f"| {name}") for name in ("A", "B"))
    assert of_b[1].startswith("100.0%") and of_b[2] == "-" and of_a[2].startswith("50.0%")
    assert not summary["complete"] and summary["results"][1]["missing"] == 17
