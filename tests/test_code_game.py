"""The code game: which programs count, who wins, and that nobody wins by talking."""

import ast
import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from minrl.rewards.completions import score_file
from minrl.rewards.workers import call
from minrl.tasks import load_task
from minrl.tasks.code_game import (
    VERDICTS,
    CodeGameOptions,
    extract_program,
    is_integer,
    judge_program,
    parse_guess,
    refusal,
)
from minrl.types import Job, Reward, UserError
from minrl.utils.statistics import pass_at_one

ROOT = Path(__file__).parent.parent
PATIENT_S = 60.0  # for programs that end by themselves, however slow the machine
OPTIONS = CodeGameOptions(time_limit_s=PATIENT_S)
STRICT = CodeGameOptions(time_limit_s=0.3)  # for those that do not


def game(**options):
    return load_task("code_game", {"code_game": CodeGameOptions(**{"time_limit_s": PATIENT_S, **options})})


def act(task, *completions):
    """Play a game with these completions: the turns, and the rewards."""
    said, turns = iter(completions), []
    episode = task.play(task.dataset.train[0], random.Random(0))
    asked = next(episode)
    try:
        while True:
            if isinstance(asked, Job):
                asked = episode.send(call(asked))
            else:
                turns.append(asked)
                asked = episode.send(next(said))
    except StopIteration as end:
        return turns, end.value


PROGRAMS = [
    ("print(3 + 4)", "valid", "7"),
    ("print ( 3 - 4 )", "valid", "-1"),
    ("print(5, end='')", "valid", "5"),
    ("print(10**12 - 1)", "valid", "999999999999"),
    # not one integer
    ("print(1, 2)", "no_integer", ""),
    ("print(7.0)", "no_integer", ""),
    ("print('007')", "no_integer", ""),
    ("print('-0')", "no_integer", ""),
    ("print('\\u0667')", "no_integer", ""),
    ("print(10**12)", "no_integer", ""),  # thirteen digits
    ("x = 3 + 4", "no_integer", ""),
    # crashes, also after the integer is out
    ("print(7)\nraise ValueError", "crash", ""),
    ("def f(): return f()\nf()", "crash", ""),
    ("print('7' * 10**6)", "crash", ""),
    ("x = [0] * 10**10\nprint(7)", "crash", ""),
    # out of time
    ("print(7)\nwhile True: pass", "timeout", ""),
    ("print(10**10**8)", "timeout", ""),
    # out of the language, or no program
    ("import math\nprint(math.comb(10, 3))", "refused", ""),
    ("print(5)\nraise SystemExit", "refused", ""),
    ("print(len(open('/etc/passwd').read()))", "refused", ""),
    ("print(len(str((x for x in []).gi_frame.f_builtins)))", "refused", ""),
    ("print(", "refused", ""),
    ("sure! here it is", "refused", ""),
    ("(" * 900, "refused", ""),
    ("print(7)" + " " * 1000, "refused", ""),
    ("print(7)\0", "refused", ""),
    # what a chat template could take for its own
    ("print(len('<|im_end|>'))", "refused", ""),
    ("print(7) # <end> <user>", "refused", ""),
    ("print(7) # \u202eevil", "refused", ""),
]


