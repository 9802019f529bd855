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

The integer must follow from the source: programs are written in a part of Python in which nothing else can be seen,
no address, hash, order of a set, text of an exception, depth of the interpreter or machine. What a value prints is
checked as the program runs (GUARDS), several times, each in a new process with other hash seeds and addresses. That
is a rule of the game, not what protects the machine: programs run in `minrl.sandbox`.
"""

import ast
import builtins
import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from minrl.dataflow import Episode, Example, Job, Prompt, Reward, Turn, require
from minrl.models.thoughts import after_thoughts
from minrl.sandbox.calls import Limits, describe, describe_python, python, run
from minrl.tasks.grader import Grader, Reason
from minrl.tasks.task import Demonstration, Task, TaskDefinition, chat, extract_answer, split
from minrl.utils.settings import Bound, Count, Positive, Settings
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
METHODS = frozenset((
    "append", "bit_count", "bit_length", "capitalize", "clear", "copy", "count", "endswith", "extend", "find",
    "fromkeys", "get", "index", "insert", "isalnum", "isalpha", "isdigit", "islower", "isspace", "isupper", "items",
    "join", "keys", "ljust", "lower", "lstrip", "partition", "pop", "popitem", "remove", "removeprefix", "removesuffix",
    "replace", "reverse", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "send", "setdefault", "sort",
    "split", "splitlines", "startswith", "strip", "swapcase", "title", "update", "upper", "values", "zfill",
))  # fmt: skip
VIEWS = ("items", "keys", "values")
SYNTAX = (
    *(ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete, ast.Pass, ast.Assert, ast.Raise),
    *(ast.If, ast.For, ast.While, ast.Break, ast.Continue, ast.FunctionDef, ast.Lambda, ast.Return, ast.Global),
    *(ast.Nonlocal, ast.Try, ast.ExceptHandler, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.BoolOp, ast.BinOp),
    *(ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice),
    *(ast.Starred, ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.JoinedStr),
    *(ast.FormattedValue, ast.arguments, ast.arg, ast.keyword, ast.comprehension),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)

GUARDS = """
def __guards__(text=str, show=print, table=dict, rows=(list, tuple), plain=(int, float, bool, range, slice)):
    def checked(value):
        kind = type(value)
        if kind in rows:
            for part in value:
                checked(part)
        elif kind is table:
            for pair in value.items():
                checked(pair)
        elif value is not None and kind is not text and kind not in plain:
            raise TypeError("no text of " + kind.__name__)
        return value
    class Kind(type):
        def __call__(cls, value=""):
            return text(checked(value))
        def __instancecheck__(cls, value):
            return type(value) is text
    class str(text, metaclass=Kind):
        pass
    def print(*values, sep=" ", end="\\n"):
        show(*[checked(value) for value in values], sep=sep, end=end)
    return checked, rows[0], str, print
