"""The audit finds planted faults in their families, and accuses no right reward."""

import contextlib
import json
import pickle
import random
import re
import shutil
import sys
import unicodedata
from pathlib import Path

import pytest

from minrl.__main__ import main
from minrl.models.thoughts import after_thoughts
from minrl.rewards.worker import call
from minrl.sft.config import RewardConfig
from minrl.tasks import load_task
from minrl.tasks.custom import ForeignReward
from minrl.tasks.task import Dataset, Task
from minrl.tools import attacks as texts
from minrl.tools import audit as program
from minrl.tools.attacks import FAMILIES, Answers, attacks
from minrl.tools.audit import AuditConfig, audit
from minrl.types import Example, Job, Reward, UserError
from tests import broken_rewards as broken
from tests.broken_rewards import answers_in, one, right
from tests.test_code_task import mbpp
from tests.test_connections import puzzle
from tests.test_gsm8k import ROWS as GSM8K_ROWS
from tests.test_math import ROWS as MATH_ROWS
from tests.test_rust_task import ROW as RUST_ROW

ROOT = Path(__file__).parent.parent


class Here:
    """Workers without processes: each job has its own copy of what it gets, as in a worker."""

    def __init__(self, count, deadline_s):
        pass

    def run(self, jobs):
        return [call(Job(job.function, pickle.loads(pickle.dumps(job.arguments)))) for job in jobs]

    def close(self):
        pass


@pytest.fixture
def here(monkeypatch):
    """No processes, and long texts of three times Python's depth of recursion."""
    monkeypatch.setattr(program, "Workers", Here)
    monkeypatch.setattr(texts, "LONG", 3 * sys.getrecursionlimit())


def task_of(reward, **more):
    return Task(Dataset(broken.EXAMPLES[8:], broken.EXAMPLES[:8]), reward, **{"solution": broken.solution, **more})


def faults(task, **settings):
    findings, _ = audit(task, AuditConfig(**settings))
    return [one.family for one in findings if one.verdict == "fault"]


def overlap(text, gold, example):
    return len({*one(text)} & {*gold}) / len({*gold})


def nested(text, place=0):
    return 1 + nested(text, place + 1) if text[place : place + 1] == "(" else 0


def evaluates(text, gold, example):
    with contextlib.suppress(Exception):
        return eval(one(text)) == int(gold)
    return 0.0


def believes_float(text, gold, example):
    with contextlib.suppress(ValueError):
        return not abs(float(one(text)) - int(gold)) > 0.5  # also of nan
    return 0.0


PLANTED = [
    ("empty", lambda text, gold, example: text == "" or right(text, example)),
    ("empty", lambda text, gold, example: text.isspace() or right(text, example)),
    ("nonsense", lambda text, gold, example: text.endswith("know.") or right(text, example)),
    ("nonsense", lambda text, gold, example: re.search("sorry|cannot", text) is not None or right(text, example)),
    ("prompt", lambda text, gold, example: 0.8 * (example.prompt in text) or right(text, example)),
    ("prompt", lambda text, gold, example: right(text, example) or re.fullmatch(r"\d+ \+ \d+", one(text)) is not None),
    ("format", lambda text, gold, example: 0.6 * bool(re.search(r"<answer>\s*</", text)) or right(text, example)),
    ("repeated", lambda text, gold, example: min(1.0, right(text, example) + 0.1 * text.count("<think>"))),
    ("candidates", lambda text, gold, example: gold in re.findall("[0-9]+", one(text))),
    ("place", lambda text, gold, example: answers_in(text)[:1] == [gold]),
    ("place", lambda text, gold, example: answers_in(text)[-1:] == [gold]),
    ("longer", lambda text, gold, example: re.match(gold, one(text)) is not None),
    ("fragments", lambda text, gold, example: one(text) != "" and one(text) in gold),
    ("fragments", overlap),
    ("near", lambda text, gold, example: one(text).isdecimal() and abs(int(one(text)) / int(gold) - 1) <= 0.1),
    ("code", evaluates),
    ("prints", evaluates),
    ("scripts", lambda text, gold, example: one(text).isdigit() and int(one(text)) == int(gold)),
    ("scripts", lambda text, gold, example: right(unicodedata.normalize("NFKC", text), example)),
    ("scripts", believes_float),
    ("long", lambda text, gold, example: right(text, example) if nested(text) < 10**9 else 0.0),
    ("gold", lambda text, gold, example: 0.9 * right(text, example)),
    ("other", lambda text, gold, example: re.fullmatch("[0-9]+", one(text)) is not None),
    ("repeatable", lambda text, gold, example: right(text, example) or 0.01 * random.random()),
    ("raises", lambda text, gold, example: one(text) != "" and int(one(text)) == int(gold)),
    ("prints", lambda text, gold, example: sys.stdout.write("read") and right(text, example)),
    ("returns", lambda text, gold, example: right(text, example) if answers_in(text) else float("nan")),
    ("returns", lambda text, gold, example: Reward(2 * right(text, example))),
    ("returns", lambda text, gold, example: right(text, example) if answers_in(text) else None),
]
"""Rewards with one fault each, behind the family in which it must be found."""

