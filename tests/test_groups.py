"""Rewards that see all completions of a prompt: in a run, in an evaluation, a filter and the audit."""

import json
import sys
from random import Random
from types import SimpleNamespace

import pytest

from minrl.__main__ import main
from minrl.dataflow import SOLO, Reward, Turn, UserError
from minrl.evaluate import play as evaluation
from minrl.rewards.completions import score_lines
from minrl.rewards.episode import Play, run_jobs
from minrl.rewards.judge import judged
from minrl.rewards.worker import call
from minrl.sft.filter import _with_completion
from minrl.tasks import TASK_DEFINITIONS, find_definition, load_task
from minrl.tasks.checked import equal_parts
from minrl.tasks.task import Task
from minrl.tools.attacks import Attack
from minrl.tools.audit import Scorer
from tests import evaluated
from tests.runs import write_rows
from tests.test_rollout import EXAMPLES, play  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("own_imports")


class Here:
    """Workers without processes."""

    def __init__(self, *_):
        self.calls = []

    def run(self, jobs):
        self.calls += jobs
        return [call(job) for job in jobs]

    def close(self):
        pass


def rank(completions, examples):
    """The share of the other completions that are shorter."""
    lengths = [len(text.split()) for text in completions]
    if max(lengths) > 3:
        raise RuntimeError("too long to compare")
    return [sum(other < own for other in lengths) / max(1, len(lengths) - 1) for own in lengths]


RANKED = Task(EXAMPLES, rank, group=True, cheap=True)


def test_a_group_is_rewarded_at_once_and_a_raise_makes_it_unscorable_alone(play):  # noqa: F811
    texts = ("1 <end>", "1 2 <end>", "1 2 3 <end>", *("1 <end>", "1 2 3 4 5 <end>", "2 <end>"))
    sampled = play(None, *texts, examples=2, task=RANKED, group_size=3)
    assert [one.reward and one.reward.value for one in sampled.rollouts] == [0.0, 0.5, 1.0, None, None, None]
    assert len(sampled.failures) == 3 and "too long to compare" in sampled.failures[0]


def test_a_reward_of_a_group_waits_for_those_that_take_another_turn():
    def episode(example, rng):
        said = yield Turn(SOLO, "?")
        while said == "again":
            said = yield Turn(SOLO, "?")
        return {SOLO: (yield RANKED.reward_job(said, example))}

    task, workers = Task(EXAMPLES, rank, episode, group=True), Here()
    plays = [Play(task, EXAMPLES.train[0], Random(0), group) for group in ("a", "a", "b")]
    for one, text in zip(plays, ("1", "again", "1 2"), strict=True):
        one.advance(None)
        one.advance(text)
    assert run_jobs(plays, workers) and not run_jobs(plays, workers)
    assert [dict(one.rewards) for one in plays] == [{}, {}, {SOLO: Reward(0.0)}]
    plays[1].advance("2 3")
    assert run_jobs(plays, workers)
    assert [one.rewards[SOLO].value for one in plays] == [0.0, 1.0, 0.0]
    assert [job.arguments[0] for job in workers.calls] == [["1 2"], ["1", "2 3"]]


