"""Tasks that make their own problems: splits, demonstrations, and Hanoi's geometry by search. `answers.py` has pay."""

import random
from collections import deque
from itertools import product

import pytest

from minrl.dataflow import Example, UserError
from minrl.tasks import TASK_DEFINITIONS, load_task
from minrl.tasks.countdown import evaluate_expression
from minrl.tasks.hanoi import best_move, distance, legal_moves, moved
from minrl.tasks.task import Dataset, DeferredDataset, extract_answer, split

LOADED = {name: load_task(name) for name in TASK_DEFINITIONS}
GENERATED = [name for name, task in LOADED.items() if not isinstance(task.dataset, DeferredDataset)]
"""Tasks that make their own problems. The others read rows, which their own tests write."""


def test_countdown_divides_exactly():
    assert evaluate_expression("(1 / 49) * 49")[0] == 1  # 0.9999999999999999 in floats


def test_distance_and_best_move_agree_with_a_search_over_all_boards():
    disks, goal = 4, "D"
    # Moves are reversible, so breadth-first from the solved board gives every board's distance.
    found = {(goal,) * disks: 0}
    queue = deque(found)
    while queue:
        board = queue.popleft()
        for disk, peg in legal_moves(board, "ADE"):
            reached = moved(board, disk, peg)
            if reached not in found:
                found[reached] = found[board] + 1
                queue.append(reached)
    assert len(found) == 3**disks
    for board in product("ADE", repeat=disks):
        assert distance(board, goal, "ADE") == found[board]
        if found[board]:
            best = best_move(board, goal, "ADE")
            assert found[moved(board, *best)] == found[board] - 1
            assert best in legal_moves(board, "ADE")


def test_the_split_is_the_same_every_time():
    for name in GENERATED:
        first, second = LOADED[name].dataset, load_task(name).dataset
        assert [e.id for e in first.held_out] == [e.id for e in second.held_out]
        assert [e.prompt for e in first.train] == [e.prompt for e in second.train]
        assert len({e.id for e in first.train}) == len(first.train)
        assert 0.15 < len(first.held_out) / sum(first.sizes()) < 0.4


def test_a_leak_between_train_and_held_out_is_noticed():
    example = Example("same", "", {})
    with pytest.raises(UserError, match="held-out problems among the training ones"):
        Dataset([example], [example])


def test_a_single_problem_is_trained_on_unless_all_is_held_out():
    one = [Example(f"{number}", "the same", {}) for number in range(3)]
    for share, sizes in ((0.0, (3, 0)), (0.99, (3, 0)), (1.0, (0, 3))):
        assert split(one, share, by=lambda example: example.prompt).sizes() == sizes


@pytest.mark.parametrize("name", [name for name in GENERATED if LOADED[name].solution])
def test_the_solution_of_a_problem_is_solved(name):
    task = LOADED[name]
    examples = [*task.dataset.held_out[:500], *task.dataset.train[:500]]
    assert [one for one in examples if not task.reward(task.solution(one), one).solved] == []


@pytest.mark.parametrize("name", GENERATED)
def test_demonstrations_are_well_formed_imperfect_and_in_the_vocabulary(name):
    task, rng = LOADED[name], random.Random(0)
    examples = list(task.dataset.train)[:200]
    if task.demonstrations is None or task.episode is not None:
        return  # over several turns: see the tests of the game
    solved = 0
    for example in examples:
        text = task.demonstrations(example, rng)
        assert extract_answer(text), text
        assert set(text.split()) <= set(task.vocabulary)
        paid = task.reward(text, example)
        assert paid.parts.get("format", 1.0) == paid.parts.get("legal", 1.0) == 1.0, text
        solved += paid.solved
    assert 0.1 < solved / len(examples) < 0.9
