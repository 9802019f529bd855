"""Rewards that see all completions of a prompt: in an evaluation, a filter and the audit."""

import json
import sys
from random import Random
from types import SimpleNamespace

import pytest

from minrl.dataflow import SOLO, Reward
from minrl.evaluate import play as evaluation
from minrl.rewards.completions import score_lines
from minrl.rewards.episode import Play, run_jobs
from minrl.rewards.judge import judged
from minrl.sft.filter import _with_completion
from minrl.tasks import TASK_DEFINITIONS, find_definition, load_task
from minrl.tasks.checked import equal_parts
from minrl.tools.attacks import Attack
from minrl.tools.audit import Scorer
from tests import evaluated
from tests.jobs import Here
from tests.runs import write_rows

pytestmark = pytest.mark.usefixtures("own_imports", "own_programs")


SOURCE = """
from minrl import task

@task(data=[{"n": n} for n in range(32)], prompt=lambda row: " ".join(["numbers", *str(row["n"])]),
      held_out=0.5, group=True, category="n")
def most(completions, row):
    counts = [text.split().count("7") for text in completions]
    return [float(count == max(counts) > min(counts)) for count in counts]
"""


def test_an_evaluation_rewards_the_whole_group_and_plays_it_again_when_it_grows(evaluated_place, tmp_path):
    (tmp_path / "most_task.py").write_text(SOURCE)
    flags = [one for one in evaluated.FLAGS if one not in ("--samples", "4")]
    command = ["--checkpoint", evaluated_place / "model0", "--task", f"{tmp_path}/most_task.py:most", "--examples", "3"]
    for name, samples in (("grown", "2"), ("grown", "4"), ("whole", "4")):
        assert evaluated.run(*command, "--output", tmp_path / name, "--samples", samples, flags=flags) == 0
    grown, whole = (
        {tuple(row.values())[:6]: row for row in evaluated.rows_of(tmp_path / n)} for n in ("grown", "whole")
    )
    assert grown == whole
    groups = {}
    for row in whole.values():
        if row["mode"] == "sampled":
            assert row["category"].keys() == {"n"}
            said = row["roles"]["policy"]
            groups.setdefault(row["example"], []).append((said["completion"].split().count("7"), said["reward"]))
    for pairs in groups.values():
        counts = [count for count, _ in pairs]
        assert [paid for _, paid in pairs] == [float(one == max(counts) > min(counts)) for one in counts]
    assert any(paid for pairs in groups.values() for _, paid in pairs)


RECORDS = """
seen = []

def it(prompts, completions, answer, **columns):
    seen.append((prompts, completions, answer, {name for name in columns if name[:4] not in ("log_", "trai")}))
    return [0.0] * len(completions)
"""
TEXT, CHAT = "7?", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "7?"}]
SAID = ["7", "8"]


def with_a_judge(task, prompt):
    in_plays(judged(task, SimpleNamespace(reward=lambda reward, *_: reward)), prompt)


def in_plays(task, prompt):
    played(task, *SAID)


def in_evaluate(task, prompt):
    rows = [{"prompt": prompt, "answer": "7", "completion": text} for text in SAID]
    list(score_lines(task, list(map(json.dumps, rows)), Here()))


def in_the_filter(task, prompt):
    rows = [{"prompt": prompt, "response": text, "answer": "7"} for text in SAID]
    list(score_lines(task, list(map(json.dumps, rows)), Here(), completed=_with_completion))


def in_the_audit(task, prompt):
    scorer = Scorer(task, task.dataset.train[:1], 1.0)
    scorer.score_together([Attack("gold", 0, text) for text in SAID])


@pytest.mark.parametrize("prompt", [TEXT, CHAT], ids=["text", "chat"])
@pytest.mark.parametrize("where", [in_plays, with_a_judge, in_evaluate, in_the_filter, in_the_audit])
def test_a_reward_of_trls_form_is_given_the_same_everywhere(where, prompt, tmp_path, monkeypatch):
    monkeypatch.setattr("minrl.tools.audit.Workers", Here)
    (tmp_path / "recording_task.py").write_text(RECORDS)
    rows = [{"prompt": prompt, "answer": "7", "completion": "a reference"}]
    write_rows(tmp_path / "rows.jsonl", *rows)
    task = load_task(f"{tmp_path}/recording_task.py:it", None, str(tmp_path / "rows.jsonl"))
    seen = sys.modules["recording_task"].seen
    where(task, prompt)
    said = SAID if isinstance(prompt, str) else [[{"role": "assistant", "content": text}] for text in SAID]
    assert seen
    for prompts, completions, answers, columns in seen:
        assert (prompts[:2], completions[:2], answers[:2]) == ([prompt] * 2, said, ["7"] * 2) and columns <= {"id"}


def pays(completions, **columns):
    return [float(len(text)) for text in completions]


def half(completions, **columns):
    return [0.5 for _ in completions]


ROWS = [{"prompt": f"{n}?", "answer": str(n)} for n in range(40)]


def played(task, *texts):
    """Plays of the first problem, in which the policy says these texts, up to their first jobs."""
    plays = [Play(task, task.dataset.train[0], Random(0), "group") for _ in texts]
    for one, text in zip(plays, texts, strict=True):
        one.advance(None)
        one.advance(text)
    run_jobs(plays, Here())
    return plays


@pytest.mark.parametrize(
    ("reward", "options", "said", "solved"),
    [
        ([pays, half], {}, "a reward of 2 or more, where each of pays, half is 1: the task's", [False, False, True]),
        ([pays, (half, 9)], {"solved_by": "pays", "solved_at": 2.0}, "pays of 2 or more", [False, False, True]),
    ],
)
def test_what_counts_as_solved_is_said_and_no_guess(reward, options, said, solved, monkeypatch):
    monkeypatch.setitem(TASK_DEFINITIONS, "mine", {"dataset": ROWS, "reward": reward})
    task = load_task("mine", {"mine": find_definition("mine").options_class(**options)})
    (note,) = task.notes()
    assert note.startswith(f"solved is {said}")
    assert [one.rewards[SOLO].solved for one in played(task, "", "a", "aa")] == solved


@pytest.mark.parametrize(("group", "calls"), [(True, [3, 3, 1]), (False, [2, 2, 2, 1])])
def test_a_server_plays_whole_groups(group, calls, monkeypatch):
    monkeypatch.setattr(evaluation, "TALKS", 2)
    player, played = object.__new__(evaluation.ServedPlayer), []
    player.config = SimpleNamespace(api_concurrency=1)
    player._play = lambda cell, keys: played.append(len(keys)) or [{}]
    cell = SimpleNamespace(task=SimpleNamespace(group=group), examples=[], name="most")
    keys = [evaluation.Key("m", "most", "sampled", number, sample, "") for number in (0, 1) for sample in range(3)]
    assert len(list(player.play(cell, [*keys, keys[0]._replace(mode="greedy")]))) == len(calls)
    assert played == calls


def test_a_part_that_is_equal_in_all_rewards_is_named_unless_all_rewards_are_equal():
    one, other = Reward(0.5, {"form": 1.0, "right": 0.0, "timeout": 0.0}), Reward(1.0, {"form": 1.0, "right": 1.0})
    (line,) = equal_parts([one, other])
    assert "equal in all 2 completions: form (1);" in line
    assert not [*equal_parts([one, one])] and not [*equal_parts([])]
