"""Tasks that the package does not hold: a decorated function, rewards of TRL and verl, installed packages, and rows of
TASK_DEFINITIONS.
"""

import json
import sys
from dataclasses import dataclass

import pytest

from minrl.__main__ import main
from minrl.config import TrainerConfig
from minrl.dataflow import Example, Reward, UserError
from minrl.rewards.groups import run_grouped
from minrl.rewards.worker import Failure, call
from minrl.rewards.workers import Workers
from minrl.tasks import TASK_DEFINITIONS, TaskDefinition, TaskOptions, find_definition, load_task
from minrl.tasks.programs import files_outside, programs
from minrl.tasks.task import Sampled, Task, split
from minrl.utils.cli import from_dict, to_dict
from minrl.utils.task_names import task_key
from tests.conftest import SMALL_RUN
from tests.jobs import Here
from tests.parsed import parsed
from tests.runs import Run, write_rows
from tests.say_sevens import count_sevens

pytestmark = pytest.mark.usefixtures("own_imports")

SOURCE = """
from dataclasses import dataclass, field
from typing import Literal
from minrl import task

@dataclass(frozen=True, kw_only=True)
class Options:
    most: int = 50
    words: list[str] = field(default_factory=list)
    levels: tuple[Literal["easy", "hard"], ...] = ()

def sevens(options):
    return [{"count": n} for n in range(1, options.most + 1)]

@task(data=sevens, prompt="sevens {count} :".format_map, options=Options)
def elevens(completion, row):
    return completion.split() == ["7"] * row["count"]

TASK = other = elevens
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine" / "elevens_task.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


@pytest.fixture
def make(tmp_path):
    """The task of a file with this text behind the imports, and of rows beside it."""

    def made(text, rows=(), name="mine_task", data_path=""):
        (tmp_path / f"{name}.py").write_text(f"from minrl import task\nfrom minrl.dataflow import SOLO, Turn\n{text}")
        write_rows(tmp_path / "rows.jsonl", *rows)
        sys.modules.pop(name, None)
        return load_task(f"{tmp_path / name}.py:it", None, data_path)

    return made


def examples(task):
    return [*task.dataset.train, *task.dataset.held_out]


SUMS = [{"question": f"{n} + 1 =", "answer": str(n + 1)} for n in range(40)]
QUIZ = """
@task(data="rows.jsonl", prompt="question")
def it(completion, row):
    return completion.split()[-1:] == [row["answer"]]
