"""Tasks: what each completion is paid, exploits first; splits, demonstrations, and Hanoi's geometry by search."""

import random
import time
from collections import deque
from dataclasses import replace
from itertools import product

import pytest

from minrl.tasks import OFFER_WORDS, TASK_DEFINITIONS, load_task, offered_words
from minrl.tasks.countdown import FORMAT_REWARD, CountdownOptions, evaluate_expression
from minrl.tasks.countdown import reward as countdown
from minrl.tasks.countdown import words as countdown_words
from minrl.tasks.hanoi import PROGRESS_REWARD, HanoiOptions, best_move, distance, legal_moves, moved
from minrl.tasks.hanoi import reward as hanoi
from minrl.tasks.hanoi import words as hanoi_words
from minrl.tasks.task import Dataset, DeferredDataset, extract_answer
from minrl.types import Example, UserError

GENERATED = [name for name in TASK_DEFINITIONS if not isinstance(load_task(name).dataset, DeferredDataset)]
"""Tasks that make their own problems. The others read rows, which their own tests write."""

NUMBERS = Example("3,5,7=9", "numbers 3 7 5 target 9", {"numbers": [3, 7, 5], "target": 9})

ZERO_AT_COUNTDOWN = {
    "empty": "",
    "no answer": "7 + 5 - 3",
    "empty answer": "<answer> </answer>",
    "several answers": "<answer> 7 + 5 - 3 </answer> <answer> 7 + 5 - 3 </answer>",
    "target itself": "<answer> 9 </answer>",
    "number left out": "<answer> 7 + 5 </answer>",
    "number used twice": "<answer> 7 + 5 - 3 + 3 - 3 </answer>",
    "an equation": "<answer> 7 + 5 - 3 = 9 </answer>",
    "power": "<answer> 9**9**9 </answer>",
    "modulo": "<answer> 7 % 5 % 3 </answer>",
    "sign": "<answer> -3 + 7 + 5 </answer>",
    "division by zero": "<answer> 7 / (5 - 5) + 3 </answer>",
    "walrus": "<answer> (x := 7) + 5 - 3 </answer>",
    "call": "<answer> __import__('os').system('true') </answer>",
    "lambda": "<answer> (lambda: 9)() </answer>",
    "strings": "<answer> '7' + '5' + '3' </answer>",
    "huge integer": f"<answer> {'9' * 190} </answer>",
    "nested parentheses": f"<answer> {'(' * 10_000}7 + 5 - 3{')' * 10_000} </answer>",
    "unary tower": f"<answer> {'-' * 190}3 </answer>",
    "a megabyte of answer": f"<answer> {'7 + 5 - 3 + ' * 90_000} 0 </answer>",
}


@pytest.mark.parametrize("completion", ZERO_AT_COUNTDOWN.values(), ids=ZERO_AT_COUNTDOWN)
def test_countdown_pays_nothing_for_what_is_no_answer(completion):
    started = time.process_time()
    assert countdown(completion, NUMBERS).value == 0.0
    assert time.process_time() - started < 60


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        ("7 + 5 - 3", 1.0),
        ("(5 - 3) + 7", 1.0),
        ("7-3+5", 1.0),
        ("((7)) + (5 - 3)", 1.0),
        ("3 + 5 + 7", FORMAT_REWARD),  # 15
        ("3 * 5 - 7", FORMAT_REWARD),  # 8
        ("7 - 5 / 3", FORMAT_REWARD),  # 16/3: exact, not rounded
        ("3 - 7 - 5", FORMAT_REWARD),  # -9 is not 9
    ],
)
def test_countdown_pays_in_full_only_for_the_target(answer, paid):
    paid_for = countdown(f"<think> anything </think> <answer> {answer} </answer>", NUMBERS)
    assert paid_for.value == paid
    assert paid_for.solved == (paid == 1.0)


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

ZERO_AT_HANOI = {
    "empty": "",
    "no answer tags": SOLUTION,
    "several answers": f"<answer> {SOLUTION} </answer> <answer> {SOLUTION} </answer>",
    "board copied without moving": "<answer> A A A </answer>",
    "a list and no move": "<answer> A>C A>B A>C : </answer>",
    "the lists alone": f"<answer> {WRITTEN.replace(':', ';')} </answer>",
    "move to where it is": "<answer> 1 A>A </answer>",
    "shuttling disk 1 for 8 moves": f"<answer> {' ; '.join(['1 A>B', '1 B>A'] * 4)} </answer>",
    "disk 0": "<answer> 0 A>C </answer>",
    "wrong ids in every move": "<answer> 4 A>C ; 5 A>B ; 6 C>B </answer>",
    "disk named by letter": "<answer> A A>C </answer>",
    "peg that is not there": "<answer> 1 A>D </answer>",
    "from where the disk is not": "<answer> 1 B>C </answer>",
    "covered disk": "<answer> 2 A>C </answer>",
    "solution with one wrong move": f"<answer> {SOLUTION.replace('3 A>C', '3 A>B')} </answer>",
    "solution and then an illegal move": f"<answer> {SOLUTION} ; 3 C>A </answer>",
    "the moves of a board with other pegs": f"<answer> {SOLUTION.replace('C', 'D')} </answer>",
    "a megabyte of separators": f"<answer> {';' * 1_000_000} </answer>",
    "a megabyte of shuttling": f"<answer> {' ; '.join(['1 A>B', '1 B>A'] * 60_000)} </answer>",
}


