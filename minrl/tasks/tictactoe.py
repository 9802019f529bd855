"""Tic-tac-toe by self-play: one policy is both players, `x` and `o`, each rewarded for itself.

    me1 you2 3 you4 me5 6 7 8 9    ->    win 9 block none <answer> 9 </answer>

The board is shown from the side of the player to move, so both players see the same kind of board. A free square is
its number; the answer is the number of a free square, alone or as the one `<answer> 9 </answer>`. Any other answer,
such as an illegal move, loses at once.

The demonstrations are legal random games. Before each move they name a square that would win and one that must be
blocked, and then move anywhere: reading the position is shown, using it is left to learn.

An example is a match: the players, the opening, and the number of the game. Training games begin after 0 to
`max_opening` legal moves, since a policy that always began at the empty board would soon see few different games. Three
in four openings are a draw between perfect players, because in lost positions luck is rewarded; one in four holds a
mistake, because a policy that never meets one forgets how to use it, and then to avoid it. Held out are whole games as
either player against a random and a perfect opponent, which training against oneself never meets. Against the perfect
one a draw is the best result: there `solved`, a win, is 0, and the shares of draws and losses count.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal

from minrl.dataflow import Episode, Example, Prompt, Reward, Turn
from minrl.tasks.answers import plain_characters, unwrapped
from minrl.tasks.task import Dataset, TaskOptions, chat, extract_answer
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.settings import Bound

INSTRUCTIONS = (
    "Tic-tac-toe: three in a line win. The nine squares of the board are shown row by row: 5 is a free square, me5 is "
    "yours, you5 is the other player's. Answer with the number of a free square and nothing else, or think first and "
    "give the number inside <answer> </answer>. Anything else loses."
)
EMPTY = "123456789"
LINES = ("123", "456", "789", "147", "258", "369", "159", "357")
HELD_OUT_GAMES = 250
"""Games of each match in the evaluation: 1000 in all, about half of them played by default."""
OPENINGS = 240
"""Training examples for each number of moves that an opening has."""

MAX_ANSWER_CHARACTERS = 100

WORDS = (
    *(f"{owner}{number}" for owner in ("", "me", "you") for number in EMPTY),
    *("win", "block", "none", "<answer>", "</answer>"),
)
"""The vocabulary of boards and demonstrations: one token for each square, so that a game is short."""

Board = str
"""Nine squares, row by row: `x`, `o`, or the square's own number where it is free."""


@dataclass(frozen=True, kw_only=True)
class TictactoeOptions(TaskOptions):
    """Whom the policy trains against, and from where."""

    prefix = "tictactoe."
    opponent: Literal["self", "random", "minimax", "frozen", "mix"] = "self"
    """self: the policy is both players. frozen: --opponent, or the start model. mix: self, random and minimax."""
    zero_sum: bool = False
    """Pay 1, 0 and -1 for a win, a draw and a loss, as SPIRAL does, and not 1, 0.5 and 0."""
    max_opening: Annotated[int, Bound(least=0, most=8)] = 6
    """Training games begin after 0 to so many legal moves, each number as often."""


def to_move(board: Board) -> str:
    """The player to move: x begins.

    >>> to_move("123456789"), to_move("1234x6789")
    ('x', 'o')
    """
    return "x" if board.count("x") == board.count("o") else "o"


def free_squares(board: Board) -> list[str]:
    """The numbers of the free squares.

    >>> free_squares("xox4oxo89")
    ['4', '8', '9']
    """
    return [square for square in board if square in EMPTY]


def played(board: Board, square: str) -> Board:
    """The board after the player to move took that square."""
    return board.replace(square, to_move(board))


