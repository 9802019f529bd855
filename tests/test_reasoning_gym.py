"""The generators of reasoning-gym as tasks: scored by the library, and guarded from what its verifiers do."""

import contextlib
from collections import Counter

import pytest

from minrl.dataflow import Example, Reward, UserError
from minrl.tasks import load_task, reasoning_gym
from minrl.tasks.grader import OutOfTime, bounded
from minrl.tasks.reasoning_gym import EVALUATING, REFUSED, ReasoningGymOptions, library


def load(name="leg_counting", **options):
    chosen = {"size": 6, "held_out_share": 1.0, **options}
    return load_task(f"reasoning_gym/{name}", {f"reasoning_gym/{name}": ReasoningGymOptions(**chosen)})


def posed(name):
    """A problem of the generator, and the reward of an answer to it."""
    example = reasoning_gym._problems(name, ReasoningGymOptions(size=2, held_out_share=1.0)).held_out[0]
    return example, lambda answer, one=example: reasoning_gym.reward(said(answer), one, name, "")


def said(answer):
    return f"<think> hm </think> <answer>{answer}</answer>"


def test_the_librarys_own_answers_are_solved_and_others_are_not():
    task = load()
    for example in task.dataset.held_out:
        right, wrong = said(example["answer"]), said(str(int(example["answer"]) + 1))
        assert task.reward(right, example).solved and task.reward(wrong + right, example).solved
        assert task.reward(wrong, example).value < 1 and not task.reward(right + wrong, example).solved
        unanswered = task.reward(example["answer"], example)  # without tags there is no answer
        assert unanswered.parts == {"answered": 0.0, "timeout": 0.0} and task.reward("", example).value == 0
        assert task.reward("<answer>" * 20_000, example).value == 0  # the library's pattern takes hours


def test_a_generator_that_is_unknown_or_unsafe_is_refused_and_so_are_options_that_it_does_not_take():
    for name, said in {**REFUSED, "leg_count": "did you mean leg_counting"}.items():
        with pytest.raises(UserError, match=said):
            load_task(f"reasoning_gym/{name}")
    with pytest.raises(UserError, match=r"leg_counting cannot be made with the options [^\n]*$"):
        load(generator='{"min_legs": 2}')


def test_an_answer_that_the_verifier_raises_for_is_wrong_and_the_problems_own_is_right():
    example, paid = posed("prime_factorization")
    with pytest.raises(ValueError, match="invalid literal for int"):
        reasoning_gym.generator("prime_factorization", "").score_answer("hello", dict(example.fields))
    assert paid("hello") == Reward(0.0, {"answered": 1.0, "timeout": 0.0}) and paid(example["answer"]).solved
    assert paid("hello", Example("", "", {**example.fields, "answer": "hello"})).solved


@pytest.mark.parametrize("answer", ["1e999999999", "9**9**9**9", "99999999!", "9" * 9999, "(" * 5000, "\0"])
def test_an_answer_that_costs_much_or_breaks_its_reader_is_wrong(answer, monkeypatch):
    monkeypatch.setattr(reasoning_gym, "GRADING_S", 0.3)
    assert posed("prime_factorization")[1](answer).value <= 0.01  # what the verifier pays for any


def test_one_problem_in_another_order_is_on_one_side():
    """Of 1 to 9, 36 pairs of different numbers are made in either order."""
    numbers = '{"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 9}'
    dataset = load("lcm", size=300, held_out_share=0.2, generator=numbers).dataset
    train, held_out = (
        [tuple(sorted(example["metadata"]["numbers"])) for example in side]
        for side in (dataset.train, dataset.held_out)
    )
    assert train and held_out and not set(train) & set(held_out)
    assert len(set(train)) < len(train) and len(set(held_out)) < len(held_out)  # both orders were made


ATTACKS = ("__import__('os').system('touch {file}')", "[__import__('pathlib').Path('{file}').touch()]")


@pytest.mark.parametrize("name", [module.partition(".")[2] for module in EVALUATING])
def test_no_answer_is_executed(name, tmp_path):
    example, paid = posed(name)
    for number, attack in enumerate(ATTACKS):
        file = tmp_path / f"{number}"
        assert paid(attack.replace("{file}", str(file))).value < 1
        assert not file.exists(), attack
    verify = reasoning_gym.generator(name, "").score_answer
    assert verify(example["answer"], dict(example.fields)) == 1  # the guards leave right answers alone


def test_problems_whose_own_answer_is_not_scored_1_are_left_out_and_counted(monkeypatch, request):
    lines = request.getfixturevalue("said")
    made = reasoning_gym.generator("leg_counting", "", 12)
    broken = made[3]["answer"]
    monkeypatch.setattr(reasoning_gym, "_scores_own", lambda verify, own, fields: own != broken)
    dataset = reasoning_gym._problems("leg_counting", ReasoningGymOptions(size=12))
    assert broken not in {example["answer"] for example in (*dataset.train, *dataset.held_out)}
    assert "1 of 12 problems left out" in lines[0]


GUESSES = ("", "no such answer", "nan", "inf", "1e999", "()", "None", "1*2*3*4", "True", "yes")


def share_that_pays(name, size):
    """The largest share of problems on which one of the guesses is scored 1, though it is not the answer."""
    made, paid = reasoning_gym.generator(name, "", size), Counter()
    for entry in (made[number] for number in range(size)):
        fields = {field: entry[field] for field in reasoning_gym.FIELDS}
        for text in GUESSES:
            with contextlib.suppress(OutOfTime), bounded(2.0):
                right = text.casefold() == str(entry["answer"] or "").casefold()
                paid[text] += not right and reasoning_gym._score(made.score_answer, text, fields) == 1
    return max(paid.values()) / size


@pytest.mark.slow
def test_a_generator_is_a_task_whose_own_answers_are_solved_and_whose_guesses_are_not():
    """All but those that take seconds for a problem."""
    slow = {"futoshiki", "knight_swap", "sokoban", "zebra_puzzles"}
    names = sorted({*library().factory.DATASETS} - slow - {*REFUSED})
    for name in names:
        for example in (task := load(name, size=2)).dataset.held_out:
            assert example["answer"] is None or task.reward(task.solution(example), example).solved, name
        assert share_that_pays(name, 20) <= 0.05, name
    assert len(names) > 80
