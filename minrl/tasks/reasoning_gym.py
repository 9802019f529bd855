"""The generators of the reasoning-gym library (arXiv:2505.24760), each a task: `--task reasoning_gym/leg_counting`.

    Your task is to count how many legs there are in total when given a list of animals. ... How many legs are there in
    total if you have 12 spiders, 3 cows?      ->      12 * 8 + 3 * 4 = 108 <answer>108</answer>

The library makes the problems, and its verifiers score the answers from 0 to 1. Around a verifier:

- it gets what the library's `extract_answer` finds; a completion without answer tags or with an absurdly long answer
  scores 0;
- the problem's own answer is right, whatever the verifier says; an answer on which it raises, gives a score outside
  [0, 1], or takes too long is wrong;
- a problem whose own answer the verifier does not score 1 is left out and named; in a row of another file it makes the
  completion unscorable;
- a generator whose verifier pays guesses is refused: see `guesses`;
- verifiers that pass the answer to `eval` or to sympy's `parse_expr`, which executes it, get a reader of literals or of
  plain formulas instead.
"""

import ast
import contextlib
import difflib
import functools
import hashlib
import importlib
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, Literal

from loguru import logger

from minrl.dataflow import Example, Reward, UserError, require
from minrl.models.thoughts import after_thoughts
from minrl.tasks.grader import OutOfTime, bounded
from minrl.tasks.task import Dataset, DeferredDataset, Task, TaskDefinition, chat, check_held_out_share, split

EVALUATING = (
    *(f"algorithmic.{name}" for name in ("binary_matrix", "number_sorting", "spiral_matrix", "string_insertion")),
    "games.n_queens",
)
"""Modules whose verifiers call `eval`, to read lists."""
PARSING = {
    "algebra.intermediate_integration": "sympy",
    "algebra.polynomial_multiplication": "sp",
    "algebra.simple_integration": "sympy",
    "games.countdown": "",
    "games.puzzle24": "",
}
"""Modules whose verifiers call sympy's `parse_expr`, and what they call sympy (empty: they know the function alone)."""
NOTES = {"codeio": "this generator executes the library's own code snippets in this process"}

GRADING_S = 5.0
"""Seconds of processor time in which an answer is scored; one that takes longer is wrong."""
TRIED, TRIAL_S, MOST_PAID = 50, 3.0, 0.05
"""Problems on which guesses are tried, seconds of processor time after which no further one is, and the share on which
a guess may be paid.
"""
CONSTANTS = (
    *("", "there is no such answer", "nan", "inf", "-inf", "1e999", "?", "()", "[[", "\0", "None", "lambda: 1"),
    *("0", "1", "-1", "1*2*3*4", "True", "yes"),
)
MAX_ANSWER_CHARACTERS = 10_000
"""Longer answers are wrong without a look at them, unless the problem's own is nearly as long."""
MAX_EXPONENT, MAX_POWERS = 100, 3
"""Of a formula: numbers in an exponent, and powers within one another."""
FUNCTIONS = frozenset(("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "exp", "log", "ln", "sqrt"))
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)
PLAIN = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Load, ast.Constant, *OPERATORS)
"""What a formula is made of, and the functions that it may call."""
_HUGE = re.compile(r"[\d.][eE][-+]?[\d_]{4,}")
"""A number with so many digits that exact arithmetic on it takes minutes."""
_NUMERIC, _NO_NUMBER = re.compile(r"[^a-df-hk-zA-Z]+"), re.compile(r"nan|inf", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_ITEM = re.compile(r"^\s*(?:[-*]|\w{1,3}[.):])\s+")

FIELDS = ("question", "answer", "metadata")


@dataclass(frozen=True, kw_only=True)
class ReasoningGymOptions:
    """Which problems are made, and how they are posed."""

    size: int = 500
    """Problems to make; those that come twice count once."""
    seed: int = 0
    """Seed of the problems."""
    generator: str = ""
    """JSON object with options of the generator, such as {"min_animals": 2}. Empty: its own defaults."""
    prompt: Literal["default", "DeepSeekZero", "simple", "direct", "chain_of_draft"] = "default"
    """Which of the library's system prompts stands before the question."""
    held_out_share: float = 0.2
    """Share of the problems that is never trained on."""

    def __post_init__(self) -> None:
        check_held_out_share("reasoning_gym", self.held_out_share)
        require(self.size >= 1, f"size must be at least 1 problem, got {self.size}")
        require(self.seed >= 0, f"seed must be 0 or more, got {self.seed}")


def define(name: str) -> TaskDefinition:
    """The task of that generator. A name that the library does not know is refused with those that are near."""
    known = library().factory.DATASETS
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(known))}"
        raise UserError(f"reasoning-gym has no generator {name!r}: {hint}")

    def make(options: ReasoningGymOptions, data_path: str) -> Task:
        if data_path:
            raise UserError(f"reasoning_gym makes its own problems and takes no --data-path, got {data_path!r}")
        _refuse_if_guesses_pay(name, options.generator)  # and bad options, now
        notes = (NOTES[name],) if name in NOTES else ()
        verify = functools.partial(reward, name=name, generator=options.generator)
        warm = functools.partial(_verifier, name, options.generator)
        problems = DeferredDataset(lambda: _problems(name, options))
        return Task(problems, verify, notes=lambda: notes, warm=warm, solution=solution)

    return TaskDefinition(ReasoningGymOptions, make)


