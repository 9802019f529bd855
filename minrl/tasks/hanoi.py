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
"""

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from minrl.dataflow import Example, Reward, UserError, require
from minrl.tasks.answers import plain_characters
from minrl.tasks.task import Task, TaskDefinition, chat, extract_answer, split

NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
INSTRUCTIONS = (
    "Tower of Hanoi: disk 1 is the smallest, a disk may only lie on a larger one, and only the top disk of a peg "
    "may move. The board lists the peg of each disk, from the largest disk to disk 1. Bring all disks to the goal peg. "
    "Answer with the moves inside one <answer> </answer>, separated by semicolons; write each move as: disk from>to, "
    "such as 1 A>C. Before a move you may write what you like and a colon."
)
PROGRESS_REWARD = 0.2
MOST_BOARDS = 20
"""Boards of each number of disks that are posed for each set of pegs, at most."""
MOVE = re.compile(r"(?:-\s+|[0-9]+[.)]\s+)?(?:(?:[Mm]ove )?[Dd]isk )?([1-9])\s+([A-Z])\s*[-=]*>\s*([A-Z])\.?")
"""A move, which may be an item of a list and name its disk so, and its arrow a longer one."""
IDLE = 3
"""An answer may have so many times the moves that the hardest board of its disks needs."""

_MARKS = str.maketrans("", "", '*_`$"')
_ARROW = re.compile(r"\\(?:long)?(?:to|rightarrow)(?![A-Za-z])", re.IGNORECASE)
_LINE_OF_MOVE = re.compile(r":[ \t]*\n\s*")

Board = tuple[str, ...]
"""The peg of each disk, smallest first."""


@dataclass(frozen=True, kw_only=True)
class HanoiOptions:
    """Which boards are posed."""

    min_disks: int = 3
    """Fewest disks on a board."""
    max_disks: int = 4
    """Most disks on a board."""
    peg_names: int = 12
    """The pegs of a board are any three of so many names: A, B, C and so on."""
    held_out_share: float = 0.25
    """Share of the sets of three pegs whose boards are never trained on."""
    skill: float = 0.6
    """Probability that a move of a demonstration is the best one; otherwise it is any legal one."""
    patience: float = 0.6
    """Probability that a demonstration goes on after a move that was not the best one."""
    max_moves: int = 0
    """A demonstration gives up after so many moves. 0: one more than the longest of the shortest solutions."""

    def __post_init__(self) -> None:
        if not 2 <= self.min_disks <= self.max_disks <= 8:
            raise UserError(f"hanoi needs 2 <= min_disks <= max_disks <= 8, got {self.min_disks} and {self.max_disks}")
        require(4 <= self.peg_names <= 26, f"hanoi.peg_names must be 4 to 26, got {self.peg_names}")
        for name in ("held_out_share", "skill", "patience"):
            require(0 < getattr(self, name) < 1, f"hanoi.{name} must be in (0, 1), got {getattr(self, name)}")
        require(
            self.max_moves == 0 or self.max_moves >= self.longest,
            f"hanoi.max_moves must be 0 (automatic) or at least the {self.longest} moves that boards of "
            f"{self.max_disks} disks need, got {self.max_moves}",
        )

    @property
    def longest(self) -> int:
        """The moves of the longest shortest solution."""
        return 2**self.max_disks - 1


def reward(completion: str, example: Example) -> Reward:
    """1 if the moves bring every disk to the goal peg; up to 0.2 for legal moves that reduce the number of moves still
    needed; 0 for an illegal move, no single answer, or more than `IDLE` times the moves that boards of its size need.

    >>> example = Example("ACE A A > C", "", {"pegs": "ACE", "board": ["A", "A"], "goal": "C"})
    >>> reward("<answer> 1 A>E ; 2 A>C ; 1 E>C </answer>", example).value
    1.0
    """
    start, goal, pegs = tuple(example["board"]), example["goal"], example["pegs"]
    needed, answer = distance(start, goal, pegs), extract_answer(completion)
    end = start if answer == "" and not needed else play_moves(start, pegs, answer or "")
    if end is None:
        return Reward(0.0, {"legal": 0.0, "progress": 0.0})
    left = distance(end, goal, pegs)
    progress = max(0.0, (needed - left) / needed) if needed else float(left == 0)
    value = 1.0 if progress == 1.0 else PROGRESS_REWARD * progress
    return Reward(value, {"legal": 1.0, "progress": progress})


def play_moves(board: Board, pegs: str, answer: str) -> Board | None:
    """The board after all moves of the answer, each on its line or before its semicolon; None if one is illegal or no
    move, if there is none, or if they are more than `IDLE` allows.

    >>> play_moves(("A", "A"), "ACE", "A>C A>E : 1 A>E ; 2 A>C")
    ('E', 'C')
    >>> play_moves(("A", "A"), "ACE", "2 A>C") is None
    True
    """
    text = _LINE_OF_MOVE.sub(": ", _ARROW.sub(">", plain_characters(answer).translate(_MARKS)))
    entries = [entry for entry in re.split(r"[;\n]", text) if entry.strip()]
    if not 0 < len(entries) <= most_moves(board):
        return None
    for entry in entries:
        move = MOVE.fullmatch(entry.rpartition(":")[2].strip())
        if move is None:
            return None
        disk, end = int(move[1]), move[3]
        if (disk, end) not in legal_moves(board, pegs) or board[disk - 1] != move[2]:
            return None
        board = moved(board, disk, end)
    return board


def most_moves(board: Board) -> int:
    """How many moves an answer may have."""
    return IDLE * (2 ** len(board) - 1)


def legal_moves(board: Board, pegs: str) -> list[tuple[int, str]]:
    """All (disk, peg) that the rules allow: no smaller disk lies on the disk, nor on the peg it goes to.

    >>> legal_moves(("A", "A"), "ACE")
    [(1, 'C'), (1, 'E')]
    """
    return [
        (disk, peg)
        for disk in range(1, len(board) + 1)
        for peg in pegs
        if peg != board[disk - 1] and not {peg, board[disk - 1]} & set(board[: disk - 1])
    ]


def moved(board: Board, disk: int, peg: str) -> Board:
    """The board with that disk on that peg."""
    return (*board[: disk - 1], peg, *board[disk:])


def due(board: Board, goal: str, pegs: str) -> Board:
    """The peg on which each disk is due, smallest first. Disks smaller than one that must move go to the third peg.

    >>> due(("A", "A", "C"), "C", "ACE")  # disk 3 is there, disk 2 must go there, and disk 1 out of its way
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
    return sum(2**number for number, (at, to) in enumerate(zip(board, due(board, goal, pegs), strict=True)) if at != to)