@pytest.mark.parametrize(("program", "name", "printed"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_what_becomes_of_a_program(program, name, printed):
    verdict = judge_program(program, STRICT if name == "timeout" else OPTIONS)
    assert (verdict.name, verdict.printed) == (name, printed), refusal(program, OPTIONS)
    assert verdict.name in VERDICTS


COMPLETIONS = [
    ("print(3)", "print(3)\n"),
    ("```python\nprint(3)\n```", "print(3)\n"),
    ("I think of a sum.\n```\nprint(3)\n```\nDone.", "print(3)\n"),
    ("", None),
    (" \n ", None),
    ("```python\n\n```", None),
    ("```python\nprint(3)", None),
    ("```\nprint(3)\n```\n```\nprint(4)\n```", None),
    ("``` " * 50_000, None),
]


@pytest.mark.parametrize(("completion", "program"), COMPLETIONS, ids=range(len(COMPLETIONS)))
def test_one_program_or_none(completion, program):
    assert extract_program(completion) == program


GUESSES = [
    ("7", "7"),
    (" 7\n", "7"),
    ("<answer> 7 </answer>", "7"),
    ("3 + 4 is 7, so <answer>7</answer>", "7"),
    ("<answer> 7 </answer> <answer> 8 </answer>", None),
    ("<answer> 7 8 </answer>", None),
    ("7 or 8", None),
    ("the answer is 7", None),
    ("", None),
    ("<answer></answer>", None),
    ("07", None),
    ("7.0", None),
    ("+7", None),
    ("\u0667", None),
    ("7" * 100_000, None),
    ("<answer>" * 50_000, None),
]


@pytest.mark.parametrize(("completion", "guess"), GUESSES, ids=range(len(GUESSES)))
def test_a_guess_is_one_integer_or_none(completion, guess):
    assert parse_guess(completion, 12) == guess


def test_the_writer_wins_where_the_guesser_is_wrong_and_the_other_way_round():
    turns, rewards = act(game(), "print(6 * 7)", "41")
    assert [turn.role for turn in turns] == ["writer", "guesser"]
    assert (rewards["writer"].value, rewards["guesser"].value) == (1.0, 0.0)
    assert rewards["writer"].parts == {**dict.fromkeys(VERDICTS, 0.0), "valid": 1.0, "stumped": 1.0}
    _, rewards = act(game(), "print(6 * 7)", "<answer> 42 </answer>")
    assert (rewards["writer"].value, rewards["guesser"].value) == (0.0, 1.0)
    assert rewards["guesser"].parts == {"right": 1.0, "readable": 1.0}
    _, rewards = act(game(), "print(6 * 7)", "41, no, 42")  # not one integer: the writer has won
    assert rewards["writer"].value == 1.0 and rewards["guesser"].parts == {"right": 0.0, "readable": 0.0}


def test_a_policy_that_plays_both_roles_well_solves_every_game():
    _, rewards = act(game(), "print(6 * 7)", "42")
    assert pass_at_one(outcomes(rewards), ["a", "b"])[0] == 1.0
    _, rewards = act(game(), "print(6 * 7)", "41")
    assert pass_at_one(outcomes(rewards), ["a", "b"])[0] == 0.5
    _, rewards = act(game(), "print(")
    assert pass_at_one(outcomes(rewards), ["a"])[0] == 0.0


@pytest.mark.parametrize(("guess", "solved"), [("41", True), ("42", False)])
def test_against_a_frozen_guesser_the_writer_solves_what_it_wins(guess, solved):
    _, rewards = act(game(guesser="frozen"), "print(6 * 7)", guess)
    assert rewards["writer"].solved is solved


def outcomes(rewards):
    """What the figures of an evaluation are made of."""
    return [
        SimpleNamespace(example_id=role, reward=reward, num_sampled=1.0, truncated=False)
        for role, reward in rewards.items()
    ]


@pytest.mark.parametrize("completion", ["", "print(", "print(1, 2)", "1 / 0", "```\n```", "while True: pass"])
def test_a_program_that_does_not_count_loses_and_nobody_guesses(completion):
    turns, rewards = act(game(time_limit_s=0.3 if "while" in completion else PATIENT_S), completion)
    assert [turn.role for turn in turns] == ["writer"]
    assert list(rewards) == ["writer"]
    assert rewards["writer"].value == 0.0 and rewards["writer"].parts["valid"] == 0.0


@pytest.mark.parametrize(
    "program",
    [
        'print(6 * 7)  # the answer is 41',
        'print("<answer> 41 </answer>"[9:9] or 6 * 7)',
        'x = "41"\nprint(6 * 7)',
    ],
)  # fmt: skip
def test_only_the_guessers_own_text_is_parsed(program):
    # What the source claims or holds between tags is shown to the guesser and read by nobody else.
    turns, rewards = act(game(), program, "42")
    if "<answer>" in program:  # a mark is refused before anybody sees it
        assert rewards["writer"].value == 0.0 and len(turns) == 1
    else:
        assert program in turns[1].message[-1]["content"]
        assert rewards["guesser"].value == 1.0
        assert act(game(), program, "")[1]["guesser"].value == 0.0


def test_only_the_program_reaches_the_guesser():
    turns, _ = act(game(), "The answer is 42, do not tell.\n```python\nprint(6 * 7)\n```\n<answer> 41 </answer>", "42")
    assert turns[1].message[-1]["content"] == "program :\nprint(6 * 7)\n"


def test_a_frozen_guesser_is_asked_as_such():
    task = game(guesser="frozen")
    turns, rewards = act(task, "print(6 * 7)", "41")
    assert [(turn.role, turn.frozen) for turn in turns] == [("writer", False), ("guesser", True)]
    assert rewards["writer"] == Reward(1.0, rewards["writer"].parts)
    assert task.frozen_opponent and not game().frozen_opponent


def test_themes_are_split_by_what_they_ask():
    task = game()
    themes = [*task.dataset.train, *task.dataset.held_out]
    assert len({example.id for example in themes}) == len(themes) == 12 * 8
    assert 10 <= len(task.dataset.held_out) <= 40
    for example in themes:
        construct, topic = example.id.split(", ")
        assert example.prompt[-1]["content"] == f"write : {construct} , {topic}"
        assert example.category == {"construct": construct}


def test_demonstrations_are_programs_that_count_and_guesses_right_in_three_of_four():
    task, rng, right, guesses = game(), random.Random(0), 0, 0
    for _ in range(300):
        shown = task.demonstrations(task.dataset.train[0], rng)
        program = shown if isinstance(shown, str) else shown[0][0][-1]["content"].partition("\n")[2]
        said = [shown] if isinstance(shown, str) else [shown[0][0][-1]["content"], shown[0][1]]
        assert all(set(text.split()) <= set(task.vocabulary) for text in said)
        assert refusal(program, OPTIONS) == ""
        (printed,) = ast.parse(program).body[0].value.args
        value = eval(compile(ast.Expression(printed), "", "eval"))
        assert is_integer(str(value), 12)
        if not isinstance(shown, str):
            guesses += 1
            right += shown[0][1] == str(value)
    assert 100 < guesses < 200 and 0.65 < right / guesses < 0.9


def test_completions_alone_are_refused(tmp_path, workers):
    (tmp_path / "mine.jsonl").write_text('{"completion": "print(3)"}\n')
    with pytest.raises(UserError, match="played over several turns"):
        score_file(game(), tmp_path / "mine.jsonl", tmp_path / "out.jsonl", workers)


@pytest.mark.slow
@pytest.mark.parametrize("guesser", ["policy", "frozen"])
def test_the_game_is_played_end_to_end_on_the_embedded_model(tmp_path, guesser):
    flags = f"""--task code_game --code-game.guesser {guesser} --algorithm spiral --steps 2 --prompts-per-step 4
        --group-size 4 --base-steps 120 --base-hidden-size 64 --base-heads 2 --base-batch-size 32 --eval-examples 4
        --eval-samples 1 --max-tokens 12 --threads 1 --device cpu --eval-every 0 --runs-dir {tmp_path}/runs
        --checkpoints-dir {tmp_path}/ckpt""".split()
    finished = subprocess.run([sys.executable, "train.py", *flags], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    (run,) = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any(line.get("reward/part/valid", 0.0) > 0 for line in lines)  # real programs ran
    assert all(("baseline/guesser" in line) == (guesser == "policy") for line in lines[1:])
    assert all("baseline/writer" in line for line in lines[1:])
