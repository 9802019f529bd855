"""Tic-tac-toe by self-play: one policy is both players, `x` and `o`, each rewarded for itself.

    me1 you2 3 you4 me5 6 7 8 9    ->    win 9 block none <answer> 9 </answer>

The board is shown from the side of whoever moves, so that it looks alike for both players. A free square is its number,
and the answer is the number of a free square, alone or as the one `<answer> 9 </answer>`. Whatever else is said, an
illegal move too, loses at once.

The demonstrations are legal random games. Before each move they name a square that would win and one that must be
blocked, and then move anywhere: what the position holds is known from the start, what to do with it is left to learn.

What identifies an example is the match: who plays against whom, from which opening, and which game of it this is.
Training games begin after 0 to `max_opening` legal moves: a policy that always began at the empty board would soon see
a handful of games only. Three in four openings are a draw between perfect players, since where a player is lost it is
luck that is rewarded; one in four holds a mistake, since a policy that never meets one forgets how to use it, and then
to avoid it. Held out are whole games against a random and a perfect opponent, as either player, which
training against oneself never meets. Against the perfect one a draw is the best result: there `solved`, a win, is 0,
and the shares of draws and losses are what counts.
"""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from minrl.tasks.task import Dataset, Task, TaskDefinition, extract_answer
from minrl.types import Episode, Example, Message, Prompt, Reward, Turn, UserError

INSTRUCTIONS = (
    "Tic-tac-toe: three in a line win. The nine squares of the board are shown row by row: 5 is a free square, me5 is "
    "yours, you5 is the other player's. Answer with the number of a free square and nothing else, or think first and "
    "give the number inside <answer> </answer>. Anything else loses."
)
EMPTY = "123456789"
LINES = ("123", "456", "789", "147", "258", "369", "159", "357")
HELD_OUT_GAMES = 250
"""Games of each match in the evaluation: 1000 in all, of which about half are played by default."""
OPENINGS = 240
"""Training examples for each number of moves that an opening has."""

WORDS = (
    *(f"{owner}{number}" for owner in ("", "me", "you") for number in EMPTY),
    *("win", "block", "none", "<answer>", "</answer>"),
)
"""What boards and demonstrations are written in: one token for each square, so that a game is short."""

Board = str
"""Nine squares, row by row: `x`, `o`, or the square's own number where it is free."""


@dataclass(frozen=True, kw_only=True)
class TictactoeOptions:
    """Whom the policy trains against, and from where."""

    opponent: Literal["self", "random", "minimax", "frozen", "mix"] = "self"
    """self: the policy is both players. frozen: --opponent, or the start model. mix: self, random and minimax."""
    max_opening: int = 6
    """Training games begin after 0 to so many legal moves, each number as often."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_opening <= 8:
            raise UserError(f"tictactoe.max_opening must be from 0 to 8, got {self.max_opening}")


def to_move(board: Board) -> str:
    """Whose turn it is: x begins.

    >>> to_move("123456789"), to_move("1234x6789")
    ('x', 'o')
    """
    return "x" if board.count("x") == board.count("o") else "o"


def free_squares(board: Board) -> list[str]:
    """The squares that may be played.

    >>> free_squares("xox4oxo89")
    ['4', '8', '9']
    """
    return [square for square in board if square in EMPTY]


def played(board: Board, square: str) -> Board:
    """The board after whose turn it is took that square."""
    return board.replace(square, to_move(board))


def winner(board: Board) -> str | None:
    """`x`, `o`, or `draw` where the board is full; None while the game goes on.

    >>> winner("xxx4oo789"), winner("xoxxoooxx"), winner("123456789")
    ('x', 'draw', None)
    """
    for line in LINES:
        marks = {board[int(square) - 1] for square in line}
        if marks in ({"x"}, {"o"}):
            return marks.pop()
    return None if free_squares(board) else "draw"


@cache
def value(board: Board) -> int:
    """What perfect players make of the board for whose turn it is: 1 a win, 0 a draw, -1 a loss (minimax).

    >>> value("123456789"), value("xx34oo789")
    (0, 1)
    """
    ended = winner(board)
    if ended is not None:
        return 0 if ended == "draw" else -1  # whose turn it would be did not make the last move
    return max(-value(played(board, square)) for square in free_squares(board))


def best_squares(board: Board) -> list[str]:
    """The squares that a perfect player may take: all that keep the value of the board."""
    return [square for square in free_squares(board) if -value(played(board, square)) == value(board)]


def parse_move(completion: str, board: Board) -> str | None:
    """The free square that the completion names, and nothing else; None where it is anything else.

    >>> parse_move(" 4 ", "xox4oxo89"), parse_move("<answer> 8 </answer>", "xox4oxo89")
    ('4', '8')
    >>> parse_move("1", "xox4oxo89") is None and parse_move("4 8", "xox4oxo89") is None
    True
    """
    answer = extract_answer(completion)
    named = completion.strip() if answer is None else answer
    return named if named in free_squares(board) else None


def result(role: str, ended: str) -> Reward:
    """1 for a win, 0.5 for a draw, 0 for a loss; `ended` may name the player who made an illegal move: `x illegal`.

    >>> result("x", "x").value, result("o", "draw").value, result("o", "x illegal").value
    (1.0, 0.5, 1.0)
    >>> result("x", "x illegal").parts
    {'win': 0.0, 'draw': 0.0, 'loss': 0.0, 'illegal': 1.0}
    """
    won = ended == role or (ended.endswith(" illegal") and ended != f"{role} illegal")
    shares = {"win": won, "draw": ended == "draw", "illegal": ended == f"{role} illegal"}
    shares["loss"] = not any(shares.values())
    parts = {name: float(shares[name]) for name in ("win", "draw", "loss", "illegal")}
    return Reward(parts["win"] + 0.5 * parts["draw"], parts)


def episode(example: Example, rng: random.Random) -> Episode:
    """One game from the example's board. `plays` is the policy's side against an opponent, `x o` in self-play."""
    board, opponent, sides = example["board"], example["opponent"], example["plays"].split()
    shown: set[str] = set()
    while (ended := winner(board)) is None:
        role = to_move(board)
        if role in sides or opponent == "frozen":
            text = yield Turn(role, message(board, first=role not in shown), frozen=role not in sides)
            shown.add(role)
            square = parse_move(text, board)
            if square is None:
                ended = f"{role} illegal"
                break
        else:
            square = rng.choice(free_squares(board) if opponent == "random" else best_squares(board))
        board = played(board, square)
    return {role: result(role, ended) for role in sides if role in shown}


def message(board: Board, first: bool) -> Prompt:
    """What the player to move is shown: the board as it is now, after the rules in the player's first turn."""
    own = to_move(board)
    shown = [
        square if square in EMPTY else f"{'me' if square == own else 'you'}{number}"
        for number, square in enumerate(board, 1)
    ]
    question: Message = {"role": "user", "content": " ".join(shown)}
    return [{"role": "system", "content": INSTRUCTIONS}, question] if first else [question]


