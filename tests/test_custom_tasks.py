"""Tasks that the package does not hold: a decorated function, rewards of TRL and verl, installed packages."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

import minrl
from minrl.__main__ import main
from minrl.config import TrainerConfig
from minrl.dataflow import Example, Job, Mistake, Reward, UserError
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.rewards.groups import run_grouped
from minrl.rewards.worker import Failure, call
from minrl.rewards.workers import Workers
from minrl.run.run import Run
from minrl.tasks import TASK_DEFINITIONS, find_definition, load_task
from minrl.tasks.conventions import trl_arguments, trl_rewards
from minrl.tasks.programs import files_outside, programs
from minrl.tasks.task import Sampled, Task, split
from minrl.utils.cli import from_dict, to_dict
from minrl.utils.task_names import task_key
from tests.parsed import parsed, sized

ROOT = Path(__file__).parent.parent

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


@pytest.fixture(autouse=True)
def _imports_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine" / "elevens_task.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package of that name with one module and these entry points, as pip leaves it on the disk."""

    def put(package, source, **entries):
        folder = tmp_path / f"site-{package}"
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{package}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[minrl.tasks]", *lines, ""]))
        monkeypatch.syspath_prepend(str(folder))

    return put


@pytest.fixture
def make(tmp_path):
    """The task of a file with this text behind the imports, and of rows beside it."""

    def made(text, rows=(), name="mine_task", data_path=""):
        (tmp_path / f"{name}.py").write_text(f"from minrl import task\nfrom minrl.dataflow import SOLO, Turn\n{text}")
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
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


# The decorator


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


@pytest.mark.parametrize(
    "other",
    [
        lambda text: text.replace(" ", "\n") + " ",
        lambda text: as_turns([{"type": "text", "text": text}]),
        lambda text: [{"role": "system", "content": "Be brief."}, *as_turns(text)],
        lambda text: [{**turn, "name": None} for turn in as_turns(text)],
    ],
)
def test_a_problem_that_is_written_otherwise_is_held_out_with_it(make, other):
    rows = [row | {"prompt": as_turns(row["question"])} for row in SUMS]
    for row in SUMS:
        given = other(row["question"])
        rows.append(row | {"prompt": given if isinstance(given, list) else as_turns(given)})
    found = make('@task(data="rows.jsonl", prompt="prompt")\ndef it(completion, row): return 1.0', rows).dataset
    assert len(found.train) + len(found.held_out) == 80
    assert not {one["question"] for one in found.train} & {one["question"] for one in found.held_out}


def test_the_later_of_two_tasks_of_one_name_takes_it():
    rows = split([Example(str(n), "?", {}) for n in range(9)], 0.3)
    first, second = (Task(rows, lambda text, row, paid=paid: paid) for paid in (0.25, 0.75))
    config, _ = (sized(task=one) for one in (first, second))
    assert load_task(config.task).reward("", Example("1", "?", {})) == 0.75
    run = Run(Path("runs/a"), Path("checkpoints/a"), config, {})
    assert "in the program of this task" in run.resume_command  # no command finds it


def test_rows_with_the_prompt_of_another_are_kept_on_one_side_and_equal_rows_count_once(make):
    others = [{**row, "answer": "another"} for row in SUMS]
    task = make(QUIZ, [*SUMS, *others, *SUMS[:3]])
    assert len(examples(task)) == 80
    assert not {one.prompt for one in task.dataset.train} & {one.prompt for one in task.dataset.held_out}


def test_nan_in_a_row_is_a_missing_value(make, said):
    rows = [*SUMS, {"question": "?", "answer": float("nan")}, {"question": float("nan"), "answer": "7"}]
    assert [one["answer"] for one in examples(make(QUIZ, rows)) if one.prompt == "?"] == [None]
    assert "1 of 42 rows left out: row 42: lacks question" in said[0]


def test_a_row_that_cannot_be_used_is_named_with_its_column(make, said):
    row, reason = {"answer": "7"}, r"row {}: lacks question \(it has answer\)"
    assert len(examples(make(QUIZ, [*SUMS, row]))) == 40
    assert re.search(rf"1 of 41 rows left out: {reason.format(41)}", said[0])
    with pytest.raises(UserError, match=rf"rows\.jsonl \(all\): 2 of 11 rows cannot be used: {reason.format(1)}"):
        examples(make(QUIZ, [row, row, *SUMS[:9]]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@task\ndef it(c, r): return 1", r"TypeError: task\(\) takes 0 positional arguments .*mine_task.py, line 3"),
        ("@task(data=[])\ndef it(c, r): return 1", "@task needs a prompt"),
        ("@task(data=[], prompt='q', stop_strings='</a>')\ndef it(c, r): return 1", "stop_strings must be a list"),
        ("@task(data=[], prompt='q', stopstrings=())\ndef it(c, r): return 1", "did you mean stop_strings"),
        ("@task(data=[], prompt='q')\ndef it(c, r): return 1", "the task's rows .* no rows"),
        ("@task(data=[1], prompt='q')\ndef it(c, r): return 1", "a row must be a dict, got 1"),
        ("@task(data='mine.jsonl', prompt='q')\ndef it(c, r): return 1", "/.*mine.jsonl does not exist: give a JSONL"),
    ],
)  # fmt: skip
def test_a_wrong_decoration_is_refused_in_one_line(make, text, message):
    with pytest.raises(UserError, match=message) as refused:
        examples(make(text))
    assert "\n" not in str(refused.value)


