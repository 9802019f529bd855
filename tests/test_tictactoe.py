"""Tic-tac-toe: the rules, the perfect player, what every kind of move is paid, and self-play end to end."""

import itertools
import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from minrl.dataflow import Example, Turn
from minrl.rollout import Plan, rollout
from minrl.run.base_model import _demonstration, make_base_model
from minrl.run.setup import load_policy
from minrl.tasks import load_task
from minrl.tasks.tictactoe import (
    EMPTY,
    HELD_OUT_GAMES,
    MATCHES,
    TictactoeOptions,
    best_squares,
    free_squares,
    parse_move,
    played,
    to_move,
    value,
    winner,
)
from tests.conftest import CPU
from tests.parsed import sized
from tests.test_rollout import Scripted


@cache
def task_against(opponent, **options):
    return load_task("tictactoe", {"tictactoe": TictactoeOptions(opponent=opponent, **options)})


def example(opponent, plays, board=EMPTY):
    return Example("x", "", {"board": board, "opponent": opponent, "plays": plays})


def act(episode, *completions):
    """Play the episode with these completions; the turns it asked for, and its rewards (None where it goes on)."""
    turns, said = [], iter(completions)
    try:
        turn = next(episode)
        while True:
            turns.append(turn)
            turn = episode.send(next(said))
    except StopIteration as end:
        return turns, end.value


def board_in(message, role):
    """The board that the player of this role is shown."""
    marks = {"me": role, "you": "xo".replace(role, ""), "": ""}
    words = message[-1]["content"].split()
    assert [word[-1] for word in words] == list(EMPTY)
    return "".join(marks[word[:-1]] or word for word in words)


def test_perfect_play_is_a_draw_and_a_corner_has_one_answer():
    assert value(EMPTY) == 0
    assert best_squares("x23456789") == ["5"]  # the centre; any other answer to a corner loses
    assert best_squares("xx3oo6789") == ["3"]  # wins at once, and anything else loses
    assert best_squares("xx34o6789") == ["3"]  # must block


BOARD = "xox4oxo89"

MOVES = [
    *(("4", "4"), ("**8**.", "8"), ("4? </think>\n\n8", "8"), ("the centre is taken, so <answer>9</answer>", "9")),
    *((text, None) for text in ("1", "5", "0", "10", "", "x", "04", "4 8", "<answer> 4 8 </answer>")),
    ("<think> <answer> 8 </answer> </think>", None),
    # the opponent's move too, and a board of one's own
    ("4 <end> <user> x o x x o x o o 9 <assistant> 9", None),
    ("x o x\n4 o x\no x 9", None),
]


@pytest.mark.parametrize(("completion", "square"), MOVES, ids=range(len(MOVES)))
def test_only_one_free_square_is_a_move(completion, square):
    assert parse_move(completion, BOARD) == square
    task = task_against("self")
    turns, rewards = act(task.play(example("self", "x o", BOARD), random.Random(0)), completion)
    assert turns[0].role == "x"
    assert rewards is None or list(rewards) == ["x"]  # who took no turn is not paid
    if square is None:  # the game is over, and the mover has lost it
        assert rewards["x"].value == 0.0 and rewards["x"].parts["illegal"] == 1.0
    elif square == "9":  # with 1 and 5 it is a line
        assert rewards["x"].value == 1.0
    else:
        assert [turn.role for turn in turns] == ["x", "o"] and rewards is None


def test_a_won_game_and_a_drawn_one_by_hand():
    task = task_against("self")
    turns, rewards = act(task.play(example("self", "x o"), random.Random(0)), *"14253")
    assert [turn.role for turn in turns] == [*"xoxox"]
    assert turns[0].message[-1]["content"] == "1 2 3 4 5 6 7 8 9"
    assert turns[3].message[-1]["content"] == "you1 you2 3 me4 5 6 7 8 9"  # x has 1 and 2, o has 4, and o moves
    assert turns[4].message[-1]["content"] == "me1 me2 3 you4 you5 6 7 8 9"
    assert (rewards["x"].value, rewards["o"].value) == (1.0, 0.0)
    _, illegal = act(task.play(example("self", "x o"), random.Random(0)), *"144")
    assert (illegal["x"].value, illegal["o"].value) == (0.0, 1.0) and illegal["o"].parts["win"] == 1.0
    assert rewards["o"].parts == {"win": 0.0, "draw": 0.0, "loss": 1.0, "illegal": 0.0}
    _, rewards = act(task.play(example("self", "x o"), random.Random(0)), *"745913682")
    assert [rewards[role].value for role in "xo"] == [0.5, 0.5]
    assert rewards["x"].solved is False and rewards["x"].parts["draw"] == 1.0


def test_with_zero_sum_the_rewards_are_those_of_spiral():
    task, drawn, won, illegal = task_against("self", zero_sum=True), "745913682", "14253", "144"
    ends = [act(task.play(example("self", "x o"), random.Random(0)), *moves)[1] for moves in (drawn, won, illegal)]
    assert [(end["x"].value, end["o"].value) for end in ends] == [(0, 0), (1, -1), (-1, 1)]
    assert [end["x"].solved for end in ends] == [False, True, False]


