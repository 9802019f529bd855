"""The audit finds planted faults in their families, and accuses no right reward."""

import json
import sys

import pytest

from minrl.__main__ import main
from minrl.dataflow import Example
from minrl.tasks import load_task
from minrl.tasks.conventions import TrlOrVerlReward
from minrl.tasks.task import Dataset, Task
from minrl.tools import attacks as texts
from minrl.tools import audit as program
from minrl.tools.audit import AuditConfig, audit
from tests import broken_rewards as broken
from tests.broken_rewards import PLANTED, SOUND, TRL
from tests.jobs import Here
from tests.runs import write_rows
from tests.test_gsm8k import ROWS as GSM8K_ROWS
from tests.test_math import ROWS as MATH_ROWS


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
def test_a_reward_that_ends_its_process_is_found():
    assert faults(task_of(broken.ends_the_process), examples=2, reward_workers=1) == ["crash"]


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


OWN = {"countdown+python": [], "gsm8k": GSM8K_ROWS}


def faults_of(name, rows, folder, **settings):
    path = write_rows(folder / "rows.jsonl", *rows)
    return faults(load_task(name, None, str(path) if rows else ""), **settings)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", OWN)
def test_no_task_of_ours_is_accused(name, tmp_path):
    assert faults_of(name, OWN[name], tmp_path) == []


@pytest.mark.slow
def test_math_is_not_accused(tmp_path):
    waits = {"reward_deadline_s": 120, "reward_workers": 1}
    assert faults_of("math", MATH_ROWS, tmp_path, examples=1, **waits) == []


@pytest.mark.usefixtures("here")
def test_the_status_is_1_where_there_are_faults_and_the_findings_are_json_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = "from minrl import task\n\n@task(data=[], prompt='prompt')\ndef contains(text, row): "
    (tmp_path / "contains.py").write_text(f"{source}return str(row['answer']) in text\n")
    write_rows(tmp_path / "rows.jsonl", *({"prompt": one.prompt, **one.fields} for one in broken.EXAMPLES[:20]))
    flags = ["audit", "--task", f"{tmp_path}/contains.py:contains", "--data-path", f"{tmp_path}/rows.jsonl"]
    flags += ["--gold-column", "answer"]
    assert main([*flags, "--output", f"{tmp_path}/new/audit.json"]) == 1
    written = json.loads((tmp_path / "new/audit.json").read_text())
    assert {"candidates", "place", "longer"} <= {*written["faults"]} and "candidates" in capsys.readouterr().out
    assert main([*flags, "--leave-out", *written["faults"]]) == 0
    sys.modules.pop("contains")
