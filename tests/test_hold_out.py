"""Nothing of a held-out problem's solution is seen: what every task shows, against all that it holds out."""

import random
import re
from collections.abc import Iterator

import pytest

from minrl.dataflow import Example, Prompt
from minrl.tasks import load_task, rust
from minrl.tasks.countdown import sums
from minrl.tasks.task import Task
from tests.runs import write_rows
from tests.test_connections import puzzle

GENERATED = ("countdown", "hanoi", "tictactoe", "code_game", "sentences", "extraction")
"""The tasks that make their own examples."""


def text_of(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else " ".join(message["content"] for message in prompt)


def played(task: Task) -> Iterator[tuple[Example, list[tuple[str, str]]]]:
    """Demonstrations of training examples, as the warm start draws them: what each turn shows and says."""
    rng = random.Random(0)
    for _ in range(200 if task.demonstrations else 0):
        example = rng.choice(task.dataset.train)
        shown = task.demonstrations(example, rng)
        turns = [(example.prompt, shown)] if isinstance(shown, str) else shown
        yield example, [(text_of(prompt), said) for prompt, said in turns]


def said_in(task: Task) -> str:
    """What demonstrations say, and answers to the training examples that they are of."""
    said = []
    for example, turns in played(task):
        said += [text for _, text in turns] + ([task.solution(example)] if task.solution else [])
    return "\n".join(said)


@pytest.mark.parametrize("name", GENERATED)
def test_no_held_out_prompt_and_no_held_out_answer_stands_in_what_is_trained_on(name):
    task = load_task(name)
    if name != "tictactoe":  # what it holds out is the opponent, which no prompt names
        prompts = {text_of(example.prompt) for example in task.dataset.train}
        prompts |= {shown for _, turns in played(task) for shown, _ in turns}
        assert not prompts & {text_of(example.prompt) for example in task.dataset.held_out}
    if task.solution:
        said, answers = said_in(task), [task.solution(example) for example in task.dataset.held_out]
        seen = [answer for answer in answers if answer.removeprefix("<think> </think> ") in said]
        assert not seen, f"{len(seen)} of {len(answers)} held-out answers: {seen[:3]}"


def test_countdown_shows_no_sum_of_held_out_numbers():
    """Neither with another target nor as a sum that was tried and did not fit."""
    task = load_task("countdown")
    said, held_out = said_in(task), {tuple(sorted(example["numbers"])) for example in task.dataset.held_out}
    assert not held_out & {tuple(sorted(example["numbers"])) for example in task.dataset.train}
    for working, expression, _ in (one for numbers in held_out for one in sums(list(numbers))):
        assert f" {working} " not in said and f" {expression} " not in said


@pytest.mark.parametrize(
    ("name", "least", "of"),
    [("hanoi", 40, lambda one: one["pegs"]), ("extraction", 10, lambda one: one["object"]["name"])],
)
def test_pegs_and_names_are_on_one_side(name, least, of):
    """A demonstration of Hanoi stays on the pegs of its problem: it passes through no board of a held-out answer."""
    dataset = load_task(name).dataset
    trained, held_out = (set(map(of, side)) for side in (dataset.train, dataset.held_out))
    assert len(held_out) >= least and not trained & held_out


def python_problem(number: int) -> list[dict]:
    """One text under two ids."""
    row = {"code": "def f(x):\n    return x", "test_setup_code": "", "test_list": ["assert f(1)", "assert f(2)"]}
    return [{"task_id": number + more, "text": f"Problem {number}.", **row} for more in (1000, 2000)]


def rust_problem(number: int) -> list[dict]:
    """One text under two names."""
    row = {"instructions": f"Problem {number}.", "tests": "#[test]\nfn t() { assert_eq!(p::f(), 1); }\n"}
    return [{"slug": f"p{number}{more}", **row} for more in "ab"]


DATA = {
    "gsm8k": lambda n: [{"question": f"What is {space}{n} + 1?", "answer": f"#### {n + 1}"} for space in ("", " ")],
    "math": lambda n: [{"problem": f"What is {space}{n} + 1?", "answer": f"{n + 1}"} for space in ("", " ")],
    "connections": lambda n: [{**puzzle(n), "groups": puzzle(n)["groups"][::order]} for order in (1, -1)],
    "countdown_3to4": lambda n: [{"target": 99, "nums": nums} for nums in ([n, 40, 60], [60, n, 40])],
    "code": python_problem,
    "rust": rust_problem,
}
"""Rows of one problem, which comes twice, for each task that reads its data."""

EXTRAS = {"math": "math_verify", "rust": "tree_sitter_rust"}
"""The library without which a task refuses its data."""


def words_of(prompt: Prompt) -> list[str]:
    """What a prompt asks, in whatever order and white space."""
    return sorted(re.findall(r"\w+", text_of(prompt if isinstance(prompt, str) else prompt[-1:])))


@pytest.mark.parametrize("name", DATA)
def test_no_problem_of_a_file_is_on_both_sides_in_another_form(name, tmp_path, monkeypatch):
    pytest.importorskip(EXTRAS.get(name, "json"), reason=f"needs the extra of {name}")
    monkeypatch.setattr(rust, "toolchain", lambda: "rust")  # nothing is built
    path = write_rows(tmp_path / "rows.jsonl", *(row for number in range(40) for row in DATA[name](number)))
    dataset = load_task(name, data_path=str(path)).dataset
    sides = [{tuple(words_of(example.prompt)) for example in side} for side in (dataset.train, dataset.held_out)]
    assert all(sides) and len(sides[0] | sides[1]) == 40 and not sides[0] & sides[1]