def winner(board: Board) -> str | None:
    """`x`, `o`, or `draw` if the board is full; None while the game goes on.

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
    """The minimax value of the board for the player to move: 1 a win, 0 a draw, -1 a loss.

    >>> value("123456789"), value("xx34oo789")
    (0, 1)
    """
    ended = winner(board)
    if ended is not None:
        return 0 if ended == "draw" else -1  # the other player made the last move
    return max(-value(played(board, square)) for square in free_squares(board))


def best_squares(board: Board) -> list[str]:
    """The squares of a perfect player: all that keep the value of the board."""
    return [square for square in free_squares(board) if -value(played(board, square)) == value(board)]


def parse_move(completion: str, board: Board) -> str | None:
    """The free square that is the completion's whole answer; None for anything else.

    >>> parse_move(" 4 ", "xox4oxo89"), parse_move("<answer> 8 </answer>", "xox4oxo89")
    ('4', '8')
    >>> parse_move("1", "xox4oxo89") is None and parse_move("4 8", "xox4oxo89") is None
    True
    """
    answer = extract_answer(completion)
    named = after_thoughts(completion) if answer is None else answer
    named = unwrapped(plain_characters(named)) if len(named) <= MAX_ANSWER_CHARACTERS else ""
    return named if named in free_squares(board) else None


def result(role: str, ended: str, zero_sum: bool = False) -> Reward:
    """1 for a win, 0.5 for a draw, 0 for a loss; `ended` is the winner, `draw`, or who broke the rules: `x illegal`.
    With `zero_sum` 1, 0 and -1: the rewards of the players sum to 0.

    >>> result("x", "x").value, result("o", "draw").value, result("o", "x illegal").value
    (1.0, 0.5, 1.0)
    >>> [result("x", ended, zero_sum=True).value for ended in ("x", "draw", "o", "x illegal")]
    [1.0, 0.0, -1.0, -1.0]
    >>> result("x", "x illegal").parts
    {'win': 0.0, 'draw': 0.0, 'loss': 0.0, 'illegal': 1.0}
    """
    other = "o" if role == "x" else "x"
    ends = {role: "win", f"{other} illegal": "win", "draw": "draw", other: "loss", f"{role} illegal": "illegal"}
    parts = {name: float(ends[ended] == name) for name in ("win", "draw", "loss", "illegal")}
    share = parts["win"] + 0.5 * parts["draw"]
    return Reward(2 * share - 1 if zero_sum else share, parts)


def episode(example: Example, rng: random.Random, zero_sum: bool = False) -> Episode:
    """One game from the example's board. `plays` is the policy's side; in self-play it is `x o`."""
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
    return {role: result(role, ended, zero_sum) for role in sides if role in shown}


def message(board: Board, first: bool) -> Prompt:
    """The board as the player to move sees it, after the rules in the player's first turn."""
    own = to_move(board)
    shown = [
        square if square in EMPTY else f"{'me' if square == own else 'you'}{number}"
        for number, square in enumerate(board, 1)
    ]
    rules, question = chat(INSTRUCTIONS, " ".join(shown))
    return [rules, question] if first else [question]


def winning_squares(board: Board, mark: str) -> list[str]:
    """The free squares that would complete a line of that player.

    >>> winning_squares("xx3oo6789", "x"), winning_squares("xx3oo6789", "o")
    (['3'], ['6'])
    """
    return [square for square in free_squares(board) if winner(board.replace(square, mark)) == mark]


def demonstrations(example: Example, rng: random.Random) -> list[tuple[Prompt, str]]:
    """One side of a game of legal random moves, each after a square that would win and one that must be blocked."""
    board = example["board"]
    turns: dict[str, list[tuple[Prompt, str]]] = {"x": [], "o": []}
    while winner(board) is None:
        square, role = rng.choice(free_squares(board)), to_move(board)
        marks = ("x", "o") if role == "x" else ("o", "x")
        wins, blocks = (rng.choice(winning_squares(board, mark) or ["none"]) for mark in marks)
        said = f"win {wins} block {blocks} <answer> {square} </answer>"
        turns[role].append((message(board, first=not turns[role]), said))
        board = played(board, square)
    return rng.choice([own for own in turns.values() if own])


def dataset(options: TictactoeOptions) -> Dataset:
    """Training games from openings against the chosen opponent; held-out games against random and minimax."""
    options.require_no_data("games")
    opponents = ("self", "random", "minimax") if options.opponent == "mix" else (options.opponent,)
    train = [
        _example(f"{opponent}, game {n} from {board}", board, opponent, "x o" if opponent == "self" else to_move(board))
        for opponent in opponents
        for n, board in enumerate(openings(options.max_opening))
    ]
    held_out = [
        _example(f"{plays} against {opponent}, game {n}", EMPTY, opponent, plays, match=f"{plays}-against-{opponent}")
        for n in range(HELD_OUT_GAMES)
        for opponent, plays in MATCHES
    ]
    return Dataset(train, held_out)


def more(options: TictactoeOptions) -> dict[str, Any]:
    """The game, and what lets the embedded base model play it."""
    return {
        "episode": partial(episode, zero_sum=options.zero_sum),
        "demonstrations": demonstrations,
        "vocabulary": WORDS,
        "cheap": True,
        "frozen_opponent": options.opponent == "frozen",
    }


def openings(longest: int) -> Iterator[Board]:
    """`OPENINGS` shuffled boards after each number of moves from 0 to `longest`, repeated if there are fewer: between
    perfect players every fourth is won, if there are such boards, and the others are a draw.
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


def _example(name: str, board: Board, opponent: str, plays: str, **category: str) -> Example:
    fields = {"board": board, "opponent": opponent, "plays": plays}
    return Example(name, message(board, first=True), fields, category)