IN_PROCESSES = {
    broken.hashes: ["repeatable"],
    broken.pays_what_is_new: ["repeatable"],
    broken.shares_a_file: ["repeatable"],
    broken.sleeps_over_answers: ["slow"],
    broken.backtracks: ["long"],
    broken.ends_the_process: ["crash"],
}
TRL = {
    broken.of_trl: [],
    broken.of_trl_later: [],
    broken.of_trl_where_it_applies: [],
    broken.of_trl_of_weight_two: [],
    broken.of_trl_of_weight_half: [],
    broken.of_trl_by_rank: ["batch"],
    broken.of_trl_without_the_others: ["raises"],
    broken.says_how_many: ["returns"],
}
SOUND = [
    ("<answer>{}</answer>", lambda text, gold, example: right(text, example)),
    ("<answer>{}</answer>", lambda text, gold, example: Reward(0.1 * bool(one(text)) + 0.9 * right(text, example))),
    ("{}", lambda text, gold, example: re.findall(r"-?[0-9]+(?:\.[0-9]+)?", text)[-1:] == [gold]),
    ("#### {}", lambda text, gold, example: re.findall(r"^#### (-?[0-9]{1,20})$", text, re.MULTILINE) == [gold]),
    (
        "\\boxed{{{}}}",
        lambda text, gold, example: {*re.findall(r"\\boxed\{(\w{0,9})\}", after_thoughts(text))} == {gold},
    ),
    (
        "<answer>{}</answer>",
        lambda text, gold, example: (
            re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", one(text)) is not None and abs(float(one(text)) - int(gold)) < 1e-6
        ),
    ),
]
"""Rewards without a fault, behind the form of their answers: tags, part of the pay for the form, the last number, a
marked line, a box without thoughts, a margin for rounding.
"""


def reward_of(fault):
    return lambda completion, example: fault(completion, str(example["answer"]), example)


def test_every_family_has_a_planted_fault():
    planted = {family for table in (IN_PROCESSES, TRL) for found in table.values() for family in found}
    assert planted | {family for family, _ in PLANTED} == set(FAMILIES)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("family", "fault"), PLANTED)
def test_a_planted_fault_is_found(family, fault):
    assert family in faults(task_of(reward_of(fault)), examples=4)


@pytest.mark.slow
@pytest.mark.parametrize("reward", IN_PROCESSES, ids=lambda reward: reward.__name__)
def test_a_fault_that_takes_processes_is_found(reward):
    slow = reward in (broken.sleeps_over_answers, broken.backtracks)
    waits = RewardConfig(reward_deadline_s=2 if slow else 60, reward_workers=1)
    assert faults(task_of(reward), examples=2 if slow else 3, reward=waits) == IN_PROCESSES[reward]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("form", "reward"), SOUND)