def reward(completion: str, example: Example, name: str, generator: str) -> Reward:
    """The verifier's score of the answer, within bounds. Raises if the row is broken, which makes it unscorable."""
    answer = extract_answer(completion)
    if answer is None:
        return Reward(0.0, {"answered": 0.0, "timeout": 0.0})
    entry = {name: example[name] for name in FIELDS}
    _verifier(name, generator)  # made before the clock runs
    try:
        with bounded(GRADING_S):
            return Reward(_paid(answer, entry, name, generator), {"answered": 1.0, "timeout": 0.0})
    except OutOfTime:
        return Reward(0.0, {"answered": 1.0, "timeout": 1.0})


def _paid(answer: str, entry: Mapping[str, Any], name: str, generator: str) -> float:
    """The score of an answer: 0 for one that the verifier cannot read, if it can read the problem's own."""
    own = entry["answer"]
    if own is not None and answer.strip() == own.strip():
        return 1.0
    if is_absurd(answer, own or ""):
        return 0.0
    try:
        score, readable = _score(name, generator, answer, entry), True
    except Exception:  # a verifier may raise anything for what it cannot read
        score, readable = 0.0, False
    if own is None and not readable:
        _score(name, generator, "there is no such answer", entry)  # raises where the row is broken
    if own is not None and score < 1:
        theirs = _score(name, generator, own, entry)
        if theirs < 1:
            raise ValueError(f"the verifier of {name} scores the problem's own answer {theirs:g}: is the row whole?")
    return score


def solution(example: Example) -> str | None:
    """The library's own answer; None for a problem that has none, of which any answer that fits is right."""
    return None if example["answer"] is None else f"<answer>{example['answer']}</answer>"


def extract_answer(completion: str) -> str | None:
    """The text that the library finds in the last `<answer>...</answer>`, in linear time; None if there is none."""
    before, closed, _ = after_thoughts(completion).rpartition("</answer>")
    return library().utils.extract_answer(before + closed) if closed else None


def _score(name: str, generator: str, answer: str, entry: Mapping[str, Any]) -> float:
    score = _verifier(name, generator)(answer, dict(entry))
    if not isinstance(score, int | float) or not 0 <= score <= 1:
        raise ValueError(f"the verifier of {name} must give a score from 0 to 1, got {score!r}")
    return float(score)


@functools.lru_cache(maxsize=64)
def _verifier(name: str, generator: str) -> Callable[[str, dict[str, Any]], Any]:
    verify: Callable[[str, dict[str, Any]], Any] = _dataset(name, generator).score_answer
    return verify


