"""Tasks: what each completion is paid, exploits first; splits, demonstrations, and Hanoi's geometry by search."""

import random
import time
from collections import deque
from itertools import product

import pytest

from minrl.dataflow import Example, UserError
from minrl.tasks import TASK_DEFINITIONS, load_task
from minrl.tasks.countdown import FORMAT_REWARD, evaluate_expression
from minrl.tasks.countdown import reward as countdown
from minrl.tasks.hanoi import PROGRESS_REWARD, HanoiOptions, best_move, distance, legal_moves, moved
from minrl.tasks.hanoi import reward as hanoi
from minrl.tasks.task import Dataset, DeferredDataset, extract_answer, split

LOADED = {name: load_task(name) for name in TASK_DEFINITIONS}
GENERATED = [name for name, task in LOADED.items() if not isinstance(task.dataset, DeferredDataset)]
"""Tasks that make their own problems. The others read rows, which their own tests write."""

NUMBERS = Example("3,5,7=9", "numbers 3 7 5 target 9", {"numbers": [3, 7, 5], "target": 9})

ZERO_AT_COUNTDOWN = (
    *("9", "7 + 5", "7 + 5 - 3 = 9", "9**9**9", "7 % 5 % 3", "+7 + 5 - 3", "7 / (5 - 5) + 3", "(x := 7) + 5 - 3"),
    *("__import__('os').system('true')", "(lambda: 9)()", "9" * 190, f"{'(' * 10_000}7 + 5 - 3{')' * 10_000}"),
    *(f"{'-' * 190}3", "7 + 5 - 3 </answer> <answer> 7 + 5 - 3", f"{'7 + 5 - 3 + ' * 90_000} 0"),
)


@pytest.mark.parametrize("answer", ZERO_AT_COUNTDOWN, ids=range(len(ZERO_AT_COUNTDOWN)))
def test_countdown_pays_nothing_for_what_is_no_answer(answer):
    started = time.process_time()
    assert countdown(f"<answer> {answer} </answer>", NUMBERS).value == 0.0
    assert time.process_time() - started < 60


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        ("(5 - 3) + 7", 1.0),
        ("3 * 5 - 7", FORMAT_REWARD),  # 8
        ("7 - 5 / 3", FORMAT_REWARD),  # 16/3: exact, not rounded
        ("3 - 7 - 5", FORMAT_REWARD),  # -9 is not 9
    ],
)
def test_countdown_pays_in_full_only_for_the_target(answer, paid):
    paid_for = countdown(f"<think> anything </think> <answer> {answer} </answer>", NUMBERS)
    assert (paid_for.value, paid_for.solved) == (paid, paid == 1.0)


def test_countdown_divides_exactly():
    # 8 / 3 * 3 is 8 in fractions, and 8.0 only by luck in floats; 1/3 + 2/3 likewise.
    assert evaluate_expression("8 / 3 * 3")[0] == 8
    assert evaluate_expression("(1 / 49) * 49")[0] == 1  # 0.9999999999999999 in floats


BOARD = Example("A A A > C", "pegs A B C board A A A goal C", {"pegs": "ABC", "board": ["A", "A", "A"], "goal": "C"})
SOLUTION = "1 A>C ; 2 A>B ; 1 C>B ; 3 A>C ; 1 B>A ; 2 B>C ; 1 A>C"
WRITTEN = (
    "A>C A>B A>C : 1 A>C ; A>C A>B C : 2 A>B ; A>C B C>B : 1 C>B ; A>C B B : 3 A>C ; C B>C B>A : 1 B>A ; "
    "C B>C A : 2 B>C ; C C A>C : 1 A>C"
)

ZERO_AT_HANOI = (
    *("A A A", "A>C A>B A>C :", WRITTEN.replace(":", ";"), "1 A>A", " ; ".join(["1 A>B", "1 B>A"] * 4), "0 A>C"),
    *("A A>C", "1 A>D", "1 B>C", "2 A>C", SOLUTION.replace("3 A>C", "3 A>B"), f"{SOLUTION} ; 3 C>A"),
    *(";" * 1_000_000, " ; ".join(["1 A>B", "1 B>A"] * 60_000)),
)


