"""Nothing of a held-out problem's solution is seen: what every task shows, against all that it holds out."""

import json
import random
import re
from collections.abc import Iterator

import pytest

from minrl.dataflow import Example, Prompt
from minrl.tasks import load_task, rust
from minrl.tasks.countdown import CountdownOptions, sums
from minrl.tasks.hanoi import HanoiOptions, distance, moved
from minrl.tasks.task import Task
from tests.test_connections import puzzle

DEMONSTRATIONS = 200
GENERATED = ("countdown", "hanoi", "tictactoe", "code_game", "sentences", "extraction")
"""The tasks that make their own examples."""


def text_of(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else " ".join(message["content"] for message in prompt)


def played(task: Task, count: int = DEMONSTRATIONS) -> Iterator[tuple[Example, list[tuple[str, str]]]]:
    """Demonstrations of training examples, as the warm start draws them: what each turn shows and says."""
    rng = random.Random(0)
    for _ in range(count if task.demonstrations else 0):
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


@pytest.mark.parametrize("options", [CountdownOptions(), CountdownOptions(max_number=6, held_out_share=0.4)])
def test_countdown_shows_no_sum_of_held_out_numbers(options):
    """Neither with another target nor as a sum that was tried and did not fit."""
    task = load_task("countdown", {"countdown": options})
    shown = {
        tuple(sorted(map(int, re.findall(r"(?:^| ; )(\d+) [+-] (\d+) = \d+ [+-] (\d+) = ", working)[0])))
        for _, [(_, said)] in played(task)
        for working in said.removeprefix("<think> ").split(" </think>")[0].split(" ; ")
    }
    held_out = {tuple(sorted(example["numbers"])) for example in task.dataset.held_out}
    trained = {tuple(sorted(example["numbers"])) for example in task.dataset.train}
    assert shown and shown <= trained and not trained & held_out
    said = said_in(task)
    for numbers in held_out:
        assert not [expression for _, expression, _ in sums(list(numbers)) if f" {expression} " in said]


HANOI = HanoiOptions(min_disks=2, max_disks=3, peg_names=5)


def states(example: Example, said: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """The boards from which an answer goes on: pegs, goal, board. What one move solves is every set's."""
    pegs, goal, board, found = example["pegs"], example["goal"], tuple(example["board"]), []
    for disk, peg in re.findall(r": (\d) \w>(\w)", said):
        found += [(pegs, goal, board)] if distance(board, goal, pegs) > 1 else []
        board = moved(board, int(disk), peg)
    return found


def test_hanoi_passes_through_no_board_of_a_held_out_answer():
    task = load_task("hanoi", {"hanoi": HANOI})
    shown = [(example, turns[0][1]) for example, turns in played(task)]
    shown += [(example, task.solution(example)) for example in task.dataset.train[:1000]]
    posed = task.dataset.held_out
    passed, held_out = (
        {state for one in answers for state in states(*one)}
        for answers in (shown, [(example, task.solution(example)) for example in posed])
    )
    assert held_out >= {(e["pegs"], e["goal"], tuple(e["board"])) for e in posed}
    assert passed and not passed & held_out


def test_extraction_trains_on_no_held_out_name():
    dataset = load_task("extraction").dataset
    trained, held_out = ({one["object"]["name"] for one in side} for side in (dataset.train, dataset.held_out))
    assert len(held_out) >= 10 and not trained & held_out


def shown_twice(number: int) -> list[dict]:
    """Sixteen words, shown in one order and in another."""
    row = puzzle(number)
    return [row, {**row, "words": row["words"][::-1], "groups": row["groups"][::-1]}]


def python_problem(number: int) -> list[dict]:
    """One text under two ids."""
    row = {"code": "def f(x):\n    return x", "test_setup_code": "", "test_list": ["assert f(1)", "assert f(2)"]}
    return [{"task_id": number + more, "text": f"Problem {number}.", **row} for more in (1000, 2000)]


def rust_problem(number: int) -> list[dict]:
    """One text under two names."""
    stub, tests = (
        {"src/lib.rs": "pub fn f() -> i32 {\n    todo!()\n}\n"},
        "#[test]\nfn t() { assert_eq!(p::f(), 1); }\n",
    )
    files = {"stub": stub, "tests": {"tests/t.rs": tests}}
    return [{"slug": f"p{number}{more}", "instructions": f"Problem {number}.", **files} for more in "ab"]


DATA = {
    "gsm8k": lambda n: [{"question": f"What is {space}{n} + 1?", "answer": f"#### {n + 1}"} for space in ("", " ")],
    "math": lambda n: [{"problem": f"What is {space}{n} + 1?", "answer": f"{n + 1}"} for space in ("", " ")],
    "connections": shown_twice,
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
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for number in range(40) for row in DATA[name](number)))
    dataset = load_task(name, data_path=str(path)).dataset
    sides = [{tuple(words_of(example.prompt)) for example in side} for side in (dataset.train, dataset.held_out)]
    assert all(sides) and len(sides[0] | sides[1]) == 40 and not sides[0] & sides[1]
