"""Tasks that the package does not hold: a decorated function, rewards of TRL and verl, installed packages."""

import json
import os
import sys
from pathlib import Path

import pytest

from minrl.config import TrainerConfig
from minrl.dataflow import Example, Mistake, Reward, UserError
from minrl.rewards.groups import run_grouped
from minrl.rewards.worker import Failure, call
from minrl.rewards.workers import Workers
from minrl.run.run import Run
from minrl.tasks import find_definition, load_task
from minrl.tasks.conventions import trl_rewards
from minrl.tasks.programs import files_outside, programs
from minrl.tasks.task import Sampled, Task, split
from minrl.utils.cli import from_dict, to_dict
from minrl.utils.task_names import task_key
from tests.parsed import parsed, sized
from tests.runs import write_rows
from tests.test_groups import Here

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
    limit: int | None = None
    level = 1

def sevens(options):
    return [{"count": n} for n in range(1, options.most + 1)]

@task(data=sevens, prompt="sevens {count} :".format_map, options=Options)
def elevens(completion, row):
    return completion.split() == ["7"] * row["count"]

TASK = other = countdown = countdowns = elevens
number = 5
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


def test_the_prompt_is_a_column_or_a_function_and_may_have_a_system_message(make):
    for arguments, prompt in (
        ('prompt=lambda row: row["question"].upper() + "?"', "6 + 1 =?"),
        ('prompt="question", system="Be brief."', [{"role": "system", "content": "Be brief."}, *as_turns("6 + 1 =")]),
        ('prompt=lambda row: [{"role": "user", "content": row["question"]}]', as_turns("6 + 1 =")),
    ):
        task = make(f'@task(data="rows.jsonl", {arguments})\ndef it(completion, row): return 1.0', SUMS)
        assert [one.prompt for one in examples(task) if one["answer"] == "7"] == [prompt]


def as_turns(*contents):
    return [{"role": "user", "content": content} for content in contents]


OTHERWISE = [
    lambda text: as_turns(text.replace(" ", "\n") + " "),
    lambda text: as_turns([{"type": "text", "text": text}]),
    lambda text: [{"role": "system", "content": "Be brief."}, *as_turns(text)],
    lambda text: [{**turn, "name": None} for turn in as_turns(text)],
]


@pytest.mark.parametrize("other", OTHERWISE)
def test_a_problem_that_is_written_otherwise_is_held_out_with_it_and_equal_rows_count_once(make, other):
    rows = [row | {"prompt": write(row["question"])} for row in SUMS for write in (as_turns, other)]
    reward = "def it(completion, row): return 1.0"
    found = make(f'@task(data="rows.jsonl", prompt="prompt")\n{reward}', [*rows, *rows[:3]]).dataset
    assert len(found.train) + len(found.held_out) == 80
    assert not {one["question"] for one in found.train} & {one["question"] for one in found.held_out}


def test_nan_in_a_row_is_a_missing_value(make, said):
    rows = [*SUMS, {"question": "?", "answer": float("nan")}, {"question": float("nan"), "answer": "7"}]
    assert [one["answer"] for one in examples(make(QUIZ, rows)) if one.prompt == "?"] == [None]
    assert "1 of 42 rows left out: row 42: lacks question" in said[0]


