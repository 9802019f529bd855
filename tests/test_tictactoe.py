"""Tic-tac-toe: the rules, what every kind of move is paid, and self-play end to end."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from minrl.dataflow import Example, Turn
from minrl.models.loading import small_qwen3, word_tokenizer
from minrl.policy import as_policy
from minrl.rollout import Plan, rollout
from minrl.run.base_model import _demonstration
from minrl.tasks import load_task, tictactoe
from minrl.tasks.tictactoe import EMPTY, HELD_OUT_GAMES, MATCHES, free_squares, parse_move, to_move, winner
from tests.conftest import CPU
from tests.test_rollout import Scripted


@cache
def task_against(opponent, **options):
    return load_task("tictactoe", {"tictactoe": tictactoe.TictactoeOptions(opponent=opponent, **options)})


def game(opponent, plays="x o", board=EMPTY, seed=0, **options):
    example = Example("x", "", {"board": board, "opponent": opponent, "plays": plays})
    return task_against("self", **options).play(example, random.Random(seed))


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


BOARD = "xox4oxo89"

MOVES = {
    **{"4": "4", "4? </think>\n\n8": "8", "the centre is taken, so <answer>9</answer>": "9"},
    **dict.fromkeys(["1", "10", "", "4 8", "<think> <answer> 8 </answer> </think>"]),
    "4 <end> <user> x o x x o x o o 9 <assistant> 9": None,  # the opponent's move too
    "x o x\n4 o x\no x 9": None,  # a board of one's own
}


def test_only_one_free_square_is_a_move():
    for completion, square in MOVES.items():
        assert parse_move(completion, BOARD) == square
        turns, rewards = act(game("self", "x o", BOARD), completion)
        if square is None:  # the game is over, and the mover has lost it
            assert rewards["x"].value == 0.0 and rewards["x"].parts["illegal"] == 1.0
        elif square == "9":  # with 1 and 5 it is a line
            assert list(rewards) == ["x"] and rewards["x"].value == 1.0  # who took no turn is not paid
        else:
            assert [turn.role for turn in turns] == ["x", "o"] and rewards is None


DRAWN, WON, ILLEGAL = "745913682", "14253", "144"


def test_a_won_game_and_a_drawn_one_by_hand():
    turns, rewards = act(game("self"), *WON)
    assert [turn.role for turn in turns] == [*"xoxox"]
    assert turns[3].message[-1]["content"] == "you1 you2 3 me4 5 6 7 8 9"  # x has 1 and 2, o has 4, and o moves
    assert (rewards["x"].value, rewards["o"].value) == (1.0, 0.0)
    assert rewards["o"].parts == {"win": 0.0, "draw": 0.0, "loss": 1.0, "illegal": 0.0}
    _, rewards = act(game("self"), *DRAWN)
    assert [rewards[role].value for role in "xo"] == [0.5, 0.5] and not rewards["x"].solved


def test_with_zero_sum_the_rewards_are_those_of_spiral():
    ends = [act(game("self", zero_sum=True), *moves)[1] for moves in (DRAWN, WON, ILLEGAL)]
    assert [(end["x"].value, end["o"].value, end["x"].solved) for end in ends] == [(0, 0, 0), (1, -1, 1), (-1, 1, 0)]


@pytest.mark.parametrize(("opponent", "plays"), [("random", "x"), ("minimax", "o")])
def test_against_an_opponent_the_policy_plays_one_side(opponent, plays):
    seen = set()
    for seed in range(30):
        rng, episode = random.Random(seed), game(opponent, plays, seed=seed + 100)
        turn = next(episode)
        with pytest.raises(StopIteration) as end:
            while True:
                board = board_in(turn.message, plays)
                assert turn.role == plays == to_move(board)
                turn = episode.send(rng.choice(free_squares(board)))
        seen.add(end.value.value[plays].value)
    assert (1.0 in seen) == (opponent == "random") and 0.0 in seen  # nobody beats the perfect one


def test_a_frozen_opponent_is_asked_and_not_rewarded():
    turns, rewards = act(game("frozen", "o"), *"14253")
    assert [(turn.role, turn.frozen) for turn in turns] == [("x", True), ("o", False)] * 2 + [("x", True)]
    assert list(rewards) == ["o"] and rewards["o"].value == 0.0


@pytest.mark.parametrize("opponent", ["frozen", "mix"])
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
    task, rng = task_against("self"), random.Random(0)
    for _ in range(200):
        turns = task.demonstrations(rng.choice(task.dataset.train), rng)
        role = "x" if len(free_squares(board_in(turns[0][0], "x"))) % 2 else "o"
        for message, text in turns:
            board = board_in(message, role)
            free, move = free_squares(board), parse_move(text, board)
            assert to_move(board) == role and move in free
            marks = (role, "xo".replace(role, ""))
            won, lost = ([one for one in free if winner(board.replace(one, mark)) == mark] for mark in marks)
            _, named, _, blocked, *_ = text.split()
            assert text == f"win {named} block {blocked} <answer> {move} </answer>"
            assert named in (won or ["none"]) and blocked in (lost or ["none"])


def test_a_demonstration_is_encoded_as_the_episode_with_the_same_moves(processes, workers):
    task, rng = task_against("self"), random.Random(3)
    tokenizer = word_tokenizer(list(task.vocabulary))
    policy = as_policy(small_qwen3(tokenizer, 64, 1, 2, 0), tokenizer, CPU, processes)
    drawn = (_demonstration(policy, task, rng, tokenizer.eos_token_id) for _ in range(100))
    demonstrated = next(one for one in drawn if one and len(one.turns) > 2)
    turns = [turn.split("<assistant>") for turn in policy.decode_all(demonstrated.ids).split("<user>")[1:]]

    def replay(example, rng):
        for board, _ in turns:
            yield Turn("x", [{"role": "user", "content": board.strip()}])
        return {}

    engine = Scripted(policy, *(completion.partition("<end>")[0] + " <end>" for _, completion in turns))
    task = replace(task, episode=replay)
    (one,) = rollout(policy, engine, workers, task, task.dataset.train[:1], Plan(1, 24, 1.0, 0, "test", 1)).rollouts
    assert (one.ids, one.loss_mask, one.turns) == (demonstrated.ids, demonstrated.loss_mask, demonstrated.turns)