SOURCE = """
from minrl import task

@task(data=[{"n": n} for n in range(32)], prompt=lambda row: " ".join(["numbers", *str(row["n"])]),
      held_out=0.5, group=True, category="n")
def most(completions, row):
    counts = [text.split().count("7") for text in completions]
    return [float(count == max(counts) > min(counts)) for count in counts]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "most_task.py"
    path.write_text(SOURCE)
    return path


def test_an_evaluation_rewards_the_whole_group_and_plays_it_again_when_it_grows(file, tmp_path):
    evaluated.save_models(tmp_path)
    flags = [one for one in evaluated.FLAGS if one not in ("--samples", "4")]
    command = ["--checkpoint", tmp_path / "model0", "--task", f"{file}:most", "--examples", "3"]
    for samples in ("2", "4"):
        assert evaluated.run(*command, "--output", tmp_path / "grown", "--samples", samples, flags=flags) == 0
    assert evaluated.run(*command, "--output", tmp_path / "whole", "--samples", "4", flags=flags) == 0
    grown, whole = (
        {tuple(row.values())[:6]: row for row in evaluated.rows_of(tmp_path / n)} for n in ("grown", "whole")
    )
    assert grown == whole
    groups = {}
    for row in whole.values():
        if row["mode"] == "sampled":
            said = row["roles"]["policy"]
            groups.setdefault(row["example"], []).append((said["completion"].split().count("7"), said["reward"]))
            assert row["category"].keys() == {"n"}
    for pairs in groups.values():
        counts = [count for count, _ in pairs]
        assert [paid for _, paid in pairs] == [float(one == max(counts) > min(counts)) for one in counts]
    assert any(paid for pairs in groups.values() for _, paid in pairs)


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


# One form of the arguments wherever a reward of TRL's form is called

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
    for said in (lambda text: text, lambda text: [{"role": "assistant", "content": text}]):
        rows = [{"prompt": prompt, "answer": "7", "completion": said(text)} for text in SAID]
        list(score_lines(task, list(map(json.dumps, rows)), Here()))


def in_the_filter(task, prompt):
    for more in ({"answer": "7", "truncated": False}, {"id": "1", "kept": True, "example": {"answer": "7"}}):
        rows = [{"prompt": prompt, "response": text, **more} for text in SAID]  # of a file, of expert iteration
        list(score_lines(task, list(map(json.dumps, rows)), Here(), completed=_with_completion))


def in_the_audit(task, prompt):
    scorer = Scorer(task, task.dataset.train[:1], 1.0)
    paid = scorer.score_together([Attack("gold", 0, text) for text in SAID])
    assert len(paid) == 2


@pytest.mark.parametrize("prompt", [TEXT, CHAT], ids=["text", "chat"])
@pytest.mark.parametrize(
    "where",
    [in_plays, with_a_judge, in_evaluate, in_the_filter, in_the_audit],
)
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


# What counts as solved


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
        (pays, {}, "a reward of 1 or more: the task's options", [False, True, True]),
        ([pays, half], {}, "a reward of 2 or more, where each of pays, half is 1: the task's", [False, False, True]),
        ([pays, half], {"solved_at": 1.5}, "a reward of 1.5 or more", [False, True, True]),
        ([pays, (half, 9)], {"solved_by": "pays", "solved_at": 2.0}, "pays of 2 or more", [False, False, True]),
    ],
)
def test_what_counts_as_solved_is_said_and_no_guess(reward, options, said, solved, monkeypatch):
    monkeypatch.setitem(TASK_DEFINITIONS, "mine", {"dataset": ROWS, "reward": reward})
    task = load_task("mine", {"mine": find_definition("mine").options_class(**options)})
    (note,) = task.notes()
    assert note.startswith(f"solved is {said}")
    assert [one.rewards[SOLO].solved for one in played(task, "", "a", "aa")] == solved


def test_a_reward_that_decides_and_is_not_there_is_refused(monkeypatch):
    monkeypatch.setitem(TASK_DEFINITIONS, "mine", {"dataset": ROWS, "reward": [pays, half]})
    task = load_task("mine", {"mine": find_definition("mine").options_class(solved_by="pay")})
    with pytest.raises(UserError, match="solved_by: no reward 'pay'; choose of pays, half"):
        task.notes()


def test_the_filter_asks_for_the_least_reward_where_nothing_names_a_maximum(tmp_path, monkeypatch):
    (tmp_path / "lengths_task.py").write_text(
        "def it(completions, answer, **columns):\n    return [float(len(text)) for text in completions]\n"
    )
    rows = [{**ROWS[0], "response": text} for text in ("", "a", "ab")]
    write_rows(tmp_path / "rows.jsonl", *rows)
    flags = ["filter", "--task", f"{tmp_path}/lengths_task.py:it", "--data", str(tmp_path / "rows.jsonl")]
    flags += ["--output", str(tmp_path / "kept.jsonl"), "--reward-workers", "1"]
    with pytest.raises(UserError, match="names no maximum: say which rows are kept, as with --min-reward 1"):
        main(flags)
    for more, kept in ((["--min-reward", "1"], 2), (["--it.solved-at", "2"], 1)):
        assert main([*flags, *more]) == 0
        assert len((tmp_path / "kept.jsonl").read_text().splitlines()) == kept


def test_a_part_that_is_equal_in_all_rewards_is_named_unless_all_rewards_are_equal():
    one, other = Reward(0.5, {"form": 1.0, "right": 0.0, "timeout": 0.0}), Reward(1.0, {"form": 1.0, "right": 1.0})
    (line,) = equal_parts([one, other])
    assert "equal in all 2 completions: form (1);" in line
    assert not [*equal_parts([one, one])] and not [*equal_parts([])]


def test_a_category_is_of_columns(tmp_path, monkeypatch):
    from minrl import task

    rows = [{"q": str(n), "subject": "algebra", "level": n % 5 or None} for n in range(20)]
    made = task(data=rows, prompt="q", category=("subject", "level"))(lambda completion, row: 1.0).make(
        SimpleNamespace(data_path="")
    )
    found = {one["q"]: dict(one.category) for one in (*made.dataset.train, *made.dataset.held_out)}
    assert found["3"] == {"subject": "algebra", "level": "3"} and found["5"] == {"subject": "algebra"}
