"""The audit finds planted faults in their families, and accuses no right reward."""

import json
import pickle
import sys

import pytest

from minrl.__main__ import main
from minrl.dataflow import Example, Job, UserError
from minrl.rewards.worker import call
from minrl.tasks import load_task
from minrl.tasks.conventions import TrlOrVerlReward
from minrl.tasks.task import Dataset, Task
from minrl.tools import attacks as texts
from minrl.tools import audit as program
from minrl.tools.attacks import FAMILIES, Answers, attacks
from minrl.tools.audit import AuditConfig, audit
from tests import broken_rewards as broken
from tests.broken_rewards import IN_PROCESSES, PLANTED, SOUND, TRL
from tests.test_connections import puzzle
from tests.test_gsm8k import ROWS as GSM8K_ROWS
from tests.test_math import ROWS as MATH_ROWS


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


def reward_of(planted):
    return lambda text, example: planted(text, str(example["answer"]), broken.right(text, example))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("family", "fault", "reward"), PLANTED)
def test_a_planted_fault_is_found(family, fault, reward):
    assert family in faults(task_of(reward_of(reward)), examples=4)


@pytest.mark.slow
@pytest.mark.parametrize("reward", IN_PROCESSES, ids=lambda reward: reward.__name__)
def test_a_fault_that_takes_processes_is_found(reward):
    waits = {"reward_deadline_s": 2 if reward is broken.backtracks else 60, "reward_workers": 1}
    assert faults(task_of(reward), examples=2, **waits) == IN_PROCESSES[reward]


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


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("function", TRL, ids=lambda function: function.__name__)
def test_a_function_of_trls_form_is_attacked(function):
    examples = [Example(one.id, [{"role": "user", "content": one.prompt}], one.fields) for one in broken.EXAMPLES]
    reward = TrlOrVerlReward(f"{function.__module__}:{function.__name__}")
    task = Task(Dataset([], examples), reward, solution=broken.solution, group=True)
    findings, _ = audit(task, AuditConfig())
    assert [one.family for one in findings if one.verdict == "fault"] == TRL[function]
    said = {one.family: one.do for one in findings}.get("batch", "")
    assert said.startswith("Compares completions") == (function is broken.of_trl_by_rank)


OWN = {
    "countdown+python": None,
    "connections": list(map(puzzle, range(20))),
    "gsm8k": GSM8K_ROWS,
    "countdown_3to4": [{"target": n + 41, "nums": [n + 1, 40, 60, 60]} for n in range(40)],
}


def faults_of(name, rows, folder, **settings):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or []))
    return faults(load_task(name, None, str(path) if rows else ""), **settings)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", OWN)
def test_no_task_of_ours_is_accused(name, tmp_path):
    assert faults_of(name, OWN[name], tmp_path) == []


@pytest.mark.slow
def test_math_is_not_accused(tmp_path):
    waits = {"reward_deadline_s": 120, "reward_workers": 1}
    assert faults_of("math", MATH_ROWS, tmp_path, examples=1, **waits) == []


def made(family, answers, prompts=("?",) * 4):
    """The texts of a family, by example, on examples with these right answers."""
    examples = [Example(str(n), prompt, {}) for n, prompt in enumerate(prompts[: len(answers)])]
    found = [one for one in attacks(examples, Answers(dict(enumerate(answers))), 0) if one.family == family]
    return [[one.text for one in found if one.number == number] for number in range(len(answers))]


def test_what_may_be_right_is_not_an_attack():
    in_prompts = made("prompt", ["Pear  0", "pear 1", "apple 2"], [f"Say pear {n}." for n in range(3)])
    assert [bool(texts) for texts in in_prompts] == [False, False, True]
    assert ["\u2460\u2461" in texts for texts in made("scripts", ["12", "30"])] == [False, True]


@pytest.mark.usefixtures("here")
def test_the_status_is_1_where_there_are_faults_and_the_findings_are_json_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = "from minrl import task\n\n@task(data=[], prompt='prompt')\ndef contains(text, row): "
    (tmp_path / "contains.py").write_text(f"{source}return row['answer'] in text\n")
    rows = [json.dumps({"prompt": f"{n + 11} + {2 * n + 17} =", "answer": str(3 * n + 28)}) for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    flags = ["audit", "--task", f"{tmp_path}/contains.py:contains", "--data-path", f"{tmp_path}/rows.jsonl"]
    flags += ["--gold-column", "answer"]
    assert main([*flags, "--output", f"{tmp_path}/new/audit.json"]) == 1
    written = json.loads((tmp_path / "new/audit.json").read_text())
    assert {"candidates", "place", "longer"} <= {*written["faults"]} and "candidates" in capsys.readouterr().out
    assert [one["family"] for one in written["findings"]] == list(FAMILIES)
    assert main([*flags, "--leave-out", *written["faults"]]) == 0
    with pytest.raises(UserError, match="--gold-column nothing: no such field; the examples have prompt, answer"):
        main([*flags[:-1], "nothing"])
    sys.modules.pop("contains")
