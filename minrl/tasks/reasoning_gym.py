"""The generators of the reasoning-gym library (arXiv:2505.24760), each a task: `--task reasoning_gym/leg_counting`.

    Your task is to count how many legs there are in total when given a list of animals. ... How many legs are there in
    total if you have 12 spiders, 3 cows?      ->      12 * 8 + 3 * 4 = 108 <answer>108</answer>

The library makes the problems, and its verifiers score the answers from 0 to 1. Around a verifier:

- it gets what the library's `extract_answer` finds; a completion without answer tags or with an absurdly long answer
  scores 0;
- the problem's own answer is right, whatever the verifier says (it cannot read some of its own integrals);
- an answer on which it raises is wrong if it scores the problem's own answer 1;
- a score outside [0, 1], or a verifier that does not score the problem's own answer 1, makes the completion unscorable;
- a generator whose verifier scores any text 1 is refused (game_of_life_halting);
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
import keyword
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from minrl.model.thoughts import after_thoughts
from minrl.tasks.task import Dataset, DeferredDataset, Task, TaskDefinition, chat, check_held_out_share, split
from minrl.types import Example, Reward, UserError, require

MAX_ANSWER_CHARACTERS = 10_000
"""Longer answers are wrong without a look at them, unless the problem's own is nearly as long."""

