"""The generators of the reasoning-gym library (arXiv:2505.24760), each a task: `--task reasoning_gym/leg_counting`.

    Your task is to count how many legs there are in total when given a list of animals. ... How many legs are there in
    total if you have 12 spiders, 3 cows?      ->      12 * 8 + 3 * 4 = 108 <answer>108</answer>

The library makes the problems, and its verifiers score the answers from 0 to 1. A completion without answer tags scores
0, and so does an answer on which the verifier raises or takes too long. Problems whose own answer the verifier does not
score 1 are left out. Verifiers that pass the answer to `eval`, which executes it, get a reader of literals instead; the
generators in `REFUSED` are no tasks.
"""

import ast
import contextlib
import difflib
import functools
import importlib
import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loguru import logger

from minrl.dataflow import Example, Reward, UserError, require
from minrl.tasks.data import identity
from minrl.tasks.definition import TaskDefinition
from minrl.tasks.grader import OutOfTime, bounded
from minrl.tasks.task import Dataset, DeferredDataset, HeldOut, TaskOptions, chat, identity_of, split
from minrl.tasks.thoughts import after_thoughts
from minrl.utils.files import installed
from minrl.utils.settings import Count, Natural

_PAYS_GUESSES = (
    "coin_flip game_of_life_halting gsm_symbolic kakurasu number_sorting power_function propositional_logic puzzle24"
)
"""Generators of version 0.1.25 whose verifiers score a guess 1 in more than a twentieth of 50 problems: a constant,
another problem's answer, a line of the prompt, or the right answer with other numbers (tests/test_reasoning_gym.py).
"""
_EXECUTES = "countdown intermediate_integration polynomial_multiplication simple_integration"
REFUSED = {
    **dict.fromkeys(_PAYS_GUESSES.split(), "its verifier scores wrong answers 1"),
    **dict.fromkeys(_EXECUTES.split(), "its verifier executes the answer, by sympy's parse_expr"),
    "codeio": "it runs snippets of the library in this process",
    "composite": "name its parts, as in --task reasoning_gym/leg_counting,reasoning_gym/lcm",
}
"""Generators that are no tasks, and why."""
EVALUATING = (
    *(f"algorithmic.{name}" for name in ("binary_matrix", "number_sorting", "spiral_matrix", "string_insertion")),
    "games.n_queens",
)
"""Modules whose verifiers call `eval`, to read lists."""
GRADING_S = 5.0
"""Seconds of processor time in which an answer is scored; one that takes longer is wrong."""
MAX_ANSWER_CHARACTERS = 10_000
FIELDS = ("question", "answer", "metadata")


@dataclass(frozen=True, kw_only=True)
class ReasoningGymOptions(TaskOptions):
    """Which problems are made, and how they are posed."""

    prefix = "reasoning_gym."
    size: Count = 500
    """Problems to make; those that come twice count once."""
    seed: Natural = 0
    """Seed of the problems."""
    generator: str = ""
    """JSON object with options of the generator, such as {"min_animals": 2}. Empty: its own defaults."""
    prompt: Literal["default", "DeepSeekZero", "simple", "direct", "chain_of_draft"] = "default"
    """Which of the library's system prompts stands before the question."""
    held_out_share: HeldOut = 0.2
    """Share of the problems that is never trained on."""


def define(name: str) -> TaskDefinition:
    """The task of that generator. A name that the library does not know is refused with those that are near."""
    known = library().factory.DATASETS
    near = " or ".join(difflib.get_close_matches(name, known, n=3)) or ", ".join(sorted(known))
    require(name in known, f"reasoning-gym has no generator {name!r}: did you mean {near}?")
    require(name not in REFUSED, f"reasoning_gym/{name} is no task: {REFUSED.get(name)}")

    def dataset(options: ReasoningGymOptions) -> Dataset:
        options.require_no_data("problems")
        generator(name, options.generator)  # bad options are refused now
        return DeferredDataset(lambda: _problems(name, options))

    def verify(options: ReasoningGymOptions) -> Callable[[str, Example], Reward]:
        return functools.partial(reward, name=name, generator_options=options.generator)

    def more(options: ReasoningGymOptions) -> dict[str, Any]:
        return {"warm": functools.partial(generator, name, options.generator), "solution": solution}

    return TaskDefinition(dataset, verify, ReasoningGymOptions, more)