def best_move(board: Board, goal: str, pegs: str) -> tuple[int, str]:
    """The first move of the shortest solution: the smallest disk that is not on its due peg.

    >>> best_move(("A", "A"), "C", "ACE")
    (1, 'E')
    """
    places = enumerate(zip(board, due(board, goal, pegs), strict=True), 1)
    return next((disk, to) for disk, (at, to) in places if at != to)


def written(board: Board, goal: str, pegs: str, move: tuple[int, str]) -> str:
    """A move in a demonstration: first the peg of each disk, with the one it is due on if that is another.

    >>> written(("A", "C", "E"), "A", "ACE", (1, "C"))
    'E>A C A>C : 1 A>C'
    """
    disk, peg = move
    places = [at if at == to else f"{at}>{to}" for at, to in zip(board, due(board, goal, pegs), strict=True)]
    return f"{' '.join(reversed(places))} : {disk} {board[disk - 1]}>{peg}"


def make(options: HanoiOptions, data_path: str) -> Task:
    """Boards of `min_disks` to `max_disks` disks on three pegs, split by which three these are."""
    require(not data_path, f"hanoi makes its own boards and takes no --data-path, got {data_path!r}")
    dataset = split(_examples(options), options.held_out_share, by=lambda example: example["pegs"])

    def play(example: Example, skill: float, rng: random.Random) -> str:
        board, goal, pegs = tuple(example["board"]), example["goal"], example["pegs"]
        moves: list[str] = []
        most = min(options.max_moves or options.longest + 1, most_moves(board))
        while len(moves) < most and set(board) != {goal}:
            best = best_move(board, goal, pegs)
            move = best if rng.random() < skill else rng.choice(legal_moves(board, pegs))
            moves.append(written(board, goal, pegs, move))
            board = moved(board, *move)
            if move != best and rng.random() >= options.patience:
                break
        return f"<answer> {' ; '.join(moves)} </answer>"

    return Task(
        dataset,
        reward,
        demonstrations=lambda example, rng: play(example, options.skill, rng),
        shortest_answer=lambda example: play(example, 1.0, random.Random(0)),
        vocabulary=words(options),
        cheap=True,
    )


def words(options: HanoiOptions) -> tuple[str, ...]:
    """The vocabulary of boards and demonstrations."""
    pegs, disks = NAMES[: options.peg_names], map(str, range(1, options.max_disks + 1))
    ways = [f"{start}>{end}" for start, end in itertools.permutations(pegs, 2)]
    return ("pegs", "board", "goal", *pegs, ":", ";", "<answer>", "</answer>", *disks, *ways)


def _examples(options: HanoiOptions) -> Iterator[Example]:
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


TASK = TaskDefinition(HanoiOptions, make, words)