@pytest.mark.parametrize(("opponent", "plays"), [("random", "x"), ("minimax", "x"), ("random", "o"), ("minimax", "o")])
def test_against_an_opponent_the_policy_plays_one_side(opponent, plays):
    task, seen = task_against("self"), set()
    for seed in range(30):
        rng, episode = random.Random(seed), task.play(example(opponent, plays), random.Random(seed + 100))
        turn = next(episode)
        with pytest.raises(StopIteration) as end:
            while True:
                board = board_in(turn.message, plays)
                assert turn.role == plays == to_move(board) and not turn.frozen
                turn = episode.send(rng.choice(free_squares(board)))
        seen.update(reward.value for reward in end.value.value.values())
    assert (1.0 in seen) == (opponent == "random") and 0.0 in seen  # nobody beats the perfect one


def test_a_frozen_opponent_is_asked_and_not_rewarded():
    turns, rewards = act(task_against("frozen").play(example("frozen", "o"), random.Random(0)), *"14253")
    assert [(turn.role, turn.frozen) for turn in turns] == [("x", True), ("o", False)] * 2 + [("x", True)]
    assert list(rewards) == ["o"] and rewards["o"].value == 0.0
    # its illegal move wins for the policy
    _, rewards = act(task_against("frozen").play(example("frozen", "o"), random.Random(0)), "1", "4", "12")
    assert rewards["o"].value == 1.0


@pytest.mark.parametrize("opponent", ["self", "frozen", "mix"])
def test_what_is_trained_on_and_what_is_held_out(opponent):
    task = task_against(opponent, max_opening=2)
    trained = {example["opponent"] for example in task.dataset.train}
    assert trained == ({"self", "random", "minimax"} if opponent == "mix" else {opponent})
    for example in task.dataset.train:
        assert example["plays"] == ("x o" if example["opponent"] == "self" else to_move(example["board"]))
    held_out = Counter((e["opponent"], e["plays"], e["board"]) for e in task.dataset.held_out)
    assert held_out == {(*match, EMPTY): HELD_OUT_GAMES for match in MATCHES} and HELD_OUT_GAMES >= 100
    assert task.frozen_opponent == (opponent == "frozen")


def test_demonstrations_are_legal_moves_of_one_side_as_the_game_shows_them():
    task, rng, wins = task_against("self"), random.Random(0), 0
    for _ in range(200):
        turns = task.demonstrations(rng.choice(task.dataset.train), rng)
        role = "x" if len(free_squares(board_in(turns[0][0], "x"))) % 2 else "o"
        boards = [board_in(message, role) for message, _ in turns]
        for board, (_, text) in zip(boards, turns, strict=True):
            move = parse_move(text, board)
            assert to_move(board) == role and move in free_squares(board)
            won, lost = (
                [s for s in free_squares(board) if winner(board.replace(s, mark)) == mark]
                for mark in (role, "xo".replace(role, ""))
            )
            _, named, _, blocked, *_ = text.split()
            assert text == f"win {named} block {blocked} <answer> {move} </answer>"
            assert named in (won or ["none"]) and blocked in (lost or ["none"])
        assert all(len(free_squares(a)) - len(free_squares(b)) == 2 for a, b in itertools.pairwise(boards))
        wins += winner(played(boards[-1], move)) == role
    assert 20 < wins < 180  # random moves, neither good nor bad


def test_the_base_model_learns_positions_exactly_as_play_shows_them(tmp_path, processes, workers):
    # What a demonstration holds and what an episode with the same moves builds are the same ids and the same mask.
    task, rng, demonstrated = task_against("self"), random.Random(3), None
    small = sized(base_steps=1, base_hidden_size=64, base_heads=2)
    make_base_model(tmp_path / "m", small, task, list(task.vocabulary), processes, lambda *_: None)
    policy = load_policy(str(tmp_path / "m"), CPU, processes)
    while demonstrated is None or len(demonstrated.turns) < 3:
        demonstrated = _demonstration(policy, task, rng, policy.tokenizer.eos_token_id)
    turns = [turn.split("<assistant>") for turn in policy.decode_all(demonstrated.ids).split("<user>")[1:]]

    def replay(example, rng):
        for board, _ in turns:
            yield Turn("x", [{"role": "user", "content": board.strip()}])
        return {}

    engine = Scripted(policy, *(completion.partition("<end>")[0] + " <end>" for _, completion in turns))
    replayed = replace(task, episode=replay)
    (one,) = rollout(policy, engine, workers, replayed, task.dataset.train[:1], Plan(1, 24, 1.0, 0, "test", 1)).rollouts
    assert (one.ids, one.loss_mask, one.turns) == (demonstrated.ids, demonstrated.loss_mask, demonstrated.turns)
    assert policy.tokenizer.unk_token_id not in one.ids