@pytest.mark.parametrize("completion", ZERO_AT_HANOI.values(), ids=ZERO_AT_HANOI)
def test_hanoi_pays_nothing_for_what_goes_nowhere(completion):
    started = time.process_time()
    assert hanoi(completion, BOARD).value == 0.0
    assert time.process_time() - started < 60


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        (SOLUTION, 1.0),
        (WRITTEN, 1.0),
        (WRITTEN.replace("B>C A>C", "a word: and more"), 1.0),  # what stands before a move is the policy's own affair
        (f"{SOLUTION} ;", 1.0),
        (SOLUTION.replace(" ; ", ";").replace(" ", "  ").replace(">", " > "), 1.0),
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


@pytest.mark.parametrize("disks", [2, 3, 4])
@pytest.mark.parametrize("goal", "ADE")
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


def test_a_tower_is_solved_by_the_shortest_answer_and_demonstrations_can_reach_it():
    """Five disks take 31 moves; a demonstration that gave up earlier could never show the end."""
    options = HanoiOptions(min_disks=5, max_disks=5, peg_names=4)
    task = load_task("hanoi", {"hanoi": options})
    tower = Example("", "", {"pegs": "ABC", "board": ["A"] * 5, "goal": "C"})
    assert task.shortest_answer(tower).count(";") == 31 - 1 and hanoi(task.shortest_answer(tower), tower).solved
    careful = load_task("hanoi", {"hanoi": replace(options, skill=0.999)})
    assert sum(hanoi(careful.demonstrations(tower, random.Random(seed)), tower).solved for seed in range(10)) > 5
    with pytest.raises(UserError, match=r"max_moves must be 0 .automatic. or at least the 31 moves that boards of 5"):
        HanoiOptions(max_disks=5, max_moves=30)


@pytest.mark.parametrize("name", GENERATED)
def test_no_problem_is_both_trained_on_and_held_out(name):
    dataset = load_task(name).dataset
    assert not {e.id for e in dataset.train} & {e.id for e in dataset.held_out}
    assert len({e.id for e in dataset.train}) == len(dataset.train)
    share = len(dataset.held_out) / (len(dataset.train) + len(dataset.held_out))
    assert 0.15 < share < 0.4


def test_a_permutation_of_countdown_numbers_is_the_same_problem():
    dataset = load_task("countdown").dataset

    def identities(examples):
        return {(tuple(sorted(e["numbers"])), e["target"]) for e in examples}

    assert not identities(dataset.train) & identities(dataset.held_out)
    for example in dataset.train[:50]:
        assert example.id == f"{','.join(map(str, sorted(example['numbers'])))}={example['target']}"


def test_the_split_is_the_same_every_time():
    for name in GENERATED:
        first, second = load_task(name).dataset, load_task(name).dataset
        assert [e.id for e in first.held_out] == [e.id for e in second.held_out]
        assert [e.prompt for e in first.train] == [e.prompt for e in second.train]


def test_a_leak_between_train_and_held_out_is_noticed():
    example = Example("same", "", {})
    with pytest.raises(UserError, match="held-out problems among the training ones"):
        Dataset([example], [example])
    with pytest.raises(UserError, match="needs held-out examples, got none beside 1"):
        Dataset([example], [])


def test_rows_are_read_once_and_only_when_an_example_is_asked_for():
    calls = []

    def load():
        calls.append(1)
        return Dataset([Example("a", "", {})], [Example("b", "", {})])

    dataset = DeferredDataset(load)
    assert not calls
    assert [dataset.held_out[0].id, dataset.train[0].id, dataset.train[0].id] == ["b", "a", "a"]
    assert len(calls) == 1
    assert dataset.sizes() == (1, 1)


@pytest.mark.parametrize("name", GENERATED)
def test_demonstrations_are_well_formed_imperfect_and_in_the_vocabulary(name):
    task, rng = load_task(name), random.Random(0)
    if task.demonstrations is None or task.episode is not None:
        pytest.skip("offers none, or plays over several turns: see its own tests")
    solved = 0
    for example in list(task.dataset.train)[:400]:
        text = task.demonstrations(example, rng)
        assert extract_answer(text), text
        assert set(text.split()) <= set(task.vocabulary)
        paid = task.reward(text, example)
        assert paid.parts.get("format", 1.0) == paid.parts.get("legal", 1.0) == 1.0, text
        solved += paid.solved
    assert 0.1 < solved / len(list(task.dataset.train)[:400]) < 0.9


@pytest.mark.parametrize("name", GENERATED)
def test_rewards_are_bounded_for_any_text(name):
    task, rng = load_task(name), random.Random(1)
    if task.reward is None:
        pytest.skip("is rewarded after several turns: see its own tests")
    words = [*task.vocabulary, "<answer>", "</answer>"]
    for example in list(task.dataset.train)[:100]:
        paid = task.reward(" ".join(rng.choices(words, k=20)), example)
        assert 0.0 <= paid.value <= paid.maximum


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: CountdownOptions(max_number=2), "max_number must be at least 5, got 2"),
        (lambda: CountdownOptions(held_out_share=1.0), "held_out_share must be in"),
        (lambda: HanoiOptions(min_disks=4, max_disks=3), "min_disks <= max_disks"),
        (lambda: HanoiOptions(max_disks=9), "<= 8"),
        (lambda: HanoiOptions(skill=0.0), "skill must be in"),
        (lambda: HanoiOptions(patience=1.0), "patience must be in"),
        (lambda: HanoiOptions(peg_names=3), "peg_names must be 4 to 26, got 3"),
    ],
)
def test_impossible_task_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        options()


def test_every_definition_that_offers_words_is_listed():
    assert [name for name, definition in TASK_DEFINITIONS.items() if definition.words] == list(OFFER_WORDS)
    options = {"hanoi": HanoiOptions(min_disks=2, max_disks=2)}
    expected = [*countdown_words(CountdownOptions()), *hanoi_words(options["hanoi"])]
    assert offered_words(options) == expected
