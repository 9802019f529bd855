"""Hanoi in lists of moves: what is posed and held out, what an answer earns by each credit."""

import pytest

from minrl.dataflow import Example, UserError
from minrl.tasks import load_task
from minrl.tasks.hanoi import HanoiOptions

TOWER = Example("", "", {"pegs": "012", "board": ["0"] * 3, "goal": "2"})
SOLUTION = [[1, 0, 2], [2, 0, 1], [1, 2, 1], [3, 0, 2], [1, 1, 0], [2, 1, 2], [1, 0, 2]]
IDLE = [[1, 0, 1], [1, 1, 0]]


def towers(**options):
    return load_task("hanoi", {"hanoi": HanoiOptions(form="lists", **options)})


def answered(moves):
    return f"<result>{moves}</result>"


def test_whole_towers_are_posed_by_height_and_the_highest_are_held_out():
    task = towers(min_disks=3, max_disks=9)
    heights = [[len(example["board"]) for example in side] for side in (task.dataset.train, task.dataset.held_out)]
    assert heights == [[3, 4, 5, 6, 7], [8, 9]]
    assert task.dataset.train[0].prompt[-1]["content"] == "Initial state: [[3, 2, 1], [], []]"
    _, *states = [message["content"] for message in task.dataset.train[0].prompt]
    shown = Example("", "", {"pegs": "012", "board": ["0"] * 2, "goal": "2"})
    assert states[0] == "Initial state: [[2, 1], [], []]" and task.reward(states[1], shown).solved
    for example in (*task.dataset.train, *task.dataset.held_out):
        assert task.reward(task.solution(example), example).solved


@pytest.mark.parametrize(
    ("moves", "right_moves", "progress"),
    [
        (SOLUTION, 1.0, 1.0),
        (IDLE + SOLUTION, 1.0, 1.0),  # a detour
        (SOLUTION[:3], 3 / 7, 0.2 * 3 / 7),
        (SOLUTION[:1] + [[1, 2, 0], [1, 0, 2]] * 9, 1 / 19, 0.2 / 7),  # of its own 19 moves
        ([[1, 0, 2], [2, 0, 2]], 1 / 7, 0.0),  # disk 2 on disk 1
        ([[1, 0, 2], [2, 0, 3], [0, 0, 1], [4, 0, 1]], 1 / 7, 0.0),  # there is no peg 3, and no disk 0 or 4
        ([*SOLUTION, [1, 2, 1]], 7 / 8, 0.2 * 6 / 7),  # undone
        (SOLUTION[:1] + [[1, 2, 0], [1, 0, 2]] * 11, 0.0, 0.0),  # 23 moves, more than three times seven
    ],
)
def test_an_answer_earns_by_the_credit_that_is_chosen(moves, right_moves, progress):
    for credit, value in (("right_moves", right_moves), ("progress", progress)):
        paid = towers(credit=credit).reward(answered(moves), TOWER)
        assert paid.value == pytest.approx(value) and paid.solved == (value == 1.0)


READ = {
    f"Here are the moves.\n<result>\n{SOLUTION}\n</result> Done.": True,
    f"<think> {answered(IDLE)} </think> {answered(SOLUTION)}": True,
    f"<think> {answered(SOLUTION)} </think>": False,
    answered(SOLUTION) + answered(IDLE): False,
    str(SOLUTION): False,
    answered(f"{SOLUTION} or {IDLE}"): False,
    answered(SOLUTION).replace("3, 0", "True, 0"): False,
}


def test_one_list_of_moves_is_read_and_nothing_else():
    assert {completion: towers().reward(completion, TOWER).solved for completion in READ} == READ
    assert towers().reward("", TOWER).parts == {"legal": 0.0, "progress": 0.0}


def test_options_that_contradict_are_refused():
    assert towers(min_disks=4, max_disks=4).dataset.sizes() == (0, 1)
    with pytest.raises(UserError, match=r"min_disks must be at most hanoi.max_disks, got 5 and 4"):
        HanoiOptions(min_disks=5)
    with pytest.raises(UserError, match=r"shows the answer for 2 disks: give at least 3 as hanoi.min_disks, got 2"):
        HanoiOptions(form="lists", min_disks=2)
