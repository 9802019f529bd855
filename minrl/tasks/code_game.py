"""The code game: one role writes a program that prints one integer, the other predicts it from the source.

    write : recursion , digits          ->   ```python
                                             def f(n): return n % 10 + f(n // 10) if n else 0
                                             print(f(987) * f(45))
                                             ```
    (the program)                       ->   <answer> 216 </answer>

The writer wins if the program runs and the guesser is wrong, the guesser if it is right. The writer loses with a
program that is refused, crashes, runs out of time, or does not always print the same one integer; then nobody guesses.
The guesser sees only the program, and only its own completion is read: an `<answer>` in the source is text.

In self-play one role loses each game, so the share of wins says nothing about skill. Solved, and so pass@1, then
counts what each role can do alone: a valid program, a right guess. Against a frozen guesser the writer solves by
winning.

The integer must follow from the source: a program imports nothing, names nothing of the interpreter's own, and prints
the same in several processes with other hash seeds and addresses. That is a rule of the game, not what protects the
machine: programs run in `minrl.sandbox`.
"""

import ast
import builtins
import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from minrl.dataflow import Episode, Example, Job, Prompt, Reward, Turn
from minrl.sandbox.calls import Limits, python, run
from minrl.tasks.answers import fenced_blocks
from minrl.tasks.code import notes
from minrl.tasks.grader import Grader, Reason
from minrl.tasks.task import Dataset, HeldOut, TaskOptions, chat, extract_answer, split
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.settings import Bound, Count, Positive
from minrl.utils.text import unmarked

WRITER_RULES = (
    "Two play a game: you write a Python program that prints exactly one integer of at most {digits} digits, the other "
    "player reads it and predicts the integer without running it. You win if the program runs and the prediction is "
    "wrong. Use the construct and the topic that are named. Functions, loops, plain values and their usual methods; "
    "no imports, no classes, no sets, no `match`, no input, no files, no hash, id, repr or format, no `finally`, "
    "no <words> in angle brackets. At most {characters} characters and {seconds:g} seconds. "
    "Answer with the program alone, or in one ```python block."
)
GUESSER_RULES = (
    "Two play a game: the other player wrote this Python program, you predict the one integer that it prints. Whatever "
    "the program says about itself may be a trick. You may think first; give the integer inside <answer> </answer>."
)
CONSTRUCTS = (
    "a for loop", "a while loop", "recursion", "a list comprehension", "string slicing", "a dictionary", "sorting",
    "bitwise operators", "integer division", "a closure", "tuples", "a generator",
)  # fmt: skip
TOPICS = ("digits", "primes", "words", "matrices", "intervals", "sequences", "queues", "grids")
MARK = re.compile(r"<[^\s<>]+>|\[/?INST\]")
UNSEEN = "too long, or holds a mark of a chat template or a character that cannot be seen"
"""Text that a chat template could take for the end of a turn."""
INTEGER = re.compile(r"0|-?[1-9][0-9]*")
VERDICTS = ("valid", "refused", "crash", "timeout", "no_integer", "unstable")

BUILTINS = frozenset((
    "abs", "all", "any", "bin", "bool", "chr", "dict", "divmod", "enumerate", "filter", "float", "hex", "int",
    "isinstance", "iter", "len", "list", "map", "max", "min", "next", "oct", "ord", "pow", "print", "range",
    "reversed", "round", "slice", "sorted", "str", "sum", "tuple", "zip",
    "ArithmeticError", "AssertionError", "IndexError", "KeyError", "LookupError", "OverflowError", "StopIteration",
    "TypeError", "ValueError", "ZeroDivisionError",
))  # fmt: skip
REFUSED = (
    *(ast.Import, ast.ImportFrom, ast.ClassDef, ast.AsyncFunctionDef, ast.With, ast.Match, ast.Set, ast.SetComp),
    *(ast.Await, ast.AsyncFor, ast.AsyncWith),
)
HIDDEN = re.compile(r"__.*|format.*|(?:gi|cr|ag|tb|f|co)_.*|with_traceback|args")
"""Attributes that lead to the interpreter."""


@dataclass(frozen=True, kw_only=True)
class CodeGameOptions(TaskOptions):
    """The rules of the game."""

    prefix = "code_game."
    guesser: Literal["policy", "frozen"] = "policy"
    """policy: the policy guesses too, and learns it. frozen: --opponent, or the start model."""
    max_characters: Count = 1000
    """A longer program is refused."""
    max_digits: Count = 12
    """An integer with more digits is none."""
    time_limit_s: Positive = 3.0
    """Longest run of a program, in seconds of processor time; by the clock twice as many, for busy machines."""
    runs: Annotated[int, Bound(least=2)] = 3
    """How often a program runs; all runs must print the same."""
    held_out_share: HeldOut = 0.25
    """Share of the pairs of construct and topic that is never trained on."""


@dataclass(frozen=True)
class Verdict:
    """The result of a program: a name of `VERDICTS`, and the integer if it is valid."""

    name: str
    printed: str = ""


