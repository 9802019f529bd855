"""The generators of reasoning-gym as tasks: scored by the library, and guarded from what its verifiers do."""

import pytest

from minrl.__main__ import main
from minrl.rewards.workers import Failure, call
from minrl.tasks import load_task, reasoning_gym
from minrl.tasks.reasoning_gym import (
    EVALUATING,
    PARSING,
    ReasoningGymOptions,
    extract_answer,
    library,
    parse_formula,
)
from minrl.types import Example, Job, Reward, UserError

LEGS = "reasoning_gym/leg_counting"


def load(name="leg_counting", **options):
    chosen = {"size": 6, "held_out_share": 1.0, **options}
    return load_task(f"reasoning_gym/{name}", {f"reasoning_gym/{name}": ReasoningGymOptions(**chosen)})


def problems(task):
    return [*task.dataset.train, *task.dataset.held_out]


def said(answer):
    return f"<think> hm </think> <answer>{answer}</answer>"


def score_of(name, answer, example):
    """The verifier's own score."""
    return reasoning_gym._score(name, "", answer, example.fields)


def test_the_librarys_own_answers_are_solved_and_others_are_not():
    task = load()
    for example in problems(task):
        right, wrong = said(example["answer"]), said(str(int(example["answer"]) + 1))
        assert task.reward(right, example).solved and task.reward(wrong + right, example).solved
        assert task.reward(wrong, example).value < 1 and not task.reward(right + wrong, example).solved
        unanswered = task.reward(example["answer"], example)  # without tags there is no answer
        assert unanswered.parts == {"answered": 0.0, "timeout": 0.0} and task.reward("", example).value == 0


def test_the_answer_is_what_the_library_finds_at_once():
    for text in (
        "<answer> a\nb </answer> c",
        "<answer>x",
        "x</answer>",
        "<answer>1<answer>2</answer>3</answer>",
        said(""),
    ):
        assert extract_answer(text) == library().utils.extract_answer(text)
    assert extract_answer("<answer>" * 200_000) is None  # the library's pattern takes hours


def test_problems_are_split_by_their_question_the_same_each_time():
    task, again = (load(size=60, held_out_share=0.2) for _ in range(2))
    assert [e.id for e in task.dataset.train] == [e.id for e in again.dataset.train]
    train_questions = {e["question"] for e in task.dataset.train}
    held_out = {e["question"] for e in task.dataset.held_out}
    assert train_questions and held_out and not train_questions & held_out
    assert {e["question"] for e in problems(load(size=60, seed=1))} != train_questions | held_out
    # tower_of_hanoi has few problems: what comes twice counts once
    hanoi = problems(load("tower_of_hanoi", size=40, generator='{"min_disks": 3, "max_disks": 3}'))
    assert len({e.id for e in hanoi}) == len(hanoi) < 40


@pytest.mark.parametrize(
    ("name", "why"),
    [("leg_count", "did you mean leg_counting"), ("zzz", "it has ab, acre"), ("", "no generator ''")],
)
def test_an_unknown_generator_is_refused_with_those_that_are_near(name, why):
    with pytest.raises(UserError, match=why):
        load_task(f"reasoning_gym/{name}")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"generator": "[1]"}, "generator must be a JSON object"),
        ({"generator": "{"}, "generator must be a JSON object"),
        ({"generator": '{"min_legs": 2}'}, "leg_counting cannot be made with the options .* unexpected keyword"),
        ({"generator": '{"min_animals": 9, "max_animals": 1}'}, "cannot be made with the options"),
        ({"size": 0}, "size must be at least 1"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"held_out_share": 0.0}, r"held_out_share must be in \(0, 1\]"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, why):
    with pytest.raises(UserError, match=why) as error:
        load(**options)
    assert "\n" not in str(error.value)


def test_an_answer_that_the_verifier_raises_for_is_wrong():
    task = load("prime_factorization")
    example = problems(task)[0]
    with pytest.raises(ValueError, match="invalid literal for int"):
        score_of("prime_factorization", "hello", example)
    for answer in ("hello", "7 \u00d7 2.", "2^2 \u00d7 7"):
        assert task.reward(said(answer), example) == Reward(0.0, {"answered": 1.0, "timeout": 0.0})
    assert task.reward(said(example["answer"]), example).solved


def test_what_a_verifier_raises_for_the_problems_own_answer_is_unscorable_with_its_reason():
    task = load("prime_factorization")
    example = problems(task)[0]
    torn = Example(example.id, "", {**example.fields, "answer": "hello"})
    failed = call(Job(task.reward, (said("1"), torn)))
    assert isinstance(failed, Failure) and "invalid literal for int()" in failed.reason


def test_the_problems_own_answer_is_right_though_the_verifier_cannot_read_it():
    task = load("intermediate_integration")
    own = "Integral(x**x, x) + C"
    example = Example("", "", {**problems(task)[0].fields, "answer": own})
    assert score_of("intermediate_integration", own, example) < 1
    assert task.reward(said(own), example).solved
    with pytest.raises(ValueError, match="scores the problem's own answer"):
        task.reward(said("x + C"), example)


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


def test_a_score_outside_the_range_is_refused(monkeypatch):
    task, example = load(), problems(load())[0]
    for score in (1.5, -0.1, float("nan"), None):
        monkeypatch.setattr(reasoning_gym, "_verifier", lambda *_, score=score: lambda answer, entry: score)
        with pytest.raises(ValueError, match="must give a score from 0 to 1"):
            task.reward(said("1"), example)


