"""The generators of reasoning-gym as tasks: scored by the library, and guarded from what its verifiers do."""

import pytest

from minrl.__main__ import main
from minrl.dataflow import Example, Job, Reward, UserError
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

LEGS = "reasoning_gym/leg_counting"


def load(name="leg_counting", **options):
    chosen = {"size": 6, "held_out_share": 1.0, **options}
    return load_task(f"reasoning_gym/{name}", {f"reasoning_gym/{name}": ReasoningGymOptions(**chosen)})


def problems(task):
    return [*task.dataset.train, *task.dataset.held_out]


def posed(name):
    """A problem of the generator, without the trial of guesses, and the reward of an answer to it."""
    example = problems_of(name)[0]
    return example, lambda answer, one=example: reasoning_gym.reward(said(answer), one, name, "")


def problems_of(name):
    return reasoning_gym._problems(name, ReasoningGymOptions(size=2, held_out_share=1.0)).held_out


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
    for text in ("<answer> a\nb </answer> c", "<answer>x", "<answer>1<answer>2</answer>3</answer>", said("")):
        assert extract_answer(text) == library().utils.extract_answer(text)
    assert extract_answer("<answer>" * 200_000) is None  # the library's pattern takes hours


def test_problems_are_split_by_their_question_the_same_each_time():
    task, again = (load(size=60, held_out_share=0.2) for _ in range(2))
    assert [e.id for e in task.dataset.train] == [e.id for e in again.dataset.train]
    train_questions = {e["question"] for e in task.dataset.train}
    held_out = {e["question"] for e in task.dataset.held_out}
    assert train_questions and held_out and not train_questions & held_out
    assert {e["question"] for e in problems(load(size=60, seed=1))} != train_questions | held_out


def test_an_unknown_generator_is_refused_with_those_that_are_near():
    with pytest.raises(UserError, match="did you mean leg_counting"):
        load_task("reasoning_gym/leg_count")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"generator": "[1]"}, "generator must be a JSON object"),
        ({"generator": '{"min_legs": 2}'}, "leg_counting cannot be made with the options .* unexpected keyword"),
        ({"size": 0}, "size must be at least 1"),
        ({"held_out_share": 0.0}, r"held_out_share must be in \(0, 1\]"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, why):
    with pytest.raises(UserError, match=why) as error:
        load(**options)
    assert "\n" not in str(error.value)


def test_an_answer_that_the_verifier_raises_for_is_wrong_and_the_problems_own_is_unscorable():
    example, paid = posed("prime_factorization")
    with pytest.raises(ValueError, match="invalid literal for int"):
        score_of("prime_factorization", "hello", example)
    assert paid("hello") == Reward(0.0, {"answered": 1.0, "timeout": 0.0}) and paid(example["answer"]).solved
    torn = Example(example.id, "", {**example.fields, "answer": "hello"})
    failed = call(Job(paid, ("1", torn)))
    assert isinstance(failed, Failure) and "invalid literal for int()" in failed.reason


def test_the_problems_own_answer_is_right_though_the_verifier_cannot_read_it():
    example, paid = posed("intermediate_integration")
    own = "Integral(x**x, x) + C"
    unread = Example("", "", {**example.fields, "answer": own})
    assert score_of("intermediate_integration", own, unread) < 1
    assert paid(own, unread).solved
    with pytest.raises(ValueError, match="scores the problem's own answer"):
        paid("x + C", unread)


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
    _, paid = posed("leg_counting")
    for score in (1.5, -0.1, float("nan"), None):
        monkeypatch.setattr(reasoning_gym, "_verifier", lambda *_, score=score: lambda answer, entry: score)
        with pytest.raises(ValueError, match="must give a score from 0 to 1"):
            paid("1")


