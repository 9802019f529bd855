"""The generators of reasoning-gym as tasks: scored by the library, and guarded from what its verifiers do."""

import contextlib
import re
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import pytest

from minrl.__main__ import main
from minrl.dataflow import Example, Reward, UserError
from minrl.tasks import load_task, reasoning_gym
from minrl.tasks.grader import OutOfTime, bounded
from minrl.tasks.reasoning_gym import EVALUATING, REFUSED, ReasoningGymOptions, library

LEGS = "reasoning_gym/leg_counting"


def load(name="leg_counting", **options):
    chosen = {"size": 6, "held_out_share": 1.0, **options}
    return load_task(f"reasoning_gym/{name}", {f"reasoning_gym/{name}": ReasoningGymOptions(**chosen)})


def problems(task):
    return [*task.dataset.train, *task.dataset.held_out]


def posed(name):
    """A problem of the generator, and the reward of an answer to it."""
    example = reasoning_gym._problems(name, ReasoningGymOptions(size=2, held_out_share=1.0)).held_out[0]
    return example, lambda answer, one=example: reasoning_gym.reward(said(answer), one, name, "")


def said(answer):
    return f"<think> hm </think> <answer>{answer}</answer>"


def test_the_librarys_own_answers_are_solved_and_others_are_not():
    task = load()
    for example in problems(task):
        right, wrong = said(example["answer"]), said(str(int(example["answer"]) + 1))
        assert task.reward(right, example).solved and task.reward(wrong + right, example).solved
        assert task.reward(wrong, example).value < 1 and not task.reward(right + wrong, example).solved
        unanswered = task.reward(example["answer"], example)  # without tags there is no answer
        assert unanswered.parts == {"answered": 0.0, "timeout": 0.0} and task.reward("", example).value == 0
        assert task.reward("<answer>" * 20_000, example).value == 0  # the library's pattern takes hours


@pytest.mark.parametrize("name", [*REFUSED, "leg_count"])
def test_a_generator_that_is_unknown_or_unsafe_is_refused(name):
    with pytest.raises(UserError, match=REFUSED.get(name, "did you mean leg_counting")):
        load_task(f"reasoning_gym/{name}")


@pytest.mark.parametrize("options", ["[1]", '{"min_legs": 2}'])
def test_options_that_the_generator_does_not_take_are_refused_in_one_line(options):
    with pytest.raises(UserError, match=r"leg_counting cannot be made with the options [^\n]*$"):
        load(generator=options)


def test_an_answer_that_the_verifier_raises_for_or_scores_oddly_is_wrong_and_the_problems_own_is_right(monkeypatch):
    example, paid = posed("prime_factorization")
    with pytest.raises(ValueError, match="invalid literal for int"):
        reasoning_gym.generator("prime_factorization", "").score_answer("hello", dict(example.fields))
    assert paid("hello") == Reward(0.0, {"answered": 1.0, "timeout": 0.0}) and paid(example["answer"]).solved
    assert paid("hello", Example("", "", {**example.fields, "answer": "hello"})).solved
    for score in (1.5, -0.1, float("nan"), None):
        assert reasoning_gym._score(lambda *_, score=score: score, "1", example.fields) == 0


def test_one_problem_in_another_order_is_on_one_side_the_same_each_time():
    """Of 1 to 9, 36 pairs of different numbers are made in either order."""
    numbers = '{"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 9}'
    dataset, again = (load("lcm", size=300, held_out_share=0.2, generator=numbers).dataset for _ in range(2))
    assert [e.id for e in dataset.train] == [e.id for e in again.train]
    train, held_out = (
        [tuple(sorted(example["metadata"]["numbers"])) for example in side]
        for side in (dataset.train, dataset.held_out)
    )
    assert train and held_out and not set(train) & set(held_out)
    assert len(set(train)) < len(train) and len(set(held_out)) < len(held_out)  # both orders were made
    boards = load("n_queens", size=60, held_out_share=0.2).dataset  # most have the words of another
    assert 0 < len(boards.held_out) < len(boards.train) / 2


ATTACKS = (
    "__import__('os').system('touch {file}')",
    "[__import__('pathlib').Path('{file}').touch()]",
    "exec(\"open('{file}', 'w')\")",
    "open('{file}', 'w').close() or 24",
)


