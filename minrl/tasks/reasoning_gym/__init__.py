"""The generators of the reasoning-gym library (arXiv:2505.24760), each a task: `--task reasoning_gym/leg_counting`.

    Your task is to count how many legs there are in total when given a list of animals. ... How many legs are there in
    total if you have 12 spiders, 3 cows?      ->      12 * 8 + 3 * 4 = 108 <answer>108</answer>

The library makes the problems, and its verifiers score the answers from 0 to 1. Around a verifier:

- it gets what the library's `extract_answer` finds; a completion without answer tags or with an absurdly long answer
  scores 0;
- the problem's own answer is right, whatever the verifier says (it cannot read some of its own integrals);
- an answer on which it raises, gives a score outside [0, 1], or takes too long is wrong;
- a problem whose own answer the verifier does not score 1 is left out and named, as no wrong answer to it could be
  scored; in a row of another file it makes the completion unscorable;
- `nan` and `inf` are wrong where a number is asked for, and so is a number of ten thousand digits;
- a generator whose verifier scores nonsense 1 is refused (coin_flip, which pays `0`; game_of_life_halting);
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
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from loguru import logger

from minrl.models.thoughts import after_thoughts
from minrl.tasks.bounded import bounded
from minrl.tasks.grader import OutOfTime
from minrl.tasks.reasoning_gym.formula import parse_formula
from minrl.tasks.reasoning_gym.nonsense import NO_ANSWER, is_absurd, nonsense
from minrl.tasks.task import Dataset, DeferredDataset, Task, TaskDefinition, chat, check_held_out_share, split
from minrl.types import Example, Reward, UserError, require

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

NOTES = {"codeio": "this generator executes the library's own code snippets in this process"}

GRADING_S = 5.0
"""Seconds of processor time in which an answer is scored; one that takes longer is wrong."""

FIELDS = ("question", "answer", "metadata")
COMPARING_TUPLES = ("arc_agi", "rearc")
"""Generators whose verifiers compare the metadata's `output` with tuples."""

NUMBERS = frozenset(("source_index", "entry_id"))
"""Entries of the metadata that number the problems."""


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
        _refuse_if_nonsense_pays(name, options.generator)  # and bad options, now
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
        _score(name, generator, NO_ANSWER, entry)  # raises where the row is broken
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
    if name in COMPARING_TUPLES:
        output = _tuples(entry["metadata"]["output"])
        entry = {**entry, "metadata": {**entry["metadata"], "output": output}}
    score = _verifier(name, generator)(answer, dict(entry))
    if not isinstance(score, int | float) or not 0 <= score <= 1:
        raise ValueError(f"the verifier of {name} must give a score from 0 to 1, got {score!r}")
    return float(score)


@functools.lru_cache(maxsize=64)
def _verifier(name: str, generator: str) -> Callable[[str, dict[str, Any]], Any]:
    verify: Callable[[str, dict[str, Any]], Any] = _dataset(name, generator).score_answer
    return verify


@functools.lru_cache(maxsize=64)
def _refuse_if_nonsense_pays(name: str, generator: str) -> None:
    """Refuse a generator whose verifier scores what cannot be right 1."""
    with _library_code(name, "cannot make its first problems"):
        dataset = _dataset(name, generator, size=3)
        made = [dataset[number] for number in range(3)]
    for entry in ({field: one[field] for field in FIELDS} for one in made):
        for text in (*nonsense(entry["answer"]), entry["question"]):
            paid = 0.0
            with contextlib.suppress(Exception):  # the verifier may raise anything, also for its own answer
                paid = _paid(text, entry, name, generator)
            require(paid < 1, f"the verifier of reasoning_gym/{name} scores {text!r:.40} 1: choose another generator")


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
        said += f"verifier does not score 1: {', '.join(map(str, left_out[:20]))}{', ...' if left_out[20:] else ''}"
        require(bool(examples), f"{said}: choose another generator")
        logger.warning(said)
    return split(examples.values(), options.held_out_share, by=same_problem)


def _scores_own(name: str, generator: str, entry: Mapping[str, Any]) -> bool:
    """Whether the verifier scores a problem's own answer 1: without that, no wrong answer could be scored. An integral
    that the library did not solve is read by no verifier.
    """
    own = entry["answer"]
    if own is None:
        return True
    with contextlib.suppress(Exception):  # a verifier may raise anything for what it cannot read
        return "Integral(" not in own and _score(name, generator, own, {field: entry[field] for field in FIELDS}) == 1
    return False


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