def test_a_row_that_lost_something_is_refused_and_not_scored_low():
    """Without its grid arc_agi would score the right answer 0.05."""
    example, paid = posed("arc_agi")
    assert score_of("arc_agi", example["answer"], example) == 1
    with pytest.raises(ValueError, match=r"its own answer|own answer 0\.0"):
        paid("1", Example(example.id, "", {**example.fields, "metadata": {"output": []}}))


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
    made = problems_of(name)
    for number, attack in enumerate(ATTACKS):
        file = tmp_path / f"{number}"
        for example in made:
            assert reasoning_gym.reward(said(attack.replace("{file}", str(file))), example, name, "").value < 1
        assert not file.exists(), attack
    for example in made:
        assert score_of(name, example["answer"], example) == 1  # the guards leave right answers alone


@pytest.mark.parametrize(
    "text",
    ["test()", "(test)()", "x.y", "1 .real", "'a'", "[1]", "a_b", "f(x)", "5(3)", "lambda x", "x if y else z", "x;y",
     "x:=1", "log(x)(y)", "x@y", "é"],
)  # fmt: skip
def test_only_formulas_are_parsed(text):
    with pytest.raises(ValueError, match="not a plain formula"):
        parse_formula(text)


def test_literals_are_read_as_before():
    example, paid = posed("spiral_matrix")
    assert paid(str(example["answer"].split())).value == 0.1  # the library's for a Python list of the right numbers


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
        load_task(LEGS, data_path="x.jsonl")


@pytest.mark.slow
def test_a_generator_is_a_task_whose_own_answers_are_solved_or_is_refused(monkeypatch):
    """Every fourth of those that do not take seconds for a problem, and guesses on fewer problems than in training."""
    monkeypatch.setattr(reasoning_gym, "TRIAL_S", 0.3)
    slow = {"composite", "futoshiki", "knight_swap", "sokoban", "zebra_puzzles"}
    names, refused = sorted({*library().factory.DATASETS} - slow)[::4], set()
    for name in names:
        try:
            task = load(name, size=2)
        except UserError as error:
            assert " 1 in " in str(error), name
            refused.add(name)
            continue
        for example in problems(task):
            if example["answer"] is not None:
                assert score_of(name, example["answer"], example) == 1, name
    assert len(names) > 20 and len(refused) < len(names) / 4


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        pytest.param("puzzle24", r"('1\*2\*3\*4'|another problem's answer)", marks=pytest.mark.slow),
        ("propositional_logic", "a line of the prompt"),
        ("number_sorting", "the answer plus 0.9"),
        ("gsm_symbolic", "the negative answer"),
    ],
)
def test_a_generator_whose_verifier_pays_guesses_is_refused(name, guess):
    with pytest.raises(UserError, match=f"the verifier of reasoning_gym/{name} scores {guess} 1 in") as refused:
        load_task(f"reasoning_gym/{name}")
    assert "\n" not in str(refused.value)


def test_problems_whose_own_answer_is_not_scored_1_are_left_out_counted_and_named(monkeypatch, request):
    lines = request.getfixturevalue("said")
    chosen = ReasoningGymOptions(size=12)
    made = reasoning_gym._dataset("leg_counting", "", 12)
    broken = {made[3]["answer"], made[7]["answer"]}
    numbers = [str(n) for n in range(12) if made[n]["answer"] in broken]
    monkeypatch.setattr(reasoning_gym, "_score", lambda name, generator, answer, entry: float(answer not in broken))
    dataset = reasoning_gym._problems("leg_counting", chosen)
    kept = {example["answer"] for example in (*dataset.train, *dataset.held_out)}
    assert kept == {made[n]["answer"] for n in range(12)} - broken
    (line,) = lines
    assert f"{len(numbers)} of 12 problems left out" in line and line.strip().endswith(f"1: {', '.join(numbers)}")
    monkeypatch.setattr(reasoning_gym, "_score", lambda *_: 0.0)
    with pytest.raises(UserError, match=r"12 of 12 problems left out.*choose another generator"):
        reasoning_gym._problems("leg_counting", chosen)