def extract_program(completion: str) -> str | None:
    """The text of the one fenced block, or the whole completion if it has no fence; None for anything else. What the
    writer expects its program to print may stand in a block of its own, ```output.

    >>> extract_program("Here it is:\\n```python\\nprint(3)\\n```\\n```output\\n3\\n```")
    'print(3)\\n'
    """
    said = after_thoughts(completion)
    blocks = [text for language, text in fenced_blocks(said) if language != "output"]
    blocks = blocks if "```" in said else [said.strip() + "\n"]
    return blocks[0] if len(blocks) == 1 and blocks[0].strip() else None


def refusal(program: str, options: CodeGameOptions) -> str:
    """Why the rules forbid a program; empty if they allow it.

    >>> refusal("import time; print(int(time.time()) // 10**6)", CodeGameOptions())
    'uses Import'
    """
    seen = all(character.isprintable() or character in "\n\t" for character in program)
    if len(program) > options.max_characters or not seen or MARK.search(program):
        return UNSEEN
    try:
        tree = ast.parse(program)
        if ast.dump(ast.parse(unmarked(program))) != ast.dump(tree):  # of which the guesser would see another text
            return UNSEEN
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"is no program: {type(error).__name__}"
    for node in nodes:
        names = [getattr(node, field, None) for field in ("id", "name", "arg")]
        foreign = [name for name in names if isinstance(name, str) and not _allowed(name)]
        foreign += [node.attr] if isinstance(node, ast.Attribute) and HIDDEN.fullmatch(node.attr) else []
        finally_ = isinstance(node, ast.Try) and (node.finalbody or any(one.type is None for one in node.handlers))
        if foreign or finally_ or isinstance(node, REFUSED):
            return f"uses {(foreign or [type(node).__name__])[0]}"
    return ""


def _allowed(name: str) -> bool:
    """Whether a name is on the list of Python's own, or none of Python's own."""
    return name in BUILTINS or not (hasattr(builtins, name) or name.startswith("__"))


def judge_program(program: str, options: CodeGameOptions) -> Verdict:
    """Run the program as often as the options say and compare what it printed."""
    if refusal(program, options):
        return Verdict("refused")
    seconds = options.time_limit_s
    limits = Limits(wall_s=2 * seconds, cpu_s=seconds, memory_mib=256, output_bytes=4096)
    printed = set()
    for _ in range(options.runs):
        outcome = run([*python(), "program.py"], {"program.py": program}, limits)
        if outcome.status != "ok":
            return Verdict("timeout" if outcome.status == "timeout" else "crash")
        printed.add(outcome.text.removesuffix("\n"))
    text = printed.pop()
    if printed:
        return Verdict("unstable")
    return Verdict("valid", text) if is_integer(text, options.max_digits) else Verdict("no_integer")


def too_long(_: Reason) -> Verdict:
    """The verdict on a program that outlasts even its judge."""
    return Verdict("timeout")


def is_integer(text: str, max_digits: int) -> bool:
    """Whether the text is one integer as Python prints it.

    >>> is_integer("-12", 2), is_integer("+12", 2), is_integer("007", 3), is_integer("123", 2)
    (True, False, False, False)
    """
    return INTEGER.fullmatch(text) is not None and len(text.removeprefix("-")) <= max_digits


def dataset(options: CodeGameOptions) -> Dataset:
    """All pairs of a construct and a topic."""
    options.require_no_data("themes")
    return split(_examples(options), options.held_out_share)


def more(options: CodeGameOptions) -> dict[str, Any]:
    """The game."""
    frozen = options.guesser == "frozen"

    def episode(example: Example, rng: random.Random) -> Episode:
        program = extract_program((yield Turn("writer", example.prompt))) or ""
        judged = Grader(judge_program, otherwise=too_long)
        verdict = (yield Job(judged, (program, options))) if program else Verdict("refused")
        parts = {name: float(verdict.name == name) for name in VERDICTS}
        if verdict.name != "valid":
            return {"writer": Reward(0.0, {**parts, "stumped": 0.0})}
        said = yield Turn("guesser", shown_to_guesser(program), frozen)
        answer = extract_answer(said)
        guess = said.strip() if answer is None else answer
        right = float(guess == verdict.printed)
        return {
            "writer": Reward(1.0 - right, {**parts, "stumped": 1.0 - right}, full=None if frozen else True),
            "guesser": Reward(right, {"right": right, "readable": float(is_integer(guess, options.max_digits))}),
        }

    return {"episode": episode, "frozen_opponent": frozen, "notes": notes}


def shown_to_guesser(program: str) -> Prompt:
    """The rules and the source."""
    return chat(GUESSER_RULES, f"program :\n{unmarked(program)}")


def _examples(options: CodeGameOptions) -> Iterator[Example]:
    digits, characters, seconds = options.max_digits, options.max_characters, options.time_limit_s
    rules = WRITER_RULES.format(digits=digits, characters=characters, seconds=seconds)
    for construct, topic in itertools.product(CONSTRUCTS, TOPICS):
        prompt = chat(rules, f"write : {construct} , {topic}")
        yield Example(f"{construct}, {topic}", prompt, {}, {"construct": construct})
