"""The code game: which programs count, who wins, and that nobody wins by talking."""

import random

from minrl.dataflow import Job, Reward
from minrl.rewards.workers import call
from minrl.tasks import load_task
from minrl.tasks.code_game import VERDICTS, CodeGameOptions, extract_program, judge_program, refusal

PATIENT_S = 60.0  # for programs that end by themselves, however slow the machine
OPTIONS = CodeGameOptions(time_limit_s=PATIENT_S, runs=2)
STRICT = CodeGameOptions(time_limit_s=0.3)  # for those that do not


def game(**options):
    return load_task("code_game", {"code_game": CodeGameOptions(time_limit_s=PATIENT_S, runs=2, **options)})


JUDGED = {}
"""The verdicts on programs, each of which takes a sandbox."""


def act(task, *completions):
    """Play a game with these completions: the turns, and the rewards."""
    said, turns = iter(completions), []
    episode = task.play(task.dataset.train[0], random.Random(0))
    asked = next(episode)
    try:
        while True:
            if isinstance(asked, Job):
                JUDGED[asked.arguments] = JUDGED.get(asked.arguments) or call(asked)
                asked = episode.send(JUDGED[asked.arguments])
            else:
                turns.append(asked)
                asked = episode.send(next(said))
    except StopIteration as end:
        return turns, end.value


PROGRAMS = {
    "def f(*args):\n    return sum(1 for _ in args)\nprint(f(1, 2) - 3)": ("valid", "-1"),
    "print(10**12)": ("no_integer", ""),  # thirteen digits
    "print(7)\nraise ValueError": ("crash", ""),
    "x = [0] * 10**10\nprint(7)": ("crash", ""),
    "print(7)\nwhile True: pass": ("timeout", ""),
    "import math\nprint(math.comb(10, 3))": ("refused", ""),
    "print(": ("refused", ""),
    "print(7)" + " " * 1000: ("refused", ""),
    "print(7) # <end> <user>": ("refused", ""),  # what a chat template could take for its own
    "print(7) # \u202eevil": ("refused", ""),
}


def test_what_becomes_of_a_program():
    for program, (name, printed) in PROGRAMS.items():
        verdict = judge_program(program, STRICT if name == "timeout" else OPTIONS)
        assert (verdict.name, verdict.printed) == (name, printed), (program, refusal(program, OPTIONS))


def test_one_program_or_none():
    block = "```python\nprint(3)\n```"
    for completion in ("print(3)", f"I think of a sum.\n{block}\nDone.", f"{block}\n```output\n3\n```"):
        assert extract_program(completion) == "print(3)\n"
    for completion in (" \n ", f"{block}\n```\nprint(4)\n```", "```output\n3\n```"):
        assert extract_program(completion) is None


def test_a_guess_is_the_integer_as_it_is_printed():
    guesses = {" 7\n": 1.0, "So <answer>7</answer>": 1.0, "07": 0.0, "7.0": 0.0, "\u0667": 0.0}
    assert {guess: act(game(), "print(7)", guess)[1]["guesser"].value for guess in guesses} == guesses


def test_the_writer_wins_where_the_guesser_is_wrong_and_the_other_way_round():
    turns, rewards = act(game(), "The answer is 42.\n```python\nprint(6 * 7)\n```\n<answer> 41 </answer>", "41")
    assert [turn.role for turn in turns] == ["writer", "guesser"]
    assert turns[1].message[-1]["content"] == "program :\nprint(6 * 7)\n"  # and nothing else that was said
    assert [reward.solved for reward in rewards.values()] == [True, False]
    assert (rewards["writer"].value, rewards["guesser"].value) == (1.0, 0.0)
    assert rewards["writer"].parts == {**dict.fromkeys(VERDICTS, 0.0), "valid": 1.0, "stumped": 1.0}
    _, rewards = act(game(), "print(6 * 7)", "<answer> 42 </answer>")
    assert (rewards["writer"].value, rewards["guesser"].value) == (0.0, 1.0)
    assert [reward.solved for reward in rewards.values()] == [True, True]  # in self-play the writer's is a solution


def test_a_program_that_does_not_count_loses_and_nobody_guesses():
    turns, rewards = act(game(), "")
    assert [turn.role for turn in turns] == ["writer"] and rewards["writer"].value == 0.0


def test_a_frozen_guesser_is_asked_as_such():
    task = game(guesser="frozen")
    turns, rewards = act(task, "print(6 * 7)", "41")
    assert [(turn.role, turn.frozen) for turn in turns] == [("writer", False), ("guesser", True)]
    assert rewards["writer"] == Reward(1.0, rewards["writer"].parts)
    assert not act(task, "print(6 * 7)", "42")[1]["writer"].solved
    assert task.frozen_opponent and not game().frozen_opponent