__checked__, __list__, str, print = __guards__()
"""
"""What stands before a program as it runs: `str` and `print` that take plain values alone. A program binds neither of
them, and no name that begins with two underscores.
"""


@dataclass(frozen=True, kw_only=True)
class CodeGameOptions(Settings):
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
    held_out_share: Annotated[float, Bound(above=0, below=1)] = 0.25
    """Share of the pairs of construct and topic that is never trained on."""


@dataclass(frozen=True)
class Verdict:
    """The result of a program: a name of `VERDICTS`, and the integer if it is valid."""

    name: str
    printed: str = ""


def extract_program(completion: str) -> str | None:
    """The text of the one fenced block, or the whole completion if it has no fence; None for anything else.

    >>> extract_program("Here it is:\\n```python\\nprint(3)\\n```")
    'print(3)\\n'
    >>> extract_program("```\\nprint(3)\\n```\\n```\\nprint(4)\\n```") is None
    True
    """
    completion = after_thoughts(completion)
    if "```" not in completion:
        return completion.strip() + "\n" if completion.strip() else None
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)```", completion, re.DOTALL)
    return blocks[0] if len(blocks) == 1 and completion.count("```") == 2 and blocks[0].strip() else None


def refusal(program: str, options: CodeGameOptions) -> str:
    """Why the rules forbid a program; empty if they allow it.

    >>> refusal("import time; print(int(time.time()) // 10**6)", CodeGameOptions())
    'uses Import'
    """
    if len(program) > options.max_characters:
        return f"longer than {options.max_characters} characters"
    if MARK.search(program):
        return "holds a mark that a chat template could take for its own"
    if not all(character.isprintable() or character in "\n\t" for character in program):
        return "holds a character that cannot be seen"
    try:
        tree = ast.parse(program)
        if ast.dump(ast.parse(unmarked(program))) != ast.dump(tree):  # of which the guesser would see another text
            return "holds a mark that a chat template could take for its own"
        return outside(tree) or guarded(program)[:0]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"is no program: {type(error).__name__}"


def outside(tree: ast.AST) -> str:
    """What of a program is not in the language; empty if nothing."""
    nodes = list(ast.walk(tree))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call) and not (node.args or node.keywords)}
    views = (node for node in nodes if isinstance(node, ast.Attribute) and node.attr in VIEWS)
    found = [f"uses .{node.attr} uncalled" for node in views if id(node) not in called]
    return next(filter(None, itertools.chain(found, *map(_outside, nodes))), "")


def _outside(node: ast.AST) -> Iterator[str]:
    """Why a node is not in the language, if it is not."""
    if not isinstance(node, SYNTAX):
        yield f"uses {type(node).__name__}"
    yield from (f"uses {name}" for name in _names(node) if not _allowed(name))
    if not isinstance(getattr(node, "ctx", None), ast.Load):
        yield from (f"binds {name}" for name in _names(node) if name in ("str", "print"))
    match node:
        case ast.Attribute(attr=name, ctx=context):
            yield "" if name in METHODS and isinstance(context, ast.Load) else f"uses .{name}"
        case ast.ExceptHandler(type=kind, name=name) if kind is None or name:
            yield "catches every exception, or keeps one"  # RecursionError says how deep the interpreter can recurse
        case ast.Try(finalbody=[_, *_]):
            yield "uses finally"
        case ast.Compare(ops=ops, comparators=others):
            pairs = zip(ops, others, strict=True)
            identity = [one for op, one in pairs if isinstance(op, ast.Is | ast.IsNot)]
            yield from ("uses is" for one in identity if not _is_singleton(one))


def _names(node: ast.AST) -> list[str]:
    """The names that a node reads or binds."""
    match node:
        case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
            return [name]
        case ast.Global(names) | ast.Nonlocal(names):
            return names
    return []


def _allowed(name: str) -> bool:
    """Whether a name is on the list of Python's own, or none of Python's own."""
    return name in BUILTINS or not (hasattr(builtins, name) or name.startswith("__"))


def _is_singleton(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def guarded(program: str) -> str:
    """The program as it runs: the same, with the checks of GUARDS."""
    return GUARDS + ast.unparse(ast.fix_missing_locations(_Guarding().visit(ast.parse(program))))


class _Guarding(ast.NodeTransformer):
    """Puts the checks in."""

    def visit(self, node: ast.AST) -> ast.AST:
        """What has the text of a value checks it; a view of a dictionary, which could become a set, is a list."""
        self.generic_visit(node)
        match node:
            case ast.BinOp(op=ast.Mod(), right=value):
                node.right = _call("__checked__", value)
            case ast.AugAssign(op=ast.Mod(), value=value) | ast.FormattedValue(value=value):
                node.value = _call("__checked__", value)
            case ast.Call(ast.Attribute(attr=name), [], []) if name in VIEWS:
                return _call("__list__", node)
        return node


def _call(function: str, argument: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(function, ast.Load()), [argument], [])


def judge_program(program: str, options: CodeGameOptions) -> Verdict:
    """Run the program as often as the options say and compare what it printed."""
    if refusal(program, options):
        return Verdict("refused")
    seconds = options.time_limit_s
    limits = Limits(wall_s=2 * seconds, cpu_s=seconds, memory_mib=256, output_bytes=4096)
    printed = set()
    for _ in range(options.runs):
        outcome = run([*python(), "program.py"], {"program.py": guarded(program)}, limits)
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


def parse_guess(completion: str, max_digits: int) -> str | None:
    """The integer that is the guesser's one answer or whole completion; None for anything else.

    >>> parse_guess("6 times 7 is <answer> 42 </answer>", 12), parse_guess("41 or 42", 12)
    ('42', None)
    """
    answer = extract_answer(completion)
    said = completion.strip() if answer is None else answer
    return said if is_integer(said, max_digits) else None


def make(options: CodeGameOptions, data_path: str) -> Task:
    """All pairs of a construct and a topic."""
    require(not data_path, f"code_game poses its own themes and takes no --data-path, got {data_path!r}")
    frozen = options.guesser == "frozen"

    def episode(example: Example, rng: random.Random) -> Episode:
        program = extract_program((yield Turn("writer", example.prompt))) or ""
        judged = Grader(judge_program, otherwise=too_long)
        verdict = (yield Job(judged, (program, options))) if program else Verdict("refused")
        parts = {name: float(verdict.name == name) for name in VERDICTS}
        if verdict.name != "valid":
            return {"writer": Reward(0.0, {**parts, "stumped": 0.0})}
        guess = parse_guess((yield Turn("guesser", shown_to_guesser(program), frozen)), options.max_digits)
        right = float(guess == verdict.printed)
        return {
            "writer": Reward(1.0 - right, {**parts, "stumped": 1.0 - right}, full=None if frozen else True),
            "guesser": Reward(right, {"right": right, "readable": float(guess is not None)}),
        }

    dataset = split(_examples(options), options.held_out_share)
    words = [word for text in ("write : , program", *CONSTRUCTS, *TOPICS) for word in text.split()]
    words += ["print", "(", ")", "+", "-", *map(str, range(-MOST, 2 * MOST + 1))]
    return Task(
        dataset,
        None,
        episode=episode,
        demonstrations=demonstrations,
        vocabulary=tuple(dict.fromkeys(words)),
        frozen_opponent=frozen,
        notes=lambda: (describe(), describe_python()),
    )


def shown_to_guesser(program: str) -> Prompt:
    """The rules and the source."""
    return chat(GUESSER_RULES, f"program :\n{unmarked(program)}")


MOST = 20
"""Numbers in demonstrations go from 0 to this one."""


def demonstrations(example: Example, rng: random.Random) -> Demonstration:
    """A writer's or a guesser's turn: a sum or difference of two numbers, and a guess, one in four wrong."""
    first, second, sign = rng.randint(0, MOST), rng.randint(0, MOST), rng.choice("+-")
    program = f"print ( {first} {sign} {second} )"
    if rng.random() < 0.5:
        return program
    printed = first + second if sign == "+" else first - second
    guess = printed if rng.random() < 0.75 else rng.randint(-MOST, 2 * MOST)
    return [(shown_to_guesser(program), str(guess))]


def _examples(options: CodeGameOptions) -> Iterator[Example]:
    rules = WRITER_RULES.format(
        digits=options.max_digits,
        characters=options.max_characters,
        seconds=options.time_limit_s,
    )
    for construct, topic in itertools.product(CONSTRUCTS, TOPICS):
        prompt = chat(rules, f"write : {construct} , {topic}")
        yield Example(f"{construct}, {topic}", prompt, {}, {"construct": construct})


TASK = TaskDefinition(CodeGameOptions, make)