def reward(completion: str, example: Example, name: str, generator_options: str) -> Reward:
    """The verifier's score of the answer, within bounds."""
    before, closed, _ = after_thoughts(completion).rpartition("</answer>")
    answer = library().utils.extract_answer(before + closed) if closed else None
    parts = {"answered": float(answer is not None), "timeout": 0.0}
    if answer is None or len(answer) > MAX_ANSWER_CHARACTERS:
        return Reward(0.0, parts)
    entry, verify = {field: example[field] for field in FIELDS}, generator(name, generator_options).score_answer
    try:
        with bounded(GRADING_S):
            return Reward(_score(verify, answer, entry), parts)
    except OutOfTime:
        return Reward(0.0, {**parts, "timeout": 1.0})


def _score(verify: Any, answer: str, entry: Mapping[str, Any]) -> float:  # noqa: ANN401 - the library's
    """The verifier's score of an answer, 0 for one on which it raises. The problem's own is right."""
    own = str(entry["answer"] or "")
    if own.strip() and answer.strip() == own.strip():
        return 1.0
    if re.search(r"nan|inf", answer, re.IGNORECASE) and re.fullmatch(r"[^a-zA-Z]+|.*\di", own):
        return 0.0  # a comparison with it is false, or true, whatever stands there
    try:
        score = verify(answer, dict(entry))
    except Exception:  # a verifier may raise anything for what it cannot read
        return 0.0
    return float(score) if isinstance(score, int | float) and 0 <= score <= 1 else 0.0


def solution(example: Example) -> str | None:
    """The library's own answer; None for a problem that has none, of which any answer that fits is right."""
    return None if example["answer"] is None else f"<answer>{example['answer']}</answer>"


@functools.lru_cache(maxsize=64)
def generator(name: str, options: str, size: int = 1, seed: int = 0) -> Any:  # noqa: ANN401 - the library's
    """The library's dataset, with its verifier. What it prints goes to stderr, and what it raises is a UserError."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return library().create_dataset(name, **{**json.loads(options or "{}"), "size": size, "seed": seed})
    except Exception as error:  # the library's code may raise anything
        why = " ".join(f"{type(error).__name__}: {error}".split())
        given = f"with the options {options or '{}'}, a JSON object"
        raise UserError(f"reasoning_gym/{name} cannot be made {given}: {why:.200}") from error


def _problems(name: str, options: ReasoningGymOptions) -> Dataset:
    made = generator(name, options.generator, options.size, options.seed)
    system = library().utils.SYSTEM_PROMPTS[options.prompt]
    examples, left_out = dict[str, Example](), 0
    for number in range(options.size):
        with contextlib.redirect_stdout(sys.stderr):
            entry = made[number]
        own, fields = entry["answer"], {field: entry[field] for field in FIELDS}
        if own is not None and not _scores_own(made.score_answer, own, fields):
            left_out += 1
            continue
        key = identity(str(entry["question"]))
        examples.setdefault(key, Example(key, chat(system, str(entry["question"])), fields))
    if left_out:
        logger.warning(f"reasoning_gym/{name}: {left_out} of {options.size} problems left out, whose own answers fail")
    return split(examples.values(), options.held_out_share, by=_grouping([*examples.values()]))


def _scores_own(verify: Any, own: str, fields: dict[str, Any]) -> bool:  # noqa: ANN401 - the library's
    with contextlib.suppress(Exception):  # a verifier may raise anything for what it cannot read
        return bool(verify(own, fields) == 1)
    return False


def _grouping(examples: list[Example]) -> Callable[[Example], str]:
    """What problems share that are on one side: their words in any order, unless most problems have the same words,
    such as boards of the same pieces.
    """
    return same_problem if 2 * len(set(map(same_problem, examples))) >= len(examples) else identity_of


def same_problem(example: Example) -> str:
    """What two problems share that differ only in the order of words or numbers: `lcm of 24, 92`, `lcm of 92, 24`."""
    return " ".join(sorted(re.findall(r"\w+|[^\w\s]", example["question"])))


@functools.cache
def library() -> Any:  # noqa: ANN401 - the library
    """reasoning-gym, loaded when first needed, with verifiers that execute nothing of an answer."""
    with installed("reasoning-gym", "reasoning-gym"), warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of a library that it uses
        import reasoning_gym
        import reasoning_gym.utils
    for module in EVALUATING:
        vars(importlib.import_module(f"reasoning_gym.{module}"))["eval"] = ast.literal_eval
    return reasoning_gym