@functools.lru_cache(maxsize=64)
def _refuse_if_guesses_pay(name: str, generator: str) -> None:
    """Refuse a generator whose verifier scores guesses 1."""
    with _library_code(name, "cannot make its first problems"):
        dataset = _dataset(name, generator, size=TRIED)
        made, end = [dataset[0]], time.process_time() + TRIAL_S
        while len(made) < TRIED and time.process_time() < end - TRIAL_S / 2:
            made.append(dataset[len(made)])
    paid: Counter[str] = Counter()
    tried = 0
    for entry, other in zip(made, made[1:] + made[:1], strict=True):
        if time.process_time() < end:
            paid.update({kind for kind, text in guesses(entry, other) if _pays(text, entry, name, generator)})
            tried += 1
    for kind, count in paid.most_common(1):
        said = f"the verifier of reasoning_gym/{name} scores {kind} 1 in {count} of {tried} problems"
        require(count <= max(1, MOST_PAID * tried), f"{said}: choose another generator")


def guesses(entry: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Answers that are wrong, each with its kind: constants, another problem's answer, lines of the prompt, and the
    problem's own answer with other numbers.
    """
    own = str(entry["answer"] or "")
    yield from ((repr(text), text) for text in CONSTANTS)
    yield "another problem's answer", str(other["answer"])
    for line in str(entry["question"]).splitlines():
        yield from (("a line of the prompt", text) for text in {line, _ITEM.sub("", line)} if text.strip())
    if _NUMBER.search(own):
        yield "the answer plus 0.9", _NUMBER.sub(lambda number: str(Decimal(number[0]) + Decimal("0.9")), own)
        yield "the answer plus 1", _NUMBER.sub(lambda number: str(Decimal(number[0]) + 1), own)
        yield "the negative answer", _NUMBER.sub(lambda number: str(-Decimal(number[0])), own, count=1)


def _is_own(text: str, own: str) -> bool:
    """Whether a guess happens to be the problem's own answer."""
    with contextlib.suppress(ValueError, ZeroDivisionError, OverflowError):
        return abs(Fraction(text) - Fraction(own)) <= 1e-3
    return text.casefold().split() == own.casefold().split()


def _pays(text: str, entry: Mapping[str, Any], name: str, generator: str) -> bool:
    """Whether a guess is paid in full that is not the problem's own answer."""
    with contextlib.suppress(Exception, OutOfTime), bounded(GRADING_S):  # the verifier may raise anything
        own = str(entry["answer"] or "")
        return not _is_own(text, own) and _paid(text, {key: entry[key] for key in FIELDS}, name, generator) == 1
    return False


def _problems(name: str, options: ReasoningGymOptions) -> Dataset:
    dataset = _dataset(name, options.generator, options.size, options.seed)
    system = library().utils.SYSTEM_PROMPTS[options.prompt]
    examples: dict[str, Example] = {}
    left_out = []
    for number in range(options.size):
        with _library_code(name, f"cannot make problem {number}"):
            entry = dataset[number]
        if not _scores_own(name, options.generator, entry):
            left_out.append(number)
            continue
        question = str(entry["question"])
        identity = hashlib.sha256(question.encode()).hexdigest()[:16]
        fields = {field: entry[field] for field in FIELDS}
        examples.setdefault(identity, Example(identity, chat(system, question), fields))
    if left_out:
        said = f"reasoning_gym/{name}: {len(left_out)} of {options.size} problems left out, whose own answers the "
        said += f"verifier does not score 1: {', '.join(map(str, left_out[:20]))}"
        require(bool(examples), f"{said}: choose another generator")
        logger.warning(said)
    return split(examples.values(), options.held_out_share, by=same_problem)


def _scores_own(name: str, generator: str, entry: Mapping[str, Any]) -> bool:
    """Whether the verifier scores a problem's own answer 1; an integral that the library did not solve is not read."""
    own = entry["answer"]
    with contextlib.suppress(Exception):  # a verifier may raise anything for what it cannot read
        fields = {field: entry[field] for field in FIELDS}
        return own is None or ("Integral(" not in own and _score(name, generator, own, fields) == 1)
    return False


def same_problem(example: Example) -> str:
    """What two problems share that differ only in the order of words or numbers: `lcm of 24, 92`, `lcm of 92, 24`."""
    return " ".join(sorted(re.findall(r"\w+|[^\w\s]", example["question"])))


def _dataset(name: str, generator: str, size: int = 1, seed: int = 0) -> Any:  # noqa: ANN401 - the library's
    chosen = None
    with contextlib.suppress(json.JSONDecodeError):
        chosen = json.loads(generator or "{}")
    if not isinstance(chosen, dict):
        raise UserError(f'generator must be a JSON object, such as {{"min_animals": 2}}, got {generator!r}')
    with _library_code(name, f"cannot be made with the options {generator or '{}'}"):
        if "datasets" in chosen:  # a mixture of generators
            spec = library().composite.DatasetSpec
            chosen["datasets"] = [spec(**{"weight": 1.0, "config": {}, **one}) for one in chosen["datasets"]]
        return library().create_dataset(name, **{**chosen, "size": size, "seed": seed})


@contextlib.contextmanager
def _library_code(name: str, failure: str) -> Iterator[None]:
    """A block of the library's code: what it prints goes to stderr, and what it raises is a UserError."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except Exception as error:  # the library's code may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"reasoning_gym/{name} {failure}: {reason[:200]}") from error


@functools.cache
def library() -> Any:  # noqa: ANN401 - the library
    """reasoning-gym, loaded when first needed, with verifiers that execute nothing of an answer."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a library that it uses
            import reasoning_gym
            import reasoning_gym.composite
            import reasoning_gym.utils
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed: make setup EXTRA=reasoning-gym, or pip install reasoning-gym"
        ) from error
    for module in EVALUATING:
        vars(importlib.import_module(f"reasoning_gym.{module}"))["eval"] = ast.literal_eval
    for module, sympy in PARSING.items():
        shadowed: Any = importlib.import_module(f"reasoning_gym.{module}")
        if sympy:
            plain = SimpleNamespace(**{**vars(getattr(shadowed, sympy)), "parse_expr": parse_formula})
            setattr(shadowed, sympy, plain)
        else:
            shadowed.parse_expr = parse_formula
    return reasoning_gym


