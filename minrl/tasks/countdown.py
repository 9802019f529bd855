"""Countdown: reach a target with each of the given numbers used exactly once.

    numbers 3 7 5 target 9    ->    <answer> 7 + 5 - 3 </answer>

The policy may think before it answers. The demonstrations for the embedded base model try sums in random order until
one fits or patience runs out, and answer with any of the sums they tried: about four of ten are right. What is left to
learn is to continue until a sum fits, and to answer with that one.

The split goes by the numbers: all targets of three numbers are on one side.
"""

import ast
import itertools
import operator
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from minrl.dataflow import Example, Reward
from minrl.tasks.answers import plain_characters, unwrapped
from minrl.tasks.task import Dataset, HeldOut, TaskOptions, chat, extract_answer, split
from minrl.utils.settings import Bound

INSTRUCTIONS = (
    "Combine the numbers with {operators} so that the result is the target. Use each number exactly once; "
    "parentheses are allowed. Think inside <think> </think>, then give the expression alone, without an equals "
    "sign, inside <answer> </answer>."
)
FORMAT_REWARD = 0.1
MAX_ANSWER_CHARACTERS = 200
PATIENCE = 0.65
"""Probability that a demonstration continues after a sum that does not fit."""
OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_EXPRESSION = re.compile(r"[-+*/() 0-9]+")
_LATEX = [
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])"), "*"),
    (re.compile(r"\\div(?![A-Za-z])"), "/"),
    (re.compile(r"\\(?:left|right)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"((\1)/(\2))"),
]


@dataclass(frozen=True, kw_only=True)
class CountdownOptions(TaskOptions):
    """Which problems are posed."""

    prefix = "countdown."
    max_number: Annotated[int, Bound(least=5)] = 10
    """The numbers are drawn from 1 to this one."""
    held_out_share: HeldOut = 0.2
    """Share of the problems that is never trained on."""


def reward(completion: str, example: Example) -> Reward:
    """1 if the one answer uses each number once and reaches the target, 0.1 if it uses them and misses, else 0.

    >>> example = Example("3,5,7=9", "", {"numbers": [3, 7, 5], "target": 9})
    >>> reward("<answer> 7 + 5 - 3 </answer>", example).value
    1.0
    """
    numbers, target = example["numbers"], example["target"]
    parsed = evaluate_expression(extract_answer(completion) or "")
    if parsed is None or sorted(parsed[1]) != sorted(numbers):
        return Reward(0.0, {"format": 0.0, "correct": 0.0})
    correct = float(parsed[0] == target)
    return Reward(max(correct, FORMAT_REWARD), {"format": 1.0, "correct": correct})


def evaluate_expression(text: str, exact: bool = False) -> tuple[Fraction, list[int]] | None:
    """The exact value of an arithmetic expression and the numbers in it; None for anything else.

    Only integers with +, -, *, / between and - before them count. Unless `exact`, LaTeX, emphasis around the expression
    and signs that look alike are read too. The syntax tree is walked; nothing is executed.

    >>> evaluate_expression("7 + 5 - 3")
    (Fraction(9, 1), [7, 5, 3])
    >>> evaluate_expression("9 ** 9") is None and evaluate_expression("+3") is None
    True
    """
    used: list[int] = []
    if len(text) > MAX_ANSWER_CHARACTERS:
        return None
    if not exact:
        text = unwrapped(plain_characters(text))
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
        text = " ".join(text.split())
    if _EXPRESSION.fullmatch(text) is None:
        return None
    try:
        return _walk(ast.parse(text, mode="eval").body, used), used
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _walk(node: ast.expr, used: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            used.append(value)
            return Fraction(value)
        case ast.BinOp(left, sign, right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_walk(left, used), _walk(right, used))
        case ast.UnaryOp(ast.USub(), number):  # reaches no target that a minus between two numbers does not
            return -_walk(number, used)
    raise ValueError(f"not arithmetic: {ast.dump(node)[:80]}")


def sums(numbers: list[int]) -> Iterator[tuple[str, str, int]]:
    """Every sum over the numbers that never falls below 0: its working, its expression, its value.

    >>> next(sums([3, 5, 7]))
    ('3 + 5 = 8 + 7 = 15', '3 + 5 + 7', 15)
    """
    for order in itertools.permutations(numbers):
        for signs in itertools.product("+-", repeat=len(numbers) - 1):
            total = order[0]
            working = expression = str(total)
            for sign, number in zip(signs, order[1:], strict=True):
                total += number if sign == "+" else -number
                working += f" {sign} {number} = {total}"
                expression += f" {sign} {number}"
                if total < 0:
                    break
            else:
                yield working, expression, total


def dataset(options: CountdownOptions) -> Dataset:
    """All problems of three numbers from 1 to `max_number` that addition and subtraction solve."""
    options.require_no_data("problems")
    return split(_examples(options.max_number), options.held_out_share, by=numbers_of)


def more(options: CountdownOptions) -> dict[str, Any]:
    """What lets the embedded base model play it."""

    def demonstrations(example: Example, rng: random.Random) -> str:
        attempts = list(sums(example["numbers"]))
        rng.shuffle(attempts)
        tried: dict[int, tuple[str, str]] = {}
        for working, expression, value in attempts:
            if value not in tried:
                fits = value == example["target"]
                tried[value] = (f"{working} {'yes' if fits else 'no'}", expression)
                if fits or rng.random() >= PATIENCE:
                    break
        workings, expressions = zip(*tried.values(), strict=True)
        rng.random()  # so that the base models of earlier runs are the same
        return f"<think> {' ; '.join(workings)} </think> <answer> {rng.choice(expressions)} </answer>"

    def solution(example: Example) -> str:
        expression = next(one for _, one, value in sums(example["numbers"]) if value == example["target"])
        return f"<think> </think> <answer> {expression} </answer>"

    return {
        "demonstrations": demonstrations,
        "vocabulary": words(options),
        "solution": solution,
        "cheap": True,
    }


def numbers_of(example: Example) -> str:
    """The numbers, sorted. A demonstration that tries their sums writes down the solutions for all their targets."""
    return ",".join(map(str, sorted(example["numbers"])))


def words(options: CountdownOptions) -> tuple[str, ...]:
    """The vocabulary of problems and demonstrations: no sum is above three times the largest number."""
    numbers = [str(number) for number in range(3 * options.max_number + 1)]
    signs = ["numbers", "target", "<think>", "</think>", "<answer>", "</answer>", "+", "-", "=", ";", "yes", "no"]
    return (*numbers, *signs)


def _examples(max_number: int) -> Iterator[Example]:
    instructions = INSTRUCTIONS.format(operators="+, -, * and /")
    for numbers in itertools.combinations_with_replacement(range(1, max_number + 1), 3):
        for target in sorted({value for _, _, value in sums(list(numbers)) if value > 0}):
            identity = f"{','.join(map(str, numbers))}={target}"
            shown = list(numbers)
            random.Random(identity).shuffle(shown)
            question = f"numbers {' '.join(map(str, shown))} target {target}"
            yield Example(identity, chat(instructions, question), {"numbers": shown, "target": target})
