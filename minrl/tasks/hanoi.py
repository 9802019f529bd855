"""Tower of Hanoi from any legal start to any goal peg, on three pegs of many names.

    pegs A C E board E C A goal A    ->    <answer> E>A C A>C : 1 A>C ; E>A C C : 3 E>A ; ... </answer>

A board lists the peg of each disk, the largest first. A move is `disk from>to`; before a move and a colon the policy
may write what it likes. The demonstrations write down each disk's peg and, if the disk is due on another peg, that peg:
the largest disk is due on the goal, and each disk smaller than one that must move is due on the third peg. So each word
follows from a few others, and the right move is the last due one. The demonstrations often move another disk: following
the list is left to learn.

Held out are all boards of some sets of three pegs. The answer to a small board is the end of answers to larger ones,
so boards of the same pegs show each other's solutions. A board that one move solves is not posed: its answer names only
two pegs, which other sets share.

With `--hanoi.form lists` the whole tower goes from peg 0 to peg 2, for models of the hub:

    Initial state: [[3, 2, 1], [], []]    ->    <result>[[1, 0, 2], [2, 0, 1], [1, 2, 1], ...]</result>

There is one such problem for each number of disks, and its answer is the beginning of the one for two more disks. So
the highest towers are held out.
"""

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from minrl.dataflow import Example, Reward, require
from minrl.tasks.answers import plain_characters
from minrl.tasks.task import Dataset, HeldOut, TaskOptions, chat, extract_answer, split
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.settings import Bound

NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NUMBERS = "012"
"""The pegs of the form `lists`."""
INSTRUCTIONS = (
    "Tower of Hanoi: disk 1 is the smallest, a disk may only lie on a larger one, and only the top disk of a peg "
    "may move. The board lists the peg of each disk, from the largest disk to disk 1. Bring all disks to the goal peg. "
    "Answer with the moves inside one <answer> </answer>, separated by semicolons; write each move as: disk from>to, "
    "such as 1 A>C. Before a move you may write what you like and a colon."
)
LIST_INSTRUCTIONS = (
    "Tower of Hanoi: disk 1 is the smallest, a disk may only lie on a larger one, and only the top disk of a peg may "
    "move. The state lists the disks of pegs 0, 1 and 2, each from bottom to top. Bring all disks to peg 2. Write no "
    "code. Give all moves as one list of [disk, from peg, to peg] inside <result> </result>."
)
PROGRESS_REWARD = 0.2
MOST_BOARDS = 20
"""Boards of each number of disks that are posed for each set of pegs, at most."""
SKILL = 0.6
"""Probability that a move of a demonstration is the best one; otherwise it is any legal one."""
PATIENCE = 0.6
"""Probability that a demonstration continues after a move that was not the best one."""
MAX_DETOUR = 3
"""An answer may have so many times the moves that the hardest board of its disks needs."""

_MOVE = re.compile(r"(?:-\s+|[0-9]+[.)]\s+)?(1[0-4]|[1-9])\s+([A-Z])\s*[-=]*>\s*([A-Z])\.?")
"""A move, which may be an item of a list, and its arrow a longer one."""
_MARKS = str.maketrans("", "", '*_`$"')
_ARROW = re.compile(r"\\(?:long)?(?:to|rightarrow)(?![A-Za-z])", re.IGNORECASE)
_RESULT = re.compile(r"<result>([^<]*)</result>")
_LISTED = re.compile(r"\[\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*\]")

Board = tuple[str, ...]
"""The peg of each disk, smallest first."""

Move = tuple[int, str, str]
"""A disk, the peg that it leaves, and the peg it goes to."""