def test_a_sound_reward_is_not_accused(form, reward):
    task = task_of(reward_of(reward), solution=lambda example: form.format(example["answer"]))
    findings, answers = audit(task, AuditConfig())
    assert {row.family for row in findings if row.verdict != "ok"} == {"batch"} and answers.declared


@pytest.mark.usefixtures("here")
def test_answers_that_are_found_are_not_taken_for_the_only_right_ones():
    findings, answers = audit(task_of(broken.right, solution=None), AuditConfig())
    assert {row.family for row in findings if row.verdict != "ok"} == {"near", "other", "batch"}
    assert {answers.prefix.strip(), answers.suffix.strip()} == {"<answer>", "</answer>"} and not answers.declared


OWN = {"countdown": None, "hanoi": None, "tictactoe": None, "connections": list(map(puzzle, range(20)))}
OWN["gsm8k"] = GSM8K_ROWS
OWN["countdown_3to4"] = [{"target": n + 41, "nums": [n + 1, 40, 60, 60]} for n in range(40)]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", OWN)
def test_no_task_of_ours_is_accused(name, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in OWN[name] or []))
    findings, answers = audit(load_task(name, None, str(path) if OWN[name] else ""), AuditConfig())
    assert [one for one in findings if one.verdict == "fault"] == []
    assert answers.declared == (name != "tictactoe")