@pytest.mark.parametrize("name", [module.partition(".")[2] for module in EVALUATING])
def test_no_answer_is_executed(name, tmp_path):
    example, paid = posed(name)
    for number, attack in enumerate(ATTACKS):
        file = tmp_path / f"{number}"
        assert paid(attack.replace("{file}", str(file))).value < 1
        assert not file.exists(), attack
    verify = reasoning_gym.generator(name, "").score_answer
    assert verify(example["answer"], dict(example.fields)) == 1  # the guards leave right answers alone


def test_training_needs_a_model_and_no_local_data(tmp_path):
    places = ["--runs-dir", str(tmp_path), "--checkpoints-dir", str(tmp_path)]
    with pytest.raises(UserError, match="the embedded base model cannot play 'reasoning_gym/leg_counting'"):
        main(["train", "--task", LEGS, *places])
    with pytest.raises(UserError, match="takes no --data-path"):
        load_task(LEGS, data_path="x.jsonl")


def test_problems_whose_own_answer_is_not_scored_1_are_left_out_and_counted(monkeypatch, request):
    lines = request.getfixturevalue("said")
    made = reasoning_gym.generator("leg_counting", "", 12)
    broken = {made[3]["answer"], made[7]["answer"]}
    monkeypatch.setattr(reasoning_gym, "_scores_own", lambda verify, own, fields: own not in broken)
    dataset = reasoning_gym._problems("leg_counting", ReasoningGymOptions(size=12))
    kept = {example["answer"] for example in (*dataset.train, *dataset.held_out)}
    assert kept == {made[n]["answer"] for n in range(12)} - broken
    (line,) = lines
    assert f"{sum(made[n]['answer'] in broken for n in range(12))} of 12 problems left out" in line


CONSTANTS = (
    *("", "there is no such answer", "nan", "inf", "-inf", "1e999", "?", "()", "[[", "\0", "None", "lambda: 1"),
    *("0", "1", "-1", "1*2*3*4", "True", "yes"),
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def guesses(entry, other):
    """Wrong answers: constants, another problem's, lines of the prompt, the problem's own with other numbers."""
    own = str(entry["answer"] or "")
    yield from CONSTANTS
    yield str(other["answer"])
    for line in str(entry["question"]).splitlines():
        yield from {line, re.sub(r"^\s*(?:[-*]|\w{1,3}[.):])\s+", "", line)} - {""}
    if NUMBER.search(own):
        yield NUMBER.sub(lambda number: str(Decimal(number[0]) + Decimal("0.9")), own)
        yield NUMBER.sub(lambda number: str(Decimal(number[0]) + 1), own)
        yield NUMBER.sub(lambda number: str(-Decimal(number[0])), own, count=1)


def is_own(text, own):
    with contextlib.suppress(ValueError, ZeroDivisionError, OverflowError):
        return abs(Fraction(text) - Fraction(own)) <= 1e-3
    return text.casefold().split() == own.casefold().split()


def share_that_pays(name, size):
    """The largest share of problems on which guesses of one kind, by their place, are scored 1."""
    made = reasoning_gym.generator(name, "", size)
    entries, paid = [made[n] for n in range(size)], Counter()
    for entry, other in zip(entries, entries[1:] + entries[:1], strict=True):
        fields = {field: entry[field] for field in reasoning_gym.FIELDS}
        for kind, text in enumerate(guesses(entry, other)):
            with contextlib.suppress(OutOfTime), bounded(2.0):
                right = is_own(text, str(entry["answer"] or ""))
                paid[kind] += not right and reasoning_gym._score(made.score_answer, text, fields) == 1
    return max(paid.values(), default=0) / size


@pytest.mark.slow
def test_a_generator_is_a_task_whose_own_answers_are_solved_and_whose_guesses_are_not():
    """All but those that take seconds for a problem."""
    slow = {"futoshiki", "knight_swap", "sokoban", "zebra_puzzles"}
    names = sorted({*library().factory.DATASETS} - slow - {*REFUSED})
    for name in names:
        for example in problems(task := load(name, size=2)):
            assert example["answer"] is None or task.reward(task.solution(example), example).solved, name
        assert share_that_pays(name, 20) <= 0.05, name
    assert len(names) > 80