@dataclass(frozen=True, kw_only=True)
class HanoiOptions(TaskOptions):
    """Which boards are posed, and what an answer earns."""

    prefix = "hanoi."
    form: Literal["letters", "lists"] = "letters"
    """letters: any board, pegs A to Z. lists: whole towers from peg 0 to peg 2, moves as lists; needs --model-id."""
    credit: Literal["progress", "right_moves"] = "progress"
    """What an unsolved answer earns. progress: up to 0.2 for legal moves that bring the goal nearer. right_moves: the
    share of its moves up to the first that is not of the shortest solution."""
    min_disks: Annotated[int, Bound(least=2, most=14)] = 3
    """Fewest disks on a board."""
    max_disks: Annotated[int, Bound(least=2, most=14)] = 4
    """Most disks on a board."""
    peg_names: Annotated[int, Bound(least=4, most=26)] = 12
    """The pegs of a board are any three of so many names: A, B, C and so on."""
    held_out_share: HeldOut = 0.25
    """Share of the sets of three pegs whose boards are never trained on; with lists, of the towers, the highest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fewest, most = self.min_disks, self.max_disks
        require(fewest <= most, f"hanoi.min_disks must be at most hanoi.max_disks, got {fewest} and {most}")
        shown = f"hanoi.form lists shows the answer for 2 disks: give at least 3 as hanoi.min_disks, got {fewest}"
        require(self.form == "letters" or fewest > 2, shown)


DEFAULTS = HanoiOptions()


def reward(completion: str, example: Example, options: HanoiOptions = DEFAULTS) -> Reward:
    """1 if the moves bring every disk to the goal peg; less, by `options.credit`, for some of the way.

    With "progress" an answer with an illegal move earns 0, and any other up to 0.2 by the reduction of the number of
    moves still needed. With "right_moves" it earns the number of moves with which it follows the shortest solution,
    over the length of that or of its own, whichever is larger. No single answer, or more than `MAX_DETOUR` times the
    moves that boards of its size need, earns 0.

    >>> example = Example("ACE A A > C", "", {"pegs": "ACE", "board": ["A", "A"], "goal": "C"})
    >>> reward("<answer> 1 A>E ; 2 A>C ; 1 E>C </answer>", example).value
    1.0
    """
    start, goal, pegs = tuple(example["board"]), example["goal"], example["pegs"]
    moves = listed_moves(completion) if pegs == NUMBERS else written_moves(extract_answer(completion) or "")
    if not 0 < len(moves) <= MAX_DETOUR * (2 ** len(start) - 1):
        moves = []
    needed, end = distance(start, goal, pegs), play_moves(start, pegs, moves)
    legal, left = float(end is not None), needed if end is None else distance(end, goal, pegs)
    if options.credit == "right_moves":
        pairs = zip(moves, shortest(start, goal, pegs), strict=False)
        right = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        share = right / max(needed, len(moves))
        return Reward(1.0 if left == 0 else share, {"legal": legal, "right_moves": share})
    progress = max(0.0, (needed - left) / needed)
    return Reward(1.0 if left == 0 else PROGRESS_REWARD * progress, {"legal": legal, "progress": progress})


def written_moves(answer: str) -> list[Move]:
    """The moves of an answer of the form `letters`, each on its line or before its semicolon; none if one is no move.

    >>> written_moves("A>C A>E : 1 A>E ; 2 A>C")
    [(1, 'A', 'E'), (2, 'A', 'C')]
    """
    text = _ARROW.sub(">", plain_characters(answer).translate(_MARKS))
    entries = [entry.rpartition(":")[2].strip() for entry in re.split(r"[;\n]", text) if entry.strip()]
    moves = [(int(move[1]), move[2], move[3]) for move in map(_MOVE.fullmatch, entries) if move]
    return moves if len(moves) == len(entries) else []


def listed_moves(completion: str) -> list[Move]:
    """The moves inside the one `<result>` outside the thoughts; none if there is more than one, or anything else in it.

    >>> listed_moves("<result>[[1, 0, 1], [2, 0, 2]]</result>")
    [(1, '0', '1'), (2, '0', '2')]
    """
    results = _RESULT.findall(after_thoughts(completion))
    if len(results) != 1 or not re.fullmatch(r"\s*\[[\s,]*\]\s*", _LISTED.sub("", results[0])):
        return []
    return [(int(disk), start, end) for disk, start, end in _LISTED.findall(results[0])]


def play_moves(board: Board, pegs: str, moves: Sequence[Move]) -> Board | None:
    """The board after all of the moves; None if one is illegal or there is none.

    >>> play_moves(("A", "A"), "ACE", [(1, "A", "E"), (2, "A", "C")])
    ('E', 'C')
    >>> play_moves(("A", "A"), "ACE", [(2, "A", "C")]) is None
    True
    """
    for disk, start, end in moves:
        if not 1 <= disk <= len(board) or board[disk - 1] != start or not _is_legal(board, pegs, disk, end):
            return None
        board = moved(board, disk, end)
    return board if moves else None


def _is_legal(board: Board, pegs: str, disk: int, peg: str) -> bool:
    """Whether no smaller disk lies on the disk, nor on the peg it goes to."""
    return peg in pegs and peg != board[disk - 1] and not {peg, board[disk - 1]} & set(board[: disk - 1])


def legal_moves(board: Board, pegs: str) -> list[tuple[int, str]]:
    """All (disk, peg) that the rules allow.

    >>> legal_moves(("A", "A"), "ACE")
    [(1, 'C'), (1, 'E')]
    """
    return [(disk, peg) for disk in range(1, len(board) + 1) for peg in pegs if _is_legal(board, pegs, disk, peg)]


def moved(board: Board, disk: int, peg: str) -> Board:
    """The board with that disk on that peg."""
    return (*board[: disk - 1], peg, *board[disk:])


def target_pegs(board: Board, goal: str, pegs: str) -> Board:
    """The peg on which each disk is due, smallest first. Disks smaller than one that must move go to the third peg.

    >>> target_pegs(("A", "A", "C"), "C", "ACE")  # disk 3 is there, disk 2 must go there, and disk 1 out of its way
    ('E', 'C', 'C')
    """
    found = []
    for at in reversed(board):
        found.append(goal)
        if at != goal:
            goal = next(peg for peg in pegs if peg not in (at, goal))
    return tuple(found[::-1])


def distance(board: Board, goal: str, pegs: str) -> int:
    """The fewest moves that bring every disk to the goal peg: disk k costs 2^(k-1) if it must move.

    >>> distance(("A", "A", "A"), "C", "ACE")
    7
    """
    places = zip(board, target_pegs(board, goal, pegs), strict=True)
    return sum(2**number for number, (at, to) in enumerate(places) if at != to)


def best_move(board: Board, goal: str, pegs: str) -> tuple[int, str]:
    """The first move of the shortest solution: the smallest disk that is not on its due peg.

    >>> best_move(("A", "A"), "C", "ACE")
    (1, 'E')
    """
    places = enumerate(zip(board, target_pegs(board, goal, pegs), strict=True), 1)
    return next((disk, to) for disk, (at, to) in places if at != to)


def shortest(board: Board, goal: str, pegs: str) -> Iterator[Move]:
    """The moves of the shortest solution, of which there is one.

    >>> list(shortest(("0", "0"), "2", "012"))
    [(1, '0', '1'), (2, '0', '2'), (1, '1', '2')]
    """
    while set(board) != {goal}:
        disk, peg = best_move(board, goal, pegs)
        yield disk, board[disk - 1], peg
        board = moved(board, disk, peg)


def written(board: Board, goal: str, pegs: str, move: tuple[int, str]) -> str:
    """A move in a demonstration: first the peg of each disk, with the one it is due on if that is another.

    >>> written(("A", "C", "E"), "A", "ACE", (1, "C"))
    'E>A C A>C : 1 A>C'
    """
    disk, peg = move
    places = zip(board, target_pegs(board, goal, pegs), strict=True)
    listed = [at if at == to else f"{at}>{to}" for at, to in places]
    return f"{' '.join(reversed(listed))} : {disk} {board[disk - 1]}>{peg}"


def dataset(options: HanoiOptions) -> Dataset:
    """Boards of `min_disks` to `max_disks` disks on three pegs, split by which three these are; or towers by height."""
    options.require_no_data("boards")
    if options.form == "letters":
        return split(_boards(options), options.held_out_share, by=lambda example: example["pegs"])
    towers = [_tower(disks) for disks in range(options.min_disks, options.max_disks + 1)]
    trained = len(towers) - max(1, round(options.held_out_share * len(towers)))
    return Dataset(towers[:trained], towers[trained:])


def more(options: HanoiOptions) -> dict[str, Any]:
    """What lets the embedded base model play it."""
    if options.form == "lists":
        return {"cheap": True, "solution": _listed_answer}

    def play(example: Example, skill: float, rng: random.Random) -> str:
        board, goal, pegs = tuple(example["board"]), example["goal"], example["pegs"]
        moves: list[str] = []
        most = min(2**options.max_disks, MAX_DETOUR * (2 ** len(board) - 1))
        while len(moves) < most and set(board) != {goal}:
            best = best_move(board, goal, pegs)
            move = best if rng.random() < skill else rng.choice(legal_moves(board, pegs))
            moves.append(written(board, goal, pegs, move))
            board = moved(board, *move)
            if move != best and rng.random() >= PATIENCE:
                break
        return f"<answer> {' ; '.join(moves)} </answer>"

    return {
        "demonstrations": lambda example, rng: play(example, SKILL, rng),
        "solution": lambda example: play(example, 1.0, random.Random(0)),
        "vocabulary": words(options),
        "cheap": True,
    }


def words(options: HanoiOptions) -> tuple[str, ...]:
    """The vocabulary of boards and demonstrations."""
    pegs, disks = NAMES[: options.peg_names], map(str, range(1, options.max_disks + 1))
    ways = [f"{start}>{end}" for start, end in itertools.permutations(pegs, 2)]
    return ("pegs", "board", "goal", *pegs, ":", ";", "<answer>", "</answer>", *disks, *ways)


def _boards(options: HanoiOptions) -> Iterator[Example]:
    """For each set of pegs and number of disks: at most `MOST_BOARDS` boards that take two moves or more."""
    for pegs in map("".join, itertools.combinations(NAMES[: options.peg_names], 3)):
        for disks in range(options.min_disks, options.max_disks + 1):
            numbers = range(3 ** (disks + 1))
            drawn = min(len(numbers), MOST_BOARDS + 9)  # 3 are solved, and 6 by one move
            boards = (
                [pegs[number // 3**place % 3] for place in range(disks + 1)]
                for number in random.Random(f"{pegs} {disks}").sample(numbers, drawn)
            )
            unsolved = ((board, goal) for *board, goal in boards if distance(tuple(board), goal, pegs) > 1)
            for board, goal in itertools.islice(unsolved, MOST_BOARDS):
                question = f"pegs {' '.join(pegs)} board {' '.join(reversed(board))} goal {goal}"
                fields = {"pegs": pegs, "board": board, "goal": goal}
                yield Example(question, chat(INSTRUCTIONS, question), fields, {"disks": str(disks)})


def _tower(disks: int) -> Example:
    """The problem of the form `lists` with so many disks, behind that of two disks with its answer."""
    question, fields = _state(disks), {"pegs": NUMBERS, "board": [NUMBERS[0]] * disks, "goal": NUMBERS[2]}
    prompt = [
        *chat(LIST_INSTRUCTIONS, _state(2)),
        {"role": "assistant", "content": "<result>[[1, 0, 1], [2, 0, 2], [1, 1, 2]]</result>"},
        {"role": "user", "content": question},
    ]
    return Example(question, prompt, fields, {"disks": str(disks)})


def _state(disks: int) -> str:
    return f"Initial state: [{list(range(disks, 0, -1))}, [], []]"


def _listed_answer(example: Example) -> str:
    moves = shortest(tuple(example["board"]), example["goal"], example["pegs"])
    return f"<result>[{', '.join(f'[{disk}, {start}, {end}]' for disk, start, end in moves)}]</result>"