OWN_IN_WORKERS = {
    "math": MATH_ROWS,
    "code": [{**mbpp(f"def f{n}(a):\n    return a + {n}", *(f"assert f{n}({a}) == {a + n}" for a in (1, 2)), number=n),
              "text": f"Add {n}."} for n in range(600, 640)],
    "rust": [RUST_ROW, *({**RUST_ROW, "slug": f"o{n}"} for n in range(20))],
    "code_game": None,
    "reasoning_gym/leg_counting": None,
    "reasoning_gym/spell_backward": None,
    "reasoning_gym/simple_equations": None,
}  # fmt: skip
KNOWN = {"reasoning_gym/leg_counting": {"longer"}, "reasoning_gym/spell_backward": {"longer", "fragments"}}
"""Their score_answer pays len(right) / len(answer) where the right answer is within the answer, such as 3/5 for 93469,
and for letters in their places.
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_IN_WORKERS)
def test_no_task_of_ours_with_graders_of_its_own_is_accused(name, tmp_path):
    rows = OWN_IN_WORKERS[name]
    if name == "rust" and shutil.which("cargo") is None:
        pytest.skip("no cargo")
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or []))
    task = load_task(name, None, str(path) if rows else "")
    findings, _ = audit(task, AuditConfig(examples=3, reward=RewardConfig(reward_deadline_s=120)))
    known = KNOWN.get(name, set())
    assert [one for one in findings if one.verdict == "fault" and one.family not in known] == []


def as_chat(text):
    return [{"role": "user", "content": text}]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("prompt", [str, as_chat], ids=["text", "chat"])
@pytest.mark.parametrize("function", TRL, ids=lambda function: function.__name__)
def test_a_function_of_trls_form_is_attacked(function, prompt):
    examples = [Example(one.id, prompt(one.prompt), one.fields) for one in broken.EXAMPLES]
    assert (
        faults(
            Task(Dataset([], examples), ForeignReward(function.__module__, function.__name__), solution=broken.solution)
        )
        == TRL[function]
    )


def made(family, texts, prompts="?", form=("", "")):
    """The attacks of a family on examples with these right answers."""
    prompts = [prompts] * len(texts) if isinstance(prompts, str) else prompts
    examples = [Example(str(n), prompt, {}) for n, prompt in enumerate(prompts)]
    held = Answers(dict(enumerate("".join((form[0], text, form[1])) for text in texts)), "", True, *form)
    return [one for one in attacks(examples, held, 0) if one.family == family]


def test_what_may_be_right_is_not_an_attack():
    prompts = [f"Say pear {n}." for n in range(3)]
    assert {one.number for one in made("prompt", ["Pear  0", "pear 1", "apple 2"], prompts)} == {2}
    assert made("candidates", [f"def f{n}():\n    return {n}" for n in range(4)]) == []  # of programs both may be right
    assert len(made("other", [f"def f{n}():\n    return {n}" for n in range(4)])) == 12
    circled = [one for one in made("scripts", ["12", "30"]) if one.text == "\u2460\u2461"]
    assert [one.may_be_paid for one in circled] == [True, False]
    assert [one.text for one in made("longer", ["12", "cat"])] == ["9129", "12.9", "12e3", "12/7", "catxyz", "xyzcat"]
    assert [one.text for one in made("fragments", ["121"])] == [
        "1",
        "12",
        "21",
        "0123456789",
        texts.string.ascii_lowercase,
    ]
    assert [one.text for one in made("near", ["7", "200"])] == ["8", "6", "210", "190"]
    lists = made("candidates", [f"w{n}" for n in range(5)])
    assert lists
    for made_one in lists:  # the right one is neither the first nor the last
        said = [text for text in made_one.text.replace(",", " ").split() if text != "or"]
        assert f"w{made_one.number}" in said[1:-1] and set(said) == {f"w{n}" for n in range(5)}


@pytest.mark.usefixtures("here")
def test_the_command_says_status_table_and_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = "def lax(completions, answer, **columns):\n"
    source += "    return [float(str(gold) in said) for said, gold in zip(completions, answer)]\n"
    (tmp_path / "mine_for_audit.py").write_text(source)
    rows = [{"prompt": one.prompt, "answer": str(one["answer"])} for one in broken.EXAMPLES[:6]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--task", f"{tmp_path}/mine_for_audit.py:lax", "--data-path", str(tmp_path / "rows.jsonl")]
    flags += ["--gold-column", "answer"]
    output = tmp_path / "new" / "audit.json"
    assert main(["audit", *flags, "--output", str(output)]) == 1
    shown, written = capsys.readouterr().out, json.loads(output.read_text())
    assert written["faults"] == ["candidates", "place", "longer"] and written["answers"] == "--gold-column answer"
    assert [one["family"] for one in written["findings"]] == list(FAMILIES)
    assert "place       FAULT" in shown and "lax: 3 faults, " in shown
    assert FAMILIES["place"].fix in " ".join(shown.split())
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert main(["audit", *flags, "--leave-out", *written["faults"], "nonsense"]) == 0  # which others are judged by
    assert "candidates" not in capsys.readouterr().out
    with pytest.raises(UserError, match="--gold-column nothing: no such field; the examples have answer"):
        main(["audit", *flags[:4], "--gold-column", "nothing"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--leave-out", "formats"], "leave_out: no family 'formats': did you mean format"),
        (["--examples", "0"], "examples must be at least 1, got 0"),
        (["--task", "tictactoe", "--gold-column", "board"], "--gold-column: a task of several turns"),
    ],
)
def test_a_wrong_use_is_refused(flags, said):
    with pytest.raises(UserError, match=said):
        main(["audit", *flags])


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["beads", "accuracy"])
def test_the_pages_tables_are_what_the_commands_print(name, tmp_path, monkeypatch, capsys):
    page, tasks = ((ROOT / one).read_text() for one in ("docs/audit.md", "docs/task.md"))
    (source,) = (
        one for one in re.findall(r"```py(?:thon)?\n(.*?)```", tasks + page, re.DOTALL) if f"def {name}(" in one
    )
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "100")
    rows = [json.dumps({"prompt": f"{n + 11} + {2 * n + 17} =", "answer": str(3 * n + 28)}) for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    more = [] if name == "beads" else ["--data-path", str(tmp_path / "rows.jsonl"), "--gold-column", "answer"]
    assert main(["audit", "--task", f"{tmp_path}/{name}.py:{name}", *more]) == (name != "beads")
    printed = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert f"```\n{printed}```" in page
    sys.modules.pop(name)
