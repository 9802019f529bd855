"""The audit finds each planted fault in its family, and accuses no right reward."""

import json
import pickle
import re
import shutil
import sys
from pathlib import Path

import pytest

from minrl.__main__ import main
from minrl.rewards.worker import call
from minrl.sft.config import RewardConfig
from minrl.tasks import load_task
from minrl.tasks.columns import ColumnReward, definition_of
from minrl.tasks.task import Dataset, Task
from minrl.tools.audit import attack
from minrl.tools.audit import attacks as texts
from minrl.tools.audit.answers import Answers
from minrl.tools.audit.attack import audit
from minrl.tools.audit.attacks import attacks
from minrl.tools.audit.config import AuditConfig
from minrl.tools.audit.families import FAMILIES
from minrl.types import Example, Job, Mistake, UserError
from tests import broken_rewards as broken
from tests.test_code_task import mbpp
from tests.test_connections import puzzle
from tests.test_gsm8k import ROWS as GSM8K_ROWS
from tests.test_math_task import ROWS as MATH_ROWS
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
    monkeypatch.setattr(attack, "Workers", Here)
    monkeypatch.setattr(texts, "LONG", 3 * sys.getrecursionlimit())


def task_of(reward, **more):
    return Task(Dataset(broken.EXAMPLES[8:], broken.EXAMPLES[:8]), reward, **{"solution": broken.solution, **more})


def faults(task, **settings):
    findings, _ = audit(task, AuditConfig(**settings))
    return [one.family for one in findings if one.verdict == "fault"]


PLANTED = {
    # one for each family; the second column is all that the audit may say
    broken.pays_nothing_said: ["empty"],
    broken.pays_blanks: ["whitespace"],
    broken.pays_a_sentence: ["nonsense"],
    broken.pays_the_prompt: ["prompt"],
    broken.pays_the_form: ["format"],
    broken.pays_any_of_a_list: ["candidates"],
    broken.pays_a_draft: ["place"],
    broken.recurses_with_brackets: ["long"],
    broken.believes_isdigit: ["scripts"],
    broken.folds_superscripts: ["scripts"],
    broken.never_pays_in_full: ["gold"],
    broken.pays_any_number: ["other"],
    broken.throws_a_coin: ["twice"],
    broken.raises_for_words_in_tags: ["scripts", "raises"],
    broken.prints_what_it_reads: ["prints"],
    broken.notes_in_the_example: ["example"],
    broken.divides_by_the_number_of_answers: ["nan"],
    broken.pays_more_than_its_maximum: ["nan"],
    broken.forgets_to_return: ["types"],
}
IN_PROCESSES = {
    broken.hashes: ["twice"],
    broken.pays_what_is_new: ["order"],
    broken.shares_a_file: ["parallel"],
    broken.sleeps_over_answers: ["slow"],
    broken.ends_the_process: ["crash"],
}
OF_BATCHES = {broken.of_trl_by_rank: ["batch"]}


def test_every_family_has_a_planted_fault():
    planted = {family for one in (PLANTED, IN_PROCESSES, OF_BATCHES) for found in one.values() for family in found}
    assert planted == set(FAMILIES)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("reward", PLANTED, ids=lambda reward: reward.__name__)
def test_a_planted_fault_is_found_and_nothing_else(reward):
    assert faults(task_of(reward), examples=4) == PLANTED[reward]


@pytest.mark.slow
@pytest.mark.parametrize("reward", IN_PROCESSES, ids=lambda reward: reward.__name__)
def test_a_fault_that_takes_processes_is_found(reward):
    waits = RewardConfig(reward_deadline_s=2 if reward is broken.sleeps_over_answers else 60, reward_workers=1)
    assert faults(task_of(reward), examples=3, reward=waits) == IN_PROCESSES[reward]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("more", [{}, {"solution": None}], ids=["answers declared", "answers found"])
def test_a_right_reward_is_not_accused(more):
    findings, answers = audit(task_of(broken.right, **more), AuditConfig())
    assert {one.family: one.verdict for one in findings if one.verdict != "ok"} == {
        "batch": "not tried",
        **({"other": "not tried"} if more else {}),
    }
    assert answers.texts.keys() == set(range(6)) and answers.declared == (not more)
    assert {answers.prefix.strip(), answers.suffix.strip()} == {"<answer>", "</answer>"}


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