@pytest.mark.parametrize("answer", ZERO_AT_HANOI, ids=range(len(ZERO_AT_HANOI)))
def test_hanoi_pays_nothing_for_what_goes_nowhere(answer):
    started = time.process_time()
    assert hanoi(f"<answer> {answer} </answer>", BOARD).value == 0.0
    assert time.process_time() - started < 60


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        (SOLUTION, 1.0),
        (WRITTEN, 1.0),
        (WRITTEN.replace("B>C A>C", "a word: and more"), 1.0),  # what stands before a move is the policy's own affair
        (f"1 A>B ; 1 B>A ; {SOLUTION}", 1.0),  # a detour is a solution still
        # One of seven moves: 0.2 x 1/7.
        ("1 A>C", PROGRESS_REWARD / 7),
        # Six of seven: 0.2 x 6/7.
        (SOLUTION.rpartition(" ; ")[0], PROGRESS_REWARD * 6 / 7),
        # Solved and then undone by one move: six of seven again.
        (f"{SOLUTION} ; 1 C>A", PROGRESS_REWARD * 6 / 7),
    ],
)
def test_hanoi_pays_in_full_only_for_the_goal(answer, paid):
    assert hanoi(f"<answer> {answer} </answer>", BOARD).value == pytest.approx(paid)
    assert hanoi(f"<answer> {answer} </answer>", BOARD).solved == (paid == 1.0)


def test_progress_cannot_be_farmed_by_repeating_moves():
    once = hanoi("<answer> 1 A>C </answer>", BOARD).value
    again = "1 A>C" + " ; 1 C>A ; 1 A>C" * 10
    assert hanoi(f"<answer> {again} </answer>", BOARD).value == once
    # Three disks take 7 moves at most, and an answer may have three times as many.
    assert hanoi(f"<answer> {again} ; 1 C>A </answer>", BOARD).parts == {"legal": 0.0, "progress": 0.0}


@pytest.mark.parametrize(("disks", "goal"), [(2, "A"), (3, "D"), (4, "E")])
def test_distance_and_best_move_agree_with_a_search_over_all_boards(disks, goal):
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


def test_a_tower_is_solved_by_its_solution_and_demonstrations_can_reach_it(monkeypatch):
    """Five disks take 31 moves; a demonstration that gave up earlier could never show the end."""
    options = HanoiOptions(min_disks=5, max_disks=5, peg_names=4)
    task = load_task("hanoi", {"hanoi": options})
    tower = Example("", "", {"pegs": "ABC", "board": ["A"] * 5, "goal": "C"})
    assert task.solution(tower).count(";") == 31 - 1 and hanoi(task.solution(tower), tower).solved
    monkeypatch.setattr("minrl.tasks.hanoi.SKILL", 0.999)
    assert sum(hanoi(task.demonstrations(tower, random.Random(seed)), tower).solved for seed in range(10)) > 5


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
    with pytest.raises(UserError, match="a dataset needs examples, got none"):
        Dataset([], [])


def test_a_single_problem_is_trained_on_unless_all_is_held_out():
    one = [Example(f"{number}", "the same", {}) for number in range(3)]
    for share, sizes in ((0.0, (3, 0)), (0.99, (3, 0)), (1.0, (0, 3))):
        assert split(one, share, by=lambda example: example.prompt).sizes() == sizes


@pytest.mark.parametrize("name", GENERATED)
def test_demonstrations_are_well_formed_imperfect_and_in_the_vocabulary_and_rewards_are_bounded(name):
    task, rng = LOADED[name], random.Random(0)
    examples = list(task.dataset.train)[:200]
    if task.reward is not None:
        words = [*task.vocabulary, "<answer>", "</answer>"]
        for example in examples[:50]:
            paid = task.reward(" ".join(rng.choices(words, k=20)), example)
            assert 0.0 <= paid.value <= paid.maximum
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
