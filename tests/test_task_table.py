"""TASK_DEFINITIONS as a dict: every kind of row is trained and evaluated by its name."""

import subprocess
import sys
from dataclasses import dataclass

import pytest

from minrl.__main__ import main
from minrl.dataflow import Example, UserError
from minrl.run.folder import RunFolder
from minrl.tasks import (
    BUILT_IN,
    TASK_DEFINITIONS,
    Task,
    TaskDefinition,
    TaskOptions,
    base_vocabulary,
    load_task,
    option_classes,
)
from minrl.tasks.task import split
from tests.conftest import SMALL_RUN
from tests.parsed import parsed
from tests.runs import Run, write_rows
from tests.say_sevens import count_sevens

ROWS = [{"prompt": f"numbers {n}", "answer": str(n)} for n in range(20)]
EXAMPLES = [Example(row["prompt"], row["prompt"], {"answer": row["answer"]}) for row in ROWS]


def is_answer(completion, example):
    return completion == example["answer"]


@dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    most: int = 20
    pays: float = 1.0


@dataclass(frozen=True)
class Paying:
    options: Options

    def __call__(self, completion, example):
        return self.options.pays * is_answer(completion, example)


def first_rows(options):
    return ROWS[: options.most]


KINDS = {
    "one line": TaskDefinition(dataset=ROWS, reward=is_answer),
    "a lambda": TaskDefinition(dataset=EXAMPLES, reward=lambda completion, example: completion == example["answer"]),
    "by name": TaskDefinition(dataset="tests.test_task_table:first_rows", reward=":Paying", options=":Options"),
    "of options": TaskDefinition(first_rows, lambda said, row, options: options.pays * is_answer(said, row), Options),
    "a task": Task(split(EXAMPLES, 0.3), is_answer, stop_strings=(";",)),
    "a dict": {"dataset": lambda: split(EXAMPLES, 0.3), "reward_function": is_answer},
    "a dict with more": {"dataset": ROWS, "reward": is_answer, "more": lambda options: {"stop_strings": (";",)}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_ones_own_is_a_task(kind):
    TASK_DEFINITIONS["mine"] = KINDS[kind]
    task = load_task("mine")
    assert task.name == "mine" and sum(task.dataset.sizes()) == 20 and task.dataset.held_out
    example = next(one for one in task.dataset.train if one["answer"] != "7")
    assert [task.reward(said, example) for said in (example["answer"], "7")] == [1.0, 0.0]
    assert task.cheap == (kind in ("a lambda", "of options"))  # no worker process can import these
    assert task.stop_strings == ((";",) if kind in ("a task", "a dict with more") else ())


def test_the_options_of_a_row_are_flags_and_reach_its_dataset_and_reward(tmp_path):
    TASK_DEFINITIONS["mine"] = KINDS["by name"]
    config, options = parsed(["--task", "mine", "--mine.most", "9", "--mine.pays", "0.5", "--mine.max-tokens", "3"])
    task = load_task(config.task, options)
    assert (sum(task.dataset.sizes()), task.max_tokens) == (9, 3)
    assert task.reward("4", EXAMPLES[4]) == 0.5
    options = {"mine": Options(data_path=str(write_rows(tmp_path / "rows.jsonl", *ROWS[:5])))}
    assert sum(load_task("mine", options, "of the run.jsonl").dataset.sizes()) == 5  # the task's own comes first
    TASK_DEFINITIONS["mine"] = KINDS["a task"]
    with pytest.raises(UserError, match="a task with a Dataset has its own examples and takes no data_path"):
        load_task("mine", data_path="rows.jsonl")


def test_a_built_in_row_is_replaced_and_removed_as_in_any_dict():
    words = base_vocabulary({})
    TASK_DEFINITIONS["math"] = KINDS["one line"]
    del TASK_DEFINITIONS["countdown"]
    assert sum(load_task("math").dataset.sizes()) == 20
    with pytest.raises(UserError, match="no task 'countdown': "):
        load_task("countdown")
    assert (
        list(option_classes(TASK_DEFINITIONS))
        == list(TASK_DEFINITIONS)
        == [one for one in BUILT_IN if one != "countdown"]
    )
    assert base_vocabulary({}) == words  # of which the base models of all tasks are made


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (7, r"TASK_DEFINITIONS\['mine'\] must be a TaskDefinition.*, a Task, or a dict .*, got int"),
        ({"dataset": ROWS, "rewards": is_answer}, "has no 'rewards': did you mean reward"),
        ({"reward": is_answer}, "needs a `dataset`, got reward"),
        ({"dataset": ROWS}, "a task needs a reward or an episode"),
    ],
)
def test_a_row_that_is_no_task_is_one_line(row, message):
    TASK_DEFINITIONS["mine"] = row
    with pytest.raises(UserError, match=message):
        load_task("mine")


def test_the_table_imports_no_task_and_nothing_heavy():
    code = "import sys, minrl.tasks; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {*loaded} & {"torch", "datasets", "transformers", "numpy", "pyarrow", "loguru", "asyncio"} == set()
    ours = [name.removeprefix("minrl.tasks.") for name in loaded if name.startswith("minrl.tasks.")]
    assert sorted(ours) == ["checked", "conventions", "custom", "data", "definition", "grader", "task", "thoughts"]


def test_one_prompt_is_trained_on_where_another_task_is_evaluated(place, monkeypatch):
    alike = TaskDefinition(dataset=[{"prompt": "numbers 1", "number": 1}] * 9, reward=count_sevens)
    monkeypatch.setitem(TASK_DEFINITIONS, "alike", alike)
    assert load_task("alike").dataset.sizes() == (1, 0)
    assert main(["train", *SMALL_RUN, "--task", "alike", "--eval-tasks", "sevens"]) == 0
    lines = Run(place).metrics
    assert [line["step"] for line in lines if "reward/mean" in line] == [1, 2, 3]
    scores = {tag for line in lines for tag in line if tag.startswith("eval/") and tag.endswith("pass@1")}
    assert scores == {"eval/sevens/pass@1"}
    flags = [*SMALL_RUN, "--run-name", "other", "--task", "alike"]
    with pytest.raises(UserError, match="no example of alike is held out"):
        main(["train", *flags])
    with pytest.raises(UserError, match="patience looks at the held-out score of alike"):
        main(["train", *flags, "--eval-tasks", "sevens", "--eval-every", "1", "--patience", "2"])


def test_a_run_of_a_replaced_task_goes_on_in_its_program_alone(tmp_path, monkeypatch):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    (run.path / "config.json").write_text('{"minrl_run": "run", "in_program": ["hanoi"], "config": {}}')
    with pytest.raises(UserError, match="was made by a program with a task 'hanoi' of its own: resume"):
        run.require_own_tasks(["hanoi", "math"])
    run.require_own_tasks(["math"])
    monkeypatch.setitem(TASK_DEFINITIONS, "hanoi", TASK_DEFINITIONS["math"])
    run.require_own_tasks(["hanoi"])


def test_rows_of_a_generator_are_there_for_a_second_run_and_a_name_with_spaces_is_that_of_a_folder(monkeypatch):
    rows = ({"prompt": str(number)} for number in range(10))
    monkeypatch.setitem(TASK_DEFINITIONS, "my sums", TaskDefinition(dataset=rows, reward=lambda text, example: 1.0))
    assert [sum(load_task("my sums").dataset.sizes()) for _ in range(2)] == [10, 10]
    assert parsed(["--task", "my sums"])[0].what == "my-sums-grpo"