KNOWN = {"reasoning_gym/leg_counting": ["place"]}
"""Its score_answer pays len(right) / len(answer) where the right answer is within the answer: 3/5 for 93469."""


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_IN_WORKERS)
def test_no_task_of_ours_with_graders_of_its_own_is_accused(name, tmp_path):
    rows = OWN_IN_WORKERS[name]
    if name == "rust" and shutil.which("cargo") is None:
        pytest.skip("no cargo")
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or []))
    task = load_task(name, None, str(path) if rows else "")
    findings, answers = audit(task, AuditConfig(examples=3, reward=RewardConfig(reward_deadline_s=120)))
    assert [one.family for one in findings if one.verdict == "fault"] == KNOWN.get(name, [])
    assert answers.declared == (name not in ("code_game", "rust"))


def of_columns(function, prompt=lambda text: text):
    examples = [Example(one.id, prompt(one.prompt), one.fields) for one in broken.EXAMPLES]
    return Task(Dataset([], examples), ColumnReward(function), solution=broken.solution)


def as_chat(text):
    return [{"role": "user", "content": text}]


TRL = {
    # function: its faults
    broken.of_trl: [],
    broken.of_trl_later: [],
    broken.of_trl_where_it_applies: [],
    broken.of_trl_of_weight_two: [],
    broken.of_trl_of_weight_half: [],
    broken.of_trl_by_rank: ["batch"],
    broken.of_trl_without_the_others: ["raises"],
    broken.says_how_many: ["types"],
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("prompt", [str, as_chat], ids=["text", "chat"])
@pytest.mark.parametrize("function", TRL, ids=lambda function: function.__name__)
def test_a_function_of_trls_form_is_attacked(function, prompt):
    assert faults(of_columns(function, prompt)) == TRL[function]


def test_a_function_of_trls_form_is_given_what_trl_gives():
    def reward(**given):
        seen.update(given)
        return [None, 2.5]

    seen = {}
    examples = [Example("", as_chat(f"{n}?"), {"answer": n, "level": "easy"}) for n in (1, 2)]
    assert ColumnReward(reward).together(["1", "\u00fc"], examples) == [None, 2.5]
    state, functions = seen.pop("trainer_state"), [seen.pop(name) for name in ("log_extra", "log_metric")]
    assert state.global_step == 0 and [function("name", 1.0) for function in functions] == [None, None]
    assert seen == {
        "prompts": [as_chat("1?"), as_chat("2?")],
        "completions": [[{"role": "assistant", "content": text}] for text in ("1", "\u00fc")],
        "completion_ids": [[49], [0xC3, 0xBC]],
        "answer": [1, 2],
        "level": ["easy", "easy"],
    }


def test_a_function_of_trls_form_is_a_task_of_a_file(tmp_path):
    (tmp_path / "mine_of_trl.py").write_text(
        "def reward(completions, answer, **columns):\n    return [2.0] * len(answer)\n"
    )
    rows = [{"prompt": f"{n}?", "answer": n} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load_task(f"{tmp_path}/mine_of_trl.py:reward", None, str(tmp_path / "rows.jsonl"))
    example = task.dataset.train[0]
    paid = call(task.paid("no", example))
    assert (example.prompt, task.name, paid.value, paid.solved) == (f"{example['answer']}?", "reward", 2.0, True)
    with pytest.raises(UserError, match="the columns prompt"):
        load_task(f"{tmp_path}/mine_of_trl.py:reward").dataset.sizes()
    with pytest.raises(UserError, match=r"held_out_share must be in \[0, 1\], got 2"):
        definition_of(broken.of_trl).options(held_out_share=2)


@pytest.mark.parametrize("paid", [None, 1.0, [1.0, 1.0], "1", {"a": 1}])
def test_a_function_that_returns_no_list_of_one_for_each_is_a_mistake(paid):
    with pytest.raises(Mistake, match="must return a list of 1, one of each"):
        ColumnReward(lambda **given: paid)("text", Example("", "?", {}))


@pytest.mark.usefixtures("here")
def test_families_that_are_left_out_are_still_what_the_others_are_judged_by():
    task = task_of(broken.pays_any_number)
    assert faults(task, examples=4, leave_out=("other", "nonsense", "gold")) == []  # a list of numbers is no number


def test_a_prompt_that_holds_the_answer_is_not_copied():
    examples = [Example(str(n), f"Say pear {n}.", {}) for n in range(3)]
    held = Answers(dict(enumerate(["Pear  0", "pear 1", "apple 2"])), "", True)
    assert {one.number for one in attacks(examples, held, 0) if one.family == "prompt"} == {2}


def test_of_programs_none_is_put_beside_another():
    examples = [Example(str(n), "?", {}) for n in range(4)]
    programs = Answers({n: f"def f{n}():\n    return {n}" for n in range(4)}, "", True)
    families = [one.family for one in attacks(examples, programs, 0)]
    assert "candidates" not in families and families.count("place") == families.count("other") == 12


def test_a_number_within_a_longer_one_is_another_number():
    examples = [Example(str(n), "?", {}) for n in range(2)]
    numbers = Answers({0: "<a>12</a>", 1: "<a>34</a>"}, "", True, "<a>", "</a>")
    alone = [one.text for one in attacks(examples, numbers, 0) if one.family == "place" and not one.trial]
    assert alone == ["<a>9129</a>", "<a>9349</a>"]


def test_digits_of_another_script_that_are_the_right_number_may_be_paid():
    example, answers = Example("1", "?", {}), Answers({0: "12", 1: "30"}, "", True)
    made = [one for one in attacks([example, example], answers, 0) if one.family == "scripts"]
    assert {one.may_be_paid for one in made if one.text == "\u2460\u2461" and one.number == 0} == {True}
    assert {one.may_be_paid for one in made if one.text == "\u2460\u2461" and one.number == 1} == {False}


def test_the_right_answer_among_others_is_neither_the_first_nor_the_last():
    examples = [Example(str(n), "?", {}) for n in range(5)]
    words = Answers({n: f"w{n}" for n in range(5)}, "", True)
    lists = [one for one in attacks(examples, words, 0) if one.family == "candidates"]
    assert lists
    for one in lists:
        said = [text for text in one.text.replace(",", " ").split() if text != "or"]
        assert f"w{one.number}" in said[1:-1] and set(said) == {f"w{n}" for n in range(5)}


@pytest.mark.usefixtures("here")
def test_the_command_says_status_table_and_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = "from tests.broken_rewards import of_trl\n\ndef lax(completions, answer, **columns):\n"
    source += "    return [float(str(gold) in said) for said, gold in zip(completions, answer)]\n"
    (tmp_path / "mine_for_audit.py").write_text(source)
    rows = [{"prompt": one.prompt, "answer": str(one["answer"])} for one in broken.EXAMPLES[:6]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--data-path", str(tmp_path / "rows.jsonl"), "--gold-column", "answer"]
    output = tmp_path / "new" / "audit.json"
    named = f"{tmp_path}/mine_for_audit.py"
    assert main(["audit", "--task", f"{named}:lax", *flags, "--output", str(output)]) == 1
    shown, written = capsys.readouterr().out, json.loads(output.read_text())
    assert written["faults"] == ["candidates", "place"] and written["answers"] == "--gold-column answer"
    assert [one["family"] for one in written["findings"]] == list(FAMILIES)
    assert (
        "place       FAULT" in shown
        and "lax: 2 faults, " in shown
        and FAMILIES["place"].mend in " ".join(shown.split())
    )
    assert all(len(line) <= 100 for line in shown.splitlines())
    assert main(["audit", "--task", f"{named}:lax", *flags, "--leave-out", "candidates", "place"]) == 0
    assert "candidates" not in capsys.readouterr().out
    with pytest.raises(UserError, match="--gold-column nothing: no such field; the examples have answer"):
        main(["audit", "--task", f"{named}:lax", *flags[:2], "--gold-column", "nothing"])


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
    page, readme = ((ROOT / one).read_text() for one in ("docs/audit.md", "README.md"))
    source = re.search(r"```python\n(.*?)```" if name == "beads" else r"```py\n(.*?)```", readme + page, re.DOTALL)
    (tmp_path / f"{name}.py").write_text(source[1])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "100")
    rows = [json.dumps({"prompt": f"{n + 11} + {2 * n + 17} =", "answer": str(3 * n + 28)}) for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    more = [] if name == "beads" else ["--data-path", str(tmp_path / "rows.jsonl"), "--gold-column", "answer"]
    assert main(["audit", "--task", f"{tmp_path}/{name}.py:{name}", *more]) == (name != "beads")
    printed = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert f"```\n{printed}```" in page
    sys.modules.pop(name)