"""


def test_a_row_is_an_example_and_the_function_its_reward(make):
    task = make(QUIZ, SUMS)
    assert sorted(one.prompt for one in examples(task)) == sorted(row["question"] for row in SUMS)
    example = next(one for one in examples(task) if one.prompt == "6 + 1 =")
    assert [call(task.reward_job(text, example)) for text in ("it is 7", "8")] == [Reward(1.0), Reward(0.0)]
    name = f"{sys.modules['mine_task'].__file__}:it"
    assert find_definition(name)("it is 7", {"answer": "7"}) is True
    assert [path.name for path in files_outside(name)] == ["mine_task.py", "rows.jsonl"]


def as_turns(content):
    return [{"role": "user", "content": content}]


OTHERWISE = [
    lambda text: as_turns(text.replace(" ", "\n") + " "),
    lambda text: as_turns([{"type": "text", "text": text}]),
    lambda text: [{"role": "system", "content": "Be brief."}, *as_turns(text)],
]


@pytest.mark.parametrize("other", OTHERWISE)
def test_a_problem_that_is_written_otherwise_is_held_out_with_it_and_equal_rows_count_once(make, other):
    rows = [row | {"prompt": write(row["question"])} for row in SUMS for write in (as_turns, other)]
    found = make(QUIZ.replace('"question"', '"prompt"'), [*rows, *rows[:3]]).dataset
    assert len(found.train) + len(found.held_out) == 80
    assert not {one["question"] for one in found.train} & {one["question"] for one in found.held_out}


def test_nan_in_a_row_is_a_missing_value(make, said):
    rows = [*SUMS, {"question": "?", "answer": float("nan")}, {"question": float("nan"), "answer": "7"}]
    assert [one["answer"] for one in examples(make(QUIZ, rows)) if one.prompt == "?"] == [None]
    assert "1 of 42 rows left out: row 42: lacks question" in said[0]


TRL_ROWS = [{"prompt": f"{n}?", "answer": str(n)} for n in range(40)]
VERL_ROWS = [{"prompt": f"{n}?", "data_source": "a", "reward_model": {"ground_truth": str(n)}} for n in range(40)]
SCORE = "def it(data_source, solution_str, ground_truth, extra_info):\n    return "


PAID_THERE = [
    ("def it(completions, answer, **columns): return [2.0 * (a == c) for a, c in zip(answer, completions)]",
     TRL_ROWS, Reward(2.0, maximum=2.0)),
    ("async def it(completions, **columns): return [0.5]", TRL_ROWS, Reward(0.5)),
    ("def a(completions, **c): return [1.0]\ndef b(completions, **c): return [-1.0]\n"
     "def none(completions, **c): return [None]\nit = [(a, 0.5), b, none]",
     TRL_ROWS, Reward(-0.5, {"a": 1.0, "b": -1.0}, maximum=1.5)),
    ("from functools import partial\ndef f(w, completions, **c): return [w]\nit = [partial(f, 0.25), partial(f, 0.5)]",
     TRL_ROWS, Reward(0.75, {"f_1": 0.25, "f_2": 0.5}, maximum=2.0)),
    ("import math\ndef it(completion_ids, **columns): return [len(completion_ids[0]) / 4]\n"
     "it = [it, lambda completions, **c: [math.nan]]", TRL_ROWS, Reward(0.5, {"it": 0.5})),
    ("def it(completions, completion_ids, trainer_state, log_metric, **columns):\n"
     "    log_metric('tokens', len(completion_ids[0]))\n    return [trainer_state.global_step / 10]",
     TRL_ROWS, Reward(0.3, {"tokens": 2.0})),
    (SCORE + "float(solution_str == ground_truth)", VERL_ROWS, Reward(1.0)),
    ("import numpy as np\n" + SCORE + "{'score': 0.5, 'length': np.float32(len(solution_str)), 'said': 'x'}",
     VERL_ROWS, Reward(0.5, {"length": 1.0})),
]  # fmt: skip


def test_a_reward_of_trl_or_verl_is_paid_as_there(make, tmp_path, monkeypatch):
    decoy, jobs = tmp_path / "elsewhere", []
    decoy.mkdir()
    monkeypatch.chdir(decoy)  # where a worker starts must not decide which file it imports
    for number, (text, rows, _) in enumerate(PAID_THERE):
        data = write_rows(tmp_path / f"rows{number}.jsonl", *rows)
        (decoy / f"mine{number}.py").write_text("raise RuntimeError('the wrong file')")
        task = make(text, name=f"mine{number}", data_path=str(data))
        seven = next(one for one in examples(task) if one.prompt == "7?")
        jobs.append((number, task.reward_job(Sampled.of("7", [5, 2], 3), seven)))
    workers = Workers(1, 120.0)
    try:
        assert run_grouped(jobs, workers) == [paid for *_, paid in PAID_THERE]
    finally:
        workers.close()


def test_none_of_all_rewards_makes_a_completion_unscorable_and_no_mistake(make, tmp_path):
    text = "def it(completions, **columns): return [None, float('nan'), 0.5]"
    task = make(text, TRL_ROWS, data_path=str(tmp_path / "rows.jsonl"))
    jobs = [("prompt", task.reward_job(said, task.dataset.train[0])) for said in "789"]
    *lost, half = run_grouped(jobs, Here())
    assert half == Reward(0.5)
    for failure in lost:
        assert isinstance(failure, Failure) and failure.reason.endswith("it does not apply to the row")


OF_TASK = "def it(completion, row): return 1"
WRONG = {
    f"@task\n{OF_TASK}": r"TypeError: task\(\) takes 0 positional arguments .*mine_task.py, line 3",
    f"@task(data=[], prompt='q', stopstrings=())\n{OF_TASK}": "did you mean stop_strings",
    f"@task(data=[], prompt='q')\n{OF_TASK}": "the task's rows .* no rows",
    f"@task(data='mine.jsonl', prompt='q')\n{OF_TASK}": "/.*mine.jsonl does not exist: give a JSONL",
    f"{SCORE}1": "lacks reward_model",
    "def a(completions): return [1]\nit = [a, (a, '0.2')]": r"is no task, because its member 2 is \(<.*, '0.2'\)",
    "def it(text): return 1": "it is no task, and .*mine_task.py has none",
    "raise RuntimeError('two\\nlines')": r"RuntimeError: two lines \(mine_task.py, line 3\)",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_task_or_row_is_refused_in_one_line(make, tmp_path, text):
    data = "" if "@task" in text else f"{tmp_path}/rows.jsonl"
    with pytest.raises(UserError, match=WRONG[text]) as refused:
        examples(make(text, [{"prompt": "?", "data_source": "a"}], data_path=data))
    assert "\n" not in str(refused.value)


def test_a_task_in_a_file_is_made_with_the_options_that_its_flags_set(file, monkeypatch):
    monkeypatch.chdir(file.parents[1])
    config, options = parsed(["--task", "mine/elevens_task.py:elevens", "--elevens.most", "20"])
    assert config.task == f"{file}:elevens"
    assert parsed(["--eval-tasks", "hanoi, mine/elevens_task.py:elevens"])[0].other_tasks == ["hanoi", config.task]
    assert sum(load_task(config.task, options).dataset.sizes()) == 20
    for name, expected in ((f"{file}:elevens", "elevens"), (f"{file}:TASK", "elevens_task"), ("hanoi", "hanoi")):
        assert parsed(["--task", name])[0].what == f"{expected}-grpo" and task_key(name) == expected
    with pytest.raises(UserError, match=f"names no task of the file: give {file}:elevens or :TASK"):
        load_task(str(file))


def test_a_stored_config_finds_the_file_and_its_options_of_every_type_again(file, tmp_path, monkeypatch):
    own = str.split("--elevens.most 20 --elevens.words a b --elevens.levels hard easy")
    given = parsed(["--task", f"{file}:elevens", *own, "--steps", "3"])
    assert (given[1]["elevens"].words, given[1]["elevens"].levels) == (["a", "b"], ("hard", "easy"))
    values = json.loads(json.dumps(to_dict(*given)))
    monkeypatch.chdir("/")
    assert from_dict(values, TrainerConfig) == given
    (tmp_path / "config.json").write_text(json.dumps({"minrl_run": "name", "config": values}))
    assert parsed(["--config", f"{tmp_path}/config.json", "--elevens.most", "30"])[1]["elevens"].most == 30


def test_a_file_that_cannot_be_a_task_is_refused_in_one_line(file):
    with pytest.raises(UserError, match=r"nothing is no task, and .*elevens_task\.py has elevens, TASK"):
        parsed(["--task", f"{file}:nothing"])
    file.with_name("json.py").write_text(SOURCE)
    with pytest.raises(UserError, match=r"has the name of another module, .*json.*: rename the file"):
        parsed(["--task", f"{file.parent}/json.py:TASK"])


def test_an_installed_package_offers_tasks_by_entry_points(tmp_path, monkeypatch):
    info = tmp_path / "site/elevens_package-1.0.dist-info"  # as pip leaves it on the disk
    info.mkdir(parents=True)
    (tmp_path / "site/elevens_package.py").write_text(SOURCE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elevens_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[minrl.tasks]\nmore-elevens = elevens_package:other\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    config, options = parsed(["--task", "more-elevens", "--more-elevens.most", "40"])
    assert config.what == "more-elevens-grpo"
    assert sum(load_task("more-elevens", options).dataset.sizes()) == 40
    with pytest.raises(UserError, match=r"no task 'more-elven': did you mean more-elevens\? choose one of"):
        load_task("more-elven")


def test_the_files_of_a_task_are_its_own_and_those_that_it_imports_from_beside_it(file):
    name, beside = f"{file}:elevens", file.parent / "elevens_of.py"
    file.write_text(SOURCE + "\n\ndef later():\n    import elevens_of\n    return elevens_of\n")
    beside.write_text("HOW_MANY = 11\n")
    assert files_outside(name) == [beside, file]
    before = programs(name)
    beside.write_text("HOW_MANY = 12\n")
    assert {key for key, digest in programs(name).items() if before[key] != digest} == {"elevens_of"}
    assert files_outside("hanoi") == [] and {"minrl.tasks.hanoi", "minrl.tasks.task"} <= {*programs("hanoi")}


NUMBERS = [{"prompt": f"numbers {n}", "answer": str(n)} for n in range(20)]
NUMBERED = [Example(row["prompt"], row["prompt"], {"answer": row["answer"]}) for row in NUMBERS]


def is_answer(completion, example):
    return completion == example["answer"]


@dataclass(frozen=True, kw_only=True)
class MyOptions(TaskOptions):
    most: int = 20
    pays: float = 1.0


def first_rows(options):
    return NUMBERS[: options.most]


KINDS = {
    "one line": TaskDefinition(dataset=NUMBERS, reward=is_answer),
    "by name": TaskDefinition(dataset="tests.test_custom_tasks:first_rows", reward=":is_answer", options=":MyOptions"),
    "of options": TaskDefinition(first_rows, lambda said, row, options: options.pays * is_answer(said, row), MyOptions),
    "a task": Task(split(NUMBERED, 0.3), is_answer, stop_strings=(";",)),
    "a dict": {"dataset": NUMBERS, "reward": is_answer, "more": lambda options: {"stop_strings": (";",)}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_ones_own_is_a_task(kind):
    TASK_DEFINITIONS["mine"] = KINDS[kind]
    task = load_task("mine")
    assert task.name == "mine" and sum(task.dataset.sizes()) == 20 and task.dataset.held_out
    example = next(one for one in task.dataset.train if one["answer"] != "7")
    assert [task.reward(said, example) for said in (example["answer"], "7")] == [1.0, 0.0]
    assert task.cheap == (kind == "of options")  # no worker process can import it
    assert task.stop_strings == ((";",) if kind in ("a task", "a dict") else ())


def test_the_options_of_a_row_are_flags_and_reach_its_dataset_and_reward():
    TASK_DEFINITIONS["mine"] = KINDS["of options"]
    config, options = parsed(["--task", "mine", "--mine.most", "9", "--mine.pays", "0.5", "--mine.max-tokens", "3"])
    task = load_task(config.task, options)
    assert (sum(task.dataset.sizes()), task.max_tokens) == (9, 3)
    assert task.reward("4", NUMBERED[4]) == 0.5


def test_a_row_that_is_no_task_is_one_line():
    for row, message in (
        ({"dataset": NUMBERS, "rewards": is_answer}, "has no 'rewards': did you mean reward"),
        ({"dataset": NUMBERS}, "a task needs a reward or an episode"),
    ):
        TASK_DEFINITIONS["mine"] = row
        with pytest.raises(UserError, match=message):
            load_task("mine")


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
