"""Tower of Hanoi from any legal start to any goal peg.

    pegs A A C goal B    ->    <answer> 1 C : C A C goal B ; 2 B : C B C goal B ; ... </answer>

The first word of the prompt's list is the peg of disk 1, the smallest. A move is `disk peg`, followed by the board that
it makes, with or without the goal. A policy that writes both decides each move from what it wrote last, so that every
board on its way teaches it something about the problems that begin there.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minrl.tasks.task import Task, TaskDefinition, extract_answer, split
from minrl.types import Example, Reward, UserError

PEGS = "ABC"
INSTRUCTIONS = (
    "Tower of Hanoi: disk 1 is the smallest, a disk may only lie on a larger one, and only the top disk of a peg "
    "may move. The pegs are listed from disk 1 upwards. Bring all disks to the goal peg. Answer with the moves "
    "inside one <answer> </answer>, separated by semicolons; write each move as: disk peg : the pegs after it goal "
    "the goal peg."
)
PROGRESS_REWARD = 0.2

Board = tuple[str, ...]
"""The peg of each disk, smallest first."""


@dataclass(frozen=True, kw_only=True)
class HanoiOptions:
    """Which boards are posed."""

    min_disks: int = 3
    """Fewest disks on a board."""
    max_disks: int = 4
    """Most disks on a board."""
    held_out_share: float = 0.25
    """Share of the boards that is never trained on."""
    skill: float = 0.75
    """Probability that a move of a demonstration is the best one; otherwise it is any legal one."""
    max_moves: int = 16
    """A demonstration gives up after so many moves."""

    def __post_init__(self) -> None:
        if not 2 <= self.min_disks <= self.max_disks <= 8:
            raise UserError(f"hanoi needs 2 <= min_disks <= max_disks <= 8, got {self.min_disks} and {self.max_disks}")
        for name in ("held_out_share", "skill"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"hanoi.{name} must be in (0, 1), got {getattr(self, name)}")
        if self.max_moves < 1:
            raise UserError(f"hanoi.max_moves must be at least 1, got {self.max_moves}")


def reward(completion: str, example: Example) -> Reward:
    """1 where the moves bring every disk to the goal peg; up to 0.2 for legal moves that end nearer to it than they
    began, by the number of moves still needed; 0 for an illegal move, a wrong board or no single answer.

    >>> example = Example("A A > B", "", {"pegs": ["A", "A"], "goal": "B"})
    >>> reward("<answer> 1 C : C A ; 2 B : C B ; 1 B : B B </answer>", example).value
    1.0
    """
    start, goal = tuple(example["pegs"]), example["goal"]
    answer = extract_answer(completion)
    end = play_moves(start, goal, answer) if answer is not None else None
    if end is None:
        return Reward(0.0, {"legal": 0.0, "progress": 0.0})
    needed = distance(start, goal)
    progress = max(0.0, (needed - distance(end, goal)) / needed)
    value = 1.0 if progress == 1.0 else PROGRESS_REWARD * progress
    return Reward(value, {"legal": 1.0, "progress": progress})


def play_moves(board: Board, goal: str, answer: str) -> Board | None:
    """The board after all moves of the answer; None where one is illegal or what is written after it is wrong.

    >>> play_moves(("A", "A"), "B", "1 C : C A goal B ; 2 B : C B")
    ('C', 'B')
    >>> play_moves(("A", "A"), "B", "2 B : A B") is None
    True
    """
    for entry in answer.split(";"):
        move, _, shown = entry.partition(":")
        match move.split():
            case [disk, peg] if (disk, peg) in {(str(number), name) for number, name in legal_moves(board)}:
                board = moved(board, int(disk), peg)
            case _:
                return None
        if shown.split() not in ([*board], [*board, "goal", goal]):
            return None
    return board


def legal_moves(board: Board) -> list[tuple[int, str]]:
    """All (disk, peg) that the rules allow: no smaller disk above it, nor on the peg it goes to.

    >>> legal_moves(("A", "A"))
    [(1, 'B'), (1, 'C')]
    """
    return [
        (disk, peg)
        for disk in range(1, len(board) + 1)
        for peg in PEGS
        if peg != board[disk - 1] and not {peg, board[disk - 1]} & set(board[: disk - 1])
    ]


def moved(board: Board, disk: int, peg: str) -> Board:
    """The board with that disk on that peg."""
    return (*board[: disk - 1], peg, *board[disk:])


def distance(board: Board, goal: str) -> int:
    """The fewest moves that bring every disk to the goal peg: disk k, where it must move, costs 2^(k-1).

    >>> distance(("A", "A", "A"), "B")
    7
    """
    return sum(2 ** (disk - 1) for disk, _ in _moves_due(board, goal))


def best_move(board: Board, goal: str) -> tuple[int, str]:
    """The first move of the shortest solution: the smallest disk that is not where its turn wants it.

    >>> best_move(("A", "A"), "B")
    (1, 'C')
    """
    return _moves_due(board, goal)[-1]


def _moves_due(board: Board, goal: str) -> list[tuple[int, str]]:
    """Largest disk first: the disks that must move, and where. Whatever is smaller has to clear the way to the
    third peg first.
    """
    due = []
    for disk in range(len(board), 0, -1):
        at = board[disk - 1]
        if at != goal:
            due.append((disk, goal))
            goal = next(peg for peg in PEGS if peg not in (at, goal))
    return due


def make(options: HanoiOptions, data_path: str) -> Task:
    """All boards of `min_disks` to `max_disks` disks with each goal peg, but those already solved."""
    if data_path:
        raise UserError(f"hanoi makes its own boards and takes no --data-path, got {data_path!r}")
    dataset = split(_examples(range(options.min_disks, options.max_disks + 1)), options.held_out_share)

    def demonstrations(example: Example, rng: random.Random) -> str:
        board, goal = tuple(example["pegs"]), example["goal"]
        written: list[str] = []
        while len(written) < options.max_moves and set(board) != {goal}:
            best = rng.random() < options.skill
            disk, peg = best_move(board, goal) if best else rng.choice(legal_moves(board))
            board = moved(board, disk, peg)
            written.append(f"{disk} {peg} : {' '.join(board)} goal {goal}")
        return f"<answer> {' ; '.join(written)} </answer>"

    return Task(dataset, reward, demonstrations=demonstrations, vocabulary=words(options), cheap=True)


def words(options: HanoiOptions) -> tuple[str, ...]:
    """What boards and demonstrations are written in."""
    disks = [str(disk) for disk in range(1, options.max_disks + 1)]
    return ("pegs", "goal", *PEGS, ":", ";", "<answer>", "</answer>", *disks)


def _examples(disks: Sequence[int]) -> Iterator[Example]:
    for count in disks:
        for board, goal in itertools.product(itertools.product(PEGS, repeat=count), PEGS):
            if set(board) == {goal}:
                continue
            question = f"pegs {' '.join(board)} goal {goal}"
            yield Example(
                f"{' '.join(board)} > {goal}",
                [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}],
                {"pegs": list(board), "goal": goal},
                {"disks": str(count)},
            )


TASK = TaskDefinition(HanoiOptions, make, words)