WRONG = {
    "@task\n": r"TypeError: task\(\) takes 0 positional arguments .*mine_task.py, line 3",
    "@task(data=[])\n": "@task needs a prompt",
    "@task(data=[], prompt='q', stopstrings=())\n": "did you mean stop_strings",
    "@task(data=[], prompt='q')\n": "the task's rows .* no rows",
    "@task(data=[1], prompt='q')\n": "a row must be a dict, got 1",
    "@task(data='mine.jsonl', prompt='q')\n": "/.*mine.jsonl does not exist: give a JSONL",
    "@task(data='rows.jsonl', prompt=lambda row: [{'role': 'user', 'content': None}])\n":
        r"prompt of example .* must be a string or a list .* 'content': None",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_decoration_is_refused_in_one_line(make, text):
    with pytest.raises(UserError, match=WRONG[text]) as refused:
        examples(make(f"{text}def it(c, r): return 1", SUMS))
    assert "\n" not in str(refused.value)


def test_a_reward_that_no_worker_can_import_runs_in_the_program(make):
    inside = "def f():\n @task(data='rows.jsonl', prompt='question')\n def it(c, r): return 1\n return it\nit = f()"
    assert make(inside, SUMS).cheap and not make(QUIZ, SUMS).cheap


def test_what_a_prompt_changes_in_its_row_the_reward_does_not_see(make):
    shown = 'lambda row: row.pop("question")'
    reward = 'def it(completion, row): return "question" in row'
    task = make(f'@task(data="rows.jsonl", prompt={shown})\n{reward}', SUMS)
    assert call(task.reward_job("", examples(task)[0])) == Reward(1.0)


def test_a_reward_may_be_a_coroutine_with_a_client_that_is_kept(make):
    task = make("import asyncio\nseen = set()\n" + QUIZ.replace("def it", "async def it").replace(
        "    return", "    seen.add(asyncio.get_running_loop())\n    return"), SUMS)  # fmt: skip
    first = examples(task)[0]
    assert [call(task.reward_job(text, first)).value for text in ("", first["answer"])] == [0, 1]
    assert len(sys.modules["mine_task"].seen) == 1


def paid_together(task, *completions):
    """What the task pays for completions of one prompt."""
    return run_grouped([("prompt", task.reward_job(text, examples(task)[0])) for text in completions], Here())


TRL_ROWS = [{"prompt": f"{n}?", "answer": str(n)} for n in range(40)]
VERL_ROWS = [{"prompt": f"{n}?", "data_source": "a", "reward_model": {"ground_truth": str(n)}} for n in range(40)]
SCORE = "def it(data_source, solution_str, ground_truth, extra_info):\n    return "


PAID_THERE = [
    ("def it(completions, answer, **columns): return [2.0 * (a == c) for a, c in zip(answer, completions)]",
     TRL_ROWS, Reward(2.0, maximum=2.0)),
    ("async def it(completions, **columns): return [0.5]", TRL_ROWS, Reward(0.5)),
    ("import functools\nit = functools.partial(lambda w, completions, **c: [w], 0.5)", TRL_ROWS, Reward(0.5)),
    ("def a(completions, **c): return [1.0]\ndef b(completions, **c): return [-1.0]\n"
     "def none(completions, **c): return [None]\nit = [(a, 0.5), b, none]",
     TRL_ROWS, Reward(-0.5, {"a": 1.0, "b": -1.0}, maximum=1.5)),
    ("from functools import partial\ndef f(w, completions, **c): return [w]\nit = [partial(f, 0.25), partial(f, 0.5)]",
     TRL_ROWS, Reward(0.75, {"f_1": 0.25, "f_2": 0.5}, maximum=2.0)),
    ("import math\ndef it(completion_ids, **columns): return [len(completion_ids[0]) / 4]\n"
     "it = [it, lambda completions, **c: [math.nan]]", TRL_ROWS, Reward(0.5, {"it": 0.5})),
    ("import numpy as np\ndef it(prompts, completions, **columns): return np.array([0.5])", TRL_ROWS, Reward(0.5)),
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
    none, nan, half = paid_together(task, "7", "8", "9")
    assert half == Reward(0.5)
    for failure in (none, nan):
        assert isinstance(failure, Failure) and failure.reason.endswith("it does not apply to the row")


@pytest.mark.parametrize("paid", [1.0, [1.0, 1.0], "1"])
def test_a_function_that_returns_no_list_of_one_for_each_is_a_mistake(paid):
    with pytest.raises(Mistake, match="must return a list of 1, one of each"):
        trl_rewards(lambda **given: paid, ["text"], [Example("", "?", {})], [{}])


@pytest.mark.parametrize(
    ("text", "rows", "message"),
    [
        (SCORE + "1", [{"prompt": "?", "data_source": "a"}], "lacks reward_model"),
        *((f"def a(completions): return [1]\nit = {pair}", [], "it is no task, and .* name a reward of TRL's form")
          for pair in ("[]",)),
        *((f"def a(completions): return [1]\nit = {pair}", [], f"is no task, because its member 2 is {wrong}, and")
          for pair, wrong in (("[a, (a, '0.2')]", r"\(<.*, '0.2'\)"), ("[a, (a, 1, 2)]", r"\(<.*\)"), ("[a, 3]", "3"))),
        ("def it(text): return 1", [], "it is no task, and .*mine_task.py has none"),
    ],
)  # fmt: skip
def test_a_reward_or_row_of_another_form_is_refused(make, tmp_path, text, rows, message):
    with pytest.raises(UserError, match=message):
        examples(make(text, rows, data_path=str(tmp_path / "rows.jsonl")))


def test_an_object_is_the_task_of_its_name_in_its_program(make):
    make(QUIZ, SUMS)
    decorated = sized(task=sys.modules["mine_task"].it)
    assert load_task(decorated.task).reward("7", Example("1", "?", {"answer": "7"})) is True
    later = sized(task=Task(split([Example(str(n), "?", {}) for n in range(9)], 0.3), lambda *_: 0.75, name="it"))
    assert load_task(later.task).reward("", Example("1", "?", {})) == 0.75  # the later of one name
    assert "in the program of this task" in Run(Path("a"), Path("b"), later, {}).resume_command


def test_a_task_is_named_by_what_its_file_calls_it(make):
    make('def quiz(completion, row): return 1.0\nit = task(data="rows.jsonl", prompt="question")(quiz)', SUMS)
    module = sys.modules["mine_task"]
    assert os.fspath(module.it) == f"{module.__file__}:it"


def test_a_task_in_a_file_is_made_with_the_options_that_its_flags_set(file, monkeypatch):
    monkeypatch.chdir(file.parents[1])
    config, options = parsed(["--task", "mine/elevens_task.py:elevens", "--elevens.most", "20"])
    assert config.task == f"{file}:elevens"
    assert parsed(["--eval-tasks", "hanoi, mine/elevens_task.py:elevens"])[0].other_tasks == ["hanoi", config.task]
    assert sum(load_task(config.task, options).dataset.sizes()) == 20
    for name, expected in ((f"{file}:elevens", "elevens"), (f"{file}:TASK", "elevens_task"), ("hanoi", "hanoi")):
        assert parsed(["--task", name])[0].what == f"{expected}-grpo" and task_key(name) == expected


def test_a_stored_config_finds_the_file_and_its_options_of_every_type_again(file, tmp_path, monkeypatch):
    own = str.split("--elevens.most 20 --elevens.words a b --elevens.levels hard easy --elevens.limit 7")
    given = parsed(["--task", f"{file}:elevens", *own, "--steps", "3"])
    chosen = given[1]["elevens"]
    assert (chosen.words, chosen.levels, chosen.limit) == (["a", "b"], ("hard", "easy"), 7)
    values = json.loads(json.dumps(to_dict(*given)))
    monkeypatch.chdir("/")
    assert from_dict(values, TrainerConfig) == given
    (tmp_path / "config.json").write_text(json.dumps({"minrl_run": "name", "config": values}))
    stored = ["--config", str(tmp_path / "config.json")]
    assert parsed([*stored, "--elevens.most", "30"])[1]["elevens"].most == 30
    with pytest.raises(UserError, match=r"unknown flag --elevens\.mst: did you mean --elevens.most"):
        parsed([*stored, "--elevens.mst", "20"])
    config, options = parsed([*stored, "--task", "countdown"])  # without the options of the other
    assert (config.task, options.keys()) == ("countdown", {"countdown"})
    with pytest.raises(UserError, match=r"must be .*easy, hard, got"):
        from_dict({"task": f"{file}:elevens", "tasks": {"elevens": {"levels": ["a"]}}}, TrainerConfig)


REFUSED = {
    ("elevens_task.py:nothing", ""): r"nothing is no task, and .*elevens_task\.py has elevens, TASK",
    ("two-words.py:TASK", SOURCE): "must be named as a Python module is, got two-words.py: rename it",
    ("json.py:TASK", SOURCE): r"has the name of another module, .*json.*: rename the file",
    ("raising.py:TASK", "raise RuntimeError('two\\nlines')"): r"RuntimeError: two lines \(raising.py, line 1\)",
}


@pytest.mark.parametrize(("name", "source"), REFUSED)
def test_a_file_that_cannot_be_a_task_is_refused_in_one_line(file, name, source):
    if source:
        (file.parent / name.partition(":")[0]).write_text(source)
    with pytest.raises(UserError, match=REFUSED[name, source]) as refused:
        parsed(["--task", f"{file.parent / name}"])
    assert "\n" not in str(refused.value)


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
    values = json.loads(json.dumps(to_dict(config, options)))
    assert from_dict(values, TrainerConfig) == (config, options)
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
    (file.parent / "program_of_trl.py").write_text("def reward(completions, **columns):\n    return [1.0]\n")
    assert [path.name for path in files_outside(f"{file.parent}/program_of_trl.py:reward")] == ["program_of_trl.py"]