def test_a_reward_that_no_worker_can_import_runs_in_the_program(make):
    inside = "def f():\n @task(data='rows.jsonl', prompt='question')\n def it(c, r): return 1\n return it\nit = f()"
    assert make(inside, SUMS).cheap and not make(QUIZ, SUMS).cheap


def test_a_prompt_that_no_model_can_be_shown_is_a_mistake_of_the_task(make):
    prompt = "lambda row: [{'role': 'user', 'content': None}]"
    with pytest.raises(UserError, match=r"prompt of example .* must be a string or a list .* 'content': None"):
        examples(make(f"@task(data='rows.jsonl', prompt={prompt})\ndef it(c, r): return 1", SUMS))


def test_what_a_prompt_changes_in_its_row_the_reward_does_not_see(make):
    shown = 'lambda row: row.pop("question")'
    reward = 'def it(completion, row): return "question" in row'
    task = make(f'@task(data="rows.jsonl", prompt={shown})\n{reward}', SUMS)
    assert call(task.reward_job("", examples(task)[0])) == Reward(1.0)


def test_the_held_out_split_of_a_folder_is_named(make, tmp_path):
    (tmp_path / "data").mkdir()
    for name, rows in {"train": SUMS[:30], "validation": SUMS[28:]}.items():
        (tmp_path / "data" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = make(QUIZ.replace('"rows.jsonl"', '"data", held_out="validation"'))
    assert task.dataset.sizes() == (28, 12)  # 2 training rows have a held-out problem
    alone = load_task(f"{tmp_path}/mine_task.py:it", None, str(tmp_path / "data/train.jsonl"))
    assert alone.dataset.sizes() == (30, 0)  # which has no splits


def test_a_task_may_be_played_with_a_tool_and_its_flags(make, tmp_path):
    make(QUIZ.replace("prompt=", 'tools="python", prompt='), SUMS)
    flags = ["--task", f"{tmp_path}/mine_task.py:it", "--python.calls", "2"]
    options = parsed(flags)[1]
    assert options["python"].calls == 2
    assert load_task(flags[1], options).episode is not None


def test_a_reward_may_be_a_coroutine_with_a_client_that_is_kept(make):
    task = make("import asyncio\nseen = set()\n" + QUIZ.replace("def it", "async def it").replace(
        "    return", "    seen.add(asyncio.get_running_loop())\n    return"), SUMS)  # fmt: skip
    first = examples(task)[0]
    assert [call(task.reward_job(text, first)).value for text in ("", first["answer"])] == [0, 1]
    assert len(sys.modules["mine_task"].seen) == 1


class Here:
    """Workers without processes."""

    def run(self, jobs):
        return [call(job) for job in jobs]


def paid_together(task, *completions):
    """What the task pays for completions of one prompt."""
    return run_grouped([("prompt", task.reward_job(text, examples(task)[0])) for text in completions], Here())


# Rewards of TRL and verl


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


def test_a_reward_of_trl_or_verl_is_paid_as_there(make, tmp_path):
    jobs = []
    for number, (text, rows, _) in enumerate(PAID_THERE):
        data = tmp_path / f"rows{number}.jsonl"
        data.write_text("\n".join(map(json.dumps, rows)))
        task = make(text, name=f"mine{number}", data_path=str(data))
        seven = next(one for one in examples(task) if one.prompt == "7?")
        jobs.append((number, task.reward_job(Sampled.of("7", [5, 2], 3), seven)))
    workers = Workers(1, 120.0)
    try:
        assert run_grouped(jobs, workers) == [paid for *_, paid in PAID_THERE]
    finally:
        workers.close()


def test_a_function_of_trls_form_is_given_what_trl_gives():
    chat = [{"role": "user", "content": "?"}]
    rows = [Example("", chat, {"answer": n, "level": "easy", "prompt": "?", "completion": "a"}) for n in (1, 2)]
    seen = trl_arguments([Sampled.of("1", [7, 2], 4), Sampled.of("\u00fc", [8, 9, 2], 4)], rows)
    assert seen.pop("trainer_state").global_step == 4
    assert seen == {
        "prompts": [chat, chat],
        "completions": [[{"role": "assistant", "content": text}] for text in ("1", "\u00fc")],
        "completion_ids": [[7, 2], [8, 9, 2]],
        "answer": [1, 2],
        "level": ["easy", "easy"],
    }


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


# The three ways of use


def test_readmes_task_is_trained_as_a_file_an_object_and_a_registered_name(tmp_path, monkeypatch):
    (source,) = (
        one for one in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL) if "@task" in one
    )
    assert len(list(filter(None, source.splitlines()))) < 5
    (tmp_path / "quiz.py").write_text(source)
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, SUMS)))
    tokenizer = word_tokenizer(["+", "=", *map(str, range(41))])
    for part in (small_qwen3(tokenizer, 64, 1, 2, 0), tokenizer):
        part.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    settings = {"steps": 2, "prompts_per_step": 2, "group_size": 2, "max_tokens": 2, "eval_examples": 2,
                "eval_samples": 1, "threads": 1, "device": "cpu", "reward_workers": 1}  # fmt: skip
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    off = ["--no-eval-first", "--no-preflight", "--quiet"]
    assert main(["train", "--task", "quiz.py:quiz", "--model-id", "model", *flags, *off]) == 0
    quiz = importlib.import_module("quiz").quiz
    off = {"eval_first": False, "preflight": False, "quiet": True}
    minrl.train(TrainerConfig(task=quiz, model_id="model", **settings, **off))
    monkeypatch.setitem(TASK_DEFINITIONS, "quiz", quiz)
    minrl.train(TrainerConfig(task="quiz", model_id="model", **settings, **off))
    summaries = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/summary.json")]
    assert [(one["task"], one["steps"]) for one in summaries] == [("quiz", 2)] * 3
    assert all(one["eval_after"]["pass@1"] is not None for one in summaries)