EVALUATING = (
    "algorithmic.binary_matrix",
    "algorithmic.number_sorting",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
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

FUNCTIONS = frozenset(("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "exp", "log", "ln", "sqrt"))
"""The functions that a formula may call."""

NOTES = {"codeio": "this generator executes the library's own code snippets in this process"}

NO_ANSWER = "there is no such answer"
FIELDS = ("question", "answer", "metadata")
COMPARING_TUPLES = ("arc_agi", "rearc")
"""Generators whose verifiers compare the metadata's `output` with tuples."""

NUMBERS = frozenset(("source_index", "entry_id"))
"""Entries of the metadata that number the problems."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+)|(?P<word>[A-Za-z][A-Za-z0-9]*)|[-+*/^(),!])\s*"
)


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
        _verifier(name, options.generator)  # refuses bad options now
        notes = (NOTES[name],) if name in NOTES else ()
        verify = functools.partial(reward, name=name, generator=options.generator)
        return Task(DeferredDataset(lambda: _problems(name, options)), verify, notes=lambda: notes)

    return TaskDefinition(ReasoningGymOptions, make)


def reward(completion: str, example: Example, name: str, generator: str) -> Reward:
    """The verifier's score of the answer. Raises if there is none, which makes the completion unscorable."""
    answer = extract_answer(completion)
    if answer is None:
        return Reward(0.0, {"answered": 0.0})
    entry = {name: example[name] for name in FIELDS}
    own = entry["answer"]
    if len(answer) > max(MAX_ANSWER_CHARACTERS, 2 * len(own or "")):
        return Reward(0.0, {"answered": 1.0})
    if own is not None and answer == own.strip():
        return Reward(1.0, {"answered": 1.0})
    try:
        score = _score(name, generator, answer, entry)
    except Exception as error:  # a verifier may raise anything for what it cannot read
        if own is None or isinstance(error, ScoreOutOfRange):
            raise
        score = 0.0
    if own is not None and score < 1:
        theirs = _score(name, generator, own, entry)
        if theirs < 1:
            raise ValueError(f"the verifier of {name} scores the problem's own answer {theirs:g}: is the row whole?")
    return Reward(score, {"answered": 1.0})


class ScoreOutOfRange(ValueError):
    """A verifier gave no score from 0 to 1."""


def extract_answer(completion: str) -> str | None:
    """The text that the library finds in the last `<answer>...</answer>`, in linear time; None if there is none."""
    before, closed, _ = after_thoughts(completion).rpartition("</answer>")
    return library().utils.extract_answer(before + closed) if closed else None


def _score(name: str, generator: str, answer: str, entry: Mapping[str, Any]) -> float:
    if name in COMPARING_TUPLES:
        output = _tuples(entry["metadata"]["output"])
        entry = {**entry, "metadata": {**entry["metadata"], "output": output}}
    score = _verifier(name, generator)(answer, dict(entry))
    if not isinstance(score, int | float) or not 0 <= score <= 1:
        raise ScoreOutOfRange(f"the verifier of {name} must give a score from 0 to 1, got {score!r}")
    return float(score)


@functools.lru_cache(maxsize=64)
def _verifier(name: str, generator: str) -> Callable[[str, dict[str, Any]], Any]:
    dataset, paid = _dataset(name, generator), 0.0
    with _library_code(name, "cannot make problem 0"):
        entry = dataset[0]
        with contextlib.suppress(Exception):  # the verifier may raise anything for such a text
            paid = dataset.score_answer(NO_ANSWER, entry)
    require(paid != 1, f"the verifier of reasoning_gym/{name} scores any text 1: choose another generator")
    return dataset.score_answer


def _problems(name: str, options: ReasoningGymOptions) -> Dataset:
    dataset = _dataset(name, options.generator, options.size, options.seed)
    system = library().utils.SYSTEM_PROMPTS[options.prompt]
    examples: dict[str, Example] = {}
    for number in range(options.size):
        with _library_code(name, f"cannot make problem {number}"):
            entry = dataset[number]
        question = str(entry["question"])
        identity = hashlib.sha256(question.encode()).hexdigest()[:16]
        fields = {field: entry[field] for field in FIELDS}
        examples.setdefault(identity, Example(identity, chat(system, question), fields))
    return split(examples.values(), options.held_out_share, by=same_problem)


def _tuples(grid: Any) -> Any:  # noqa: ANN401 - lists of lists, or what they hold
    return tuple(map(_tuples, grid)) if isinstance(grid, list | tuple) else grid


def same_problem(example: Example) -> str:
    """What two problems share that differ only in the order of words or lists: `lcm of 24, 92`, `lcm of 92, 24`."""
    words = sorted(re.findall(r"\w+|[^\w\s]", example["question"]))
    return json.dumps([words, _unordered(example["metadata"])])


def _unordered(value: Any) -> Any:  # noqa: ANN401 - any value of the metadata
    """The value as JSON with its flat lists sorted, without its number in the dataset. Of other objects the type."""
    if isinstance(value, Mapping):
        kept = {str(key): _unordered(part) for key, part in value.items() if key not in NUMBERS}
        return sorted(map(list, kept.items()), key=repr)
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_unordered(part) for part in value]
        return parts if any(isinstance(part, list) for part in parts) else sorted(parts, key=repr)
    return value if value is None or isinstance(value, str | int | float) else type(value).__name__


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


def parse_formula(text: str, **options: Any) -> Any:  # noqa: ANN401 - a sympy expression
    """sympy's `parse_expr` for plain formulas; `ValueError` for anything that could do more than compute."""
    from sympy.parsing.sympy_parser import parse_expr

    if not is_formula(text):
        raise ValueError("not a plain formula")
    return parse_expr(text, **options)


def is_formula(text: str) -> bool:
    """Whether a text holds only numbers, variables, operators and calls of known functions.

    >>> [is_formula(text) for text in ("2*x**2 + log(x)/3", "test()", "(x)(1)", "x.y", "__import__('os')", "[1]")]
    [True, False, False, False, False, False]
    """
    position, callable_before, known_function = 0, False, False
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None or keyword.iskeyword(token["word"] or ""):
            return False
        opens = token.group().strip() == "("
        if opens and callable_before and not known_function:
            return False
        callable_before = bool(token["word"] or token["number"]) or token.group().strip() in (")", "!")
        known_function = token["word"] in FUNCTIONS
        position = token.end()
    return True