def is_absurd(answer: str, own: str) -> bool:
    """Whether an answer is wrong without a look at it: far too long, or no number or a huge one beside a number."""
    is_long = len(answer) > max(MAX_ANSWER_CHARACTERS, 2 * len(own))
    is_huge = bool(_HUGE.search(answer)) and not _HUGE.search(own)
    return is_long or is_huge or bool(_NUMERIC.fullmatch(own) and _NO_NUMBER.search(answer))


def parse_formula(text: str, **options: Any) -> Any:  # noqa: ANN401 - a sympy expression
    """sympy's `parse_expr` for arithmetic on numbers, variables and known functions; `ValueError` for anything that
    could do more than compute, or give numbers that are too large.

    >>> parse_formula("2*x**2 + log(x)/3"), parse_formula("(1 + 2) * 3 - 4/2")
    (2*x**2 + log(x)/3, 7)
    """
    from sympy.parsing.sympy_parser import parse_expr

    try:
        nodes = list(ast.walk(ast.parse(text.strip().replace("^", "**"), mode="eval")))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("not a plain formula") from error
    if not all(map(_is_plain, nodes)):
        raise ValueError("not a plain formula")
    return parse_expr(text, **options)


def _is_plain(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value):
            return type(value) in (int, float)
        case ast.Call(function, _, keywords):
            return isinstance(function, ast.Name) and function.id in FUNCTIONS and not keywords
        case ast.Name(name):
            return name.isascii() and name.isalnum()
        case ast.BinOp(_, ast.Pow(), exponent):
            numbers: list[Any] = [inner.value for inner in ast.walk(exponent) if isinstance(inner, ast.Constant)]
            powers = sum(isinstance(inner, ast.Pow) for inner in ast.walk(node))
            return powers <= MAX_POWERS and all(type(n) in (int, float) and n <= MAX_EXPONENT for n in numbers)
    return isinstance(node, PLAIN)