def test_a_row_that_lost_something_is_refused_and_not_scored_low():
    """Without its grid arc_agi would score the right answer 0.05."""
    task = load("arc_agi", size=3)
    example = problems(task)[0]
    assert score_of("arc_agi", example["answer"], example) == 1
    torn = type(example)(example.id, "", {**example.fields, "metadata": {"output": []}})
    with pytest.raises(ValueError, match=r"its own answer|own answer 0\.0"):
        task.reward(said("1"), torn)


ATTACKS = (
    "__import__('os').system('touch {file}')",
    "[__import__('pathlib').Path('{file}').touch()]",
    "exec(\"open('{file}', 'w')\")",
    "open('{file}', 'w').close() or 24",
    "(lambda: open('{file}', 'w'))()",
    "[x for x in [open('{file}', 'w')]]",
    "5! + open('{file}', 'w')",
    "preview(x, output='png', filename='{file}')",
    'S(\'__import__("os").system("touch {file}")\')',
)


@pytest.mark.parametrize("module", [*EVALUATING, *PARSING])
def test_no_answer_is_executed(module, tmp_path):
    name = module.partition(".")[2]
    dataset = reasoning_gym._problems(name, ReasoningGymOptions(size=2, held_out_share=1.0))
    for number, attack in enumerate(ATTACKS):
        file = tmp_path / f"{number}"
        for example in dataset.held_out:
            assert reasoning_gym.reward(said(attack.replace("{file}", str(file))), example, name, "").value < 1
        assert not file.exists(), attack
    for example in dataset.held_out:
        assert score_of(name, example["answer"], example) == 1  # the guards leave right answers alone


@pytest.mark.parametrize(
    "text",
    ["test()", "test ()", "(test)()", "x.y", "1 .real", "1..real", "'a'", "[1]", "{1}", "a_b", "f(x)", "5(3)", "x!(3)",
     "lambda x", "x if y else z", "x;y", "x:=1", "log(x)(y)", "x@y", "x\\y", "0x1g.a", "é"],
)  # fmt: skip
def test_only_formulas_are_parsed(text):
    with pytest.raises(ValueError, match="not a plain formula"):
        parse_formula(text)


def test_literals_are_read_as_before():
    task = load("spiral_matrix", size=2)
    example = problems(task)[0]
    # the library pays 0.1 for a Python list of the right numbers
    assert task.reward(said(str(example["answer"].split())), example).value == 0.1


def test_a_mixture_of_generators_is_one_task():
    mixed = '{"datasets": [{"name": "leg_counting"}, {"name": "chain_sum", "weight": 2, "config": {"max_terms": 2}}]}'
    task = load("composite", generator=mixed)
    for example in problems(task):
        assert task.reward(said(example["answer"]), example).solved


def test_training_needs_a_model_and_no_local_data(tmp_path):
    places = ["--runs-dir", str(tmp_path), "--checkpoints-dir", str(tmp_path)]
    with pytest.raises(UserError, match="the embedded base model cannot play 'reasoning_gym/leg_counting'"):
        main(["train", "--task", LEGS, *places])
    with pytest.raises(UserError, match="takes no --data-path"):
        main(["train", "--task", LEGS, "--data-path", "x.jsonl", "--model-id", "x", *places])


@pytest.mark.slow
def test_every_generator_is_a_task_whose_own_answers_are_solved_or_is_refused():
    """Five take seconds for a problem."""
    slow = {"composite", "futoshiki", "knight_swap", "sokoban", "zebra_puzzles"}
    names, refused = sorted({*library().factory.DATASETS} - slow), set()
    for name in names:
        try:
            task = load(name, size=2, held_out_share=1.0)
        except UserError as error:
            assert " 1 in " in str(error), name
            refused.add(name)
            continue
        for example in problems(task):
            if example["answer"] is not None:
                assert score_of(name, example["answer"], example) == 1, name
    assert refused >= set(GUESSES) and len(names) - len(refused) > 75


GUESSES = {
    "puzzle24": r"('1\*2\*3\*4'|another problem's answer)",
    "propositional_logic": "a line of the prompt",
    "number_sorting": "the answer plus 0.9",
    "gsm_symbolic": "the negative answer",
    "coin_flip": ".*",
    "game_of_life_halting": ".*",
}


@pytest.mark.parametrize(("name", "guess"), GUESSES.items())
def test_a_generator_whose_verifier_pays_guesses_is_refused(name, guess):
    with pytest.raises(UserError, match=f"the verifier of reasoning_gym/{name} scores {guess} 1 in") as refused:
        load_task(f"reasoning_gym/{name}")
    assert "\n" not in str(refused.value)


def test_problems_whose_own_answer_is_not_scored_1_are_left_out_counted_and_named(monkeypatch, request):
    lines = request.getfixturevalue("said")
    chosen = reasoning_gym.ReasoningGymOptions(size=12)
    made = reasoning_gym._dataset("leg_counting", "", 12)
    broken = {made[3]["answer"]: 0.5, made[7]["answer"]: ValueError("unread")}
    numbers = [str(n) for n in range(12) if made[n]["answer"] in broken]

    def score(name, generator, answer, entry):
        if isinstance(found := broken.get(answer, 1.0), ValueError):
            raise found
        return found

    monkeypatch.setattr(reasoning_gym, "_score", score)
    dataset = reasoning_gym._problems("leg_counting", chosen)
    kept = {example["answer"] for example in (*dataset.train, *dataset.held_out)}
    assert kept == {made[n]["answer"] for n in range(12)} - broken.keys()
    (line,) = lines
    assert f"{len(numbers)} of 12 problems left out" in line and line.strip().endswith(f"1: {', '.join(numbers)}")
    monkeypatch.setattr(reasoning_gym, "_score", lambda *_: 0.0)
    with pytest.raises(UserError, match=r"12 of 12 problems left out.*choose another generator"):
        reasoning_gym._problems("leg_counting", chosen)