# Files and their options


def test_a_task_in_a_file_is_made_with_the_options_that_its_flags_set(file):
    config, options = parsed(["--task", f"{file}:elevens", "--elevens.most", "20"])
    assert config.task == f"{file}:elevens"
    assert sum(load_task(config.task, options).dataset.sizes()) == 20
    for name, expected in ((f"{file}:elevens", "elevens"), (f"{file}:TASK", "elevens_task"), ("hanoi", "hanoi")):
        assert parsed(["--task", name])[0].what == f"{expected}-grpo" and task_key(name) == expected


def test_a_relative_path_is_stored_as_an_absolute_one(file, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert parsed(["--task=mine/elevens_task.py:elevens"])[0].task == f"{file}:elevens"
    config, _ = parsed(["--eval-tasks", "hanoi, mine/elevens_task.py:elevens"])
    assert config.other_tasks == ["hanoi", f"{file}:elevens"]
    (tmp_path / "settings.yaml").write_text("task: mine/elevens_task.py:elevens\n")
    assert parsed(["--config", "settings.yaml"])[0].task == f"{file}:elevens"


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
    config, options = parsed([*stored, "--task", "countdown"])  # without the options of the other
    assert (config.task, options.keys()) == ("countdown", {"countdown"})
    with pytest.raises(UserError, match=r"must be .*easy, hard, got"):
        from_dict({"task": f"{file}:elevens", "tasks": {"elevens": {"levels": ["a"]}}}, TrainerConfig)


def test_rewards_of_a_file_are_computed_in_workers(file, tmp_path, monkeypatch):
    decoy = tmp_path / "elsewhere"
    decoy.mkdir()
    (decoy / file.name).write_text("raise RuntimeError('the wrong file')")
    monkeypatch.chdir(decoy)  # where a worker starts must not decide which file it imports
    task = load_task(f"{file}:elevens")
    workers = Workers(1, 120.0)
    try:
        example = task.dataset.train[0]
        right = " ".join(["7"] * example["count"])
        assert workers.run([Job(task.reward, (text, example)) for text in (right, right + " 7")]) == [True, False]
    finally:
        workers.close()


REFUSED = {
    ("elevens_task.py:nothing", ""): r"nothing is no task, and .*elevens_task\.py has elevens, TASK",
    ("elevens_task.py", ""): r"what is named is no task, and .*elevens_task\.py has elevens, TASK",
    ("absent.py:TASK", ""): "no file /.*absent.py",
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


def test_flags_of_a_files_task_are_its_own_and_a_mistyped_one_gets_a_suggestion(file):
    _, options = parsed(["--task", f"{file}:countdowns", "--countdowns.most", "9"])
    assert set(options) == {"countdowns"} and options["countdowns"].most == 9
    with pytest.raises(UserError, match=r"unknown flag --elevens\.mst: did you mean --elevens.most"):
        parsed(["--task", f"{file}:elevens", "--elevens.mst", "20"])


def test_an_installed_package_offers_tasks_by_entry_points(install):
    install("elevens_package", SOURCE, **{"elevens": "elevens_package:TASK", "more-elevens": "elevens_package:other"})
    config, options = parsed(["--task", "more-elevens", "--more-elevens.most", "40"])
    assert config.what == "more-elevens-grpo"
    assert sum(load_task("more-elevens", options).dataset.sizes()) == 40
    values = json.loads(json.dumps(to_dict(config, options)))
    assert from_dict(values, TrainerConfig) == (config, options)
    with pytest.raises(UserError, match=r"no task 'elven': did you mean elevens\? choose one of .*, more-elevens"):
        load_task("elven")


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