def winning_squares(board: Board, mark: str) -> list[str]:
    """The free squares with which that player, were it to move, would complete a line.

    >>> winning_squares("xx3oo6789", "x"), winning_squares("xx3oo6789", "o")
    (['3'], ['6'])
    """
    return [square for square in free_squares(board) if winner(board.replace(square, mark)) == mark]


def demonstrations(example: Example, rng: random.Random) -> list[tuple[Prompt, str]]:
    """One side of a game of legal random moves. Before each it names a square that would win and one that must be
    blocked, and then moves anywhere: to use what it sees is left to learn.
    """
    board = example["board"]
    turns: dict[str, list[tuple[Prompt, str]]] = {"x": [], "o": []}
    while winner(board) is None:
        square, role = rng.choice(free_squares(board)), to_move(board)
        other = "o" if role == "x" else "x"
        seen = [rng.choice(winning_squares(board, mark) or ["none"]) for mark in (role, other)]
        said = f"win {seen[0]} block {seen[1]} <answer> {square} </answer>"
        turns[role].append((message(board, first=not turns[role]), said))
        board = played(board, square)
    return rng.choice([own for own in turns.values() if own])


def make(options: TictactoeOptions, data_path: str) -> Task:
    """Training games from openings against the chosen opponent; held-out games against random and minimax."""
    if data_path:
        raise UserError(f"tictactoe makes its own games and takes no --data-path, got {data_path!r}")
    opponents = ("self", "random", "minimax") if options.opponent == "mix" else (options.opponent,)
    boards = list(openings(options.max_opening))
    train = [_training_game(opponent, board, n) for opponent in opponents for n, board in enumerate(boards)]
    held_out = [_held_out_game(n, *match) for n in range(HELD_OUT_GAMES) for match in MATCHES]
    return Task(
        Dataset(train, held_out),
        None,
        episode=episode,
        demonstrations=demonstrations,
        vocabulary=WORDS,
        cheap=True,
        frozen_opponent="frozen" in opponents,
    )


def openings(longest: int) -> Iterator[Board]:
    """`OPENINGS` boards after each number of moves from 0 to `longest`, each kind shuffled, and as often as it takes:
    every fourth is won for one of two perfect players, where there are such boards, the others are a draw.
    """
    boards = [EMPTY]
    for moves in range(longest + 1):
        rng = random.Random(moves)
        drawn = [board for board in boards if value(board) == 0]
        decided = [board for board in boards if value(board) != 0] or drawn
        cycles = [itertools.cycle(rng.sample(kind, len(kind))) for kind in (drawn, decided)]
        yield from (next(cycles[n % 4 == 3]) for n in range(OPENINGS))
        following = {played(board, square) for board in boards for square in free_squares(board)}
        boards = sorted(board for board in following if winner(board) is None)


MATCHES = tuple(itertools.product(("random", "minimax"), "xo"))


def _training_game(opponent: str, board: Board, number: int) -> Example:
    """Against an opponent the policy has the next move."""
    plays = "x o" if opponent == "self" else to_move(board)
    return _example(f"{opponent}, game {number} from {board}", board, opponent, plays, {})


def _held_out_game(number: int, opponent: str, plays: str) -> Example:
    category = {"match": f"{plays}-against-{opponent}"}
    return _example(f"{plays} against {opponent}, game {number}", EMPTY, opponent, plays, category)


def _example(name: str, board: Board, opponent: str, plays: str, category: Mapping[str, str]) -> Example:
    fields = {"board": board, "opponent": opponent, "plays": plays}
    return Example(name, message(board, first=True), fields, category)


TASK = TaskDefinition(TictactoeOptions, make)
